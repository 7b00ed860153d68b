/* An island that is cut into pipelines has the bits of one that is not: weights, moments, losses
 * and norms, in every cut, with every number of micro-batches, alone and in copies. */
#include "tests/unit/worker/train/real_encoders.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/file.h"
#include "kernels/device/device.h"
#include "worker/train/checkpoint.h"

static const char *const cpus[] = {
    NULL, "cpu", "cpu,cpu", "cpu,cpu,cpu", "cpu,cpu,cpu,cpu", "cpu,cpu,cpu,cpu,cpu"};

/* A tensor of a trainer is one of its own model's. */
static int read_tensor(const struct side *s, enum trainer_vector which, size_t i, float *values,
                       struct err *err)
{
    struct trainer *t = island_trainer_first(s->t);
    return trainer_read(t, which, &trainer_model(t)->tensors[i], values, err);
}

static void assert_same(const struct side *a, const struct side *b, const struct model *m)
{
    static const enum trainer_vector all[] = {TRAINER_WEIGHTS, TRAINER_ADAM_M, TRAINER_ADAM_V};
    float *x = model_flat_new(m), *y = model_flat_new(m);
    for (size_t v = 0; v < sizeof all / sizeof *all; v++)
        for (size_t i = 0; i < m->n; i++) {
            const struct model_tensor *t = &m->tensors[i];
            OK(read_tensor(a, all[v], i, x, err));
            OK(read_tensor(b, all[v], i, y, err));
            if (memcmp(x, y, t->count * sizeof *x) != 0)
                fail_msg("vector %zu differs at %s", v, t->name);
        }
    mem_free(x);
    mem_free(y);
}

/* Two ranks of a stage have the same. */
static void assert_ranks_equal(const struct side *s, int a, int b)
{
    struct trainer *x = island_trainer_rank(s->t, a), *y = island_trainer_rank(s->t, b);
    const size_t bytes = trainer_net(x)->weights->m->flat * sizeof(float);
    assert_memory_equal(trainer_device(x, TRAINER_WEIGHTS), trainer_device(y, TRAINER_WEIGHTS),
                        bytes);
    assert_int_equal(trainer_next_step(x), trainer_next_step(y));
}

/* Every rank of a stage has what the first copy's has. */
static void assert_copies_equal(const struct side *s, int stages)
{
    for (int r = stages; r < island_size(s->is); r++)
        assert_ranks_equal(s, r, r % stages);
}

/* 1F1B; of split, the list of no costs, another one, and 1F1B whose gradients leave early. */
enum order { ONE_F_ONE_B, SPLIT, SPLIT_LINGERING, SPLIT_EARLY, ORDERS };

static void set_order(struct pipe_plan *plan, enum order order)
{
    static const int variants[ORDERS] = {
        [SPLIT_LINGERING] = SCHEDULE_VARIANTS - 1, [SPLIT_EARLY] = SCHEDULE_EARLY};
    if (order == ONE_F_ONE_B)
        return;
    pipe_plan_split(plan);
    plan->variant = variants[order];
}

/* Blocks of the stages are said by where each ends. */
static struct pipe_plan plan_of(const struct side *shape, const struct model *m, int stages,
                                int accumulate, const int *ends)
{
    struct pipe_plan plan;
    OK(island_even_plan(shape->is, m, stages, accumulate, JOB_PIPELINE_AUTO, &plan, err));
    for (int i = 0; i < stages && ends; i++) {
        plan.cuts[0].stages[i].from = i > 0 ? ends[i - 1] : 0;
        plan.cuts[0].stages[i].to = ends[i];
    }
    return plan;
}

/* What is not cut, after all rounds. */
struct whole {
    const struct model_spec *spec;
    const struct train_options *o;
    struct model *m;
    struct side side;
    int copies;
    struct step_result results[ROUNDS];
};

static struct whole whole_run(const struct model_spec *spec, const struct train_options *o,
                              int copies)
{
    struct whole w = {.spec = spec, .o = o, .m = make_model(spec), .copies = copies};
    w.side = side_open(cpus[copies], w.m, o, NULL, NULL);
    for (unsigned i = 0; i < ROUNDS; i++)
        OK(step(&w.side, w.m, i, count_of(i), &w.results[i], err));
    return w;
}

static void whole_close(struct whole *w)
{
    close_side(&w->side);
    model_free(w->m);
}

