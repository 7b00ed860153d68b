/* The directory that makes a worker the same worker after a restart. */
#include "tests/unit/common/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include "common/base/buf.h"
#include "worker/workdir.h"

static char *top;
static const uint8_t cluster[16] = {0xab}, other[16] = {0xcd};

static void same_identity_after_a_restart(void **state)
{
    (void)state;
    struct workdir a, b;
    uint8_t identity[16];
    char *dir = in(top, "same");
    OK(workdir_open(dir, cluster, &a, err));
    memcpy(identity, a.identity, 16);
    put(a.tmp, "left", "x", 1);
    put(a.state, "checkpoint.tmp.7-0", "x", 1); /* of a process that was killed meanwhile */
    put(a.state, "kept", "x", 1);
    put(a.blobs, "kept", "x", 1);
    struct err e = {0};
    assert_int_equal(workdir_open(dir, cluster, &b, &e), -EBUSY); /* one process at a time */
    workdir_close(&a);

    OK(workdir_open(dir, cluster, &b, err));
    assert_memory_equal(b.identity, identity, 16);
    char *half = in(b.state, "checkpoint.tmp.7-0");
    char *left = in(b.tmp, "left"), *state_kept = in(b.state, "kept"), *kept = in(b.blobs, "kept");
    assert_false(file_exists(left) || file_exists(half));
    assert_true(file_exists(state_kept) && file_exists(kept));
    mem_free(left);
    mem_free(half);
    mem_free(state_kept);
    mem_free(kept);
    workdir_close(&b);
    mem_free(dir);
}

/* The blobs are everybody's, the state is each coordinator's. */
static void a_state_per_coordinator(void **state)
{
    (void)state;
    struct workdir a, b;
    char *dir = in(top, "two");
    OK(workdir_open(dir, cluster, &a, err));
    char *first = strdup(a.state), *blobs = strdup(a.blobs);
    workdir_close(&a);
    OK(workdir_open(dir, other, &b, err));
    assert_string_not_equal(b.state, first);
    assert_string_equal(b.blobs, blobs);
    workdir_close(&b);
    free(first);
    free(blobs);
    mem_free(dir);
}

/* Nothing of somebody else's is touched. */
static void a_folder_of_others_is_refused(void **state)
{
    (void)state;
    struct workdir w;
    struct err e = {0};
    char *dir = in(top, "mine"), *kept = in(top, "mine/tmp/x"), *lock = in(top, "mine/lock");
    put(dir, "tmp/x", "precious", 8);
    assert_int_equal(workdir_open(dir, cluster, &w, &e), -EEXIST);
    assert_non_null(strstr(e.msg, "it has tmp, but no file of this program"));
    assert_true(file_exists(kept) && !file_exists(lock));
    mem_free(dir);
    mem_free(kept);
    mem_free(lock);
}

static void a_broken_identity_is_made_anew(void **state)
{
    (void)state;
    struct workdir a, b;
    char *dir = in(top, "broken");
    put(dir, "identity", "no hex at all\n", 14);
    OK(workdir_open(dir, cluster, &a, err));
    uint8_t identity[16];
    memcpy(identity, a.identity, 16);
    workdir_close(&a);
    OK(workdir_open(dir, cluster, &b, err));
    assert_memory_equal(b.identity, identity, 16);
    workdir_close(&b);
    mem_free(dir);
}

static void touch(const char *path, time_t at)
{
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){{at, 0}, {at, 0}}, 0), 0);
}

/* Opens it with files that were touched so many days ago; returns whether the first is still there.
 */
static bool stays(const char *name, int first_days, int second_days)
{
    struct workdir w;
    char *dir = in(top, name);
    OK(workdir_open(dir, cluster, &w, err));
    put(w.state, "first", "x", 1);
    put(w.state, "second", "x", 1);
    char *first = in(w.state, "first"), *second = in(w.state, "second");
    workdir_close(&w);
    touch(first, time(NULL) - first_days * 86400);
    touch(second, time(NULL) - second_days * 86400);
    OK(workdir_open(dir, cluster, &w, err));
    const bool there = file_exists(first);
    assert_true(file_exists(second));
    workdir_close(&w);
    mem_free(first);
    mem_free(second);
    mem_free(dir);
    return there;
}

