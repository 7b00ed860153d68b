#include "coordinator/job/rounds.h"

#include "coordinator/decide/schedule.h"
#include "coordinator/job/draw.h"
#include "coordinator/job/folds.h"
#include "coordinator/job/spot_check.h"
#include "coordinator/work/ahead.h"
#include "coordinator/work/gc.h"
#include "coordinator/work/member.h"
#include "coordinator/work/metrics.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"

#include "common/base/clock.h"

/* The grace of phases bounded by time, if the job has none: an eighth of a phase. */
#define ASYNC_GRACE_SHARE 8

/* ---- beginning ----------------------------------------------------------- */

/* The samples of a task depend only on the order in which tasks are made. */
static bool make_task(struct coordinator *co, struct job *j, uint32_t p, uint32_t r)
{
    struct replica_rec *rr = job_edit_replica(j, p, r);
    struct task *t = task_make(co, j, TASK_TRAIN);
    if (t == NULL)
        return false;
    t->path = p;
    t->train.replica = r;
    t->train.round = j->paths[p].round;
    t->train.first_step = rr->step;
    rr->task_id = t->id;
    if (!task_take_samples(co, j, t)) {
        /* Others hold them all, as callers mostly know: it is made when they are back. */
        rr->task_id = 0;
        state_drop_task(&co->state, t);
        return false;
    }
    return true;
}

static void begin_round(struct coordinator *co, struct job *j, uint32_t p)
{
    struct path_rec *path = job_edit_path(j, p);
    path->ready = true;
    path->ready_ms = core_now(co);
    path->ready_unix_ms = (int64_t)clock_wall_ms();
    path->bytes_up = path->bytes_down = 0;
    core_touch(co);
}

static bool only_fails(const struct worker *w)
{
    return w->tasks_done == 0 && worker_standing(w) == STANDING_FAILING;
}

/* Is the worker at a phase outside the rounds (a CHECK)? */
static bool checks(const struct coordinator *co, const struct worker *w)
{
    const struct task *t = w->task_id != 0 ? state_task(&co->state, w->task_id) : NULL;
    return t != NULL && t->kind == TASK_CHECK;
}

static bool takes_phases(const struct coordinator *co, const struct job *j, uint32_t p,
                         const struct worker *w)
{
    return w->state == WORKER_HERE && !worker_goes(w) && !only_fails(w) &&
           w->quarantined_until_ms <= core_now(co) && !ahead_is_behind(w, j) && !checks(co, w) &&
           query_fits(j, TASK_TRAIN, j->comp.paths[p].network, w, core_now(co));
}

/* Does a worker that takes phases have the replica's moments? */
static bool owner_takes(const struct coordinator *co, const struct job *j, uint32_t p, uint32_t r)
{
    const uint64_t id = j->paths[p].replicas[r].owner;
    const struct worker *w = id ? state_worker(&co->state, id) : NULL;
    return w != NULL && takes_phases(co, j, p, w);
}

/* The path's part of a job's workers: paths that have rounds left divide them, and the remainder
 * goes to the first of these. */
static uint32_t path_part(const struct job *j, uint32_t p, uint32_t workers)
{
    uint32_t paths = 0, before = 0;
    for (uint32_t q = 0; q < j->comp.n_paths; q++)
        if (q == p || j->paths[q].round < (uint32_t)j->spec.outer.rounds) {
            paths++;
            before += q < p;
        }
    return (workers + paths - 1 - before) / paths;
}

