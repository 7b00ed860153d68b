/* Checks of an operation's arguments, for ops.inc: shapes and pointers on every device; and
 * values in device memory (ids, positions, first keys) where the host may read it. */
#ifndef KERNELS_CHECK_H
#define KERNELS_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

/* A known type. */
static inline bool dt_ok(enum dtype dt)
{
    return dt == DT_F32 || dt == DT_BF16;
}

/* (B,T,C) within what an int64 index and the loops can hold. */
static inline bool btc_ok(int64_t B, int64_t T, int64_t C)
{
    return B >= 0 && T >= 0 && C >= 0 && (T == 0 || B <= INT64_MAX / 8 / T) &&
           (C == 0 || B * T <= INT64_MAX / 8 / C);
}

static inline bool matmul_ok(const struct matmul *mm)
{
    bool tn = mm->layout == MM_TN, nt = mm->layout == MM_NT;
    if (mm->m < 0 || mm->n < 0 || mm->k < 0 || mm->m > INT32_MAX || mm->n > INT32_MAX ||
        mm->k > INT32_MAX || !dt_ok(mm->dt) || !dt_ok(mm->c_dt))
        return false;
    if ((mm->lda && mm->lda < (tn ? mm->m : mm->k)) ||
        (mm->ldb && mm->ldb < (nt ? mm->k : mm->n)) || (mm->ldc && mm->ldc < mm->n))
        return false;
    if (mm->accumulate && (mm->epilogue != MM_PLAIN || mm->c_dt != DT_F32))
        return false;
    return (mm->epilogue != MM_DGELU || mm->aux) && (!mm->a_colsum || tn) &&
           (mm->bias || !mm->bias16);
}

static inline bool adaln_fwd_ok(const struct adaln_fwd *p)
{
    return btc_ok(p->B, p->T, p->C) && dt_ok(p->dt) && p->mod_ld >= p->C && (p->h || p->y) &&
           (!p->h || (p->stats && p->shift && p->scale)) && (!p->y || (p->x && p->gate));
}

static inline bool adaln_bwd_ok(const struct adaln_bwd *p)
{
    return btc_ok(p->B, p->T, p->C) && dt_ok(p->dt) && p->mod_ld >= p->C && (p->dh || p->y) &&
           (!p->dh || (p->x && p->stats && p->scale && p->dscale && p->dshift)) &&
           (!p->y || (p->gate && p->dgate && p->dy)) && (!p->dx_set || p->dh) &&
           (!p->x_before || (p->dh && p->y)) && (!p->h || (p->dh && p->shift));
}

static inline bool rmsnorm_fwd_ok(const struct rmsnorm_fwd *p)
{
    return btc_ok(p->rows, 1, p->C) && dt_ok(p->dt) && p->eps >= 0 && (p->h || p->y) &&
           (!p->h || p->w) && (!p->y || p->x);
}

static inline bool heads_ok(const int dims[4], int Hkv, int Tk, int most_keys, int most_channels,
                            enum dtype dt)
{
    const int T = dims[1], H = dims[2], D = dims[3], longest = T > Tk ? T : Tk;
    return btc_ok(dims[0], longest, 3 * (int64_t)H * D) && longest <= most_keys && T >= 0 &&
           Tk >= (T > 0) && D >= 1 && D <= most_channels && H <= 65536 && Hkv >= 0 &&
           (Hkv == 0 || H % Hkv == 0) && dt_ok(dt);
}

static inline bool image_ok(int B, int Ch, int H, int W, int p)
{
    return B >= 0 && Ch >= 0 && H >= 0 && W >= 0 && p >= 1 && H % p == 0 && W % p == 0 &&
           H <= 65536 && W <= 65536 && btc_ok(B, Ch, (int64_t)H * W);
}

static inline bool rmsnorm_bwd_ok(const struct rmsnorm_bwd *p)
{
    return btc_ok(p->rows, 1, p->C) && dt_ok(p->dt) && p->dh && p->x && p->rstd && p->w && p->dw;
}

static inline bool headnorm_ok(const struct headnorm *p)
{
    return btc_ok(p->rows, p->heads, p->D) && dt_ok(p->dt) && p->D <= 256 && p->eps >= 0 && p->w &&
           (!p->ld || p->ld >= (int64_t)p->heads * p->D);
}

static inline bool rope_ok(const struct rope *p)
{
    return btc_ok(p->rows, p->heads, p->D) && dt_ok(p->dt) && p->D % 2 == 0 && p->D <= 256 &&
           p->theta > 0 && p->scaling.factor >= 0 &&
           (p->scaling.factor == 0 || p->scaling.low < p->scaling.high) &&
           (!p->ld || p->ld >= (int64_t)p->heads * p->D);
}

static inline int attention_fwd_keys(const struct attention_fwd *p)
{
    return p->kv && p->Tk ? p->Tk : p->T;
}

static inline int attention_bwd_keys(const struct attention_bwd *p)
{
    return p->q && p->Tk ? p->Tk : p->T;
}

/* Masks that may be combined, so that no query is without keys. */
static inline bool attention_mask_ok(int T, int Tk, bool causal, const int32_t *start,
                                     const int32_t *klen)
{
    return causal ? T <= Tk && !(start && klen) : !start;
}

