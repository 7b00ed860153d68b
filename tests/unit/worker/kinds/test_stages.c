/* The tasks of partitioning on the compute thread: features, clusters, splits and scores of
 * images and texts, what one stage leaves being what the next one reads. */
#include "tests/unit/worker/shards.h"

#include <math.h>

#include "common/base/clock.h"
#include "common/data/shard.h"
#include "worker/kinds/kinds.h"
#include "worker/order/work.h"
#include "worker/data/data_order.h"
#include "worker/kinds/engine.h"
#include "worker/kinds/task_files.h"
#include "worker/order/modules.h"
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
         "model: {type: dit, patch: 2, dim: 16, depth: 1, heads: 2" x "}\n"                        \
         "train: {batch: 4, lr: 1e-3, precision: f32}\n"
#define IMAGES IMAGES_WITH("")
#define WARM IMAGES_WITH(", warm_start: y")
#define TEXTS                                                                                      \
    HEAD "data: {path: x, shard_samples: 100}\n"                                                   \
         "model: {type: llama, dim: 16, depth: 1, heads: 2, context: 64, warm_start: y}\n"         \
         "train: {batch: 4, lr: 1e-3, precision: f32}\n"

static char *top;
static struct cache *cache;
static struct modules *modules;
static struct engine *engine;
static struct test_shard images[SHARDS], texts[SHARDS], columns[SHARDS];
static uint8_t version0[2][32]; /* of the images' model, of the texts' */
static uint64_t version0_size[2];
static uint64_t next_task = 11;
static uint32_t topic[SHARDS * N]; /* of each text: 0 or 1 */

/* ---- data ------------------------------------------------------------------------- */

static void to_cache(const char *from, const uint8_t sha256[32])
{
    struct buf b;
    char path[CACHE_PATH_MAX];
    OK(file_read(from, 1 << 24, &b, err));
    cache_path(cache, sha256, path);
    OK(file_write_atomic(path, b.data, b.len, 0600, err));
    OK(cache_added(cache, sha256, err));
    buf_release(&b);
}

/* Texts of one topic have letters of their own; the last of a shard is short. */
static uint32_t text_of(int shard, uint32_t i, uint32_t ids[CONTEXT])
{
    uint32_t n = i == N - 1 ? 20 : 40 + (i * 7) % 24, number = (uint32_t)shard * N + i;
    topic[number] = (number * 2654435761u) >> 31;
    ids[0] = 256;
    for (uint32_t k = 1; k < n; k++)
        ids[k] = (topic[number] ? 'A' : 'p') + (number * 31 + k * k * 7 + k / 3) % 9;
    return n;
}

static struct test_shard text_shard(int number, bool column)
{
    struct test_shard s;
    struct shard_writer *w;
    struct shard_info info;
    struct buf room;
    char name[64];
    snprintf(name, sizeof(name), "text-%d-%d", number, column);
    s.path = in(top, name);
    buf_init(&room, 4096);
    w = shard_writer_new(s.path);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t ids[CONTEXT], n = text_of(number, i, ids);
        float feature[2] = {(float)number, (float)i};
        buf_clear(&room);
        OK(shard_encode_tokens(ids, n, &room));
        struct shard_sample p = {.ext = "tok",
                                 .data = room.data,
                                 .len = room.len,
                                 .tokens = n,
                                 .feature = (const uint8_t *)feature};
        snprintf(p.key, sizeof(p.key), "d%u#0", i);
        OK(shard_writer_add(w, &p, column ? 2 : 0, err));
    }
    OK(shard_writer_finish(w, &info, err));
    shard_writer_free(w);
    memcpy(s.sha256, info.sha256, 32);
    buf_release(&room);
    return s;
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

