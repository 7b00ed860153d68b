/* Two chains on a pipeline's devices, a stage of each on every one or each chain on devices of its
 * own, have the bits of one device: weights, moments, losses and norms, joined, bidirectional,
 * divided and split, in every cut, alone and in copies. */
#include "tests/unit/worker/train/real_encoders.h"

#include <stdio.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/file.h"
#include "kernels/device/device.h"
#include "worker/train/checkpoint.h"

static const char *const cpus[] = {NULL,
                                   "cpu",
                                   "cpu,cpu",
                                   "cpu,cpu,cpu",
                                   "cpu,cpu,cpu,cpu",
                                   "cpu,cpu,cpu,cpu,cpu",
                                   "cpu,cpu,cpu,cpu,cpu,cpu"};

/* Blocks of stages, said by where each ends; NULL: about as many. */
struct cut {
    int stages, copies;
    const int *base, *upscaler;
    enum job_pipeline order;
    int variant;
    bool shard;
    int first;  /* divided: devices of the base; 0: in proportion */
    bool split; /* wherever the stages lie */
};

static struct model_spec deep_cascade(void)
{
    struct model_spec s = tiny_cascade();
    s.depth = 5;
    s.upscaler.depth = 3;
    return s;
}

static void set_ends(struct pipe_cut *cut, const int *ends)
{
    for (int i = 0; i < cut->n && ends; i++) {
        cut->stages[i].from = i > 0 ? ends[i - 1] : 0;
        cut->stages[i].to = ends[i];
    }
}

/* Each chain on devices of its own, another number of them than was found. */
static void divide_so(struct pipe_plan *plan, int first, const struct model *m)
{
    for (int c = 0; c < 2; c++) {
        struct pipe_cut *cut = &plan->cuts[c];
        const int depth = model_chain(m, c)->spec.depth;
        cut->n = c == 0 ? first : plan->devices - first;
        for (int i = 0; i < cut->n; i++)
            cut->stages[i] = (struct pipe_stage){.from = depth * i / cut->n,
                                                 .to = depth * (i + 1) / cut->n,
                                                 .device = c * first + i,
                                                 .devices = 1,
                                                 .warm = cut->n - i,
                                                 .slots = cut->n - i};
    }
}

static void plan_cut(const struct model *m, const struct train_options *o, const struct cut *c,
                     struct pipe_plan *ret)
{
    struct island *is = NULL;
    const int n = c->stages * c->copies;
    struct train_options share;
    island_share_options(o, c->copies, &share);
    OK(island_open(cpus[n], n, &is, err));
    OK(island_even_plan(is, m, c->stages, share.accumulate, c->order, ret, err));
    island_close(is);
    if (c->first > 0)
        divide_so(ret, c->first, m);
    set_ends(&ret->cuts[0], c->base);
    set_ends(&ret->cuts[1], c->upscaler);
    if (c->split)
        pipe_plan_split(ret);
    ret->variant = c->variant;
    ret->shard = c->shard;
}

static struct side cut_open(const struct model *m, const struct train_options *o,
                            const struct cut *c, struct pipe_plan *ret)
{
    plan_cut(m, o, c, ret);
    return side_open(cpus[c->stages * c->copies], m, o, ret, NULL);
}

static void assert_same(const struct side *a, const struct side *b, const struct model *m)
{
    static const enum trainer_vector all[] = {TRAINER_WEIGHTS, TRAINER_ADAM_M, TRAINER_ADAM_V,
                                              TRAINER_GRADIENT};
    float *x = model_flat_new(m), *y = model_flat_new(m);
    for (size_t v = 0; v < sizeof all / sizeof *all; v++)
        for (size_t i = 0; i < m->n; i++) {
            const struct model_tensor *t = &m->tensors[i];
            struct trainer *p = island_trainer_first(a->t), *q = island_trainer_first(b->t);
            OK(trainer_read(p, all[v], &trainer_model(p)->tensors[i], x, err));
            OK(trainer_read(q, all[v], &trainer_model(q)->tensors[i], y, err));
            if (memcmp(x, y, t->count * sizeof *x) != 0)
                fail_msg("vector %zu differs at %s", v, t->name);
        }
    mem_free(x);
    mem_free(y);
}

