
#include "common/base/base.h"
#include "kernels/cpu/ref.h"

static const float eps = 1e-6f;

/* mean and 1/std of one row, two passes. */
static void row_stats(float stats[2], const float *x, int C)
{
    float mean = 0, var = 0;
    for (int c = 0; c < C; c++)
        mean += x[c];
    mean /= (float)C;
    for (int c = 0; c < C; c++)
        var += (x[c] - mean) * (x[c] - mean);
    stats[0] = mean;
    stats[1] = 1.0f / sqrtf(var / (float)C + eps);
}

int ref_adaln_fwd(struct device *dev, const struct adaln_fwd *p, struct stream *s)
{
    int C = p->C;
    for (int64_t r = 0; r < (int64_t)p->B * p->T; r++) {
        int64_t mod = r / p->T * p->mod_ld;
        const float *x = p->x_in + r * C;
        if (p->y) {
            for (int c = 0; c < C; c++)
                p->x[r * C + c] = p->x_in[r * C + c] +
                                  p->gate[mod + c] * dtype_get(p->y, p->dt, (size_t)(r * C + c));
            x = p->x + r * C;
        }
        if (!p->h)
            continue;
        float *stats = p->stats + 2 * r;
        row_stats(stats, x, C);
        for (int c = 0; c < C; c++) {
            float xhat = (x[c] - stats[0]) * stats[1];
            dtype_set(p->h, p->dt, (size_t)(r * C + c),
                      xhat * (1.0f + p->scale[mod + c]) + p->shift[mod + c]);
        }
    }
    return 0;
}

static float xhat_at(const struct adaln_bwd *p, int64_t r, int64_t mod, int c)
{
    const int64_t at = r * p->C + c;
    float x = p->x[at];
    if (p->x_before)
        x += p->gate[mod + c] * dtype_get(p->y, p->dt, (size_t)at);
    return (x - p->stats[2 * r]) * p->stats[2 * r + 1];
}

/* d LN: dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), g = dh * (1 + scale). */
static void ln_row(const struct adaln_bwd *p, int64_t r, int64_t mod, float *dscale, float *dshift)
{
    int C = p->C;
    const float *stats = p->stats + 2 * r, *scale = p->scale + mod;
    float *dx = p->dx + r * C;
    float mean_g = 0, mean_gx = 0;
    for (int c = 0; c < C; c++) {
        float dh = dtype_get(p->dh, p->dt, (size_t)(r * C + c)), xhat = xhat_at(p, r, mod, c);
        dscale[c] += dh * xhat;
        dshift[c] += dh;
        mean_g += dh * (1.0f + scale[c]);
        mean_gx += dh * (1.0f + scale[c]) * xhat;
    }
    mean_g /= (float)C;
    mean_gx /= (float)C;
    for (int c = 0; c < C; c++) {
        float g = dtype_get(p->dh, p->dt, (size_t)(r * C + c)) * (1.0f + scale[c]);
        float xhat = xhat_at(p, r, mod, c);
        float d = stats[1] * (g - mean_g - xhat * mean_gx);
        dx[c] = p->dx_set ? d : dx[c] + d;
        if (p->h)
            dtype_set(p->h, p->dt, (size_t)(r * C + c),
                      xhat * (1.0f + scale[c]) + p->shift[mod + c]);
    }
}

static void gate_row(const struct adaln_bwd *p, int64_t r, const float *gate, float *dgate)
{
    for (int c = 0; c < p->C; c++) {
        size_t at = (size_t)(r * p->C + c);
        dgate[c] += p->dx[at] * dtype_get(p->y, p->dt, at);
        dtype_set(p->dy, p->dt, at, gate[c] * p->dx[at]);
    }
}

int ref_adaln_bwd(struct device *dev, const struct adaln_bwd *p, struct stream *s)
{
    for (int b = 0; b < p->B; b++) {
        int64_t mod = b * p->mod_ld;
        for (int c = 0; c < p->C; c++) {
            if (p->dh)
                p->dscale[mod + c] = p->dshift[mod + c] = 0;
            if (p->y)
                p->dgate[mod + c] = 0;
        }
        for (int64_t r = (int64_t)b * p->T; r < (int64_t)(b + 1) * p->T; r++) {
            if (p->dh)
                ln_row(p, r, mod, p->dscale + mod, p->dshift + mod);
            if (p->y)
                gate_row(p, r, p->gate + mod, p->dgate + mod);
        }
    }
    return 0;
}
