/* The bias that fills classes as wanted. */
#include "worker/fit/histogram.h"

#include "tests/unit/worker/fit/fit_test.h"

static float *scores(uint32_t n, uint32_t k)
{
    float *s = mem_alloc_array((size_t)n * k, sizeof(float));
    rng_fill_normal(6, k, 0, s, (size_t)n * k, 0, 1);
    for (uint32_t i = 0; i < n; i++)
        s[(size_t)i * k] += 2; /* the first class would have nearly all */
    return s;
}

static void test_targets(void **state)
{
    const uint32_t n = 5000, k = 7;
    float *s = scores(n, k), bias[7];
    double want[7] = {0, 50, 150, 300, 500, 1500, 2500}, load[7];
    const struct histogram h = {.scores = s, .n = n, .k = k, .lo = want, .hi = want};
    struct histogram_report r;
    OK(histogram_fit(&h, bias, load, &r, err));
    assert_true(r.met);
    double counted[7] = {0}, mean = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t best = 0;
        for (uint32_t c = 1; c < k; c++)
            if (s[i * k + c] + bias[c] > s[i * k + best] + bias[best])
                best = c;
        counted[best]++;
    }
    for (uint32_t c = 0; c < k; c++) {
        assert_true(counted[c] == load[c]);
        assert_true(fabs(load[c] - want[c]) <= 1.01);
        mean += c ? (double)bias[c] : 0;
    }
    assert_true(fabs(mean) < 1e-4);
    mem_free(s);
}

/* The optimum is the cheapest assignment: against all of them, by trying. */
static void test_is_optimal(void **state)
{
    const uint32_t n = 9, k = 3;
    float *s = scores(n, k), bias[3];
    const double want[3] = {3, 3, 3};
    double load[3], best = -1e9, got = 0;
    const struct histogram h = {.scores = s, .n = n, .k = k, .lo = want, .hi = want};
    struct histogram_report r;
    OK(histogram_fit(&h, bias, load, &r, err));
    assert_true(r.gap == 0);
    for (uint32_t code = 0; code < 19683; code++) {
        uint32_t used[3] = {0};
        double sum = 0;
        for (uint32_t i = 0, c = code; i < n; i++, c /= 3) {
            used[c % 3]++;
            sum += (double)s[i * 3 + c % 3];
        }
        if (used[0] == 3 && used[1] == 3)
            best = sum > best ? sum : best;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t c = 0;
        for (uint32_t j = 1; j < k; j++)
            c = s[i * 3 + j] + bias[j] > s[i * 3 + c] + bias[c] ? j : c;
        got += (double)s[i * 3 + c];
    }
    assert_true(fabs(got - best) < 1e-5);
    mem_free(s);
}

static void test_bounds(void **state)
{
    struct err e = {0};
    const uint32_t n = 3001, k = 6;
    float *s = scores(n, k), bias[6];
    double lo[6], hi[6], load[6];
    struct histogram h = {.scores = s, .n = n, .k = k, .lo = lo, .hi = hi};
    struct histogram_report r;
    histogram_bounds(n, k, 1.3, 300, 1, lo, hi);
    OK(histogram_fit(&h, bias, load, &r, err));
    assert_true(r.met);
    for (uint32_t c = 0; c < k; c++)
        assert_true(load[c] <= 1.3 * n / k && load[c] >= 300);
    assert_true(bias[0] < 0); /* the one that had too many */
    /* bounds that hold without a price have none */
    histogram_bounds(n, k, 0, 0, 1, lo, hi);
    OK(histogram_fit(&h, bias, load, &r, err));
    for (uint32_t c = 0; c < k; c++)
        assert_true(bias[c] == 0);
    assert_int_equal(r.rounds, 0);
    hi[0] = hi[1] = hi[2] = hi[3] = hi[4] = hi[5] = 100;
    assert_true(histogram_fit(&h, bias, load, &r, &e) < 0);
    mem_free(s);
}

static void test_weighted(void **state)
{
    const uint32_t n = 2000, k = 4;
    float *s = scores(n, k), bias[4];
    float *w = mem_alloc_array(n, sizeof(float));
    double total = 0, want[4], load[4];
    for (uint32_t i = 0; i < n; i++) {
        w[i] = 0.5F + rng_at_uniform(1, 2, i);
        total += (double)w[i];
    }
    for (uint32_t c = 0; c < k; c++)
        want[c] = total / 4;
    const struct histogram h = {.scores = s, .weights = w, .n = n, .k = k, .lo = want, .hi = want};
    struct histogram_report r;
    OK(histogram_fit(&h, bias, load, &r, err));
    assert_true(r.met);
    for (uint32_t c = 0; c < k; c++)
        assert_true(fabs(load[c] - want[c]) < 2);
    mem_free(s);
    mem_free(w);
}

/* Rows that no bias can tell apart: it says that it failed, and by how much. */
static void test_ties(void **state)
{
    float s[200], bias[2];
    const double want[2] = {50, 50};
    double load[2];
    for (int i = 0; i < 200; i++)
        s[i] = i % 2 ? 1 : 0;
    const struct histogram h = {.scores = s, .n = 100, .k = 2, .lo = want, .hi = want};
    struct histogram_report r;
    OK(histogram_fit(&h, bias, load, &r, err));
    assert_false(r.met);
    assert_true(fabs(r.gap - 1) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_targets), cmocka_unit_test(test_is_optimal),
        cmocka_unit_test(test_bounds),  cmocka_unit_test(test_weighted),
        cmocka_unit_test(test_ties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
