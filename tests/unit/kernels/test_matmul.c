/* The product against its reference: all layouts, types and epilogues, odd sizes.
 *
 * Tolerance: both sum k products of f32 (bf16 products are exact in f32) in different
 * orders, so they differ by about 2^-24 * k * E|a b| * a small factor; the bf16 dot product
 * instruction adds pairs without an intermediate rounding.  1e-6 * k + 1e-5 relative covers
 * it; a bf16 output adds half a unit in its last place on each side, 2^-8. */
#include "tests/unit/kernels/guard.h"

struct shape {
    int64_t m, n, k;
};

static const struct shape shapes[] = {
    {1, 1, 1},     {3, 5, 7},     {12, 32, 2},   {13, 33, 3},    {64, 48, 64},   {97, 31, 129},
    {100, 96, 65}, {192, 64, 96}, {7, 200, 40},  {25, 17, 1100}, {26, 38, 1536}, {1, 70, 300},
    {3, 130, 64},  {4, 130, 64},  {2, 33, 1029}, {34, 148, 63},  {300, 70, 96},
};

static void fill_case(struct matmul *mm, const struct shape *s, enum dtype dt, enum dtype c_dt)
{
    /* Leading dimensions a little larger than dense on every other case. */
    int64_t pad = (s->m + s->n) % 2 ? 3 : 0;
    mm->m = s->m;
    mm->n = s->n;
    mm->k = s->k;
    mm->dt = dt;
    mm->c_dt = c_dt;
    bool tn = mm->layout == MM_TN, nt = mm->layout == MM_NT;
    mm->lda = (tn ? s->m : s->k) + pad;
    mm->ldb = (nt ? s->k : s->n) + pad;
    mm->ldc = s->n + pad;
    mm->a = guard_randn((size_t)((tn ? s->k : s->m) * mm->lda - pad), dt, 1);
    mm->b = guard_randn((size_t)((nt ? s->n : s->k) * mm->ldb - pad), dt, 1);
    mm->bias = guard_randn((size_t)s->n, DT_F32, 1);
}

static const bf16 *rounded(const float *x, int64_t n)
{
    bf16 *p = guard_new((size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++)
        dtype_set(p, DT_BF16, (size_t)i, x[i]);
    return p;
}

/* Runs the case on both devices with their own copies of what is written. */
static void compare(struct devices *d, struct matmul mm)
{
    size_t cn = (size_t)((mm.m - 1) * mm.ldc + mm.n), cb = cn * dtype_bytes(mm.c_dt);
    void *c0 = guard_randn(cn, mm.c_dt, 1), *c1 = guard_copy(c0, cb);
    void *aux0 = guard_randn(cn, mm.c_dt, 1), *aux1 = guard_copy(aux0, cb);
    float *sum0 = guard_randn((size_t)mm.m, DT_F32, mm.a_colsum_zero ? 0 : 1);
    float *sum1 = guard_copy(sum0, (size_t)mm.m * sizeof *sum0);
    bool aux = mm.epilogue != MM_PLAIN, sums = mm.layout == MM_TN;
    mm.c = c0;
    mm.aux = aux ? aux0 : NULL;
    mm.a_colsum = sums ? sum0 : NULL;
    assert_int_equal(d->ref->ops->matmul(d->ref, &mm, NULL), 0);
    mm.c = c1;
    mm.aux = aux ? aux1 : NULL;
    mm.a_colsum = sums ? sum1 : NULL;
    assert_int_equal(d->fast->ops->matmul(d->fast, &mm, NULL), 0);
    float abs_tol = 1e-6f * (float)mm.k + 1e-5f;
    float rel_tol = mm.c_dt == DT_BF16 ? 1.0f / 128 : 1e-5f;
    /* GELU of the rounded pre-activation: up to 2^-9 |x| |gelu'(x)|, which in the negative tail
     * is more than the result's own last place. */
    if (mm.epilogue == MM_GELU && mm.c_dt == DT_BF16)
        abs_tol += 2e-3f;
    /* Half a place of a bias below 4, and of the product, which is at most that and 3 larger than
     * the result where a gelu is not flat; times the steepest gelu. */
    if (GUARD_ROUNDS_BIAS && mm.bias && mm.c_dt == DT_BF16) {
        abs_tol += 1.13f / 256 * (2 + 4 + 3);
        rel_tol += 1.13f / 256;
    }
    /* A card's tanh has 11 bits; the products grow with the root of k. */
    if (GUARD_ROUNDS_TANH && mm.epilogue == MM_DGELU && mm.c_dt == DT_BF16)
        abs_tol += 0.01f * sqrtf((float)mm.k);
    guard_close("C", c1, c0, cn, mm.c_dt, abs_tol, rel_tol);
    guard_close("aux", aux1, aux0, cn, mm.c_dt, abs_tol, rel_tol);
    guard_close("a_colsum", sum1, sum0, (size_t)mm.m, DT_F32, abs_tol, 1e-5f);
}

static void run_case(struct devices *d, enum mm_layout layout, const struct shape *s, int types)
{
    for (int e = MM_PLAIN; e <= MM_DGELU; e++) {
        struct matmul mm = {.layout = layout, .epilogue = (enum mm_epilogue)e};
        fill_case(&mm, s, (enum dtype)(types & 1), (enum dtype)(types >> 1));
        compare(d, mm);
        mm.bias16 = rounded(mm.bias, mm.n);
        compare(d, mm);
        mm.bias = NULL; /* then a card's library may do more by itself */
        mm.bias16 = NULL;
        compare(d, mm);
        mm.a_colsum_zero = true;
        compare(d, mm);
        guard_check_all();
    }
}

static void run_layout(struct devices *d, enum mm_layout layout)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int types = 0; types < 4; types++)
            run_case(d, layout, &shapes[i], types);
}

