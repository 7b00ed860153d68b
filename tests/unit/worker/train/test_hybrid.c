/* Stages of several devices, of which each has its share of every micro-batch: the gradient of a
 * stage's tensors is to the bit that of as many ranks that each sum their own shares, and is then
 * added up in their order; all else is as on one device. */
#include "tests/unit/worker/train/sides.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "kernels/device/device.h"
#include "worker/train/checkpoint.h"

/* Micro-batches of three samples at most, where they are compared with parts of them: products of
 * so few rows are taken in another order than those of more. */
enum { WIDEST = 3, FIRST_STEP = 100 };

static const char *const cpus[] = {NULL,
                                   "cpu",
                                   "cpu,cpu",
                                   "cpu,cpu,cpu",
                                   "cpu,cpu,cpu,cpu",
                                   "cpu,cpu,cpu,cpu,cpu",
                                   "cpu,cpu,cpu,cpu,cpu,cpu"};

struct shape {
    int stages, copies, widths[4], ends[4];
};

static int devices_of(const struct shape *s)
{
    int n = 0;
    for (int i = 0; i < s->stages; i++)
        n += s->copies * s->widths[i];
    return n;
}

static struct pipe_plan plan_of(const struct shape *s, int micros, int variant)
{
    struct pipe_plan plan = {.order = s->stages > 1 ? PIPE_1F1B : PIPE_DATA,
                             .chains = 1,
                             .copies = s->copies,
                             .devices = devices_of(s) / s->copies};
    struct pipe_cut *cut = &plan.cuts[0];
    cut->n = s->stages;
    for (int i = 0, device = 0; i < s->stages; device += s->widths[i++]) {
        const int left = s->stages - i, warm = left < micros ? left : micros;
        cut->stages[i] = (struct pipe_stage){.from = i > 0 ? s->ends[i - 1] : 0,
                                             .to = s->ends[i],
                                             .device = device,
                                             .devices = s->widths[i],
                                             .warm = warm,
                                             .slots = warm};
    }
    if (variant >= 0) {
        pipe_plan_split(&plan);
        plan.variant = variant;
    }
    return plan;
}

/* ---- what a stage of r devices must find ---- */

/* One device, with as many gradients as there are shares. */
struct reference {
    struct device *dev;
    struct net *net;
    const struct train_options *o;
    struct tiny_encoders encoders;
    struct net_encoders table;
    float *flat, *sum;
};

static void reference_open(struct reference *r, const struct model *m,
                           const struct train_options *o)
{
    struct net_options nopt = train_net_options(o);
    *r = (struct reference){.o = o, .flat = model_flat_new(m), .sum = model_flat_new(m)};
    if (model_captioned(&m->spec)) {
        r->table = *tiny_encoders(&r->encoders, &m->spec, DT_F32);
        nopt.encoders = &r->table;
    }
    OK(device_open("cpu", 1, &r->dev, err));
    OK(net_new(r->dev, m, &nopt, &r->net, err));
}

static void reference_close(struct reference *r)
{
    net_free(r->net);
    device_close(r->dev);
    mem_free(r->flat);
    mem_free(r->sum);
}

/* The gradient that rank k of `width` makes of its shares. */
static void reference_share(struct reference *r, const struct batch *b, int width, int k)
{
    const unsigned most = (unsigned)train_micro_batch(r->o), n = (unsigned)width;
    const struct weights *w = r->net->weights;
    bool first = true;
    memset(w->g, 0, w->m->flat * sizeof *w->g);
    for (unsigned from = 0; from < b->count; from += most) {
        const unsigned u = b->count - from < most ? b->count - from : most;
        const unsigned at = u * (unsigned)k / n, to = u * (unsigned)(k + 1) / n;
        const struct net_micro micro = {from + at, to - at, first, true, false};
        if (at == to)
            continue;
        OK(net_forward(r->net, NULL, 0, &micro, err));
        OK(net_backward(r->net, NULL, 0, err));
        first = false;
    }
}

/* Of a step from the weights in r->flat: r->sum. */
static void reference_gradient(struct reference *r, unsigned i, unsigned count, int width)
{
    const struct model *m = net_model(r->net);
    struct samples *x = mem_alloc(sizeof *x);
    struct batch b = make_batch(&m->spec, i, count, x);
    uint64_t keys[BATCH];
    for (unsigned j = 0; j < count; j++)
        keys[j] = rng_mix(FIRST_STEP + i, j);
    b.keys = keys;
    b.seed = rng_mix(r->o->seed, r->o->replica);
    b.estimate = m->spec.self_condition && train_has_estimate(r->o, FIRST_STEP + i);
    OK(net_set(r->net, r->flat, err));
    OK(net_load(r->net, &b, 1.0f / (float)batch_units(&b), err));
    for (int k = 0; k < width; k++) {
        reference_share(r, &b, width, k);
        for (uint64_t v = 0; v < m->flat; v++)
            r->sum[v] = k == 0 ? r->net->weights->g[v] : r->sum[v] + r->net->weights->g[v];
    }
    mem_free(x);
}

