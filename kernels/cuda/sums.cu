/* Reductions.  Each has an order fixed by the shapes: partial sums go to working memory and
 * a second kernel adds them one after the other. */
#include <errno.h>

#include "kernels/cuda/common.cuh"

enum {
    COLUMNS = 256, /* of a block: 32 threads of 8 */
    ROW_LANES = 8,
    SLAB_ROWS = 64,
    MAX_SLABS = 64,
    SQUARE_BLOCK = 4096,
};

/* partial (slabs,n): block (x,y) sums the rows of slab y in columns 256 x ... */
template <bool WIDE, typename T>
__global__ void __launch_bounds__(256)
    slab_sums(float *partial, const T *x, int64_t rows, int64_t n, int64_t ld, int64_t slab)
{
    __shared__ __align__(16) float room[ROW_LANES][COLUMNS];
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32;
    const int64_t column = (int64_t)blockIdx.x * COLUMNS + lane * 8, left = n - column;
    const int64_t end = (blockIdx.y + 1) * slab < rows ? (blockIdx.y + 1) * slab : rows;
    float sum[8] = {0};
    if (left > 0)
#pragma unroll 8
        for (int64_t r = blockIdx.y * slab + row; r < end; r += ROW_LANES) {
            float v[8];
            load<WIDE, 8>(v, x + r * ld + column, left);
#pragma unroll
            for (int k = 0; k < 8; k++)
                sum[k] += v[k];
        }
    store<true, 8>(&room[row][lane * 8], sum, 8);
    __syncthreads();
    const int64_t mine = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    float total = 0;
    for (int i = 0; i < ROW_LANES; i++)
        total += room[i][threadIdx.x];
    if (mine < n)
        partial[blockIdx.y * n + mine] = total;
}

/* 32 columns to a block; LANES rows of them are added at a time. */
template <int LANES>
__global__ void __launch_bounds__(LANES * 32) finish_sums(struct finish f, int64_t from)
{
    __shared__ float room[LANES][32];
    const int lane = (int)threadIdx.x % 32, first = (int)threadIdx.x / 32;
    const int64_t i = (int64_t)blockIdx.x * 32 + lane, b = from + blockIdx.y;
    const float *partial = f.partial + (blockIdx.z * f.batch + b) * f.parts * f.n;
    float *out = blockIdx.z == 0 ? f.out[0] : blockIdx.z == 1 ? f.out[1] : f.out[2];
    float sum = 0;
    if (!out)
        return;
    for (int64_t k = first; i < f.n && k < f.parts; k += LANES)
        sum += partial[k * f.n + i];
    room[first][lane] = sum;
    __syncthreads();
    if (first || i >= f.n)
        return;
    for (int k = 1; k < LANES; k++)
        sum += room[k][lane];
    out += b * f.out_ld + i;
    *out = f.accumulate ? *out + sum : sum;
}

extern "C" int cuda_finish_sums(const struct finish *f, struct stream *s)
{
    enum { MAX = 65535, MANY = 32 };
    const bool many = f->parts > MANY; /* then few columns wait long for their rows */
    for (int64_t b = 0; b < f->batch; b += MAX) {
        dim3 grid(blocks_of(f->n, 32), (unsigned)(f->batch - b < MAX ? f->batch - b : (int64_t)MAX),
                  (unsigned)f->count);
        int rc = launch(s, many ? finish_sums<32> : finish_sums<ROW_LANES>, grid,
                        many ? 1024 : ROW_LANES * 32, 0, *f, b);
        if (rc < 0)
            return rc;
    }
    return 0;
}

template <typename T>
static int column_sums(float *out, const void *x, int64_t rows, int64_t n, int64_t ld,
                       bool accumulate, struct stream *s)
{
    int64_t slabs = (rows + SLAB_ROWS - 1) / SLAB_ROWS;
    slabs = slabs < MAX_SLABS ? slabs : (int64_t)MAX_SLABS;
    void *partial;
    int rc = cuda_scratch(s, (size_t)(slabs * n) * sizeof(float), &partial);
    if (rc < 0)
        return rc;
    int64_t slab = (rows + slabs - 1) / slabs;
    dim3 grid(blocks_of(n, COLUMNS), (unsigned)slabs);
    bool wide = n % 8 == 0 && ld % 8 == 0 && aligned16(x);
    rc = wide ? launch(s, slab_sums<true, T>, grid, 256, 0, (float *)partial, (const T *)x, rows, n,
                       ld, slab)
              : launch(s, slab_sums<false, T>, grid, 256, 0, (float *)partial, (const T *)x, rows,
                       n, ld, slab);
    if (rc < 0)
        return rc;
    const struct finish f = {{out}, 1, n, (const float *)partial, 1, slabs, n, accumulate};
    return cuda_finish_sums(&f, s);
}

extern "C" int cuda_column_sums(float *out, const void *x, int64_t rows, int64_t n, int64_t ld,
                                enum dtype dt, bool accumulate, struct stream *s)
{
    if (!rows || !n)
        return 0;
    return dt == DT_BF16 ? column_sums<bf16>(out, x, rows, n, ld, accumulate, s)
                         : column_sums<float>(out, x, rows, n, ld, accumulate, s);
}

/* b ascending, as the CPU does. */
struct sum_rows_map {
    enum { STEP = 4 };
    float *row;
    const float *x;
    int64_t B, m;

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        float sum[4], v[4];
        load<WIDE, 4>(sum, row + i, left);
        for (int64_t b = 0; b < B; b++) {
            load<WIDE, 4>(v, x + b * m + i, left);
#pragma unroll
            for (int k = 0; k < 4; k++)
                sum[k] += v[k];
        }
        store<WIDE, 4>(row + i, sum, left);
    }
};

