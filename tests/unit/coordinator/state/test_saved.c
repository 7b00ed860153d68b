/* Jobs on record that a newer rule refuses: the coordinator starts, says which key, and keeps
 * what they have. */
#include "tests/unit/coordinator/rig.h"

#include <sqlite3.h>

#include "coordinator/state/capture.h"

/* Two jobs, the first amid a phase; then the first one's text becomes `with`. */
static struct job *resubmitted(struct rig *r, const char *with)
{
    struct fake *a = &r->workers[0];
    char *db_path = fx_path(&r->f, "coordinator.db");
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    uint64_t first = submit(r);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    finish_train(r, a);
    assign(r, a, TASK_TRAIN); /* never reported */
    assert_int_equal(submit(r), first + 1);
    loop_turn(r->loop, false);
    stop(r);
    assert_int_equal(sqlite3_open(db_path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "UPDATE specs SET yaml=?1 WHERE job=?2", -1, &q, NULL),
                     SQLITE_OK);
    (void)sqlite3_bind_text(q, 1, with, -1, SQLITE_STATIC);
    (void)sqlite3_bind_int64(q, 2, (int64_t)first);
    assert_int_equal(sqlite3_step(q), SQLITE_DONE);
    sqlite3_finalize(q);
    assert_int_equal(sqlite3_exec(db, "UPDATE jobs SET state=4 WHERE id=1", NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    mem_free(db_path);
    start(r);
    struct job *j = state_job(&r->co->state, first), *other = state_job(&r->co->state, first + 1);
    assert_non_null(j);
    assert_null(other->refused);
    assert_false(job_is_ended(other));
    return j;
}

static void says(const struct job *j, const char *what)
{
    assert_int_equal(j->state, JOB_FAILED);
    if (strstr(j->reason, what) == NULL || strstr(j->reason, "no longer accepts that") == NULL ||
        strstr(j->reason, "submit the job anew") == NULL)
        fail_msg("'%s' does not say '%s'", j->reason, what);
}

static void not_drawn_from(struct rig *r, const struct job *j)
{
    const struct draw_request ask = {.guidance = NAN, .temperature = NAN};
    struct err err = {0};
    uint64_t task = 0;
    assert_int_equal(view_sample_request(r->co, j->id, &ask, &task, &err), -ERR_STALE);
    assert_non_null(strstr(err.msg, "no longer accepts"));
}

/* The worker's lease is gone with its job, and it is given the other one's work. */
static void other_goes_on(struct rig *r, const struct job *refused)
{
    struct fake *b = &r->workers[1];
    struct view_job v;
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    assert_int_equal(assign(r, b, TASK_INIT)->job_id, refused->id + 1);
    assert_int_equal(view_job(r->co, refused->id, &v, NULL), 0);
    assert_string_equal(v.state, "failed");
    assert_string_equal(v.name, "fake");
}

#define HEAD                                                                                       \
    "name: fake\nseed: 3\ndata: {path: x, image_size: 16}\n"                                       \
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
#define REST "recipe: {name: diloco, replicas: 2}\nsample: {count: 4}\n"

/* Keys that do not say what the model is. */
static void test_refused(void **state)
{
    static const struct {
        const char *yaml, *says;
    } cases[] = {
        {HEAD "train: {batch: 4}\nouter: {rounds: 2, steps: 2, delay: 5}\n" REST,
         "job.yaml:6: outer.delay is 5"},
        {HEAD "train: {batch: 4, lr: 100}\nouter: {rounds: 2, steps: 2}\n" REST,
         "job.yaml:5: train.lr is '100'"},
        {HEAD "train: {batch: 4, gone: 1}\nouter: {rounds: 2, steps: 2}\n" REST,
         "job.yaml:5: unknown key 'gone'"},
        {HEAD "train: {batch: 4, accumulate: 3}\nouter: {rounds: 2, steps: 2}\n" REST,
         "train.accumulate is 3"},
    };
    struct rig *r = *state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct job *j = resubmitted(r, cases[i].yaml);
        says(j, cases[i].says);
        assert_false(j->unread);
        assert_int_equal(j->modules[0].n_versions, 1); /* to be exported */
        assert_non_null(strstr(j->reason, "can still be exported"));
        for (size_t t = 0; t < r->co->state.n_tasks; t++)
            assert_false(r->co->state.tasks[t]->job_id == j->id &&
                         task_is_open(r->co->state.tasks[t]));
        not_drawn_from(r, j);
        other_goes_on(r, j);
        assert_int_equal(end(state), 0);
        assert_int_equal(begin(state), 0);
    }
}

static bool named(const struct job *j, const struct blob_ref *b)
{
    for (size_t i = 0; i < j->n_unread_blobs; i++)
        if (memcmp(j->unread_blobs[i].blob.sha256, b->sha256, 32) == 0)
            return true;
    return false;
}

static int64_t count(struct rig *r, const char *sql)
{
    sqlite3_stmt *q = NULL;
    assert_int_equal(store_select(r->co->store, sql, &q, NULL), 0);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    int64_t n = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return n;
}

/* A file of the first job's outer optimiser, below the data directory. */
#define STATE "outer/1/7/target.3.safetensors"

static bool has_state(const char *dir)
{
    char *path = file_join(dir, STATE);
    const bool has = file_exists(path);
    mem_free(path);
    return has;
}

static void captures_state(const struct rig *r)
{
    const struct coordinator_options o = {.data_dir = r->f.dir};
    struct capture c;
    struct err err = {0};
    if (capture_take(&o, 0, &c, &err) < 0)
        fail_msg("%s", err.msg);
    assert_true(has_state(c.dir));
    assert_string_equal(c.manifest.files[c.manifest.n - 1].path, STATE);
    capture_release(&c);
}

/* It is not known what the model is: nothing is loaded, nothing is lost. */
static void test_unread(void **state)
{
    static const struct {
        const char *yaml, *says;
    } cases[] = {
        {HEAD "train: {batch: 4}\nouter: {rounds: 2, steps: 2}\n"
              "recipe: {name: gone, replicas: 2}\nsample: {count: 4}\n",
         "recipe.name is 'gone'"},
        {HEAD "train: {batch: 4}\nouter: {rounds: 2, steps: 2}\n"
              "recipe: {name: diloco, replicas: 3}\ntrane: {}\n",
         "unknown key 'trane'"},
        {"name: fake\nmodel: {depth: 9999}\n", "model.depth is '9999'"},
        {"name: fake\n\ttabs: are not YAML", "job.yaml:2"},
    };
    struct rig *r = *state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct blob_ref full = put_file(r, r->f.full), shard = put_text(r, "shard a");
        char *state_file = fx_path(&r->f, STATE);
        assert_int_equal(file_mkdirs_for(state_file, 0700, NULL), 0);
        assert_int_equal(file_write_put(state_file, "x", 1, 0600, NULL), 0);
        mem_free(state_file);
        const struct job *j = resubmitted(r, cases[i].yaml);
        struct view_job v;
        assert_true(j->unread);
        says(j, cases[i].says);
        assert_non_null(strstr(j->reason, "its files are kept"));
        not_drawn_from(r, j);
        if (i < 3)
            other_goes_on(r, j);
        assert_int_equal(view_job(r->co, j->id, &v, NULL), 0);
        assert_string_equal(v.job->spec.recipe.name, i == 0 ? "gone" : "diloco");
        assert_true(named(j, &full) && named(j, &shard));
        assert_int_equal(count(r, "SELECT state FROM jobs WHERE id=1"), JOB_RUNNING);
        assert_int_equal(count(r, "SELECT count(*) FROM versions"), 1);
        assert_int_equal(count(r, "SELECT count(*) FROM modules WHERE job=1"), 1);
        captures_state(r);
        settle(r);
        stop(r); /* and once more, on what was written */
        start(r);
        says(state_job(&r->co->state, 1), cases[i].says);
        assert_true(has_state(r->f.dir));
        assert_int_equal(end(state), 0);
        assert_int_equal(begin(state), 0);
    }
}

