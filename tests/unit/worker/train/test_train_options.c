/* What a job asks of a replica's training. */
#include "worker/train/train_options.h"

#include <math.h>

#include "tests/unit/common/base/util.h"

static void lr(void **state)
{
    struct train_options o = {.lr = 2.0, .warmup = 4, .decay_fraction = 0.25, .final_lr = 0.1};
    const struct {
        enum job_schedule schedule;
        uint64_t step, total;
        double lr;
    } cases[] = {
        {JOB_SCHEDULE_CONSTANT, 0, 100, 0.5},  {JOB_SCHEDULE_CONSTANT, 3, 100, 2.0},
        {JOB_SCHEDULE_CONSTANT, 99, 100, 2.0}, {JOB_SCHEDULE_COSINE, 4, 104, 2.0},
        {JOB_SCHEDULE_COSINE, 54, 104, 1.1},   {JOB_SCHEDULE_COSINE, 104, 104, 0.2},
        {JOB_SCHEDULE_COSINE, 500, 104, 0.2},  {JOB_SCHEDULE_COSINE, 50, 0, 2.0},
        {JOB_SCHEDULE_COSINE, 1, 3, 1.0},      {JOB_SCHEDULE_COSINE, 5, 3, 0.2},
        {JOB_SCHEDULE_COSINE, 4, 4, 0.2},      {JOB_SCHEDULE_DECAY, 2, 2, 1.5},
        {JOB_SCHEDULE_DECAY, 74, 100, 2.0},    {JOB_SCHEDULE_DECAY, 75, 100, 2.0},
        {JOB_SCHEDULE_DECAY, 90, 100, 0.8},    {JOB_SCHEDULE_DECAY, 100, 100, 0.0},
        {JOB_SCHEDULE_DECAY, 120, 100, 0.0},   {JOB_SCHEDULE_DECAY, 50, 0, 2.0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        o.schedule = cases[i].schedule;
        const double got = train_lr(&o, cases[i].step, cases[i].total);
        if (fabs(got - cases[i].lr) > 1e-12)
            fail_msg("case %zu: %g, expected %g", i, got, cases[i].lr);
    }
    const struct {
        enum job_schedule schedule;
        uint64_t step;
        double done, lr;
    } timed[] = {
        {JOB_SCHEDULE_CONSTANT, 9, 0.99, 2.0}, {JOB_SCHEDULE_COSINE, 4, 0.5, 1.1},
        {JOB_SCHEDULE_COSINE, 900, 1, 0.2},    {JOB_SCHEDULE_DECAY, 1, 0.9, 0.4},
        {JOB_SCHEDULE_DECAY, 9, 0.75, 2.0},    {JOB_SCHEDULE_DECAY, 9, 0.9, 0.8},
        {JOB_SCHEDULE_DECAY, 9, 1, 0.0},
    };
    for (size_t i = 0; i < COUNT(timed); i++) {
        o.schedule = timed[i].schedule;
        const double got = train_lr_timed(&o, timed[i].step, timed[i].done);
        if (fabs(got - timed[i].lr) > 1e-12)
            fail_msg("case %zu: %g, expected %g", i, got, timed[i].lr);
    }
    /* No tail: the rate drops at the end, and is a number there. */
    o.schedule = JOB_SCHEDULE_DECAY;
    o.decay_fraction = 0;
    assert_true(train_lr(&o, 99, 100) == 2.0);
    assert_true(train_lr(&o, 100, 100) == 0.0);
    assert_true(train_lr(&o, 101, 100) == 0.0);
    o.warmup = 0;
    assert_true(train_lr(&o, 0, 100) == 2.0);
}

#define HEAD                                                                                       \
    "name: x\nseed: 9\ndata: {path: d, image_size: 16}\n"                                          \
    "model: {type: dit, dim: 64, depth: 2, heads: 4, label_dropout: 0.3, self_condition: 0.25}\n"  \
    "router: {batch: 6, lr: 2e-3}\nrecipe: {moments_warmup: 7}\n"                                  \
    "outer: {rounds: 2, steps: 4}\n"

static struct train_options read_job(const char *text, bool router, int batch)
{
    struct job_spec job;
    struct train_options o;
    OK(job_parse(text, strlen(text), "job.yaml", &job, err));
    train_options_from_job(&job, router, batch, 42, &o);
    job_release(&job);
    return o;
}

static void every_key(void **state)
{
    const struct train_options o = read_job(
        HEAD
        "train: {batch: 8, accumulate: 4, lr: 1e-3, warmup: 3, schedule: cosine,\n"
        "  decay_fraction: 0.5, final_lr: 0.25, weight_decay: 0.125, beta1: 0.75, beta2: 0.5,\n"
        "  eps: 1e-3, clip: 2, precision: bf16, t: uniform, shift: 3,\n"
        "  recompute: true, fill: false, parallel: pipeline, pipeline: 1f1b, shard: none,\n"
        "  stages: 2}\n",
        false, 0);
    assert_true(o.batch == 8 && o.accumulate == 4 && !o.accumulate_auto);
    assert_true(o.lr == 1e-3 && o.warmup == 3 && o.schedule == JOB_SCHEDULE_COSINE);
    assert_true(o.decay_fraction == 0.5 && o.final_lr == 0.25 && o.weight_decay == 0.125);
    assert_true(o.beta1 == 0.75 && o.beta2 == 0.5 && o.eps == 1e-3);
    assert_true(o.clip == 2 && o.precision == NET_BF16);
    assert_true(o.uniform_t && o.shift == 3 && o.recompute && !o.fill);
    assert_true(o.label_dropout == 0.3 && o.self_condition == 0.25);
    assert_true(o.parallel == JOB_PARALLEL_PIPELINE && o.pipeline == JOB_PIPELINE_1F1B);
    assert_true(o.shard == JOB_SHARD_NONE && o.stages == 2 && o.moments_warmup == 7);
    assert_true(o.seed == 9 && o.replica == 42);
    /* What plans and the caller decide is not set. */
    assert_true(o.slots == 0 && o.sharers == 0 && o.width == 0 && !o.lean && !o.split);
    assert_true(!o.distill && !o.encoders);
}

static void batches(void **state)
{
    static const char automatic[] = HEAD "train: {batch: 8}\n",
                      cut[] = HEAD "train: {batch: 8, accumulate: 8, precision: f32}\n";
    struct train_options o = read_job(automatic, false, 0);
    assert_true(o.batch == 8 && o.accumulate == 1 && o.accumulate_auto);
    assert_true(o.lr == 0.5 / 64); /* by the width */
    assert_true(o.precision == NET_AUTO && !o.uniform_t && o.shift == 1 && o.fill && !o.recompute);
    o = read_job(cut, false, 0);
    assert_true(o.accumulate == 8 && o.precision == NET_F32);
    o = read_job(cut, false, 5); /* no more micro-batches than samples */
    assert_true(o.batch == 5 && o.accumulate == 5);
    /* The router has its own batch and rate, and reads no estimate. */
    o = read_job(cut, true, 0);
    assert_true(o.batch == 6 && o.accumulate == 6 && o.lr == 2e-3 && o.self_condition == 0);
    o = read_job(cut, true, 3);
    assert_true(o.batch == 3 && o.lr == 2e-3);
}

/* Shares lie one behind the other, begin at whole units, and are equal but for the last ones. */
static void shares(void **state)
{
    static const uint64_t sizes[] = {0, 1, 63, 64, 65, 128, 1000, 4096, 4097};
    for (size_t i = 0; i < COUNT(sizes); i++)
        for (int n = 1; n <= 5; n++) {
            const uint64_t count = (uint64_t)n, each = (sizes[i] + count - 1) / count;
            uint64_t at = 0, most = (each + 63) / 64 * 64;
            for (int k = 0; k < n; k++) {
                const struct train_share s = train_share_of(sizes[i], n, k);
                assert_true(s.from == at && s.to >= s.from);
                assert_true(s.from % 64 == 0 || s.from == sizes[i]);
                assert_true(s.to - s.from <= most);
                most = s.to - s.from;
                at = s.to;
            }
            assert_int_equal(at, sizes[i]);
        }
    assert_int_equal(train_share_of(1000, 3, 0).to, 384); /* 334, in whole units */
    assert_int_equal(train_share_of(1000, 3, 2).from, 768);
    assert_int_equal(train_share_of(1000, 0, 0).to, 1000); /* no others */
}

static void micro_batches(void **state)
{
    struct train_options o = {.batch = 10, .accumulate = 4};
    assert_int_equal(train_micro_batch(&o), 3);
    assert_int_equal(train_micro_share(&o), 3);
    o.width = 2;
    assert_int_equal(train_micro_share(&o), 2);
    o.width = 3;
    assert_int_equal(train_micro_share(&o), 1);
    o.accumulate = 1;
    assert_int_equal(train_micro_batch(&o), 10);
    assert_int_equal(train_micro_share(&o), 4);
    assert_false(train_wants_pipeline(&o));
    o.stages = 1;
    assert_true(train_wants_pipeline(&o));
    o = (struct train_options){.parallel = JOB_PARALLEL_PIPELINE};
    assert_true(train_wants_pipeline(&o));
    o.parallel = JOB_PARALLEL_DATA;
    assert_false(train_wants_pipeline(&o));
}

static void a_network(void **state)
{
    static const struct net_encoders *const none = NULL;
    struct train_options o = {.batch = 10,
                              .accumulate = 2,
                              .slots = 3,
                              .slots_upscaler = 4,
                              .width = 2,
                              .precision = NET_BF16,
                              .split = true,
                              .uniform_t = true,
                              .shift = 3,
                              .label_dropout = 0.5,
                              .distill = true,
                              .encoders = (const struct net_encoders *)&none};
    struct net_options n = train_net_options(&o);
    assert_int_equal(n.mode, NET_TRAIN);
    assert_true(n.batch == 3 && n.load == 10 && n.slots == 3 && n.slots_upscaler == 4);
    assert_true(n.precision == NET_BF16 && n.split && n.uniform_t && n.shift == 3 && n.distill);
    assert_true(n.label_dropout == 0.5 && n.encoders == o.encoders);
    o.lean = true;
    assert_int_equal(train_net_options(&o).mode, NET_LEAN);
    o.recompute = true;
    assert_int_equal(train_net_options(&o).mode, NET_RECOMPUTE);
}

/* The steps with an estimate are the same for all replicas, and as many as the job says. */
static void estimates(void **state)
{
    struct train_options o = {.seed = 5, .self_condition = 0.25}, never = {.seed = 5},
                         always = {.seed = 5, .self_condition = 1}, other = {.seed = 6};
    unsigned n = 0, differ = 0;
    other.self_condition = o.self_condition;
    for (uint64_t s = 0; s < 1000; s++) {
        struct train_options replica = o;
        replica.replica = s;
        const bool has = train_has_estimate(&o, s);
        assert_int_equal(train_has_estimate(&replica, s), has);
        assert_false(train_has_estimate(&never, s));
        assert_true(train_has_estimate(&always, s));
        differ += train_has_estimate(&other, s) != has;
        n += has;
    }
    assert_in_range(n, 200, 300);
    assert_true(differ > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lr),
        cmocka_unit_test(every_key),
        cmocka_unit_test(batches),
        cmocka_unit_test(shares),
        cmocka_unit_test(a_network),
        cmocka_unit_test(estimates),
        cmocka_unit_test(micro_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
