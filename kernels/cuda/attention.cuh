/* What forward and backward of attention share: where heads lie, which keys a query sees, and
 * products of 16x16 pieces on the tensor cores. */
#ifndef KERNELS_CUDA_ATTENTION_CUH
#define KERNELS_CUDA_ATTENTION_CUH

#include <math.h>

#include "kernels/cuda/common.cuh"

#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f

/* Rows of heads: q of (b,t,h) at q + (b T + t) q_ld + h D; keys and values of (b,u,hk) at
 * k or v + b kv_stride + u kv_ld + hk D. */
template <typename T_> struct heads {
    const T_ *q, *k, *v;
    const int32_t *start, *klen;
    int *fault;
    int64_t q_ld, kv_ld, kv_stride;
    int B, T, Tk, H, Hkv, D;
    bool causal;
    float scale; /* of scores */
};

/* Of a forward or a backward: in qkv, in q and kv, or both.  Tk and kv_stride may be 0. */
template <typename T_, typename P_>
static inline struct heads<T_> make_heads(const P_ *p, int Tk, int64_t kv_stride, int *fault) {
    struct heads<T_> a;
    a.B = p->B;
    a.T = p->T;
    a.Tk = Tk ? Tk : p->T;
    a.H = p->H;
    a.D = p->D;
    a.Hkv = p->Hkv ? p->Hkv : p->H;
    const int64_t width = (int64_t)a.H * a.D, pair = 2 * (int64_t)a.Hkv * a.D;
    a.q = (const T_ *)(p->q ? p->q : p->qkv);
    a.q_ld = p->q ? width : width + pair;
    a.k = p->kv ? (const T_ *)p->kv : (const T_ *)p->qkv + width;
    a.v = a.k + (int64_t)a.Hkv * a.D;
    a.kv_ld = p->kv ? pair : width + pair;
    a.kv_stride = kv_stride ? kv_stride : a.Tk * a.kv_ld;
    a.start = p->start;
    a.klen = p->klen;
    a.fault = fault;
    a.causal = p->causal;
    a.scale = p->scale > 0 ? p->scale : 1.0f / sqrtf((float)a.D);
    return a;
}

/* The keys of sample b. */
template <typename T_>
static __device__ __forceinline__ int keys_of(const struct heads<T_> &a, int b)
{
    if (!a.klen)
        return a.Tk;
    const int keys = a.klen[b];
    if (keys >= 1 && keys <= a.Tk)
        return keys;
    *a.fault = CUDA_FAULT_KLEN;
    return 1;
}

/* The keys that query t of sample b sees: first <= u < end. */
template <typename T_>
static __device__ __forceinline__ int key_end(const struct heads<T_> &a, int b, int t)
{
    const int keys = keys_of(a, b);
    return a.causal ? min(a.Tk - a.T + t + 1, keys) : keys;
}

template <typename T_>
static __device__ __forceinline__ int key_first(const struct heads<T_> &a, int b, int t)
{
    if (!a.start || t >= a.T)
        return 0;
    int first = a.start[(int64_t)b * a.T + t];
    if (first < 0 || first >= key_end(a, b, t)) {
        *a.fault = CUDA_FAULT_START;
        first = 0;
    }
    return first;
}

/* first[i], end[i] of the queries t0 + i, i < n; returns the least first.  All threads. */
template <typename T_>
static __device__ __forceinline__ int key_ranges(const struct heads<T_> &a, int b, int t0, int n,
                                                 int *first, int *end)
{
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
        first[i] = t0 + i < a.T ? key_first(a, b, t0 + i) : a.Tk;
        end[i] = t0 + i < a.T ? key_end(a, b, t0 + i) : 0;
    }
    __syncthreads();
    int least = a.Tk;
    for (int i = 0; i < n; i++)
        least = min(least, first[i]);
    return least;
}

/* The first query that sees key u, or one before it. */
template <typename T_>
static __device__ __forceinline__ int first_query(const struct heads<T_> &a, int u)
{
    return a.causal ? max(u - (a.Tk - a.T), 0) : 0;
}

/* tile (rows,LD) = src (rows,D) of stride ld, zero where there is none: rows from `valid`
 * on and columns from D on up to DP.  All threads. */
