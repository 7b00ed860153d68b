#include <math.h>

#include "common/base/rng.h"
#include "kernels/cpu/state.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/ref.h"

int ref_adamw(struct device *dev, const struct adamw *p, struct stream *s)
{
    float gs = p->grad_scale ? *p->grad_scale : 1.0f;
    float lr = p->now->lr;
    if (!isfinite(gs))
        return 0;
    for (int64_t i = 0; i < p->n; i++) {
        float g = p->grad[i] * gs;
        float m = p->beta1 * p->m[i] + (1.0f - p->beta1) * g;
        float v = p->beta2 * p->v[i] + (1.0f - p->beta2) * g * g;
        float x = p->p[i] - lr * p->weight_decay * p->p[i];
        x -= lr * (m * p->now->correct1) / (sqrtf(v * p->now->correct2) + p->eps);
        p->m[i] = m;
        p->v[i] = v;
        p->p[i] = x;
        if (p->p_bf16)
            p->p_bf16[i] = bf16_from_f32(x);
        if (p->ema)
            p->ema[i] = p->ema_decay * p->ema[i] + (1.0f - p->ema_decay) * x;
    }
    return 0;
}

int ref_sumsq(struct device *dev, double *sum, const float *x, int64_t n, struct stream *s)
{
    for (int64_t start = 0; start < n; start += 4096) {
        int64_t end = n - start < 4096 ? n : start + 4096;
        double block = 0;
        for (int64_t i = start; i < end; i++)
            block += (double)x[i] * (double)x[i];
        *sum += block;
    }
    return 0;
}

int ref_clip_scale(struct device *dev, float *scale, const double *sum, const double *also,
                   float max_norm, struct stream *s)
{
    double f = max_norm > 0 ? (double)max_norm / (sqrt(*sum) + 1e-6) : 1.0;
    *scale = f < 1.0 ? (float)f : 1.0f;
    if (!isfinite(*sum) || (also && !isfinite(*also)))
        *scale = NAN;
    return 0;
}

int ref_ema(struct device *dev, float *ema, const float *x, float decay, int64_t n,
            struct stream *s)
{
    for (int64_t i = 0; i < n; i++)
        ema[i] = decay * ema[i] + (1.0f - decay) * x[i];
    return 0;
}

int ref_axpy(struct device *dev, float *y, float a, const float *x, int64_t n, struct stream *s)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += a * x[i];
    return 0;
}

int ref_axpby(struct device *dev, float *out, float a, const float *x, float b, const float *y,
              int64_t n, struct stream *s)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = a * x[i] + b * y[i];
    return 0;
}

int ref_scale(struct device *dev, float *x, float a, int64_t n, struct stream *s)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= a;
    return 0;
}

int ref_fill(struct device *dev, float *x, float value, int64_t n, struct stream *s)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = value;
    return 0;
}

int ref_cast(struct device *dev, void *dst, enum dtype dst_dt, const void *src, enum dtype src_dt,
             int64_t n, struct stream *s)
{
    for (int64_t i = 0; i < n; i++)
        dtype_set(dst, dst_dt, (size_t)i, dtype_get(src, src_dt, (size_t)i));
    return 0;
}

int ref_add_row(struct device *dev, float *x, const float *row, int B, int64_t m, struct stream *s)
{
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < m; i++)
            x[b * m + i] += row[i];
    return 0;
}

int ref_sum_rows(struct device *dev, float *row, const float *x, int B, int64_t m, struct stream *s)
{
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < m; i++)
            row[i] += x[b * m + i];
    return 0;
}

int ref_sum(struct device *dev, double *sum, const float *x, int64_t n, struct stream *s)
{
    double total = 0;
    for (int64_t i = 0; i < n; i++)
        total += (double)x[i];
    *sum = total;
    return 0;
}

/* ---- noise: pieces of rows, over the threads where there are some ---- */

enum { NORMAL_PIECE = 4096 };

struct normal_job {
    float *out;
    uint64_t seed;
    const uint64_t *streams;
    int64_t n, pieces; /* of a row */
};

static void normal_task(void *arg, int task, int thread)
{
    const struct normal_job *j = arg;
    int64_t row = task / j->pieces, at = task % j->pieces * NORMAL_PIECE;
    int64_t left = j->n - at;
    rng_fill_normal(j->seed, j->streams[row], (uint64_t)at, j->out + row * j->n + at,
                    (size_t)(left < NORMAL_PIECE ? left : NORMAL_PIECE), 0.0f, 1.0f);
}

int ref_normal(struct device *dev, float *out, uint64_t seed, const uint64_t *streams, int B,
               int64_t n, struct stream *s)
{
    struct normal_job j = {out, seed, streams, n, (n + NORMAL_PIECE - 1) / NORMAL_PIECE};
    cpu_team_run(cpu_state(dev)->team, normal_task, &j, (int)(B * j.pieces));
    return 0;
}