extern "C" int cuda_sum_rows(struct device *dev, float *row, const float *x, int B, int64_t m,
                             struct stream *s)
{
    struct sum_rows_map f = {row, x, B, m};
    return map(s, f, m, m % 4 == 0 && aligned16(row, x));
}

template <typename T> struct mean_tokens_map {
    enum { STEP = 1 };
    float *out;
    const T *x;
    const int32_t *len;
    int64_t T_, C;
    int begin, end;

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        const int64_t b = i / C;
        int last = len ? min(len[b], end) : end;
        float sum = 0;
        for (int t = begin; t < last; t++)
            sum += widen(x[(b * T_ + t) * C + i % C]);
        out[i] = last > begin ? sum / (float)(last - begin) : 0.0f;
    }
};

extern "C" int cuda_mean_tokens(struct device *dev, float *out, const void *x, int B, int T, int C,
                                int begin, int end, const int32_t *len, enum dtype dt,
                                struct stream *s)
{
    const int64_t n = (int64_t)B * C;
    if (dt == DT_BF16) {
        struct mean_tokens_map<bf16> f = {
            out, (const bf16 *)x, len, T, C, begin, end
        };
        return map(s, f, n, false);
    }
    struct mean_tokens_map<float> f = {
        out, (const float *)x, len, T, C, begin, end
    };
    return map(s, f, n, false);
}

__global__ void __launch_bounds__(256)
    mse_kernel(float *loss, float *dpred, const float *pred, const float *target, const float *w,
               float grad_scale, int64_t n)
{
    __shared__ double room[32];
    const int64_t b = blockIdx.x, first = b * n;
    const float g = mul(mul(2.0f, grad_scale), w ? w[b] : 1.0f) / (float)n;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        float d = pred[first + i] - target[first + i];
        sum += (double)d * (double)d;
        if (dpred)
            dpred[first + i] = mul(g, d);
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        loss[b] = (float)(sum / (double)n);
}

extern "C" int cuda_mse(struct device *dev, float *loss, float *dpred, const float *pred,
                        const float *target, const float *w, float grad_scale, int B, int64_t n,
                        struct stream *s)
{
    return launch(s, mse_kernel, dim3((unsigned)B), 256, 0, loss, dpred, pred, target, w,
                  grad_scale, n);
}

/* Spans of one launch, as an argument of it: span i has the blocks from first[i] to first[i+1]. */
enum { SPANS = 128 };
struct squares {
    double *sums, *partial;
    const float *x;
    int n;
    int first[SPANS + 1];
    int64_t offset[SPANS], count[SPANS];
};

/* partial[block] = sum of squares of 4096 values of its span. */
__global__ void __launch_bounds__(256) square_sums(const __grid_constant__ struct squares q)
{
    __shared__ double room[32];
    int span = 0;
    for (int step = SPANS / 2; step; step /= 2)
        if (span + step < q.n && q.first[span + step] <= (int)blockIdx.x)
            span += step;
    const float *x = q.x + q.offset[span];
    const int64_t first = (int64_t)((int)blockIdx.x - q.first[span]) * SQUARE_BLOCK;
    const int64_t n = q.count[span];
    const bool wide = ((uintptr_t)x & 15) == 0;
    float v[SQUARE_BLOCK / 256 / 4][4];
    double sum = 0;
#pragma unroll
    for (int i = 0; i < SQUARE_BLOCK / 256 / 4; i++) {
        const int64_t at = first + i * 1024 + threadIdx.x * 4;
        if (wide && n - at >= 4)
            load<true, 4>(v[i], x + at, 4);
        else
            load<false, 4>(v[i], x + at, n - at);
    }
#pragma unroll
    for (int i = 0; i < SQUARE_BLOCK / 256 / 4; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            sum += (double)v[i][k] * (double)v[i][k];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        q.partial[blockIdx.x] = sum;
}

/* A block for each span. */
__global__ void __launch_bounds__(1024) finish_squares(const __grid_constant__ struct squares q)
{
    __shared__ double room[32];
    const int begin = q.first[blockIdx.x], end = q.first[blockIdx.x + 1];
    double total = 0;
    for (int i = begin + (int)threadIdx.x; i < end; i += (int)blockDim.x)
        total += q.partial[i];
    total = block_sum(total, room);
    if (threadIdx.x == 0)
        q.sums[blockIdx.x] += total;
}

/* Of at most SPANS spans. */
static int square_spans(struct squares *q, const struct vec_span *spans, struct stream *s)
{
    int64_t blocks = 0;
    void *partial;
    for (int i = 0; i < q->n; i++) {
        q->first[i] = (int)blocks;
        q->offset[i] = spans[i].offset;
        q->count[i] = spans[i].count;
        blocks += (spans[i].count + SQUARE_BLOCK - 1) / SQUARE_BLOCK;
        if (blocks > INT32_MAX)
            return -EINVAL;
    }
    q->first[q->n] = (int)blocks;
    int rc = blocks ? cuda_scratch(s, (size_t)blocks * sizeof(double), &partial) : 0;
    if (rc < 0 || !blocks)
        return rc;
    q->partial = (double *)partial;
    rc = launch(s, square_sums, dim3((unsigned)blocks), 256, 0, *q);
    return rc < 0 ? rc : launch(s, finish_squares, dim3((unsigned)q->n), 1024, 0, *q);
}

extern "C" int cuda_sumsq(struct device *dev, double *sums, const float *x,
                          const struct vec_span *spans, int n, struct stream *s)
{
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i += SPANS) {
        struct squares q;
        q.sums = sums + i;
        q.x = x;
        q.n = n - i < SPANS ? n - i : (int)SPANS;
        rc = square_spans(&q, spans + i, s);
    }
    return rc;
}