static void layouts(void **state)
{
    run_layout(*state, MM_NN);
    run_layout(*state, MM_NT);
    run_layout(*state, MM_TN);
}

static void accumulates(void **state)
{
    for (int layout = MM_NN; layout <= MM_TN; layout++) {
        for (int dt = DT_F32; dt <= DT_BF16; dt++) {
            struct matmul mm = {.layout = (enum mm_layout)layout, .accumulate = true};
            struct shape s = {45, 51, 1037};
            fill_case(&mm, &s, (enum dtype)dt, DT_F32);
            compare(*state, mm);
            mm.bias = NULL;
            compare(*state, mm);
            guard_check_all();
        }
    }
}

/* Rows a power of two apart take the packed path. */
static void power_of_two_rows(void **state)
{
    struct shape s = {30, 100, 2048};
    for (int dt = DT_F32; dt <= DT_BF16; dt++) {
        struct matmul mm = {.layout = MM_NT};
        fill_case(&mm, &s, (enum dtype)dt, DT_F32);
        mm.lda = 2048;
        compare(*state, mm);
        guard_check_all();
    }
}

static void no_aux_gelu(void **state)
{
    struct devices *d = *state;
    struct matmul mm = {.layout = MM_NT, .epilogue = MM_GELU};
    struct shape s = {33, 40, 20};
    fill_case(&mm, &s, DT_F32, DT_F32);
    float *c0 = guard_new(4 * (size_t)(32 * mm.ldc + 40));
    float *c1 = guard_new(4 * (size_t)(32 * mm.ldc + 40));
    mm.c = c0;
    assert_int_equal(d->ref->ops->matmul(d->ref, &mm, NULL), 0);
    mm.c = c1;
    assert_int_equal(d->fast->ops->matmul(d->fast, &mm, NULL), 0);
    for (int64_t i = 0; i < s.m; i++)
        guard_close("C", c1 + i * mm.ldc, c0 + i * mm.ldc, (size_t)s.n, DT_F32, 1e-4f, 1e-5f);
    guard_check_all();
}

