#include "coordinator/job/folds.h"

#include <jansson.h>

#include "coordinator/job/leftover.h"
#include "coordinator/job/provenance.h"
#include "coordinator/job/spot_check.h"
#include "coordinator/work/gc.h"
#include "coordinator/work/member.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"
#include "coordinator/state/access.h"
#include "coordinator/state/blobs.h"
#include "coordinator/outer/outer_exec.h"
#include "coordinator/outer/outer_share.h"
#include "coordinator/decide/quorum.h"

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/job/family.h"
#include "common/outer/fold.h"

#define PATIENCE_MS 10000u /* for which a step waits for a worker */
#define LOSSES_MAX 3 /* lost workers of a step before it is made here; one late one is enough */
#define RETRY_MS 1000u
#define RETRY_MAX_MS 60000u

/* ---- making a step ------------------------------------------------------- */

struct outer_run {
    struct coordinator *co;
    uint64_t job_id, module_id, task_id;
    uint64_t worker_id; /* the worker that has made it; 0: none */
};

static void step_done(struct outer_step *step);

/* Training samples of a path's partition; 0: the data are not partitioned. */
static uint64_t partition_size(const struct job *j, uint32_t path)
{
    uint32_t part = j->comp.paths[path].partition;
    uint64_t all = 0;
    for (uint32_t i = 0; i < j->comp.n_partitions; i++)
        all += j->sizes[i];
    return part == PARTITION_ALL ? all : j->sizes[part];
}

/* DiPaCo weighs a path by its share of the data, DiLoCo by the samples used. */
static double weight_of(const struct state *s, const struct job *j, uint32_t path,
                        const struct contribution *c)
{
    uint64_t size = j->comp.weigh_partitions ? partition_size(j, path) : 0;
    return size ? (double)size / query_replicas(s, j, path) : (double)c->samples;
}

/* The most norm that the steps of a phase can have, for a module of one parameter. */
static double most_of(const struct job *j, uint32_t path, const struct contribution *c)
{
    const struct job_train *o = &j->spec.train;
    if (job_family(&j->spec)->external)
        return 0; /* we do not know a trainer's optimiser */
    const double lr = j->spec.router.lr > o->lr ? j->spec.router.lr : o->lr;
    const double batches = (double)c->samples / j->comp.paths[path].batch + 1;
    const double steps = j->spec.outer.steps > 0 ? j->spec.outer.steps : batches;
    return fold_norm_most(lr, o->beta1, o->beta2, steps, 1);
}

static void add_contribution(const struct state *s, struct outer_step *step, const struct job *j,
                             const struct module_rec *m, const struct task *t,
                             const struct contribution *c)
{
    struct outer_contribution *oc = &step->contributions[step->n_contributions++];
    const struct version_rec *from = module_version(m, c->base_version);
    const enum codec up = (enum codec)j->spec.wire.up;
    oc->tag = t->id;
    oc->sender = c->worker_id;
    oc->holder = access_holder_worker(c->worker_id);
    oc->blob = c->blob;
    oc->codec = c->part ? codec_of_part(up) : up;
    oc->from = c->base_version;
    if (from != NULL && oc->from != step->base)
        oc->from_full = from->full;
    oc->samples = c->samples;
    oc->weight = weight_of(s, j, t->path, c);
    oc->most = most_of(j, t->path, c);
}

/* The phase's contribution to the module that is in no version yet, or that is coming. */
static const struct contribution *waiting(const struct module_rec *m, const struct task *t,
                                          const struct folds_coming *coming)
{
    const struct contribution *c = query_waits(t, m);
    return c == NULL && t != NULL && coming != NULL ? coming->of(coming->arg, t) : c;
}

double folds_behind(const struct job *j, const struct module_rec *m, const struct contribution *c)
{
    const uint64_t behind = m->version - c->base_version;
    const uint64_t usual = j->spec.outer.async ? query_replicas_through(j, m) - 1 : 0;
    return sqrt(1 + (double)(behind > usual ? behind - usual : 0));
}

/* Adds the phase's contribution; a late one weighs less. */
static void gather_phase(const struct state *s, struct outer_step *step, const struct job *j,
                         const struct module_rec *m, const struct task *t,
                         const struct folds_coming *coming, size_t room)
{
    const struct contribution *c = waiting(m, t, coming);
    if (c == NULL || step->n_contributions == room)
        return;
    add_contribution(s, step, j, m, t, c);
    step->contributions[step->n_contributions - 1].weight /= folds_behind(j, m, c);
}

