/* What frozen encoders need: the reference against sums written out here in f64 or worked by
 * hand, the fast code against the reference on odd sizes, and the same bits in any batch and
 * with any number of threads.
 *
 * Tolerance: f32 differs by the order of sums, k terms of about 1 by some 1e-7 sqrt(k), and by
 * exp and erf of a few ulp; bf16 outputs by one rounding, 2^-8 relative, besides. */
#include "tests/unit/kernels/guard.h"

static float rel(enum dtype dt)
{
    return dt == DT_BF16 ? 1.0f / 128 : 2e-5f;
}

/* ---- convolution ---- */

struct conv_case {
    int B, H, W, Cin, Cout, k, stride, low, high;
    bool up2, bias, add;
};

static const struct conv_case convs[] = {
    {1, 1, 1, 1, 1, 1, 1, 0, 0, false, false, false},
    {2, 5, 7, 3, 5, 3, 1, 1, 1, false, true, false},
    {1, 8, 8, 16, 33, 3, 2, 0, 1, false, true, true},
    {2, 9, 6, 7, 40, 3, 2, 1, 1, false, false, true},
    {1, 6, 5, 12, 9, 3, 1, 1, 1, true, true, false},
    {1, 4, 27, 33, 70, 3, 1, 1, 1, false, true, true},
    {3, 7, 5, 20, 31, 1, 1, 0, 0, false, true, true},
    {1, 11, 13, 64, 8, 1, 2, 0, 0, false, true, false},
    {1, 3, 3, 5, 6, 3, 1, 0, 0, false, true, false},
    {1, 5, 5, 6, 4, 3, 2, 2, 0, true, true, false},
    {2, 16, 40, 32, 64, 3, 1, 1, 1, false, true, true},
    {1, 2, 2, 3, 4, 3, 1, 0, 0, false, true, true},  /* the kernel does not fit */
    {1, 2, 2, 0, 4, 3, 1, 1, 1, false, true, true},  /* no channels: bias and add */
    {0, 2, 2, 3, 4, 3, 1, 1, 1, false, true, false}, /* no samples */
    {1, 130, 30, 8, 16, 3, 1, 1, 1, false, true, false},
    /* tiles whose pixels lie a page apart */
    {1, 5, 6, 512, 6, 3, 2, 0, 1, false, true, false},
    {1, 3, 4, 1024, 3, 3, 1, 1, 1, true, false, false},
    {1, 3, 2, 2048, 4, 1, 1, 0, 0, false, true, true},
};

static struct conv2d conv_of(const struct conv_case *t, enum dtype dt)
{
    struct conv2d p = {.B = t->B, .H = t->H, .W = t->W, .Cin = t->Cin, .Cout = t->Cout};
    p.k = t->k;
    p.stride = t->stride;
    p.pad_low = t->low;
    p.pad_high = t->high;
    p.up2 = t->up2;
    p.dt = dt;
    return p;
}

static size_t conv_size(const struct conv2d *p)
{
    return (size_t)p->B * (size_t)conv2d_side(p, p->H) * (size_t)conv2d_side(p, p->W) *
           (size_t)p->Cout;
}

static struct conv2d conv_inputs(const struct conv_case *t, enum dtype dt)
{
    struct conv2d p = conv_of(t, dt);
    size_t taps = (size_t)(t->k * t->k * t->Cin);
    p.x = guard_randn((size_t)(t->B * t->H * t->W * t->Cin), dt, 1);
    p.w = guard_randn((size_t)t->Cout * taps, dt, taps ? 1.0f / sqrtf((float)taps) : 1);
    p.bias = t->bias ? guard_randn((size_t)t->Cout, DT_F32, 1) : NULL;
    p.add = t->add ? guard_randn(conv_size(&p), dt, 1) : NULL;
    return p;
}