/* The path's number of workers: jobs divide the workers that are here, and so do a job's paths. */
static uint32_t workers_for(const struct coordinator *co, const struct job *j, uint32_t p)
{
    struct schedule_claim claims[JOBS_ACTIVE_MAX];
    uint32_t workers = 0;
    size_t n = 0, mine = 0;
    for (size_t i = 0; i < co->state.n_workers; i++)
        workers += takes_phases(co, j, p, co->state.workers[i]);
    for (size_t i = 0; i < co->state.n_jobs && n < JOBS_ACTIVE_MAX; i++) {
        const struct job *o = co->state.jobs[i];
        if (o->state != JOB_RUNNING || (o != j && query_withheld(&co->state, o) != NULL))
            continue;
        mine = o == j ? n : mine;
        claims[n++] =
            (struct schedule_claim){o->quota.priority, o->quota.share, query_phases_at_once(o)};
    }
    workers = n > 0 ? schedule_part(workers, claims, n, mine) : workers;
    const uint32_t k = path_part(j, p, workers);
    const uint32_t most = j->comp.paths[p].replicas;
    return k < 1 ? 1 : k < most ? k : most;
}

/* Has nobody the phase, or one of the workers that are counted?  Who is late with it may be about
 * to leave, or be in quarantine. */
static bool is_counted(const struct coordinator *co, const struct job *j, uint32_t p,
                       const struct task *t)
{
    const struct worker *w =
        t->state == TASK_LEASED ? state_worker(&co->state, t->worker_id) : NULL;
    return w == NULL || takes_phases(co, j, p, w);
}

/* Chooses the replicas with a phase in the round that begins.  If their number is elastic, there
 * are as many as workers, and those whose moments are at one of these come first. */
static void choose(const struct coordinator *co, const struct job *j, uint32_t p, bool *ret_on)
{
    const uint32_t most = j->comp.paths[p].replicas;
    const uint32_t k = j->comp.elastic ? workers_for(co, j, p) : most;
    uint32_t n = 0;
    for (uint32_t r = 0; r < most; r++) {
        const struct task *t = query_phase(&co->state, j, p, r);
        ret_on[r] = t != NULL; /* a late phase goes on */
        n += t != NULL && is_counted(co, j, p, t);
    }
    for (int owned = 1; owned >= 0; owned--)
        for (uint32_t r = 0; r < most && n < k; r++) {
            const bool take = !ret_on[r] && (!owned || owner_takes(co, j, p, r));
            ret_on[r] |= take;
            n += take;
        }
}

/* A replica that has rested, or was late, continues at the path's step: the schedule is the job's.
 * Phases bounded by time differ in steps, and at another step a replica is without its moments: so
 * there only one that has never trained does. */
static void catch_up(struct job *j, uint32_t p, uint32_t r)
{
    uint64_t step = 0;
    const uint64_t own = j->paths[p].replicas[r].step;
    if (j->spec.outer.steps == 0 && own > 0)
        return;
    for (uint32_t i = 0; i < j->comp.paths[p].replicas; i++)
        step = j->paths[p].replicas[i].step > step ? j->paths[p].replicas[i].step : step;
    if (own < step)
        job_edit_replica(j, p, r)->step = step;
}

/* Makes the tasks of the path's phase, in the order of replicas.  Late phases may hold too much of
 * little data: then an elastic round has only as many phases as there are samples for.  False:
 * there are none, and the round must begin later. */
static bool make_tasks(struct coordinator *co, struct job *j, uint32_t p, const bool *on)
{
    const uint32_t most = j->comp.paths[p].replicas;
    uint32_t n = 0, more = 0;
    for (uint32_t r = 0; r < most; r++) {
        n += j->paths[p].replicas[r].task_id != 0;
        more += on[r] && j->paths[p].replicas[r].task_id == 0;
    }
    if (co->state.n_open + more > TASKS_OPEN_MAX ||
        (more > 0 && !j->comp.elastic && !task_has_samples(j, p, more)))
        return false;
    for (uint32_t r = 0; r < most; r++) {
        if (!on[r] || j->paths[p].replicas[r].task_id != 0 ||
            (j->comp.elastic && !task_has_samples(j, p, 1)))
            continue;
        if (j->comp.elastic)
            catch_up(j, p, r);
        if (!make_task(co, j, p, r))
            return false;
        n++;
    }
    return n > 0;
}

