#include "worker/net/dit_impl.h"

/* ---- memory ---- */

static void plan_cross(struct dit *d, struct dit_cross *c, uint64_t rows)
{
    const uint64_t e = dtype_bytes(d->dt), C = (uint64_t)d->C;
    const uint64_t texts = (uint64_t)d->opt.batch * (uint64_t)d->L;
    struct arena *a = &d->arena;
    arena_add(a, &c->x, rows * C * e);
    arena_add(a, &c->q, rows * C * e);
    arena_add(a, &c->kv, texts * 2 * C * e);
    arena_add(a, &c->o, rows * C * e);
    if (d->opt.mode != NET_FORWARD)
        arena_add(a, &c->lse, rows * (uint64_t)d->m->spec.heads * sizeof(float));
    arena_add(a, &c->y, rows * C * e);
}

/* Memory for one block's activations.  In NET_FORWARD and NET_RECOMPUTE all blocks share
 * it. */
static void plan_scratch(struct dit *d, struct dit_block *b, uint64_t rows)
{
    const uint64_t e = dtype_bytes(d->dt), C = (uint64_t)d->C, M = (uint64_t)d->M;
    struct arena *a = &d->arena;
    const bool train = d->opt.mode != NET_FORWARD;

    arena_add(a, &b->n1.stats, rows * 2 * sizeof(float));
    arena_add(a, &b->qkv, rows * 3 * C * e);
    arena_add(a, &b->o, rows * C * e);
    if (train)
        arena_add(a, &b->lse, rows * (uint64_t)d->m->spec.heads * sizeof(float));
    arena_add(a, &b->y1, rows * C * e);
    if (d->L > 0) {
        plan_cross(d, &b->cross, rows);
        if (train)
            arena_add(a, &b->n2.x, rows * C * sizeof(float));
    }
    arena_add(a, &b->n2.stats, rows * 2 * sizeof(float));
    if (train)
        arena_add(a, &b->pre, rows * M * e);
    if (d->opt.mode == NET_TRAIN)
        arena_add(a, &b->act, rows * M * e);
    if (d->opt.split) {
        arena_add(a, &b->n1.h, rows * C * e);
        arena_add(a, &b->n2.h, rows * C * e);
    }
}

/* Memory for results of a block that no backward reads: it is shared with the gradients of a
 * block's backward, which runs at another time. */
static void plan_passing(struct dit *d, uint64_t rows)
{
    const uint64_t e = dtype_bytes(d->dt), C = (uint64_t)d->C, M = (uint64_t)d->M;
    const uint64_t wide = M > 3 * C ? M : 3 * C;
    const bool train = d->opt.mode != NET_FORWARD;

    arena_add(&d->arena, &d->dh, rows * C * e);
    if (!d->opt.split)
        arena_add(&d->arena, &d->dwide, rows * (train ? wide : M) * e);
    if (train && d->L == 0)
        arena_add(&d->arena, &d->x2, rows * C * sizeof(float));
}

static void share_passing(const struct dit *d, struct dit_block *b)
{
    if (!d->opt.split)
        b->n1.h = b->n2.h = d->dh;
    if (d->opt.mode != NET_TRAIN)
        b->act = d->dwide;
    if (d->opt.mode == NET_FORWARD) /* the residual stream is updated in place */
        b->n2.x = b->n1.x;
    else if (d->L == 0)
        b->n2.x = d->x2;
}

static void plan_blocks(struct dit *d, const struct dit_slot *s, uint64_t rows)
{
    const uint64_t e = dtype_bytes(d->dt), C = (uint64_t)d->C;
    struct arena *a = &d->arena;
    const uint64_t start = arena_mark(a);

    /* Shared scratch comes first, the same for each block. */
    for (int i = d->part.from; i < d->part.to; i++) {
        if (net_shares_blocks(d->opt.mode))
            arena_reset(a, start);
        plan_scratch(d, &s->blocks[i], rows);
    }
    const uint64_t shared = arena_mark(a);
    for (int i = d->part.from; i < d->part.to; i++) {
        if (d->opt.mode == NET_FORWARD)
            arena_reset(a, shared);
        arena_add(a, &s->blocks[i].n1.x, rows * C * sizeof(float));
        arena_add(a, &s->blocks[i].y2, rows * C * e);
    }
    if (!dit_is_last(d))
        arena_add(a, &s->blocks[d->part.to].n1.x, rows * C * sizeof(float));
}