static void check_order(const struct whole *w, int stages, const int *ends, enum order order)
{
    struct side shape = {0};
    const int n = stages * w->copies;
    OK(island_open(cpus[n], n, &shape.is, err));
    struct pipe_plan plan = plan_of(&shape, w->m, stages, w->o->accumulate, ends);
    set_order(&plan, order);
    island_close(shape.is);
    struct side cut = side_open(cpus[n], w->m, w->o, &plan, NULL);
    island_trainer_set_rehearsal(cut.t, order % 2 == 0);
    for (unsigned i = 0; i < ROUNDS; i++) {
        const struct step_result *a = &w->results[i];
        struct step_result b;
        OK(step(&cut, w->m, i, count_of(i), &b, err));
        if (!(a->loss == b.loss && a->grad_norm == b.grad_norm))
            fail_msg("kind %d, %d stages, %d copies, order %d, step %u: loss %.17g, %.17g; norm "
                     "%.17g, %.17g",
                     w->spec->kind, stages, w->copies, order, i, a->loss, b.loss, a->grad_norm,
                     b.grad_norm);
        assert_true(a->lr == b.lr && a->step == b.step);
    }
    assert_same(&w->side, &cut, w->m);
    assert_copies_equal(&cut, stages);
    assert_true(trainer_options(island_trainer_rank(cut.t, 1))->split == (order != ONE_F_ONE_B));
    close_side(&cut);
}

static void check(const struct whole *w, int stages, const int *ends)
{
    const enum order end = w->o->recompute ? SPLIT : w->o->accumulate == 1 ? SPLIT + 1 : ORDERS;
    for (enum order order = ONE_F_ONE_B; order < end; order++)
        check_order(w, stages, ends, order);
}

static void check_one(const struct model_spec *spec, const struct train_options *o, int stages,
                      int copies, const int *ends)
{
    struct whole w = whole_run(spec, o, copies);
    check(&w, stages, ends);
    whole_close(&w);
}

/* Two to four stages, one with fewer blocks than the others; copies. */
static void check_cuts(const struct model_spec *spec, const struct train_options *o)
{
    struct whole w = whole_run(spec, o, 1);
    for (int stages = 2; stages <= 4; stages++)
        check(&w, stages, NULL);
    check(&w, 3, (int[]){1, 3, 4});
    whole_close(&w);
    check_one(spec, o, 2, 2, (int[]){1, 4});
}

static void test_bits(void **state)
{
    struct model_spec specs[] = {tiny_spec(), tiny_llama(), tiny_qwen(), tiny_qwen3(),
                                 tiny_captioned()};
    struct tiny_encoders encoders[4];
    struct net_encoders tables[4];
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        specs[i].depth = 4;
        for (int accumulate = 1; accumulate <= 4; accumulate += 3) {
            struct train_options o = options();
            o.accumulate = accumulate;
            for (int k = 0; k < 4 && model_captioned(&specs[i]); k++) {
                tables[k] = *tiny_encoders(&encoders[k], &specs[i], DT_F32);
                o.encoders = tables;
            }
            check_cuts(&specs[i], &o);
        }
    }
}

/* The estimate of a model that reads one comes back from the last stage to the first. */
static void test_estimates(void **state)
{
    struct model_spec specs[] = {tiny_spec(), tiny_captioned()};
    struct tiny_encoders encoders[4];
    struct net_encoders tables[4];
    for (size_t i = 0; i < 2; i++) {
        specs[i].depth = 4;
        specs[i].self_condition = true;
        for (int accumulate = 1; accumulate <= 7; accumulate += 3) {
            struct train_options o = options();
            o.accumulate = accumulate;
            o.self_condition = accumulate == 4 ? 1 : 0.5;
            o.recompute = accumulate == 7;
            for (int k = 0; k < 4 && model_captioned(&specs[i]); k++) {
                tables[k] = *tiny_encoders(&encoders[k], &specs[i], DT_F32);
                o.encoders = tables;
            }
            check_cuts(&specs[i], &o);
        }
    }
    struct train_options o = options();
    o.self_condition = 0.5;
    o.precision = NET_BF16;
    o.accumulate = 3;
    check_one(&specs[0], &o, 3, 1, (int[]){1, 2, 4});
}

static void test_precisions(void **state)
{
    struct model_spec spec = tiny_spec(), llama = tiny_qwen3();
    struct train_options o = options();
    spec.depth = llama.depth = 4;
    o.precision = NET_BF16;
    o.accumulate = 3;
    check_one(&spec, &o, 2, 2, NULL);
    check_one(&llama, &o, 3, 1, (int[]){1, 2, 4});
    o.recompute = true;
    check_one(&spec, &o, 4, 1, NULL);
    check_one(&llama, &o, 2, 2, NULL);
}

/* The device has its part of the weights only. */
static void test_memory(void **state)
{
    struct model_spec spec = tiny_spec();
    struct train_options o = options();
    spec.depth = 4;
    struct model *m = make_model(&spec);
    struct side shape = {0};
    OK(island_open("cpu,cpu", 2, &shape.is, err));
    const struct pipe_plan plan = plan_of(&shape, m, 2, 2, NULL);
    island_close(shape.is);
    struct side s = side_open("cpu,cpu", m, &o, &plan, NULL);
    uint64_t sum = 0;
    for (int r = 0; r < 2; r++) {
        const struct model *part = trainer_net(island_trainer_rank(s.t, r))->weights->m;
        assert_true(part->flat < m->flat * 8 / 10);
        sum += part->params;
    }
    assert_int_equal(sum, m->params);
    close_side(&s);
    model_free(m);
}