static void check(const struct model_spec *spec, const struct train_options *o, const struct cut *c)
{
    struct model *m = make_model(spec);
    struct pipe_plan plan;
    struct side whole = side_open(cpus[c->copies], m, o, NULL, NULL);
    struct side cut = cut_open(m, o, c, &plan);
    island_trainer_set_bucket(cut.t, 1); /* each range is summed as soon as it is named */
    island_trainer_set_rehearsal(cut.t, true);
    assert_int_equal(plan.chains, 2);
    assert_int_equal(plan.order, c->split                                 ? PIPE_SPLIT
                                 : c->order == JOB_PIPELINE_BIDIRECTIONAL ? PIPE_BIDIRECTIONAL
                                 : c->order == JOB_PIPELINE_DIVIDED       ? PIPE_DIVIDED
                                                                          : PIPE_1F1B);
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct step_result a, b;
        OK(step(&whole, m, i, count_of(i), &a, err));
        OK(step(&cut, m, i, count_of(i), &b, err));
        if (!(a.loss == b.loss && a.grad_norm == b.grad_norm && a.lr == b.lr && a.step == b.step))
            fail_msg("%d stages, %d copies, order %d.%d, step %u: loss %.17g, %.17g; norm %.17g, "
                     "%.17g",
                     c->stages, c->copies, c->order, c->variant, i, a.loss, b.loss, a.grad_norm,
                     b.grad_norm);
    }
    assert_same(&whole, &cut, m);
    for (int r = c->stages; r < c->stages * c->copies; r++) {
        struct trainer *x = island_trainer_rank(cut.t, r);
        struct trainer *y = island_trainer_rank(cut.t, r % c->stages);
        assert_memory_equal(trainer_device(x, TRAINER_WEIGHTS), trainer_device(y, TRAINER_WEIGHTS),
                            trainer_net(x)->weights->m->flat * sizeof(float));
    }
    close_side(&whole);
    close_side(&cut);
    model_free(m);
}

static void check_cuts(enum job_pipeline order, int variants)
{
    const struct model_spec spec = deep_cascade();
    for (int accumulate = 1; accumulate <= 7; accumulate += 3)
        for (int variant = 0; variant < variants; variant++) {
            const struct cut cuts[] = {
                {2, 1, NULL, NULL, order, variant, false},
                {2, 1, (int[]){1, 5}, (int[]){2, 3}, order, variant, false},
                {3, 1, (int[]){1, 2, 5}, NULL, order, variant, false},
                {2, 2, (int[]){4, 5}, (int[]){1, 3}, order, variant, accumulate > 1},
                {3, 2, NULL, NULL, order, variant, false},
            };
            struct train_options o = options();
            o.accumulate = accumulate;
            for (int k = 0; k < (int)(sizeof cuts / sizeof *cuts); k++)
                if (variants == 1 || accumulate == 4 || variant == k)
                    check(&spec, &o, &cuts[k]);
        }
}

static void test_joined(void **state)
{
    check_cuts(JOB_PIPELINE_1F1B, 1);
}

static void test_bidirectional(void **state)
{
    check_cuts(JOB_PIPELINE_BIDIRECTIONAL, SCHEDULE_VARIANTS);
}

static void test_divided(void **state)
{
    const struct model_spec spec = deep_cascade();
    const enum job_pipeline order = JOB_PIPELINE_DIVIDED;
    const struct cut cuts[] = {
        {2, 1, .order = order},
        {3, 1, (int[]){1, 5}, NULL, order, .first = 2},
        {5, 1, NULL, (int[]){2, 3}, order, .first = 3},
        {2, 2, .order = order, .shard = true},
        {3, 2, NULL, (int[]){1, 3}, order, .first = 1},
    };
    for (int accumulate = 1; accumulate <= 4; accumulate += 3)
        for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
            struct train_options o = options();
            o.accumulate = accumulate;
            check(&spec, &o, &cuts[k]);
        }
}

