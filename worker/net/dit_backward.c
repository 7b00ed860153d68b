#include "worker/net/dit_impl.h"

/* The sum at the end of a residual branch. */
struct dit_branch {
    const void *y; /* NULL: there is none */
    const float *gate;
    float *dgate;
    void *dy;  /* its gradient goes here */
    bool open; /* the norm's input was not kept: the sum is made again */
};

/* The branch of a block's attention (2) or MLP (5). */
static struct dit_branch branch(const struct dit *d, const struct dit_slot *s, int b, int which)
{
    const struct dit_block *p = &s->blocks[b];
    const int64_t at = dit_mod_at(d, b, which);
    return (struct dit_branch){.y = which == 2 ? p->y1 : p->y2,
                               .gate = s->mod + at,
                               .dgate = s->dmod + at,
                               .dy = which == 2 ? p->d.y1 : p->d.y2};
}

/* Backward of a norm and its sum: from dh = gradient of n->h to dx, and if y is given to dy.  In a
 * block dh becomes h. */
static void norm_backward(struct dit *d, const struct dit_slot *s, const struct dit_norm *n,
                          struct dit_mod m, struct dit_branch br, bool set, int B)
{
    const struct adaln_bwd ln = {
        .dx = s->dx,
        .dshift = s->dmod + dit_mod_at(d, m.block, m.which),
        .dscale = s->dmod + dit_mod_at(d, m.block, m.which + 1),
        .dy = br.dy,
        .dgate = br.dgate,
        .h = n->h == d->dh ? d->dh : NULL,
        .dh = n->h ? d->dh : NULL,
        .x = n->x,
        .stats = n->stats,
        .scale = s->mod + dit_mod_at(d, m.block, m.which + 1),
        .shift = s->mod + dit_mod_at(d, m.block, m.which),
        .y = br.y,
        .gate = br.gate,
        .mod_ld = dit_mod_ld(d, m.block),
        .dx_set = set,
        .x_before = br.open,
        .B = B,
        .T = s->T,
        .C = d->C,
        .dt = d->dt,
    };
    dit_op(d, d->ops->adaln_bwd(d->dev, &ln, d->stream), "adaln_bwd");
}

/* Backward of only an addition. */
static void sum_backward(struct dit *d, const struct dit_slot *s, int b, int which, int B)
{
    norm_backward(d, s, &(struct dit_norm){0}, (struct dit_mod){b, 0}, branch(d, s, b, which),
                  false, B);
}

static void end_part_backward(struct dit *d, const struct dit_slot *s, int b, int B)
{
    sum_backward(d, s, b - 1, 5, B);
}

/* From dh to dx, and with add to dy = gradient of y2 of the block before. */
static void begin_block_backward(struct dit *d, const struct dit_slot *s, int b, bool add, int B)
{
    const bool apart = dit_is_apart(d, b), fused = add && !apart;
    norm_backward(d, s, dit_norm_of(d, s, b), (struct dit_mod){b, 0},
                  fused ? branch(d, s, b - 1, 5) : (struct dit_branch){0}, b == d->m->spec.depth,
                  B);
    if (add && apart)
        end_part_backward(d, s, b, B);
}

static struct weights_linear block_linear(const struct dit *d, const struct dit_slot *s, int B,
                                          int b, int tensor, int64_t in, int64_t out)
{
    return (struct weights_linear){
        .w = model_block_tensor(&d->m->spec, b, tensor),
        .rows = (int64_t)B * s->T,
        .in = in,
        .out = out,
    };
}

/* From the gradient of y2 to dh = gradient of h of n2. */
static void mlp_backward(struct dit *d, const struct dit_slot *s, int b, int B, bool first)
{
    const struct dit_block *p = &s->blocks[b];
    const struct weights_linear fc1 = block_linear(d, s, B, b, T_FC1_W, d->C, d->M);
    struct weights_linear fc2 = block_linear(d, s, B, b, T_FC2_W, d->M, d->C);
    fc2.epilogue = MM_DGELU;
    fc2.aux = p->pre;

    if (d->opt.mode == NET_LEAN)
        dit_op(d, d->ops->gelu_fwd(d->dev, p->act, p->pre, fc2.rows * d->M, d->dt, d->stream),
               "gelu_fwd");
    weights_grad_later(&d->w, &fc2, p->d.y2, 0, p->act, 0, first);
    weights_input_grad(&d->w, &fc2, p->d.pre, d->dt, 0, p->d.y2, 0, false);
    weights_input_grad(&d->w, &fc1, d->dh, d->dt, 0, p->d.pre, 0, false);
}