/* The first stage alone runs the encoders. */
static void test_encoders(void **state)
{
    const struct model_spec spec = tiny_captioned();
    struct train_options o = options();
    struct tiny_encoders encoders[3];
    struct net_encoders tables[3];
    struct model *m = make_model(&spec);
    struct side shape = {0};
    struct step_result r;
    for (int k = 0; k < 3; k++)
        tables[k] = *tiny_encoders(&encoders[k], &spec, DT_F32);
    o.encoders = tables;
    OK(island_open("cpu,cpu,cpu", 3, &shape.is, err));
    const struct pipe_plan plan = plan_of(&shape, m, 3, 2, NULL);
    island_close(shape.is);
    struct side s = side_open("cpu,cpu,cpu", m, &o, &plan, NULL);
    OK(step(&s, m, 0, BATCH, &r, err));
    assert_int_equal(encoders[0].captions, BATCH);
    for (int k = 1; k < 3; k++)
        assert_int_equal(encoders[k].captions + encoders[k].images, 0);
    close_side(&s);
    model_free(m);
}

/* Costs of a captioned model's blocks and of its frozen networks, of which all layers take so long
 * against a block's forward. */
static void made_costs(struct costs *p, const struct model *m, const struct real_encoders *e,
                       int devices, double frozen)
{
    const enum net_encoder which[] = {NET_IMAGES, NET_CAPTIONS};
    *p = (struct costs){.sizes = {2, {1, 4}}, .groups = {2, {1, 4}}, .n_chains = 1, .n_frozen = 2};
    p->n_devices = devices;
    for (int d = 0; d < devices; d++)
        p->devices[d] = (struct costs_device){.speed = 1, .memory = 1 << 30};
    for (int d = 0; d + 1 < devices; d++)
        p->links[d] = (struct costs_link){1e-5, 1e9};
    p->chains[0].n = m->spec.depth;
    p->chains[0].layers = mem_alloc_array((size_t)m->spec.depth, sizeof *p->chains[0].layers);
    for (int i = 0; i < m->spec.depth; i++)
        p->chains[0].layers[i] = (struct costs_layer){.f = {{1e-3, 4e-3}},
                                                      .b = {{1e-3, 4e-3}},
                                                      .w = {{1e-3, 4e-3}},
                                                      .step = 1e-4,
                                                      .out_bytes = 100};
    for (int k = 0; k < 2; k++) {
        struct costs_frozen *f = &p->frozen[k];
        f->n = frozen_layers(e->ranks[0].of[which[k]]);
        f->layers = mem_alloc_array((size_t)f->n, sizeof *f->layers);
        for (int i = 0; i < f->n; i++)
            f->layers[i].t = (struct costs_time){{frozen, 3 * frozen}};
    }
}

/* Steps of which the next one is known, and of which it is not. */
static bool is_told(unsigned i)
{
    return i % 7 != 3 && i + 1 < ROUNDS;
}

/* How it is cut, and the share of its steps that have an estimate. */
struct encoded_case {
    int stages, copies, accumulate;
    double estimates;
    int widths[4]; /* devices of each stage, where one has several; zeros: one each */
    unsigned bare; /* bits of the devices of a copy without the encoders */
};

static bool is_wide(const struct encoded_case *c)
{
    return c->widths[0] > 0;
}

static int devices_of(const struct encoded_case *c)
{
    int n = 0;
    for (int i = 0; i < c->stages; i++)
        n += is_wide(c) ? c->widths[i] : 1;
    return n;
}

static int ranks_of(const struct encoded_case *c)
{
    return c->copies * devices_of(c);
}

static struct pipe_plan plan_of_case(const struct encoded_case *c, const struct side *shape,
                                     const struct model *m)
{
    struct pipe_plan plan = plan_of(shape, m, c->stages, c->accumulate, NULL);
    struct pipe_stage *stages = plan.cuts[0].stages;
    for (int i = 0; i < c->stages && is_wide(c); i++) {
        stages[i].device = i > 0 ? stages[i - 1].device + stages[i - 1].devices : 0;
        stages[i].devices = c->widths[i];
    }
    plan.copies = c->copies;
    plan.devices = devices_of(c);
    for (int d = 0; d < plan.devices; d++)
        plan.bare[d] = c->bare >> d & 1;
    return plan;
}

/* A captioned model whose encoders are real. */
struct encoded {
    struct model *m;
    struct real_encoders encoders;
    struct costs costs;
    struct side side;
};