static void refuses_impossible(void **state)
{
    struct devices *d = *state;
    float x[4] = {0};
    struct matmul ok = {.layout = MM_NN, .m = 2, .n = 2, .k = 1, .c = x, .a = x, .b = x};
    struct matmul bad[7];
    for (int i = 0; i < 7; i++)
        bad[i] = ok;
    bad[0].m = -1;
    bad[1].lda = 0, bad[1].ldb = 1;
    bad[2].epilogue = MM_DGELU;
    bad[3].a_colsum = x;
    bad[4].accumulate = true, bad[4].c_dt = DT_BF16;
    bad[5].dt = (enum dtype)7;
    bad[6].bias16 = (const bf16 *)x;
    for (int i = 0; i < 7; i++) {
        assert_int_equal(d->ref->ops->matmul(d->ref, &bad[i], NULL), -22);
        assert_int_equal(d->fast->ops->matmul(d->fast, &bad[i], NULL), -22);
    }
    ok.m = 0;
    assert_int_equal(d->fast->ops->matmul(d->fast, &ok, NULL), 0);
}

/* The same bits with one, two and five threads. */
static void threads_do_not_matter(void **state)
{
    const int counts[] = {1, 2, 5};
    static const struct shape few[] = {{201, 130, 1100}, {600, 70, 130}, {9, 130, 200}};
    for (int i = 0; i < 3 * 3 * 2; i++) {
        const struct shape *s = &few[i % 3];
        struct matmul mm = {.layout = (enum mm_layout)(i / 3 % 3)};
        fill_case(&mm, s, i / 9 ? DT_BF16 : DT_F32, DT_F32);
        size_t bytes = 4 * (size_t)((s->m - 1) * mm.ldc + s->n);
        void *c[3];
        for (int t = 0; t < 3; t++) {
            struct device *dev;
            assert_int_equal(device_open("cpu", counts[t], &dev, NULL), 0);
            mm.c = c[t] = guard_new(bytes);
            assert_int_equal(dev->ops->matmul(dev, &mm, NULL), 0);
            device_close(dev);
            assert_memory_equal(c[t], c[0], bytes);
        }
        guard_check_all();
    }
}

/* Where a matrix lies: elements between its rows, and from a line of memory to its first one. */
struct place {
    int64_t gap, offset;
};

/* A copy of src (rows,cols) in such a place. */
static void *placed(const void *src, int64_t rows, int64_t cols, struct place at, enum dtype dt)
{
    const size_t size = dtype_bytes(dt), row = (size_t)cols * size, gap = (size_t)at.gap * size;
    const size_t offset = (size_t)at.offset * size;
    char *dst = (char *)guard_new(offset + (size_t)rows * (row + gap)) + offset;
    for (int64_t i = 0; i < rows; i++)
        memcpy(dst + (size_t)i * (row + gap), (const char *)src + (size_t)i * row, row);
    return dst;
}

/* The product of the dense matrices of mm with all of them in such places; its C, dense. */
static float *placed_product(struct device *dev, struct matmul mm, struct place at)
{
    const bool tn = mm.layout == MM_TN, nt = mm.layout == MM_NT;
    const size_t row = (size_t)mm.n * sizeof(float);
    float *c = guard_new((size_t)mm.m * row);
    mm.lda = (tn ? mm.m : mm.k) + at.gap;
    mm.ldb = (nt ? mm.k : mm.n) + at.gap;
    mm.ldc = mm.n + at.gap;
    mm.a = placed(mm.a, tn ? mm.k : mm.m, tn ? mm.m : mm.k, at, mm.dt);
    mm.b = placed(mm.b, nt ? mm.n : mm.k, nt ? mm.k : mm.n, at, mm.dt);
    mm.c = placed(mm.c, mm.m, mm.n, at, DT_F32);
    assert_int_equal(dev->ops->matmul(dev, &mm, NULL), 0);
    for (int64_t i = 0; i < mm.m; i++)
        memcpy(c + i * mm.n, (float *)mm.c + i * mm.ldc, row);
    return c;
}

/* The same bits wherever matrices lie: the modulations of a part of a network are closer together
 * than those of all of it. */
