#include "worker/engine/feed.h"

#include "common/job/family.h"
#include "worker/data/images.h"
#include "worker/data/text.h"
#include "worker/engine/encoders.h"
#include "worker/engine/engine.h"
#include "worker/train/eval.h"

static int encode(void *arg, const uint8_t *images, const uint8_t *shapes, unsigned count,
                  uint16_t *moments, struct err *err)
{
    return encoders_images(arg, images, shapes, count, moments, err);
}

static int open_images(struct engine *e, struct work *w, const struct data_range *ranges, size_t n,
                       const struct feed_options *o, const struct data_order *order,
                       struct data **ret, struct err *err)
{
    struct encoders *enc = NULL;
    int rc = encoders_get(e, w, &enc, err);
    if (rc < 0)
        return rc;
    const bool captions = enc && enc->text && !o->unlabelled;
    const bool keeps = enc && !o->side && (o->keep || w->spec.encoders.run == JOB_ENCODE_WORKER);
    struct image_shape shapes[IMAGES_SHAPES_MAX];
    const unsigned n_shapes = encoders_shapes(&w->spec, shapes);
    const struct images_options opt = {
        .image_size = o->side ? o->side : (unsigned)w->spec.data.image_size,
        .shapes = shapes,
        .n_shapes = o->side ? 0 : n_shapes,
        .batch = o->batch,
        .threads = e->opt.decode_threads,
        .classes = o->unlabelled ? 0 : (unsigned)w->task->n_classes,
        .flip = o->train && w->spec.data.flip,
        .random_crop = o->train && w->spec.data.crop == JOB_CROP_RANDOM,
        .order = *order,
        .cache = o->side ? NULL : e->images,
        .moments = encoders_moments(enc),
        .latent_side = enc ? (unsigned)enc->side : 0,
        .latents = keeps ? enc->kept : NULL,
        .encode = encode,
        .encode_arg = enc,
        .caption = captions ? encoders_caption : NULL,
        .caption_arg = enc,
        .caption_tokens = captions ? (unsigned)enc->caption_tokens : 0,
    };
    return images_open(&opt, ranges, n, ret, err);
}

static int open_texts(const struct work *w, const struct data_range *ranges, size_t n,
                      const struct feed_options *o, const struct data_order *order,
                      struct data **ret, struct err *err)
{
    const struct text_options opt = {
        .seq = (unsigned)w->spec.model.context,
        .rows = o->batch,
        .vocab = w->task->vocab,
        .skip = o->skip,
        .packed = !o->pieces,
        .all_rows = o->all_rows,
        .order = *order,
    };
    return text_open(&opt, ranges, n, ret, err);
}

int feed_open(struct engine *e, struct work *w, Skerry__V1__Range *const *ranges, size_t n_ranges,
              const struct feed_options *opt, struct data **ret, struct err *err)
{
    const struct data_order order = {
        .shuffle = opt->train,
        .repeat = opt->repeat,
        .may_be_empty = opt->may_be_empty,
        .seed = opt->seed,
        .window = opt->window,
    };
    struct data_range *local = NULL;
    int rc = work_ranges(w, ranges, n_ranges, &local, err);
    if (rc < 0)
        return rc;
    rc = job_is_text(&w->spec) ? open_texts(w, local, n_ranges, opt, &order, ret, err)
                               : open_images(e, w, local, n_ranges, opt, &order, ret, err);
    mem_free(local);
    return rc;
}

static int take_all(struct data *d, struct work *w, uint64_t limit, feed_take_fn take, void *arg,
                    uint64_t *ret_samples, struct err *err)
{
    const uint64_t seed = eval_seed(w->spec.seed);
    for (uint64_t done = 0; done < limit; *ret_samples = done) {
        struct batch b;
        progress_units(&w->progress, (uint32_t)done, (uint32_t)limit);
        int rc = work_stopped(w, err) ? -ERR_CANCELLED : data_next(d, &b, err);
        if (rc < 0 || b.count == 0)
            return rc;
        if (!b.tokens && b.count > limit - done)
            b.samples = b.count = (unsigned)(limit - done);
        b.seed = seed;
        if ((rc = take(arg, &b, err)) < 0)
            return rc;
        done += b.samples;
    }
    progress_units(&w->progress, (uint32_t)limit, (uint32_t)limit);
    return 0;
}

int feed_each(struct engine *e, struct work *w, Skerry__V1__Range *const *ranges, size_t n_ranges,
              const struct feed_options *opt, feed_take_fn take, void *arg, uint64_t *ret_samples,
              struct err *err)
{
    struct data *d = NULL;
    int rc = feed_open(e, w, ranges, n_ranges, opt, &d, err);
    if (rc < 0)
        return rc;
    const uint64_t total = data_total(d);
    *ret_samples = 0;
    rc = take_all(d, w, opt->most && opt->most < total ? opt->most : total, take, arg, ret_samples,
                  err);
    if (opt->tell_bad)
        feed_take_bad(d, w);
    data_free(d);
    return rc;
}

void feed_take_bad(const struct data *d, struct work *w)
{
    const struct data_bad *list;
    struct work_result *r = &w->result;
    r->bad_count = data_bad(d, &list, &r->n_bad);
    memcpy(r->bad, list, r->n_bad * sizeof *list);
}