static bool make_chosen(struct coordinator *co, struct job *j, uint32_t p)
{
    bool *on = mem_alloc_array(j->comp.paths[p].replicas, sizeof(*on));
    choose(co, j, p, on);
    const bool made = make_tasks(co, j, p, on);
    mem_free(on);
    return made;
}

/* Has nobody begun with an elastic round, and could one begin now?  Then workers that come still
 * take part. */
static bool is_unbegun(const struct coordinator *co, const struct job *j, uint32_t p)
{
    bool unbegun = false;
    const bool joins = j->comp.elastic && query_withheld(&co->state, j) == NULL;
    for (uint32_t r = 0; joins && r < j->comp.paths[p].replicas; r++) {
        const struct task *t = query_phase(&co->state, j, p, r);
        if (t == NULL || t->train.round < j->paths[p].round)
            continue;
        if (t->state != TASK_PENDING || t->attempt > 1)
            return false;
        unbegun = true;
    }
    return unbegun;
}

static void make_phase(struct coordinator *co, struct job *j, uint32_t p)
{
    if (!make_chosen(co, j, p))
        return;
    for (uint32_t l = 0; l < composition_levels(&j->comp, p); l++) {
        struct module_rec *m = module_memory(&j->modules[j->comp.paths[p].modules[l]]);
        if (m->version == j->paths[p].round)
            m->quorum_ms = 0;
    }
    begin_round(co, j, p);
}

/* ---- the result of a phase ----------------------------------------------- */

/* Has the task contributed to every module of its path? */
static bool complete(const struct job *j, const struct task *t)
{
    for (uint32_t l = 0; l < composition_levels(&j->comp, t->path); l++) {
        const struct module_rec *m = &j->modules[j->comp.paths[t->path].modules[l]];
        if (query_contribution(t, m->id, t->train.round) == NULL)
            return false;
    }
    return true;
}

/* Does a contribution of the task wait for a version of its module? */
static bool waits(const struct task *t)
{
    for (size_t i = 0; i < t->train.n_contributions; i++)
        if (t->train.contributions[i].version == 0 && !t->train.contributions[i].refused)
            return true;
    return false;
}

/* Refuses contributions that no version will take. */
static void refuse_old(const struct job *j, struct task *t)
{
    for (size_t i = 0; i < t->train.n_contributions; i++) {
        const struct contribution *c = &t->train.contributions[i];
        const struct module_rec *m = job_module(j, c->module_id);
        if (c->version != 0 || c->refused || m->version == c->base_version ||
            query_takes_late(j, m, c->base_version))
            continue;
        task_edit_contribution(t, c)->refused = true;
        (void)snprintf(t->reason, sizeof(t->reason),
                       "it came too late: module %llu is at version "
                       "%llu",
                       (unsigned long long)m->id, (unsigned long long)m->version);
    }
}

/* Has the task's holder made a contribution? */
static bool holder_gave(const struct task *t)
{
    for (size_t i = 0; i < t->train.n_contributions; i++)
        if (t->train.contributions[i].worker_id == t->worker_id)
            return true;
    return false;
}

/* Ends a task whose worker was lost when everything had been contributed. */
static void end_lost(struct coordinator *co, const struct job *j, struct task *t)
{
    uint64_t held = query_held(t);
    task_settle(co, t, held);
    t->samples = held;
    t->steps = (uint32_t)j->spec.outer.steps;
    t->loss_mean = NAN;
    task_end(co, t, TASK_DONE, "");
}

/* Does the residual that it has left count?  A snapshot was made without one. */
static bool is_applied(const struct contribution *c)
{
    return c->version != 0 && !c->part;
}

static void tell(struct coordinator *co, const struct task *t, uint64_t worker, uint64_t module,
                 bool accepted, const char *reason)
{
    struct verdict v = {.task_id = t->id, .module_id = module, .accepted = accepted};
    (void)str_copy(v.reason, sizeof(v.reason), accepted ? "" : reason);
    member_verdict(co, worker, &v);
}