/* Takes contributions in order of (path, replica), then those of earlier rounds, so that the sum
 * does not depend on the order of arrival. */
static void gather(struct coordinator *co, const struct job *j, const struct module_rec *m,
                   const struct folds_coming *coming, struct outer_step *step)
{
    const struct state *s = &co->state;
    const uint64_t n = query_waiting(s, j, m) + (coming != NULL ? coming->n : 0);
    const size_t room = n < OUTER_CONTRIBUTIONS_MAX ? n : OUTER_CONTRIBUTIONS_MAX;
    step->contributions = mem_alloc_array(room ? room : 1, sizeof(*step->contributions));
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        for (uint32_t r = 0; query_crosses(j, p, m) && r < j->comp.paths[p].replicas; r++)
            gather_phase(s, step, j, m, query_phase(s, j, p, r), coming, room);
    for (size_t i = 0; i < j->n_late; i++)
        gather_phase(s, step, j, m, state_task(s, j->late[i]), NULL, room);
    if (outer_cap_shares(step) && coming == NULL)
        log_info("outer",
                 "module %llu of job %llu: the weight of one worker's contributions is reduced to "
                 "outer.share_cap",
                 (unsigned long long)m->id, (unsigned long long)j->id);
}

/* Do workers make the job's steps, if one can? */
static bool is_for_workers(const struct coordinator *co, const struct job *j)
{
    struct blob_health far = {.sums = false};
    if (j->spec.outer.async || query_streams(j))
        return false;
    if (j->spec.outer.where == JOB_WHERE_AUTO && co->blobs->ops->away != NULL)
        co->blobs->ops->health(co->blobs, &far);
    return j->spec.outer.where == JOB_WHERE_WORKER || far.sums;
}

static struct outer_step *make_step(struct coordinator *co, const struct job *j,
                                    const struct module_rec *m)
{
    const struct version_rec *v = module_version(m, m->version);
    struct outer_step *s = mem_alloc(sizeof(*s));
    s->job_id = j->id;
    s->module_id = m->id;
    s->base = m->version;
    char *dir = outer_state_dir(j->id, m->id);
    s->state_dir = file_join(co->opt.data_dir, dir);
    mem_free(dir);
    provenance_inputs(m, v, s);
    s->down = (enum codec)j->spec.wire.down;
    s->lr = j->spec.outer.lr;
    s->momentum = fold_momentum(j->spec.outer.momentum, m->version, (uint64_t)j->spec.outer.warmup);
    s->ema_decay = j->spec.outer.ema;
    s->scale = j->comp.root_rescale ? sqrt(j->comp.modules[m - j->modules].paths) : 1;
    s->keep_norm = s->scale > 1 && !j->spec.outer.async; /* async steps have no mean */
    s->share_cap = j->spec.outer.share_cap;
    s->delay = s->min_accepted = 1;
    s->to_store = is_for_workers(co, j);
    provenance_past(j, m, s);
    return s;
}

struct outer_step *folds_step(struct coordinator *co, const struct job *j,
                              const struct module_rec *m, const struct folds_coming *coming)
{
    struct outer_step *s = make_step(co, j, m);
    gather(co, j, m, coming, s);
    if (j->spec.outer.alone_lr > 0 && s->n_contributions == 1) {
        s->lr = j->spec.outer.alone_lr;
        s->momentum = 0; /* it is for means of several contributions */
    }
    return s;
}

static void outer_failed(struct coordinator *co, struct job *j, struct module_rec *m,
                         const char *why)
{
    uint64_t wait = (uint64_t)RETRY_MS << (m->outer_failures < 6 ? m->outer_failures : 6);
    m->outer_failures++;
    m->retry_ms = core_now(co) + (wait < RETRY_MAX_MS ? wait : RETRY_MAX_MS);
    (void)snprintf(m->outer_error, sizeof(m->outer_error), "%.255s", why);
    (void)snprintf(m->outer_reason, sizeof(m->outer_reason), "the outer step failed: %.200s", why);
    core_say(co, j->id, 0, "outer step of module %llu to version %llu failed, nothing changed: %s",
             (unsigned long long)m->id, (unsigned long long)m->version + 1, why);
}

static void free_step(struct outer_step *step)
{
    mem_free(step->arg);
    outer_step_release(step);
    mem_free(step);
}

