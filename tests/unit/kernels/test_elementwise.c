/* Everything that is not a product, a norm or attention, against the reference.
 *
 * Tolerance: the vector exp is good to 3 ulp, so activations agree to about 1e-6
 * relative; optimiser and plain vector operations agree to the bit in f32 (the fast code keeps
 * the order and does not contract); bf16 stores round the same value or its f32 neighbour. */
#include "tests/unit/kernels/guard.h"

#include "common/base/rng.h"

static const int64_t sizes[] = {1, 7, 16, 100, 4096, 16385, 40000};

static float rel(enum dtype dt)
{
    return dt == DT_BF16 ? 1.0f / 128 : 5e-6f;
}

static void activations(struct devices *d, int64_t n, enum dtype dt)
{
    size_t es = dtype_bytes(dt), k = (size_t)n;
    void *x = guard_randn(k, dt, 3), *dy = guard_randn(k, dt, 1);
    float *xf = guard_randn(k, DT_F32, 3);
    void *a = guard_new(k * es), *b = guard_new(k * es);
    assert_int_equal(d->ref->ops->gelu_fwd(d->ref, a, x, n, dt, NULL), 0);
    assert_int_equal(d->fast->ops->gelu_fwd(d->fast, b, x, n, dt, NULL), 0);
    guard_close("gelu", b, a, k, dt, 2e-6f, rel(dt));
    assert_int_equal(d->ref->ops->silu_fwd(d->ref, a, xf, n, dt, NULL), 0);
    assert_int_equal(d->fast->ops->silu_fwd(d->fast, b, xf, n, dt, NULL), 0);
    guard_close("silu", b, a, k, dt, 2e-6f, rel(dt));
    float *dx0 = guard_randn(k, DT_F32, 1), *dx1 = guard_copy(dx0, k * 4);
    for (int acc = 0; acc < 2; acc++) {
        assert_int_equal(d->ref->ops->silu_bwd(d->ref, dx0, dy, xf, n, dt, acc, NULL), 0);
        assert_int_equal(d->fast->ops->silu_bwd(d->fast, dx1, dy, xf, n, dt, acc, NULL), 0);
        guard_close("silu_bwd", dx1, dx0, k, DT_F32, 2e-6f, 5e-6f);
    }
    guard_check_all();
}

static void activations_match(void **state)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int dt = DT_F32; dt <= DT_BF16; dt++)
            activations(*state, sizes[i], (enum dtype)dt);
}

/* Far from zero nothing overflows, and NaN is not hidden. */
static void extreme_activations(void **state)
{
    struct devices *d = *state;
    const float *x = guard_of(float, -1e30f, -100, 100, 1e30f, -0.0f, NAN);
    float *g = guard_new(24), *s = guard_new(24);
    assert_int_equal(d->fast->ops->gelu_fwd(d->fast, g, x, 6, DT_F32, NULL), 0);
    assert_int_equal(d->fast->ops->silu_fwd(d->fast, s, x, 6, DT_F32, NULL), 0);
    assert_true(fabsf(s[0]) < 1e-6f && fabsf(s[1]) < 1e-6f && s[2] == 100 && s[3] == 1e30f);
    assert_true(fabsf(g[1]) < 1e-6f && g[2] == 100 && g[4] == 0 && s[4] == 0);
    assert_true(isnan(g[5]) && isnan(s[5]));
    guard_check_all();
}

static void run_adamw(struct device *dev, struct adamw a, int64_t n, float *bufs[4], bool copy)
{
    a.p = bufs[0];
    a.m = bufs[1];
    a.v = bufs[2];
    a.n = n;
    a.p_bf16 = copy ? (bf16 *)(void *)bufs[3] : NULL;
    struct adamw_now *now = guard_new(sizeof *now);
    a.now = now;
    for (int step = 1; step <= 3; step++) {
        *now = adamw_now(1e-2, a.beta1, a.beta2, step);
        assert_int_equal(dev->ops->adamw(dev, &a, NULL), 0);
    }
}

