#include "worker/net/llama_impl.h"

static struct weights_linear linear(int w, int64_t rows, int64_t in, int64_t out)
{
    return (struct weights_linear){.w = w, .rows = rows, .in = in, .out = out, .no_bias = true};
}

/* Through a norm and the addition before it: from dh to dx, and to dy unless there is
 * nothing before. */
static void norm_backward(struct llama *l, int w, const float *x, const float *rstd, int64_t rows,
                          bool set, bool with_dy)
{
    struct rmsnorm_bwd p = {
        .dx = l->dx,
        .dy = with_dy ? l->dy : NULL,
        .dw = weights_g(&l->weights, w),
        .dh = l->dh,
        .x = x,
        .rstd = rstd,
        .w = weights_f32(&l->weights, w),
        .dx_set = set,
        .rows = rows,
        .C = l->C,
        .dt = l->dt,
    };
    llama_op(l, l->ops->rmsnorm_bwd(l->dev, &p, l->stream), "rmsnorm_bwd");
}

/* From dy to dh = gradient of h2. */
static void mlp_backward(struct llama *l, int b, int64_t rows, bool first)
{
    const struct llama_block *p = &l->blocks[b];
    const struct weights_linear gu =
        linear(model_llama_block(b, L_GATE), rows, l->C, 2 * (int64_t)l->M);
    const struct weights_linear down = linear(model_llama_block(b, L_DOWN), rows, l->M, l->C);
    struct weights *w = &l->weights;

    weights_grad(w, &down, l->dy, 0, p->act, 0, first);
    weights_input_grad(w, &down, l->dact, l->dt, 0, l->dy, 0, false);
    llama_op(l, l->ops->swiglu_bwd(l->dev, l->dwide, l->dact, p->gu, rows, l->M, l->dt, l->stream),
             "swiglu_bwd");
    weights_grad(w, &gu, l->dwide, 0, p->h2, 0, first);
    weights_input_grad(w, &gu, l->dh, l->dt, 0, l->dwide, 0, false);
}

/* From dy to dh = gradient of h1. */
static void attention_backward(struct llama *l, int b, const struct llama_shape *s, bool first)
{
    const struct llama_block *p = &l->blocks[b];
    const struct weights_linear qkv =
        linear(model_llama_block(b, L_Q), s->rows, l->C, llama_qkv_width(l));
    const struct weights_linear out = linear(model_llama_block(b, L_O), s->rows, l->C, l->C);
    struct weights *w = &l->weights;

    weights_grad(w, &out, l->dy, 0, p->o, 0, first);
    weights_input_grad(w, &out, l->dh, l->dt, 0, l->dy, 0, false); /* gradient of o */
    struct attention_bwd att = {
        .dqkv = l->dwide,
        .d_o = l->dh,
        .o = p->o,
        .lse = p->lse,
        .qkv = p->qkv,
        .start = l->d.start,
        .B = s->B,
        .T = s->T,
        .H = l->H,
        .D = l->D,
        .Hkv = l->K,
        .causal = true,
        .dt = l->dt,
    };
    llama_op(l, l->ops->attention_bwd(l->dev, &att, l->stream), "attention_bwd");
    llama_turn(l, l->dwide, s->rows, true);
    weights_grad(w, &qkv, l->dwide, 0, p->h1, 0, first);
    weights_input_grad(w, &qkv, l->dh, l->dt, 0, l->dwide, 0, false);
}

/* What NET_RECOMPUTE did not keep: everything of a block except x1. */
static void recompute(struct llama *l, int b, const struct llama_shape *s)
{
    const struct llama_block *p = &l->blocks[b];
    llama_norm(l,
               &(struct rmsnorm_fwd){.h = p->h1,
                                     .rstd = p->rstd1,
                                     .x_in = p->x1,
                                     .w = weights_f32(&l->weights, model_llama_block(b, L_NORM1)),
                                     .rows = s->rows});
    llama_block_run(l, b, s, false);
}

void llama_backward(struct llama *l, const struct llama_shape *s, bool first)
{
    if (l->head != L_EMBED)
        weights_ready_matrices(&l->weights, l->head, l->head);
    norm_backward(l, model_llama_final(&l->weights.m->spec, L_NORM), l->xf, l->rstd_f, s->rows,
                  true, true);
    for (int b = l->weights.m->spec.depth - 1; b >= 0; b--) {
        const struct llama_block *p = &l->blocks[b];
        if (l->net.opt.mode == NET_RECOMPUTE)
            recompute(l, b, s);
        mlp_backward(l, b, s->rows, first);
        norm_backward(l, model_llama_block(b, L_NORM2), p->x2, p->rstd2, s->rows, false, true);
        attention_backward(l, b, s, first);
        weights_ready_matrices(&l->weights, model_llama_block(b, L_Q),
                               model_llama_block(b, L_DOWN));
        norm_backward(l, model_llama_block(b, L_NORM1), p->x1, p->rstd1, s->rows, false, b > 0);
    }
    llama_op(l,
             l->ops->embed_bwd(l->dev, weights_g(&l->weights, L_EMBED), l->dx, l->d.tokens,
                               (int)s->rows, l->C, l->V, l->stream),
             "embed_bwd");
}
