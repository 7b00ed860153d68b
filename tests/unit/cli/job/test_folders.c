/* What is said when a coordinator of an older release refuses a folder. */
#include "cli/job/folders.h"
#include "tests/unit/common/base/util.h"

/* As releases that know of no such part say it. */
static void an_older_coordinator(void **state)
{
    (void)state;
    struct err err = {0};
    int rc = err_set(&err, -EINVAL, "encoders[1].part is 4, expected a whole number from 0 to 3");
    assert_int_equal(folder_refused(rc, &err), -EINVAL);
    assert_int_equal(err.code, -EINVAL);
    assert_string_equal(err.msg,
                        "the coordinator is older than this command and does not take the files "
                        "beside the weights with a job: upgrade the coordinator, or name the file "
                        "of weights, or the index of its shards, as model.warm_start to "
                        "leave the others out");
    rc = err_set(&err, -EINVAL, "encoders[0].part is 3, expected a whole number from 0 to 2");
    assert_int_equal(folder_refused(rc, &err), -EINVAL);
    assert_string_equal(err.msg, "the coordinator is older than this command and does not take the "
                                 "trainer's files with a job: upgrade the coordinator");
}

static void anything_else(void **state)
{
    (void)state;
    struct err err = {0};
    int rc = err_set(&err, -EINVAL, "encoders[0].name is '', expected the name of a file");
    assert_int_equal(folder_refused(rc, &err), -EINVAL);
    assert_string_equal(err.msg, "encoders[0].name is '', expected the name of a file");
    assert_int_equal(folder_refused(0, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_older_coordinator),
                                       cmocka_unit_test(anything_else)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
