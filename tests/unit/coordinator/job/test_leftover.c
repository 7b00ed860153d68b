/* What is left of steps goes from a store far away, too, by the names that it was kept under; and
 * what that lacks at a start is sent. */
#include "tests/unit/coordinator/rig.h"

#include <sqlite3.h>

#include "common/base/hash.h"
#include "coordinator/job/leftover.h"

#define NAMES 8

struct names {
    char items[NAMES][160];
    _Atomic size_t n;
};

static struct {
    struct blobstore_ops ops;
    struct names there, sent, dropped;
    int list_rc, save_rc;
    off_t said; /* bytes of the log when the first file was sent, if that is a file */
} far;

static void add(struct names *to, const char *name)
{
    assert_true(to->n < NAMES && str_copy(to->items[to->n], sizeof(to->items[0]), name));
    to->n++;
}

static int saved(struct blobstore *s, const char *names, blob_saved_fn *fn, void *arg,
                 struct err *err)
{
    for (size_t i = 0; i < far.there.n; i++)
        if (str_starts(far.there.items[i], names))
            assert_int_equal(fn(arg, far.there.items[i]), 0);
    return far.list_rc < 0 ? err_set(err, far.list_rc, "no list") : 0;
}

static int save(struct blobstore *s, const char *name, const char *path, const uint8_t sha256[32],
                uint64_t size, struct err *err)
{
    uint8_t got[32];
    uint64_t n = 0;
    char hex[HASH_HEX_MAX], *whole = str_printf("%s-%s", name, hash_hex(sha256, 32, hex));
    assert_int_equal(hash_file(path, got, &n, NULL), 0);
    assert_memory_equal(got, sha256, 32);
    assert_int_equal(n, size);
    if (far.sent.n == 0)
        far.said = lseek(STDERR_FILENO, 0, SEEK_CUR);
    if (far.save_rc == 0)
        add(&far.sent, whole);
    mem_free(whole);
    return far.save_rc < 0 ? err_set(err, far.save_rc, "no room") : 0;
}

static int drop(struct blobstore *s, const char *names, struct err *err)
{
    add(&far.dropped, names);
    return 0;
}

/* From here on the blobs are far away, with these files beside them. */
static void move_away(struct rig *r)
{
    memset(&far, 0, sizeof(far));
    far.ops = *r->co->blobs->ops;
    far.ops.saved = saved;
    far.ops.save = save;
    far.ops.drop = drop;
    r->co->blobs->ops = &far.ops;
}

static void let_go(struct rig *r, uint64_t keep, size_t n)
{
    far.dropped.n = 0;
    leftover_drop(r->co, file_join(r->co->opt.data_dir, "outer/1/2"), keep);
    WAIT_DOING(far.dropped.n >= n, loop_turn(r->loop, false));
    assert_int_equal(far.dropped.n, n);
}

static void test_names(void **state)
{
    struct rig *r = *state;
    char *with_slash = str_printf("%s/", r->f.dir);
    const char *const dirs[] = {r->f.dir, with_slash};
    move_away(r);
    for (size_t i = 0; i < 2; i++) {
        r->co->opt.data_dir = dirs[i];
        let_go(r, 4, 3);
        assert_string_equal(far.dropped.items[0], "outer/1/2/target.3.safetensors");
        assert_string_equal(far.dropped.items[1], "outer/1/2/momentum.3.safetensors");
        assert_string_equal(far.dropped.items[2], "outer/1/2/buffer.3.safetensors");
        let_go(r, 0, 1);
        assert_string_equal(far.dropped.items[0], "outer/1/2/");
    }
    r->co->opt.data_dir = r->f.dir;
    mem_free(with_slash);
}

/* The coordinator was killed between the end of a job and the removal of its files. */
static void test_ended(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    const uint64_t job = submit(r);
    char *dir = str_printf("%s/outer/%llu/5", r->f.dir, (unsigned long long)job);
    settle(r);
    assert_int_equal(view_job_cancel(r->co, job, &err), 0);
    stop(r);
    assert_int_equal(file_mkdirs(dir, 0700, &err), 0);
    start(r);
    WAIT_DOING(!file_is_dir(dir), loop_turn(r->loop, false));
    assert_false(file_is_dir(dir));
    mem_free(dir);
}

