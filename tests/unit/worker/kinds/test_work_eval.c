/* EVAL: what is counted of held-out texts and images, and when there is no loss. */
#include "tests/unit/worker/partition_task.h"

#define EVAL SKERRY__V1__TASK_KIND__TASK_KIND_EVAL

static struct work *eval(const char *spec, const struct test_shard *shards, size_t n,
                         uint32_t start, uint32_t count, uint32_t skip, uint64_t most)
{
    struct order o;
    Skerry__V1__EvalTask part = SKERRY__V1__EVAL_TASK__INIT;
    order_init(&o, EVAL, spec, shards, n);
    o.range[0].start = start;
    o.range[0].count = count;
    part.ranges = o.ranges;
    part.n_ranges = n;
    part.skip = skip;
    part.samples = (uint32_t)most;
    o.task.eval = &part;
    o.task.n_modules = 1;
    return run(&o);
}

/* Tokens of shard 0 from `skip` on, which are predicted; the first of a text is not. */
static uint64_t targets(uint32_t skip)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < N; i++) {
        uint32_t ids[CONTEXT], n = text_of(0, i, ids, NULL);
        const uint32_t from = skip < 1 ? 1 : skip;
        sum += n > from ? n - from : 0;
    }
    return sum;
}

/* An untrained model: every token about equally likely; a token is a byte here. */
static void texts_count_tokens_and_bytes(void **state)
{
    (void)state;
    for (uint32_t skip = 0; skip <= 32; skip += 32) {
        struct work *w = eval(TEXTS, texts, 1, 0, N, skip, 0);
        const struct work_result *r = &w->result;
        assert_int_equal(r->samples, N);
        assert_int_equal(r->units, targets(skip));
        assert_int_equal(r->bytes, r->units);
        assert_true(fabs(r->loss_sum / (double)r->units - log(257)) < 0.2);
        assert_true(r->loss_mean == (float)(r->loss_sum / (double)r->units));
        assert_int_equal(r->n_rows, 0);
        work_free(w);
    }
    assert_true(targets(32) < targets(0));
}

/* Texts that end within what is not judged: samples, but no loss. */
static void nothing_is_judged(void **state)
{
    (void)state;
    struct work *w = eval(TEXTS, texts, 1, 0, N, CONTEXT, 0);
    assert_int_equal(w->result.samples, N);
    assert_int_equal(w->result.units, 0);
    assert_int_equal(w->result.bytes, 0);
    assert_true(isnan(w->result.loss_mean));
    work_free(w);
}

/* Sample 3 of shard 1 is no image: it is told of, the others are judged. */
static void images_leave_out_the_bad(void **state)
{
    (void)state;
    struct work *w = eval(IMAGES, images, 2, 0, N, 0, 0);
    assert_int_equal(w->result.samples, 2 * N - 1);
    assert_int_equal(w->result.units, 2 * N - 1);
    assert_int_equal(w->result.bytes, 0);
    assert_int_equal(w->result.bad_count, 1);
    assert_true(w->result.loss_mean > 0);
    struct work *again = eval(IMAGES, images, 2, 0, N, 0, 0);
    assert_true(w->result.loss_sum == again->result.loss_sum); /* fixed draws */
    work_free(again);
    work_free(w);
    w = eval(IMAGES, images, 2, 0, N, 0, 7);
    assert_int_equal(w->result.samples, 7);
    work_free(w);
}

/* A model that the first device cannot hold is judged in parts, and the same. */
static void parts_judge_alike(void **state)
{
    const char *const specs[] = {IMAGES, TEXTS};
    const struct test_shard *shards[] = {images, texts};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct island *was;
        struct work *whole = eval(specs[i], shards[i], 1, 0, N, 0, 0);
        two_tight_devices(&was);
        struct work *parts = eval(specs[i], shards[i], 1, 0, N, 0, 0);
        assert_true(on_second > 0);
        assert_int_equal(parts->result.units, whole->result.units);
        assert_true(parts->result.loss_sum == whole->result.loss_sum);
        enough_room(was);
        work_free(parts);
        work_free(whole);
    }
}

static void no_sample_can_be_read(void **state)
{
    (void)state;
    struct order o;
    Skerry__V1__EvalTask part = SKERRY__V1__EVAL_TASK__INIT;
    order_init(&o, EVAL, IMAGES, &images[1], 1);
    o.range[0].start = 3;
    o.range[0].count = 1;
    part.ranges = o.ranges;
    part.n_ranges = 1;
    o.task.eval = &part;
    o.task.n_modules = 1;
    fails(&o, -ERR_CONFIG, "none of the 1 images");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_count_tokens_and_bytes), cmocka_unit_test(nothing_is_judged),
        cmocka_unit_test(images_leave_out_the_bad),     cmocka_unit_test(parts_judge_alike),
        cmocka_unit_test(no_sample_can_be_read),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
