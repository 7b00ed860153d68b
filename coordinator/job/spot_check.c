#include "coordinator/job/spot_check.h"

#include "coordinator/outer/outer_compare.h"
#include "coordinator/work/gc.h"
#include "coordinator/work/member.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"

#include "common/base/log.h"
#include "common/job/family.h"

#define LOOKS_MAX 64 /* most proven workers looked at for a checker */
#define OPEN_MAX 64  /* most open checks, of all jobs */

/* ---- which workers, and which phases -------------------------------------------------------- */

static uint64_t origin_of(const struct state *s, uint64_t worker)
{
    const struct worker *w = state_worker(s, worker);
    return w != NULL ? worker_origin(w) : 0;
}

/* Could a proven worker check w's phase?  Of thousands from one address only some are looked at. */
static bool somebody_checks(const struct state *s, const struct worker *w)
{
    const uint64_t origin = worker_origin(w);
    unsigned looks = 0;
    for (size_t i = 0; i < s->n_workers && looks < LOOKS_MAX; i++) {
        const struct worker *by = s->workers[i];
        if (by == w || by->state != WORKER_HERE || worker_goes(by) || !member_may_fold(by))
            continue;
        if (worker_origin(by) != origin)
            return true;
        looks++;
    }
    return false;
}

/* Does the phase's worker have another release than we? */
static bool is_foreign(const struct state *s, const struct task *phase)
{
    const struct worker *w = state_worker(s, phase->worker_id);
    return w != NULL && strcmp(w->version, SKERRY_VERSION) != 0;
}

static const struct task *phase_of(const struct state *s, const struct task *check)
{
    const struct task *t = state_task(s, check->train.checks);
    return t != NULL && t->kind == TASK_TRAIN ? t : NULL;
}

static bool is_undecided(const struct state *s, const struct task *check)
{
    const struct job *j = state_job(s, check->job_id);
    return task_is_open(check) ||
           (check->train.n_contributions > 0 && j != NULL && !job_is_ended(j));
}

/* Is a phase of the worker being checked already, or phases of too many others? */
static bool has_to_wait(const struct state *s, uint64_t worker)
{
    unsigned n = 0;
    for (size_t i = 0; i < s->n_tasks && n < OPEN_MAX; i++) {
        const struct task *c = s->tasks[i];
        const struct task *t = c->kind == TASK_CHECK && is_undecided(s, c) ? phase_of(s, c) : NULL;
        n += t != NULL;
        if (t != NULL && t->worker_id == worker)
            return true;
    }
    return n == OPEN_MAX;
}

static bool repeats(const struct job *j)
{
    return j->spec.outer.spot_check && !j->spec.outer.async && !query_streams(j) &&
           j->spec.outer.steps > 0 && !job_family(&j->spec)->external;
}

bool spot_check_wants(const struct coordinator *co, const struct job *j, const struct task *t,
                      const struct worker *w)
{
    const struct replica_rec *r = &j->paths[t->path].replicas[t->train.replica];
    return repeats(j) && !w->checked && strcmp(w->version, SKERRY_VERSION) == 0 &&
           r->owner != w->id && !blob_ref_is_set(&r->moments) && t->train.snapshot == NULL &&
           somebody_checks(&co->state, w) && !has_to_wait(&co->state, w->id);
}

/* An earlier CHECK of the same phase, whose result differed from the phase's. */
static const struct task *other_check(const struct state *s, const struct task *check)
{
    const struct task *c = check->train.after != 0 ? state_task(s, check->train.after) : NULL;
    return c != NULL && c->kind == TASK_CHECK && c->train.n_contributions > 0 ? c : NULL;
}

void spot_check_not_for(const struct state *s, const struct task *t, uint64_t ret_workers[2],
                        uint64_t *ret_from)
{
    const struct task *phase = phase_of(s, t), *other = other_check(s, t);
    ret_workers[0] = phase != NULL ? phase->worker_id : UINT64_MAX;
    ret_workers[1] = other != NULL ? other->worker_id : 0;
    *ret_from = origin_of(s, ret_workers[0]);
}

