#include "worker/net/dit_impl.h"

/* The captions' input to the blocks, and the modulation that all blocks share. */
static void condition_captioned(struct dit *d, struct dit_slot *s, const struct dit_io *io)
{
    const int64_t rows = (int64_t)io->B * d->L, C = d->C, D = d->m->spec.caption;
    const struct weights_linear text1 = {X_TEXT1_W,         rows, D, C, .epilogue = MM_GELU,
                                         .aux = s->text_pre};
    const struct weights_linear text2 = {X_TEXT2_W, rows, C, C};
    weights_forward(&d->w, &text1, s->text_act, d->dt, 0, io->states, 0);
    weights_forward(&d->w, &text2, s->text, d->dt, 0, s->text_act, 0);
    weights_forward(&d->w, &(struct weights_linear){X_MOD_W, io->B, C, 6 * C}, s->shared, DT_F32, 0,
                    s->scond, 0);
}

/* freq -> MLP, plus the label -> cond; silu of it -> scond. */
static void condition(struct dit *d, struct dit_slot *s, const struct dit_io *io)
{
    const struct kernel_ops *k = d->ops;
    const int B = io->B;
    const int64_t C = d->C, n = B * C;

    dit_op(d, k->axpby(d->dev, s->t1000, 1000.0f, io->t, 0.0f, io->t, B, d->stream), "axpby");
    dit_op(d, k->timestep_embed(d->dev, s->freq, s->t1000, B, MODEL_FREQS, d->dt, d->stream),
           "timestep_embed");
    weights_forward(&d->w, &(struct weights_linear){T_TIME0_W, B, MODEL_FREQS, C}, s->pre0, DT_F32,
                    0, s->freq, 0);
    dit_op(d, k->silu_fwd(d->dev, s->act0, s->pre0, n, d->dt, d->stream), "silu_fwd");
    weights_forward(&d->w, &(struct weights_linear){T_TIME2_W, B, C, C}, s->cond, DT_F32, 0,
                    s->act0, 0);
    if (dit_has_labels(d))
        dit_op(d,
               k->embed_fwd(d->dev, s->cond, weights_f32(&d->w, T_LABELS), io->labels, B, d->C,
                            d->m->spec.classes + 1, true, d->stream),
               "embed_fwd");
    dit_op(d, k->silu_fwd(d->dev, s->scond, s->cond, n, d->dt, d->stream), "silu_fwd");
    if (d->L > 0)
        condition_captioned(d, s, io);
}

/* mod (B,n) = base (B,n) + table (n). */
static void add_table(struct dit *d, float *mod, const float *base, const float *table, int B,
                      int64_t n)
{
    dit_op(d,
           d->ops->copy(d->dev, mod, base, (size_t)(B * n) * sizeof *mod, COPY_DEVICE, d->stream),
           "copying modulations");
    dit_op(d, d->ops->add_row(d->dev, mod, table, B, n, d->stream), "add_row");
}

static void modulate_captioned(struct dit *d, struct dit_slot *s, const struct model_part *part,
                               int B)
{
    const int depth = d->m->spec.depth;
    const int64_t C = d->C;
    for (int b = part->from; b < part->to; b++)
        add_table(d, s->mod + dit_mod_at(d, b, 0), s->shared,
                  weights_f32(&d->w, model_caption_tensor(b, X_TABLE)), B, 6 * C);
    const float *table = weights_f32(&d->w, model_final_table(&d->m->spec));
    for (int i = 0; i < 2 && part->to == depth; i++)
        add_table(d, s->mod + dit_mod_at(d, depth, i), s->cond, table + i * C, B, C);
}

/* The modulations of blocks [from, to), and with the last also the final layer's. */
static void modulate(struct dit *d, struct dit_slot *s, const struct model_part *part, int B)
{
    const struct model_spec *spec = &d->m->spec;
    const int64_t C = d->C;
    if (d->L > 0) {
        modulate_captioned(d, s, part, B);
        return;
    }
    for (int b = part->from; b < part->to; b++)
        weights_forward(
            &d->w,
            &(struct weights_linear){model_block_tensor(&d->m->spec, b, T_MOD_W), B, C, 6 * C},
            s->mod + dit_mod_at(d, b, 0), DT_F32, d->mod_ld, s->scond, 0);
    if (part->to == spec->depth)
        weights_forward(
            &d->w, &(struct weights_linear){model_final_tensor(spec, T_FINAL_MOD_W), B, C, 2 * C},
            s->mod + dit_mod_at(d, spec->depth, 0), DT_F32, d->mod_ld, s->scond, 0);
}

/* The modulated LayerNorm of x_in + gate * y, or of x_in where y is NULL; n->h NULL: only the
 * addition.  The gate's rows are as far apart as those of m's block. */
