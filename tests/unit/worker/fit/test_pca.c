/* Eigenvectors and principal components against what is known of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/device/device.h"
#include "worker/fit/eigen.h"
#include "worker/fit/fit.h"
#include "worker/fit/pca.h"

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            fail_msg("%s: %s", #call, err.msg);                                                    \
    } while (0)

static struct device *open_device(int threads)
{
    struct err err = {0};
    struct device *dev = NULL;
    OK(device_open("cpu", threads, &dev, &err));
    return dev;
}

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
    struct err err = {0};
    struct device *dev = open_device(2);
    double *dirs = mem_alloc_array((size_t)rank * d, sizeof(double));
    float *x = plant(n, d, rank, dirs);
    struct fit_source src;
    struct pca p;
    fit_source_memory(&src, x, n, d);
    OK(pca_fit(dev, &src, rank, false, 9, NULL, &p, &err));
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
    OK(pca_apply(&p, dev, &src, z, &err));
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
    device_close(dev);
}

static void test_planted(void **state)
{
    check_planted(3000, 37, 4);            /* all eigenvectors of a covariance */
    check_planted(2500, PCA_EXACT + 3, 3); /* random start and passes */
}

static void test_whitening(void **state)
{
    struct err err = {0};
    struct device *dev = open_device(1);
    double dirs[3 * 11];
    float *x = plant(2000, 11, 3, dirs), *z = mem_alloc_array(2000 * 3, sizeof(float));
    struct fit_source src;
    struct pca p;
    fit_source_memory(&src, x, 2000, 11);
    OK(pca_fit(dev, &src, 3, true, 9, NULL, &p, &err));
    OK(pca_apply(&p, dev, &src, z, &err));
    for (uint32_t a = 0; a < 3; a++) {
        double sum = 0;
        for (uint64_t i = 0; i < 2000; i++)
            sum += (double)z[i * 3 + a] * (double)z[i * 3 + a];
        assert_true(fabs(sum / 2000 - 1) < 1e-3);
    }
    pca_release(&p);
    mem_free(x);
    mem_free(z);
    device_close(dev);
}

static void test_columns(void **state)
{
    struct err err = {0};
    struct device *dev = open_device(1);
    const float x[] = {1, 5, -2, 3, 5, 2}; /* (2,3): the middle one is constant */
    float z[6];
    struct fit_source src;
    struct pca p;
    fit_source_memory(&src, x, 2, 3);
    OK(pca_columns(&src, true, &p, &err));
    OK(pca_apply(&p, dev, &src, z, &err));
    const float want[] = {-1, 0, -1, 1, 0, 1};
    for (int i = 0; i < 6; i++)
        assert_true(fabsf(z[i] - want[i]) < 1e-6F);
    pca_release(&p);
    OK(pca_columns(&src, false, &p, &err));
    OK(pca_apply(&p, dev, &src, z, &err));
    assert_true(fabsf(z[2] + 2) < 1e-6F);
    fit_source_memory(&src, x, 3, 2);
    assert_int_equal(pca_apply(&p, dev, &src, z, &err), -ERR_CONFIG);
    pca_release(&p);
    device_close(dev);
}

/* Sparse features of few rows: a covariance that is mostly null space. */
static void test_null_space(void **state)
{
    struct err err = {0};
    struct device *dev = open_device(1);
    const uint32_t n = 48, d = 700;
    float *x = mem_alloc_array((size_t)n * d, sizeof(float));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < 40; j++)
            x[i * d + rng_at_u32(i % 2, 7, i * 40 + j) % 150] += 0.1F;
    struct fit_source src;
    struct pca p;
    fit_source_memory(&src, x, n, d);
    OK(pca_fit(dev, &src, 48, false, 1, NULL, &p, &err));
    double kept = 0;
    for (uint32_t i = 0; i < p.r; i++)
        kept += p.variance[i];
    assert_true(fabs(kept - p.total) < 1e-4 * p.total);
    assert_true(p.variance[47] < 1e-5 * p.variance[0]); /* n rows span n - 1 directions */
    pca_release(&p);
    mem_free(x);
    device_close(dev);
}

/* Fewer rows than dims wanted, and rows that span less. */
static void test_few_rows(void **state)
{
    struct err err = {0};
    struct device *dev = open_device(1);
    const uint32_t d = PCA_EXACT + 1;
    float *x = mem_alloc_array((size_t)5 * d, sizeof(float)), z[5 * 5];
    for (uint32_t i = 0; i < 5; i++)
        x[(size_t)i * d + i % 2] = (float)i;
    struct fit_source src;
    struct pca p;
    fit_source_memory(&src, x, 5, d);
    OK(pca_fit(dev, &src, 64, true, 1, NULL, &p, &err));
    assert_int_equal(p.r, 5);
    OK(pca_apply(&p, dev, &src, z, &err));
    assert_true(fit_not_finite(z, 25) == 25);
    assert_true(p.variance[1] > 0 && p.variance[2] < 1e-6 * p.variance[0]);
    pca_release(&p);
    memset(x, 0, (size_t)5 * d * sizeof(float)); /* all rows equal */
    OK(pca_fit(dev, &src, 2, true, 1, NULL, &p, &err));
    OK(pca_apply(&p, dev, &src, z, &err));
    assert_true(z[0] == 0 && z[9] == 0);
    pca_release(&p);
    mem_free(x);
    device_close(dev);
}

static int stop(void *arg, const char *what, uint32_t done, uint32_t total, struct err *err)
{
    return err_set(err, -ERR_CANCELLED, "stopped at %s", what);
}

static void test_refusals(void **state)
{
    struct err err = {0};
    struct device *dev = open_device(1);
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
    device_close(dev);
}

static void test_threads(void **state)
{
    struct err err = {0};
    double *dirs = mem_alloc_array((size_t)2 * (PCA_EXACT + 3), sizeof(double));
    for (unsigned wide = 0; wide < 2; wide++) {
        const uint32_t d = wide ? PCA_EXACT + 3 : 40;
        float *x = plant(700, d, 2, dirs), *bits = NULL;
        struct fit_source src;
        fit_source_memory(&src, x, 700, d);
        for (int threads = 1; threads <= 2; threads++) {
            struct device *dev = open_device(threads);
            struct pca p;
            OK(pca_fit(dev, &src, 2, false, 9, NULL, &p, &err));
            if (bits)
                assert_memory_equal(bits, p.basis, (size_t)2 * d * sizeof(float));
            mem_free(bits);
            bits = p.basis;
            p.basis = NULL;
            pca_release(&p);
            device_close(dev);
        }
        mem_free(bits);
        mem_free(x);
    }
    mem_free(dirs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eigen),    cmocka_unit_test(test_dependent_rows),
        cmocka_unit_test(test_planted),  cmocka_unit_test(test_whitening),
        cmocka_unit_test(test_columns),  cmocka_unit_test(test_null_space),
        cmocka_unit_test(test_few_rows), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
