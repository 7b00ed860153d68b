/* FEATURE: one row of numbers for each sample of the ranges, by which it is partitioned.
 *
 *   pixels   the image scaled to 16 x 16, in [-1,1]
 *   latents  the mean latents of the image, averaged over squares to a side of at most 8 (over
 *            rectangles for an image of another shape)
 *   ngrams   hashed byte n-grams of the first 32 tokens (worker/data/ngrams.h)
 *   model    texts: mean of the last hidden state over the first 32 tokens; images: over the
 *            patches of the image at t = 0.1, noise by sample id, no label
 *   column   the dataset's column
 *
 * Texts also get one row per `chunk` tokens if the task asks for it.  A sample that cannot be
 * read has the row of the one before it. */

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/data/tokenizer.h"
#include "common/job/family.h"
#include "worker/data/data_samples.h"
#include "worker/data/images.h"
#include "worker/engine/encoders.h"
#include "worker/engine/engine.h"
#include "worker/engine/task_files.h"
#include "worker/engine/forward.h"
#include "worker/fit/means.h"
#include "worker/data/ngrams.h"
#include "worker/engine/rows.h"
#include "worker/kinds/kinds.h"
#include "worker/order/task_check.h"

#define PIXELS_SIDE 16
#define PIXELS_DIM (PIXELS_SIDE * PIXELS_SIDE * IMAGES_CHANNELS)
#define LATENTS_SIDE 8
#define PREFIX 32 /* first tokens of a text, by which it is routed */
#define LOW_NOISE 0.1F
#define NGRAM_BYTES_MAX (1u << 20)

struct run {
    struct engine *e;
    struct work *w;
    struct rows rows;
    uint32_t d, chunk, columns;
    float *x;      /* (n,d) */
    float *chunks; /* (n,columns,d) or NULL */

    /* One batch's, (count,d) and (count,columns,d). */
    float *means, *chunk_means;
    uint16_t *moments; /* latents: (rows_of_call,2,Ch,s,s) */
    struct encoders *enc;
    int side; /* latents: side of a feature */
    struct forward net;
    struct tokenizer *tokenizer;
    struct buf bytes;
};

/* Allocates the rows, all zeros, once their width is known. */
static int room(struct run *r, uint32_t d, uint32_t chunk, struct err *err)
{
    r->d = d;
    r->chunk = chunk;
    r->columns = rows_columns(r->w, chunk);
    r->x = mem_try_array(r->rows.n, d * sizeof(float));
    if (r->columns)
        r->chunks = mem_try_array(r->rows.n * r->columns, d * sizeof(float));
    if (!r->x || (r->columns && !r->chunks))
        return err_set(err, -ENOMEM, "no memory for features of %" PRIu64 " samples", r->rows.n);
    return 0;
}

/* ---- pixels -------------------------------------------------------------------- */

static int take_pixels(void *arg, struct batch *b, struct err *err)
{
    struct run *r = arg;
    for (unsigned i = 0; i < b->count; i++) {
        uint64_t row = 0;
        int rc = rows_find(&r->rows, b->ids[i], &row, err);
        if (rc < 0)
            return rc;
        for (uint32_t j = 0; j < PIXELS_DIM; j++)
            r->x[row * PIXELS_DIM + j] = (float)b->images[(size_t)i * PIXELS_DIM + j] / 127.5F - 1;
    }
    return 0;
}

static int pixels(struct run *r, struct err *err)
{
    const struct feed_options opt = {.side = PIXELS_SIDE, .unlabelled = true};
    int rc = room(r, PIXELS_DIM, 0, err);
    return rc < 0 ? rc : rows_each(&r->rows, r->e, &opt, take_pixels, r, err);
}

/* ---- latents ------------------------------------------------------------------- */

/* The places, at least one of `all`, that cell i of `to` covers. */
struct span {
    int from, to;
};
static struct span span_of(int i, int all, int to)
{
    return (struct span){i * all / to, ((i + 1) * all + to - 1) / to};
}

/* x (Ch,to,to) = averages over rectangles of the means in moments (2,Ch,h,w). */
static void shrink(float *x, const uint16_t *moments, int channels, int h, int w, int to)
{
    for (int c = 0; c < channels * to; c++) {
        const struct span rows = span_of(c % to, h, to);
        for (int col = 0; col < to; col++) {
            const struct span columns = span_of(col, w, to);
            double sum = 0;
            for (int r = rows.from; r < rows.to; r++)
                for (int k = columns.from; k < columns.to; k++)
                    sum += (double)bf16_to_f32(moments[(c / to * h + r) * w + k]);
            x[c * to + col] = (float)(sum / ((rows.to - rows.from) * (columns.to - columns.from)));
        }
    }
}

