#include "worker/sample.h"

#include <errno.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "worker/arena.h"

enum {
    STREAM_SAMPLE = 0x736d706c,
    STEPS_MAX = 1000,
};

/* One run of up to B samples at a time.  With guidance the model sees 2B: first with
 * labels, then with the null label. */
struct sampler {
    struct dit *dit;
    struct device *dev;
    const struct kernel_ops *ops;
    struct stream *stream;
    const struct sample_options *opt;
    bool guided;
    int most;             /* samples of one call */
    int64_t n;            /* values of an image */
    unsigned done, total; /* evaluations */

    struct arena arena;
    float *x;        /* (B,n) the state */
    float *mid;      /* (B,n) Heun's predictor */
    float *v, *v2;   /* (B,n) velocities */
    float *in, *out; /* (2B,n) of the model */
    float *t;        /* (2B) */
    int32_t *labels; /* (2B) */
    uint8_t *u8;     /* (B,S,S,3) */

    float *noise;         /* host, (B,n) */
    int32_t *host_labels; /* host, (2B) */
};

static void sampler_release(struct sampler *s)
{
    arena_free(&s->arena, s->dev);
    mem_free(s->noise);
    mem_free(s->host_labels);
}

static int sampler_init(struct sampler *s, struct dit *d, const struct sample_options *opt,
                        struct err *err)
{
    const struct model_spec *spec = &dit_model(d)->spec;
    *s = (struct sampler){
        .dit = d,
        .dev = dit_device(d),
        .ops = dit_device(d)->ops,
        .stream = dit_stream(d),
        .opt = opt,
        .guided = opt->guidance != 1.0f,
        .n = (int64_t)MODEL_CHANNELS * spec->image * spec->image,
    };
    s->most = s->guided ? dit_batch(d) / 2 : dit_batch(d);
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
    if (s->guided) {
        arena_add(&s->arena, &s->in, 2 * values * sizeof(float));
        arena_add(&s->arena, &s->out, 2 * values * sizeof(float));
    }
    arena_add(&s->arena, &s->t, 2 * B * sizeof(float));
    arena_add(&s->arena, &s->labels, 2 * B * sizeof(int32_t));
    arena_add(&s->arena, &s->u8, values);
    s->noise = mem_try_array(values, sizeof *s->noise);
    s->host_labels = mem_try_array(2 * B, sizeof *s->host_labels);
    if (!s->noise || !s->host_labels)
        return err_set(err, -ENOMEM, "no memory for %d samples", s->most);
    return arena_alloc(&s->arena, s->dev, err);
}

/* v (B,n) = guided velocity at x, t. */
static int velocity(struct sampler *s, float *v, float *x, float t, int B, struct err *err)
{
    const struct kernel_ops *k = s->ops;
    const int64_t values = B * s->n;
    const size_t bytes = (size_t)values * sizeof(float);
    const float g = s->opt->guidance;

    int rc = k->fill(s->dev, s->t, t, s->guided ? 2 * B : B, s->stream);
    if (rc == 0 && s->guided)
        rc = k->copy(s->dev, s->in, x, bytes, COPY_DEVICE, s->stream);
    if (rc == 0 && s->guided)
        rc = k->copy(s->dev, s->in + values, x, bytes, COPY_DEVICE, s->stream);
    if (rc < 0)
        return err_set(err, rc, "sampling failed on %s: %s", s->dev->name, err_text(rc));

    if (!s->guided)
        return dit_forward(s->dit, v, x, s->t, s->labels, B, err);
    rc = dit_forward(s->dit, s->out, s->in, s->t, s->labels, 2 * B, err);
    if (rc < 0)
        return rc;
    rc = k->axpby(s->dev, v, g, s->out, 1.0f - g, s->out + values, values, s->stream);
    if (rc < 0)
        return err_set(err, rc, "guidance failed on %s: %s", s->dev->name, err_text(rc));
    return 0;
}

