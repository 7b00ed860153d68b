#include "worker/frozen/frozen_impl.h"

/* Images are (B,side,side,C) (dt).  Three buffers take turns: x, a layer's input and output; h and
 * t, its intermediate results.  A residual layer:
 *
 *     h = silu(norm(x)),  t = conv(h),  t = silu(norm(t)),  x = conv(t) + x
 *     if channels change: h = shortcut(x),  h = conv(t) + h,  and h is the next layer's x */

#define EPS 1e-6f /* epsilon of every norm */

/* How a convolution is applied to its input. */
struct how {
    int stride, pad_low, pad_high;
    bool up2;
};
static const struct how same = {1, 1, 1, false}, halve = {2, 0, 1, false}, twice = {1, 1, 1, true},
                        point = {1, 0, 0, false};

/* ---- weights ---- */

/* (out,in,k,k) of the file to (out,k,k,in). */
static int make_conv(const struct frozen *f, const struct frozen_load *l, float *out,
                     struct err *err)
{
    const uint64_t n = l->t->shape[0], in = l->t->shape[1];
    const uint64_t cells = l->t->rank == 4 ? l->t->shape[2] * l->t->shape[3] : 1;
    float *values = mem_try_array(l->count, sizeof *values);
    if (!values)
        return err_set(err, -ENOMEM, "no memory for the tensor %s", l->t->name);
    int rc = component_read(f->c, l->t, values, err);
    for (uint64_t o = 0; o < n && rc == 0; o++)
        for (uint64_t c = 0; c < in; c++)
            for (uint64_t i = 0; i < cells; i++)
                out[(o * cells + i) * in + c] = values[(o * in + c) * cells + i];
    mem_free(values);
    return rc;
}

static void add_conv(struct frozen *f, struct frozen_product *p, const char *prefix,
                     const char *name)
{
    const struct component_tensor *t;
    char whole[ST_NAME_MAX];
    (void)snprintf(whole, sizeof whole, "%s%s", prefix, name);
    t = frozen_tensor(f, whole, ".weight");
    p->out = (int)t->shape[0];
    p->in = (int)t->shape[1];
    p->k = t->rank == 4 ? (int)t->shape[2] : 1;
    frozen_weight(f, &p->w, make_conv, t, t->count, f->opt.dt);
    frozen_weight(f, &p->b, frozen_as_is, frozen_tensor(f, whole, ".bias"), t->shape[0], DT_F32);
}

static void add_norm(struct frozen *f, struct frozen_norm *n, const char *prefix, const char *name)
{
    char whole[ST_NAME_MAX];
    (void)snprintf(whole, sizeof whole, "%s%s", prefix, name);
    frozen_add_norm(f, n, whole, true);
}

/* ---- running ---- */

/* The height of a layer's input for this group's pictures, if it is side x side for square ones. */
static int height(const struct frozen_pass *p, int side)
{
    return (int)((int64_t)side * p->g->height / p->f->opt.side);
}

static int width(const struct frozen_pass *p, int side)
{
    return (int)((int64_t)side * p->g->width / p->f->opt.side);
}

static int64_t area(const struct frozen_pass *p, int side)
{
    return (int64_t)height(p, side) * width(p, side);
}

/* Pictures to convolve, at least those of the group.  A card's library plans each number by itself,
 * so there are few: what is too much is garbage in scratch, of which garbage is made. */
static int rounded(const struct frozen_pass *p)
{
    const int group = p->f->opt.group;
    int n = 1;
    if (p->f->dev->unified)
        return p->g->n;
    while (n < p->g->n)
        n *= 2;
    return n < group ? n : group;
}

static void conv(struct frozen_pass *p, const struct frozen_product *c, void *y, const void *x,
                 int side, const struct how *how, const void *add)
{
    struct device *dev = p->f->dev;
    const struct conv2d op = {
        .y = y,
        .x = x,
        .w = c->w,
        .bias = c->b,
        .add = add,
        .B = rounded(p),
        .H = height(p, side),
        .W = width(p, side),
        .Cin = c->in,
        .Cout = c->out,
        .k = c->k,
        .stride = how->stride,
        .pad_low = how->pad_low,
        .pad_high = how->pad_high,
        .up2 = how->up2,
        .dt = p->f->opt.dt,
    };
    frozen_note(p, dev->ops->conv2d_fwd(dev, &op, p->s), "conv2d");
}

