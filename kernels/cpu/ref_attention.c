#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/cpu/ref.h"

/* Element of q (which 0), k (1) or v (2) in qkv (B,T,3,H,D). */
static size_t qkv_at(int which, int b, int t, int h, int d, const int dims[3])
{
    int T = dims[0], H = dims[1], D = dims[2];
    return ((((size_t)b * (size_t)T + (size_t)t) * 3 + (size_t)which) * (size_t)H + (size_t)h) *
               (size_t)D +
           (size_t)d;
}

static size_t o_at(int b, int t, int h, int d, const int dims[3])
{
    int T = dims[0], H = dims[1], D = dims[2];
    return (((size_t)b * (size_t)T + (size_t)t) * (size_t)H + (size_t)h) * (size_t)D + (size_t)d;
}

/* Scaled scores of query t against all keys. */
static void scores(float *row, const void *qkv, enum dtype dt, int b, int h, int t,
                   const int dims[3])
{
    int T = dims[0], D = dims[2];
    for (int u = 0; u < T; u++) {
        float v = 0;
        for (int d = 0; d < D; d++)
            v += dtype_get(qkv, dt, qkv_at(0, b, t, h, d, dims)) *
                 dtype_get(qkv, dt, qkv_at(1, b, u, h, d, dims));
        row[u] = v / sqrtf((float)D);
    }
}

static void forward_row(const struct attention_fwd *p, float *row, int b, int h, int t)
{
    const int dims[3] = {p->T, p->H, p->D};
    float max = -INFINITY, sum = 0;
    scores(row, p->qkv, p->dt, b, h, t, dims);
    for (int u = 0; u < p->T; u++)
        max = fmaxf(max, row[u]);
    for (int u = 0; u < p->T; u++)
        sum += row[u] = expf(row[u] - max);
    for (int d = 0; d < p->D; d++) {
        float v = 0;
        for (int u = 0; u < p->T; u++)
            v += row[u] * dtype_get(p->qkv, p->dt, qkv_at(2, b, u, h, d, dims));
        dtype_set(p->o, p->dt, o_at(b, t, h, d, dims), v / sum);
    }
    if (p->lse)
        p->lse[((size_t)b * (size_t)p->H + (size_t)h) * (size_t)p->T + (size_t)t] = max + logf(sum);
}

int ref_attention_fwd(struct device *dev, const struct attention_fwd *p, struct stream *s)
{
    float *row = malloc((size_t)p->T * sizeof *row);
    if (!row)
        return -ENOMEM;
    for (int b = 0; b < p->B; b++)
        for (int h = 0; h < p->H; h++)
            for (int t = 0; t < p->T; t++)
                forward_row(p, row, b, h, t);
    free(row);
    return 0;
}

/* Adds what query t says: acc (3,T,D) are the gradients of q, k and v of this head. */
static void backward_row(const struct attention_bwd *p, float *row, float *acc, int b, int h, int t)
{
    const int T = p->T, D = p->D, dims[3] = {T, p->H, D};
    float *dq = acc + t * D, *dk = acc + T * D, *dv = acc + 2 * T * D;
    float lse = p->lse[((size_t)b * (size_t)p->H + (size_t)h) * (size_t)T + (size_t)t];
    float delta = 0;
    scores(row, p->qkv, p->dt, b, h, t, dims);
    for (int d = 0; d < D; d++)
        delta += dtype_get(p->d_o, p->dt, o_at(b, t, h, d, dims)) *
                 dtype_get(p->o, p->dt, o_at(b, t, h, d, dims));
    for (int u = 0; u < T; u++) {
        float prob = expf(row[u] - lse), dprob = 0;
        for (int d = 0; d < D; d++) {
            float g = dtype_get(p->d_o, p->dt, o_at(b, t, h, d, dims));
            dprob += g * dtype_get(p->qkv, p->dt, qkv_at(2, b, u, h, d, dims));
            dv[u * D + d] += prob * g;
        }
        float ds = prob * (dprob - delta) / sqrtf((float)D);
        for (int d = 0; d < D; d++) {
            dq[d] += ds * dtype_get(p->qkv, p->dt, qkv_at(1, b, u, h, d, dims));
            dk[u * D + d] += ds * dtype_get(p->qkv, p->dt, qkv_at(0, b, t, h, d, dims));
        }
    }
}

static void backward_head(const struct attention_bwd *p, float *row, float *acc, int b, int h)
{
    const int T = p->T, D = p->D, dims[3] = {T, p->H, D};
    for (int i = 0; i < 3 * T * D; i++)
        acc[i] = 0;
    for (int t = 0; t < T; t++)
        backward_row(p, row, acc, b, h, t);
    for (int which = 0; which < 3; which++)
        for (int t = 0; t < T; t++)
            for (int d = 0; d < D; d++)
                dtype_set(p->dqkv, p->dt, qkv_at(which, b, t, h, d, dims),
                          acc[(which * T + t) * D + d]);
}

int ref_attention_bwd(struct device *dev, const struct attention_bwd *p, struct stream *s)
{
    float *row = malloc((size_t)p->T * sizeof *row);
    float *acc = malloc(3 * (size_t)p->T * (size_t)p->D * sizeof *acc);
    int r = row && acc ? 0 : -ENOMEM;
    for (int b = 0; r == 0 && b < p->B; b++)
        for (int h = 0; h < p->H; h++)
            backward_head(p, row, acc, b, h);
    free(row);
    free(acc);
    return r;
}