/* x of a sample as one reads it from the manual: enlarged, within a frame of zeros. */
static double *framed(const struct conv2d *p, int b, int *ret_w)
{
    const int grow = p->up2 ? 2 : 1, H = grow * p->H, W = grow * p->W;
    const int wide = W + p->pad_low + p->pad_high, high = H + p->pad_low + p->pad_high;
    double *f = calloc((size_t)wide * (size_t)high * (size_t)(p->Cin + 1), sizeof *f);
    assert_non_null(f);
    for (int i = 0; i < H; i++)
        for (int j = 0; j < W; j++)
            for (int c = 0; c < p->Cin; c++) {
                int from = ((b * p->H + i / grow) * p->W + j / grow) * p->Cin + c;
                f[((i + p->pad_low) * wide + j + p->pad_low) * p->Cin + c] =
                    (double)dtype_get(p->x, p->dt, (size_t)from);
            }
    *ret_w = wide;
    return f;
}

static void naive_sample(const struct conv2d *p, int b, float *want)
{
    const int Ho = conv2d_side(p, p->H), Wo = conv2d_side(p, p->W), run = p->k * p->Cin;
    int wide;
    double *f = framed(p, b, &wide);
    for (int at = 0; at < Ho * Wo * p->Cout; at++) {
        int o = at % p->Cout, j = at / p->Cout % Wo, i = at / p->Cout / Wo;
        size_t out = (size_t)(b * Ho * Wo * p->Cout + at);
        double sum = p->bias ? (double)p->bias[o] : 0;
        for (int u = 0; u < p->k; u++)
            for (int n = 0; n < run; n++) /* k pixels of a row lie side by side */
                sum += f[((i * p->stride + u) * wide + j * p->stride) * p->Cin + n] *
                       (double)dtype_get(p->w, p->dt, (size_t)((o * p->k + u) * run + n));
        want[out] = (float)(sum + (p->add ? (double)dtype_get(p->add, p->dt, out) : 0));
    }
    free(f);
}

static void conv_case(struct devices *d, const struct conv_case *t, enum dtype dt)
{
    struct conv2d p = conv_inputs(t, dt);
    size_t n = conv_size(&p);
    float *want = guard_new(n * sizeof *want);
    for (int b = 0; b < p.B; b++)
        naive_sample(&p, b, want);
    for (int k = 0; k < 2; k++) {
        struct device *dev = k ? d->fast : d->ref;
        p.y = guard_new(n * dtype_bytes(dt));
        assert_int_equal(dev->ops->conv2d_fwd(dev, &p, NULL), 0);
        for (size_t i = 0; i < n; i++) {
            float got = dtype_get(p.y, dt, i);
            if (!(fabsf(got - want[i]) <= 1e-5f + rel(dt) * fabsf(want[i])))
                fail_msg("%s: y[%zu of %zu] = %.9g, expected %.9g", dev->name, i, n, (double)got,
                         (double)want[i]);
        }
    }
    if (p.add) { /* in place */
        void *first = p.y;
        p.add = p.y = guard_copy(p.add, n * dtype_bytes(dt));
        assert_int_equal(d->fast->ops->conv2d_fwd(d->fast, &p, NULL), 0);
        assert_memory_equal(p.y, first, n * dtype_bytes(dt));
    }
    guard_check_all();
}

static void convolution(void **state)
{
    for (size_t i = 0; i < sizeof convs / sizeof *convs; i++)
        for (int dt = DT_F32; dt <= DT_BF16; dt++)
            conv_case(*state, &convs[i], (enum dtype)dt);
}

/* ---- norms ---- */

static void group_case(struct devices *d, int B, int64_t N, int C, int groups, enum dtype dt,
                       float offset)
{
    size_t n = (size_t)B * (size_t)N * (size_t)C, bytes = n * dtype_bytes(dt);
    void *x = guard_randn(n, dt, 2), *a = guard_new(bytes);
    for (size_t i = 0; i < n; i++)
        dtype_set(x, dt, i, dtype_get(x, dt, i) + offset);
    struct groupnorm_fwd p = {.x = x, .y = a, .B = B, .N = N, .C = C, .groups = groups, .dt = dt};
    p.w = guard_randn((size_t)C, DT_F32, 1);
    p.b = guard_randn((size_t)C, DT_F32, 1);
    p.eps = 1e-6f;
    p.silu = C % 2 == 0;
    assert_int_equal(d->ref->ops->groupnorm_fwd(d->ref, &p, NULL), 0);
    p.y = guard_new(bytes);
    assert_int_equal(d->fast->ops->groupnorm_fwd(d->fast, &p, NULL), 0);
    /* Values of about `offset` have its rounding. */
    float abs = 1e-5f + fabsf(offset) * 1e-6f;
    guard_close("y", p.y, a, n, dt, abs, rel(dt));
    const void *first = p.y;
    p.x = p.y = guard_copy(x, bytes);
    assert_int_equal(d->fast->ops->groupnorm_fwd(d->fast, &p, NULL), 0);
    assert_memory_equal(p.y, first, bytes);
    guard_check_all();
}

