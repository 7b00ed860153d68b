/* Principal components against what is known of them. */
#include "worker/fit/pca.h"

#include "tests/unit/worker/fit/fit_test.h"
#include "worker/fit/eigen.h"
#include "worker/fit/fit.h"

/* n rows of d columns: `rank` directions of falling variance (the j-th (rank-j)² * 4), plus little
 * noise, around a mean of 100.  dirs (rank,d) is what was planted. */
static float *plant(uint64_t n, uint32_t d, uint32_t rank, double *dirs)
{
    float *x = mem_alloc_array(n * d, sizeof(float));
    for (size_t i = 0; i < (size_t)rank * d; i++)
        dirs[i] = (double)rng_at_normal(5, 1, i);
    eigen_orthonormal(dirs, rank, d);
    for (uint64_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < d; c++) {
            double v = 100 + 0.01 * (double)rng_at_normal(5, 2, i * d + c);
            for (uint32_t j = 0; j < rank; j++)
                v += 2 * (rank - j) * (double)rng_at_normal(5, 3, i * rank + j) *
                     dirs[(size_t)j * d + c];
            x[i * d + c] = (float)v;
        }
    return x;
}

static double cosine(const float *a, const double *b, uint32_t d)
{
    double dot = 0, aa = 0, bb = 0;
    for (uint32_t i = 0; i < d; i++) {
        dot += (double)a[i] * b[i];
        aa += (double)a[i] * (double)a[i];
        bb += b[i] * b[i];
    }
    return fabs(dot) / sqrt(aa * bb);
}

static void check_planted(uint64_t n, uint32_t d, uint32_t rank)
{
    double *dirs = mem_alloc_array((size_t)rank * d, sizeof(double));
    float *x = plant(n, d, rank, dirs);
    struct fit_source src;
    struct pca p;
    fit_source_memory(&src, x, n, d);
    OK(pca_fit(dev, &src, rank, false, 9, NULL, &p, err));
    assert_int_equal(p.r, rank);
    for (uint32_t j = 0; j < rank; j++) {
        double want = 4.0 * (rank - j) * (rank - j);
        const float *row = p.basis + (size_t)j * d;
        float largest = 0;
        assert_true(fabs(p.variance[j] - want) < 0.25 * want);
        assert_true(cosine(row, dirs + (size_t)j * d, d) > 0.97);
        for (uint32_t c = 0; c < d; c++)
            largest = fabsf(row[c]) > fabsf(largest) ? row[c] : largest;
        assert_true(largest > 0);
    }
    double kept = 0;
    for (uint32_t j = 0; j < rank; j++)
        kept += p.variance[j];
    assert_true(kept <= p.total * (1 + 1e-5) && kept > 0.99 * p.total);

    /* z has mean 0, the stated variances and no correlation */
    float *z = mem_alloc_array(n * rank, sizeof(float));
    OK(pca_apply(&p, dev, &src, z, err));
    for (uint32_t a = 0; a < rank; a++)
        for (uint32_t b = 0; b <= a; b++) {
            double mean = 0, sum = 0;
            for (uint64_t i = 0; i < n; i++) {
                mean += (double)z[i * rank + a];
                sum += (double)z[i * rank + a] * (double)z[i * rank + b];
            }
            assert_true(fabs(mean / (double)n) < 1e-2);
            double want = a == b ? p.variance[a] : 0;
            assert_true(fabs(sum / (double)n - want) < 2e-3 * p.variance[0]);
        }
    mem_free(z);
    mem_free(x);
    mem_free(dirs);
    pca_release(&p);
}

static void test_planted(void **state)
{
    check_planted(3000, 37, 4);            /* all eigenvectors of a covariance */
    check_planted(2500, PCA_EXACT + 3, 3); /* random start and passes */
}

static void test_whitening(void **state)
{
    double dirs[3 * 11];
    float *x = plant(2000, 11, 3, dirs), *z = mem_alloc_array(2000 * 3, sizeof(float));
    struct fit_source src;
    struct pca p;
    fit_source_memory(&src, x, 2000, 11);
    OK(pca_fit(dev, &src, 3, true, 9, NULL, &p, err));
    OK(pca_apply(&p, dev, &src, z, err));
    for (uint32_t a = 0; a < 3; a++) {
        double sum = 0;
        for (uint64_t i = 0; i < 2000; i++)
            sum += (double)z[i * 3 + a] * (double)z[i * 3 + a];
        assert_true(fabs(sum / 2000 - 1) < 1e-3);
    }
    pca_release(&p);
    mem_free(x);
    mem_free(z);
}