/* Tells each sender of contributions what became of them: which are in no version and why, then
 * that the others are in one; of all alike in one word. */
static void tell_senders(struct coordinator *co, const struct task *t, const char *reason)
{
    const struct contribution *list = t->train.contributions;
    const size_t n = t->train.n_contributions;
    for (size_t i = 0; i < n; i++) {
        const uint64_t worker = list[i].worker_id;
        bool told = false, any = false;
        for (size_t k = 0; k < n; k++) {
            told |= k < i && list[k].worker_id == worker;
            any |= list[k].worker_id == worker && is_applied(&list[k]);
        }
        for (size_t k = 0; k < n && any && !told; k++)
            if (list[k].worker_id == worker && !is_applied(&list[k]))
                tell(co, t, worker, list[k].module_id, false, reason);
        if (!told)
            tell(co, t, worker, 0, any, reason);
    }
}

static bool all_applied(const struct task *t)
{
    for (size_t i = 0; i < t->train.n_contributions; i++)
        if (t->train.contributions[i].version == 0)
            return false;
    return true;
}

/* Samples of a full phase: one bounded by time may have had too few, or was
 * given another time (query_phase_seconds()). */
static uint64_t full_phase(const struct job *j, const struct task *t)
{
    double budget = j->spec.outer.seconds, took = (double)t->seconds;
    if (budget <= 0 || took <= 0.01)
        return t->samples;
    double full = (double)t->samples * budget / took;
    return full < 1e9 ? (uint64_t)full : 1000000000;
}

/* Adds a phase to the job's figures at once, and to sum, which joins them at the round's end. */
static void add_phase(struct job *j, struct phase_sum *sum, const struct task *t)
{
    const uint64_t trained_ms = t->seconds > 0 ? (uint64_t)((double)t->seconds * 1e3) : 0;
    j->phases_done++;
    j->samples_done += t->samples;
    j->steps_done += t->steps;
    j->steps_skipped += t->skipped;
    j->waited_ms += t->train.waited_ms;
    j->trained_ms += trained_ms;
    sum->phases++;
    sum->samples += t->samples;
    sum->steps += t->steps;
    if (!isnan(t->loss_mean)) {
        sum->loss += (double)t->loss_mean * (double)t->samples;
        sum->weight += (double)t->samples;
    }
}

/* Cancels a phase: contributions that are not folded by now will not be. */
static void cancel_phase(struct coordinator *co, const struct job *j, struct replica_rec *rr,
                         struct task *t)
{
    char reason[REASON_MAX];
    (void)snprintf(reason, sizeof(reason), "round %u of path %u was closed without it",
                   t->train.round, t->path);
    for (size_t i = 0; i < t->train.n_contributions; i++)
        if (t->train.contributions[i].version == 0)
            task_edit_contribution(t, &t->train.contributions[i])->refused = true;
    tell_senders(co, t, reason);
    rr->step = t->train.first_step + (uint64_t)j->spec.outer.steps; /* the schedule goes on */
    task_end(co, t, TASK_CANCELLED, reason);
}

/* The replica's phase is over; if it was applied, it is added to the sum. */
static void settle_replica(struct coordinator *co, struct job *j, struct task *t,
                           struct phase_sum *sum)
{
    struct replica_rec *rr = job_edit_replica(j, t->path, t->train.replica);
    char reason[REASON_MAX];
    rr->task_id = 0;
    if (task_is_open(t) && complete(j, t))
        end_lost(co, j, t);
    if (t->state != TASK_DONE) {
        cancel_phase(co, j, rr, t);
        return;
    }
    refuse_old(j, t);
    rr->owner = t->worker_id;
    rr->samples_last = full_phase(j, t);
    rr->step = rr->moments_step = t->train.first_step + t->steps;
    if (waits(t) || all_applied(t)) {
        gc_drop(co, &rr->moments);
        rr->moments = t->train.moments;
        t->train.moments = (struct blob_ref){0};
    }
    if (waits(t)) {
        job_add_late(j, t->id);
        return;
    }
    (void)str_copy(reason, sizeof(reason), t->reason);
    tell_senders(co, t, reason);
    if (all_applied(t))
        add_phase(j, sum, t);
}

