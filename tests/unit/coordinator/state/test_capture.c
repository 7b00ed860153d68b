/* What a capture that was killed has left goes, and what one at work needs stays. */
#include "tests/unit/common/base/util.h"

#include "common/base/file.h"
#include "coordinator/state/capture.h"
#include "coordinator/state/place.h"

static void test_left_behind(void **state)
{
    struct file_lock lock;
    char *data = scratch_new(), *dir = file_join(data, ".capture"),
         *blobs = file_join(dir, "blobs");
    capture_tidy(data); /* there is nothing yet, and nothing is made */
    assert_false(file_exists(dir));
    OK(file_mkdirs(blobs, 0700, err));
    OK(file_lock_dir(data, "capture.lock", &lock, err));
    capture_tidy(data);
    assert_true(file_is_dir(blobs));
    file_unlock(&lock);
    capture_tidy(data);
    assert_false(file_exists(dir));
    mem_free(blobs);
    mem_free(dir);
    scratch_free(data);
}

/* Somebody looks where a coordinator stands by: it can go on there all the same. */
static void test_no_database(void **state)
{
    struct capture c;
    struct err why = {0};
    char *data = scratch_new();
    assert_int_equal(capture_take(&(struct coordinator_options){.data_dir = data}, 1, &c, &why),
                     -ENOENT);
    assert_non_null(strstr(why.msg, "there is no coordinator's database"));
    OK(place_check_new(data, err));
    scratch_free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_left_behind),
                                       cmocka_unit_test(test_no_database)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
