/* Rate of each operation at the sizes of one training step, and of oneDNN's matmul
 * beside ours:  bench_ops [THREADS] [BATCH] [matmul|other|all]
 *
 * Each product is timed alternately with oneDNN's, so that a busy machine hurts both;
 * the best of the runs counts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "kernels/device/device.h"
#include "kernels/profile.h"
#include "tests/bench/kernels/floor.h"

enum { T = 64, C = 384, H = 6, ROUNDS = 12 };

static struct device *dev;
static struct err err;

static void *buffer(size_t bytes)
{
    void *p;
    if (dev->ops->alloc(dev, bytes, &p, &err) < 0) {
        fprintf(stderr, "bench_ops: %s\n", err.msg);
        exit(1);
    }
    dev->ops->zero(dev, p, bytes, NULL);
    return p;
}

static void must(int r)
{
    if (r < 0) {
        fprintf(stderr, "bench_ops: an operation failed: %s\n", err_text(r));
        exit(1);
    }
}

/* ---- products ---- */

struct product {
    const char *what;
    enum mm_layout layout;
    enum mm_epilogue epilogue;
    int64_t m, n, k; /* 0 stands for the tokens */
    bool out_f32;
};

static const struct product products[] = {
    {"qkv", MM_NT, MM_PLAIN, 0, 3 * C, C, false},
    {"proj", MM_NT, MM_PLAIN, 0, C, C, false},
    {"fc1+gelu", MM_NT, MM_GELU, 0, 4 * C, C, false},
    {"fc2", MM_NT, MM_PLAIN, 0, C, 4 * C, false},
    {"d qkv", MM_NN, MM_PLAIN, 0, C, 3 * C, false},
    {"d proj", MM_NN, MM_PLAIN, 0, C, C, false},
    {"d fc1", MM_NN, MM_PLAIN, 0, C, 4 * C, false},
    {"d fc2*gelu'", MM_NN, MM_DGELU, 0, 4 * C, C, false},
    {"dW qkv", MM_TN, MM_PLAIN, 3 * C, C, 0, true},
    {"dW proj", MM_TN, MM_PLAIN, C, C, 0, true},
    {"dW fc1", MM_TN, MM_PLAIN, 4 * C, C, 0, true},
    {"dW fc2", MM_TN, MM_PLAIN, C, 4 * C, 0, true},
};

static double bench_product(const struct product *p, int64_t tokens, enum dtype dt,
                            double *ret_onednn)
{
    const int64_t mnk[3] = {p->m ? p->m : tokens, p->n, p->k ? p->k : tokens};
    enum dtype c_dt = p->out_f32 ? DT_F32 : dt;
    struct matmul mm = {.layout = p->layout, .epilogue = p->epilogue, .dt = dt, .c_dt = c_dt};
    mm.m = mnk[0];
    mm.n = mnk[1];
    mm.k = mnk[2];
    size_t c_bytes = (size_t)(mm.m * mm.n) * dtype_bytes(c_dt);
    void *a = buffer((size_t)(mm.m * mm.k) * dtype_bytes(dt));
    void *b = buffer((size_t)(mm.n * mm.k) * dtype_bytes(dt));
    float *sums = buffer((size_t)mm.m * sizeof *sums), *bias = buffer((size_t)mm.n * sizeof *bias);
    mm.a = a;
    mm.b = b;
    mm.c = buffer(c_bytes);
    mm.aux = p->epilogue == MM_PLAIN ? NULL : buffer(c_bytes);
    mm.bias = p->layout == MM_NT ? bias : NULL;
    mm.a_colsum = p->layout == MM_TN ? sums : NULL;
    mm.accumulate = p->layout == MM_TN;
    double best = 1e30, other = 1e30;
    for (int round = 0; round < 3; round++) {
        double t;
        for (int i = 0; i < ROUNDS; i++) {
            double start = profile_now();
            must(dev->ops->matmul(dev, &mm, NULL));
            t = profile_now() - start;
            best = t < best ? t : best;
        }
        if (profile_onednn_seconds(p->layout, mnk, dt, c_dt, dev->threads, &t, &err) < 0) {
            fprintf(stderr, "bench_ops: %s\n", err.msg);
            exit(1);
        }
        other = t < other ? t : other;
    }
    dev->ops->free(dev, a);
    dev->ops->free(dev, b);
    dev->ops->free(dev, sums);
    dev->ops->free(dev, bias);
    dev->ops->free(dev, mm.c);
    dev->ops->free(dev, mm.aux);
    *ret_onednn = other;
    return best;
}

