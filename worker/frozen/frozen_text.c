#include "worker/frozen/frozen_impl.h"

/* R rows are the tokens of a group, L each.  Between layers x (R,D) f32 is the residual stream, and
 * y (R,D) (dt) the output of the last half layer, still to be added to it: addition and norm are
 * one pass.
 *
 *     x += y, h = norm(x)  ->  qkv -> attention -> y = o
 *     x += y, h = norm(x)  ->  wide -> act -> y = down */
enum buffer { X, Y, H, WIDE, ACT };

/* Some products compute fewer rows in another order: a text alone would have other bits than among
 * others. */
enum { LEAST_ROWS = 8 };

static int64_t rows_of(const struct frozen_pass *p)
{
    return (int64_t)p->g->n * p->f->opt.tokens;
}

static bool is_clip(const struct frozen *f)
{
    return f->kind == COMPONENT_CLIP;
}

/* ---- running ---- */

/* y (rows,out) = x (rows,in) wᵀ + b, all (dt). */
static void product(struct frozen_pass *p, const struct frozen_product *w, void *y, const void *x)
{
    struct device *dev = p->f->dev;
    const int64_t rows = rows_of(p);
    const struct matmul mm = {
        .layout = MM_NT,
        .m = rows > LEAST_ROWS ? rows : LEAST_ROWS,
        .n = w->out,
        .k = w->in,
        .c = y,
        .a = x,
        .b = w->w,
        .bias = w->b,
        .dt = p->f->opt.dt,
        .c_dt = p->f->opt.dt,
    };
    frozen_note(p, dev->ops->matmul(dev, &mm, p->s), "matmul");
}

/* x += y unless y is NULL; h = norm(x) unless h is NULL. */
static void norm(struct frozen_pass *p, const struct frozen_norm *n, void *h, const void *y)
{
    const struct frozen *f = p->f;
    struct device *dev = f->dev;
    float *x = p->buf[X];
    if (is_clip(f)) {
        const struct layernorm_fwd op = {.x = x,
                                         .h = h,
                                         .x_in = x,
                                         .y = y,
                                         .w = n->w,
                                         .b = n->b,
                                         .eps = f->text.eps,
                                         .rows = rows_of(p),
                                         .C = f->text.dim,
                                         .dt = f->opt.dt};
        frozen_note(p, dev->ops->layernorm_fwd(dev, &op, p->s), "layernorm");
    } else {
        const struct rmsnorm_fwd op = {.x = x,
                                       .h = h,
                                       .x_in = x,
                                       .y = y,
                                       .w = n->w,
                                       .eps = f->text.eps,
                                       .rows = rows_of(p),
                                       .C = f->text.dim,
                                       .dt = f->opt.dt};
        frozen_note(p, dev->ops->rmsnorm_fwd(dev, &op, p->s), "rmsnorm");
    }
}

static void attention(struct frozen_pass *p)
{
    const struct frozen *f = p->f;
    const bool clip = is_clip(f);
    const struct attention_fwd op = {
        .o = p->buf[H],
        .qkv = p->buf[WIDE],
        .klen = clip ? NULL : p->g->lengths,
        .bias = f->bias,
        .scale = clip ? 0 : 1,
        .B = p->g->n,
        .T = f->opt.tokens,
        .H = f->text.heads,
        .D = f->text.head_dim,
        .causal = clip,
        .dt = f->opt.dt,
    };
    frozen_note(p, f->dev->ops->attention_fwd(f->dev, &op, p->s), "attention");
}