static bool has_place(const struct coordinator *co, struct module_rec *m)
{
    if (outer_pending(co->outer) < OUTER_QUEUE_MAX)
        return true;
    (void)str_copy(m->outer_reason, sizeof(m->outer_reason),
                   "it waits for a place in the executor");
    return false;
}

/* Gives the step to the executor, which has a place for it, with the task t, which is ours or has
 * ended. */
static void submit(struct coordinator *co, struct job *j, struct module_rec *m, struct task *t,
                   struct outer_step *step)
{
    struct err err = {0};
    if (outer_submit(co->outer, step, step_done, &err) == 0)
        return;
    if (task_is_open(t))
        task_end(co, t, TASK_FAILED, err.msg);
    m->outer_task = 0;
    outer_failed(co, j, m, err.msg);
    free_step(step);
}

static void make_here(struct coordinator *co, struct job *j, struct module_rec *m, struct task *t,
                      struct outer_step *step)
{
    t->leased_ms = core_now(co);
    t->worker_id = 0;
    state_set_task_state(&co->state, t, TASK_LEASED);
    submit(co, j, m, t, step);
}

/* Makes a task for the step; NULL: there is no room, and the step is freed. */
static struct task *task_for(struct coordinator *co, struct job *j, struct module_rec *m,
                             struct outer_step *step)
{
    struct outer_run *run = step->arg;
    struct task *t = task_make(co, j, TASK_OUTER);
    m->outer_task = t != NULL ? t->id : 0;
    if (t == NULL) {
        free_step(step);
        return NULL;
    }
    t->outer = (struct task_outer){m->id, (uint32_t)m->version};
    run->task_id = t->id;
    return t;
}

/* Takes the step, which is made here, or waits for a worker. */
static void fire(struct coordinator *co, struct job *j, struct module_rec *m,
                 struct outer_step *step)
{
    struct outer_run *run = mem_alloc(sizeof(*run));
    *run = (struct outer_run){co, j->id, m->id, 0, 0};
    step->arg = run;
    struct task *t = task_for(co, j, m, step);
    if (t == NULL)
        return;
    log_info("outer", "module %llu of job %llu: step to version %llu with %zu contributions: %s",
             (unsigned long long)m->id, (unsigned long long)j->id,
             (unsigned long long)m->version + 1, step->n_contributions, m->outer_reason);
    if (step->to_store && (step->base == 0 || step->stored) && member_somebody_folds(co, j)) {
        m->at_worker = step;
        m->fold_for = member_first_through(co, m->folded_by);
    } else {
        make_here(co, j, m, t, step);
    }
}

/* The module's step is for a worker; if none takes it or finishes it, it is made here. */
static void consider_worker(struct coordinator *co, struct job *j, struct module_rec *m)
{
    struct outer_step *step = m->at_worker;
    struct task *t = state_edit_task(&co->state, state_task(&co->state, m->outer_task));
    const bool open = t != NULL && task_is_open(t);
    if (open && (t->state == TASK_LEASED ||
                 (t->slow == 0 && t->attempt <= LOSSES_MAX &&
                  core_now(co) < t->ready_ms + PATIENCE_MS && member_somebody_folds(co, j))))
        return;
    if (!has_place(co, m))
        return;
    log_info("outer", "module %llu of job %llu: no worker has made the step to version %llu",
             (unsigned long long)m->id, (unsigned long long)j->id,
             (unsigned long long)m->version + 1);
    m->at_worker = NULL;
    if (!open)
        t = task_for(co, j, m, step);
    if (t != NULL)
        make_here(co, j, m, t, step);
}

int folds_claim(struct coordinator *co, struct job *j, struct task *t,
                const struct outer_claim *claim, const char *why, struct err *err)
{
    struct module_rec *m = job_edit_module(j, job_module(j, t->outer.module_id));
    if (m == NULL || m->outer_task != t->id || m->at_worker == NULL)
        return err_set(err, -ERR_STALE, "nobody waits for this outer step");
    if (!has_place(co, m))
        return err_set(err, -EAGAIN, "the outer step: %s", m->outer_reason);
    struct outer_step *step = m->at_worker;
    struct outer_run *run = step->arg;
    m->at_worker = NULL;
    run->worker_id = t->worker_id;
    step->claimed = claim != NULL;
    if (claim != NULL)
        step->claim = *claim;
    else
        log_info("outer", "worker %llu reports that the step of module %llu cannot be made: %s",
                 (unsigned long long)t->worker_id, (unsigned long long)m->id, why);
    submit(co, j, m, t, step);
    return 0;
}