static void order_init(struct order *o, int kind, const char *spec, const struct test_shard *shards,
                       size_t n)
{
    const bool text = strstr(spec, "llama") != NULL;
    memset(o, 0, sizeof(*o));
    skerry__v1__task__init(&o->task);
    skerry__v1__module_ref__init(&o->module);
    skerry__v1__blob__init(&o->full);
    skerry__v1__feature_task__init(&o->feature);
    skerry__v1__cluster_task__init(&o->cluster);
    skerry__v1__split_task__init(&o->split);
    skerry__v1__score_task__init(&o->score);
    for (size_t i = 0; i < n; i++) {
        skerry__v1__blob__init(&o->shard[i]);
        o->shard[i].sha256 = (ProtobufCBinaryData){32, (uint8_t *)(uintptr_t)shards[i].sha256};
        o->shard[i].url = (char *)"/v1/blobs/x";
        OK(file_size(shards[i].path, &o->shard[i].size, err));
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
    o->full.sha256 = o->module.sha256 = (ProtobufCBinaryData){32, version0[text]};
    o->full.size = version0_size[text];
    o->full.url = (char *)"/v1/blobs/x";
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

static struct work *run(struct order *o)
{
    struct work *w;
    char tmp[4096];
    snprintf(tmp, sizeof(tmp), "%s/tmp", top);
    OK(work_new(kinds_all, &o->task, cache, tmp, &w, err));
    OK(engine_plan(engine, w, err));
    for (size_t i = 0; i < w->n_needs; i++)
        assert_false(w->needs[i].missing);
    OK(engine_run(engine, w, err));
    return w;
}

static void fails(struct order *o, int code, const char *words)
{
    struct work *w;
    struct err e = {0};
    char tmp[4096];
    snprintf(tmp, sizeof(tmp), "%s/tmp", top);
    OK(work_new(kinds_all, &o->task, cache, tmp, &w, err));
    OK(engine_plan(engine, w, err));
    assert_int_equal(engine_run(engine, w, &e), code);
    if (!strstr(e.msg, words))
        fail_msg("'%s' does not say '%s'", e.msg, words);
    work_free(w);
}

/* A blob of the message: a file that is put into the cache. */
static Skerry__V1__Blob *give(struct order *o, const char *path, const uint8_t sha256[32])
{
    const size_t i = o->n_blobs++;
    assert_true(i < COUNT(o->blob));
    to_cache(path, sha256);
    memcpy(o->hash[i], sha256, 32);
    skerry__v1__blob__init(&o->blob[i]);
    o->blob[i].sha256 = (ProtobufCBinaryData){32, o->hash[i]};
    o->blob[i].url = (char *)"/v1/blobs/x";
    OK(file_size(path, &o->blob[i].size, err));
    return &o->blob[i];
}

static const struct work_output *output_of(const struct work *w, enum work_role role)
{
    for (size_t i = 0; i < w->result.n_outputs; i++)
        if (w->result.outputs[i].role == role)
            return &w->result.outputs[i];
    fail_msg("no output of role %d", (int)role);
    return NULL;
}

static double row_of(const struct work *w, const char *name)
{
    for (size_t i = 0; i < w->result.n_rows; i++)
        if (strcmp(w->result.rows[i].name, name) == 0)
            return w->result.rows[i].value;
    fail_msg("no row '%s'", name);
    return 0;
}

/* The features of one shard, by a task. */
static struct work *features_of(const char *spec, const struct test_shard *shard, uint32_t chunk,
                                bool model, struct features *ret)
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

static void row(const struct features *f, uint32_t i, float *out)
{
    memcpy(out, f->files[0].x + (size_t)i * f->d * sizeof(float), f->d * sizeof(float));
}

/* ---- features ---------------------------------------------------------------------- */

static void pixels_of_images(void **state)
{
    struct features f;
    float a[768], b[768];
    struct work *w = features_of(IMAGES, &images[1], 0, false, &f);
    assert_int_equal(f.d, 768);
    row(&f, 3, a); /* the one that is no image */
    for (int j = 0; j < 768; j++)
        assert_true(a[j] == 0);
    row(&f, 0, a);
    row(&f, 4, b); /* and the one behind it has its own values, not its neighbour's */
    float least = 2, most = -2;
    for (int j = 0; j < 768; j++) {
        least = a[j] < least ? a[j] : least;
        most = a[j] > most ? a[j] : most;
    }
    assert_true(least >= -1 && most <= 1 && most - least > 0.5F);
    assert_memory_not_equal(a, b, sizeof(a));
    uint64_t id;
    memcpy(&id, f.files[0].ids + 4 * sizeof(id), sizeof(id));
    assert_true(id == data_sample_id(images[1].sha256, 4));
    features_close(&f);
    work_free(w);
}

static void states_of_images(void **state)
{
    struct features f, g;
    float a[16], b[16];
    struct work *w = features_of(WARM "partition: {features: model}\n", &images[0], 0, true, &f);
    struct work *v = features_of(WARM "partition: {features: model}\n", &images[0], 0, true, &g);
    (void)state;
    assert_int_equal(f.d, 16);
    row(&f, 1, a);
    row(&f, 2, b);
    assert_memory_not_equal(a, b, sizeof(a));
    row(&g, 1, b);
    assert_memory_equal(a, b, sizeof(a));
    features_close(&f);
    features_close(&g);
    work_free(w);
    work_free(v);
}

static void ngrams_of_texts(void **state)
{
    static const char spec[] = TEXTS "partition: {features: ngrams}\n";
    struct features f;
    float a[NGRAMS_DIM], want[NGRAMS_DIM];
    uint8_t bytes[CONTEXT];
    uint32_t ids[CONTEXT], n = text_of(1, 5, ids);
    struct work *w = features_of(spec, &texts[1], CHUNK, false, &f);
    assert_int_equal(f.d, NGRAMS_DIM);
    assert_int_equal(f.files[0].columns, COLUMNS);
    for (uint32_t k = 1; k < n; k++)
        bytes[k - 1] = (uint8_t)ids[k]; /* the first token stands for no byte */
    ngrams(bytes, 31, want);
    row(&f, 5, a);
    assert_memory_equal(a, want, sizeof(want));
    double norm = 0;
    for (int j = 0; j < NGRAMS_DIM; j++)
        norm += (double)a[j] * (double)a[j];
    assert_true(fabs(norm - 1) < 1e-5);
    ngrams(bytes + 15, 16, want); /* tokens 16 to 31 */
    features_chunk(&f, 0, 5, 1, a);
    assert_memory_equal(a, want, sizeof(want));
    features_chunk(&f, 0, N - 1, 1, a); /* 20 tokens: 4 of the second chunk */
    text_of(1, N - 1, ids);
    for (uint32_t k = 1; k < 20; k++)
        bytes[k - 1] = (uint8_t)ids[k];
    ngrams(bytes + 15, 4, want);
    assert_memory_equal(a, want, sizeof(want));
    features_chunk(&f, 0, N - 1, 2, a);
    for (int j = 0; j < NGRAMS_DIM; j++)
        assert_true(a[j] == 0);
    features_close(&f);
    work_free(w);
}

static void states_of_texts(void **state)
{
    struct features f;
    float a[16], b[16];
    struct work *w = features_of(TEXTS, &texts[0], CHUNK, true, &f); /* auto: the warm start */
    assert_int_equal(f.d, 16);
    row(&f, 0, a);
    row(&f, 1, b);
    assert_memory_not_equal(a, b, sizeof(a));
    /* the first 32 tokens are the first two chunks */
    float c0[16], c1[16];
    features_chunk(&f, 0, 0, 0, c0);
    features_chunk(&f, 0, 0, 1, c1);
    for (int j = 0; j < 16; j++)
        assert_true(fabsf(a[j] - (c0[j] + c1[j]) / 2) < 1e-4F);
    features_close(&f);
    work_free(w);
}

static void columns_of_the_dataset(void **state)
{
    static const char spec[] = TEXTS "partition: {features: column, column: clip}\n";
    struct features f;
    float a[2];
    struct work *w = features_of(spec, &columns[2], 0, false, &f);
    assert_int_equal(f.d, 2);
    row(&f, 9, a);
    assert_true(a[0] == 2 && a[1] == 9);
    features_close(&f);
    work_free(w);
    struct order o;
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_FEATURE, spec, texts, 1);
    fails(&o, -ERR_CONFIG, "no column 'clip'");
}

/* ---- clusters, splits, scores -------------------------------------------------------- */

#define BY_NGRAMS TEXTS "partition: {features: ngrams, method: kmeans, dims: 4, chunk: 16}\n"

/* Fills o with the features of all texts; the last shard is held out. */
static void cluster_order(struct order *o, const char *spec)
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
static void check_topics(const struct work *w, uint32_t columns_of, uint32_t wrong)
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

static void clusters_and_splits(void **state)
{
    struct order o;
    cluster_order(&o, BY_NGRAMS);
    o.cluster.top = 2;
    struct work *w = run(&o);
    check_topics(w, 2, 0);
    assert_true(row_of(w, "largest partition over the mean") < 1.5);
    assert_true(row_of(w, "smallest partition") >= 1);
    struct partitioner *p = NULL;
    OK(partitioner_read(output_of(w, WORK_RESULT)->path, &p, err));
    assert_string_equal(p->feature, "ngrams");
    partitioner_free(p);

    /* Shards 1 and 2 with both partitions each, then as if held out. */
    for (int held = 0; held < 2; held++) {
        struct order s;
        uint32_t *assign, wide;
        uint64_t samples = 0;
        const struct work_output *a = output_of(w, WORK_ASSIGNMENT);
        OK(assignment_read(a->path, N, 2 * N, 2, &assign, &wide, err));
        order_init(&s, SKERRY__V1__TASK_KIND__TASK_KIND_SPLIT, BY_NGRAMS, &texts[1], 2);
        s.split.assignment = give(&s, a->path, a->sha256);
        s.split.first = N;
        s.split.holdout = held;
        struct work *v = run(&s);
        assert_int_equal(v->result.n_outputs, 2);
        for (size_t i = 0; i < v->result.n_outputs; i++) {
            const struct work_output *out = &v->result.outputs[i];
            struct shard shard, from[2];
            uint32_t next = 0;
            uint64_t tokens = 0;
            OK(shard_open(out->path, &shard, err));
            OK(shard_open(texts[1].path, &from[0], err));
            OK(shard_open(texts[2].path, &from[1], err));
            assert_int_equal(shard.n, out->samples);
            assert_int_equal(out->partition, i);
            assert_int_equal(out->holdout, held);
            for (size_t k = 0; k < shard.n; k++, next++) {
                while (held && assign[next * 2] != i)
                    next++;
                const struct shard_sample *src = &from[next / N].samples[next % N];
                assert_int_equal(shard.samples[k].len, src->len);
                assert_memory_equal(shard.samples[k].data, src->data, src->len);
                tokens += src->tokens;
            }
            assert_int_equal(tokens, out->tokens);
            samples += shard.n;
            shard_close(&shard);
            shard_close(&from[0]);
            shard_close(&from[1]);
        }
        assert_int_equal(samples, held ? 2 * N : 4 * N);
        mem_free(assign);
        work_free(v);
    }
    work_free(w);
}

/* data.shard_samples bounds what is written; shares are even. */
static void splits_are_cut(void **state)
{
    struct order o;
    uint32_t assign[2 * N];
    uint8_t sha[32];
    char *path = in(top, "assign");
    for (uint32_t i = 0; i < 2 * N; i++)
        assign[i] = i >= 40; /* 40 and 8 */
    OK(assignment_write(path, assign, 2 * N, 1, sha, NULL, err));
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_SPLIT, IMAGES, images, 2);
    o.split.assignment = give(&o, path, sha);
    struct work *w = run(&o);
    assert_int_equal(w->result.n_outputs, 4); /* 40 samples at 16 a shard: 3; and the 8 */
    static const uint32_t want[] = {13, 13, 14, 8};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(w->result.outputs[i].samples, want[i]);
        assert_int_equal(w->result.outputs[i].partition, i == 3);
    }
    work_free(w);
    o.split.first = 1; /* more samples than the assignment knows */
    fails(&o, -ERR_FORMAT, "rows 1 to 49 are wanted");
    o.split.first = 0;
    o.task.partitions = 1;
    fails(&o, -ERR_FORMAT, "in partition 1, of 1");
    mem_free(path);
}