static void bench_products(int64_t tokens)
{
    printf("%-12s %-5s %18s %10s %10s %10s\n", "product", "type", "m x n x k", "GFLOP/s", "oneDNN",
           "ratio");
    /* Without a product of bf16 ours is f32's, and oneDNN has none. */
    for (int dt = dev->fast_bf16 ? DT_BF16 : DT_F32; dt >= DT_F32; dt--) {
        double sum = 0, sum_other = 0;
        for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
            const struct product *p = &products[i];
            int64_t m = p->m ? p->m : tokens, k = p->k ? p->k : tokens;
            double other, t = bench_product(p, tokens, (enum dtype)dt, &other);
            double flop = 2e-9 * (double)m * (double)p->n * (double)k;
            char dims[64];
            snprintf(dims, sizeof dims, "%lldx%lldx%lld", (long long)m, (long long)p->n,
                     (long long)k);
            printf("%-12s %-5s %18s %10.1f %10.1f %9.2fx\n", p->what, dtype_name((enum dtype)dt),
                   dims, flop / t, flop / other, other / t);
            sum += t;
            sum_other += other;
        }
        printf("%-12s %-5s %18s %8.2f ms %7.2f ms %8.2fx\n", "a block", dtype_name((enum dtype)dt),
               "", sum * 1e3, sum_other * 1e3, sum_other / sum);
    }
}

/* ---- the rest ---- */

typedef void bench_fn(void *arg);

static void report(const char *what, enum dtype dt, bench_fn *fn, void *arg, double bytes,
                   double flop)
{
    double best = 1e30;
    for (int i = 0; i < ROUNDS; i++) {
        double start = profile_now();
        fn(arg);
        double t = profile_now() - start;
        best = t < best ? t : best;
    }
    printf("%-16s %-5s %10.3f ms %9.1f GB/s", what, dtype_name(dt), best * 1e3,
           1e-9 * bytes / best);
    if (flop > 0)
        printf(" %9.1f GFLOP/s", 1e-9 * flop / best);
    printf("\n");
}

static void run_adaln_fwd(void *p)
{
    must(dev->ops->adaln_fwd(dev, p, NULL));
}

static void run_adaln_bwd(void *p)
{
    must(dev->ops->adaln_bwd(dev, p, NULL));
}

static void run_attention_fwd(void *p)
{
    must(dev->ops->attention_fwd(dev, p, NULL));
}

static void run_attention_bwd(void *p)
{
    must(dev->ops->attention_bwd(dev, p, NULL));
}

static void run_adamw(void *p)
{
    must(dev->ops->adamw(dev, p, NULL));
}

static void bench_adaln(int B, enum dtype dt)
{
    size_t n = (size_t)B * T * C, es = dtype_bytes(dt);
    float *x = buffer(4 * n), *dx = buffer(4 * n), *mod = buffer(4 * (size_t)B * C);
    float *dmod = buffer(4 * (size_t)B * C * 3), *stats = buffer(8 * (size_t)B * T);
    void *y = buffer(es * n), *h = buffer(es * n);
    struct adaln_fwd f = {.x = x,
                          .h = h,
                          .stats = stats,
                          .x_in = x,
                          .y = y,
                          .gate = mod,
                          .shift = mod,
                          .scale = mod,
                          .mod_ld = C,
                          .B = B,
                          .T = T,
                          .C = C,
                          .dt = dt};
    struct adaln_bwd b = {.dx = dx,
                          .dshift = dmod,
                          .dscale = dmod + B * C,
                          .dy = h,
                          .dgate = dmod + 2 * B * C,
                          .dh = y,
                          .x = x,
                          .stats = stats,
                          .scale = mod,
                          .y = y,
                          .gate = mod,
                          .mod_ld = C,
                          .B = B,
                          .T = T,
                          .C = C,
                          .dt = dt};
    report("adaln_fwd", dt, run_adaln_fwd, &f, (double)n * (8 + 2 * (double)es), 0);
    report("adaln_bwd", dt, run_adaln_bwd, &b, (double)n * (12 + 3 * (double)es), 0);
    float *own[] = {x, dx, mod, dmod, stats};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        dev->ops->free(dev, own[i]);
    dev->ops->free(dev, y);
    dev->ops->free(dev, h);
}

static void bench_attention(int B, enum dtype dt)
{
    size_t n = (size_t)B * T * C, es = dtype_bytes(dt);
    void *qkv = buffer(3 * n * es), *dqkv = buffer(3 * n * es), *o = buffer(n * es);
    float *lse = buffer((size_t)B * H * T * 4);
    struct attention_fwd f = {
        .o = o, .lse = lse, .qkv = qkv, .B = B, .T = T, .H = H, .D = C / H, .dt = dt};
    struct attention_bwd b = {.dqkv = dqkv,
                              .d_o = o,
                              .o = o,
                              .lse = lse,
                              .qkv = qkv,
                              .B = B,
                              .T = T,
                              .H = H,
                              .D = C / H,
                              .dt = dt};
    double flop = 4.0 * T * (double)n;
    report("attention_fwd", dt, run_attention_fwd, &f, 4.0 * (double)(n * es), flop);
    report("attention_bwd", dt, run_attention_bwd, &b, 8.0 * (double)(n * es), 2.5 * flop);
    dev->ops->free(dev, qkv);
    dev->ops->free(dev, dqkv);
    dev->ops->free(dev, o);
    dev->ops->free(dev, lse);
}

