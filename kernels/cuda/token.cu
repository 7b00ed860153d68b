/* Operations for decoders: rotary positions, rows of a table, cross entropy. */
#include <errno.h>
#include <math.h>

#include "kernels/cuda/common.cuh"

enum { ROPE_MAX_HALF = 128, ROPE_MAX_POSITION = 1 << 20, EMBED_THREADS = 128 };
enum { EMBED_COLUMNS = 4 * EMBED_THREADS };

/* One thread turns 8 pairs of every head of a row by the same 8 angles. */
template <typename T> struct rope_map {
    enum { STEP = 1 };
    T *x;
    const int32_t *pos;
    int *fault;
    int64_t ld;
    int heads, half, pieces;
    bool inverse, wide;
    float freq[ROPE_MAX_HALF];

    template <bool W> __device__ void run(int64_t r, int c) const
    {
        const int left = half - c, p = pos[r];
        float sine[8], cosine[8], lo[8], hi[8];
        if (p < 0 || p > ROPE_MAX_POSITION) {
            *fault = CUDA_FAULT_POSITION;
            return;
        }
#pragma unroll
        for (int k = 0; k < 8; k++) {
            /* The angle is an f32; its turns are taken off in f64. */
            float angle = k < left ? mul((float)p, freq[c + k]) : 0.0f;
            double turns = (double)angle * 0.31830988618379067154;
            sincospif((float)(turns - 2.0 * rint(turns * 0.5)), &sine[k], &cosine[k]);
            if (inverse)
                sine[k] = -sine[k];
        }
        for (int h = 0; h < heads; h++) {
            T *at = x + r * ld + (int64_t)h * 2 * half + c;
            load<W, 8>(lo, at, left);
            load<W, 8>(hi, at + half, left);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                float a = lo[k], b = hi[k];
                lo[k] = a * cosine[k] - b * sine[k];
                hi[k] = b * cosine[k] + a * sine[k];
            }
            store<W, 8>(at, lo, left);
            store<W, 8>(at + half, hi, left);
        }
    }

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        if (wide)
            run<true>(i / pieces, (int)(i % pieces) * 8);
        else
            run<false>(i / pieces, (int)(i % pieces) * 8);
    }
};

template <typename T> static int rope(const struct rope *p, struct stream *s)
{
    struct rope_map<T> f;
    f.x = (T *)p->x;
    f.pos = p->pos;
    f.fault = s->st->fault;
    f.ld = p->ld ? p->ld : (int64_t)p->heads * p->D;
    f.heads = p->heads;
    f.half = p->D / 2;
    f.pieces = (f.half + 7) / 8;
    f.inverse = p->inverse;
    f.wide = f.half % 8 == 0 && f.ld % 8 == 0 && aligned16(p->x);
    for (int i = 0; i < ROPE_MAX_HALF; i++)
        f.freq[i] = i < f.half ? rope_freq(p->theta, &p->scaling, i, p->D) : 0.0f;
    return map(s, f, p->rows * f.pieces, false);
}

extern "C" int cuda_rope(struct device *dev, const struct rope *p, struct stream *s)
{
    return p->dt == DT_BF16 ? rope<bf16>(p, s) : rope<float>(p, s);
}

/* ---- rows of a table ---- */

struct embed_map {
    enum { STEP = 4 };
    float *out;
    const float *table;
    const int32_t *ids;
    int *fault;
    int64_t C;
    int rows;
    bool accumulate;

    __device__ bool known(int id) const
    {
        if (id < 0 || id >= rows)
            *fault = CUDA_FAULT_ID;
        return id >= 0 && id < rows;
    }

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        float v[4], old[4] = {0};
        if (WIDE) {
            const int id = ids[i / C];
            if (!known(id))
                return;
            load<true, 4>(v, table + id * C + i % C, 4);
            if (accumulate)
                load<true, 4>(old, out + i, 4);
#pragma unroll
            for (int k = 0; k < 4; k++)
                v[k] += old[k];
            store<true, 4>(out + i, v, 4);
        } else {
            for (int64_t k = i; k < i + 4 && k < i + left; k++) {
                const int id = ids[k / C];
                if (known(id))
                    out[k] = (accumulate ? out[k] : 0.0f) + table[id * C + k % C];
            }
        }
    }
};

extern "C" int cuda_embed_fwd(struct device *dev, float *out, const float *table,
                              const int32_t *ids, int B, int C, int rows, bool accumulate,
                              struct stream *s)
{
    struct embed_map f = {out, table, ids, s->st->fault, C, rows, accumulate};
    return map(s, f, (int64_t)B * C, C % 4 == 0 && aligned16(out, table));
}

/* The blocks of the first sample with an id add all samples of that id, in order: block y has
 * EMBED_COLUMNS of the columns.  A thread holds its sums, and asks for all of a sample at once:
 * a frequent id makes a long chain. */
