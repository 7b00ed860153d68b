/* Mixtures as tasks, without a network: what is drawn and measured does not depend on how
 * many experts fit, on batches or threads, and agrees with the experts alone. */
#include "tests/unit/worker/shards.h"

#include <errno.h>
#include <math.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/job.h"
#include "common/base/rng.h"
#include "worker/engine.h"
#include "worker/mixture.h"
#include "worker/model.h"
#include "worker/modules.h"
#include "worker/sample.h"
#include "worker/velocity.h"

#define SPEC                                                                                       \
    "name: tiny\nseed: 3\n"                                                                        \
    "data: {path: x, image_size: 8, shard_samples: 16}\n"                                          \
    "model: {type: dit, patch: 2, dim: 16, depth: 2, heads: 2, label_dropout: 0.2}\n"              \
    "router: {patch: 4, dim: 8, depth: 1, heads: 1}\n"                                             \
    "recipe: {name: ddm, experts: 3}\n"                                                            \
    "train: {batch: 4, lr: 1e-3, precision: f32}\n"                                                \
    "outer: {rounds: 3, steps: 6}\n"

enum { K = 3, SHARD = 10, CLASSES = 5, SAMPLES = 7, VALUES = 3 * 8 * 8, ROUTER = K };

struct file {
    char *path;
    uint8_t sha256[32];
    uint64_t size;
};

struct host {
    char *dir, *state, *tmp;
    struct cache *cache;
    struct modules *modules;
    struct engine *engine;
};

/* Messages under construction. */
struct order {
    Skerry__V1__Task task;
    Skerry__V1__Blob blobs[K + 1], shard_blob[K], input;
    Skerry__V1__ModuleRef refs[K + 1], *lists[K + 1];
    Skerry__V1__Expert expert[K], *experts[K];
    Skerry__V1__Experts all;
    Skerry__V1__Mixture mixture;
    Skerry__V1__Range range[K], *ranges[K];
    Skerry__V1__TrainTask train;
    Skerry__V1__EvalTask eval;
    Skerry__V1__SampleTask sample;
    Skerry__V1__VelocityTask velocity;
    uint32_t labels[SAMPLES];
    char *classes[CLASSES];
};

static char *top;
static struct test_shard shards[K];
static struct file modules[K + 1]; /* the experts and the router */

/* ---- a worker ---- */

static void host_put(struct host *h, const char *from, const uint8_t sha256[32])
{
    struct buf b;
    char path[CACHE_PATH_MAX];
    OK(file_read(from, 1 << 24, &b, err));
    cache_path(h->cache, sha256, path);
    OK(file_write_atomic(path, b.data, b.len, 0600, err));
    OK(cache_added(h->cache, sha256, err));
    buf_release(&b);
}

static void host_new(struct host *h, const char *name, int threads)
{
    h->dir = in(top, name);
    h->state = in(h->dir, "state");
    h->tmp = in(h->dir, "tmp");
    OK(file_mkdirs(h->state, 0700, err));
    OK(file_mkdirs(h->tmp, 0700, err));
    char *held = in(h->state, "held"), *blobs = in(h->dir, "blobs");
    OK(cache_open(blobs, 0, &h->cache, err));
    h->modules = modules_open(held, h->cache);
    struct engine_options opt = {
        .device = "cpu",
        .threads = threads,
        .decode_threads = 2,
        .memory_bytes = 1 << 30,
        .image_cache_bytes = 1 << 20,
        .state_dir = h->state,
        .cache = h->cache,
        .modules = h->modules,
        .started_ns = clock_now_ns(),
    };
    OK(engine_open(&opt, &h->engine, err));
    mem_free(held);
    mem_free(blobs);
    for (int i = 0; i < K; i++)
        host_put(h, shards[i].path, shards[i].sha256);
    for (int i = 0; i <= K; i++)
        host_put(h, modules[i].path, modules[i].sha256);
}

static void host_free(struct host *h)
{
    engine_close(h->engine);
    modules_close(h->modules);
    cache_close(h->cache);
    mem_free(h->dir);
    mem_free(h->state);
    mem_free(h->tmp);
}

/* ---- tasks ---- */

static void blob_of(Skerry__V1__Blob *b, uint8_t sha256[32], uint64_t size)
{
    skerry__v1__blob__init(b);
    b->sha256 = (ProtobufCBinaryData){32, sha256};
    b->size = size;
    b->url = (char *)"/v1/blobs/x";
}

