/* The tasks that partition a dataset of images and one of texts, as tasks of a worker that has all
 * their files: what the tests of FEATURE, CLUSTER, SPLIT and SCORE share.  What one leaves is what
 * the next one reads. */
#ifndef TESTS_UNIT_WORKER_PARTITION_TASK_H
#define TESTS_UNIT_WORKER_PARTITION_TASK_H

#include "tests/unit/worker/host.h"
#include "tests/unit/worker/shards.h"

#include <math.h>

#include "worker/data/data_samples.h"
#include "worker/train/island.h"
#include "worker/engine/task_files.h"
#include "worker/data/ngrams.h"
#include "worker/fit/partitioner.h"

#define N 24 /* samples of a shard */
#define SHARDS 3
#define CONTEXT 64
#define CHUNK 16
#define COLUMNS 4
#define HEAD                                                                                       \
    "name: tiny\nseed: 3\n"                                                                        \
    "outer: {rounds: 3, steps: 24}\n"
#define IMAGES_WITH(x)                                                                             \
    HEAD "data: {path: x, image_size: 8, shard_samples: 16}\n"                                     \
         "model: {type: dit, patch: 2, dim: 16, depth: 2, heads: 2" x "}\n"                        \
         "train: {batch: 4, lr: 1e-3, precision: f32}\n"
#define IMAGES IMAGES_WITH("")
#define WARM IMAGES_WITH(", warm_start: y")
#define TEXTS                                                                                      \
    HEAD "data: {path: x, shard_samples: 100}\n"                                                   \
         "model: {type: llama, dim: 16, depth: 2, heads: 2, context: 64, warm_start: y}\n"         \
         "train: {batch: 4, lr: 1e-3, precision: f32}\n"

static char *top;
static struct host host;
static struct test_shard images[SHARDS], texts[SHARDS], columns[SHARDS];
static uint8_t version0[2][32]; /* of the images' model, of the texts' */
static uint64_t version0_size[2];
static uint64_t next_task = 11;
static uint32_t topic[SHARDS * N]; /* of each text: 0 or 1 */

/* ---- data ------------------------------------------------------------------------- */

/* Texts of one topic have letters of their own; the last of a shard is short. */
static inline uint32_t text_of(int shard, uint32_t i, uint32_t *ids, const void *arg)
{
    uint32_t n = i == N - 1 ? 20 : 40 + (i * 7) % 24, number = (uint32_t)shard * N + i;
    topic[number] = (number * 2654435761u) >> 31;
    ids[0] = 256;
    for (uint32_t k = 1; k < n; k++)
        ids[k] = (topic[number] ? 'A' : 'p') + (number * 31 + k * k * 7 + k / 3) % 9;
    return n;
}

/* ---- tasks ------------------------------------------------------------------------- */

struct order {
    Skerry__V1__Task task;
    Skerry__V1__ModuleRef module, *modules[1];
    Skerry__V1__Blob full, shard[SHARDS], blob[16], *features[SHARDS], *scores[2 * SHARDS];
    Skerry__V1__Range range[SHARDS], *ranges[SHARDS];
    Skerry__V1__FeatureTask feature;
    Skerry__V1__ClusterTask cluster;
    Skerry__V1__SplitTask split;
    Skerry__V1__ScoreTask score;
    uint8_t hash[16][32];
    size_t n_blobs;
    uint32_t counts[SHARDS], levels[2], scored[SHARDS];
    protobuf_c_boolean holdout[SHARDS];
    char *classes[5];
};