static void plan_text(struct dit *d, struct dit_slot *s, uint64_t B)
{
    const uint64_t C = (uint64_t)d->C, e = dtype_bytes(d->dt), values = B * (uint64_t)d->L * C;
    const bool train = d->opt.mode != NET_FORWARD;
    struct arena *a = &d->arena;
    arena_add(a, &s->shared, B * 6 * C * sizeof(float));
    if (train && dit_is_first(d))
        arena_add(a, &s->text_pre, values * e);
    if (dit_is_first(d))
        arena_add(a, &s->text_act, values * e);
    arena_add(a, &s->text, values * e);
    if (!train)
        return;
    arena_add(a, &s->dshared, B * 6 * C * sizeof(float));
    arena_add(a, &s->dtext, values * sizeof(float));
}

static void plan_grads(struct dit *d, struct dit_block_grads *g, uint64_t rows)
{
    const uint64_t C = (uint64_t)d->C, e = dtype_bytes(d->dt);
    struct arena *a = &d->arena;
    arena_add(a, &g->y2, rows * C * e);
    arena_add(a, &g->pre, rows * (uint64_t)d->M * e);
    arena_add(a, &g->y1, rows * C * e);
    arena_add(a, &g->qkv, rows * 3 * C * e);
    if (d->L == 0)
        return;
    arena_add(a, &g->cy, rows * C * e);
    arena_add(a, &g->q, rows * C * e);
    arena_add(a, &g->kv, (uint64_t)d->opt.batch * (uint64_t)d->L * 2 * C * e);
}

static void plan_slot(struct dit *d, struct dit_slot *s, uint64_t B, uint64_t rows)
{
    const uint64_t C = (uint64_t)d->C, e = dtype_bytes(d->dt), ld = (uint64_t)d->mod_ld;
    struct arena *a = &d->arena;

    if (dit_is_first(d)) {
        arena_add(a, &s->patches, B * (uint64_t)model_patches(&d->m->spec) * (uint64_t)d->In * e);
        arena_add(a, &s->t1000, B * sizeof(float));
        arena_add(a, &s->freq, B * MODEL_FREQS * e);
        arena_add(a, &s->pre0, B * C * sizeof(float));
        arena_add(a, &s->act0, B * C * e);
    }
    arena_add(a, &s->cond, B * C * sizeof(float));
    arena_add(a, &s->scond, B * C * e);
    arena_add(a, &s->mod, B * ld * sizeof(float));
    if (d->L > 0)
        plan_text(d, s, B);
    plan_blocks(d, s, rows);
    if (dit_is_last(d)) {
        arena_add(a, &s->nf.x, rows * C * sizeof(float));
        arena_add(a, &s->nf.stats, rows * 2 * sizeof(float));
        arena_add(a, &s->nf.h, rows * C * e);
    }
    if (d->opt.mode == NET_FORWARD)
        return;
    arena_add(a, &s->dx, rows * C * sizeof(float));
    arena_add(a, &s->dmod, B * ld * sizeof(float));
    if (d->dt == DT_BF16)
        arena_add(a, &s->dmod16, B * (d->L > 0 ? 6 * C : ld) * e);
    arena_add(a, &s->dscond, B * C * sizeof(float));
    arena_add(a, &s->dcond, B * C * sizeof(float));
    if (d->opt.split)
        plan_grads(d, &s->blocks[d->part.to - 1].d, rows);
}

static void plan_backward(struct dit *d, uint64_t B, uint64_t rows)
{
    const uint64_t e = dtype_bytes(d->dt), C = (uint64_t)d->C;
    struct arena *a = &d->arena;

    if (dit_is_last(d))
        arena_add(
            a, &d->dout,
            e * (dit_is_router(d) ? B * (uint64_t)d->m->spec.classes : rows * (uint64_t)d->P));
    if (!d->opt.split)
        arena_add(a, &d->dy, rows * C * e);
    if (d->L > 0) {
        arena_add(a, &d->dkv, B * (uint64_t)d->L * 2 * C * e);
        arena_add(a, &d->dones, B * 6 * C * sizeof(float));
    }
    if (d->dt == DT_BF16) {
        arena_add(a, &d->dx16, rows * C * e);
        arena_add(a, &d->dcond16, B * C * e);
    }
}

