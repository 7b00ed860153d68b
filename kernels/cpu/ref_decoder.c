
#include "common/base/base.h"
#include "kernels/cpu/ref.h"

int ref_rmsnorm_fwd(struct device *dev, const struct rmsnorm_fwd *p, struct stream *s)
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
        float sum = 0;
        for (int c = 0; c < C; c++)
            sum += x[c] * x[c];
        float rstd = 1.0f / sqrtf(sum / (float)C + p->eps);
        for (int c = 0; c < C; c++)
            dtype_set(p->h, p->dt, (size_t)(r * C + c), x[c] * rstd * p->w[c]);
        if (p->rstd)
            p->rstd[r] = rstd;
    }
    return 0;
}

int ref_rmsnorm_bwd(struct device *dev, const struct rmsnorm_bwd *p, struct stream *s)
{
    const int C = p->C;
    for (int64_t r = 0; r < p->rows; r++) {
        const float *x = p->x + r * C, rstd = p->rstd[r];
        float *dx = p->dx + r * C, mean = 0;
        for (int c = 0; c < C; c++) {
            float dh = dtype_get(p->dh, p->dt, (size_t)(r * C + c)), xhat = x[c] * rstd;
            p->dw[c] += dh * xhat;
            mean += dh * p->w[c] * xhat;
        }
        mean /= (float)C;
        for (int c = 0; c < C; c++) {
            float dh = dtype_get(p->dh, p->dt, (size_t)(r * C + c));
            float d = rstd * (dh * p->w[c] - x[c] * rstd * mean);
            dx[c] = p->dx_set ? d : dx[c] + d;
            if (p->dy)
                dtype_set(p->dy, p->dt, (size_t)(r * C + c), dx[c]);
        }
    }
    return 0;
}

int ref_headnorm_fwd(struct device *dev, const struct headnorm *p, struct stream *s)
{
    const int D = p->D;
    const int64_t ld = p->ld ? p->ld : (int64_t)p->heads * D;
    for (int64_t i = 0; i < p->rows * p->heads; i++) {
        const size_t at = (size_t)(i / p->heads * ld + i % p->heads * D), dense = (size_t)(i * D);
        float sum = 0;
        for (int d = 0; d < D; d++) {
            float x = dtype_get(p->x, p->dt, at + (size_t)d);
            if (p->kept)
                dtype_set(p->kept, p->dt, dense + (size_t)d, x);
            sum += x * x;
        }
        float rstd = 1.0f / sqrtf(sum / (float)D + p->eps);
        for (int d = 0; d < D; d++)
            dtype_set(p->x, p->dt, at + (size_t)d,
                      dtype_get(p->x, p->dt, at + (size_t)d) * rstd * p->w[d]);
    }
    return 0;
}

int ref_headnorm_bwd(struct device *dev, const struct headnorm *p, struct stream *s)
{
    const int D = p->D;
    const int64_t ld = p->ld ? p->ld : (int64_t)p->heads * D;
    for (int64_t i = 0; i < p->rows * p->heads; i++) {
        const size_t at = (size_t)(i / p->heads * ld + i % p->heads * D), dense = (size_t)(i * D);
        float square = 0, dot = 0;
        for (int d = 0; d < D; d++) {
            float x = dtype_get(p->kept, p->dt, dense + (size_t)d);
            square += x * x;
            dot += dtype_get(p->x, p->dt, at + (size_t)d) * p->w[d] * x;
        }
        float rstd = 1.0f / sqrtf(square / (float)D + p->eps), mean = dot * rstd / (float)D;
        for (int d = 0; d < D; d++) {
            float g = dtype_get(p->x, p->dt, at + (size_t)d);
            float xhat = dtype_get(p->kept, p->dt, dense + (size_t)d) * rstd;
            p->dw[d] += g * xhat;
            dtype_set(p->x, p->dt, at + (size_t)d, rstd * (g * p->w[d] - xhat * mean));
        }
    }
    return 0;
}