static void adamw_is_exact(void **state)
{
    struct devices *d = *state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = (size_t)sizes[i];
        const float *scale = guard_of(float, 0.37f);
        struct adamw a = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.1f};
        a.grad = guard_randn(n, DT_F32, 1);
        a.grad_scale = i % 2 ? scale : NULL;
        float *r[4], *f[4];
        for (int k = 0; k < 4; k++) {
            r[k] = guard_randn(n, DT_F32, 1);
            if (k == 1 || k == 2)
                memset(r[k], 0, n * 4);
            f[k] = guard_copy(r[k], n * 4);
        }
        run_adamw(d->ref, a, (int64_t)n, r, i != 2);
        run_adamw(d->fast, a, (int64_t)n, f, i != 2);
        for (int k = 0; k < 3; k++)
            assert_memory_equal(f[k], r[k], n * 4);
        guard_close("bf16 copy", f[3], r[3], i != 2 ? n : 0, DT_BF16, 1e-37f, 0);
        guard_check_all();
    }
}

static void sums_and_clip(void **state)
{
    struct devices *d = *state;
    const int64_t more[] = {1, 4095, 4097, 70000, 4096LL * 4096 + 5};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        float *x = guard_randn((size_t)more[i], DT_F32, 1);
        double *a = guard_of(double, 3), *b = guard_of(double, 3);
        float *s0 = guard_new(4), *s1 = guard_new(4);
        const struct vec_span all = {0, more[i]};
        assert_int_equal(d->ref->ops->sumsq(d->ref, a, x, &all, 1, NULL), 0);
        assert_int_equal(d->fast->ops->sumsq(d->fast, b, x, &all, 1, NULL), 0);
        assert_true(fabs(*a - *b) <= 1e-12 * *a);
        assert_int_equal(d->ref->ops->clip_scale(d->ref, s0, a, NULL, 0.5f, NULL), 0);
        assert_int_equal(d->fast->ops->clip_scale(d->fast, s1, a, b, 0.5f, NULL), 0);
        assert_true(*s0 == *s1 && fabsf(*s0 - 0.5f / (float)sqrt(*a)) < 1e-6f);
        assert_int_equal(d->fast->ops->clip_scale(d->fast, s1, a, b, 0, NULL), 0);
        assert_true(*s1 == 1.0f);
        assert_int_equal(d->ref->ops->sum(d->ref, a, x, more[i], NULL), 0);
        assert_int_equal(d->fast->ops->sum(d->fast, b, x, more[i], NULL), 0);
        assert_true(fabs(*a - *b) <= 1e-9 * sqrt((double)more[i]));
        guard_check_all();
    }
}

/* Of a vector's tensors: some empty, some at odd places, more than go into one launch. */
static void sums_of_spans(void **state)
{
    enum { N = 300, VALUES = N * 61 + 3 * 4096 };
    struct devices *d = *state;
    struct vec_span spans[N];
    float *x = guard_randn(VALUES, DT_F32, 1);
    double *a = guard_new(N * sizeof *a), *b = guard_new(N * sizeof *b);
    int64_t at = 0;
    for (int i = 0; i < N; i++) {
        spans[i] = (struct vec_span){at, i == 131 ? 3 * 4096 : i % 7 == 6 ? 0 : i % 61};
        at += spans[i].count;
        a[i] = b[i] = i;
    }
    assert_true(at <= VALUES);
    assert_int_equal(d->ref->ops->sumsq(d->ref, a, x, spans, N, NULL), 0);
    assert_int_equal(d->fast->ops->sumsq(d->fast, b, x, spans, N, NULL), 0);
    for (int i = 0; i < N; i++)
        assert_true(fabs(a[i] - b[i]) <= 1e-12 * a[i] && (spans[i].count > 0) == (a[i] > i));
    assert_int_equal(d->fast->ops->sumsq(d->fast, b, x, &(struct vec_span){-1, 2}, 1, NULL),
                     -EINVAL);
    assert_int_equal(d->fast->ops->sumsq(d->fast, b, x, &(struct vec_span){0, -2}, 1, NULL),
                     -EINVAL);
    assert_int_equal(d->fast->ops->sumsq(d->fast, b, x, spans, -1, NULL), -EINVAL);
    guard_check_all();
}

