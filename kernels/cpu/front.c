/* The table a CPU device shows: checks the arguments, runs the inner entry and
 * records its time.  The only place that validates, so that the reference and the
 * fast code refuse the same calls. */
#include <errno.h>

#include "kernels/check.h"
#include "kernels/cpu/cpu.h"
#include "kernels/profile.h"

/* Runs `call` when `ok`, timed under `name` with dims (a,b,c). */
#define TIMED(name, ok, a, b, c, kind, call)                                                       \
    do {                                                                                           \
        if (!(ok))                                                                                 \
            return -EINVAL;                                                                        \
        if (!dev->profile)                                                                         \
            return call;                                                                           \
        double start = profile_now();                                                              \
        int r = call;                                                                              \
        const int64_t dims[3] = {a, b, c};                                                         \
        profile_add(dev->profile, name, dims, kind, profile_now() - start);                        \
        return r;                                                                                  \
    } while (0)

static int alloc(struct device *dev, size_t bytes, void **ret, struct err *err)
{
    return cpu_inner(dev)->alloc(dev, bytes, ret, err);
}

static void release(struct device *dev, void *p)
{
    cpu_inner(dev)->free(dev, p);
}

static int copy(struct device *dev, void *dst, const void *src, size_t bytes, enum copy_kind kind,
                struct stream *s)
{
    TIMED("copy", true, (int64_t)bytes, 0, 0, 0,
          cpu_inner(dev)->copy(dev, dst, src, bytes, kind, s));
}

static int zero(struct device *dev, void *dst, size_t bytes, struct stream *s)
{
    TIMED("zero", true, (int64_t)bytes, 0, 0, 0, cpu_inner(dev)->zero(dev, dst, bytes, s));
}

static int memory(struct device *dev, uint64_t *ret_free, uint64_t *ret_total)
{
    return cpu_inner(dev)->memory(dev, ret_free, ret_total);
}

static int stream_new(struct device *dev, struct stream **ret, struct err *err)
{
    return cpu_inner(dev)->stream_new(dev, ret, err);
}

static void stream_free(struct device *dev, struct stream *s)
{
    cpu_inner(dev)->stream_free(dev, s);
}

static int sync_stream(struct device *dev, struct stream *s, struct err *err)
{
    int rc = cpu_fault(dev, err);
    return rc < 0 ? rc : cpu_inner(dev)->sync(dev, s, err);
}

static int stream_follow(struct device *dev, struct stream *s, struct stream *after)
{
    return cpu_inner(dev)->stream_follow(dev, s, after);
}

static int alloc_host(struct device *dev, size_t bytes, void **ret, struct err *err)
{
    return cpu_inner(dev)->alloc_host(dev, bytes, ret, err);
}

static void free_host(struct device *dev, void *p)
{
    cpu_inner(dev)->free_host(dev, p);
}

static int matmul(struct device *dev, const struct matmul *mm, struct stream *s)
{
    TIMED("matmul", matmul_ok(mm), mm->m, mm->n, mm->k,
          (int)mm->layout | (int)mm->dt << 2 | (int)mm->c_dt << 3,
          cpu_inner(dev)->matmul(dev, mm, s));
}

static int adaln_fwd(struct device *dev, const struct adaln_fwd *p, struct stream *s)
{
    TIMED("adaln_fwd", adaln_fwd_ok(p), p->B, p->T, p->C, 0, cpu_inner(dev)->adaln_fwd(dev, p, s));
}

static int adaln_bwd(struct device *dev, const struct adaln_bwd *p, struct stream *s)
{
    TIMED("adaln_bwd", adaln_bwd_ok(p), p->B, p->T, p->C, 0, cpu_inner(dev)->adaln_bwd(dev, p, s));
}

static int rmsnorm_fwd(struct device *dev, const struct rmsnorm_fwd *p, struct stream *s)
{
    TIMED("rmsnorm_fwd", rmsnorm_fwd_ok(p), p->rows, p->C, 0, 0,
          cpu_inner(dev)->rmsnorm_fwd(dev, p, s));
}

static int rmsnorm_bwd(struct device *dev, const struct rmsnorm_bwd *p, struct stream *s)
{
    TIMED("rmsnorm_bwd", rmsnorm_bwd_ok(p), p->rows, p->C, 0, 0,
          cpu_inner(dev)->rmsnorm_bwd(dev, p, s));
}

/* Beyond 2^20 an angle in f32 has no digits left. */
static bool rope_ok(const struct rope *p)
{
    if (!rope_dims_ok(p))
        return false;
    for (int64_t r = 0; r < p->rows; r++)
        if (p->pos[r] < 0 || p->pos[r] > 1 << 20)
            return false;
    return true;
}

