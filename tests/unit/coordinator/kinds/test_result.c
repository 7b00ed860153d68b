/* What is believed of a result: files that are here, as long as they are said to be, and figures
 * that are numbers. */
#include "tests/unit/coordinator/kinds/by_hand.h"

#include "coordinator/kinds/result.h"

static const char images[] = "name: q\ndata: {path: x, image_size: 16}\n"
                             "model: {type: dit, patch: 4, dim: 32, depth: 4, heads: 2}\n"
                             "train: {batch: 6}\nrecipe: {name: diloco, replicas: 2}\n"
                             "outer: {rounds: 9, steps: 2}\n";
static const char texts[] = "name: q\ndata: {path: x}\n"
                            "model: {type: llama, dim: 32, depth: 4, heads: 2, context: 64}\n"
                            "train: {batch: 6}\nrecipe: {name: diloco, replicas: 2}\n"
                            "outer: {rounds: 9, steps: 2}\n";

static void blob_is(struct rig *r, const Skerry__V1__Blob *b, int code, const char *why)
{
    struct blob_ref ref = ref_of(7), before = ref;
    struct err err = {0};
    const int rc = result_blob(r->co, b, "the file", &ref, &err);
    if (rc != code || !strstr(err.msg, why))
        fail_msg("%d '%s', expected %d '%s'", rc, err.msg, code, why);
    if (code < 0)
        assert_memory_equal(&ref, &before, sizeof(ref));
    else
        assert_true(ref.size == b->size && memcmp(ref.sha256, b->sha256.data, 32) == 0);
}

static void test_blob(void **state)
{
    struct rig *r = *state;
    struct blob_ref ref = put_text(r, "a file");
    uint8_t other[32] = {9};
    Skerry__V1__Blob b = SKERRY__V1__BLOB__INIT;
    blob_is(r, NULL, -EINVAL, "the file is missing or has no hash or size");
    b.size = ref.size;
    blob_is(r, &b, -EINVAL, "the file is missing");
    b.sha256 = (ProtobufCBinaryData){31, ref.sha256};
    blob_is(r, &b, -EINVAL, "the file is missing");
    b.sha256.len = 32;
    b.size = 0;
    blob_is(r, &b, -EINVAL, "the file is missing");
    b.size = ref.size + 1;
    blob_is(r, &b, -EINVAL, "the file has 6 bytes in the store, the report says 7");
    b.size = ref.size;
    blob_is(r, &b, 0, "");
    b.sha256.data = other;
    blob_is(r, &b, -ERR_NOTFOUND, "the file has not been uploaded");
}

static void test_shard(void **state)
{
    static const struct {
        uint32_t samples;
        uint64_t tokens;
        bool image, text; /* taken as a shard of these */
    } cases[] = {
        {0, 0, false, false},
        {1, 0, true, false},
        {SHARD_SAMPLES_MAX, SHARD_SAMPLES_MAX, true, true},
        {SHARD_SAMPLES_MAX + 1, SHARD_SAMPLES_MAX + 1, false, false},
        {5, 4, true, false},
        {5, SHARD_TOKENS_MAX, true, true},
        {5, SHARD_TOKENS_MAX + 1, false, false},
    };
    struct rig *r = *state;
    const struct job *jobs[] = {add_job(r, images), add_job(r, texts)};
    struct blob_ref ref = put_text(r, "a shard");
    Skerry__V1__Blob b = SKERRY__V1__BLOB__INIT;
    b.sha256 = (ProtobufCBinaryData){32, ref.sha256};
    b.size = ref.size;
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        struct shard_rec made = {0};
        Skerry__V1__ShardInfo s = SKERRY__V1__SHARD_INFO__INIT;
        const bool want = i % 2 ? cases[i / 2].text : cases[i / 2].image;
        s.blob = &b;
        s.samples = cases[i / 2].samples;
        s.tokens = cases[i / 2].tokens;
        s.partition = 3;
        s.holdout = true;
        const int rc = result_shard(r->co, jobs[i % 2], &s, &made, NULL);
        if (rc != (want ? 0 : -EINVAL))
            fail_msg("case %zu: %d", i, rc);
        if (!want)
            continue;
        assert_true(made.blob.size == ref.size && made.samples == s.samples);
        assert_true(made.tokens == s.tokens && made.partition == 3 && made.holdout);
    }
}

/* ---- rows ---- */

static void bring(struct rig *r, struct job *j, const struct task *t, const char *name,
                  double value)
{
    Skerry__V1__Row row = SKERRY__V1__ROW__INIT, *rows[] = {&row};
    Skerry__V1__ReportRequest m = SKERRY__V1__REPORT_REQUEST__INIT;
    row.name = (char *)(uintptr_t)name;
    row.unit = (char *)"a unit of seventeen bytes";
    row.value = value;
    m.rows = rows;
    m.n_rows = 1;
    result_rows(r->co, j, t, &m);
}

/* An evaluation's figures are of its path, others of the job; a newer one takes the place of the
 * one before; what has no name or is no number is no figure. */
static void test_rows(void **state)
{
    struct rig *r = *state;
    struct job *j = add_job(r, images);
    struct task *t = add_task(r, j, TASK_EVAL), *c = add_task(r, j, TASK_CLUSTER);
    char longest[ROW_NAME_MAX + 9];
    t->draw.version = 4;
    bring(r, j, t, "", 1);
    bring(r, j, t, "loss", NAN);
    bring(r, j, t, "loss", INFINITY);
    assert_int_equal(j->n_rows, 0);
    bring(r, j, t, "loss", 1);
    bring(r, j, t, "loss", 2);
    assert_int_equal(j->n_rows, 1);
    assert_true(j->rows[0].kind == TASK_EVAL && j->rows[0].path == 0 && j->rows[0].round == 4);
    assert_true(j->rows[0].value == 2 && j->rows[0].at_unix_ms > 0);
    assert_string_equal(j->rows[0].unit, "a unit of sevent");
    t->draw.mixture = true;
    bring(r, j, t, "loss", 3);
    bring(r, j, c, "loss", 4);
    assert_int_equal(j->n_rows, 3);
    assert_true(j->rows[1].path == UINT32_MAX && j->rows[2].path == UINT32_MAX);
    assert_true(j->rows[1].kind == TASK_EVAL && j->rows[2].kind == TASK_CLUSTER);
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    bring(r, j, c, longest, 5);
    assert_int_equal(strlen(j->rows[3].name), ROW_NAME_MAX - 1);
}

/* A report has 256 figures at most. */
static void test_many_rows(void **state)
{
    struct rig *r = *state;
    struct job *j = add_job(r, images);
    Skerry__V1__Row row[257], *rows[257];
    char names[257][8];
    Skerry__V1__ReportRequest m = SKERRY__V1__REPORT_REQUEST__INIT;
    for (int i = 0; i < 257; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "n%d", i);
        skerry__v1__row__init(&row[i]);
        row[i].name = names[i];
        rows[i] = &row[i];
    }
    m.rows = rows;
    m.n_rows = 257;
    result_rows(r->co, j, add_task(r, j, TASK_CLUSTER), &m);
    assert_int_equal(j->n_rows, 256);
    assert_string_equal(j->rows[255].name, "n255");
}

int main(void)
{
#define LIVE(f) cmocka_unit_test_setup_teardown(f, begin_by_hand, end_by_hand)
    const struct CMUnitTest tests[] = {
        LIVE(test_blob),
        LIVE(test_shard),
        LIVE(test_rows),
        LIVE(test_many_rows),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
