/* The store: rows survive kill -9 once their commit returned, a failing disk
 * loses nothing, newer schemas are refused; and the state comes back whole. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/base/str.h"
#include "coordinator/state/persist.h"

static char dir[] = "/tmp/skerry-test-store-XXXXXX";
static char path[128];

static const char *const migrations[] = {
    "CREATE TABLE t(id INTEGER PRIMARY KEY, x REAL, s TEXT, b BLOB) STRICT",
    "ALTER TABLE t ADD COLUMN more INTEGER",
};
static const char *const statements[] = {"INSERT OR REPLACE INTO t(id,x,s,b) VALUES(?,?,?,?)",
                                         "INSERT INTO absent VALUES(1)"};

static int setup(void **state)
{
    char *made = mkdtemp(dir);
    (void)snprintf(path, sizeof(path), "%s/db", dir);
    return made == NULL;
}

static int teardown(void **state)
{
    return file_remove_tree(dir, NULL);
}

static void fresh(void)
{
    char name[160];
    static const char *const ends[] = {"", "-wal", "-shm"};
    for (int i = 0; i < 3; i++) {
        (void)snprintf(name, sizeof(name), "%s%s", path, ends[i]);
        (void)unlink(name); /* may not exist */
    }
}

static struct store *open_schema(int n)
{
    static struct store_schema schema;
    struct store *s = NULL;
    struct err err = {0};
    schema = (struct store_schema){migrations, n, statements, 1};
    if (store_open(path, &schema, &s, &err) < 0)
        fail_msg("%s", err.msg);
    return s;
}

static int64_t count(struct store *s)
{
    sqlite3_stmt *q;
    assert_int_equal(store_select(s, "SELECT count(*) FROM t", &q, NULL), 0);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    int64_t n = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return n;
}

static void test_values(void **state)
{
    fresh();
    struct store *s = open_schema(1);
    sqlite3_stmt *q;
    store_put(s, 0, "idtb", (int64_t)1, 2.5, "text", "a\0b", (size_t)3);
    store_put(s, 0, "idtb", (int64_t)2, (double)NAN, NULL, NULL, (size_t)0);
    assert_int_equal(store_queued(s), 2);
    assert_int_equal(count(s), 0);
    assert_int_equal(store_commit(s, NULL), 0);
    assert_int_equal(store_queued(s), 0);
    assert_int_equal(store_select(s, "SELECT x, s, b FROM t ORDER BY id", &q, NULL), 0);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    assert_true(sqlite3_column_double(q, 0) == 2.5);
    assert_string_equal(store_text(q, 1), "text");
    assert_int_equal(sqlite3_column_bytes(q, 2), 3);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    for (int i = 0; i < 3; i++)
        assert_int_equal(sqlite3_column_type(q, i), SQLITE_NULL);
    assert_string_equal(store_text(q, 1), "");
    sqlite3_finalize(q);
    store_close(s);
}

static void test_migrates(void **state)
{
    fresh();
    struct store *s = open_schema(1);
    struct err err = {0};
    store_put(s, 0, "idtb", (int64_t)1, 1.0, "kept", NULL, (size_t)0);
    assert_int_equal(store_commit(s, NULL), 0);
    store_close(s);
    s = open_schema(2);
    assert_int_equal(count(s), 1);
    store_close(s);
    const struct store_schema old = {migrations, 1, statements, 1};
    assert_int_equal(store_open(path, &old, &s, &err), -ERR_VERSION);
    assert_non_null(strstr(err.msg, "newer release"));
}

static void test_not_a_database(void **state)
{
    const struct store_schema schema = {migrations, 1, statements, 1};
    struct store *s = NULL;
    struct err err = {0};
    char junk[4096];
    fresh();
    memset(junk, 'x', sizeof(junk));
    assert_int_equal(file_write_atomic(path, junk, sizeof(junk), 0600, NULL), 0);
    assert_true(store_open(path, &schema, &s, &err) < 0);
    assert_non_null(strstr(err.msg, path));
}

/* A full disk: a limit on the size of files does what ENOSPC does. */
/* Moved away, or another put in its place: nothing is acknowledged, and nothing lost when it
 * comes back. */