/* ---- steps against it ---- */

/* Ranks of a stage have the same weights, in all copies. */
static void assert_ranks_equal(const struct side *s, const struct shape *shape)
{
    const int depth = devices_of(shape) / shape->copies;
    for (int c = 0; c < shape->copies; c++)
        for (int i = 0, at = 0; i < shape->stages; at += shape->widths[i++])
            for (int k = 0; k < shape->widths[i]; k++) {
                struct trainer *a = island_trainer_rank(s->t, at);
                struct trainer *b = island_trainer_rank(s->t, c * depth + at + k);
                assert_memory_equal(trainer_device(a, TRAINER_WEIGHTS),
                                    trainer_device(b, TRAINER_WEIGHTS),
                                    trainer_net(a)->weights->m->flat * sizeof(float));
                assert_int_equal(trainer_next_step(a), trainer_next_step(b));
            }
}

/* Tensors of the stages of `width` devices have the gradient in r->sum; squares adds theirs. */
static void check_gradients(const struct side *s, const struct shape *shape,
                            const struct reference *r, int width, double *squares)
{
    const struct model *m = net_model(r->net);
    float *x = model_flat_new(m);
    for (int i = 0, at = 0; i < shape->stages; at += shape->widths[i++]) {
        const struct model *part = trainer_net(island_trainer_rank(s->t, at))->weights->m;
        for (size_t k = 0; k < m->n && shape->widths[i] == width; k++) {
            const struct model_tensor *t = &m->tensors[k];
            if (part->tensors[k].count == 0)
                continue;
            OK(trainer_read(island_trainer_first(s->t), TRAINER_GRADIENT, t, x, err));
            if (memcmp(x, r->sum + t->offset, t->count * sizeof *x) != 0)
                fail_msg("the gradient of %s in stage %d of %d devices differs", t->name, i, width);
            OK(r->dev->ops->zero(r->dev, &squares[k], sizeof *squares, NULL));
            OK(r->dev->ops->sumsq(r->dev, &squares[k], x, &(struct vec_span){0, (int64_t)t->count},
                                  1, NULL));
        }
    }
    mem_free(x);
}

static void check_step(struct side *s, const struct shape *shape, struct reference *r, unsigned i)
{
    const struct model *m = net_model(r->net);
    double *squares = mem_alloc_array(m->n, sizeof *squares), sum = 0;
    struct step_result result;
    OK(trainer_get(island_trainer_first(s->t), r->flat, err));
    OK(step(s, m, i, count_of(i), &result, err));
    for (int width = 1; width <= WIDEST; width++) {
        reference_gradient(r, i, count_of(i), width);
        check_gradients(s, shape, r, width, squares);
    }
    for (size_t k = 0; k < m->n; k++)
        sum += squares[k];
    assert_true(result.grad_norm == sqrt(sum));
    assert_ranks_equal(s, shape);
    mem_free(squares);
}

static void check(const struct model_spec *spec, const struct train_options *opt,
                  const struct shape *shape, int variant)
{
    struct train_options o = *opt;
    struct tiny_encoders encoders[6];
    struct net_encoders tables[6];
    const int n = devices_of(shape);
    for (int k = 0; k < n && model_captioned(spec); k++) {
        tables[k] = *tiny_encoders(&encoders[k], spec, DT_F32);
        o.encoders = tables;
    }
    struct model *m = make_model(spec);
    const struct pipe_plan plan = plan_of(shape, o.accumulate, variant);
    struct side s = side_open(cpus[n], m, &o, &plan, NULL);
    struct reference r;
    reference_open(&r, m, &o);
    for (unsigned i = 0; i < ROUNDS; i++)
        check_step(&s, shape, &r, i);
    /* Each encodes its own samples alone. */
    if (model_captioned(spec) && shape->widths[0] > 1)
        assert_true(encoders[0].captions < ROUNDS * BATCH * 2 / 3);
    reference_close(&r);
    close_side(&s);
    model_free(m);
}

static const struct shape shapes[] = {
    {2, 1, {2, 1}, {2, 4}},
    {2, 1, {1, 2}, {1, 4}},
    {2, 1, {2, 3}, {2, 4}},
    {3, 1, {1, 3, 2}, {1, 3, 4}},
};

