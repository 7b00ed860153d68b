#include "worker/net/sample.h"

#include "common/base/rng.h"
#include "worker/net/arena.h"
#include "worker/net/dit_rows.h"
#include "worker/net/flow_matching.h"

enum {
    STREAM_SAMPLE = 0x736d706c,
    STEPS_MAX = 1000,
};

/* One run of up to B samples at a time.  With guidance the source sees 2B rows: first
 * with labels, then with the null label. */
struct sampler {
    const struct sample_source *src;
    struct device *dev;
    const struct kernel_ops *ops;
    struct stream *stream;
    const struct sample_options *opt;
    int copies;           /* 2 with guidance */
    int most;             /* samples of one run */
    int64_t n;            /* values of an image */
    size_t bytes;         /* bytes of its pixels */
    unsigned done, total; /* evaluations */
    int first;            /* sample of the run */
    bool begun;           /* this run has had an evaluation */

    struct arena arena;
    float *x;        /* (B,n) the state */
    float *mid;      /* (B,n) Heun's predictor */
    float *v, *v2;   /* (B,n) velocities */
    float *in, *out; /* (2B,n) the source's inputs and outputs */
    float *estimate; /* (copies*B,n) of the images, if the source reads one */
    uint8_t *u8;     /* (B,S,S,3) pixels */

    float *noise;             /* host, (B,n) */
    float *t;                 /* host, (2B) */
    int32_t *labels;          /* host, (2B) */
    struct mem_arrays memory; /* the three */
};

static void sampler_release(struct sampler *s)
{
    arena_free(&s->arena, s->dev);
    mem_arrays_free(&s->memory);
}

static int sampler_init(struct sampler *s, const struct sample_source *src,
                        const struct sample_options *opt, struct err *err)
{
    *s = (struct sampler){
        .src = src,
        .dev = src->dev,
        .ops = src->dev->ops,
        .stream = src->stream,
        .opt = opt,
        .copies = opt->guidance != 1.0f ? 2 : 1,
        .n = (int64_t)src->channels * src->image * src->image,
    };
    s->most = src->rows / s->copies;
    s->bytes = opt->decode ? (size_t)opt->pixels * (size_t)opt->pixels * MODEL_PIXEL_CHANNELS
                           : (size_t)s->n;
    if (opt->steps < 1 || opt->steps > STEPS_MAX)
        return err_set(err, -EINVAL, "%d sampling steps; from 1 to %d are possible", opt->steps,
                       STEPS_MAX);
    if (s->most < 1)
        return err_set(err, -EINVAL, "guidance needs a model made for 2 samples at least");

    const uint64_t B = (uint64_t)s->most, values = B * (uint64_t)s->n;
    arena_add(&s->arena, &s->x, values * sizeof(float));
    if (opt->heun) {
        arena_add(&s->arena, &s->mid, values * sizeof(float));
        arena_add(&s->arena, &s->v2, values * sizeof(float));
    }
    arena_add(&s->arena, &s->v, values * sizeof(float));
    if (s->copies == 2) {
        arena_add(&s->arena, &s->in, 2 * values * sizeof(float));
        arena_add(&s->arena, &s->out, 2 * values * sizeof(float));
    }
    if (src->estimates)
        arena_add(&s->arena, &s->estimate, (uint64_t)s->copies * values * sizeof(float));
    if (!opt->decode)
        arena_add(&s->arena, &s->u8, values);
    s->noise = mem_arrays_add(&s->memory, values, sizeof *s->noise);
    s->t = mem_arrays_add(&s->memory, 2 * B, sizeof *s->t);
    s->labels = mem_arrays_add(&s->memory, 2 * B, sizeof *s->labels);
    if (s->memory.failed)
        return err_set(err, -ENOMEM, "no memory for %d samples", s->most);
    return arena_alloc(&s->arena, s->dev, err);
}

static int sync(struct sampler *s, struct err *err)
{
    return s->ops->sync(s->dev, s->stream, err);
}