/* W apart, of both chains, wherever their stages lie; copies have unlike numbers of micro-batches
 * in some steps. */
static void test_split(void **state)
{
    const struct model_spec spec = deep_cascade();
    const struct cut cuts[] = {
        {2, 1, (int[]){1, 5}, (int[]){2, 3}, JOB_PIPELINE_1F1B, .split = true},
        {2, 2, .order = JOB_PIPELINE_1F1B, .shard = true, .split = true},
        {3, 1, .order = JOB_PIPELINE_BIDIRECTIONAL, .split = true},
        {3, 1, .order = JOB_PIPELINE_DIVIDED, .first = 2, .split = true},
    };
    for (int variant = 0; variant < SCHEDULE_VARIANTS; variant++)
        for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
            struct cut c = cuts[k];
            struct train_options o = options();
            if (k > 0 && variant % 3 != (int)k % 3)
                continue;
            c.variant = variant;
            o.accumulate = 1 + 3 * (variant % 3);
            o.precision = variant == 1 ? NET_BF16 : NET_F32;
            check(&spec, &o, &c);
        }
}

/* The base reads an estimate, which comes back from its last stage to its first. */
static void test_estimates(void **state)
{
    struct model_spec spec = deep_cascade();
    const struct cut cuts[] = {
        {2, 1, (int[]){1, 5}, (int[]){2, 3}, JOB_PIPELINE_1F1B},
        {2, 2, .order = JOB_PIPELINE_BIDIRECTIONAL, .shard = true},
        {3, 1, .order = JOB_PIPELINE_DIVIDED, .first = 2},
        {2, 1, .order = JOB_PIPELINE_DIVIDED},
        {3, 1, .order = JOB_PIPELINE_BIDIRECTIONAL, .split = true},
    };
    spec.self_condition = true;
    for (int accumulate = 1; accumulate <= 4; accumulate += 3)
        for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
            struct train_options o = options();
            o.accumulate = accumulate;
            o.self_condition = k == 1 ? 1 : 0.5;
            check(&spec, &o, &cuts[k]);
        }
}

static struct model_spec captioned_cascade(void)
{
    struct model_spec spec = deep_cascade();
    spec.dim = spec.upscaler.dim = 16;
    spec.mlp = spec.upscaler.mlp = 64;
    spec.heads = spec.upscaler.heads = 2;
    spec.caption = 10;
    spec.caption_tokens = 5;
    spec.self_condition = true;
    return spec;
}

/* Each chain's first stage encodes the captions, on whichever device it lies. */
static void test_captions(void **state)
{
    const struct model_spec spec = captioned_cascade();
    struct tiny_encoders encoders[4];
    struct net_encoders tables[4];
    const struct cut cuts[] = {
        {2, 1, (int[]){1, 5}, (int[]){2, 3}, JOB_PIPELINE_1F1B},
        {2, 2, .order = JOB_PIPELINE_BIDIRECTIONAL},
        {3, 1, .order = JOB_PIPELINE_DIVIDED, .first = 1, .split = true},
    };
    for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
        struct train_options o = options();
        o.accumulate = 4;
        o.self_condition = 0.5;
        for (int i = 0; i < 4; i++) {
            tables[i] = *tiny_encoders(&encoders[i], &spec, DT_F32);
            tables[i].arg = &encoders[i];
            tables[i].shift = tables[i].scale = NULL;
            tables[i].images = NULL;
        }
        o.encoders = tables;
        check(&spec, &o, &cuts[k]);
    }
    for (int i = 0; i < 3; i++) /* the last cut: devices 0 and 1 have the first stages */
        assert_true(i < 2 ? encoders[i].captions > 0 : encoders[i].captions == 0);
}

