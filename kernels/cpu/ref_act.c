#include <math.h>

#include "kernels/cpu/ref.h"

static const float gelu_a = 0.7978845608028654f; /* sqrt(2/pi) */
static const float gelu_b = 0.044715f;

float ref_gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(gelu_a * (x + gelu_b * x * x * x)));
}

float ref_gelu_grad(float x)
{
    float t = tanhf(gelu_a * (x + gelu_b * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * gelu_a * (1.0f + 3.0f * gelu_b * x * x);
}

int ref_gelu_fwd(struct device *dev, void *y, const void *x, int64_t n, enum dtype dt,
                 struct stream *s)
{
    for (int64_t i = 0; i < n; i++)
        dtype_set(y, dt, (size_t)i, ref_gelu(dtype_get(x, dt, (size_t)i)));
    return 0;
}

int ref_gelu_bwd(struct device *dev, void *dx, const void *dy, const void *x, int64_t n,
                 enum dtype dt, struct stream *s)
{
    for (int64_t i = 0; i < n; i++)
        dtype_set(dx, dt, (size_t)i,
                  dtype_get(dy, dt, (size_t)i) * ref_gelu_grad(dtype_get(x, dt, (size_t)i)));
    return 0;
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

int ref_silu_fwd(struct device *dev, void *y, const float *x, int64_t n, enum dtype dt,
                 struct stream *s)
{
    for (int64_t i = 0; i < n; i++)
        dtype_set(y, dt, (size_t)i, x[i] * sigmoid(x[i]));
    return 0;
}

int ref_silu_bwd(struct device *dev, float *dx, const void *dy, const float *x, int64_t n,
                 enum dtype dt, bool accumulate, struct stream *s)
{
    for (int64_t i = 0; i < n; i++) {
        float g = sigmoid(x[i]);
        float d = dtype_get(dy, dt, (size_t)i) * g * (1.0f + x[i] * (1.0f - g));
        dx[i] = accumulate ? dx[i] + d : d;
    }
    return 0;
}

int ref_embed_fwd(struct device *dev, float *out, const float *table, const int32_t *ids, int B,
                  int C, int rows, bool accumulate, struct stream *s)
{
    for (int64_t b = 0; b < B; b++)
        for (int64_t c = 0; c < C; c++)
            out[b * C + c] = (accumulate ? out[b * C + c] : 0) + table[(int64_t)ids[b] * C + c];
    return 0;
}

int ref_embed_bwd(struct device *dev, float *dtable, const float *dout, const int32_t *ids, int B,
                  int C, int rows, struct stream *s)
{
    for (int64_t b = 0; b < B; b++)
        for (int64_t c = 0; c < C; c++)
            dtable[(int64_t)ids[b] * C + c] += dout[b * C + c];
    return 0;
}

float ref_time_freq(int i, int half)
{
    return expf(-logf(10000.0f) * (float)i / (float)half);
}

int ref_timestep_embed(struct device *dev, void *out, const float *t, int B, int dim, enum dtype dt,
                       struct stream *s)
{
    int half = dim / 2;
    for (int64_t b = 0; b < B; b++) {
        size_t row = (size_t)b * (size_t)dim;
        for (int i = 0; i < half; i++) {
            float w = ref_time_freq(i, half);
            dtype_set(out, dt, row + (size_t)i, cosf(t[b] * w));
            dtype_set(out, dt, row + (size_t)(half + i), sinf(t[b] * w));
        }
        if (dim % 2)
            dtype_set(out, dt, row + (size_t)(dim - 1), 0);
    }
    return 0;
}
