/* Attention's backward on the tensor cores: probabilities come back from lse, one kernel gives
 * dq to blocks of queries and another dk and dv to blocks of keys, so that nothing is added
 * from two places at once and the order of every sum is fixed. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/sdpa.h"

enum { ROWS = 64, THREADS = 128 };

struct bwd {
    struct heads<bf16> a;
    bf16 *dq, *dk, *dv; /* as q, k and v lie */
    const bf16 *d_o, *o;
    const float *lse;
    float *delta;           /* (B,H,T) sum over D of d_o * o */
    int blocks, key_blocks; /* of queries, and of keys */
};

/* One warp to a row of d_o and o. */
template <bool WIDE> __global__ void __launch_bounds__(THREADS) delta_kernel(struct bwd p)
{
    const struct heads<bf16> &a = p.a;
    const int64_t i = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    const int64_t rows = (int64_t)a.B * a.T * a.H;
    const int lane = (int)threadIdx.x % WARP;
    float sum = 0;
    for (int c = lane * 8; i < rows && c < a.D; c += WARP * 8) {
        float x[8], y[8];
        load<WIDE, 8>(x, p.d_o + i * a.D + c, a.D - c);
        load<WIDE, 8>(y, p.o + i * a.D + c, a.D - c);
#pragma unroll
        for (int k = 0; k < 8; k++)
            sum += x[k] * y[k];
    }
    sum = warp_sum(sum);
    const int64_t h = i % a.H, t = i / a.H % a.T, b = i / a.H / a.T;
    if (lane == 0 && i < rows)
        p.delta[(b * a.H + h) * a.T + t] = sum;
}

/* s = probability, dp = gradient of the unscaled score, of an element. */
static __device__ __forceinline__ void score_grad(float *s, float *dp, bool seen, float factor,
                                                  float scale, float lse2, float delta)
{
    *s = seen ? fast_exp2(*s * factor - lse2) : 0.0f;
    *dp = *s * (*dp - delta) * scale;
}

template <int DP, bool WIDE>
__global__ void __launch_bounds__(THREADS) attention_dq_kernel(struct bwd p)
{
    enum { LD = DP + 8, KEYS = 64 };
    SHARED_DYNAMIC(shared);
    __shared__ int firsts[ROWS], ends[ROWS];
    bf16 *q = (bf16 *)shared, *d_o = q + ROWS * LD, *k = d_o + ROWS * LD, *v = k + KEYS * LD;
    const struct heads<bf16> &a = p.a;
    const int64_t head = blockIdx.x / (unsigned)p.blocks;
    const int t0 = (p.blocks - 1 - (int)(blockIdx.x % (unsigned)p.blocks)) * ROWS;
    const int b = (int)(head / a.H), h = (int)(head % a.H), hk = h / (a.H / a.Hkv);
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int begin = key_ranges(a, b, t0, ROWS, firsts, ends) / KEYS * KEYS;
    const int end = key_end(a, b, min(t0 + ROWS, a.T) - 1), row = warp * 16 + lane / 4;
    const int keys = keys_of(a, b);
    int row_first[2], row_end[2];
    float lse2[2], delta[2], dq[DP / 8][4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int r = row + 8 * i, t = t0 + r;
        row_first[i] = firsts[r];
        row_end[i] = ends[r];
        lse2[i] = t < a.T ? p.lse[head * a.T + t] * LOG2E : 0.0f;
        delta[i] = t < a.T ? p.delta[head * a.T + t] : 0.0f;
    }
    clear<DP / 8>(dq);
    const int64_t q_row = (int64_t)b * a.T + t0;
    load_tile<DP, WIDE>(q, a.q + q_row * a.q_ld + (int64_t)h * a.D, a.q_ld, ROWS, a.T - t0, a.D);
    load_tile<DP, WIDE>(d_o, p.d_o + (q_row * a.H + h) * a.D, (int64_t)a.H * a.D, ROWS, a.T - t0,
                        a.D);
    for (int u0 = begin; u0 < end; u0 += KEYS) {
        const int64_t at = b * a.kv_stride + u0 * a.kv_ld + (int64_t)hk * a.D;
        float s[KEYS / 8][4], dp[KEYS / 8][4];
        __syncthreads();
        load_tile<DP, WIDE>(k, a.k + at, a.kv_ld, KEYS, keys - u0, a.D);
        load_tile<DP, WIDE>(v, a.v + at, a.kv_ld, KEYS, keys - u0, a.D);
        __syncthreads();
        clear<KEYS / 8>(s);
        clear<KEYS / 8>(dp);
        times_rows<DP, KEYS / 8>(s, q + warp * 16 * LD, k);
        times_rows<DP, KEYS / 8>(dp, d_o + warp * 16 * LD, v);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int u = u0 + n * 8 + lane % 4 * 2 + i % 2;
                score_grad(&s[n][i], &dp[n][i], u >= row_first[i / 2] && u < row_end[i / 2],
                           a.scale * LOG2E, a.scale, lse2[i / 2], delta[i / 2]);
            }
        times_columns<DP, KEYS / 8>(dq, dp, k);
    }
    __syncwarp();
    store_rows<DP, WIDE>(p.dq + (q_row + warp * 16) * a.q_ld + (int64_t)h * a.D, a.q_ld,
                         q + warp * 16 * LD, dq, a.T - t0 - warp * 16, a.D);
}

