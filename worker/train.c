#include "worker/train.h"

#include <errno.h>
#include <math.h>

#include "common/base/err.h"
#include "common/base/job.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "worker/flow.h"

enum { STREAM_DROPOUT = 3 };

struct trainer {
    struct train_options opt;
    const struct model *m;
    struct device *dev;
    const struct kernel_ops *ops;
    struct dit *dit;
    struct flow flow;
    bool has_weights;
    uint64_t step, total_steps, adam_step;

    struct arena arena;           /* device memory of the fields below */
    float *adam_m, *adam_v, *ema; /* flat; ema NULL when off */
    double *sumsq;                /* of the gradient */
    float *clip;                  /* its scale */
};

void train_options_from_job(const struct job_spec *job, uint64_t replica, struct train_options *ret)
{
    static const enum train_schedule schedules[] = {
        [JOB_SCHEDULE_CONSTANT] = TRAIN_CONSTANT,
        [JOB_SCHEDULE_COSINE] = TRAIN_COSINE,
        [JOB_SCHEDULE_DECAY] = TRAIN_DECAY,
    };
    static const enum dit_precision precisions[] = {
        [JOB_PRECISION_AUTO] = DIT_AUTO,
        [JOB_PRECISION_BF16] = DIT_BF16,
        [JOB_PRECISION_F32] = DIT_F32,
    };
    const struct job_train *t = &job->train;
    *ret = (struct train_options){
        .batch = t->batch,
        .accumulate = t->accumulate,
        .lr = t->lr,
        .warmup = t->warmup,
        .schedule = schedules[t->schedule],
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
        .label_dropout = job->model.label_dropout,
        .recompute = t->recompute,
        .seed = job->seed,
        .replica = replica,
    };
}

double train_lr(const struct train_options *o, uint64_t step, uint64_t total)
{
    const double s = (double)step, n = (double)total, warmup = (double)o->warmup;
    if (s < warmup)
        return o->lr * (s + 1) / warmup;
    if (total == 0)
        return o->lr;
    switch (o->schedule) {
    case TRAIN_COSINE: {
        double done = n > warmup ? fmin(1.0, (s - warmup) / (n - warmup)) : 1.0;
        double shape = 0.5 * (1.0 + cos(acos(-1.0) * done));
        return o->lr * (o->final_lr + (1.0 - o->final_lr) * shape);
    }
    case TRAIN_DECAY: {
        double tail = n * o->decay_fraction;
        return s < n - tail ? o->lr : o->lr * fmax(0.0, (n - s) / tail);
    }
    case TRAIN_CONSTANT:
        break;
    }
    return o->lr;
}

static int micro_batch(const struct train_options *o)
{
    return (o->batch + o->accumulate - 1) / o->accumulate;
}

static struct dit_options dit_options_of(const struct train_options *o)
{
    return (struct dit_options){
        .mode = o->recompute ? DIT_RECOMPUTE : DIT_TRAIN,
        .precision = o->precision,
        .batch = micro_batch(o),
    };
}

static void plan(struct trainer *t)
{
    const uint64_t bytes = t->m->flat * sizeof(float);
    arena_add(&t->arena, &t->adam_m, bytes);
    arena_add(&t->arena, &t->adam_v, bytes);
    if (t->opt.ema > 0)
        arena_add(&t->arena, &t->ema, bytes);
    arena_add(&t->arena, &t->sumsq, sizeof *t->sumsq);
    arena_add(&t->arena, &t->clip, sizeof *t->clip);
}

uint64_t trainer_bytes(const struct model *m, const struct train_options *opt, bool use_bf16)
{
    struct dit_options dopt = dit_options_of(opt);
    struct dit_memory mem;
    dit_memory(m, &dopt, use_bf16, &mem);

    struct trainer t = {.m = m, .opt = *opt};
    plan(&t);
    uint64_t bytes = arena_bytes(&t.arena);
    mem_free(t.arena.slots);
    return bytes + mem.weights + mem.gradients + mem.activations + flow_bytes(m, dopt.batch, true);
}

int trainer_new(struct device *dev, const struct model *m, const struct train_options *opt,
                struct trainer **ret, struct err *err)
{
    if (opt->batch < 1 || opt->accumulate < 1 || opt->accumulate > opt->batch)
        return err_set(err, -EINVAL, "a batch of %d in %d micro-batches", opt->batch,
                       opt->accumulate);
    struct trainer *t = mem_alloc(sizeof *t);
    t->opt = *opt;
    t->m = m;
    t->dev = dev;
    t->ops = dev->ops;
    struct dit_options dopt = dit_options_of(opt);
    int rc = dit_new(dev, m, &dopt, &t->dit, err);
    if (rc == 0)
        rc = flow_init(&t->flow, t->dit, true, err);
    if (rc == 0) {
        plan(t);
        rc = arena_alloc(&t->arena, dev, err);
    }
    if (rc == 0)
        rc = trainer_reset_moments(t, err);
    if (rc < 0) {
        trainer_free(t);
        (void)err_wrap(err, "making a trainer of %.1f M parameters", (double)m->params / 1e6);
        return rc;
    }
    *ret = t;
    return 0;
}

