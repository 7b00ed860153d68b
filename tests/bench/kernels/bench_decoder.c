/* Where the time of a decoder's training step goes, operation by operation:
 *     bench_decoder [THREADS] [BATCH] [TOKENS] [f32|bf16]
 *
 * The operations of a forward and backward pass of one Llama block, as many times as there
 * are blocks, with the embedding, the head and the optimiser around them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "kernels/device/device.h"
#include "kernels/profile.h"
#include "tests/bench/kernels/floor.h"

enum { C = 256, H = 8, HKV = 4, D = C / H, QKV = (H + 2 * HKV) * D, M = 704, V = 257, BLOCKS = 6 };
enum { STEPS = 5, DOCUMENT = 100 };
enum { BLOCK_WEIGHTS = C * QKV + C * C + 3 * C * M, WEIGHTS = BLOCKS * BLOCK_WEIGHTS + V * C };

static struct device *dev;
static struct err err;

/* All blocks share their buffers: each is written before it is read. */
struct step {
    int B, T;
    int64_t rows;
    enum dtype dt;
    void *w; /* the weights of a block, (dt), one after the other */
    float *master, *grad, *m, *v, *table;
    float *x, *dx, *norm, *dnorm, *rstd, *lse, *loss;
    void *h, *qkv, *o, *y, *gu, *act, *logits;
    void *dqkv, *d_o, *dgu, *dact, *dh;
    int32_t *ids, *pos, *start;
};

static void must(int r)
{
    if (r < 0) {
        fprintf(stderr, "bench_decoder: an operation failed: %s\n", err_text(r));
        exit(1);
    }
}

static void *buffer(int64_t count, size_t size)
{
    void *p;
    if (dev->ops->alloc(dev, (size_t)count * size, &p, &err) < 0) {
        fprintf(stderr, "bench_decoder: %s\n", err.msg);
        exit(1);
    }
    must(dev->ops->zero(dev, p, (size_t)count * size, NULL));
    return p;
}

/* Values of about the sizes of a real step: what exp and roundings see matters little. */
static void *noise(int64_t count, enum dtype dt)
{
    void *p = buffer(count, dtype_bytes(dt));
    uint32_t state = 1;
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        dtype_set(p, dt, (size_t)i, (float)(state >> 8) / 8388608.0f - 1.0f);
    }
    return p;
}

static void make_step(struct step *s)
{
    const int64_t n = s->rows;
    const size_t es = dtype_bytes(s->dt);
    s->w = noise(BLOCK_WEIGHTS, s->dt);
    s->master = buffer(WEIGHTS, 4);
    s->grad = buffer(WEIGHTS, 4);
    s->m = buffer(WEIGHTS, 4);
    s->v = buffer(WEIGHTS, 4);
    s->table = noise(V * C, DT_F32);
    s->x = noise(n * C, DT_F32);
    s->dx = noise(n * C, DT_F32);
    s->norm = noise(C, DT_F32);
    s->dnorm = buffer(C, 4);
    s->rstd = buffer(n, 4);
    s->lse = buffer(n * H, 4);
    s->loss = buffer(n, 4);
    void **const big[] = {&s->h, &s->o, &s->y, &s->d_o, &s->dh};
    for (size_t i = 0; i < sizeof big / sizeof *big; i++)
        *big[i] = buffer(n * C, es);
    s->qkv = buffer(n * QKV, es);
    s->dqkv = buffer(n * QKV, es);
    s->gu = buffer(n * 2 * M, es);
    s->dgu = buffer(n * 2 * M, es);
    s->act = buffer(n * M, es);
    s->dact = buffer(n * M, es);
    s->logits = buffer(n * V, es);
    s->ids = buffer(n, sizeof(int32_t));
    s->pos = buffer(n, sizeof(int32_t));
    s->start = buffer(n, sizeof(int32_t));
    for (int64_t i = 0; i < n; i++) {
        s->ids[i] = (int32_t)(i * 7919 % V);
        s->start[i] = (int32_t)(i % s->T) / DOCUMENT * DOCUMENT;
        s->pos[i] = (int32_t)(i % s->T) - s->start[i];
    }
}

