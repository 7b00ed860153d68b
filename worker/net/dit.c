#include "worker/net/dit.h"

#include "worker/net/model_index.h"

/* B samples, T tokens, C channels, M hidden width of the MLP, P values of a patch; "(dt)" is
 * bf16 or f32.  One block, with what is kept for its backward:
 *
 *   x1 ─LN,mod─► h1 ─► qkv ─► o (attention) ─► y1
 *    └────────────────────── + gate·y1 ──► x2 ─LN,mod─► h2 ─► pre ─gelu─► act ─► y2
 *                                           └────────── + gate·y2 ──► x1 of the next
 *
 * The addition that ends a block is fused with the LayerNorm that begins the next one, but where
 * a part ends: from there x1 crosses, and dx comes back (and scond, mod, dmod). */
struct dit_norm {
    float *x;     /* (B,T,C) residual stream at a LayerNorm */
    float *stats; /* (B,T,2) */
    void *h;      /* (B,T,C) (dt) */
};

struct dit_block {
    struct dit_norm n1, n2;
    void *qkv;  /* (B,T,3C) (dt) */
    void *o;    /* (B,T,C) (dt) */
    float *lse; /* (B,H,T); NULL in NET_FORWARD */
    void *y1;   /* (B,T,C) (dt) */
    void *pre;  /* (B,T,M) (dt) before the GELU; NULL in NET_FORWARD */
    void *act;  /* (B,T,M) (dt) */
    void *y2;   /* (B,T,C) (dt) */
};

/* Everything that a micro-batch leaves for its backward, and what crosses between parts. */
struct dit_slot {
    struct dit_block *blocks; /* (depth) */

    /* Embedders and conditioning. */
    void *patches; /* (B,T,P) (dt); a router's T without the token */
    float *t1000;  /* (B) */
    void *freq;    /* (B,256) (dt) */
    float *pre0;   /* (B,C) first layer of the time MLP */
    void *act0;    /* (B,C) (dt) */
    float *cond;   /* (B,C) time + label */
    void *scond;   /* (B,C) (dt) silu of it */
    float *mod;    /* (B,mod_ld) */

    struct dit_norm nf; /* final layer */

    /* Backward only. */
    float *dx;   /* (B,T,C) */
    void *dy;    /* (B,T,C) (dt) */
    float *dmod; /* (B,mod_ld) */
};

struct dit {
    struct weights w;
    const struct kernel_ops *ops; /* these four as in w */
    struct device *dev;
    struct stream *stream;
    enum dtype dt;
    const struct model *m;
    struct net_options opt;
    int T, C, M, P;
    int64_t mod_ld; /* 6*C*depth + 2*C: all modulations of a sample in one row */

    struct arena arena;
    struct dit_slot *slots;
    struct dit_block *blocks; /* (slots,depth) */
    float *pos;               /* (T,C) */
    float *out;               /* (B,T,P) the final layer's; a router has none */

    /* Backward only. */
    void *dout;    /* (B,T,P) (dt); a router: (B,classes) */
    void *dx16;    /* (B,T,C) (dt), bf16 only */
    void *dh;      /* (B,T,C) (dt) */
    void *dwide;   /* (B,T,max(M,3C)) (dt) */
    void *dmod16;  /* (B,mod_ld) (dt), bf16 only */
    float *dscond; /* (B,C) */
    float *dcond;  /* (B,C) */
    void *dcond16; /* (B,C) (dt), bf16 only */
};

static void op(struct dit *d, int rc, const char *what)
{
    weights_note(&d->w, rc, what);
}

static bool is_router(const struct dit *d)
{
    return d->m->spec.kind == MODEL_ROUTER;
}

/* Columns of the modulation matrix: shift, scale, gate of the attention (0..2) and the
 * MLP (3..5) of a block; shift, scale (0..1) of the final layer. */
static int64_t mod_at(const struct dit *d, int block, int which)
{
    return (int64_t)block * 6 * d->C + (int64_t)which * d->C;
}

/* ---- memory ---- */

/* What one block computes on its way.  In NET_FORWARD and NET_RECOMPUTE all blocks
 * share this memory. */
