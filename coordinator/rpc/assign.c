#include "coordinator/rpc/assign.h"

#include "common/base/log.h"
#include "coordinator/job/agree.h"
#include "coordinator/job/best.h"
#include "coordinator/job/draw.h"
#include "coordinator/job/guard.h"
#include "coordinator/job/spot_check.h"
#include "coordinator/job/turns.h"
#include "coordinator/decide/schedule.h"
#include "coordinator/kinds/kinds.h"
#include "coordinator/kinds/message.h"
#include "coordinator/work/ahead.h"
#include "coordinator/work/member.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"

#define OWNER_PATIENCE_MS 2000 /* a replica waits for the worker with its moments */
#define BUSY_PATIENCE_MS 10000 /* and longer while that does something short: see patience_ms() */
#define BUSY_PATIENCE_MAX_MS 300000
#define FOLD_PATIENCE_MAX_MS 8000 /* so does an outer step, before it is made here (folds.c) */
#define FOLD_FILES 4              /* of a version's size, from which a step starts */
#define ASKS_AGAIN_MS 500         /* within which a worker that has reported asks again */

/* An owner that does something short will be back: a phase without its moments costs more than a
 * wait of a part of a phase. */
static uint32_t patience_ms(const struct job *j)
{
    double last = j->n_rounds ? (double)j->rounds[j->n_rounds - 1].seconds * 500 : 0;
    if (last < BUSY_PATIENCE_MS)
        return BUSY_PATIENCE_MS;
    return last < BUSY_PATIENCE_MAX_MS ? (uint32_t)last : BUSY_PATIENCE_MAX_MS;
}

/* An evaluation, a drawing or an outer step ends soon; a phase, its check or the data of a job may
 * take hours. */
static bool is_short(const struct task *t)
{
    return task_drawing(t) != NULL || t->kind == TASK_VELOCITY || t->kind == TASK_OUTER;
}

/* A step waits for its maker to evaluate no longer than another worker would fetch what the maker
 * has, and not while that makes another step: those of several modules are made at once. */
static uint32_t fold_patience_ms(const struct job *j, const struct task *t, const struct worker *w,
                                 const struct task *now)
{
    const struct module_rec *m = job_module(j, t->outer.module_id);
    if (now->kind == TASK_OUTER)
        return 0;
    if (m == NULL || m->n_versions == 0 || w->sends_bytes_per_s <= 0)
        return FOLD_PATIENCE_MAX_MS;
    const double bytes = FOLD_FILES * (double)m->versions[m->n_versions - 1].full.size;
    return (uint32_t)fmin(bytes * 1e3 / w->sends_bytes_per_s, FOLD_PATIENCE_MAX_MS);
}

static void fill_owner(struct coordinator *co, const struct job *j, const struct task *t,
                       struct schedule_task *out)
{
    uint64_t until;
    char reason[REASON_MAX];
    out->owner = kinds_owner(j, t);
    const struct worker *w = out->owner ? state_worker(&co->state, out->owner) : NULL;
    out->owner_here =
        w != NULL && w->state == WORKER_HERE && member_may_work(co, w, &until, reason);
    const struct task *now = w != NULL && w->task_id ? state_task(&co->state, w->task_id) : NULL;
    out->owner_busy = now != NULL && !is_short(now);
    out->patience_ms = now == NULL             ? OWNER_PATIENCE_MS
                       : t->kind == TASK_TRAIN ? patience_ms(j)
                       : t->kind == TASK_OUTER ? fold_patience_ms(j, t, w, now)
                                               : 0;
}

/* A new array of all jobs, for the schedule. */
static struct schedule_job *contenders(const struct coordinator *co)
{
    const struct state *s = &co->state;
    struct schedule_job *list = mem_alloc_array(s->n_jobs + 1, sizeof(*list));
    for (size_t i = 0; i < s->n_jobs; i++) {
        const struct job *j = s->jobs[i];
        list[i] = (struct schedule_job){
            .id = j->id,
            .priority = j->quota.priority,
            .share = j->quota.share,
            .leases = j->leases,
            .held = job_is_ended(j) ? NULL : query_withheld(s, j),
        };
    }
    return list;
}

