/* What the planner counts of a plan, by the layer, against what a worker's check counts of each of
 * its parts: never less, and not much more. */
#include "worker/train/plan_chain.h"

#include "tests/unit/worker/tiny_encoders.h"

#include "kernels/kernels.h"
#include "worker/pipe/check.h"
#include "worker/train/ahead.h"
#include "worker/train/island_plan.h"
#include "worker/train/plan.h"

enum { DEVICES = 4, PLANS = 60 };
#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)

static struct island *is;

static int open_island(void **state)
{
    struct err err = {0};
    return island_open("cpu,cpu,cpu,cpu", 1, &is, &err);
}

static int close_island(void **state)
{
    island_close(is);
    return 0;
}

/* A model with its costs on these devices. */
struct rig {
    struct model *m;
    struct train_options opt;
    struct tiny_encoders encoders;
    enum dtype dt;
    bool fills, host;
    struct costs costs;
};

static int no_frozen(void *arg, enum net_encoder which, struct frozen **ret, struct err *err)
{
    return -EINVAL; /* bytes alone count */
}

static void add_encoders(struct rig *r)
{
    r->opt.encoders = tiny_encoders(&r->encoders, &r->m->spec, r->dt);
    r->encoders.table.open = no_frozen;
    r->encoders.table.fly = true;
    r->encoders.table.bytes = 3 * MIB;
    r->encoders.table.hold_bytes = 100 * KIB;
}

/* As a profile has them. */
static void add_frozen(struct rig *r)
{
    enum net_encoder which[NET_ENCODERS];
    const struct net_encoders *e = r->opt.encoders;
    const struct ahead_options ahead = {.encoders = e, .m = r->m};
    struct costs *p = &r->costs;
    p->n_frozen = ahead_networks(e, which);
    assert_true(p->n_frozen > 0);
    for (int k = 0; k < p->n_frozen; k++) {
        p->frozen[k].n = 1;
        p->frozen[k].layers = mem_alloc(sizeof *p->frozen[k].layers);
        p->frozen[k].out_bytes = ahead_out_bytes(&ahead, which[k]);
        p->frozen[k].layers[0].scratch_bytes = e->hold_bytes / (uint64_t)p->n_frozen;
    }
    p->frozen[0].layers[0].weight_bytes = e->bytes;
}

static void make(struct rig *r, const struct model_spec *spec, bool encoded)
{
    struct costs *p = &r->costs;
    OK(model_new(spec, &r->m, err));
    if (encoded)
        add_encoders(r);
    *p = (struct costs){.sizes = {1, {1}}, .n_devices = DEVICES};
    p->n_chains = model_n_chains(spec);
    if (r->fills)
        add_frozen(r);
    for (int c = 0; c < p->n_chains; c++) {
        struct costs_chain *chain = &p->chains[c];
        chain->n = model_chain(r->m, c)->spec.depth;
        chain->layers = mem_alloc_array((size_t)chain->n, sizeof *chain->layers);
        OK(plan_chain(r->m, c, &r->opt, r->fills, r->dt, chain, err));
    }
    for (int d = 0; d < DEVICES; d++) {
        p->devices[d] =
            (struct costs_device){.speed = 1, .kind = r->host ? COSTS_HOST : COSTS_CARD};
        island_device(is, d)->unified = r->host;
    }
}

static void drop(struct rig *r)
{
    for (int d = 0; d < DEVICES; d++)
        island_device(is, d)->unified = true;
    costs_release(&r->costs);
    model_free(r->m);
}