/* Makes a CHECK of the phase, with the samples of `like`: the phase itself or a CHECK of it. */
static void ask(struct coordinator *co, struct job *j, const struct task *phase,
                const struct task *like)
{
    struct task *c = task_make(co, j, TASK_CHECK);
    if (c == NULL)
        return;
    c->path = phase->path;
    c->train.replica = phase->train.replica;
    c->train.round = phase->train.round;
    c->train.first_step = phase->train.first_step;
    c->train.checks = phase->id;
    c->train.after = like != phase ? like->id : 0;
    c->n_ranges = like->n_ranges;
    c->ranges = mem_alloc_array(like->n_ranges, sizeof(*c->ranges));
    memcpy(c->ranges, like->ranges, like->n_ranges * sizeof(*c->ranges));
}

void spot_check_consider(struct coordinator *co, struct job *j, const struct task *t)
{
    if (t->train.fresh && t->n_ranges > 0 && !is_foreign(&co->state, t))
        ask(co, j, t, t);
}

/* ---- results --------------------------------------------------------------- */

/* The CHECK is not needed any more, nor what it was compared with, unless a version or another
 * CHECK needs that; c may be NULL. */
static void forget(struct coordinator *co, const struct task *c)
{
    struct task *t = state_edit_task(&co->state, c);
    const struct task *phase = c != NULL ? phase_of(&co->state, c) : NULL;
    for (size_t i = 0; phase != NULL && i < phase->train.n_contributions; i++)
        gc_drop(co, &phase->train.contributions[i].blob);
    while (t != NULL && t->train.n_contributions > 0) {
        gc_drop(co, &t->train.contributions[0].blob);
        task_drop_contribution(t, &t->train.contributions[0]);
    }
    core_touch(co);
}

static void give_up(struct coordinator *co, const struct job *j, const struct task *c,
                    const char *why)
{
    const struct task *t = phase_of(&co->state, c), *other = other_check(&co->state, c);
    core_say(co, j->id, t != NULL ? t->worker_id : 0,
             "nobody knows whether the phase of worker %llu, task %llu, is good: %s",
             (unsigned long long)(t != NULL ? t->worker_id : 0),
             (unsigned long long)c->train.checks, why);
    forget(co, other);
    forget(co, c);
}

/* Two other workers agree on another result.  The worker's next phase begins anew, so that it is
 * checked again. */
static void was_wrong(struct coordinator *co, struct job *j, uint64_t worker)
{
    struct worker *w = state_edit_worker(&co->state, state_worker(&co->state, worker));
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++)
            if (j->paths[p].replicas[r].owner == worker)
                job_edit_replica(j, p, r)->owner = 0;
    if (w != NULL)
        member_was_wrong(co, w);
}

static void is_alike(struct coordinator *co, struct job *j, const struct task *c,
                     const struct task *phase, double apart)
{
    const struct task *other = other_check(&co->state, c);
    struct worker *w = state_edit_worker(&co->state, state_worker(&co->state, phase->worker_id));
    if (w != NULL)
        w->checked = true;
    log_info("check",
             "the phase of worker %llu, task %llu, is confirmed by worker %llu (%.3g apart)",
             (unsigned long long)phase->worker_id, (unsigned long long)phase->id,
             (unsigned long long)c->worker_id, apart);
    if (other != NULL) {
        core_say(co, j->id, other->worker_id,
                 "worker %llu was wrong about the phase of worker %llu, task %llu: worker %llu "
                 "makes the same of it",
                 (unsigned long long)other->worker_id, (unsigned long long)phase->worker_id,
                 (unsigned long long)phase->id, (unsigned long long)c->worker_id);
        was_wrong(co, j, other->worker_id);
    }
    forget(co, other);
    forget(co, c);
}