/* As settle_replica(); the schedule has gone on in the rounds that the phase has missed. */
static void settle_missed(struct coordinator *co, struct job *j, struct task *t, uint64_t missed,
                          struct phase_sum *sum)
{
    settle_replica(co, j, t, sum);
    job_edit_replica(j, t->path, t->train.replica)->step += missed * (uint64_t)j->spec.outer.steps;
}

/* ---- phases of rounds that are closed -------------------------------------- */

/* May a phase whose round was closed without it go on for a later version?  One in fragments has
 * mostly contributed already. */
static bool goes_on(const struct job *j, const struct task *t)
{
    bool takes = t->state == TASK_LEASED && !query_streams(j);
    for (uint32_t l = 0; l < composition_levels(&j->comp, t->path) && takes; l++)
        takes = query_takes_late(j, &j->modules[j->comp.paths[t->path].modules[l]], t->train.round);
    return takes;
}

/* A phase of an earlier round has ended: its contributions wait for the next version, and its
 * replica joins the round, unless its worker was lost and the others do without it. */
static void end_late(struct coordinator *co, struct job *j, uint32_t p, uint32_t r, struct task *t)
{
    const bool lost = t->state != TASK_DONE;
    bool others = false;
    (void)task_end_in_part(co, j, t);
    settle_missed(co, j, t, j->paths[p].round - t->train.round - 1, &job_edit_path(j, p)->sum);
    catch_up(j, p, r);
    for (uint32_t i = 0; i < j->comp.paths[p].replicas; i++)
        others |= j->paths[p].replicas[i].task_id != 0;
    if (!j->comp.elastic || !others || (!lost && task_has_samples(j, p, 1)))
        (void)make_task(co, j, p, r);
    core_touch(co);
}

/* Could the replica have its next phase, or do the others of the path do without it? */
static bool may_end(const struct job *j, uint32_t p, uint32_t r)
{
    bool others = false;
    for (uint32_t i = 0; i < j->comp.paths[p].replicas; i++)
        others |= i != r && j->paths[p].replicas[i].task_id != 0;
    return (j->comp.elastic && others) || task_has_samples(j, p, 1);
}

static void take_late(struct coordinator *co, struct job *j, uint32_t p)
{
    for (uint32_t r = 0; r < j->comp.paths[p].replicas && j->doom == NULL; r++) {
        const struct task *t = query_phase(&co->state, j, p, r);
        if (t != NULL && t->train.round < j->paths[p].round && t->state != TASK_LEASED &&
            co->state.n_open < TASKS_OPEN_MAX && may_end(j, p, r))
            end_late(co, j, p, r, state_edit_task(&co->state, t));
    }
}

/* Does an idle worker wait that could begin the phase, or go on with it? */
static bool somebody_idles(const struct state *s, const struct job *j, const struct task *t,
                           uint64_t now_ms)
{
    for (const struct list *l = s->parked.next; l != &s->parked; l = l->next) {
        const struct worker *w = list_entry(l, struct worker, parked_at);
        const bool passed_over = ahead_is_behind(w, j) && ahead_others(s);
        if (!passed_over && query_could_have(j, t, w, now_ms))
            return true;
    }
    return false;
}

bool rounds_coming(const struct state *s, const struct job *j, const struct module_rec *m,
                   uint64_t now_ms)
{
    const bool given_out = query_withheld(s, j) == NULL;
    for (uint32_t p = 0; p < j->comp.n_paths; p++) {
        if (!query_crosses(j, p, m) || j->paths[p].round > m->version)
            continue;
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++) {
            const struct task *t = query_phase(s, j, p, r);
            if (query_given(t, m) != NULL || (t != NULL && t->state == TASK_LEASED))
                continue;
            if (t == NULL || t->state != TASK_PENDING || !given_out ||
                !somebody_idles(s, j, t, now_ms))
                return false;
        }
    }
    return true;
}

