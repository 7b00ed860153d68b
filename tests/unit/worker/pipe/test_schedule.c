/* Schedules: the lists of small plans to the letter, what ranks exchange, the orders' sums. */
#include "tests/unit/worker/pipe/pipes.h"

#include "worker/pipe/simulate.h"

/* A device's list as text: "F0 s0>1" is the forward of micro-batch 0, its states sent to device 1.
 */
static const char *text(const struct pipe_schedule *s, int d)
{
    static char out[4096];
    static const char what[] = {'s', 'g', 'e', 'v'};
    int n = 0;
    for (int i = 0; i < s->lists[d].n; i++) {
        const struct pipe_instr *in = &s->lists[d].items[i];
        const char *space = i > 0 ? " " : "";
        if (in->op == PIPE_SEND || in->op == PIPE_RECV)
            n += snprintf(out + n, sizeof out - (size_t)n, "%s%c%d%c%d", space, what[in->what],
                          in->micro, in->op == PIPE_SEND ? '>' : '<', in->peer);
        else if (in->op == PIPE_F || in->op == PIPE_B || in->op == PIPE_W || in->op == PIPE_E)
            n += snprintf(out + n, sizeof out - (size_t)n, "%s%s%d", space, pipe_op_name(in->op),
                          in->micro);
        else
            n += snprintf(out + n, sizeof out - (size_t)n, "%s%s", space, pipe_op_name(in->op));
    }
    return out;
}

static void test_1f1b(void **state)
{
    struct costs p = pipes_profile(1, 2, 2, 8);
    struct pipe_plan plan = pipes_plan(&p, PIPE_1F1B, 2, 3, 8);
    struct pipe_schedule s;
    (void)state;
    plan.cuts[0].stages[0].warm = 2;
    OK(schedule_make(&p, &plan, &s, err));
    assert_string_equal(text(&s, 0), "LOAD g0<1 F0 s0>1 F1 s1>1 g1<1 B0 W0 F2 s2>1 g2<1 B1 W1 B2 "
                                     "W2 REDUCE CLIP STEP");
    assert_string_equal(text(&s, 1), "LOAD s0<0 s1<0 F0 B0 W0 g0>0 s2<0 F1 B1 W1 g1>0 F2 B2 W2 "
                                     "g2>0 REDUCE CLIP STEP");
    OK(schedule_check(&p, &plan, &s, err));
    schedule_release(&s);
    costs_release(&p);
}

static void test_data(void **state)
{
    struct costs p = pipes_profile(1, 4, 1, 8);
    struct pipe_plan plan = pipes_plan(&p, PIPE_DATA, 1, 2, 8);
    struct pipe_schedule s, copy;
    (void)state;
    OK(schedule_make(&p, &plan, &s, err));
    assert_string_equal(text(&s, 0), "LOAD F0 B0 W0 F1 B1 W1 REDUCE CLIP STEP");
    OK(schedule_copy(&s, &copy));
    schedule_release(&s);
    assert_string_equal(text(&copy, 0), "LOAD F0 B0 W0 F1 B1 W1 REDUCE CLIP STEP");
    schedule_release(&copy);
    costs_release(&p);
}