/* ---- when ---------------------------------------------------------------- */

/* The grace has passed: the last snapshots of phases that no worker has are folded. */
static void take_parts(struct coordinator *co, const struct job *j, const struct module_rec *m)
{
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        for (uint32_t r = 0; query_crosses(j, p, m) && r < j->comp.paths[p].replicas; r++) {
            const struct task *t = query_phase(&co->state, j, p, r);
            if (t != NULL && t->state == TASK_PENDING)
                (void)task_end_in_part(co, j, state_edit_task(&co->state, t));
        }
}

static void consider_sync(struct coordinator *co, struct job *j, struct module_rec *m)
{
    struct outer_count count;
    struct quorum_decision d;
    if (m->version >= (uint64_t)j->spec.outer.rounds)
        return;
    query_outer_count(&co->state, j, m, &count);
    /* The grace stands still while workers cannot report: one that lost its connection (because
     * the coordinator was restarted, say) may be ready; and nobody works on a withheld job. */
    if ((count.away > 0 || query_withheld(&co->state, j) != NULL) && m->quorum_ms != 0)
        m->quorum_ms += core_now(co) - m->asked_ms;
    m->asked_ms = core_now(co);
    struct quorum_in in = {
        .now_ms = core_now(co),
        .expected = count.expected,
        .arrived = count.arrived,
        .leased = count.leased,
        .fraction = j->spec.outer.quorum,
        .grace_ms = (uint64_t)(j->spec.outer.grace * 1e3),
        .quorum_ms = m->quorum_ms,
        .retry_ms = m->retry_ms,
    };
    quorum_decide(&in, &d);
    if (d.quorum && m->quorum_ms == 0)
        m->quorum_ms = in.now_ms;
    else if (!d.quorum)
        m->quorum_ms = 0;
    (void)str_copy(m->outer_reason, sizeof(m->outer_reason), d.reason);
    if (!d.fire || !has_place(co, m))
        return;
    if (query_leaves_behind(j, m)) {
        (void)str_copy(m->outer_reason, sizeof(m->outer_reason),
                       "a path is so far behind that its version would be dropped: it is waited "
                       "for");
        return;
    }
    if (count.arrived < count.expected)
        take_parts(co, j, m);
    struct outer_step *step = folds_step(co, j, m, NULL);
    step->min_accepted = quorum_need(count.expected, j->spec.outer.quorum);
    fire(co, j, m, step);
}

/* The oldest contribution that waits to be folded, except the given task's. */
static const struct contribution *first_waiting(struct coordinator *co, const struct job *j,
                                                const struct module_rec *m, const struct task *but,
                                                const struct task **ret)
{
    const struct contribution *found = NULL;
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        for (uint32_t r = 0; query_crosses(j, p, m) && r < j->comp.paths[p].replicas; r++) {
            const struct task *t = query_phase(&co->state, j, p, r);
            for (size_t i = 0; t != NULL && t != but && i < t->train.n_contributions; i++) {
                const struct contribution *c = &t->train.contributions[i];
                if (c->module_id != m->id || c->refused || c->version != 0)
                    continue;
                if (found != NULL &&
                    (t->ended_unix_ms > (*ret)->ended_unix_ms ||
                     (t->ended_unix_ms == (*ret)->ended_unix_ms && t->id > (*ret)->id)))
                    continue;
                found = c;
                *ret = t;
            }
        }
    return found;
}

/* This contribution's weight in a mean of all, times their number. */
static double relative_weight(const struct state *s, const struct job *j,
                              const struct module_rec *m, const struct task *t,
                              const struct contribution *c)
{
    double total = 0;
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        total += query_crosses(j, p, m) ? j->comp.paths[p].replicas * weight_of(s, j, p, c) : 0;
    return weight_of(s, j, t->path, c) * query_replicas_through(j, m) / total;
}

/* Leaves out whole values whose start version was dropped while they waited, since others wait
 * behind them. */
static void leave_out(struct coordinator *co, const struct job *j, struct task *t,
                      const struct contribution *c)
{
    task_edit_contribution(t, c)->refused = true;
    (void)snprintf(t->reason, sizeof(t->reason),
                   "version %llu, which it began with, is not kept any more",
                   (unsigned long long)c->base_version);
    core_say(co, j->id, t->worker_id, "task %llu is left out: %s", (unsigned long long)t->id,
             t->reason);
    core_touch(co);
}