/* Costs of the blocks of both chains, and of a text encoder whose layers take so long each. */
static void made_costs(struct costs *p, const struct model *m, const struct real_encoders *e,
                       int devices, double frozen)
{
    const struct costs_time pass = {{1e-3, 4e-3}};
    struct costs_frozen *f = &p->frozen[0];
    *p = (struct costs){.sizes = {2, {1, 4}}, .groups = {2, {1, 4}}, .n_chains = 2, .n_frozen = 1};
    p->n_devices = devices;
    for (int d = 0; d < devices; d++)
        p->devices[d] = (struct costs_device){.speed = 1, .memory = 1 << 30};
    for (int d = 0; d + 1 < devices; d++)
        p->links[d] = (struct costs_link){1e-5, 1e9};
    for (int c = 0; c < 2; c++) {
        struct costs_chain *chain = &p->chains[c];
        chain->n = model_chain(m, c)->spec.depth;
        chain->layers = mem_alloc_array((size_t)chain->n, sizeof *chain->layers);
        for (int i = 0; i < chain->n; i++)
            chain->layers[i] = (struct costs_layer){
                .f = pass, .b = pass, .w = pass, .step = 1e-4, .out_bytes = 100};
    }
    f->out_bytes = 100;
    f->n = frozen_layers(e->ranks[0].of[NET_CAPTIONS]);
    f->layers = mem_alloc_array((size_t)f->n, sizeof *f->layers);
    for (int i = 0; i < f->n; i++)
        f->layers[i].t = (struct costs_time){{frozen, 3 * frozen}};
}

/* Two chains that are told captions, whose encoders are real. */
struct told {
    struct real_encoders encoders;
    struct costs costs;
    struct pipe_plan plan;
    struct side side;
};

/* frozen: costs of the encoders that bubbles run; 0: nothing is filled.  bare: bits of the devices
 * of a copy without them.  c NULL: data parallelism on so many devices. */
static struct told *told_open(const struct model *m, struct train_options o, const struct cut *c,
                              int n, double frozen, unsigned bare)
{
    struct told *t = mem_alloc(sizeof *t);
    float *flat = tiny_weights(m, 21);
    *t = (struct told){0};
    if (c)
        plan_cut(m, &o, c, &t->plan);
    OK(island_open(cpus[n], n, &t->side.is, err));
    real_encoders_open(&t->encoders, t->side.is);
    for (int k = 0; k < n; k++) {
        t->encoders.tables[k].images = NULL;
        t->encoders.tables[k].shift = t->encoders.tables[k].scale = NULL;
        t->encoders.tables[k].fly = false;
    }
    o.encoders = t->encoders.tables;
    if (frozen > 0)
        made_costs(&t->costs, m, &t->encoders, n, frozen);
    for (int d = 0; d < t->plan.devices; d++)
        t->plan.bare[d] = bare >> d & 1;
    OK(island_trainer_new(t->side.is, m, &o, c ? &t->plan : NULL, frozen > 0 ? &t->costs : NULL,
                          &t->side.t, err));
    assert_true(island_trainer_fills(t->side.t) == (frozen > 0));
    island_trainer_set_rehearsal(t->side.t, bare == 0);
    OK(trainer_set(island_trainer_first(t->side.t), flat, err));
    OK(island_trainer_follow(t->side.t, ISLAND_ALL, err));
    mem_free(flat);
    return t;
}

static void told_close(struct told *t)
{
    island_trainer_free(t->side.t);
    real_encoders_close(&t->encoders);
    island_close(t->side.is);
    costs_release(&t->costs);
    mem_free(t);
}

/* next: samples of the step after it; 0: not known. */
static struct step_result told_step(struct told *t, const struct model *m, unsigned i, unsigned n,
                                    unsigned next)
{
    struct step_result r;
    struct samples *x = mem_alloc(2 * sizeof *x);
    const struct batch now = make_batch(&m->spec, i, n, x);
    const struct batch then = make_batch(&m->spec, i + 1, next, x + 1);
    OK(island_trainer_step(t->side.t, &now, next > 0 ? &then : NULL, &r, err));
    mem_free(x);
    return r;
}

