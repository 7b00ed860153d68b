/* Which files a SPLIT can follow. */
#include "coordinator/job/assignment.h"

#include "tests/unit/assignment.h"
#include "tests/unit/common/base/util.h"

enum { TOP = 2, PARTITIONS = 3, SAMPLES = 20000 };

static const uint32_t counts[] = {SAMPLES, 10, 7};
static const protobuf_c_boolean holdout[] = {0, 1, 0};
static const uint64_t sizes[] = {20000, 0, 20014};
static const struct fake_assignment made = {counts, holdout, 3, TOP, sizes, PARTITIONS, 0};

/* Written with one entry changed, and other rows and columns; is it what it must be? */
static bool is(uint64_t at, int32_t to, uint64_t fewer, uint32_t top, const uint64_t *want)
{
    struct assignment_run runs[] = {{SAMPLES, true}, {10, false}, {7, true}};
    const struct assignment a = {TOP, runs, 3, (uint64_t *)(uintptr_t)want, PARTITIONS};
    char *dir = scratch_new(), *path = in(dir, "a");
    uint64_t n;
    int32_t *x = fake_assignment_fill(&made, &n);
    x[at] = to;
    OK(fake_assignment_save(path, x, n - fewer, top, 0, err));
    const bool ret = assignment_is(path, &a);
    mem_free(x);
    mem_free(path);
    scratch_free(dir);
    return ret;
}

static void test_sound(void **state)
{
    (void)state;
    const uint64_t others[] = {19999, 1, 20014};
    assert_true(is(0, 0, 0, TOP, sizes));
    assert_true(is(0, 1, 0, TOP, others));
    assert_true(is(2 * SAMPLES + 3, 1, 0, TOP, sizes)); /* held out: in no size */
}

static void test_unsound(void **state)
{
    (void)state;
    assert_false(is(0, 1, 0, TOP, sizes));
    assert_false(is(0, PARTITIONS, 0, TOP, sizes));
    assert_false(is(2 * SAMPLES + 3, PARTITIONS, 0, TOP, sizes));
    assert_false(is(2 * SAMPLES + 33, -1, 0, TOP, sizes));
    assert_false(is(0, 0, 2, TOP, sizes));
    assert_false(is(0, 0, 0, 1, sizes));
    const struct assignment none = {.top = 1};
    assert_false(assignment_is("/nowhere", &none));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound),
        cmocka_unit_test(test_unsound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
