#include "worker/net/flow_matching.h"

#include "common/base/rng.h"
#include "worker/net/resize.h"

enum {
    STREAM_T = 1,
    STREAM_NOISE = 2,
    STREAM_DROPOUT = 3,
    STREAM_POSTERIOR = 4,
};

static void plan(struct flow_matching *f)
{
    const uint64_t N = net_load_most(&f->opt), n = (uint64_t)f->most;
    const uint64_t bytes = (uint64_t)f->opt.batch * n * sizeof(float);
    struct inputs *in = &f->inputs;
    struct arena *a = &f->arena;

    inputs_add(in, &f->t, &f->d_t, N * sizeof *f->t);
    inputs_add(in, &f->labels, &f->d_labels, N * sizeof *f->labels);
    inputs_add(in, &f->partitions, &f->d_partitions, N * sizeof *f->partitions);
    inputs_add(in, &f->noise, &f->d_noise, N * sizeof *f->noise);
    if (f->tokens > 0)
        inputs_add(in, &f->lengths, &f->d_lengths, N * sizeof *f->lengths);
    if (!f->reads)
        return;
    if (f->tokens > 0)
        arena_add(a, &f->d_states, N * f->caption_bytes);
    if (f->latent) {
        inputs_add(in, &f->posterior, &f->d_posterior, N * sizeof *f->posterior);
        inputs_add(&f->cached, &f->moments, &f->d_moments, N * 2 * n * sizeof *f->moments);
    } else {
        inputs_add(in, &f->images, &f->d_images, N * n);
    }
    arena_add(a, &f->d_x0, bytes);
    arena_add(a, &f->d_eps, bytes);
    arena_add(a, &f->d_xt, bytes);
    arena_add(a, &f->d_target, bytes);
    if (f->latent) {
        arena_add(a, &f->d_shift, (uint64_t)f->channels * sizeof *f->d_shift);
        arena_add(a, &f->d_scale, (uint64_t)f->channels * sizeof *f->d_scale);
    }
}

static struct flow_matching sizes(const struct model *m, const struct net_options *opt,
                                  enum dtype dt)
{
    const bool captioned = model_captioned(&m->spec);
    return (struct flow_matching){
        .opt = *opt,
        .channels = m->spec.channels,
        .spec = &m->spec,
        .classes = m->spec.kind == MODEL_ROUTER || captioned ? 0 : m->spec.classes,
        .tokens = captioned ? m->spec.caption_tokens : 0,
        .dt = dt,
        .caption_bytes =
            captioned ? (size_t)m->spec.caption_tokens * (size_t)m->spec.caption * dtype_bytes(dt)
                      : 0,
        .latent = opt->encoders && opt->encoders->shift,
        .reads = net_part_of(m).from == 0,
        .most = (int64_t)model_image_values(&m->spec),
    };
}

/* Do they fit the network and each other? */
static int check_encoders(const struct flow_matching *f, struct err *err)
{
    const struct net_encoders *e = f->opt.encoders;
    if (f->tokens > 0) {
        if (!e || !e->captions)
            return err_set(err, -EINVAL, "a network with captions has no text encoder");
        if (e->dt != f->dt)
            return err_set(err, -EINVAL, "a text encoder in %s before a network in %s",
                           e->dt == DT_BF16 ? "bf16" : "f32", f->dt == DT_BF16 ? "bf16" : "f32");
        if (e->null_length < 1 || e->null_length > f->tokens)
            return err_set(err, -EINVAL, "the empty caption is %d tokens of at most %d",
                           (int)e->null_length, f->tokens);
    }
    return 0;
}

/* Sends the shift and scale of each channel of latents to the device. */
static int send_scales(struct flow_matching *f, struct err *err)
{
    const struct net_encoders *e = f->opt.encoders;
    const size_t bytes = (size_t)f->channels * sizeof *e->shift;
    const struct kernel_ops *k = f->dev->ops;
    if (!f->latent || !f->reads)
        return 0;
    int rc = k->copy(f->dev, f->d_shift, e->shift, bytes, COPY_TO_DEVICE, f->stream);
    if (rc == 0)
        rc = k->copy(f->dev, f->d_scale, e->scale, bytes, COPY_TO_DEVICE, f->stream);
    return rc < 0 ? err_set(err, rc, "the scales of latents cannot be copied to %s: %s",
                            f->dev->name, err_text(rc))
                  : k->sync(f->dev, f->stream, err);
}

