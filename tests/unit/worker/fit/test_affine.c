#include "worker/fit/affine.h"

#include "tests/unit/worker/fit/fit_test.h"

static void top_is_in_order(void **state)
{
    const float y[] = {1, 5, 3, 5, 2};
    uint32_t index[5];
    float value[5];
    affine_top(y, 5, 5, index, value);
    const uint32_t want[] = {1, 3, 2, 4, 0}; /* the lower of equals first */
    assert_memory_equal(index, want, sizeof(want));
    assert_true(value[0] == 5 && value[4] == 1);
    affine_top(y, 5, 1, index, value);
    assert_int_equal(index[0], 1);
}

/* Nearest centroids of more rows than a block, against plain loops. */
static void nearest_is_nearest(void **state)
{
    struct err why = {0};
    const uint32_t d = 5, k = 2050, n = 2200;
    float *c = mem_alloc_array((size_t)k * d, sizeof(float));
    float *x = mem_alloc_array((size_t)n * d, sizeof(float));
    uint32_t *got = mem_alloc_array(n, sizeof(*got));
    struct affine *a = NULL;
    rng_fill_normal(4, 1, 0, c, (size_t)k * d, 0, 1);
    rng_fill_normal(4, 2, 0, x, (size_t)n * d, 0, 1);
    OK(affine_new(dev, d, k, &a, err));
    assert_true(affine_rows(a) < n);
    OK(affine_set_centroids(a, c, NULL, err));
    OK(affine_best(a, x, n, 1, got, NULL, err));
    for (uint32_t i = 0; i < n; i++) {
        double best = 1e30, chosen = 0;
        for (uint32_t j = 0; j < k; j++) {
            double sum = 0;
            for (uint32_t e = 0; e < d; e++) {
                double v = (double)(x[(size_t)i * d + e] - c[(size_t)j * d + e]);
                sum += v * v;
            }
            best = sum < best ? sum : best;
            chosen = j == got[i] ? sum : chosen;
        }
        assert_true(chosen <= best + 1e-5);
    }
    assert_true(affine_best(a, x, n, k + 1, got, NULL, &why) < 0);
    affine_free(a);
    mem_free(c);
    mem_free(x);
    mem_free(got);
}

/* y = x Wᵀ + b against plain loops, with a bias and without. */
static void products_are_right(void **state)
{
    struct err e = {0};
    enum { D = 7, K = 3, ROWS = 5 };
    float w[K * D], b[K] = {1, -2, 0.5f}, x[ROWS * D];
    struct affine *a = NULL;
    const float *y;
    rng_fill_normal(8, 1, 0, w, K * D, 0, 1);
    rng_fill_normal(8, 2, 0, x, ROWS * D, 0, 1);
    OK(affine_new(dev, D, K, &a, err));
    for (int biased = 0; biased < 2; biased++) {
        OK(affine_set(a, w, biased ? b : NULL, err));
        OK(affine_block(a, x, ROWS, &y, err));
        for (int i = 0; i < ROWS; i++)
            for (int k = 0; k < K; k++) {
                double sum = biased ? (double)b[k] : 0;
                for (int j = 0; j < D; j++)
                    sum += (double)x[i * D + j] * (double)w[k * D + j];
                assert_true(fabs((double)y[i * K + k] - sum) < 1e-5);
            }
    }
    affine_free(a);
    assert_true(affine_new(dev, 0, K, &a, &e) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(top_is_in_order),
        cmocka_unit_test(nearest_is_nearest),
        cmocka_unit_test(products_are_right),
    };
    return cmocka_run_group_tests(tests, device_setup, device_teardown);
}