/* With elastic replicas a worker that has finished its phase does not do the rest of a lost one,
 * for which others would wait, if the last snapshot of that can be folded instead. */
static void take_parts(struct coordinator *co, struct job *j, uint32_t p)
{
    bool done = false;
    if (!j->comp.elastic || !j->paths[p].ready)
        return;
    for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++) {
        const struct task *t = query_phase(&co->state, j, p, r);
        done |= t != NULL && t->state == TASK_DONE && t->train.round == j->paths[p].round;
    }
    for (uint32_t r = 0; r < j->comp.paths[p].replicas && done; r++) {
        const struct task *t = query_phase(&co->state, j, p, r);
        if (t != NULL && t->state == TASK_PENDING &&
            !somebody_idles(&co->state, j, t, core_now(co)))
            (void)task_end_in_part(co, j, state_edit_task(&co->state, t));
    }
}

/* Settles ended phases whose contributions are in a version by now, or never will be. */
static void settle_late(struct coordinator *co, struct job *j)
{
    for (size_t i = j->n_late; i-- > 0;) {
        struct task *t = state_edit_task(&co->state, state_task(&co->state, j->late[i]));
        char reason[REASON_MAX];
        if (t == NULL) { /* waiting tasks are kept, but a lost row must not end us */
            job_drop_late(j, j->late[i]);
            core_touch(co);
            continue;
        }
        refuse_old(j, t);
        if (waits(t))
            continue;
        (void)str_copy(reason, sizeof(reason), t->reason);
        tell_senders(co, t, reason);
        if (all_applied(t))
            add_phase(j, &job_edit_path(j, t->path)->sum, t);
        job_drop_late(j, t->id);
        core_touch(co);
    }
}

/* ---- the end of a round -------------------------------------------------- */

static float seconds_between(uint64_t from_ms, uint64_t to_ms)
{
    return to_ms > from_ms ? (float)(to_ms - from_ms) / 1e3f : 0;
}

/* Where the time of the path's round goes that ends now. */
static struct round_parts parts_of(struct coordinator *co, const struct job *j, uint32_t p)
{
    const struct path_rec *path = &j->paths[p];
    const struct task *last = NULL;
    uint64_t before_ms = 0;
    for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++) {
        const struct task *t = query_phase(&co->state, j, p, r);
        if (t == NULL || t->state != TASK_DONE || t->train.round != path->round || t->older ||
            t->ended_ms == 0)
            continue;
        const bool later = last == NULL || t->ended_ms > last->ended_ms;
        const uint64_t other_ms = !later ? t->ended_ms : last != NULL ? last->ended_ms : 0;
        before_ms = other_ms > before_ms ? other_ms : before_ms;
        last = later ? t : last;
    }
    if (last == NULL || path->ready_ms == 0)
        return (struct round_parts){0};
    const float held = seconds_between(last->leased_ms, last->ended_ms);
    /* `seconds` has what is done between the steps, too: fragments are coded and merged there. */
    const uint64_t ms = last->train.steps_ms;
    const float steps = fminf(ms != 0 ? (float)ms / 1e3f : last->seconds, held);
    const float network = fminf((float)last->train.waited_ms / 1e3f, held - steps);
    return (struct round_parts){
        .worker = last->worker_id,
        .begin = seconds_between(path->ready_ms, last->leased_ms),
        .steps = steps,
        .network = network,
        .rest = held - steps - network,
        .fold = seconds_between(last->ended_ms, core_now(co)),
        .behind = before_ms != 0 ? seconds_between(before_ms, last->ended_ms) : 0,
    };
}