/* Does a device have frozen layers between its passes? */
static bool fills_bubbles(const struct told *t, int rank)
{
    const struct trace *trace;
    const struct pipe_list *list;
    bool before = false, over = false;
    trainer_traced(island_trainer_rank(t->side.t, rank), &trace, &list);
    for (int i = 0; i < list->n; i++) {
        before |= list->items[i].op == PIPE_FROZEN && !over;
        over |= list->items[i].op == PIPE_STEP;
    }
    return before;
}

/* A device encodes the empty caption, and nothing else before a step: where a chain begins, or for
 * those that have no encoders there. */
static void check_asked(const struct told *t, int ranks)
{
    const struct pipe_plan *plan = &t->plan;
    bool asks = false;
    int giver = 0;
    for (int d = 0; d < plan->devices; d++)
        asks |= plan->bare[d] && pipe_begins(plan, d);
    while (plan->bare[giver])
        giver++;
    for (int k = 0; k < ranks; k++) {
        const int d = k % plan->devices;
        const bool once = pipe_begins(plan, d) || (asks && d == giver);
        assert_int_equal(t->encoders.ranks[k].asked, once && !plan->bare[d]);
        assert_int_equal(t->encoders.ranks[k].opened, !plan->bare[d]);
    }
}

static void check_filled(const struct cut *c, double frozen, unsigned bare)
{
    const struct model_spec spec = captioned_cascade();
    struct model *m = make_model(&spec);
    struct train_options o = options();
    const int n = c->stages * c->copies;
    bool filled = false;
    o.accumulate = 4;
    o.self_condition = 0.5;
    o.label_dropout = 0.3;
    struct told *whole = told_open(m, o, NULL, c->copies, 0, 0);
    struct told *cut = told_open(m, o, c, n, frozen, bare);
    for (unsigned i = 0; i < ROUNDS; i++) {
        const bool knows = i % 7 != 3 && i + 1 < ROUNDS;
        const struct step_result a = told_step(whole, m, i, count_of(i), 0);
        const struct step_result b = told_step(cut, m, i, count_of(i), knows ? count_of(i + 1) : 0);
        if (!(a.loss == b.loss && a.grad_norm == b.grad_norm))
            fail_msg("%d stages, order %d.%d, frozen %g, step %u: loss %.17g, %.17g", c->stages,
                     c->order, c->variant, frozen, i, a.loss, b.loss);
        for (int k = 0; k < n; k++)
            filled |= fills_bubbles(cut, k);
    }
    assert_true(filled);
    assert_same(&whole->side, &cut->side, m);
    check_asked(cut, n);
    told_close(cut);
    told_close(whole);
    model_free(m);
}

/* Captions of both chains are encoded once, in the bubbles of the step before: nothing changes,
 * wherever the encoders lie. */
static void test_filled(void **state)
{
    const struct cut joined = {2, 1, (int[]){1, 5}, (int[]){2, 3}, JOB_PIPELINE_1F1B};
    const struct cut both = {2, 2, .order = JOB_PIPELINE_BIDIRECTIONAL, .shard = true};
    const struct cut divided = {3, 1, .order = JOB_PIPELINE_DIVIDED, .first = 1};
    const struct cut split = {3, 1, .order = JOB_PIPELINE_BIDIRECTIONAL, .split = true};
    check_filled(&joined, 1e-4, 0);
    check_filled(&joined, 2e-3, 1);
    check_filled(&both, 3e-4, 0);
    check_filled(&both, 3e-4, 2); /* the upscaler begins on the last device */
    check_filled(&divided, 3e-4, 0);
    check_filled(&divided, 3e-4, 3);
    check_filled(&split, 3e-4, 5);
}

/* Bubbles of two chains are filled again by what their steps took; what was encoded ahead is not
 * encoded again. */
