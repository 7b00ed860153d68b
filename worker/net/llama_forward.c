#include <errno.h>

#include "common/base/err.h"
#include "worker/net/llama_impl.h"

/* y (rows,out) (y_dt) = x (rows,in) Wᵀ. */
static void product(struct llama *l, void *y, enum dtype y_dt, const void *x, int w, int64_t rows,
                    int64_t in, int64_t out)
{
    struct weights_linear lin = {.w = w, .rows = rows, .in = in, .out = out, .no_bias = true};
    weights_forward(&l->weights, &lin, y, y_dt, 0, x, 0);
}

void llama_norm(struct llama *l, const struct rmsnorm_fwd *norm)
{
    struct rmsnorm_fwd p = *norm;
    p.eps = l->weights.m->spec.norm_eps;
    p.C = l->C;
    p.dt = l->dt;
    llama_op(l, l->ops->rmsnorm_fwd(l->dev, &p, l->stream), "rmsnorm_fwd");
}

void llama_turn(struct llama *l, void *qkv, int64_t rows, bool inverse)
{
    struct rope p = {
        .x = qkv,
        .pos = l->d.pos,
        .rows = rows,
        .ld = llama_qkv_width(l),
        .heads = l->H + l->K,
        .D = l->D,
        .theta = l->weights.m->spec.rope_theta,
        .inverse = inverse,
        .dt = l->dt,
    };
    llama_op(l, l->ops->rope(l->dev, &p, l->stream), "rope");
}

/* Keys and values of the call's tokens go behind those that the cache holds. */
static void remember(struct llama *l, const struct llama_block *p, char *kv, int used, int64_t rows)
{
    const size_t e = dtype_bytes(l->dt), row = (size_t)(2 * l->K * l->D) * e;
    const size_t ld = (size_t)llama_qkv_width(l) * e, skip = (size_t)(l->H * l->D) * e;

    for (int64_t i = 0; i < rows; i++)
        llama_op(l,
                 l->ops->copy(l->dev, kv + ((size_t)used + (size_t)i) * row,
                              (const char *)p->qkv + (size_t)i * ld + skip, row, COPY_DEVICE,
                              l->stream),
                 "copying keys");
}

static void attend(struct llama *l, int b, const struct llama_shape *s)
{
    const struct llama_block *p = &l->blocks[b];
    struct attention_fwd att = {
        .o = p->o,
        .lse = p->lse,
        .qkv = p->qkv,
        .start = s->cache ? NULL : l->d.start,
        .B = s->B,
        .T = s->T,
        .H = l->H,
        .D = l->D,
        .Hkv = l->K,
        .causal = true,
        .dt = l->dt,
    };
    if (s->cache) {
        void *kv = llama_cache_block(s->cache, b);
        const int used = llama_cache_used(s->cache);
        remember(l, p, kv, used, s->rows);
        att.kv = kv;
        att.Tk = used + s->T;
    }
    llama_op(l, l->ops->attention_fwd(l->dev, &att, l->stream), "attention_fwd");
}

void llama_block_run(struct llama *l, int b, const struct llama_shape *s, bool with_down)
{
    const struct llama_block *p = &l->blocks[b];
    const int64_t rows = s->rows, C = l->C, M = l->M;

    product(l, p->qkv, l->dt, p->h1, model_llama_block(b, L_Q), rows, C, llama_qkv_width(l));
    llama_turn(l, p->qkv, rows, false);
    attend(l, b, s);
    product(l, l->y, l->dt, p->o, model_llama_block(b, L_O), rows, C, C);
    llama_norm(l,
               &(struct rmsnorm_fwd){.x = p->x2,
                                     .h = p->h2,
                                     .rstd = p->rstd2,
                                     .x_in = p->x1,
                                     .y = l->y,
                                     .w = weights_f32(&l->weights, model_llama_block(b, L_NORM2)),
                                     .rows = rows});
    product(l, p->gu, l->dt, p->h2, model_llama_block(b, L_GATE), rows, C, 2 * M);
    llama_op(l, l->ops->swiglu_fwd(l->dev, p->act, p->gu, rows, M, l->dt, l->stream), "swiglu_fwd");
    if (with_down)
        product(l, l->y, l->dt, p->act, model_llama_block(b, L_DOWN), rows, M, C);
}

void llama_run(struct llama *l, const struct llama_shape *s)
{
    const int depth = l->weights.m->spec.depth;
    const float *x = l->blocks[0].x1;

    llama_op(l,
             l->ops->embed_fwd(l->dev, l->blocks[0].x1, weights_f32(&l->weights, L_EMBED),
                               l->d.tokens, (int)s->rows, l->C, l->V, false, l->stream),
             "embed_fwd");
    for (int b = 0; b < depth; b++) {
        const struct llama_block *p = &l->blocks[b];
        llama_norm(
            l, &(struct rmsnorm_fwd){.x = p->x1,
                                     .h = p->h1,
                                     .rstd = p->rstd1,
                                     .x_in = x,
                                     .y = b > 0 ? l->y : NULL,
                                     .w = weights_f32(&l->weights, model_llama_block(b, L_NORM1)),
                                     .rows = s->rows});
        llama_block_run(l, b, s, true);
        x = p->x2;
    }
    llama_norm(l, &(struct rmsnorm_fwd){
                      .x = l->xf,
                      .h = l->hf,
                      .rstd = l->rstd_f,
                      .x_in = x,
                      .y = l->y,
                      .w = weights_f32(&l->weights, model_llama_final(&l->weights.m->spec, L_NORM)),
                      .rows = s->rows});
}

/* ---- the head, a slice of rows at a time ---- */

static void *row_of(void *base, int64_t row, int64_t ld, enum dtype dt)
{
    return (char *)base + (size_t)(row * ld) * dtype_bytes(dt);
}

void llama_head_logits(struct llama *l, int64_t from, int64_t n)
{
    product(l, l->logits, DT_F32, row_of(l->hf, from, l->C, l->dt), l->head, n, l->C, l->V);
}

void llama_head(struct llama *l, const struct llama_shape *s, bool backward, bool first)
{
    for (int64_t from = 0; from < s->rows; from += l->slice) {
        const int64_t n = s->rows - from < l->slice ? s->rows - from : l->slice;
        llama_head_logits(l, from, n);
        struct cross_entropy ce = {
            .loss = l->loss + from,
            .dlogits = backward ? l->dlogits : NULL,
            .logits = l->logits,
            .target = l->d.target + from,
            .w = l->d.weight + from,
            .grad_scale = 1.0f,
            .rows = n,
            .V = l->V,
            .dt = DT_F32,
            .grad_dt = l->dt,
        };
        llama_op(l, l->ops->cross_entropy(l->dev, &ce, l->stream), "cross_entropy");
        if (!backward)
            continue;
        /* A tied head adds to what weights_zero_grads has cleared, as the embedding does. */
        const bool set = first && from == 0 && l->head != L_EMBED;
        struct weights_linear head = {l->head, n, l->C, l->V, .no_bias = true};
        weights_grad(&l->weights, &head, l->dlogits, 0, row_of(l->hf, from, l->C, l->dt), 0, set);
        weights_input_grad(&l->weights, &head, row_of(l->dh, from, l->C, l->dt), l->dt, 0,
                           l->dlogits, 0, false);
    }
}