static void random_needs_no_features(void **state)
{
    struct order o;
    cluster_order(&o, TEXTS "partition: {method: random}\n");
    o.levels[0] = 2;
    struct work *w = run(&o);
    assert_true(w->result.sizes[0] + w->result.sizes[1] == (SHARDS - 1) * N);
    assert_true(w->result.sizes[0] > N / 2 && w->result.sizes[1] > N / 2);
    work_free(w);
}

/* An untrained model: every token about equally likely; every counted token has its column. */
static void scores_of_texts(void **state)
{
    for (uint32_t chunk = 0; chunk <= CHUNK; chunk += CHUNK) {
        struct order o;
        struct scores s;
        order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_SCORE, TEXTS, texts, 1);
        o.task.n_modules = 1;
        o.score.chunk = chunk;
        o.score.skip = 32;
        struct work *w = run(&o);
        OK(scores_read(output_of(w, WORK_RESULT)->path, N, &s, err));
        assert_int_equal(s.columns, chunk ? COLUMNS : 1);
        for (uint32_t i = 0; i < N; i++) {
            uint32_t ids[CONTEXT], n = text_of(0, i, ids);
            int32_t counted = 0;
            double logp = 0;
            for (uint32_t c = 0; c < s.columns; c++) {
                int32_t tokens = s.tokens[i * s.columns + c];
                counted += tokens;
                logp += (double)s.logp[i * s.columns + c];
                int32_t from = c * CHUNK < 32 ? 32 : (int32_t)(c * CHUNK);
                int32_t end = (c + 1) * CHUNK < n ? (int32_t)((c + 1) * CHUNK) : (int32_t)n;
                if (chunk)
                    assert_int_equal(tokens, end > from ? end - from : 0);
            }
            assert_int_equal(counted, n > 32 ? n - 32 : 0);
            assert_int_equal(s.bytes[i], counted);
            assert_true(fabs(logp + counted * log(257)) < 0.2 * counted + 1e-9);
        }
        scores_release(&s);
        work_free(w);
    }
}