static void test_moved_away(void **state)
{
    struct err err = {0};
    char away[160];
    fresh();
    struct store *s = open_schema(1);
    (void)snprintf(away, sizeof(away), "%s.away", path);
    store_put(s, 0, "idtb", (int64_t)1, 0.5, "x", NULL, (size_t)0);
    assert_int_equal(store_commit(s, &err), 0);
    assert_int_equal(rename(path, away), 0);
    store_put(s, 0, "idtb", (int64_t)2, 0.5, "x", NULL, (size_t)0);
    for (int twice = 0; twice < 2; twice++) {
        assert_int_equal(store_commit(s, &err), -EIO);
        assert_non_null(strstr(err.msg, "was removed or replaced"));
        assert_int_equal(file_write_atomic(path, "other", 5, 0600, NULL), 0);
    }
    assert_int_equal(count(s), 1);
    assert_int_equal(rename(away, path), 0);
    assert_int_equal(store_commit(s, &err), 0);
    store_close(s);
    s = open_schema(1);
    assert_int_equal(count(s), 2);
    store_close(s);
}

static void test_full_disk(void **state)
{
    fresh();
    struct store *s = open_schema(1);
    struct err err = {0};
    struct rlimit was, tight;
    static char big[300000];
    memset(big, 'y', sizeof(big));
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    store_put(s, 0, "idtb", (int64_t)1, 1.0, "first", NULL, (size_t)0);
    assert_int_equal(store_commit(s, NULL), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    tight = (struct rlimit){100000, was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    store_put(s, 0, "idtb", (int64_t)2, 2.0, "second", big, sizeof(big));
    store_put(s, 0, "idtb", (int64_t)3, 3.0, "third", NULL, (size_t)0);
    for (int i = 0; i < 3; i++) {
        assert_true(store_commit(s, &err) < 0);
        assert_int_equal(store_queued(s), 2);
        assert_int_equal(count(s), 1);
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(store_commit(s, &err), 0);
    assert_int_equal(count(s), 3);
    store_close(s);
}

/* The child commits batches and acknowledges each through a pipe. */
static void child(int fd)
{
    struct store *s = open_schema(1);
    for (int64_t id = 1;; id += 3) {
        for (int64_t k = 0; k < 3; k++)
            store_put(s, 0, "idtb", id + k, (double)id, "row", NULL, (size_t)0);
        if (store_commit(s, NULL) < 0)
            _exit(1);
        int64_t acked = id + 2;
        if (write(fd, &acked, sizeof(acked)) != (ssize_t)sizeof(acked))
            _exit(1);
    }
}

static void test_kill(void **state)
{
    struct rng r;
    rng_init(&r, 17, 0);
    for (int round = 0; round < 12; round++) {
        int fds[2];
        int64_t acked = 0, next;
        fresh();
        assert_int_equal(pipe(fds), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            (void)close(fds[0]);
            child(fds[1]);
        }
        (void)close(fds[1]);
        int64_t stop = 3 + (int64_t)rng_below(&r, 120);
        while (acked < stop && read(fds[0], &next, sizeof(next)) == (ssize_t)sizeof(next))
            acked = next;
        assert_true(acked >= stop);
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        while (read(fds[0], &next, sizeof(next)) == (ssize_t)sizeof(next))
            acked = next;
        (void)close(fds[0]);
        struct store *s = open_schema(1);
        int64_t have = count(s);
        assert_true(have >= acked);    /* all that was acknowledged */
        assert_int_equal(have % 3, 0); /* and batches are whole */
        store_close(s);
    }
}

/* ---- the state ----------------------------------------------------------- */

static const char yaml[] = "name: demo\nseed: 3\n"
                           "data: {path: x, image_size: 16}\n"
                           "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                           "train: {batch: 4}\nrecipe: {name: diloco, replicas: 3}\n"
                           "outer: {rounds: 5, steps: 2}\n";

static struct job *fill_job(struct state *st)
{
    struct job *j = state_add_job(st, 0);
    struct ledger_shard shards[2] = {{0, 10}, {2, 20}};
    j->yaml = str_dup(yaml);
    assert_int_equal(job_parse(yaml, strlen(yaml), "t", &j->spec, NULL), 0);
    assert_int_equal(recipe_compose(&j->spec, &j->comp, NULL), 0);
    job_build(j, &st->next_module);
    j->state = JOB_RUNNING;
    (void)str_copy(j->reason, sizeof(j->reason), "a 'reason'");
    job_add_class(j, "cat", 30);
    for (uint32_t i = 0; i < 3; i++)
        *job_add_shard(j) = (struct shard_rec){.blob = {{(uint8_t)i}, 99},
                                               .samples = 10 * (i == 2 ? 2 : 1),
                                               .tokens = 77,
                                               .holdout = i == 1,
                                               .features = {{9}, i}};
    assert_int_equal(ledger_new(rng_mix(3, 0), shards, 2, &j->ledgers[0], NULL), 0);
    assert_true(job_add_bad(j, "ab", "k", "broken"));
    j->bad_count = 1;
    for (uint64_t v = 0; v < 4; v++)
        module_add_version(
            job_edit_module(j, &j->modules[0]),
            &(struct version_rec){v + 3, {{1}, 5}, {{2}, 6}, {{3}, 7}, str_dup("{}"), 44, false});
    job_edit_module(j, &j->modules[0])->params = 1234;
    job_edit_path(j, 0)->round = 6;
    job_edit_path(j, 0)->ready = true;
    job_edit_replica(j, 0, 2)->owner = 1;
    job_edit_replica(j, 0, 2)->step = 12;
    return j;
}

static struct task *fill_task(struct state *st, struct job *j)
{
    struct task *t = state_add_task(st, 0, j->id, TASK_TRAIN);
    t->attempt = 3;
    t->train.replica = 2;
    t->train.round = 6;
    t->worker_id = 1;
    t->ranges = mem_alloc_array(8, sizeof(*t->ranges));
    t->n_ranges = ledger_take(j->ledgers[0], t->id, 25, 0, 3, t->ranges, 8);
    assert_true(t->n_ranges > 0);
    state_set_task_state(st, t, TASK_LEASED);
    task_add_contribution(t, &(struct contribution){j->modules[0].id, 6, {{9}, 8}, true});
    job_edit_replica(j, 0, 2)->task_id = t->id;
    struct task *d = state_add_task(st, 0, j->id, TASK_SAMPLE);
    d->draw = (struct task_draw){0, 30, 3, 2, true, false, true, 1.75f, 1ull << 63, NULL};
    d->draw.labels = mem_alloc_array(2, sizeof(uint32_t));
    d->draw.labels[1] = 7;
    d->loss_mean = 0.25f;
    return t;
}

static struct store *open_state(void)
{
    struct store *s = NULL;
    struct err err = {0};
    if (store_open(path, &persist_schema, &s, &err) < 0)
        fail_msg("%s", err.msg);
    return s;
}

static void make_state(struct state *st)
{
    state_init(st);
    struct worker *w = state_add_worker(st, 0);
    memset(w->identity, 5, 16);
    (void)str_copy(w->name, sizeof(w->name), "isle");
    w->state = WORKER_HERE;
    w->bytes[2] = 1ull << 40;
    worker_add_verdict(w, 4, true, "");
    struct job *j = fill_job(st);
    w->task_id = fill_task(st, j)->id;
}

static void check_state(const struct state *a, const struct state *b)
{
    assert_int_equal(b->n_workers, 1);
    assert_int_equal(b->n_jobs, 1);
    assert_int_equal(b->n_tasks, 2);
    assert_int_equal(b->n_open, 2);
    assert_int_equal(b->next_task, a->next_task);
    assert_int_equal(b->next_module, a->next_module);
    const struct worker *w = b->workers[0];
    assert_string_equal(w->name, "isle");
    assert_int_equal(w->bytes[2], 1ull << 40);
    assert_int_equal(w->n_verdicts, 1);
    assert_int_equal(w->task_id, a->workers[0]->task_id);
    const struct job *j = b->jobs[0];
    assert_string_equal(j->reason, "a 'reason'");
    assert_true(isnan(j->loss));
    assert_int_equal(j->n_shards, 3);
    assert_true(j->shards[1].holdout && !j->shards[0].holdout);
    assert_int_equal(j->shards[1].tokens, 77);
    assert_int_equal(j->shards[2].features.size, 2);
    assert_string_equal(j->classes[0], "cat");
    assert_string_equal(j->bad[0].reason, "broken");
    assert_int_equal(j->modules[0].id, a->jobs[0]->modules[0].id);
    assert_int_equal(j->modules[0].n_versions, 4);
    assert_int_equal(j->modules[0].versions[3].version, 6);
    assert_int_equal(j->paths[0].replicas[2].step, 12);
    struct ledger_epoch x, y;
    ledger_figures(a->jobs[0]->ledgers[0], 0, &x);
    ledger_figures(j->ledgers[0], 0, &y);
    assert_int_equal(x.pending, y.pending);
}

static void test_state(void **state)
{
    struct state a, b;
    struct err err = {0};
    fresh();
    make_state(&a);
    struct store *s = open_state();
    persist_changes(s, &a);
    assert_int_equal(store_commit(s, &err), 0);
    store_close(s);
    s = open_state();
    state_init(&b);
    if (persist_load(s, &b, &err) < 0)
        fail_msg("%s", err.msg);
    check_state(&a, &b);
    const struct task *t = b.tasks[0], *d = b.tasks[1];
    assert_int_equal(t->state, TASK_LEASED);
    assert_int_equal(t->attempt, 3);
    assert_int_equal(t->n_ranges, a.tasks[0]->n_ranges);
    assert_memory_equal(t->ranges, a.tasks[0]->ranges, t->n_ranges * sizeof(*t->ranges));
    assert_true(t->train.contributions[0].refused);
    assert_true(d->draw.heun && d->draw.asked && !d->draw.ema);
    assert_int_equal(d->draw.seed, 1ull << 63);
    assert_int_equal(d->draw.labels[1], 7);
    assert_true(d->draw.guidance == 1.75f && d->loss_mean == 0.25f);
    /* What the task holds can be settled in the ledger that came back. */
    assert_int_equal(ledger_settle(b.jobs[0]->ledgers[0], t->id, t->ranges, t->n_ranges, 25, &err),
                     0);
    while (b.n_tasks > 0)
        state_drop_task(&b, b.tasks[0]);
    state_drop_job(&b, b.jobs[0]);
    persist_changes(s, &b);
    assert_int_equal(store_commit(s, &err), 0);
    state_release(&b);
    state_init(&b);
    assert_int_equal(persist_load(s, &b, &err), 0);
    assert_int_equal(b.n_jobs + b.n_tasks, 0);
    store_close(s);
    state_release(&a);
    state_release(&b);
}

/* Of a long history the newest rounds come back. */
static void test_long_history(void **state)
{
    struct state a, b;
    struct err err = {0};
    fresh();
    make_state(&a);
    struct store *s = open_state();
    persist_changes(s, &a);
    const uint32_t n = JOB_ROUNDS_MAX + 10;
    for (uint32_t i = 0; i < n; i++) {
        job_add_round(a.jobs[0], &(struct round_rec){.round = i});
        persist_changes(s, &a);
    }
    assert_int_equal(a.jobs[0]->n_rounds, JOB_ROUNDS_MAX);
    assert_int_equal(store_commit(s, &err), 0);
    state_init(&b);
    assert_int_equal(persist_load(s, &b, &err), 0);
    const struct job *j = b.jobs[0];
    assert_true(j->n_rounds >= JOB_ROUNDS_MAX / 2);
    assert_int_equal(j->rounds[j->n_rounds - 1].round, n - 1);
    assert_int_equal(j->rounds[0].round, n - j->n_rounds);
    store_close(s);
    state_release(&a);
    state_release(&b);
}

static void count_metric(void *arg, const struct metric_rec *m)
{
    struct {
        uint64_t n, last;
    } *c = arg;
    assert_true(m->n > c->last);
    c->n++;
    c->last = m->n;
}

static void test_metrics_bounded(void **state)
{
    struct state a;
    struct {
        uint64_t n, last;
    } c = {0, 0};
    fresh();
    make_state(&a);
    struct store *s = open_state();
    struct job *j = a.jobs[0];
    for (uint64_t i = 0; i < 4 * METRIC_POINTS_MAX; i++) {
        const struct metric_rec m = {.n = ++j->metric_n, .kind = METRIC_LOSS, .step = i};
        save_metric(s, j->id, &m);
        if (i % (METRIC_POINTS_MAX / 4) == 0)
            save_metrics_thinned(s, j);
    }
    assert_int_equal(store_commit(s, NULL), 0);
    uint64_t have = persist_metric_points(s, j->id);
    assert_true(have <= METRIC_POINTS_MAX * 5 / 4 && have > METRIC_POINTS_MAX / 2);
    assert_int_equal(persist_metrics(s, j->id, j->metric_n - 10, 4, count_metric, &c, NULL), 0);
    assert_int_equal(c.n, 4);
    assert_int_equal(c.last, j->metric_n - 6);
    store_close(s);
    state_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),          cmocka_unit_test(test_migrates),
        cmocka_unit_test(test_not_a_database),  cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_moved_away),      cmocka_unit_test(test_kill),
        cmocka_unit_test(test_state),           cmocka_unit_test(test_long_history),
        cmocka_unit_test(test_metrics_bounded),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
