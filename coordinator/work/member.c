#include "coordinator/work/member.h"

#include "coordinator/work/ahead.h"
#include "coordinator/work/cost.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"
#include "coordinator/decide/admit.h"
#include "coordinator/decide/lease.h"
#include "coordinator/outer/outer_exec.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/net/http/http_server.h"

/* Time for a reconnect, in which a killed process does not come back.  A worker that comes later
 * gets its task again if nobody has it by then. */
#define DOUBTS_MAX 3 /* doubted outer steps of a worker; a wrong one counts as so many */
#define CLOSED_MS 700
#define PROGRESS_MIN_MS 60000
#define BEGIN_MIN_MS 2000
#define MINUTE_MS 60000ull
#define SMALL_MAX_MS (30u * 60 * 1000)
#define SMALL_TIMES_MAX 16
#define SLOW_MAX 16
#define STUCK_MAX_MS (5u * 60 * 1000) /* patience with a slow step ends at five times that */

void member_heard(struct coordinator *co, struct worker *w)
{
    w->heard_ms = core_now(co);
}

/* Could another worker, no worse than this one, take the task at once? */
static bool others_idle(const struct coordinator *co, const struct worker *w, const struct task *t)
{
    const struct job *j = state_job(&co->state, t->job_id);
    const struct list *parked = &co->state.parked;
    const uint64_t now = core_now(co);
    if (query_withheld(&co->state, j) != NULL)
        return false;
    for (const struct list *l = parked->next; l != parked; l = l->next) {
        const struct worker *o = list_entry(l, struct worker, parked_at);
        const bool behind = t->kind == TASK_TRAIN && ahead_is_behind(o, j);
        if (o != w && !behind && worker_standing(o) <= worker_standing(w) &&
            query_could_have(j, t, o, now))
            return true;
    }
    return false;
}

/* Has the worker made no progress with the task, without an earlier result in its favour? */
static bool is_unbegun(const struct coordinator *co, const struct worker *w, const struct task *t)
{
    return !t->begun && worker_standing(w) != STANDING_PROVEN &&
           core_now(co) - t->progress_ms > BEGIN_MIN_MS && others_idle(co, w, t);
}

