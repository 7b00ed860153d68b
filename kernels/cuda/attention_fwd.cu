/* Attention's forward on the tensor cores, after FlashAttention-2 (Dao 2023): a block owns 64
 * queries of one head, its four warps 16 each, and walks the keys in tiles of 64. */
#include <math.h>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/sdpa.h"

enum { ROWS = 64, KEYS = 64, THREADS = 128 };

struct fwd {
    struct heads<bf16> a;
    bf16 *o;
    float *lse;
    int blocks; /* of queries */
};

/* A warp's 16 rows so far: the lane has rows g and g + 8. */
struct softmax {
    float max[2], sum[2]; /* of scores in units of ln 2; the sum over this lane's columns */
};

/* p = 2^(score - max) of the new scores, where seen; rescales what was there before. */
template <int N>
static __device__ __forceinline__ void softmax_step(struct softmax *st, float s[KEYS / 8][4],
                                                    float o[N][4])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float max = st->max[half], sum = 0;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            max = fmaxf(max, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        max = fmaxf(max, __shfl_xor_sync(FULL_WARP, max, 1));
        max = fmaxf(max, __shfl_xor_sync(FULL_WARP, max, 2));
        const float from = max == -INFINITY ? 0.0f : max; /* no key seen yet */
        const float keep = fast_exp2(st->max[half] - from);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                s[n][i] = fast_exp2(s[n][i] - from);
                sum += s[n][i];
            }
        st->max[half] = max;
        st->sum[half] = st->sum[half] * keep + sum;
#pragma unroll
        for (int n = 0; n < N; n++) {
            o[n][2 * half] *= keep;
            o[n][2 * half + 1] *= keep;
        }
    }
}

/* Scales the scores of keys u0 on, and hides what the two rows do not see. */
static __device__ __forceinline__ void mask(float s[KEYS / 8][4], float scale, int u0,
                                            const int first[2], const int end[2])
{
    const int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int u = u0 + n * 8 + 2 * t + i % 2;
            s[n][i] = u >= first[i / 2] && u < end[i / 2] ? s[n][i] * scale : -INFINITY;
        }
}

template <int DP, bool WIDE>
__global__ void __launch_bounds__(THREADS) attention_fwd_kernel(struct fwd p)
{
    enum { LD = DP + 8 };
    SHARED_DYNAMIC(shared);
    __shared__ int firsts[ROWS], ends[ROWS];
    bf16 *q = (bf16 *)shared, *k = q + ROWS * LD, *v = k + KEYS * LD;
    const struct heads<bf16> &a = p.a;
    const int64_t head = blockIdx.x / (unsigned)p.blocks;
    /* The last queries see most keys: they start first. */
    const int t0 = (p.blocks - 1 - (int)(blockIdx.x % (unsigned)p.blocks)) * ROWS;
    const int b = (int)(head / a.H), h = (int)(head % a.H), hk = h / (a.H / a.Hkv);
    const int warp = (int)threadIdx.x / WARP, g = (int)threadIdx.x % WARP / 4;
    const int begin = key_ranges(a, b, t0, ROWS, firsts, ends) / KEYS * KEYS;
    const int end = key_end(a, min(t0 + ROWS, a.T) - 1);
    const int row = warp * 16 + g;
    const int row_first[2] = {firsts[row], firsts[row + 8]},
              row_end[2] = {ends[row], ends[row + 8]};
    struct softmax st = {{-INFINITY, -INFINITY}, {0, 0}};
    float o[DP / 8][4];
    clear<DP / 8>(o);
    load_tile<DP, WIDE>(q, a.q + ((int64_t)b * a.T + t0) * a.q_ld + (int64_t)h * a.D, a.q_ld, ROWS,
                        a.T - t0, a.D);
    for (int u0 = begin; u0 < end; u0 += KEYS) {
        const int64_t at = b * a.kv_stride + u0 * a.kv_ld + (int64_t)hk * a.D;
        float s[KEYS / 8][4];
        __syncthreads();
        load_tile<DP, WIDE>(k, a.k + at, a.kv_ld, KEYS, a.Tk - u0, a.D);
        load_tile<DP, WIDE>(v, a.v + at, a.kv_ld, KEYS, a.Tk - u0, a.D);
        __syncthreads();
        clear<KEYS / 8>(s);
        times_rows<DP, KEYS / 8>(s, q + warp * 16 * LD, k);
        mask(s, a.scale * LOG2E, u0, row_first, row_end);
        softmax_step<DP / 8>(&st, s, o);
        times_columns<DP, KEYS / 8>(o, s, v);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = st.sum[half];
        sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        sum += __shfl_xor_sync(FULL_WARP, sum, 2);
        const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
        for (int n = 0; n < DP / 8; n++) {
            o[n][2 * half] *= inverse;
            o[n][2 * half + 1] *= inverse;
        }
        const int t = t0 + row + 8 * half;
        if (p.lse && t < a.T && threadIdx.x % 4 == 0)
            p.lse[head * a.T + t] = (st.max[half] + log2f(sum)) * LN2;
    }
    __syncwarp(); /* the warp's rows of q become those of o */
    bf16 *out = p.o + (((int64_t)b * a.T + t0 + warp * 16) * a.H + h) * a.D;
    store_rows<DP, WIDE>(out, (int64_t)a.H * a.D, q + warp * 16 * LD, o, a.T - t0 - warp * 16, a.D);
}

template <int DP> static int run(const struct fwd &p, bool wide, struct stream *s)
{
    const size_t shared = (size_t)(ROWS + 2 * KEYS) * (DP + 8) * sizeof(bf16);
    dim3 grid((unsigned)(p.blocks * p.a.B * p.a.H));
    return wide ? launch(s, attention_fwd_kernel<DP, true>, grid, THREADS, shared, p)
                : launch(s, attention_fwd_kernel<DP, false>, grid, THREADS, shared, p);
}

extern "C" int cuda_attention_fwd(struct device *dev, const struct attention_fwd *p,
                                  struct stream *s)
{
    const int dims[4] = {p->B, p->T, p->H, p->D};
    if (p->q || p->klen || p->scale > 0 || p->bias || p->T > 4096 || p->Tk > 4096 || p->D > 128)
        return -ERR_DEVICE;
    if (p->dt == DT_F32)
        return cuda_attention_fwd_f32(p, s);
    int rc = sdpa_fwd(p, s);
    if (rc <= 0)
        return rc;
    struct fwd f;
    f.a = make_heads<bf16>(p->qkv, dims, p->Hkv, p->start, p->causal, s->st->fault);
    use_cache(&f.a, p);
    f.o = (bf16 *)p->o;
    f.lse = p->lse;
    f.blocks = (p->T + ROWS - 1) / ROWS;
    const bool wide = wide_heads(f.a) && aligned16(p->o);
    return p->D <= 32   ? run<32>(f, wide, s)
           : p->D <= 64 ? run<64>(f, wide, s)
           : p->D <= 80 ? run<80>(f, wide, s)
                        : run<128>(f, wide, s);
}
