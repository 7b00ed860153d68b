/* Attention's backward for heads that lie whole in the shared memory of a Hopper card.
 *
 * A block walks over heads, one after the other, in tiles of 64 queries; what the next tile needs
 * comes in while one is worked on.  Each of its two warpgroups has half of the keys in tiles of 64,
 * and dk and dv of these in registers; they take turns with dq, whose sum runs over all keys, from
 * score gradients in shared memory.  Every sum has a fixed order.
 *
 * A matrix lies in slabs of 8 channels by all its rows, 16 bytes a row, so that wgmma can read it
 * along its rows and along its columns.  A product whose sum runs along 72 channels takes 16 at a
 * time: the last 8 come with a slab of zeros. */
#include "kernels/cuda/attention_hopper.h"

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/wgmma.cuh"

enum {
    T = 256,
    D = 72,
    CHUNKS = D / 8,
    TILE = 64,
    THREADS = 256,
    EACH = T / TILE / 2, /* tiles of keys of a warpgroup */
};

/* Bytes of a slab of so many rows: with one row more than it has, the same row of 8 slabs lies in
 * banks of its own. */
template <int ROWS> struct slab {
    enum { BYTES = (ROWS + 1) * 16 };
};

/* Shared memory of a block: where things lie, in bytes.  Keys and values are those of this head and
 * of the next, q and d_o those of this tile of queries and of the next. */
enum {
    SLAB = slab<T>::BYTES,
    TILE_SLAB = slab<TILE>::BYTES,
    MATRIX = CHUNKS * SLAB,
    TILE_MATRIX = CHUNKS * TILE_SLAB,
    PAIRS = 0,                   /* (2) k, v */
    TILES = PAIRS + 4 * MATRIX,  /* (2) q, d_o */
    O = TILES + 4 * TILE_MATRIX, /* of the next tile, until its row sums are made */
    GRADS = O + TILE_MATRIX,     /* of scores: 8 slabs of 8 queries, a row for each key */
    ZEROS = GRADS + TILE / 8 * SLAB,
    STATS = ZEROS + TILE * 16,
    SHARED_BYTES = STATS + TILE / 2 * 16
};

struct hopper {
    const bf16 *q, *k, *v; /* rows of ld */
    const bf16 *o, *d_o;   /* (B,T,H,D) */
    const float *lse;      /* (B,H,T) */
    bf16 *dq, *dk, *dv;    /* rows of ld */
    int64_t ld;
    int H, heads; /* of a sample, and of all */
    float scale;
};

/* The place of a row of a head in q, k or v, or in their gradients; and in o. */
template <typename X>
static __device__ __forceinline__ X *row_of(X *x, const struct hopper &p, int head, int row)
{
    return x + ((int64_t)(head / p.H) * T + row) * p.ld + head % p.H * D;
}

static __device__ __forceinline__ const bf16 *out_row(const bf16 *x, const struct hopper &p,
                                                      int head, int row)
{
    return x + (((int64_t)(head / p.H) * T + row) * p.H + head % p.H) * D;
}

/* The warpgroup of this thread, in a register that the compiler knows all lanes to share: where
 * tiles lie is told by such. */
static __device__ __forceinline__ int warpgroup(void)
{
    return __shfl_sync(FULL_WARP, (int)threadIdx.x / (4 * WARP), 0);
}

/* ---- tiles come in and go out ---- */

/* Starts the copy of a matrix.  All threads. */
template <int ROWS>
static __device__ __forceinline__ void fetch(unsigned char *slabs, const bf16 *src, int64_t ld)
{
    for (int i = (int)threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        const int r = i / CHUNKS, c = i % CHUNKS;
        copy_async(slabs + c * slab<ROWS>::BYTES + r * 16, src + r * ld + c * 8);
    }
}

static __device__ __forceinline__ void fetch_tile(unsigned char *room, const struct hopper &p,
                                                  int head, int t, int turn)
{
    unsigned char *q = room + TILES + turn * 2 * TILE_MATRIX;
    fetch<TILE>(q, row_of(p.q, p, head, t), p.ld);
    fetch<TILE>(q + TILE_MATRIX, out_row(p.d_o, p, head, t), (int64_t)p.H * D);
    fetch<TILE>(room + O, out_row(p.o, p, head, t), (int64_t)p.H * D);
}

