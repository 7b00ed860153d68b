#include "coordinator/job/best.h"

#include "coordinator/job/draw.h"
#include "coordinator/job/guard.h"
#include "coordinator/work/gc.h"
#include "coordinator/work/member.h"
#include "coordinator/work/tasks.h"

/* Takes best, which may be NULL. */
static void drop(struct coordinator *co, const struct job *j, uint32_t path,
                 struct best_module *best)
{
    for (uint32_t l = 0; best != NULL && l < composition_levels(&j->comp, path); l++)
        gc_drop(co, &best[l].full);
    mem_free(best);
}

/* The weights that were evaluated as that version, in a new array; NULL: they are gone. */
static struct best_module *weights_of(const struct job *j, uint32_t path, uint32_t version)
{
    const uint32_t n = composition_levels(&j->comp, path);
    struct best_module *best = mem_alloc_array(n, sizeof(*best));
    for (uint32_t l = 0; l < n; l++) {
        const struct version_rec *v =
            module_version(&j->modules[j->comp.paths[path].modules[l]], version);
        if (v == NULL) {
            mem_free(best);
            return NULL;
        }
        best[l].version = v->version;
        best[l].full = j->spec.outer.ema > 0 && blob_ref_is_set(&v->ema) ? v->ema : v->full;
    }
    return best;
}

/* The version in question is the path's best. */
static void adopt(struct coordinator *co, struct job *j, uint32_t p)
{
    struct path_rec *path = job_edit_path(j, p);
    drop(co, j, p, path->best);
    path->best = path->hope.best;
    path->best_round = path->hope.version;
    path->best_loss = path->hope.loss;
    path->hope = (struct eval_hope){0};
}

static void give_up(struct coordinator *co, struct job *j, uint32_t p)
{
    struct eval_hope *hope = &job_edit_path(j, p)->hope;
    const struct task *t = hope->task != 0 ? state_task(&co->state, hope->task) : NULL;
    drop(co, j, p, hope->best);
    *hope = (struct eval_hope){0};
    if (t != NULL && task_is_open(t))
        task_end(co, state_edit_task(&co->state, t), TASK_CANCELLED,
                 "the version is not in question any more");
}

/* Has another worker measure the version in question; false: nobody can. */
static bool ask(struct coordinator *co, struct job *j, uint32_t p)
{
    const struct task like = {.job_id = j->id, .kind = TASK_EVAL, .path = p};
    struct eval_hope *hope = &job_edit_path(j, p)->hope;
    if (!member_another(co, hope->worker, &like))
        return false;
    struct task *again = draw_eval(co, j, p, hope->version);
    if (again == NULL)
        return false;
    hope->task = again->id;
    failure_bar(&again->failed, hope->worker, core_now(co) + GUARD_PATIENCE_MS);
    return true;
}

static bool is_better(const struct path_rec *path, float loss)
{
    return path->best == NULL || loss < path->best_loss;
}

/* Puts the version in question if by this worker's word it is better than the path's best and than
 * what is in question. */
static void hear(struct coordinator *co, struct job *j, uint32_t p, uint32_t version, float loss,
                 uint64_t worker)
{
    const struct path_rec *path = &j->paths[p];
    const struct worker *w = state_worker(&co->state, worker);
    if (!is_better(path, loss) || (path->hope.best != NULL && path->hope.loss <= loss))
        return;
    struct best_module *best = weights_of(j, p, version);
    if (best == NULL)
        return;
    give_up(co, j, p);
    job_edit_path(j, p)->hope = (struct eval_hope){
        .best = best,
        .version = version,
        .loss = loss,
        .worker = worker,
        .origin = w != NULL ? worker_origin(w) : 0,
    };
    if (!ask(co, j, p))
        adopt(co, j, p);
}

void best_hear(struct coordinator *co, struct job *j, const struct task *t, float loss)
{
    const bool old = t->n_ranges > 0 && j->shards[t->ranges[0].shard].generation != j->generation;
    if (j->spec.recipe.early_stop && !old)
        hear(co, j, t->path, t->draw.version, loss, t->worker_id);
}

/* The version is no longer in question: others that seemed worse may be better than the best. */
static void hear_others(struct coordinator *co, struct job *j, uint32_t p, uint32_t version)
{
    for (size_t i = 0; i < j->n_rounds; i++) {
        const struct round_rec *r = &j->rounds[i];
        if (r->path == p && r->round + 1 != version && r->round >= guard_first_round(j) &&
            isfinite(r->eval_loss))
            hear(co, j, p, r->round + 1, r->eval_loss, r->eval_by);
    }
}

/* Of two losses the larger counts: it need not be the best any more. */
static void decide(struct coordinator *co, struct job *j, const struct task *t, float loss)
{
    struct eval_hope *hope = &job_edit_path(j, t->path)->hope;
    const uint32_t version = hope->version;
    const float first = hope->loss;
    hope->task = 0; /* that is t, whose report this is */
    if (loss > first)
        hope->loss = loss;
    guard_correct(j, t->path, version, loss);
    if (isfinite(loss) && is_better(&j->paths[t->path], hope->loss)) {
        adopt(co, j, t->path);
    } else {
        core_say(co, j->id, t->worker_id,
                 "version %u is not the best of path %u: its held-out loss is %.4g by worker %llu, "
                 "and %.4g by worker %llu",
                 version, t->path, (double)first, (unsigned long long)hope->worker, (double)loss,
                 (unsigned long long)t->worker_id);
        give_up(co, j, t->path);
    }
    hear_others(co, j, t->path, version);
}

bool best_hear_again(struct coordinator *co, struct job *j, const struct task *t, float loss)
{
    const struct eval_hope *hope = &j->paths[t->path].hope;
    if (t->draw.mixture || hope->best == NULL || hope->task != t->id)
        return false;
    if (member_confirms(co, hope->worker, hope->origin, t) || !ask(co, j, t->path))
        decide(co, j, t, loss);
    return true;
}

bool best_not_for(const struct coordinator *co, const struct task *t, uint64_t *ret_worker,
                  uint64_t *ret_from)
{
    const struct eval_hope *hope = &state_job(&co->state, t->job_id)->paths[t->path].hope;
    if (hope->best == NULL || hope->task != t->id)
        return false;
    if (member_elsewhere(co, hope->origin, t)) {
        *ret_worker = hope->worker;
        *ret_from = hope->origin;
    }
    return true;
}

void best_settle(struct coordinator *co, struct job *j)
{
    for (uint32_t p = 0; j->spec.recipe.early_stop && p < j->comp.n_paths; p++) {
        const struct eval_hope *hope = &j->paths[p].hope;
        const struct task *t = hope->best != NULL ? state_task(&co->state, hope->task) : NULL;
        if (hope->best == NULL || (t != NULL && task_is_open(t)))
            continue;
        if (t != NULL && t->state == TASK_FAILED)
            adopt(co, j, p); /* nobody else could measure it */
        else
            give_up(co, j, p);
    }
}

void best_forget(struct coordinator *co, struct job *j)
{
    for (uint32_t p = 0; p < j->comp.n_paths; p++) {
        if (j->paths[p].hope.best != NULL)
            give_up(co, j, p);
        if (j->paths[p].best == NULL)
            continue;
        struct path_rec *path = job_edit_path(j, p);
        drop(co, j, p, path->best);
        path->best = NULL;
    }
}