static void old_state_is_pruned(void **state)
{
    (void)state;
    assert_false(stays("old", WORKDIR_STATE_DAYS + 1, 0));
    assert_false(stays("longer", 1000, 980));
    assert_true(stays("young", WORKDIR_STATE_DAYS - 1, 0));
}

/* Nor what seems old because the clock has jumped, or after a long time away. */
static void the_last_state_stays(void **state)
{
    (void)state;
    assert_true(stays("ahead", 1000, 999));
    assert_true(stays("back", 1, -1000));
}

static bool has(const struct workdir *w, const char *name)
{
    char *path = in(w->state, name);
    const bool there = file_exists(path);
    mem_free(path);
    return there;
}

/* Whether the state for another coordinator, last used so many days ago, outlives a start. */
static bool another_stays(const char *name, int days)
{
    struct workdir w;
    char *dir = str_printf("%s/%s/", top, name), *folder = in(dir, "state-00000000000000aa");
    put(dir, "state-00000000000000aa/trainer-7/x", "x", 1);
    put(dir, "identity", "x", 1);
    touch(folder, time(NULL) - days * 86400);
    OK(workdir_open(dir, cluster, &w, err)); /* the first one here knows only the clock */
    assert_true(file_is_dir(folder));
    workdir_close(&w);
    OK(workdir_open(dir, cluster, &w, err));
    const bool there = file_is_dir(folder);
    workdir_close(&w);
    mem_free(folder);
    folder = in(dir, "state-ab00000000000000"); /* its own stays, after a long time away, too */
    put(folder, "kept", "x", 1);
    touch(folder, time(NULL) - days * 86400);
    OK(workdir_open(dir, cluster, &w, err));
    assert_true(has(&w, "kept"));
    workdir_close(&w);
    mem_free(folder);
    mem_free(dir);
    return there;
}

/* The clock may have jumped; and only what looks like ours is. */
static void only_state_that_others_outlived_is_pruned(void **state)
{
    static const char *const folders[] = {"state-ab00000000000000", "state-00000000000000aa",
                                          "state-backup"};
    (void)state;
    struct workdir w;
    char *dir = str_printf("%s/jumped/", top);
    put(dir, "identity", "x", 1);
    for (size_t i = 0; i < COUNT(folders); i++) {
        char *folder = in(dir, folders[i]);
        OK(file_mkdirs(folder, 0700, err));
        touch(folder, time(NULL) - (i == 2 ? 9999 : 1000 + (int)i) * 86400);
        mem_free(folder);
    }
    OK(workdir_open(dir, cluster, &w, err));
    for (size_t i = 0; i < COUNT(folders); i++) {
        char *folder = in(dir, folders[i]);
        assert_true(file_is_dir(folder));
        mem_free(folder);
    }
    workdir_close(&w);
    mem_free(dir);
}

static void state_of_past_coordinators_is_pruned(void **state)
{
    (void)state;
    assert_false(another_stays("past", WORKDIR_STATE_DAYS + 1));
    assert_true(another_stays("present", WORKDIR_STATE_DAYS - 1));
}

static void ended_jobs_leave_nothing(void **state)
{
    static const struct {
        const char *name;
        bool goes;
    } files[] = {{"replica-7-0-1.state", true},
                 {"residual-7-3-0-1", true},
                 {"external-12-0-0.end", true},
                 {"replica-8-0-0.end", false},
                 {"residual-8-1-0-0", false},
                 {"replica-13-0-0.state", false},
                 {"residual-130-1-0-0", false},
                 {"trainer-7abc.ready", false},
                 {"held", false}};
    (void)state;
    struct workdir w;
    char *dir = in(top, "ended");
    OK(workdir_open(dir, cluster, &w, err));
    for (size_t i = 0; i < COUNT(files); i++)
        put(w.state, files[i].name, "x", 1);
    workdir_forget(w.state, 13, (uint64_t[]){8, 1}, 2);
    for (size_t i = 0; i < COUNT(files); i++) {
        char *path = in(w.state, files[i].name);
        assert_int_equal(file_exists(path), !files[i].goes);
        mem_free(path);
    }
    workdir_close(&w);
    mem_free(dir);
}