/* The activation between the two products of an MLP; returns the place of its result. */
static void *activate(struct frozen_pass *p)
{
    static const enum activation acts[] = {[COMPONENT_QUICK_GELU] = ACT_QUICK_GELU,
                                           [COMPONENT_GELU] = ACT_GELU,
                                           [COMPONENT_RELU] = ACT_RELU,
                                           [COMPONENT_SILU] = ACT_SILU};
    const struct component_text *t = &p->f->text;
    struct device *dev = p->f->dev;
    const enum dtype dt = p->f->opt.dt;
    void *wide = p->buf[WIDE], *act = p->buf[ACT];
    const int64_t rows = rows_of(p), n = rows * t->mlp;
    if (t->gated) {
        frozen_note(p,
                    t->act == COMPONENT_SILU
                        ? dev->ops->swiglu_fwd(dev, act, wide, rows, t->mlp, dt, p->s)
                        : dev->ops->geglu_fwd(dev, act, wide, rows, t->mlp, dt, p->s),
                    "gated activation");
        return act;
    }
    frozen_note(p,
                t->act == COMPONENT_GELU_TANH
                    ? dev->ops->gelu_fwd(dev, wide, wide, n, dt, p->s)
                    : dev->ops->activation(dev, wide, wide, n, acts[t->act], dt, p->s),
                "activation");
    return wide;
}

static void run_embedding(struct frozen_pass *p, const struct frozen_layer *l)
{
    const struct frozen *f = p->f;
    struct device *dev = f->dev;
    const int64_t D = f->text.dim, L = f->opt.tokens;
    float *x = p->buf[X];
    frozen_note(p,
                dev->ops->embed_fwd(dev, x, f->table, p->g->in, (int)rows_of(p), (int)D,
                                    f->text.vocab, false, p->s),
                "embedding");
    if (f->positions)
        frozen_note(p, dev->ops->add_row(dev, x, f->positions, p->g->n, L * D, p->s), "positions");
}

static void run_block(struct frozen_pass *p, const struct frozen_layer *l)
{
    void *h = p->buf[H], *wide = p->buf[WIDE], *y = p->buf[Y];
    norm(p, &l->norm[0], h, l->first ? NULL : y);
    product(p, &l->p[0], wide, h);
    attention(p);
    product(p, &l->p[1], y, h);
    norm(p, &l->norm[1], h, y);
    product(p, &l->p[2], wide, h);
    product(p, &l->p[3], y, activate(p));
}

static void run_states(struct frozen_pass *p, const struct frozen_layer *l)
{
    const struct frozen *f = p->f;
    struct device *dev = f->dev;
    const uint64_t row = (uint64_t)f->text.dim * dtype_bytes(f->opt.dt);
    const void *y = f->n_layers > 2 ? p->buf[Y] : NULL;
    if (f->last.w) {
        norm(p, &f->last, p->g->out, y);
    } else {
        if (y)
            norm(p, &f->last, NULL, y);
        frozen_cast(p, p->g->out, f->opt.dt, p->buf[X], DT_F32, rows_of(p) * f->text.dim);
    }
    for (int i = 0; i < p->g->n; i++) {
        const uint64_t length = (uint64_t)p->g->host_lengths[i], all = (uint64_t)f->opt.tokens;
        char *end = (char *)p->g->out + ((uint64_t)i * all + length) * row;
        if (length < all)
            frozen_note(p, dev->ops->zero(dev, end, (all - length) * row, p->s), "zero");
    }
}

/* ---- weights ---- */

/* l->count values of several tensors, which are `step` apart in the component's list. */
static int join(const struct frozen *f, const struct frozen_load *l, int step, float *out,
                struct err *err)
{
    uint64_t done = 0;
    int rc = 0;
    for (const struct component_tensor *t = l->t; done < l->count && rc == 0; t += step) {
        rc = component_read(f->c, t, out + done, err);
        done += t->count;
    }
    return rc;
}

static int make_next(const struct frozen *f, const struct frozen_load *l, float *out,
                     struct err *err)
{
    return join(f, l, 1, out, err);
}

/* For layers with biases: every other tensor is one. */
static int make_second(const struct frozen *f, const struct frozen_load *l, float *out,
                       struct err *err)
{
    return join(f, l, 2, out, err);
}

/* The bucket of a distance from a query to a key (Raffel et al., both directions), computed in f32
 * like the reference. */
static int bucket(const struct component_text *t, int distance)
{
    const int half = t->buckets / 2, exact = half / 2;
    const int from = distance > 0 ? half : 0, far = abs(distance);
    if (far < exact)
        return from + far;
    const float share =
        logf((float)far / (float)exact) / (float)log((double)t->distance / (double)exact);
    const int at = exact + (int)(share * (float)(half - exact));
    return from + (at < half - 1 ? at : half - 1);
}

