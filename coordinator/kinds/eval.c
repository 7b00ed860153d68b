/* EVAL: held-out loss of a path, or of the mixture. */
#include "coordinator/kinds/eval.h"

#include "common/job/family.h"
#include "coordinator/job/gc.h"
#include "coordinator/job/guard.h"
#include "coordinator/job/metrics.h"
#include "coordinator/kinds/result.h"

static void eval_message(struct message *b, Skerry__V1__Task *msg)
{
    Skerry__V1__EvalTask *m = message_new(b, &skerry__v1__eval_task__descriptor);
    m->path = b->task->path;
    m->version_round = b->task->draw.version;
    m->samples = b->task->draw.count;
    m->ema = b->task->draw.ema;
    m->skip = job_is_text(&b->job->spec) ? TEXT_SKIP : 0;
    m->ranges = message_ranges(b, &m->n_ranges);
    msg->eval = m;
    b->best = task_is_mixture(b->task);
    message_networks(b, msg);
}

/* Keeps the evaluated weights if they are the path's best and still there. */
static void keep_best(struct coordinator *co, struct job *j, const struct task *t)
{
    struct path_rec *path = job_edit_path(j, t->path);
    uint32_t n = composition_levels(&j->comp, t->path);
    bool old = t->n_ranges > 0 && j->shards[t->ranges[0].shard].generation != j->generation;
    if (!j->spec.recipe.early_stop || old ||
        (path->best != NULL && path->best_loss <= t->loss_mean))
        return;
    struct best_module *best = mem_alloc_array(n, sizeof(*best));
    for (uint32_t l = 0; l < n; l++) {
        const struct version_rec *v =
            module_version(&j->modules[j->comp.paths[t->path].modules[l]], t->draw.version);
        if (v == NULL) {
            mem_free(best);
            return;
        }
        best[l].version = v->version;
        best[l].full = t->draw.ema && blob_ref_is_set(&v->ema) ? v->ema : v->full;
    }
    for (uint32_t l = 0; l < n && path->best != NULL; l++)
        gc_drop(co, &path->best[l].full);
    mem_free(path->best);
    path->best = best;
    path->best_round = t->draw.version;
    path->best_loss = t->loss_mean;
}

/* Takes the results of the path's newest evaluation. */
static void take_newest(struct coordinator *co, struct job *j, const struct task *t,
                        const Skerry__V1__ReportRequest *r)
{
    const bool sums = r->units > 0;
    job_edit_path(j, t->path)->eval = (struct eval_rec){
        .loss = r->loss_mean,
        .round = t->draw.version,
        .loss_sum = sums ? r->loss_sum : (double)r->loss_mean * (double)t->draw.count,
        .units = sums ? r->units : t->draw.count,
        .bytes = r->bytes,
    };
    keep_best(co, j, t);
    metrics_eval(co, j, t,
                 &(struct metrics_heard){.names = r->number_names,
                                         .n_names = r->n_number_names,
                                         .numbers = r->numbers,
                                         .n_numbers = r->n_numbers});
}

static int eval_apply(struct coordinator *co, struct job *j, struct task *t,
                      const Skerry__V1__ReportRequest *r, struct err *err)
{
    bool none = r->units == 0 && r->samples > 0 && isnan(r->loss_mean);
    if (!none && (!isfinite(r->loss_mean) || !isfinite(r->loss_sum))) {
        if (!t->draw.mixture && guard_hear(co, j, t, INFINITY))
            return 0;
        return err_set(err, -EINVAL, "the held-out loss is not a finite number");
    }
    t->loss_mean = r->loss_mean;
    if (none) {
        core_say(
            co, j->id, 0,
            "no held-out loss: the %llu held-out texts end within their first %u tokens, which "
            "are not judged; give longer ones in data.holdout_path",
            (unsigned long long)r->samples, TEXT_SKIP);
        return 0;
    }
    result_rows(co, j, t, r);
    if (t->draw.mixture)
        return 0; /* its rows are its whole result */
    const struct eval_rec *newest = &j->paths[t->path].eval;
    if (isnan(newest->loss) || t->draw.version >= newest->round)
        take_newest(co, j, t, r);
    (void)guard_hear(co, j, t, t->loss_mean);
    return 0;
}

const struct kind kind_eval = {.message = eval_message, .apply = eval_apply};