int flow_matching_init(struct flow_matching *f, const struct weights *w,
                       const struct net_options *opt, struct err *err)
{
    *f = sizes(w->m, opt, w->dt);
    f->dev = w->dev;
    f->stream = w->stream;
    int rc = check_encoders(f, err);
    if (rc < 0)
        return rc;
    plan(f);
    f->shapes = mem_try_array(net_load_most(opt), sizeof *f->shapes);
    rc = f->shapes ? inputs_alloc(&f->inputs, f->dev, err)
                   : err_set(err, -ENOMEM, "no memory for a step of %u images", net_load_most(opt));
    if (rc == 0 && f->latent && f->reads)
        rc = inputs_alloc(&f->cached, f->dev, err);
    if (rc == 0 && f->tokens > 0) {
        f->ids = mem_try_array((size_t)net_load_most(opt) * (size_t)f->tokens, sizeof *f->ids);
        if (!f->ids)
            rc = err_set(err, -ENOMEM, "no memory for the captions of a step");
    }
    if (rc == 0)
        rc = arena_alloc(&f->arena, f->dev, err);
    return rc < 0 ? rc : send_scales(f, err);
}

void flow_matching_release(struct flow_matching *f)
{
    if (!f->dev)
        return;
    arena_free(&f->arena, f->dev);
    inputs_free(&f->inputs);
    inputs_free(&f->cached);
    mem_free(f->ids);
    mem_free(f->shapes);
    *f = (struct flow_matching){0};
}

uint64_t flow_matching_bytes(const struct model *m, const struct net_options *opt, enum dtype dt)
{
    struct flow_matching f = sizes(m, opt, dt);
    plan(&f);
    return arena_measure(&f.arena) + inputs_measure(&f.inputs) + inputs_measure(&f.cached);
}

float flow_shift(float t, float shift)
{
    return shift == 0 || shift == 1 ? t : shift * t / (1 - t + shift * t);
}

static float draw_time(uint64_t seed, uint64_t key, const struct net_options *opt)
{
    const uint64_t stream = rng_mix(key, STREAM_T);
    const float t = opt->uniform_t ? rng_at_uniform(seed, stream, 0)
                                   : 1.0f / (1.0f + expf(-rng_at_normal(seed, stream, 0)));
    return flow_shift(t, opt->shift);
}

/* Is the label or caption of sample i dropped? */
static bool is_dropped(const struct flow_matching *f, const struct batch *b, unsigned i)
{
    const float u = rng_at_uniform(b->seed, rng_mix(b->keys[i], STREAM_DROPOUT), 0);
    return u < (float)f->opt.label_dropout;
}

/* The label of sample i, or the null label in its place. */
static int draw_label(const struct flow_matching *f, const struct batch *b, unsigned i,
                      int32_t *ret, struct err *err)
{
    *ret = f->tokens > 0 ? (int32_t)i : f->classes;
    if (!b->labels || f->classes == 0)
        return 0;
    const int32_t label = b->labels[i];
    if (label < 0 || label >= f->classes)
        return err_set(err, -EINVAL, "label %d of sample %u is not below %d", (int)label, i,
                       f->classes);
    if (!is_dropped(f, b, i))
        *ret = label;
    return 0;
}

/* The token ids of sample i, or those of the empty caption in their place. */
static int draw_caption(struct flow_matching *f, const struct batch *b, unsigned i, struct err *err)
{
    const struct net_encoders *e = f->opt.encoders;
    const size_t L = (size_t)f->tokens, n = (size_t)e->null_length;
    int32_t *ids = f->ids + i * L;
    if (b->captions && (b->caption_lengths[i] < 1 || b->caption_lengths[i] > f->tokens))
        return err_set(err, -EINVAL, "the caption of sample %u has %d tokens, expected 1 to %d", i,
                       (int)b->caption_lengths[i], f->tokens);
    if (b->captions && !is_dropped(f, b, i)) {
        memcpy(ids, b->captions + i * L, L * sizeof *ids);
        f->lengths[i] = b->caption_lengths[i];
        return 0;
    }
    memcpy(ids, e->null_tokens, n * sizeof *ids);
    for (size_t j = n; j < L; j++)
        ids[j] = e->null_pad;
    f->lengths[i] = e->null_length;
    return 0;
}