static void plan_scratch(struct dit *d, struct dit_block *b, uint64_t rows)
{
    const uint64_t e = dtype_bytes(d->dt), C = (uint64_t)d->C, M = (uint64_t)d->M;
    struct arena *a = &d->arena;
    const bool train = d->opt.mode != NET_FORWARD;

    arena_add(a, &b->n1.stats, rows * 2 * sizeof(float));
    arena_add(a, &b->n1.h, rows * C * e);
    arena_add(a, &b->qkv, rows * 3 * C * e);
    arena_add(a, &b->o, rows * C * e);
    if (train)
        arena_add(a, &b->lse, rows * (uint64_t)d->m->spec.heads * sizeof(float));
    arena_add(a, &b->y1, rows * C * e);
    if (train) /* forward only: the residual stream is updated in place */
        arena_add(a, &b->n2.x, rows * C * sizeof(float));
    arena_add(a, &b->n2.stats, rows * 2 * sizeof(float));
    arena_add(a, &b->n2.h, rows * C * e);
    if (train)
        arena_add(a, &b->pre, rows * M * e);
    arena_add(a, &b->act, rows * M * e);
}

static void plan_blocks(struct dit *d, const struct dit_slot *s, uint64_t rows)
{
    const uint64_t e = dtype_bytes(d->dt), C = (uint64_t)d->C;
    struct arena *a = &d->arena;
    const uint64_t start = arena_mark(a);

    /* Shared scratch first, laid over itself for each block. */
    for (int i = 0; i < d->m->spec.depth; i++) {
        if (d->opt.mode != NET_TRAIN)
            arena_reset(a, start);
        plan_scratch(d, &s->blocks[i], rows);
    }
    const uint64_t shared = arena_mark(a);
    for (int i = 0; i < d->m->spec.depth; i++) {
        if (d->opt.mode == NET_FORWARD)
            arena_reset(a, shared);
        arena_add(a, &s->blocks[i].n1.x, rows * C * sizeof(float));
        arena_add(a, &s->blocks[i].y2, rows * C * e);
    }
}

static void plan_slot(struct dit *d, struct dit_slot *s, uint64_t B, uint64_t rows)
{
    const uint64_t C = (uint64_t)d->C, e = dtype_bytes(d->dt), ld = (uint64_t)d->mod_ld;
    struct arena *a = &d->arena;

    arena_add(a, &s->patches, B * (uint64_t)model_patches(&d->m->spec) * (uint64_t)d->P * e);
    arena_add(a, &s->t1000, B * sizeof(float));
    arena_add(a, &s->freq, B * MODEL_FREQS * e);
    arena_add(a, &s->pre0, B * C * sizeof(float));
    arena_add(a, &s->act0, B * C * e);
    arena_add(a, &s->cond, B * C * sizeof(float));
    arena_add(a, &s->scond, B * C * e);
    arena_add(a, &s->mod, B * ld * sizeof(float));
    plan_blocks(d, s, rows);
    arena_add(a, &s->nf.x, rows * C * sizeof(float));
    arena_add(a, &s->nf.stats, rows * 2 * sizeof(float));
    arena_add(a, &s->nf.h, rows * C * e);
    if (d->opt.mode == NET_FORWARD)
        return;
    arena_add(a, &s->dx, rows * C * sizeof(float));
    arena_add(a, &s->dy, rows * C * e);
    arena_add(a, &s->dmod, B * ld * sizeof(float));
}

static void plan_backward(struct dit *d, uint64_t B, uint64_t rows)
{
    const uint64_t e = dtype_bytes(d->dt), C = (uint64_t)d->C, M = (uint64_t)d->M;
    const uint64_t wide = M > 3 * C ? M : 3 * C;
    struct arena *a = &d->arena;

    arena_add(a, &d->dout,
              e * (is_router(d) ? B * (uint64_t)d->m->spec.classes : rows * (uint64_t)d->P));
    arena_add(a, &d->dh, rows * C * e);
    arena_add(a, &d->dwide, rows * wide * e);
    arena_add(a, &d->dscond, B * C * sizeof(float));
    arena_add(a, &d->dcond, B * C * sizeof(float));
    if (d->dt == DT_BF16) {
        arena_add(a, &d->dx16, rows * C * e);
        arena_add(a, &d->dmod16, B * (uint64_t)d->mod_ld * e);
        arena_add(a, &d->dcond16, B * C * e);
    }
}

