/* A database of the first release, from before partitions and texts, comes up; or it is refused,
 * and stays as it is for that release. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/net/loop.h"
#include "coordinator/coordinator.h"
#include "coordinator/state/persist.h"

static char dir[64], path[96];

#define YAML                                                                                       \
    "name: old\nseed: 3\ndata: {path: x, image_size: 16}\n"                                        \
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"                                  \
    "train: {batch: 4}\nrecipe: {name: diloco, replicas: 2}\nouter: {rounds: 5, steps: 2}\n"
#define H "zeroblob(32)"

/* Rows as that release wrote them. */
static const char *const rows[] = {
    "INSERT INTO counters VALUES('task', 9)",
    "INSERT INTO counters VALUES('module', 8)",
    "INSERT INTO jobs VALUES(1, '" YAML "', 4, '', 10, 20, 0, 0, 3, 2, 100, 200, 300, 4, 2, 1.5,"
    " NULL)",
    "INSERT INTO classes VALUES(1, 0, 'cat', 30)",
    "INSERT INTO shards VALUES(1, 0, " H ", 99, 10, 0, 0)",
    "INSERT INTO shards VALUES(1, 1, " H ", 98, 5, 4294967295, 0)",
    "INSERT INTO shards VALUES(1, 2, " H ", 97, 20, 0, 0)",
    "INSERT INTO modules VALUES(7, 1, 0, 0, 0, 1, 1234)",
    "INSERT INTO versions VALUES(7, 1, " H ", 5, " H ", 6, " H ", 7, '{}', 44)",
    "INSERT INTO paths VALUES(1, 0, 1, 1, 33, 1, 2)",
    "INSERT INTO replicas VALUES(1, 0, 0, 3, 2, 5, 8)",
    "INSERT INTO replicas VALUES(1, 0, 1, 4, 2, 6, 8)",
    "INSERT INTO tasks VALUES(5, 1, 3, 3, 1, 0, 0, 0, 1, 0, 3, '', 2, NULL, '0 0 0 0 0 0 0x0p+0 0',"
    " NULL, " H ", 0, 2, 8, 0.5, 0.5, 0.5, 1.0, 1, 2)",
    "INSERT INTO tasks VALUES(8, 1, 5, 1, 1, 0, 0, 0, 1, 0, 0, '', 0, NULL,"
    " '30 3 1 1 0 1 0x1.cp+0 7', x'00000000', " H ", 0, 0, 0, NULL, NULL, NULL, NULL, 1, 0)",
    "INSERT INTO contributions VALUES(5, 0, 7, 1, " H ", 11, 0)",
    "INSERT INTO grids VALUES(4, 1, 1, 4, 2, " H ", 12, 5)",
    ("INSERT INTO workers VALUES(3, zeroblob(16), zeroblob(16), 'w', 'd', 'v', 'a', 1, 1, 2, '',"
     " 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)"),
    "INSERT INTO verdicts VALUES(3, 5, 1, '')",
    "INSERT INTO ledgers VALUES(1, 0, x'010000000000000000000000')",
};
#define ROWS ((int)(sizeof(rows) / sizeof(rows[0])))

static void make_old(void)
{
    struct err err = {0};
    struct store *s = NULL;
    /* The tables first: statements are prepared when the store is opened. */
    const struct store_schema bare = {persist_schema.migrations, 1, rows, 0};
    const struct store_schema old = {persist_schema.migrations, 1, rows, ROWS};
    assert_int_equal(store_open(path, &bare, &s, &err), 0);
    store_close(s);
    if (store_open(path, &old, &s, &err) < 0)
        fail_msg("%s", err.msg);
    for (int i = 0; i < ROWS; i++)
        store_put(s, i, "");
    if (store_commit(s, &err) < 0)
        fail_msg("%s", err.msg);
    store_close(s);
}

/* It is on the whole task. */
static void check_verdict(const struct worker *w)
{
    assert_int_equal(w->n_verdicts, 1);
    assert_true(w->verdicts[0].task_id == 5 && w->verdicts[0].module_id == 0);
    assert_true(w->verdicts[0].accepted);
}

static void spend(struct store *s, struct state *st, struct job *j)
{
    j->cost.egress = 77.5;
    st->request_dollars = 1234.5;
    persist_spent(s, st);
}

static bool is_spent(const struct state *st)
{
    return state_job(st, 1)->cost.egress == 77.5 && fabs(st->request_dollars - 1234.5) < 1e-9;
}