/* The first step of several replicas has no past by which to judge: it waits for a second
 * contribution, at most as long as the first one took.  The second step has the first as its past.
 */
static bool find_word(struct coordinator *co, const struct job *j, struct module_rec *m,
                      const struct task *first, struct outer_contribution *ret)
{
    const struct task *t = NULL;
    *ret = (struct outer_contribution){0};
    if (m->version > 0 || query_replicas_through(j, m) == 1)
        return true;
    const struct contribution *c = first_waiting(co, j, m, first, &t);
    if (c != NULL) {
        ret->blob = c->blob;
        ret->codec = (enum codec)j->spec.wire.up;
        ret->samples = c->samples;
        return true;
    }
    (void)str_copy(m->outer_reason, sizeof(m->outer_reason),
                   "the first contribution waits a while for another to be compared with");
    return first->ended_ms < first->leased_ms ||
           core_now(co) >= 2 * first->ended_ms - first->leased_ms;
}

/* Folds each contribution by itself when it comes (Liu et al. 2024). */
static void consider_async(struct coordinator *co, struct job *j, struct module_rec *m)
{
    const struct task *t = NULL;
    const struct contribution *c = first_waiting(co, j, m, NULL, &t);
    struct outer_contribution word;
    const uint32_t n = query_replicas_through(j, m);
    if (c == NULL) {
        (void)str_copy(m->outer_reason, sizeof(m->outer_reason), "no contribution waits");
        return;
    }
    if (m->retry_ms > core_now(co) || !has_place(co, m))
        return;
    const struct version_rec *from = module_version(m, c->base_version);
    if (from == NULL && j->spec.wire.up == CODEC_F32) {
        leave_out(co, j, state_edit_task(&co->state, t), c);
        return;
    }
    if (!find_word(co, j, m, t, &word))
        return;
    struct outer_step *step = make_step(co, j, m);
    step->contributions = mem_alloc_array(1, sizeof(*step->contributions));
    if (m->version == 0)
        step->word = word;
    add_contribution(&co->state, step, j, m, t, c);
    step->scale *= relative_weight(&co->state, j, m, t, c) / folds_behind(j, m, c);
    step->delay = j->spec.outer.nesterov_delay ? (unsigned)j->spec.outer.nesterov_delay : n;
    /* Keys that count rounds: a round is as many versions as there are replicas. */
    step->momentum =
        fold_momentum(j->spec.outer.momentum, m->version / n, (uint64_t)j->spec.outer.warmup);
    step->ema_decay = pow(j->spec.outer.ema, 1.0 / n);
    (void)snprintf(m->outer_reason, sizeof(m->outer_reason),
                   "replica %u of path %u began %llu versions ago", t->train.replica, t->path,
                   (unsigned long long)(m->version - c->base_version));
    fire(co, j, m, step);
}

void folds_consider(struct coordinator *co, struct job *j, struct module_rec *m)
{
    if (m->at_worker != NULL)
        consider_worker(co, j, m);
    if (m->outer_task != 0 || m->n_versions == 0)
        return;
    if (j->spec.outer.async)
        consider_async(co, j, m);
    else
        consider_sync(co, j, m);
}

/* ---- results ------------------------------------------------------------- */

/* Drops the contributions of a version that is no longer kept. */
static void drop_contributions(struct coordinator *co, const struct job *j,
                               const struct module_rec *m)
{
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        const struct task *t = co->state.tasks[i];
        for (size_t c = 0;
             t->job_id == j->id && t->kind == TASK_TRAIN && c < t->train.n_contributions; c++)
            if (t->train.contributions[c].module_id == m->id &&
                module_lets_go(m, &t->train.contributions[c]))
                gc_drop(co, &t->train.contributions[c].blob);
    }
}

void folds_adopt(struct coordinator *co, struct job *j, struct module_rec *m,
                 const struct version_rec *v)
{
    const struct version_rec *old = module_oldest(m);
    if (old != NULL) {
        gc_drop(co, &old->full);
        gc_drop(co, &old->delta);
        gc_drop(co, &old->ema);
    }
    module_add_version(m, v);
    if (v->version >= VERSIONS_KEPT && (old = module_version(m, v->version - VERSIONS_KEPT)))
        gc_drop(co, &old->ema);
    const struct version_rec *before = v->version > 1 ? module_version(m, v->version - 2) : NULL;
    if (before != NULL) { /* only the newest step can be made again */
        gc_drop(co, &before->target);
        gc_drop(co, &before->momentum);
    }
    co->untold = true;
    m->quorum_ms = m->retry_ms = 0;
    m->outer_failures = 0;
    m->outer_broken = false;
    m->outer_error[0] = '\0';
    drop_contributions(co, j, m);
    core_touch(co);
}