static void norm(struct frozen_pass *p, const struct frozen_norm *n, void *y, const void *x,
                 int side, int channels, bool silu)
{
    struct device *dev = p->f->dev;
    const struct groupnorm_fwd op = {
        .y = y,
        .x = x,
        .w = n->w,
        .b = n->b,
        .eps = EPS,
        .N = area(p, side),
        .B = p->g->n,
        .C = channels,
        .groups = p->f->vae.groups,
        .silu = silu,
        .dt = p->f->opt.dt,
    };
    frozen_note(p, dev->ops->groupnorm_fwd(dev, &op, p->s), "groupnorm");
}

static void run_resnet(struct frozen_pass *p, const struct frozen_layer *l)
{
    void *x = p->buf[l->x], *h = p->buf[l->h], *t = p->buf[l->t];
    norm(p, &l->norm[0], h, x, l->side, l->in, true);
    conv(p, &l->p[0], t, h, l->side, &same, NULL);
    norm(p, &l->norm[1], t, t, l->side, l->out, true);
    if (l->in != l->out) {
        conv(p, &l->p[2], h, x, l->side, &point, NULL);
        x = h;
    }
    conv(p, &l->p[1], x, t, l->side, &same, x);
}

static void run_down(struct frozen_pass *p, const struct frozen_layer *l)
{
    conv(p, &l->p[0], p->buf[l->h], p->buf[l->x], l->side, &halve, NULL);
}

static void run_up(struct frozen_pass *p, const struct frozen_layer *l)
{
    conv(p, &l->p[0], p->buf[l->h], p->buf[l->x], l->side, &twice, NULL);
}

/* One head as wide as a pixel. */
static void run_attention(struct frozen_pass *p, const struct frozen_layer *l)
{
    struct device *dev = p->f->dev;
    void *x = p->buf[l->x], *h = p->buf[l->h], *qkv = p->buf[l->t];
    const struct attention_fwd op = {
        .o = h,
        .qkv = qkv,
        .B = p->g->n,
        .T = (int)area(p, l->side),
        .H = 1,
        .D = l->in,
        .dt = p->f->opt.dt,
    };
    norm(p, &l->norm[0], h, x, l->side, l->in, false);
    conv(p, &l->p[0], qkv, h, l->side, &point, NULL);
    frozen_note(p, dev->ops->attention_fwd(dev, &op, p->s), "attention");
    conv(p, &l->p[1], x, h, l->side, &point, x);
}

/* ---- planning ---- */

/* The state of planning: the output of the last planned layer. */
struct image {
    struct frozen *f;
    int side, channels;
    int x, h, t; /* buffers */
};

static uint64_t pixels(const struct image *m)
{
    return (uint64_t)m->side * (uint64_t)m->side;
}

/* Makes a buffer large enough for `channels` at the present side. */
static void need(struct image *m, int buffer, int channels)
{
    frozen_need(m->f, buffer, pixels(m) * (uint64_t)channels * dtype_bytes(m->f->opt.dt));
}

static struct frozen_layer *add(struct image *m, frozen_layer_fn *run)
{
    struct frozen_layer *l = frozen_layer_add(m->f, run);
    if (l > m->f->layers) { /* what the layer before leaves */
        l[-1].left[0].buffer = m->x;
        l[-1].left[0].bytes = pixels(m) * (uint64_t)m->channels * dtype_bytes(m->f->opt.dt);
    }
    l->side = m->side;
    l->in = l->out = m->channels;
    l->x = m->x;
    l->h = m->h;
    l->t = m->t;
    return l;
}

/* Swaps the roles of h and x. */
static void swap(struct image *m)
{
    const int x = m->x;
    m->x = m->h;
    m->h = x;
}

static uint64_t cost(const struct frozen_product *p)
{
    return (uint64_t)p->out * (uint64_t)p->in * (uint64_t)(p->k * p->k);
}

static void plan_resnet(struct image *m, const char *prefix, int out)
{
    struct frozen_layer *l = add(m, run_resnet);
    l->out = out;
    add_norm(m->f, &l->norm[0], prefix, "norm1");
    add_conv(m->f, &l->p[0], prefix, "conv1");
    add_norm(m->f, &l->norm[1], prefix, "norm2");
    add_conv(m->f, &l->p[1], prefix, "conv2");
    need(m, m->x, m->channels);
    need(m, m->h, m->channels > out ? m->channels : out);
    need(m, m->t, out);
    if (out != m->channels) {
        add_conv(m->f, &l->p[2], prefix, "conv_shortcut");
        swap(m);
    }
    l->cost = pixels(m) * (cost(&l->p[0]) + cost(&l->p[1]) + cost(&l->p[2]));
    m->channels = out;
}

