/* The classifier and the bias that fills its classes as wanted. */
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
#include "worker/fit/histogram.h"
#include "worker/fit/linear.h"

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            fail_msg("%s: %s", #call, err.msg);                                                    \
    } while (0)

static struct device *dev;

static int setup(void **state)
{
    struct err err = {0};
    OK(device_open("cpu", 2, &dev, &err));
    return 0;
}

static int teardown(void **state)
{
    device_close(dev);
    return 0;
}

static void test_separates(void **state)
{
    struct err err = {0};
    const uint32_t n = 3000, d = 9, k = 3;
    float *x = mem_alloc_array((size_t)n * d, sizeof(float));
    uint32_t *y = mem_alloc_array(n, sizeof(*y));
    rng_fill_normal(3, 1, 0, x, (size_t)n * d, 0, 1);
    for (uint32_t i = 0; i < n; i++) { /* a rule that a linear classifier can learn */
        const float *r = x + (size_t)i * d;
        y[i] = r[0] + 0.5F * r[3] > 0.4F ? 0 : r[1] - r[2] > 0 ? 1 : 2;
    }
    struct linear_options opt = {.k = k, .l2 = 1e-5};
    struct linear m;
    OK(linear_fit(dev, x, y, n, d, &opt, NULL, &m, &err));
    assert_true(m.accuracy > 0.93);
    assert_true(m.loss < 0.25);
    assert_true(m.weight[0] > m.weight[d] && m.weight[d + 1] > m.weight[2 * d + 1]);
    linear_release(&m);
    opt.l2 = 1e3; /* nothing but the class frequencies is left */
    OK(linear_fit(dev, x, y, n, d, &opt, NULL, &m, &err));
    double frequency = 0, entropy = 0;
    for (uint32_t c = 0; c < k; c++) {
        frequency = 0;
        for (uint32_t i = 0; i < n; i++)
            frequency += y[i] == c;
        entropy -= frequency / n * log(frequency / n);
    }
    assert_true(fabs(m.loss - entropy) < 1e-2);
    assert_true(m.converged);
    linear_release(&m);
    y[7] = k;
    assert_int_equal(linear_fit(dev, x, y, n, d, &opt, NULL, &m, &err), -ERR_CONFIG);
    mem_free(x);
    mem_free(y);
}

/* At the minimum the gradient of the penalised loss is zero: checked by differences. */
static void test_minimum(void **state)
{
    struct err err = {0};
    const float x[] = {1, 0, 0, 1, -1, 1, 2, 1, 0.5F, -2};
    const uint32_t y[] = {0, 1, 1, 0, 0};
    const struct linear_options opt = {.k = 2, .l2 = 0.1, .tolerance = 1e-7};
    struct linear m;
    OK(linear_fit(dev, x, y, 5, 2, &opt, NULL, &m, &err));
    double p[6], value[3];
    for (int i = 0; i < 6; i++)
        p[i] = (double)(i < 4 ? m.weight[i] : m.bias[i - 4]);
    for (int i = 0; i < 6; i++) {
        for (int side = 0; side < 3; side++) {
            double q[6], sum = 0;
            memcpy(q, p, sizeof(q));
            q[i] += (side - 1) * 1e-2;
            for (int j = 0; j < 4; j++)
                sum += 0.05 * q[j] * q[j];
            for (int r = 0; r < 5; r++) {
                double a = q[0] * (double)x[2 * r] + q[1] * (double)x[2 * r + 1] + q[4];
                double b = q[2] * (double)x[2 * r] + q[3] * (double)x[2 * r + 1] + q[5];
                sum += (log(exp(a) + exp(b)) - (y[r] ? b : a)) / 5;
            }
            value[side] = sum;
        }
        assert_true(value[1] < value[0] && value[1] < value[2]);
        assert_true(fabs(value[2] - value[0]) / 2e-2 < 1e-3);
    }
    linear_release(&m);
}

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
    struct err err = {0};
    const uint32_t n = 5000, k = 7;
    float *s = scores(n, k), bias[7];
    double want[7] = {0, 50, 150, 300, 500, 1500, 2500}, load[7];
    const struct histogram h = {.scores = s, .n = n, .k = k, .lo = want, .hi = want};
    struct histogram_report r;
    OK(histogram_fit(&h, bias, load, &r, &err));
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
    struct err err = {0};
    const uint32_t n = 9, k = 3;
    float *s = scores(n, k), bias[3];
    const double want[3] = {3, 3, 3};
    double load[3], best = -1e9, got = 0;
    const struct histogram h = {.scores = s, .n = n, .k = k, .lo = want, .hi = want};
    struct histogram_report r;
    OK(histogram_fit(&h, bias, load, &r, &err));
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
    struct err err = {0};
    const uint32_t n = 3001, k = 6;
    float *s = scores(n, k), bias[6];
    double lo[6], hi[6], load[6];
    struct histogram h = {.scores = s, .n = n, .k = k, .lo = lo, .hi = hi};
    struct histogram_report r;
    histogram_bounds(n, k, 1.3, 300, 1, lo, hi);
    OK(histogram_fit(&h, bias, load, &r, &err));
    assert_true(r.met);
    for (uint32_t c = 0; c < k; c++)
        assert_true(load[c] <= 1.3 * n / k && load[c] >= 300);
    assert_true(bias[0] < 0); /* the one that had too many */
    /* bounds that hold without a price have none */
    histogram_bounds(n, k, 0, 0, 1, lo, hi);
    OK(histogram_fit(&h, bias, load, &r, &err));
    for (uint32_t c = 0; c < k; c++)
        assert_true(bias[c] == 0);
    assert_int_equal(r.rounds, 0);
    hi[0] = hi[1] = hi[2] = hi[3] = hi[4] = hi[5] = 100;
    assert_true(histogram_fit(&h, bias, load, &r, &err) < 0);
    mem_free(s);
}

static void test_weighted(void **state)
{
    struct err err = {0};
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
    OK(histogram_fit(&h, bias, load, &r, &err));
    assert_true(r.met);
    for (uint32_t c = 0; c < k; c++)
        assert_true(fabs(load[c] - want[c]) < 2);
    mem_free(s);
    mem_free(w);
}

/* Rows that no bias can tell apart: it says that it failed, and by how much. */
static void test_ties(void **state)
{
    struct err err = {0};
    float s[200], bias[2];
    const double want[2] = {50, 50};
    double load[2];
    for (int i = 0; i < 200; i++)
        s[i] = i % 2 ? 1 : 0;
    const struct histogram h = {.scores = s, .n = 100, .k = 2, .lo = want, .hi = want};
    struct histogram_report r;
    OK(histogram_fit(&h, bias, load, &r, &err));
    assert_false(r.met);
    assert_true(fabs(r.gap - 1) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_separates), cmocka_unit_test(test_minimum),
        cmocka_unit_test(test_targets),   cmocka_unit_test(test_is_optimal),
        cmocka_unit_test(test_bounds),    cmocka_unit_test(test_weighted),
        cmocka_unit_test(test_ties),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