static void test_gradients(void **state)
{
    struct model_spec specs[] = {tiny_spec(), tiny_llama(), tiny_qwen(), tiny_qwen3(),
                                 tiny_captioned()};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            struct train_options o = options();
            specs[i].depth = 4;
            o.accumulate = 4;
            check(&specs[i], &o, &shapes[k], -1);
            o.accumulate = 3;
            check(&specs[i], &o, &shapes[k], (int)k % 2 ? SCHEDULE_EARLY : 0);
        }
}

static void test_estimates(void **state)
{
    struct model_spec spec = tiny_spec();
    struct train_options o = options();
    spec.depth = 4;
    spec.self_condition = true;
    o.self_condition = 0.5;
    o.accumulate = 3;
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
        check(&spec, &o, &shapes[k], -1);
}

/* The name of the first tensor of a vector that differs; NULL: none does. */
static const char *unlike(const struct side *a, const struct side *b, const struct model *m,
                          enum trainer_vector which)
{
    float *x = model_flat_new(m), *y = model_flat_new(m);
    const char *name = NULL;
    for (size_t i = 0; i < m->n && !name; i++) {
        const struct model_tensor *t = &m->tensors[i];
        OK(trainer_read(island_trainer_first(a->t), which, t, x, err));
        OK(trainer_read(island_trainer_first(b->t), which, t, y, err));
        name = memcmp(x, y, t->count * sizeof *x) != 0 ? t->name : NULL;
    }
    mem_free(x);
    mem_free(y);
    return name;
}

static void assert_same(const struct side *a, const struct side *b, const struct model *m)
{
    static const enum trainer_vector all[] = {TRAINER_WEIGHTS, TRAINER_ADAM_M, TRAINER_ADAM_V};
    for (size_t v = 0; v < sizeof all / sizeof *all; v++) {
        const char *name = unlike(a, b, m, all[v]);
        if (name)
            fail_msg("vector %zu differs at %s", v, name);
    }
}

/* All rounds of both, whose bits are the same. */
static void check_same(const struct model_spec *spec, const struct train_options *o,
                       const struct shape *a, const struct shape *b, bool shard)
{
    struct model *m = make_model(spec);
    const struct pipe_plan first = plan_of(a, o->accumulate, -1);
    struct pipe_plan second = plan_of(b, o->accumulate, -1);
    second.shard = shard;
    struct side x = side_open(cpus[devices_of(a)], m, o, &first, NULL);
    struct side y = side_open(cpus[devices_of(b)], m, o, &second, NULL);
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct step_result p, q;
        OK(step(&x, m, i, count_of(i), &p, err));
        OK(step(&y, m, i, count_of(i), &q, err));
        if (p.loss == q.loss && p.grad_norm == q.grad_norm && p.step == q.step)
            continue;
        const char *name = unlike(&x, &y, m, TRAINER_GRADIENT);
        fail_msg("%s in %s, %d micro-batches, round %u: %d stages of %d devices have loss %a, "
                 "norm %a, step %" PRIu64 "; %d of %d%s %a, %a, %" PRIu64
                 "; the first gradient that differs: %s",
                 spec->kind == MODEL_LLAMA ? "llama" : "dit",
                 o->precision == NET_BF16 ? "bf16" : "f32", o->accumulate, i, a->stages,
                 devices_of(a), p.loss, p.grad_norm, p.step, b->stages, devices_of(b),
                 shard ? ", sharded," : "", q.loss, q.grad_norm, q.step, name ? name : "none");
    }
    assert_same(&x, &y, m);
    assert_ranks_equal(&y, b);
    close_side(&x);
    close_side(&y);
    model_free(m);
}

/* Where all stages are as wide they have the bits of so many data-parallel ranks, however they are
 * cut; copies of hybrids those of hybrids whose state is shared out. */
static void test_alike(void **state)
{
    struct model_spec specs[] = {tiny_spec(), tiny_llama()};
    static const struct shape ranks = {1, 2, {1}, {4}}, wide = {1, 1, {2}, {4}},
                              square = {2, 1, {2, 2}, {1, 4}}, six = {3, 1, {2, 2, 2}, {1, 2, 4}},
                              twice = {2, 2, {2, 1}, {2, 4}}, alone = {2, 1, {1, 3}, {2, 4}};
    for (size_t i = 0; i < 2; i++) {
        struct train_options o = options();
        specs[i].depth = 4;
        check_same(&specs[i], &o, &wide, &square, false);
        check_same(&specs[i], &o, &twice, &twice, true);
        check_same(&specs[i], &o, &alone, &alone, true);
        o.precision = NET_BF16;
        check_same(&specs[i], &o, &wide, &six, false);
        o.precision = NET_F32;
        o.accumulate = 1; /* a micro-batch is what a copy has */
        check_same(&specs[i], &o, &ranks, &square, false);
    }
}

