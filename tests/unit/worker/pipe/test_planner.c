/* The planner: near the best of all cuts, the simplest of equals, and why others cannot be. */
#include "tests/unit/worker/pipe/brute.h"
#include "worker/pipe/planner.h"

static struct planner_options options(int samples, int micros)
{
    return (struct planner_options){
        .samples = samples, .n_micros = 1, .micros = {micros}, .fill = true, .group = 8};
}

static void refused(const struct costs *p, const struct planner_options *opt, int code,
                    const char *sentence)
{
    struct planner_result r;
    struct err err = {0};
    assert_int_equal(planner_search(p, opt, &r, &err), code);
    if (!strstr(err.msg, sentence))
        fail_msg("'%s' does not say '%s'", err.msg, sentence);
}

/* With free links, nothing beats data parallelism, and pipelines are not asked to. */
static void test_simplest(void **state)
{
    struct costs p = pipes_profile(1, 8, 4, 8);
    const struct planner_options opt = options(64, 8);
    struct planner_result r;
    (void)state;
    OK(planner_search(&p, &opt, &r, err));
    assert_int_equal(r.chosen, PIPE_DATA);
    assert_true(fabs(r.of[PIPE_DATA].seconds - 48) < 1e-9);
    assert_true(r.of[PIPE_1F1B].possible && r.of[PIPE_SPLIT].possible);
    assert_string_equal(r.of[PIPE_BIDIRECTIONAL].why, "it is for two chains");
    assert_string_equal(r.of[PIPE_DIVIDED].why, "it is for two chains");
    assert_string_equal(r.why, "data parallelism takes 48 s a step, and nothing takes less");
    planner_release(&r);
    costs_release(&p);
}

/* The update is work: without frozen layers a device idles as much after filling as before. */
static void test_idle(void **state)
{
    struct costs p = pipes_profile(1, 8, 4, 8);
    const struct planner_options opt = options(64, 8);
    struct planner_result r;
    (void)state;
    for (int l = 0; l < 8; l++)
        p.chains[0].layers[l].step = 0.5;
    OK(planner_search(&p, &opt, &r, err));
    assert_true(fabs(r.of[PIPE_DATA].idle_before) < 1e-9);
    for (enum pipe_order o = PIPE_DATA; o <= PIPE_SPLIT; o++)
        assert_true(r.of[o].possible && r.of[o].idle_before == r.of[o].idle);
    planner_release(&r);
    costs_release(&p);
}

/* Of a step with an estimate: a forward more, in the share of the steps that have one. */
static void test_estimate(void **state)
{
    struct costs p = pipes_profile(1, 8, 4, 8);
    struct planner_options opt = options(64, 8);
    struct planner_result plain, r;
    (void)state;
    OK(planner_search(&p, &opt, &plain, err));
    opt.estimate = 0.5;
    OK(planner_search(&p, &opt, &r, err));
    assert_int_equal(r.chosen, PIPE_DATA);
    assert_true(fabs(r.of[PIPE_DATA].estimate - 16) < 1e-9); /* a third of the 48 s */
    assert_true(fabs(r.of[PIPE_DATA].seconds - 56) < 1e-9);
    for (enum pipe_order o = PIPE_1F1B; o <= PIPE_SPLIT; o++) {
        const struct planner_candidate *a = &plain.of[o], *b = &r.of[o];
        const double slowest = 2; /* seconds of the forward of two of eight layers */
        assert_true(a->estimate == 0);
        assert_true(fabs(b->seconds - (a->seconds + b->estimate / 2)) < 1e-9);
        assert_true(b->estimate >= 8 * slowest && b->estimate <= (8 + 3) * slowest);
    }
    planner_release(&plain);
    planner_release(&r);
    costs_release(&p);
}

/* Where sums of gradients take long, a pipeline is faster; where little, it is said so. */
static void test_links(void **state)
{
    struct costs p = pipes_profile(1, 8, 4, 8);
    struct planner_options opt = options(64, 8);
    struct planner_result r;
    (void)state;
    for (int l = 0; l < 8; l++)
        p.chains[0].layers[l].gradient_bytes = 10000000;
    for (int d = 0; d < 3; d++)
        p.links[d] = (struct costs_link){0, 1e6};
    OK(planner_search(&p, &opt, &r, err));
    const struct planner_candidate *c = &r.of[r.chosen];
    assert_true(c->plan.order == PIPE_SPLIT && c->plan.cuts[0].n == 4 && c->plan.copies == 1);
    assert_true(c->seconds < r.of[PIPE_DATA].seconds * 0.7);
    assert_non_null(strstr(r.why, "split with 4 stages takes"));
    assert_true(c->idle_before > 0 && c->memory > 0);
    planner_release(&r);

    opt.orders = PLANNER_BIT(PIPE_1F1B);
    opt.stages = 2;
    OK(planner_search(&p, &opt, &r, err));
    assert_true(r.chosen == PIPE_1F1B && r.of[PIPE_1F1B].plan.cuts[0].n == 2);
    assert_string_equal(r.of[PIPE_DATA].why, "not asked for");
    planner_release(&r);
    costs_release(&p);
}