static void test_columns(void **state)
{
    struct err e = {0};
    const float x[] = {1, 5, -2, 3, 5, 2}; /* (2,3): the middle one is constant */
    float z[6];
    struct fit_source src;
    struct pca p;
    fit_source_memory(&src, x, 2, 3);
    OK(pca_columns(&src, true, &p, err));
    OK(pca_apply(&p, dev, &src, z, err));
    const float want[] = {-1, 0, -1, 1, 0, 1};
    for (int i = 0; i < 6; i++)
        assert_true(fabsf(z[i] - want[i]) < 1e-6F);
    pca_release(&p);
    OK(pca_columns(&src, false, &p, err));
    OK(pca_apply(&p, dev, &src, z, err));
    assert_true(fabsf(z[2] + 2) < 1e-6F);
    fit_source_memory(&src, x, 3, 2);
    assert_int_equal(pca_apply(&p, dev, &src, z, &e), -ERR_CONFIG);
    pca_release(&p);
}

/* Sparse features of few rows: a covariance that is mostly null space. */
static void test_null_space(void **state)
{
    const uint32_t n = 48, d = 700;
    float *x = mem_alloc_array((size_t)n * d, sizeof(float));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < 40; j++)
            x[i * d + rng_at_u32(i % 2, 7, i * 40 + j) % 150] += 0.1F;
    struct fit_source src;
    struct pca p;
    fit_source_memory(&src, x, n, d);
    OK(pca_fit(dev, &src, 48, false, 1, NULL, &p, err));
    double kept = 0;
    for (uint32_t i = 0; i < p.r; i++)
        kept += p.variance[i];
    assert_true(fabs(kept - p.total) < 1e-4 * p.total);
    assert_true(p.variance[47] < 1e-5 * p.variance[0]); /* n rows span n - 1 directions */
    pca_release(&p);
    mem_free(x);
}

/* Fewer rows than dims wanted, and rows that span less. */
static void test_few_rows(void **state)
{
    const uint32_t d = PCA_EXACT + 1;
    float *x = mem_alloc_array((size_t)5 * d, sizeof(float)), z[5 * 5];
    for (uint32_t i = 0; i < 5; i++)
        x[(size_t)i * d + i % 2] = (float)i;
    struct fit_source src;
    struct pca p;
    fit_source_memory(&src, x, 5, d);
    OK(pca_fit(dev, &src, 64, true, 1, NULL, &p, err));
    assert_int_equal(p.r, 5);
    OK(pca_apply(&p, dev, &src, z, err));
    assert_true(fit_not_finite(z, 25) == 25);
    assert_true(p.variance[1] > 0 && p.variance[2] < 1e-6 * p.variance[0]);
    pca_release(&p);
    memset(x, 0, (size_t)5 * d * sizeof(float)); /* all rows equal */
    OK(pca_fit(dev, &src, 2, true, 1, NULL, &p, err));
    OK(pca_apply(&p, dev, &src, z, err));
    assert_true(z[0] == 0 && z[9] == 0);
    pca_release(&p);
    mem_free(x);
}

static int stop(void *arg, const char *what, uint32_t done, uint32_t total, struct err *err)
{
    return err_set(err, -ERR_CANCELLED, "stopped at %s", what);
}

static void test_refusals(void **state)
{
    struct err err = {0};
    float x[] = {1, 2, NAN, 4};
    struct fit_source src;
    struct pca p;
    const struct fit_watch watch = {.tick = stop};
    fit_source_memory(&src, x, 2, 2);
    assert_int_equal(pca_fit(dev, &src, 1, false, 0, NULL, &p, &err), -ERR_FORMAT);
    assert_non_null(strstr(err.msg, "row 1, column 0"));
    x[2] = 3;
    assert_int_equal(pca_fit(dev, &src, 1, false, 0, &watch, &p, &err), -ERR_CANCELLED);
    assert_int_equal(pca_fit(dev, &src, 0, false, 0, NULL, &p, &err), -ERR_CONFIG);
    src.n = 0;
    assert_int_equal(pca_fit(dev, &src, 1, false, 0, NULL, &p, &err), -ERR_CONFIG);
    assert_int_equal(pca_columns(&src, true, &p, &err), -ERR_CONFIG);
}

static void test_threads(void **state)
{
    double *dirs = mem_alloc_array((size_t)2 * (PCA_EXACT + 3), sizeof(double));
    for (unsigned wide = 0; wide < 2; wide++) {
        const uint32_t d = wide ? PCA_EXACT + 3 : 40;
        float *x = plant(700, d, 2, dirs), *bits = NULL;
        struct fit_source src;
        fit_source_memory(&src, x, 700, d);
        for (int threads = 1; threads <= 2; threads++) {
            struct device *own = NULL;
            struct pca p;
            OK(device_open("cpu", threads, &own, err));
            OK(pca_fit(own, &src, 2, false, 9, NULL, &p, err));
            if (bits)
                assert_memory_equal(bits, p.basis, (size_t)2 * d * sizeof(float));
            mem_free(bits);
            bits = p.basis;
            p.basis = NULL;
            pca_release(&p);
            device_close(own);
        }
        mem_free(bits);
        mem_free(x);
    }
    mem_free(dirs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planted),  cmocka_unit_test(test_whitening),
        cmocka_unit_test(test_columns),  cmocka_unit_test(test_null_space),
        cmocka_unit_test(test_few_rows), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, device_setup, device_teardown);
}