static void plan(struct dit *d)
{
    const uint64_t B = (uint64_t)d->opt.batch, rows = B * (uint64_t)d->T;
    struct arena *a = &d->arena;

    arena_add(a, &d->pos, (uint64_t)d->T * (uint64_t)d->C * sizeof(float));
    for (int i = 0; i < net_slots(&d->opt); i++)
        plan_slot(d, &d->slots[i], B, rows);
    if (!is_router(d))
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
    d->mod_ld = (int64_t)d->C * (6 * m->spec.depth + 2);
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
    size_t n = (size_t)d->T * (size_t)d->C;
    float *pos = mem_try_array(n, sizeof *pos);
    if (!pos)
        return err_set(err, -ENOMEM, "no memory for the positions");
    model_positions(&d->m->spec, pos);
    op(d, d->ops->copy(d->dev, d->pos, pos, n * sizeof *pos, COPY_TO_DEVICE, d->stream),
       "copying the positions");
    int rc = weights_sync(&d->w, err);
    mem_free(pos);
    return rc;
}

int dit_new(struct device *dev, const struct model *m, const struct net_options *opt,
            struct dit **ret, struct err *err)
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
        rc = weights_init(&d->w, dev, m, d->dt, opt->mode != NET_FORWARD, err);
    d->stream = d->w.stream;
    if (rc == 0)
        rc = arena_alloc(&d->arena, dev, err);
    if (rc == 0 && d->opt.mode == NET_FORWARD) {
        for (int i = 0; i < net_slots(opt) * m->spec.depth; i++)
            d->blocks[i].n2.x = d->blocks[i].n1.x;
    }
    if (rc == 0)
        rc = fill_constants(d, err);
    if (rc < 0) {
        dit_free(d);
        return rc;
    }
    *ret = d;
    return 0;
}

