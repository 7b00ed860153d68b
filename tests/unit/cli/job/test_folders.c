/* What is said when a coordinator of an older release refuses a folder. */
#include "cli/job/folders.h"
#include "tests/unit/common/base/util.h"

/* As releases that know of no such part say it. */
static void an_older_coordinator(void **state)
{
    (void)state;
    struct err err = {0};
    int rc = err_set(&err, -EINVAL, "encoders[0].part is 3, expected a whole number from 0 to 2");
    assert_int_equal(folder_refused(rc, &err), -EINVAL);
    assert_string_equal(err.msg, "the coordinator is older than this command and does not take the "
                                 "trainer's files with a job: upgrade the coordinator");
}

/* One that knows no companions, or only those of a trainer's model: the job goes without. */
static void an_older_coordinator_gets_no_companions(void **state)
{
    (void)state;
    static const char *const said[] = {
        "encoders[1].part is 4, expected a whole number from 0 to 3",
        "companions.tar was uploaded, but the job file does not name its encoder; leave it out"};
    for (size_t i = 0; i < 2; i++) {
        struct err err = {0};
        json_t *body = json_pack("{s:[{s:i},{s:i}]}", "encoders", "part", 3, "part", 4);
        const int rc = err_set(&err, -EINVAL, "%s", said[i]);
        assert_false(folder_leaves_companions(0, body, &err));
        assert_true(folder_leaves_companions(rc, body, &err));
        json_t *list = json_object_get(body, "encoders");
        assert_int_equal(json_array_size(list), 1);
        assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 0), "part")), 3);
        json_decref(body);
    }
}

static void anything_else(void **state)
{
    (void)state;
    struct err err = {0};
    int rc = err_set(&err, -EINVAL, "encoders[0].name is '', expected the name of a file");
    assert_int_equal(folder_refused(rc, &err), -EINVAL);
    assert_string_equal(err.msg, "encoders[0].name is '', expected the name of a file");
    assert_int_equal(folder_refused(0, &err), 0);
    assert_false(folder_leaves_companions(rc, NULL, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_older_coordinator),
                                       cmocka_unit_test(an_older_coordinator_gets_no_companions),
                                       cmocka_unit_test(anything_else)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