/* The layer that halves or doubles the side. */
static void plan_resize(struct image *m, const char *prefix, bool up)
{
    struct frozen_layer *l = add(m, up ? run_up : run_down);
    add_conv(m->f, &l->p[0], prefix, up ? "upsamplers.0.conv" : "downsamplers.0.conv");
    m->side = up ? 2 * m->side : m->side / 2;
    l->cost = pixels(m) * cost(&l->p[0]);
    need(m, m->h, m->channels);
    swap(m);
}

/* q, k and v in one product. */
static int make_qkv(const struct frozen *f, const struct frozen_load *l, float *out,
                    struct err *err)
{
    int rc = 0;
    const uint64_t one = l->count / 3;
    for (int i = 0; i < 3 && rc == 0; i++) /* each: a weight and a bias in the component's order */
        rc = component_read(f->c, l->t + 2 * i, out + (uint64_t)i * one, err);
    return rc;
}

static void plan_attention(struct image *m, const char *prefix)
{
    struct frozen_layer *l = add(m, run_attention);
    const struct component_tensor *q = frozen_tensor(m->f, prefix, "to_q.weight");
    l->p[0] = (struct frozen_product){.in = m->channels, .out = 3 * m->channels, .k = 1};
    add_norm(m->f, &l->norm[0], prefix, "group_norm");
    frozen_weight(m->f, &l->p[0].w, make_qkv, q, 3 * q->count, m->f->opt.dt);
    frozen_weight(m->f, &l->p[0].b, make_qkv, q + 1, 3 * q[1].count, DT_F32);
    add_conv(m->f, &l->p[1], prefix, "to_out.0");
    need(m, m->h, m->channels);
    need(m, m->t, 3 * m->channels);
    l->cost = pixels(m) * (cost(&l->p[0]) + cost(&l->p[1]) + 2 * pixels(m) * (uint64_t)m->channels);
}

static int plan_middle(struct image *m, const char *half, struct err *err)
{
    char prefix[96];
    if (m->f->vae.attention && m->side > COMPONENT_SEEN_MAX)
        return err_set(err, -ERR_CONFIG,
                       "%s has attention between %d x %d latents, expected at most %d x %d: use "
                       "smaller pictures",
                       m->f->c->folder, m->side, m->side, COMPONENT_SEEN_MAX, COMPONENT_SEEN_MAX);
    (void)snprintf(prefix, sizeof prefix, "%s.mid_block.resnets.0.", half);
    plan_resnet(m, prefix, m->channels);
    (void)snprintf(prefix, sizeof prefix, "%s.mid_block.attentions.0.", half);
    if (m->f->vae.attention)
        plan_attention(m, prefix);
    (void)snprintf(prefix, sizeof prefix, "%s.mid_block.resnets.1.", half);
    plan_resnet(m, prefix, m->channels);
    return 0;
}

static void plan_block(struct image *m, const char *block, int layers, int channels)
{
    char prefix[96];
    for (int i = 0; i < layers; i++) {
        (void)snprintf(prefix, sizeof prefix, "%sresnets.%d.", block, i);
        plan_resnet(m, prefix, channels);
    }
}

/* Begins at the picture, or at the latents. */
static int begin(struct frozen *f, struct image *m, struct err *err)
{
    const struct component_vae *v = &f->vae;
    const int unit = 1 << (v->blocks - 1), S = f->opt.side;
    *m = (struct image){.f = f, .x = 0, .h = 1, .t = 2};
    if (S < unit || S > 8192 || S % unit != 0)
        return err_set(err, -ERR_CONFIG,
                       "%s cannot take pictures of %d pixels: the side must be a multiple of %d",
                       f->c->folder, S, unit);
    const uint64_t s = (uint64_t)(S / unit), latents = s * s * (uint64_t)v->latent;
    const uint64_t colours = 3 * (uint64_t)S * (uint64_t)S;
    const bool encode = f->opt.part == FROZEN_ENCODE;
    m->side = encode ? S : (int)s;
    f->in_bytes = encode ? colours : latents * sizeof(float);
    f->out_bytes = encode ? 2 * latents * dtype_bytes(f->opt.moments)
                          : colours * (f->opt.planar ? sizeof(float) : 1);
    /* Buffers may also hold inputs and outputs of other types. */
    for (int i = 0; i < 3; i++)
        frozen_need(f, i, (encode ? 2 * latents : latents) * sizeof(float));
    return 0;
}

/* ---- the encoder ---- */