static void groupnorm(void **state)
{
    for (int dt = DT_F32; dt <= DT_BF16; dt++) {
        group_case(*state, 1, 1, 1, 1, (enum dtype)dt, 0);
        group_case(*state, 2, 7, 6, 2, (enum dtype)dt, 3);
        group_case(*state, 1, 35, 33, 3, (enum dtype)dt, 0);
        group_case(*state, 3, 130, 64, 32, (enum dtype)dt, -1);
        group_case(*state, 1, 900, 96, 32, (enum dtype)dt, 0);
        group_case(*state, 2, 70, 1030, 5, (enum dtype)dt, 0);
        group_case(*state, 0, 70, 8, 4, (enum dtype)dt, 0);
        group_case(*state, 2, 0, 8, 4, (enum dtype)dt, 0);
    }
    group_case(*state, 1, 300, 32, 4, DT_F32, 1000);
}

/* Groups of two channels at two pixels: 0 2 4 6 has mean 3 and variance 5; and a constant. */
static void groupnorm_by_hand(void **state)
{
    struct devices *d = *state;
    const float *x = guard_of(float, 0, 2, 7, 7, 4, 6, 7, 7);
    const float *w = guard_of(float, 1, 2, 3, 4), *b = guard_of(float, 0, 1, -2, 0.5f);
    const float sd = sqrtf(5);
    const float want[8] = {-3 / sd, 1 - 2 / sd, -2, 0.5f, 1 / sd, 1 + 6 / sd, -2, 0.5f};
    for (int k = 0; k < 2; k++) {
        struct device *dev = k ? d->fast : d->ref;
        float *y = guard_new(sizeof want);
        struct groupnorm_fwd p = {.y = y, .x = x, .w = w, .b = b, .B = 1, .N = 2, .C = 4};
        p.groups = 2;
        p.eps = 1e-9f;
        assert_int_equal(dev->ops->groupnorm_fwd(dev, &p, NULL), 0);
        guard_close("y", y, want, 8, DT_F32, 1e-6f, 1e-6f);
    }
    guard_check_all();
}

static void layernorm_case(struct devices *d, int64_t rows, int C, enum dtype dt, bool residual)
{
    size_t n = (size_t)(rows * C);
    struct layernorm_fwd f = {.rows = rows, .C = C, .dt = dt, .eps = 1e-5f};
    f.x_in = guard_randn(n, DT_F32, 2);
    f.y = residual ? guard_randn(n, dt, 1) : NULL;
    f.w = guard_randn((size_t)C, DT_F32, 1);
    f.b = guard_randn((size_t)C, DT_F32, 1);
    struct layernorm_fwd ref = f;
    ref.x = guard_new(n * 4);
    ref.h = guard_new(n * dtype_bytes(dt));
    assert_int_equal(d->ref->ops->layernorm_fwd(d->ref, &ref, NULL), 0);
    f.x = residual ? guard_copy(f.x_in, n * 4) : NULL;
    f.x_in = residual ? f.x : f.x_in;
    f.h = guard_new(n * dtype_bytes(dt));
    assert_int_equal(d->fast->ops->layernorm_fwd(d->fast, &f, NULL), 0);
    guard_close("h", f.h, ref.h, n, dt, 1e-5f, rel(dt));
    if (residual)
        guard_close("x", f.x, ref.x, n, DT_F32, 0, 0);
    guard_check_all();
}

