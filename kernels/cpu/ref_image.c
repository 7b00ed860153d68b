#include <math.h>

#include "kernels/cpu/ref.h"

/* The loops of patchify, with the value going out or in. */
struct patches {
    int B, Ch, S, p;
    enum patch_order order;
};

/* Index within a patch of (channel, row, column). */
static int64_t inside(const struct patches *g, int c, int i, int j)
{
    if (g->order == PATCH_CPP)
        return ((int64_t)c * g->p + i) * g->p + j;
    return ((int64_t)i * g->p + j) * g->Ch + c;
}

/* Index in the patch matrix of pixel (b, c, y, x). */
static size_t patch_at(const struct patches *g, int b, int c, int y, int x)
{
    int64_t side = g->S / g->p, P = (int64_t)g->p * g->p * g->Ch;
    int64_t token = (int64_t)b * side * side + y / g->p * side + x / g->p;
    return (size_t)(token * P + inside(g, c, y % g->p, x % g->p));
}

static size_t pixel_at(const struct patches *g, int b, int c, int y, int x)
{
    return (((size_t)b * (size_t)g->Ch + (size_t)c) * (size_t)g->S + (size_t)y) * (size_t)g->S +
           (size_t)x;
}

int ref_patchify(struct device *dev, void *out, const float *img, int B, int Ch, int S, int p,
                 enum patch_order order, enum dtype dt, struct stream *s)
{
    struct patches g = {B, Ch, S, p, order};
    for (int b = 0; b < B; b++)
        for (int c = 0; c < Ch; c++)
            for (int y = 0; y < S; y++)
                for (int x = 0; x < S; x++)
                    dtype_set(out, dt, patch_at(&g, b, c, y, x), img[pixel_at(&g, b, c, y, x)]);
    return 0;
}

int ref_unpatchify(struct device *dev, float *img, const void *in, int B, int Ch, int S, int p,
                   enum patch_order order, enum dtype dt, struct stream *s)
{
    struct patches g = {B, Ch, S, p, order};
    for (int b = 0; b < B; b++)
        for (int c = 0; c < Ch; c++)
            for (int y = 0; y < S; y++)
                for (int x = 0; x < S; x++)
                    img[pixel_at(&g, b, c, y, x)] = dtype_get(in, dt, patch_at(&g, b, c, y, x));
    return 0;
}

int ref_image_from_u8(struct device *dev, float *img, const uint8_t *u8, int B, int Ch, int S,
                      struct stream *s)
{
    size_t n = (size_t)S * (size_t)S, ch = (size_t)Ch;
    for (size_t b = 0; b < (size_t)B; b++)
        for (size_t c = 0; c < ch; c++)
            for (size_t i = 0; i < n; i++)
                img[(b * ch + c) * n + i] = (float)u8[(b * n + i) * ch + c] / 127.5f - 1.0f;
    return 0;
}

/* NaN becomes 0, as every value below -1 does. */
static uint8_t to_u8(float v)
{
    float p = (v + 1.0f) * 127.5f;
    return p > 0 ? (uint8_t)lrintf(p < 255.0f ? p : 255.0f) : 0;
}

int ref_image_to_u8(struct device *dev, uint8_t *u8, const float *img, int B, int Ch, int S,
                    struct stream *s)
{
    size_t n = (size_t)S * (size_t)S, ch = (size_t)Ch;
    for (size_t b = 0; b < (size_t)B; b++)
        for (size_t c = 0; c < ch; c++)
            for (size_t i = 0; i < n; i++)
                u8[(b * n + i) * ch + c] = to_u8(img[(b * ch + c) * n + i]);
    return 0;
}

int ref_flow_mix(struct device *dev, float *xt, float *target, const float *x0, const float *eps,
                 const float *t, int B, int64_t n, struct stream *s)
{
    for (int64_t b = 0; b < B; b++) {
        for (int64_t i = b * n; i < (b + 1) * n; i++) {
            xt[i] = (1.0f - t[b]) * x0[i] + t[b] * eps[i];
            target[i] = eps[i] - x0[i];
        }
    }
    return 0;
}

int ref_mse(struct device *dev, float *loss, float *dpred, const float *pred, const float *target,
            const float *w, float grad_scale, int B, int64_t n, struct stream *s)
{
    for (int64_t b = 0; b < B; b++) {
        float g = 2.0f * grad_scale * (w ? w[b] : 1.0f) / (float)n;
        double sum = 0;
        for (int64_t i = b * n; i < (b + 1) * n; i++) {
            float d = pred[i] - target[i];
            sum += (double)d * (double)d;
            if (dpred)
                dpred[i] = g * d;
        }
        loss[b] = (float)(sum / (double)n);
    }
    return 0;
}