static void scores_of_images(void **state)
{
    struct order o;
    struct scores s;
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_SCORE, IMAGES, &images[1], 1);
    o.task.n_modules = 1;
    struct work *w = run(&o);
    OK(scores_read(output_of(w, WORK_RESULT)->path, N, &s, err));
    assert_true(s.logp[0] < 0 && s.tokens[0] == 1);
    assert_true(s.logp[3] == 0 && s.tokens[3] == 0); /* no image */
    assert_true(s.logp[4] < 0);
    scores_release(&s);
    work_free(w);
}

/* Scores of two made-up paths: path 1 is good at topic 1, by 1 nat a token. */
static void give_scores(struct order *o, uint32_t n_columns)
{
    for (uint32_t p = 0; p < 2; p++)
        for (int i = 0; i < SHARDS; i++) {
            float logp[N * COLUMNS];
            int32_t tokens[N * COLUMNS], bytes[N];
            uint8_t sha[32];
            char name[32];
            for (uint32_t k = 0; k < N; k++) {
                bool good = topic[(uint32_t)i * N + k] == p;
                for (uint32_t c = 0; c < n_columns; c++) {
                    tokens[k * n_columns + c] = 5;
                    logp[k * n_columns + c] = good ? -5 : -10;
                }
                bytes[k] = 5 * (int32_t)n_columns;
            }
            snprintf(name, sizeof(name), "score-%u-%d-%u", p, i, n_columns);
            char *path = in(top, name);
            OK(scores_write(path, logp, tokens, bytes, N, n_columns, sha, NULL, err));
            o->scores[p * SHARDS + (uint32_t)i] = give(o, path, sha);
            mem_free(path);
        }
    o->cluster.n_scored = SHARDS;
    o->cluster.n_scores = 2 * SHARDS;
}

