/* Which blobs the sweep takes: none that a job still needs, whether this release can read the
 * job or not, and nothing is kept that nobody will ask for. */
#include "coordinator/work/gc.h"
#include "tests/unit/blobs.h"
#include "tests/unit/coordinator/rig.h"
#include "tests/unit/coordinator/slow_disk.h"

#include "common/net/ticket.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>

static const char running[] = "name: fake\nseed: 3\n"
                              "data: {path: x, image_size: 16}\n"
                              "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                              "train: {batch: 4, lr: 0.1}\n"
                              "recipe: {name: diloco, replicas: 2, moments: travel}\n"
                              "outer: {rounds: 2, steps: 2}\nsample: {count: 4}\n";
static const char unread[] = "name: fake\nrecipe: {name: gone}\n";

/* How long it is needed: until its job ends; so, too, but kept of a done job that cannot be read;
 * as long as it is on record. */
enum until { ENDS, DOUBT, STAYS };

/* Every column of the store that names a blob, with a blob of its own in it: the job's row is 1,
 * task 2 is a phase that was reported and not yet folded, 21 a picture, 22 a velocity. */
static const struct column {
    const char *name, *sql; /* ?1: the hash, ?2: the size */
    enum until until;
} columns[] = {
    {"shard", "UPDATE shards SET sha256=?1, size=?2 WHERE n=0", DOUBT},
    {"features", "UPDATE shards SET features=?1, features_size=?2 WHERE n=0", ENDS},
    {"score", "INSERT INTO scores VALUES(1, 0, 0, 0, ?1, ?2)", ENDS},
    {"tokenizer", "UPDATE jobs SET tokenizer=?1, tokenizer_size=?2", STAYS},
    {"warm start", "UPDATE jobs SET warm_start=?1, warm_start_size=?2", ENDS},
    {"partitioner", "UPDATE jobs SET partitioner=?1, partitioner_size=?2", STAYS},
    {"partitioner before", "UPDATE jobs SET partitioner_before=?1, partitioner_before_size=?2",
     STAYS},
    {"assignment", "UPDATE jobs SET assignment=?1, assignment_size=?2", ENDS},
    {"full", "UPDATE versions SET full=?1, full_size=?2", STAYS},
    {"delta", "UPDATE versions SET delta=?1, delta_size=?2", STAYS},
    {"ema", "UPDATE versions SET ema=?1, ema_size=?2", STAYS},
    {"moments of a replica", "UPDATE replicas SET moments=?1, moments_size=?2 WHERE replica=1",
     ENDS},
    {"moments of a phase", "UPDATE tasks SET moments=?1, moments_size=?2 WHERE id=2", ENDS},
    {"contribution", "UPDATE contributions SET sha256=?1, size=?2 WHERE task=2", ENDS},
    {"folded contribution",
     "INSERT INTO contributions SELECT 2, 1, module, 0, ?1, ?2, 0, 8, 1, 1, 0, 0 FROM "
     "contributions",
     ENDS},
    {"grid", "INSERT INTO grids VALUES(21, 1, 1, 4, 2, ?1, ?2, 0, 0, NULL)", STAYS},
    {"picture",
     "INSERT INTO tasks SELECT 21, 1, 5, 3, 1, 0, 0, 0, 1, 0, 0, '', 0, NULL, draw, NULL, ?1, ?2,"
     " 0, 0, NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL, 0, NULL, 0, NULL, NULL, 0, 0 FROM tasks"
     " WHERE id=2",
     STAYS},
    {"velocity",
     "INSERT INTO tasks SELECT 22, 1, 11, 3, 1, 0, 0, 0, 1, 0, 0, '', 0, NULL, draw, NULL, ?1, ?2,"
     " 0, 0, NULL, NULL, NULL, 0, 0, 0, 0, 21, NULL, 0, NULL, 0, NULL, NULL, 0, 0 FROM tasks"
     " WHERE id=2",
     STAYS},
    {"input", "UPDATE tasks SET input=?1, input_size=?2 WHERE id=22", STAYS},
};

#define COLUMNS (sizeof(columns) / sizeof(columns[0]))

static void run_sql(sqlite3 *db, const char *sql, const struct blob_ref *b, const char *text)
{
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    if (b != NULL) {
        (void)sqlite3_bind_blob(q, 1, b->sha256, 32, SQLITE_STATIC);
        (void)sqlite3_bind_int64(q, 2, (int64_t)b->size);
    } else {
        (void)sqlite3_bind_text(q, 1, text, -1, SQLITE_STATIC);
    }
    assert_int_equal(sqlite3_step(q), SQLITE_DONE);
    assert_true(sqlite3_changes(db) > 0);
    sqlite3_finalize(q);
}

