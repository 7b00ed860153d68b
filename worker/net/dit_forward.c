#include <errno.h>

#include "common/base/err.h"
#include "worker/net/dit_impl.h"

/* freq -> MLP, plus the label -> cond; silu -> all modulations. */
static void condition(struct dit *d, const float *t, const int32_t *labels, int B)
{
    const struct kernel_ops *k = d->ops;
    const struct model_spec *s = &d->m->spec;
    const int64_t C = d->C, n = B * C;

    dit_op(d, k->axpby(d->dev, d->t1000, 1000.0f, t, 0.0f, t, B, d->stream), "axpby");
    dit_op(d, k->timestep_embed(d->dev, d->freq, d->t1000, B, MODEL_FREQS, d->dt, d->stream),
           "timestep_embed");
    weights_forward(&d->w, &(struct weights_linear){T_TIME0_W, B, MODEL_FREQS, C}, d->pre0, DT_F32,
                    0, d->freq, 0);
    dit_op(d, k->silu_fwd(d->dev, d->act0, d->pre0, n, d->dt, d->stream), "silu_fwd");
    weights_forward(&d->w, &(struct weights_linear){T_TIME2_W, B, C, C}, d->cond, DT_F32, 0,
                    d->act0, 0);
    if (!dit_is_router(d))
        dit_op(d,
               k->embed_fwd(d->dev, d->cond, weights_f32(&d->w, T_LABELS), labels, B, d->C,
                            s->classes + 1, true, d->stream),
               "embed_fwd");
    dit_op(d, k->silu_fwd(d->dev, d->scond, d->cond, n, d->dt, d->stream), "silu_fwd");
    for (int b = 0; b < s->depth; b++)
        weights_forward(&d->w,
                        &(struct weights_linear){model_block_tensor(b, T_MOD_W), B, C, 6 * C},
                        d->mod + dit_mod_at(d, b, 0), DT_F32, d->mod_ld, d->scond, 0);
    weights_forward(&d->w,
                    &(struct weights_linear){model_final_tensor(s, T_FINAL_MOD_W), B, C, 2 * C},
                    d->mod + dit_mod_at(d, s->depth, 0), DT_F32, d->mod_ld, d->scond, 0);
}

void dit_block_forward(struct dit *d, int b, int B, bool with_y2)
{
    const struct kernel_ops *k = d->ops;
    const struct model_spec *s = &d->m->spec;
    const struct dit_block *p = &d->blocks[b];
    const int64_t rows = (int64_t)B * d->T, C = d->C, M = d->M;

    weights_forward(&d->w, &(struct weights_linear){model_block_tensor(b, T_QKV_W), rows, C, 3 * C},
                    p->qkv, d->dt, 0, p->h1, 0);
    struct attention_fwd att = {
        .o = p->o,
        .lse = p->lse,
        .qkv = p->qkv,
        .B = B,
        .T = d->T,
        .H = s->heads,
        .D = d->C / s->heads,
        .dt = d->dt,
    };
    dit_op(d, k->attention_fwd(d->dev, &att, d->stream), "attention_fwd");
    weights_forward(&d->w, &(struct weights_linear){model_block_tensor(b, T_PROJ_W), rows, C, C},
                    p->y1, d->dt, 0, p->o, 0);

    struct adaln_fwd ln = {
        .x = p->x2,
        .h = p->h2,
        .stats = p->stats2,
        .x_in = p->x1,
        .y = p->y1,
        .gate = d->mod + dit_mod_at(d, b, 2),
        .shift = d->mod + dit_mod_at(d, b, 3),
        .scale = d->mod + dit_mod_at(d, b, 4),
        .mod_ld = d->mod_ld,
        .B = B,
        .T = d->T,
        .C = d->C,
        .dt = d->dt,
    };
    dit_op(d, k->adaln_fwd(d->dev, &ln, d->stream), "adaln_fwd");

    int fc1 = model_block_tensor(b, T_FC1_W);
    struct matmul mm = {
        .layout = MM_NT,
        .epilogue = MM_GELU,
        .m = rows,
        .n = M,
        .k = C,
        .c = p->act,
        .a = p->h2,
        .b = weights_mm(&d->w, fc1),
        .bias = weights_f32(&d->w, fc1 + 1),
        .aux = p->pre,
        .dt = d->dt,
        .c_dt = d->dt,
    };
    dit_op(d, k->matmul(d->dev, &mm, d->stream), "matmul");
    if (with_y2)
        weights_forward(&d->w, &(struct weights_linear){model_block_tensor(b, T_FC2_W), rows, M, C},
                        p->y2, d->dt, 0, p->act, 0);
}

/* The LayerNorm that begins block b (or the final layer, b == depth), with the addition
 * that ends the block before. */
static void begin_block(struct dit *d, int b, int B)
{
    const struct dit_block *prev = b > 0 ? &d->blocks[b - 1] : NULL;
    const bool last = b == d->m->spec.depth;
    float *x = last ? d->xf : d->blocks[b].x1;

    struct adaln_fwd ln = {
        .x = x,
        .h = last ? d->hf : d->blocks[b].h1,
        .stats = last ? d->stats_f : d->blocks[b].stats1,
        .x_in = prev ? prev->x2 : x,
        .y = prev ? prev->y2 : NULL,
        .gate = prev ? d->mod + dit_mod_at(d, b - 1, 5) : NULL,
        .shift = d->mod + dit_mod_at(d, b, 0),
        .scale = d->mod + dit_mod_at(d, b, 1),
        .mod_ld = d->mod_ld,
        .B = B,
        .T = d->T,
        .C = d->C,
        .dt = d->dt,
    };
    dit_op(d, d->ops->adaln_fwd(d->dev, &ln, d->stream), "adaln_fwd");
}

int dit_forward(struct dit *d, float *pred, const float *x, const float *t, const int32_t *labels,
                int B, struct err *err)
{
    const struct model_spec *s = &d->m->spec;
    if (B < 1 || B > d->opt.batch)
        return err_set(err, -EINVAL, "a batch of %d samples in a model made for %d", B,
                       d->opt.batch);

    condition(d, t, labels, B);
    dit_embed(d, x, B);
    for (int b = 0; b < s->depth; b++) {
        begin_block(d, b, B);
        dit_block_forward(d, b, B, true);
    }
    begin_block(d, s->depth, B);
    dit_head(d, pred, B);
    return weights_check(&d->w, err);
}