static uint64_t longer(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* How long the bytes of a worker's outer step may move: twice as long as its results do, and where
 * that is not known or slower at 1 Mbit/s.  It reads contributions and the files of a version, and
 * writes those of the next. */
static uint64_t outer_bytes_ms(const struct job *j, const struct worker *w, const struct task *t)
{
    const struct module_rec *m = t->kind == TASK_OUTER ? job_module(j, t->outer.module_id) : NULL;
    const struct outer_step *s = m != NULL ? m->at_worker : NULL;
    uint64_t bytes = 0;
    for (int i = 0; s != NULL && i < OUTER_BUFFER; i++)
        bytes += 2 * s->old[i].size;
    for (size_t i = 0; s != NULL && i < s->n_contributions; i++)
        bytes += s->contributions[i].blob.size;
    const double ms = (double)bytes / fmax(LEASE_MOVED_FLOOR, w->sends_bytes_per_s / 2000);
    return ms < LEASE_MOVED_MAX_MS ? (uint64_t)ms : LEASE_MOVED_MAX_MS;
}

/* How long a task may take: for a phase by the times of the job's earlier phases, of all workers
 * and of this one, or before there are any by the job's own bound, if it has one; for other tasks
 * also by the time in which their data passed, or would pass.  Twice as long each time that it was
 * taken from a worker, so that two slow ones do not take it from each other for ever. */
static uint64_t limit_ms(struct job *j, const struct worker *w, const struct task *t)
{
    const bool phase = task_has_phase(t);
    const uint64_t own = w->phase_job == j->id ? w->phase_ms : 0;
    const uint64_t seen = phase ? job_time_of(&j->phase_ms, lease_limit) : 0;
    const uint64_t given = phase ? (uint64_t)j->spec.outer.seconds * 1000 : 0;
    const uint64_t most = seen > 0 ? longer(seen, 2 * own)
                                   : longer(task_traits[t->kind].most_min * MINUTE_MS, 2 * given);
    return (most << (t->slow < SLOW_MAX ? t->slow : SLOW_MAX)) + t->moved.ms +
           outer_bytes_ms(j, w, t);
}

/* Phases have their own measure, and outer steps can be made here.  Only a task that has used a
 * quarter of its time is looked at: a look goes through all connections. */
static void look_at_data(struct coordinator *co, const struct worker *w)
{
    struct task *t = task_memory(state_task(&co->state, w->task_id));
    if (t != NULL && t->kind != TASK_TRAIN && t->kind != TASK_OUTER &&
        4 * (core_now(co) - t->leased_ms) >= task_traits[t->kind].most_min * MINUTE_MS &&
        lease_moved_due(&t->moved, core_now(co)))
        lease_moved_look(&t->moved, core_now(co),
                         w->gone_bytes + http_server_moved(co->http, access_holder_worker(w->id)));
}

void member_lease(const struct coordinator *co, const struct worker *w, struct lease_decision *ret)
{
    const struct task *t = w->task_id ? state_task(&co->state, w->task_id) : NULL;
    struct job *j = t ? state_job(&co->state, t->job_id) : NULL;
    struct lease_in in = {
        .now_ms = core_now(co),
        .heard_ms = w->heard_ms,
        .closed_ms = w->closed_ms,
        .progress_ms = t ? t->progress_ms : 0,
        .median_gap_ms = j ? job_time_of(&j->phase_gaps, lease_median) : 0,
    };
    if (t != NULL && t->progress_gap_ms > in.median_gap_ms)
        in.median_gap_ms = t->progress_gap_ms;
    if (t != NULL && j != NULL) {
        in.begin_ms = job_time_of(&j->begin_ms, lease_median);
        if (t->progress_gap_ms > in.begin_ms)
            in.begin_ms = t->progress_gap_ms;
        in.unbegun = is_unbegun(co, w, t);
    }
    if (t != NULL && j != NULL) {
        in.held_ms = core_now(co) - t->leased_ms;
        in.limit_ms = limit_ms(j, w, t);
        /* An outer step can be made here if no worker makes it. */
        in.idle = in.held_ms > in.limit_ms && (t->kind == TASK_OUTER || others_idle(co, w, t));
    }
    const struct lease_options o = {co->opt.heartbeat_ms, co->opt.lease_ms, CLOSED_MS,
                                    PROGRESS_MIN_MS, BEGIN_MIN_MS};
    lease_decide(&in, &o, ret);
}

void member_unpark(struct coordinator *co, struct worker *w, const char *why)
{
    struct rpc_request *req = state_unpark(w);
    if (req == NULL)
        return;
    rpc_request_on_gone(req, NULL, NULL);
    rpc_fail(req, -ERR_CANCELLED, true, 0, "%s", why);
}

/* Takes a lease away: a stuck worker stays and loses only its task; another is lost. */
static void take_lease(struct coordinator *co, struct worker *w, const char *reason)
{
    struct task *t = state_edit_task(&co->state, state_task(&co->state, w->task_id));
    if (t != NULL && t->state == TASK_LEASED && t->worker_id == w->id)
        task_requeue(co, t, reason);
    w->lost_job = t != NULL ? t->job_id : 0;
    w->task_id = 0;
}

void member_lost(struct coordinator *co, struct worker *w, enum worker_state to, const char *reason)
{
    char text[REASON_MAX];
    (void)snprintf(text, sizeof(text), "worker %llu (%s) %s: %.150s", (unsigned long long)w->id,
                   w->name, to == WORKER_LEFT ? "left" : "is lost", reason);
    struct task *t = task_memory(state_task(&co->state, w->task_id));
    take_lease(co, w, text);
    if (t != NULL && t->state == TASK_PENDING) {
        t->lost_by = to == WORKER_LOST ? w->id : 0;
        t->gone = w->id;
    }
    member_unpark(co, w, "this worker was taken for lost");
    cost_reckon(co, w, 0);
    state_set_worker_state(&co->state, w, to);
    w->drain = w->drain && to != WORKER_LEFT;
    (void)str_copy(w->state_reason, sizeof(w->state_reason), reason);
    w->activity[0] = w->waiting_for[0] = '\0';
    w->throughput = 0;
    w->disk_room_bytes = 0;
    devices_gone(&w->devices);
    core_say(co, 0, w->id, "%s", text);
    core_event(co, &(struct event){.kind = EVENT_WORKER, .worker_id = w->id, .text = text});
    core_touch(co);
}

void member_revoke(struct coordinator *co, struct worker *w, const char *reason)
{
    if (w->revoked_unix_ms != 0)
        return;
    w->revoked_unix_ms = (int64_t)clock_wall_ms();
    if (w->state == WORKER_HERE)
        member_lost(co, w, WORKER_LEFT, reason);
    else
        (void)str_copy(w->state_reason, sizeof(w->state_reason), reason);
    if (w->peer != NULL) {
        rpc_peer_set_user(w->peer, NULL);
        rpc_peer_kick(w->peer, reason);
    }
    w->peer = NULL;
    http_server_cut(co->http, access_holder_worker(w->id));
}

static void forward(uint64_t *then_ms, uint64_t by_ms, uint64_t now_ms)
{
    if (*then_ms != 0 && *then_ms < now_ms)
        *then_ms = now_ms - *then_ms < by_ms ? now_ms : *then_ms + by_ms;
}

/* The clocks of leases and of rounds' grace stand still while the coordinator does not listen:
 * between two looks further apart than a tick the loop was stopped, and while nothing can be
 * written, or a commit takes long, no worker can join and no report is answered.  The silence is
 * then ours. */
static void stand_still(struct coordinator *co)
{
    uint64_t now = core_now(co), ms = now - co->checked_ms;
    co->checked_ms = now;
    if (co->store_ok && !core_stalls(co))
        ms = ms > CORE_TICK_MS ? ms - CORE_TICK_MS : 0;
    if (ms > CLOSED_MS) /* workers may have hung up meanwhile, and need time to dial again */
        co->awaited_ms = now + CORE_REDIAL_MS;
    for (size_t i = 0; ms > 0 && i < co->state.n_workers; i++) {
        struct worker *w = worker_memory(co->state.workers[i]);
        struct task *t = task_memory(state_task(&co->state, w->task_id));
        if (w->state != WORKER_HERE)
            continue;
        forward(&w->heard_ms, ms, now);
        forward(&w->closed_ms, ms, now);
        if (t != NULL) {
            forward(&t->progress_ms, ms, now);
            forward(&t->leased_ms, ms, now);
        }
    }
    for (size_t i = 0; ms > 0 && i < co->state.n_jobs; i++)
        for (uint32_t m = 0; m < co->state.jobs[i]->comp.n_modules; m++)
            forward(&module_memory(&co->state.jobs[i]->modules[m])->quorum_ms, ms, now);
}

static bool is_silent(const struct coordinator *co, const struct worker *w)
{
    return w->state == WORKER_HERE && w->closed_ms == 0 &&
           core_now(co) - w->heard_ms > co->opt.lease_ms && core_now(co) >= w->heard_ms;
}

/* Are so many workers silent at once that the fault is more likely ours?  Says so once. */
static bool hold(struct coordinator *co)
{
    size_t silent = 0, here = 0;
    for (size_t i = 0; i < co->state.n_workers; i++) {
        here += co->state.workers[i]->state == WORKER_HERE;
        silent += is_silent(co, co->state.workers[i]);
    }
    const bool holds = lease_holds(silent, here, co->held_ms, core_now(co));
    if (holds && co->held_ms == 0) {
        core_say(co, 0, 0,
                 "%zu of %zu workers are silent at once: their leases are held for %u s, as if we "
                 "were cut off",
                 silent, here, LEASE_HOLD_MS / 1000);
        co->held_ms = core_now(co);
    }
    if (silent <= LEASE_HOLD_MIN)
        co->held_ms = 0;
    return holds;
}

/* The worker answers but makes no progress: only its task goes.  If it has not begun at all it has
 * failed, and also if it was at anything other than a phase for so long. */
static void take_from(struct coordinator *co, struct worker *w, const struct lease_decision *d)
{
    struct task *t = task_memory(state_task(&co->state, w->task_id));
    char text[REASON_MAX];
    (void)snprintf(text, sizeof(text), "worker %llu (%s) lost its lease: %.150s",
                   (unsigned long long)w->id, w->name, d->reason);
    core_say(co, 0, w->id, "%s", text);
    const uint64_t gap = t != NULL ? core_now(co) - t->progress_ms : 0;
    const bool idled = t != NULL && t->reached.steps == 0 && t->reached.samples == 0 &&
                       gap > LEASE_BEATS * (uint64_t)co->opt.heartbeat_ms;
    /* It may be slow, not stuck: the next attempt gets five times as long. */
    if (t != NULL && d->stuck)
        t->progress_gap_ms = gap < STUCK_MAX_MS ? gap : STUCK_MAX_MS;
    if (t != NULL && !d->stuck)
        t->slow++;
    w->doubted_folds += t != NULL && t->kind == TASK_OUTER && !d->stuck;
    const bool too_long = t != NULL && !task_has_phase(t);
    if (t != NULL)
        ahead_lost(w, t);
    take_lease(co, w, text);
    if (d->stuck || idled || too_long)
        member_failed(co, w);
    core_touch(co);
}

void member_check(struct coordinator *co)
{
    stand_still(co);
    const bool holds = co->store_ok && hold(co);
    for (size_t i = 0; co->store_ok && i < co->state.n_workers; i++) {
        struct lease_decision d;
        if (co->state.workers[i]->state != WORKER_HERE)
            continue;
        look_at_data(co, co->state.workers[i]);
        member_lease(co, co->state.workers[i], &d);
        const bool silent = is_silent(co, co->state.workers[i]);
        if (d.verdict != LEASE_LOST || (silent && holds))
            continue;
        struct worker *w = state_edit_worker(&co->state, co->state.workers[i]);
        if (w->closed_ms == 0 && !silent)
            take_from(co, w, &d);
        else
            member_lost(co, w, WORKER_LOST, d.reason);
    }
}

void member_closed(struct coordinator *co, struct worker *w)
{
    w->peer = NULL;
    w->closed_ms = core_now(co);
    if (w->closed_ms < co->awaited_ms) /* its silence counts from when it should be back */
        w->heard_ms = w->closed_ms = co->awaited_ms;
    if (w->state == WORKER_HERE && w->task_id == 0)
        log_debug("member", "connection of worker %llu is gone", (unsigned long long)w->id);
}

void member_succeeded(struct coordinator *co, struct worker *w, bool judged)
{
    if (!judged)
        member_proved(w);
    w->tasks_done++;
}

void member_proved(struct worker *w)
{
    w->failures_row = 0;
}

void member_failed(struct coordinator *co, struct worker *w)
{
    w->failures_row++;
    w->tasks_failed++;
    uint64_t ms = admit_quarantine_ms(w->failures_row, w->strikes);
    if (ms > 0) {
        w->quarantined_until_ms = core_now(co) + ms;
        w->failures_row = 0;
        w->strikes++;
        core_say(co, 0, w->id, "worker %llu (%s) is in quarantine for %llu s: %d failures in a row",
                 (unsigned long long)w->id, w->name, (unsigned long long)(ms / 1000),
                 ADMIT_FAILURES_ROW);
    }
}

void member_note_small(struct coordinator *co, struct worker *w, const struct task *t,
                       uint64_t wait_ms)
{
    const struct job *j = state_job(&co->state, t->job_id);
    struct schedule_small s = {.job_id = t->job_id, .kind = (int)t->kind};
    unsigned at = 0, n = w->n_small < WORKER_SMALL_MAX ? w->n_small : WORKER_SMALL_MAX;
    s.network = j ? query_network(j, t) : 0;
    while (at < n && (w->small[at].job_id != s.job_id || w->small[at].kind != s.kind ||
                      w->small[at].network != s.network))
        at++;
    if (at == n)
        at = w->n_small++ % WORKER_SMALL_MAX;
    else
        s.times = w->small[at].times < SMALL_TIMES_MAX ? w->small[at].times + 1 : SMALL_TIMES_MAX;
    wait_ms <<= s.times;
    s.until_ms = core_now(co) + (wait_ms < SMALL_MAX_MS ? wait_ms : SMALL_MAX_MS);
    w->small[at] = s;
}

bool member_others_fit(const struct coordinator *co, const struct worker *w, const struct task *t)
{
    const struct job *j = state_job(&co->state, t->job_id);
    for (size_t i = 0; i < co->state.n_workers; i++) {
        const struct worker *o = co->state.workers[i];
        if (o != w && o->state == WORKER_HERE && !worker_goes(o) &&
            query_fits(j, t->kind, query_network(j, t), o, core_now(co)))
            return true;
    }
    return false;
}

bool member_none_fits(const struct coordinator *co, const struct task *t)
{
    const struct job *j = state_job(&co->state, t->job_id);
    const uint32_t network = query_network(j, t);
    bool small = false;
    for (size_t i = 0; i < co->state.n_workers; i++) {
        const struct worker *w = co->state.workers[i];
        if (w->state != WORKER_HERE || worker_goes(w))
            continue;
        if (query_fits(j, t->kind, network, w, core_now(co)))
            return false;
        small |= query_is_small(j, t->kind, network, w, core_now(co));
    }
    return small;
}

bool member_could_do(const struct coordinator *co, const struct worker *w, const struct task *t)
{
    const struct job *j = state_job(&co->state, t->job_id);
    return w->state == WORKER_HERE && !worker_goes(w) && w->quarantined_until_ms <= core_now(co) &&
           query_fits(j, t->kind, query_network(j, t), w, core_now(co));
}

bool member_elsewhere(const struct coordinator *co, uint64_t origin, const struct task *t)
{
    for (size_t i = 0; i < co->state.n_workers; i++) {
        const struct worker *w = co->state.workers[i];
        if (worker_origin(w) != origin && member_could_do(co, w, t) &&
            (!task_is_aside(t) || failure_count(&t->failed, w->id) < TASK_FAILURES_MAX))
            return true;
    }
    return false;
}

bool member_another(const struct coordinator *co, uint64_t worker, const struct task *t)
{
    for (size_t i = 0; i < co->state.n_workers; i++)
        if (co->state.workers[i]->id != worker && member_could_do(co, co->state.workers[i], t))
            return true;
    return false;
}

bool member_confirms(const struct coordinator *co, uint64_t worker, uint64_t origin,
                     const struct task *t)
{
    const struct worker *w = state_worker(&co->state, t->worker_id);
    bool others = false;
    if (w == NULL)
        return false;
    for (size_t i = 0; i < co->state.n_workers; i++)
        others |= co->state.workers[i]->state == WORKER_HERE && co->state.workers[i]->id != worker;
    return worker_origin(w) != origin ||
           (!member_elsewhere(co, origin, t) && (w->id != worker || !others));
}

bool member_may_work(struct coordinator *co, const struct worker *w, uint64_t *ret_until_ms,
                     char reason[REASON_MAX])
{
    const struct admit_work in = {
        .now_ms = core_now(co),
        .quarantined_until_ms = w->quarantined_until_ms,
        .drain = worker_goes(w),
        .store_ok = co->store_ok && !co->disk_full,
        .strikes = w->strikes,
        .unheard = w->n_verdicts > APPLIED_MAX ? w->n_verdicts : 0,
    };
    return admit_work(&in, ret_until_ms, reason);
}

bool member_may_fold(const struct worker *w)
{
    /* Another release may write other bits, or not know every field of a step. */
    return strcmp(w->version, SKERRY_VERSION) == 0 && w->tasks_done > 0 && w->strikes == 0 &&
           w->doubted_folds < DOUBTS_MAX;
}

static bool may_fold(const struct worker *w)
{
    return w->state == WORKER_HERE && !worker_goes(w) && member_may_fold(w);
}

bool member_somebody_folds(const struct coordinator *co, const struct job *j)
{
    for (size_t i = 0, n = query_withheld(&co->state, j) ? 0 : co->state.n_workers; i < n; i++)
        if (may_fold(co->state.workers[i]))
            return true;
    return false;
}

uint64_t member_first_through(const struct coordinator *co, uint64_t folded_by)
{
    uint64_t best = 0;
    double least = INFINITY;
    for (size_t i = 0; i < co->state.n_workers; i++) {
        const struct worker *w = co->state.workers[i];
        const double bytes = w->id == folded_by ? 1 : 2; /* relative to those that go up */
        if (w->sends_bytes_per_s > 0 && may_fold(w) && bytes / w->sends_bytes_per_s < least) {
            least = bytes / w->sends_bytes_per_s;
            best = w->id;
        }
    }
    return best;
}

void member_doubt_fold(struct coordinator *co, struct worker *w, bool wrong, int why)
{
    /* A long contribution is not its fault, nor is a failure of our store. */
    w->doubted_folds += wrong ? DOUBTS_MAX : why == -ERR_HASH || why == -ERR_FORMAT;
    if (wrong)
        member_failed(co, w);
}

void member_was_wrong(struct coordinator *co, struct worker *w)
{
    w->failures_row = ADMIT_FAILURES_ROW - 1;
    member_failed(co, w);
}

void member_verdict(struct coordinator *co, uint64_t worker_id, const struct verdict *v)
{
    struct worker *w = state_edit_worker(&co->state, state_worker(&co->state, worker_id));
    if (w != NULL && !worker_add_verdict(w, v))
        core_say(co, 0, w->id,
                 "worker %llu (%s) has not heard what became of %d contributions: the oldest is "
                 "forgotten, and a residual of it may be sent twice",
                 (unsigned long long)w->id, w->name, VERDICTS_MAX + 1);
}