static void norm_forward(struct dit *d, const struct dit_slot *s, const struct dit_norm *n,
                         struct dit_mod m, const float *x_in, const void *y, const float *gate,
                         int B)
{
    const struct adaln_fwd ln = {
        .x = n->x,
        .h = n->h,
        .stats = n->stats,
        .x_in = x_in,
        .y = y,
        .gate = gate,
        .shift = s->mod + dit_mod_at(d, m.block, m.which),
        .scale = s->mod + dit_mod_at(d, m.block, m.which + 1),
        .mod_ld = dit_mod_ld(d, m.block),
        .B = B,
        .T = s->T,
        .C = d->C,
        .dt = d->dt,
    };
    dit_op(d, d->ops->adaln_fwd(d->dev, &ln, d->stream), "adaln_fwd");
}

static const float *gate_of(const struct dit *d, const struct dit_slot *s, int b, int which)
{
    return s->mod + dit_mod_at(d, b, which);
}

/* The addition that ends the last block before b. */
static void end_part(struct dit *d, const struct dit_slot *s, int b, int B)
{
    const struct dit_block *prev = &s->blocks[b - 1];
    const struct dit_norm sum = {.x = dit_norm_of(d, s, b)->x};
    norm_forward(d, s, &sum, (struct dit_mod){b - 1, 0}, prev->n2.x, prev->y2,
                 gate_of(d, s, b - 1, 5), B);
}

/* Begins block b (or the final layer), with the addition that ends the block before unless that
 * has been made. */
static void begin_block(struct dit *d, const struct dit_slot *s, int b, bool add, int B)
{
    const struct dit_norm *n = dit_norm_of(d, s, b);
    if (add && dit_is_apart(d, b)) {
        end_part(d, s, b, B);
        add = false;
    }
    const struct dit_block *prev = &s->blocks[b - add];
    norm_forward(d, s, n, (struct dit_mod){b, 0}, add ? prev->n2.x : n->x, add ? prev->y2 : NULL,
                 add ? gate_of(d, s, b - 1, 5) : NULL, B);
}

/* Attention to the captions, from y1 up to h2. */
static void cross_forward(struct dit *d, const struct dit_slot *s, int b, int B)
{
    const struct dit_block *p = &s->blocks[b];
    const struct dit_cross *c = &p->cross;
    const int64_t rows = (int64_t)B * s->T, C = d->C;
    const struct weights_linear q = {model_caption_tensor(b, X_CROSS_Q_W), rows, C, C};
    const struct weights_linear kv = {model_caption_tensor(b, X_CROSS_K_W), (int64_t)B * d->L, C,
                                      2 * C};
    const struct weights_linear proj = {model_caption_tensor(b, X_CROSS_PROJ_W), rows, C, C};
    /* In f32 the input of the queries is the sum itself. */
    const struct dit_norm sum = {.x = d->dt == DT_F32 ? (float *)c->x : p->n2.x};

    norm_forward(d, s, &sum, (struct dit_mod){b, 0}, p->n1.x, p->y1, gate_of(d, s, b, 2), B);
    (void)weights_as_dt(&d->w, sum.x, c->x, rows * C);
    weights_forward(&d->w, &q, c->q, d->dt, 0, c->x, 0);
    weights_forward(&d->w, &kv, c->kv, d->dt, 0, s->text, 0);
    const struct attention_fwd att = {
        .o = c->o,
        .lse = c->lse,
        .q = c->q,
        .kv = c->kv,
        .klen = s->io.lengths,
        .B = B,
        .T = s->T,
        .H = d->m->spec.heads,
        .D = d->C / d->m->spec.heads,
        .Tk = d->L,
        .dt = d->dt,
    };
    dit_op(d, d->ops->attention_fwd(d->dev, &att, d->stream), "attention_fwd");
    weights_forward(&d->w, &proj, c->y, d->dt, 0, c->o, 0);
    norm_forward(d, s, &p->n2, (struct dit_mod){b, 3}, sum.x, c->y, d->ones, B);
}

/* Block b from h of n1 up to y2 (with_y2) or up to act. */
static void block_forward(struct dit *d, const struct dit_slot *s, int b, int B, bool with_y2)
{
    const struct model_spec *spec = &d->m->spec;
    const struct dit_block *p = &s->blocks[b];
    const int64_t rows = (int64_t)B * s->T, C = d->C, M = d->M;
    const struct weights_linear qkv = {model_block_tensor(&d->m->spec, b, T_QKV_W), rows, C, 3 * C};
    const struct weights_linear proj = {model_block_tensor(&d->m->spec, b, T_PROJ_W), rows, C, C};
    const struct weights_linear fc1 = {model_block_tensor(&d->m->spec, b, T_FC1_W),
                                       rows,
                                       C,
                                       M,
                                       .epilogue = MM_GELU,
                                       .aux = p->pre};
    const struct weights_linear fc2 = {model_block_tensor(&d->m->spec, b, T_FC2_W), rows, M, C};

    weights_forward(&d->w, &qkv, p->qkv, d->dt, 0, p->n1.h, 0);
    const struct attention_fwd att = {
        .o = p->o,
        .lse = p->lse,
        .qkv = p->qkv,
        .B = B,
        .T = s->T,
        .H = spec->heads,
        .D = d->C / spec->heads,
        .dt = d->dt,
    };
    dit_op(d, d->ops->attention_fwd(d->dev, &att, d->stream), "attention_fwd");
    weights_forward(&d->w, &proj, p->y1, d->dt, 0, p->o, 0);
    if (d->L > 0)
        cross_forward(d, s, b, B);
    else
        norm_forward(d, s, &p->n2, (struct dit_mod){b, 3}, p->n1.x, p->y1, gate_of(d, s, b, 2), B);
    weights_forward(&d->w, &fc1, p->act, d->dt, 0, p->n2.h, 0);
    if (with_y2)
        weights_forward(&d->w, &fc2, p->y2, d->dt, 0, p->act, 0);
}