/* Opens it as the boot `before` left it: NULL closed it, another one stopped in the middle. */
static void open_after(const char *dir, const char *before, struct workdir *w)
{
    OK(workdir_open(dir, cluster, w, err));
    static const char *const files[] = {"residual-1-2-0-0",  "residual-1-2-0-0.pending-7",
                                        "replica-1-0-0.end", "external-1-0-0.end.spare",
                                        "replica-1-0-0.mid", "held"};
    for (size_t i = 0; i < COUNT(files); i++)
        put(w->state, files[i], "x", 1);
    char *boot = in(w->state, "boot");
    assert_true(file_exists(boot));
    mem_free(boot);
    char *state = strdup(w->state);
    workdir_close(w);
    if (before)
        put(state, "boot", before, strlen(before));
    free(state);
    OK(workdir_open(dir, cluster, w, err));
}

static void a_loss_of_power_takes_what_was_not_flushed(void **state)
{
    (void)state;
    struct workdir w;
    char *dir = in(top, "power");
    open_after(dir, NULL, &w);
    assert_true(has(&w, "residual-1-2-0-0") && has(&w, "replica-1-0-0.end"));
    workdir_close(&w);
    open_after(dir, "another boot\n", &w);
    assert_false(has(&w, "residual-1-2-0-0") || has(&w, "residual-1-2-0-0.pending-7") ||
                 has(&w, "replica-1-0-0.end") || has(&w, "external-1-0-0.end.spare"));
    assert_true(has(&w, "replica-1-0-0.mid") && has(&w, "held"));
    workdir_close(&w);
    mem_free(dir);
}

static void a_killed_process_loses_nothing(void **state)
{
    (void)state;
    struct workdir w;
    struct buf boot;
    char *dir = in(top, "killed");
    OK(file_read("/proc/sys/kernel/random/boot_id", 64, &boot, err));
    open_after(dir, buf_str(&boot), &w);
    assert_true(has(&w, "residual-1-2-0-0") && has(&w, "replica-1-0-0.end"));
    buf_release(&boot);
    workdir_close(&w);
    mem_free(dir);
}

/* Workers of one machine do not meet, and each finds its own again. */
static void the_first_free_default(void **state)
{
    (void)state;
    struct workdir a, b, c;
    assert_int_equal(setenv("XDG_CACHE_HOME", top, 1), 0);
    OK(workdir_open(NULL, cluster, &a, err));
    OK(workdir_open(NULL, cluster, &b, err));
    char *first = strdup(a.dir);
    assert_string_not_equal(a.dir, b.dir);
    workdir_close(&a);
    OK(workdir_open(NULL, cluster, &c, err));
    assert_string_equal(c.dir, first);
    workdir_close(&b);
    workdir_close(&c);
    free(first);
    assert_int_equal(unsetenv("XDG_CACHE_HOME"), 0);
    assert_int_equal(unsetenv("HOME"), 0);
    FAILS(workdir_open(NULL, cluster, &a, err), "--work-dir");
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
        cmocka_unit_test(same_identity_after_a_restart),
        cmocka_unit_test(a_state_per_coordinator),
        cmocka_unit_test(a_folder_of_others_is_refused),
        cmocka_unit_test(a_broken_identity_is_made_anew),
        cmocka_unit_test(old_state_is_pruned),
        cmocka_unit_test(the_last_state_stays),
        cmocka_unit_test(state_of_past_coordinators_is_pruned),
        cmocka_unit_test(only_state_that_others_outlived_is_pruned),
        cmocka_unit_test(ended_jobs_leave_nothing),
        cmocka_unit_test(a_loss_of_power_takes_what_was_not_flushed),
        cmocka_unit_test(a_killed_process_loses_nothing),
        cmocka_unit_test(the_first_free_default),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
