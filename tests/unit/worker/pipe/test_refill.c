/* Filling again: costs become what steps took, and the share of the bubbles is the fastest one. */
#include "worker/pipe/refill.h"

#include "tests/unit/worker/pipe/pipes.h"
#include "worker/pipe/fill.h"

enum { STAGES = 4, MICROS = 4, EACH = 8 };

static struct costs profile(double frozen)
{
    struct costs p = pipes_profile(1, 2 * STAGES, STAGES, EACH);
    pipes_frozen(&p, frozen);
    return p;
}

static void fill(const struct costs *p, const struct pipe_plan *plan, double share,
                 struct pipe_schedule *s, struct fill_report *report)
{
    const struct fill_options opt = {.samples = MICROS * EACH, .group = 8, .share = share};
    OK(schedule_make(p, plan, s, err));
    OK(fill_schedule(p, plan, &opt, s, report, err));
}

/* A step of lists that were made by some costs, on devices that have others. */
static double run(const struct costs *real, const struct costs *said, const struct pipe_plan *plan,
                  double share, struct refill_times *seen)
{
    struct pipe_schedule s;
    struct fill_report report;
    struct simulation run;
    fill(said, plan, share, &s, &report);
    OK(simulate(real, plan, &s, &run, err));
    *seen = (struct refill_times){0};
    for (int d = 0; d < STAGES; d++)
        refill_read(seen, said, d, &s.lists[d], &run.traces[d]);
    const double seconds = run.seconds;
    simulation_release(&run);
    schedule_release(&s);
    return seconds;
}

/* Stages, passes and frozen layers that take others seconds than was said, on unlike devices. */
static void make_real(struct costs *p)
{
    p->devices[1].speed = 0.5;
    for (int i = 0; i < 2 * STAGES; i++) {
        struct costs_layer *l = &p->chains[0].layers[i];
        l->f.s[0] *= i < 3 ? 1.5 : 0.9;
        l->b.s[0] *= 1.2;
        l->w.s[0] *= i < 6 ? 0.8 : 1.3;
    }
    for (int i = 0; i < p->frozen[0].n; i++)
        p->frozen[0].layers[i].t.s[0] *= 1.4;
}

static void check_same(double a, double b)
{
    assert_true(fabs(a - b) < 1e-9 * fmax(a, b));
}

static void test_costs(void **state)
{
    (void)state;
    for (int split = 0; split < 2; split++) {
        struct costs said = profile(0.3), real = profile(0.3), got;
        struct refill_times seen;
        make_real(&real);
        said.devices[1].speed = 0.5;
        struct pipe_plan plan = pipes_plan(&said, PIPE_1F1B, STAGES, MICROS, EACH);
        if (split)
            pipe_plan_split(&plan);
        OK(costs_copy(&said, &got));
        (void)run(&real, &said, &plan, 0, &seen);
        refill_correct(&seen, &plan, &got);
        for (int s = 0; s < STAGES; s++) {
            const struct pipe_cost a = pipe_stage_cost(&got, &plan, 0, s),
                                   b = pipe_stage_cost(&real, &plan, 0, s);
            check_same(a.f, b.f);
            check_same(a.b + a.w, b.b + b.w);
            if (split)
                check_same(a.w, b.w);
        }
        for (int i = 0; i < got.frozen[0].n; i++)
            check_same(got.frozen[0].layers[i].t.s[0], real.frozen[0].layers[i].t.s[0]);
        check_same(said.chains[0].layers[0].f.s[0], 1); /* a copy is its own */
        /* What was not seen stays. */
        refill_correct(&(struct refill_times){0}, &plan, &got);
        check_same(got.frozen[0].layers[0].t.s[0], real.frozen[0].layers[0].t.s[0]);
        check_same(pipe_stage_cost(&got, &plan, 0, 0).f, pipe_stage_cost(&real, &plan, 0, 0).f);
        costs_release(&got);
        costs_release(&said);
        costs_release(&real);
    }
}