/* The offset, in values, of sample i of the run that begins at `first`. */
static int64_t place_of(const struct flow_matching *f, unsigned first, unsigned i)
{
    return first * f->most + (i - first) * model_shape_values(f->spec, f->shapes[i]);
}

/* All samples of a batch have places of equal size: packs those of a run densely. */
static void pack(struct flow_matching *f, void *to, const void *from, unsigned count, size_t bytes)
{
    for (unsigned i = 0, first = 0; i < count; i++) {
        first = i > 0 && f->shapes[i] != f->shapes[i - 1] ? i : first;
        memcpy((char *)to + (size_t)place_of(f, first, i) * bytes,
               (const char *)from + i * (size_t)f->most * bytes,
               (size_t)model_shape_values(f->spec, f->shapes[i]) * bytes);
    }
}

static int take_shapes(struct flow_matching *f, const struct batch *b, struct err *err)
{
    for (unsigned i = 0; i < b->count; i++) {
        const int shape = batch_shape(b, i);
        if (shape > f->spec->n_shapes)
            return err_set(err, -EINVAL,
                           "sample %u is of shape %d in a model that knows %d beside the square", i,
                           shape, f->spec->n_shapes);
        f->shapes[i] = (uint8_t)shape;
    }
    return 0;
}

/* Loads the images of a network that reads smaller ones. */
static void shrink(struct flow_matching *f, const struct batch *b)
{
    const int factor = f->spec->shrink, side = f->spec->image * factor;
    for (unsigned i = 0; i < b->count; i++)
        resize_down(b->images + i * (size_t)f->most * (size_t)(factor * factor), side, factor,
                    f->images + i * (size_t)f->most);
}

/* Loads the images, or their moments. */
static int load_images(struct flow_matching *f, const struct batch *b, struct err *err)
{
    const struct net_encoders *e = f->opt.encoders;
    if (!f->latent && b->images && f->spec->shrink > 1) {
        shrink(f, b);
    } else if (!f->latent && b->images) {
        pack(f, f->images, b->images, b->count, 1);
    } else if (f->latent && b->moments) {
        pack(f, f->moments, b->moments, b->count, 2 * sizeof *f->moments);
        int rc = inputs_send(&f->cached, f->stream);
        return rc < 0 ? err_set(err, rc, "the latents of %u images cannot be loaded on %s: %s",
                                b->count, f->dev->name, err_text(rc))
                      : 0;
    } else if (f->latent && b->images && e->images) {
        return e->images(e->arg, b->images, b->shapes, b->count, f->d_moments, err);
    } else {
        return err_set(err, -EINVAL, "a batch of images without %s",
                       f->latent ? "latents, or an encoder that makes them" : "pixels");
    }
    return 0;
}

