/* ENCODE: a shard of images becomes a shard of their latents: the same samples in the same order,
 * with moments in place of pictures, of both sides if the job flips.  A picture that cannot be
 * read stays as a sample without moments, with the reason. */

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/data/moments.h"
#include "common/data/shard.h"
#include "worker/data/images.h"
#include "worker/engine/encoders.h"
#include "worker/engine/engine.h"
#include "worker/engine/feed.h"
#include "worker/kinds/kinds.h"
#include "worker/order/task_check.h"
#include "worker/order/work.h"

#define BATCH 32

struct run {
    struct work *w;
    struct encoders *enc;
    struct shard from;
    struct shard_writer *to;
    uint32_t values, sides, next; /* numbers of a square; sides; next sample to write */
    uint8_t *mirrored;            /* (BATCH,S,S,3) */
    uint16_t *moments;            /* (sides,BATCH,values) */
    uint16_t *sample;             /* (sides,values) */
    struct buf bytes;
};

static int latent_side(const struct run *r, int pixels)
{
    return (int)((int64_t)pixels * r->enc->side / r->enc->pixels);
}

/* Notes why a picture cannot be read, for later readers of the sample. */
static int say_why(struct run *r, const struct shard_sample *from)
{
    struct err why = {0};
    (void)image_decode(from->data, from->len, image_square(r->enc->pixels), NULL, r->mirrored,
                       &why);
    return buf_append_str(&r->bytes, why.msg);
}

/* Writes the next sample with moments of a shape; values NULL: its picture cannot be read. */
static int write_sample(struct run *r, const uint16_t *values, int shape, struct err *err)
{
    const struct shard_sample *from = &r->from.samples[r->next];
    struct shard_sample s = *from;
    const struct moments m = {.key = data_content_key(from->data, from->len),
                              .values = encoders_values(r->enc, shape),
                              .height = (uint16_t)latent_side(r, r->enc->shapes[shape].height),
                              .width = (uint16_t)latent_side(r, r->enc->shapes[shape].width),
                              .sides = values ? r->sides : 0};
    buf_clear(&r->bytes);
    int rc = moments_encode(&m, values, &r->bytes);
    if (rc == 0 && !values)
        rc = say_why(r, from);
    if (rc < 0)
        return err_set(err, rc, "packing the latents of '%s': %s", from->key, err_text(rc));
    (void)str_copy(s.ext, sizeof s.ext, "lat");
    s.data = r->bytes.data;
    s.len = r->bytes.len;
    r->next++;
    return shard_writer_add(r->to, &s, r->from.dim, err);
}

/* Writes the samples before number `end`, which are bad: the pipeline has left them out. */
static int write_bad(struct run *r, uint32_t end, struct err *err)
{
    int rc = 0;
    while (rc == 0 && r->next < end)
        rc = write_sample(r, NULL, 0, err);
    return rc;
}

static int encode(struct run *r, const struct batch *b, struct err *err)
{
    const size_t image = (size_t)r->enc->pixels * (size_t)r->enc->pixels * IMAGES_CHANNELS;
    int rc = encoders_images(r->enc, b->images, b->shapes, b->count, r->moments, err);
    if (rc < 0 || r->sides == 1)
        return rc;
    memcpy(r->mirrored, b->images, b->count * image);
    for (unsigned i = 0; i < b->count; i++)
        images_mirror(r->mirrored + i * image, r->enc->shapes[batch_shape(b, i)]);
    return encoders_images(r->enc, r->mirrored, b->shapes, b->count,
                           r->moments + (size_t)BATCH * r->values, err);
}

/* The index of sample i in its shard. */
static uint32_t index_of(const struct batch *b, unsigned i)
{
    return (uint32_t)(b->ids[i] & 0xffff);
}

/* A batch is sorted by shape, the shard is not: the batch's first sample in the shard's order, from
 * `next` on. */
static unsigned earliest(const struct batch *b, uint32_t next)
{
    unsigned best = b->count;
    for (unsigned i = 0; i < b->count; i++)
        if (index_of(b, i) >= next && (best == b->count || index_of(b, i) < index_of(b, best)))
            best = i;
    return best;
}