/* What is not finite gives no scale, and an update with none changes nothing. */
static void not_finite_is_skipped(void **state)
{
    struct devices *d = *state;
    const double bad[] = {INFINITY, NAN, -INFINITY};
    for (size_t i = 0; i < 2 * sizeof bad / sizeof *bad; i++) {
        double *a = guard_of(double, 2), *b = guard_of(double, bad[i / 2]);
        float *scale = guard_of(float, 1), *buf[4], *kept[4];
        for (int k = 0; k < 4; k++) {
            buf[k] = guard_randn(100, DT_F32, 1);
            kept[k] = guard_copy(buf[k], 400);
        }
        struct device *dev = i % 2 ? d->ref : d->fast;
        assert_int_equal(dev->ops->clip_scale(dev, scale, a, b, 0.5f, NULL), 0);
        assert_true(isnan(*scale));
        *scale = 1;
        assert_int_equal(dev->ops->clip_scale(dev, scale, b, NULL, 0, NULL), 0);
        assert_true(isnan(*scale));
        struct adamw p = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
        p.grad = guard_randn(100, DT_F32, 1);
        p.grad_scale = scale;
        run_adamw(dev, p, 100, buf, true);
        for (int k = 0; k < 4; k++)
            assert_memory_equal(buf[k], kept[k], 400);
        guard_check_all();
    }
}

/* Noise has the bits of common/base/rng.h on every device. */
static void normal_is_exact(void **state)
{
    struct devices *d = *state;
    const int64_t widths[] = {1, 3, 4, 27, 4096, 4099, 12288};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        const int B = 5;
        const size_t n = (size_t)widths[i];
        const uint64_t *streams =
            guard_of(uint64_t, 0, 1, 0xffffffffffffffffu, 0x123456789abcdefu, 1ull << 32);
        float *want = guard_new(n * 4), *got = guard_new((size_t)B * n * 4);
        const uint64_t seed = 0xfedcba9876543210u + i;
        for (int k = 0; k < 2; k++) {
            struct device *dev = k ? d->ref : d->fast;
            memset(got, 0xff, (size_t)B * n * 4);
            assert_int_equal(dev->ops->normal(dev, got, seed, streams, B, widths[i], NULL), 0);
            for (int b = 0; b < B; b++) {
                rng_fill_normal(seed, streams[b], 0, want, n, 0.0f, 1.0f);
                assert_memory_equal(got + (size_t)b * n, want, n * 4);
            }
        }
        guard_check_all();
    }
}

static void plain_vectors(struct devices *d, int64_t n)
{
    size_t k = (size_t)n;
    float *x = guard_randn(k, DT_F32, 1), *y = guard_randn(k, DT_F32, 1);
    float *a = guard_randn(k, DT_F32, 1), *b = guard_copy(a, k * 4);
    const struct kernel_ops *r = d->ref->ops, *f = d->fast->ops;
    r->axpy(d->ref, a, 0.3f, x, n, NULL);
    f->axpy(d->fast, b, 0.3f, x, n, NULL);
    assert_memory_equal(a, b, k * 4);
    r->axpby(d->ref, a, 1.5f, a, -0.5f, y, n, NULL);
    f->axpby(d->fast, b, 1.5f, b, -0.5f, y, n, NULL);
    assert_memory_equal(a, b, k * 4);
    r->fill(d->ref, a, 2.5f, n, NULL);
    f->fill(d->fast, b, 2.5f, n, NULL);
    assert_memory_equal(a, b, k * 4);
    bf16 *h0 = guard_new(k * 2), *h1 = guard_new(k * 2);
    r->cast(d->ref, h0, DT_BF16, x, DT_F32, n, NULL);
    f->cast(d->fast, h1, DT_BF16, x, DT_F32, n, NULL);
    assert_memory_equal(h0, h1, k * 2);
    f->cast(d->fast, b, DT_F32, h0, DT_BF16, n, NULL);
    r->cast(d->ref, a, DT_F32, h0, DT_BF16, n, NULL);
    assert_memory_equal(a, b, k * 4);
    guard_check_all();
}