/* The job's index among contenders(). */
static uint32_t place_of(const struct state *s, const struct job *j)
{
    size_t lo = 0, hi = s->n_jobs;
    while (hi - lo > 1) {
        const size_t mid = lo + (hi - lo) / 2;
        if (s->jobs[mid]->id <= j->id)
            lo = mid;
        else
            hi = mid;
    }
    return (uint32_t)lo;
}

/* A new array of the tasks that workers may get. */
static struct schedule_task *candidates(struct coordinator *co)
{
    const struct state *s = &co->state;
    struct schedule_task *list = mem_alloc_array(s->n_ready + 1, sizeof(*list));
    const struct job *j = NULL;
    uint32_t last = 0, at = 0;
    for (size_t i = 0; i < s->n_ready; i++) {
        const struct task *t = s->ready[i];
        if (j == NULL || t->job_id != j->id) {
            j = state_job(s, t->job_id);
            last = query_rounds_done(j);
            at = place_of(s, j);
        }
        list[i] = (struct schedule_task){
            .id = t->id,
            .job_id = t->job_id,
            .job = at,
            .kind = (int)t->kind,
            .rank = turns_rank(j, t),
            .failed = &t->failed,
            .ready_ms = t->ready_ms,
            .not_before_ms = t->not_before_ms,
            .network = query_network(j, t),
            .lag = t->kind == TASK_TRAIN && t->train.round > last ? t->train.round - last : 0,
            .needs_helper = task_is_remote(t),
            .phase = t->kind == TASK_TRAIN,
            .needs_spare = turns_spares(j, t),
            .spares_makers = turns_spares_makers(j, t),
            .needs_known = t->kind == TASK_OUTER || t->kind == TASK_CHECK,
            .needs_trainers = query_needs_trainers(j, t),
            .reads = query_reads(j),
        };
        fill_owner(co, j, t, &list[i]);
        if (t->kind == TASK_CHECK)
            spot_check_not_for(s, t, list[i].not_for, list[i].not_from);
        else if (t->kind != TASK_EVAL || t->n_told > 0)
            agree_not_for(co, t, list[i].not_for, list[i].not_from);
        else if (!best_not_for(co, t, list[i].not_for, list[i].not_from))
            guard_not_for(co, t, list[i].not_for, list[i].not_from);
    }
    return list;
}

/* Could the worker help others, rather than wait for them itself? */
static bool helps(const struct state *s, const struct worker *w)
{
    const struct task *t = w->task_id ? state_task(s, w->task_id) : NULL;
    return w->state == WORKER_HERE && !worker_goes(w) && (t == NULL || !task_is_remote(t));
}

/* The number of helpers, if some task needs one. */
static size_t helpers(const struct state *s, const struct schedule_task *list, size_t n)
{
    size_t found = 0, at = 0;
    while (at < n && !list[at].needs_helper)
        at++;
    for (size_t i = 0; at < n && i < s->n_workers; i++)
        found += helps(s, s->workers[i]);
    return found;
}

/* Leases the picked task; the answer follows the commit. */
static void give(struct coordinator *co, struct worker *w, struct task *t)
{
    struct rpc_request *req = state_unpark(w);
    struct job *j = state_job(&co->state, t->job_id);
    rpc_request_on_gone(req, NULL, NULL);
    draw_renew(j, t);
    task_lease(co, t, w);
    if (t->kind == TASK_TRAIN)
        t->train.fresh = spot_check_wants(co, j, t, w);
    ahead_leased(w, j, t);
    struct reply *r = core_reply(co, req, assign_send);
    r->worker_id = w->id;
    r->task_id = t->id;
    r->attempt = t->attempt;
}

/* The job whose phases the worker does not get for now, since others do them; 0: none. */
static uint64_t behind(const struct state *s, const struct worker *w)
{
    const struct job *j = w->ahead.due ? state_job(s, w->ahead.job_id) : NULL;
    return j != NULL && ahead_is_behind(w, j) && ahead_others(s) ? j->id : 0;
}