/* Of a head's keys (which = 0) or values (1). */
static __device__ __forceinline__ void fetch_pair(unsigned char *room, const struct hopper &p,
                                                  int head, int pair, int which)
{
    fetch<T>(room + PAIRS + (2 * pair + which) * MATRIX, row_of(which ? p.v : p.k, p, head, 0),
             p.ld);
}

/* A warp's 16 rows times `factor` to rows of ld, by way of 16 rows of slabs that nobody else uses
 * and that are free again after __syncwarp. */
template <int SLAB_>
static __device__ __forceinline__ void store_rows(bf16 *dst, int64_t ld, float (&acc)[CHUNKS][4],
                                                  float factor, unsigned char *rows)
{
    const int lane = (int)threadIdx.x % WARP;
    unsigned char *mine = rows + lane / 4 * 16 + lane % 4 * 4;
#pragma unroll
    for (int n = 0; n < CHUNKS; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *(uint32_t *)(mine + n * SLAB_ + half * 128) =
                pack_bf16(acc[n][2 * half] * factor, acc[n][2 * half + 1] * factor);
    __syncwarp();
    for (int i = lane; i < 16 * CHUNKS; i += WARP) {
        const int r = i / CHUNKS, c = i % CHUNKS;
        *(uint4 *)(dst + r * ld + c * 8) = *(const uint4 *)(rows + c * SLAB_ + r * 16);
    }
}

/* ---- products ---- */

/* Rows of slabs as a side of a product whose sum runs down them. */
template <int SLAB_> static __device__ __forceinline__ auto columns(const unsigned char *rows)
{
    return wgmma_tile_at(rows, 128, SLAB_);
}

/* The same where the sum runs along them, from chunk c on. */
template <int SLAB_>
static __device__ __forceinline__ auto chunks(const unsigned char *rows, int c,
                                              const unsigned char *zeros)
{
    const unsigned char *at = rows + c * SLAB_;
    return wgmma_tile_at(at, c + 1 < CHUNKS ? SLAB_ : (unsigned)(zeros - at), 128);
}

/* acc (64 keys, 64 queries) = rows of both, along the channels; not waited for. */
static __device__ __forceinline__ void times_rows(float (&acc)[TILE / 8][4],
                                                  const unsigned char *keys,
                                                  const unsigned char *queries,
                                                  const unsigned char *zeros)
{
#pragma unroll
    for (int c = 0; c < CHUNKS; c += 2)
        wgmma_ss<0, 0>(acc, chunks<SLAB>(keys, c, zeros), chunks<TILE_SLAB>(queries, c, zeros),
                       c > 0);
}

/* acc (64 keys, D) += left (64 keys, 64 queries) times rows of queries; not waited for. */
static __device__ __forceinline__ void
times_queries(float (&acc)[CHUNKS][4], uint32_t (&left)[TILE / 16][4], const unsigned char *queries)
{
#pragma unroll
    for (int i = 0; i < TILE / 16; i++)
        wgmma_rs<1>(acc, left[i], columns<TILE_SLAB>(queries + i * 256));
}

/* A product's accumulators of chunk n as the left side of another's. */
static __device__ __forceinline__ void set_left(uint32_t left[TILE / 16][4], int n, float x0,
                                                float x1, float x2, float x3)
{
    left[n / 2][n % 2 * 2] = pack_bf16(x0, x1);
    left[n / 2][n % 2 * 2 + 1] = pack_bf16(x2, x3);
}

/* stats (TILE/2): of two queries lse in units of ln 2, and the sums of d_o * o.  Four threads to a
 * query. */
static __device__ __forceinline__ void row_stats(float4 *stats, const float *lse,
                                                 const unsigned char *d_o, const unsigned char *o)
{
    const int r = (int)threadIdx.x / 4, first = (int)threadIdx.x % 4;
    float *to = (float *)&stats[r / 2] + r % 2, sum = 0;
    for (int c = first; c < CHUNKS; c += 4) {
        float x[8], y[8];
        load<true, 8>(x, (const bf16 *)(d_o + c * TILE_SLAB + r * 16), 8);
        load<true, 8>(y, (const bf16 *)(o + c * TILE_SLAB + r * 16), 8);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum += x[i] * y[i];
    }
    sum += __shfl_xor_sync(FULL_WARP, sum, 1);
    sum += __shfl_xor_sync(FULL_WARP, sum, 2);
    if (first == 0) {
        to[0] = lse[r] * LOG2E;
        to[2] = sum;
    }
}

/* From scores and the gradients of probabilities, both (64 keys, 64 queries), to left sides of
 * products: probabilities, and gradients of the scaled scores, which go to rows of `grads` too. */
static __device__ __forceinline__ void
score_grads(float (&s)[TILE / 8][4], float (&dp)[TILE / 8][4], uint32_t (&prob)[TILE / 16][4],
            uint32_t (&ds)[TILE / 16][4], const float4 *stats, unsigned char *grads, float factor)
{
    const int lane = (int)threadIdx.x % WARP, t = lane % 4;
    unsigned char *to = grads + lane / 4 * 16 + t * 4;
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
        const float4 st = stats[n * 4 + t];
        const float p0 = fast_exp2(s[n][0] * factor - st.x),
                    p1 = fast_exp2(s[n][1] * factor - st.y),
                    p2 = fast_exp2(s[n][2] * factor - st.x),
                    p3 = fast_exp2(s[n][3] * factor - st.y);
        set_left(prob, n, p0, p1, p2, p3);
        set_left(ds, n, p0 * (dp[n][0] - st.z), p1 * (dp[n][1] - st.w), p2 * (dp[n][2] - st.z),
                 p3 * (dp[n][3] - st.w));
        *(uint32_t *)(to + n * SLAB) = ds[n / 2][n % 2 * 2];
        *(uint32_t *)(to + n * SLAB + 128) = ds[n / 2][n % 2 * 2 + 1];
    }
}