static void add_modules(struct order *o)
{
    for (int i = 0; i <= K; i++) {
        blob_of(&o->blobs[i], modules[i].sha256, modules[i].size);
        skerry__v1__module_ref__init(&o->refs[i]);
        o->refs[i].module_id = 100 + (uint64_t)i;
        o->refs[i].full = &o->blobs[i];
        o->refs[i].sha256 = o->blobs[i].sha256;
        o->lists[i] = &o->refs[i];
    }
    for (uint32_t k = 0; k < K; k++) {
        skerry__v1__expert__init(&o->expert[k]);
        o->expert[k].path = 10 + k;
        o->expert[k].partition = k;
        o->expert[k].modules = &o->lists[k];
        o->expert[k].n_modules = 1;
        o->experts[(k + 1) % K] = &o->expert[k]; /* in any order */
    }
    skerry__v1__experts__init(&o->all);
    o->all.expert = o->experts;
    o->all.n_expert = K;
    skerry__v1__mixture__init(&o->mixture);
    o->mixture.experts = &o->all;
    o->mixture.router = &o->lists[ROUTER];
    o->mixture.n_router = 1;
    o->mixture.top = 2;
    o->mixture.nucleus = 0.6f;
    o->mixture.threshold = 0.35f;
}

static void add_ranges(struct order *o)
{
    for (uint32_t k = 0; k < K; k++) {
        uint64_t size;
        OK(file_size(shards[k].path, &size, err));
        blob_of(&o->shard_blob[k], shards[k].sha256, size);
        skerry__v1__range__init(&o->range[k]);
        o->range[k].shard = &o->shard_blob[k];
        o->range[k].count = SHARD;
        o->range[k].partition = k;
        o->ranges[k] = &o->range[k];
    }
    o->train.ranges = o->eval.ranges = o->ranges;
    o->train.n_ranges = o->eval.n_ranges = K;
}

/* A task of the mixture; `mixture` and `modules` can be taken away. */
static void order_init(struct order *o, int kind)
{
    memset(o, 0, sizeof(*o));
    skerry__v1__task__init(&o->task);
    skerry__v1__train_task__init(&o->train);
    skerry__v1__eval_task__init(&o->eval);
    skerry__v1__sample_task__init(&o->sample);
    skerry__v1__velocity_task__init(&o->velocity);
    add_modules(o);
    add_ranges(o);
    for (int i = 0; i < CLASSES; i++)
        o->classes[i] = (char *)"c";
    for (uint32_t i = 0; i < SAMPLES; i++)
        o->labels[i] = i % CLASSES;
    o->sample.labels = o->labels;
    o->sample.n_labels = SAMPLES;
    o->sample.steps = 4;
    o->sample.guidance = 1.5f;
    o->sample.columns = 4;
    o->sample.seed = 9;
    o->train.steps = 6;
    o->train.total_steps = 18;
    o->task.id = 11;
    o->task.job_id = 1;
    o->task.kind = (Skerry__V1__TaskKind)kind;
    o->task.spec = (char *)SPEC;
    o->task.classes = o->classes;
    o->task.n_classes = CLASSES;
    o->task.partitions = K;
    o->task.mixture = &o->mixture;
    o->task.train = kind == SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN ? &o->train : NULL;
    o->task.eval = kind == SKERRY__V1__TASK_KIND__TASK_KIND_EVAL ? &o->eval : NULL;
    o->task.sample = kind == SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE ? &o->sample : NULL;
}

/* The same for one path alone. */
static void order_path(struct order *o, int kind, int k)
{
    order_init(o, kind);
    o->task.mixture = NULL;
    o->task.modules = &o->lists[k];
    o->task.n_modules = 1;
}

static struct work *plan(struct host *h, const struct order *o)
{
    struct work *w;
    OK(work_new(&o->task, h->cache, h->tmp, &w, err));
    OK(engine_plan(h->engine, w, err));
    for (size_t i = 0; i < w->n_needs; i++)
        assert_false(w->needs[i].missing);
    return w;
}

static struct work *run(struct host *h, const struct order *o)
{
    struct work *w = plan(h, o);
    OK(engine_run(h->engine, w, err));
    return w;
}

