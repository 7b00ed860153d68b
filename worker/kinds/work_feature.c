/* FEATURE: one row of numbers for each sample of the ranges, by which it is partitioned.
 *
 *   pixels   the image scaled to 16 x 16, in [-1,1]
 *   ngrams   hashed byte n-grams of the first 32 tokens (worker/data/ngrams.h)
 *   model    texts: mean of the last hidden state over the first 32 tokens; images: over the
 *            patches of the image at t = 0.1, noise by sample id, no label
 *   column   what the dataset has for the sample
 *
 * Texts also get one row per `chunk` tokens when the task asks for it. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/data/tokenizer.h"
#include "kernels/kernels.h"
#include "worker/data/data_order.h"
#include "worker/kinds/engine.h"
#include "worker/train/eval.h"
#include "worker/kinds/features.h"
#include "worker/kinds/forward.h"
#include "worker/net/llama.h"
#include "worker/data/ngrams.h"
#include "worker/kinds/stage.h"
#include "worker/data/text.h"
#include "worker/kinds/kinds.h"
#include "worker/order/task_check.h"

#define PIXELS_SIDE 16
#define PIXELS_DIM (PIXELS_SIDE * PIXELS_SIDE * DATA_CHANNELS)
#define BATCH 64
#define LOW_NOISE 0.1F
#define NGRAM_BYTES_MAX (1u << 20)

struct run {
    struct engine *e;
    struct work *w;
    struct data_range *ranges;
    size_t n_ranges;
    uint64_t n, at; /* rows; the next one that a sample may be */
    uint32_t d, chunk, columns;
    uint64_t *ids; /* (n) */
    float *x;      /* (n,d) */
    float *chunks; /* (n,columns,d) or NULL */
};

static int run_ids(struct run *r, struct err *err)
{
    const Skerry__V1__FeatureTask *t = r->w->task->feature;
    int rc = work_ranges(r->w, t->ranges, t->n_ranges, &r->ranges, err);
    if (rc < 0)
        return rc;
    r->n_ranges = t->n_ranges;
    for (size_t i = 0; i < r->n_ranges; i++)
        r->n += r->ranges[i].count;
    r->ids = mem_try_array(r->n, sizeof(*r->ids));
    if (!r->ids)
        return err_set(err, -ENOMEM, "no memory for %" PRIu64 " samples", r->n);
    uint64_t at = 0;
    for (size_t i = 0; i < r->n_ranges; i++)
        for (uint32_t j = 0; j < r->ranges[i].count; j++)
            r->ids[at++] = data_sample_id(r->ranges[i].sha256, r->ranges[i].start + j);
    return 0;
}

/* Room for the rows, now that their width is known; samples that cannot be read stay zero. */
static int run_room(struct run *r, uint32_t d, uint32_t chunk, struct err *err)
{
    r->d = d;
    r->chunk = chunk;
    r->columns = stage_columns(r->w, chunk);
    r->x = mem_try_array(r->n, d * sizeof(float));
    if (r->columns)
        r->chunks = mem_try_array(r->n * r->columns, d * sizeof(float));
    if (!r->x || (r->columns && !r->chunks))
        return err_set(err, -ENOMEM, "no memory for features of %" PRIu64 " samples", r->n);
    return 0;
}

static void run_free(struct run *r)
{
    mem_free(r->ranges);
    mem_free(r->ids);
    mem_free(r->x);
    mem_free(r->chunks);
}

/* The row of a sample.  Pipelines give samples in order and leave the bad ones out. */
static int find_row(struct run *r, uint64_t id, uint64_t *ret, struct err *err)
{
    while (r->at < r->n && r->ids[r->at] != id)
        r->at++;
    if (r->at == r->n)
        return err_set(err, -EINVAL, "a sample that the task does not name");
    *ret = r->at++;
    return 0;
}

static int step(struct run *r, struct err *err)
{
    progress_units(&r->w->progress, (uint32_t)r->at, (uint32_t)r->n);
    return work_stopped(r->w, err) ? -ERR_CANCELLED : 0;
}

