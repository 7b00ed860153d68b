/* A database whose rows do not go together is refused, and it is said which: before that it crashed
 * the coordinator, at once or later. */
#include "tests/unit/coordinator/rig.h"

#include <sqlite3.h>

#include "common/base/file.h"
#include "coordinator/state/persist.h"

static const struct damage {
    const char *sql, *says; /* NULL: all is well */
} damages[] = {
    {"SELECT 1", NULL},
    {"UPDATE modules SET version=2", "version 2 is missing"},
    {"UPDATE versions SET version=version+5 WHERE version=1",
     "is at version 1, and version 1 is missing"},
    {"DELETE FROM versions", "has no version"},
    {"DELETE FROM ledgers", "job 1 is running, and path 0 has no ledger"},
    {"UPDATE shards SET samples=1", "does not account for every sample once"},
    {"UPDATE tasks SET ranges=x'00000000ffff00000000000001000000' WHERE state=2",
     "of shard 65535, which job 1 does not have"},
    {"UPDATE tasks SET ranges=x'0000000000000000ffffffffffffffff' WHERE state=2",
     "reads samples 4294967295 to 8589934590 of shard 0"},
    {"UPDATE tasks SET kind=6, module=99 WHERE state=2", "makes module 99"},
    {"UPDATE rounds SET path=5", "its path is not valid"},
};

/* A job amid a phase of its second round. */
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
    loop_turn(r->loop, false);
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

static void check(const char *path, const struct damage *d)
{
    struct state st;
    struct store *s = NULL;
    struct err err = {0};
    change(path, d->sql);
    state_init(&st);
    assert_int_equal(store_open(path, &persist_schema, &s, &err), 0);
    const int rc = persist_load(s, &st, &err);
    if (rc != (d->says ? -ERR_FORMAT : 0) || (d->says && strstr(err.msg, d->says) == NULL) ||
        (d->says && strstr(err.msg, "put a copy of the database back") == NULL))
        fail_msg("%s: %d, '%s' does not say '%s'", d->sql, rc, err.msg, d->says ? d->says : "");
    state_release(&st);
    store_close(s);
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
    assert_int_equal(file_write_atomic(path, whole.data, whole.len, 0600, &err), 0);
    buf_release(&whole);
    mem_free(path);
    start(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_damage, begin, end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
