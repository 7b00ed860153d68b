/* Whether a dataset is enough for a job, and the ledgers over it. */
#include "coordinator/work/shards.h"
#include "coordinator/work/tasks.h"
#include "tests/unit/coordinator/plain.h"

static void refused(const struct job *j, const char *why)
{
    struct err err = {0};
    assert_true(shards_check(j, &err) < 0);
    if (strstr(err.msg, why) == NULL)
        fail_msg("'%s' does not say '%s'", err.msg, why);
}

static void test_sums(void **state)
{
    struct job *j = add(*state, dipaco);
    cut(j, "trhtt");
    job_edit_shard(j, 0)->tokens = 7;
    struct shards_sum sum = shards_sum(j, PARTITION_ALL, false);
    assert_int_equal(sum.shards, 3); /* neither what is held out, nor what is kept for routers */
    assert_int_equal(sum.samples, 30);
    assert_int_equal(sum.tokens, 7);
    assert_int_equal(shards_sum(j, PARTITION_ALL, true).samples, 10);
    struct shard_rec *s = job_add_shard(j);
    s->generation = j->generation = 1;
    s->partition = 2;
    s->samples = 5;
    assert_int_equal(shards_cut(j), 5);
    assert_int_equal(shards_sum(j, 2, false).samples, 5);
    assert_int_equal(shards_sum(j, 1, false).shards, 0);
    assert_int_equal(shards_sum(j, PARTITION_ALL, false).samples, 5); /* this generation's */
}

/* An image is a row of a batch; texts are packed into rows, with a little to spare. */
static void test_steps(void **state)
{
    struct job *image = add(*state, diloco), *text = add(*state, dipaco);
    const struct shards_sum sum = {.shards = 1, .samples = 10, .tokens = 160};
    assert_int_equal(shards_of_steps(&image->spec, 4, 5, &sum), 20);
    /* 20 rows of 65 places, from texts of 16 tokens: 81.25 of them, and twice their square root */
    assert_int_equal(shards_of_steps(&text->spec, 4, 5, &sum), 100);
}

static void test_enough(void **state)
{
    struct err err = {0};
    struct job *j = add(*state, diloco);
    refused(j, "no samples to train on, all are held out");
    cut(j, "h");
    refused(j, "no samples to train on, all are held out");
    cut(j, "t");
    assert_int_equal(shards_check(j, &err), 0);
    j->spec.recipe.early_stop = true;
    assert_int_equal(shards_check(j, &err), 0);
    job_edit_shard(j, 0)->holdout = false;
    refused(j, "recipe.early_stop needs held-out data");
    j->spec.recipe.early_stop = false;
    j->spec.outer.steps = 20 * RANGES_TAKEN_MAX; /* of 6 images: more than so many shards have */
    refused(j, "raise data.shard_samples, or lower outer.steps");
    job_edit_shard(j, 0)->samples = job_edit_shard(j, 1)->samples = 1000;
    assert_int_equal(shards_check(j, &err), 0);
    j->spec.outer.steps = 1000 * LEDGER_EPOCHS_OPEN_MAX;
    refused(j, "raise data.shard_samples");
}

static void test_partitions(void **state)
{
    struct err err = {0};
    struct job *j = add(*state, dipaco);
    cut(j, "tth");
    assert_int_equal(shards_check(j, &err), 0);
    j->spec.outer.async = true;
    refused(j, "outer.async has none");
    j->spec.outer.async = false;
    job_edit_shard(j, 1)->samples = 11000000; /* the first one is kept for routers */
    assert_int_equal(shards_check(j, &err), 0);
    job_edit_shard(j, 1)->samples = 12000000;
    refused(j, "3 shards, split by partition 3 times, are more than the 65536 that a job has");
    job_edit_shard(j, 1)->samples = 10;
    job_edit_shard(j, 1)->holdout = true;
    refused(j, "there is only one to train on");
    job_edit_shard(j, 0)->samples = 3; /* of four partitions */
    refused(j, "4 partitions, but the dataset has only 3 samples");
}

/* Ledgers of all partitions, or of none: one that cannot fill a phase is named. */
static void test_ledgers(void **state)
{
    struct err err = {0};
    struct job *j = add(*state, dipaco);
    j->generation = 1;
    for (uint32_t p = 0; p < 4; p++) {
        struct shard_rec *s = job_add_shard(j);
        s->generation = 1;
        s->partition = p;
        s->samples = p == 2 ? 0 : 20 + p;
        s->tokens = 64 * s->samples;
    }
    assert_true(shards_make_ledgers(j, &err) < 0);
    assert_non_null(strstr(err.msg, "partition 2 of 4 with 0 samples: it has no samples"));
    assert_null(j->ledgers[0]);
    job_edit_shard(j, 2)->samples = 22;
    assert_int_equal(shards_make_ledgers(j, &err), 0);
    for (uint32_t p = 0; p < 4; p++) {
        struct ledger_epoch e;
        ledger_figures(j->ledgers[p], 0, &e);
        assert_int_equal(e.total, 20 + p);
        assert_int_equal(j->sizes[p], 20 + p);
    }
    assert_null(j->ledgers[4]); /* no path trains on all of it */
}

/* With each archive of a large dataset all rows were written, and all later shards moved one by
 * one.
 */
static void test_order(void **state)
{
    static const uint32_t sources[] = {1, 1, 3, 3, 2, 2}, wanted[] = {0, 1, 4, 5, 2, 3};
    struct job *j = add(*state, diloco);
    for (uint32_t i = 0; i < 6; i++)
        *job_add_shard(j) = (struct shard_rec){.source = sources[i], .samples = i};
    j->shards_edited.n = 0;
    for (int again = 0; again < 2; again++) {
        job_order_shards(j, 0);
        for (uint32_t i = 0; i < 6; i++)
            assert_int_equal(j->shards[i].samples, wanted[i]);
        assert_int_equal(j->shards_edited.n, 4); /* those that have moved */
    }
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        CASE(test_sums),       CASE(test_steps),   CASE(test_enough),
        CASE(test_partitions), CASE(test_ledgers), CASE(test_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
