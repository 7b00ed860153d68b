#include "kernels/cuda/sdpa.h"

#include "common/base/base.h"
#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/dnn.h"

enum { MAX_HEADS = 65535 }; /* B H: engines count them along a dimension of the grid */

/* Why cuDNN cannot do it; NULL: it may. */
static const char *unfit(const struct sdpa_shape *s)
{
    if (s->B < 1 || s->D % 8 || s->T < SDPA_LEAST)
        return "up to 64 tokens, or heads of no multiple of 8 channels";
    if (s->backward && s->T % SDPA_BACKWARD_STEP)
        return "a backward of tokens that are no multiple of 128";
    if (s->D > 128)
        return "heads above 128 channels";
    if ((int64_t)s->B * s->H > MAX_HEADS)
        return "more than 65535 heads in a batch";
    return NULL;
}

/* The call of cuDNN, without its memory. */
static struct dnn_call call_of(const struct sdpa_shape *p, bool plain)
{
    const size_t rows = (size_t)p->B * (size_t)p->H * (size_t)p->T;
    struct dnn_call call = {.kind = DNN_SDPA, .shape.sdpa = *p};
    call.unfit =
        plain ? unfit(p) : "keys apart, packed documents, lengths, a bias, a scale, or alignment";
    call.room[SDPA_ROW_SUM] = p->backward ? rows * sizeof(float) : 0;
    call.room[SDPA_DQ_SUM] = p->backward ? rows * (size_t)p->D * sizeof(float) : 0;
    return call;
}

static bool aligned(const void *a, const void *b, const void *c, const void *d, const void *e)
{
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | (uintptr_t)e) & 15) == 0;
}

/* True if the own kernel is allowed and takes less time. */
static bool own_is_faster(const struct attention_bwd *p, const struct stream *s)
{
    const char *wish = getenv("SKERRY_SDPA");
    return hopper_attention_fits(p, s) && !(wish && strcmp(wish, "cudnn") == 0);
}

int sdpa_fwd(const struct attention_fwd *p, struct stream *s)
{
    const int Hkv = p->Hkv ? p->Hkv : p->H;
    const struct sdpa_shape shape = {p->B, p->T, p->H, Hkv, p->D, p->causal, 0, p->lse != NULL};
    const bool plain = !p->q && !p->kv && !p->start && !p->klen && !p->bias && !(p->scale > 0) &&
                       aligned(p->qkv, p->o, p->lse, NULL, NULL);
    bf16 *q = (bf16 *)p->qkv;
    struct dnn_call call = call_of(&shape, plain);
    call.at[SDPA_Q] = q;
    call.at[SDPA_K] = q + (ptrdiff_t)p->H * p->D;
    call.at[SDPA_V] = q + (ptrdiff_t)(p->H + Hkv) * p->D;
    call.at[SDPA_O] = p->o;
    call.at[SDPA_LSE] = p->lse;
    return dnn_run(&call, s);
}

int sdpa_bwd(const struct attention_bwd *p, struct stream *s)
{
    const int Hkv = p->Hkv ? p->Hkv : p->H;
    const struct sdpa_shape shape = {p->B, p->T, p->H, Hkv, p->D, p->causal, 1, 1};
    const ptrdiff_t k = (ptrdiff_t)p->H * p->D, v = k + (ptrdiff_t)Hkv * p->D;
    const bool plain = !p->q && !p->start && !p->klen && !(p->scale > 0) &&
                       aligned(p->qkv, p->dqkv, p->o, p->d_o, p->lse);
    bf16 *q = (bf16 *)p->qkv, *dq = p->dqkv;
    struct dnn_call call = call_of(&shape, plain);
    if (own_is_faster(p, s))
        call.unfit = "a backward that our own kernel does in less time";
    call.at[SDPA_Q] = q;
    call.at[SDPA_K] = q + k;
    call.at[SDPA_V] = q + v;
    call.at[SDPA_O] = (void *)p->o;
    call.at[SDPA_DO] = (void *)p->d_o;
    call.at[SDPA_LSE] = (void *)p->lse;
    call.at[SDPA_DQ] = dq;
    call.at[SDPA_DK] = dq + k;
    call.at[SDPA_DV] = dq + v;
    return dnn_run(&call, s);
}
