/* Images in whole steps, by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/base/rng.h"
#include "worker/net/resize.h"

enum { LOW = 3, FACTOR = 4, HIGH = LOW * FACTOR };

/* Each channel by itself, rounded to the nearest. */
static void test_down(void **state)
{
    (void)state;
    const uint8_t high[] = {0, 10, 255, 1, 10, 255, 0, 10, 255, 1, 11, 255};
    uint8_t low[3];
    resize_down(high, 2, 2, low);
    assert_int_equal(low[0], 1);
    assert_int_equal(low[1], 10);
    assert_int_equal(low[2], 255);
}

/* A row of two pixels: a quarter and three quarters between their centres, and flat outside. */
static void test_up(void **state)
{
    (void)state;
    const uint8_t low[2 * 2 * 3] = {0, 7, 0, 100, 7, 0, 0, 7, 200, 100, 7, 200};
    uint8_t high[4 * 4 * 3];
    const uint8_t want[4] = {0, 25, 75, 100};
    resize_up(low, 2, 2, high);
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 4; x++) {
            const uint8_t *p = high + (y * 4 + x) * 3;
            assert_int_equal(p[0], want[x]);
            assert_int_equal(p[1], 7);
            assert_int_equal(p[2], 2 * want[y]);
        }
}

/* A plane that rises evenly is found again between its outermost pixels. */
static void test_there_and_back(void **state)
{
    (void)state;
    uint8_t low[LOW * LOW * 3], high[HIGH * HIGH * 3], back[LOW * LOW * 3];
    for (int i = 0; i < LOW * LOW * 3; i++)
        low[i] = (uint8_t)(40 + 32 * (i / 3 % LOW) + 16 * (i / 3 / LOW) + i % 3);
    resize_up(low, LOW, FACTOR, high);
    resize_down(high, HIGH, FACTOR, back);
    assert_int_equal(back[(1 * LOW + 1) * 3], low[(1 * LOW + 1) * 3]);
    for (int y = 0; y < HIGH; y++)
        for (int x = 1; x < HIGH; x++)
            assert_true(high[(y * HIGH + x) * 3] >= high[(y * HIGH + x - 1) * 3]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_down),
        cmocka_unit_test(test_up),
        cmocka_unit_test(test_there_and_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