static void test_refilled(void **state)
{
    const struct model_spec spec = captioned_cascade();
    const struct cut c = {2, 1, .order = JOB_PIPELINE_BIDIRECTIONAL};
    struct model *m = make_model(&spec);
    struct train_options o = options();
    o.accumulate = 4;
    struct told *whole = told_open(m, o, NULL, 1, 0, 0), *cut = told_open(m, o, &c, 2, 3e-4, 0);
    const struct refill *r = island_trainer_refill(cut->side.t);
    for (unsigned i = 0; r->state != REFILL_DONE; i++) {
        const struct step_result a = told_step(whole, m, i, BATCH, 0);
        const struct step_result b = told_step(cut, m, i, BATCH, BATCH);
        assert_true(a.loss == b.loss && a.grad_norm == b.grad_norm);
        assert_true(i < 2 + REFILL_SETTLED + (1 + REFILL_SHARES_MAX) * REFILL_STEPS);
    }
    for (int d = 0; d < 2; d++)
        assert_true(r->times.passes[0][d][0] > 0 && r->times.passes[1][d][0] > 0);
    assert_same(&whole->side, &cut->side, m);
    told_close(cut);
    told_close(whole);
    model_free(m);
}

/* A plan that was made without costs says nothing of how large micro-batches are: bubbles are those
 * of the samples that they have.  The first device waits for 10 ms a sample, of which there are
 * seven; a frozen layer takes 30 ms for one. */
static void test_even_filled(void **state)
{
    const struct model_spec spec = captioned_cascade();
    const struct cut c = {2, 1, (int[]){1, 5}, (int[]){2, 3}, JOB_PIPELINE_1F1B};
    struct model *m = make_model(&spec);
    struct train_options o = options();
    o.accumulate = 1;
    struct told *cut = told_open(m, o, &c, 2, 30e-3, 0);
    (void)told_step(cut, m, 0, BATCH, BATCH);
    assert_true(fills_bubbles(cut, 0));
    told_close(cut);
    model_free(m);
}

static void test_precisions(void **state)
{
    static const enum job_pipeline orders[] = {JOB_PIPELINE_1F1B, JOB_PIPELINE_BIDIRECTIONAL,
                                               JOB_PIPELINE_DIVIDED};
    const struct model_spec spec = deep_cascade();
    for (int k = 0; k < 9; k++) {
        const struct cut c = {.stages = 3, .copies = 1, .order = orders[k % 3]};
        struct train_options o = options();
        o.accumulate = 3;
        o.precision = k < 3 ? NET_BF16 : NET_F32;
        o.recompute = k / 3 == 1;
        o.lean = k / 3 == 2;
        check(&spec, &o, &c);
    }
}

/* A device has its stages' blocks alone: less memory, and each chain its own slots. */
static void test_memory(void **state)
{
    const struct model_spec spec = deep_cascade();
    struct model *m = make_model(&spec);
    const struct cut c = {.stages = 3, .copies = 1, .order = JOB_PIPELINE_BIDIRECTIONAL};
    struct train_options o = options();
    struct pipe_plan plan;
    o.accumulate = 7;
    struct side s = cut_open(m, &o, &c, &plan);
    uint64_t params = 0;
    for (int r = 0; r < 3; r++) {
        struct trainer *t = island_trainer_rank(s.t, r);
        struct net *net = trainer_net(t);
        const struct model *part = net->weights->m;
        params += part->params;
        assert_int_equal(net_slots(&net_chain(net, 0)->opt), 3 - r);
        assert_int_equal(net_slots(&net_chain(net, 1)->opt), r + 1);
        assert_int_equal(part->chains[1]->part.from, 2 - r); /* one block on each, descending */
        assert_true(trainer_bytes(part, trainer_options(t), DT_F32) < trainer_bytes(m, &o, DT_F32));
    }
    assert_int_equal(params, m->params);
    close_side(&s);
    model_free(m);
}