/* ---- images -------------------------------------------------------------------- */

static int open_images(struct run *r, unsigned side, struct data_cache *cache, struct data **ret,
                       struct err *err)
{
    const struct data_options opt = {
        .image_size = side,
        .batch = BATCH,
        .threads = r->e->opt.decode_threads,
        .cache = cache,
    };
    return data_open(&opt, r->ranges, r->n_ranges, ret, err);
}

static int pixels(struct run *r, struct err *err)
{
    struct data *data = NULL;
    struct batch b = {.count = 1};
    int rc = run_room(r, PIXELS_DIM, 0, err);
    if (rc == 0)
        rc = open_images(r, PIXELS_SIDE, NULL, &data, err);
    while (rc == 0 && b.count > 0) {
        if ((rc = step(r, err)) < 0 || (rc = data_next(data, &b, err)) < 0)
            break;
        for (unsigned i = 0; rc == 0 && i < b.count; i++) {
            uint64_t row = 0;
            if ((rc = find_row(r, b.ids[i], &row, err)) < 0)
                break;
            for (uint32_t j = 0; j < PIXELS_DIM; j++)
                r->x[row * PIXELS_DIM + j] =
                    (float)b.images[(size_t)i * PIXELS_DIM + j] / 127.5F - 1;
        }
    }
    data_free(data);
    return rc;
}

/* means (count,C) on the host of what the network saw last. */
static int mean_hidden(struct net *net, const struct net_hidden *h, unsigned count, float *means,
                       struct err *err)
{
    struct device *dev = net_device(net);
    const size_t bytes = (size_t)count * (size_t)h->C * sizeof(float);
    void *sum = NULL;
    int rc = dev->ops->alloc(dev, bytes, &sum, err);
    if (rc < 0)
        return rc;
    struct stream *s = net->weights->stream;
    rc = dev->ops->mean_tokens(dev, sum, h->x, (int)count, h->T, h->C, 0, h->T, NULL, h->dt, s);
    if (rc == 0)
        rc = dev->ops->copy(dev, means, sum, bytes, COPY_FROM_DEVICE, s);
    if (rc == 0)
        rc = dev->ops->sync(dev, s, NULL);
    dev->ops->free(dev, sum);
    return rc < 0 ? err_set(err, rc, "features on %s: %s", dev->name, err_text(rc)) : 0;
}

static int image_states(struct run *r, struct err *err)
{
    struct forward f = {0};
    struct data *data = NULL;
    struct batch b = {.count = 1};
    float *means = NULL;
    int rc = forward_open(r->e, r->w, BATCH, &f, err);
    const uint32_t C = rc == 0 ? (uint32_t)f.model->spec.dim : 0;
    if (rc == 0)
        rc = run_room(r, C, 0, err);
    if (rc == 0 && !(means = mem_try_array((size_t)BATCH * C, sizeof(float))))
        rc = err_set(err, -ENOMEM, "no memory for %u states", C);
    if (rc == 0)
        rc = open_images(r, (unsigned)r->w->spec.data.image_size, r->e->images, &data, err);
    while (rc == 0) {
        struct net_hidden h;
        if ((rc = step(r, err)) < 0 || (rc = data_next(data, &b, err)) < 0 || b.count == 0)
            break;
        b.labels = NULL;
        b.seed = eval_seed(r->w->spec.seed);
        b.keys = b.ids;
        b.t = LOW_NOISE;
        if ((rc = net_hidden(f.net, &b, &h, err)) == 0)
            rc = mean_hidden(f.net, &h, b.count, means, err);
        for (unsigned i = 0; rc == 0 && i < b.count; i++) {
            uint64_t row = 0;
            if ((rc = find_row(r, b.ids[i], &row, err)) == 0)
                memcpy(r->x + row * C, means + (size_t)i * C, C * sizeof(float));
        }
    }
    mem_free(means);
    data_free(data);
    forward_close(&f);
    return rc;
}

/* ---- texts --------------------------------------------------------------------- */