static void plan(struct dit *d)
{
    const uint64_t B = (uint64_t)d->opt.batch, rows = B * (uint64_t)d->T;
    struct arena *a = &d->arena;

    if (dit_is_first(d))
        arena_add(a, &d->pos,
                  (uint64_t)(1 + d->m->spec.n_shapes) * (uint64_t)d->T * (uint64_t)d->C *
                      sizeof(float));
    for (int i = 0; i < net_slots(&d->opt); i++)
        plan_slot(d, &d->slots[i], B, rows);
    plan_passing(d, rows);
    if (d->m->spec.self_condition && dit_is_first(d))
        arena_add(a, &d->both, B * 2 * model_image_values(&d->m->spec) * sizeof(float));
    if (d->L > 0)
        arena_add(a, &d->ones, B * 6 * (uint64_t)d->C * sizeof(float));
    if (!dit_is_router(d) && dit_is_last(d))
        arena_add(a, &d->out, rows * (uint64_t)d->P * sizeof(float));
    if (d->opt.mode != NET_FORWARD)
        plan_backward(d, B, rows);
}

/* Sizes and plan, no device memory yet.  -ENOMEM. */
static int init_sizes(struct dit *d, const struct model *m, const struct net_options *opt,
                      enum dtype dt)
{
    const size_t depth = (size_t)m->spec.depth, slots = (size_t)net_slots(opt);
    d->m = m;
    d->opt = *opt;
    d->dt = dt;
    d->T = model_tokens(&m->spec);
    d->C = m->spec.dim;
    d->M = m->spec.mlp;
    d->P = model_patch_values(&m->spec);
    d->In = model_input_values(&m->spec);
    d->L = model_captioned(&m->spec) ? m->spec.caption_tokens : 0;
    d->part = net_part_of(m);
    d->mod_ld = (int64_t)d->C * (6 * (d->part.to - d->part.from) + (dit_is_last(d) ? 2 : 0));
    d->slots = mem_try_array(slots, sizeof *d->slots);
    d->blocks = mem_try_array(slots * depth, sizeof *d->blocks);
    if (!d->slots || !d->blocks)
        return -ENOMEM;
    for (size_t i = 0; i < slots; i++)
        d->slots[i].blocks = d->blocks + i * depth;
    plan(d);
    return 0;
}

uint64_t dit_bytes(const struct model *m, const struct net_options *opt, enum dtype dt)
{
    struct dit d = {0};
    int rc = init_sizes(&d, m, opt, dt);
    mem_free(d.slots);
    mem_free(d.blocks);
    return rc == 0 ? arena_measure(&d.arena) : 0;
}

static int fill_constants(struct dit *d, struct err *err)
{
    const size_t one = (size_t)d->T * (size_t)d->C, n = one * (size_t)(1 + d->m->spec.n_shapes);
    float *pos = dit_is_first(d) ? mem_try_array(n, sizeof *pos) : NULL;
    if (!pos && dit_is_first(d))
        return err_set(err, -ENOMEM, "no memory for the positions");
    if (pos) {
        memset(pos, 0, n * sizeof *pos);
        for (int i = 0; i <= d->m->spec.n_shapes; i++)
            model_positions(&d->m->spec, i, pos + (size_t)i * one);
        dit_op(d, d->ops->copy(d->dev, d->pos, pos, n * sizeof *pos, COPY_TO_DEVICE, d->stream),
               "copying the positions");
    }
    if (d->L > 0)
        dit_op(d, d->ops->fill(d->dev, d->ones, 1.0f, 6 * (int64_t)d->opt.batch * d->C, d->stream),
               "fill");
    int rc = weights_sync(&d->w, err);
    mem_free(pos);
    return rc;
}

/* Places the gradients of each block, after all other memory. */
static void place_grads(const struct dit *d, const struct dit_slot *s)
{
    for (int i = d->part.from; i < d->part.to; i++) {
        const struct dit_block *above = &s->blocks[i + 1];
        struct dit_block_grads *g = &s->blocks[i].d;
        if (!d->opt.split)
            *g = (struct dit_block_grads){.y2 = d->dy,
                                          .pre = d->dwide,
                                          .cy = d->dy,
                                          .q = d->dwide,
                                          .kv = d->dkv,
                                          .y1 = d->dy,
                                          .qkv = d->dwide};
        else if (i + 1 < d->part.to)
            *g = (struct dit_block_grads){.y2 = above->y2,
                                          .pre = above->pre,
                                          .cy = above->cross.y,
                                          .q = above->cross.q,
                                          .kv = above->cross.kv,
                                          .y1 = above->y1,
                                          .qkv = above->qkv};
    }
}

