/* SPLIT: samples as they are, in shards of one partition each. */
#include "tests/unit/worker/partition_task.h"

/* The samples of partition i of shards 1 and 2, as they lie there. */
static uint64_t check_shard(const struct work_output *out, uint32_t i, const uint32_t *assign,
                            bool held)
{
    struct shard shard, from[2];
    uint32_t next = 0;
    uint64_t tokens = 0;
    OK(shard_open(out->path, &shard, err));
    OK(shard_open(texts[1].path, &from[0], err));
    OK(shard_open(texts[2].path, &from[1], err));
    assert_int_equal(shard.n, out->samples);
    assert_int_equal(out->partition, i);
    assert_int_equal(out->holdout, held);
    for (size_t k = 0; k < shard.n; k++, next++) {
        while (held && assign[next * 2] != i)
            next++;
        const struct shard_sample *src = &from[next / N].samples[next % N];
        assert_int_equal(shard.samples[k].len, src->len);
        assert_memory_equal(shard.samples[k].data, src->data, src->len);
        tokens += src->tokens;
    }
    assert_int_equal(tokens, out->tokens);
    const uint64_t n = shard.n;
    shard_close(&shard);
    shard_close(&from[0]);
    shard_close(&from[1]);
    return n;
}

/* Shards 1 and 2 with both partitions each, then as if held out. */
static void splits_follow_the_clusters(void **state)
{
    struct order o;
    cluster_order(&o, BY_NGRAMS);
    o.cluster.top = 2;
    struct work *w = run(&o);
    for (int held = 0; held < 2; held++) {
        struct order s;
        uint32_t *assign, wide;
        uint64_t samples = 0;
        const struct work_output *a = output_of(w, WORK_ASSIGNMENT);
        OK(assignment_read(a->path, N, 2 * N, 2, &assign, &wide, err));
        order_init(&s, SKERRY__V1__TASK_KIND__TASK_KIND_SPLIT, BY_NGRAMS, &texts[1], 2);
        s.split.assignment = give(&s, a->path, a->sha256);
        s.split.first = N;
        s.split.holdout = held;
        struct work *v = run(&s);
        assert_int_equal(v->result.n_outputs, 2);
        for (uint32_t i = 0; i < 2; i++)
            samples += check_shard(&v->result.outputs[i], i, assign, held);
        assert_int_equal(samples, held ? 2 * N : 4 * N);
        mem_free(assign);
        work_free(v);
    }
    work_free(w);
}

/* The captions of the images of a shard, whose first one is number `first` of the two. */
static void check_captions(const char *path, uint32_t first)
{
    struct shard shard;
    OK(shard_open(path, &shard, err));
    for (uint32_t i = 0; i < shard.n; i++) {
        const struct shard_sample *s = &shard.samples[i];
        char want[32];
        int len = snprintf(want, sizeof(want), "number %u", (first + i) % N);
        if ((first + i) % N % 3) {
            assert_null(s->captions);
            continue;
        }
        assert_int_equal(s->captions_len, len);
        assert_memory_equal(s->captions, want, s->captions_len);
    }
    shard_close(&shard);
}

/* data.shard_samples bounds what is written; shares are even; captions come along. */
static void splits_are_cut(void **state)
{
    struct order o;
    uint32_t assign[2 * N], first = 0;
    uint8_t sha[32];
    char *path = in(top, "assign");
    for (uint32_t i = 0; i < 2 * N; i++)
        assign[i] = i >= 40; /* 40 and 8 */
    OK(assignment_write(path, assign, 2 * N, 1, sha, NULL, err));
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_SPLIT, IMAGES, images, 2);
    o.split.assignment = give(&o, path, sha);
    struct work *w = run(&o);
    assert_int_equal(w->result.n_outputs, 4); /* 40 samples at 16 a shard: 3; and the 8 */
    static const uint32_t want[] = {13, 13, 14, 8};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(w->result.outputs[i].samples, want[i]);
        assert_int_equal(w->result.outputs[i].partition, i == 3);
        check_captions(w->result.outputs[i].path, first);
        first += want[i];
    }
    work_free(w);
    o.split.first = 1; /* more samples than the assignment knows */
    fails(&o, -ERR_FORMAT, "rows 1 to 49 are wanted");
    o.split.first = 0;
    o.task.partitions = 1;
    fails(&o, -ERR_FORMAT, "in partition 1, of 1");
    mem_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_follow_the_clusters),
        cmocka_unit_test(splits_are_cut),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
