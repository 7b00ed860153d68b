/* Filling: what fits, where it goes, what it costs, and who may take part. */
#include "tests/unit/worker/pipe/pipes.h"
#include "worker/pipe/fill.h"

#define RHO 0.89

/* S stages of f = b = w = 1, M micro-batches of 8, and frozen layers of RHO times that. */
struct bench {
    struct costs p;
    struct pipe_plan plan;
    struct fill_options opt;
    struct pipe_schedule s;
    struct fill_report report;
};

static void make(struct bench *b, int stages, int micros)
{
    b->p = pipes_profile(1, stages, stages, 8);
    pipes_frozen(&b->p, RHO * 3 * stages / 8);
    b->plan = pipes_plan(&b->p, PIPE_1F1B, stages, micros, 8);
    b->opt = (struct fill_options){.samples = 8 * micros, .group = 8, .share = 1};
    OK(schedule_make(&b->p, &b->plan, &b->s, err));
}

static void fill(struct bench *b)
{
    OK(fill_schedule(&b->p, &b->plan, &b->opt, &b->s, &b->report, err));
    OK(schedule_check(&b->p, &b->plan, &b->s, err));
}

static void drop(struct bench *b)
{
    schedule_release(&b->s);
    costs_release(&b->p);
}

/* Samples that end on a device. */
static int samples_of(const struct bench *b, int d)
{
    int n = 0;
    for (int i = 0; i < b->s.lists[d].n; i++)
        if (b->s.lists[d].items[i].op == PIPE_FROZEN &&
            b->s.lists[d].items[i].to == b->p.frozen[0].n)
            n += b->s.lists[d].items[i].count;
    return n;
}

/* Few micro-batches: all of it lies in bubbles, and the step is as long as without. */
static void test_inside(void **state)
{
    struct bench b;
    (void)state;
    make(&b, 4, 3);
    fill(&b);
    assert_true(b.report.before == 18 && b.report.seconds <= 18 * (1 + 1e-6));
    assert_true(fabs(b.report.inside - 1) < 1e-9);
    drop(&b);
}

/* Many: the devices are busy, and what is left runs behind STEP, balanced. */
static void test_outside(void **state)
{
    struct bench b;
    (void)state;
    make(&b, 4, 12);
    fill(&b);
    const double work = 3 * 12 * (1 + RHO);
    assert_true(b.report.seconds >= work && b.report.seconds < work * 1.01);
    assert_true(b.report.idle < 0.01);
    assert_true(b.report.inside > 0 && b.report.inside < 0.5);
    assert_true(fabs(b.report.prologue - RHO * 3 * 12) < 3 * 2);
    drop(&b);
}

/* With fewer micro-batches than stages the first one waits for the estimate: a bubble more. */
static void test_estimate(void **state)
{
    struct bench b;
    double inside[2], over[2];
    (void)state;
    for (int estimate = 0; estimate < 2; estimate++) {
        make(&b, 4, 2);
        for (int l = 0; l < b.p.frozen[0].n; l++)
            b.p.frozen[0].layers[l].t.s[0] *= 2;
        b.plan.estimate = estimate;
        schedule_release(&b.s);
        OK(schedule_make(&b.p, &b.plan, &b.s, err));
        fill(&b);
        inside[estimate] = b.report.inside;
        over[estimate] = b.report.seconds / b.report.before;
        drop(&b);
    }
    /* Each device has 10.7 s of frozen work; 9 are free, and 11 with an estimate. */
    assert_true(inside[0] < 9 / 10.6 && inside[1] > 0.97);
    assert_true(over[0] > 1.1 && over[1] < 1.03);
}

/* Without bubbles allowed, all of it follows the step. */
static void test_unfilled(void **state)
{
    struct bench b;
    (void)state;
    make(&b, 4, 4);
    b.opt.share = 0;
    fill(&b);
    assert_true(fabs(b.report.seconds - (21 + RHO * 3 * 4)) < 0.01);
    assert_true(b.report.inside == 0);
    drop(&b);
}

static void test_groups(void **state)
{
    struct bench b;
    (void)state;
    make(&b, 4, 4);
    b.opt.group = 3;
    fill(&b);
    for (int d = 0, most = 0; d < 4; d++) {
        for (int i = 0, now = 0; i < b.s.lists[d].n; i++) {
            const struct pipe_instr *in = &b.s.lists[d].items[i];
            if (in->op != PIPE_FROZEN)
                continue;
            assert_in_range(in->count, 1, 3);
            now += in->from == 0 ? in->count : 0;
            most = now > most ? now : most;
            now -= in->to == 25 ? in->count : 0;
        }
        assert_true(most <= FILL_UNDERWAY);
    }
    drop(&b);
}

