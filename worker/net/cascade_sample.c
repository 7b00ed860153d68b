#include "worker/net/cascade_sample.h"

#include "common/base/rng.h"
#include "worker/net/cascade.h"
#include "worker/net/dit_rows.h"
#include "worker/net/resize.h"

/* The upscaler as a source of velocities, given the small images. */
struct enlarger {
    const struct model_upscaler *up;
    int side, factor; /* side of the small images; its own side over that */
    struct dit_rows rows;
    const struct weights *w;
    const uint8_t *low; /* (count,s,s,3) */
    uint64_t seed;
    struct arena arena;
    float *d_told, *d_eps; /* (rows,n) */
    uint8_t *d_large;      /* (rows,S,S,3) */
    uint64_t *d_streams;   /* (rows) */
    uint8_t *large;        /* host */
    uint64_t *streams;
    struct mem_arrays memory; /* the two */
};

static int enlarger_open(struct enlarger *e, struct net *net, struct err *err)
{
    const struct model_spec *s = &net_model(net)->spec;
    struct dit *dit = cascade_chain(net, 1);
    const size_t rows = (size_t)dit_batch(dit);
    e->up = &s->upscaler;
    e->side = s->image;
    e->factor = s->upscaler.image / s->image;
    e->w = dit_weights(dit);
    int rc = dit_rows_open(&e->rows, dit, err);
    if (rc < 0)
        return rc;
    const size_t n = (size_t)e->rows.in;
    arena_add(&e->arena, &e->d_told, rows * n * sizeof *e->d_told);
    arena_add(&e->arena, &e->d_eps, rows * n * sizeof *e->d_eps);
    arena_add(&e->arena, &e->d_large, rows * n);
    arena_add(&e->arena, &e->d_streams, rows * sizeof *e->d_streams);
    e->large = mem_arrays_add(&e->memory, rows * n, 1);
    e->streams = mem_arrays_add(&e->memory, rows, sizeof *e->streams);
    if (e->memory.failed)
        return err_set(err, -ENOMEM, "no memory for %zu small images", rows);
    return arena_alloc(&e->arena, e->w->dev, err);
}

static void enlarger_close(struct enlarger *e)
{
    arena_free(&e->arena, e->w->dev);
    dit_rows_close(&e->rows);
    mem_arrays_free(&e->memory);
}

/* Makes the upscaler's input for samples [call->first, call->first + B), once for each copy. */
static int tell(struct enlarger *e, const struct sample_call *call, struct err *err)
{
    const struct weights *w = e->w;
    const size_t n = (size_t)e->rows.in, small = n / (size_t)(e->factor * e->factor);
    const int rows = call->copies * call->B;
    for (int i = 0; i < rows; i++) {
        const size_t sample = (size_t)(call->first + i % call->B);
        resize_up(e->low + sample * small, e->side, e->factor, e->large + (size_t)i * n);
        e->streams[i] = rng_mix(CASCADE_STREAM_TOLD, sample);
    }
    int rc =
        w->ops->copy(w->dev, e->d_large, e->large, (size_t)rows * n, COPY_TO_DEVICE, w->stream);
    if (rc == 0)
        rc = w->ops->copy(w->dev, e->d_streams, e->streams, (size_t)rows * sizeof *e->streams,
                          COPY_TO_DEVICE, w->stream);
    if (rc < 0)
        return err_set(err, rc, "small images cannot be copied to %s: %s", w->dev->name,
                       err_text(rc));
    const struct cascade_telling t = {.d_large = e->d_large,
                                      .d_streams = e->d_streams,
                                      .d_eps = e->d_eps,
                                      .d_told = e->d_told,
                                      .seed = e->seed,
                                      .noise = e->up->noise};
    rc = cascade_tell(w->dev, w->stream, &w->m->spec, &t, rows, err);
    return rc < 0 ? rc : w->ops->sync(w->dev, w->stream, err);
}

static int enlarge(void *arg, const struct sample_call *call, struct err *err)
{
    struct enlarger *e = arg;
    int rc = call->begin ? tell(e, call, err) : 0;
    const struct dit_rows_in in = {call->x, e->d_told, call->t, call->labels};
    return rc < 0 ? rc : dit_rows_run(&e->rows, call->v, &in, call->copies * call->B, err);
}

/* Progress of both chains, which run one after the other. */
struct both {
    const struct sample_options *opt;
    const struct net_captions *captions;
    bool second;
};

static int progress(void *arg, unsigned done, unsigned total)
{
    const struct both *b = arg;
    return b->opt->progress(b->opt->arg, done + (b->second ? total : 0), 2 * total);
}

static int sample_base(struct net *net, const struct sample_options *opt, const int32_t *labels,
                       int count, uint8_t *low, struct err *err)
{
    const struct both *both = opt->arg;
    struct dit_rows rows = {0};
    int rc = dit_rows_open(&rows, cascade_chain(net, 0), err);
    if (rc == 0) {
        if (both->captions)
            dit_rows_captions(&rows, both->captions);
        const struct sample_source src = sample_of_dit(&rows);
        rc = sample_run(&src, opt, labels, count, low, err);
    }
    dit_rows_close(&rows);
    return rc;
}

static int sample_upscaler(struct net *net, const struct sample_options *opt, const int32_t *labels,
                           int count, const uint8_t *low, uint8_t *images, struct err *err)
{
    const struct both *both = opt->arg;
    struct sample_options o = *opt;
    struct enlarger e = {.low = low, .seed = rng_mix(opt->seed, CASCADE_STREAM_UPSCALER)};
    o.seed = e.seed;
    int rc = enlarger_open(&e, net, err);
    if (rc == 0) {
        if (both->captions)
            dit_rows_captions(&e.rows, both->captions);
        struct sample_source src = sample_of_dit(&e.rows);
        src.estimates = false;
        src.arg = &e;
        src.velocity = enlarge;
        rc = sample_run(&src, &o, labels, count, images, err);
    }
    enlarger_close(&e);
    return rc;
}

int cascade_sample(struct net *net, const struct sample_options *opt,
                   const struct net_captions *captions, const int32_t *labels, int count,
                   uint8_t *images, uint8_t *low, struct err *err)
{
    const size_t bytes = (size_t)model_image_values(&net_model(net)->spec);
    struct both both = {.opt = opt, .captions = captions};
    struct sample_options o = *opt;
    uint8_t *own = low ? NULL : mem_try_array((size_t)count, bytes);
    if (!low && !own)
        return err_set(err, -ENOMEM, "no memory for %d small images", count);
    low = low ? low : own;
    o.progress = opt->progress ? progress : NULL;
    o.arg = &both;
    int rc = sample_base(net, &o, labels, count, low, err);
    both.second = true;
    if (rc == 0)
        rc = sample_upscaler(net, &o, labels, count, low, images, err);
    mem_free(own);
    return rc;
}