/* Then through its norm, to dy = gradient of the branch before. */
static void mlp_norm_backward(struct dit *d, const struct dit_slot *s, int b, int B, bool first)
{
    const struct dit_block *p = &s->blocks[b];
    const struct weights_linear fc1 = block_linear(d, s, B, b, T_FC1_W, d->C, d->M);
    struct dit_norm n2 = p->n2;
    struct dit_branch br = {.y = p->cross.y, .gate = d->ones, .dgate = d->dones, .dy = p->d.cy};
    if (d->L == 0) {
        n2.x = p->n1.x;
        br = branch(d, s, b, 2);
        br.open = true;
    }
    norm_backward(d, s, &n2, (struct dit_mod){b, 3}, br, false, B);
    weights_grad_later(&d->w, &fc1, p->d.pre, 0, n2.h, 0, first);
}

/* From the gradient of y1 to dh = gradient of h of n1. */
static void attention_backward(struct dit *d, const struct dit_slot *s, int b, int B, bool first)
{
    const struct model_spec *spec = &d->m->spec;
    const struct dit_block *p = &s->blocks[b];
    const int64_t C = d->C;
    const struct weights_linear qkv = block_linear(d, s, B, b, T_QKV_W, C, 3 * C);
    const struct weights_linear proj = block_linear(d, s, B, b, T_PROJ_W, C, C);

    weights_grad_later(&d->w, &proj, p->d.y1, 0, p->o, 0, first);
    /* dh holds the gradient of o */
    weights_input_grad(&d->w, &proj, d->dh, d->dt, 0, p->d.y1, 0, false);
    struct attention_bwd att = {
        .dqkv = p->d.qkv,
        .d_o = d->dh,
        .o = p->o,
        .lse = p->lse,
        .qkv = p->qkv,
        .B = B,
        .T = s->T,
        .H = spec->heads,
        .D = d->C / spec->heads,
        .dt = d->dt,
    };
    dit_op(d, d->ops->attention_bwd(d->dev, &att, d->stream), "attention_bwd");
    weights_input_grad(&d->w, &qkv, d->dh, d->dt, 0, p->d.qkv, 0, false);
}

