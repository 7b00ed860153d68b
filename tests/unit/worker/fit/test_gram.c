#include "worker/fit/gram.h"

#include <errno.h>

#include "tests/unit/worker/fit/fit_test.h"

enum { M = 5, N = 3, ROWS = 700 };

/* Sums of aᵀ b over several blocks, against f64 loops; cleared, they begin anew. */
static void sums_over_blocks(void **state)
{
    struct err e = {0};
    static float a[ROWS * M], b[ROWS * N];
    double want[M * N] = {0};
    struct gram *g = NULL;
    rng_fill_normal(2, 1, 0, a, ROWS * M, 0.5f, 1);
    rng_fill_normal(2, 2, 0, b, ROWS * N, -0.25f, 1);
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++)
                want[i * N + j] += (double)a[r * M + i] * (double)b[r * N + j];
    OK(gram_new(dev, M, N, &g, err));
    for (int pass = 0; pass < 2; pass++) {
        gram_clear(g);
        for (int at = 0; at < ROWS; at += 256) {
            uint32_t rows = ROWS - at < 256 ? (uint32_t)(ROWS - at) : 256;
            OK(gram_add(g, a + at * M, b + at * N, rows, err));
        }
        for (int i = 0; i < M * N; i++)
            assert_true(fabs(gram_sum(g)[i] - want[i]) < 1e-3);
    }
    assert_int_equal(gram_add(g, a, b, GRAM_ROWS + 1, &e), -EINVAL);
    gram_free(g);
    assert_int_equal(gram_new(dev, 0, N, &g, &e), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_over_blocks),
    };
    return cmocka_run_group_tests(tests, device_setup, device_teardown);
}
