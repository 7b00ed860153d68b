#include "worker/fit/fit.h"

#include "tests/unit/worker/fit/fit_test.h"

static void memory_is_a_source(void **state)
{
    const float x[] = {1, 2, 3, 4, 5, 6, 7, 8};
    float got[4];
    struct fit_source s;
    fit_source_memory(&s, x, 4, 2);
    OK(s.read(&s, 1, 2, got, err));
    assert_memory_equal(got, x + 2, sizeof(got));
    assert_true(s.n == 4 && s.d == 2);
}

static void finds_what_is_not_finite(void **state)
{
    float x[] = {0, -1e38f, 3, 4};
    assert_int_equal(fit_not_finite(x, 4), 4);
    x[2] = NAN;
    assert_int_equal(fit_not_finite(x, 4), 2);
    x[1] = -INFINITY;
    assert_int_equal(fit_not_finite(x, 4), 1);
    assert_int_equal(fit_not_finite(x, 1), 1);
}

static int stop(void *arg, const char *what, uint32_t done, uint32_t total, struct err *err)
{
    *(uint32_t *)arg = done * 100 + total;
    return err_set(err, -ERR_CANCELLED, "%s", what);
}

static void a_watch_may_end_it(void **state)
{
    struct err err = {0};
    uint32_t seen = 0;
    const struct fit_watch w = {.tick = stop, .arg = &seen};
    assert_int_equal(fit_tick(NULL, "x", 1, 2, &err), 0);
    assert_int_equal(fit_tick(&w, "thinking", 3, 7, &err), -ERR_CANCELLED);
    assert_int_equal(seen, 307);
    assert_string_equal(err.msg, "thinking");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_a_source),
        cmocka_unit_test(finds_what_is_not_finite),
        cmocka_unit_test(a_watch_may_end_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
