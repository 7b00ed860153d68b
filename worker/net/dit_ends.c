/* What stands before the first block and after the last, and differs between a DiT and a
 * router:
 *
 *   DiT      patches ──► (B,T,C) ─ blocks ─► (B,T,P) ──► image
 *   router   patches ──► (B,T-1,C), behind cls_token ─ blocks ─► row 0 of each (B,C) ──► logits */
#include "worker/net/dit_impl.h"

static void copy_rows(struct dit *d, float *dst, const float *src, int64_t n)
{
    dit_op(d, d->ops->copy(d->dev, dst, src, (size_t)n * sizeof *dst, COPY_DEVICE, d->stream),
           "copying tokens");
}

/* The patches are a product over dense rows; a router's go through xf, which is free before
 * the last block is done, to their places behind the token. */
void dit_embed(struct dit *d, const float *x, int B)
{
    const struct kernel_ops *k = d->ops;
    const struct model_spec *s = &d->m->spec;
    const int64_t n = model_patches(s), C = d->C;
    float *x1 = d->blocks[0].x1, *dense = dit_is_router(d) ? d->xf : x1;

    dit_op(d,
           k->patchify(d->dev, d->patches, x, B, MODEL_CHANNELS, s->image, s->patch, PATCH_CPP,
                       d->dt, d->stream),
           "patchify");
    weights_forward(&d->w, &(struct weights_linear){T_PATCH_W, B * n, d->P, C}, dense, DT_F32, 0,
                    d->patches, 0);
    for (int b = 0; b < B && dit_is_router(d); b++) {
        float *row = x1 + b * d->T * C;
        copy_rows(d, row, weights_f32(&d->w, T_LABELS), C);
        copy_rows(d, row + C, dense + b * n * C, n * C);
    }
    dit_op(d, k->add_row(d->dev, x1, d->pos, B, (int64_t)d->T * C, d->stream), "add_row");
}

void dit_embed_backward(struct dit *d, int B, bool first)
{
    const int64_t n = model_patches(&d->m->spec), C = d->C;
    const struct weights_linear patch = {T_PATCH_W, B * n, d->P, C};
    float *dense = dit_is_router(d) ? d->xf : d->dx;

    for (int b = 0; b < B && dit_is_router(d); b++) {
        const float *row = d->dx + b * d->T * C;
        copy_rows(d, d->dscond + b * C, row, C);
        copy_rows(d, dense + b * n * C, row + C, n * C);
    }
    if (dit_is_router(d))
        dit_op(d, d->ops->sum_rows(d->dev, weights_g(&d->w, T_LABELS), d->dscond, B, C, d->stream),
               "sum_rows");
    weights_grad(&d->w, &patch, weights_as_dt(&d->w, dense, d->dx16, B * n * C), 0, d->patches, 0,
                 first);
}

/* The layer that makes the result: a DiT's on all tokens, a router's on the first of each
 * sample, a row in T. */
static struct weights_linear head_of(const struct dit *d, int B, int64_t *ret_ld)
{
    const struct model_spec *s = &d->m->spec;
    const int w = model_final_tensor(s, T_FINAL_W);
    *ret_ld = dit_is_router(d) ? (int64_t)d->T * d->C : 0;
    if (dit_is_router(d))
        return (struct weights_linear){w, B, d->C, s->classes};
    return (struct weights_linear){w, (int64_t)B * d->T, d->C, d->P};
}

void dit_head(struct dit *d, float *pred, int B)
{
    const struct model_spec *s = &d->m->spec;
    int64_t ld;
    const struct weights_linear l = head_of(d, B, &ld);
    weights_forward(&d->w, &l, dit_is_router(d) ? pred : d->out, DT_F32, 0, d->hf, ld);
    if (!dit_is_router(d))
        dit_op(d,
               d->ops->unpatchify(d->dev, pred, d->out, B, MODEL_CHANNELS, s->image, s->patch,
                                  PATCH_PPC, DT_F32, d->stream),
               "unpatchify");
}

void dit_head_backward(struct dit *d, const float *dpred, int B, bool first)
{
    const struct kernel_ops *k = d->ops;
    const struct model_spec *s = &d->m->spec;
    const int64_t values = (int64_t)B * d->T * d->C;
    const void *dout = d->dout;
    int64_t ld;
    const struct weights_linear l = head_of(d, B, &ld);

    if (dit_is_router(d)) {
        dout = weights_as_dt(&d->w, dpred, d->dout, (int64_t)B * s->classes);
        dit_op(d, k->zero(d->dev, d->dh, (size_t)values * dtype_bytes(d->dt), d->stream), "zero");
    } else {
        dit_op(d,
               k->patchify(d->dev, d->dout, dpred, B, MODEL_CHANNELS, s->image, s->patch, PATCH_PPC,
                           d->dt, d->stream),
               "patchify");
    }
    weights_grad(&d->w, &l, dout, 0, d->hf, ld, first);
    weights_input_grad(&d->w, &l, d->dh, d->dt, ld, dout, 0, false);
}