__global__ void __launch_bounds__(EMBED_THREADS)
    embed_bwd_kernel(float *dtable, const float *dout, const int32_t *ids, int B, int C, int rows,
                     int *fault)
{
    __shared__ unsigned hits[EMBED_THREADS / WARP];
    const int b = (int)blockIdx.x, id = ids[b], tid = (int)threadIdx.x;
    const int first = (int)blockIdx.y * EMBED_COLUMNS + tid;
    float sum[EMBED_COLUMNS / EMBED_THREADS];
    if (id < 0 || id >= rows) {
        if (tid == 0)
            *fault = CUDA_FAULT_ID;
        return;
    }
    for (int i = tid; i - tid < b; i += EMBED_THREADS)
        if (__syncthreads_or(i < b && ids[i] == id))
            return;
    float *row = dtable + (int64_t)id * C;
#pragma unroll
    for (int k = 0; k < EMBED_COLUMNS / EMBED_THREADS; k++)
        sum[k] = first + k * EMBED_THREADS < C ? row[first + k * EMBED_THREADS] : 0.0f;
    for (int i = b; i < B; i += EMBED_THREADS) {
        unsigned mask =
            __ballot_sync(FULL_WARP, i + tid < B && ids[i + tid < B ? i + tid : b] == id);
        if (tid % WARP == 0)
            hits[tid / WARP] = mask;
        __syncthreads();
        for (int w = 0; w < EMBED_THREADS / WARP; w++)
            for (unsigned left = hits[w]; left; left &= left - 1) {
                const float *from = dout + (int64_t)(i + w * WARP + __ffs((int)left) - 1) * C;
#pragma unroll
                for (int k = 0; k < EMBED_COLUMNS / EMBED_THREADS; k++)
                    if (first + k * EMBED_THREADS < C)
                        sum[k] += from[first + k * EMBED_THREADS];
            }
        __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < EMBED_COLUMNS / EMBED_THREADS; k++)
        if (first + k * EMBED_THREADS < C)
            row[first + k * EMBED_THREADS] = sum[k];
}

extern "C" int cuda_embed_bwd(struct device *dev, float *dtable, const float *dout,
                              const int32_t *ids, int B, int C, int rows, struct stream *s)
{
    const dim3 grid((unsigned)B, ((unsigned)C + EMBED_COLUMNS - 1) / EMBED_COLUMNS);
    if (grid.y > 65535)
        return -EINVAL;
    return launch(s, embed_bwd_kernel, grid, EMBED_THREADS, 0, dtable, dout, ids, B, C, rows,
                  s->st->fault);
}

/* ---- cross entropy ---- */

/* max and sum exp(x - max) of the values seen so far. */
struct tally {
    float max, sum;
};

static __device__ __forceinline__ void count(struct tally *t, const float v[8], int64_t left)
{
    float max = t->max;
#pragma unroll
    for (int k = 0; k < 8; k++)
        max = k < left ? fmaxf(max, v[k]) : max;
    float sum = t->sum * expf(t->max - max);
#pragma unroll
    for (int k = 0; k < 8; k++)
        sum += k < left ? expf(v[k] - max) : 0.0f;
    t->max = max;
    t->sum = sum;
}

template <typename T, typename G> struct entropy {
    float *loss;
    G *dlogits;
    const T *logits;
    const int32_t *target;
    const float *w;
    int *fault;
    float grad_scale;
    int V;
};

template <bool WIDE, typename T, typename G>
__global__ void __launch_bounds__(512) entropy_kernel(struct entropy<T, G> p)
{
    __shared__ float room[32];
    const int64_t r = blockIdx.x;
    const T *row = p.logits + r * p.V;
    const int target = p.target[r], step = (int)blockDim.x * 8, first = (int)threadIdx.x * 8;
    const bool counts = target >= 0 && target < p.V;
    if (target < -1 || target >= p.V)
        *p.fault = CUDA_FAULT_TARGET;
    const float at_target = counts ? widen(row[target]) : 0.0f;
    struct tally t = {-3.402823466e38f, 0.0f};
    float v[8];
    for (int i = first; counts && i < p.V; i += step) {
        load<WIDE, 8>(v, row + i, p.V - i);
        count(&t, v, p.V - i);
    }
    const float max = block_max(t.max, room);
    const float sum = block_sum(t.sum * expf(t.max - max), room);
    if (threadIdx.x == 0)
        p.loss[r] = counts ? logf(sum) - (at_target - max) : 0.0f;
    if (!p.dlogits)
        return;
    __syncthreads(); /* in place: the row's target has been read */
    const float factor = counts ? p.grad_scale * (p.w ? p.w[r] : 1.0f) : 0.0f;
    for (int i = first; i < p.V; i += step) {
        float g[8] = {};
        if (counts) {
            load<WIDE, 8>(v, row + i, p.V - i);
#pragma unroll
            for (int k = 0; k < 8; k++)
                g[k] = factor * (expf(v[k] - max) / sum - (i + k == target ? 1.0f : 0.0f));
        }
        store<WIDE, 8>(p.dlogits + r * p.V + i, g, p.V - i);
    }
}

template <typename T, typename G>
static int entropy_of(const struct cross_entropy *p, struct stream *s)
{
    struct entropy<T, G> e;
    e.loss = p->loss;
    e.dlogits = (G *)p->dlogits;
    e.logits = (const T *)p->logits;
    e.target = p->target;
    e.w = p->w;
    e.fault = s->st->fault;
    e.grad_scale = p->grad_scale;
    e.V = p->V;
    unsigned threads = ((unsigned)p->V / 8 + 31) / 32 * 32;
    threads = threads < 32 ? 32 : threads > 512 ? 512 : threads;
    dim3 grid((unsigned)p->rows);
    return p->V % 8 == 0 && aligned16(p->logits, p->dlogits)
               ? launch(s, entropy_kernel<true, T, G>, grid, threads, 0, e)
               : launch(s, entropy_kernel<false, T, G>, grid, threads, 0, e);
}

extern "C" int cuda_cross_entropy(struct device *dev, const struct cross_entropy *p,
                                  struct stream *s)
{
    if (p->dt == DT_BF16)
        return p->grad_dt == DT_BF16 ? entropy_of<bf16, bf16>(p, s) : entropy_of<bf16, float>(p, s);
    return p->grad_dt == DT_BF16 ? entropy_of<float, bf16>(p, s) : entropy_of<float, float>(p, s);
}
