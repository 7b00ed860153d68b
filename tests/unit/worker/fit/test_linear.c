/* The classifier: that it separates, and that its end is a minimum. */
#include "worker/fit/linear.h"

#include "tests/unit/worker/fit/fit_test.h"

static void test_separates(void **state)
{
    struct err e = {0};
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
    OK(linear_fit(dev, x, y, n, d, &opt, NULL, &m, err));
    assert_true(m.accuracy > 0.93);
    assert_true(m.loss < 0.25);
    assert_true(m.weight[0] > m.weight[d] && m.weight[d + 1] > m.weight[2 * d + 1]);
    linear_release(&m);
    opt.l2 = 1e3; /* nothing but the class frequencies is left */
    OK(linear_fit(dev, x, y, n, d, &opt, NULL, &m, err));
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
    assert_int_equal(linear_fit(dev, x, y, n, d, &opt, NULL, &m, &e), -ERR_CONFIG);
    mem_free(x);
    mem_free(y);
}

/* At the minimum the gradient of the penalised loss is zero: checked by differences. */
static void test_minimum(void **state)
{
    const float x[] = {1, 0, 0, 1, -1, 1, 2, 1, 0.5F, -2};
    const uint32_t y[] = {0, 1, 1, 0, 0};
    const struct linear_options opt = {.k = 2, .l2 = 0.1, .tolerance = 1e-7};
    struct linear m;
    OK(linear_fit(dev, x, y, 5, 2, &opt, NULL, &m, err));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_separates),
        cmocka_unit_test(test_minimum),
    };
    return cmocka_run_group_tests(tests, device_setup, device_teardown);
}