static int open_texts(struct run *r, struct text **ret, struct err *err)
{
    const struct text_options opt = {
        .seq = (unsigned)r->w->spec.model.context,
        .rows = stage_rows(r->w),
        .vocab = r->w->task->vocab,
    };
    return text_open(&opt, r->ranges, r->n_ranges, ret, err);
}

struct grams {
    struct tokenizer *tokenizer;
    struct buf bytes;
};

/* The features of one text: of its prefix and of its chunks. */
static int text_grams(struct run *r, struct grams *g, const int32_t *ids, uint32_t len,
                      uint64_t row, struct err *err)
{
    uint32_t prefix = len < STAGE_PREFIX ? len : STAGE_PREFIX;
    int rc = ngrams_tokens(g->tokenizer, ids, prefix, &g->bytes, r->x + row * r->d);
    for (uint32_t c = 0; rc == 0 && c < r->columns && c * r->chunk < len; c++) {
        uint32_t left = len - c * r->chunk;
        rc = ngrams_tokens(g->tokenizer, ids + (size_t)c * r->chunk,
                           left < r->chunk ? left : r->chunk, &g->bytes,
                           r->chunks + (row * r->columns + c) * r->d);
    }
    return rc < 0 ? err_set(err, rc, "the bytes of %u tokens: %s", len, err_text(rc)) : 0;
}

static int text_ngrams(struct run *r, struct err *err)
{
    struct grams g = {0};
    struct text *text = NULL;
    struct batch b = {.count = 1};
    const size_t ld = (size_t)r->w->spec.model.context + 1;
    buf_init(&g.bytes, NGRAM_BYTES_MAX);
    int rc = run_room(r, NGRAMS_DIM, r->w->task->feature->chunk, err);
    if (rc == 0)
        rc = work_tokenizer(r->w, &g.tokenizer, err);
    if (rc == 0)
        rc = open_texts(r, &text, err);
    while (rc == 0 && b.count > 0) {
        if ((rc = step(r, err)) < 0 || (rc = text_next(text, 0, &b, err)) < 0)
            break;
        for (unsigned i = 0; rc == 0 && i < b.count; i++) {
            uint64_t row = 0;
            if ((rc = find_row(r, b.ids[i], &row, err)) == 0)
                rc = text_grams(r, &g, b.tokens + i * ld, b.lengths[i], row, err);
        }
    }
    text_free(text);
    tokenizer_free(g.tokenizer);
    buf_release(&g.bytes);
    return rc;
}

/* Means of one batch to their rows. */
static int take_states(struct run *r, struct net *net, const struct batch *b, float *head,
                       float *chunks, struct err *err)
{
    const struct llama_features f = {
        .lengths = b->lengths,
        .first = STAGE_PREFIX,
        .chunk = (int)r->chunk,
        .n_chunks = (int)r->columns,
        .head = head,
        .chunks = chunks,
    };
    const size_t wide = (size_t)r->columns * r->d;
    int rc = llama_features(net, b, &f, err);
    for (unsigned i = 0; rc == 0 && i < b->count; i++) {
        uint64_t row = 0;
        if ((rc = find_row(r, b->ids[i], &row, err)) < 0)
            break;
        memcpy(r->x + row * r->d, head + (size_t)i * r->d, r->d * sizeof(float));
        if (chunks)
            memcpy(r->chunks + row * wide, chunks + i * wide, wide * sizeof(float));
    }
    return rc;
}

static int text_states(struct run *r, struct err *err)
{
    struct forward f = {0};
    struct text *text = NULL;
    struct batch b = {.count = 1};
    float *head = NULL, *chunks = NULL;
    const size_t rows = stage_rows(r->w);
    int rc = forward_open(r->e, r->w, (int)rows, &f, err);
    if (rc == 0)
        rc = run_room(r, (uint32_t)f.model->spec.dim, r->w->task->feature->chunk, err);
    if (rc == 0) {
        head = mem_try_array(rows * r->d, sizeof(float));
        chunks = r->columns ? mem_try_array(rows * r->columns * r->d, sizeof(float)) : NULL;
        if (!head || (r->columns && !chunks))
            rc = err_set(err, -ENOMEM, "no memory for states of %zu texts", rows);
    }
    if (rc == 0)
        rc = open_texts(r, &text, err);
    while (rc == 0) {
        if ((rc = step(r, err)) < 0 || (rc = text_next(text, 0, &b, err)) < 0 || b.count == 0)
            break;
        rc = take_states(r, f.net, &b, head, chunks, err);
    }
    mem_free(head);
    mem_free(chunks);
    text_free(text);
    forward_close(&f);
    return rc;
}

