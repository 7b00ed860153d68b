/* Which phase a local checkpoint is of. */
#include "tests/unit/common/base/util.h"

#include "worker/engine/phase_digest.h"

static Skerry__V1__Task task;
static Skerry__V1__TrainTask train;

static void digest(char hex[HASH_HEX_MAX])
{
    const struct work w = {.task = &task};
    phase_digest(&w, hex);
}

static void another_attempt_goes_on(void **state)
{
    (void)state;
    char first[HASH_HEX_MAX], again[HASH_HEX_MAX];
    digest(first);
    task.attempt = 2;
    train.total_steps = 80; /* without rounds it was another number before */
    digest(again);
    assert_string_equal(first, again);
    train.round = 1;
    digest(again);
    assert_string_not_equal(first, again);
}

/* One that is to begin with nothing but its version does not go on with one that had moments. */
static void a_fresh_one_begins_anew(void **state)
{
    (void)state;
    char first[HASH_HEX_MAX], fresh[HASH_HEX_MAX];
    digest(first);
    train.fresh = true;
    digest(fresh);
    assert_string_not_equal(first, fresh);
}

static int setup(void **state)
{
    (void)state;
    skerry__v1__task__init(&task);
    skerry__v1__train_task__init(&train);
    task.train = &train;
    task.spec = (char *)(uintptr_t) "name: tiny\n";
    train.first_step = 8;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(another_attempt_goes_on, setup),
        cmocka_unit_test_setup(a_fresh_one_begins_anew, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
