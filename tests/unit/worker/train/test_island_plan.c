/* A plan without measurements: stages of about equally many blocks, and each rank's part. */
#include "worker/train/island_plan.h"

#include "tests/unit/worker/tiny.h"

#include <errno.h>
#include <string.h>

static struct island *of[7]; /* of so many devices */

static int setup(void **state)
{
    static const char names[] = "cpu,cpu,cpu,cpu,cpu,cpu";
    for (size_t n = 1; n < 7; n++) {
        char some[sizeof names];
        (void)snprintf(some, sizeof some, "%.*s", (int)(4 * n - 1), names);
        OK(island_open(some, (int)n, &of[n], err));
        assert_int_equal(island_size(of[n]), n);
    }
    return 0;
}

static int teardown(void **state)
{
    for (int n = 1; n < 7; n++)
        island_close(of[n]);
    return 0;
}

static struct model *make_model(int depth, int upscaler)
{
    struct model_spec spec = upscaler > 0 ? tiny_cascade() : tiny_spec();
    struct model *m = NULL;
    spec.depth = depth;
    spec.upscaler.depth = upscaler;
    OK(model_new(&spec, &m, err));
    return m;
}

static void refused(int devices, const struct model *m, int stages, enum job_pipeline order,
                    const char *says)
{
    struct pipe_plan plan = {.copies = 77};
    struct err err = {0};
    assert_int_equal(island_even_plan(of[devices], m, stages, 4, order, &plan, &err), -ENOMEM);
    if (!strstr(err.msg, says))
        fail_msg("'%s' does not say '%s'", err.msg, says);
    assert_int_equal(plan.copies, 77);
}

/* A chain's stages lie one behind the other, on devices [first, first + devices), and have as many
 * blocks per device as can be. */
static void check_cut(const struct pipe_cut *cut, int depth, int stages, int first, int devices)
{
    int block = 0, device = first;
    assert_int_equal(cut->n, stages);
    for (int i = 0; i < stages; i++) {
        const struct pipe_stage *s = &cut->stages[i];
        assert_int_equal(s->from, block);
        assert_int_equal(s->device, device);
        assert_true(s->to > s->from && s->devices >= 1);
        assert_in_range(s->devices, devices / stages, (devices + stages - 1) / stages);
        if (devices % stages == 0)
            assert_in_range(s->to - s->from, depth / stages, (depth + stages - 1) / stages);
        block = s->to;
        device += s->devices;
    }
    assert_int_equal(block, depth);
    assert_int_equal(device, first + devices);
}

static void test_one_chain(void **state)
{
    for (int depth = 1; depth <= 8; depth++) {
        struct model *m = make_model(depth, 0);
        for (int n = 1; n < 7; n++)
            for (int stages = 1; stages <= n && stages <= depth; stages++) {
                struct pipe_plan plan;
                OK(island_even_plan(of[n], m, stages, 3, JOB_PIPELINE_AUTO, &plan, err));
                assert_int_equal(plan.order, stages > 1 ? PIPE_1F1B : PIPE_DATA);
                assert_int_equal(plan.chains, 1);
                assert_int_equal(plan.copies, n % stages == 0 ? n / stages : 1);
                assert_int_equal(plan.devices * plan.copies, n);
                check_cut(&plan.cuts[0], depth, stages, 0, plan.devices);
                for (int i = 0; i < stages; i++) {
                    const struct pipe_stage *s = &plan.cuts[0].stages[i];
                    assert_int_equal(s->warm, stages - i < 3 ? stages - i : 3);
                    assert_int_equal(s->slots, s->warm);
                }
            }
        model_free(m);
    }
}

