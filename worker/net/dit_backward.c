#include <errno.h>

#include "common/base/err.h"
#include "worker/net/dit_impl.h"

/* Through the LayerNorm that begins block b (or the final layer) and the addition that
 * ends the block before, whose dy it leaves in d->dy. */
static void begin_block_backward(struct dit *d, int b, int B)
{
    const struct dit_block *prev = b > 0 ? &d->blocks[b - 1] : NULL;
    const bool last = b == d->m->spec.depth;
    struct adaln_bwd ln = {
        .dx = d->dx,
        .dshift = d->dmod + dit_mod_at(d, b, 0),
        .dscale = d->dmod + dit_mod_at(d, b, 1),
        .dy = prev ? d->dy : NULL,
        .dgate = prev ? d->dmod + dit_mod_at(d, b - 1, 5) : NULL,
        .dh = d->dh,
        .x = last ? d->xf : d->blocks[b].x1,
        .stats = last ? d->stats_f : d->blocks[b].stats1,
        .scale = d->mod + dit_mod_at(d, b, 1),
        .y = prev ? prev->y2 : NULL,
        .gate = prev ? d->mod + dit_mod_at(d, b - 1, 5) : NULL,
        .mod_ld = d->mod_ld,
        .dx_set = last,
        .B = B,
        .T = d->T,
        .C = d->C,
        .dt = d->dt,
    };
    dit_op(d, d->ops->adaln_bwd(d->dev, &ln, d->stream), "adaln_bwd");
}

/* What NET_RECOMPUTE did not keep: everything of block b except x1 and y2. */
static void recompute(struct dit *d, int b, int B)
{
    const struct dit_block *p = &d->blocks[b];
    struct adaln_fwd ln = {
        .h = p->h1,
        .stats = p->stats1,
        .x_in = p->x1,
        .shift = d->mod + dit_mod_at(d, b, 0),
        .scale = d->mod + dit_mod_at(d, b, 1),
        .mod_ld = d->mod_ld,
        .B = B,
        .T = d->T,
        .C = d->C,
        .dt = d->dt,
    };
    dit_op(d, d->ops->adaln_fwd(d->dev, &ln, d->stream), "adaln_fwd");
    dit_block_forward(d, b, B, false);
}

/* From dy = gradient of y2 (in d->dy) to dh = gradient of h2. */
static void mlp_backward(struct dit *d, int b, int B, bool first)
{
    const struct dit_block *p = &d->blocks[b];
    const int64_t rows = (int64_t)B * d->T, C = d->C, M = d->M;
    struct weights_linear fc1 = {model_block_tensor(b, T_FC1_W), rows, C, M};
    struct weights_linear fc2 = {model_block_tensor(b, T_FC2_W), rows, M, C};

    weights_grad(&d->w, &fc2, d->dy, 0, p->act, 0, first);
    struct matmul mm = {
        .layout = MM_NN,
        .epilogue = MM_DGELU,
        .m = rows,
        .n = M,
        .k = C,
        .c = d->dwide,
        .a = d->dy,
        .b = weights_mm(&d->w, fc2.w),
        .aux = p->pre,
        .dt = d->dt,
        .c_dt = d->dt,
    };
    dit_op(d, d->ops->matmul(d->dev, &mm, d->stream), "matmul");
    weights_grad(&d->w, &fc1, d->dwide, 0, p->h2, 0, first);
    weights_input_grad(&d->w, &fc1, d->dh, d->dt, 0, d->dwide, 0, false);
}

/* From dy = gradient of y1 (in d->dy) to dh = gradient of h1. */
static void attention_backward(struct dit *d, int b, int B, bool first)
{
    const struct model_spec *s = &d->m->spec;
    const struct dit_block *p = &d->blocks[b];
    const int64_t rows = (int64_t)B * d->T, C = d->C;
    struct weights_linear qkv = {model_block_tensor(b, T_QKV_W), rows, C, 3 * C};
    struct weights_linear proj = {model_block_tensor(b, T_PROJ_W), rows, C, C};

    weights_grad(&d->w, &proj, d->dy, 0, p->o, 0, first);
    /* dh holds the gradient of o */
    weights_input_grad(&d->w, &proj, d->dh, d->dt, 0, d->dy, 0, false);
    struct attention_bwd att = {
        .dqkv = d->dwide,
        .d_o = d->dh,
        .o = p->o,
        .lse = p->lse,
        .qkv = p->qkv,
        .B = B,
        .T = d->T,
        .H = s->heads,
        .D = d->C / s->heads,
        .dt = d->dt,
    };
    dit_op(d, d->ops->attention_bwd(d->dev, &att, d->stream), "attention_bwd");
    weights_grad(&d->w, &qkv, d->dwide, 0, p->h1, 0, first);
    weights_input_grad(&d->w, &qkv, d->dh, d->dt, 0, d->dwide, 0, false);
}