/* A side whose steps with one of the classes have no finite loss. */
static struct side infinite_side(const struct shape *shape, bool shard, const struct model *m,
                                 const struct train_options *o)
{
    struct pipe_plan plan = plan_of(shape, o->accumulate, -1);
    plan.shard = shard;
    struct side s = side_open(cpus[devices_of(shape)], m, o, &plan, NULL);
    float *flat = tiny_weights(m, 21);
    const struct model_tensor *table = model_find(m, "y_embedder.embedding_table.weight");
    for (int64_t i = 0; i < m->spec.dim; i++)
        flat[table->offset + (uint64_t)(17 * m->spec.dim + i)] = INFINITY;
    OK(trainer_set(island_trainer_first(s.t), flat, err));
    OK(island_trainer_follow(s.t, ISLAND_WEIGHTS, err));
    mem_free(flat);
    return s;
}

static void check_skips(const struct shape *a, const struct shape *b, bool shard)
{
    struct model_spec spec = tiny_spec();
    struct train_options o = options();
    spec.depth = 4;
    spec.classes = 40;
    spec.self_condition = true;
    o.self_condition = 0.5;
    struct model *m = make_model(&spec);
    struct side x = infinite_side(a, false, m, &o), y = infinite_side(b, shard, m, &o);
    struct trainer *first = island_trainer_first(y.t);
    float *before = model_flat_new(m), *after = model_flat_new(m);
    unsigned skipped = 0, rounds = 20;
    for (unsigned i = 0; i < rounds; i++) {
        struct step_result p, q;
        OK(trainer_get(first, before, err));
        OK(step(&x, m, i, count_of(i), &p, err));
        OK(step(&y, m, i, count_of(i), &q, err));
        OK(trainer_get(first, after, err));
        skipped += q.skipped;
        assert_true(p.skipped == q.skipped && p.step == q.step && p.lr == q.lr);
        assert_true(q.skipped || (p.loss == q.loss && p.grad_norm == q.grad_norm));
        assert_int_equal(memcmp(before, after, m->flat * sizeof *before) == 0, q.skipped);
    }
    assert_in_range(skipped, 2, rounds / 2);
    for (int r = 0; r < island_size(y.is); r++) {
        assert_int_equal(trainer_next_step(island_trainer_rank(y.t, r)), FIRST_STEP + rounds);
        assert_int_equal(trainer_adam_step(island_trainer_rank(y.t, r)), rounds - skipped);
    }
    assert_same(&x, &y, m);
    assert_ranks_equal(&y, b);
    close_side(&x);
    close_side(&y);
    mem_free(before);
    mem_free(after);
    model_free(m);
}

/* All ranks skip the same steps, and leave weights and moments as they were, shared out or not. */
static void test_skips(void **state)
{
    static const struct shape one = {1, 1, {1}, {4}}, line = {3, 1, {1, 1, 1}, {1, 2, 4}},
                              wide = {1, 1, {2}, {4}}, square = {2, 1, {2, 2}, {1, 4}},
                              twice = {2, 2, {2, 1}, {2, 4}}, alone = {2, 1, {1, 3}, {2, 4}};
    check_skips(&one, &line, false);
    check_skips(&wide, &square, false);
    check_skips(&twice, &twice, true);
    check_skips(&alone, &alone, true);
}

/* A checkpoint of a hybrid goes on with any plan. */
static void test_checkpoint(void **state)
{
    struct model_spec spec = tiny_spec();
    const struct train_options o = options();
    spec.depth = 4;
    struct model *m = make_model(&spec);
    struct side sides[3];
    for (int k = 0; k < 3; k++) {
        static const struct shape one = {1, 1, {1}, {4}};
        const struct shape *shape = k == 2 ? &one : &shapes[k];
        struct pipe_plan plan = plan_of(shape, o.accumulate, -1);
        plan.shard = k == 0;
        sides[k] = side_open(cpus[devices_of(shape)], m, &o, &plan, NULL);
    }
    for (unsigned i = 0; i < 3; i++) {
        struct step_result r;
        OK(step(&sides[0], m, i, BATCH, &r, err));
    }
    char path[] = "/tmp/skerry-hybrid-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    OK(checkpoint_save(island_trainer_first(sides[0].t), path, NULL, 0, false, err));
    for (int k = 1; k < 3; k++) {
        OK(checkpoint_load(island_trainer_first(sides[k].t), path, NULL, err));
        OK(island_trainer_follow(sides[k].t, ISLAND_ALL, err));
        assert_same(&sides[0], &sides[k], m);
    }
    assert_ranks_equal(&sides[1], &shapes[1]);
    (void)unlink(path);
    for (int k = 0; k < 3; k++)
        close_side(&sides[k]);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),  cmocka_unit_test(test_estimates),
        cmocka_unit_test(test_alike),      cmocka_unit_test(test_skips),
        cmocka_unit_test(test_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