static void routes_by_scores(void **state)
{
    struct order o, e;
    cluster_order(&o, BY_NGRAMS);
    struct work *w = run(&o);
    const struct work_output *out = output_of(w, WORK_RESULT);
    give_scores(&o, 1);
    o.cluster.previous = give(&o, out->path, out->sha256);
    work_free(w);
    w = run(&o);
    check_topics(w, 1, 1);
    assert_true(row_of(w, "router's accuracy") > 0.97);
    assert_true(row_of(w, "router was fitted to") == (SHARDS - 1) * N);

    /* What this router would have done to the held-out texts: 1 nat a byte where it is right. */
    cluster_order(&e, BY_NGRAMS);
    give_scores(&e, COLUMNS);
    out = output_of(w, WORK_RESULT);
    e.cluster.previous = give(&e, out->path, out->sha256);
    e.cluster.evaluate = true;
    struct work *v = run(&e);
    assert_int_equal(v->result.n_outputs, 0);
    assert_true(fabs(row_of(v, "best path in hindsight") - 1 / log(2)) < 1e-6);
    assert_true(row_of(v, "routed to the best path") > 0.95);
    assert_true(row_of(v, "routed once") < 1.05 / log(2));
    assert_true(row_of(v, "routed every 16 tokens") < 1.1 / log(2));
    assert_true(row_of(v, "best single path") > 1.2 / log(2));
    assert_true(row_of(v, "chunks routed to the best path") > 0.9);
    work_free(v);
    work_free(w);
}

