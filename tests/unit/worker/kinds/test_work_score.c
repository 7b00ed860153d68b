/* SCORE: how well a path predicts texts. */
#include "tests/unit/worker/partition_task.h"

/* An untrained model: every token about equally likely; every counted token has its column. */
static void scores_of_texts(void **state)
{
    for (uint32_t chunk = 0; chunk <= CHUNK; chunk += CHUNK) {
        struct order o;
        struct scores s;
        order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_SCORE, TEXTS, texts, 1);
        o.task.n_modules = 1;
        o.score.chunk = chunk;
        o.score.skip = 32;
        struct work *w = run(&o);
        OK(scores_read(output_of(w, WORK_RESULT)->path, N, &s, err));
        assert_int_equal(s.columns, chunk ? COLUMNS : 1);
        for (uint32_t i = 0; i < N; i++) {
            uint32_t ids[CONTEXT], n = text_of(0, i, ids, NULL);
            int32_t counted = 0;
            double logp = 0;
            for (uint32_t c = 0; c < s.columns; c++) {
                int32_t tokens = s.tokens[i * s.columns + c];
                counted += tokens;
                logp += (double)s.logp[i * s.columns + c];
                int32_t from = c * CHUNK < 32 ? 32 : (int32_t)(c * CHUNK);
                int32_t end = (c + 1) * CHUNK < n ? (int32_t)((c + 1) * CHUNK) : (int32_t)n;
                if (chunk)
                    assert_int_equal(tokens, end > from ? end - from : 0);
            }
            assert_int_equal(counted, n > 32 ? n - 32 : 0);
            assert_int_equal(s.bytes[i], counted);
            assert_true(fabs(logp + counted * log(257)) < 0.2 * counted + 1e-9);
        }
        scores_release(&s);
        work_free(w);
    }
}

static void no_scores_of_images(void **state)
{
    struct order o;
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_SCORE, IMAGES, &images[1], 1);
    o.task.n_modules = 1;
    fails(&o, -EINVAL, "only texts are scored");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_of_texts),
        cmocka_unit_test(no_scores_of_images),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
