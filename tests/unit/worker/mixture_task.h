/* A mixture of three small experts and a router as tasks of a worker that has all their files:
 * what the tests of mixtures share. */
#ifndef TESTS_UNIT_WORKER_MIXTURE_TASK_H
#define TESTS_UNIT_WORKER_MIXTURE_TASK_H

#include "tests/unit/worker/shards.h"

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/job/job.h"
#include "common/base/rng.h"
#include "worker/kinds/kinds.h"
#include "worker/order/work.h"
#include "worker/engine/engine.h"
#include "worker/engine/mixture.h"
#include "worker/model/model.h"
#include "worker/order/modules.h"
#include "worker/net/sample.h"

#define SPEC_OF(precision)                                                                         \
    "name: tiny\nseed: 3\n"                                                                        \
    "data: {path: x, image_size: 8, shard_samples: 16}\n"                                          \
    "model: {type: dit, patch: 2, dim: 16, depth: 2, heads: 2, label_dropout: 0.2}\n"              \
    "router: {patch: 4, dim: 8, depth: 1, heads: 1}\n"                                             \
    "recipe: {name: ddm, experts: 3}\n"                                                            \
    "train: {batch: 4, lr: 1e-3, precision: " precision "}\n"                                      \
    "outer: {rounds: 3, steps: 6}\n"
#define SPEC SPEC_OF("f32")

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

static inline void host_put(struct host *h, const char *from, const uint8_t sha256[32])
{
    struct buf b;
    char path[CACHE_PATH_MAX];
    OK(file_read(from, 1 << 24, &b, err));
    cache_path(h->cache, sha256, path);
    OK(file_write_atomic(path, b.data, b.len, 0600, err));
    OK(cache_added(h->cache, sha256, err));
    buf_release(&b);
}

static inline void host_new(struct host *h, const char *name, int threads)
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

static inline void host_free(struct host *h)
{
    engine_close(h->engine);
    modules_close(h->modules);
    cache_close(h->cache);
    mem_free(h->dir);
    mem_free(h->state);
    mem_free(h->tmp);
}

/* ---- tasks ---- */

static inline void blob_of(Skerry__V1__Blob *b, uint8_t sha256[32], uint64_t size)
{
    skerry__v1__blob__init(b);
    b->sha256 = (ProtobufCBinaryData){32, sha256};
    b->size = size;
    b->url = (char *)"/v1/blobs/x";
}

static inline void add_modules(struct order *o)
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

static inline void add_ranges(struct order *o)
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
static inline void order_init(struct order *o, int kind)
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
static inline void order_path(struct order *o, int kind, int k)
{
    order_init(o, kind);
    o->task.mixture = NULL;
    o->task.modules = &o->lists[k];
    o->task.n_modules = 1;
}

static inline struct work *plan(struct host *h, const struct order *o)
{
    struct work *w;
    OK(work_new(kinds_all, &o->task, h->cache, h->tmp, &w, err));
    OK(engine_plan(h->engine, w, err));
    for (size_t i = 0; i < w->n_needs; i++)
        assert_false(w->needs[i].missing);
    return w;
}

static inline struct work *run(struct host *h, const struct order *o)
{
    struct work *w = plan(h, o);
    OK(engine_run(h->engine, w, err));
    return w;
}

static inline void save_module(const struct job_spec *job, int i)
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

static inline int setup(void **state)
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

static inline int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < K; i++)
        mem_free(shards[i].path);
    for (int i = 0; i <= K; i++)
        mem_free(modules[i].path);
    scratch_free(top);
    return 0;
}

#endif
