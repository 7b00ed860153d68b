/* The table a CUDA device shows: checks shapes, makes the device current, finds the stream
 * that NULL means, and records the profile.  With a profile each operation is waited for. */
#include <errno.h>

#include "common/base/err.h"
#include "kernels/check.h"
#include "kernels/cuda/cuda.h"
#include "kernels/profile.h"

static struct stream *enter(struct device *dev, struct stream *s)
{
    cudaSetDevice(cuda_state(dev)->index);
    return s ? s : &cuda_state(dev)->main;
}

static int finish(struct device *dev, const char *op, const int64_t dims[3], int kind, double start,
                  struct stream *s)
{
    int rc = cuda_wait(s, NULL);
    profile_add(dev->profile, op, dims, kind, profile_now() - start);
    return rc;
}

/* Runs `call` when `ok`, timed under `name` with dims (a,b,c). */
#define RUN(name, ok, a, b, c, kind, call)                                                         \
    do {                                                                                           \
        if (!(ok))                                                                                 \
            return -EINVAL;                                                                        \
        if (cuda_state(dev)->broken)                                                               \
            return -ERR_DEVICE;                                                                    \
        s = enter(dev, s);                                                                         \
        double start = dev->profile ? profile_now() : 0;                                           \
        int r = call;                                                                              \
        if (r < 0 || !dev->profile)                                                                \
            return r;                                                                              \
        return finish(dev, name, (const int64_t[3]){a, b, c}, kind, start, s);                     \
    } while (0)

static int alloc(struct device *dev, size_t bytes, void **ret, struct err *err)
{
    enter(dev, NULL);
    return cuda_alloc(dev, bytes, ret, err);
}

static void release(struct device *dev, void *p)
{
    enter(dev, NULL);
    cuda_free(dev, p);
}

static int memory(struct device *dev, uint64_t *ret_free, uint64_t *ret_total)
{
    if (cuda_state(dev)->broken)
        return -ERR_DEVICE;
    enter(dev, NULL);
    return cuda_memory(dev, ret_free, ret_total);
}

static int stream_new(struct device *dev, struct stream **ret, struct err *err)
{
    enter(dev, NULL);
    return cuda_stream_new(dev, ret, err);
}

static void stream_free(struct device *dev, struct stream *s)
{
    enter(dev, NULL);
    cuda_stream_free(dev, s);
}

static int sync_stream(struct device *dev, struct stream *s, struct err *err)
{
    return cuda_wait(enter(dev, s), err);
}

static int stream_follow(struct device *dev, struct stream *s, struct stream *after)
{
    if (cuda_state(dev)->broken)
        return -ERR_DEVICE;
    s = enter(dev, s);
    return cuda_stream_follow(dev, s, enter(dev, after));
}

static int alloc_host(struct device *dev, size_t bytes, void **ret, struct err *err)
{
    enter(dev, NULL);
    return cuda_alloc_host(dev, bytes, ret, err);
}

static void free_host(struct device *dev, void *p)
{
    enter(dev, NULL);
    cuda_free_host(dev, p);
}

static int graph_begin(struct device *dev, struct stream *s, struct err *err)
{
    return cuda_graph_begin(dev, enter(dev, s), err);
}

static int graph_end(struct device *dev, struct stream *s, struct graph **ret, struct err *err)
{
    return cuda_graph_end(dev, enter(dev, s), ret, err);
}

static int graph_launch(struct device *dev, struct graph *g, struct stream *s)
{
    RUN("graph_launch", true, 0, 0, 0, 0, cuda_graph_launch(dev, g, s));
}

static void graph_free(struct device *dev, struct graph *g)
{
    enter(dev, NULL);
    cuda_graph_free(dev, g);
}

static int copy(struct device *dev, void *dst, const void *src, size_t bytes, enum copy_kind kind,
                struct stream *s)
{
    RUN("copy", true, (int64_t)bytes, 0, 0, 0, cuda_copy(dev, dst, src, bytes, kind, s));
}

static int zero(struct device *dev, void *dst, size_t bytes, struct stream *s)
{
    RUN("zero", true, (int64_t)bytes, 0, 0, 0, cuda_zero(dev, dst, bytes, s));
}

