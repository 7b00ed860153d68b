
#include "common/base/base.h"
#include "kernels/cpu/ref.h"

/* The shapes and places that forward and backward share. */
struct shape {
    int T, Tk, H, Hkv, D;
    bool causal;
    const int32_t *start, *klen;
    const float *bias;
    float divisor; /* of the scores */
    enum dtype dt;
    const void *q;  /* queries, rows q_ld apart */
    const void *kv; /* keys: element 0 of head 0 of sample b at kv_first + b * kv_stride */
    size_t q_ld, kv_first, kv_stride, kv_ld;
};

/* Sets the places of the heads, after the other members: in qkv, in q and kv, or both. */
static struct shape place(struct shape s, const void *qkv, const void *q, const void *kv,
                          int64_t kv_stride, float scale)
{
    const size_t D = (size_t)s.D;
    s.Hkv = s.Hkv ? s.Hkv : s.H;
    const size_t packed = (size_t)(s.H + 2 * s.Hkv) * D;
    s.q = q ? q : qkv;
    s.q_ld = q ? (size_t)s.H * D : packed;
    s.kv = kv ? kv : qkv;
    s.kv_first = kv ? 0 : (size_t)s.H * D;
    s.kv_ld = kv ? 2 * (size_t)s.Hkv * D : packed;
    s.kv_stride = kv_stride ? (size_t)kv_stride : (size_t)s.Tk * s.kv_ld;
    s.divisor = scale > 0 ? 1 / scale : sqrtf((float)s.D);
    return s;
}

/* The first of a query's D elements. */
static size_t q_row(const struct shape *s, int b, int t, int h)
{
    size_t row = (size_t)b * (size_t)s->T + (size_t)t;
    return row * s->q_ld + (size_t)h * (size_t)s->D;
}

/* The first element of the key (which 0) or value (1) that query head h reads. */
static size_t kv_row(const struct shape *s, int which, int b, int u, int h)
{
    int head = which * s->Hkv + h / (s->H / s->Hkv);
    return s->kv_first + (size_t)b * s->kv_stride + (size_t)u * s->kv_ld +
           (size_t)head * (size_t)s->D;
}

static size_t o_row(const struct shape *s, int b, int t, int h)
{
    size_t row = (size_t)b * (size_t)s->T + (size_t)t;
    return (row * (size_t)s->H + (size_t)h) * (size_t)s->D;
}

static size_t lse_at(const struct shape *s, int b, int t, int h)
{
    return ((size_t)b * (size_t)s->H + (size_t)h) * (size_t)s->T + (size_t)t;
}

/* Keys that query t sees: first <= u < end. */
static int first_key(const struct shape *s, int b, int t)
{
    return s->start ? s->start[(size_t)b * (size_t)s->T + (size_t)t] : 0;
}

static int end_key(const struct shape *s, int b, int t)
{
    int keys = s->klen ? s->klen[b] : s->Tk, end = s->Tk - s->T + t + 1;
    return s->causal && end < keys ? end : keys;
}

/* Scores of query t against the keys it sees. */
static void scores(const struct shape *s, float *row, int b, int h, int t)
{
    const size_t q = q_row(s, b, t, h), D = (size_t)s->D;
    for (int u = first_key(s, b, t); u < end_key(s, b, t); u++) {
        const size_t k = kv_row(s, 0, b, u, h);
        float v = 0;
        for (size_t d = 0; d < D; d++)
            v += dtype_get(s->q, s->dt, q + d) * dtype_get(s->kv, s->dt, k + d);
        row[u] = v / s->divisor;
        if (s->bias)
            row[u] += s->bias[((size_t)h * (size_t)s->T + (size_t)t) * (size_t)s->Tk + (size_t)u];
    }
}

static void forward_row(const struct attention_fwd *p, const struct shape *s, float *row, int b,
                        int h, int t)
{
    const size_t o = o_row(s, b, t, h), next = s->kv_ld;
    int first = first_key(s, b, t), end = end_key(s, b, t);
    float max = -INFINITY, sum = 0;
    scores(s, row, b, h, t);
    for (int u = first; u < end; u++)
        max = fmaxf(max, row[u]);
    for (int u = first; u < end; u++)
        sum += row[u] = expf(row[u] - max);
    for (size_t d = 0; d < (size_t)s->D; d++) {
        size_t value = kv_row(s, 1, b, first, h) + d;
        float v = 0;
        for (int u = first; u < end; u++, value += next)
            v += row[u] * dtype_get(s->kv, s->dt, value);
        dtype_set(p->o, p->dt, o + d, v / sum);
    }
    if (p->lse)
        p->lse[lse_at(s, b, t, h)] = max + logf(sum);
}

