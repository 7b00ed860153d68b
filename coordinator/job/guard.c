#include "coordinator/job/guard.h"

#include "coordinator/decide/failure.h"
#include "coordinator/job/draw.h"
#include "coordinator/job/rollback.h"
#include "coordinator/work/member.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"

static const struct module_rec *first_module(const struct job *j, uint32_t path)
{
    return &j->modules[j->comp.paths[path].modules[0]];
}

/* Was the path rolled back since that version? */
static bool is_undone(const struct job *j, uint32_t path, uint32_t version)
{
    const struct module_rec *m = first_module(j, path);
    for (unsigned i = 0; i < m->n_versions; i++)
        if (m->versions[i].restored && m->versions[i].version > version)
            return true;
    return false;
}

static bool is_kept(const struct job *j, uint32_t path, uint32_t version)
{
    for (uint32_t l = 0; l < composition_levels(&j->comp, path); l++)
        if (module_version(&j->modules[j->comp.paths[path].modules[l]], version) == NULL)
            return false;
    return true;
}

uint32_t guard_first_round(const struct job *j)
{
    return j->resharded > 0 ? (uint32_t)j->spec.recipe.reshard.items[j->resharded - 1] : 0;
}

/* The round that made the best kept version before this one; NULL: none was evaluated. */
static const struct round_rec *best_before(const struct job *j, uint32_t path, uint32_t version)
{
    const struct round_rec *best = NULL;
    for (size_t i = j->n_rounds; i-- > 0;) {
        const struct round_rec *r = &j->rounds[i];
        if (r->path == path && r->round >= guard_first_round(j) && r->round + 1 < version &&
            r->eval_loss > 0 && (best == NULL || r->eval_loss < best->eval_loss) &&
            is_kept(j, path, r->round + 1))
            best = r;
    }
    return best;
}

/* The index of the round that made the version; n_rounds: it is not on record. */
static size_t round_of(const struct job *j, uint32_t path, uint32_t version)
{
    for (size_t i = 0; i < j->n_rounds; i++)
        if (j->rounds[i].path == path && j->rounds[i].round + 1 == version)
            return i;
    return j->n_rounds;
}

/* The worker that measured the version's loss, which t measures again; NULL: it is not known. */
static const struct worker *measured_by(const struct coordinator *co, const struct task *t)
{
    const struct job *j = state_job(&co->state, t->job_id);
    const size_t at = round_of(j, t->path, t->draw.version);
    return at < j->n_rounds ? state_worker(&co->state, j->rounds[at].eval_by) : NULL;
}

void guard_not_for(const struct coordinator *co, const struct task *t, uint64_t *ret_worker,
                   uint64_t *ret_from)
{
    const struct job *j = state_job(&co->state, t->job_id);
    const struct eval_doubt *d = &j->paths[t->path].doubt;
    if (t->draw.mixture || j->state != JOB_RUNNING || d->worker == 0)
        return;
    const struct worker *by = t->id == d->best_task ? measured_by(co, t) : NULL;
    const bool again = d->version == t->draw.version && is_kept(j, t->path, d->version);
    const uint64_t worker = by != NULL ? by->id : again ? d->worker : 0;
    const uint64_t origin = by != NULL ? worker_origin(by) : d->origin;
    if (worker == 0 || !member_elsewhere(co, origin, t))
        return;
    *ret_worker = worker;
    *ret_from = origin;
}

/* Has another worker measure the loss of a round's version again; the task's id, or 0: two workers
 * have told it, or it cannot be measured. */
static uint64_t measure_again(struct coordinator *co, struct job *j, const struct round_rec *r)
{
    const uint64_t by = r->eval_by;
    struct task *t = r->eval_sure ? NULL : draw_eval(co, j, r->path, r->round + 1);
    if (t != NULL && by != 0)
        failure_bar(&t->failed, by, core_now(co) + GUARD_PATIENCE_MS);
    return t != NULL ? t->id : 0;
}

/* Has another worker evaluate the same version, and one the version that it is compared with. */
static void ask_again(struct coordinator *co, struct job *j, const struct task *t,
                      const struct round_rec *best)
{
    const struct worker *w = state_worker(&co->state, t->worker_id);
    struct task *again = draw_eval(co, j, t->path, t->draw.version);
    job_edit_path(j, t->path)->doubt = (struct eval_doubt){
        .version = t->draw.version,
        .worker = t->worker_id,
        .origin = w != NULL ? worker_origin(w) : 0,
        .best_task = measure_again(co, j, best),
    };
    if (again != NULL)
        failure_bar(&again->failed, t->worker_id, core_now(co) + GUARD_PATIENCE_MS);
}

/* Cancels the other evaluations of the version: their results are not needed. */
static void cancel_others(struct coordinator *co, const struct task *told, uint32_t version)
{
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        const struct task *t = co->state.tasks[i];
        if (t != told && t->job_id == told->job_id && t->kind == TASK_EVAL && !t->draw.mixture &&
            t->path == told->path && t->draw.version == version && task_is_open(t))
            task_end(co, state_edit_task(&co->state, t), TASK_CANCELLED, "its version is undone");
    }
}

