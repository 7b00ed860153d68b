#include "worker/kinds/feed.h"

#include <string.h>

#include "common/job/family.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/data/data.h"
#include "worker/kinds/engine.h"
#include "worker/data/text.h"
#include "worker/train/eval.h"

struct feed {
    struct data *images; /* one of the two */
    struct text *texts;
};

static int open_images(struct feed *f, struct engine *e, const struct work *w,
                       const struct data_range *ranges, size_t n, const struct feed_options *o,
                       struct err *err)
{
    const struct data_options opt = {
        .image_size = o->side ? o->side : (unsigned)w->spec.data.image_size,
        .batch = o->batch,
        .threads = e->opt.decode_threads,
        .classes = o->unlabelled ? 0 : (unsigned)w->task->n_classes,
        .flip = o->train && w->spec.data.flip,
        .shuffle = o->train,
        .repeat = o->repeat,
        .seed = o->seed,
        .window = o->window,
        .cache = o->side ? NULL : e->images,
    };
    return data_open(&opt, ranges, n, &f->images, err);
}

static int open_texts(struct feed *f, const struct work *w, const struct data_range *ranges,
                      size_t n, const struct feed_options *o, struct err *err)
{
    const struct text_options opt = {
        .seq = (unsigned)w->spec.model.context,
        .rows = o->batch,
        .vocab = w->task->vocab,
        .skip = o->skip,
        .packed = !o->pieces,
        .shuffle = o->train,
        .repeat = o->repeat,
        .seed = o->seed,
        .window = o->window,
    };
    return text_open(&opt, ranges, n, &f->texts, err);
}

int feed_open(struct engine *e, const struct work *w, Skerry__V1__Range *const *ranges,
              size_t n_ranges, const struct feed_options *opt, struct feed **ret, struct err *err)
{
    struct data_range *local = NULL;
    int rc = work_ranges(w, ranges, n_ranges, &local, err);
    if (rc < 0)
        return rc;
    struct feed *f = mem_alloc(sizeof *f);
    if (job_is_text(&w->spec))
        rc = open_texts(f, w, local, n_ranges, opt, err);
    else
        rc = open_images(f, e, w, local, n_ranges, opt, err);
    mem_free(local);
    if (rc < 0) {
        feed_free(f);
        return rc;
    }
    *ret = f;
    return 0;
}

void feed_free(struct feed *f)
{
    if (!f)
        return;
    data_free(f->images);
    text_free(f->texts);
    mem_free(f);
}

int feed_next(struct feed *f, struct batch *ret, struct err *err)
{
    return f->texts ? text_next(f->texts, 0, ret, err) : data_next(f->images, ret, err);
}

static int take_all(struct feed *f, struct work *w, uint64_t limit, feed_take_fn take, void *arg,
                    uint64_t *ret_samples, struct err *err)
{
    const uint64_t seed = eval_seed(w->spec.seed);
    for (uint64_t done = 0; done < limit; *ret_samples = done) {
        struct batch b;
        progress_units(&w->progress, (uint32_t)done, (uint32_t)limit);
        int rc = work_stopped(w, err) ? -ERR_CANCELLED : feed_next(f, &b, err);
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
    struct feed *f = NULL;
    int rc = feed_open(e, w, ranges, n_ranges, opt, &f, err);
    if (rc < 0)
        return rc;
    const uint64_t total = feed_total(f);
    *ret_samples = 0;
    rc = take_all(f, w, opt->most && opt->most < total ? opt->most : total, take, arg, ret_samples,
                  err);
    if (opt->tell_bad)
        feed_take_bad(f, w);
    feed_free(f);
    return rc;
}

int feed_seek(struct feed *f, uint64_t position, struct err *err)
{
    return f->texts ? text_seek(f->texts, position, err) : data_seek(f->images, position, err);
}

uint64_t feed_position(const struct feed *f)
{
    return f->texts ? text_position(f->texts) : data_position(f->images);
}

uint64_t feed_total(const struct feed *f)
{
    return f->texts ? text_total(f->texts) : data_total(f->images);
}

void feed_take_bad(const struct feed *f, struct work *w)
{
    const struct data_bad *list;
    struct work_result *r = &w->result;
    r->bad_count =
        f->texts ? text_bad(f->texts, &list, &r->n_bad) : data_bad(f->images, &list, &r->n_bad);
    memcpy(r->bad, list, r->n_bad * sizeof *list);
}