static void refuses(void **state)
{
    struct order o;
    cluster_order(&o, BY_NGRAMS);
    o.levels[0] = 60;
    o.task.partitions = 60;
    fails(&o, -ERR_CONFIG, "60 partitions of only 48 samples");
    o.levels[0] = o.task.partitions = 2;
    o.counts[0] = N - 1; /* another number of samples than the file has */
    fails(&o, -ERR_FORMAT, "ids");
    o.counts[0] = N;
    memset(o.holdout, 1, sizeof(o.holdout));
    fails(&o, -ERR_CONFIG, "all samples are held out");
}

/* ---- fixture ------------------------------------------------------------------------- */

static void make_version(bool text)
{
    struct order o;
    order_init(&o, SKERRY__V1__TASK_KIND__TASK_KIND_INIT, text ? TEXTS : IMAGES, images, 1);
    o.task.n_modules = 1;
    struct work *w = run(&o);
    const struct work_output *out = output_of(w, WORK_CONTRIBUTION);
    memcpy(version0[text], out->sha256, 32);
    version0_size[text] = out->size;
    to_cache(out->path, out->sha256);
    work_free(w);
}

static int setup(void **state)
{
    OK(image_init(err));
    top = scratch_new();
    char *held = in(top, "held"), *blobs = in(top, "blobs"), *tmp = in(top, "tmp");
    OK(file_mkdirs(tmp, 0700, err));
    OK(cache_open(blobs, 0, &cache, err));
    modules = modules_open(held, cache);
    const struct engine_options opt = {
        .device = "cpu",
        .threads = 2,
        .decode_threads = 2,
        .memory_bytes = 1 << 30,
        .image_cache_bytes = 1 << 20,
        .state_dir = top,
        .cache = cache,
        .modules = modules,
        .started_ns = clock_now_ns(),
    };
    OK(engine_open(&opt, &engine, err));
    for (int i = 0; i < SHARDS; i++) {
        images[i] = shard_make(top, i, N, 5, i == 1 ? 3 : -1);
        texts[i] = text_shard(i, false);
        columns[i] = text_shard(i, true);
        to_cache(images[i].path, images[i].sha256);
        to_cache(texts[i].path, texts[i].sha256);
        to_cache(columns[i].path, columns[i].sha256);
    }
    make_version(false);
    make_version(true);
    mem_free(held);
    mem_free(blobs);
    mem_free(tmp);
    return 0;
}

static int teardown(void **state)
{
    engine_close(engine);
    modules_close(modules);
    cache_close(cache);
    for (int i = 0; i < SHARDS; i++) {
        free(images[i].path);
        free(texts[i].path);
        free(columns[i].path);
    }
    scratch_free(top);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pixels_of_images),       cmocka_unit_test(states_of_images),
        cmocka_unit_test(ngrams_of_texts),        cmocka_unit_test(states_of_texts),
        cmocka_unit_test(columns_of_the_dataset), cmocka_unit_test(clusters_and_splits),
        cmocka_unit_test(splits_are_cut),         cmocka_unit_test(random_needs_no_features),
        cmocka_unit_test(scores_of_texts),        cmocka_unit_test(scores_of_images),
        cmocka_unit_test(routes_by_scores),       cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
