/* Which folders of trainers stay on the disk. */
#include "tests/unit/common/base/util.h"

#include "worker/engine/engine.h"
#include "worker/engine/trainers.h"

static char *top;

static bool is_there(const char *name)
{
    char *path = in(top, name);
    const bool there = file_exists(path);
    mem_free(path);
    return there;
}

/* A trainer's setup fails: what earlier ones have left goes, however many other files there are. */
static void halves_are_forgotten(void **state)
{
    (void)state;
    struct engine e = {.state_dir = top, .opt = {.allow_trainers = true}};
    Skerry__V1__Task task = SKERRY__V1__TASK__INIT;
    struct work w = {.task = &task};
    struct external *x = NULL;
    struct err why = {0};
    char name[32];
    put(top, "trainer-half/package/file", "x", 1);
    put(top, "trainer-whole/file", "x", 1);
    put(top, "trainer-whole.ready", "", 0);
    for (unsigned i = 0; i < 1100; i++) {
        (void)snprintf(name, sizeof(name), "residual-1-%u-0-0", i);
        put(top, name, "x", 1);
    }
    w.spec.trainer.setup = w.spec.trainer.command = (char *)(uintptr_t) "false";
    progress_init(&w.progress);
    assert_int_equal(trainers_get(&e, &w, &x, &why), -ERR_TRAINER);
    assert_non_null(strstr(why.msg, "trainer.setup"));
    assert_false(is_there("trainer-half"));
    assert_true(is_there("trainer-whole/file") && is_there("trainer-whole.ready"));
    trainers_free(e.trainers);
    progress_release(&w.progress);
}

static int setup(void **state)
{
    (void)state;
    top = scratch_new();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_free(top);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(halves_are_forgotten, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