/* A device without room for the weights takes none; a slow one takes fewer. */
static void test_devices(void **state)
{
    struct bench b;
    struct err no = {0};
    (void)state;
    make(&b, 4, 8);
    for (int l = 0; l < 25; l++)
        b.p.frozen[0].layers[l].weight_bytes = 1000;
    b.p.devices[2].memory = plan_trained_bytes(&b.p, &b.plan, 2) + 24999;
    OK(fill_place(&b.p, &b.plan, &no));
    assert_true(b.plan.bare[2] && !b.plan.bare[1]);
    fill(&b);
    assert_int_equal(samples_of(&b, 2), 0);
    assert_int_equal(samples_of(&b, 0) + samples_of(&b, 1) + samples_of(&b, 3), 64);
    drop(&b);

    make(&b, 4, 8);
    b.plan.bare[0] = b.plan.bare[1] = b.plan.bare[3] = true;
    fill(&b);
    assert_int_equal(samples_of(&b, 2), 64);
    drop(&b);

    make(&b, 2, 8);
    b.p.devices[1].speed = 0.5;
    b.p.chains[0].layers[1] = (struct costs_layer){.f = {{0.5}}, .b = {{0.5}}, .w = {{0.5}}};
    schedule_release(&b.s);
    OK(schedule_make(&b.p, &b.plan, &b.s, err));
    fill(&b);
    assert_true(samples_of(&b, 0) > samples_of(&b, 1) * 3 / 2);
    drop(&b);

    make(&b, 2, 2);
    b.p.frozen[0].layers[3].weight_bytes = UINT64_C(2) << 40;
    const int items = b.s.lists[0].n;
    assert_int_equal(fill_place(&b.p, &b.plan, &no), -ENOSPC);
    assert_non_null(strstr(no.msg, "the frozen networks need 2.0 TiB on a device"));
    assert_int_equal(fill_schedule(&b.p, &b.plan, &b.opt, &b.s, &b.report, &no), -EINVAL);
    assert_int_equal(b.s.lists[0].n, items);
    drop(&b);
}

/* What frozen layers made goes to those that want it: the first stage, or all. */
static void test_handed_over(void **state)
{
    (void)state;
    for (int all = 0; all < 2; all++) {
        struct bench b;
        struct pipe_schedule first;
        int sent[4] = {0}, received[4] = {0};
        make(&b, 4, 8);
        b.p.frozen[0].all = all;
        fill(&b);
        OK(fill_prologue(&b.s, &first, err));
        for (int d = 0; d < 4; d++)
            for (int i = 0; i < first.lists[d].n; i++) {
                const struct pipe_instr *in = &first.lists[d].items[i];
                assert_true(in->op == PIPE_FROZEN || in->what == PIPE_ENCODED);
                if (in->op == PIPE_SEND)
                    sent[d] += in->count;
                if (in->op == PIPE_RECV)
                    received[d] += in->count;
            }
        for (int d = 0; d < 4; d++) {
            const int own = samples_of(&b, d), to = all ? 3 : d > 0;
            assert_int_equal(sent[d], own * to);
            assert_int_equal(received[d], all || d == 0 ? 64 - own : 0);
        }
        schedule_release(&first);
        drop(&b);
    }
}

/* Two networks, one behind the other: each sample through both, on one device. */
static void test_two(void **state)
{
    struct bench b;
    (void)state;
    make(&b, 4, 8);
    pipes_frozen(&b.p, 0.1);
    fill(&b);
    int n[2] = {0};
    for (int d = 0; d < 4; d++)
        for (int i = 0; i < b.s.lists[d].n; i++)
            if (b.s.lists[d].items[i].op == PIPE_FROZEN && b.s.lists[d].items[i].to == 25)
                n[b.s.lists[d].items[i].chain] += b.s.lists[d].items[i].count;
    assert_true(n[0] == 64 && n[1] == 64);
    drop(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inside),      cmocka_unit_test(test_outside),
        cmocka_unit_test(test_estimate),    cmocka_unit_test(test_unfilled),
        cmocka_unit_test(test_groups),      cmocka_unit_test(test_devices),
        cmocka_unit_test(test_handed_over), cmocka_unit_test(test_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