/* A job amid its first round, one phase reported; then the coordinator is away. */
static void amid_a_round(struct rig *r)
{
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(submit_spec(r, running), 1);
    do_init(r, a);
    assert_int_equal(assign(r, a, TASK_TRAIN)->id, 2);
    finish_train(r, a);
    assign(r, a, TASK_TRAIN);
    loop_turn(r->loop, false);
}

static void grow_old(struct rig *r, const struct blob_ref *b)
{
    const struct timespec old[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = time(NULL) - 2 * 86400}};
    struct blob_id id;
    char path[4096];
    memcpy(id.sha256, b->sha256, 32);
    assert_int_equal(blob_file(r->co->blobs, &id, path, sizeof(path)), 0);
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
}

/* The coordinator comes back to a job with a blob in every column. */
static void fill(struct rig *r, const char *text, bool done, struct blob_ref refs[COLUMNS],
                 struct blob_ref *ret_best)
{
    char *db_path = fx_path(&r->f, "coordinator.db");
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    amid_a_round(r);
    for (size_t i = 0; i < COLUMNS; i++)
        refs[i] = put_text(r, columns[i].name);
    *ret_best = put_text(r, "best");
    stop(r);
    assert_int_equal(sqlite3_open(db_path, &db), SQLITE_OK);
    for (size_t i = 0; i < COLUMNS; i++)
        run_sql(db, columns[i].sql, &refs[i], NULL);
    run_sql(db, "UPDATE specs SET yaml=?1", NULL, text);
    if (done)
        run_sql(db, "UPDATE jobs SET state=6, reason=?1, ended_unix_ms=1000", NULL, "");
    const struct best_module best = {1, *ret_best};
    assert_int_equal(sqlite3_prepare_v2(db, "UPDATE paths SET best=?1", -1, &q, NULL), SQLITE_OK);
    (void)sqlite3_bind_blob(q, 1, &best, sizeof(best), SQLITE_STATIC);
    assert_int_equal(sqlite3_step(q), SQLITE_DONE);
    sqlite3_finalize(q);
    sqlite3_close(db);
    mem_free(db_path);
    start(r);
    loop_turn(r->loop, false);
}

static bool has(struct rig *r, const struct blob_ref *b)
{
    struct blob_id id;
    memcpy(id.sha256, b->sha256, 32);
    return blobstore_has(r->co->blobs, &id, NULL);
}

static void swept(struct rig *r)
{
    uint64_t until = clock_now_ms() + DEADLINE_MS;
    for (; r->co->sweeping || r->co->turn_scheduled || r->co->writing; loop_turn(r->loop, true))
        assert_true(clock_now_ms() < until);
}

/* Sweeps, and says in kept[] which columns' blobs are still there. */
static void sweep(struct rig *r, const char *text, bool done, bool kept[COLUMNS])
{
    struct blob_ref refs[COLUMNS], best;
    fill(r, text, done, refs, &best);
    struct blob_ref orphan = put_text(r, "nobody's");
    for (size_t i = 0; i < COLUMNS; i++)
        grow_old(r, &refs[i]);
    grow_old(r, &best);
    grow_old(r, &orphan);
    gc_sweep(r->co);
    swept(r);
    for (size_t i = 0; i < COLUMNS; i++)
        kept[i] = has(r, &refs[i]);
    assert_true(has(r, &best));
    assert_false(has(r, &orphan));
}

static void check_sweep(struct rig *r, const char *text, bool done)
{
    bool kept[COLUMNS];
    unsigned wrong = 0;
    sweep(r, text, done, kept);
    for (size_t i = 0; i < COLUMNS; i++) {
        bool want =
            !done || columns[i].until == STAYS || (columns[i].until == DOUBT && text == unread);
        if (kept[i] != want)
            print_message("%s: %s\n", columns[i].name,
                          kept[i] ? "kept, and nobody needs it" : "deleted, and it is needed");
        wrong += kept[i] != want;
    }
    assert_int_equal(wrong, 0);
}

static void test_running(void **state)
{
    check_sweep(*state, running, false);
}

static void test_ended(void **state)
{
    check_sweep(*state, running, true);
}

static void test_running_unread(void **state)
{
    check_sweep(*state, unread, false);
}

static void test_ended_unread(void **state)
{
    check_sweep(*state, unread, true);
}

/* What only a running job needs goes with its end, not with a sweep a day later; shards stay for
 * an hour. */
