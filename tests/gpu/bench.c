/* What the card reaches, beside a measured copy and a measured large product of its own. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "kernels/device/device.h"
#include "kernels/profile.h"

int bench(void);

struct run {
    struct device *dev;
    int figures, missed;
    double copy; /* bytes a second */
    double rate; /* FLOP a second of a large bf16 product */
};

static void die(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

/* Normal bits as bf16 or f32: speed depends on them. */
static void *device_random(struct run *r, size_t n, enum dtype dt)
{
    void *p, *host = malloc(n * dtype_bytes(dt));
    uint64_t z = 88172645463325252u;
    if (!host || r->dev->ops->alloc(r->dev, n * dtype_bytes(dt), &p, NULL) < 0)
        die("no memory");
    for (size_t i = 0; i < n; i++) {
        z ^= z << 13, z ^= z >> 7, z ^= z << 17;
        dtype_set(host, dt, i, (float)(z >> 40) / 8388608.0f - 1.0f);
    }
    if (r->dev->ops->copy(r->dev, p, host, n * dtype_bytes(dt), COPY_TO_DEVICE, NULL) < 0 ||
        r->dev->ops->sync(r->dev, NULL, NULL) < 0)
        die("cannot copy");
    free(host);
    return p;
}

static void *device_copy_of(struct run *r, const void *host, size_t bytes)
{
    void *p;
    if (r->dev->ops->alloc(r->dev, bytes, &p, NULL) < 0 ||
        r->dev->ops->copy(r->dev, p, host, bytes, COPY_TO_DEVICE, NULL) < 0 ||
        r->dev->ops->sync(r->dev, NULL, NULL) < 0)
        die("cannot copy");
    return p;
}

/* Seconds of one call: best of five runs of as many calls as fill 50 ms. */
static double seconds(struct run *r, int (*call)(struct device *dev, void *arg), void *arg)
{
    struct err err = {0};
    double best = INFINITY;
    int calls = 1;
    for (int i = 0; i < 8; i++) {
        double start = profile_now();
        for (int k = 0; k < calls; k++)
            if (call(r->dev, arg) < 0)
                die("an operation was refused");
        if (r->dev->ops->sync(r->dev, NULL, &err) < 0)
            die(err.msg);
        double each = (profile_now() - start) / calls;
        best = i >= 3 && each < best ? each : best;
        if (i < 3)
            calls = each < 0.05 ? (int)(0.05 / each) + 1 : 1;
    }
    return best;
}

static void report(struct run *r, const char *name, double value, const char *unit, double bound,
                   bool at_most)
{
    bool holds = at_most ? value <= bound : value >= bound;
    printf("{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", ", name, value, unit);
    if (bound > 0)
        printf("\"bound\": \"%s%g\"}\n", at_most ? "<=" : ">=", bound);
    else
        printf("\"bound\": null}\n");
    r->figures++;
    r->missed += bound > 0 && !holds;
}

/* At least the bound; 0: for information. */
static void figure(struct run *r, const char *name, double value, const char *unit, double bound)
{
    report(r, name, value, unit, bound, false);
}

static void bandwidth(struct run *r, const char *name, double bytes, double s, double bound)
{
    char text[96];
    figure(r, name, bytes / s / 1e9, "GB/s", 0);
    snprintf(text, sizeof text, "%s / copy", name);
    figure(r, text, bytes / s / r->copy, "x", bound);
}

static void arithmetic(struct run *r, const char *name, double flop, double s)
{
    char text[96];
    figure(r, name, flop / s / 1e12, "TFLOP/s", 0);
    snprintf(text, sizeof text, "%s / product", name);
    figure(r, text, flop / s / r->rate, "x", 0);
}

struct copied {
    void *dst, *src;
    size_t bytes;
};

static int call_copy(struct device *dev, void *arg)
{
    const struct copied *c = arg;
    return dev->ops->copy(dev, c->dst, c->src, c->bytes, COPY_DEVICE, NULL);
}
static int call_adamw(struct device *dev, void *arg)
{
    return dev->ops->adamw(dev, arg, NULL);
}
static int call_adaln_fwd(struct device *dev, void *arg)
{
    return dev->ops->adaln_fwd(dev, arg, NULL);
}
static int call_adaln_bwd(struct device *dev, void *arg)
{
    return dev->ops->adaln_bwd(dev, arg, NULL);
}
static int call_matmul(struct device *dev, void *arg)
{
    return dev->ops->matmul(dev, arg, NULL);
}
static int call_attention_fwd(struct device *dev, void *arg)
{
    return dev->ops->attention_fwd(dev, arg, NULL);
}
static int call_attention_bwd(struct device *dev, void *arg)
{
    return dev->ops->attention_bwd(dev, arg, NULL);
}

static void bench_memory(struct run *r)
{
    enum { N = 128 << 20 };
    void *x[5];
    for (int i = 0; i < 5; i++)
        x[i] = device_random(r, N, DT_F32);
    struct copied c = {x[0], x[1], (size_t)N * 4};
    r->copy = 2.0 * N * 4 / seconds(r, call_copy, &c);
    figure(r, "device copy", r->copy / 1e9, "GB/s", 0);
    /* Second moments below zero would time roots of them, and p would become NaN. */
    if (r->dev->ops->fill(r->dev, x[2], 0.1f, N, NULL) < 0)
        die("an operation was refused");
    struct adamw a = {.p = x[0], .m = x[1], .v = x[2], .grad = x[3], .p_bf16 = x[4], .n = N};
    a.beta1 = 0.9f;
    a.beta2 = 0.95f;
    a.eps = 1e-8f;
    const struct adamw_now now = adamw_now(1e-4, a.beta1, a.beta2, 10);
    void *on_device = device_copy_of(r, &now, sizeof now);
    a.now = on_device;
    bandwidth(r, "AdamW with a bf16 copy", 30.0 * N, seconds(r, call_adamw, &a), 0.85);
    r->dev->ops->free(r->dev, on_device);
    for (int i = 0; i < 5; i++)
        r->dev->ops->free(r->dev, x[i]);
}

/* ---- a contribution: 675 M values to e3m0, and their way to the host ---- */

enum { GIVEN = 675000000, GIVEN_CHUNK = 16 << 20, GIVEN_STREAMS = 3 };

struct given {
    struct encode all;
    size_t payload_bytes, scales_bytes;
    char *host; /* pinned: payload, then scales */
    struct stream *streams[GIVEN_STREAMS];
};

/* A vector of GIVEN values, the same 16 M over and over, from the one numbered `first` on. */
static float *given_values(struct run *r, size_t first)
{
    float *piece = device_random(r, GIVEN_CHUNK + first, DT_F32);
    void *p;
    if (r->dev->ops->alloc(r->dev, (size_t)GIVEN * 4, &p, NULL) < 0)
        die("no memory");
    for (size_t at = 0; at < GIVEN; at += GIVEN_CHUNK) {
        size_t n = GIVEN - at < GIVEN_CHUNK ? GIVEN - at : GIVEN_CHUNK;
        if (r->dev->ops->copy(r->dev, (float *)p + at, piece + first, n * 4, COPY_DEVICE, NULL) < 0)
            die("cannot copy");
    }
    if (r->dev->ops->sync(r->dev, NULL, NULL) < 0)
        die("cannot copy");
    r->dev->ops->free(r->dev, piece);
    return p;
}

static int call_encode(struct device *dev, void *arg)
{
    return dev->ops->encode(dev, &((struct given *)arg)->all, NULL);
}

/* While a chunk is copied the next one is coded. */
static int call_give(struct device *dev, void *arg)
{
    const struct given *g = arg;
    int rc = 0, k = 0;
    for (size_t at = 0; at < GIVEN && rc == 0; at += GIVEN_CHUNK, k++) {
        const size_t n = GIVEN - at < GIVEN_CHUNK ? GIVEN - at : GIVEN_CHUNK, block = at / 256;
        struct stream *s = g->streams[k % GIVEN_STREAMS];
        struct encode e = g->all;
        e.payload = (char *)g->all.payload + at / 2;
        e.scales += block;
        e.left += at;
        e.theta += at;
        e.base += at;
        e.residual += at;
        e.n = (int64_t)n;
        rc = dev->ops->encode(dev, &e, s);
        if (rc == 0)
            rc = dev->ops->copy(dev, g->host + at / 2, e.payload, (n + 1) / 2, COPY_FROM_DEVICE, s);
        if (rc == 0)
            rc = dev->ops->copy(dev, g->host + g->payload_bytes + 2 * block, e.scales,
                                (n + 255) / 256 * 2, COPY_FROM_DEVICE, s);
    }
    for (int i = 0; i < GIVEN_STREAMS && rc == 0; i++)
        rc = dev->ops->sync(dev, g->streams[i], NULL);
    return rc;
}

static int call_fetch(struct device *dev, void *arg)
{
    const struct given *g = arg;
    int rc = dev->ops->copy(dev, g->host, g->all.payload, g->payload_bytes, COPY_FROM_DEVICE, NULL);
    return rc < 0 ? rc
                  : dev->ops->copy(dev, g->host + g->payload_bytes, g->all.scales, g->scales_bytes,
                                   COPY_FROM_DEVICE, NULL);
}

static void bench_codec(struct run *r)
{
    const struct kernel_ops *ops = r->dev->ops;
    struct given g = {.payload_bytes = GIVEN / 2, .scales_bytes = (GIVEN + 255) / 256 * 2};
    const size_t sent = g.payload_bytes + g.scales_bytes;
    const uint32_t none = 0;
    void *payload, *scales, *host;
    if (ops->alloc(r->dev, g.payload_bytes, &payload, NULL) < 0 ||
        ops->alloc(r->dev, g.scales_bytes, &scales, NULL) < 0 ||
        ops->alloc_host(r->dev, sent, &host, NULL) < 0)
        die("no memory");
    for (int i = 0; i < GIVEN_STREAMS; i++)
        if (ops->stream_new(r->dev, &g.streams[i], NULL) < 0)
            die("no stream");
    float *theta = given_values(r, 0), *base = given_values(r, 1), *residual = given_values(r, 2);
    g.host = host;
    g.all = (struct encode){.codec = CODEC_E3M0, .payload = payload, .scales = scales};
    g.all.left = residual;
    g.all.refused = device_copy_of(r, &none, sizeof none);
    g.all.theta = theta;
    g.all.base = base;
    g.all.residual = residual;
    g.all.n = GIVEN;
    bandwidth(r, "quantise to e3m0 with error feedback", 16.0 * GIVEN + (double)sent,
              seconds(r, call_encode, &g), 0.85);
    const double fetch = seconds(r, call_fetch, &g), give = seconds(r, call_give, &g);
    figure(r, "pinned copy of a coded contribution", (double)sent / fetch / 1e9, "GB/s", 0);
    report(r, "quantise 675 M and bring it to the host / pinned copy", give / fetch, "x", 1.2,
           true);
    void *all[] = {payload, scales, theta, base, residual, g.all.refused};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        ops->free(r->dev, all[i]);
    for (int i = 0; i < GIVEN_STREAMS; i++)
        ops->stream_free(r->dev, g.streams[i]);
    ops->free_host(r->dev, host);
}

static void bench_norm(struct run *r)
{
    enum { B = 256, T = 256, C = 1152, N = B * T * C };
    float *x = device_random(r, N, DT_F32), *dx = device_random(r, N, DT_F32);
    float *mod = device_random(r, 6 * B * C, DT_F32), *stats = device_random(r, 2 * B * T, DT_F32);
    void *y = device_random(r, N, DT_BF16), *h = device_random(r, N, DT_BF16);
    struct adaln_fwd f = {.x = x, .h = h, .stats = stats, .x_in = x, .y = y, .gate = mod};
    f.shift = mod + C;
    f.scale = mod + 2 * C;
    f.mod_ld = 6 * C;
    f.B = B, f.T = T, f.C = C;
    f.dt = DT_BF16;
    bandwidth(r, "LayerNorm with residual and modulation", 12.0 * N, seconds(r, call_adaln_fwd, &f),
              0.85);
    struct adaln_bwd b = {.dx = dx, .dy = y, .dh = h, .x = x, .stats = stats, .y = y, .gate = mod};
    b.scale = f.scale;
    b.dgate = mod + 3 * C;
    b.dshift = mod + 4 * C;
    b.dscale = mod + 5 * C;
    b.mod_ld = 6 * C;
    b.B = B, b.T = T, b.C = C;
    b.dt = DT_BF16;
    bandwidth(r, "its backward", 18.0 * N, seconds(r, call_adaln_bwd, &b), 0);
    void *all[] = {x, dx, mod, stats, y, h};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        r->dev->ops->free(r->dev, all[i]);
}

static void bench_products(struct run *r)
{
    enum { M = 32768, C = 1152, F = 4608, L = 8192 };
    void *x = device_random(r, (size_t)M * F, DT_BF16), *w = device_random(r, L * L, DT_BF16);
    void *y = device_random(r, (size_t)M * F, DT_BF16),
         *aux = device_random(r, (size_t)M * F, DT_BF16);
    float *g = device_random(r, C * F, DT_F32), *bias = device_random(r, F, DT_F32);
    struct matmul mm = {.layout = MM_NT, .m = L, .n = L, .k = L, .a = x, .b = w, .c = y};
    mm.dt = mm.c_dt = DT_BF16;
    r->rate = 2.0 * L * L * L / seconds(r, call_matmul, &mm);
    figure(r, "product 8192 8192 8192", r->rate / 1e12, "TFLOP/s", 0);
    const double flop = 2.0 * M * C * F;
    mm.m = M, mm.n = F, mm.k = C;
    mm.bias = bias;
    mm.aux = aux;
    mm.epilogue = MM_GELU;
    arithmetic(r, "MLP up, bias and GELU", flop, seconds(r, call_matmul, &mm));
    mm.layout = MM_NN;
    mm.bias = NULL;
    mm.epilogue = MM_DGELU;
    arithmetic(r, "MLP down's backward through GELU", flop, seconds(r, call_matmul, &mm));
    struct matmul dw = {.layout = MM_TN, .m = F, .n = C, .k = M, .a = y, .b = x, .c = g};
    dw.a_colsum = bias;
    dw.dt = DT_BF16;
    dw.accumulate = true;
    arithmetic(r, "weight gradient with the bias's", flop, seconds(r, call_matmul, &dw));
    void *all[] = {x, w, y, aux, g, bias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        r->dev->ops->free(r->dev, all[i]);
}

struct heads {
    int B, T, H, D, Hkv;
    bool causal, forward_only;
    int Tk; /* keys apart from the queries; 0: all in qkv */
};

static void bench_attention(struct run *r, const char *name, const struct heads h)
{
    const size_t n = (size_t)h.B * (size_t)h.T * (size_t)(h.H * h.D);
    const int Tk = h.Tk ? h.Tk : h.T;
    const size_t keys = (size_t)h.B * (size_t)Tk * (size_t)(2 * h.Hkv * h.D);
    bf16 *in = device_random(r, n + keys, DT_BF16), *grad = device_random(r, n + keys, DT_BF16);
    void *o = device_random(r, n, DT_BF16), *d_o = device_random(r, n, DT_BF16);
    float *lse = device_random(r, n / (size_t)h.D, DT_F32);
    struct attention_fwd f = {.o = o, .lse = lse, .qkv = in, .B = h.B, .T = h.T, .H = h.H};
    struct attention_bwd b = {.dqkv = grad, .d_o = d_o, .o = o, .lse = lse, .qkv = in};
    if (h.Tk) {
        f.q = b.q = in;
        f.kv = b.kv = in + n;
        b.dq = grad;
        b.dkv = grad + n;
    }
    f.D = h.D, f.Hkv = b.Hkv = h.Hkv, f.Tk = b.Tk = h.Tk;
    f.causal = b.causal = h.causal;
    f.dt = b.dt = DT_BF16;
    b.B = h.B, b.T = h.T, b.H = h.H, b.D = h.D;
    const double flop = 4.0 * (double)n * Tk * (h.causal ? 0.5 : 1);
    char text[64];
    snprintf(text, sizeof text, "attention forward, %s", name);
    arithmetic(r, text, flop, seconds(r, call_attention_fwd, &f));
    snprintf(text, sizeof text, "attention backward, %s", name);
    if (!h.forward_only)
        arithmetic(r, text, 2.5 * flop, seconds(r, call_attention_bwd, &b));
    void *all[] = {in, grad, o, d_o, lse};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        r->dev->ops->free(r->dev, all[i]);
}

int bench(void)
{
    struct err err = {0};
    struct run r = {0};
    if (device_open("cuda:0", 0, &r.dev, &err) < 0)
        die(err.msg);
    printf("%s: %s\n", r.dev->name, r.dev->about);
    bench_memory(&r);
    bench_codec(&r);
    bench_norm(&r);
    bench_products(&r);
    bench_attention(&r, "DiT-XL", (struct heads){64, 256, 16, 72, 16});
    bench_attention(&r, "DiT-S", (struct heads){256, 64, 6, 64, 6});
    bench_attention(&r, "Llama 2048", (struct heads){4, 2048, 32, 128, 8, .causal = true});
    bench_attention(&r, "256 on 120 keys", (struct heads){64, 256, 16, 72, 16, .Tk = 120});
    bench_attention(&r, "VAE 4096", (struct heads){4, 4096, 1, 512, 1, .forward_only = true});
    device_close(r.dev);
    printf("%d figures, %d below their bound\n", r.figures, r.missed);
    return r.missed != 0;
}