static int progress(struct sampler *s, unsigned evaluations, struct err *err)
{
    int rc = dit_sync(s->dit, err);
    if (rc < 0)
        return rc;
    s->done += evaluations;
    if (s->opt->progress && s->opt->progress(s->opt->arg, s->done, s->total) != 0)
        return err_set(err, -ERR_CANCELLED, "sampling was cancelled");
    return 0;
}

/* From t to t - dt. */
static int ode_step(struct sampler *s, float t, float dt, int B, struct err *err)
{
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
            rc = velocity(s, s->v2, s->mid, t - dt, B, err);
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

/* Noise and labels of samples [first, first+B) to the device. */
static int begin(struct sampler *s, const int32_t *labels, int first, int B, struct err *err)
{
    const int classes = dit_model(s->dit)->spec.classes;
    for (int i = 0; i < B; i++) {
        int32_t label = labels[first + i];
        if (label < 0 || label >= classes)
            return err_set(err, -EINVAL, "label %d of sample %d is not below %d", (int)label,
                           first + i, classes);
        s->host_labels[i] = label;
        s->host_labels[B + i] = classes;
        rng_fill_normal(s->opt->seed, rng_mix(STREAM_SAMPLE, (uint64_t)(first + i)), 0,
                        s->noise + i * s->n, (size_t)s->n, 0.0f, 1.0f);
    }
    int rc = s->ops->copy(s->dev, s->x, s->noise, (size_t)(B * s->n) * sizeof(float),
                          COPY_TO_DEVICE, s->stream);
    if (rc == 0)
        rc = s->ops->copy(s->dev, s->labels, s->host_labels,
                          (size_t)(s->guided ? 2 * B : B) * sizeof(int32_t), COPY_TO_DEVICE,
                          s->stream);
    if (rc < 0)
        return err_set(err, rc, "sampling failed on %s: %s", s->dev->name, err_text(rc));
    return dit_sync(s->dit, err);
}

/* Results of one run to the host: pixels, or values when f32 is given. */
static int finish(struct sampler *s, int B, uint8_t *u8, float *f32, struct err *err)
{
    const size_t values = (size_t)(B * s->n);
    int rc;
    if (f32) {
        rc = s->ops->copy(s->dev, f32, s->x, values * sizeof(float), COPY_FROM_DEVICE, s->stream);
    } else {
        rc = s->ops->image_to_u8(s->dev, s->u8, s->x, B, MODEL_CHANNELS,
                                 dit_model(s->dit)->spec.image, s->stream);
        if (rc == 0)
            rc = s->ops->copy(s->dev, u8, s->u8, values, COPY_FROM_DEVICE, s->stream);
    }
    if (rc < 0)
        return err_set(err, rc, "sampling failed on %s: %s", s->dev->name, err_text(rc));
    return dit_sync(s->dit, err);
}

static int run(struct dit *d, const struct sample_options *opt, const int32_t *labels, int count,
               uint8_t *u8, float *f32, struct err *err)
{
    struct sampler s;
    int rc = sampler_init(&s, d, opt, err);
    if (rc == 0) {
        unsigned runs = (unsigned)((count + s.most - 1) / s.most);
        s.total = runs * (unsigned)opt->steps * (opt->heun ? 2 : 1);
    }
    for (int first = 0; first < count && rc == 0; first += s.most) {
        int B = count - first < s.most ? count - first : s.most;
        const float dt = 1.0f / (float)opt->steps;
        rc = begin(&s, labels, first, B, err);
        for (int i = 0; i < opt->steps && rc == 0; i++)
            rc = ode_step(&s, (float)(opt->steps - i) * dt, dt, B, err);
        if (rc == 0)
            rc = finish(&s, B, u8 ? u8 + first * s.n : NULL, f32 ? f32 + first * s.n : NULL, err);
    }
    sampler_release(&s);
    return rc;
}

int sample_run(struct dit *d, const struct sample_options *opt, const int32_t *labels, int count,
               uint8_t *images, struct err *err)
{
    return run(d, opt, labels, count, images, NULL, err);
}

int sample_run_f32(struct dit *d, const struct sample_options *opt, const int32_t *labels,
                   int count, float *images, struct err *err)
{
    return run(d, opt, labels, count, NULL, images, err);
}
