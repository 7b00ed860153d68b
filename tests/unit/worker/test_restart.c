/* How often a worker whose device broke starts again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "worker/restart.h"

#define NOW (RESTART_HUNG_WINDOW_MS * 3)

static void test_counts(void **state)
{
    char times[RESTART_TIMES_MAX] = "", before[RESTART_TIMES_MAX];
    unsigned n;
    for (unsigned i = 1; i <= RESTART_MAX; i++) {
        memcpy(before, times, sizeof before);
        assert_true(restart_allowed(i == 1 ? NULL : before, NOW + i, RESTART_WINDOW_MS, times, &n));
        assert_int_equal(n, i);
    }
    memcpy(before, times, sizeof before);
    assert_false(restart_allowed(before, NOW + 9, RESTART_WINDOW_MS, times, &n));
    assert_int_equal(n, RESTART_MAX);
    /* The first one is long ago: it no longer counts. */
    assert_true(restart_allowed(before, NOW + 1 + RESTART_WINDOW_MS, RESTART_WINDOW_MS, times, &n));
    assert_int_equal(n, RESTART_MAX);
    assert_true(restart_allowed(before, NOW + 9 + RESTART_WINDOW_MS, RESTART_WINDOW_MS, times, &n));
    assert_int_equal(n, 1);
}

/* Hangs are found out minutes apart. */
static void test_hangs(void **state)
{
    const uint64_t hour = 60 * UINT64_C(60000), all = RESTART_HUNG_WINDOW_MS;
    char times[RESTART_TIMES_MAX] = "", before[RESTART_TIMES_MAX];
    unsigned n;
    for (unsigned i = 1; i <= RESTART_MAX; i++) {
        memcpy(before, times, sizeof before);
        assert_true(restart_allowed(before, i * hour / 2, all, times, &n));
        assert_int_equal(n, i);
    }
    memcpy(before, times, sizeof before);
    assert_false(restart_allowed(before, 2 * hour, all, times, &n));
    assert_true(restart_allowed(before, hour / 2 + all, all, times, &n));
    assert_int_equal(n, RESTART_MAX);
    /* The same list after an error. */
    assert_true(restart_allowed(before, 2 * hour, RESTART_WINDOW_MS, times, &n));
    assert_int_equal(n, 1);
    assert_string_equal(times, "3600000,5400000,7200000");
}

static void test_nonsense(void **state)
{
    static const char *const texts[] = {
        "", ",", "x", "99999999999999999999999999", "-1", "7,,", "999999999999999"};
    char times[RESTART_TIMES_MAX];
    unsigned n;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_true(restart_allowed(texts[i], NOW, RESTART_WINDOW_MS, times, &n));
        assert_int_equal(n, 1);
        assert_string_equal(times, "32400000");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counts), cmocka_unit_test(test_hangs),
                                       cmocka_unit_test(test_nonsense)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
