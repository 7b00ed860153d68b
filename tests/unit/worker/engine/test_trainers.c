/* Which folders of trainers stay on the disk. */
#include "tests/unit/common/base/util.h"

#include "worker/engine/engine.h"
#include "worker/engine/trainers.h"

#include <fcntl.h>
#include <sys/stat.h>

static char *top;
static struct cache *cache;

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
    struct work w = {.task = &task, .cache = cache};
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

/* The only file in the state with this end. */
static char *the_file(const char *end)
{
    struct file_names names;
    char *path = NULL;
    OK(file_list(top, 100, &names, err));
    for (size_t i = 0; i < names.n; i++)
        if (str_ends(names.items[i], end)) {
            assert_null(path);
            path = in(top, names.items[i]);
        }
    file_names_release(&names);
    assert_non_null(path);
    return path;
}

/* A setup that says something is at work, and has made no step.  Its folder was used last when a
 * trainer began in it last, not when it was made. */
static void made_and_used(void **state)
{
    (void)state;
    struct engine e = {.state_dir = top, .opt = {.allow_trainers = true}};
    Skerry__V1__Task task = SKERRY__V1__TASK__INIT;
    struct work w = {.task = &task, .cache = cache};
    struct external *x = NULL;
    struct err why = {0};
    struct progress_view view;
    struct stat st;
    w.spec.trainer.setup = (char *)(uintptr_t) "echo one; echo two";
    w.spec.trainer.command = (char *)(uintptr_t) "false";
    progress_init(&w.progress);
    assert_true(trainers_get(&e, &w, &x, &why) < 0); /* it ends at once */
    progress_take(&w.progress, &view);
    assert_true(view.told.signs > 0 && view.told.steps_done == 0);
    char *ready = the_file(".ready");
    const struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, ready, old, 0), 0);
    assert_true(trainers_get(&e, &w, &x, &why) < 0);
    assert_int_equal(stat(ready, &st), 0);
    assert_true(st.st_mtime > 1000);
    mem_free(ready);
    trainers_free(e.trainers);
    progress_release(&w.progress);
}

static int setup(void **state)
{
    (void)state;
    top = scratch_new();
    char *dir = in(top, "blobs");
    OK(cache_open(dir, UINT64_MAX, &cache, err));
    mem_free(dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    cache_close(cache);
    scratch_free(top);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(halves_are_forgotten, setup, teardown),
        cmocka_unit_test_setup_teardown(made_and_used, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
