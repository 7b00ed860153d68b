/* A mixture of three small experts and a router as tasks of a worker that has all their files:
 * what the tests of mixtures share. */
#ifndef TESTS_UNIT_WORKER_MIXTURE_TASK_H
#define TESTS_UNIT_WORKER_MIXTURE_TASK_H

#include "tests/unit/worker/host.h"
#include "tests/unit/worker/shards.h"

#include "common/base/hash.h"
#include "common/job/job.h"
#include "common/base/rng.h"
#include "worker/engine/mixture.h"
#include "worker/model/model.h"
#include "worker/net/sample.h"

/* A test with other experts has its own SPEC_OF: 8 x 8 pixels, K experts. */
#ifndef SPEC_OF
#define SPEC_OF(precision)                                                                         \
    "name: tiny\nseed: 3\n"                                                                        \
    "data: {path: x, image_size: 8, shard_samples: 16}\n"                                          \
    "model: {type: dit, patch: 2, dim: 16, depth: 2, heads: 2, label_dropout: 0.2}\n"              \
    "router: {patch: 4, dim: 8, depth: 1, heads: 1}\n"                                             \
    "recipe: {name: ddm, experts: 3}\n"                                                            \
    "train: {batch: 4, lr: 1e-3, precision: " precision "}\n"                                      \
    "outer: {rounds: 3, steps: 6}\n"
#endif
#define SPEC SPEC_OF("f32")

enum { K = 3, SHARD = 10, CLASSES = 5, SAMPLES = 7, VALUES = 3 * 8 * 8, ROUTER = K };

struct file {
    char *path;
    uint8_t sha256[32];
    uint64_t size;
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

static inline void host_new(struct host *h, const char *name, int threads)
{
    host_open(h, top, name, threads);
    for (int i = 0; i < K; i++)
        host_put(h, shards[i].path, shards[i].sha256);
    for (int i = 0; i <= K; i++)
        host_put(h, modules[i].path, modules[i].sha256);
}

/* ---- tasks ---- */

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
        blob_of(&o->shard_blob[k], shards[k].sha256, size_of(shards[k].path));
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
