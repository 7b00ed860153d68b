/* How a plan is told: in words, and to the coordinator. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/engine/phase_plan.h"

static struct phase_plan plan_of(enum pipe_order order, int chains, int stages, const int *widths)
{
    struct phase_plan p = {.pipe = {.order = order, .chains = chains, .copies = 1},
                           .accumulate = 4};
    for (int c = 0; c < chains; c++) {
        struct pipe_cut *cut = &p.pipe.cuts[c];
        cut->n = stages;
        for (int i = 0, at = 0; i < stages; at += widths[i++])
            cut->stages[i] = (struct pipe_stage){.device = at, .devices = widths[i]};
    }
    for (int i = 0; i < stages; i++)
        p.pipe.devices += widths[i];
    return p;
}

static void told(const struct phase_plan *p, const char *way, Skerry__V1__Schedule schedule,
                 unsigned widest)
{
    char out[96] = "";
    struct progress_plan t;
    phase_plan_way(p, out, sizeof out);
    assert_string_equal(out, way);
    phase_plan_tell(p, &t);
    assert_int_equal(t.told.schedule, schedule);
    assert_int_equal(t.told.widest_stage, widest);
}

static void test_told(void **state)
{
    static const int ones[] = {1, 1}, wide[] = {1, 2}, all[] = {3}, one[] = {1};
    struct phase_plan p = plan_of(PIPE_1F1B, 1, 2, wide);
    (void)state;
    told(&p, " in 2 stages on 1 + 2 devices, 4 micro-batches", SKERRY__V1__SCHEDULE__SCHEDULE_1F1B,
         2);
    p = plan_of(PIPE_1F1B, 2, 2, ones);
    told(&p, " in 2 stages (joined), 4 micro-batches", SKERRY__V1__SCHEDULE__SCHEDULE_JOINED, 1);
    p = plan_of(PIPE_BIDIRECTIONAL, 2, 2, ones);
    told(&p, " in 2 stages (bidirectional), 4 micro-batches",
         SKERRY__V1__SCHEDULE__SCHEDULE_BIDIRECTIONAL, 1);
    p.pipe.order = PIPE_DIVIDED;
    p.pipe.cuts[0].n = p.pipe.cuts[1].n = 1;
    p.pipe.cuts[1].stages[0].device = 1;
    told(&p, " in 2 stages (divided, 1 + 1), 4 micro-batches",
         SKERRY__V1__SCHEDULE__SCHEDULE_DIVIDED, 1);
    p = plan_of(PIPE_DATA, 1, 1, one);
    p.pipe.copies = 3;
    told(&p, " on 3 devices", SKERRY__V1__SCHEDULE__SCHEDULE_DATA, 1);
    p = plan_of(PIPE_DATA, 1, 1, all);
    p.pipe.copies = 1;
    told(&p, "", SKERRY__V1__SCHEDULE__SCHEDULE_DATA, 3);
}

/* Of many stages what does not fit is left out. */
static void test_long(void **state)
{
    int widths[PIPE_STAGES_MAX];
    char out[32] = "";
    (void)state;
    for (int i = 0; i < 30; i++)
        widths[i] = 2;
    const struct phase_plan p = plan_of(PIPE_1F1B, 1, 30, widths);
    phase_plan_way(&p, out, sizeof out);
    assert_int_equal(strlen(out), sizeof out - 1);
}

static void test_asked(void **state)
{
    static const int one[] = {1};
    const struct phase_plan data = plan_of(PIPE_DATA, 1, 1, one);
    struct phase_plan copies = data;
    struct train_options o = {.pipeline = JOB_PIPELINE_SPLIT};
    (void)state;
    copies.pipe.copies = 2;
    assert_string_equal(phase_plan_why_whole(&data, &o, true), "this worker has one device");
    assert_null(phase_plan_why_whole(&copies, &o, true)); /* it is faster */
    assert_string_equal(phase_plan_why_whole(&copies, &o, false), "this network is not cut");
    o.parallel = JOB_PARALLEL_PIPELINE;
    assert_non_null(strstr(phase_plan_why_whole(&copies, &o, true), "no number of stages"));
    o = (struct train_options){.pipeline = JOB_PIPELINE_AUTO};
    assert_null(phase_plan_why_whole(&data, &o, true));
}

/* Fewer micro-batches than stages are allowed, and it is said what they cost. */
static void test_idles(void **state)
{
    static const int ones[] = {1, 1, 1, 1};
    const struct phase_plan four = plan_of(PIPE_1F1B, 1, 4, ones);
    const struct phase_plan both = plan_of(PIPE_1F1B, 2, 4, ones);
    static const struct {
        int batch;
        const char *advice; /* a number that divides the batch, if there is one */
    } tries[] = {{32, "16 would leave a fifth"},
                 {24, "24 would leave a fifth"},
                 {8, "16 would leave a fifth, of a larger train.batch"}};
    struct train_options o = {.accumulate = 2};
    char out[160], expected[160];
    (void)state;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        o.batch = tries[i].batch;
        assert_true(phase_plan_idles(&four, &o, out, sizeof out));
        snprintf(expected, sizeof expected,
                 "train.accumulate is 2 with 4 stages: 60 %% of the devices' time is idle; %s",
                 tries[i].advice);
        assert_string_equal(out, expected);
    }
    assert_false(phase_plan_idles(&both, &o, out, sizeof out)); /* of two chains */
    o.accumulate = 4;
    assert_false(phase_plan_idles(&four, &o, out, sizeof out));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_told),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_asked),
        cmocka_unit_test(test_idles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
