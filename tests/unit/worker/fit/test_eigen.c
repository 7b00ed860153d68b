/* Eigenvectors against what is known of them. */
#include "worker/fit/eigen.h"

#include "tests/unit/worker/fit/fit_test.h"

/* A = V diag(values) Vᵀ: the solver gives both back. */
static void check_eigen(uint32_t n, const double *values)
{
    double *q = mem_alloc_array((size_t)n * n, sizeof(double));
    double *a = mem_alloc_array((size_t)n * n, sizeof(double));
    double *got = mem_alloc_array(n, sizeof(double));
    for (size_t i = 0; i < (size_t)n * n; i++)
        q[i] = (double)rng_at_normal(3, n, i);
    assert_int_equal(eigen_orthonormal(q, n, n), n);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n; j++)
            for (uint32_t k = 0; k < n; k++)
                a[(size_t)i * n + j] += q[(size_t)k * n + i] * values[k] * q[(size_t)k * n + j];
    assert_int_equal(eigen_symmetric(a, n, got), 0);
    for (uint32_t k = 0; k < n; k++) {
        double along = 0, norm = 0;
        assert_true(fabs(got[k] - values[k]) < 1e-10 * (1 + fabs(values[0])));
        for (uint32_t i = 0; i < n; i++) {
            along += a[(size_t)k * n + i] * q[(size_t)k * n + i];
            norm += a[(size_t)k * n + i] * a[(size_t)k * n + i];
        }
        assert_true(fabs(norm - 1) < 1e-10);
        if ((k == 0 || values[k - 1] > values[k]) && (k + 1 == n || values[k] > values[k + 1]))
            assert_true(fabs(fabs(along) - 1) < 1e-8);
    }
    mem_free(q);
    mem_free(a);
    mem_free(got);
}

static void test_eigen(void **state)
{
    const double mixed[] = {9, 4, 4, 1, 0, -2, -7};
    double many[61];
    for (int i = 0; i < 61; i++)
        many[i] = 61 - i;
    check_eigen(1, (const double[]){3});
    check_eigen(2, (const double[]){3, -1});
    check_eigen(7, mixed);
    check_eigen(61, many);
    double zero[9] = {0}, values[3];
    assert_int_equal(eigen_symmetric(zero, 3, values), 0);
    assert_true(values[0] == 0 && values[2] == 0);
    double nan[4] = {NAN, 1, 1, NAN};
    assert_true(eigen_symmetric(nan, 2, values) < 0);
}

static void test_dependent_rows(void **state)
{
    double q[9] = {1, 2, 2, 2, 4, 4, 0, 1, 0};
    assert_int_equal(eigen_orthonormal(q, 3, 3), 2);
    assert_true(q[3] == 0 && q[4] == 0 && q[5] == 0);
    assert_true(fabs(q[0] - 1.0 / 3) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eigen),
        cmocka_unit_test(test_dependent_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