/* Adds a tile of queries to the gradients of a tile of keys.  rows: score gradients of the warp's
 * keys. */
static __device__ __forceinline__ void keys_step(float (&dk)[CHUNKS][4], float (&dv)[CHUNKS][4],
                                                 const unsigned char *k, const unsigned char *v,
                                                 const unsigned char *q, const unsigned char *d_o,
                                                 const unsigned char *zeros, const float4 *stats,
                                                 unsigned char *rows, float scale)
{
    float s[TILE / 8][4], dp[TILE / 8][4];
    uint32_t prob[TILE / 16][4], ds[TILE / 16][4];
    wgmma_begin();
    times_rows(s, k, q, zeros);
    times_rows(dp, v, d_o, zeros);
    wgmma_wait();
    wgmma_done(s);
    wgmma_done(dp);
    score_grads(s, dp, prob, ds, stats, rows, scale * LOG2E);
    wgmma_begin();
    times_queries(dv, prob, d_o);
    times_queries(dk, ds, q);
    wgmma_wait(); /* there are no registers to go on with */
    wgmma_done(dv);
    wgmma_done(dk);
}

/* dq (64 queries, D) = score gradients times all keys. */
static __device__ __forceinline__ void
queries_step(float (&dq)[CHUNKS][4], const unsigned char *grads, const unsigned char *k)
{
    wgmma_begin();
#pragma unroll
    for (int u = 0; u < T; u += 16)
        wgmma_ss<1, 1>(dq, columns<SLAB>(grads + u * 16), columns<SLAB>(k + u * 16), u > 0);
    wgmma_wait();
    wgmma_done(dq);
}

/* Starts the copies for the time after tile t: the next tile, and at a head's first two tiles the
 * keys and values of the head `after`. */
static __device__ __forceinline__ void fetch_ahead(unsigned char *room, const struct hopper &p,
                                                   int head, int after, int t, int turn, int pair)
{
    if (t + TILE < T)
        fetch_tile(room, p, head, t + TILE, !turn);
    else if (after < p.heads)
        fetch_tile(room, p, after, 0, !turn);
    if (t <= TILE && after < p.heads)
        fetch_pair(room, p, after, !pair, t == TILE);
}