/* frozen: costs of the encoders that its bubbles run; 0: it has none. */
static struct encoded *encoded_open(const struct encoded_case *c, double frozen, enum order order)
{
    const int n = ranks_of(c);
    struct model_spec spec = tiny_captioned();
    struct train_options o = options();
    struct encoded *e = mem_alloc(sizeof *e);
    spec.depth = 4;
    spec.self_condition = c->estimates > 0;
    o.accumulate = c->accumulate;
    o.self_condition = c->estimates;
    e->m = make_model(&spec);
    float *flat = tiny_weights(e->m, 21);
    OK(island_open(cpus[n], n, &e->side.is, err));
    real_encoders_open(&e->encoders, e->side.is);
    o.encoders = e->encoders.tables;
    if (frozen > 0)
        made_costs(&e->costs, e->m, &e->encoders, n, frozen);
    struct pipe_plan plan = plan_of_case(c, &e->side, e->m);
    set_order(&plan, order);
    OK(island_trainer_new(e->side.is, e->m, &o, &plan, frozen > 0 ? &e->costs : NULL, &e->side.t,
                          err));
    assert_true(island_trainer_fills(e->side.t) == (frozen > 0));
    island_trainer_set_rehearsal(e->side.t, order % 2 == 0);
    OK(trainer_set(island_trainer_first(e->side.t), flat, err));
    OK(island_trainer_follow(e->side.t, ISLAND_ALL, err));
    mem_free(flat);
    return e;
}

static void encoded_close(struct encoded *e)
{
    island_trainer_free(e->side.t);
    real_encoders_close(&e->encoders);
    island_close(e->side.is);
    costs_release(&e->costs);
    model_free(e->m);
    mem_free(e);
}

/* On so many samples; next: of the step after it, 0: not known. */
static struct step_result encoded_batch(struct encoded *e, unsigned i, unsigned n, unsigned n_next)
{
    struct step_result r;
    struct samples *x = mem_alloc(2 * sizeof *x);
    const struct batch now = make_batch(&e->m->spec, i, n, x);
    const struct batch next = make_batch(&e->m->spec, i + 1, n_next, x + 1);
    OK(island_trainer_step(e->side.t, &now, n_next > 0 ? &next : NULL, &r, err));
    mem_free(x);
    return r;
}

/* told: of some steps, what comes next. */
static struct step_result encoded_step(struct encoded *e, unsigned i, bool told)
{
    return encoded_batch(e, i, count_of(i), told && is_told(i) ? count_of(i + 1) : 0);
}

/* The first device of a copy that has the encoders: those of a first stage without ask it. */
static int first_with(const struct pipe_plan *plan)
{
    const int first = plan->cuts[0].stages[0].devices;
    bool asks = false;
    int d = 0;
    for (int k = 0; k < first; k++)
        asks |= plan->bare[k];
    while (plan->bare[d])
        d++;
    return asks ? d : -1;
}

/* Against one that fills nothing, after its rounds. */
static void check_filled_order(const struct encoded *plain, const struct step_result *results,
                               const struct encoded_case *c, double frozen, enum order order)
{
    struct encoded *e = encoded_open(c, frozen, order);
    for (unsigned i = 0; i < ROUNDS; i++) {
        const struct step_result b = encoded_step(e, i, true);
        if (!(results[i].loss == b.loss && results[i].grad_norm == b.grad_norm))
            fail_msg("%d stages, %d copies, frozen %g, order %d, step %u: loss %.17g, %.17g",
                     c->stages, c->copies, frozen, order, i, results[i].loss, b.loss);
    }
    assert_same(&plain->side, &e->side, e->m);
    const struct pipe_plan plan = plan_of_case(c, &e->side, e->m);
    for (int k = 0; k < ranks_of(c); k++) {
        const int d = k % plan.devices, stage = pipe_stage_of(&plan.cuts[0], d);
        const bool first = stage == 0 || d == first_with(&plan);
        assert_ranks_equal(&e->side, k, plan.cuts[0].stages[stage].device);
        /* The first stage's: the empty caption, once. */
        assert_int_equal(e->encoders.ranks[k].asked, first && !plan.bare[d]);
        assert_int_equal(e->encoders.ranks[k].opened, plan.bare[d] ? 0 : NET_ENCODERS);
    }
    encoded_close(e);
}

static void check_filled(struct encoded_case c, const double *frozen, size_t n)
{
    struct step_result results[ROUNDS];
    const struct encoded_case one = {1, c.copies, c.accumulate, c.estimates, {0}};
    struct encoded *plain = encoded_open(is_wide(&c) ? &c : &one, 0, ONE_F_ONE_B);
    for (unsigned i = 0; i < ROUNDS; i++)
        results[i] = encoded_step(plain, i, false);
    for (size_t i = 0; i < n; i++)
        for (enum order order = ONE_F_ONE_B; order < ORDERS; order++)
            check_filled_order(plain, results, &c, frozen[i], order);
    encoded_close(plain);
}

static uint64_t moments_of(const struct side *s, int rank)
{
    const struct trainer *t = island_trainer_rank(s->t, rank);
    const struct train_options *o = trainer_options(t);
    const struct train_share share =
        train_share_of(trainer_net(t)->weights->m->flat, o->sharers, o->sharer);
    return share.to - share.from;
}