static void layernorm(void **state)
{
    const int shapes[][2] = {{1, 2}, {3, 5}, {7, 33}, {65, 48}, {130, 17}, {70, 768}, {5, 2568}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int k = 0; k < 4; k++)
            layernorm_case(*state, shapes[i][0], shapes[i][1], k & 1 ? DT_BF16 : DT_F32, k & 2);
}

/* 1 3 after the residual: mean 2, variance 1. */
static void layernorm_by_hand(void **state)
{
    struct devices *d = *state;
    const float *in = guard_of(float, 0, 1), *y = guard_of(float, 1, 2);
    const float *w = guard_of(float, 2, 3), *b = guard_of(float, 10, 20);
    const float want[4] = {8, 23, 1, 3};
    for (int k = 0; k < 2; k++) {
        struct device *dev = k ? d->fast : d->ref;
        float *out = guard_new(sizeof want);
        struct layernorm_fwd p = {.x = out + 2, .h = out, .x_in = in, .y = y, .w = w, .b = b};
        p.rows = 1;
        p.C = 2;
        assert_int_equal(dev->ops->layernorm_fwd(dev, &p, NULL), 0);
        guard_close("h and x", out, want, 4, DT_F32, 0, 1e-6f);
    }
    guard_check_all();
}

/* ---- activations ---- */

static double activated(double x, int act)
{
    switch (act) {
    case ACT_GELU:
        return x * erfc(-x / sqrt(2)) / 2;
    case ACT_QUICK_GELU:
        return x / (1 + exp(-1.702 * x));
    case ACT_RELU:
        return x > 0 ? x : 0;
    default:
        return x / (1 + exp(-x));
    }
}

/* Dense from -12 to 12, and where exp would run over. */
static void activations(void **state)
{
    struct devices *d = *state;
    const size_t n = 4003;
    for (int act = ACT_GELU; act <= ACT_SILU; act++) {
        for (int k = 0; k < 4; k++) {
            enum dtype dt = k & 1 ? DT_BF16 : DT_F32;
            struct device *dev = k & 2 ? d->fast : d->ref;
            void *x = guard_new(n * dtype_bytes(dt)), *y = guard_new(n * dtype_bytes(dt));
            float *want = guard_new(n * sizeof *want);
            for (size_t i = 0; i < n; i++) {
                dtype_set(x, dt, i,
                          i < 4001   ? ((float)i - 2000) * 0.006f
                          : i > 4001 ? 1e4f
                                     : -1e4f);
                want[i] = (float)activated((double)dtype_get(x, dt, i), act);
                if (dt == DT_BF16)
                    want[i] = bf16_to_f32(bf16_from_f32(want[i]));
            }
            assert_int_equal(
                dev->ops->activation(dev, y, x, (int64_t)n, (enum activation)act, dt, NULL), 0);
            for (size_t i = 0; i < n; i++)
                assert_true(fabsf(dtype_get(y, dt, i) - want[i]) <=
                            1e-6f + (dt == DT_BF16 ? rel(dt) : 1e-6f) * fabsf(want[i]));
            assert_int_equal(
                dev->ops->activation(dev, x, x, (int64_t)n, (enum activation)act, dt, NULL), 0);
            assert_memory_equal(x, y, n * dtype_bytes(dt));
            guard_check_all();
        }
    }
}