/* Divided, a device has nothing of the other chain. */
static void test_memory_divided(void **state)
{
    const struct model_spec spec = deep_cascade();
    struct model *m = make_model(&spec);
    const struct cut c = {.stages = 3, .copies = 1, .order = JOB_PIPELINE_DIVIDED, .first = 1};
    struct train_options o = options();
    struct pipe_plan plan;
    uint64_t params = 0;
    o.accumulate = 7;
    struct side s = cut_open(m, &o, &c, &plan);
    for (int r = 0; r < 3; r++) {
        struct trainer *t = island_trainer_rank(s.t, r);
        struct net *net = trainer_net(t);
        const struct model *part = net->weights->m;
        params += part->params;
        assert_true((net_chain(net, 0) != NULL) == (r == 0));
        assert_true((net_chain(net, 1) != NULL) == (r > 0));
        assert_int_equal(part->chains[r == 0]->params, 0);
        assert_true(trainer_bytes(part, trainer_options(t), DT_F32) < trainer_bytes(m, &o, DT_F32));
    }
    assert_int_equal(params, m->params);
    close_side(&s);
    model_free(m);
}

/* A checkpoint goes on with any plan; a level is one chain's, whoever has its blocks. */
static void test_checkpoint(void **state)
{
    enum { SIDES = 4 };
    struct model_spec spec = deep_cascade();
    spec.cut =
        (struct model_cut){.n_levels = 2, .block_level = {0, 0, 0, 0, 0, 1, 1, 1}, .head_level = 1};
    struct model *m = make_model(&spec);
    const struct train_options o = options();
    const struct cut joined = {.stages = 2, .copies = 1, .order = JOB_PIPELINE_1F1B},
                     both = {.stages = 3, .copies = 1, .order = JOB_PIPELINE_BIDIRECTIONAL},
                     divided = {.stages = 3, .copies = 1, .order = JOB_PIPELINE_DIVIDED};
    struct pipe_plan plans[3];
    struct step_result r[SIDES];
    struct side sides[SIDES] = {
        cut_open(m, &o, &joined, &plans[0]), cut_open(m, &o, &both, &plans[1]),
        cut_open(m, &o, &divided, &plans[2]), side_open("cpu", m, &o, NULL, NULL)};
    char path[] = "/tmp/skerry-chains-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    for (unsigned i = 0; i < 3; i++)
        OK(step(&sides[0], m, i, BATCH, &r[0], err));
    OK(checkpoint_save(island_trainer_first(sides[0].t), path, NULL, 0, false, err));
    float *new = tiny_weights(m, 5), *got = model_flat_new(m);
    for (int k = 0; k < SIDES; k++) {
        if (k > 0)
            OK(checkpoint_load(island_trainer_first(sides[k].t), path, NULL, err));
        OK(trainer_set_level(island_trainer_first(sides[k].t), 1, new, err));
        OK(island_trainer_follow(sides[k].t, ISLAND_ALL, err));
        OK(trainer_get_level(island_trainer_first(sides[k].t), 1, got, err));
        for (size_t i = 0; i < m->n; i++) {
            const struct model_tensor *t = &m->tensors[i];
            if (t->level == 1)
                assert_memory_equal(got + t->offset, new + t->offset, t->count * sizeof *got);
        }
        OK(step(&sides[k], m, 9, BATCH, &r[k], err));
        assert_true(r[k].loss == r[0].loss && r[k].grad_norm == r[0].grad_norm);
        assert_same(&sides[0], &sides[k], m);
    }
    (void)unlink(path);
    mem_free(new);
    mem_free(got);
    for (int k = 0; k < SIDES; k++)
        close_side(&sides[k]);
    model_free(m);
}

static void traced(const struct cut *c, const char *const words[], size_t n)
{
    const struct model_spec spec = deep_cascade();
    struct model *m = make_model(&spec);
    const struct train_options o = options();
    struct pipe_plan plan;
    struct step_result r;
    struct buf text;
    char path[] = "/tmp/skerry-trace-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    struct side s = cut_open(m, &o, c, &plan);
    island_trainer_trace(s.t, path);
    OK(step(&s, m, 0, BATCH, &r, err));
    OK(file_read(path, 1 << 20, &text, err));
    for (size_t i = 0; i < n; i++)
        if (!strstr(buf_str(&text), words[i]))
            fail_msg("no %s in %s", words[i], buf_str(&text));
    buf_release(&text);
    (void)unlink(path);
    close_side(&s);
    model_free(m);
}