static void save_module(const struct job_spec *job, int i)
{
    const struct model_facts facts = {.router = i == ROUTER, .classes = CLASSES, .partitions = K};
    struct model_spec spec;
    struct model *m;
    char name[32];
    OK(model_spec_from_job(job, &facts, &spec, err));
    OK(model_new(&spec, &m, err));
    float *flat = model_flat_new(m);
    for (size_t t = 0; t < m->n; t++) /* a router that decides: larger weights */
        rng_fill_normal(50 + (uint64_t)i, t, 0, flat + m->tensors[t].offset, m->tensors[t].count,
                        0.0f, i == ROUTER ? 0.7f : 0.2f);
    snprintf(name, sizeof(name), "module-%d", i);
    modules[i].path = in(top, name);
    OK(model_save(m, 0, flat, modules[i].path, modules[i].sha256, &modules[i].size, err));
    mem_free(flat);
    model_free(m);
}

static int setup(void **state)
{
    (void)state;
    struct job_spec job;
    OK(image_init(err));
    top = scratch_new();
    OK(job_parse(SPEC, strlen(SPEC), "the job", &job, err));
    for (int i = 0; i < K; i++)
        shards[i] = shard_make(top, i, SHARD, CLASSES, -1);
    for (int i = 0; i <= K; i++)
        save_module(&job, i);
    job_release(&job);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < K; i++)
        mem_free(shards[i].path);
    for (int i = 0; i <= K; i++)
        mem_free(modules[i].path);
    scratch_free(top);
    return 0;
}

/* ---- drawing ---- */

static unsigned draw(struct host *h, const struct order *o, int rows, bool heun, float *images)
{
    struct work *w = plan(h, o);
    OK(modules_rebuild(h->modules, w, err));
    struct mixture *m;
    OK(mixture_open(h->engine, w, &(struct mixture_options){.rows = rows}, &m, err));
    const struct sample_source src = mixture_source(m);
    const struct sample_options opt = {
        .steps = 4, .heun = heun, .guidance = 1.5f, .seed = o->sample.seed};
    int32_t labels[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        labels[i] = (int32_t)o->labels[i];
    OK(sample_run_f32(&src, &opt, labels, SAMPLES, images, err));
    unsigned loads = mixture_loads(m);
    mixture_close(m);
    work_free(w);
    return loads;
}

/* Bits do not depend on memory, batches or threads.  Loads do: with room for all each
 * expert is read once, with less some are read again. */
static void test_same_bits(void **state)
{
    (void)state;
    static float a[SAMPLES * VALUES], b[SAMPLES * VALUES], before[SAMPLES * VALUES];
    static const int rows[] = {2 * SAMPLES, 6, 2};
    struct host one, two;
    struct order o;
    host_new(&one, "threads-1", 1);
    host_new(&two, "threads-2", 2);
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE);
    memset(before, 0, sizeof before);
    for (uint32_t s = 0; s <= JOB_STRATEGY_ORACLE; s++) {
        o.mixture.strategy = s;
        o.mixture.memory_bytes = 0;
        unsigned loads = draw(&one, &o, 64, s % 2, a);
        assert_in_range(loads, 1, K);
        for (uint64_t i = 0; i < 3; i++) {
            o.mixture.memory_bytes = 1 + i * modules[0].size; /* for 1, 1 and 2 experts */
            unsigned more = draw(i ? &two : &one, &o, rows[i], s % 2, b);
            assert_memory_equal(a, b, sizeof a);
            assert_true(more >= loads);
        }
        for (int i = 0; i < SAMPLES * VALUES; i++)
            assert_true(isfinite(a[i]));
        assert_memory_not_equal(a, before, sizeof a); /* strategies differ */
        memcpy(before, a, sizeof a);
    }
    host_free(&one);
    host_free(&two);
}

/* Equal experts mix to what one of them draws alone: the same PNG for the strategies that
 * take one, whatever the router says. */
static void test_equal_experts(void **state)
{
    (void)state;
    struct host h;
    struct order o, path;
    host_new(&h, "equal", 2);
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE);
    order_path(&path, SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE, 1);
    struct work *alone = run(&h, &path);
    for (int k = 0; k < K; k++)
        o.expert[k].modules = &o.lists[1];
    o.mixture.strategy = JOB_STRATEGY_TOP1;
    struct work *mixed = run(&h, &o);
    assert_int_equal(mixed->result.n_outputs, 1);
    assert_memory_equal(mixed->result.outputs[0].sha256, alone->result.outputs[0].sha256, 32);
    assert_int_equal(mixed->result.samples, SAMPLES);
    work_free(mixed);
    for (int k = 0; k < K; k++)
        o.expert[k].modules = &o.lists[k];
    mixed = run(&h, &o);
    assert_memory_not_equal(mixed->result.outputs[0].sha256, alone->result.outputs[0].sha256, 32);
    work_free(mixed);
    work_free(alone);
    host_free(&h);
}

