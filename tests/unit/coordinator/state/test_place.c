/* Whose a data directory is. */
#include "tests/unit/common/base/util.h"

#include "common/base/file.h"
#include "coordinator/state/place.h"

/* What a coordinator that was deposed has left is its own: it starts there again, also when it was
 * stopped while it stood by, and is restored there. */
static void test_set_aside(void **state)
{
    char *data = scratch_new(), *db = file_join(data, "coordinator.db");
    OK(file_write_put(db, "x", 1, 0600, err));
    OK(place_check_own(data, err));
    assert_int_equal(place_check_new(data, NULL), -EEXIST);
    for (int i = 0; i < 2; i++) {
        OK(place_set_aside(data, err));
        assert_false(file_exists(db));
        OK(place_check_own(data, err));
        OK(place_check_new(data, err));
    }
    mem_free(db);
    scratch_free(data);
}

/* Whoever was killed in the middle of that goes on with it, and keeps what it had moved. */
static void test_set_aside_in_two(void **state)
{
    char *data = scratch_new(), *log = file_join(data, "coordinator.db-wal");
    char *moved = file_join(data, "deposed/coordinator.db"),
         *other = file_join(data, "deposed/coordinator.db-wal");
    OK(file_mkdirs_for(moved, 0700, err));
    OK(file_write_put(moved, "x", 1, 0600, err));
    OK(file_write_put(log, "y", 1, 0600, err));
    OK(place_set_aside(data, err));
    assert_true(file_exists(moved) && file_exists(other) && !file_exists(log));
    mem_free(log);
    mem_free(moved);
    mem_free(other);
    scratch_free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_set_aside),
                                       cmocka_unit_test(test_set_aside_in_two)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