static void test_cancelled(void **state)
{
    struct rig *r = *state;
    struct blob_ref refs[COLUMNS], best;
    fill(r, running, false, refs, &best);
    assert_int_equal(view_job_cancel(r->co, 1, NULL), 0);
    uint64_t until = clock_now_ms() + DEADLINE_MS;
    for (size_t i = 1; i < COLUMNS; i++)
        for (; columns[i].until != STAYS && has(r, &refs[i]); loop_turn(r->loop, true))
            if (clock_now_ms() > until)
                fail_msg("%s: still there", columns[i].name);
    for (size_t i = 0; i < COLUMNS; i++)
        assert_true(has(r, &refs[i]) == (i == 0 || columns[i].until == STAYS));
    assert_true(has(r, &best));
}

static uint64_t rows_of_job(struct rig *r)
{
    static const char *const tables[] = {"jobs WHERE id",         "specs WHERE job",
                                         "classes WHERE job",     "shards WHERE job",
                                         "scores WHERE job",      "rows WHERE job",
                                         "ledgers WHERE job",     "modules WHERE job",
                                         "paths WHERE job",       "replicas WHERE job",
                                         "tasks WHERE job",       "rounds WHERE job",
                                         "grids WHERE job",       "encoder_files WHERE job",
                                         "bad_samples WHERE job", "metrics WHERE job",
                                         "versions WHERE 1",      "contributions WHERE 1",
                                         "snapshots WHERE 1"}; /* no other job has any */
    uint64_t n = 0;
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        sqlite3_stmt *q = NULL;
        char sql[80];
        (void)snprintf(sql, sizeof(sql), "SELECT count(*) FROM %s=1", tables[i]);
        assert_int_equal(store_select(r->co->store, sql, &q, NULL), 0);
        assert_int_equal(sqlite3_step(q), SQLITE_ROW);
        n += (uint64_t)sqlite3_column_int64(q, 0);
        sqlite3_finalize(q);
    }
    return n;
}

/* A job that is removed leaves no row and no file, except those that another job names; what was
 * uploaded goes with a sweep. */
static void check_removed(struct rig *r, const char *text)
{
    static const char *const uploaded[] = {"shard", "tokenizer", "warm start"};
    struct blob_ref refs[COLUMNS], best;
    struct view_removal was;
    struct err err = {0};
    char *state_file =
        fx_path(&r->f, "outer/1/7/target.1.safetensors"); /* an unread job keeps it */
    fill(r, text, true, refs, &best);
    assert_int_equal(file_mkdirs_for(state_file, 0700, NULL), 0);
    assert_int_equal(file_write_put(state_file, "x", 1, 0600, NULL), 0);
    struct job *other = state_job(&r->co->state, submit(r));
    for (size_t i = 0; i < COLUMNS; i++)
        if (strcmp(columns[i].name, "ema") == 0)
            job_edit_module(other, &other->modules[0])->versions[0].full = refs[i];
    job_edit_module(other, &other->modules[0])->n_versions = 1;
    assert_true(rows_of_job(r) > 10);
    if (view_job_remove(r->co, 1, 0, false, &was, &err) < 0)
        fail_msg("%s", err.msg);
    swept(r);
    assert_null(state_job(&r->co->state, 1));
    assert_int_equal(rows_of_job(r), 1); /* the other's version */
    for (uint64_t until = clock_now_ms() + DEADLINE_MS; file_exists(state_file);)
        if (loop_turn(r->loop, false), clock_now_ms() > until)
            fail_msg("%s: still there", state_file);
    mem_free(state_file);
    bool left[COLUMNS];
    for (size_t i = 0; i < COLUMNS; i++) {
        left[i] = strcmp(columns[i].name, "ema") == 0;
        for (size_t k = 0; k < 3; k++)
            left[i] |= strcmp(columns[i].name, uploaded[k]) == 0;
        if (columns[i].until == STAYS && has(r, &refs[i]) != left[i])
            fail_msg("%s: %s", columns[i].name, left[i] ? "deleted" : "still there");
        if (has(r, &refs[i]))
            grow_old(r, &refs[i]);
    }
    assert_false(has(r, &best));
    gc_sweep(r->co);
    swept(r);
    for (size_t i = 0; i < COLUMNS; i++)
        assert_true(has(r, &refs[i]) == (strcmp(columns[i].name, "ema") == 0));
    stop(r);
    start(r);
    assert_null(state_job(&r->co->state, 1));
}

static void test_removed(void **state)
{
    check_removed(*state, running);
}

static void test_removed_unread(void **state)
{
    check_removed(*state, unread);
}