/* ---- measuring ---- */

static double row(const struct work *w, const char *name)
{
    for (size_t i = 0; i < w->result.n_rows; i++)
        if (strcmp(w->result.rows[i].name, name) == 0)
            return w->result.rows[i].value;
    fail_msg("no row \"%s\"", name);
    return 0;
}

/* The held-out loss of path k on its partition. */
static double path_loss(struct host *h, int k, int partition)
{
    struct order o;
    order_path(&o, SKERRY__V1__TASK_KIND__TASK_KIND_EVAL, k);
    o.ranges[0] = &o.range[partition];
    o.eval.n_ranges = 1;
    struct work *w = run(h, &o);
    double sum = w->result.loss_sum;
    assert_int_equal(w->result.units, SHARD);
    work_free(w);
    return sum;
}

/* The oracle is every expert on its own partition; all are on the draws of any evaluation. */
static void test_evaluation(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    double apart = 0, routed = 0;
    host_new(&h, "evaluation", 2);
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_EVAL);
    o.mixture.strategy = JOB_STRATEGY_NUCLEUS;
    struct work *w = run(&h, &o);
    for (int k = 0; k < K; k++)
        apart += path_loss(&h, k, k);
    assert_int_equal(w->result.units, K * SHARD);
    assert_true(fabs(row(w, "loss oracle") * K * SHARD - apart) < 1e-9 * apart);
    assert_true(fabs(row(w, "loss nucleus") * K * SHARD - w->result.loss_sum) < 1e-9 * apart);
    assert_true(row(w, "loss full") != row(w, "loss top1"));
    assert_true(row(w, "loss top2") != row(w, "loss top1"));
    for (int k = 0; k < K; k++) {
        char name[32];
        snprintf(name, sizeof(name), "routed %d", k);
        routed += row(w, name);
    }
    assert_true(fabs(routed - 1) < 1e-12);

    /* The router alone, evaluated as a path, is right as often. */
    struct order router;
    order_path(&router, SKERRY__V1__TASK_KIND__TASK_KIND_EVAL, ROUTER);
    router.task.network = SKERRY__V1__NETWORK__NETWORK_ROUTER;
    struct work *r = run(&h, &router);
    assert_true(row(r, "accuracy") == row(w, "router accuracy"));
    assert_true(row(r, "accuracy") > 0 && row(r, "accuracy") < 1);
    work_free(r);

    o.eval.samples = 13;
    o.mixture.memory_bytes = 1;
    struct work *few = run(&h, &o);
    assert_int_equal(few->result.units, 13);
    work_free(few);

    /* Equal experts: every strategy has that expert's loss. */
    o.eval.samples = 0;
    for (int k = 0; k < K; k++)
        o.expert[k].modules = &o.lists[2];
    struct work *equal = run(&h, &o);
    double of_one = 0;
    for (int k = 0; k < K; k++)
        of_one += path_loss(&h, 2, k);
    of_one /= K * SHARD;
    assert_true(fabs(row(equal, "loss top1") - of_one) < 1e-9 * of_one);
    assert_true(fabs(row(equal, "loss full") - of_one) < 1e-5 * of_one);
    work_free(equal);

    o.range[1].partition = K;
    struct work *lost = plan(&h, &o);
    FAILS(engine_run(h.engine, lost, err), "partition 3 of 3");
    work_free(lost);
    work_free(w);
    host_free(&h);
}

/* ---- for samplers elsewhere ---- */

static struct work *ask_velocity(struct host *h, struct file *points, int k)
{
    static uint64_t asked;
    struct order o;
    order_path(&o, SKERRY__V1__TASK_KIND__TASK_KIND_VELOCITY, k);
    blob_of(&o.input, points->sha256, points->size);
    o.velocity.input = &o.input;
    o.task.id = 20 + ++asked; /* each has its own temporary files */
    o.task.velocity = &o.velocity;
    return run(h, &o);
}