static void geglu(void **state)
{
    struct devices *d = *state;
    const int64_t shapes[][2] = {{1, 1}, {3, 5}, {7, 33}, {65, 48}, {5, 2568}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int k = DT_F32; k <= DT_BF16; k++) {
            enum dtype dt = (enum dtype)k;
            int64_t rows = shapes[i][0], M = shapes[i][1];
            size_t n = (size_t)(rows * M), es = dtype_bytes(dt);
            void *gu = guard_randn(2 * n, dt, 3), *a = guard_new(n * es), *b = guard_new(n * es);
            assert_int_equal(d->ref->ops->geglu_fwd(d->ref, a, gu, rows, M, dt, NULL), 0);
            assert_int_equal(d->fast->ops->geglu_fwd(d->fast, b, gu, rows, M, dt, NULL), 0);
            guard_close("act", b, a, n, dt, 1e-6f, rel(dt));
            float g = dtype_get(gu, dt, n > 1 ? (size_t)(2 * (rows - 1) * M) : 0);
            float u = dtype_get(gu, dt, n > 1 ? (size_t)((2 * rows - 1) * M) : 1);
            float want = g * 0.5f * (1 + tanhf(0.79788456f * (g + 0.044715f * g * g * g))) * u;
            float got = dtype_get(a, dt, n > 1 ? (size_t)((rows - 1) * M) : 0);
            assert_true(fabsf(got - want) <= 1e-6f + rel(dt) * fabsf(want));
            guard_check_all();
        }
    }
}

/* ---- the posterior ---- */

static void posterior(void **state)
{
    struct devices *d = *state;
    enum { B = 3, C = 2, P = 19, N = C * P };
    for (int k = 0; k < 4; k++) {
        const float *shift = guard_of(float, 0.25f, -1), *scale = guard_of(float, 0.5f, 2);
        enum dtype dt = k & 1 ? DT_BF16 : DT_F32;
        struct device *dev = k & 2 ? d->fast : d->ref;
        void *moments = guard_randn(2 * B * N, dt, 2);
        float *noise = guard_randn(B * N, DT_F32, 1), *out = guard_new(B * N * sizeof *out);
        dtype_set(moments, dt, N, 1000);          /* clamped to 20 */
        dtype_set(moments, dt, 3 * N + 5, -1000); /* to -30: the mean, about */
        assert_int_equal(
            dev->ops->posterior(dev, out, moments, noise, shift, scale, B, C, P, dt, NULL), 0);
        for (int i = 0; i < B * N; i++) {
            size_t at = (size_t)(i / N * 2 * N + i % N);
            double logvar = (double)dtype_get(moments, dt, at + N);
            double sd = exp(fmin(fmax(logvar, -30), 20) / 2);
            double mean = (double)dtype_get(moments, dt, at);
            const int c = i % N / P;
            double want = (mean + sd * (double)noise[i] - (double)shift[c]) * (double)scale[c];
            assert_true(fabs((double)out[i] - want) <= 1e-6 + 4e-6 * fabs(want));
        }
        guard_check_all();
    }
}

/* ---- the same bits in any batch, with any number of threads ---- */

enum { SAMPLES = 5, SIDE = 13, CHANNELS = 48, PIXELS = SIDE * SIDE, EACH = PIXELS * CHANNELS };

/* GroupNorm of the samples from `first` on, a convolution of that, and one 1x1 added. */
static void encode(struct device *dev, const void *x, const void *w, const float *b, int first,
                   int count, enum dtype dt, char *out)
{
    const size_t bytes = (size_t)count * EACH * dtype_bytes(dt);
    char *norm = out + 2 * bytes;
    struct groupnorm_fwd g = {.y = norm, .w = b, .b = b, .eps = 1e-6f, .N = PIXELS, .B = count};
    g.x = (const char *)x + (size_t)first * EACH * dtype_bytes(dt);
    g.C = CHANNELS;
    g.groups = 8;
    g.silu = true;
    g.dt = dt;
    assert_int_equal(dev->ops->groupnorm_fwd(dev, &g, NULL), 0);
    struct conv2d c = {.y = out, .x = norm, .w = w, .bias = b, .B = count, .H = SIDE, .W = SIDE};
    c.Cin = c.Cout = CHANNELS;
    c.k = 3;
    c.stride = c.pad_low = c.pad_high = 1;
    c.dt = dt;
    assert_int_equal(dev->ops->conv2d_fwd(dev, &c, NULL), 0);
    c.y = out + bytes;
    c.x = out;
    c.add = norm;
    c.k = 1;
    c.pad_low = c.pad_high = 0;
    assert_int_equal(dev->ops->conv2d_fwd(dev, &c, NULL), 0);
}