/* Adds a tile of queries to the gradients of a warp's 16 keys from `u` on; the lane has keys u and
 * u + 8. */
template <int DP, int N>
static __device__ __forceinline__ void
keys_step(float dk[DP / 8][4], float dv[DP / 8][4], const struct heads<bf16> &a, const bf16 *k,
          const bf16 *v, const bf16 *q, const bf16 *d_o, int u, const int *firsts, const int *ends,
          const float *lse2, const float *delta)
{
    const int t = (int)threadIdx.x % 4;
    float s[N][4], dp[N][4];
    clear<N>(s);
    clear<N>(dp);
    times_rows<DP, N>(s, k, q);
    times_rows<DP, N>(dp, v, d_o);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int column = n * 8 + 2 * t + i % 2, key = u + i / 2 * 8;
            score_grad(&s[n][i], &dp[n][i], key >= firsts[column] && key < ends[column],
                       a.scale * LOG2E, a.scale, lse2[column], delta[column]);
        }
    times_columns<DP, N>(dv, s, d_o);
    times_columns<DP, N>(dk, dp, q);
}

template <int DP, int QUERIES, bool WIDE>
__global__ void __launch_bounds__(THREADS) attention_dkv_kernel(struct bwd p)
{
    enum { LD = DP + 8 };
    SHARED_DYNAMIC(shared);
    __shared__ int firsts[QUERIES], ends[QUERIES];
    __shared__ float lse2[QUERIES], delta[QUERIES];
    bf16 *k = (bf16 *)shared, *v = k + ROWS * LD, *q = v + ROWS * LD, *d_o = q + QUERIES * LD;
    const struct heads<bf16> &a = p.a;
    const int u0 = (int)(blockIdx.x % (unsigned)p.key_blocks) * ROWS;
    const int64_t head = blockIdx.x / (unsigned)p.key_blocks;
    const int b = (int)(head / a.Hkv), hk = (int)(head % a.Hkv), share = a.H / a.Hkv;
    const int warp = (int)threadIdx.x / WARP, row = warp * 16 + (int)threadIdx.x % WARP / 4;
    const int64_t at = b * a.kv_stride + u0 * a.kv_ld + (int64_t)hk * a.D;
    float dk[DP / 8][4], dv[DP / 8][4];
    clear<DP / 8>(dk);
    clear<DP / 8>(dv);
    const int keys = keys_of(a, b);
    load_tile<DP, WIDE>(k, a.k + at, a.kv_ld, ROWS, keys - u0, a.D);
    load_tile<DP, WIDE>(v, a.v + at, a.kv_ld, ROWS, keys - u0, a.D);
    const int from = u0 < keys ? first_query(a, u0) / QUERIES * QUERIES : a.T;
    for (int h = hk * share; h < (hk + 1) * share; h++)
        for (int t0 = from; t0 < a.T; t0 += QUERIES) {
            if (key_ranges(a, b, t0, QUERIES, firsts, ends) >= u0 + ROWS)
                continue; /* other documents */
            const int64_t q_row = (int64_t)b * a.T + t0;
            load_tile<DP, WIDE>(q, a.q + q_row * a.q_ld + (int64_t)h * a.D, a.q_ld, QUERIES,
                                a.T - t0, a.D);
            load_tile<DP, WIDE>(d_o, p.d_o + (q_row * a.H + h) * a.D, (int64_t)a.H * a.D, QUERIES,
                                a.T - t0, a.D);
            for (int i = (int)threadIdx.x; i < QUERIES; i += THREADS) {
                const int64_t stat = ((int64_t)b * a.H + h) * a.T + t0 + i;
                lse2[i] = t0 + i < a.T ? p.lse[stat] * LOG2E : 0.0f;
                delta[i] = t0 + i < a.T ? p.delta[stat] : 0.0f;
            }
            __syncthreads();
            keys_step<DP, QUERIES / 8>(dk, dv, a, k + warp * 16 * LD, v + warp * 16 * LD, q, d_o,
                                       u0 + row, firsts, ends, lse2, delta);
        }
    __syncthreads();
    const int64_t to = at + warp * 16 * a.kv_ld;
    const int valid = a.Tk - u0 - warp * 16;
    store_rows<DP, WIDE>(p.dk + to, a.kv_ld, k + warp * 16 * LD, dk, valid, a.D);
    store_rows<DP, WIDE>(p.dv + to, a.kv_ld, v + warp * 16 * LD, dv, valid, a.D);
}

