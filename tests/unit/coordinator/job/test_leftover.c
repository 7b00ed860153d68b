/* What is left of steps goes from a store far away, too, by the names that it was kept under. */
#include "tests/unit/coordinator/rig.h"

#include <sqlite3.h>

#include "coordinator/job/leftover.h"

static struct {
    struct blobstore_ops ops;
    char names[8][64];
    _Atomic size_t n;
} far;

static int drop(struct blobstore *s, const char *names, struct err *err)
{
    (void)str_copy(far.names[far.n], sizeof(far.names[0]), names);
    far.n++;
    return 0;
}

static void let_go(struct rig *r, uint64_t keep, size_t n)
{
    far.n = 0;
    leftover_drop(r->co, file_join(r->co->opt.data_dir, "outer/1/2"), keep);
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    while (far.n < n && clock_now_ms() < until)
        loop_turn(r->loop, false);
    assert_int_equal(far.n, n);
}

static void test_names(void **state)
{
    struct rig *r = *state;
    char *with_slash = str_printf("%s/", r->f.dir);
    const char *const dirs[] = {r->f.dir, with_slash};
    far.ops = *r->co->blobs->ops;
    far.ops.drop = drop;
    r->co->blobs->ops = &far.ops;
    for (size_t i = 0; i < 2; i++) {
        r->co->opt.data_dir = dirs[i];
        let_go(r, 4, 3);
        assert_string_equal(far.names[0], "outer/1/2/target.3.safetensors");
        assert_string_equal(far.names[1], "outer/1/2/momentum.3.safetensors");
        assert_string_equal(far.names[2], "outer/1/2/buffer.3.safetensors");
        let_go(r, 0, 1);
        assert_string_equal(far.names[0], "outer/1/2/");
    }
    r->co->opt.data_dir = r->f.dir;
    mem_free(with_slash);
}

/* The coordinator was killed between the end of a job and the removal of its files. */
static void test_ended(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    const uint64_t job = submit(r), until = clock_now_ms() + DEADLINE_MS;
    char *dir = str_printf("%s/outer/%llu/5", r->f.dir, (unsigned long long)job);
    settle(r);
    assert_int_equal(view_job_cancel(r->co, job, &err), 0);
    stop(r);
    assert_int_equal(file_mkdirs(dir, 0700, &err), 0);
    start(r);
    while (file_is_dir(dir) && clock_now_ms() < until)
        loop_turn(r->loop, false);
    assert_false(file_is_dir(dir));
    mem_free(dir);
}

/* A job that this release cannot read goes on with the one that wrote it. */
static void test_unread(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    const uint64_t job = submit(r), ended = submit(r), until = clock_now_ms() + DEADLINE_MS;
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
    while (file_is_dir(gone) && clock_now_ms() < until)
        loop_turn(r->loop, false);
    assert_false(file_is_dir(gone));
    stop(r); /* which waits for what has begun */
    const bool kept = file_is_dir(dir);
    start(r);
    assert_true(kept);
    mem_free(db_path);
    mem_free(dir);
    mem_free(gone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_names, begin, end),
                                       cmocka_unit_test_setup_teardown(test_ended, begin, end),
                                       cmocka_unit_test_setup_teardown(test_unread, begin, end)};
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests_name("leftover", tests, NULL, NULL);
}