/* Asks the source for velocities; and makes the estimate for its next call. */
static int ask(struct sampler *s, const struct sample_call *call, float t, struct err *err)
{
    const int64_t values = call->copies * call->B * s->n;
    int rc = s->src->velocity(s->src->arg, call, err);
    if (rc < 0 || !s->estimate)
        return rc;
    rc = s->ops->axpby(s->dev, s->estimate, 1.0f, call->x, -t, call->v, values, s->stream);
    return rc < 0 ? err_set(err, rc, "estimating failed on %s: %s", s->dev->name, err_text(rc)) : 0;
}

/* v (B,n) = guided velocity at x, t. */
static int velocity(struct sampler *s, float *v, const float *x, float t, int B, struct err *err)
{
    const struct kernel_ops *k = s->ops;
    const int64_t values = B * s->n;
    const size_t bytes = (size_t)values * sizeof(float);
    const float g = s->opt->guidance;
    struct sample_call call = {.v = v,
                               .x = x,
                               .estimate = s->begun ? s->estimate : NULL,
                               .t = s->t,
                               .labels = s->labels,
                               .B = B,
                               .copies = s->copies,
                               .first = s->first,
                               .begin = !s->begun};
    s->begun = true;
    for (int i = 0; i < s->copies * B; i++)
        s->t[i] = t;
    if (s->copies == 1)
        return ask(s, &call, t, err);

    int rc = k->copy(s->dev, s->in, x, bytes, COPY_DEVICE, s->stream);
    if (rc == 0)
        rc = k->copy(s->dev, s->in + values, x, bytes, COPY_DEVICE, s->stream);
    if (rc < 0)
        return err_set(err, rc, "sampling failed on %s: %s", s->dev->name, err_text(rc));
    call.x = s->in;
    call.v = s->out;
    rc = ask(s, &call, t, err);
    if (rc < 0)
        return rc;
    rc = k->axpby(s->dev, v, g, s->out, 1.0f - g, s->out + values, values, s->stream);
    if (rc < 0)
        return err_set(err, rc, "guidance failed on %s: %s", s->dev->name, err_text(rc));
    return 0;
}

static int progress(struct sampler *s, unsigned evaluations, struct err *err)
{
    int rc = sync(s, err);
    if (rc < 0)
        return rc;
    s->done += evaluations;
    if (s->opt->progress && s->opt->progress(s->opt->arg, s->done, s->total) != 0)
        return err_set(err, -ERR_CANCELLED, "sampling was cancelled");
    return 0;
}

/* The time after so many steps. */
static float time_after(const struct sample_options *opt, int steps)
{
    return flow_shift((float)(opt->steps - steps) / (float)opt->steps, opt->shift);
}

/* A step from t to `to`. */
static int ode_step(struct sampler *s, float t, float to, int B, struct err *err)
{
    const float dt = t - to;
    const struct kernel_ops *k = s->ops;
    const int64_t values = B * s->n;
    int rc = velocity(s, s->v, s->x, t, B, err);
    if (rc < 0)
        return rc;
    if (!s->opt->heun) {
        rc = k->axpy(s->dev, s->x, -dt, s->v, values, s->stream);
    } else {
        rc = k->axpby(s->dev, s->mid, 1.0f, s->x, -dt, s->v, values, s->stream);
        if (rc == 0) {
            rc = velocity(s, s->v2, s->mid, to, B, err);
            if (rc < 0)
                return rc;
            rc = k->axpby(s->dev, s->v, 0.5f, s->v, 0.5f, s->v2, values, s->stream);
        }
        if (rc == 0)
            rc = k->axpy(s->dev, s->x, -dt, s->v, values, s->stream);
    }
    if (rc < 0)
        return err_set(err, rc, "sampling failed on %s: %s", s->dev->name, err_text(rc));
    return progress(s, s->opt->heun ? 2 : 1, err);
}