int flow_matching_load(struct flow_matching *f, const struct batch *b, struct err *err)
{
    const size_t B = b->count;
    int rc = take_shapes(f, b, err);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < b->count; i++) {
        rc = draw_label(f, b, i, &f->labels[i], err);
        if (rc < 0)
            return rc;
        f->t[i] = b->t > 0 ? b->t : draw_time(b->seed, b->keys[i], &f->opt);
        f->noise[i] = rng_mix(b->keys[i], STREAM_NOISE);
        if (f->latent && f->reads)
            f->posterior[i] = rng_mix(b->keys[i], STREAM_POSTERIOR);
        if (f->tokens > 0)
            rc = draw_caption(f, b, i, err);
        if (rc < 0)
            return rc;
    }
    f->seed = b->seed;
    f->loaded = (int)b->count;
    rc = f->reads ? load_images(f, b, err) : 0;
    if (rc == 0 && f->reads && f->tokens > 0)
        rc = f->opt.encoders->captions(f->opt.encoders->arg, f->ids, f->lengths, b->count,
                                       f->d_states, err);
    if (rc < 0)
        return rc;
    if (b->partitions)
        memcpy(f->partitions, b->partitions, B * sizeof *f->partitions);
    rc = inputs_send(&f->inputs, f->stream);
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
    const struct model_shape shape = model_shape(f->spec, f->shapes[from]);
    const int B = (int)count;
    int rc = 0;
    unsigned first = from;

    for (unsigned i = from; i < from + count; i++)
        if (f->shapes[i] != f->shapes[from])
            return err_set(err, -EINVAL, "samples %u and %u of a micro-batch have unlike shapes",
                           from, i);
    while (first > 0 && f->shapes[first - 1] == f->shapes[from])
        first--;
    const int64_t at = place_of(f, first, from);
    f->n = model_shape_values(f->spec, f->shapes[from]);
    if (f->latent) {
        /* d_target is unused until the end. */
        note(&rc, k->normal(dev, f->d_target, f->seed, f->d_posterior + from, B, f->n, s));
        note(&rc, k->posterior(dev, f->d_x0, f->d_moments + 2 * at, f->d_target, f->d_shift,
                               f->d_scale, B, f->channels, f->n / f->channels, DT_BF16, s));
    }
    note(&rc, k->normal(dev, f->d_eps, f->seed, f->d_noise + from, B, f->n, s));
    if (!f->latent)
        note(&rc, k->image_from_u8(dev, f->d_x0, f->d_images + at, B, f->channels, shape.height,
                                   shape.width, s));
    note(&rc, k->flow_mix(dev, f->d_xt, f->d_target, f->d_x0, f->d_eps, f->d_t + from, B, f->n, s));
    if (rc < 0)
        return err_set(err, rc, "%u images cannot be noised on %s: %s", count, dev->name,
                       err_text(rc));
    return 0;
}

/* ---- captions of two networks ---- */

/* The loaded sample with the same caption; -1: none.  Each network drops captions by itself, so for
 * a dropped one it may be another sample. */
static int told_alike(const struct flow_matching *f, const int32_t *tokens, int32_t length,
                      unsigned i)
{
    const size_t L = (size_t)f->tokens;
    for (unsigned k = 0; k < (unsigned)f->loaded; k++) {
        const unsigned j = (i + k) % (unsigned)f->loaded;
        if (f->lengths[j] == length && memcmp(f->ids + j * L, tokens, L * sizeof *tokens) == 0)
            return (int)j;
    }
    return -1;
}

/* The number of samples from i on with the captions of the loaded ones from `from` on; -1: none. */
static unsigned run_of(const struct flow_matching *f, const int32_t *tokens, const int32_t *lengths,
                       unsigned i, unsigned count, int from)
{
    const size_t L = (size_t)f->tokens;
    unsigned n = 1;
    while (i + n < count && told_alike(f, tokens + (i + n) * L, lengths[i + n], i + n) ==
                                (from < 0 ? -1 : from + (int)n))
        n++;
    return n;
}

static int share_captions(void *arg, const int32_t *tokens, const int32_t *lengths, unsigned count,
                          void *d_states, struct err *err)
{
    const struct flow_matching *f = arg;
    const struct net_encoders *e = f->opt.encoders;
    const size_t L = (size_t)f->tokens, bytes = f->caption_bytes;
    int rc = 0;
    for (unsigned i = 0, n; i < count && rc == 0; i += n) {
        const int from = told_alike(f, tokens + i * L, lengths[i], i);
        char *to = (char *)d_states + i * bytes;
        n = run_of(f, tokens, lengths, i, count, from);
        if (from < 0)
            rc = e->captions(e->arg, tokens + i * L, lengths + i, n, to, err);
        else if (f->dev->ops->copy(f->dev, to, (char *)f->d_states + (size_t)from * bytes,
                                   n * bytes, COPY_DEVICE, f->stream) < 0)
            rc = err_set(err, -ERR_DEVICE, "captions cannot be copied on %s", f->dev->name);
    }
    return rc < 0 ? rc : f->dev->ops->sync(f->dev, f->stream, err);
}

void flow_matching_share(struct flow_matching *f, struct net_encoders *ret)
{
    *ret = *f->opt.encoders;
    ret->arg = f;
    ret->captions = share_captions;
}