/* A model that fits no device whole; then one whose moments must be shared out; then none. */
static void test_memory(void **state)
{
    struct costs p = pipes_profile(1, 8, 4, 8);
    struct planner_options opt = options(64, 8);
    struct planner_result r;
    (void)state;
    for (int l = 0; l < 8; l++)
        p.chains[0].layers[l].weight_bytes = 1000000;
    for (int d = 0; d < 4; d++)
        p.devices[d].memory = 3000000;
    OK(planner_search(&p, &opt, &r, err));
    assert_false(r.of[PIPE_DATA].possible);
    assert_non_null(strstr(r.of[PIPE_DATA].why, "and device 0 (cpu:0) has 2.9 MiB"));
    assert_true(r.chosen == PIPE_SPLIT || r.chosen == PIPE_1F1B);
    assert_non_null(strstr(r.why, "data parallelism cannot be: the whole model"));
    for (int s = 0; s < r.of[PIPE_1F1B].plan.cuts[0].n; s++) /* two layers each, with their slots */
        assert_true(plan_bytes(&p, &r.of[PIPE_1F1B].plan, s) <= 3000000);
    planner_release(&r);

    for (int l = 0; l < 8; l++)
        p.chains[0].layers[l].state_bytes = 1000000;
    for (int d = 0; d < 4; d++)
        p.devices[d].memory = 11000000;
    OK(planner_search(&p, &opt, &r, err));
    assert_true(r.of[PIPE_DATA].possible && r.of[PIPE_DATA].plan.shard);
    assert_false(r.of[PIPE_1F1B].plan.shard && r.of[PIPE_1F1B].plan.copies == 1);
    planner_release(&r);
    opt.shard = JOB_SHARD_NONE;
    OK(planner_search(&p, &opt, &r, err));
    assert_false(r.of[PIPE_DATA].possible);
    planner_release(&r);

    for (int d = 0; d < 4; d++)
        p.devices[d].memory = 5000000;
    opt.stages = 2;
    refused(&p, &opt, -ENOMEM,
            "no plan: it has one stage; as a pipeline: no cut into stages fits; "
            "evenly cut into 2, cpu:0 needs 7.7 MiB of 4.8 MiB, cpu:1 needs ");
    refused(&p, &opt, -ENOMEM, "; 4 stages would do");
    opt.stages = 0;
    for (int d = 0; d < 4; d++)
        p.devices[d].memory = 1000000;
    refused(&p, &opt, -ENOMEM,
            "as a pipeline: no cut into stages fits; evenly cut into 4, cpu:0 "
            "needs 3.9 MiB of 976.6 KiB, cpu:1 needs 3.9 MiB of 976.6 KiB, ");
    costs_release(&p);
}

/* State is shared where the job asks for it, by whatever can, and else only for lack of memory. */
static void test_shared(void **state)
{
    struct costs p = pipes_profile(1, 8, 4, 8);
    struct planner_options opt = options(64, 8);
    (void)state;
    for (enum job_shard shard = JOB_SHARD_AUTO; shard <= JOB_SHARD_OPTIMIZER; shard++) {
        struct planner_result r;
        opt.shard = shard;
        OK(planner_search(&p, &opt, &r, err));
        assert_int_equal(r.of[PIPE_DATA].plan.shard, shard == JOB_SHARD_OPTIMIZER);
        assert_int_equal(r.of[PIPE_1F1B].plan.shard,
                         shard == JOB_SHARD_OPTIMIZER && pipe_shares(&r.of[PIPE_1F1B].plan));
        planner_release(&r);
    }
    opt.stages = 4; /* nothing is held twice */
    struct planner_result r;
    OK(planner_search(&p, &opt, &r, err));
    assert_false(r.of[PIPE_1F1B].plan.shard || r.of[PIPE_SPLIT].plan.shard);
    planner_release(&r);
    costs_release(&p);
}