/* The worker's result and one CHECK differ: which is wrong is unknown. */
static void is_doubted(struct coordinator *co, struct job *j, const struct task *c,
                       const struct task *phase, double apart)
{
    core_say(co, j->id, phase->worker_id,
             "the phase of worker %llu, task %llu, is not confirmed by worker %llu (%.3g apart): a "
             "third one is asked",
             (unsigned long long)phase->worker_id, (unsigned long long)phase->id,
             (unsigned long long)c->worker_id, apart);
    ask(co, j, phase, c);
}

static void is_false(struct coordinator *co, struct job *j, const struct task *c,
                     const struct task *other, const struct task *phase)
{
    core_say(co, j->id, phase->worker_id,
             "the phase of worker %llu, task %llu, is refuted by workers %llu and %llu; its "
             "contributions are in version %u: `skerry rollback` undoes them",
             (unsigned long long)phase->worker_id, (unsigned long long)phase->id,
             (unsigned long long)other->worker_id, (unsigned long long)c->worker_id,
             phase->train.round + 1);
    was_wrong(co, j, phase->worker_id);
    forget(co, other);
    forget(co, c);
}

/* ---- comparing ------------------------------------------------------------- */

struct look {
    struct coordinator *co;
    uint64_t job, check, with; /* with: the phase, or another CHECK of it */
};

static void compare(struct coordinator *co, struct job *j, const struct task *c,
                    const struct task *with);

static void judge(struct coordinator *co, struct job *j, const struct task *c,
                  const struct task *with, double apart)
{
    const struct task *phase = phase_of(&co->state, c), *other = other_check(&co->state, c);
    const bool alike = apart <= SPOT_CHECK_APART;
    if (phase == NULL)
        give_up(co, j, c, "it is not on record any more");
    else if (with == phase && alike)
        is_alike(co, j, c, phase, apart);
    else if (with == phase && other != NULL)
        compare(co, j, c, other);
    else if (with == phase)
        is_doubted(co, j, c, phase, apart);
    else if (alike)
        is_false(co, j, c, with, phase);
    else
        give_up(co, j, c, "three workers make three things of it");
}

static void compared(void *arg, int rc, double apart, const char *why)
{
    struct look *l = arg;
    struct coordinator *co = l->co;
    struct job *j = state_job(&co->state, l->job);
    const struct task *c = state_task(&co->state, l->check),
                      *with = state_task(&co->state, l->with);
    if (!co->closing && j != NULL && !job_is_ended(j) && c != NULL && with != NULL &&
        c->train.n_contributions > 0) {
        if (rc < 0)
            give_up(co, j, c, why);
        else
            judge(co, j, c, with, apart);
        core_touch(co);
    }
    mem_free(l);
}

/* False: a file is gone. */
static bool pair_of(const struct job *j, const struct contribution *a, const struct contribution *b,
                    struct outer_pair *ret)
{
    const struct module_rec *m = job_module(j, a->module_id);
    const enum codec up = (enum codec)j->spec.wire.up;
    const struct version_rec *v = module_version(m, a->base_version);
    if (v == NULL && up != CODEC_F32)
        v = module_version(m, m->version);
    if (v == NULL || b == NULL)
        return false;
    *ret = (struct outer_pair){.module_id = m->id,
                               .from = a->base_version,
                               .full = v->full,
                               .a = a->blob,
                               .b = b->blob,
                               .codec = up};
    return true;
}

/* Compares the results; equal bits need no comparison. */
static void compare(struct coordinator *co, struct job *j, const struct task *c,
                    const struct task *with)
{
    const size_t n = c->train.n_contributions;
    struct outer_pair *pairs = mem_alloc_array(n, sizeof(*pairs));
    bool equal = true, there = true;
    for (size_t i = 0; i < n && there; i++) {
        const struct contribution *a = &c->train.contributions[i];
        const struct contribution *b = query_contribution(with, a->module_id, a->base_version);
        there = pair_of(j, a, b, &pairs[i]);
        equal &= there && memcmp(a->blob.sha256, b->blob.sha256, sizeof(a->blob.sha256)) == 0;
    }
    struct look *l = mem_alloc(sizeof(*l));
    *l = (struct look){co, j->id, c->id, with->id};
    if (there && !equal && outer_compare(co->far, co->blobs, pairs, n, compared, l) == 0) {
        mem_free(pairs);
        return;
    }
    mem_free(l);
    mem_free(pairs);
    if (equal && there)
        judge(co, j, c, with, 0);
    else
        give_up(co, j, c,
                there ? "too much waits for the disk" : "its files are not kept any more");
}