/* Copies that share moments out have the bits of those that do not; a checkpoint of theirs goes on
 * anywhere. */
static void check_shared(const struct model_spec *spec, const struct train_options *o, int stages,
                         int copies)
{
    struct model *m = make_model(spec);
    struct side sides[2] = {0};
    float *flat = tiny_weights(m, 21);
    uint64_t sum = 0;
    for (int k = 0; k < 2; k++) {
        OK(island_open(cpus[stages * copies], stages * copies, &sides[k].is, err));
        struct pipe_plan plan = plan_of(&sides[k], m, stages, o->accumulate, NULL);
        plan.shard = k == 1;
        OK(island_trainer_new(sides[k].is, m, o, &plan, NULL, &sides[k].t, err));
        island_trainer_set_rehearsal(sides[k].t, k == 1);
        struct trainer *first = island_trainer_first(sides[k].t);
        OK(trainer_set(first, flat, err));
        OK(trainer_reset_moments(first, err));
        trainer_position(first, 100, 200);
        OK(island_trainer_follow(sides[k].t, ISLAND_ALL, err));
    }
    for (int r = 0; r < copies; r++)
        sum += moments_of(&sides[1], r * stages);
    assert_int_equal(sum, moments_of(&sides[0], 0));
    assert_true(moments_of(&sides[1], 0) < moments_of(&sides[0], 0));
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct step_result a, b;
        OK(step(&sides[0], m, i, count_of(i), &a, err));
        OK(step(&sides[1], m, i, count_of(i), &b, err));
        assert_true(a.loss == b.loss && a.grad_norm == b.grad_norm);
        if (i == ROUNDS / 2) { /* moments of the one go on in the other */
            char path[] = "/tmp/skerry-shared-XXXXXX";
            const int fd = mkstemp(path);
            assert_true(fd >= 0);
            (void)close(fd);
            OK(checkpoint_save(island_trainer_first(sides[1].t), path, NULL, 0, false, err));
            for (int k = 0; k < 2; k++) {
                OK(trainer_reset_moments(island_trainer_first(sides[k].t), err));
                OK(checkpoint_load(island_trainer_first(sides[k].t), path, NULL, err));
                OK(island_trainer_follow(sides[k].t, ISLAND_ALL, err));
            }
            (void)unlink(path);
        }
    }
    assert_same(&sides[0], &sides[1], m);
    for (int r = stages; r < stages * copies; r++) { /* and weights those of the first copy */
        struct trainer *t = island_trainer_rank(sides[1].t, r);
        assert_memory_equal(
            trainer_device(t, TRAINER_WEIGHTS),
            trainer_device(island_trainer_rank(sides[1].t, r % stages), TRAINER_WEIGHTS),
            trainer_net(t)->weights->m->flat * sizeof(float));
    }
    mem_free(flat);
    close_side(&sides[0]);
    close_side(&sides[1]);
    model_free(m);
}

static void test_shared(void **state)
{
    struct model_spec spec = tiny_spec(), llama = tiny_llama();
    struct train_options o = options();
    spec.depth = llama.depth = 4;
    check_shared(&spec, &o, 1, 2);
    check_shared(&spec, &o, 1, 4);
    check_shared(&llama, &o, 2, 2);
    o.precision = NET_BF16;
    check_shared(&spec, &o, 1, 3);
    o.weight_decay = 0;
    check_shared(&llama, &o, 1, 4);
}

/* Frozen encoders in the bubbles change nothing, however much of them fits there. */
static void test_filled(void **state)
{
    static const double frozen[] = {1e-5, 3e-4, 2e-3, 5e-2};
    check_filled((struct encoded_case){2, 1, 2, 0, {0}}, frozen, 4);
    check_filled((struct encoded_case){4, 1, 4, 0, {0}}, &frozen[1], 2);
    check_filled((struct encoded_case){2, 2, 3, 0, {0}}, &frozen[2], 1);
    check_filled((struct encoded_case){3, 1, 4, 0.5, {0}}, &frozen[1], 1);
    check_filled((struct encoded_case){2, 1, 2, 0.5, {1, 2}}, &frozen[1], 1);
    check_filled((struct encoded_case){2, 1, 2, 0.5, {2, 1}}, &frozen[1], 2);
    check_filled((struct encoded_case){3, 1, 2, 0, {2, 1, 2}}, &frozen[1], 1);
}

/* Nor does it matter on which devices the encoders lie. */
static void test_far(void **state)
{
    static const double frozen[] = {3e-4, 2e-3};
    check_filled((struct encoded_case){2, 1, 2, 0, {0}, .bare = 1}, frozen, 2);
    check_filled((struct encoded_case){4, 1, 4, 0.5, {0}, .bare = 7}, frozen, 1);
    check_filled((struct encoded_case){4, 1, 4, 0, {0}, .bare = 10}, frozen, 1);
    check_filled((struct encoded_case){2, 2, 3, 0, {0}, .bare = 1}, frozen, 1);
    check_filled((struct encoded_case){2, 1, 2, 0, {2, 1}, .bare = 3}, frozen, 1);
    check_filled((struct encoded_case){2, 1, 2, 0, {2, 1}, .bare = 1}, frozen, 1);
}

