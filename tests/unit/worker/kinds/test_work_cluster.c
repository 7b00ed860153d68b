/* CLUSTER: by features, by scores, by chance; routing evaluated. */
#include "tests/unit/worker/partition_task.h"

static void clusters_by_topic(void **state)
{
    struct order o;
    cluster_order(&o, BY_NGRAMS);
    o.cluster.top = 2;
    struct work *w = run(&o);
    check_topics(w, 2, 0);
    assert_true(row_of(w, "largest partition over the mean") < 1.5);
    assert_true(row_of(w, "smallest partition") >= 1);
    struct partitioner *p = NULL;
    OK(partitioner_read(output_of(w, WORK_RESULT)->path, &p, err));
    assert_string_equal(p->feature, "ngrams");
    partitioner_free(p);
    work_free(w);
}

static void random_needs_no_features(void **state)
{
    struct order o;
    cluster_order(&o, TEXTS "partition: {method: random}\n");
    o.levels[0] = 2;
    struct work *w = run(&o);
    assert_true(w->result.sizes[0] + w->result.sizes[1] == (SHARDS - 1) * N);
    assert_true(w->result.sizes[0] > N / 2 && w->result.sizes[1] > N / 2);
    work_free(w);
}

/* Scores of two made-up paths: path 1 is good at topic 1, by 1 nat a token. */
static void give_scores(struct order *o, uint32_t n_columns)
{
    for (uint32_t p = 0; p < 2; p++)
        for (int i = 0; i < SHARDS; i++) {
            float logp[N * COLUMNS];
            int32_t tokens[N * COLUMNS], bytes[N];
            uint8_t sha[32];
            char name[32];
            for (uint32_t k = 0; k < N; k++) {
                bool good = topic[(uint32_t)i * N + k] == p;
                for (uint32_t c = 0; c < n_columns; c++) {
                    tokens[k * n_columns + c] = 5;
                    logp[k * n_columns + c] = good ? -5 : -10;
                }
                bytes[k] = 5 * (int32_t)n_columns;
            }
            snprintf(name, sizeof(name), "score-%u-%d-%u", p, i, n_columns);
            char *path = in(top, name);
            OK(scores_write(path, logp, tokens, bytes, N, n_columns, sha, NULL, err));
            o->scores[p * SHARDS + (uint32_t)i] = give(o, path, sha);
            mem_free(path);
        }
    o->cluster.n_scored = SHARDS;
    o->cluster.n_scores = 2 * SHARDS;
}

static void routes_by_scores(void **state)
{
    struct order o, e;
    cluster_order(&o, BY_NGRAMS);
    struct work *w = run(&o);
    const struct work_output *out = output_of(w, WORK_RESULT);
    give_scores(&o, 1);
    o.cluster.previous = give(&o, out->path, out->sha256);
    work_free(w);
    w = run(&o);
    check_topics(w, 1, 1);
    assert_true(row_of(w, "router's accuracy") > 0.97);
    assert_true(row_of(w, "router was fitted to") == (SHARDS - 1) * N);

    /* What this router would have done to the held-out texts: 1 nat a byte where it is right. */
    cluster_order(&e, BY_NGRAMS);
    give_scores(&e, COLUMNS);
    out = output_of(w, WORK_RESULT);
    e.cluster.previous = give(&e, out->path, out->sha256);
    e.cluster.evaluate = true;
    struct work *v = run(&e);
    assert_int_equal(v->result.n_outputs, 0);
    assert_true(fabs(row_of(v, "best path in hindsight") - 1 / log(2)) < 1e-6);
    assert_true(row_of(v, "routed to the best path") > 0.95);
    assert_true(row_of(v, "routed once") < 1.05 / log(2));
    assert_true(row_of(v, "routed every 16 tokens") < 1.1 / log(2));
    assert_true(row_of(v, "best single path") > 1.2 / log(2));
    assert_true(row_of(v, "chunks routed to the best path") > 0.9);
    work_free(v);
    work_free(w);
}

static void refuses(void **state)
{
    struct order o;
    cluster_order(&o, BY_NGRAMS);
    o.levels[0] = 60;
    o.task.partitions = 60;
    fails(&o, -ERR_CONFIG, "60 partitions of only 48 samples");
    o.levels[0] = o.task.partitions = 2;
    o.counts[0] = N - 1; /* another number of samples than the file has */
    fails(&o, -ERR_FORMAT, "ids");
    o.counts[0] = N;
    memset(o.holdout, 1, sizeof(o.holdout));
    fails(&o, -ERR_CONFIG, "all samples are held out");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clusters_by_topic),
        cmocka_unit_test(random_needs_no_features),
        cmocka_unit_test(routes_by_scores),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