static void end_round(struct coordinator *co, struct job *j, uint32_t p,
                      const struct phase_sum *sum, uint32_t expected, struct round_parts parts)
{
    struct path_rec *path = job_edit_path(j, p);
    struct round_rec rec = {
        .path = p,
        .round = path->round,
        .contributions = sum->phases,
        .expected = expected,
        .samples = sum->samples,
        .steps = sum->steps,
        .loss = sum->weight > 0 ? (float)(sum->loss / sum->weight) : NAN,
        .eval_loss = NAN,
        .seconds = (float)query_round_ms(path, core_now(co)) / 1e3f,
        .bytes_up = path->bytes_up,
        .bytes_down = path->bytes_down,
        .parts = parts,
        .at_unix_ms = (int64_t)clock_wall_ms(),
    };
    path->round++;
    path->ready = false;
    metrics_round(co, j, &rec);
    tasks_prune(co, j);
    spot_check_prune(co, j);
    draw_after_round(co, j, p);
}

void rounds_close(struct coordinator *co, struct job *j, uint32_t p)
{
    struct phase_sum sum = j->paths[p].sum; /* phases that were late for an earlier round */
    uint32_t expected = sum.phases;
    const struct round_parts parts = parts_of(co, j, p);
    job_edit_path(j, p)->sum = (struct phase_sum){0};
    for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++) {
        struct task *t = state_edit_task(&co->state, query_phase(&co->state, j, p, r));
        expected += t != NULL;
        if (t != NULL) /* its worker may have been lost while the step ran */
            (void)task_end_in_part(co, j, t);
        if (t != NULL && goes_on(j, t))
            (void)snprintf(t->reason, sizeof(t->reason),
                           "round %u was closed without it: it goes into a later version",
                           t->train.round + 1);
        else if (t != NULL)
            settle_missed(co, j, t, j->paths[p].round - t->train.round, &sum);
    }
    end_round(co, j, p, &sum, expected, parts);
}

/* Is everything contributed while a worker still makes the last steps of its phase?  One that has
 * only taken over a lost worker's phase, of which nothing is missing, is not waited for. */
static bool tail_runs(struct coordinator *co, const struct job *j, uint32_t p)
{
    for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++) {
        const struct task *t = query_phase(&co->state, j, p, r);
        if (t != NULL && t->state == TASK_LEASED && complete(j, t) && holder_gave(t))
            return true;
    }
    return false;
}

/* Is a module's step of the path's round being made?  A phase that began now would be late for it.
 */
static bool step_runs(const struct job *j, uint32_t p)
{
    for (uint32_t l = 0; l < composition_levels(&j->comp, p); l++) {
        const struct module_rec *m = &j->modules[j->comp.paths[p].modules[l]];
        if (m->outer_task != 0 && m->version == j->paths[p].round)
            return true;
    }
    return false;
}

static void advance_path(struct coordinator *co, struct job *j, uint32_t p)
{
    const struct path_rec *path = &j->paths[p];
    const bool ends = query_modules_at(j, p, (uint64_t)path->round + 1);
    if (path->ready && !ends && !step_runs(j, p))
        take_late(co, j, p);
    if (path->ready && ends && !tail_runs(co, j, p))
        rounds_close(co, j, p);
    if (path->ready && is_unbegun(co, j, p))
        (void)make_chosen(co, j, p);
    if (!path->ready && path->round < (uint32_t)j->spec.outer.rounds &&
        path->round != query_barrier(j) && query_modules_at(j, p, path->round))
        make_phase(co, j, p);
}

/* ---- without rounds ------------------------------------------------------ */

/* Is nothing of the phase left to be folded? */
static bool settled(const struct task *t)
{
    return !waits(t) && !task_is_open(t);
}

/* Does the task's phase end within `window` from now, or does its contribution wait for a fold? */
static bool ends_now(struct coordinator *co, const struct task *t, double window)
{
    return t->state == TASK_DONE ||
           (t->state == TASK_LEASED && fabs((double)core_now(co) - query_phase_end(t)) <= window);
}

