/* What a capture that was killed has left goes, and what one at work needs stays. */
#include "tests/unit/common/base/util.h"

#include "common/base/file.h"
#include "coordinator/state/capture.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_left_behind)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