static inline bool attention_fwd_ok(const struct attention_fwd *p)
{
    const int dims[4] = {p->B, p->T, p->H, p->D}, Tk = attention_fwd_keys(p);
    return heads_ok(dims, p->Hkv, Tk, 16384, 512, p->dt) &&
           attention_mask_ok(p->T, Tk, p->causal, p->start, p->klen) && (p->kv || !p->q) &&
           (p->kv || !p->Tk || p->Tk == p->T) && p->kv_stride >= 0 && p->scale >= 0 &&
           p->scale < INFINITY;
}

static inline bool attention_bwd_ok(const struct attention_bwd *p)
{
    const int dims[4] = {p->B, p->T, p->H, p->D}, Tk = attention_bwd_keys(p);
    return heads_ok(dims, p->Hkv, Tk, 4096, 128, p->dt) &&
           attention_mask_ok(p->T, Tk, p->causal, p->start, p->klen) && !p->q == !p->kv &&
           (!p->q || (p->dq && p->dkv && !p->start)) && (p->q || !p->Tk || p->Tk == p->T) &&
           p->scale >= 0 && p->scale < INFINITY;
}

static inline bool cross_entropy_ok(const struct cross_entropy *p)
{
    bool in_place = p->dlogits && p->dlogits == p->logits;
    return btc_ok(p->rows, 1, p->V) && p->V >= 1 && dt_ok(p->dt) && dt_ok(p->grad_dt) &&
           (!in_place || p->dt == p->grad_dt);
}

static inline bool layernorm_fwd_ok(const struct layernorm_fwd *p)
{
    return btc_ok(p->rows, 1, p->C) && dt_ok(p->dt) && p->eps >= 0 && (p->h || p->y) &&
           (!p->h || (p->w && p->b)) && (!p->y || p->x);
}

/* Pads must be below k: some libraries refuse an output that sees only zeros. */
static inline bool conv2d_ok(const struct conv2d *p)
{
    const int most = 65536; /* pixels of a side, channels */
    if (p->B < 0 || p->H < 0 || p->W < 0 || p->Cin < 0 || p->Cout < 0 || p->H > most ||
        p->W > most || p->Cin > most || p->Cout > most || (p->k != 1 && p->k != 3) ||
        (p->stride != 1 && p->stride != 2) || !dt_ok(p->dt))
        return false;
    if (p->pad_low < 0 || p->pad_high < 0 || p->pad_low >= p->k || p->pad_high >= p->k)
        return false;
    return btc_ok(p->B, (int64_t)p->H * p->W, p->Cin) &&
           btc_ok(p->B, (int64_t)conv2d_side(p, p->H) * conv2d_side(p, p->W), p->Cout);
}

static inline bool groupnorm_fwd_ok(const struct groupnorm_fwd *p)
{
    return btc_ok(p->B, p->N, p->C) && dt_ok(p->dt) && p->eps >= 0 && p->w && p->b &&
           p->groups >= 1 && p->C % p->groups == 0;
}

static inline bool activation_ok(enum activation act)
{
    return (unsigned)act <= ACT_SILU;
}

static inline bool spans_ok(const struct vec_span *spans, int n)
{
    for (int i = 0; i < n; i++)
        if (spans[i].offset < 0 || spans[i].count < 0)
            return false;
    return n >= 0;
}

static inline bool encode_ok(const struct encode *p)
{
    if (p->n < 0 || (unsigned)p->codec >= CODEC_COUNT || !p->refused ||
        (codec_has_scale(p->codec) && !p->scales))
        return false;
    return p->codec == CODEC_F32 ? !p->base && !p->residual && !p->left : p->base != NULL;
}

static inline bool embed_ok(int B, int C, int rows)
{
    return btc_ok(B, 1, C) && rows >= 0 && (rows || !B);
}

/* ---- values in device memory ---- */

/* Beyond 2^20 an angle in f32 has no digits after the point. */
static inline bool positions_ok(const struct rope *p)
{
    for (int64_t r = 0; r < p->rows; r++)
        if (p->pos[r] < 0 || p->pos[r] > 1 << 20)
            return false;
    return true;
}

/* Each start must be a key that the query may see, so that no row is without keys. */
static inline bool start_ok(const int32_t *start, int B, int T, int Tk)
{
    for (int64_t i = 0; start && i < (int64_t)B * T; i++)
        if (start[i] < 0 || start[i] > Tk - T + i % T)
            return false;
    return true;
}

/* A sample without keys has no mean of values, and one with too many reads foreign memory. */
static inline bool klen_ok(const int32_t *klen, int B, int Tk)
{
    for (int b = 0; klen && b < B; b++)
        if (klen[b] < 1 || klen[b] > Tk)
            return false;
    return true;
}

/* A label outside the table would read or write foreign memory. */
static inline bool ids_ok(const int32_t *ids, int B, int rows)
{
    for (int b = 0; b < B; b++)
        if (ids[b] < 0 || ids[b] >= rows)
            return false;
    return true;
}

/* A target outside the row would read foreign memory. */
static inline bool targets_ok(const struct cross_entropy *p)
{
    for (int64_t r = 0; r < p->rows; r++)
        if (p->target[r] < -1 || p->target[r] >= p->V)
            return false;
    return true;
}

#endif