static void places_do_not_matter(void **state)
{
    static const struct shape few[] = {{2, 12, 72}, {72, 12, 2}, {20, 72, 12}, {64, 48, 96}};
    static const struct place places[] = {{0, 1}, {0, 5}, {1, 3}, {24, 0}, {96, 0}, {240, 0}};
    struct device *dev;
    assert_int_equal(device_open("cpu", 2, &dev, NULL), 0);
    for (int i = 0; i < 4 * 3 * 2 * 2; i++) {
        const struct shape *s = &few[i % 4];
        struct matmul mm = {.layout = (enum mm_layout)(i / 4 % 3),
                            .dt = i / 12 % 2 ? DT_BF16 : DT_F32,
                            .accumulate = i / 24,
                            .m = s->m,
                            .n = s->n,
                            .k = s->k};
        mm.a = guard_randn((size_t)(mm.m * mm.k), mm.dt, 1);
        mm.b = guard_randn((size_t)(mm.k * mm.n), mm.dt, 1);
        mm.c = guard_randn((size_t)(mm.m * mm.n), DT_F32, 1);
        const float *want = placed_product(dev, mm, (struct place){0});
        for (size_t k = 0; k < sizeof places / sizeof *places; k++)
            if (memcmp(placed_product(dev, mm, places[k]), want, (size_t)(mm.m * mm.n) * 4) != 0)
                fail_msg("layout %d of %s, (%d,%d,%d)%s: other bits in place %zu", (int)mm.layout,
                         mm.dt == DT_BF16 ? "bf16" : "f32", (int)mm.m, (int)mm.n, (int)mm.k,
                         mm.accumulate ? ", added" : "", k);
        guard_check_all();
    }
    device_close(dev);
}

/* What a row gives does not depend on the rows beside it: frozen networks give the same for a
 * sample in any group (f32; worker/frozen). */
static void rows_do_not_matter(void **state)
{
    static const struct shape few[] = {{300, 64, 96}, {70, 33, 1029}, {40, 200, 40}};
    struct device *dev;
    assert_int_equal(device_open("cpu", 2, &dev, NULL), 0);
    for (int i = 0; i < 3 * 2; i++) {
        const struct shape *s = &few[i % 3];
        struct matmul mm = {.layout = i / 3 ? MM_NT : MM_NN, .m = s->m, .n = s->n, .k = s->k};
        mm.a = guard_randn((size_t)(mm.m * mm.k), DT_F32, 1);
        mm.b = guard_randn((size_t)(mm.k * mm.n), DT_F32, 1);
        const float *whole = mm.c = guard_new((size_t)(mm.m * mm.n) * 4);
        assert_int_equal(dev->ops->matmul(dev, &mm, NULL), 0);
        float *part = mm.c = guard_new((size_t)(mm.m * mm.n) * 4);
        for (mm.m = 4; mm.m < s->m; mm.m += 1 + mm.m / 2) {
            assert_int_equal(dev->ops->matmul(dev, &mm, NULL), 0);
            assert_memory_equal(part, whole, (size_t)(mm.m * mm.n) * 4);
        }
        guard_check_all();
    }
    device_close(dev);
}

/* A value that is not finite shows in all that it is in, and in nothing else. */
static void infinite_values_show(void **state)
{
    enum { N = 64 };
    static const float bad[] = {INFINITY, -INFINITY, NAN, 3.4e38f};
    struct device *dev;
    assert_int_equal(device_open("cpu", 1, &dev, NULL), 0);
    float *a = guard_randn(N * N, DT_F32, 1), *c = guard_new(N * N * 4);
    struct matmul mm = {.m = N, .n = N, .k = N, .a = a, .c = c};
    mm.b = guard_randn(N * N, DT_F32, 100);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        a[5 * N + 7] = bad[i];
        assert_int_equal(dev->ops->matmul(dev, &mm, NULL), 0);
        for (int k = 0; k < N * N; k++)
            assert_true(k / N == 5 ? !isfinite(c[k]) || i == 3 : isfinite(c[k]));
    }
    guard_check_all();
    device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts),
        cmocka_unit_test(accumulates),
        cmocka_unit_test(power_of_two_rows),
        cmocka_unit_test(no_aux_gelu),
        cmocka_unit_test(refuses_impossible),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(places_do_not_matter),
        cmocka_unit_test(rows_do_not_matter),
        cmocka_unit_test(infinite_values_show),
    };
    return cmocka_run_group_tests(tests, devices_setup, devices_teardown);
}