static void block_backward(struct dit *d, int b, int B, bool first)
{
    const struct dit_block *p = &d->blocks[b];

    mlp_backward(d, b, B, first);
    struct adaln_bwd ln = {
        .dx = d->dx,
        .dshift = d->dmod + dit_mod_at(d, b, 3),
        .dscale = d->dmod + dit_mod_at(d, b, 4),
        .dy = d->dy,
        .dgate = d->dmod + dit_mod_at(d, b, 2),
        .dh = d->dh,
        .x = p->x2,
        .stats = p->stats2,
        .scale = d->mod + dit_mod_at(d, b, 4),
        .y = p->y1,
        .gate = d->mod + dit_mod_at(d, b, 2),
        .mod_ld = d->mod_ld,
        .B = B,
        .T = d->T,
        .C = d->C,
        .dt = d->dt,
    };
    dit_op(d, d->ops->adaln_bwd(d->dev, &ln, d->stream), "adaln_bwd");
    attention_backward(d, b, B, first);
}

/* All modulations, then the label table and the time MLP. */
static void condition_backward(struct dit *d, const int32_t *labels, int B, bool first)
{
    const struct kernel_ops *k = d->ops;
    const struct model_spec *s = &d->m->spec;
    const int64_t C = d->C, n = B * C, ld = d->mod_ld;
    const void *dmod = weights_as_dt(&d->w, d->dmod, d->dmod16, B * ld);
    const size_t e = dtype_bytes(d->dt);

    for (int b = 0; b <= s->depth; b++) {
        struct weights_linear l = {model_block_tensor(b, T_MOD_W), B, C, 6 * C};
        if (b == s->depth)
            l = (struct weights_linear){model_final_tensor(s, T_FINAL_MOD_W), B, C, 2 * C};
        const void *dy = (const char *)dmod + (size_t)dit_mod_at(d, b, 0) * e;
        weights_grad(&d->w, &l, dy, ld, d->scond, 0, first);
        weights_input_grad(&d->w, &l, d->dscond, DT_F32, 0, dy, ld, b > 0);
        weights_ready_matrices(&d->w, l.w, l.w);
    }
    dit_op(d, k->silu_bwd(d->dev, d->dcond, d->dscond, d->cond, n, DT_F32, false, d->stream),
           "silu_bwd");
    if (!dit_is_router(d))
        dit_op(d,
               k->embed_bwd(d->dev, weights_g(&d->w, T_LABELS), d->dcond, labels, B, d->C,
                            s->classes + 1, d->stream),
               "embed_bwd");

    struct weights_linear l2 = {T_TIME2_W, B, C, C};
    const void *dy = weights_as_dt(&d->w, d->dcond, d->dcond16, n);
    weights_grad(&d->w, &l2, dy, 0, d->act0, 0, first);
    weights_input_grad(&d->w, &l2, d->dscond, DT_F32, 0, dy, 0, false);
    dit_op(d, k->silu_bwd(d->dev, d->dcond, d->dscond, d->pre0, n, DT_F32, false, d->stream),
           "silu_bwd");
    struct weights_linear l0 = {T_TIME0_W, B, MODEL_FREQS, C};
    weights_grad(&d->w, &l0, weights_as_dt(&d->w, d->dcond, d->dcond16, n), 0, d->freq, 0, first);
}

int dit_backward(struct dit *d, const float *dpred, const int32_t *labels, int B, bool first,
                 struct err *err)
{
    const struct model_spec *s = &d->m->spec;
    if (d->opt.mode == NET_FORWARD || B < 1 || B > d->opt.batch)
        return err_set(err, -EINVAL, "a backward of %d samples in a model made for %d%s", B,
                       d->opt.batch, d->opt.mode == NET_FORWARD ? ", forward only" : "");

    /* Matrices are overwritten by the first micro-batch; the rest is added to. */
    if (first)
        weights_zero_grads(&d->w);
    dit_head_backward(d, dpred, B, first);
    weights_ready_matrices(&d->w, model_final_tensor(s, T_FINAL_W),
                           model_final_tensor(s, T_FINAL_B));

    begin_block_backward(d, s->depth, B);
    for (int b = s->depth - 1; b >= 0; b--) {
        if (d->opt.mode == NET_RECOMPUTE)
            recompute(d, b, B);
        block_backward(d, b, B, first);
        weights_ready_matrices(&d->w, model_block_tensor(b, T_QKV_W),
                               model_block_tensor(b, T_FC2_B));
        begin_block_backward(d, b, B);
    }
    dit_embed_backward(d, B, first);
    condition_backward(d, labels, B, first);
    return weights_check(&d->w, err);
}