/* Calls fn with each module. */
static void each_module(struct coordinator *co, void (*fn)(struct module_rec *m))
{
    for (size_t i = 0; i < co->state.n_jobs; i++)
        for (uint32_t m = 0; m < co->state.jobs[i]->comp.n_modules; m++)
            fn(module_memory(&co->state.jobs[i]->modules[m]));
}

static void hand(struct module_rec *m)
{
    m->handed = m->untold;
}

static void told(struct module_rec *m)
{
    m->untold -= m->handed;
    m->handed = 0;
}

void folds_hand(struct coordinator *co)
{
    if (co->untold)
        each_module(co, hand);
    co->told_next = co->untold;
    co->untold = false;
}

void folds_told(struct coordinator *co)
{
    if (co->told_next)
        each_module(co, told);
    co->told_next = false;
}

void folds_take_back(struct coordinator *co)
{
    co->untold |= co->told_next;
    co->told_next = false;
}

/* The n-th contribution to the step and its task, for writing; NULL: it is gone, or the check's
 * result is another. */
static const struct contribution *checked(struct coordinator *co, const struct outer_step *step,
                                          size_t n, bool refused, struct task **ret)
{
    const struct outer_contribution *oc = &step->contributions[n];
    *ret = oc->refused == refused ? state_edit_task(&co->state, state_task(&co->state, oc->tag))
                                  : NULL;
    return *ret ? query_contribution(*ret, step->module_id, oc->from) : NULL;
}

/* Notes refused contributions; their workers get a strike, unless our disk has lost the file or
 * another worker had begun the phase. */
static void note_refused(struct coordinator *co, const struct outer_step *step)
{
    for (size_t i = 0; i < step->n_contributions; i++) {
        struct task *t;
        const struct contribution *c = checked(co, step, i, true, &t);
        if (c == NULL)
            continue;
        task_edit_contribution(t, c)->refused = true;
        (void)snprintf(t->reason, sizeof(t->reason), "contribution refused: %.200s",
                       step->contributions[i].reason);
        core_say(co, t->job_id, c->worker_id, "task %llu of worker %llu: %s",
                 (unsigned long long)t->id, (unsigned long long)c->worker_id, t->reason);
        struct worker *w = state_edit_worker(&co->state, state_worker(&co->state, c->worker_id));
        if (w != NULL && !step->contributions[i].damaged && !c->resumed && !c->part)
            member_failed(co, w);
    }
}

/* Notes which contributions are in the new version. */
static void note_folded(struct coordinator *co, struct module_rec *m, const struct outer_step *step)
{
    for (size_t i = 0; i < step->n_contributions; i++) {
        struct task *t;
        const struct contribution *c = checked(co, step, i, false, &t);
        if (c == NULL)
            continue;
        struct worker *w = state_edit_worker(&co->state, state_worker(&co->state, c->worker_id));
        const uint64_t stale = step->base - c->base_version;
        if (w != NULL && step->contributions[i].shrink == 1 && !c->part)
            member_proved(w);
        task_edit_contribution(t, c)->version = step->base + 1;
        m->folded++;
        m->stale_sum += stale;
        m->stale_max = stale > m->stale_max ? stale : m->stale_max;
    }
}

/* A contribution that came while the step ran (after the grace) is not in the version: if no later
 * version takes it, its sender must not take it for applied. */
static void note_late(struct coordinator *co, const struct job *j, const struct module_rec *m,
                      const struct outer_step *step)
{
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        for (uint32_t r = 0; query_crosses(j, p, m) && r < j->comp.paths[p].replicas; r++) {
            struct task *t = state_edit_task(&co->state, query_phase(&co->state, j, p, r));
            const struct contribution *c = t ? query_contribution(t, m->id, step->base) : NULL;
            if (c == NULL || c->refused || c->version != 0 || query_takes_late(j, m, step->base))
                continue;
            task_edit_contribution(t, c)->refused = true;
            (void)snprintf(t->reason, sizeof(t->reason), "it came after round %u was closed",
                           t->train.round + 1);
        }
}

/* Forgets a refused contribution, so that it can be made again; the task's contributions
 * to other modules stay. */