/* Its weights: its own, or those of the whole of which it is a chain. */
static int init_weights(struct dit *d, const struct weights *whole, struct err *err)
{
    if (!whole)
        return weights_init(&d->w, d->dev, d->m, d->dt, d->opt.mode != NET_FORWARD, err);
    d->w = *whole;
    d->w.m = d->m;
    d->borrowed = true;
    return 0;
}

static int make(struct device *dev, const struct weights *whole, const struct model *m,
                const struct net_options *opt, struct dit **ret, struct err *err)
{
    if (opt->batch < 1)
        return err_set(err, -EINVAL, "a batch of %d samples", opt->batch);
    struct dit *d = mem_try_zero(sizeof *d);
    if (!d)
        return err_set(err, -ENOMEM, "no memory for a model");
    d->dev = dev;
    d->ops = dev->ops;
    int rc = init_sizes(d, m, opt, net_dtype(dev, opt->precision));
    if (rc < 0)
        (void)err_set(err, rc, "no memory for a model of %d blocks", m->spec.depth);
    if (rc == 0)
        rc = init_weights(d, whole, err);
    d->stream = d->w.stream;
    if (rc == 0)
        rc = arena_alloc(&d->arena, dev, err);
    for (int i = 0; rc == 0 && i < net_slots(opt) * m->spec.depth; i++)
        share_passing(d, &d->blocks[i]);
    for (int i = 0; i < net_slots(opt) && rc == 0 && d->opt.mode != NET_FORWARD; i++)
        place_grads(d, &d->slots[i]);
    if (rc == 0)
        rc = fill_constants(d, err);
    if (rc < 0) {
        dit_free(d);
        return rc;
    }
    *ret = d;
    return 0;
}

int dit_new(struct device *dev, const struct model *m, const struct net_options *opt,
            struct dit **ret, struct err *err)
{
    return make(dev, NULL, m, opt, ret, err);
}

int dit_new_within(const struct weights *whole, const struct model *chain,
                   const struct net_options *opt, struct dit **ret, struct err *err)
{
    return make(whole->dev, whole, chain, opt, ret, err);
}

void dit_free(struct dit *d)
{
    if (!d)
        return;
    arena_free(&d->arena, d->dev);
    if (!d->borrowed)
        weights_release(&d->w);
    mem_free(d->slots);
    mem_free(d->blocks);
    mem_free(d);
}

struct weights *dit_weights(struct dit *d)
{
    return &d->w;
}

int dit_batch(const struct dit *d)
{
    return d->opt.batch;
}

int dit_crossing(const struct dit *d, enum net_way way, int block, int slot,
                 const struct dit_io *io, struct net_piece ret[DIT_PIECES_MAX])
{
    const struct dit_slot *s = &d->slots[slot];
    const size_t B = (size_t)io->B, C = (size_t)d->C, f = sizeof(float), e = dtype_bytes(d->dt);
    const size_t rows = B * (size_t)model_shape_tokens(&d->m->spec, io->shape);
    const size_t texts = B * (size_t)d->L;
    const bool up = way == NET_UP;
    ret[0] = (struct net_piece){up ? s->blocks[block].n1.x : s->dx, rows * C * f};
    if (d->L == 0) {
        ret[1] =
            up ? (struct net_piece){s->scond, B * C * e} : (struct net_piece){s->dscond, B * C * f};
        return 2;
    }
    ret[1] = (struct net_piece){up ? s->cond : s->dcond, B * C * f};
    ret[2] = (struct net_piece){up ? s->shared : s->dshared, B * 6 * C * f};
    ret[3] = up ? (struct net_piece){s->text, texts * C * e}
                : (struct net_piece){s->dtext, texts * C * f};
    return 4;
}

void dit_hidden(const struct dit *d, struct net_hidden *ret)
{
    *ret = (struct net_hidden){.x = d->slots[0].nf.x, .dt = DT_F32, .T = d->slots[0].T, .C = d->C};
}