/* Phases bounded by time that begin together end together, up to a step and an upload.
 * The first to end would begin its next one without the others' contributions, and all
 * would train a whole phase behind each other: so it waits for phases that end within
 * the grace (Liu et al. 2024 batch near-simultaneous arrivals, too).  Replicas that are
 * later than that are not waited for. */
static bool others_end_now(struct coordinator *co, struct job *j, uint32_t p)
{
    double phase = j->spec.outer.seconds, grace = j->spec.outer.grace;
    double window = 1e3 * (grace > 0 ? grace : phase / ASYNC_GRACE_SHARE);
    for (uint32_t q = 0; q < j->comp.n_paths && phase > 0; q++)
        for (uint32_t r = 0; r < j->comp.paths[q].replicas && query_share_module(j, p, q); r++) {
            const struct task *t = query_phase(&co->state, j, q, r);
            if (t == NULL || !ends_now(co, t, window))
                continue;
            struct module_rec *m = module_memory(&j->modules[j->comp.paths[p].modules[0]]);
            (void)snprintf(m->outer_reason, sizeof(m->outer_reason),
                           "replica %u of path %u is about to end its phase, and the next ones "
                           "begin together",
                           r, q);
            return true;
        }
    return false;
}

/* Each replica gets its next phase when its last one is folded, whatever the others do;
 * the path has rounds x replicas phases.  A round is as many phases as there are
 * replicas, whichever workers make them. */
static void advance_async(struct coordinator *co, struct job *j, uint32_t p)
{
    const struct path_rec *path = &j->paths[p];
    uint32_t k = j->comp.paths[p].replicas, open = 0;
    uint64_t total = (uint64_t)j->spec.outer.rounds * k;
    if (path->phases >= total || !query_modules_at(j, p, 0))
        return;
    for (uint32_t r = 0; r < k; r++) {
        const struct task *t = query_phase(&co->state, j, p, r);
        if (t != NULL && settled(t)) {
            struct path_rec *edit = job_edit_path(j, p);
            uint32_t before = path->sum.phases;
            settle_replica(co, j, state_edit_task(&co->state, t), &edit->sum);
            edit->phases += path->sum.phases - before;
            core_touch(co);
        }
        open += path->replicas[r].task_id != 0;
    }
    while (path->round < path->phases / k) {
        end_round(co, j, p, &path->sum, k, (struct round_parts){0}); /* no phase is the last */
        job_edit_path(j, p)->sum = (struct phase_sum){0};
    }
    if (!path->ready && path->phases < total)
        begin_round(co, j, p);
    if (open == k || path->phases + open >= total || others_end_now(co, j, p))
        return;
    for (uint32_t r = 0; r < k && path->phases + open < total; r++)
        if (path->replicas[r].task_id == 0 && co->state.n_open < TASKS_OPEN_MAX &&
            task_has_samples(j, p, 1)) {
            if (!make_task(co, j, p, r))
                return;
            open++;
        }
}

void rounds_advance(struct coordinator *co, struct job *j)
{
    settle_late(co, j);
    folds_redo(co, j);
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        take_parts(co, j, p);
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        folds_consider(co, j, module_memory(&j->modules[i]));
    for (uint32_t p = 0; p < j->comp.n_paths && j->doom == NULL; p++) {
        if (j->spec.outer.async)
            advance_async(co, j, p);
        else
            advance_path(co, j, p);
    }
}

void rounds_resume(struct coordinator *co)
{
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        const struct task *t = co->state.tasks[i];
        struct job *j = state_job(&co->state, t->job_id);
        if (j != NULL && !job_is_ended(j) && !j->spec.outer.async && t->kind == TASK_TRAIN &&
            t->state == TASK_DONE && waits(t) &&
            j->paths[t->path].replicas[t->train.replica].task_id != t->id)
            job_add_late(j, t->id);
    }
}