static void test_velocity(void **state)
{
    (void)state;
    enum { ROWS = 70 }; /* more than one forward */
    static float x[ROWS * VALUES], v[ROWS * VALUES], one[VALUES], t[ROWS];
    static int32_t labels[ROWS];
    struct velocity_points p = {ROWS, 8, x, t, labels};
    struct file points, last;
    struct host h;
    host_new(&h, "velocity", 2);
    rng_fill_normal(1, 2, 0, x, ROWS * VALUES, 0.0f, 1.0f);
    for (int i = 0; i < ROWS; i++) {
        t[i] = (float)i / ROWS;
        labels[i] = i % (CLASSES + 1);
    }
    points.path = in(top, "points");
    OK(velocity_write(points.path, &p, points.sha256, &points.size, err));
    host_put(&h, points.path, points.sha256);
    last.path = in(top, "last point");
    p = (struct velocity_points){1, 8, x + 69 * VALUES, t + 69, labels + 69};
    OK(velocity_write(last.path, &p, last.sha256, &last.size, err));
    host_put(&h, last.path, last.sha256);

    struct work *a = ask_velocity(&h, &points, 0), *other = ask_velocity(&h, &points, 1);
    struct work *b = ask_velocity(&h, &points, 0), *c = ask_velocity(&h, &last, 0);
    OK(velocity_read_result(a->result.outputs[0].path, v, ROWS, 8, err));
    OK(velocity_read_result(c->result.outputs[0].path, one, 1, 8, err));
    assert_memory_equal(a->result.outputs[0].sha256, b->result.outputs[0].sha256, 32);
    assert_memory_not_equal(a->result.outputs[0].sha256, other->result.outputs[0].sha256, 32);
    assert_memory_equal(v + 69 * VALUES, one, sizeof one);
    work_free(a);
    work_free(b);
    work_free(c);
    work_free(other);
    mem_free(points.path);
    mem_free(last.path);
    host_free(&h);
}

/* ---- learning from experts ---- */

/* A phase whose student is every teacher has nothing to learn; with their own it has. */
static void test_distillation(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    host_new(&h, "distillation", 2);
    order_path(&o, SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN, 0);
    o.train.teachers = o.experts;
    o.train.n_teachers = K;
    for (int k = 0; k < K; k++)
        o.expert[k].modules = &o.lists[0];
    struct work *w = run(&h, &o);
    assert_true(w->result.loss_mean == 0 && w->result.steps == 6);
    work_free(w);
    o.task.id = 12;
    for (int k = 0; k < K; k++)
        o.expert[k].modules = &o.lists[k];
    w = run(&h, &o);
    assert_true(w->result.loss_first > 0);
    assert_int_equal(w->result.n_outputs, 1);
    work_free(w);
    host_free(&h);
}

/* ---- what does not fit ---- */

static void test_refusals(void **state)
{
    (void)state;
    struct host h;
    struct order o;
    struct work *w;
    host_new(&h, "refusals", 1);
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE);
    o.mixture.strategy = 77;
    FAILS(work_new(&o.task, h.cache, h.tmp, &w, err), "strategy 77");
    o.mixture.strategy = JOB_STRATEGY_TOPK;
    o.mixture.top = K + 1;
    FAILS(work_new(&o.task, h.cache, h.tmp, &w, err), "mixture.top is 4, expected 1 to 3");
    o.mixture.top = 1;
    o.mixture.n_router = 0;
    FAILS(work_new(&o.task, h.cache, h.tmp, &w, err), "mixture.router has 0 modules");
    o.mixture.n_router = 1;
    o.mixture.experts = NULL;
    FAILS(work_new(&o.task, h.cache, h.tmp, &w, err), "mixture.experts is missing");
    o.mixture.experts = &o.all;
    o.expert[1].n_modules = 0;
    FAILS(work_new(&o.task, h.cache, h.tmp, &w, err), "mixture.experts has 0 modules");
    o.mixture.remote = true; /* then that is fine, but nobody can be asked */
    w = plan(&h, &o);
    FAILS(engine_run(h.engine, w, err), "need a coordinator");
    work_free(w);
    o.mixture.remote = false;
    o.expert[1].n_modules = 1;
    o.expert[1].partition = 2;
    w = plan(&h, &o);
    FAILS(engine_run(h.engine, w, err), "one expert for each of 3 partitions");
    atomic_store(&w->stop, WORK_REVOKED);
    work_free(w);
    o.expert[1].partition = 1;
    w = plan(&h, &o);
    atomic_store(&w->stop, WORK_REVOKED);
    assert_int_equal(engine_run(h.engine, w, NULL), -ERR_CANCELLED);
    work_free(w);
    host_free(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),    cmocka_unit_test(test_equal_experts),
        cmocka_unit_test(test_evaluation),   cmocka_unit_test(test_velocity),
        cmocka_unit_test(test_distillation), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