/* Its job file is lost: no release has refused it. */
static void test_lost_file(void **state)
{
    struct rig *r = *state;
    const struct job *j = resubmitted(r, "");
    struct view_job v;
    assert_true(j->unread);
    assert_int_equal(j->state, JOB_FAILED);
    assert_non_null(strstr(j->reason, "its job file is not in the database: put a copy"));
    assert_null(strstr(j->reason, "no longer accepts"));
    assert_int_equal(view_job(r->co, j->id, &v, NULL), 0);
    assert_int_equal(v.rounds, 0);
}

/* What is without effect is refused in a new job alone. */
static void test_scope(void **state)
{
    struct rig *r = *state;
    static const char text[] = HEAD "train: {batch: 4, final_lr: 0.1}\n"
                                    "outer: {rounds: 2, steps: 2, nesterov_delay: 3}\n" REST;
    struct err err = {0};
    uint64_t id = 0;
    assert_int_equal(try_submit(r, text, &id, &err), -ERR_CONFIG);
    const struct job *j = resubmitted(r, text);
    assert_null(j->refused);
    assert_int_equal(j->state, JOB_RUNNING);
}

#define LIVE(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {LIVE(test_refused), LIVE(test_unread), LIVE(test_lost_file),
                                       LIVE(test_scope)};
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
