#include "kernels/cpu/ref.h"

#include "common/base/rng.h"
#include "kernels/cpu/state.h"
#include "kernels/cpu/team.h"

int ref_copy(struct device *dev, void *dst, const void *src, size_t bytes, enum copy_kind kind,
             struct stream *s)
{
    if (bytes)
        memcpy(dst, src, bytes);
    return 0;
}

int ref_zero(struct device *dev, void *dst, size_t bytes, struct stream *s)
{
    if (bytes)
        memset(dst, 0, bytes);
    return 0;
}

/* ---- activations and embeddings ---- */

static const float gelu_a = 0.7978845608028654f; /* sqrt(2/pi) */
static const float gelu_b = 0.044715f;

static float gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(gelu_a * (x + gelu_b * x * x * x)));
}

static float gelu_grad(float x)
{
    float t = tanhf(gelu_a * (x + gelu_b * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * gelu_a * (1.0f + 3.0f * gelu_b * x * x);
}

int ref_gelu_fwd(struct device *dev, void *y, const void *x, int64_t n, enum dtype dt,
                 struct stream *s)
{
    for (int64_t i = 0; i < n; i++)
        dtype_set(y, dt, (size_t)i, gelu(dtype_get(x, dt, (size_t)i)));
    return 0;
}

int ref_geglu_fwd(struct device *dev, void *act, const void *gu, int64_t rows, int64_t M,
                  enum dtype dt, struct stream *s)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < M; i++) {
            float gate = dtype_get(gu, dt, (size_t)(2 * r * M + i));
            float up = dtype_get(gu, dt, (size_t)((2 * r + 1) * M + i));
            dtype_set(act, dt, (size_t)(r * M + i), gelu(gate) * up);
        }
    }
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

/* ---- products ---- */

/* Where the elements of op(A) or op(B) lie: those of one sum are `next` apart, sums `other`. */
struct lie {
    size_t other, next;
};

static struct lie lie_of(bool transposed, int64_t ld)
{
    return transposed ? (struct lie){1, (size_t)ld} : (struct lie){(size_t)ld, 1};
}

static void store(const struct matmul *mm, int64_t i, int64_t j, float v)
{
    size_t at = (size_t)(i * (mm->ldc ? mm->ldc : mm->n) + j);
    switch (mm->epilogue) {
    case MM_PLAIN:
        if (mm->accumulate)
            v += ((float *)mm->c)[at];
        break;
    case MM_GELU:
        if (mm->aux)
            dtype_set(mm->aux, mm->c_dt, at, v);
        v = gelu(v);
        break;
    case MM_DGELU:
        v *= gelu_grad(dtype_get(mm->aux, mm->c_dt, at));
        break;
    }
    dtype_set(mm->c, mm->c_dt, at, v);
}

int ref_matmul(struct device *dev, const struct matmul *mm, struct stream *s)
{
    const bool tn = mm->layout == MM_TN, nt = mm->layout == MM_NT;
    const struct lie a = lie_of(tn, mm->lda ? mm->lda : (tn ? mm->m : mm->k));
    const struct lie b = lie_of(!nt, mm->ldb ? mm->ldb : (nt ? mm->k : mm->n));
    for (int64_t i = 0; i < mm->m; i++) {
        const size_t row = (size_t)i * a.other;
        for (int64_t j = 0; j < mm->n; j++) {
            const size_t column = (size_t)j * b.other;
            float v = 0;
            for (size_t p = 0; p < (size_t)mm->k; p++)
                v += dtype_get(mm->a, mm->dt, row + p * a.next) *
                     dtype_get(mm->b, mm->dt, column + p * b.next);
            store(mm, i, j, v + (mm->bias ? mm->bias[j] : 0));
        }
        for (size_t p = 0; mm->a_colsum && p < (size_t)mm->k; p++)
            mm->a_colsum[i] += dtype_get(mm->a, mm->dt, row + p * a.next);
    }
    return 0;
}

/* ---- pixels, patches, flow and loss ---- */

/* The loops of patchify, with the value going out or in. */
struct patches {
    int B, Ch, H, W, p;
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
    int64_t rows = g->H / g->p, columns = g->W / g->p, P = (int64_t)g->p * g->p * g->Ch;
    int64_t token = (b * rows + y / g->p) * columns + x / g->p;
    return (size_t)(token * P + inside(g, c, y % g->p, x % g->p));
}

static size_t pixel_at(const struct patches *g, int b, int c, int y, int x)
{
    return (((size_t)b * (size_t)g->Ch + (size_t)c) * (size_t)g->H + (size_t)y) * (size_t)g->W +
           (size_t)x;
}

int ref_patchify(struct device *dev, void *out, const float *img, int B, int Ch, int H, int W,
                 int p, enum patch_order order, enum dtype dt, struct stream *s)
{
    struct patches g = {B, Ch, H, W, p, order};
    for (int b = 0; b < B; b++)
        for (int c = 0; c < Ch; c++)
            for (int y = 0; y < H; y++)
                for (int x = 0; x < W; x++)
                    dtype_set(out, dt, patch_at(&g, b, c, y, x), img[pixel_at(&g, b, c, y, x)]);
    return 0;
}

int ref_unpatchify(struct device *dev, float *img, const void *in, int B, int Ch, int H, int W,
                   int p, enum patch_order order, enum dtype dt, struct stream *s)
{
    struct patches g = {B, Ch, H, W, p, order};
    for (int b = 0; b < B; b++)
        for (int c = 0; c < Ch; c++)
            for (int y = 0; y < H; y++)
                for (int x = 0; x < W; x++)
                    img[pixel_at(&g, b, c, y, x)] = dtype_get(in, dt, patch_at(&g, b, c, y, x));
    return 0;
}

int ref_image_from_u8(struct device *dev, float *img, const uint8_t *u8, int B, int Ch, int H,
                      int W, struct stream *s)
{
    size_t n = (size_t)H * (size_t)W, ch = (size_t)Ch;
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

int ref_image_to_u8(struct device *dev, uint8_t *u8, const float *img, int B, int Ch, int H, int W,
                    struct stream *s)
{
    size_t n = (size_t)H * (size_t)W, ch = (size_t)Ch;
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

/* ---- the optimiser and plain vectors ---- */

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
    }
    return 0;
}

int ref_sumsq(struct device *dev, double *sums, const float *x, const struct vec_span *spans, int n,
              struct stream *s)
{
    for (int k = 0; k < n; k++) {
        const float *at = x + spans[k].offset;
        for (int64_t start = 0, count = spans[k].count; start < count; start += 4096) {
            int64_t end = count - start < 4096 ? count : start + 4096;
            double block = 0;
            for (int64_t i = start; i < end; i++)
                block += (double)at[i] * (double)at[i];
            sums[k] += block;
        }
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

int ref_sum_f64(struct device *dev, double *sum, const double *x, int64_t n, struct stream *s)
{
    *sum = 0;
    for (int64_t i = 0; i < n; i++)
        *sum += x[i];
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

const struct kernel_ops cpu_ref_ops = {
#define OP(name, ...) .name = ref_##name,
#include "kernels/ops.inc"
};