/* Each chain's costs become its own: of stages of both on each device. */
static void test_chains(void **state)
{
    struct costs said = pipes_profile(2, STAGES, STAGES, EACH), got;
    struct costs real = pipes_profile(2, STAGES, STAGES, EACH);
    struct refill_times seen;
    (void)state;
    pipes_frozen(&said, 0.3);
    pipes_frozen(&real, 0.3);
    for (int i = 0; i < STAGES; i++) {
        real.chains[0].layers[i].f.s[0] *= 1 + 0.1 * i;
        real.chains[1].layers[i].f.s[0] *= 3 - 0.5 * i;
        real.chains[1].layers[i].w.s[0] *= 2;
    }
    const struct pipe_plan plan = pipes_plan(&said, PIPE_1F1B, STAGES, MICROS, EACH);
    OK(costs_copy(&said, &got));
    (void)run(&real, &said, &plan, 0, &seen);
    refill_correct(&seen, &plan, &got);
    for (int c = 0; c < 2; c++)
        for (int s = 0; s < STAGES; s++) {
            const struct pipe_cost a = pipe_stage_cost(&got, &plan, c, s),
                                   b = pipe_stage_cost(&real, &plan, c, s);
            check_same(a.f, b.f);
            check_same(a.b + a.w, b.b + b.w);
        }
    costs_release(&got);
    costs_release(&said);
    costs_release(&real);
}

/* Of a stage of two devices the one that takes longer says what its layers cost; a device has no
 * sample of a micro-batch of one. */
static void test_wide(void **state)
{
    const struct refill_times seen = {.passes = {{{3, 4, 5}, {6, 5, 6}, {2, 2, 2}}}};
    static const int sizes[] = {3, 1};
    (void)state;
    for (int split = 0; split < 2; split++) {
        struct costs p = pipes_profile(1, 3, 3, 2);
        struct pipe_schedule s;
        struct pipe_plan plan = pipes_plan(&p, PIPE_1F1B, 2, 2, 3);
        struct pipe_cut *cut = &plan.cuts[0];
        plan.devices = 3;
        cut->stages[0].devices = cut->stages[1].device = 2;
        p.devices[1].speed = 0.5;
        if (split)
            pipe_plan_split(&plan);
        refill_correct(&seen, &plan, &p);
        const struct pipe_cost wide = pipe_stage_cost(&p, &plan, 0, 0);
        check_same(wide.f, 6 * 0.5);
        check_same(wide.b + wide.w, 11 * 0.5);
        check_same(pipe_stage_cost(&p, &plan, 0, 1).f, 2);
        cut->sizes = sizes;
        OK(schedule_make(&p, &plan, &s, err));
        for (int d = 0; d < 3; d++)
            for (int i = 0; i < s.lists[d].n; i++) {
                static const int counts[3][2] = {{1, 0}, {2, 1}, {3, 1}};
                const struct pipe_instr *in = &s.lists[d].items[i];
                if (in->op == PIPE_F || in->op == PIPE_B || in->op == PIPE_W)
                    assert_int_equal(in->count, counts[d][in->micro]);
            }
        schedule_release(&s);
        costs_release(&p);
    }
}

/* Copies: the slowest counts; steps: the fastest. */
static void test_seen(void **state)
{
    struct refill r = {.share = 1};
    struct pipe_instr items[] = {
        {.op = PIPE_F, .count = 2}, {.op = PIPE_F, .count = 2}, {.op = PIPE_STEP}, {.op = PIPE_F}};
    const struct pipe_list list = {items, 4, 4};
    const struct costs p = {0};
    (void)state;
    for (int i = 0; i < REFILL_SETTLED + REFILL_STEPS; i++) {
        const double more = i == REFILL_SETTLED + 1 ? 0 : i;
        struct refill_times seen = {0};
        for (int copy = 0; copy < 2; copy++) {
            /* waiting for what is received is no work */
            /* nor is a micro-batch of which the device has no sample */
            struct trace_row rows[] = {
                {0, 5 + more, 4}, {6, 9 + more, 6 - copy}, {9, 10 + copy}, {10, 10, 10}};
            refill_read(&seen, &p, 1, &list, &(struct trace){rows, 4, 0});
        }
        (void)refill_step(&r, &seen, 1);
    }
    assert_int_equal(r.state, REFILL_TRIES);
    assert_true(r.times.pipeline == 11 && r.times.passes[0][1][0] == 2.5);
    assert_true(r.times.passes[0][0][0] == 0 && r.times.passes[0][1][1] == 0);
}