static int rope(struct device *dev, const struct rope *p, struct stream *s)
{
    TIMED("rope", rope_ok(p), p->rows, p->heads, p->D, 0, cpu_inner(dev)->rope(dev, p, s));
}

/* Each start is a key that the query may see: no row is without keys. */
static bool start_ok(const int32_t *start, int B, int T, int Tk)
{
    for (int64_t i = 0; start && i < (int64_t)B * T; i++)
        if (start[i] < 0 || start[i] > Tk - T + i % T)
            return false;
    return true;
}

static bool attention_fwd_ok(const struct attention_fwd *p)
{
    return attention_fwd_dims_ok(p) && start_ok(p->start, p->B, p->T, attention_keys(p));
}

static int attention_fwd(struct device *dev, const struct attention_fwd *p, struct stream *s)
{
    TIMED("attention_fwd", attention_fwd_ok(p), (int64_t)p->B * p->H, p->T, p->D, 0,
          cpu_inner(dev)->attention_fwd(dev, p, s));
}

static bool attention_bwd_ok(const struct attention_bwd *p)
{
    return attention_bwd_dims_ok(p) && start_ok(p->start, p->B, p->T, p->T);
}

static int attention_bwd(struct device *dev, const struct attention_bwd *p, struct stream *s)
{
    TIMED("attention_bwd", attention_bwd_ok(p), (int64_t)p->B * p->H, p->T, p->D, 0,
          cpu_inner(dev)->attention_bwd(dev, p, s));
}

static int bias_grad(struct device *dev, float *db, const void *dy, int64_t m, int64_t n,
                     enum dtype dt, struct stream *s)
{
    TIMED("bias_grad", btc_ok(1, m, n) && dt_ok(dt), m, n, 0, 0,
          cpu_inner(dev)->bias_grad(dev, db, dy, m, n, dt, s));
}

static int silu_fwd(struct device *dev, void *y, const float *x, int64_t n, enum dtype dt,
                    struct stream *s)
{
    TIMED("silu_fwd", n >= 0 && dt_ok(dt), n, 0, 0, 0,
          cpu_inner(dev)->silu_fwd(dev, y, x, n, dt, s));
}

static int silu_bwd(struct device *dev, float *dx, const void *dy, const float *x, int64_t n,
                    enum dtype dt, bool accumulate, struct stream *s)
{
    TIMED("silu_bwd", n >= 0 && dt_ok(dt), n, 0, 0, 0,
          cpu_inner(dev)->silu_bwd(dev, dx, dy, x, n, dt, accumulate, s));
}

static int gelu_fwd(struct device *dev, void *y, const void *x, int64_t n, enum dtype dt,
                    struct stream *s)
{
    TIMED("gelu_fwd", n >= 0 && dt_ok(dt), n, 0, 0, 0,
          cpu_inner(dev)->gelu_fwd(dev, y, x, n, dt, s));
}

static int gelu_bwd(struct device *dev, void *dx, const void *dy, const void *x, int64_t n,
                    enum dtype dt, struct stream *s)
{
    TIMED("gelu_bwd", n >= 0 && dt_ok(dt), n, 0, 0, 0,
          cpu_inner(dev)->gelu_bwd(dev, dx, dy, x, n, dt, s));
}

static int swiglu_fwd(struct device *dev, void *act, const void *gu, int64_t rows, int64_t M,
                      enum dtype dt, struct stream *s)
{
    TIMED("swiglu_fwd", btc_ok(rows, 2, M) && dt_ok(dt), rows, M, 0, 0,
          cpu_inner(dev)->swiglu_fwd(dev, act, gu, rows, M, dt, s));
}

static int swiglu_bwd(struct device *dev, void *dgu, const void *dact, const void *gu, int64_t rows,
                      int64_t M, enum dtype dt, struct stream *s)
{
    TIMED("swiglu_bwd", btc_ok(rows, 2, M) && dt_ok(dt), rows, M, 0, 0,
          cpu_inner(dev)->swiglu_bwd(dev, dgu, dact, gu, rows, M, dt, s));
}

/* A target outside the row would read foreign memory. */
static bool cross_entropy_ok(const struct cross_entropy *p)
{
    if (!cross_entropy_dims_ok(p))
        return false;
    for (int64_t r = 0; r < p->rows; r++)
        if (p->target[r] < -1 || p->target[r] >= p->V)
            return false;
    return true;
}

static int cross_entropy(struct device *dev, const struct cross_entropy *p, struct stream *s)
{
    TIMED("cross_entropy", cross_entropy_ok(p), p->rows, p->V, 0, 0,
          cpu_inner(dev)->cross_entropy(dev, p, s));
}

