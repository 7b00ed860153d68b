/* The token bucket by itself, and how a bandwidth is written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "common/net/http/rate.h"

static void test_no_limit(void **state)
{
    struct rate r = {0};
    (void)state;
    rate_take(&r, 1u << 30);
    assert_true(rate_allows(&r, 5) == UINT64_MAX);
}

/* Pieces of any size, a look every few milliseconds: what moved keeps to the rate. */
static void test_keeps_the_rate(void **state)
{
    (void)state;
    for (uint64_t piece = 1000; piece <= 300000; piece *= 7) {
        struct rate r = {.bytes_per_s = 1000000};
        uint64_t moved = 0;
        for (uint64_t now = 1000; now < 11000; now += 3)
            while (rate_allows(&r, now) > 0) {
                rate_take(&r, piece); /* more than was allowed: a debt */
                moved += piece;
            }
        assert_true(moved >= 10000000 - piece && moved <= 10000000 + 50000 + piece);
    }
}

/* What was not used in time is not saved up. */
static void test_burst(void **state)
{
    struct rate r = {.bytes_per_s = 1000000};
    (void)state;
    assert_int_equal(rate_allows(&r, 1000), 50000);
    assert_int_equal(rate_allows(&r, 900000), 50000);
    rate_take(&r, 60000);
    assert_int_equal(rate_allows(&r, 900000), 0);
    assert_int_equal(rate_allows(&r, 900009), 0);
    assert_int_equal(rate_allows(&r, 900020), 10000);
}

static void test_parse(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"20Mbit", 2500000}, {"20mbit", 2500000}, {"1.5Gbit", 187500000}, {"64kbit", 8000}};
    static const char *const bad[] = {"",      "20",      "20MB",     "Mbit",   "-3Mbit",
                                      "1kbit", "nanMbit", "1e30Gbit", "20 Mbit"};
    struct err err = {0};
    uint64_t got = 0;
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(rate_parse(good[i].text, &got, &err), 0);
        assert_int_equal(got, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_true(rate_parse(bad[i], &got, &err) < 0);
        assert_non_null(strstr(err.msg, "20Mbit"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_limit),
        cmocka_unit_test(test_keeps_the_rate),
        cmocka_unit_test(test_burst),
        cmocka_unit_test(test_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
