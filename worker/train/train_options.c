#include "worker/train/train_options.h"

#include "common/base/rng.h"

enum { STREAM_ESTIMATE = 0x65737469 };

void train_options_from_job(const struct job_spec *job, bool router, int batch, uint64_t replica,
                            struct train_options *ret)
{
    static const enum net_precision precisions[] = {
        [JOB_PRECISION_AUTO] = NET_AUTO,
        [JOB_PRECISION_BF16] = NET_BF16,
        [JOB_PRECISION_F32] = NET_F32,
    };
    const struct job_train *t = &job->train;
    if (batch == 0)
        batch = router ? job->router.batch : t->batch;
    *ret = (struct train_options){
        .batch = batch,
        .accumulate = t->accumulate == 0      ? 1
                      : t->accumulate < batch ? t->accumulate
                                              : batch,
        .accumulate_auto = t->accumulate == 0,
        .lr = router ? job->router.lr : t->lr,
        .warmup = t->warmup,
        .schedule = (enum job_schedule)t->schedule,
        .decay_fraction = t->decay_fraction,
        .final_lr = t->final_lr,
        .weight_decay = t->weight_decay,
        .beta1 = t->beta1,
        .beta2 = t->beta2,
        .eps = t->eps,
        .clip = t->clip,
        .ema = t->ema,
        .precision = precisions[t->precision],
        .uniform_t = t->t == JOB_T_UNIFORM,
        .shift = (float)t->shift,
        .label_dropout = job->model.label_dropout,
        .self_condition = router ? 0 : job->model.self_condition,
        .recompute = t->recompute,
        .fill = t->fill,
        .parallel = (enum job_parallel)t->parallel,
        .pipeline = (enum job_pipeline)t->pipeline,
        .shard = (enum job_shard)t->shard,
        .stages = t->stages,
        .moments_warmup = job->recipe.moments_warmup,
        .seed = job->seed,
        .replica = replica,
    };
}

bool train_has_estimate(const struct train_options *o, uint64_t step)
{
    return rng_at_uniform(o->seed, STREAM_ESTIMATE, step) < (float)o->self_condition;
}

/* The rate at `s` of `n`, when it is no longer below `warmup`. */
static double scheduled(const struct train_options *o, double s, double n, double warmup)
{
    switch (o->schedule) {
    case JOB_SCHEDULE_COSINE: {
        double done = n > warmup ? fmin(1.0, (s - warmup) / (n - warmup)) : 1.0;
        double shape = 0.5 * (1.0 + cos(acos(-1.0) * done));
        return o->lr * (o->final_lr + (1.0 - o->final_lr) * shape);
    }
    case JOB_SCHEDULE_DECAY: {
        double tail = n * o->decay_fraction;
        return s < n - tail ? o->lr : o->lr * fmax(0.0, (n - s) / tail);
    }
    case JOB_SCHEDULE_CONSTANT:
        break;
    }
    return o->lr;
}

double train_lr(const struct train_options *o, uint64_t step, uint64_t total)
{
    const double s = (double)step, warmup = (double)o->warmup;
    if (s < warmup)
        return o->lr * (s + 1) / warmup;
    return total == 0 ? o->lr : scheduled(o, s, (double)total, warmup);
}

double train_lr_timed(const struct train_options *o, uint64_t step, double done)
{
    const double s = (double)step, warmup = (double)o->warmup;
    return scheduled(o, done, 1, 0) * (s < warmup ? (s + 1) / warmup : 1);
}

#define SHARE_VALUES 64 /* a share begins at a multiple of so many values */

struct train_share train_share_of(uint64_t flat, int sharers, int sharer)
{
    const uint64_t n = sharers > 1 ? (uint64_t)sharers : 1, i = (uint64_t)sharer;
    const uint64_t each = ((flat + n - 1) / n + SHARE_VALUES - 1) / SHARE_VALUES * SHARE_VALUES;
    const uint64_t from = i * each < flat ? i * each : flat;
    return (struct train_share){from, flat - from < each ? flat : from + each};
}

bool train_wants_pipeline(const struct train_options *o)
{
    return o->parallel == JOB_PARALLEL_PIPELINE || o->stages > 0;
}

int train_micro_batch(const struct train_options *o)
{
    return (o->batch + o->accumulate - 1) / o->accumulate;
}

int train_micro_share(const struct train_options *o)
{
    const int r = o->width > 1 ? o->width : 1;
    return (train_micro_batch(o) + r - 1) / r;
}

struct net_options train_net_options(const struct train_options *o)
{
    return (struct net_options){
        .mode = o->recompute ? NET_RECOMPUTE
                : o->lean    ? NET_LEAN
                             : NET_TRAIN,
        .precision = o->precision,
        .batch = train_micro_share(o),
        .load = o->batch,
        .slots = o->slots,
        .slots_upscaler = o->slots_upscaler,
        .split = o->split,
        .uniform_t = o->uniform_t,
        .shift = o->shift,
        .label_dropout = o->label_dropout,
        .distill = o->distill,
        .encoders = o->encoders,
    };
}