/* A job that this release cannot read goes on with the one that wrote it. */
static void test_unread(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    const uint64_t job = submit(r), ended = submit(r);
    char *dir = str_printf("%s/outer/%llu/5", r->f.dir, (unsigned long long)job),
         *gone = str_printf("%s/outer/%llu/5", r->f.dir, (unsigned long long)ended),
         *db_path = fx_path(&r->f, "coordinator.db");
    sqlite3 *db = NULL;
    settle(r);
    assert_int_equal(view_job_cancel(r->co, ended, &err), 0);
    stop(r);
    assert_int_equal(file_mkdirs(dir, 0700, &err), 0);
    assert_int_equal(file_mkdirs(gone, 0700, &err), 0);
    assert_int_equal(sqlite3_open(db_path, &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_exec(db, "UPDATE specs SET yaml='name: x' WHERE job=1", NULL, NULL, NULL),
        SQLITE_OK);
    sqlite3_close(db);
    start(r);
    assert_true(state_job(&r->co->state, job)->unread);
    WAIT_DOING(!file_is_dir(gone), loop_turn(r->loop, false));
    assert_false(file_is_dir(gone));
    stop(r); /* which waits for what has begun */
    const bool kept = file_is_dir(dir);
    start(r);
    assert_true(kept);
    mem_free(db_path);
    mem_free(dir);
    mem_free(gone);
}

static void complete(struct rig *r, size_t sent)
{
    struct err err = {0};
    far.sent.n = 0;
    if (leftover_resume(r->co, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(far.sent.n, sent);
}

/* A running job at version 1; the file of its outer optimiser's state. */
static char *begun(struct rig *r, const char *what)
{
    struct job *j = state_job(&r->co->state, 1);
    if (j == NULL) {
        for (int i = 0; i < 2; i++)
            assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
        j = state_job(&r->co->state, submit(r));
        do_init(r, &r->workers[0]);
        for (int i = 0; i < 2; i++)
            (void)assign(r, &r->workers[i], TASK_TRAIN);
        for (int i = 0; i < 2; i++)
            finish_train(r, &r->workers[i]);
        WAIT_FOR(r, j->modules[0].version >= 1);
        settle(r);
    }
    return str_printf("%s/outer/1/%d/%s.1.safetensors", r->f.dir, MODULE, what);
}

/* What a stop left of a step that was not on record goes; the newest version's state stays. */
static void test_begun(void **state)
{
    struct rig *r = *state;
    char *target = begun(r, "target"),
         *next = str_printf("%s/outer/1/%d/delta.2.safetensors", r->f.dir, MODULE);
    stop(r);
    assert_int_equal(file_write_atomic(next, "x", 1, 0600, NULL), 0);
    start(r);
    assert_false(file_exists(next));
    assert_true(file_exists(target));
    mem_free(target);
    mem_free(next);
}

/* The state was kept here alone until now. */
static void test_missing_ones_are_sent(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    char *momentum = begun(r, "momentum"), *target = begun(r, "target");
    move_away(r);
    far.list_rc = -EAGAIN;
    assert_int_equal(leftover_resume(r->co, &err), -EAGAIN);
    far.list_rc = 0;
    far.save_rc = -EAGAIN;
    assert_int_equal(leftover_resume(r->co, &err), -EAGAIN);
    far.save_rc = 0;
    complete(r, 2);
    assert_non_null(strstr(far.sent.items[0], "/target.1.safetensors-"));
    assert_non_null(strstr(far.sent.items[1], "/momentum.1.safetensors-"));
    add(&far.there, far.sent.items[1]);
    complete(r, 1);
    assert_non_null(strstr(far.sent.items[0], "/target.1.safetensors-"));
    add(&far.there, far.sent.items[0]);
    complete(r, 0);
    far.there.n = 0;
    fx_flip(target); /* the next step says so */
    assert_int_equal(file_remove(momentum, NULL), 0);
    complete(r, 0);
    fx_flip(target);
    complete(r, 1);
    assert_int_equal(far.dropped.n, 0);
    mem_free(target);
    mem_free(momentum);
}

/* It may take long, and is told before it begins. */
static void test_sending_is_told(void **state)
{
    struct rig *r = *state;
    FILE *log = tmpfile();
    const int real = dup(STDERR_FILENO);
    mem_free(begun(r, "target"));
    move_away(r);
    assert_true(log != NULL && real >= 0 && dup2(fileno(log), STDERR_FILENO) >= 0);
    log_set_level(LOG_LEVEL_INFO);
    complete(r, 2);
    log_set_level(LOG_LEVEL_ERROR);
    assert_true(dup2(real, STDERR_FILENO) >= 0);
    close(real);
    (void)fclose(log);
    assert_true(far.said > 0);
}

/* A machine was lost between the end of a job and the removal of its copies. */
static void test_ended_jobs_have_none(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    char *target = begun(r, "target");
    assert_int_equal(view_job_cancel(r->co, 1, &err), 0);
    WAIT_DOING(!file_exists(target), loop_turn(r->loop, false));
    stop(r); /* which waits for the end of the removal */
    start(r);
    settle(r);
    move_away(r);
    mem_free(target);
    add(&far.there, "outer/10/1/target.3.safetensors-00");
    complete(r, 0);
    add(&far.there, "outer/1/1/target.3.safetensors-00");
    state_job(&r->co->state, 1)->unread = true;
    complete(r, 0);
    state_job(&r->co->state, 1)->unread = false;
    complete(r, 0);
    WAIT_DOING(far.dropped.n > 0, loop_turn(r->loop, false));
    assert_int_equal(far.dropped.n, 1);
    assert_string_equal(far.dropped.items[0], "outer/1/");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_names, begin, end),
        cmocka_unit_test_setup_teardown(test_ended, begin, end),
        cmocka_unit_test_setup_teardown(test_unread, begin, end),
        cmocka_unit_test_setup_teardown(test_begun, begin, end),
        cmocka_unit_test_setup_teardown(test_missing_ones_are_sent, begin, end),
        cmocka_unit_test_setup_teardown(test_sending_is_told, begin, end),
        cmocka_unit_test_setup_teardown(test_ended_jobs_have_none, begin, end)};
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests_name("leftover", tests, NULL, NULL);
}