/* All estimates before the step, each told to the F of its micro-batch. */
static void test_estimates(void **state)
{
    struct costs p = pipes_profile(1, 2, 2, 8);
    struct pipe_plan plan = pipes_plan(&p, PIPE_1F1B, 2, 2, 8);
    struct pipe_plan data = pipes_plan(&p, PIPE_DATA, 1, 2, 8);
    struct pipe_schedule s;
    struct simulation run;
    (void)state;
    plan.estimate = data.estimate = true;
    OK(schedule_make(&p, &plan, &s, err));
    assert_string_equal(text(&s, 0), "LOAD E0 s0>1 E1 s1>1 g0<1 v0<1 F0 s0>1 v1<1 F1 s1>1 g1<1 B0 "
                                     "W0 B1 W1 REDUCE CLIP STEP");
    assert_string_equal(text(&s, 1), "LOAD s0<0 E0 v0>0 s1<0 E1 v1>0 s0<0 s1<0 F0 B0 W0 g0>0 F1 B1 "
                                     "W1 g1>0 REDUCE CLIP STEP");
    OK(schedule_check(&p, &plan, &s, err));
    OK(simulate(&p, &plan, &s, &run, err));
    assert_true(run.seconds ==
                2 + 9); /* two forwards, beside which the second stage is one later */
    simulation_release(&run);
    for (int i = 0; i < s.lists[0].n; i++)
        if (s.lists[0].items[i].op == PIPE_E)
            s.lists[0].items[i].micro ^= 1;
    struct err wrong = {0};
    assert_int_equal(schedule_check(&p, &plan, &s, &wrong), -EINVAL);
    assert_non_null(strstr(wrong.msg, "E of micro-batch 1"));
    schedule_release(&s);
    OK(schedule_make(&p, &data, &s, err)); /* of one stage it is in F */
    assert_string_equal(text(&s, 0), "LOAD F0 B0 W0 F1 B1 W1 REDUCE CLIP STEP");
    schedule_release(&s);
    costs_release(&p);
}

/* Split sends what B made before W, and has a W left where 1F1B has none. */
static void test_split(void **state)
{
    struct costs p = pipes_profile(1, 2, 2, 8);
    struct pipe_plan plan = pipes_plan(&p, PIPE_SPLIT, 2, 3, 8);
    struct pipe_schedule s;
    (void)state;
    plan.cuts[0].stages[0].warm = plan.cuts[0].stages[0].slots = 2;
    plan.cuts[0].stages[1].slots = 2;
    plan.variant = 3;
    OK(schedule_make(&p, &plan, &s, err));
    OK(schedule_check(&p, &plan, &s, err));
    assert_non_null(strstr(text(&s, 1), "B0 g0>0"));
    for (int i = 0; i < s.lists[1].n; i++) /* the last B is not held up by a W before it */
        if (s.lists[1].items[i].op == PIPE_B && s.lists[1].items[i].micro == 2)
            assert_int_not_equal(s.lists[1].items[i - 1].op, PIPE_W);
    schedule_release(&s);
    costs_release(&p);
}

/* A list made by no costs is that of layers which are alike; the early one is 1F1B's, whose
 * gradients leave before W. */
static void test_split_unmeasured(void **state)
{
    struct costs p = pipes_profile(1, 6, 3, 8);
    struct pipe_plan plan = pipes_plan(&p, PIPE_1F1B, 3, 5, 8), one = plan;
    struct pipe_schedule s, like;
    char want[4096];
    (void)state;
    pipe_plan_split(&plan);
    assert_true(plan.order == PIPE_SPLIT);
    assert_int_equal(plan.cuts[0].stages[2].slots, plan.cuts[0].stages[0].warm);
    for (plan.variant = 0; plan.variant < SCHEDULE_VARIANTS; plan.variant++) {
        OK(schedule_make(NULL, &plan, &s, err));
        OK(schedule_make(&p, &plan, &like, err));
        OK(schedule_check(&p, &plan, &s, err));
        for (int d = 0; d < 3; d++) {
            str_copy(want, sizeof want, text(&like, d));
            assert_string_equal(text(&s, d), want);
        }
        schedule_release(&s);
        schedule_release(&like);
    }
    assert_int_equal(plan.variant, SCHEDULE_EARLY);
    OK(schedule_make(NULL, &plan, &s, err));
    OK(schedule_make(NULL, &one, &like, err));
    str_copy(want, sizeof want, text(&like, 1));
    assert_string_equal(text(&s, 1), want);
    schedule_send_early(&s);
    OK(schedule_check(&p, &plan, &s, err));
    assert_null(strstr(text(&s, 1), "W0 g0"));
    assert_non_null(strstr(text(&s, 1), "B0 g0"));
    schedule_release(&s);
    schedule_release(&like);
    costs_release(&p);
}