/* Cuts a chain anywhere into n stages, of one device each unless `wide`. */
static void cut_anywhere(struct rng *rng, struct pipe_cut *cut, int depth, int n, bool wide)
{
    cut->n = n;
    for (int i = 0, from = 0, device = 0; i < n; i++) {
        const int left = n - 1 - i, most = depth - from - left;
        const int to = left == 0 ? depth : from + 1 + (int)rng_below(rng, (uint32_t)most);
        const int spare = wide ? DEVICES - device - left : 1;
        const int devices = !wide       ? 1
                            : left == 0 ? spare
                                        : 1 + (int)rng_below(rng, (uint32_t)spare);
        cut->stages[i] = (struct pipe_stage){.from = from,
                                             .to = to,
                                             .device = device,
                                             .devices = devices,
                                             .warm = 1,
                                             .slots = 1 + (int)rng_below(rng, 4)};
        from = to;
        device += devices;
    }
}

/* The whole model on each device. */
static struct pipe_plan data_plan(struct rng *rng, const struct rig *r)
{
    struct pipe_plan plan = {
        .order = PIPE_DATA, .chains = r->costs.n_chains, .devices = DEVICES, .copies = 1};
    const int micros = 1 << rng_below(rng, 4), samples = 4 << rng_below(rng, 3);
    for (int c = 0; c < plan.chains; c++)
        plan.cuts[c] = (struct pipe_cut){
            .n = 1,
            .micros = micros,
            .samples = samples,
            .stages[0] = {.to = r->costs.chains[c].n, .devices = DEVICES, .warm = 1, .slots = 1}};
    plan.shard = rng_below(rng, 2);
    return plan;
}

/* Some plan: of one chain in copies or with stages of several devices, of two chains joined. */
static struct pipe_plan some_plan(struct rng *rng, const struct rig *r)
{
    const int chains = r->costs.n_chains, depth = r->m->spec.depth, most = depth < 4 ? depth : 4;
    const int n = chains > 1 ? 2 : 2 + (int)rng_below(rng, (uint32_t)most - 1);
    const bool copies = chains > 1 || (n == 2 && rng_below(rng, 2));
    struct pipe_plan plan = {.order = PIPE_1F1B, .chains = chains, .copies = copies ? 2 : 1};
    plan.devices = DEVICES / plan.copies;
    if (!r->opt.recompute && rng_below(rng, 2))
        plan.order = PIPE_SPLIT;
    for (int c = 0; c < chains; c++) {
        cut_anywhere(rng, &plan.cuts[c], r->costs.chains[c].n, n, !copies);
        plan.cuts[c].micros = c > 0 ? plan.cuts[0].micros : 1 << rng_below(rng, 4);
        plan.cuts[c].samples = c > 0 ? plan.cuts[0].samples : 4 << rng_below(rng, 3);
    }
    plan.shard = pipe_shares(&plan) && rng_below(rng, 2);
    for (int i = 0; i < pipe_places(&plan) && r->fills; i++)
        for (int d = 0; d < pipe_place(&plan, i).devices; d++)
            plan.bare[pipe_place(&plan, i).device + d] = i % 2 == 1;
    return plan;
}

/* What the worker's check counts of a place. */
static uint64_t needed(const struct rig *r, const struct pipe_plan *plan, int place)
{
    const struct plan_room any = {.host = r->host};
    struct model_part parts[MODEL_CHAINS];
    struct model *part = NULL;
    struct train_options opt = r->opt;
    struct net_encoders far;
    struct plan p;
    if (plan->order == PIPE_DATA) {
        opt.accumulate = plan->cuts[0].micros;
        opt.batch = opt.accumulate * pipe_most(plan->cuts[0].samples, DEVICES);
        opt.sharers = plan->shard ? DEVICES : 0;
        OK(plan_train(r->m, &opt, r->dt, &any, &p, err));
        return p.need;
    }
    opt.batch = plan->cuts[0].micros * plan->cuts[0].samples;
    opt.accumulate = plan->cuts[0].micros;
    opt.fill = r->fills;
    island_place_parts(plan, place, parts);
    island_place_options(is, plan, place, &opt);
    if (plan->bare[pipe_place(plan, place).device]) {
        far = ahead_far(opt.encoders);
        opt.encoders = &far;
    }
    OK(model_part_new(r->m, parts, &part, err));
    OK(plan_train(part, &opt, r->dt, &any, &p, err));
    model_free(part);
    return p.need;
}