int ref_rope(struct device *dev, const struct rope *p, struct stream *s)
{
    const int half = p->D / 2;
    const int64_t ld = p->ld ? p->ld : (int64_t)p->heads * p->D;
    for (int64_t r = 0; r < p->rows; r++) {
        for (int i = 0; i < half; i++) {
            float angle = (float)p->pos[r] * rope_freq(p->theta, &p->scaling, i, p->D);
            float cosine = cosf(angle), sine = p->inverse ? -sinf(angle) : sinf(angle);
            for (int h = 0; h < p->heads; h++) {
                size_t lo = (size_t)(r * ld + (int64_t)h * p->D + i), hi = lo + (size_t)half;
                float a = dtype_get(p->x, p->dt, lo), b = dtype_get(p->x, p->dt, hi);
                dtype_set(p->x, p->dt, lo, a * cosine - b * sine);
                dtype_set(p->x, p->dt, hi, b * cosine + a * sine);
            }
        }
    }
    return 0;
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

int ref_swiglu_fwd(struct device *dev, void *act, const void *gu, int64_t rows, int64_t M,
                   enum dtype dt, struct stream *s)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < M; i++) {
            float gate = dtype_get(gu, dt, (size_t)(2 * r * M + i));
            float up = dtype_get(gu, dt, (size_t)((2 * r + 1) * M + i));
            dtype_set(act, dt, (size_t)(r * M + i), gate * sigmoid(gate) * up);
        }
    }
    return 0;
}

int ref_swiglu_bwd(struct device *dev, void *dgu, const void *dact, const void *gu, int64_t rows,
                   int64_t M, enum dtype dt, struct stream *s)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < M; i++) {
            size_t g = (size_t)(2 * r * M + i), u = g + (size_t)M;
            float gate = dtype_get(gu, dt, g), up = dtype_get(gu, dt, u), sig = sigmoid(gate);
            float d = dtype_get(dact, dt, (size_t)(r * M + i));
            dtype_set(dgu, dt, g, d * up * sig * (1.0f + gate * (1.0f - sig)));
            dtype_set(dgu, dt, u, d * gate * sig);
        }
    }
    return 0;
}

/* Everything is read before the same place is written: dlogits may be the logits. */
static void entropy_row(const struct cross_entropy *p, int64_t r)
{
    const size_t at = (size_t)r * (size_t)p->V;
    const int32_t target = p->target[r];
    float max = -INFINITY, sum = 0;
    for (int i = 0; i < p->V; i++)
        max = fmaxf(max, dtype_get(p->logits, p->dt, at + (size_t)i));
    for (int i = 0; i < p->V; i++)
        sum += expf(dtype_get(p->logits, p->dt, at + (size_t)i) - max);
    p->loss[r] = logf(sum) - (dtype_get(p->logits, p->dt, at + (size_t)target) - max);
    float factor = p->grad_scale * (p->w ? p->w[r] : 1.0f);
    for (int i = 0; p->dlogits && i < p->V; i++) {
        float prob = expf(dtype_get(p->logits, p->dt, at + (size_t)i) - max) / sum;
        dtype_set(p->dlogits, p->grad_dt, at + (size_t)i,
                  factor * (i == target ? prob - 1.0f : prob));
    }
}

int ref_cross_entropy(struct device *dev, const struct cross_entropy *p, struct stream *s)
{
    for (int64_t r = 0; r < p->rows; r++) {
        if (p->target[r] >= 0) {
            entropy_row(p, r);
            continue;
        }
        p->loss[r] = 0;
        for (int i = 0; p->dlogits && i < p->V; i++)
            dtype_set(p->dlogits, p->grad_dt, (size_t)r * (size_t)p->V + (size_t)i, 0);
    }
    return 0;
}

int ref_mean_tokens(struct device *dev, float *out, const void *x, int B, int T, int C, int begin,
                    int end, const int32_t *len, enum dtype dt, struct stream *s)
{
    for (int64_t b = 0; b < B; b++) {
        int64_t last = len && len[b] < end ? len[b] : end;
        for (int64_t c = 0; c < C; c++) {
            float sum = 0;
            for (int64_t t = begin; t < last; t++)
                sum += dtype_get(x, dt, (size_t)((b * T + t) * C + c));
            out[b * C + c] = last > begin ? sum / (float)(last - begin) : 0;
        }
    }
    return 0;
}
