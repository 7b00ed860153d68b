/* The scalars that end a training step: they stay on the card. */
#include <math.h>

#include "kernels/cuda/common.cuh"

__global__ void clip_kernel(float *scale, const double *sum, const double *also, float max_norm)
{
    if (threadIdx.x)
        return;
    const double f = max_norm > 0 ? (double)max_norm / (sqrt(*sum) + 1e-6) : 1.0;
    const bool finite = isfinite(*sum) && (!also || isfinite(*also));
    *scale = !finite ? NAN : f < 1.0 ? (float)f : 1.0f;
}

extern "C" int cuda_clip_scale(struct device *dev, float *scale, const double *sum,
                               const double *also, float max_norm, struct stream *s)
{
    return launch(s, clip_kernel, dim3(1), 32, 0, scale, sum, also, max_norm);
}

/* One block: losses are few. */
__global__ void __launch_bounds__(1024) sum_kernel(double *sum, const float *x, int64_t n)
{
    __shared__ double room[32];
    double total = 0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        total += (double)x[i];
    total = block_sum(total, room);
    if (threadIdx.x == 0)
        *sum = total;
}

/* One thread: there are as many as tensors, and their order is part of the result. */
__global__ void sum_f64_kernel(double *sum, const double *x, int64_t n)
{
    if (threadIdx.x)
        return;
    double total = 0;
    for (int64_t i = 0; i < n; i++)
        total += x[i];
    *sum = total;
}

extern "C" int cuda_sum_f64(struct device *dev, double *sum, const double *x, int64_t n,
                            struct stream *s)
{
    return launch(s, sum_f64_kernel, dim3(1), 32, 0, sum, x, n);
}

extern "C" int cuda_sum(struct device *dev, double *sum, const float *x, int64_t n,
                        struct stream *s)
{
    return launch(s, sum_kernel, dim3(1), 1024, 0, sum, x, n);
}