static inline void order_init(struct order *o, int kind, const char *spec,
                              const struct test_shard *shards, size_t n)
{
    const bool text = strstr(spec, "llama") != NULL;
    memset(o, 0, sizeof(*o));
    skerry__v1__task__init(&o->task);
    skerry__v1__module_ref__init(&o->module);
    skerry__v1__feature_task__init(&o->feature);
    skerry__v1__cluster_task__init(&o->cluster);
    skerry__v1__split_task__init(&o->split);
    skerry__v1__score_task__init(&o->score);
    for (size_t i = 0; i < n; i++) {
        blob_of(&o->shard[i], shards[i].sha256, size_of(shards[i].path));
        skerry__v1__range__init(&o->range[i]);
        o->range[i].shard = &o->shard[i];
        o->range[i].count = N;
        o->ranges[i] = &o->range[i];
        o->counts[i] = N;
        o->scored[i] = (uint32_t)i;
    }
    o->feature.ranges = o->split.ranges = o->score.ranges = o->ranges;
    o->feature.n_ranges = o->split.n_ranges = o->score.n_ranges = n;
    o->cluster.features = o->features;
    o->cluster.counts = o->counts;
    o->cluster.holdout = o->holdout;
    o->cluster.n_features = o->cluster.n_counts = o->cluster.n_holdout = n;
    o->cluster.levels = o->levels;
    o->cluster.n_levels = 1;
    o->cluster.scored = o->scored;
    o->cluster.scores = o->scores;
    o->cluster.top = 1;
    o->levels[0] = 2;
    o->levels[1] = 1;
    o->module.module_id = 7;
    o->module.full = &o->full;
    blob_of(&o->full, version0[text], version0_size[text]);
    o->module.sha256 = o->full.sha256;
    o->modules[0] = &o->module;
    for (int i = 0; i < 5; i++)
        o->classes[i] = (char *)"c";
    o->task.id = next_task++;
    o->task.job_id = 1;
    o->task.kind = (Skerry__V1__TaskKind)kind;
    o->task.spec = (char *)(uintptr_t)spec;
    o->task.classes = o->classes;
    o->task.n_classes = text ? 0 : 5;
    o->task.vocab = text ? 257 : 0;
    o->task.partitions = 2;
    o->task.modules = o->modules;
    if (kind == SKERRY__V1__TASK_KIND__TASK_KIND_FEATURE)
        o->task.feature = &o->feature;
    else if (kind == SKERRY__V1__TASK_KIND__TASK_KIND_CLUSTER)
        o->task.cluster = &o->cluster;
    else if (kind == SKERRY__V1__TASK_KIND__TASK_KIND_SPLIT)
        o->task.split = &o->split;
    else if (kind == SKERRY__V1__TASK_KIND__TASK_KIND_SCORE)
        o->task.score = &o->score;
}

static inline struct work *run(struct order *o)
{
    return host_run(&host, &o->task);
}

static inline void fails(struct order *o, int code, const char *words)
{
    assert_int_equal(host_fails(&host, &o->task, words), code);
}

/* A blob of the message: a file that is put into the cache. */
static inline Skerry__V1__Blob *give(struct order *o, const char *path, const uint8_t sha256[32])
{
    const size_t i = o->n_blobs++;
    assert_true(i < COUNT(o->blob));
    host_put(&host, path, sha256);
    memcpy(o->hash[i], sha256, 32);
    blob_of(&o->blob[i], o->hash[i], size_of(path));
    return &o->blob[i];
}

static inline const struct work_output *output_of(const struct work *w, enum work_role role)
{
    for (size_t i = 0; i < w->result.n_outputs; i++)
        if (w->result.outputs[i].role == role)
            return &w->result.outputs[i];
    fail_msg("no output of role %d", (int)role);
    return NULL;
}

static inline double row_of(const struct work *w, const char *name)
{
    for (size_t i = 0; i < w->result.n_rows; i++)
        if (strcmp(w->result.rows[i].name, name) == 0)
            return w->result.rows[i].value;
    fail_msg("no row '%s'", name);
    return 0;
}

/* The features of one shard, by a task. */
static inline struct work *features_of(const char *spec, const struct test_shard *shard,
                                       uint32_t chunk, bool model, struct features *ret)
{
    struct order o;
    const uint32_t n = N;
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_FEATURE, spec, shard, 1);
    o.feature.chunk = chunk;
    o.task.n_modules = model;
    struct work *w = run(&o);
    const char *path = output_of(w, WORK_RESULT)->path;
    assert_int_equal(w->result.samples, N);
    OK(features_open(&path, &n, 1, ret, err));
    return w;
}

/* ---- clusters, splits, scores -------------------------------------------------------- */

#define BY_NGRAMS TEXTS "partition: {features: ngrams, method: kmeans, dims: 4, chunk: 16}\n"