static void test_refusals(void **state)
{
    struct costs p = pipes_profile(1, 3, 4, 8), one = pipes_profile(1, 3, 1, 8);
    struct planner_options opt = options(64, 8);
    (void)state;
    opt.stages = 5;
    refused(&p, &opt, -ERR_CONFIG, "5 stages are more than 4 devices");
    opt.stages = 4;
    refused(&p, &opt, -ERR_CONFIG, "4 stages are more than the 3 layers of chain-0");
    opt.stages = 2;
    refused(&one, &opt, -ERR_CONFIG, "a pipeline needs two devices, and there is one");
    opt = options(64, 8);
    opt.orders = PLANNER_BIT(PIPE_SPLIT);
    refused(&one, &opt, -ERR_CONFIG, "a pipeline needs two devices");
    opt = options(64, 5);
    refused(&p, &opt, -ERR_CONFIG,
            "64 samples a step cannot be divided into 5 equal micro-batches: take a ");
    costs_release(&p);
    costs_release(&one);
}

/* Data parallelism is one of the plans, however few samples a micro-batch has: a device then has
 * fewer micro-batches. */
static void test_few_samples(void **state)
{
    static const struct {
        int samples, micros, its, of;
        double seconds; /* 3 a sample of the device that has most */
    } tries[] = {{8, 4, 2, 4, 6}, {2, 1, 1, 2, 3}, {10, 10, 3, 4, 9}, {1, 1, 1, 1, 3}};
    struct costs p = pipes_profile(1, 8, 4, 8);
    (void)state;
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        const struct planner_options opt = options(tries[i].samples, tries[i].micros);
        struct planner_result r;
        OK(planner_search(&p, &opt, &r, err));
        const struct planner_candidate *c = &r.of[PIPE_DATA];
        assert_int_equal(c->plan.cuts[0].micros, tries[i].its);
        assert_int_equal(c->plan.cuts[0].samples, tries[i].of);
        assert_true(fabs(c->seconds - tries[i].seconds) < 1e-9);
        planner_release(&r);
    }
    /* A copy of a pipeline likewise. */
    struct costs eight = pipes_profile(1, 2, 8, 8);
    struct planner_options opt = options(8, 4);
    struct planner_result r;
    opt.stages = 2;
    opt.width = 1;
    opt.orders = PLANNER_BIT(PIPE_1F1B);
    OK(planner_search(&eight, &opt, &r, err));
    assert_int_equal(r.of[PIPE_1F1B].plan.copies, 4);
    assert_int_equal(r.of[PIPE_1F1B].plan.cuts[0].micros, 2);
    planner_release(&r);
    costs_release(&eight);
    costs_release(&p);
}

/* Automatic numbers of micro-batches: as many as memory asks for, but no more of a pipeline's than
 * could matter. */
static void test_automatic(void **state)
{
    struct costs p = pipes_profile(1, 8, 4, 8);
    struct planner_options opt = options(65536, 1);
    struct planner_result r;
    (void)state;
    opt.n_micros = 0;
    planner_powers(&opt, 3, 10);
    assert_true(opt.n_micros == 2 && opt.micros[0] == 4 && opt.micros[1] == 8);
    opt.n_micros = 0;
    planner_powers(&opt, 6, 6);
    assert_true(opt.n_micros == 1 && opt.micros[0] == 6);
    opt.n_micros = 0;
    planner_powers(&opt, 1, 65536);
    assert_true(opt.n_micros == 17 && opt.micros[16] == 65536);
    OK(planner_search(&p, &opt, &r, err));
    assert_true(r.of[PIPE_1F1B].idle_before < PLANNER_SAME);
    assert_in_range(r.of[PIPE_1F1B].plan.cuts[0].micros, 64, 256);
    planner_release(&r);
    for (int d = 0; d < 4; d++)
        p.devices[d].memory = 40000; /* 5 samples of the whole model, or 2 in four stages */
    opt.samples = 512;
    OK(planner_search(&p, &opt, &r, err));
    assert_int_equal(r.of[PIPE_DATA].plan.cuts[0].micros, 32);
    assert_true(r.of[PIPE_1F1B].possible);
    planner_release(&r);
    costs_release(&p);
}