/* What cross-attention and encoders ask for, queries apart from keys: the first row is what the
 * others compare with. */
static const struct apart {
    const char *what;
    int B, T, Tk, H, D;
    bool bias, backward;
} apart[] = {
    {"256 on 256 keys", 16, 256, 256, 6, 64, false, true},
    {"256 on 300 keys", 16, 256, 300, 6, 64, false, true},
    {"256 on 77 keys", 16, 256, 77, 6, 64, false, true},
    {"256, bias", 16, 256, 256, 6, 64, true, false},
    {"1024, D 512", 1, 1024, 1024, 1, 512, false, false},
    {"4096, D 512", 1, 4096, 4096, 1, 512, false, false},
};

static void bench_attention_apart(const struct apart *a, enum dtype dt)
{
    const size_t es = dtype_bytes(dt), heads = (size_t)a->B * (size_t)a->H;
    const size_t n = heads * (size_t)(a->T * a->D), keys = 2 * heads * (size_t)(a->Tk * a->D);
    void *q = buffer(n * es), *kv = buffer(keys * es), *o = buffer(n * es), *dq = buffer(n * es);
    void *dkv = buffer(keys * es);
    float *lse = buffer(heads * (size_t)a->T * 4), *bias = NULL;
    if (a->bias)
        bias = buffer((size_t)a->H * (size_t)a->T * (size_t)a->Tk * 4);
    struct attention_fwd f = {.o = o, .lse = lse, .q = q, .kv = kv, .bias = bias, .dt = dt};
    struct attention_bwd b = {.dq = dq, .dkv = dkv, .d_o = o, .o = o, .lse = lse, .dt = dt};
    b.q = q;
    b.kv = kv;
    f.B = b.B = a->B;
    f.T = b.T = a->T;
    f.Tk = b.Tk = a->Tk;
    f.H = b.H = a->H;
    f.D = b.D = a->D;
    const double flop = 4.0 * a->Tk * (double)n, bytes = (double)((2 * n + keys) * es);
    report(a->what, dt, run_attention_fwd, &f, bytes, flop);
    if (a->backward)
        report("    backward", dt, run_attention_bwd, &b, 2 * bytes, 2.5 * flop);
    void *all[] = {q, kv, o, dq, dkv, lse, bias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dev->ops->free(dev, all[i]);
}

static void bench_optimiser(void)
{
    size_t n = 8u << 20;
    float *p = buffer(4 * n), *m = buffer(4 * n), *v = buffer(4 * n), *g = buffer(4 * n);
    bf16 *h = buffer(2 * n);
    const struct adamw_now now = adamw_now(1e-4, 0.9f, 0.999f, 1);
    struct adamw a = {.p = p,
                      .p_bf16 = h,
                      .m = m,
                      .v = v,
                      .grad = g,
                      .now = &now,
                      .beta1 = 0.9f,
                      .beta2 = 0.999f,
                      .eps = 1e-8f,
                      .n = (int64_t)n};
    report("adamw", DT_F32, run_adamw, &a, (double)n * 30, 0);
    dev->ops->free(dev, p);
    dev->ops->free(dev, m);
    dev->ops->free(dev, v);
    dev->ops->free(dev, g);
    dev->ops->free(dev, h);
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 2, batch = argc > 2 ? atoi(argv[2]) : 64;
    const char *what = argc > 3 ? argv[3] : "all";
    if (batch < 1 || device_open("cpu", threads, &dev, &err) < 0) {
        fprintf(stderr, "bench_ops: %s\n", batch < 1 ? "the batch must be at least 1" : err.msg);
        return 1;
    }
    printf("%s; %d samples of %d tokens, %d channels\n", dev->about, batch, T, C);
    if (strcmp(what, "other") != 0)
        bench_products((int64_t)batch * T);
    if (strcmp(what, "matmul") != 0) {
        for (int dt = DT_BF16; dt >= DT_F32; dt--) {
            bench_adaln(batch, (enum dtype)dt);
            bench_attention(batch, (enum dtype)dt);
            for (size_t i = 0; i < sizeof apart / sizeof *apart; i++)
                bench_attention_apart(&apart[i], (enum dtype)dt);
        }
        bench_optimiser();
    }
    device_close(dev);
    return 0;
}
