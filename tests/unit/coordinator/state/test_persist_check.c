/* A job whose rows do not go together is set aside with all that its rows name, and it is said
 * which do not; the other jobs go on.  Where no single job is damaged the database is refused. */
#include "tests/unit/coordinator/rig.h"

#include <sqlite3.h>

#include "common/base/file.h"
#include "coordinator/job/flow.h"
#include "coordinator/state/blobs.h"
#include "coordinator/state/persist.h"

static const struct damage {
    const char *sql, *says; /* says NULL: all is well */
    bool refused;           /* all of it */
} damages[] = {
    {"SELECT 1", NULL},
    {"UPDATE modules SET version=2 WHERE job=1", "version 2 is missing"},
    {"UPDATE versions SET version=version+5 WHERE version=1",
     "is at version 1, and version 1 is missing"},
    {"DELETE FROM versions WHERE module=7", "has no version"},
    {"DELETE FROM modules WHERE job=1", "table versions, row 7: its module"},
    {"DELETE FROM ledgers", "job 1 is running, and path 0 has no ledger"},
    {"UPDATE shards SET samples=1 WHERE job=1", "does not account for every sample once"},
    {"UPDATE shards SET sha256=x'00' WHERE job=1 AND n=0", "table shards, row 1: its hash"},
    {"DELETE FROM shards WHERE job=1 AND n=0", "table shards, row 1: its number"},
    {"UPDATE tasks SET ranges=x'00000000ffff00000000000001000000' WHERE state=2",
     "of shard 65535, which job 1 does not have"},
    {"UPDATE tasks SET ranges=x'0000000000000000ffffffffffffffff' WHERE state=2",
     "reads samples 4294967295 to 8589934590 of shard 0"},
    {"UPDATE tasks SET kind=6, module=99 WHERE state=2", "makes module 99"},
    {"DELETE FROM tasks WHERE job=1 AND id=(SELECT min(task) FROM contributions)",
     "table contributions, row 2: its task"},
    {"UPDATE rounds SET path=5", "its path is not valid"},
    {"UPDATE jobs SET state=99 WHERE id=1", "table jobs, row 1: its state"},
    {"UPDATE jobs SET tokenizer=x'00', tokenizer_size=5 WHERE id=1", "table jobs, row 1: a hash"},
    {"UPDATE shards SET job=5 WHERE job=1", "table shards, row 5: its number", true},
    {"UPDATE workers SET state=99", "table workers, row 1: its state", true},
    {"UPDATE tokens SET role=99", "table tokens, row 1: its role", true},
};

/* A job amid a phase of its second round, and one that has just begun. */
static void run_a_job(struct rig *r)
{
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    const uint64_t id = submit(r);
    do_init(r, a);
    for (int replica = 0; replica < 2; replica++) {
        assign(r, a, TASK_TRAIN);
        finish_train(r, a);
    }
    assign(r, a, TASK_TRAIN);
    assert_int_equal(state_job(&r->co->state, id)->n_rounds, 1);
    (void)submit(r);
    settle(r);
    stop(r);
}

static void change(const char *path, const char *sql)
{
    sqlite3 *db = NULL;
    char *why = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", sql, why);
    sqlite3_close(db);
}

static bool is_named(const struct job *j, int role)
{
    for (size_t i = 0; i < j->n_unread_blobs; i++)
        if (j->unread_blobs[i].role == role)
            return true;
    return false;
}

/* The job is there, ended, with the reason and its blobs, and the other one is as it was. */
static void is_aside(const struct state *st, const struct damage *d)
{
    const struct job *j = state_job(st, 1), *other = state_job(st, 2);
    assert_int_equal(st->n_jobs, 2);
    assert_true(!other->unread && other->refused == NULL && !job_is_ended(other));
    assert_int_equal(j->unread, d->says != NULL);
    if (d->says == NULL)
        return;
    assert_int_equal(j->state, JOB_FAILED);
    if (strstr(j->reason, d->says) == NULL ||
        strstr(j->reason, "put a copy of the database back") == NULL)
        fail_msg("%s: '%s' does not say '%s'", d->sql, j->reason, d->says);
    assert_string_equal(j->spec.name, "fake");
    assert_true(is_named(j, BLOB_SHARD));
    assert_true(is_named(j, BLOB_FULL) || strstr(d->sql, "DELETE FROM versions") != NULL);
    assert_true(is_named(j, BLOB_CONTRIBUTION));
    for (size_t i = 0; i < st->n_tasks; i++)
        assert_int_equal(st->tasks[i]->job_id, 2);
}

static void check(const char *path, const struct damage *d)
{
    struct state st;
    struct store *s = NULL;
    struct err err = {0};
    change(path, d->sql);
    state_init(&st);
    assert_int_equal(store_open(path, &persist_schema, &s, &err), 0);
    const int rc = persist_load(s, &st, &err);
    if (rc != (d->refused ? -ERR_FORMAT : 0))
        fail_msg("%s: %d, %s", d->sql, rc, err.msg);
    if (rc == 0)
        is_aside(&st, d);
    else if (strstr(err.msg, d->says) == NULL ||
             strstr(err.msg, "put a copy of the database back") == NULL)
        fail_msg("%s: '%s' does not say '%s'", d->sql, err.msg, d->says);
    state_release(&st);
    store_close(s);
}

/* The damaged job is removed, and with it what only its lost rows owned: the next start goes on. */
static void is_removed(struct rig *r, const struct damage *d)
{
    char *path = fx_path(&r->f, "coordinator.db");
    change(path, d->sql);
    mem_free(path);
    start(r);
    assert_true(state_job(&r->co->state, 1)->unread);
    flow_remove(r->co, state_job(&r->co->state, 1));
    settle(r);
    stop(r);
    start(r);
    assert_int_equal(r->co->state.n_jobs, 1);
    assert_false(state_job(&r->co->state, 2)->unread);
    settle(r);
    stop(r);
}

static void test_damage(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    struct buf whole;
    char *path = fx_path(&r->f, "coordinator.db");
    run_a_job(r);
    change(path, "PRAGMA wal_checkpoint(TRUNCATE)");
    assert_int_equal(file_read(path, 64 << 20, &whole, &err), 0);
    for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
        change(path, "PRAGMA wal_checkpoint(TRUNCATE)");
        assert_int_equal(file_write_atomic(path, whole.data, whole.len, 0600, &err), 0);
        check(path, &damages[i]);
    }
    change(path, "PRAGMA wal_checkpoint(TRUNCATE)");
    assert_int_equal(file_write_atomic(path, whole.data, whole.len, 0600, &err), 0);
    change(path, "CREATE TABLE lost AS SELECT * FROM ledgers; DELETE FROM ledgers");
    start(r); /* with the damaged job, which stays as it is on record */
    assert_true(state_job(&r->co->state, 1)->unread);
    settle(r);
    stop(r);
    change(path, "INSERT INTO ledgers SELECT * FROM lost; DROP TABLE lost");
    start(r);
    assert_int_equal(state_job(&r->co->state, 1)->state, JOB_RUNNING);
    stop(r);
    for (size_t i = 1; i < sizeof(damages) / sizeof(damages[0]); i++) {
        char *newest = fx_path(&r->f, "newest-commit");
        change(path, "PRAGMA wal_checkpoint(TRUNCATE)");
        assert_int_equal(file_write_atomic(path, whole.data, whole.len, 0600, &err), 0);
        (void)unlink(newest); /* it is older than it was */
        mem_free(newest);
        if (!damages[i].refused)
            is_removed(r, &damages[i]);
    }
    buf_release(&whole);
    mem_free(path);
    start(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_damage, begin, end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