static void same_bits(void **state)
{
    setenv("SKERRY_CONV", "own", 1); /* cuDNN chooses an engine for the whole batch */
    for (int k = DT_F32; k <= DT_BF16; k++) {
        enum dtype dt = (enum dtype)k;
        const size_t one = EACH * dtype_bytes(dt);
        void *x = guard_randn((size_t)SAMPLES * EACH, dt, 1);
        void *w = guard_randn((size_t)9 * CHANNELS * CHANNELS, dt, 0.05f);
        float *b = guard_randn(CHANNELS, DT_F32, 1);
        char *all = guard_new(3 * SAMPLES * one), *again = guard_new(3 * SAMPLES * one);
        for (int threads = 1; threads <= 3; threads++) {
            struct device *dev;
            assert_int_equal(device_open(GUARD_DEVICE, threads, &dev, NULL), 0);
            dev->profile = guard_profile();
            encode(dev, x, w, b, 0, SAMPLES, dt, threads == 1 ? all : again);
            if (threads > 1)
                assert_memory_equal(again, all, 3 * SAMPLES * one);
            for (int i = 0; i < SAMPLES; i++) {
                encode(dev, x, w, b, i, 1, dt, again);
                for (int part = 0; part < 3; part++)
                    assert_memory_equal(again + (size_t)part * one,
                                        all + (size_t)(part * SAMPLES + i) * one, one);
            }
            device_close(dev);
        }
        guard_check_all();
    }
    unsetenv("SKERRY_CONV");
}

static void refuses_impossible(void **state)
{
    struct devices *d = *state;
    float *x = guard_of(float, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    const struct conv2d good = {
        .y = x, .x = x, .w = x, .B = 1, .H = 3, .W = 3, .Cin = 1, .Cout = 1, .k = 1, .stride = 1};
    const struct groupnorm_fwd norm = {
        .y = x, .x = x, .w = x, .b = x, .B = 1, .N = 1, .C = 4, .groups = 2};
    for (int k = 0; k < 2; k++) {
        struct device *dev = k ? d->fast : d->ref;
        struct conv2d p[6] = {good, good, good, good, good, good};
        p[0].k = 2;
        p[1].stride = 3;
        p[2].pad_low = 1;
        p[3].pad_high = -1;
        p[4].dt = (enum dtype)7;
        p[5].H = -1;
        for (int i = 0; i < 6; i++)
            assert_int_equal(dev->ops->conv2d_fwd(dev, &p[i], NULL), -EINVAL);
        struct groupnorm_fwd g[3] = {norm, norm, norm};
        g[0].groups = 3;
        g[1].groups = 0;
        g[2].w = NULL;
        for (int i = 0; i < 3; i++)
            assert_int_equal(dev->ops->groupnorm_fwd(dev, &g[i], NULL), -EINVAL);
        struct layernorm_fwd l = {.x_in = x, .h = x, .w = x, .rows = 1, .C = 2};
        assert_int_equal(dev->ops->layernorm_fwd(dev, &l, NULL), -EINVAL); /* no b */
        assert_int_equal(dev->ops->activation(dev, x, x, 1, (enum activation)4, DT_F32, NULL),
                         -EINVAL);
        assert_int_equal(dev->ops->activation(dev, x, x, -1, ACT_RELU, DT_F32, NULL), -EINVAL);
        assert_int_equal(dev->ops->geglu_fwd(dev, x, x, -1, 1, DT_F32, NULL), -EINVAL);
        assert_int_equal(dev->ops->posterior(dev, x, x, x, x, x, -1, 1, 1, DT_F32, NULL), -EINVAL);
    }
    guard_check_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolution),
        cmocka_unit_test(groupnorm),
        cmocka_unit_test(groupnorm_by_hand),
        cmocka_unit_test(layernorm),
        cmocka_unit_test(layernorm_by_hand),
        cmocka_unit_test(activations),
        cmocka_unit_test(geglu),
        cmocka_unit_test(posterior),
        cmocka_unit_test(same_bits),
        cmocka_unit_test(refuses_impossible),
    };
    return cmocka_run_group_tests(tests, devices_setup, devices_teardown);
}