static void plain_vectors_are_exact(void **state)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        plain_vectors(*state, sizes[i]);
}

static void rows(void **state)
{
    struct devices *d = *state;
    const int dims[][2] = {{1, 1}, {3, 5}, {9, 64}, {5, 65}, {70, 130}};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        int m = dims[i][0], n = dims[i][1];
        size_t k = (size_t)(m * n), w = (size_t)n;
        float *a = guard_randn(w, DT_F32, 1), *b = guard_copy(a, w * 4);
        float *x0 = guard_randn(k, DT_F32, 1), *x1 = guard_copy(x0, k * 4);
        d->ref->ops->add_row(d->ref, x0, a, m, n, NULL);
        d->fast->ops->add_row(d->fast, x1, a, m, n, NULL);
        assert_memory_equal(x0, x1, k * 4);
        d->ref->ops->sum_rows(d->ref, a, x0, m, n, NULL);
        d->fast->ops->sum_rows(d->fast, b, x0, m, n, NULL);
        assert_memory_equal(a, b, w * 4);
        guard_check_all();
    }
}

static void embeddings(void **state)
{
    struct devices *d = *state;
    enum { B = 5, C = 19, ROWS = 4 };
    const int32_t *ids = guard_of(int32_t, 3, 0, 3, 1, 3);
    const int32_t *bad = guard_of(int32_t, 0, 1, 2, 4, 0);
    float *table = guard_randn(ROWS * C, DT_F32, 1), *g = guard_randn(B * C, DT_F32, 1);
    float *o0 = guard_randn(B * C, DT_F32, 1), *o1 = guard_copy(o0, B * C * 4);
    float *t0 = guard_randn(ROWS * C, DT_F32, 1), *t1 = guard_copy(t0, ROWS * C * 4);
    d->ref->ops->embed_fwd(d->ref, o0, table, ids, B, C, ROWS, true, NULL);
    assert_int_equal(d->fast->ops->embed_fwd(d->fast, o1, table, ids, B, C, ROWS, true, NULL), 0);
    assert_memory_equal(o0, o1, B * C * 4);
    d->ref->ops->embed_bwd(d->ref, t0, g, ids, B, C, ROWS, NULL);
    assert_int_equal(d->fast->ops->embed_bwd(d->fast, t1, g, ids, B, C, ROWS, NULL), 0);
    assert_memory_equal(t0, t1, ROWS * C * 4);
    assert_int_equal(d->fast->ops->embed_fwd(d->fast, o1, table, bad, B, C, ROWS, true, NULL), -22);
    assert_int_equal(d->fast->ops->embed_bwd(d->fast, t1, g, bad, B, C, ROWS, NULL), -22);
    guard_check_all();
}