/* A trace says which chain each pass is of, and which stages a device has. */
static void test_trace(void **state)
{
    static const char *const both[] = {"cpu, copy 0, stage 1, upscaler's stage 0", "\"F 1 base\"",
                                       "\"B 0 upscaler\"", "\"SEND states 1 upscaler\"",
                                       "\"RECV gradients 0 base\""};
    static const char *const divided[] = {"\"cpu, copy 0, stage 0\"", "\"F 1 base\"",
                                          "\"cpu, copy 0, upscaler's stage 0\"",
                                          "\"B 0 upscaler\""};
    traced(&(struct cut){.stages = 2, .copies = 1, .order = JOB_PIPELINE_BIDIRECTIONAL}, both, 5);
    traced(&(struct cut){.stages = 2, .copies = 1, .order = JOB_PIPELINE_DIVIDED}, divided, 4);
}

/* A step without a finite loss is skipped by all devices, and leaves them as they were. */
static void test_diverged(void **state)
{
    const struct model_spec spec = deep_cascade();
    struct model *m = make_model(&spec);
    const struct train_options o = options();
    const struct cut c = {.stages = 2, .copies = 1, .order = JOB_PIPELINE_BIDIRECTIONAL};
    struct pipe_plan plan;
    struct step_result r;
    struct side s = cut_open(m, &o, &c, &plan);
    float *flat = tiny_weights(m, 21), *got = model_flat_new(m);
    flat[model_find(m, "upscaler.final_layer.linear.bias")->offset] = 1e30f;
    OK(trainer_set(island_trainer_first(s.t), flat, err));
    OK(step(&s, m, 0, BATCH, &r, err));
    assert_true(r.skipped);
    OK(trainer_get(island_trainer_first(s.t), got, err));
    assert_memory_equal(flat, got, m->flat * sizeof *got);
    mem_free(flat);
    mem_free(got);
    close_side(&s);
    model_free(m);
}

static void test_refused(void **state)
{
    struct err e = {0};
    const struct model_spec spec = deep_cascade();
    struct model *m = make_model(&spec);
    struct island *is = NULL;
    struct pipe_plan plan;
    OK(island_open("cpu,cpu,cpu,cpu", 4, &is, err));
    assert_int_equal(island_even_plan(is, m, 4, 4, JOB_PIPELINE_1F1B, &plan, &e), -ENOMEM);
    assert_non_null(strstr(e.msg, "train.stages is 4, but the upscaler has 3 blocks"));
    assert_int_equal(island_even_plan(is, m, 3, 4, JOB_PIPELINE_AUTO, &plan, &e), -ENOMEM);
    assert_non_null(strstr(e.msg, "a stage of both chains: take a number that divides them"));
    assert_int_equal(island_even_plan(is, m, 3, 4, JOB_PIPELINE_DIVIDED, &plan, &e), -ENOMEM);
    assert_non_null(strstr(e.msg, "a stage of one chain: take a number that divides them"));
    OK(island_even_plan(is, m, 4, 4, JOB_PIPELINE_AUTO, &plan, err));
    assert_int_equal(plan.order, PIPE_DIVIDED); /* the upscaler has three blocks */
    assert_int_equal(plan.cuts[0].n + plan.cuts[1].n, 4);
    OK(island_even_plan(is, m, 2, 4, JOB_PIPELINE_AUTO, &plan, err));
    assert_int_equal(plan.order, PIPE_1F1B);
    island_close(is);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joined),         cmocka_unit_test(test_bidirectional),
        cmocka_unit_test(test_captions),       cmocka_unit_test(test_split),
        cmocka_unit_test(test_estimates),      cmocka_unit_test(test_divided),
        cmocka_unit_test(test_memory_divided), cmocka_unit_test(test_precisions),
        cmocka_unit_test(test_memory),         cmocka_unit_test(test_checkpoint),
        cmocka_unit_test(test_trace),          cmocka_unit_test(test_diverged),
        cmocka_unit_test(test_refused),        cmocka_unit_test(test_filled),
        cmocka_unit_test(test_refilled),       cmocka_unit_test(test_even_filled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