/* From the gradient of the branch's end into dx, dtext; then to that of y1. */
static void cross_backward(struct dit *d, const struct dit_slot *s, int b, int B, bool first)
{
    const struct dit_block *p = &s->blocks[b];
    const struct dit_cross *c = &p->cross;
    const int64_t rows = (int64_t)B * s->T, C = d->C;
    const struct weights_linear q = {model_caption_tensor(b, X_CROSS_Q_W), rows, C, C};
    const struct weights_linear kv = {model_caption_tensor(b, X_CROSS_K_W), (int64_t)B * d->L, C,
                                      2 * C};
    const struct weights_linear proj = {model_caption_tensor(b, X_CROSS_PROJ_W), rows, C, C};

    weights_grad_later(&d->w, &proj, p->d.cy, 0, c->o, 0, first);
    weights_input_grad(&d->w, &proj, d->dh, d->dt, 0, p->d.cy, 0, false);
    const struct attention_bwd att = {
        .dq = p->d.q,
        .dkv = p->d.kv,
        .d_o = d->dh,
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
    dit_op(d, d->ops->attention_bwd(d->dev, &att, d->stream), "attention_bwd");
    weights_grad_later(&d->w, &q, p->d.q, 0, c->x, 0, first);
    weights_input_grad(&d->w, &q, s->dx, DT_F32, 0, p->d.q, 0, true);
    weights_grad_later(&d->w, &kv, p->d.kv, 0, s->text, 0, first);
    weights_input_grad(&d->w, &kv, s->dtext, DT_F32, 0, p->d.kv, 0, b < d->m->spec.depth - 1);
    sum_backward(d, s, b, 2, B);
}

static void block_backward(struct dit *d, const struct dit_slot *s, int b, int B, bool first)
{
    /* NET_RECOMPUTE has kept x of n1, and y2. */
    if (d->opt.mode == NET_RECOMPUTE)
        dit_block_again(d, s, b, B);
    mlp_backward(d, s, b, B, first);
    mlp_norm_backward(d, s, b, B, first);
    if (d->L > 0)
        cross_backward(d, s, b, B, first);
    attention_backward(d, s, b, B, first);
}

/* Once the gradients of block b's modulations are complete: those of its table and of the shared
 * modulation, from the last block to the first. */
static void table_backward(struct dit *d, const struct dit_slot *s, int b, int B)
{
    const struct kernel_ops *k = d->ops;
    const int64_t n = 6 * (int64_t)d->C;
    const float *dmod = s->dmod + dit_mod_at(d, b, 0);
    dit_op(d,
           k->sum_rows(d->dev, weights_g(&d->w, model_caption_tensor(b, X_TABLE)), dmod, B, n,
                       d->stream),
           "sum_rows");
    if (b == d->m->spec.depth - 1)
        dit_op(d,
               k->copy(d->dev, s->dshared, dmod, (size_t)(B * n) * sizeof *dmod, COPY_DEVICE,
                       d->stream),
               "copying modulations");
    else
        dit_op(d, k->axpy(d->dev, s->dshared, 1.0f, dmod, B * n, d->stream), "axpy");
}

/* The gradients of the final layer's table, and of the conditioning to which it was added. */
static void final_table_backward(struct dit *d, const struct dit_slot *s, int B)
{
    const struct kernel_ops *k = d->ops;
    const int depth = d->m->spec.depth;
    const int64_t C = d->C;
    float *table = weights_g(&d->w, model_final_table(&d->m->spec));
    for (int i = 0; i < 2; i++) {
        const float *dfinal = s->dmod + dit_mod_at(d, depth, i);
        dit_op(d, k->sum_rows(d->dev, table + i * C, dfinal, B, C, d->stream), "sum_rows");
        if (i == 0)
            dit_copy_rows(d, s->dcond, dfinal, B * C);
        else
            dit_op(d, k->axpy(d->dev, s->dcond, 1.0f, dfinal, B * C, d->stream), "axpy");
    }
}

/* Backward of condition_captioned: adds to dcond, which has the final layer's gradient. */
static void condition_captioned_backward(struct dit *d, struct dit_slot *s, int B, bool first)
{
    const struct kernel_ops *k = d->ops;
    const struct model_spec *spec = &d->m->spec;
    const int64_t C = d->C, rows = (int64_t)B * d->L, n = rows * C;
    const struct weights_linear mod = {X_MOD_W, B, C, 6 * C};
    const struct weights_linear text1 = {X_TEXT1_W, rows, spec->caption, C};
    const struct weights_linear text2 = {X_TEXT2_W,         rows, C, C, .epilogue = MM_DGELU,
                                         .aux = s->text_pre};
    const void *dmod = weights_as_dt(&d->w, s->dshared, s->dmod16, B * 6 * C);
    /* dkv has room for two of these. */
    const void *dtext = weights_as_dt(&d->w, s->dtext, d->dkv, n);
    void *dpre = (char *)d->dkv + (size_t)n * dtype_bytes(d->dt);

    weights_grad(&d->w, &text2, dtext, 0, s->text_act, 0, first);
    weights_input_grad(&d->w, &text2, dpre, d->dt, 0, dtext, 0, false);
    weights_grad(&d->w, &text1, dpre, 0, s->io.states, 0, first);

    weights_grad(&d->w, &mod, dmod, 0, s->scond, 0, first);
    weights_input_grad(&d->w, &mod, s->dscond, DT_F32, 0, dmod, 0, false);
    dit_op(d, k->silu_bwd(d->dev, s->dcond, s->dscond, s->cond, B * C, DT_F32, true, d->stream),
           "silu_bwd");
}

/* Backward of a part's modulations, once all gradients are complete: dscond is summed from the last
 * block to the first. */
static void modulate_backward(struct dit *d, const struct dit_slot *s,
                              const struct model_part *part, int B, bool first)
{
    const struct model_spec *spec = &d->m->spec;
    const int64_t C = d->C, ld = d->mod_ld;
    const void *dmod = weights_as_dt(&d->w, s->dmod, s->dmod16, B * ld);
    const size_t e = dtype_bytes(d->dt);

    for (int b = part->to < spec->depth ? part->to - 1 : part->to; b >= part->from; b--) {
        struct weights_linear l = {model_block_tensor(&d->m->spec, b, T_MOD_W), B, C, 6 * C};
        if (b == spec->depth)
            l = (struct weights_linear){model_final_tensor(spec, T_FINAL_MOD_W), B, C, 2 * C};
        const void *dy = (const char *)dmod + (size_t)dit_mod_at(d, b, 0) * e;
        weights_grad_later(&d->w, &l, dy, ld, s->scond, 0, first);
        weights_input_grad(&d->w, &l, s->dscond, DT_F32, 0, dy, ld, b < spec->depth);
        weights_ready_matrices(&d->w, l.w, l.w);
    }
}

/* Backward of the conditioning: the captions, the label table and the time MLP. */
static void condition_backward(struct dit *d, struct dit_slot *s, int B, bool first)
{
    const struct kernel_ops *k = d->ops;
    const struct model_spec *spec = &d->m->spec;
    const int64_t C = d->C, n = B * C;

    if (d->L > 0)
        condition_captioned_backward(d, s, B, first);
    else
        dit_op(d, k->silu_bwd(d->dev, s->dcond, s->dscond, s->cond, n, DT_F32, false, d->stream),
               "silu_bwd");
    if (dit_has_labels(d))
        dit_op(d,
               k->embed_bwd(d->dev, weights_g(&d->w, T_LABELS), s->dcond, s->io.labels, B, d->C,
                            spec->classes + 1, d->stream),
               "embed_bwd");

    struct weights_linear l2 = {T_TIME2_W, B, C, C};
    const void *dy = weights_as_dt(&d->w, s->dcond, d->dcond16, n);
    weights_grad(&d->w, &l2, dy, 0, s->act0, 0, first);
    weights_input_grad(&d->w, &l2, s->dscond, DT_F32, 0, dy, 0, false);
    dit_op(d, k->silu_bwd(d->dev, s->dcond, s->dscond, s->pre0, n, DT_F32, false, d->stream),
           "silu_bwd");
    struct weights_linear l0 = {T_TIME0_W, B, MODEL_FREQS, C};
    weights_grad(&d->w, &l0, weights_as_dt(&d->w, s->dcond, d->dcond16, n), 0, s->freq, 0, first);
}

static void embed_backward(struct dit *d, struct dit_slot *s, int B, bool first)
{
    const int64_t n = model_shape_patches(&d->m->spec, s->io.shape), C = d->C;
    const struct weights_linear patch = {T_PATCH_W, B * n, d->In, C};
    float *dense = dit_is_router(d) ? s->nf.x : s->dx;

    for (int b = 0; b < B && dit_is_router(d); b++) {
        const float *row = s->dx + b * s->T * C;
        dit_copy_rows(d, s->dcond + b * C, row, C);
        dit_copy_rows(d, dense + b * n * C, row + C, n * C);
    }
    if (dit_is_router(d))
        dit_op(d, d->ops->sum_rows(d->dev, weights_g(&d->w, T_LABELS), s->dcond, B, C, d->stream),
               "sum_rows");
    weights_grad(&d->w, &patch, weights_as_dt(&d->w, dense, d->dx16, B * n * C), 0, s->patches, 0,
                 first);
}

static void head_backward(struct dit *d, const struct dit_slot *s, const float *dpred, int B,
                          bool first)
{
    const struct kernel_ops *k = d->ops;
    const struct model_spec *spec = &d->m->spec;
    const int64_t values = (int64_t)B * s->T * d->C;
    const void *dout = d->dout;
    int64_t ld;
    const struct weights_linear l = dit_head_of(d, s, B, &ld);

    if (dit_is_router(d)) {
        dout = weights_as_dt(&d->w, dpred, d->dout, (int64_t)B * spec->classes);
        dit_op(d, k->zero(d->dev, d->dh, (size_t)values * dtype_bytes(d->dt), d->stream), "zero");
    } else {
        dit_op(d,
               k->patchify(d->dev, d->dout, dpred, B, spec->channels, s->shape.height,
                           s->shape.width, spec->patch, PATCH_PPC, d->dt, d->stream),
               "patchify");
    }
    weights_grad(&d->w, &l, dout, 0, s->nf.h, ld, first);
    weights_input_grad(&d->w, &l, d->dh, d->dt, ld, dout, 0, false);
}

int dit_backward(struct dit *d, const struct model_part *part, int slot, const struct dit_io *io,
                 bool first, struct err *err)
{
    const struct model_spec *spec = &d->m->spec;
    const struct model_part *p = part ? part : &d->part;
    const int B = io->B;
    int rc = d->opt.mode == NET_FORWARD
                 ? err_set(err, -EINVAL, "a backward in a model made for looking only")
                 : dit_check_batch(d, io, err);
    if (rc < 0)
        return rc;
    struct dit_slot *s = &d->slots[slot];
    dit_take_io(d, s, io);
    if (p->to == spec->depth) {
        head_backward(d, s, io->dpred, B, first);
        weights_ready_matrices(&d->w, model_final_tensor(spec, T_FINAL_W),
                               model_final_tensor(spec, T_FINAL_B));
        begin_block_backward(d, s, spec->depth, true, B);
        if (d->L > 0)
            final_table_backward(d, s, B);
    } else {
        end_part_backward(d, s, p->to, B);
    }
    for (int b = p->to - 1; b >= p->from; b--) {
        const struct weights_linear qkv = block_linear(d, s, B, b, T_QKV_W, d->C, 3 * d->C);
        block_backward(d, s, b, B, first);
        begin_block_backward(d, s, b, b > p->from, B);
        weights_grad_later(&d->w, &qkv, s->blocks[b].d.qkv, 0, s->blocks[b].n1.h, 0, first);
        weights_ready_matrices(&d->w, model_block_tensor(spec, b, T_QKV_W),
                               d->L > 0 ? model_caption_tensor(b, X_CROSS_PROJ_B)
                                        : model_block_tensor(spec, b, T_FC2_B));
        if (d->L > 0)
            table_backward(d, s, b, B);
    }
    if (d->L == 0)
        modulate_backward(d, s, p, B, first);
    if (p->from == 0) {
        embed_backward(d, s, B, first);
        condition_backward(d, s, B, first);
    }
    return weights_check(&d->w, err);
}