/* An orphan that gets a name, or that somebody is told is here, while the sweep is on its way. */
static void test_looks_again(void **state)
{
    struct rig *r = *state;
    struct job *j = state_job(&r->co->state, submit(r));
    struct blob_ref weights = put_text(r, "weights"), other = put_text(r, "nobody's");
    grow_old(r, &weights);
    grow_old(r, &other);
    gc_sweep(r->co);
    j->warm_start = weights;
    swept(r);
    assert_true(has(r, &weights));
    assert_false(has(r, &other));
    other = put_text(r, "nobody's");
    gc_drop(r->co, &other);
    assert_int_equal(view_upload_expect(r->co, other.sha256, other.size, NULL), 0);
    core_touch(r->co);
    swept(r);
    assert_true(has(r, &other));
    gc_drop(r->co, &other);
    core_touch(r->co);
    swept(r);
    assert_false(has(r, &other));
}

/* The clock steps by two days: what came a moment ago is no older for that. */
static void test_clock_steps(void **state)
{
    struct rig *r = *state;
    struct blob_ref b = put_text(r, "on its way");
    grow_old(r, &b);
    r->co->started_unix_ms -= 2 * 86400 * 1000ll; /* it came at our start, then the step */
    gc_sweep(r->co);
    swept(r);
    assert_true(has(r, &b));
    r->co->started_unix_ms += 4 * 86400 * 1000ll; /* back by two days: the clock counts */
    gc_sweep(r->co);
    swept(r);
    assert_false(has(r, &b));
}

/* Is what came of an upload still there, this long after its last byte and a sweep? */
static bool stays_after(struct rig *r, int64_t s)
{
    struct blob_id id = {{7}};
    struct blob_writer *w;
    char hex[BLOB_HEX_MAX];
    const struct timespec old[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = time(NULL) - s}};
    assert_int_equal(r->co->blobs->ops->put(r->co->blobs, &id, 1, 100, &w, NULL), 0);
    assert_int_equal(w->ops->write(w, "part", 4, NULL), 0);
    w->ops->abort(w, true);
    blob_id_hex(&id, hex);
    char *part = str_printf("%s/blobs/tmp/%s-1.part", r->f.dir, hex);
    assert_int_equal(utimensat(AT_FDCWD, part, old, 0), 0);
    gc_sweep(r->co);
    swept(r);
    const bool stays = file_exists(part);
    mem_free(part);
    return stays;
}

/* An upload that was given up goes without a restart, when its ticket is over: each phase may give
 * one up, so in a day they would fill a disk. */
static void test_uploads_given_up(void **state)
{
    struct rig *r = *state;
    assert_true(stays_after(r, TICKET_LIFE_S / 2)); /* it may be continued */
    assert_false(stays_after(r, 2 * TICKET_LIFE_S));
}

#define LIVE(test) cmocka_unit_test_setup_teardown(test, begin, end)

static bool here(struct rig *r, const struct blob_ref *b)
{
    struct blob_id id;
    uint64_t size;
    memcpy(id.sha256, b->sha256, 32);
    return blobstore_has(r->co->blobs, &id, &size);
}

/* What the commit that is under way names stays, also when the state has gone on; what is promised
 * meanwhile, too. */
static void test_under_way(void **state)
{
    struct rig *r = *state;
    struct coordinator *co = r->co;
    struct job *j = state_job(&co->state, submit(r));
    settle(r);
    struct blob_ref named = put_text(r, "named"), promised = put_text(r, "promised"),
                    garbage = put_text(r, "garbage");
    job_edit_replica(j, 0, 1)->moments = named;
    gc_drop(co, &named);
    gc_drop(co, &promised);
    gc_drop(co, &garbage);
    gc_drop(co, &garbage);
    slow_disk_stand(true);
    core_touch(co);
    while (!co->writing)
        loop_turn(r->loop, false);
    slow_disk_wait();
    job_edit_replica(j, 0, 1)->moments = (struct blob_ref){0};
    gc_keep(co, promised.sha256);
    assert_true(here(r, &garbage));
    slow_disk_stand(false);
    settle(r);
    assert_false(here(r, &garbage));
    assert_true(here(r, &named) && here(r, &promised));
    gc_drop(co, &named); /* now no commit names it */
    core_touch(co);
    settle(r);
    assert_false(here(r, &named));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        LIVE(test_running),          LIVE(test_ended),       LIVE(test_running_unread),
        LIVE(test_ended_unread),     LIVE(test_removed),     LIVE(test_removed_unread),
        LIVE(test_cancelled),        LIVE(test_looks_again), LIVE(test_clock_steps),
        LIVE(test_uploads_given_up), LIVE(test_under_way),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