/* Where numbers do not go together, it is not memory that lacks. */
static void test_numbers(void **state)
{
    struct costs p = pipes_profile(1, 4, 4, 8), eight = pipes_profile(1, 4, 8, 8);
    struct costs two = pipes_profile(2, 3, 4, 8);
    struct planner_options opt = options(3, 1);
    struct planner_result r;
    (void)state;
    opt.stages = 2; /* two copies, of a sample and a half */
    opt.width = 1;
    refused(&p, &opt, -ERR_CONFIG,
            "no plan: it has one stage; as a pipeline: a step of 3 cannot be divided among 4 "
            "devices so that copies and "
            "micro-batches are equal and each device has a sample of each: change train.batch, ");
    opt.orders = PLANNER_BIT(PIPE_1F1B);
    refused(&p, &opt, -ERR_CONFIG, "no plan: a step of 3 cannot be divided");
    opt = options(1, 1); /* four layers: a stage has two devices */
    OK(planner_search(&eight, &opt, &r, err));
    assert_non_null(strstr(r.of[PIPE_1F1B].why, "a step of 1 cannot be divided among 8 devices"));
    assert_string_equal(r.of[PIPE_SPLIT].why, r.of[PIPE_1F1B].why);
    planner_release(&r);
    opt = options(15, 1); /* no two copies either */
    OK(planner_search(&two, &opt, &r, err));
    assert_string_equal(r.of[PIPE_1F1B].why, "a chain has fewer layers than there are devices");
    assert_string_equal(r.of[PIPE_BIDIRECTIONAL].why, r.of[PIPE_1F1B].why);
    assert_true(r.of[PIPE_DIVIDED].possible);
    planner_release(&r);
    costs_release(&two);
    two = pipes_profile(2, 1, 4, 8);
    opt.stages = 3;
    refused(&two, &opt, -ERR_CONFIG, "3 stages are more than the 2 layers of both chains");
    costs_release(&two);
    costs_release(&eight);
    costs_release(&p);
}

/* Frozen layers are counted in every order; split, filled, is never worse than 1F1B, filled. */
static void test_frozen(void **state)
{
    (void)state;
    for (int micros = 2; micros <= 16; micros *= 2) {
        struct costs p = pipes_profile(1, 8, 4, 8);
        const struct planner_options opt = options(8 * micros, micros);
        struct planner_result r;
        pipes_frozen(&p, 0.44 * 3 * 8 / 8);
        OK(planner_search(&p, &opt, &r, err));
        assert_true(r.of[PIPE_SPLIT].seconds <= r.of[PIPE_1F1B].seconds * (1 + 1e-9));
        for (int o = PIPE_DATA; o <= PIPE_SPLIT; o++)
            if (r.of[o].possible)
                assert_true(r.of[o].seconds >= 6.0 * micros * 1.44 * (1 - 1e-9));
        planner_release(&r);
        costs_release(&p);
    }
}

/* Two chains of a cascade, where little is sent at a time: from both ends is faster than one behind
 * the other, and each on half of the devices, with as many stages fewer, faster still. */
static void test_cascade(void **state)
{
    struct costs p = pipes_profile(2, 4, 4, 8);
    struct planner_options opt = options(16, 2);
    struct planner_result r;
    (void)state;
    opt.stages = 4;
    opt.orders = ~PLANNER_BIT(PIPE_SPLIT);
    OK(planner_search(&p, &opt, &r, err));
    assert_true(fabs(r.of[PIPE_1F1B].plain - 21) < 1e-9);
    assert_true(fabs(r.of[PIPE_BIDIRECTIONAL].plain - 19) < 1e-9);
    assert_true(fabs(r.of[PIPE_DIVIDED].plain - 18) < 1e-9);
    assert_int_equal(r.chosen, PIPE_DIVIDED);
    assert_string_equal(r.why,
                        "divided with 4 stages takes 18 s a step; data parallelism cannot be: "
                        "it has one stage");
    assert_string_equal(r.of[PIPE_DATA].why, "it has one stage");
    planner_release(&r);
    /* With the weights' backward apart two seconds are left of the bubbles: all do 12 s. */
    opt.orders = PLANNER_BIT(PIPE_SPLIT);
    OK(planner_search(&p, &opt, &r, err));
    assert_true(fabs(r.of[PIPE_SPLIT].plain - 14) < 1e-9);
    assert_int_equal(r.chosen, PIPE_SPLIT);
    assert_string_equal(r.of[PIPE_1F1B].why, "not asked for");
    assert_string_equal(r.of[PIPE_DIVIDED].why, "not asked for");
    planner_release(&r);
    opt.orders = PLANNER_BIT(PIPE_1F1B) | PLANNER_BIT(PIPE_DIVIDED);
    opt.estimate = 0.5; /* a forward of the base more: it has half of the devices */
    OK(planner_search(&p, &opt, &r, err));
    assert_true(r.of[PIPE_DIVIDED].estimate >= 4 && r.of[PIPE_DIVIDED].estimate <= 6);
    assert_true(r.of[PIPE_1F1B].estimate > 0);
    planner_release(&r);
    opt.estimate = 0;
    /* One order alone, which does not fit: the reason is that order's. */
    struct err e = {0};
    opt.orders = PLANNER_BIT(PIPE_BIDIRECTIONAL);
    for (int l = 0; l < p.chains[0].n; l++)
        p.chains[0].layers[l].weight_bytes = UINT64_C(1) << 45;
    assert_int_equal(planner_search(&p, &opt, &r, &e), -ENOMEM);
    assert_non_null(strstr(e.msg, "no plan: no cut into stages fits; evenly cut into 4, "));
    opt.orders = PLANNER_BIT(PIPE_DIVIDED);
    assert_int_equal(planner_search(&p, &opt, &r, &e), -ENOMEM);
    assert_non_null(strstr(e.msg, "evenly cut into 4, cpu:0 needs 64.0 TiB of 1.0 TiB"));
    costs_release(&p);
}