static void run_pixels(struct frozen_pass *p, const struct frozen_layer *l)
{
    struct device *dev = p->f->dev;
    void *h = p->buf[l->h], *t = p->buf[l->t];
    const bool narrow = p->f->opt.dt != DT_F32;
    const int64_t n = (int64_t)p->g->n * area(p, l->side) * 3;
    /* Channels stay last, so for this operation they are images of one channel. */
    frozen_note(p,
                dev->ops->image_from_u8(dev, narrow ? t : h, p->g->in, 3 * p->g->n, 1,
                                        height(p, l->side), width(p, l->side), p->s),
                "image_from_u8");
    if (narrow)
        frozen_cast(p, h, p->f->opt.dt, t, DT_F32, n);
    conv(p, &l->p[0], p->buf[l->x], h, l->side, &same, NULL);
}

static void run_moments(struct frozen_pass *p, const struct frozen_layer *l)
{
    const struct frozen_options *opt = &p->f->opt;
    struct device *dev = p->f->dev;
    void *x = p->buf[l->x], *h = p->buf[l->h], *t = p->buf[l->t];
    const int channels = 2 * p->f->vae.latent, n = p->g->n;
    norm(p, &l->norm[0], x, x, l->side, l->in, true);
    conv(p, &l->p[0], t, x, l->side, &same, NULL);
    if (p->f->vae.quant) {
        conv(p, &l->p[1], h, t, l->side, &point, NULL);
        t = h;
    }
    void *planes = opt->moments == DT_F32 ? p->g->out : x;
    frozen_note(p,
                dev->ops->unpatchify(dev, planes, t, n, channels, height(p, l->side),
                                     width(p, l->side), 1, PATCH_CPP, opt->dt, p->s),
                "unpatchify");
    frozen_cast(p, p->g->out, opt->moments, planes, DT_F32, n * channels * area(p, l->side));
}

int frozen_plan_encode(struct frozen *f, struct err *err)
{
    const struct component_vae *v = &f->vae;
    struct image m;
    char block[64];
    int rc = begin(f, &m, err);
    if (rc < 0)
        return rc;
    struct frozen_layer *l = add(&m, run_pixels);
    add_conv(f, &l->p[0], "encoder.", "conv_in");
    l->cost = pixels(&m) * cost(&l->p[0]);
    m.channels = v->channels[0];
    need(&m, m.x, m.channels);
    frozen_need(f, m.h, pixels(&m) * 3 * sizeof(float));
    frozen_need(f, m.t, pixels(&m) * 3 * sizeof(float));
    for (int i = 0; i < v->blocks; i++) {
        (void)snprintf(block, sizeof block, "encoder.down_blocks.%d.", i);
        plan_block(&m, block, v->layers, v->channels[i]);
        if (i < v->blocks - 1)
            plan_resize(&m, block, false);
    }
    rc = plan_middle(&m, "encoder", err);
    if (rc < 0)
        return rc;
    l = add(&m, run_moments);
    add_norm(f, &l->norm[0], "encoder.", "conv_norm_out");
    add_conv(f, &l->p[0], "encoder.", "conv_out");
    if (v->quant)
        add_conv(f, &l->p[1], "", "quant_conv");
    l->cost = pixels(&m) * (cost(&l->p[0]) + cost(&l->p[1]));
    return 0;
}

/* ---- the decoder ---- */

/* The 1x1 convolution before the decoder, or the identity: (latent,latent). */
static int read_post(const struct frozen *f, const struct frozen_load *l, float *w, struct err *err)
{
    const uint64_t n = (uint64_t)f->vae.latent;
    if (l->t)
        return component_read(f->c, l->t, w, err);
    for (uint64_t i = 0; i < n * n; i++)
        w[i] = i % (n + 1) == 0;
    return 0;
}

/* Merges z = y / scale + shift into it: columns are divided, and the bias takes the shifts. */
static int make_scale(const struct frozen *f, const struct frozen_load *l, float *out,
                      struct err *err)
{
    const uint64_t n = (uint64_t)f->vae.latent;
    int rc = read_post(f, l, out, err);
    for (uint64_t i = 0; i < n * n && rc == 0; i++)
        out[i] /= f->vae.scale[i % n];
    return rc;
}