static int matmul(struct device *dev, const struct matmul *mm, struct stream *s)
{
    RUN("matmul", matmul_ok(mm), mm->m, mm->n, mm->k,
        (int)mm->layout | (int)mm->dt << 2 | (int)mm->c_dt << 3, cuda_matmul(dev, mm, s));
}

static int adaln_fwd(struct device *dev, const struct adaln_fwd *p, struct stream *s)
{
    RUN("adaln_fwd", adaln_fwd_ok(p) && p->C <= CUDA_NORM_MAX, p->B, p->T, p->C, 0,
        cuda_adaln_fwd(dev, p, s));
}

static int adaln_bwd(struct device *dev, const struct adaln_bwd *p, struct stream *s)
{
    RUN("adaln_bwd", adaln_bwd_ok(p) && p->C <= CUDA_NORM_MAX, p->B, p->T, p->C, 0,
        cuda_adaln_bwd(dev, p, s));
}

static int rmsnorm_fwd(struct device *dev, const struct rmsnorm_fwd *p, struct stream *s)
{
    RUN("rmsnorm_fwd", rmsnorm_fwd_ok(p) && p->C <= CUDA_NORM_MAX, p->rows, p->C, 0, 0,
        cuda_rmsnorm_fwd(dev, p, s));
}

static int rmsnorm_bwd(struct device *dev, const struct rmsnorm_bwd *p, struct stream *s)
{
    RUN("rmsnorm_bwd", rmsnorm_bwd_ok(p) && p->C <= CUDA_NORM_MAX, p->rows, p->C, 0, 0,
        cuda_rmsnorm_bwd(dev, p, s));
}

static int rope(struct device *dev, const struct rope *p, struct stream *s)
{
    RUN("rope", rope_dims_ok(p), p->rows, p->heads, p->D, 0, cuda_rope(dev, p, s));
}

static int attention_fwd(struct device *dev, const struct attention_fwd *p, struct stream *s)
{
    RUN("attention_fwd", attention_fwd_dims_ok(p), (int64_t)p->B * p->H, p->T, p->D, 0,
        cuda_attention_fwd(dev, p, s));
}

static int attention_bwd(struct device *dev, const struct attention_bwd *p, struct stream *s)
{
    RUN("attention_bwd", attention_bwd_dims_ok(p), (int64_t)p->B * p->H, p->T, p->D, 0,
        cuda_attention_bwd(dev, p, s));
}

static int bias_grad(struct device *dev, float *db, const void *dy, int64_t m, int64_t n,
                     enum dtype dt, struct stream *s)
{
    RUN("bias_grad", btc_ok(1, m, n) && dt_ok(dt), m, n, 0, 0,
        cuda_bias_grad(dev, db, dy, m, n, dt, s));
}

static int silu_fwd(struct device *dev, void *y, const float *x, int64_t n, enum dtype dt,
                    struct stream *s)
{
    RUN("silu_fwd", n >= 0 && dt_ok(dt), n, 0, 0, 0, cuda_silu_fwd(dev, y, x, n, dt, s));
}

static int silu_bwd(struct device *dev, float *dx, const void *dy, const float *x, int64_t n,
                    enum dtype dt, bool accumulate, struct stream *s)
{
    RUN("silu_bwd", n >= 0 && dt_ok(dt), n, 0, 0, 0,
        cuda_silu_bwd(dev, dx, dy, x, n, dt, accumulate, s));
}

static int gelu_fwd(struct device *dev, void *y, const void *x, int64_t n, enum dtype dt,
                    struct stream *s)
{
    RUN("gelu_fwd", n >= 0 && dt_ok(dt), n, 0, 0, 0, cuda_gelu_fwd(dev, y, x, n, dt, s));
}

static int gelu_bwd(struct device *dev, void *dx, const void *dy, const void *x, int64_t n,
                    enum dtype dt, struct stream *s)
{
    RUN("gelu_bwd", n >= 0 && dt_ok(dt), n, 0, 0, 0, cuda_gelu_bwd(dev, dx, dy, x, n, dt, s));
}

