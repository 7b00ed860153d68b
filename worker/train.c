#include "worker/train.h"

#include <errno.h>
#include <math.h>

#include "common/base/err.h"
#include "common/base/job.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "worker/arena.h"

struct trainer {
    struct train_options opt;
    const struct model *m;
    struct device *dev;
    const struct kernel_ops *ops;
    struct net *net;
    struct weights *w; /* of net */
    bool has_weights;
    uint64_t step, total_steps, adam_step;

    uint64_t *keys; /* (batch) host: of the step's samples */
    float *losses;  /* host: of a micro-batch */

    struct arena arena;           /* device memory of the fields below */
    float *adam_m, *adam_v, *ema; /* flat; ema NULL when off */
    double *sumsq;                /* of the gradient */
    float *clip;                  /* its scale */
    struct adamw_now *now;
};

void train_options_from_job(const struct job_spec *job, bool router, int batch, uint64_t replica,
                            struct train_options *ret)
{
    static const enum train_schedule schedules[] = {
        [JOB_SCHEDULE_CONSTANT] = TRAIN_CONSTANT,
        [JOB_SCHEDULE_COSINE] = TRAIN_COSINE,
        [JOB_SCHEDULE_DECAY] = TRAIN_DECAY,
    };
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
        .accumulate = t->accumulate == 0 ? 1 : t->accumulate < batch ? t->accumulate : batch,
        .accumulate_auto = t->accumulate == 0,
        .lr = router ? job->router.lr : t->lr,
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
        .moments_warmup = job->recipe.moments_warmup,
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

struct net_options train_net_options(const struct train_options *o)
{
    return (struct net_options){
        .mode = o->recompute ? NET_RECOMPUTE : NET_TRAIN,
        .precision = o->precision,
        .batch = micro_batch(o),
        .uniform_t = o->uniform_t,
        .label_dropout = o->label_dropout,
        .distill = o->distill,
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
    arena_add(&t->arena, &t->now, sizeof *t->now);
}

uint64_t trainer_bytes(const struct model *m, const struct train_options *opt, enum dtype dt)
{
    const struct net_options nopt = train_net_options(opt);
    struct trainer t = {.m = m, .opt = *opt};
    plan(&t);
    uint64_t bytes = arena_bytes(&t.arena);
    mem_free(t.arena.slots);
    return bytes + net_bytes(m, &nopt, dt);
}

/* Losses that a sample may have. */
static size_t losses_of(const struct model *m)
{
    return model_is_text(&m->spec) ? (size_t)m->spec.context : 1;
}

static int check_options(const struct train_options *opt, const struct net *net, struct err *err)
{
    if (opt->batch < 1 || opt->accumulate < 1 || opt->accumulate > opt->batch)
        return err_set(err, -EINVAL, "a batch of %d in %d micro-batches", opt->batch,
                       opt->accumulate);
    if (net->opt.batch < micro_batch(opt))
        return err_set(err, -EINVAL, "micro-batches of %d in a network made for %d",
                       micro_batch(opt), net->opt.batch);
    return 0;
}

static int alloc_host(struct trainer *t, struct err *err)
{
    const size_t micro = (size_t)micro_batch(&t->opt);
    t->keys = mem_try_array((size_t)t->opt.batch, sizeof *t->keys);
    t->losses = mem_try_array(micro * losses_of(t->m), sizeof *t->losses);
    if (!t->keys || !t->losses)
        return err_set(err, -ENOMEM, "no memory for a batch of %d samples", t->opt.batch);
    return 0;
}

int trainer_new(struct net *net, const struct train_options *opt, struct trainer **ret,
                struct err *err)
{
    struct trainer *t = mem_alloc(sizeof *t);
    t->opt = *opt;
    t->net = net;
    t->w = net->weights;
    t->m = net_model(net);
    t->dev = net_device(net);
    t->ops = t->dev->ops;
    int rc = check_options(opt, net, err);
    if (rc == 0)
        rc = alloc_host(t, err);
    if (rc == 0) {
        plan(t);
        rc = arena_alloc(&t->arena, t->dev, err);
    }
    if (rc == 0)
        rc = trainer_reset_moments(t, err);
    if (rc < 0) {
        (void)err_wrap(err, "making a trainer of %.1f M parameters", (double)t->m->params / 1e6);
        trainer_free(t);
        return rc;
    }
    *ret = t;
    return 0;
}

int trainer_make(struct device *dev, const struct model *m, const struct train_options *opt,
                 struct trainer **ret, struct err *err)
{
    const struct net_options nopt = train_net_options(opt);
    struct net *net;
    int rc = net_new(dev, m, &nopt, &net, err);
    if (rc < 0)
        return err_wrap(err, "making a trainer of %.1f M parameters", (double)m->params / 1e6);
    return trainer_new(net, opt, ret, err);
}

void trainer_free(struct trainer *t)
{
    if (!t)
        return;
    arena_free(&t->arena, t->dev);
    net_free(t->net);
    mem_free(t->keys);
    mem_free(t->losses);
    mem_free(t);
}

/* Gradients and mean loss of the whole step. */
static int accumulate(struct trainer *t, const struct net_batch *step, double *ret_loss,
                      struct err *err)
{
    const unsigned micro = (unsigned)micro_batch(&t->opt);
    const uint64_t units = net_units(step), values = model_image_values(&t->m->spec);
    double sum = 0;