/* A label outside the table would read or write foreign memory. */
static bool ids_ok(const int32_t *ids, int B, int C, int rows)
{
    if (!btc_ok(B, 1, C) || rows < 0)
        return false;
    for (int b = 0; b < B; b++)
        if (ids[b] < 0 || ids[b] >= rows)
            return false;
    return true;
}

static int embed_fwd(struct device *dev, float *out, const float *table, const int32_t *ids, int B,
                     int C, int rows, bool accumulate, struct stream *s)
{
    TIMED("embed_fwd", ids_ok(ids, B, C, rows), B, C, rows, 0,
          cpu_inner(dev)->embed_fwd(dev, out, table, ids, B, C, rows, accumulate, s));
}

static int embed_bwd(struct device *dev, float *dtable, const float *dout, const int32_t *ids,
                     int B, int C, int rows, struct stream *s)
{
    TIMED("embed_bwd", ids_ok(ids, B, C, rows), B, C, rows, 0,
          cpu_inner(dev)->embed_bwd(dev, dtable, dout, ids, B, C, rows, s));
}

static int mean_tokens(struct device *dev, float *out, const void *x, int B, int T, int C,
                       int begin, int end, const int32_t *len, enum dtype dt, struct stream *s)
{
    TIMED("mean_tokens", btc_ok(B, T, C) && dt_ok(dt) && begin >= 0 && begin < end && end <= T, B,
          T, C, 0, cpu_inner(dev)->mean_tokens(dev, out, x, B, T, C, begin, end, len, dt, s));
}

static int timestep_embed(struct device *dev, void *out, const float *t, int B, int dim,
                          enum dtype dt, struct stream *s)
{
    TIMED("timestep_embed", btc_ok(B, 1, dim) && dt_ok(dt), B, dim, 0, 0,
          cpu_inner(dev)->timestep_embed(dev, out, t, B, dim, dt, s));
}

static int patchify(struct device *dev, void *out, const float *img, int B, int Ch, int S, int p,
                    enum patch_order order, enum dtype dt, struct stream *s)
{
    TIMED("patchify", image_ok(B, Ch, S, p) && dt_ok(dt), B, Ch, S, 0,
          cpu_inner(dev)->patchify(dev, out, img, B, Ch, S, p, order, dt, s));
}

static int unpatchify(struct device *dev, float *img, const void *in, int B, int Ch, int S, int p,
                      enum patch_order order, enum dtype dt, struct stream *s)
{
    TIMED("unpatchify", image_ok(B, Ch, S, p) && dt_ok(dt), B, Ch, S, 0,
          cpu_inner(dev)->unpatchify(dev, img, in, B, Ch, S, p, order, dt, s));
}

static int image_from_u8(struct device *dev, float *img, const uint8_t *u8, int B, int Ch, int S,
                         struct stream *s)
{
    TIMED("image_from_u8", image_ok(B, Ch, S, 1), B, Ch, S, 0,
          cpu_inner(dev)->image_from_u8(dev, img, u8, B, Ch, S, s));
}

static int image_to_u8(struct device *dev, uint8_t *u8, const float *img, int B, int Ch, int S,
                       struct stream *s)
{
    TIMED("image_to_u8", image_ok(B, Ch, S, 1), B, Ch, S, 0,
          cpu_inner(dev)->image_to_u8(dev, u8, img, B, Ch, S, s));
}

static int flow_mix(struct device *dev, float *xt, float *target, const float *x0, const float *eps,
                    const float *t, int B, int64_t n, struct stream *s)
{
    TIMED("flow_mix", btc_ok(B, 1, n), B, n, 0, 0,
          cpu_inner(dev)->flow_mix(dev, xt, target, x0, eps, t, B, n, s));
}

static int mse(struct device *dev, float *loss, float *dpred, const float *pred,
               const float *target, const float *w, float grad_scale, int B, int64_t n,
               struct stream *s)
{
    TIMED("mse", btc_ok(B, 1, n) && (n > 0 || B == 0), B, n, 0, 0,
          cpu_inner(dev)->mse(dev, loss, dpred, pred, target, w, grad_scale, B, n, s));
}

static int adamw(struct device *dev, const struct adamw *p, struct stream *s)
{
    TIMED("adamw", p->n >= 0 && p->now, p->n, 0, 0, 0, cpu_inner(dev)->adamw(dev, p, s));
}

static int sumsq(struct device *dev, double *sum, const float *x, int64_t n, struct stream *s)
{
    TIMED("sumsq", n >= 0, n, 0, 0, 0, cpu_inner(dev)->sumsq(dev, sum, x, n, s));
}