static int take(void *arg, struct batch *b, struct err *err)
{
    struct run *r = arg;
    if (!b->images)
        return err_set(err, -ERR_FORMAT, "task: encode.range is of latents already");
    int rc = encode(r, b, err);
    for (unsigned n = 0; n < b->count && rc == 0; n++) {
        const unsigned i = earliest(b, r->next);
        const uint32_t values = encoders_values(r->enc, batch_shape(b, i));
        for (uint32_t side = 0; side < r->sides; side++)
            memcpy(r->sample + (size_t)side * values,
                   r->moments + ((size_t)side * BATCH + i) * r->values, values * sizeof *r->sample);
        rc = write_bad(r, index_of(b, i), err);
        if (rc == 0)
            rc = write_sample(r, r->sample, batch_shape(b, i), err);
    }
    return rc;
}

static int open_run(struct run *r, struct engine *e, struct work_output **ret, struct err *err)
{
    char path[CACHE_PATH_MAX];
    const Skerry__V1__Range *range = r->w->task->encode->range;
    work_blob_path(r->w, range->shard->sha256.data, path);
    buf_init(&r->bytes, 64u << 20);
    int rc = encoders_get(e, r->w, &r->enc, err);
    if (rc == 0 && encoders_moments(r->enc) == 0)
        rc = err_set(err, -ERR_FORMAT, "task: encode without a VAE");
    engine_room(e, encoders_missing(r->enc, FROZEN_ENCODE));
    if (rc == 0)
        rc = shard_open(path, &r->from, err);
    if (rc == 0 && (range->start != 0 || range->count != r->from.n))
        rc = err_set(err, -ERR_FORMAT, "task: encode.range is not the whole shard of %zu samples",
                     r->from.n);
    if (rc < 0)
        return rc;
    r->values = encoders_moments(r->enc);
    r->sides = r->w->spec.data.flip ? 2 : 1;
    const size_t side = (size_t)r->enc->pixels;
    r->mirrored = mem_try_array(BATCH, side * side * IMAGES_CHANNELS);
    r->moments = mem_try_array((size_t)r->sides * BATCH, r->values * sizeof *r->moments);
    r->sample = mem_try_array(r->sides, r->values * sizeof *r->sample);
    if (!r->mirrored || !r->moments || !r->sample)
        return err_set(err, -ENOMEM, "no memory for batches of %d pictures of %zu x %zu", BATCH,
                       side, side);
    rc = work_output_new(r->w, WORK_SHARD, "latents", ret, err);
    if (rc == 0)
        r->to = shard_writer_new((*ret)->path);
    return rc;
}

static int finish(struct run *r, struct work_output *o, struct err *err)
{
    struct shard_info info;
    int rc = write_bad(r, (uint32_t)r->from.n, err);
    if (rc == 0)
        rc = shard_writer_finish(r->to, &info, err);
    if (rc < 0)
        return rc;
    memcpy(o->sha256, info.sha256, 32);
    o->size = info.bytes;
    o->samples = info.samples;
    return 0;
}

static int run(struct engine *e, struct work *w, struct err *err)
{
    struct run r = {.w = w};
    struct work_output *o = NULL;
    Skerry__V1__Range *range = w->task->encode->range;
    const struct feed_options opt = {.batch = BATCH, .unlabelled = true, .may_be_empty = true};
    int rc = open_run(&r, e, &o, err);
    progress_activity(&w->progress, "encoding pictures");
    if (rc == 0)
        rc = feed_each(e, w, &range, 1, &opt, take, &r, &w->result.samples, err);
    if (rc == 0)
        rc = finish(&r, o, err);
    shard_writer_free(r.to);
    shard_close(&r.from);
    buf_release(&r.bytes);
    mem_free(r.mirrored);
    mem_free(r.moments);
    mem_free(r.sample);
    return rc;
}

static int check(const Skerry__V1__Task *task, struct err *err)
{
    Skerry__V1__Range *range = task->encode->range;
    if (!range)
        return err_set(err, -ERR_FORMAT, "task: encode.range is missing");
    return task_check_ranges(&range, 1, "encode.range", err);
}

static int plan(struct engine *e, struct work *w, struct err *err)
{
    Skerry__V1__Range *range = w->task->encode->range;
    return work_need_ranges(w, &range, 1, err);
}

const struct kind kind_encode = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_ENCODE,
    .name = "encode",
    .part = offsetof(Skerry__V1__Task, encode),
    .encoders = true,
    .check = check,
    .plan = plan,
    .run = run,
};
