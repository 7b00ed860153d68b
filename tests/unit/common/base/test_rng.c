#include "common/base/rng.h"

#include <math.h>

#include "tests/unit/common/base/util.h"

/* Known answers of Random123 1.14 (kat_vectors, philox4x32 10). */
static void philox_known_answers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        uint32_t out[4];
        rng_philox(cases[i].counter, cases[i].key, out);
        assert_memory_equal(out, cases[i].out, sizeof(out));
    }
}

/* Any split of a fill gives the same elements. */
static void fills_do_not_depend_on_the_split(void **state)
{
    enum { N = 1001 };
    static float whole[N], parts[N];
    rng_fill_normal(7, 3, 5, whole, N, 0.5f, 2.0f);
    for (size_t step = 1; step < 40; step += 6) {
        for (size_t at = 0; at < N; at += step) {
            size_t n = at + step < N ? step : N - at;
            rng_fill_normal(7, 3, 5 + at, parts + at, n, 0.5f, 2.0f);
        }
        assert_memory_equal(whole, parts, sizeof(whole));
    }
    for (size_t i = 0; i < N; i++)
        assert_true(0.5f + 2.0f * rng_at_normal(7, 3, 5 + i) == whole[i]);
    struct rng r;
    rng_init(&r, 7, 3);
    r.next = 5;
    for (size_t i = 0; i < N; i++)
        assert_int_equal(rng_u32(&r), rng_at_u32(7, 3, 5 + i));
}

static void moments_are_right(void **state)
{
    enum { N = 200000 };
    float *z = mem_alloc_array(N, sizeof(*z));
    rng_fill_normal(1, 2, 0, z, N, 0, 1);
    double m1 = 0, m2 = 0, m4 = 0, inside = 0;
    for (size_t i = 0; i < N; i++) {
        double x = z[i];
        m1 += x;
        m2 += x * x;
        m4 += x * x * x * x;
        inside += fabs(x) < 1;
    }
    assert_true(fabs(m1 / N) < 0.01);
    assert_true(fabs(m2 / N - 1) < 0.02);
    assert_true(fabs(m4 / N - 3) < 0.1);
    assert_true(fabs(inside / N - 0.682689) < 0.005);
    rng_fill_uniform(1, 2, 0, z, N);
    m1 = 0;
    for (size_t i = 0; i < N; i++) {
        assert_true(z[i] >= 0 && z[i] < 1);
        m1 += z[i];
    }
    assert_true(fabs(m1 / N - 0.5) < 0.005);
    mem_free(z);
}

/* The normal transform against libm. */
static void normals_match_libm(void **state)
{
    for (uint64_t i = 0; i < 20000; i += 2) {
        double u = (rng_at_u32(9, 9, i) + 1.0) * 0x1p-32, v = rng_at_u32(9, 9, i + 1) * 0x1p-32;
        double radius = sqrt(-2 * log(u)), angle = 2 * 3.14159265358979323846 * v;
        assert_true(fabs(rng_at_normal(9, 9, i) - radius * cos(angle)) < 2e-6);
        assert_true(fabs(rng_at_normal(9, 9, i + 1) - radius * sin(angle)) < 2e-6);
    }
}

static void shuffles(void **state)
{
    enum { N = 1000 };
    static uint32_t a[N], b[N], seen[N];
    rng_permutation(5, 1, a, N);
    rng_permutation(5, 1, b, N);
    assert_memory_equal(a, b, sizeof(a));
    for (size_t i = 0; i < N; i++)
        seen[a[i]]++;
    for (size_t i = 0; i < N; i++)
        assert_int_equal(seen[i], 1);
    rng_permutation(5, 2, b, N);
    assert_memory_not_equal(a, b, sizeof(a));
    struct rng r;
    rng_init(&r, 3, 3);
    unsigned counts[7] = {0};
    for (int i = 0; i < 70000; i++)
        counts[rng_below(&r, 7)]++;
    for (int i = 0; i < 7; i++)
        assert_in_range(counts[i], 9500, 10500);
    assert_int_equal(rng_below(&r, 1), 0);
    assert_true(rng_mix(1, 2) != rng_mix(2, 1));
    for (int i = 0; i < 1000; i++) {
        double d = rng_uniform_double(&r);
        float f = rng_at_uniform(3, 4, (uint64_t)i);
        assert_true(d >= 0 && d < 1 && f >= 0 && f < 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(fills_do_not_depend_on_the_split),
        cmocka_unit_test(moments_are_right),
        cmocka_unit_test(normals_match_libm),
        cmocka_unit_test(shuffles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
