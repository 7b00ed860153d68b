/* Rates of what the encoder of an AutoencoderKL runs:  bench_frozen [THREADS] [BATCH]
 *
 * The best of the runs counts. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "kernels/device/device.h"
#include "kernels/profile.h"

enum { ROUNDS = 12 };

static struct device *dev;
static struct err err;

static void must(int r)
{
    if (r < 0) {
        fprintf(stderr, "bench_frozen: %s\n", err.msg[0] ? err.msg : err_text(r));
        exit(1);
    }
}

static void *buffer(int64_t n, enum dtype dt)
{
    void *p;
    size_t bytes = (size_t)n * dtype_bytes(dt);
    must(dev->ops->alloc(dev, bytes, &p, &err));
    must(dev->ops->zero(dev, p, bytes, NULL));
    return p;
}

static const struct conv2d convs[] = {
    {.H = 256, .W = 256, .Cin = 3, .Cout = 128, .k = 3, .stride = 1, .pad_low = 1, .pad_high = 1},
    {.H = 256, .W = 256, .Cin = 128, .Cout = 128, .k = 3, .stride = 1, .pad_low = 1, .pad_high = 1},
    {.H = 256, .W = 256, .Cin = 128, .Cout = 128, .k = 3, .stride = 2, .pad_low = 0, .pad_high = 1},
    {.H = 64, .W = 64, .Cin = 128, .Cout = 128, .k = 3, .stride = 1, .pad_low = 1, .pad_high = 1},
    {.H = 64, .W = 64, .Cin = 256, .Cout = 512, .k = 1, .stride = 1},
    {.H = 32, .W = 32, .Cin = 256, .Cout = 512, .k = 3, .stride = 1, .pad_low = 1, .pad_high = 1},
    {.H = 32, .W = 32, .Cin = 512, .Cout = 512, .k = 3, .stride = 1, .pad_low = 1, .pad_high = 1},
    {.H = 64, .W = 64, .Cin = 512, .Cout = 512, .k = 3, .stride = 2, .pad_low = 0, .pad_high = 1},
    {.H = 32, .W = 32, .Cin = 512, .Cout = 8, .k = 3, .stride = 1, .pad_low = 1, .pad_high = 1},
};

static void bench_conv(struct conv2d p, int B, enum dtype dt)
{
    const int64_t out = (int64_t)conv2d_side(&p, p.H) * conv2d_side(&p, p.W) * p.Cout * B;
    const int64_t taps = (int64_t)p.k * p.k * p.Cin;
    void *y = buffer(out, dt), *x = buffer((int64_t)B * p.H * p.W * p.Cin, dt);
    void *w = buffer(p.Cout * taps, dt);
    double best = 1e30;
    p.y = y;
    p.x = x;
    p.w = w;
    p.B = B;
    p.dt = dt;
    for (int i = 0; i < ROUNDS; i++) {
        double start = profile_now();
        must(dev->ops->conv2d_fwd(dev, &p, NULL));
        double t = profile_now() - start;
        best = t < best ? t : best;
    }
    printf("conv %dx%d/%d %-5s %4d x %-4d %4d -> %-4d %9.3f ms %8.1f GFLOP/s\n", p.k, p.k, p.stride,
           dtype_name(dt), p.H, p.W, p.Cin, p.Cout, best * 1e3,
           2e-9 * (double)out * (double)taps / best);
    dev->ops->free(dev, y);
    dev->ops->free(dev, x);
    dev->ops->free(dev, w);
}

static void bench_norm(int B, int side, int C, enum dtype dt)
{
    const int64_t n = (int64_t)B * side * side * C;
    void *x = buffer(n, dt);
    float *w = buffer(C, DT_F32);
    struct groupnorm_fwd p = {.y = x, .x = x, .w = w, .b = w, .eps = 1e-6f, .B = B, .C = C};
    double best = 1e30;
    p.N = (int64_t)side * side;
    p.groups = 32;
    p.silu = true;
    p.dt = dt;
    for (int i = 0; i < ROUNDS; i++) {
        double start = profile_now();
        must(dev->ops->groupnorm_fwd(dev, &p, NULL));
        double t = profile_now() - start;
        best = t < best ? t : best;
    }
    printf("GroupNorm+SiLU %-5s %4d x %-4d %4d %17.3f ms %8.1f GB/s\n", dtype_name(dt), side, side,
           C, best * 1e3, 2e-9 * (double)n * (double)dtype_bytes(dt) / best);
    dev->ops->free(dev, x);
    dev->ops->free(dev, w);
}

int main(int argc, char **argv)
{
    const int threads = argc > 1 ? atoi(argv[1]) : 0, B = argc > 2 ? atoi(argv[2]) : 1;
    must(device_open("cpu", threads, &dev, &err));
    printf("%s, batch %d\n", dev->about, B);
    for (int dt = DT_F32; dt <= DT_BF16; dt++) {
        for (size_t i = 0; i < sizeof convs / sizeof *convs; i++)
            bench_conv(convs[i], B, (enum dtype)dt);
        bench_norm(B, 256, 128, (enum dtype)dt);
        bench_norm(B, 64, 256, (enum dtype)dt);
        bench_norm(B, 32, 512, (enum dtype)dt);
    }
    device_close(dev);
    return 0;
}