static void free_step(struct step *s)
{
    void *const all[] = {s->w,   s->master, s->grad,  s->m,    s->v,   s->table,  s->x,
                         s->dx,  s->norm,   s->dnorm, s->rstd, s->lse, s->loss,   s->h,
                         s->qkv, s->o,      s->y,     s->gu,   s->act, s->logits, s->dqkv,
                         s->d_o, s->dgu,    s->dact,  s->dh,   s->ids, s->pos,    s->start};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dev->ops->free(dev, all[i]);
}

/* y (rows,out) = x (rows,in) Wᵀ, W from element `at` of the block's weights. */
static void linear(const struct step *s, void *y, const void *x, int64_t at, int out, int in)
{
    const char *w = (const char *)s->w + at * (int64_t)dtype_bytes(s->dt);
    struct matmul mm = {.layout = MM_NT, .m = s->rows, .n = out, .k = in, .c = y, .a = x, .b = w};
    mm.dt = mm.c_dt = s->dt;
    must(dev->ops->matmul(dev, &mm, NULL));
}

/* Its backward: dx = dy W and dW += dyᵀ x. */
static void linear_bwd(const struct step *s, void *dx, const void *dy, const void *x, int64_t at,
                       int out, int in)
{
    const char *w = (const char *)s->w + at * (int64_t)dtype_bytes(s->dt);
    struct matmul mm = {.layout = MM_NN, .m = s->rows, .n = in, .k = out, .c = dx, .a = dy, .b = w};
    mm.dt = mm.c_dt = s->dt;
    must(dev->ops->matmul(dev, &mm, NULL));
    struct matmul dw = {.layout = MM_TN, .m = out, .n = in, .k = s->rows, .a = dy, .b = x};
    dw.c = s->grad + at;
    dw.dt = s->dt;
    dw.c_dt = DT_F32;
    dw.accumulate = true;
    must(dev->ops->matmul(dev, &dw, NULL));
}

static void norm(const struct step *s, const void *y)
{
    struct rmsnorm_fwd f = {.x = s->x, .h = s->h, .rstd = s->rstd, .x_in = s->x, .y = y};
    f.w = s->norm;
    f.eps = 1e-5f;
    f.rows = s->rows;
    f.C = C;
    f.dt = s->dt;
    must(dev->ops->rmsnorm_fwd(dev, &f, NULL));
}

static void norm_bwd(const struct step *s)
{
    struct rmsnorm_bwd b = {.dx = s->dx, .dy = s->y, .dw = s->dnorm, .dh = s->dh, .x = s->x};
    b.rstd = s->rstd;
    b.w = s->norm;
    b.rows = s->rows;
    b.C = C;
    b.dt = s->dt;
    b.dx_set = true;
    must(dev->ops->rmsnorm_bwd(dev, &b, NULL));
}

static void turn(const struct step *s, void *qkv, bool inverse)
{
    struct rope r = {.x = qkv, .pos = s->pos, .rows = s->rows, .ld = QKV, .heads = H + HKV};
    r.D = D;
    r.theta = 10000;
    r.inverse = inverse;
    r.dt = s->dt;
    must(dev->ops->rope(dev, &r, NULL));
}

static void block_fwd(const struct step *s)
{
    struct attention_fwd a = {.o = s->o, .lse = s->lse, .qkv = s->qkv, .start = s->start};
    a.B = s->B;
    a.T = s->T;
    a.H = H;
    a.Hkv = HKV;
    a.D = D;
    a.causal = true;
    a.dt = s->dt;
    norm(s, s->y);
    linear(s, s->qkv, s->h, 0, QKV, C);
    turn(s, s->qkv, false);
    must(dev->ops->attention_fwd(dev, &a, NULL));
    linear(s, s->y, s->o, C * QKV, C, C);
    norm(s, s->y);
    linear(s, s->gu, s->h, C * QKV + C * C, 2 * M, C);
    must(dev->ops->swiglu_fwd(dev, s->act, s->gu, s->rows, M, s->dt, NULL));
    linear(s, s->y, s->act, C * QKV + C * C + 2 * M * C, C, M);
}