static int take_latents(void *arg, struct batch *b, struct err *err)
{
    struct run *r = arg;
    const struct encoders *enc = r->enc;
    const size_t values = encoders_moments(enc);
    int rc =
        b->moments ? 0 : encoders_images(r->enc, b->images, b->shapes, b->count, r->moments, err);
    const uint16_t *moments = b->moments ? b->moments : r->moments;
    for (unsigned i = 0; i < b->count && rc == 0; i++) {
        uint64_t row = 0;
        const struct image_shape shape = enc->shapes[batch_shape(b, i)];
        if ((rc = rows_find(&r->rows, b->ids[i], &row, err)) == 0)
            shrink(r->x + row * r->d, moments + i * values, enc->channels,
                   shape.height * enc->side / enc->pixels, shape.width * enc->side / enc->pixels,
                   r->side);
    }
    return rc;
}

static int latents(struct run *r, struct err *err)
{
    const struct feed_options opt = {.unlabelled = true};
    int rc = encoders_get(r->e, r->w, &r->enc, err);
    if (rc == 0 && encoders_moments(r->enc) == 0)
        rc = err_set(err, -ERR_CONFIG, "partition.features is latents, but the job has no VAE");
    if (rc < 0)
        return rc;
    engine_room(r->e, encoders_missing(r->enc, FROZEN_ENCODE));
    r->side = r->enc->side;
    while (r->side > LATENTS_SIDE && r->side % 2 == 0)
        r->side /= 2;
    r->moments = mem_try_array(rows_of_call(r->w), encoders_moments(r->enc) * sizeof *r->moments);
    if (!r->moments)
        return err_set(err, -ENOMEM, "no memory for the latents of a batch");
    rc = room(r, (uint32_t)(r->enc->channels * r->side * r->side), 0, err);
    return rc < 0 ? rc : rows_each(&r->rows, r->e, &opt, take_latents, r, err);
}

/* ---- n-grams ------------------------------------------------------------------- */

/* The features of one text: those of its prefix and of its chunks. */
static int text_grams(struct run *r, const int32_t *ids, uint32_t len, uint64_t row,
                      struct err *err)
{
    uint32_t prefix = len < PREFIX ? len : PREFIX;
    int rc = ngrams_tokens(r->tokenizer, ids, prefix, &r->bytes, r->x + row * r->d);
    for (uint32_t c = 0; rc == 0 && c < r->columns && c * r->chunk < len; c++) {
        uint32_t left = len - c * r->chunk;
        rc = ngrams_tokens(r->tokenizer, ids + (size_t)c * r->chunk,
                           left < r->chunk ? left : r->chunk, &r->bytes,
                           r->chunks + (row * r->columns + c) * r->d);
    }
    return rc < 0 ? err_set(err, rc, "the bytes of %u tokens: %s", len, err_text(rc)) : 0;
}

static int take_grams(void *arg, struct batch *b, struct err *err)
{
    struct run *r = arg;
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < b->count; i++) {
        uint64_t row = 0;
        if ((rc = rows_find(&r->rows, b->ids[i], &row, err)) == 0)
            rc = text_grams(r, b->tokens + (size_t)i * (b->seq + 1), b->lengths[i], row, err);
    }
    return rc;
}

static int grams(struct run *r, struct err *err)
{
    const struct feed_options opt = {0};
    int rc = room(r, NGRAMS_DIM, r->w->task->feature->chunk, err);
    if (rc == 0)
        rc = work_tokenizer(r->w, &r->tokenizer, err);
    return rc < 0 ? rc : rows_each(&r->rows, r->e, &opt, take_grams, r, err);
}

/* ---- states of the model ------------------------------------------------------- */

/* Images are evaluated at low noise, drawn by the sample's number, without a label. */
static int means(struct run *r, struct batch *b, struct err *err)
{
    const struct means m = {
        .lengths = b->lengths,
        .first = b->tokens ? PREFIX : 0,
        .chunk = (int)r->chunk,
        .n_chunks = (int)r->columns,
        .head = r->means,
        .chunks = r->chunk_means,
    };
    b->labels = NULL;
    if (r->w->task->n_encoders == 0) /* else keys are the pictures', which latents keep */
        b->keys = b->ids;
    b->t = LOW_NOISE;
    return means_of(r->net.net, b, &m, err);
}

static int take_states_of(struct run *r, struct batch *b, struct err *err)
{
    const size_t wide = (size_t)r->columns * r->d;
    int rc = means(r, b, err);
    for (unsigned i = 0; rc == 0 && i < b->count; i++) {
        uint64_t row = 0;
        if ((rc = rows_find(&r->rows, b->ids[i], &row, err)) < 0)
            break;
        memcpy(r->x + row * r->d, r->means + (size_t)i * r->d, r->d * sizeof(float));
        if (r->chunks)
            memcpy(r->chunks + row * wide, r->chunk_means + i * wide, wide * sizeof(float));
    }
    return rc;
}

/* Takes the states of a batch, for images one shape at a time. */
static int take_states(void *arg, struct batch *b, struct err *err)
{
    struct run *r = arg;
    if (!b->shapes)
        return take_states_of(r, b, err);
    const struct net *net = r->net.net;
    const struct batch_sizes sizes = net_batch_sizes(net_model(net), &net->opt);
    int rc = 0;
    for (unsigned i = 0, n; i < b->count && rc == 0; i += n) {
        struct batch part;
        n = batch_run(b, i, b->count);
        batch_slice(b, i, n, &sizes, &part);
        rc = take_states_of(r, &part, err);
    }
    return rc;
}