/* A worker's turn; true: it got a task. */
static bool serve(struct coordinator *co, struct worker *w, struct schedule *list,
                  const struct turns *turns, size_t helpers, size_t *ret_index)
{
    char reason[REASON_MAX];
    uint64_t until;
    if (!member_may_work(co, w, &until, reason)) {
        (void)str_copy(w->waiting_for, sizeof(w->waiting_for), reason);
        return false;
    }
    const struct schedule_options o = {
        .standing = worker_standing(w),
        .behind = behind(&co->state, w),
        .helper = helpers > helps(&co->state, w), /* another worker could help */
        .has_phase = turns_has_phase(turns, w),
        .makes_step = turns_makes_step(turns, w),
        .trainers = w->allows_trainers,
        .reads = w->reads,
        .known = member_may_fold(w),
        .origin = list->from_matters ? worker_origin(w) : 0,
        .small = w->small,
        .n_small = w->n_small < WORKER_SMALL_MAX ? w->n_small : WORKER_SMALL_MAX,
    };
    struct schedule_decision d;
    schedule_pick(list, w->id, &o, &d);
    if (d.index < 0) {
        (void)str_copy(w->waiting_for, sizeof(w->waiting_for), d.reason);
        return false;
    }
    *ret_index = (size_t)d.index;
    return true;
}

/* A waiting worker. */
struct asker {
    struct worker *w;
    enum failure_standing standing;
    uint64_t place; /* its place among workers of its standing */
};