static void block_bwd(const struct step *s)
{
    struct attention_bwd a = {.dqkv = s->dqkv, .d_o = s->d_o, .o = s->o, .lse = s->lse};
    a.qkv = s->qkv;
    a.start = s->start;
    a.B = s->B;
    a.T = s->T;
    a.H = H;
    a.Hkv = HKV;
    a.D = D;
    a.causal = true;
    a.dt = s->dt;
    linear_bwd(s, s->dact, s->y, s->act, C * QKV + C * C + 2 * M * C, C, M);
    must(dev->ops->swiglu_bwd(dev, s->dgu, s->dact, s->gu, s->rows, M, s->dt, NULL));
    linear_bwd(s, s->dh, s->dgu, s->h, C * QKV + C * C, 2 * M, C);
    norm_bwd(s);
    linear_bwd(s, s->d_o, s->y, s->o, C * QKV, C, C);
    must(dev->ops->attention_bwd(dev, &a, NULL));
    turn(s, s->dqkv, true);
    linear_bwd(s, s->dh, s->dqkv, s->h, 0, QKV, C);
    norm_bwd(s);
}

static void run_step(const struct step *s)
{
    const int rows = (int)s->rows;
    must(dev->ops->embed_fwd(dev, s->x, s->table, s->ids, rows, C, V, false, NULL));
    for (int i = 0; i < BLOCKS; i++)
        block_fwd(s);
    norm(s, s->y);
    linear(s, s->logits, s->h, 0, V, C);
    struct cross_entropy ce = {.loss = s->loss, .dlogits = s->logits, .logits = s->logits};
    ce.target = s->ids;
    ce.grad_scale = 1.0f / (float)rows;
    ce.rows = rows;
    ce.V = V;
    ce.dt = ce.grad_dt = s->dt;
    must(dev->ops->cross_entropy(dev, &ce, NULL));
    linear_bwd(s, s->dh, s->logits, s->h, 0, V, C);
    norm_bwd(s);
    for (int i = 0; i < BLOCKS; i++)
        block_bwd(s);
    must(dev->ops->embed_bwd(dev, s->grad, s->dx, s->ids, rows, C, V, NULL));
    struct adamw opt = {.p = s->master, .m = s->m, .v = s->v, .grad = s->grad};
    opt.beta1 = 0.9f;
    opt.beta2 = 0.99f;
    opt.eps = 1e-8f;
    const struct adamw_now now = adamw_now(1e-4, opt.beta1, opt.beta2, 1);
    opt.now = &now;
    opt.n = WEIGHTS;
    must(dev->ops->adamw(dev, &opt, NULL));
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    struct step s = {.B = argc > 2 ? atoi(argv[2]) : 16, .T = argc > 3 ? atoi(argv[3]) : 256};
    s.dt = argc > 4 && strcmp(argv[4], "f32") == 0 ? DT_F32 : DT_BF16;
    s.rows = (int64_t)s.B * s.T;
    if (s.B < 1 || s.T < 1 || device_open("cpu", threads, &dev, &err) < 0) {
        fprintf(stderr, "bench_decoder: %s\n", err.msg[0] ? err.msg : "batch and tokens from 1");
        return 1;
    }
    make_step(&s);
    run_step(&s);
    struct profile prof = {0};
    double start = profile_now(), best = 1e30;
    dev->profile = &prof;
    for (int i = 0; i < STEPS; i++) {
        double t = profile_now();
        run_step(&s);
        t = profile_now() - t;
        best = t < best ? t : best;
    }
    dev->profile = NULL;
    printf("%s; %d samples of %d tokens, %s: %.1f ms a step, best %.1f, %.0f tokens/s\n",
           dev->about, s.B, s.T, dtype_name(s.dt), (profile_now() - start) / STEPS * 1e3,
           best * 1e3, (double)s.rows / best);
    profile_print(&prof, stdout);
    free_step(&s);
    device_close(dev);
    return 0;
}