/* A step that is not the one that was said to come is encoded before it. */
static void test_lies(void **state)
{
    static const struct encoded_case one = {1, 1, 2, 0, {0}}, cut = {2, 1, 2, 0, {0}, .bare = 1};
    struct encoded *plain = encoded_open(&one, 0, ONE_F_ONE_B),
                   *e = encoded_open(&cut, 3e-4, ONE_F_ONE_B);
    for (unsigned i = 0; i < 6; i++) { /* every second step is another one */
        const unsigned at = i % 2 ? i + 10 : i;
        const struct step_result a = encoded_batch(plain, at, BATCH, 0);
        const struct step_result b = encoded_batch(e, at, BATCH, BATCH);
        assert_true(a.loss == b.loss && a.grad_norm == b.grad_norm);
    }
    assert_same(&plain->side, &e->side, e->m);
    encoded_close(e);
    encoded_close(plain);
}

/* Of a rank's list of the last step. */
static bool fills_bubbles(const struct encoded *e, int rank)
{
    const struct trace *trace;
    const struct pipe_list *list;
    bool before = false, step = false;
    trainer_traced(island_trainer_rank(e->side.t, rank), &trace, &list);
    for (int i = 0; i < list->n; i++) {
        before |= list->items[i].op == PIPE_FROZEN && !step;
        step |= list->items[i].op == PIPE_STEP;
    }
    return before;
}

/* Bubbles are filled again by what steps took, and that changes nothing. */
static void test_refilled(void **state)
{
    static const struct encoded_case one = {1, 1, 2, 0, {0}}, cut = {2, 1, 2, 0, {0}};
    struct encoded *plain = encoded_open(&one, 0, ONE_F_ONE_B),
                   *e = encoded_open(&cut, 3e-4, ONE_F_ONE_B);
    const struct refill *r = island_trainer_refill(e->side.t);
    const unsigned most = 1 + REFILL_SETTLED + (1 + REFILL_SHARES_MAX) * REFILL_STEPS;
    unsigned i = 0;
    for (; r->state != REFILL_DONE; i++) {
        const bool empty = r->state == REFILL_EMPTY && r->steps == 0;
        /* One is ragged, and shows nothing, nor does the one before. */
        const unsigned n = i == 3 ? BATCH - 1 : BATCH, next = i == 2 ? BATCH - 1 : BATCH;
        assert_true(i < most + 2);
        const struct step_result a = encoded_batch(plain, i, n, 0);
        const struct step_result b = encoded_batch(e, i, n, next);
        assert_true(a.loss == b.loss && a.grad_norm == b.grad_norm);
        if (empty)
            assert_false(fills_bubbles(e, 0) || fills_bubbles(e, 1));
        else if (r->state == REFILL_SETTLES)
            assert_true(fills_bubbles(e, 0) || fills_bubbles(e, 1));
    }
    assert_true(i >= 3 + REFILL_SETTLED + 2 * REFILL_STEPS);
    assert_true(r->best > 0 && r->best <= r->empty && r->best_share == r->share);
    assert_same(&plain->side, &e->side, e->m);
    encoded_close(e);
    encoded_close(plain);
}

/* Samples that the step before encoded are not encoded again, also where several devices share the
 * first stage: else no step would show how bubbles should be filled. */
static void test_known(void **state)
{
    static const struct encoded_case cases[] = {{2, 1, 2, 0, {0}},
                                                {2, 1, 2, 0, {2, 1}},
                                                {2, 1, 2, 0, {2, 1}, .bare = 1},
                                                {3, 1, 2, 0, {2, 1, 2}}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct encoded *e = encoded_open(&cases[k], 3e-4, ONE_F_ONE_B);
        for (unsigned i = 0; i < 3; i++)
            (void)encoded_batch(e, i, BATCH, BATCH);
        assert_int_equal(island_trainer_refill(e->side.t)->steps, 2);
        encoded_close(e);
    }
}

