/* The simulator: times that can be worked out by hand, and the bound that planning rests on. */
#include "tests/unit/worker/pipe/pipes.h"

static double seconds(const struct costs *p, const struct pipe_plan *plan, double *idle)
{
    struct pipe_schedule s;
    struct simulation run;
    OK(schedule_make(p, plan, &s, err));
    OK(schedule_check(p, plan, &s, err));
    OK(simulate(p, plan, &s, &run, err));
    const double t = run.seconds;
    if (idle)
        *idle = run.idle;
    simulation_release(&run);
    schedule_release(&s);
    return t;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b));
}

/* (M + S - 1) (f + b + w), and the bubbles that this leaves. */
static void test_1f1b(void **state)
{
    (void)state;
    for (int s = 1; s <= 8; s *= 2)
        for (int m = 1; m <= 16; m++) {
            struct costs p = pipes_profile(1, 8, s, 8);
            const struct pipe_plan plan = pipes_plan(&p, PIPE_1F1B, s, m, 8);
            double idle;
            assert_true(near(seconds(&p, &plan, &idle), 3.0 * 8 / s * (m + s - 1)));
            assert_true(fabs(idle - (s - 1.0) / (m + s - 1)) < 1e-9);
            costs_release(&p);
        }
}

/* All micro-batches but the first add to gradients that are there. */
static void test_add(void **state)
{
    struct costs p = pipes_profile(1, 2, 2, 8);
    (void)state;
    p.chains[0].layers[0].add = 1;
    struct pipe_plan plan = pipes_plan(&p, PIPE_DATA, 1, 1, 8);
    assert_true(near(seconds(&p, &plan, NULL), 6));
    plan = pipes_plan(&p, PIPE_DATA, 1, 4, 8);
    assert_true(near(seconds(&p, &plan, NULL), 4 * 6 + 3));
    costs_release(&p);
}

/* What is encoded before the step, where the chain begins: the other stages wait for it. */
static void test_load(void **state)
{
    struct costs p = pipes_profile(1, 8, 4, 8);
    (void)state;
    struct pipe_plan plan = pipes_plan(&p, PIPE_1F1B, 4, 2, 8);
    p.groups = (struct costs_points){2, {8, 16}};
    p.load = (struct costs_time){{3, 5}};
    p.devices[0].speed = 0.5;
    const double with = seconds(&p, &plan, NULL);
    p.load = (struct costs_time){{0}};
    assert_true(near(with, seconds(&p, &plan, NULL) + 5 / 0.5));
    /* With data parallelism each device encodes its own. */
    p.load = (struct costs_time){{3, 5}};
    plan = pipes_plan(&p, PIPE_DATA, 1, 2, 16);
    plan.devices = plan.cuts[0].stages[0].devices = 4;
    const double data = seconds(&p, &plan, NULL);
    p.load = (struct costs_time){{0}};
    assert_true(near(data, seconds(&p, &plan, NULL) + 3 / 0.5));
    costs_release(&p);
}

/* What is beside the pipeline: transfers, the sum of gradients, the norm, the optimiser. */
static void test_parts(void **state)
{
    struct costs p = pipes_profile(1, 2, 2, 8);
    struct pipe_plan plan = pipes_plan(&p, PIPE_1F1B, 2, 1, 8);
    (void)state;
    p.links[0] = (struct costs_link){0.25, 8000}; /* a micro-batch of 8000 bytes: 1.25 s */
    p.chains[0].layers[0].step = 0.5;
    p.chains[0].layers[1].step = 0.125;
    /* Forward, transfer, forward, backward, transfer, backward; norm of 2 alpha, optimiser. */
    assert_true(near(seconds(&p, &plan, NULL), 6 + 2.5 + 0.5 + 0.5));

    plan = pipes_plan(&p, PIPE_DATA, 1, 1, 8);
    plan.devices = plan.cuts[0].stages[0].devices = 2;
    p.chains[0].layers[0].gradient_bytes = 4000;
    /* Half the samples each; two messages of half the gradients, half of it beside the backward. */
    assert_true(near(seconds(&p, &plan, NULL), 3 + (0.25 + 0.25) + 0.5 + 0.625));
    plan.shard = true;
    /* Each updates a half, and gets the other, which moves half as much as the sum. */
    assert_true(near(seconds(&p, &plan, NULL), 3 + (0.25 + 0.25) + 0.5 + 0.3125 + 0.5));
    p.chains[0].layers[0].gradient_bytes *= 5; /* more than the backward hides: 1 of 3 seconds */
    assert_true(near(seconds(&p, &plan, NULL), 3 + 2 * (0.25 + 1.25) - 1 + 0.5 + 0.3125 + 1.5));
    p.devices[0].sums_apart = true; /* nothing is hidden */
    assert_true(near(seconds(&p, &plan, NULL), 3 + 2 * (0.25 + 1.25) + 0.5 + 0.3125 + 1.5));
    p.devices[0].sums_apart = false;
    p.chains[0].layers[0].gradient_bytes /= 5;
    plan.shard = false;
    p.devices[1].speed = 0.5;
    assert_true(near(seconds(&p, &plan, NULL), 6 + (0.25 + 0.25) + 0.5 + 1.25));
    costs_release(&p);
}