    if (units == 0)
        return err_set(err, -EINVAL, "a step of %u rows without a token to predict", step->count);
    for (unsigned start = 0; start < step->count; start += micro) {
        const unsigned left = step->count - start;
        struct net_batch b;
        struct net_result r = {.losses = t->losses};
        net_slice(step, start, left < micro ? left : micro, values, &b);
        int rc = net_loss(t->net, &b, start == 0, 1.0f / (float)units, true, &r, err);
        if (rc < 0)
            return rc;
        for (size_t i = 0; i < (size_t)b.count * net_losses(&b); i++)
            sum += (double)t->losses[i];
    }
    *ret_loss = sum / (double)units;
    return 0;
}

static int gradient_norm(struct trainer *t, double *ret_norm, struct err *err)
{
    struct stream *s = t->w->stream;
    double sum = 0;
    int rc = t->ops->zero(t->dev, t->sumsq, sizeof *t->sumsq, s);
    if (rc == 0)
        rc = t->ops->sumsq(t->dev, t->sumsq, t->w->g, (int64_t)t->m->flat, s);
    if (rc == 0)
        rc = t->ops->clip_scale(t->dev, t->clip, t->sumsq, NULL, (float)t->opt.clip, s);
    if (rc == 0)
        rc = t->ops->copy(t->dev, &sum, t->sumsq, sizeof sum, COPY_FROM_DEVICE, s);
    if (rc < 0)
        return err_set(err, rc, "the gradient norm failed on %s: %s", t->dev->name, err_text(rc));
    rc = weights_sync(t->w, err);
    *ret_norm = sqrt(sum);
    return rc;
}

static int update_range(struct trainer *t, uint64_t from, uint64_t to, double decay)
{
    bf16 *w16 = t->w->w16;
    struct adamw p = {
        .p = t->w->w + from,
        .p_bf16 = w16 ? w16 + from : NULL,
        .m = t->adam_m + from,
        .v = t->adam_v + from,
        .ema = t->ema ? t->ema + from : NULL,
        .grad = t->w->g + from,
        .grad_scale = t->clip,
        .now = t->now,
        .beta1 = (float)t->opt.beta1,
        .beta2 = (float)t->opt.beta2,
        .eps = (float)t->opt.eps,
        .weight_decay = (float)decay,
        .ema_decay = (float)t->opt.ema,
        .n = (int64_t)(to - from),
    };
    return t->ops->adamw(t->dev, &p, t->w->stream);
}

static int update(struct trainer *t, double lr, struct err *err)
{
    const struct model *m = t->m;
    const struct adamw_now now =
        adamw_now(lr, (float)t->opt.beta1, (float)t->opt.beta2, (int64_t)t->adam_step + 1);
    int rc = t->ops->copy(t->dev, t->now, &now, sizeof now, COPY_TO_DEVICE, t->w->stream);
    if (rc == 0 && t->opt.weight_decay > 0) {
        rc = update_range(t, 0, m->decayed, t->opt.weight_decay);
        if (rc == 0)
            rc = update_range(t, m->decayed, m->flat, 0.0);
    } else if (rc == 0) {
        rc = update_range(t, 0, m->flat, 0.0);
    }
    if (rc < 0)
        return err_set(err, rc, "the optimiser failed on %s: %s", t->dev->name, err_text(rc));
    return 0;
}

/* Adam's estimates are poor while its moments are younger than the replica: they were lost
 * with the worker that had them. */
static double young(const struct trainer *t)
{
    const double age = (double)t->adam_step + 1, warmup = (double)t->opt.moments_warmup;
    return t->adam_step < t->step && age < warmup ? age / warmup : 1.0;
}

int trainer_step(struct trainer *t, const struct net_batch *b, struct step_result *ret,
                 struct err *err)
{
    if (b->count < 1 || b->count > (unsigned)t->opt.batch)
        return err_set(err, -EINVAL, "a step on %u samples; from 1 to %d are possible", b->count,
                       t->opt.batch);
    if (b->tokens && b->seq > losses_of(t->m))
        return err_set(err, -EINVAL, "rows of %u tokens in a model of context %d", b->seq,
                       t->m->spec.context);
    struct net_batch step = *b;
    for (unsigned i = 0; i < b->count; i++)
        t->keys[i] = rng_mix(t->step, i);
    step.seed = rng_mix(t->opt.seed, t->opt.replica);
    step.keys = t->keys;
    struct step_result r = {
        .step = t->step,
        .lr = train_lr(&t->opt, t->step, t->total_steps) * young(t),
    };
    int rc = accumulate(t, &step, &r.loss, err);
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
    return weights_sync(t->w, err);
}

static int ema_from_weights(struct trainer *t, struct err *err)
{
    if (!t->ema)
        return 0;
    return copy_failed(t,
                       t->ops->copy(t->dev, t->ema, t->w->w, t->m->flat * sizeof(float),
                                    COPY_DEVICE, t->w->stream),
                       err);
}

int trainer_set(struct trainer *t, const float *flat, struct err *err)
{
    int rc = weights_set(t->w, flat, err);
    if (rc == 0 && !t->has_weights)
        rc = ema_from_weights(t, err);
    if (rc == 0)
        t->has_weights = true;
    return rc;
}

int trainer_get(struct trainer *t, float *flat, struct err *err)
{
    return weights_get(t->w, flat, err);
}

int trainer_get_ema(struct trainer *t, float *flat, struct err *err)
{
    if (!t->ema)
        return err_set(err, -ENOENT, "the inner EMA is off (train.ema is 0)");
    return copy_failed(t,
                       t->ops->copy(t->dev, flat, t->ema, t->m->flat * sizeof *flat,
                                    COPY_FROM_DEVICE, t->w->stream),
                       err);
}

int trainer_reset_moments(struct trainer *t, struct err *err)
{
    const size_t bytes = t->m->flat * sizeof(float);
    struct stream *s = t->w->stream;
    int rc = t->ops->zero(t->dev, t->adam_m, bytes, s);
    if (rc == 0)
        rc = t->ops->zero(t->dev, t->adam_v, bytes, s);
    t->adam_step = 0;
    rc = copy_failed(t, rc, err);
    return rc == 0 && t->has_weights ? ema_from_weights(t, err) : rc;
}

float *trainer_device(struct trainer *t, enum trainer_vector which)
{
    switch (which) {
    case TRAINER_WEIGHTS:
        return t->w->w;
    case TRAINER_ADAM_M:
        return t->adam_m;
    case TRAINER_ADAM_V:
        return t->adam_v;
    case TRAINER_EMA:
        return t->ema;
    case TRAINER_GRADIENT:
        return t->w->g;
    }
    return NULL;
}

int trainer_read(struct trainer *t, enum trainer_vector which, const struct model_tensor *tensor,
                 float *values, struct err *err)
{
    float *from = trainer_device(t, which);
    if (!from)
        return err_set(err, -ENOENT, "the inner EMA is off (train.ema is 0)");
    return copy_failed(t,
                       t->ops->copy(t->dev, values, from + tensor->offset,
                                    tensor->count * sizeof *values, COPY_FROM_DEVICE, t->w->stream),
                       err);
}

int trainer_write(struct trainer *t, enum trainer_vector which, const struct model_tensor *tensor,
                  const float *values, struct err *err)
{
    float *to = trainer_device(t, which);
    if (!to)
        return err_set(err, -ENOENT, "the inner EMA is off (train.ema is 0)");
    return copy_failed(t,
                       t->ops->copy(t->dev, to + tensor->offset, values,
                                    tensor->count * sizeof *values, COPY_TO_DEVICE, t->w->stream),
                       err);
}

int trainer_written(struct trainer *t, struct err *err)
{
    t->has_weights = true;
    return weights_changed(t->w, err);
}

const struct model *trainer_model(const struct trainer *t)
{
    return t->m;
}

const struct train_options *trainer_options(const struct trainer *t)
{
    return &t->opt;
}

struct net *trainer_net(const struct trainer *t)
{
    return t->net;
}