/* Steps until the next change; seconds of the pipeline, and of the step. */
static int steps(struct refill *r, double pipeline, double seconds)
{
    for (int i = 1;; i++) {
        /* the fastest counts */
        const struct refill_times seen = {.pipeline = i == 2 ? pipeline : 2 * pipeline};
        if (refill_step(r, &seen, i == 3 ? seconds : 3 * seconds))
            return i;
        assert_true(i < 100);
    }
}

static struct refill begun(double pipeline, double seconds)
{
    struct refill r = {.share = 1};
    assert_int_equal(steps(&r, 1, 1), REFILL_SETTLED);
    assert_true(r.state == REFILL_EMPTY && r.share == 0);
    assert_int_equal(steps(&r, pipeline, seconds), REFILL_STEPS);
    assert_true(r.state == REFILL_TRIES && r.share == 1);
    return r;
}

static void test_shares(void **state)
{
    (void)state;
    struct refill r = begun(10, 16); /* all of it is well */
    (void)steps(&r, 10.1, 11);
    assert_true(r.state == REFILL_DONE && r.share == 1 && r.best == 11 && r.empty == 16);
    assert_true(fabs(r.delay - 0.01) < 1e-9);
    assert_false(refill_step(&r, &(struct refill_times){.pipeline = 99}, 99));

    r = begun(10, 16); /* less of it is */
    (void)steps(&r, 11, 13);
    assert_true(r.state == REFILL_TRIES && r.share == REFILL_SMALLER);
    (void)steps(&r, 10.1, 12);
    assert_true(r.state == REFILL_DONE && r.share == REFILL_SMALLER && r.best == 12);

    r = begun(10, 16); /* less delays less, but costs more behind STEP */
    (void)steps(&r, 11, 12);
    (void)steps(&r, 10.1, 12.5);
    assert_true(r.state == REFILL_DONE && r.share == 1 && r.best == 12);

    r = begun(10, 16); /* nothing is */
    for (int i = 0; i < REFILL_SHARES_MAX; i++) {
        assert_int_equal(r.state, REFILL_TRIES);
        (void)steps(&r, 12, 17);
    }
    assert_true(r.state == REFILL_DONE && r.share == 0 && r.best == 16 && r.delay == 0);
}

/* A profile that is wrong: filled again, a step is as fast as if it had been right. */
static void test_wrong_profile(void **state)
{
    static const double least[] = {1.04, 1, 1.15}; /* what was wrong cost */
    (void)state;
    for (int k = 0; k < 3; k++) {
        struct costs said = profile(0.6), real = profile(0.6 * (k == 0 ? 1.5 : k == 1 ? 0.6 : 1));
        struct refill r = {.share = 1};
        struct refill_times seen;
        if (k == 2)
            make_real(&real);
        const struct pipe_plan plan = pipes_plan(&said, PIPE_1F1B, STAGES, MICROS, EACH);
        const double before = run(&real, &said, &plan, 1, &seen);
        const double right = run(&real, &real, &plan, 1, &seen);
        while (r.state != REFILL_DONE) {
            const bool empty = r.state == REFILL_EMPTY;
            const double seconds = run(&real, &said, &plan, r.share, &seen);
            if (refill_step(&r, &seen, seconds) && empty)
                refill_correct(&r.times, &plan, &said);
        }
        const double after = run(&real, &said, &plan, r.share, &seen);
        if (after > right * 1.001 || before < right * least[k])
            fail_msg("%d: %g s before, %g s after, %g s with the right costs", k, before, after,
                     right);
        costs_release(&said);
        costs_release(&real);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_costs),         cmocka_unit_test(test_wide),
        cmocka_unit_test(test_seen),          cmocka_unit_test(test_shares),
        cmocka_unit_test(test_wrong_profile), cmocka_unit_test(test_chains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
