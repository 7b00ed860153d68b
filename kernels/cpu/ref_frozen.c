
#include "common/base/base.h"
#include "kernels/cpu/ref.h"

int ref_layernorm_fwd(struct device *dev, const struct layernorm_fwd *p, struct stream *s)
{
    const int C = p->C;
    for (int64_t r = 0; r < p->rows; r++) {
        const float *x = p->x_in + r * C;
        if (p->y) {
            for (int c = 0; c < C; c++)
                p->x[r * C + c] = p->x_in[r * C + c] + dtype_get(p->y, p->dt, (size_t)(r * C + c));
            x = p->x + r * C;
        }
        if (!p->h)
            continue;
        float mean = 0, var = 0;
        for (int c = 0; c < C; c++)
            mean += x[c];
        mean /= (float)C;
        for (int c = 0; c < C; c++)
            var += (x[c] - mean) * (x[c] - mean);
        float rstd = 1.0f / sqrtf(var / (float)C + p->eps);
        for (int c = 0; c < C; c++)
            dtype_set(p->h, p->dt, (size_t)(r * C + c), (x[c] - mean) * rstd * p->w[c] + p->b[c]);
    }
    return 0;
}

/* ---- convolution ---- */

/* Element (b, i, j, 0) of x as the kernel sees it, or -1 where it reads a zero. */
static int64_t pixel_at(const struct conv2d *p, int b, int i, int j)
{
    int grow = p->up2 ? 2 : 1;
    if (i < 0 || j < 0 || i >= grow * p->H || j >= grow * p->W)
        return -1;
    return (((int64_t)b * p->H + i / grow) * p->W + j / grow) * p->Cin;
}

/* The sum of output (b, i, j, o). */
static float conv_sum(const struct conv2d *p, int b, int i, int j, int o)
{
    float sum = 0;
    for (int u = 0; u < p->k; u++) {
        for (int v = 0; v < p->k; v++) {
            int64_t x =
                pixel_at(p, b, i * p->stride + u - p->pad_low, j * p->stride + v - p->pad_low);
            int64_t w = (((int64_t)o * p->k + u) * p->k + v) * p->Cin;
            for (int c = 0; x >= 0 && c < p->Cin; c++)
                sum += dtype_get(p->x, p->dt, (size_t)(x + c)) *
                       dtype_get(p->w, p->dt, (size_t)(w + c));
        }
    }
    return sum;
}

int ref_conv2d_fwd(struct device *dev, const struct conv2d *p, struct stream *s)
{
    const int Ho = conv2d_side(p, p->H), Wo = conv2d_side(p, p->W);
    size_t at = 0;
    for (int b = 0; b < p->B; b++)
        for (int i = 0; i < Ho; i++)
            for (int j = 0; j < Wo; j++)
                for (int o = 0; o < p->Cout; o++, at++) {
                    float v = conv_sum(p, b, i, j, o) + (p->bias ? p->bias[o] : 0);
                    dtype_set(p->y, p->dt, at, v + (p->add ? dtype_get(p->add, p->dt, at) : 0));
                }
    return 0;
}

/* ---- GroupNorm and activations ---- */

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* The channels c0.. of one sample, which begins at element `at`. */
static void norm_group(const struct groupnorm_fwd *p, int64_t at, int c0)
{
    const int C = p->C, end = c0 + C / p->groups;
    const double count = (double)p->N * (end - c0);
    double mean = 0, var = 0;
    for (int64_t n = 0; n < p->N; n++)
        for (int c = c0; c < end; c++)
            mean += (double)dtype_get(p->x, p->dt, (size_t)(at + n * C + c)) / count;
    for (int64_t n = 0; n < p->N; n++)
        for (int c = c0; c < end; c++) {
            double d = (double)dtype_get(p->x, p->dt, (size_t)(at + n * C + c)) - mean;
            var += d * d / count;
        }
    const float rstd = (float)(1.0 / sqrt(var + (double)p->eps));
    for (int64_t n = 0; n < p->N; n++)
        for (int c = c0; c < end; c++) {
            float x = dtype_get(p->x, p->dt, (size_t)(at + n * C + c));
            float v = (x - (float)mean) * rstd * p->w[c] + p->b[c];
            dtype_set(p->y, p->dt, (size_t)(at + n * C + c), p->silu ? v * sigmoid(v) : v);
        }
}

int ref_groupnorm_fwd(struct device *dev, const struct groupnorm_fwd *p, struct stream *s)
{
    for (int64_t b = 0; b < p->B; b++)
        for (int g = 0; g < p->groups; g++)
            norm_group(p, b * p->N * p->C, g * (p->C / p->groups));
    return 0;
}

int ref_activation(struct device *dev, void *y, const void *x, int64_t n, enum activation act,
                   enum dtype dt, struct stream *s)
{
    for (int64_t i = 0; i < n; i++) {
        float v = dtype_get(x, dt, (size_t)i);
        switch (act) {
        case ACT_GELU:
            v *= 0.5f * erfcf(-0.70710678f * v);
            break;
        case ACT_QUICK_GELU:
            v *= sigmoid(1.702f * v);
            break;
        case ACT_RELU:
            v = v < 0 ? 0 : v;
            break;
        case ACT_SILU:
            v *= sigmoid(v);
            break;
        }
        dtype_set(y, dt, (size_t)i, v);
    }
    return 0;
}

int ref_posterior(struct device *dev, float *x0, const void *moments, const float *noise,
                  const float *shift, const float *mul, int B, int C, int64_t n, enum dtype dt,
                  struct stream *s)
{
    const int64_t all = C * n;
    for (int64_t b = 0; b < B; b++) {
        for (int64_t i = 0; i < all; i++) {
            float mean = dtype_get(moments, dt, (size_t)(2 * b * all + i));
            float logvar = dtype_get(moments, dt, (size_t)((2 * b + 1) * all + i));
            logvar = logvar < -30.0f ? -30.0f : logvar > 20.0f ? 20.0f : logvar;
            float x = mean + expf(0.5f * logvar) * noise[b * all + i];
            x0[b * all + i] = (x - shift[i / n]) * mul[i / n];
        }
    }
    return 0;
}