/* Fills o with the features of all texts; the last shard is held out. */
static inline void cluster_order(struct order *o, const char *spec)
{
    order_init(o, SKERRY__V1__TASK_KIND__TASK_KIND_CLUSTER, spec, texts, SHARDS);
    for (int i = 0; i < SHARDS; i++) {
        struct features f;
        struct work *w = features_of(spec, &texts[i], CHUNK, false, &f);
        const struct work_output *out = output_of(w, WORK_RESULT);
        o->features[i] = give(o, out->path, out->sha256);
        features_close(&f);
        work_free(w);
    }
    o->holdout[SHARDS - 1] = true;
    o->cluster.chunk = CHUNK;
}

/* Partitions of all texts, which follow their topics but for `wrong` at most. */
static inline void check_topics(const struct work *w, uint32_t columns_of, uint32_t wrong)
{
    uint32_t *assign, wide, same = 0, sizes[2] = {0};
    OK(assignment_read(output_of(w, WORK_ASSIGNMENT)->path, 0, SHARDS * N, 2, &assign, &wide, err));
    assert_int_equal(wide, columns_of);
    for (uint32_t i = 0; i < SHARDS * N; i++) {
        same += assign[i * wide] == topic[i];
        for (uint32_t j = 0; i < (SHARDS - 1) * N && j < wide; j++)
            sizes[assign[i * wide + j]]++;
    }
    if (same < SHARDS * N - wrong && same > wrong)
        fail_msg("%u of %d texts lie with their topic", same, SHARDS * N);
    assert_int_equal(w->result.n_sizes, 2);
    assert_true(w->result.sizes[0] == sizes[0] && w->result.sizes[1] == sizes[1]);
    mem_free(assign);
}

/* ---- fixture ------------------------------------------------------------------------- */

static inline void make_version(bool text)
{
    struct order o;
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_INIT, text ? TEXTS : IMAGES, images, 1);
    o.task.n_modules = 1;
    struct work *w = run(&o);
    const struct work_output *out = output_of(w, WORK_CONTRIBUTION);
    memcpy(version0[text], out->sha256, 32);
    version0_size[text] = out->size;
    host_put(&host, out->path, out->sha256);
    work_free(w);
}

/* ---- devices that are too small ----------------------------------------------------- */

static const struct kernel_ops *roomy;
static struct kernel_ops tight, counting;
static int on_second; /* allocations */

static inline int no_room(struct device *dev, uint64_t *ret_free, uint64_t *ret_total)
{
    *ret_free = 1;
    return 0;
}

static inline int count_alloc(struct device *dev, size_t bytes, void **ret, struct err *e)
{
    on_second++;
    return roomy->alloc(dev, bytes, ret, e);
}

/* The engine has two devices, of which the first says that it has no room; was: what it had. */
static inline void two_tight_devices(struct island **was)
{
    *was = host.engine->island;
    OK(island_open("cpu,cpu", 2, &host.engine->island, err));
    host.engine->dev = island_device(host.engine->island, 0);
    roomy = host.engine->dev->ops;
    tight = counting = *roomy;
    tight.memory = no_room;
    counting.alloc = count_alloc;
    host.engine->dev->ops = &tight;
    island_device(host.engine->island, 1)->ops = &counting;
    on_second = 0;
}

static inline void enough_room(struct island *was)
{
    for (int i = 0; i < 2; i++)
        island_device(host.engine->island, i)->ops = roomy;
    island_close(host.engine->island);
    host.engine->island = was;
    host.engine->dev = island_device(was, 0);
}

static inline int setup(void **state)
{
    OK(image_init(err));
    top = scratch_new();
    host_open(&host, top, "host", 2);
    for (int i = 0; i < SHARDS; i++) {
        images[i] = shard_make(top, i, N, 5, i == 1 ? 3 : -1);
        texts[i] = shard_of_texts(top, i, N, 0, text_of, NULL);
        columns[i] = shard_of_texts(top, i, N, 2, text_of, NULL);
        host_put(&host, images[i].path, images[i].sha256);
        host_put(&host, texts[i].path, texts[i].sha256);
        host_put(&host, columns[i].path, columns[i].sha256);
    }
    make_version(false);
    make_version(true);
    return 0;
}

static inline int teardown(void **state)
{
    host_free(&host);
    for (int i = 0; i < SHARDS; i++) {
        free(images[i].path);
        free(texts[i].path);
        free(columns[i].path);
    }
    scratch_free(top);
    return 0;
}

#endif