/* Makes the bias (H,L,L) of the table (buckets,H). */
static int make_bias(const struct frozen *f, const struct frozen_load *l, float *out,
                     struct err *err)
{
    const struct component_text *t = &f->text;
    const int L = f->opt.tokens, heads = t->heads;
    float *table = mem_try_array(l->t->count, sizeof *table);
    if (!table)
        return err_set(err, -ENOMEM, "no memory for the tensor %s", l->t->name);
    int rc = component_read(f->c, l->t, table, err);
    for (int h = 0; h < heads && rc == 0; h++)
        for (int q = 0; q < L; q++)
            for (int k = 0; k < L; k++)
                *out++ = table[bucket(t, k - q) * heads + h];
    mem_free(table);
    return rc;
}

/* ---- planning ---- */

/* Joins `n` consecutive layers with the same input in one product; bias: they have biases. */
static void add_product(struct frozen *f, struct frozen_product *p, const char *prefix,
                        const char *leaf, int n, bool bias)
{
    const struct component_tensor *t = frozen_tensor(f, prefix, leaf);
    p->out = n * (int)t->shape[0];
    p->in = (int)t->shape[1];
    p->k = 1;
    frozen_weight(f, &p->w, bias ? make_second : make_next, t, (uint64_t)n * t->count, f->opt.dt);
    if (bias)
        frozen_weight(f, &p->b, make_second, t + 1, (uint64_t)p->out, DT_F32);
}

static void add_norm(struct frozen *f, struct frozen_norm *n, const char *prefix, const char *name,
                     bool bias)
{
    char whole[ST_NAME_MAX];
    (void)snprintf(whole, sizeof whole, "%s%s", prefix, name);
    frozen_add_norm(f, n, whole, bias);
}

static void plan_clip_block(struct frozen *f, struct frozen_layer *l, int i)
{
    char prefix[64];
    (void)snprintf(prefix, sizeof prefix, "encoder.layers.%d.", i);
    add_norm(f, &l->norm[0], prefix, "layer_norm1", true);
    add_product(f, &l->p[0], prefix, "self_attn.q_proj.weight", 3, true);
    add_product(f, &l->p[1], prefix, "self_attn.out_proj.weight", 1, true);
    add_norm(f, &l->norm[1], prefix, "layer_norm2", true);
    add_product(f, &l->p[2], prefix, "mlp.fc1.weight", 1, true);
    add_product(f, &l->p[3], prefix, "mlp.fc2.weight", 1, true);
}

static void plan_t5_block(struct frozen *f, struct frozen_layer *l, int i)
{
    const bool gated = f->text.gated;
    char prefix[64];
    (void)snprintf(prefix, sizeof prefix, "encoder.block.%d.layer.0.", i);
    add_norm(f, &l->norm[0], prefix, "layer_norm", false);
    add_product(f, &l->p[0], prefix, "SelfAttention.q.weight", 3, false);
    add_product(f, &l->p[1], prefix, "SelfAttention.o.weight", 1, false);
    (void)snprintf(prefix, sizeof prefix, "encoder.block.%d.layer.1.", i);
    add_norm(f, &l->norm[1], prefix, "layer_norm", false);
    add_product(f, &l->p[2], prefix,
                gated ? "DenseReluDense.wi_0.weight" : "DenseReluDense.wi.weight", 1 + gated,
                false);
    add_product(f, &l->p[3], prefix, "DenseReluDense.wo.weight", 1, false);
}

static int check(const struct frozen *f, struct err *err)
{
    const struct component_text *t = &f->text;
    const int L = f->opt.tokens, most = t->positions ? t->positions : 4096;
    if (L < 1 || L > most)
        return err_set(err, -ERR_CONFIG, "%s cannot take texts of %d tokens, expected 1 to %d",
                       f->c->folder, L, most);
    if (f->opt.layer != -1 && !(f->opt.layer == -2 && is_clip(f)))
        return err_set(err, -ERR_CONFIG,
                       "%s: layer %d of a %s cannot be taken; -1 can, and -2 of a CLIPTextModel",
                       f->c->folder, f->opt.layer, component_kind_name(f->kind));
    if ((int64_t)f->opt.group * L > INT_MAX / 8)
        return err_set(err, -EINVAL, "a group of %d texts of %d tokens", f->opt.group, L);
    return 0;
}