static int clip_scale(struct device *dev, float *scale_out, const double *total, const double *also,
                      float max_norm, struct stream *s)
{
    TIMED("clip_scale", max_norm >= 0, 0, 0, 0, 0,
          cpu_inner(dev)->clip_scale(dev, scale_out, total, also, max_norm, s));
}

static int ema(struct device *dev, float *avg, const float *x, float decay, int64_t n,
               struct stream *s)
{
    TIMED("ema", n >= 0, n, 0, 0, 0, cpu_inner(dev)->ema(dev, avg, x, decay, n, s));
}

static int axpy(struct device *dev, float *y, float a, const float *x, int64_t n, struct stream *s)
{
    TIMED("axpy", n >= 0, n, 0, 0, 0, cpu_inner(dev)->axpy(dev, y, a, x, n, s));
}

static int axpby(struct device *dev, float *out, float a, const float *x, float b, const float *y,
                 int64_t n, struct stream *s)
{
    TIMED("axpby", n >= 0, n, 0, 0, 0, cpu_inner(dev)->axpby(dev, out, a, x, b, y, n, s));
}

static int scale(struct device *dev, float *x, float a, int64_t n, struct stream *s)
{
    TIMED("scale", n >= 0, n, 0, 0, 0, cpu_inner(dev)->scale(dev, x, a, n, s));
}

static int fill(struct device *dev, float *x, float value, int64_t n, struct stream *s)
{
    TIMED("fill", n >= 0, n, 0, 0, 0, cpu_inner(dev)->fill(dev, x, value, n, s));
}

static int cast(struct device *dev, void *dst, enum dtype dst_dt, const void *src,
                enum dtype src_dt, int64_t n, struct stream *s)
{
    TIMED("cast", n >= 0 && dt_ok(dst_dt) && dt_ok(src_dt), n, 0, 0, 0,
          cpu_inner(dev)->cast(dev, dst, dst_dt, src, src_dt, n, s));
}

static int add_row(struct device *dev, float *x, const float *row, int B, int64_t m,
                   struct stream *s)
{
    TIMED("add_row", btc_ok(B, 1, m), B, m, 0, 0, cpu_inner(dev)->add_row(dev, x, row, B, m, s));
}

static int sum_rows(struct device *dev, float *row, const float *x, int B, int64_t m,
                    struct stream *s)
{
    TIMED("sum_rows", btc_ok(B, 1, m), B, m, 0, 0, cpu_inner(dev)->sum_rows(dev, row, x, B, m, s));
}

static int normal(struct device *dev, float *out, uint64_t seed, const uint64_t *streams, int B,
                  int64_t n, struct stream *s)
{
    TIMED("normal", btc_ok(B, 1, n), B, n, 0, 0,
          cpu_inner(dev)->normal(dev, out, seed, streams, B, n, s));
}

static int sum(struct device *dev, double *total, const float *x, int64_t n, struct stream *s)
{
    TIMED("sum", n >= 0, n, 0, 0, 0, cpu_inner(dev)->sum(dev, total, x, n, s));
}

const struct kernel_ops cpu_front_ops = {
    .alloc = alloc,
    .free = release,
    .copy = copy,
    .zero = zero,
    .memory = memory,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .sync = sync_stream,
    .stream_follow = stream_follow,
    .alloc_host = alloc_host,
    .free_host = free_host,
    .matmul = matmul,
    .adaln_fwd = adaln_fwd,
    .adaln_bwd = adaln_bwd,
    .rmsnorm_fwd = rmsnorm_fwd,
    .rmsnorm_bwd = rmsnorm_bwd,
    .rope = rope,
    .swiglu_fwd = swiglu_fwd,
    .swiglu_bwd = swiglu_bwd,
    .cross_entropy = cross_entropy,
    .mean_tokens = mean_tokens,
    .attention_fwd = attention_fwd,
    .attention_bwd = attention_bwd,
    .bias_grad = bias_grad,
    .silu_fwd = silu_fwd,
    .silu_bwd = silu_bwd,
    .gelu_fwd = gelu_fwd,
    .gelu_bwd = gelu_bwd,
    .embed_fwd = embed_fwd,
    .embed_bwd = embed_bwd,
    .timestep_embed = timestep_embed,
    .patchify = patchify,
    .unpatchify = unpatchify,
    .image_from_u8 = image_from_u8,
    .image_to_u8 = image_to_u8,
    .flow_mix = flow_mix,
    .mse = mse,
    .adamw = adamw,
    .sumsq = sumsq,
    .clip_scale = clip_scale,
    .ema = ema,
    .axpy = axpy,
    .axpby = axpby,
    .scale = scale,
    .fill = fill,
    .cast = cast,
    .add_row = add_row,
    .sum_rows = sum_rows,
    .normal = normal,
    .sum = sum,
};