/* A transfer does not hold up computing: a link that is busy half of the time costs its latency
 * once each way. */
static void test_overlap(void **state)
{
    struct costs p = pipes_profile(1, 2, 2, 8);
    const struct pipe_plan plan = pipes_plan(&p, PIPE_1F1B, 2, 8, 8);
    (void)state;
    p.links[0] = (struct costs_link){1, INFINITY};
    assert_true(near(seconds(&p, &plan, NULL), 3 * 9 + 2 + 2));
    costs_release(&p);
}

static void randomise(struct rng *r, struct costs *p)
{
    struct costs_chain *c = &p->chains[0];
    for (int i = 0; i < c->n; i++) {
        struct costs_layer *l = &c->layers[i];
        l->f.s[0] = 0.1 + rng_uniform_double(r);
        l->b.s[0] = 0.1 + rng_uniform_double(r);
        l->w.s[0] = rng_uniform_double(r);
        l->out_bytes = rng_below(r, 2000);
    }
    for (int d = 0; d + 1 < p->n_devices; d++)
        p->links[d] = (struct costs_link){rng_uniform_double(r) * 0.3, 8000};
}

/* No step of 1F1B, with 2(S-1-s)+1 warm-ups, takes longer than (M + 2S - 2) times the slowest
 * stage or link, both ways; and split, in the same slots, is no slower than 1F1B. */
static void test_bound(void **state)
{
    struct rng r;
    (void)state;
    rng_init(&r, 1, 1);
    for (int n = 0; n < 300; n++) {
        const int stages = 2 + (int)rng_below(&r, 4), micros = 1 + (int)rng_below(&r, 12);
        struct costs p = pipes_profile(1, stages + (int)rng_below(&r, 4), stages, 8);
        struct pipe_plan plan = pipes_plan(&p, PIPE_1F1B, stages, micros, 8);
        double slowest = 0;
        randomise(&r, &p);
        for (int s = 0; s < stages; s++) {
            const struct pipe_cost c = pipe_stage_cost(&p, &plan, 0, s);
            slowest = fmax(slowest, c.f + c.b + c.w);
            if (s + 1 < stages)
                slowest =
                    fmax(slowest,
                         2 * costs_transfer(
                                 &p.links[s],
                                 8 * p.chains[0].layers[plan.cuts[0].stages[s].to - 1].out_bytes));
        }
        const struct costs_link way = costs_link(&p, 0, stages - 1);
        const double t = seconds(&p, &plan, NULL) - 2 * way.alpha;
        assert_true(t <= (micros + 2 * stages - 2) * slowest * (1 + 1e-9));
        costs_release(&p);
    }
}

/* Four stages, eight micro-batches: the last W's fill what 1F1B leaves idle. */
static void test_split(void **state)
{
    struct costs p = pipes_profile(1, 4, 4, 8);
    struct pipe_plan plan = pipes_plan(&p, PIPE_SPLIT, 4, 8, 8);
    double best = INFINITY;
    (void)state;
    for (int s = 0; s < 4; s++) {
        plan.cuts[0].stages[s].warm = 4 - s;
        plan.cuts[0].stages[s].slots = 4;
    }
    for (plan.variant = 0; plan.variant < SCHEDULE_VARIANTS; plan.variant++)
        best = fmin(best, seconds(&p, &plan, NULL));
    assert_true(near(best, 27));
    costs_release(&p);
}

static void test_bidirectional(void **state)
{
    struct costs p = pipes_profile(2, 4, 4, 8);
    struct pipe_plan plan = pipes_plan(&p, PIPE_1F1B, 4, 2, 8);
    double best = INFINITY;
    (void)state;
    assert_true(near(seconds(&p, &plan, NULL), 3 * (4 + 3)));
    plan = pipes_plan(&p, PIPE_BIDIRECTIONAL, 4, 2, 8);
    for (plan.variant = 0; plan.variant < SCHEDULE_VARIANTS; plan.variant++)
        best = fmin(best, seconds(&p, &plan, NULL));
    assert_true(near(best, 19));
    plan = pipes_plan(&p, PIPE_DIVIDED, 4, 2, 8); /* two layers a stage, both chains at once */
    assert_true(near(seconds(&p, &plan, NULL), 6 * (2 + 1)));
    costs_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_1f1b),    cmocka_unit_test(test_add),
        cmocka_unit_test(test_load),    cmocka_unit_test(test_parts),
        cmocka_unit_test(test_overlap), cmocka_unit_test(test_bound),
        cmocka_unit_test(test_split),   cmocka_unit_test(test_bidirectional),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