/* ---- both ---------------------------------------------------------------------- */

static int column(struct run *r, struct err *err)
{
    struct data_order o = {0};
    const char *name = r->w->spec.partition.column;
    int rc = data_order_open(&o, r->ranges, r->n_ranges, err);
    if (rc == 0 && o.shards[0].dim == 0)
        rc = err_set(err, -ERR_CONFIG, "partition.column: the dataset has no column '%s'", name);
    if (rc == 0)
        rc = run_room(r, o.shards[0].dim, 0, err);
    for (; rc == 0 && r->at < r->n; r->at++) {
        struct data_place p = data_order_at(&o, r->at);
        const struct shard *shard = &o.shards[p.shard];
        const struct shard_sample *s = &shard->samples[p.index];
        float *x = r->x + r->at * r->d;
        if (shard->dim != r->d) {
            rc = err_set(err, -ERR_CONFIG,
                         "partition.column: '%s' has %u numbers in one sample and %u in %s", name,
                         r->d, shard->dim, s->key);
            break;
        }
        shard_feature(shard, s, x);
        if (fit_not_finite(x, r->d) < r->d)
            rc = err_set(err, -ERR_CONFIG,
                         "partition.column: '%s' of %s holds a value that is not a number", name,
                         s->key);
    }
    data_order_close(&o);
    return rc;
}

static int compute(struct run *r, struct err *err)
{
    const bool text = r->w->spec.model.type == JOB_MODEL_LLAMA;
    if (stage_is_random(r->w))
        return run_room(r, 1, 0, err);
    switch (stage_features(r->w)) {
    case JOB_FEATURES_PIXELS:
        return pixels(r, err);
    case JOB_FEATURES_NGRAMS:
        return text_ngrams(r, err);
    case JOB_FEATURES_COLUMN:
        return column(r, err);
    default:
        return text ? text_states(r, err) : image_states(r, err);
    }
}

static int check(const Skerry__V1__Task *task, struct err *err)
{
    const Skerry__V1__FeatureTask *t = task->feature;
    int rc = task_check_tokens(t->chunk, "feature.chunk", err);
    return rc < 0 ? rc : task_check_ranges(t->ranges, t->n_ranges, "feature.ranges", err);
}

static int plan(struct engine *e, struct work *w, struct err *err)
{
    return work_need_ranges(w, w->task->feature->ranges, w->task->feature->n_ranges, err);
}

static int run(struct engine *e, struct work *w, struct err *err)
{
    struct run r = {.e = e, .w = w};
    struct work_output *o = NULL;
    const uint64_t begun = clock_now_ns();
    progress_activity(&w->progress, "computing features");
    int rc = run_ids(&r, err);
    if (rc == 0)
        rc = compute(&r, err);
    if (rc == 0)
        rc = work_output_new(w, WORK_RESULT, "features", &o, err);
    if (rc == 0) {
        const struct features_write f = {
            .ids = r.ids, .x = r.x, .chunks = r.chunks, .n = r.n, .d = r.d, .columns = r.columns};
        rc = features_write(o->path, &f, o->sha256, &o->size, err);
    }
    w->result.samples = r.n;
    w->result.seconds = (float)(clock_now_ns() - begun) / 1e9F;
    run_free(&r);
    return rc;
}

const struct kind kind_feature = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_FEATURE,
    .name = "feature",
    .part = offsetof(Skerry__V1__Task, feature),
    .check = check,
    .plan = plan,
    .run = run,
};