/* Stages of unequal numbers of devices have blocks in proportion. */
static void test_uneven(void **state)
{
    struct model *m = make_model(8, 0);
    struct pipe_plan plan;
    OK(island_even_plan(of[5], m, 2, 4, JOB_PIPELINE_1F1B, &plan, err));
    const struct pipe_stage *s = plan.cuts[0].stages;
    assert_true(s[0].devices == 2 && s[1].devices == 3);
    assert_true(s[0].to == 3 && s[1].to == 8);
    refused(5, m, 6, JOB_PIPELINE_AUTO, "train.stages is 6, but this worker has 5 devices");
    refused(1, m, 2, JOB_PIPELINE_AUTO, "this worker has 1 device");
    refused(3, m, 0, JOB_PIPELINE_AUTO, "train.stages is 0");
    model_free(m);
    m = make_model(1, 0);
    refused(2, m, 2, JOB_PIPELINE_AUTO, "train.stages is 2, but the model has 1 block");
    model_free(m);
}

static void test_two_chains(void **state)
{
    struct model *m = make_model(6, 3);
    for (int bidirectional = 0; bidirectional < 2; bidirectional++) {
        struct pipe_plan plan;
        OK(island_even_plan(of[6], m, 3, 2,
                            bidirectional ? JOB_PIPELINE_BIDIRECTIONAL : JOB_PIPELINE_1F1B, &plan,
                            err));
        assert_int_equal(plan.order, bidirectional ? PIPE_BIDIRECTIONAL : PIPE_1F1B);
        assert_true(plan.chains == 2 && plan.copies == 2 && plan.devices == 3);
        check_cut(&plan.cuts[0], 6, 3, 0, 3);
        for (int i = 0; i < 3; i++) {
            const struct pipe_stage *s = &plan.cuts[1].stages[i];
            assert_true(s->from == i && s->to == i + 1);
            assert_int_equal(s->device, bidirectional ? 2 - i : i);
            /* Joined, the warm-up is of both chains. */
            const int most = bidirectional ? 2 : 4, left = 3 - i;
            for (int c = 0; c < 2; c++) {
                s = &plan.cuts[c].stages[i];
                assert_int_equal(s->warm, left < most ? left : most);
                assert_int_equal(s->slots, s->warm < 2 ? s->warm : 2);
            }
        }
    }
    refused(4, m, 3, JOB_PIPELINE_AUTO, "a stage of both chains");
    refused(6, m, 4, JOB_PIPELINE_1F1B, "train.stages is 4, but the upscaler has 3 blocks");
    refused(6, m, 4, JOB_PIPELINE_BIDIRECTIONAL, "the upscaler has 3 blocks");
    model_free(m);
    m = make_model(2, 3);
    refused(6, m, 3, JOB_PIPELINE_1F1B, "train.stages is 3, but the base has 2 blocks");
    refused(6, m, 6, JOB_PIPELINE_AUTO, "but the base and the upscaler have 5 blocks");
    model_free(m);
}

/* Each chain has devices of its own if that is asked for, or if there are too few blocks. */
static void test_divided(void **state)
{
    struct model *m = make_model(4, 3);
    const enum job_pipeline orders[] = {JOB_PIPELINE_DIVIDED, JOB_PIPELINE_AUTO};
    for (int o = 0; o < 2; o++)
        for (int stages = 2; stages <= 6; stages++) {
            struct pipe_plan plan;
            OK(island_even_plan(of[stages], m, stages, 2, orders[o], &plan, err));
            if (o == 1 && stages <= 3) {
                assert_int_equal(plan.order, PIPE_1F1B);
                continue;
            }
            const int first = plan.cuts[0].n;
            assert_int_equal(plan.order, PIPE_DIVIDED);
            assert_true(plan.copies == 1 && plan.devices == stages && first < stages);
            check_cut(&plan.cuts[0], 4, first, 0, first);
            check_cut(&plan.cuts[1], 3, stages - first, first, stages - first);
            for (int i = 0; i < first; i++)
                assert_int_equal(plan.cuts[0].stages[i].slots, first - i < 2 ? first - i : 2);
        }
    refused(5, m, 2, JOB_PIPELINE_DIVIDED, "a stage of one chain");
    assert_int_equal(island_most_stages(&m->spec, JOB_PIPELINE_AUTO), 7);
    assert_int_equal(island_most_stages(&m->spec, JOB_PIPELINE_DIVIDED), 7);
    assert_int_equal(island_most_stages(&m->spec, JOB_PIPELINE_1F1B), 3);
    assert_int_equal(island_most_stages(&m->spec, JOB_PIPELINE_BIDIRECTIONAL), 3);
    model_free(m);
}

