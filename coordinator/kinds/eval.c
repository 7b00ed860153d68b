/* EVAL: held-out loss of a path, or of the mixture. */
#include "coordinator/kinds/kind.h"

#include "common/job/family.h"
#include "coordinator/job/agree.h"
#include "coordinator/job/best.h"
#include "coordinator/job/guard.h"
#include "coordinator/kinds/result.h"
#include "coordinator/work/metrics.h"

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

/* Evaluations may end in another order than their versions were made. */
static void take_path(struct coordinator *co, struct job *j, const struct task *t,
                      const Skerry__V1__ReportRequest *r)
{
    const bool sums = r->units > 0;
    const struct eval_rec *newest = &j->paths[t->path].eval;
    if (isnan(newest->loss) || t->draw.version >= newest->round)
        job_edit_path(j, t->path)->eval = (struct eval_rec){
            .loss = r->loss_mean,
            .round = t->draw.version,
            .loss_sum = sums ? r->loss_sum : (double)r->loss_mean * (double)t->draw.count,
            .units = sums ? r->units : t->draw.count,
            .bytes = r->bytes,
        };
    best_hear(co, j, t, r->loss_mean);
    metrics_eval(co, j, t,
                 &(struct metrics_heard){.names = r->number_names,
                                         .n_names = r->n_number_names,
                                         .numbers = r->numbers,
                                         .n_numbers = r->n_numbers});
}

/* Whether no token of the held-out texts is judged. */
static bool has_none(const struct job *j, const Skerry__V1__ReportRequest *r)
{
    return job_is_text(&j->spec) && r->units == 0 && r->samples > 0 && isnan(r->loss_mean);
}

/* Has another worker to say whether there is a loss?  Else one could keep it from all. */
static bool eval_waits(struct coordinator *co, struct job *j, struct task *t, bool none)
{
    const struct agree_result result = {.hash = {none}, .odd = none};
    return (none || t->n_told > 0) && !agree_hear(co, j, t, &result);
}

static int eval_apply(struct coordinator *co, struct job *j, struct task *t,
                      const Skerry__V1__ReportRequest *r, struct err *err)
{
    const bool none = has_none(j, r);
    if (best_hear_again(co, j, t, isfinite(r->loss_mean) ? r->loss_mean : INFINITY))
        return 0;
    if (!none && (!isfinite(r->loss_mean) || !isfinite(r->loss_sum))) {
        if (!t->draw.mixture && guard_hear(co, j, t, INFINITY))
            return 0;
        return err_set(err, -EINVAL, "the held-out loss is not a finite number");
    }
    if (eval_waits(co, j, t, none))
        return KIND_WAITS;
    result_drawn(j, t);
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
    take_path(co, j, t, r);
    (void)guard_hear(co, j, t, t->loss_mean);
    return 0;
}

const struct kind kind_eval = {.message = eval_message, .apply = eval_apply};
