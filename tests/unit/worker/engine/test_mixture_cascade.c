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

#include "worker/engine/engine.h"
#include "worker/engine/forward.h"
#include "worker/net/cascade.h"
#include "worker/net/dit_rows.h"
#include "worker/net/image_net.h"
#include "worker/net/mix.h"
#include "worker/net/told.h"
#include "worker/order/task_model.h"

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

/* ---- the weights of upscalers ---- */

/* Experts that have the base of one of them, whose pictures are mostly noise, with upscalers of
 * their own, and a router that looks at pictures more than at their times. */
static float width_of(int i, const char *name)
{
    if (i == ROUTER)
        return strstr(name, "bias") ? 0.0f : strstr(name, "t_embedder") ? 0.2f : 0.7f;
    return strncmp(name, "upscaler.", strlen("upscaler.")) == 0 ? 0.2f : 0.05f;
}

/* They are o's from now on; file[i].path is the caller's to free. */
static void share_base(struct host *h, struct order *o, struct file file[K + 1])
{
    struct work *w = host_plan(h, &o->task);
    for (int i = 0; i <= K; i++) {
        struct model *m;
        char name[32];
        OK(task_model(w,
                      i == ROUTER ? SKERRY__V1__NETWORK__NETWORK_ROUTER
                                  : SKERRY__V1__NETWORK__NETWORK_MAIN,
                      &m, err));
        float *flat = model_flat_new(m);
        for (size_t t = 0; t < m->n; t++) {
            const struct model_tensor *x = &m->tensors[t];
            const bool own = i == ROUTER || strncmp(x->name, "upscaler.", strlen("upscaler.")) == 0;
            rng_fill_normal(own ? 71 + (uint64_t)i : 70, t, 0, flat + x->offset, x->count, 0.0f,
                            width_of(i, x->name));
        }
        snprintf(name, sizeof name, "alike-%d", i);
        file[i].path = in(top, name);
        OK(model_save(m, 0, flat, file[i].path, file[i].sha256, &file[i].size, err));
        host_put(h, file[i].path, file[i].sha256);
        blob_of(&o->blobs[i], file[i].sha256, file[i].size);
        o->refs[i].sha256 = o->blobs[i].sha256;
        mem_free(flat);
        model_free(m);
    }
    work_free(w);
}

/* The expert that the router names for each small image, as noisy as upscalers are told it. */
static void name_experts(struct host *h, const struct order *o, const uint8_t *low,
                         int ret[SAMPLES])
{
    struct work *w = host_plan(h, &o->task);
    struct device *dev = h->engine->dev;
    struct forward f = {0};
    struct dit_rows rows = {0};
    struct told told;
    float *d_logits, logits[SAMPLES * K], t[SAMPLES];
    OK(modules_rebuild(h->modules, w, err));
    OK(forward_open_modules(h->engine, w, SKERRY__V1__NETWORK__NETWORK_ROUTER, o->mixture.router, 1,
                            SAMPLES, &f, err));
    OK(dit_rows_open(&rows, net_dit(f.net), err));
    const struct told_options opt = {.dev = dev,
                                     .stream = f.net->weights->stream,
                                     .side = 4,
                                     .factor = 1,
                                     .rows = SAMPLES,
                                     .noise = 0.2f};
    OK(told_open(&told, &opt, err));
    for (int i = 0; i < SAMPLES; i++) {
        told.streams[i] = rng_mix(CASCADE_STREAM_ROUTED, (uint64_t)i);
        t[i] = opt.noise;
    }
    OK(told_run(&told, low, o->sample.seed, SAMPLES, err));
    OK(dev->ops->alloc(dev, sizeof logits, (void **)&d_logits, err));
    OK(dit_rows_run(&rows, d_logits, &(struct dit_rows_in){.x = told.d_x, .t = t}, SAMPLES, err));
    OK(dev->ops->copy(dev, logits, d_logits, sizeof logits, COPY_FROM_DEVICE, opt.stream));
    OK(weights_sync(f.net->weights, err));
    for (int i = 0; i < SAMPLES; i++)
        ret[i] = mix_argmax(logits + i * K, K);
    dev->ops->free(dev, d_logits);
    told_close(&told);
    dit_rows_close(&rows);
    forward_close(&f);
    work_free(w);
}

/* Where the experts' bases are one, top1 enlarges a small image as the expert does that the router
 * names for it. */
static void test_weights_of_upscalers(void **state)
{
    (void)state;
    static struct drawn mixed, alone[K];
    struct host h;
    struct order o;
    struct file file[K + 1];
    int named[SAMPLES], of[K] = {0};
    host_new(&h, "upscalers", 2);
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE);
    o.mixture.strategy = JOB_STRATEGY_TOP1;
    share_base(&h, &o, file);
    (void)draw_rows(&h, &o, 64, &mixed);
    name_experts(&h, &o, mixed.low, named);
    for (int k = 0; k < K; k++) {
        for (int i = 0; i < K; i++)
            o.expert[i].modules = &o.lists[k];
        (void)draw_rows(&h, &o, 64, &alone[k]);
        assert_memory_equal(alone[k].low, mixed.low, sizeof mixed.low);
    }
    for (int i = 0; i < SAMPLES; i++) {
        of[named[i]]++;
        assert_memory_equal(mixed.images + (size_t)i * VALUES,
                            alone[named[i]].images + (size_t)i * VALUES, VALUES);
    }
    assert_true(of[0] < SAMPLES && of[1] < SAMPLES && of[2] < SAMPLES); /* several are named */
    for (int i = 0; i <= K; i++)
        mem_free(file[i].path);
    host_free(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_evaluation),
        cmocka_unit_test(test_equal_experts),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_weights_of_upscalers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