/* Two devices, then three: whoever shares samples exchanges them, and each sample once. */
static void test_ranks(void **state)
{
    struct costs p = pipes_profile(1, 2, 5, 6);
    struct pipe_plan plan = pipes_plan(&p, PIPE_1F1B, 2, 2, 6);
    struct pipe_schedule s;
    int sent[6] = {0};
    (void)state;
    plan.devices = 5;
    plan.cuts[0].stages[0].devices = 2;
    plan.cuts[0].stages[1].device = 2;
    plan.cuts[0].stages[1].devices = 3;
    OK(schedule_make(&p, &plan, &s, err));
    OK(schedule_check(&p, &plan, &s, err));
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < s.lists[d].n; i++) {
            const struct pipe_instr *in = &s.lists[d].items[i];
            for (int k = 0; in->op == PIPE_SEND && in->micro == 1 && k < in->count; k++) {
                sent[in->first + k]++;
                assert_int_equal(in->peer, 2 + (in->first + k) / 2);
                assert_int_equal(d, (in->first + k) / 3);
            }
        }
    for (int i = 0; i < 6; i++)
        assert_int_equal(sent[i], 1);
    schedule_release(&s);
    costs_release(&p);
}

/* The second chain comes from the other end. */
static void test_bidirectional(void **state)
{
    struct costs p = pipes_profile(2, 2, 2, 8);
    struct pipe_plan plan = pipes_plan(&p, PIPE_BIDIRECTIONAL, 2, 1, 8);
    (void)state;
    for (plan.variant = 0; plan.variant < SCHEDULE_VARIANTS; plan.variant++) {
        struct pipe_schedule s;
        OK(schedule_make(&p, &plan, &s, err));
        OK(schedule_check(&p, &plan, &s, err));
        for (int d = 0, f = 0; d < 2; d++, f = 0)
            for (int i = 0; i < s.lists[d].n && !f; i++)
                if (s.lists[d].items[i].op == PIPE_F) {
                    assert_int_equal(s.lists[d].items[i].chain, d);
                    f = 1;
                }
        schedule_release(&s);
    }
    costs_release(&p);
}

/* Each chain has devices of its own: their lists have nothing of the other, which has its own end.
 */
static void test_divided(void **state)
{
    struct costs p = pipes_profile(2, 2, 4, 8);
    const struct pipe_plan plan = pipes_plan(&p, PIPE_DIVIDED, 4, 3, 8);
    struct pipe_schedule s;
    (void)state;
    assert_int_equal(pipe_places(&plan), 4);
    assert_int_equal(pipe_stage_of(&plan.cuts[0], 2), -1);
    OK(schedule_make(&p, &plan, &s, err));
    OK(schedule_check(&p, &plan, &s, err));
    for (int d = 0; d < 4; d++) {
        int of[PIPE_OPS] = {0};
        assert_int_equal(pipe_place_of(&plan, d), d);
        assert_int_equal(pipe_place(&plan, d).device, d);
        for (int i = 0; i < s.lists[d].n; i++) {
            const struct pipe_instr *in = &s.lists[d].items[i];
            of[in->op]++;
            if (in->op != PIPE_LOAD && in->op != PIPE_CLIP && in->op != PIPE_STEP)
                assert_int_equal(in->chain, d / 2);
        }
        assert_true(of[PIPE_F] == 3 && of[PIPE_W] == 3 && of[PIPE_REDUCE] == 1);
    }
    schedule_release(&s);
    costs_release(&p);
}

/* Devices in proportion to the work, at least one each, and none without a layer. */
static void test_divide(void **state)
{
    (void)state;
    assert_int_equal(pipe_divide(8, (double[]){1, 3}, (int[]){9, 9}), 2);
    assert_int_equal(pipe_divide(4, (double[]){1, 99}, (int[]){9, 9}), 1);
    assert_int_equal(pipe_divide(4, (double[]){99, 1}, (int[]){9, 9}), 3);
    assert_int_equal(pipe_divide(4, (double[]){1, 99}, (int[]){9, 2}), 2);
    assert_int_equal(pipe_divide(4, (double[]){99, 1}, (int[]){1, 9}), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_1f1b),          cmocka_unit_test(test_data),
        cmocka_unit_test(test_split),         cmocka_unit_test(test_split_unmeasured),
        cmocka_unit_test(test_estimates),     cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_bidirectional), cmocka_unit_test(test_divided),
        cmocka_unit_test(test_divide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