void dit_free(struct dit *d)
{
    if (!d)
        return;
    arena_free(&d->arena, d->dev);
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

void dit_hidden(const struct dit *d, struct net_hidden *ret)
{
    *ret = (struct net_hidden){.x = d->slots[0].nf.x, .dt = DT_F32, .T = d->T, .C = d->C};
}

/* ---- forward ---- */

/* freq -> MLP, plus the label -> cond; silu -> what modulates. */
static void condition(struct dit *d, struct dit_slot *s, const struct dit_io *io)
{
    const struct kernel_ops *k = d->ops;
    const int B = io->B;
    const int64_t C = d->C, n = B * C;

    op(d, k->axpby(d->dev, s->t1000, 1000.0f, io->t, 0.0f, io->t, B, d->stream), "axpby");
    op(d, k->timestep_embed(d->dev, s->freq, s->t1000, B, MODEL_FREQS, d->dt, d->stream),
       "timestep_embed");
    weights_forward(&d->w, &(struct weights_linear){T_TIME0_W, B, MODEL_FREQS, C}, s->pre0, DT_F32,
                    0, s->freq, 0);
    op(d, k->silu_fwd(d->dev, s->act0, s->pre0, n, d->dt, d->stream), "silu_fwd");
    weights_forward(&d->w, &(struct weights_linear){T_TIME2_W, B, C, C}, s->cond, DT_F32, 0,
                    s->act0, 0);
    if (!is_router(d))
        op(d,
           k->embed_fwd(d->dev, s->cond, weights_f32(&d->w, T_LABELS), io->labels, B, d->C,
                        d->m->spec.classes + 1, true, d->stream),
           "embed_fwd");
    op(d, k->silu_fwd(d->dev, s->scond, s->cond, n, d->dt, d->stream), "silu_fwd");
}

/* The modulations of blocks [from, to), and with the last also the final layer's. */
static void modulate(struct dit *d, struct dit_slot *s, const struct net_part *part, int B)
{
    const struct model_spec *spec = &d->m->spec;
    const int64_t C = d->C;
    for (int b = part->from; b < part->to; b++)
        weights_forward(&d->w,
                        &(struct weights_linear){model_block_tensor(b, T_MOD_W), B, C, 6 * C},
                        s->mod + mod_at(d, b, 0), DT_F32, d->mod_ld, s->scond, 0);
    if (part->to == spec->depth)
        weights_forward(
            &d->w, &(struct weights_linear){model_final_tensor(spec, T_FINAL_MOD_W), B, C, 2 * C},
            s->mod + mod_at(d, spec->depth, 0), DT_F32, d->mod_ld, s->scond, 0);
}

/* The modulated LayerNorm of x_in + gate * y, or of x_in where y is NULL; n->h NULL: only the
 * addition.  shift and gate are columns; the scale follows the shift. */
static void norm_forward(struct dit *d, const struct dit_slot *s, const struct dit_norm *n,
                         int64_t shift, const float *x_in, const void *y, int64_t gate, int B)
{
    const struct adaln_fwd ln = {
        .x = n->x,
        .h = n->h,
        .stats = n->stats,
        .x_in = x_in,
        .y = y,
        .gate = s->mod + gate,
        .shift = s->mod + shift,
        .scale = s->mod + shift + d->C,
        .mod_ld = d->mod_ld,
        .B = B,
        .T = d->T,
        .C = d->C,
        .dt = d->dt,
    };
    op(d, d->ops->adaln_fwd(d->dev, &ln, d->stream), "adaln_fwd");
}

/* That of block b (or the final layer, b == depth). */
static const struct dit_norm *norm_of(const struct dit *d, const struct dit_slot *s, int b)
{
    return b == d->m->spec.depth ? &s->nf : &s->blocks[b].n1;
}

/* Begins block b (or the final layer), with the addition that ends the block before unless that
 * has been made. */
static void begin_block(struct dit *d, const struct dit_slot *s, int b, bool add, int B)
{
    const struct dit_norm *n = norm_of(d, s, b);
    const struct dit_block *prev = &s->blocks[b - add];
    norm_forward(d, s, n, mod_at(d, b, 0), add ? prev->n2.x : n->x, add ? prev->y2 : NULL,
                 mod_at(d, b - add, 5), B);
}

/* Block b from h of n1 up to y2 (with_y2) or up to act. */
static void block_forward(struct dit *d, const struct dit_slot *s, int b, int B, bool with_y2)
{
    const struct model_spec *spec = &d->m->spec;
    const struct dit_block *p = &s->blocks[b];
    const int64_t rows = (int64_t)B * d->T, C = d->C, M = d->M;
    const struct weights_linear qkv = {model_block_tensor(b, T_QKV_W), rows, C, 3 * C};
    const struct weights_linear proj = {model_block_tensor(b, T_PROJ_W), rows, C, C};
    const struct weights_linear fc1 = {
        model_block_tensor(b, T_FC1_W), rows, C, M, .epilogue = MM_GELU, .aux = p->pre};
    const struct weights_linear fc2 = {model_block_tensor(b, T_FC2_W), rows, M, C};

    weights_forward(&d->w, &qkv, p->qkv, d->dt, 0, p->n1.h, 0);
    const struct attention_fwd att = {
        .o = p->o,
        .lse = p->lse,
        .qkv = p->qkv,
        .B = B,
        .T = d->T,
        .H = spec->heads,
        .D = d->C / spec->heads,
        .dt = d->dt,
    };
    op(d, d->ops->attention_fwd(d->dev, &att, d->stream), "attention_fwd");
    weights_forward(&d->w, &proj, p->y1, d->dt, 0, p->o, 0);
    norm_forward(d, s, &p->n2, mod_at(d, b, 3), p->n1.x, p->y1, mod_at(d, b, 2), B);
    weights_forward(&d->w, &fc1, p->act, d->dt, 0, p->n2.h, 0);
    if (with_y2)
        weights_forward(&d->w, &fc2, p->y2, d->dt, 0, p->act, 0);
}

/* The addition that ends the last block before b. */
static void end_part(struct dit *d, const struct dit_slot *s, int b, int B)
{
    const struct dit_block *prev = &s->blocks[b - 1];
    const struct dit_norm sum = {.x = s->blocks[b].n1.x};
    norm_forward(d, s, &sum, 0, prev->n2.x, prev->y2, mod_at(d, b - 1, 5), B);
}

/* What stands before the first block and after the last differs between a DiT and a router:
 *
 *   DiT      patches ──► (B,T,C) ─ blocks ─► (B,T,P) ──► image
 *   router   patches ──► (B,T-1,C), behind cls_token ─ blocks ─► row 0 of each (B,C) ──► logits
 */
static void copy_rows(struct dit *d, float *dst, const float *src, int64_t n)
{
    op(d, d->ops->copy(d->dev, dst, src, (size_t)n * sizeof *dst, COPY_DEVICE, d->stream),
       "copying tokens");
}

/* The patches are a product over dense rows; a router's go through xf, which is free before
 * the last block is done, to their places behind the token. */
static void embed(struct dit *d, struct dit_slot *s, const float *x, int B)
{
    const struct kernel_ops *k = d->ops;
    const struct model_spec *spec = &d->m->spec;
    const int64_t n = model_patches(spec), C = d->C;
    float *x1 = s->blocks[0].n1.x, *dense = is_router(d) ? s->nf.x : x1;

    op(d,
       k->patchify(d->dev, s->patches, x, B, spec->channels, spec->image, spec->patch, PATCH_CPP,
                   d->dt, d->stream),
       "patchify");
    weights_forward(&d->w, &(struct weights_linear){T_PATCH_W, B * n, d->P, C}, dense, DT_F32, 0,
                    s->patches, 0);
    for (int b = 0; b < B && is_router(d); b++) {
        float *row = x1 + b * d->T * C;
        copy_rows(d, row, weights_f32(&d->w, T_LABELS), C);
        copy_rows(d, row + C, dense + b * n * C, n * C);
    }
    op(d, k->add_row(d->dev, x1, d->pos, B, (int64_t)d->T * C, d->stream), "add_row");
}

/* The layer that makes the result: a DiT's on all tokens, a router's on the first of each
 * sample, a row in T. */
static struct weights_linear head_of(const struct dit *d, int B, int64_t *ret_ld)
{
    const struct model_spec *spec = &d->m->spec;
    const int w = model_final_tensor(spec, T_FINAL_W);
    *ret_ld = is_router(d) ? (int64_t)d->T * d->C : 0;
    if (is_router(d))
        return (struct weights_linear){w, B, d->C, spec->classes};
    return (struct weights_linear){w, (int64_t)B * d->T, d->C, d->P};
}

static void head(struct dit *d, const struct dit_slot *s, float *pred, int B)
{
    const struct model_spec *spec = &d->m->spec;
    int64_t ld;
    const struct weights_linear l = head_of(d, B, &ld);
    weights_forward(&d->w, &l, is_router(d) ? pred : d->out, DT_F32, 0, s->nf.h, ld);
    if (!is_router(d))
        op(d,
           d->ops->unpatchify(d->dev, pred, d->out, B, spec->channels, spec->image, spec->patch,
                              PATCH_PPC, DT_F32, d->stream),
           "unpatchify");
}

static int check_batch(const struct dit *d, int B, struct err *err)
{
    return B < 1 || B > d->opt.batch
               ? err_set(err, -EINVAL, "a batch of %d samples in a model made for %d", B,
                         d->opt.batch)
               : 0;
}

int dit_forward(struct dit *d, const struct net_part *part, int slot, const struct dit_io *io,
                struct err *err)
{
    const struct net_part all = {0, d->m->spec.depth}, *p = part ? part : &all;
    const int B = io->B;
    int rc = check_batch(d, B, err);
    if (rc < 0)
        return rc;
    struct dit_slot *s = &d->slots[slot];
    if (p->from == 0)
        condition(d, s, io);
    modulate(d, s, p, B);
    if (p->from == 0)
        embed(d, s, io->x, B);
    for (int b = p->from; b < p->to; b++) {
        begin_block(d, s, b, b > p->from, B);
        block_forward(d, s, b, B, true);
    }
    if (p->to < all.to) {
        end_part(d, s, p->to, B);
    } else {
        begin_block(d, s, all.to, true, B);
        head(d, s, io->pred, B);
    }
    return weights_check(&d->w, err);
}

/* ---- backward ---- */

/* Through the same: from dh = gradient of n->h to dx, and where y is given to dy. */
static void norm_backward(struct dit *d, const struct dit_slot *s, const struct dit_norm *n,
                          int64_t shift, const void *y, int64_t gate, bool set, int B)
{
    const struct adaln_bwd ln = {
        .dx = s->dx,
        .dshift = s->dmod + shift,
        .dscale = s->dmod + shift + d->C,
        .dy = s->dy,
        .dgate = s->dmod + gate,
        .dh = n->h ? d->dh : NULL,
        .x = n->x,
        .stats = n->stats,
        .scale = s->mod + shift + d->C,
        .y = y,
        .gate = s->mod + gate,
        .mod_ld = d->mod_ld,
        .dx_set = set,
        .B = B,
        .T = d->T,
        .C = d->C,
        .dt = d->dt,
    };
    op(d, d->ops->adaln_bwd(d->dev, &ln, d->stream), "adaln_bwd");
}

static void begin_block_backward(struct dit *d, const struct dit_slot *s, int b, bool add, int B)
{
    norm_backward(d, s, norm_of(d, s, b), mod_at(d, b, 0), add ? s->blocks[b - 1].y2 : NULL,
                  mod_at(d, b - add, 5), b == d->m->spec.depth, B);
}

static void end_part_backward(struct dit *d, const struct dit_slot *s, int b, int B)
{
    const struct dit_norm none = {0};
    norm_backward(d, s, &none, 0, s->blocks[b - 1].y2, mod_at(d, b - 1, 5), false, B);
}

/* From dy = gradient of y2 (in s->dy) to dh = gradient of h of n2. */
static void mlp_backward(struct dit *d, const struct dit_slot *s, int b, int B, bool first)
{
    const struct dit_block *p = &s->blocks[b];
    const int64_t rows = (int64_t)B * d->T, C = d->C, M = d->M;
    const struct weights_linear fc1 = {model_block_tensor(b, T_FC1_W), rows, C, M};
    const struct weights_linear fc2 = {model_block_tensor(b, T_FC2_W), rows,         M, C,
                                       .epilogue = MM_DGELU,           .aux = p->pre};

    weights_grad(&d->w, &fc2, s->dy, 0, p->act, 0, first);
    weights_input_grad(&d->w, &fc2, d->dwide, d->dt, 0, s->dy, 0, false);
    weights_grad(&d->w, &fc1, d->dwide, 0, p->n2.h, 0, first);
    weights_input_grad(&d->w, &fc1, d->dh, d->dt, 0, d->dwide, 0, false);
}

/* From dy = gradient of y1 (in s->dy) to dh = gradient of h of n1. */
static void attention_backward(struct dit *d, const struct dit_slot *s, int b, int B, bool first)
{
    const struct model_spec *spec = &d->m->spec;
    const struct dit_block *p = &s->blocks[b];
    const int64_t rows = (int64_t)B * d->T, C = d->C;
    struct weights_linear qkv = {model_block_tensor(b, T_QKV_W), rows, C, 3 * C};
    struct weights_linear proj = {model_block_tensor(b, T_PROJ_W), rows, C, C};

    weights_grad(&d->w, &proj, s->dy, 0, p->o, 0, first);
    /* dh holds the gradient of o */
    weights_input_grad(&d->w, &proj, d->dh, d->dt, 0, s->dy, 0, false);
    struct attention_bwd att = {
        .dqkv = d->dwide,
        .d_o = d->dh,
        .o = p->o,
        .lse = p->lse,
        .qkv = p->qkv,
        .B = B,
        .T = d->T,
        .H = spec->heads,
        .D = d->C / spec->heads,
        .dt = d->dt,
    };
    op(d, d->ops->attention_bwd(d->dev, &att, d->stream), "attention_bwd");
    weights_grad(&d->w, &qkv, d->dwide, 0, p->n1.h, 0, first);
    weights_input_grad(&d->w, &qkv, d->dh, d->dt, 0, d->dwide, 0, false);
}

static void block_backward(struct dit *d, const struct dit_slot *s, int b, int B, bool first)
{
    const struct dit_block *p = &s->blocks[b];
    /* NET_RECOMPUTE has kept x of n1, and y2. */
    if (d->opt.mode == NET_RECOMPUTE) {
        begin_block(d, s, b, false, B);
        block_forward(d, s, b, B, false);
    }
    mlp_backward(d, s, b, B, first);
    norm_backward(d, s, &p->n2, mod_at(d, b, 3), p->y1, mod_at(d, b, 2), false, B);
    attention_backward(d, s, b, B, first);
}

/* All modulations, then the label table and the time MLP.  The sum over blocks runs from the
 * first to the last, so it is made when all of them are done: by the first part. */
static void condition_backward(struct dit *d, struct dit_slot *s, const int32_t *labels, int B,
                               bool first)
{
    const struct kernel_ops *k = d->ops;
    const struct model_spec *spec = &d->m->spec;
    const int64_t C = d->C, n = B * C, ld = d->mod_ld;
    const void *dmod = weights_as_dt(&d->w, s->dmod, d->dmod16, B * ld);
    const size_t e = dtype_bytes(d->dt);

    for (int b = 0; b <= spec->depth; b++) {
        struct weights_linear l = {model_block_tensor(b, T_MOD_W), B, C, 6 * C};
        if (b == spec->depth)
            l = (struct weights_linear){model_final_tensor(spec, T_FINAL_MOD_W), B, C, 2 * C};
        const void *dy = (const char *)dmod + (size_t)mod_at(d, b, 0) * e;
        weights_grad(&d->w, &l, dy, ld, s->scond, 0, first);
        weights_input_grad(&d->w, &l, d->dscond, DT_F32, 0, dy, ld, b > 0);
        weights_ready_matrices(&d->w, l.w, l.w);
    }
    op(d, k->silu_bwd(d->dev, d->dcond, d->dscond, s->cond, n, DT_F32, false, d->stream),
       "silu_bwd");
    if (!is_router(d))
        op(d,
           k->embed_bwd(d->dev, weights_g(&d->w, T_LABELS), d->dcond, labels, B, d->C,
                        spec->classes + 1, d->stream),
           "embed_bwd");

    struct weights_linear l2 = {T_TIME2_W, B, C, C};
    const void *dy = weights_as_dt(&d->w, d->dcond, d->dcond16, n);
    weights_grad(&d->w, &l2, dy, 0, s->act0, 0, first);
    weights_input_grad(&d->w, &l2, d->dscond, DT_F32, 0, dy, 0, false);
    op(d, k->silu_bwd(d->dev, d->dcond, d->dscond, s->pre0, n, DT_F32, false, d->stream),
       "silu_bwd");
    struct weights_linear l0 = {T_TIME0_W, B, MODEL_FREQS, C};
    weights_grad(&d->w, &l0, weights_as_dt(&d->w, d->dcond, d->dcond16, n), 0, s->freq, 0, first);
}

static void embed_backward(struct dit *d, struct dit_slot *s, int B, bool first)
{
    const int64_t n = model_patches(&d->m->spec), C = d->C;
    const struct weights_linear patch = {T_PATCH_W, B * n, d->P, C};
    float *dense = is_router(d) ? s->nf.x : s->dx;

    for (int b = 0; b < B && is_router(d); b++) {
        const float *row = s->dx + b * d->T * C;
        copy_rows(d, d->dscond + b * C, row, C);
        copy_rows(d, dense + b * n * C, row + C, n * C);
    }
    if (is_router(d))
        op(d, d->ops->sum_rows(d->dev, weights_g(&d->w, T_LABELS), d->dscond, B, C, d->stream),
           "sum_rows");
    weights_grad(&d->w, &patch, weights_as_dt(&d->w, dense, d->dx16, B * n * C), 0, s->patches, 0,
                 first);
}

static void head_backward(struct dit *d, const struct dit_slot *s, const float *dpred, int B,
                          bool first)
{
    const struct kernel_ops *k = d->ops;
    const struct model_spec *spec = &d->m->spec;
    const int64_t values = (int64_t)B * d->T * d->C;
    const void *dout = d->dout;
    int64_t ld;
    const struct weights_linear l = head_of(d, B, &ld);

    if (is_router(d)) {
        dout = weights_as_dt(&d->w, dpred, d->dout, (int64_t)B * spec->classes);
        op(d, k->zero(d->dev, d->dh, (size_t)values * dtype_bytes(d->dt), d->stream), "zero");
    } else {
        op(d,
           k->patchify(d->dev, d->dout, dpred, B, spec->channels, spec->image, spec->patch,
                       PATCH_PPC, d->dt, d->stream),
           "patchify");
    }
    weights_grad(&d->w, &l, dout, 0, s->nf.h, ld, first);
    weights_input_grad(&d->w, &l, d->dh, d->dt, ld, dout, 0, false);
}

int dit_backward(struct dit *d, const struct net_part *part, int slot, const struct dit_io *io,
                 bool first, struct err *err)
{
    const struct model_spec *spec = &d->m->spec;
    const struct net_part all = {0, spec->depth}, *p = part ? part : &all;
    const int B = io->B;
    int rc = d->opt.mode == NET_FORWARD
                 ? err_set(err, -EINVAL, "a backward in a model made for looking only")
                 : check_batch(d, B, err);
    if (rc < 0)
        return rc;
    struct dit_slot *s = &d->slots[slot];
    if (p->to == all.to) {
        head_backward(d, s, io->dpred, B, first);
        weights_ready_matrices(&d->w, model_final_tensor(spec, T_FINAL_W),
                               model_final_tensor(spec, T_FINAL_B));
        begin_block_backward(d, s, all.to, true, B);
    } else {
        end_part_backward(d, s, p->to, B);
    }
    for (int b = p->to - 1; b >= p->from; b--) {
        block_backward(d, s, b, B, first);
        weights_ready_matrices(&d->w, model_block_tensor(b, T_QKV_W),
                               model_block_tensor(b, T_FC2_B));
        begin_block_backward(d, s, b, b > p->from, B);
    }
    if (p->from == 0) {
        embed_backward(d, s, B, first);
        condition_backward(d, s, io->labels, B, first);
    }
    return weights_check(&d->w, err);
}

/* ---- rows ---- */

static void plan_rows(struct dit_rows *r, const struct model_spec *spec, int rows)
{
    const uint64_t batch = (uint64_t)rows;
    r->in = (int64_t)model_image_values(spec);
    r->out = spec->kind == MODEL_ROUTER ? spec->classes : r->in;
    arena_add(&r->arena, &r->d_t, batch * sizeof *r->d_t);
    arena_add(&r->arena, &r->d_labels, batch * sizeof *r->d_labels);
    arena_add(&r->arena, &r->x, DIT_ROWS_MIN * (uint64_t)r->in * sizeof *r->x);
    arena_add(&r->arena, &r->v, DIT_ROWS_MIN * (uint64_t)r->out * sizeof *r->v);
}

uint64_t dit_rows_bytes(const struct model *m, int batch)
{
    struct dit_rows r = {0};
    plan_rows(&r, &m->spec, batch);
    return arena_measure(&r.arena);
}

int dit_rows_open(struct dit_rows *r, struct dit *d, struct err *err)
{
    *r = (struct dit_rows){.dit = d};
    plan_rows(r, &d->m->spec, d->opt.batch);
    return arena_alloc(&r->arena, d->dev, err);
}

void dit_rows_close(struct dit_rows *r)
{
    if (r->dit)
        arena_free(&r->arena, r->dit->dev);
    *r = (struct dit_rows){0};
}

static int failed(const struct dit_rows *r, int rc, struct err *err)
{
    const struct device *dev = r->dit->dev;
    return err_set(err, rc, "%d rows cannot be run on %s: %s", r->dit->opt.batch, dev->name,
                   err_text(rc));
}

static int run_batch(struct dit_rows *r, float *v, const float *x, const float *t,
                     const int32_t *labels, int B, struct err *err)
{
    struct device *dev = r->dit->dev;
    struct stream *s = r->dit->stream;
    int rc = dev->ops->copy(dev, r->d_t, t, (size_t)B * sizeof *t, COPY_TO_DEVICE, s);
    if (rc == 0 && labels)
        rc =
            dev->ops->copy(dev, r->d_labels, labels, (size_t)B * sizeof *labels, COPY_TO_DEVICE, s);
    if (rc < 0)
        return failed(r, rc, err);
    const struct dit_io io = {
        .B = B, .x = x, .t = r->d_t, .labels = labels ? r->d_labels : NULL, .pred = v};
    rc = dit_forward(r->dit, NULL, 0, &io, err);
    return rc < 0 ? rc : weights_sync(&r->dit->w, err);
}

/* Fewer than DIT_ROWS_MIN rows: the first one fills up. */
static int run_few(struct dit_rows *r, float *v, const float *x, const float *t,
                   const int32_t *labels, int B, struct err *err)
{
    struct device *dev = r->dit->dev;
    struct stream *s = r->dit->stream;
    int rc = 0;
    for (int i = 0; i < DIT_ROWS_MIN && rc == 0; i++) {
        const int from = i < B ? i : 0;
        r->t[i] = t[from];
        r->labels[i] = labels ? labels[from] : 0;
        rc = dev->ops->copy(dev, r->x + i * r->in, x + from * r->in, (size_t)r->in * sizeof *x,
                            COPY_DEVICE, s);
    }
    if (rc < 0)
        return failed(r, rc, err);
    rc = run_batch(r, r->v, r->x, r->t, labels ? r->labels : NULL, DIT_ROWS_MIN, err);
    if (rc < 0)
        return rc;
    rc = dev->ops->copy(dev, v, r->v, (size_t)(B * r->out) * sizeof *v, COPY_DEVICE, s);
    return rc < 0 ? failed(r, rc, err) : weights_sync(&r->dit->w, err);
}

int dit_rows_run(struct dit_rows *r, float *v, const float *x, const float *t,
                 const int32_t *labels, int rows, struct err *err)
{
    const int batch = r->dit->opt.batch;
    int rc = 0;
    for (int at = 0; at < rows && rc == 0; at += batch) {
        const int B = rows - at < batch ? rows - at : batch;
        const int32_t *y = labels ? labels + at : NULL;
        if (B < DIT_ROWS_MIN && batch >= DIT_ROWS_MIN)
            rc = run_few(r, v + at * r->out, x + at * r->in, t + at, y, B, err);
        else
            rc = run_batch(r, v + at * r->out, x + at * r->in, t + at, y, B, err);
    }
    return rc;
}