int ref_attention_fwd(struct device *dev, const struct attention_fwd *p, struct stream *stream)
{
    const struct shape s = place(
        (struct shape){
            .T = p->T,
            .Tk = p->kv && p->Tk ? p->Tk : p->T,
            .H = p->H,
            .Hkv = p->Hkv,
            .D = p->D,
            .causal = p->causal,
            .start = p->start,
            .klen = p->klen,
            .bias = p->bias,
            .dt = p->dt,
        },
        p->qkv, p->q, p->kv, p->kv_stride, p->scale);
    float *row = malloc((size_t)s.Tk * sizeof *row);
    if (!row && s.Tk)
        return -ENOMEM;
    for (int b = 0; b < p->B; b++)
        for (int h = 0; h < p->H; h++)
            for (int t = 0; t < p->T; t++)
                forward_row(p, &s, row, b, h, t);
    free(row);
    return 0;
}

/* Adds what query t of head h says: dq (T,D) of this head, dk and dv (Tk,D) of its keys. */
static void backward_row(const struct attention_bwd *p, const struct shape *s, float *row,
                         float *const acc[3], int b, int h, int t)
{
    const size_t D = (size_t)s->D, q = q_row(s, b, t, h), o = o_row(s, b, t, h);
    float *dq = acc[0] + (size_t)t * D, delta = 0, lse = p->lse[lse_at(s, b, t, h)];
    scores(s, row, b, h, t);
    for (size_t d = 0; d < D; d++)
        delta += dtype_get(p->d_o, p->dt, o + d) * dtype_get(p->o, p->dt, o + d);
    for (int u = first_key(s, b, t); u < end_key(s, b, t); u++) {
        const size_t k = kv_row(s, 0, b, u, h), v = kv_row(s, 1, b, u, h);
        float *dk = acc[1] + (size_t)u * D, *dv = acc[2] + (size_t)u * D;
        float prob = expf(row[u] - lse), dprob = 0;
        for (size_t d = 0; d < D; d++) {
            float g = dtype_get(p->d_o, p->dt, o + d);
            dprob += g * dtype_get(s->kv, p->dt, v + d);
            dv[d] += prob * g;
        }
        float ds = prob * (dprob - delta) / s->divisor;
        for (size_t d = 0; d < D; d++) {
            dq[d] += ds * dtype_get(s->kv, p->dt, k + d);
            dk[d] += ds * dtype_get(s->q, p->dt, q + d);
        }
    }
}

static void clear(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = 0;
}

/* One head of keys with the query heads that share it. */
static void backward_heads(const struct attention_bwd *p, const struct shape *s, float *row,
                           float *const acc[3], int b, int hk)
{
    const int T = s->T, Tk = s->Tk, share = s->H / s->Hkv;
    const size_t D = (size_t)s->D;
    void *dq = p->q ? p->dq : p->dqkv, *dkv = p->q ? p->dkv : p->dqkv;
    clear(acc[1], (size_t)Tk * D);
    clear(acc[2], (size_t)Tk * D);
    for (int h = hk * share; h < (hk + 1) * share; h++) {
        clear(acc[0], (size_t)T * D);
        for (int t = 0; t < T; t++)
            backward_row(p, s, row, acc, b, h, t);
        for (int t = 0; t < T; t++)
            for (size_t d = 0; d < D; d++)
                dtype_set(dq, p->dt, q_row(s, b, t, h) + d, acc[0][(size_t)t * D + d]);
    }
    for (int which = 0; which < 2; which++)
        for (int u = 0; u < Tk; u++)
            for (size_t d = 0; d < D; d++)
                dtype_set(dkv, p->dt, kv_row(s, which, b, u, hk * share) + d,
                          acc[1 + which][(size_t)u * D + d]);
}

int ref_attention_bwd(struct device *dev, const struct attention_bwd *p, struct stream *stream)
{
    const struct shape s = place(
        (struct shape){
            .T = p->T,
            .Tk = p->q && p->Tk ? p->Tk : p->T,
            .H = p->H,
            .Hkv = p->Hkv,
            .D = p->D,
            .causal = p->causal,
            .start = p->start,
            .klen = p->klen,
            .dt = p->dt,
        },
        p->qkv, p->q, p->kv, 0, p->scale);
    const size_t D = (size_t)s.D, n = (size_t)s.T * D, m = (size_t)s.Tk * D;
    float *row = malloc(((size_t)s.Tk + n + 2 * m) * sizeof *row);
    if (!row && s.Tk)
        return -ENOMEM;
    for (int b = 0; row && b < p->B; b++) {
        float *const acc[3] = {row + s.Tk, row + s.Tk + n, row + s.Tk + n + m};
        for (int hk = 0; hk < s.Hkv; hk++)
            backward_heads(p, &s, row, acc, b, hk);
    }
    free(row);
    return 0;
}