static int by_standing(const void *a, const void *b)
{
    const struct asker *x = a, *y = b;
    if (x->standing != y->standing)
        return x->standing < y->standing ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

/* The waiting workers in the order in which they are served: proven ones by arrival, then new ones
 * by age, so that many new names are no better than one. */
static struct asker *askers(const struct state *s, size_t *ret_n)
{
    size_t n = 0;
    for (const struct list *l = s->parked.next; l != &s->parked; l = l->next)
        n++;
    struct asker *all = mem_alloc_array(n + 1, sizeof(*all));
    n = 0;
    for (const struct list *l = s->parked.next; l != &s->parked; l = l->next, n++) {
        all[n].w = list_entry(l, struct worker, parked_at);
        all[n].standing = worker_standing(all[n].w);
        all[n].place = all[n].standing == STANDING_NEW ? all[n].w->id : n;
    }
    qsort(all, n, sizeof(*all), by_standing);
    *ret_n = n;
    return all;
}

/* The number of proven workers that have just reported and are about to ask: as many tasks are kept
 * for them, or a worker that asks a moment earlier would get their next phases. */
static size_t coming(struct coordinator *co)
{
    const struct state *s = &co->state;
    const uint64_t now = core_now(co);
    char reason[REASON_MAX];
    uint64_t until;
    size_t n = 0;
    for (size_t i = 0; i < s->n_workers; i++) {
        const struct worker *w = s->workers[i];
        n += w->reported_ms != 0 && now - w->reported_ms < ASKS_AGAIN_MS &&
             w->state == WORKER_HERE && w->peer != NULL && w->parked == NULL && w->task_id == 0 &&
             worker_standing(w) == STANDING_PROVEN && member_may_work(co, w, &until, reason);
    }
    return n;
}

/* Must the worker be told of other files to fetch meanwhile? */
static bool told_else(struct coordinator *co, struct worker *w, uint32_t *rooms)
{
    char reason[REASON_MAX];
    uint64_t until;
    return ahead_news(co, w, member_may_work(co, w, &until, reason), rooms);
}

static void offer(struct coordinator *co, struct schedule *list, bool tell)
{
    struct state *s = &co->state;
    size_t helping = helpers(s, list->tasks, list->n), n, at, kept = 0;
    bool counted = false;
    struct turns turns = {0};
    struct asker *all = askers(s, &n);
    uint32_t *rooms = tell ? ahead_rooms(co) : NULL;
    if (list->spares)
        turns_init(&turns, co);
    for (size_t i = 0; i < n; i++) {
        struct worker *w = all[i].w;
        if (w->task_id != 0)
            continue;
        if (!counted && list->n_left > 0 && all[i].standing != STANDING_PROVEN) {
            kept = coming(co);
            counted = true;
        }
        /* Without tasks to give, only the reason could be new. */
        if ((list->n_left > kept || tell) && serve(co, w, list, &turns, helping, &at) &&
            list->n_left > kept) {
            struct task *t = state_edit_task(s, state_task(s, list->tasks[at].id));
            helping -= task_is_remote(t) && helping > 0;
            schedule_take(list, at);
            give(co, state_edit_worker(s, w), t);
        } else if ((tell && told_else(co, w, rooms)) || core_now(co) >= w->parked_until_ms) {
            struct rpc_request *req = state_unpark(w);
            rpc_request_on_gone(req, NULL, NULL);
            core_reply(co, req, assign_send)->worker_id = w->id;
        }
    }
    turns_release(&turns);
    mem_free(rooms);
    mem_free(all);
}

void assign_parked(struct coordinator *co)
{
    const bool tell = core_now(co) >= co->told_ms + CORE_TICK_MS;
    if (list_empty(&co->state.parked) || (co->state.n_ready == 0 && !tell))
        return;
    struct schedule_job *jobs = contenders(co);
    struct schedule_task *tasks = candidates(co);
    struct schedule list;
    schedule_init(&list, core_now(co), jobs, tasks, co->state.n_ready);
    offer(co, &list, tell);
    schedule_release(&list);
    mem_free(tasks);
    mem_free(jobs);
    if (tell)
        co->told_ms = core_now(co);
}

Skerry__V1__Applied **assign_verdicts(const struct worker *w, size_t *ret_n)
{
    const size_t n = w->n_verdicts < APPLIED_MAX ? w->n_verdicts : APPLIED_MAX;
    *ret_n = n;
    if (n == 0)
        return NULL;
    Skerry__V1__Applied **list = mem_alloc(n * (sizeof(*list) + sizeof(**list)));
    Skerry__V1__Applied *items = (Skerry__V1__Applied *)(void *)(list + n);
    for (size_t i = 0; i < n; i++) {
        list[i] = &items[i];
        skerry__v1__applied__init(list[i]);
        list[i]->task_id = w->verdicts[i].task_id;
        list[i]->module_id = w->verdicts[i].module_id;
        list[i]->accepted = w->verdicts[i].accepted;
        list[i]->reason = w->verdicts[i].reason;
    }
    return list;
}

/* Fills in which jobs are over.  An unread one may go on with the release that wrote it. */
static void tell_over(const struct state *s, Skerry__V1__AssignReply *m)
{
    m->over_before = s->next_job;
    for (size_t i = 0; i < s->n_jobs; i++) {
        const struct job *j = s->jobs[i];
        if (job_is_ended(j) && !j->unread)
            continue;
        if (m->n_going == JOBS_ACTIVE_MAX) {
            m->over_before = j->id;
            break;
        }
        m->going[m->n_going++] = j->id;
    }
    m->ended_before = m->n_going > 0 ? m->going[0] : m->over_before;
}

void assign_send(struct coordinator *co, struct reply *r)
{
    Skerry__V1__AssignReply msg = SKERRY__V1__ASSIGN_REPLY__INIT;
    const struct worker *w = state_worker(&co->state, r->worker_id);
    const struct task *t = r->task_id ? state_task(&co->state, r->task_id) : NULL;
    uint64_t going[JOBS_ACTIVE_MAX];
    struct err err = {0};
    struct pbmem mem;
    pbmem_init(&mem, MESSAGE_BYTES_MAX);
    /* While a commit was failing the lease may have ended again. */
    if (t != NULL &&
        (t->state != TASK_LEASED || t->attempt != r->attempt || t->worker_id != r->worker_id))
        t = NULL;
    if (t != NULL &&
        kinds_message(co, state_job(&co->state, t->job_id), t, w, &mem, &msg.task, &err) < 0)
        task_failed(co, state_edit_task(&co->state, t), FAULT_PASSING, err.msg);
    if (w != NULL) {
        msg.drain = worker_goes(w);
        if (msg.task == NULL && !msg.drain && message_ahead(co, w, &mem, &msg.ahead, &err) < 0)
            log_warn("assign", "%s", err.msg);
        msg.waiting_for = msg.task ? (char *)"" : (char *)w->waiting_for;
        msg.applied = assign_verdicts(w, &msg.n_applied);
        msg.going = going;
        tell_over(&co->state, &msg);
    }
    rpc_reply(r->req, &msg.base);
    mem_free(msg.applied);
    pbmem_release(&mem);
}