static void plan_buffers(struct frozen *f)
{
    const struct component_text *t = &f->text;
    const uint64_t e = dtype_bytes(f->opt.dt), dim = (uint64_t)t->dim, mlp = (uint64_t)t->mlp;
    const uint64_t inner = (uint64_t)t->heads * (uint64_t)t->head_dim;
    const uint64_t up = mlp * (1 + t->gated), wide = up > 3 * inner ? up : 3 * inner;
    /* Rows per text, at least so many that the group has LEAST_ROWS. */
    const uint64_t all = (uint64_t)f->opt.group * (uint64_t)f->opt.tokens;
    const uint64_t rows = all < LEAST_ROWS ? LEAST_ROWS : (uint64_t)f->opt.tokens;
    frozen_need(f, X, rows * dim * sizeof(float));
    frozen_need(f, Y, rows * dim * e);
    frozen_need(f, H, rows * (inner > dim ? inner : dim) * e);
    frozen_need(f, WIDE, rows * wide * e);
    frozen_need(f, ACT, t->gated ? rows * mlp * e : 0);
}

/* Plans what a layer leaves of a text: the stream, and after a block also y. */
static void leave(const struct frozen *f, struct frozen_layer *l, bool block)
{
    const uint64_t values = (uint64_t)f->opt.tokens * (uint64_t)f->text.dim;
    l->left[0].buffer = X;
    l->left[0].bytes = values * sizeof(float);
    l->left[1].buffer = Y;
    l->left[1].bytes = block ? values * dtype_bytes(f->opt.dt) : 0;
}

static void plan_embedding(struct frozen *f)
{
    const struct component_text *t = &f->text;
    const bool clip = is_clip(f);
    const uint64_t dim = (uint64_t)t->dim, L = (uint64_t)f->opt.tokens;
    if (!clip) /* all blocks read it */
        frozen_weight(f, &f->bias, make_bias,
                      frozen_tensor(f, "encoder.block.0.layer.0.",
                                    "SelfAttention.relative_attention_bias.weight"),
                      (uint64_t)t->heads * L * L, DT_F32);
    leave(f, frozen_layer_add(f, run_embedding), false);
    frozen_weight(
        f, &f->table, frozen_as_is,
        component_find(f->c, clip ? "embeddings.token_embedding.weight" : "shared.weight"),
        (uint64_t)t->vocab * dim, DT_F32);
    if (clip)
        frozen_weight(f, &f->positions, frozen_as_is,
                      component_find(f->c, "embeddings.position_embedding.weight"),
                      (uint64_t)t->positions * dim, DT_F32);
}

int frozen_plan_text(struct frozen *f, struct err *err)
{
    const struct component_text *t = &f->text;
    const bool clip = is_clip(f);
    const uint64_t L = (uint64_t)f->opt.tokens;
    int rc = check(f, err);
    if (rc < 0)
        return rc;
    f->in_bytes = L * sizeof(int32_t);
    f->out_bytes = L * (uint64_t)t->dim * dtype_bytes(f->opt.dt);
    plan_buffers(f);
    plan_embedding(f);
    for (int i = 0; i < t->layers + 1 + f->opt.layer; i++) {
        struct frozen_layer *l = frozen_layer_add(f, run_block);
        l->first = i == 0;
        leave(f, l, true);
        if (clip)
            plan_clip_block(f, l, i);
        else
            plan_t5_block(f, l, i);
        for (int k = 0; k < 4; k++)
            l->cost += L * (uint64_t)l->p[k].out * (uint64_t)l->p[k].in;
        l->cost += 2 * L * L * (uint64_t)t->heads * (uint64_t)t->head_dim;
    }
    (void)frozen_layer_add(f, run_states);
    if (f->opt.layer == -1)
        frozen_add_norm(f, &f->last, clip ? "final_layer_norm" : "encoder.final_layer_norm", clip);
    return 0;
}
