#include "common/base/log.h"

#include "tests/unit/common/base/util.h"

#include "common/base/clock.h"

struct seen {
    int n;
    enum log_level level;
    char text[4096];
};

static void tap(void *ctx, enum log_level level, const char *area, const char *text)
{
    struct seen *s = ctx;
    s->n++;
    s->level = level;
    snprintf(s->text, sizeof(s->text), "%s: %s", area, text);
}

static void levels_filter(void **state)
{
    struct seen s = {0};
    log_set_tap(tap, &s);
    log_set_level(LOG_LEVEL_WARN);
    log_info("t", "dropped");
    assert_int_equal(s.n, 0);
    log_warn("t", "kept n=%d", 3);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.level, LOG_LEVEL_WARN);
    assert_string_equal(s.text, "t: kept n=3");
    log_warn("t", "two\nlines \x1b");
    assert_string_equal(s.text, "t: two lines ?");
    log_set_level(LOG_LEVEL_INFO);
    log_set_tap(NULL, NULL);
    enum log_level level;
    OK(log_level_parse("debug", &level));
    assert_int_equal(level, LOG_LEVEL_DEBUG);
    assert_true(log_level_parse("loud", &level) < 0);
}

static void logs_a_change_once(void **state)
{
    struct seen s = {0};
    struct log_change last = {0};
    log_set_tap(tap, &s);
    assert_true(log_on_change(&last, LOG_LEVEL_INFO, "d", "waiting for %d", 1));
    assert_false(log_on_change(&last, LOG_LEVEL_INFO, "d", "waiting for %d", 1));
    assert_true(log_on_change(&last, LOG_LEVEL_INFO, "d", "waiting for %d", 2));
    assert_true(log_on_change(&last, LOG_LEVEL_INFO, "d", "waiting for %d", 1));
    assert_int_equal(s.n, 3);
    log_set_tap(NULL, NULL);
}

static void cuts_long_lines(void **state)
{
    struct seen s = {0};
    char big[5000];
    memset(big, 'y', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    log_set_tap(tap, &s);
    log_info("t", "%s", big);
    assert_int_equal(s.n, 1);
    assert_true(strlen(s.text) < 2048);
    log_set_tap(NULL, NULL);
}

static void clock_fakes(void **state)
{
    uint64_t a = clock_now_ns(), b = clock_now_ns();
    assert_true(a > 0 && b >= a);
    clock_fake_set(5 * CLOCK_NS_PER_S);
    assert_int_equal(clock_now_ms(), 5000);
    clock_fake_advance(CLOCK_NS_PER_MS);
    assert_int_equal(clock_now_ms(), 5001);
    assert_int_equal(clock_wall_ms(), 5001);
    clock_fake_clear();
    assert_true(clock_now_ns() >= b);
    assert_int_equal(clock_elapsed_ns(3, 5), 0);
    assert_int_equal(clock_elapsed_ns(5, 3), 2);
    char iso[CLOCK_ISO_MAX];
    assert_string_equal(clock_iso(1763729595042ULL, iso), "2025-11-21T12:53:15.042Z");
    clock_iso(UINT64_MAX, iso); /* must stay inside the array */
    assert_true(strlen(iso) < CLOCK_ISO_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_filter),
        cmocka_unit_test(logs_a_change_once),
        cmocka_unit_test(cuts_long_lines),
        cmocka_unit_test(clock_fakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