/* Devices are divided as the chains' work is, whichever has more of it, and among copies. */
static void test_divided(void **state)
{
    (void)state;
    for (int heavy = 0; heavy < 2; heavy++) {
        struct costs p = pipes_profile(2, 6, 4, 8);
        struct planner_options opt = options(64, 8);
        struct planner_result r;
        opt.orders = PLANNER_BIT(PIPE_DIVIDED);
        for (int l = 0; l < 6; l++)
            p.chains[heavy].layers[l].f.s[0] = p.chains[heavy].layers[l].b.s[0] =
                p.chains[heavy].layers[l].w.s[0] = 3;
        OK(planner_search(&p, &opt, &r, err));
        const struct planner_candidate *c = &r.of[PIPE_DIVIDED];
        assert_int_equal(c->plan.cuts[heavy].n, 3);
        assert_int_equal(c->plan.cuts[1 - heavy].n, 1);
        assert_int_equal(c->plan.cuts[1].stages[0].device, c->plan.cuts[0].n);
        assert_true(fabs(c->plain - 18 * (8 + 2)) < 1e-9); /* two layers of 9 s, three stages */
        assert_true(fabs(c->idle_before - (1 - 8 * 72 / (180.0 * 4))) < 1e-9);
        planner_release(&r);
        opt.stages = 2;
        OK(planner_search(&p, &opt, &r, err));
        assert_true(c->plan.copies == 2 && pipe_places(&c->plan) == 2);
        planner_release(&r);
        opt.stages = 13;
        refused(&p, &opt, -ERR_CONFIG, "13 stages are more than 4 devices");
        costs_release(&p);
    }
}

/* A chain of one layer has one device, and needs no more for that. */
static void test_divided_small(void **state)
{
    struct costs p = pipes_profile(2, 1, 2, 8);
    struct planner_options opt = options(16, 2);
    struct planner_result r;
    (void)state;
    OK(planner_search(&p, &opt, &r, err));
    assert_false(r.of[PIPE_1F1B].possible || r.of[PIPE_BIDIRECTIONAL].possible);
    assert_true(fabs(r.of[PIPE_DIVIDED].plain - 6) < 1e-9);
    planner_release(&r);
    costs_release(&p);
    p = pipes_profile(2, 1, 3, 8);
    opt.orders = PLANNER_BIT(PIPE_DIVIDED);
    refused(&p, &opt, -ERR_CONFIG, "both chains have fewer layers than there are devices");
    costs_release(&p);
}

/* Equal pipelines side by side, where one of all devices would have more stages than layers. */
static void test_copies(void **state)
{
    struct costs p = pipes_profile(1, 2, 4, 8);
    struct planner_options opt = options(32, 4);
    struct planner_result r;
    (void)state;
    opt.orders = PLANNER_BIT(PIPE_1F1B);
    for (int l = 0; l < 2; l++)
        p.chains[0].layers[l].weight_bytes = UINT64_C(1) << 39;
    OK(planner_search(&p, &opt, &r, err));
    const struct pipe_plan *plan = &r.of[PIPE_1F1B].plan;
    assert_int_equal(plan->copies * plan->devices, 4);
    assert_int_equal(r.of[PIPE_1F1B].schedule.n_devices, plan->devices);
    assert_int_equal(plan->cuts[0].micros * plan->cuts[0].samples * plan->copies, 32);
    planner_release(&r);
    costs_release(&p);
}