/* A step's trace is a file with a bar for each instruction, in their order and within the step. */
static void test_trace(void **state)
{
    const struct model_spec spec = tiny_spec();
    const struct train_options o = options();
    struct model *m = make_model(&spec);
    struct side shape = {0};
    struct step_result r;
    char path[] = "/tmp/skerry-trace-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    OK(island_open("cpu,cpu", 2, &shape.is, err));
    const struct pipe_plan plan = plan_of(&shape, m, 2, 2, NULL);
    island_close(shape.is);
    struct side s = side_open("cpu,cpu", m, &o, &plan, NULL);
    OK(step(&s, m, 0, BATCH, &r, err));
    island_trainer_trace(s.t, path);
    OK(step(&s, m, 1, BATCH, &r, err));
    for (int rank = 0; rank < 2; rank++) {
        const struct trace *trace;
        const struct pipe_list *list;
        trainer_traced(island_trainer_rank(s.t, rank), &trace, &list);
        assert_int_equal(trace->n, list->n);
        for (int i = 0; i < trace->n; i++) {
            assert_true(trace->rows[i].start >= (i > 0 ? trace->rows[i - 1].end : 0));
            assert_true(trace->rows[i].end >= trace->rows[i].ready && trace->rows[i].end < 60);
            assert_true(trace->rows[i].ready >= trace->rows[i].start);
        }
    }
    struct buf text;
    OK(file_read(path, 1 << 20, &text, err));
    static const char *const words[] = {"cpu, copy 0, stage 1", "\"F 1\"",  "\"RECV states 1\"",
                                        "\"SEND gradients 0\"", "\"STEP\"", "\"dur\""};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        assert_non_null(strstr(buf_str(&text), words[i]));
    buf_release(&text);
    OK(step(&s, m, 2, BATCH, &r, err)); /* the next one has none */
    (void)unlink(path);
    close_side(&s);
    model_free(m);
}

/* A level is read and written through the first trainer, whoever has its blocks; a checkpoint goes
 * on with any plan. */
static void test_reading(void **state)
{
    struct model_spec spec = tiny_spec();
    const struct train_options o = options();
    struct step_result a, b;
    spec.depth = 4;
    spec.cut = (struct model_cut){.n_levels = 2, .block_level = {0, 1, 1, 0}};
    struct model *m = make_model(&spec);
    struct side shape = {0};
    OK(island_open("cpu,cpu", 2, &shape.is, err));
    const struct pipe_plan plan = plan_of(&shape, m, 2, 2, NULL);
    island_close(shape.is);
    struct side s = side_open("cpu,cpu", m, &o, &plan, NULL),
                one = side_open("cpu", m, &o, NULL, NULL);
    struct trainer *first = island_trainer_first(s.t);
    float *old = tiny_weights(m, 21), *new = tiny_weights(m, 5), *got = model_flat_new(m);
    OK(trainer_set_level(first, 1, new, err));
    OK(trainer_get(first, got, err));
    for (size_t i = 0; i < m->n; i++) {
        const struct model_tensor *t = &m->tensors[i];
        assert_memory_equal(got + t->offset, (t->level == 1 ? new : old) + t->offset,
                            t->count * sizeof *got);
    }
    memset(got, 0, m->flat * sizeof *got);
    OK(trainer_get_level(first, 1, got, err));
    for (size_t i = 0; i < m->n; i++) {
        const struct model_tensor *t = &m->tensors[i];
        for (uint64_t k = 0; k < t->count; k++)
            assert_true(got[t->offset + k] == (t->level == 1 ? new[t->offset + k] : 0));
    }
    OK(step(&s, m, 0, BATCH, &a, err));

    char path[] = "/tmp/skerry-pipeline-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    OK(checkpoint_save(first, path, NULL, 0, false, err));
    OK(checkpoint_load(island_trainer_first(one.t), path, NULL, err));
    OK(island_trainer_follow(one.t, ISLAND_ALL, err));
    assert_same(&s, &one, m);
    OK(step(&s, m, 1, BATCH, &a, err));
    OK(step(&one, m, 1, BATCH, &b, err));
    assert_true(a.loss == b.loss && a.grad_norm == b.grad_norm);
    (void)unlink(path);
    mem_free(old);
    mem_free(new);
    mem_free(got);
    close_side(&s);
    close_side(&one);
    model_free(m);
}

static const struct kernel_ops *plain;
static int adaln_left;

static int failing_adaln(struct device *dev, const struct adaln_bwd *p, struct stream *s)
{
    return adaln_left-- > 0 ? plain->adaln_bwd(dev, p, s) : -ERR_DEVICE;
}