template <int DP, bool WIDE>
static __device__ __forceinline__ void load_tile(bf16 *tile, const bf16 *src, int64_t ld, int rows,
                                                 int valid, int D)
{
    enum { LD = DP + 8, PIECES = DP / 8 };
    for (int i = (int)threadIdx.x; i < rows * PIECES; i += (int)blockDim.x) {
        const int r = i / PIECES, c = i % PIECES * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (WIDE) {
            if (r < valid && c < D)
                v = *(const uint4 *)(src + r * ld + c);
        } else {
            uint32_t u[4] = {0, 0, 0, 0};
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (r < valid && c + k < D)
                    u[k / 2] |= (uint32_t)src[r * ld + c + k] << (k % 2 * 16);
            v = make_uint4(u[0], u[1], u[2], u[3]);
        }
        *(uint4 *)(tile + r * LD + c) = v;
    }
}

/* Rows of one warp, 16 of them, from its accumulators through shared memory to dst. */
template <int DP, bool WIDE>
static __device__ __forceinline__ void store_rows(bf16 *dst, int64_t ld, bf16 *room,
                                                  float acc[DP / 8][4], int valid, int D)
{
    enum { LD = DP + 8, PIECES = DP / 8 };
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < DP / 8; n++) {
        *(uint32_t *)(room + g * LD + n * 8 + 2 * t) = pack_bf16(acc[n][0], acc[n][1]);
        *(uint32_t *)(room + (g + 8) * LD + n * 8 + 2 * t) = pack_bf16(acc[n][2], acc[n][3]);
    }
    __syncwarp();
    for (int i = lane; i < 16 * PIECES; i += WARP) {
        const int r = i / PIECES, c = i % PIECES * 8;
        if (r >= valid || c >= D)
            continue;
        if (WIDE) {
            *(uint4 *)(dst + r * ld + c) = *(const uint4 *)(room + r * LD + c);
        } else {
            for (int k = 0; k < 8 && c + k < D; k++)
                dst[r * ld + c + k] = room[r * LD + c + k];
        }
    }
}

/* a = the 16 rows of `rows`, columns 16 k on: the left side of mma. */
template <int LD>
static __device__ __forceinline__ void left_piece(uint32_t a[4], const bf16 *rows, int k)
{
    const int lane = (int)threadIdx.x % WARP;
    ldmatrix4(a, rows + (lane & 15) * LD + k * 16 + (lane >> 4) * 8);
}

/* acc (16,8 N) += left (16,DP) right (8 N,DP)': both sides have their sum along a row. */
template <int DP, int N>
static __device__ __forceinline__ void times_rows(float acc[N][4], const bf16 *left,
                                                  const bf16 *right)
{
    enum { LD = DP + 8 };
    const int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < DP / 16; k++) {
        uint32_t a[4], b[4];
        left_piece<LD>(a, left, k);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            ldmatrix4(b, right + (n * 8 + (lane & 7) + ((lane >> 4) << 3)) * LD + k * 16 +
                             ((lane >> 3) & 1) * 8);
            mma_bf16(acc[n], a, b[0], b[1]);
            mma_bf16(acc[n + 1], a, b[2], b[3]);
        }
    }
}

/* acc (16,DP) += p (16,8 N) right (8 N,DP), p in the accumulators of times_rows. */
template <int DP, int N>
static __device__ __forceinline__ void times_columns(float acc[DP / 8][4], float p[N][4],
                                                     const bf16 *right)
{
    enum { LD = DP + 8 };
    const int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        const uint32_t a[4] = {pack_bf16(p[2 * k][0], p[2 * k][1]),
                               pack_bf16(p[2 * k][2], p[2 * k][3]),
                               pack_bf16(p[2 * k + 1][0], p[2 * k + 1][1]),
                               pack_bf16(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
        for (int n = 0; n < DP / 16; n++) {
            uint32_t b[4];
            ldmatrix4_t(b, right + (k * 16 + (lane & 15)) * LD + n * 16 + (lane >> 4) * 8);
            mma_bf16(acc[2 * n], a, b[0], b[1]);
            mma_bf16(acc[2 * n + 1], a, b[2], b[3]);
        }
    }
}

template <int N> static __device__ __forceinline__ void clear(float acc[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            acc[n][i] = 0;
}

/* May rows of these heads be read 16 bytes at a time? */
static inline bool wide_heads(const struct heads<bf16> &a)
{
    return a.D % 8 == 0 && a.kv_stride % 8 == 0 && aligned16(a.q, a.k, a.v);
}

#endif