static int states(struct run *r, struct err *err)
{
    const uint32_t chunk = rows_are_texts(r->w) ? r->w->task->feature->chunk : 0;
    const size_t batch = rows_of_call(r->w);
    const struct feed_options opt = {.unlabelled = true};
    int rc = forward_open(r->e, r->w, (int)batch, &r->net, err);
    if (rc == 0)
        rc = room(r, (uint32_t)r->net.model->spec.dim, chunk, err);
    if (rc < 0)
        return rc;
    r->means = mem_try_array(batch * r->d, sizeof(float));
    r->chunk_means = r->columns ? mem_try_array(batch * r->columns * r->d, sizeof(float)) : NULL;
    if (!r->means || (r->columns && !r->chunk_means))
        return err_set(err, -ENOMEM, "no memory for states of %zu samples", batch);
    return rows_each(&r->rows, r->e, &opt, take_states, r, err);
}

/* ---- all ----------------------------------------------------------------------- */

/* Samples that cannot be read get others' features: being alike they would otherwise make a
 * partition of their own, on which nobody can train. */
static void place_bad(struct run *r)
{
    uint64_t good = 0;
    while (good < r->rows.n && !r->rows.taken[good])
        good++;
    for (uint64_t i = 0; i < r->rows.n && good < r->rows.n; i++) {
        good = r->rows.taken[i] ? i : good;
        if (good != i)
            memcpy(r->x + i * r->d, r->x + good * r->d, r->d * sizeof *r->x);
    }
}

static int column(struct run *r, struct err *err)
{
    const Skerry__V1__FeatureTask *t = r->w->task->feature;
    struct data_range *ranges = NULL;
    const struct data_order as_listed = {0};
    struct data d = {0};
    const char *name = r->w->spec.partition.column;
    int rc = work_ranges(r->w, t->ranges, t->n_ranges, &ranges, err);
    if (rc == 0)
        rc = data_open(&d, NULL, &as_listed, ranges, t->n_ranges, err);
    mem_free(ranges);
    if (rc == 0 && d.shards[0].dim == 0)
        rc = err_set(err, -ERR_CONFIG, "partition.column: the dataset has no column '%s'", name);
    if (rc == 0)
        rc = room(r, d.shards[0].dim, 0, err);
    for (uint64_t i = 0; rc == 0 && i < r->rows.n; i++) {
        struct data_place p = data_at(&d, i);
        const struct shard *shard = &d.shards[p.shard];
        const struct shard_sample *s = &shard->samples[p.index];
        float *x = r->x + i * r->d;
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
    data_close(&d);
    return rc;
}

static int compute(struct run *r, struct err *err)
{
    const struct job_spec *s = &r->w->spec;
    if (s->partition.method == JOB_METHOD_RANDOM && s->recipe.reshard.n == 0 &&
        s->partition.chunk == 0) /* chunks are not used */
        return room(r, 1, 0, err);
    switch (job_features(s)) {
    case JOB_FEATURES_PIXELS:
        return pixels(r, err);
    case JOB_FEATURES_LATENTS:
        return latents(r, err);
    case JOB_FEATURES_NGRAMS:
        return grams(r, err);
    case JOB_FEATURES_COLUMN:
        return column(r, err);
    default:
        return states(r, err);
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

static void release(struct run *r)
{
    rows_close(&r->rows);
    forward_close(&r->net);
    tokenizer_free(r->tokenizer);
    buf_release(&r->bytes);
    mem_free(r->x);
    mem_free(r->chunks);
    mem_free(r->means);
    mem_free(r->chunk_means);
    mem_free(r->moments);
}

static int run(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__FeatureTask *t = w->task->feature;
    struct run r = {.e = e, .w = w};
    struct work_output *o = NULL;
    buf_init(&r.bytes, NGRAM_BYTES_MAX);
    progress_activity(&w->progress, "computing features");
    int rc = rows_open(&r.rows, w, t->ranges, t->n_ranges, err);
    if (rc == 0)
        rc = compute(&r, err);
    if (rc == 0)
        place_bad(&r);
    if (rc == 0)
        rc = work_output_new(w, WORK_RESULT, "features", &o, err);
    if (rc == 0) {
        const struct features_write f = {.ids = r.rows.ids,
                                         .x = r.x,
                                         .chunks = r.chunks,
                                         .n = r.rows.n,
                                         .d = r.d,
                                         .columns = r.columns};
        rc = features_write(o->path, &f, o->sha256, &o->size, err);
    }
    w->result.samples = r.rows.n;
    release(&r);
    return rc;
}

const struct kind kind_feature = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_FEATURE,
    .name = "feature",
    .part = offsetof(Skerry__V1__Task, feature),
    .encoders = true,
    .check = check,
    .plan = plan,
    .run = run,
};
