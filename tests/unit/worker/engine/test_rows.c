/* The samples of a task in their order, and the sizes in which FEATURE and SCORE take them. */
#include "tests/unit/common/base/util.h"

#include <errno.h>

#include "common/job/job.h"
#include "worker/data/data.h"
#include "worker/engine/rows.h"

#define IMAGES                                                                                     \
    "name: tiny\ndata: {path: x, image_size: 8}\n"                                                 \
    "model: {type: dit, patch: 2, dim: 16, depth: 1, heads: 2}\n"                                  \
    "train: {batch: 4, lr: 1e-3}\nouter: {rounds: 3, steps: 6}\n"
#define TEXTS                                                                                      \
    "name: tiny\ndata: {path: x}\n"                                                                \
    "model: {type: llama, dim: 16, depth: 1, heads: 2, context: 64}\n"                             \
    "train: {batch: 4, lr: 1e-3}\nouter: {rounds: 3, steps: 6}\n"
#define TRAINER                                                                                    \
    "name: tiny\ndata: {kind: images, path: x}\n"                                                  \
    "model: {type: external, warm_start: y}\ntrainer: {command: z}\n"                              \
    "train: {batch: 4}\nouter: {rounds: 3, steps: 6}\n"

static void work_init(struct work *w, const char *spec)
{
    memset(w, 0, sizeof(*w));
    OK(job_parse(spec, strlen(spec), "the job", &w->spec, err));
}

/* Samples 5..7 of shard 0 and 0..1 of shard 1; shard 2 gives none. */
static void in_the_order_of_the_ranges(void **state)
{
    (void)state;
    static const uint32_t start[] = {5, 0, 9}, count[] = {3, 2, 0};
    uint8_t sha256[3][32] = {{1}, {2}, {3}};
    Skerry__V1__Blob blob[3];
    Skerry__V1__Range range[3], *ranges[3];
    struct rows r;
    uint64_t at = 99;
    for (int i = 0; i < 3; i++) {
        skerry__v1__blob__init(&blob[i]);
        skerry__v1__range__init(&range[i]);
        blob[i].sha256 = (ProtobufCBinaryData){32, sha256[i]};
        range[i].shard = &blob[i];
        range[i].start = start[i];
        range[i].count = count[i];
        ranges[i] = &range[i];
    }
    OK(rows_open(&r, NULL, ranges, 3, err));
    assert_int_equal(r.n, 5);
    OK(rows_find(&r, data_sample_id(sha256[0], 5), &at, err));
    assert_int_equal(at, 0);
    OK(rows_find(&r, data_sample_id(sha256[0], 7), &at, err)); /* 6 was bad */
    assert_int_equal(at, 2);
    OK(rows_find(&r, data_sample_id(sha256[1], 1), &at, err));
    assert_int_equal(at, 4);
    FAILS(rows_find(&r, data_sample_id(sha256[1], 1), &at, err),
          "a sample that the task does not name"); /* no sample comes twice */
    rows_close(&r);
    rows_close(&r);

    /* A batch may be in another order. */
    OK(rows_open(&r, NULL, ranges, 3, err));
    static const uint32_t shard[] = {1, 0, 1, 0}, index[] = {0, 6, 1, 5}, row[] = {3, 1, 4, 0};
    for (int i = 0; i < 4; i++) {
        OK(rows_find(&r, data_sample_id(sha256[shard[i]], index[i]), &at, err));
        assert_int_equal(at, row[i]);
    }
    rows_close(&r);

    at = 4;
    OK(rows_open(&r, NULL, ranges, 3, err));
    struct err e = {0};
    assert_int_equal(rows_find(&r, data_sample_id(sha256[0], 4), &at, &e), -EINVAL);
    assert_int_equal(at, 4); /* untouched */
    rows_close(&r);
}

static void samples_of_a_call(void **state)
{
    (void)state;
    static const struct {
        int context;
        unsigned rows;
    } cases[] = {{1, 64}, {128, 64}, {129, 63}, {1024, 8}, {4096, 2}, {8192, 1}, {8193, 1}};
    struct work w;
    work_init(&w, IMAGES);
    assert_false(rows_are_texts(&w));
    assert_int_equal(rows_of_call(&w), 64);
    job_release(&w.spec);
    work_init(&w, TEXTS);
    assert_true(rows_are_texts(&w));
    for (size_t i = 0; i < COUNT(cases); i++) {
        w.spec.model.context = cases[i].context;
        assert_int_equal(rows_of_call(&w), cases[i].rows);
    }
    job_release(&w.spec);
}

static void runs_of_tokens(void **state)
{
    (void)state;
    struct work w;
    work_init(&w, TEXTS);
    assert_int_equal(rows_columns(&w, 0), 0);
    assert_int_equal(rows_columns(&w, 1), 64);
    assert_int_equal(rows_columns(&w, 16), 4);
    assert_int_equal(rows_columns(&w, 63), 2);
    assert_int_equal(rows_columns(&w, 64), 1);
    assert_int_equal(rows_columns(&w, 1000), 1);
    job_release(&w.spec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_the_order_of_the_ranges),
        cmocka_unit_test(samples_of_a_call),
        cmocka_unit_test(runs_of_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