__global__ void __launch_bounds__(THREADS, 1) hopper_attention_kernel(struct hopper p)
{
    SHARED_DYNAMIC(room);
    const int group = warpgroup(), rows = (int)threadIdx.x / WARP % 4 * 16;
    const unsigned char *zeros = room + ZEROS;
    unsigned char *grads = room + GRADS;
    float4 *stats = (float4 *)(room + STATS);
    int turn = 0, pair = 0;
    if (threadIdx.x < TILE)
        *(uint4 *)(room + ZEROS + threadIdx.x * 16) = make_uint4(0, 0, 0, 0);
    fetch_pair(room, p, (int)blockIdx.x, 0, 0);
    fetch_pair(room, p, (int)blockIdx.x, 0, 1);
    fetch_tile(room, p, (int)blockIdx.x, 0, 0);
#pragma unroll 1
    for (int head = (int)blockIdx.x; head < p.heads; head += (int)gridDim.x) {
        unsigned char *k = room + PAIRS + 2 * pair * MATRIX, *v = k + MATRIX;
        float dk[EACH][CHUNKS][4], dv[EACH][CHUNKS][4];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            clear<CHUNKS>(dk[i]);
            clear<CHUNKS>(dv[i]);
        }
#pragma unroll 1
        for (int t = 0; t < T; t += TILE) {
            unsigned char *q = room + TILES + turn * 2 * TILE_MATRIX, *d_o = q + TILE_MATRIX;
            copy_async_wait();
            wgmma_publish();
            __syncthreads();
            row_stats(stats, p.lse + (int64_t)head * T + t, d_o, room + O);
            __syncthreads();
            fetch_ahead(room, p, head, head + (int)gridDim.x, t, turn, pair);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const int u = (2 * i + group) * TILE;
                keys_step(dk[i], dv[i], k + u * 16, v + u * 16, q, d_o, zeros, stats,
                          grads + (u + rows) * 16, p.scale);
            }
            wgmma_publish();
            __syncthreads();
            if (turn == group) {
                float dq[CHUNKS][4];
                queries_step(dq, grads, k);
                /* Nobody reads these queries any more. */
                store_rows<TILE_SLAB>(row_of(p.dq, p, head, t + rows), p.ld, dq, p.scale,
                                      q + rows * 16);
            }
            turn = !turn;
        }
        /* Nor these values, while the keys may still be read. */
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int u = (2 * i + group) * TILE + rows;
            store_rows<SLAB>(row_of(p.dk, p, head, u), p.ld, dk[i], p.scale, v + u * 16);
            __syncwarp();
            store_rows<SLAB>(row_of(p.dv, p, head, u), p.ld, dv[i], 1, v + u * 16);
        }
        pair = !pair;
    }
}

extern "C" bool hopper_attention_fits(const struct attention_bwd *p, const struct stream *s)
{
    return s->st->capability == 90 && p->dt == DT_BF16 && p->T == T && p->D == D &&
           (!p->Hkv || p->Hkv == p->H) && !p->causal && !p->start && !p->klen && !p->q &&
           (int64_t)p->B * p->H < INT32_MAX / 2 && aligned16(p->qkv, p->dqkv, p->o, p->d_o);
}

extern "C" int hopper_attention_bwd(const struct attention_bwd *p, struct stream *s)
{
    const int heads = p->B * p->H, blocks = s->st->multiprocessors;
    const int64_t width = (int64_t)p->H * D;
    struct hopper w;
    w.q = (const bf16 *)p->qkv;
    w.k = w.q + width;
    w.v = w.k + width;
    w.o = (const bf16 *)p->o;
    w.d_o = (const bf16 *)p->d_o;
    w.lse = p->lse;
    w.dq = (bf16 *)p->dqkv;
    w.dk = w.dq + width;
    w.dv = w.dk + width;
    w.ld = 3 * width;
    w.H = p->H;
    w.heads = heads;
    w.scale = p->scale > 0 ? p->scale : 1.0f / sqrtf((float)D);
    return launch(s, hopper_attention_kernel, dim3((unsigned)(heads < blocks ? heads : blocks)),
                  THREADS, SHARED_BYTES, w);
}