void trainer_free(struct trainer *t)
{
    if (!t)
        return;
    flow_release(&t->flow);
    arena_free(&t->arena, t->dev);
    dit_free(t->dit);
    mem_free(t);
}

/* Fills the host side of micro-batch [start, start+B) of the step. */
static int draw(struct trainer *t, const int32_t *labels, unsigned start, unsigned B,
                struct err *err)
{
    struct flow *f = &t->flow;
    const uint64_t seed = rng_mix(t->opt.seed, t->opt.replica);
    const int classes = t->m->spec.classes;

    for (unsigned i = 0; i < B; i++) {
        const int32_t label = labels[start + i];
        if (label < 0 || label >= classes)
            return err_set(err, -EINVAL, "label %d at position %u is not below %d", (int)label,
                           start + i, classes);
        const uint64_t key = rng_mix(t->step, start + i);
        flow_draw(f, (int)i, seed, key, t->opt.uniform_t);
        bool drop =
            rng_at_uniform(seed, rng_mix(key, STREAM_DROPOUT), 0) < (float)t->opt.label_dropout;
        f->labels[i] = drop ? classes : label;
    }
    return 0;
}

/* Gradients and mean loss of the whole step. */
static int accumulate(struct trainer *t, const uint8_t *images, const int32_t *labels,
                      unsigned count, double *ret_loss, struct err *err)
{
    struct flow *f = &t->flow;
    const unsigned micro = (unsigned)dit_batch(t->dit);
    double sum = 0;

    for (unsigned start = 0; start < count; start += micro) {
        unsigned B = count - start < micro ? count - start : micro;
        int rc = draw(t, labels, start, B, err);
        if (rc == 0)
            rc = flow_run(f, images + (size_t)start * (size_t)f->n, (int)B, 1.0f / (float)count,
                          err);
        if (rc == 0)
            rc = dit_backward(t->dit, f->d_dpred, f->d_labels, (int)B, start == 0, err);
        if (rc < 0)
            return rc;
        for (unsigned i = 0; i < B; i++)
            sum += (double)f->loss[i];
    }
    *ret_loss = sum / count;
    return 0;
}

static int gradient_norm(struct trainer *t, double *ret_norm, struct err *err)
{
    struct stream *s = dit_stream(t->dit);
    double sum = 0;
    int rc = t->ops->zero(t->dev, t->sumsq, sizeof *t->sumsq, s);
    if (rc == 0)
        rc = t->ops->sumsq(t->dev, t->sumsq, dit_gradients(t->dit), (int64_t)t->m->flat, s);
    if (rc == 0)
        rc = t->ops->clip_scale(t->dev, t->clip, t->sumsq, (float)t->opt.clip, s);
    if (rc == 0)
        rc = t->ops->copy(t->dev, &sum, t->sumsq, sizeof sum, COPY_FROM_DEVICE, s);
    if (rc < 0)
        return err_set(err, rc, "the gradient norm failed on %s: %s", t->dev->name, err_text(rc));
    rc = dit_sync(t->dit, err);
    *ret_norm = sqrt(sum);
    return rc;
}

static int update_range(struct trainer *t, uint64_t from, uint64_t to, double lr, double decay)
{
    bf16 *w16 = dit_weights_bf16(t->dit);
    struct adamw p = {
        .p = dit_weights(t->dit) + from,
        .p_bf16 = w16 ? w16 + from : NULL,
        .m = t->adam_m + from,
        .v = t->adam_v + from,
        .ema = t->ema ? t->ema + from : NULL,
        .grad = dit_gradients(t->dit) + from,
        .grad_scale = t->clip,
        .lr = (float)lr,
        .beta1 = (float)t->opt.beta1,
        .beta2 = (float)t->opt.beta2,
        .eps = (float)t->opt.eps,
        .weight_decay = (float)decay,
        .ema_decay = (float)t->opt.ema,
        .step = (int64_t)t->adam_step + 1,
        .n = (int64_t)(to - from),
    };
    return t->ops->adamw(t->dev, &p, dit_stream(t->dit));
}

static int update(struct trainer *t, double lr, struct err *err)
{
    const struct model *m = t->m;
    int rc;
    if (t->opt.weight_decay > 0) {
        rc = update_range(t, 0, m->decayed, lr, t->opt.weight_decay);
        if (rc == 0)
            rc = update_range(t, m->decayed, m->flat, lr, 0.0);
    } else {
        rc = update_range(t, 0, m->flat, lr, 0.0);
    }
    if (rc < 0)
        return err_set(err, rc, "the optimiser failed on %s: %s", t->dev->name, err_text(rc));
    return 0;
}

