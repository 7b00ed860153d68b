#include "worker/flow.h"

#include <errno.h>
#include <math.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

enum {
    STREAM_T = 1,
    STREAM_NOISE = 2,
    STREAM_DROPOUT = 3,
};

static void plan(struct flow *f)
{
    const uint64_t B = (uint64_t)f->opt.batch, bytes = B * (uint64_t)f->n * sizeof(float);
    struct arena *a = &f->arena;

    arena_add(a, &f->d_u8, B * (uint64_t)f->n);
    arena_add(a, &f->d_x0, bytes);
    arena_add(a, &f->d_eps, bytes);
    arena_add(a, &f->d_xt, bytes);
    arena_add(a, &f->d_target, bytes);
    arena_add(a, &f->d_t, B * sizeof(float));
    arena_add(a, &f->d_labels, B * sizeof(int32_t));
}

static struct flow sizes(const struct model *m, const struct net_options *opt)
{
    return (struct flow){
        .opt = *opt,
        .image = m->spec.image,
        .classes = m->spec.kind == MODEL_ROUTER ? 0 : m->spec.classes,
        .n = (int64_t)model_image_values(&m->spec),
    };
}

int flow_init(struct flow *f, const struct weights *w, const struct net_options *opt,
              struct err *err)
{
    const size_t batch = (size_t)opt->batch;
    *f = sizes(w->m, opt);
    f->dev = w->dev;
    f->stream = w->stream;
    f->t = mem_try_array(batch, sizeof *f->t);
    f->eps = mem_try_array(batch * (size_t)f->n, sizeof *f->eps);
    f->labels = mem_try_array(batch, sizeof *f->labels);
    if (!f->t || !f->eps || !f->labels)
        return err_set(err, -ENOMEM, "no memory for a batch of %d images", opt->batch);
    plan(f);
    return arena_alloc(&f->arena, f->dev, err);
}

void flow_release(struct flow *f)
{
    if (!f->dev)
        return;
    arena_free(&f->arena, f->dev);
    mem_free(f->t);
    mem_free(f->eps);
    mem_free(f->labels);
    *f = (struct flow){0};
}

uint64_t flow_bytes(const struct model *m, const struct net_options *opt)
{
    struct flow f = sizes(m, opt);
    plan(&f);
    uint64_t bytes = arena_bytes(&f.arena);
    mem_free(f.arena.slots);
    return bytes;
}

float flow_time(uint64_t seed, uint64_t key, bool uniform_t)
{
    const uint64_t stream = rng_mix(key, STREAM_T);
    return uniform_t ? rng_at_uniform(seed, stream, 0)
                     : 1.0f / (1.0f + expf(-rng_at_normal(seed, stream, 0)));
}

void flow_noise(uint64_t seed, uint64_t key, float *eps, int64_t n)
{
    rng_fill_normal(seed, rng_mix(key, STREAM_NOISE), 0, eps, (size_t)n, 0.0f, 1.0f);
}

/* The label of sample i, or the null label in its place. */
static int draw_label(const struct flow *f, const struct net_batch *b, unsigned i, int32_t *ret,
                      struct err *err)
{
    *ret = f->classes;
    if (!b->labels || f->classes == 0)
        return 0;
    const int32_t label = b->labels[i];
    if (label < 0 || label >= f->classes)
        return err_set(err, -EINVAL, "label %d of sample %u is not below %d", (int)label, i,
                       f->classes);
    const float u = rng_at_uniform(b->seed, rng_mix(b->keys[i], STREAM_DROPOUT), 0);
    if (u >= (float)f->opt.label_dropout)
        *ret = label;
    return 0;
}

/* The first failure of several calls. */
static void note(int *rc, int result)
{
    if (*rc == 0 && result < 0)
        *rc = result;
}

static int upload(struct flow *f, const uint8_t *images, int B)
{
    struct device *dev = f->dev;
    struct stream *s = f->stream;
    const struct kernel_ops *k = dev->ops;
    const size_t b = (size_t)B, n = (size_t)f->n;
    int rc = 0;

    note(&rc, k->copy(dev, f->d_u8, images, b * n, COPY_TO_DEVICE, s));
    note(&rc, k->copy(dev, f->d_eps, f->eps, b * n * sizeof(float), COPY_TO_DEVICE, s));
    note(&rc, k->copy(dev, f->d_t, f->t, b * sizeof(float), COPY_TO_DEVICE, s));
    note(&rc, k->copy(dev, f->d_labels, f->labels, b * sizeof(int32_t), COPY_TO_DEVICE, s));
    note(&rc, k->image_from_u8(dev, f->d_x0, f->d_u8, B, MODEL_CHANNELS, f->image, s));
    note(&rc, k->flow_mix(dev, f->d_xt, f->d_target, f->d_x0, f->d_eps, f->d_t, B, f->n, s));
    return rc;
}

int flow_load(struct flow *f, const struct net_batch *b, struct err *err)
{
    for (unsigned i = 0; i < b->count; i++) {
        int rc = draw_label(f, b, i, &f->labels[i], err);
        if (rc < 0)
            return rc;
        f->t[i] = b->t > 0 ? b->t : flow_time(b->seed, b->keys[i], f->opt.uniform_t);
        flow_noise(b->seed, b->keys[i], f->eps + i * f->n, f->n);
    }
    int rc = upload(f, b->images, (int)b->count);
    if (rc < 0)
        return err_set(err, rc, "a batch of %u images cannot be loaded on %s: %s", b->count,
                       f->dev->name, err_text(rc));
    return 0;
}