void dit_block_again(struct dit *d, const struct dit_slot *s, int b, int B)
{
    begin_block(d, s, b, false, B);
    block_forward(d, s, b, B, false);
}

/* For each sample x followed by the estimate, or by zeros in its place. */
static const float *beside(struct dit *d, const struct dit_slot *s, const float *x, int B)
{
    const int64_t n = model_shape_values(&d->m->spec, s->io.shape);
    for (int b = 0; b < B; b++) {
        float *at = d->both + 2 * n * b;
        dit_copy_rows(d, at, x + n * b, n);
        if (s->io.estimate)
            dit_copy_rows(d, at + n, s->io.estimate + n * b, n);
        else
            dit_op(d, d->ops->zero(d->dev, at + n, (size_t)n * sizeof *at, d->stream), "zero");
    }
    return d->both;
}

/* The layers before the first block and after the last differ between a DiT and a router:
 *
 *   DiT      patches ──► (B,T,C) ─ blocks ─► (B,T,P) ──► image
 *   router   patches ──► (B,T-1,C), after cls_token ─ blocks ─► row 0 of each (B,C) ──► logits
 */
/* The patches are a product over dense rows; a router's go through xf, which is free before
 * the last block is done, to their places behind the token. */
static void embed(struct dit *d, struct dit_slot *s, const float *x, int B)
{
    x = d->both ? beside(d, s, x, B) : x;
    const struct kernel_ops *k = d->ops;
    const struct model_spec *spec = &d->m->spec;
    const int64_t n = model_shape_patches(spec, s->io.shape), C = d->C;
    float *x1 = s->blocks[0].n1.x, *dense = dit_is_router(d) ? s->nf.x : x1;

    dit_op(d,
           k->patchify(d->dev, s->patches, x, B, model_input_channels(spec), s->shape.height,
                       s->shape.width, spec->patch, PATCH_CPP, d->dt, d->stream),
           "patchify");
    weights_forward(&d->w, &(struct weights_linear){T_PATCH_W, B * n, d->In, C}, dense, DT_F32, 0,
                    s->patches, 0);
    for (int b = 0; b < B && dit_is_router(d); b++) {
        float *row = x1 + b * s->T * C;
        dit_copy_rows(d, row, weights_f32(&d->w, T_LABELS), C);
        dit_copy_rows(d, row + C, dense + b * n * C, n * C);
    }
    dit_op(d,
           k->add_row(d->dev, x1, d->pos + (int64_t)s->io.shape * d->T * C, B, (int64_t)s->T * C,
                      d->stream),
           "add_row");
}

static void head(struct dit *d, const struct dit_slot *s, float *pred, int B)
{
    const struct model_spec *spec = &d->m->spec;
    int64_t ld;
    const struct weights_linear l = dit_head_of(d, s, B, &ld);
    weights_forward(&d->w, &l, dit_is_router(d) ? pred : d->out, DT_F32, 0, s->nf.h, ld);
    if (!dit_is_router(d))
        dit_op(d,
               d->ops->unpatchify(d->dev, pred, d->out, B, spec->channels, s->shape.height,
                                  s->shape.width, spec->patch, PATCH_PPC, DT_F32, d->stream),
               "unpatchify");
}

int dit_check_batch(const struct dit *d, const struct dit_io *io, struct err *err)
{
    if (io->B < 1 || io->B > d->opt.batch)
        return err_set(err, -EINVAL, "a batch of %d samples in a model made for %d", io->B,
                       d->opt.batch);
    if (io->shape < 0 || io->shape > d->m->spec.n_shapes)
        return err_set(err, -EINVAL, "shape %d in a model that knows %d beside the square",
                       io->shape, d->m->spec.n_shapes);
    return 0;
}

int dit_forward(struct dit *d, const struct model_part *part, int slot, const struct dit_io *io,
                struct err *err)
{
    const struct model_part *p = part ? part : &d->part;
    const int depth = d->m->spec.depth, B = io->B;
    int rc = dit_check_batch(d, io, err);
    if (rc < 0)
        return rc;
    struct dit_slot *s = &d->slots[slot];
    dit_take_io(d, s, io);
    if (p->from == 0)
        condition(d, s, io);
    modulate(d, s, p, B);
    if (p->from == 0)
        embed(d, s, io->x, B);
    for (int b = p->from; b < p->to; b++) {
        begin_block(d, s, b, b > p->from, B);
        block_forward(d, s, b, B, true);
    }
    if (p->to < depth) {
        end_part(d, s, p->to, B);
    } else {
        begin_block(d, s, depth, true, B);
        head(d, s, io->pred, B);
    }
    return weights_check(&d->w, err);
}