/* Of a plan by itself the figures are those that the search gave it. */
static void same_by_itself(const struct costs *p, const struct planner_options *opt,
                           const struct planner_candidate *c)
{
    struct planner_candidate again;
    OK(planner_time(p, opt, &c->plan, &again, err));
    assert_true(again.seconds == c->seconds && again.least == c->least && again.plain == c->plain);
    assert_true(again.idle == c->idle && again.idle_before == c->idle_before);
    assert_true(again.inside == c->inside);
}

/* A device that has none of the frozen networks leaves its bubbles empty. */
static void test_bare(void **state)
{
    struct costs p = pipes_profile(1, 8, 4, 8);
    struct planner_options opt = options(32, 4);
    struct planner_result r;
    struct planner_candidate bare;
    (void)state;
    opt.orders = PLANNER_BIT(PIPE_1F1B);
    opt.stages = 4;
    pipes_frozen(&p, 8);
    OK(planner_search(&p, &opt, &r, err));
    struct planner_candidate *c = &r.of[PIPE_1F1B];
    same_by_itself(&p, &opt, c);
    for (int d = 0; d < 3; d++)
        c->plan.bare[d] = true;
    OK(planner_time(&p, &opt, &c->plan, &bare, err));
    assert_true(bare.plain == c->plain && bare.inside < c->inside && bare.seconds > c->seconds);
    c->plan.bare[3] = true;
    struct err e = {0};
    assert_int_equal(planner_time(&p, &opt, &c->plan, &bare, &e), -ENOMEM);
    planner_release(&r);
    costs_release(&p);
}

/* Random islands, one chain or two, with frozen layers and memory that decides: whatever is found
 * passes the checker (the planner asks it), keeps to the devices' memory, and is as fast as it
 * says. */
static void test_random(void **state)
{
    struct rng r;
    int found[PIPE_ORDERS] = {0}, none = 0;
    (void)state;
    rng_init(&r, 5, 5);
    for (int i = 0; i < 150; i++) {
        struct costs p = brute_profile(&r, 7, 5);
        struct planner_options opt = options(p.n_devices * 16, 1 << rng_below(&r, 4));
        struct planner_result got;
        struct err err = {0};
        if (rng_below(&r, 2) == 0)
            pipes_frozen(&p, 0.2 * (double)p.chains[0].n);
        if (rng_below(&r, 3) == 0) { /* the same chain twice */
            p.n_chains = 2;
            p.chains[1] = p.chains[0];
            p.chains[1].layers = mem_alloc_array((size_t)p.chains[0].n, sizeof(struct costs_layer));
            memcpy(p.chains[1].layers, p.chains[0].layers,
                   (size_t)p.chains[0].n * sizeof(struct costs_layer));
        }
        const int rc = planner_search(&p, &opt, &got, &err);
        if (rc < 0 && rc != -ENOMEM)
            fail_msg("%s", err.msg);
        none += rc < 0;
        for (int o = 0; o < PIPE_ORDERS && rc == 0; o++) {
            const struct planner_candidate *c = &got.of[o];
            if (!c->possible) {
                assert_true(c->why[0] != '\0');
                continue;
            }
            found[o]++;
            assert_true(c->seconds >= c->plain * (1 - 1e-9) && c->idle >= 0 && c->idle < 1);
            assert_true(c->seconds >= got.of[got.chosen].seconds / (1 + PLANNER_SAME) - 1e-9);
            if (i % 10 == 0)
                same_by_itself(&p, &opt, c);
            if (p.n_chains == 1 && c->plan.copies == 1 && o == PIPE_DATA)
                assert_true(c->plain <= c->bound + 1);
        }
        if (rc == 0)
            planner_release(&got);
        costs_release(&p);
    }
    for (int o = 0; o < PIPE_ORDERS; o++)
        assert_true(found[o] > 10);
    assert_in_range(none, 1, 75);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simplest),  cmocka_unit_test(test_estimate),
        cmocka_unit_test(test_idle),      cmocka_unit_test(test_links),
        cmocka_unit_test(test_memory),    cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_frozen),    cmocka_unit_test(test_few_samples),
        cmocka_unit_test(test_numbers),   cmocka_unit_test(test_shared),
        cmocka_unit_test(test_automatic), cmocka_unit_test(test_cascade),
        cmocka_unit_test(test_divided),   cmocka_unit_test(test_divided_small),
        cmocka_unit_test(test_copies),    cmocka_unit_test(test_bare),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