static int swiglu_fwd(struct device *dev, void *act, const void *gu, int64_t rows, int64_t M,
                      enum dtype dt, struct stream *s)
{
    RUN("swiglu_fwd", btc_ok(rows, 2, M) && dt_ok(dt), rows, M, 0, 0,
        cuda_swiglu_fwd(dev, act, gu, rows, M, dt, s));
}

static int swiglu_bwd(struct device *dev, void *dgu, const void *dact, const void *gu, int64_t rows,
                      int64_t M, enum dtype dt, struct stream *s)
{
    RUN("swiglu_bwd", btc_ok(rows, 2, M) && dt_ok(dt), rows, M, 0, 0,
        cuda_swiglu_bwd(dev, dgu, dact, gu, rows, M, dt, s));
}

static int cross_entropy(struct device *dev, const struct cross_entropy *p, struct stream *s)
{
    RUN("cross_entropy", cross_entropy_dims_ok(p), p->rows, p->V, 0, 0,
        cuda_cross_entropy(dev, p, s));
}

static int embed_fwd(struct device *dev, float *out, const float *table, const int32_t *ids, int B,
                     int C, int rows, bool accumulate, struct stream *s)
{
    RUN("embed_fwd", btc_ok(B, 1, C) && rows >= 0 && (rows || !B), B, C, rows, 0,
        cuda_embed_fwd(dev, out, table, ids, B, C, rows, accumulate, s));
}

static int embed_bwd(struct device *dev, float *dtable, const float *dout, const int32_t *ids,
                     int B, int C, int rows, struct stream *s)
{
    RUN("embed_bwd", btc_ok(B, 1, C) && rows >= 0 && (rows || !B), B, C, rows, 0,
        cuda_embed_bwd(dev, dtable, dout, ids, B, C, rows, s));
}

static int mean_tokens(struct device *dev, float *out, const void *x, int B, int T, int C,
                       int begin, int end, const int32_t *len, enum dtype dt, struct stream *s)
{
    RUN("mean_tokens", btc_ok(B, T, C) && dt_ok(dt) && begin >= 0 && begin < end && end <= T, B, T,
        C, 0, cuda_mean_tokens(dev, out, x, B, T, C, begin, end, len, dt, s));
}

static int timestep_embed(struct device *dev, void *out, const float *t, int B, int dim,
                          enum dtype dt, struct stream *s)
{
    RUN("timestep_embed", btc_ok(B, 1, dim) && dt_ok(dt), B, dim, 0, 0,
        cuda_timestep_embed(dev, out, t, B, dim, dt, s));
}

static int patchify(struct device *dev, void *out, const float *img, int B, int Ch, int S, int p,
                    enum patch_order order, enum dtype dt, struct stream *s)
{
    RUN("patchify", image_ok(B, Ch, S, p) && dt_ok(dt), B, Ch, S, 0,
        cuda_patchify(dev, out, img, B, Ch, S, p, order, dt, s));
}

static int unpatchify(struct device *dev, float *img, const void *in, int B, int Ch, int S, int p,
                      enum patch_order order, enum dtype dt, struct stream *s)
{
    RUN("unpatchify", image_ok(B, Ch, S, p) && dt_ok(dt), B, Ch, S, 0,
        cuda_unpatchify(dev, img, in, B, Ch, S, p, order, dt, s));
}

static int image_from_u8(struct device *dev, float *img, const uint8_t *u8, int B, int Ch, int S,
                         struct stream *s)
{
    RUN("image_from_u8", image_ok(B, Ch, S, 1), B, Ch, S, 0,
        cuda_image_from_u8(dev, img, u8, B, Ch, S, s));
}

static int image_to_u8(struct device *dev, uint8_t *u8, const float *img, int B, int Ch, int S,
                       struct stream *s)
{
    RUN("image_to_u8", image_ok(B, Ch, S, 1), B, Ch, S, 0,
        cuda_image_to_u8(dev, u8, img, B, Ch, S, s));
}

static int flow_mix(struct device *dev, float *xt, float *target, const float *x0, const float *eps,
                    const float *t, int B, int64_t n, struct stream *s)
{
    RUN("flow_mix", btc_ok(B, 1, n), B, n, 0, 0,
        cuda_flow_mix(dev, xt, target, x0, eps, t, B, n, s));
}