template <int DP, int QUERIES, bool WIDE> static int run(const struct bwd &p, struct stream *s)
{
    const struct heads<bf16> &a = p.a;
    const size_t row = (DP + 8) * sizeof(bf16);
    const int64_t rows = (int64_t)a.B * a.T * a.H;
    int rc = launch(s, delta_kernel<WIDE>, dim3(blocks_of(rows, THREADS / WARP)), THREADS, 0, p);
    if (rc == 0)
        rc = launch(s, attention_dq_kernel<DP, WIDE>, dim3((unsigned)(p.blocks * a.B * a.H)),
                    THREADS, 4 * ROWS * row, p);
    if (rc == 0)
        rc = launch(s, attention_dkv_kernel<DP, QUERIES, WIDE>,
                    dim3((unsigned)(p.key_blocks * a.B * a.Hkv)), THREADS,
                    (2 * ROWS + 2 * QUERIES) * row, p);
    return rc;
}

template <int DP, int QUERIES> static int run(const struct bwd &p, bool wide, struct stream *s)
{
    return wide ? run<DP, QUERIES, true>(p, s) : run<DP, QUERIES, false>(p, s);
}

extern "C" int cuda_attention_bwd(struct device *dev, const struct attention_bwd *p,
                                  struct stream *s)
{
    void *delta;
    if (p->dt == DT_F32)
        return cuda_attention_bwd_f32(p, s);
    int rc = sdpa_bwd(p, s);
    if (rc <= 0)
        return rc;
    if (hopper_attention_fits(p, s))
        return hopper_attention_bwd(p, s);
    rc = cuda_scratch(s, (size_t)p->B * (size_t)p->T * (size_t)p->H * sizeof(float), &delta);
    if (rc < 0)
        return rc;
    struct bwd w;
    w.a = make_heads<bf16>(p, p->q ? p->Tk : 0, 0, s->st->fault);
    w.dq = (bf16 *)(p->q ? p->dq : p->dqkv);
    w.dk = p->q ? (bf16 *)p->dkv : w.dq + (int64_t)w.a.H * w.a.D;
    w.dv = w.dk + (int64_t)w.a.Hkv * w.a.D;
    w.d_o = (const bf16 *)p->d_o;
    w.o = (const bf16 *)p->o;
    w.lse = p->lse;
    w.delta = (float *)delta;
    w.blocks = (p->T + ROWS - 1) / ROWS;
    w.key_blocks = (w.a.Tk + ROWS - 1) / ROWS;
    const bool wide = wide_heads(w.a) && aligned16(w.dq, w.dk, p->d_o) && aligned16(p->o);
    return p->D <= 32   ? run<32, 64>(w, wide, s)
           : p->D <= 64 ? run<64, 64>(w, wide, s)
           : p->D <= 80 ? run<80, 64>(w, wide, s)
                        : run<128, 32>(w, wide, s);
}