static void forget(struct coordinator *co, struct task *t, const struct contribution *c)
{
    struct verdict v = {.task_id = t->id, .module_id = c->module_id};
    (void)str_copy(v.reason, sizeof(v.reason), t->reason);
    member_verdict(co, c->worker_id, &v);
    gc_drop(co, &c->blob);
    task_drop_contribution(t, c);
}

#define NO_SAMPLES " (it waits until other phases give samples back)"

/* The phase is done again, by any worker; while others hold all samples it waits for them, done and
 * without the contribution. */
static void redo(struct coordinator *co, struct job *j, struct task *t, enum task_fault fault)
{
    char reason[REASON_MAX];
    (void)str_copy(reason, sizeof(reason), t->reason);
    if (t->state == TASK_DONE && !task_take_samples(co, j, t)) {
        if (strstr(reason, NO_SAMPLES) == NULL)
            (void)snprintf(t->reason, sizeof(t->reason), "%.200s" NO_SAMPLES, reason);
        return;
    }
    spot_check_drop(co, t);
    task_failed(co, t, fault, reason);
}

/* Is a contribution to the path's round missing that the phase, which is done, has made? */
static bool is_forgotten(const struct job *j, const struct task *t)
{
    bool missing = false;
    for (uint32_t l = 0; l < composition_levels(&j->comp, t->path); l++) {
        const struct module_rec *m = &j->modules[j->comp.paths[t->path].modules[l]];
        missing |= m->version == t->train.round && query_contribution(t, m->id, m->version) == NULL;
    }
    return missing;
}

void folds_redo(struct coordinator *co, struct job *j)
{
    for (uint32_t p = 0; p < j->comp.n_paths && !j->spec.outer.async; p++)
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++) {
            const struct task *t = query_phase(&co->state, j, p, r);
            if (t != NULL && t->state == TASK_DONE && t->train.round == j->paths[p].round &&
                is_forgotten(j, t) && task_has_samples(j, p, 1))
                redo(co, j, state_edit_task(&co->state, t), FAULT_TASK);
        }
}

/* There are too few good contributions: the refused phases are done again. */
static void redo_refused(struct coordinator *co, struct job *j, const struct outer_step *step)
{
    for (size_t i = 0; i < step->n_contributions; i++) {
        struct task *t;
        const struct contribution *c = checked(co, step, i, true, &t);
        if (c == NULL || c->base_version != step->base)
            continue; /* late phases are not done again */
        forget(co, t, c);
        /* For its contribution to another module it may be done again already. */
        if (t->state == TASK_PENDING || (t->state == TASK_LEASED && !query_streams(j)))
            continue;
        redo(co, j, t, step->contributions[i].damaged ? FAULT_PASSING : FAULT_TASK);
    }
}

static void adopt_step(struct coordinator *co, struct job *j, struct module_rec *m,
                       const struct outer_step *step)
{
    struct version_rec v = {
        .version = step->base + 1,
        .full = step->made[OUTER_FULL],
        .delta = step->made[OUTER_DELTA],
        .ema = step->made[OUTER_EMA],
        .provenance = provenance_of(co, step),
        .at_unix_ms = (int64_t)clock_wall_ms(),
    };
    if (step->to_store) {
        v.target = step->made[OUTER_TARGET];
        v.momentum = step->made[OUTER_MOMENTUM];
    }
    if (step->params > 0)
        m->params = step->params;
    note_folded(co, m, step);
    folds_adopt(co, j, m, &v);
    log_info("outer",
             "module %llu of job %llu is at version %llu after %llu ms%s, %u contributions, "
             "norm %.4g",
             (unsigned long long)m->id, (unsigned long long)j->id, (unsigned long long)v.version,
             (unsigned long long)step->elapsed_ms, step->early ? " (begun early)" : "",
             step->accepted, step->delta_norm);
}

static void apply_step(struct coordinator *co, struct job *j, struct module_rec *m,
                       struct outer_step *step)
{
    /* After a fault of ours the contributions are checked again. */
    if (step->rc == 0 || step->rc == -ERR_LIMIT)
        note_refused(co, step);
    if (step->rc == 0) {
        adopt_step(co, j, m, step);
        if (!j->spec.outer.async)
            note_late(co, j, m, step);
        /* Only when the new version is on record; the state with which its step began stays
         * (audit.h). */
        const struct version_rec *v = step->base > 0 ? module_version(m, step->base - 1) : NULL;
        if (v != NULL && !(step->stored && blob_ref_is_set(&v->target)))
            leftover_drop(co, str_dup(step->state_dir), step->base);
        return;
    }
    outer_failed(co, j, m, step->reason);
    m->outer_broken = step->rc == -ERR_HASH;
    if (step->rc == -ERR_LIMIT && step->accepted < step->n_contributions) {
        m->retry_ms = 0;          /* it waits for new contributions, not for a time */
        if (!j->spec.outer.async) /* with async the replica's next phase makes up for it */
            redo_refused(co, j, step);
    }
}