/* spare: bytes that may be counted too much.  Where W runs apart, what a backward of both has for
 * itself is counted, too. */
static void check(struct rig *r, const struct model_spec *spec, bool encoded, uint64_t spare)
{
    struct rng rng;
    rng_init(&rng, 5, 1);
    make(r, spec, encoded);
    for (int i = 0; i < PLANS; i++) {
        const bool data = !r->fills && i % 4 == 0;
        const struct pipe_plan plan = data ? data_plan(&rng, r) : some_plan(&rng, r);
        struct costs share;
        costs_share(&r->costs, plan.copies, &share);
        for (int k = 0; k < pipe_places(&plan); k++) {
            const uint64_t need = needed(r, &plan, k);
            const uint64_t counted = plan_bytes(&share, &plan, pipe_place(&plan, k).device);
            const uint64_t most = spare + (plan.order == PIPE_SPLIT ? MIB : 0);
            if (counted < need || counted > need + most)
                fail_msg("plan %d, place %d: %" PRIu64 " are counted, %" PRIu64 " needed", i, k,
                         counted, need);
        }
    }
    drop(r);
}

/* On the host and on cards, in both precisions. */
static void check_all(const struct rig *like, const struct model_spec *spec, bool encoded,
                      uint64_t spare)
{
    for (int i = 0; i < 4; i++) {
        struct rig r = *like;
        r.host = i % 2 == 0;
        r.dt = i < 2 ? DT_F32 : DT_BF16;
        check(&r, spec, encoded, spare);
    }
}

static struct model_spec deep(struct model_spec s)
{
    s.depth = 7;
    s.dim = 48;
    s.mlp = 192;
    s.image = 12;
    return s;
}

static void test_pictures(void **state)
{
    const struct model_spec s = deep(tiny_spec());
    struct rig r = {.opt = tiny_options()};
    check_all(&r, &s, false, 64 * KIB);
    r.opt.recompute = true;
    check_all(&r, &s, false, 64 * KIB);
}

static void test_two_blocks(void **state)
{
    struct model_spec s = deep(tiny_spec());
    const struct rig r = {.opt = tiny_options()};
    s.depth = 2;
    check_all(&r, &s, false, 64 * KIB);
}

static void test_estimates(void **state)
{
    struct model_spec s = deep(tiny_spec());
    const struct rig r = {.opt = tiny_options()};
    s.self_condition = true;
    check_all(&r, &s, false, 192 * KIB);
}

/* Encoded before the step, or ahead, on the devices that have the networks. */
static void test_captions(void **state)
{
    const struct model_spec s = deep(tiny_captioned());
    struct rig r = {.opt = tiny_options()};
    check_all(&r, &s, true, 128 * KIB);
    r.fills = true;
    check_all(&r, &s, true, 128 * KIB);
}

/* Logits count with the most rows that are made at a time. */
static void test_texts(void **state)
{
    struct model_spec s = tiny_llama();
    const struct rig r = {.opt = tiny_options()};
    s.depth = 6;
    s.dim = 48;
    s.mlp = 160;
    s.vocab = 300;
    check_all(&r, &s, false, 8 * MIB);
    s.vocab = 60000;
    check_all(&r, &s, false, 200 * MIB);
}

static void test_cascade(void **state)
{
    struct model_spec s = tiny_cascade();
    const struct rig r = {.opt = tiny_options()};
    s.depth = 5;
    s.upscaler.depth = 3;
    check_all(&r, &s, false, 256 * KIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pictures),  cmocka_unit_test(test_two_blocks),
        cmocka_unit_test(test_estimates), cmocka_unit_test(test_captions),
        cmocka_unit_test(test_texts),     cmocka_unit_test(test_cascade),
    };
    return cmocka_run_group_tests(tests, open_island, close_island);
}
