#include "worker/net/flow_matching.h"

#include "common/base/rng.h"

enum {
    STREAM_T = 1,
    STREAM_NOISE = 2,
    STREAM_DROPOUT = 3,
};

static void plan(struct flow_matching *f)
{
    const uint64_t N = net_load_most(&f->opt), n = (uint64_t)f->n;
    const uint64_t bytes = (uint64_t)f->opt.batch * n * sizeof(float);
    struct inputs *in = &f->inputs;
    struct arena *a = &f->arena;

    inputs_add(in, &f->t, &f->d_t, N * sizeof *f->t);
    inputs_add(in, &f->labels, &f->d_labels, N * sizeof *f->labels);
    inputs_add(in, &f->partitions, &f->d_partitions, N * sizeof *f->partitions);
    inputs_add(in, &f->noise, &f->d_noise, N * sizeof *f->noise);
    inputs_add(in, &f->images, &f->d_images, N * n);
    arena_add(a, &f->d_x0, bytes);
    arena_add(a, &f->d_eps, bytes);
    arena_add(a, &f->d_xt, bytes);
    arena_add(a, &f->d_target, bytes);
}

static struct flow_matching sizes(const struct model *m, const struct net_options *opt)
{
    return (struct flow_matching){
        .opt = *opt,
        .channels = m->spec.channels,
        .image = m->spec.image,
        .classes = m->spec.kind == MODEL_ROUTER ? 0 : m->spec.classes,
        .n = (int64_t)model_image_values(&m->spec),
    };
}

int flow_matching_init(struct flow_matching *f, const struct weights *w,
                       const struct net_options *opt, struct err *err)
{
    *f = sizes(w->m, opt);
    f->dev = w->dev;
    f->stream = w->stream;
    plan(f);
    int rc = inputs_alloc(&f->inputs, f->dev, err);
    return rc < 0 ? rc : arena_alloc(&f->arena, f->dev, err);
}

void flow_matching_release(struct flow_matching *f)
{
    if (!f->dev)
        return;
    arena_free(&f->arena, f->dev);
    inputs_free(&f->inputs);
    *f = (struct flow_matching){0};
}

uint64_t flow_matching_bytes(const struct model *m, const struct net_options *opt)
{
    struct flow_matching f = sizes(m, opt);
    plan(&f);
    return arena_measure(&f.arena) + inputs_measure(&f.inputs);
}

static float draw_time(uint64_t seed, uint64_t key, bool uniform_t)
{
    const uint64_t stream = rng_mix(key, STREAM_T);
    return uniform_t ? rng_at_uniform(seed, stream, 0)
                     : 1.0f / (1.0f + expf(-rng_at_normal(seed, stream, 0)));
}

/* The label of sample i, or the null label in its place. */
static int draw_label(const struct flow_matching *f, const struct batch *b, unsigned i,
                      int32_t *ret, struct err *err)
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

int flow_matching_load(struct flow_matching *f, const struct batch *b, struct err *err)
{
    const size_t B = b->count;
    for (unsigned i = 0; i < b->count; i++) {
        int rc = draw_label(f, b, i, &f->labels[i], err);
        if (rc < 0)
            return rc;
        f->t[i] = b->t > 0 ? b->t : draw_time(b->seed, b->keys[i], f->opt.uniform_t);
        f->noise[i] = rng_mix(b->keys[i], STREAM_NOISE);
    }
    f->seed = b->seed;
    memcpy(f->images, b->images, B * (size_t)f->n);
    if (b->partitions)
        memcpy(f->partitions, b->partitions, B * sizeof *f->partitions);
    int rc = inputs_send(&f->inputs, f->stream);
    if (rc < 0)
        return err_set(err, rc, "a batch of %u images cannot be loaded on %s: %s", b->count,
                       f->dev->name, err_text(rc));
    return 0;
}

/* The first failure of several calls. */
static void note(int *rc, int result)
{
    if (*rc == 0 && result < 0)
        *rc = result;
}

int flow_matching_mix(struct flow_matching *f, unsigned from, unsigned count, struct err *err)
{
    struct device *dev = f->dev;
    struct stream *s = f->stream;
    const struct kernel_ops *k = dev->ops;
    const int B = (int)count;
    int rc = 0;

    note(&rc, k->normal(dev, f->d_eps, f->seed, f->d_noise + from, B, f->n, s));
    note(&rc, k->image_from_u8(dev, f->d_x0, f->d_images + (int64_t)from * f->n, B, f->channels,
                               f->image, s));
    note(&rc, k->flow_mix(dev, f->d_xt, f->d_target, f->d_x0, f->d_eps, f->d_t + from, B, f->n, s));
    if (rc < 0)
        return err_set(err, rc, "%u images cannot be noised on %s: %s", count, dev->name,
                       err_text(rc));
    return 0;
}