/* Noise and labels of samples [first, first+B). */
static int begin(struct sampler *s, const int32_t *labels, int first, int B, struct err *err)
{
    const int classes = s->src->classes;
    s->first = first;
    s->begun = false;
    for (int i = 0; i < B; i++) {
        int32_t label = labels[first + i];
        if (label < 0 || label >= classes)
            return err_set(err, -EINVAL, "label %d of sample %d is not below %d", (int)label,
                           first + i, classes);
        s->labels[i] = label;
        s->labels[B + i] = classes;
        rng_fill_normal(s->opt->seed, rng_mix(STREAM_SAMPLE, (uint64_t)(first + i)), 0,
                        s->noise + i * s->n, (size_t)s->n, 0.0f, 1.0f);
    }
    int rc = s->ops->copy(s->dev, s->x, s->noise, (size_t)(B * s->n) * sizeof(float),
                          COPY_TO_DEVICE, s->stream);
    if (rc < 0)
        return err_set(err, rc, "sampling failed on %s: %s", s->dev->name, err_text(rc));
    return sync(s, err);
}

/* Brings the results of one run to the host: pixels, or values if f32 is given. */
static int finish(struct sampler *s, int B, uint8_t *u8, float *f32, struct err *err)
{
    const size_t values = (size_t)(B * s->n);
    int rc;
    if (f32) {
        rc = s->ops->copy(s->dev, f32, s->x, values * sizeof(float), COPY_FROM_DEVICE, s->stream);
    } else if (s->opt->decode) {
        rc = sync(s, err); /* the decoder may have another stream */
        return rc < 0 ? rc : s->opt->decode(s->opt->decoder, s->x, B, u8, err);
    } else {
        rc = s->ops->image_to_u8(s->dev, s->u8, s->x, B, s->src->channels, s->src->image,
                                 s->src->image, s->stream);
        if (rc == 0)
            rc = s->ops->copy(s->dev, u8, s->u8, values, COPY_FROM_DEVICE, s->stream);
    }
    if (rc < 0)
        return err_set(err, rc, "sampling failed on %s: %s", s->dev->name, err_text(rc));
    return sync(s, err);
}

static int run(const struct sample_source *src, const struct sample_options *opt,
               const int32_t *labels, int count, uint8_t *u8, float *f32, struct err *err)
{
    struct sampler s;
    int rc = sampler_init(&s, src, opt, err);
    if (rc == 0) {
        unsigned runs = (unsigned)((count + s.most - 1) / s.most);
        s.total = runs * (unsigned)opt->steps * (opt->heun ? 2 : 1);
    }
    for (int first = 0; rc == 0 && first < count; first += s.most) {
        int B = count - first < s.most ? count - first : s.most;
        rc = begin(&s, labels, first, B, err);
        for (int i = 0; i < opt->steps && rc == 0; i++)
            rc = ode_step(&s, time_after(opt, i), time_after(opt, i + 1), B, err);
        if (rc == 0)
            rc = finish(&s, B, u8 ? u8 + (size_t)first * s.bytes : NULL,
                        f32 ? f32 + first * s.n : NULL, err);
    }
    sampler_release(&s);
    return rc;
}

int sample_run(const struct sample_source *src, const struct sample_options *opt,
               const int32_t *labels, int count, uint8_t *images, struct err *err)
{
    return run(src, opt, labels, count, images, NULL, err);
}

int sample_run_f32(const struct sample_source *src, const struct sample_options *opt,
                   const int32_t *labels, int count, float *images, struct err *err)
{
    return run(src, opt, labels, count, NULL, images, err);
}

/* ---- one DiT ---- */

static int dit_velocity(void *arg, const struct sample_call *call, struct err *err)
{
    const struct dit_rows_in in = {call->x, call->estimate, call->t, call->labels};
    return dit_rows_run(arg, call->v, &in, call->copies * call->B, err);
}

struct sample_source sample_of_dit(struct dit_rows *r)
{
    const struct model_spec *spec = &dit_weights(r->dit)->m->spec;
    return (struct sample_source){
        .dev = dit_weights(r->dit)->dev,
        .stream = dit_weights(r->dit)->stream,
        .channels = spec->channels,
        .image = spec->image,
        .classes = dit_rows_null(r),
        .rows = dit_batch(r->dit),
        .estimates = spec->self_condition,
        .arg = r,
        .velocity = dit_velocity,
    };
}