/* cos at 0 is 1, the first frequency is 1, and an odd dim ends in 0. */
static void timesteps(void **state)
{
    struct devices *d = *state;
    for (int dim = 1; dim <= 9; dim += 4) {
        for (int dt = DT_F32; dt <= DT_BF16; dt++) {
            const float *t = guard_of(float, 0, 1.5f, 999);
            size_t n = 3 * (size_t)dim;
            void *a = guard_new(n * 4), *b = guard_new(n * 4);
            assert_int_equal(
                d->ref->ops->timestep_embed(d->ref, a, t, 3, dim, (enum dtype)dt, NULL), 0);
            assert_int_equal(
                d->fast->ops->timestep_embed(d->fast, b, t, 3, dim, (enum dtype)dt, NULL), 0);
            guard_close("timestep", b, a, n, (enum dtype)dt, 1e-4f, rel((enum dtype)dt));
            assert_true(dtype_get(b, (enum dtype)dt, n - 1) == 0 || dim % 2 == 0);
            if (dim > 1) {
                size_t row = (size_t)dim;
                assert_true(dtype_get(b, (enum dtype)dt, 0) == 1);
                assert_true(fabsf(dtype_get(b, (enum dtype)dt, row) - cosf(1.5f)) < 4e-3f);
            }
            guard_check_all();
        }
    }
}