/* A place's parts of both chains: of one, where they are divided. */
static void test_places(void **state)
{
    struct model *m = make_model(6, 3);
    struct pipe_plan plan;
    struct model_part parts[MODEL_CHAINS];
    OK(island_even_plan(of[3], m, 3, 2, JOB_PIPELINE_BIDIRECTIONAL, &plan, err));
    for (int place = 0; place < 3; place++) {
        island_place_parts(&plan, place, parts);
        assert_true(parts[0].from == 2 * place && parts[0].to == 2 * place + 2);
        assert_true(parts[1].from == 2 - place && parts[1].to == 3 - place);
    }
    OK(island_even_plan(of[4], m, 4, 2, JOB_PIPELINE_DIVIDED, &plan, err));
    for (int place = 0; place < 4; place++) {
        island_place_parts(&plan, place, parts);
        const bool base = place < plan.cuts[0].n;
        assert_int_equal(model_part_is_none(parts[0]), !base);
        assert_int_equal(model_part_is_none(parts[1]), base);
    }
    model_free(m);
}

static void test_options(void **state)
{
    struct model *m = make_model(6, 3), *one = make_model(6, 0);
    struct pipe_plan plan;
    struct train_options o = {.slots = 9, .slots_upscaler = 9, .split = true, .sharers = 9};
    struct device *dev = island_device(of[4], 0);
    const bool unified = dev->unified;
    OK(island_even_plan(of[4], m, 4, 3, JOB_PIPELINE_DIVIDED, &plan, err));
    dev->unified = true;
    island_place_options(of[4], &plan, 0, &o);
    assert_int_equal(o.slots, plan.cuts[0].stages[0].slots);
    assert_true(o.slots_upscaler == 0 && !o.split && o.width == 1 && o.sharers == 0);
    /* On a card there is room for one more, which arrives meanwhile. */
    dev->unified = false;
    island_place_options(of[4], &plan, 3, &o);
    assert_true(o.slots == 0 && o.slots_upscaler == 2);
    OK(island_even_plan(of[4], one, 2, 3, JOB_PIPELINE_1F1B, &plan, err));
    plan.order = PIPE_SPLIT;
    plan.shard = true;
    island_place_options(of[4], &plan, 0, &o);
    assert_true(o.slots == 3 && o.slots_upscaler == 0 && o.split);
    assert_true(o.width == 1 && o.sharers == 2); /* of two copies */
    OK(island_even_plan(of[3], one, 2, 3, JOB_PIPELINE_1F1B, &plan, err));
    plan.shard = true;
    island_place_options(of[3], &plan, 1, &o);
    assert_true(o.width == 2 && o.sharers == 2);
    OK(island_even_plan(of[4], one, 1, 3, JOB_PIPELINE_AUTO, &plan, err));
    island_place_options(of[4], &plan, 0, &o);
    assert_int_equal(o.slots, 1); /* nothing arrives from another stage */
    dev->unified = unified;
    model_free(one);
    model_free(m);
}

static void test_shares(void **state)
{
    struct train_options o = {.batch = 7, .accumulate = 2, .seed = 5}, each;
    island_share_options(&o, 3, &each);
    assert_true(each.batch == 3 && each.accumulate == 2 && each.seed == 5);
    o.accumulate = 7;
    island_share_options(&o, 2, &each);
    assert_true(each.batch == 4 && each.accumulate == 4);
    island_share_options(&o, 1, &each);
    assert_true(each.batch == 7 && each.accumulate == 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_chain), cmocka_unit_test(test_uneven),
        cmocka_unit_test(test_shares),    cmocka_unit_test(test_two_chains),
        cmocka_unit_test(test_divided),   cmocka_unit_test(test_places),
        cmocka_unit_test(test_options),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