static int mse(struct device *dev, float *loss, float *dpred, const float *pred,
               const float *target, const float *w, float grad_scale, int B, int64_t n,
               struct stream *s)
{
    RUN("mse", btc_ok(B, 1, n) && (n > 0 || B == 0), B, n, 0, 0,
        cuda_mse(dev, loss, dpred, pred, target, w, grad_scale, B, n, s));
}

static int adamw(struct device *dev, const struct adamw *p, struct stream *s)
{
    RUN("adamw", p->n >= 0 && p->now, p->n, 0, 0, 0, cuda_adamw(dev, p, s));
}

static int sumsq(struct device *dev, double *sum, const float *x, int64_t n, struct stream *s)
{
    RUN("sumsq", n >= 0, n, 0, 0, 0, cuda_sumsq(dev, sum, x, n, s));
}

static int clip_scale(struct device *dev, float *scale_out, const double *total, const double *also,
                      float max_norm, struct stream *s)
{
    RUN("clip_scale", max_norm >= 0, 0, 0, 0, 0,
        cuda_clip_scale(dev, scale_out, total, also, max_norm, s));
}

static int ema(struct device *dev, float *avg, const float *x, float decay, int64_t n,
               struct stream *s)
{
    RUN("ema", n >= 0, n, 0, 0, 0, cuda_ema(dev, avg, x, decay, n, s));
}

static int axpy(struct device *dev, float *y, float a, const float *x, int64_t n, struct stream *s)
{
    RUN("axpy", n >= 0, n, 0, 0, 0, cuda_axpy(dev, y, a, x, n, s));
}

static int axpby(struct device *dev, float *out, float a, const float *x, float b, const float *y,
                 int64_t n, struct stream *s)
{
    RUN("axpby", n >= 0, n, 0, 0, 0, cuda_axpby(dev, out, a, x, b, y, n, s));
}

static int scale(struct device *dev, float *x, float a, int64_t n, struct stream *s)
{
    RUN("scale", n >= 0, n, 0, 0, 0, cuda_scale(dev, x, a, n, s));
}

static int fill(struct device *dev, float *x, float value, int64_t n, struct stream *s)
{
    RUN("fill", n >= 0, n, 0, 0, 0, cuda_fill(dev, x, value, n, s));
}

static int cast(struct device *dev, void *dst, enum dtype dst_dt, const void *src,
                enum dtype src_dt, int64_t n, struct stream *s)
{
    RUN("cast", n >= 0 && dt_ok(dst_dt) && dt_ok(src_dt), n, 0, 0, 0,
        cuda_cast(dev, dst, dst_dt, src, src_dt, n, s));
}

static int add_row(struct device *dev, float *x, const float *row, int B, int64_t m,
                   struct stream *s)
{
    RUN("add_row", btc_ok(B, 1, m), B, m, 0, 0, cuda_add_row(dev, x, row, B, m, s));
}

static int sum_rows(struct device *dev, float *row, const float *x, int B, int64_t m,
                    struct stream *s)
{
    RUN("sum_rows", btc_ok(B, 1, m), B, m, 0, 0, cuda_sum_rows(dev, row, x, B, m, s));
}

static int encode(struct device *dev, const struct encode *p, struct stream *s)
{
    RUN("encode", encode_ok(p), p->n, p->codec, 0, 0, cuda_encode(dev, p, s));
}

static int normal(struct device *dev, float *out, uint64_t seed, const uint64_t *streams, int B,
                  int64_t n, struct stream *s)
{
    RUN("normal", btc_ok(B, 1, n), B, n, 0, 0, cuda_normal(dev, out, seed, streams, B, n, s));
}

static int sum(struct device *dev, double *total, const float *x, int64_t n, struct stream *s)
{
    RUN("sum", n >= 0, n, 0, 0, 0, cuda_sum(dev, total, x, n, s));
}

const struct kernel_ops cuda_ops = {
    .alloc = alloc,
    .free = release,
    .copy = copy,
    .zero = zero,
    .memory = memory,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .sync = sync_stream,
    .alloc_host = alloc_host,
    .free_host = free_host,
    .graph_begin = graph_begin,
    .graph_end = graph_end,
    .graph_launch = graph_launch,
    .graph_free = graph_free,
    .stream_follow = stream_follow,
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
    .encode = encode,
};