int trainer_step(struct trainer *t, const uint8_t *images, const int32_t *labels, unsigned count,
                 struct step_result *ret, struct err *err)
{
    if (count < 1 || count > (unsigned)t->opt.batch)
        return err_set(err, -EINVAL, "a step on %u samples; from 1 to %d are possible", count,
                       t->opt.batch);
    struct step_result r = {
        .step = t->step,
        .lr = train_lr(&t->opt, t->step, t->total_steps),
    };
    int rc = accumulate(t, images, labels, count, &r.loss, err);
    if (rc == 0)
        rc = gradient_norm(t, &r.grad_norm, err);
    if (rc < 0)
        return rc;
    if (!isfinite(r.loss) || !isfinite(r.grad_norm))
        return err_set(err, -EDOM,
                       "step %llu diverged: loss %g, gradient norm %g; lower train.lr "
                       "or lengthen train.warmup",
                       (unsigned long long)t->step, r.loss, r.grad_norm);
    rc = update(t, r.lr, err);
    if (rc < 0)
        return rc;
    t->step++;
    t->adam_step++;
    *ret = r;
    return 0;
}

void trainer_position(struct trainer *t, uint64_t step, uint64_t total_steps)
{
    t->step = step;
    t->total_steps = total_steps;
}

uint64_t trainer_next_step(const struct trainer *t)
{
    return t->step;
}

uint64_t trainer_total_steps(const struct trainer *t)
{
    return t->total_steps;
}

uint64_t trainer_adam_step(const struct trainer *t)
{
    return t->adam_step;
}

void trainer_set_adam_step(struct trainer *t, uint64_t step)
{
    t->adam_step = step;
}

static int copy_failed(struct trainer *t, int rc, struct err *err)
{
    if (rc < 0)
        return err_set(err, rc, "copying a vector on %s failed: %s", t->dev->name, err_text(rc));
    return dit_sync(t->dit, err);
}

static int ema_from_weights(struct trainer *t, struct err *err)
{
    if (!t->ema)
        return 0;
    return copy_failed(t,
                       t->ops->copy(t->dev, t->ema, dit_weights(t->dit), t->m->flat * sizeof(float),
                                    COPY_DEVICE, dit_stream(t->dit)),
                       err);
}

int trainer_set(struct trainer *t, const float *flat, struct err *err)
{
    int rc = dit_set(t->dit, flat, err);
    if (rc == 0 && !t->has_weights)
        rc = ema_from_weights(t, err);
    if (rc == 0)
        t->has_weights = true;
    return rc;
}

int trainer_get(struct trainer *t, float *flat, struct err *err)
{
    return dit_get(t->dit, flat, err);
}

int trainer_get_ema(struct trainer *t, float *flat, struct err *err)
{
    if (!t->ema)
        return err_set(err, -ENOENT, "the inner EMA is off (train.ema is 0)");
    return copy_failed(t,
                       t->ops->copy(t->dev, flat, t->ema, t->m->flat * sizeof *flat,
                                    COPY_FROM_DEVICE, dit_stream(t->dit)),
                       err);
}

int trainer_reset_moments(struct trainer *t, struct err *err)
{
    const size_t bytes = t->m->flat * sizeof(float);
    struct stream *s = dit_stream(t->dit);
    int rc = t->ops->zero(t->dev, t->adam_m, bytes, s);
    if (rc == 0)
        rc = t->ops->zero(t->dev, t->adam_v, bytes, s);
    t->adam_step = 0;
    rc = copy_failed(t, rc, err);
    return rc == 0 && t->has_weights ? ema_from_weights(t, err) : rc;
}

static float *vector_of(struct trainer *t, enum trainer_vector which)
{
    switch (which) {
    case TRAINER_WEIGHTS:
        return dit_weights(t->dit);
    case TRAINER_ADAM_M:
        return t->adam_m;
    case TRAINER_ADAM_V:
        return t->adam_v;
    case TRAINER_EMA:
        return t->ema;
    case TRAINER_GRADIENT:
        return dit_gradients(t->dit);
    }
    return NULL;
}

int trainer_read(struct trainer *t, enum trainer_vector which, const struct model_tensor *tensor,
                 float *values, struct err *err)
{
    float *from = vector_of(t, which);
    if (!from)
        return err_set(err, -ENOENT, "the inner EMA is off (train.ema is 0)");
    return copy_failed(t,
                       t->ops->copy(t->dev, values, from + tensor->offset,
                                    tensor->count * sizeof *values, COPY_FROM_DEVICE,
                                    dit_stream(t->dit)),
                       err);
}

int trainer_write(struct trainer *t, enum trainer_vector which, const struct model_tensor *tensor,
                  const float *values, struct err *err)
{
    float *to = vector_of(t, which);
    if (!to)
        return err_set(err, -ENOENT, "the inner EMA is off (train.ema is 0)");
    return copy_failed(t,
                       t->ops->copy(t->dev, to + tensor->offset, values,
                                    tensor->count * sizeof *values, COPY_TO_DEVICE,
                                    dit_stream(t->dit)),
                       err);
}

int trainer_written(struct trainer *t, struct err *err)
{
    t->has_weights = true;
    return dit_weights_changed(t->dit, err);
}

const struct model *trainer_model(const struct trainer *t)
{
    return t->m;
}

const struct train_options *trainer_options(const struct trainer *t)
{
    return &t->opt;
}

struct dit *trainer_dit(struct trainer *t)
{
    return t->dit;
}