void spot_check_hear(struct coordinator *co, struct job *j, struct task *t)
{
    const struct task *phase = phase_of(&co->state, t);
    if (phase != NULL)
        compare(co, j, t, phase);
    else
        give_up(co, j, t, "it is not on record any more");
}

/* ---- the end --------------------------------------------------------------- */

static bool can_begin(const struct job *j, const struct task *c)
{
    for (uint32_t l = 0; l < composition_levels(&j->comp, c->path); l++)
        if (module_version(&j->modules[j->comp.paths[c->path].modules[l]], c->train.round) == NULL)
            return false;
    return true;
}

void spot_check_drop(struct coordinator *co, const struct task *phase)
{
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        const struct task *c = co->state.tasks[i];
        if (c->kind != TASK_CHECK || c->train.checks != phase->id)
            continue;
        forget(co, c);
        if (task_is_open(c))
            task_end(co, state_edit_task(&co->state, c), TASK_CANCELLED,
                     "the phase that it checks is done anew");
    }
}

/* Is it the newest CHECK of its phase? */
static bool is_newest(const struct state *s, const struct task *check)
{
    for (size_t i = 0; i < s->n_tasks; i++)
        if (s->tasks[i]->kind == TASK_CHECK && s->tasks[i]->id > check->id &&
            s->tasks[i]->train.checks == check->train.checks)
            return false;
    return true;
}

/* The phase may have been another release's, which makes other bits of the same samples. */
static void drop_upgraded(struct coordinator *co, const struct job *j, const struct task *c)
{
    static const char why[] = "workers or the coordinator were upgraded";
    give_up(co, j, c, why);
    if (task_is_open(c))
        task_end(co, state_edit_task(&co->state, c), TASK_CANCELLED, why);
}

void spot_check_upgraded(struct coordinator *co, const struct worker *w)
{
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        const struct task *c = co->state.tasks[i];
        const struct task *t = c->kind == TASK_CHECK ? phase_of(&co->state, c) : NULL;
        if (t != NULL && t->worker_id == w->id && is_undecided(&co->state, c) &&
            is_newest(&co->state, c))
            drop_upgraded(co, state_job(&co->state, c->job_id), c);
    }
}

void spot_check_prune(struct coordinator *co, struct job *j)
{
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        const struct task *c = co->state.tasks[i];
        if (c->job_id != j->id || c->kind != TASK_CHECK)
            continue;
        if (c->state == TASK_FAILED && other_check(&co->state, c) != NULL)
            give_up(co, j, c, "no third worker could do it once more");
        if (c->state != TASK_PENDING || can_begin(j, c))
            continue;
        give_up(co, j, c, "the version that it began with is not kept any more");
        task_end(co, state_edit_task(&co->state, c), TASK_CANCELLED,
                 "the version with which it begins is not kept any more");
    }
}

void spot_check_resume(struct coordinator *co)
{
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        const struct task *c = co->state.tasks[i];
        struct job *j = state_job(&co->state, c->job_id);
        if (c->kind != TASK_CHECK || j == NULL || job_is_ended(j) || !is_undecided(&co->state, c) ||
            !is_newest(&co->state, c))
            continue;
        const struct task *phase = phase_of(&co->state, c);
        if (phase != NULL && is_foreign(&co->state, phase))
            drop_upgraded(co, j, c);
        else if (c->state == TASK_DONE)
            spot_check_hear(co, j, state_edit_task(&co->state, c));
    }
}
