/* What a capture that was killed has left goes, and what one at work needs stays.  A blob that must
 * be there is missed; one of a job that is not read is not, nor is a shard of one that has ended.
 */
#include "tests/unit/common/base/util.h"
#include "tests/unit/coordinator/rig.h"

#include <sqlite3.h>

#include "common/base/file.h"
#include "common/net/blob_dir.h"
#include "coordinator/state/capture.h"
#include "coordinator/state/place.h"

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

/* Somebody looks where a coordinator stands by: it can go on there all the same. */
static void test_no_database(void **state)
{
    struct capture c;
    struct err why = {0};
    char *data = scratch_new();
    assert_int_equal(capture_take(&(struct coordinator_options){.data_dir = data}, 1, &c, &why),
                     -ENOENT);
    assert_non_null(strstr(why.msg, "there is no coordinator's database"));
    OK(place_check_new(data, err));
    scratch_free(data);
}

static void execute(struct rig *r, const char *sql)
{
    sqlite3 *db = NULL;
    char *path = fx_path(&r->f, "coordinator.db");
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_changes(db), 1);
    sqlite3_close(db);
    mem_free(path);
}

static bool has(const struct capture *c, const struct blob_ref *b)
{
    bool found = false;
    char *path = blob_dir_file(CAPTURE_BLOBS, b->sha256);
    for (size_t i = 0; i < c->manifest.n; i++)
        found |= strcmp(c->manifest.files[i].path, path) == 0;
    mem_free(path);
    return found;
}

static void test_lost_blob(void **state)
{
    struct rig *r = *state;
    const struct coordinator_options o = {.data_dir = r->f.dir};
    struct capture c;
    struct err why = {0};
    struct blob_id id;
    assert_int_equal(join(r, &r->workers[0], SKERRY_VERSION), 0);
    (void)submit(r);
    do_init(r, &r->workers[0]);
    (void)assign(r, &r->workers[0], TASK_TRAIN);
    const uint64_t phase = r->workers[0].task->id;
    finish_train(r, &r->workers[0]);
    settle(r);
    const struct blob_ref lost = state_task(&r->co->state, phase)->train.contributions[0].blob,
                          full = put_file(r, r->f.full);
    OK(capture_take(&o, 0, &c, err));
    assert_true(has(&c, &lost) && has(&c, &full));
    capture_release(&c);
    memcpy(id.sha256, lost.sha256, sizeof(id.sha256));
    OK(r->co->blobs->ops->remove(r->co->blobs, &id, err));
    assert_int_equal(capture_take(&o, 0, &c, &why), -ENOENT);
    assert_non_null(
        strstr(why.msg, "in 8 tries: if rounds replace files faster than that, run it"));
    stop(r);
    execute(r, "UPDATE specs SET yaml='name: x' WHERE job=1");
    OK(capture_take(&o, 0, &c, err));
    assert_true(c.state.jobs[0]->unread);
    assert_true(!has(&c, &lost) && has(&c, &full));
    capture_release(&c);
    start(r);
}

/* A clock that ran ahead may have let them go. */
static void test_lost_shards(void **state)
{
    struct rig *r = *state;
    const struct coordinator_options o = {.data_dir = r->f.dir};
    struct capture c;
    struct blob_id id;
    const uint64_t job = submit(r);
    memcpy(id.sha256, state_job(&r->co->state, job)->shards[0].blob.sha256, sizeof(id.sha256));
    OK(view_job_cancel(r->co, job, err));
    settle(r);
    OK(r->co->blobs->ops->remove(r->co->blobs, &id, err));
    OK(capture_take(&o, 0, &c, err));
    assert_false(has(&c, &state_job(&c.state, job)->shards[0].blob));
    assert_true(has(&c, &state_job(&c.state, job)->shards[1].blob));
    capture_release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_left_behind), cmocka_unit_test(test_no_database),
        cmocka_unit_test_setup_teardown(test_lost_blob, begin, end),
        cmocka_unit_test_setup_teardown(test_lost_shards, begin, end)};
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