static void go_back(struct coordinator *co, struct job *j, const struct task *t, uint32_t version,
                    float loss, const struct round_rec *best)
{
    char who[REASON_MAX];
    struct err err = {0};
    const uint32_t to = best->round + 1; /* a copy: *best moves when a round ends */
    (void)snprintf(who, sizeof(who),
                   "by eval.guard: held-out loss %.4g of version %u, and that of version %u was "
                   "%.4g",
                   (double)loss, version, to, (double)best->eval_loss);
    job_edit_path(j, t->path)->doubt = (struct eval_doubt){0};
    if (rollback_job(co, j, t->path, to, who, &err) < 0) {
        core_say(co, j->id, 0, "it is not gone back %s: %s", who, err.msg);
        return;
    }
    cancel_others(co, t, version);
}

/* Two workers say so of the version.  It is compared with a loss that two have told as well. */
static void decide(struct coordinator *co, struct job *j, const struct task *t, uint32_t version,
                   float loss)
{
    struct eval_doubt *d = &job_edit_path(j, t->path)->doubt;
    const struct round_rec *best = best_before(j, t->path, version);
    const bool bad = best != NULL && !is_undone(j, t->path, version) &&
                     (double)loss > j->spec.eval.guard * (double)best->eval_loss;
    d->confirmed = loss;
    d->best_task = bad ? measure_again(co, j, best) : 0;
    if (!bad)
        *d = (struct eval_doubt){0};
    else if (d->best_task == 0)
        go_back(co, j, t, version, loss, best);
}

void guard_correct(struct job *j, uint32_t path, uint32_t version, float loss)
{
    const size_t at = round_of(j, path, version);
    struct round_rec *r = at < j->n_rounds ? job_edit_round(j, at) : NULL;
    if (r != NULL && !(loss <= r->eval_loss))
        r->eval_loss = isfinite(loss) ? loss : NAN;
    if (r != NULL)
        r->eval_sure = true;
}

/* The loss with which the version in question is compared was measured again. */
static void hear_of_best(struct coordinator *co, struct job *j, const struct task *t, float loss)
{
    struct eval_doubt *d = &job_edit_path(j, t->path)->doubt;
    const size_t at = round_of(j, t->path, t->draw.version);
    const struct round_rec *r = at < j->n_rounds ? &j->rounds[at] : NULL;
    d->best_task = 0;
    if (r != NULL && (double)loss > j->spec.eval.guard * (double)r->eval_loss)
        core_say(co, j->id, r->eval_by,
                 "held-out loss %.4g of version %u by worker %llu was wrong: worker %llu says %.4g",
                 (double)r->eval_loss, t->draw.version, (unsigned long long)r->eval_by,
                 (unsigned long long)t->worker_id, (double)loss);
    guard_correct(j, t->path, t->draw.version, loss);
    if (d->confirmed > 0)
        decide(co, j, t, d->version, d->confirmed);
}

/* Is the loss with which the version is compared still being measured again? */
static bool measures_best(const struct coordinator *co, const struct eval_doubt *d)
{
    const struct task *t = d->best_task != 0 ? state_task(&co->state, d->best_task) : NULL;
    return t != NULL && task_is_open(t);
}

/* The loss is no worse than the last ones. */
static void is_well(struct coordinator *co, struct job *j, const struct task *t, float loss)
{
    const struct eval_doubt *d = &j->paths[t->path].doubt;
    if (d->worker == 0 || d->version != t->draw.version)
        return;
    core_say(co, j->id, d->worker,
             "worker %llu's held-out loss of version %u was wrong: worker %llu says %.4g",
             (unsigned long long)d->worker, d->version, (unsigned long long)t->worker_id,
             (double)loss);
    job_edit_path(j, t->path)->doubt = (struct eval_doubt){0};
}

bool guard_hear(struct coordinator *co, struct job *j, const struct task *t, float loss)
{
    const uint32_t path = t->path, version = t->draw.version;
    const double most = j->spec.eval.guard;
    if (most <= 0 || j->spec.outer.async || query_streams(j) || j->state != JOB_RUNNING ||
        path >= query_main_paths(j))
        return false;
    if (t->id == j->paths[path].doubt.best_task) {
        hear_of_best(co, j, t, loss);
        return true;
    }
    const struct eval_doubt *doubt = &j->paths[path].doubt;
    if (doubt->confirmed > 0 && !measures_best(co, doubt)) /* its version went, or nobody could */
        decide(co, j, t, doubt->version, doubt->confirmed);
    if (is_undone(j, path, version))
        return true;
    const struct round_rec *best = best_before(j, path, version);
    if (best == NULL)
        return false;
    if ((double)loss <= most * (double)best->eval_loss) {
        is_well(co, j, t, loss);
    } else if (doubt->worker != 0 && doubt->version == version &&
               member_confirms(co, doubt->worker, doubt->origin, t)) {
        if (measures_best(co, doubt))
            job_edit_path(j, path)->doubt.confirmed = loss;
        else
            decide(co, j, t, version, loss);
    } else if (doubt->worker == 0 || doubt->version >= version ||
               !is_kept(j, path, doubt->version)) { /* else an older one is decided first */
        core_say(co, j->id, t->worker_id,
                 "held-out loss %.4g of version %u, and that of version %u was %.4g: another "
                 "worker is asked",
                 (double)loss, version, best->round + 1, (double)best->eval_loss);
        ask_again(co, j, t, best);
    }
    return true;
}
