/* Each moment of a task counts to one span. */
#include "tests/unit/common/base/util.h"

#include "common/base/clock.h"
#include "worker/order/times.h"

#define MS CLOCK_NS_PER_MS

static void spans_add_up(void **state)
{
    (void)state;
    struct times t;
    char text[TIMES_TEXT_MAX];
    clock_fake_set(1000 * MS);
    times_begin(&t, 900 * MS);
    times_take(&t, TIMES_ASKED);
    for (int i = 0; i < 3; i++) {
        clock_fake_advance(20 * MS);
        times_take(&t, TIMES_STEPS);
        clock_fake_advance(MS);
        times_take(&t, TIMES_BETWEEN);
    }
    clock_fake_advance(7 * MS);
    times_take(&t, TIMES_TOLD);
    assert_string_equal(times_text(&t, text),
                        "asked 0.1000 steps 0.0600 between 0.0030 told 0.0070");
    uint64_t sum = 0;
    for (int i = 0; i < TIMES_SPANS; i++)
        sum += t.ns[i];
    assert_true(sum == clock_now_ns() - 900 * MS);
    clock_fake_clear();
}

static void longest_text_fits(void **state)
{
    (void)state;
    struct times t;
    char text[TIMES_TEXT_MAX];
    for (int i = 0; i < TIMES_SPANS; i++)
        t.ns[i] = UINT64_MAX;
    assert_non_null(strstr(times_text(&t, text), " saved 18446744073.7096"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_add_up),
        cmocka_unit_test(longest_text_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
