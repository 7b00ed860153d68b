/* Files of a frozen network in a folder of the worker's owner. */
#include "tests/unit/common/base/util.h"

#include "worker/order/local_models.h"

static void write_file(const char *dir, const char *name, const char *text)
{
    char *path = in(dir, name);
    OK(file_write_atomic(path, text, strlen(text), 0600, err));
    free(path);
}

static void test_find(void **state)
{
    char *dir = scratch_new(), *deep = in(dir, "a/b/c");
    uint8_t sum[HASH_BYTES], other[HASH_BYTES];
    OK(file_mkdirs(deep, 0700, err));
    write_file(dir, "same-size", "abcdefg");
    write_file(deep, "another-name", "weights");
    hash_sha256("weights", 7, sum);
    hash_sha256("nothing", 7, other);
    char *found = local_models_find(dir, 7, sum);
    assert_non_null(found);
    assert_non_null(strstr(found, "a/b/c/another-name"));
    mem_free(found);
    assert_null(local_models_find(dir, 8, sum)); /* another size is another file */
    assert_null(local_models_find(dir, 7, other));
    assert_null(local_models_find("/nonexistent", 7, sum));
    free(deep);
    scratch_free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