void folds_release(struct module_rec *m)
{
    if (m->at_worker == NULL)
        return;
    free_step(m->at_worker);
    m->at_worker = NULL;
    m->outer_task = 0;
}

void folds_clean_up(struct coordinator *co, const struct job *j)
{
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        folds_release(module_memory(&j->modules[i]));
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        if (j->modules[i].outer_task != 0)
            return; /* the end of the running step calls this again */
    char *dir = outer_state_dir(j->id, 0);
    leftover_drop(co, file_join(co->opt.data_dir, dir), 0); /* once its end is on record */
    mem_free(dir);
}

/* Judges the worker that has made the step by its result. */
static void judge_worker(struct coordinator *co, uint64_t worker_id, const struct outer_step *step)
{
    struct worker *w = state_edit_worker(&co->state, state_worker(&co->state, worker_id));
    if (w == NULL || step->rc < 0)
        return;
    if (step->doubt == 0) {
        member_proved(w);
        return;
    }
    core_say(co, step->job_id, w->id,
             "the outer step of module %llu to version %llu that worker %llu (%s) made %s: %s",
             (unsigned long long)step->module_id, (unsigned long long)step->base + 1,
             (unsigned long long)w->id, w->name,
             step->false_claim ? "was wrong, and the coordinator's own counts"
                               : "was made by the coordinator, too",
             step->why);
    member_doubt_fold(co, w, step->false_claim, step->doubt);
}

/* Drops the files that a worker has uploaded for a step, except those of the version if it was
 * taken: blobs that a record names are spared. */
static void drop_claim(struct coordinator *co, const struct outer_claim *c)
{
    for (int i = 0; i < outer_blobs(true); i++)
        gc_drop(co, &c->made[i]);
    gc_drop(co, &c->squares);
}

/* Drops the files of a version that was not taken. */
static void drop_made(struct coordinator *co, const struct outer_step *s)
{
    for (int i = 0; i < outer_blobs(s->to_store); i++)
        gc_drop(co, &s->made[i]);
}

/* No record has named the files of a step until now: one may be gone, if equal bytes were dropped.
 */
static void look_for_made(struct coordinator *co, struct outer_step *s)
{
    static const char *const names[] = {"version", "delta", "EMA", "target", "momentum"};
    for (int i = 0; i < outer_blobs(s->to_store) && s->rc == 0; i++) {
        if (blobstore_has(co->blobs, &s->made[i].id, NULL))
            continue;
        s->rc = -EAGAIN;
        (void)snprintf(s->reason, sizeof(s->reason),
                       "the %s that was made is not in the blob store any more", names[i]);
    }
}

static void step_done(struct outer_step *step)
{
    struct outer_run *run = step->arg;
    struct coordinator *co = run->co;
    struct job *j = state_job(&co->state, run->job_id);
    struct module_rec *m = j ? job_edit_module(j, job_module(j, run->module_id)) : NULL;
    struct task *t = state_edit_task(&co->state, state_task(&co->state, run->task_id));
    if (m != NULL && m->outer_task == run->task_id)
        m->outer_task = 0;
    look_for_made(co, step);
    if (t != NULL && task_is_open(t))
        task_end(co, t, step->rc == 0 ? TASK_DONE : TASK_FAILED, step->reason);
    if (m != NULL && !co->closing && !job_is_ended(j) && step->rc != -ERR_CANCELLED &&
        m->version == step->base)
        apply_step(co, j, m, step);
    else if (step->rc == 0 && !co->closing)
        drop_made(co, step);
    if (step->claimed && !co->closing) {
        judge_worker(co, run->worker_id, step);
        if (m != NULL)
            m->folded_by = step->rc == 0 && step->doubt == 0 ? run->worker_id : 0;
        drop_claim(co, &step->claim);
    }
    if (j != NULL && !co->closing && job_is_ended(j))
        folds_clean_up(co, j); /* which waited for the end of the step */
    free_step(step);
    core_touch(co);
}