/* A stage that fails wakes the others, wherever they wait; the next task begins anew. */
static void test_failure(void **state)
{
    struct model_spec spec = tiny_spec();
    const struct train_options o = options();
    for (int left = 0; left < 20; left += 3) {
        struct err e = {0};
        struct step_result r, again;
        struct side s = {0};
        struct model *m = make_model(&spec);
        float *flat = tiny_weights(m, 21);
        OK(island_open("cpu,cpu,cpu", 3, &s.is, err));
        const struct pipe_plan plan = plan_of(&s, m, 3, 2, NULL);
        struct device *dev = island_device(s.is, 1);
        plain = dev->ops;
        struct kernel_ops faulty = *plain;
        faulty.adaln_bwd = failing_adaln;
        dev->ops = &faulty;
        OK(island_trainer_new(s.is, m, &o, &plan, NULL, &s.t, err));
        island_trainer_set_rehearsal(s.t, left % 2 == 1);
        OK(trainer_set(island_trainer_first(s.t), flat, err));
        OK(island_trainer_follow(s.t, ISLAND_ALL, err));
        adaln_left = left;
        while (step(&s, m, 0, BATCH, &r, &e) == 0)
            ;
        assert_non_null(strstr(e.msg, "rank 1 of 3 (cpu): "));
        adaln_left = 1 << 30;
        OK(trainer_set(island_trainer_first(s.t), flat, err));
        OK(trainer_reset_moments(island_trainer_first(s.t), err));
        trainer_position(island_trainer_first(s.t), 100, 200);
        OK(island_trainer_follow(s.t, ISLAND_ALL, err));
        OK(step(&s, m, 0, BATCH, &r, err));
        struct side one = side_open("cpu", m, &o, NULL, NULL);
        OK(step(&one, m, 0, BATCH, &again, err));
        assert_true(r.loss == again.loss && r.grad_norm == again.grad_norm);
        close_side(&one);
        island_trainer_free(s.t);
        dev->ops = plain;
        island_close(s.is);
        mem_free(flat);
        model_free(m);
    }
}

/* Only the first step of a size is computed twice. */
static void test_rehearsed(void **state)
{
    struct model_spec spec = tiny_spec();
    const struct train_options o = options();
    struct model *m = make_model(&spec);
    struct step_result r;
    struct side s = {0};
    float *flat = tiny_weights(m, 21);
    OK(island_open("cpu,cpu,cpu", 3, &s.is, err));
    const struct pipe_plan plan = plan_of(&s, m, 3, 2, NULL);
    struct device *dev = island_device(s.is, 1);
    plain = dev->ops;
    struct kernel_ops counting = *plain;
    counting.adaln_bwd = failing_adaln;
    dev->ops = &counting;
    OK(island_trainer_new(s.is, m, &o, &plan, NULL, &s.t, err));
    OK(trainer_set(island_trainer_first(s.t), flat, err));
    OK(island_trainer_follow(s.t, ISLAND_ALL, err));
    int calls[3];
    for (unsigned i = 0; i < 3; i++) {
        island_trainer_set_rehearsal(s.t, i > 0);
        adaln_left = 1 << 20;
        OK(step(&s, m, i, i < 2 ? BATCH : BATCH - 1, &r, err));
        calls[i] = (1 << 20) - adaln_left;
    }
    assert_true(calls[0] > 0);
    assert_int_equal(calls[1], calls[0]); /* its size is known */
    assert_int_equal(calls[2], 2 * calls[0]);
    adaln_left = 1 << 30;
    island_trainer_free(s.t);
    dev->ops = plain;
    island_close(s.is);
    mem_free(flat);
    model_free(m);
}

static void test_refused(void **state)
{
    struct err e = {0};
    struct model_spec spec = tiny_spec(), llama = tiny_llama();
    struct pipe_plan plan;
    struct island *is = NULL;
    struct island_trainer *t = NULL;
    const struct train_options o = options();
    OK(island_open("cpu,cpu,cpu,cpu", 4, &is, err));
    llama.tied = true;
    struct model *m = make_model(&spec), *tied = make_model(&llama);
    assert_int_equal(island_even_plan(is, m, 5, 4, JOB_PIPELINE_AUTO, &plan, &e), -ENOMEM);
    assert_non_null(strstr(e.msg, "train.stages is 5, but this worker has 4 devices"));
    OK(island_even_plan(is, m, 3, 4, JOB_PIPELINE_AUTO, &plan,
                        err)); /* one of them has two, and each a block */
    assert_int_equal(plan.devices, 4);
    assert_int_equal(plan.copies, 1);
    assert_int_equal(plan.cuts[0].stages[2].devices, 2);
    for (int i = 0; i < 3; i++)
        assert_int_equal(plan.cuts[0].stages[i].to - plan.cuts[0].stages[i].from, 1);
    assert_int_equal(island_even_plan(is, m, 4, 4, JOB_PIPELINE_AUTO, &plan, &e), -ENOMEM);
    assert_non_null(strstr(e.msg, "train.stages is 4, but the model has 3 blocks"));
    OK(island_even_plan(is, tied, 2, 4, JOB_PIPELINE_AUTO, &plan, err));
    assert_int_equal(island_trainer_new(is, tied, &o, &plan, NULL, &t, &e), -EINVAL);
    model_free(m);
    model_free(tied);
    island_close(is);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),      cmocka_unit_test(test_precisions),
        cmocka_unit_test(test_estimates), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_encoders),  cmocka_unit_test(test_shared),
        cmocka_unit_test(test_far),       cmocka_unit_test(test_lies),
        cmocka_unit_test(test_filled),    cmocka_unit_test(test_refilled),
        cmocka_unit_test(test_known),     cmocka_unit_test(test_trace),
        cmocka_unit_test(test_reading),   cmocka_unit_test(test_failure),
        cmocka_unit_test(test_rehearsed), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