static int make_shift(const struct frozen *f, const struct frozen_load *l, float *out,
                      struct err *err)
{
    const uint64_t n = (uint64_t)f->vae.latent;
    float w[COMPONENT_LATENT_MAX * COMPONENT_LATENT_MAX];
    int rc = read_post(f, l, w, err);
    memset(out, 0, n * sizeof *out);
    if (rc == 0 && l->t)
        rc = component_read(f->c, l->t + 1, out, err);
    for (uint64_t i = 0; i < n * n && rc == 0; i++)
        out[i / n] += w[i] * f->vae.shift[i % n];
    return rc;
}

/* In f32, whatever the decoder's type: bf16 is too coarse for latents. */
static void run_latents(struct frozen_pass *p, const struct frozen_layer *l)
{
    struct device *dev = p->f->dev;
    const int n = p->g->n, channels = p->f->vae.latent;
    void *x = p->buf[l->x], *h = p->buf[l->h], *t = p->buf[l->t];
    const struct frozen_product *scale = &p->f->scale;
    const struct conv2d op = {.y = t,
                              .x = h,
                              .w = scale->w,
                              .bias = scale->b,
                              .B = n,
                              .H = height(p, l->side),
                              .W = width(p, l->side),
                              .Cin = channels,
                              .Cout = channels,
                              .k = 1,
                              .stride = 1,
                              .dt = DT_F32};
    frozen_note(
        p,
        dev->ops->patchify(dev, h, p->g->in, n, channels, op.H, op.W, 1, PATCH_CPP, DT_F32, p->s),
        "patchify");
    frozen_note(p, dev->ops->conv2d_fwd(dev, &op, p->s), "conv2d");
    if (p->f->opt.dt != DT_F32) {
        frozen_cast(p, h, p->f->opt.dt, t, DT_F32, n * channels * area(p, l->side));
        t = h;
    }
    conv(p, &l->p[0], x, t, l->side, &same, NULL);
}

static void run_picture(struct frozen_pass *p, const struct frozen_layer *l)
{
    const enum dtype dt = p->f->opt.dt;
    struct device *dev = p->f->dev;
    void *x = p->buf[l->x], *h = p->buf[l->h], *t = p->buf[l->t];
    const int n = p->g->n;
    norm(p, &l->norm[0], x, x, l->side, l->in, true);
    conv(p, &l->p[0], t, x, l->side, &same, NULL);
    if (p->f->opt.planar) {
        frozen_note(p,
                    dev->ops->unpatchify(dev, p->g->out, t, n, 3, height(p, l->side),
                                         width(p, l->side), 1, PATCH_CPP, dt, p->s),
                    "unpatchify");
        return;
    }
    if (dt != DT_F32) {
        frozen_cast(p, h, DT_F32, t, dt, n * 3 * area(p, l->side));
        t = h;
    }
    frozen_note(p,
                dev->ops->image_to_u8(dev, p->g->out, t, 3 * n, 1, height(p, l->side),
                                      width(p, l->side), p->s),
                "image_to_u8");
}

static void plan_latents(struct image *m)
{
    struct frozen *f = m->f;
    const uint64_t n = (uint64_t)f->vae.latent;
    const struct component_tensor *post = frozen_tensor(f, "post_quant_conv", ".weight");
    struct frozen_layer *l = add(m, run_latents);
    frozen_weight(f, &f->scale.w, make_scale, post, n * n, DT_F32);
    frozen_weight(f, &f->scale.b, make_shift, post, n, DT_F32);
    add_conv(f, &l->p[0], "decoder.", "conv_in");
    l->cost = pixels(m) * (cost(&l->p[0]) + n * n);
    m->channels = l->p[0].out;
    need(m, m->x, m->channels);
}

int frozen_plan_decode(struct frozen *f, struct err *err)
{
    const struct component_vae *v = &f->vae;
    struct image m;
    char block[64];
    int rc = begin(f, &m, err);
    if (rc < 0)
        return rc;
    plan_latents(&m);
    rc = plan_middle(&m, "decoder", err);
    if (rc < 0)
        return rc;
    for (int i = 0; i < v->blocks; i++) {
        (void)snprintf(block, sizeof block, "decoder.up_blocks.%d.", i);
        plan_block(&m, block, v->layers + 1, v->channels[v->blocks - 1 - i]);
        if (i < v->blocks - 1)
            plan_resize(&m, block, true);
    }
    struct frozen_layer *l = add(&m, run_picture);
    add_norm(f, &l->norm[0], "decoder.", "conv_norm_out");
    add_conv(f, &l->p[0], "decoder.", "conv_out");
    l->cost = pixels(&m) * cost(&l->p[0]);
    frozen_need(f, m.h, pixels(&m) * 3 * sizeof(float));
    need(&m, m.t, 3);
    return 0;
}
