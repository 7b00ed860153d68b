/* Mixtures of experts of two chains as tasks: each chain is measured and drawn as by the experts
 * alone, and the bits do not depend on where the experts are. */
#define SPEC_OF(precision)                                                                         \
    "name: tiny\nseed: 3\n"                                                                        \
    "data: {path: x, image_size: 8, shard_samples: 16}\n"                                          \
    "model: {type: dit, patch: 1, dim: 16, depth: 2, heads: 2, label_dropout: 0.2}\n"              \
    "upscaler: {low_side: 4, patch: 2, dim: 8, depth: 1, heads: 1, noise: 0.2}\n"                  \
    "router: {patch: 2, dim: 8, depth: 1, heads: 1}\n"                                             \
    "recipe: {name: ddm, experts: 3}\n"                                                            \
    "train: {batch: 4, lr: 1e-3, precision: " precision "}\n"                                      \
    "outer: {rounds: 3, steps: 6}\n"

#include "tests/unit/worker/mixture_task.h"

#include <math.h>

static const char *const chains[] = {"base's loss", "upscaler's loss"};

static double row(const struct work *w, const char *name)
{
    for (size_t i = 0; i < w->result.n_rows; i++)
        if (strcmp(w->result.rows[i].name, name) == 0)
            return w->result.rows[i].value;
    fail_msg("no row \"%s\"", name);
    return 0;
}

static void add_path(struct host *h, int k, int partition, double sums[2])
{
    struct order o;
    order_path(&o, SKERRY__V1__TASK_KIND__TASK_KIND_EVAL, k);
    o.ranges[0] = &o.range[partition];
    o.eval.n_ranges = 1;
    struct work *w = host_run(h, &o.task);
    for (int i = 0; i < 2; i++)
        sums[i] += row(w, chains[i]) * SHARD;
    work_free(w);
}

/* The oracle is every expert on its own partition, in each chain; equal experts have that expert's
 * losses, whatever the router says.  (A path's losses of both chains are added in f32.) */
static void test_evaluation(void **state)
{
    (void)state;
    static const uint32_t strategies[] = {JOB_STRATEGY_ORACLE, JOB_STRATEGY_TOP1,
                                          JOB_STRATEGY_FULL};
    struct host h;
    struct order o;
    host_new(&h, "evaluation", 2);
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_EVAL);
    double apart[2] = {0, 0}, alone[2] = {0, 0};
    for (int k = 0; k < K; k++) {
        add_path(&h, k, k, apart);
        add_path(&h, 2, k, alone);
    }
    for (size_t s = 0; s < sizeof strategies / sizeof *strategies; s++) {
        for (int equal = 0; equal < 2; equal++) {
            const double *want = equal ? alone : apart;
            const bool full = strategies[s] == JOB_STRATEGY_FULL;
            o.task.id++;
            o.mixture.strategy = strategies[s];
            for (int k = 0; k < K; k++)
                o.expert[k].modules = &o.lists[equal ? 2 : k];
            struct work *w = host_run(&h, &o.task);
            double sum = 0;
            for (int i = 0; i < 2; i++) {
                const double got = row(w, chains[i]) * K * SHARD;
                sum += got;
                if (equal || s == 0)
                    assert_true(fabs(got - want[i]) < (full ? 1e-5 : 1e-6) * want[i]);
                else
                    assert_true(fabs(got - want[i]) > 1e-4 * want[i]); /* others are chosen */
            }
            assert_true(fabs(w->result.loss_sum - sum) < 1e-9 * sum);
            work_free(w);
        }
    }
    host_free(&h);
}

/* Draws the experts' mixture, or one of them alone; the hash of the picture. */
static void draw(struct host *h, struct order *o, uint8_t sha256[32])
{
    o->task.id++;
    struct work *w = host_run(h, &o->task);
    assert_int_equal(w->result.n_outputs, 1);
    memcpy(sha256, w->result.outputs[0].sha256, 32);
    work_free(w);
}

/* Equal experts draw what one of them draws alone, to the bit. */
static void test_equal_experts(void **state)
{
    (void)state;
    static const uint32_t strategies[] = {JOB_STRATEGY_TOP1, JOB_STRATEGY_ORACLE};
    struct host h;
    struct order o, path;
    uint8_t alone[32], mixed[32];
    host_new(&h, "equal", 2);
    order_path(&path, SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE, 1);
    draw(&h, &path, alone);
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE);
    for (size_t s = 0; s < 2; s++) {
        o.task.id = 50 + 10 * s;
        o.mixture.strategy = strategies[s];
        for (int k = 0; k < K; k++)
            o.expert[k].modules = &o.lists[1];
        draw(&h, &o, mixed);
        assert_memory_equal(mixed, alone, sizeof alone);
        for (int k = 0; k < K; k++)
            o.expert[k].modules = &o.lists[k];
        draw(&h, &o, mixed);
        assert_memory_not_equal(mixed, alone, sizeof alone);
    }
    host_free(&h);
}

struct drawn {
    uint8_t images[SAMPLES * VALUES], low[SAMPLES * VALUES / 4];
};

/* Returns how often weights were read. */
static unsigned draw_rows(struct host *h, const struct order *o, int rows, struct drawn *ret)
{
    struct work *w = host_plan(h, &o->task);
    struct mixture *m;
    int32_t labels[SAMPLES];
    const struct sample_options opt = {.steps = 3, .guidance = 1.5f, .seed = o->sample.seed};
    for (int i = 0; i < SAMPLES; i++)
        labels[i] = (int32_t)o->labels[i];
    OK(modules_rebuild(h->modules, w, err));
    OK(mixture_open(h->engine, w, &(struct mixture_options){.rows = rows}, &m, err));
    assert_int_equal(mixture_low_bytes(m), VALUES / 4);
    const struct cascade_source src = mixture_cascade(m, ret->low);
    OK(cascade_sample_from(&src, &opt, labels, SAMPLES, ret->images, ret->low, err));
    const unsigned loads = mixture_loads(m);
    mixture_close(m);
    work_free(w);
    return loads;
}

/* Bits depend neither on memory nor on batches, of any strategy; strategies differ. */
static void test_same_bits(void **state)
{
    (void)state;
    static struct drawn a, b, before;
    struct host h;
    struct order o;
    host_new(&h, "bits", 2);
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE);
    for (uint32_t s = 0; s <= JOB_STRATEGY_ORACLE; s++) {
        o.mixture.strategy = s;
        o.mixture.memory_bytes = 0;
        const unsigned loads = draw_rows(&h, &o, 64, &a);
        o.mixture.memory_bytes = 1;
        assert_true(draw_rows(&h, &o, 6, &b) >= loads);
        assert_memory_equal(a.images, b.images, sizeof a.images);
        assert_memory_equal(a.low, b.low, sizeof a.low);
        if (s != JOB_STRATEGY_THRESHOLD) /* which keeps the experts that nucleus keeps */
            assert_memory_not_equal(a.images, before.images, sizeof a.images);
        before = a;
    }
    host_free(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_evaluation),
        cmocka_unit_test(test_equal_experts),
        cmocka_unit_test(test_same_bits),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