static void test_first_release(void **state)
{
    struct store *s = NULL;
    struct state st;
    struct err err = {0};
    make_old();
    if (store_open(path, &persist_schema, &s, &err) < 0)
        fail_msg("%s", err.msg);
    state_init(&st);
    if (persist_load(s, &st, &err) < 0)
        fail_msg("%s", err.msg);
    const struct job *j = state_job(&st, 1);
    assert_non_null(j);
    assert_int_equal(j->state, JOB_RUNNING);
    assert_true(!j->shards[0].holdout && j->shards[1].holdout && !j->shards[2].holdout);
    assert_int_equal(j->shards[1].partition, 0);
    assert_int_equal(j->shards[2].generation, 0);
    assert_int_equal(j->generation + j->resharded + j->vocab + j->paused, 0);
    assert_false(blob_ref_is_set(&j->partitioner));
    assert_null(j->paths[0].best);
    assert_int_equal(j->paths[0].replicas[1].owner, 4);
    assert_int_equal(j->modules[0].version, 1);
    assert_int_equal(j->grids[0].count, 4);
    assert_int_equal(j->grids[0].path, 0);
    check_verdict(state_worker(&st, 3));
    /* The phase that was reported can be folded: it has its weight. */
    const struct task *t = state_task(&st, 5), *d = state_task(&st, 8);
    assert_int_equal(t->train.contributions[0].samples, 8);
    assert_int_equal(t->train.contributions[0].worker_id, 3);
    assert_true(d->draw.heun && d->draw.asked && !d->draw.mixture && d->draw.prompt == NULL);
    assert_int_equal(d->draw.seed, 7);
    /* What is as it was is not written again; what changes, as this release does. */
    persist_changes(s, &st);
    assert_int_equal(store_queued(s), 0);
    struct job *mine = state_job(&st, 1);
    mine->phases_done += 5;
    mine->paused = true;
    spend(s, &st, mine);
    const uint64_t phases = mine->phases_done;
    for (size_t i = 0; i < mine->n_shards; i++)
        (void)job_edit_shard(mine, i);
    for (size_t i = 0; i < st.n_tasks; i++) {
        struct task *edit = state_edit_task(&st, st.tasks[i]);
        edit->failures += 3;
        if (edit->kind == TASK_TRAIN && edit->train.n_contributions > 0)
            task_edit_contribution(edit, &edit->train.contributions[0])->refused = true;
    }
    persist_changes(s, &st);
    if (store_commit(s, &err) < 0)
        fail_msg("%s", err.msg);
    state_release(&st);
    state_init(&st);
    if (persist_load(s, &st, &err) < 0)
        fail_msg("%s", err.msg);
    assert_true(state_job(&st, 1)->shards[1].holdout);
    assert_int_equal(state_job(&st, 1)->phases_done, phases);
    assert_true(state_job(&st, 1)->paused && is_spent(&st));
    assert_true(state_task(&st, 8)->failures >= 3);
    assert_true(state_task(&st, 5)->train.contributions[0].refused);
    assert_int_equal(state_task(&st, 5)->train.contributions[0].samples, 8);
    state_release(&st);
    store_close(s);
}

/* Whether a copy of that schema is there; it opens for a release that knows no later one. */
static bool is_kept(int schema)
{
    char copy[128];
    struct store *s = NULL;
    struct err err = {0};
    const struct store_schema old = {persist_schema.migrations, schema, NULL, 0};
    (void)snprintf(copy, sizeof(copy), "%s.schema-%d", path, schema);
    if (access(copy, F_OK) != 0)
        return false;
    if (store_open(copy, &old, &s, &err) < 0)
        fail_msg("%s", err.msg);
    store_close(s);
    return true;
}

/* Before it is migrated the database is copied, so that the older release can go on with it. */
static void test_old_one_is_kept(void **state)
{
    struct store *s = NULL;
    struct err err = {0};
    const struct store_schema later = {persist_schema.migrations, 2, NULL, 0};
    assert_int_equal(store_keep_old(path, &persist_schema, &err), 0); /* there is none yet */
    make_old();
    for (int i = 0; i < 2; i++) { /* the first start was killed before it had migrated */
        if (store_keep_old(path, &persist_schema, &err) < 0)
            fail_msg("%s", err.msg);
        assert_true(is_kept(1));
    }
    assert_int_equal(store_open(path, &later, &s, &err), 0);
    store_close(s);
    assert_int_equal(store_keep_old(path, &later, &err), 0);
    assert_true(is_kept(1) && !is_kept(2)); /* it needed no migration */
    assert_int_equal(store_keep_old(path, &persist_schema, &err), 0);
    assert_true(!is_kept(1) && is_kept(2));
}

static void run(const char *sql)
{
    sqlite3 *db = NULL;
    char *why = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", sql, why);
    sqlite3_close(db);
}

static void is_refused(const char *says)
{
    const struct coordinator_options o = {
        .data_dir = dir, .listen = "127.0.0.1", .plain_http = true, .outer_threads = 1};
    struct loop *loop = NULL;
    struct coordinator *co = NULL;
    struct store *s = NULL;
    struct err err = {0};
    const struct store_schema old = {persist_schema.migrations, 1, NULL, 0};
    assert_int_equal(loop_new(&loop, &err), 0);
    assert_int_equal(coordinator_open(loop, &o, &co, &err), -ERR_FORMAT);
    if (strstr(err.msg, says) == NULL)
        fail_msg("'%s' does not say '%s'", err.msg, says);
    loop_free(loop);
    if (store_open(path, &old, &s, &err) < 0)
        fail_msg("%s", err.msg);
    store_close(s);
}

/* A start that is refused has not migrated: the older release can still open the database. */
static void test_refused(void **state)
{
    struct err err = {0};
    char *newest = file_join(dir, "newest-commit");
    (void)snprintf(path, sizeof(path), "%s/coordinator.db", dir);
    make_old();
    run("UPDATE workers SET state=99");
    is_refused("table workers, row 3: its state");
    run("UPDATE workers SET state=2");
    assert_int_equal(file_write_atomic(newest, "5\n", 2, 0600, &err), 0);
    is_refused("is older than it was");
    mem_free(newest);
}

static int begin(void **state)
{
    (void)snprintf(dir, sizeof(dir), "/tmp/skerry-migration.XXXXXX");
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof(path), "%s/db", dir);
    return 0;
}

static int end(void **state)
{
    return file_remove_tree(dir, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_first_release, begin, end),
        cmocka_unit_test_setup_teardown(test_old_one_is_kept, begin, end),
        cmocka_unit_test_setup_teardown(test_refused, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
