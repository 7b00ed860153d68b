#include "common/base/clock.h"

#include "tests/unit/common/base/util.h"

static void fake_stands_still(void **state)
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
}

static void times_for_people(void **state)
{
    char iso[CLOCK_ISO_MAX];
    assert_string_equal(clock_iso(1763729595042ULL, iso), "2025-11-21T12:53:15.042Z");
    assert_string_equal(clock_iso(0, iso), "1970-01-01T00:00:00.000Z");
    clock_iso(UINT64_MAX, iso); /* must stay inside the array */
    assert_true(strlen(iso) < CLOCK_ISO_MAX);
}

static void the_boot_has_a_name(void **state)
{
    char a[CLOCK_BOOT_MAX], b[CLOCK_BOOT_MAX];
    assert_string_equal(clock_boot(a), clock_boot(b));
    assert_int_equal(strlen(a), 36); /* a UUID, without its line end */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fake_stands_still),
        cmocka_unit_test(times_for_people),
        cmocka_unit_test(the_boot_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