static void patches(void **state)
{
    struct devices *d = *state;
    const int shapes[][5] = {{1, 1, 1, 1, 1}, {2, 3, 6, 6, 2}, {1, 3, 9, 9, 3}, {3, 4, 8, 8, 1},
                             {2, 1, 4, 4, 4}, {2, 3, 4, 6, 2}, {3, 2, 9, 3, 3}, {2, 5, 1, 7, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        int B = shapes[i][0], Ch = shapes[i][1], H = shapes[i][2], W = shapes[i][3];
        int p = shapes[i][4];
        size_t n = (size_t)(B * Ch * H * W);
        float *img = guard_randn(n, DT_F32, 1);
        for (int order = PATCH_CPP; order <= PATCH_PPC; order++) {
            float *a = guard_new(n * 4), *b = guard_new(n * 4), *back = guard_new(n * 4);
            d->ref->ops->patchify(d->ref, a, img, B, Ch, H, W, p, (enum patch_order)order, DT_F32,
                                  NULL);
            d->fast->ops->patchify(d->fast, b, img, B, Ch, H, W, p, (enum patch_order)order, DT_F32,
                                   NULL);
            assert_memory_equal(a, b, n * 4);
            d->fast->ops->unpatchify(d->fast, back, b, B, Ch, H, W, p, (enum patch_order)order,
                                     DT_F32, NULL);
            assert_memory_equal(back, img, n * 4);
        }
        guard_check_all();
    }
    float x[1];
    assert_int_equal(d->fast->ops->patchify(d->fast, x, x, 1, 1, 3, 2, 2, PATCH_CPP, DT_F32, NULL),
                     -22);
    assert_int_equal(d->fast->ops->patchify(d->fast, x, x, 1, 1, 2, 3, 2, PATCH_CPP, DT_F32, NULL),
                     -22);
}

/* Written out by hand: which pixel stands where. */
static void patch_orders(void **state)
{
    struct devices *d = *state;
    /* 2 channels of 2x2 */
    const float *img = guard_of(float, 0, 1, 2, 3, 10, 11, 12, 13);
    float *out = guard_new(8 * sizeof *out);
    const float cpp[8] = {0, 1, 2, 3, 10, 11, 12, 13}, ppc[8] = {0, 10, 1, 11, 2, 12, 3, 13};
    d->fast->ops->patchify(d->fast, out, img, 1, 2, 2, 2, 2, PATCH_CPP, DT_F32, NULL);
    assert_memory_equal(out, cpp, sizeof cpp);
    d->fast->ops->patchify(d->fast, out, img, 1, 2, 2, 2, 2, PATCH_PPC, DT_F32, NULL);
    assert_memory_equal(out, ppc, sizeof ppc);
    const float *wide = guard_of(float, 0, 1, 2, 3); /* four 1x1 patches, row-major */
    d->fast->ops->patchify(d->fast, out, wide, 1, 1, 2, 2, 1, PATCH_CPP, DT_F32, NULL);
    assert_memory_equal(out, wide, 4 * sizeof *wide);
    /* a row of two patches: 2 x 4 pixels */
    const float *row = guard_of(float, 0, 1, 2, 3, 4, 5, 6, 7);
    const float parted[8] = {0, 1, 4, 5, 2, 3, 6, 7};
    d->fast->ops->patchify(d->fast, out, row, 1, 1, 2, 4, 2, PATCH_CPP, DT_F32, NULL);
    assert_memory_equal(out, parted, sizeof parted);
    guard_check_all();
}

static void pixels(void **state)
{
    struct devices *d = *state;
    enum { B = 2, Ch = 3, H = 8, W = 24, N = B * Ch * H * W };
    uint8_t *u8 = guard_new(N), *back = guard_new(N);
    float *img = guard_new(N * 4);
    for (int i = 0; i < N; i++)
        u8[i] = (uint8_t)(i * 7);
    assert_int_equal(d->fast->ops->image_from_u8(d->fast, img, u8, B, Ch, H, W, NULL), 0);
    assert_true(img[0] == -1.0f && img[1] == (float)u8[3] / 127.5f - 1.0f);
    assert_int_equal(d->fast->ops->image_to_u8(d->fast, back, img, B, Ch, H, W, NULL), 0);
    assert_memory_equal(back, u8, N);
    const float *wild = guard_of(float, 5, -5, NAN);
    uint8_t *got = guard_new(3);
    assert_int_equal(d->fast->ops->image_to_u8(d->fast, got, wild, 1, 3, 1, 1, NULL), 0);
    assert_true(got[0] == 255 && got[1] == 0 && got[2] == 0);
    guard_check_all();
}

static void flow_and_loss(void **state)
{
    struct devices *d = *state;
    const int64_t dims[][2] = {{1, 1}, {3, 37}, {5, 768}};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        int B = (int)dims[i][0];
        int64_t n = dims[i][1];
        size_t k = (size_t)(B * n);
        float *x0 = guard_randn(k, DT_F32, 1), *eps = guard_randn(k, DT_F32, 1);
        float *t = guard_randn((size_t)B, DT_F32, 0.2f), *w = guard_randn((size_t)B, DT_F32, 1);
        float *out[2][4];
        struct device *dev[2] = {d->ref, d->fast};
        for (int j = 0; j < 2; j++) {
            for (int o = 0; o < 4; o++)
                out[j][o] = guard_new(o == 2 ? (size_t)B * 4 : k * 4);
            dev[j]->ops->flow_mix(dev[j], out[j][0], out[j][1], x0, eps, t, B, n, NULL);
            dev[j]->ops->mse(dev[j], out[j][2], out[j][3], x0, eps, i ? w : NULL, 0.25f, B, n,
                             NULL);
        }
        guard_close("xt", out[1][0], out[0][0], k, DT_F32, 0, 0);
        guard_close("target", out[1][1], out[0][1], k, DT_F32, 0, 0);
        guard_close("loss", out[1][2], out[0][2], (size_t)B, DT_F32, 0, 1e-6f);
        guard_close("dpred", out[1][3], out[0][3], k, DT_F32, 0, 1e-6f);
        guard_check_all();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_match),
        cmocka_unit_test(extreme_activations),
        cmocka_unit_test(adamw_is_exact),
        cmocka_unit_test(sums_and_clip),
        cmocka_unit_test(sums_of_spans),
        cmocka_unit_test(not_finite_is_skipped),
        cmocka_unit_test(normal_is_exact),
        cmocka_unit_test(plain_vectors_are_exact),
        cmocka_unit_test(rows),
        cmocka_unit_test(embeddings),
        cmocka_unit_test(timesteps),
        cmocka_unit_test(patches),
        cmocka_unit_test(patch_orders),
        cmocka_unit_test(pixels),
        cmocka_unit_test(flow_and_loss),
    };
    return cmocka_run_group_tests(tests, devices_setup, devices_teardown);
}
