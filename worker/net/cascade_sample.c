#include "worker/net/cascade_sample.h"

#include "common/base/rng.h"
#include "worker/net/cascade.h"
#include "worker/net/dit_rows.h"
#include "worker/net/told.h"

/* The upscaler as a source of velocities, given the small images. */
struct enlarger {
    const struct sample_source *up;
    struct told told;
    const uint8_t *low; /* (count,s,s,3) */
    uint64_t seed;
};

/* Makes the upscaler's input for samples [call->first, call->first + B), once for each copy. */
static int tell(struct enlarger *e, const struct sample_call *call, struct err *err)
{
    const struct told_options *o = &e->told.opt;
    const size_t n = e->told.n, small = n / (size_t)(o->factor * o->factor), B = (size_t)call->B;
    for (size_t i = 0; i < B; i++)
        e->told.streams[i] = rng_mix(CASCADE_STREAM_TOLD, (uint64_t)call->first + i);
    int rc = told_run(&e->told, e->low + (size_t)call->first * small, e->seed, call->B, err);
    for (int c = 1; c < call->copies && rc == 0; c++) {
        rc = o->dev->ops->copy(o->dev, e->told.d_x + (size_t)c * B * n, e->told.d_x,
                               B * n * sizeof *e->told.d_x, COPY_DEVICE, o->stream);
        if (rc < 0)
            (void)err_set(err, rc, "small images cannot be copied on %s: %s", o->dev->name,
                          err_text(rc));
    }
    return rc;
}

static int enlarge(void *arg, const struct sample_call *call, struct err *err)
{
    struct enlarger *e = arg;
    int rc = call->begin ? tell(e, call, err) : 0;
    struct sample_call told = *call;
    told.estimate = e->told.d_x;
    return rc < 0 ? rc : e->up->velocity(e->up->arg, &told, err);
}

/* Progress of both chains, which run one after the other. */
struct both {
    const struct sample_options *opt;
    bool second;
};

static int progress(void *arg, unsigned done, unsigned total)
{
    const struct both *b = arg;
    return b->opt->progress(b->opt->arg, done + (b->second ? total : 0), 2 * total);
}

static int sample_upscaler(const struct cascade_source *src, const struct sample_options *opt,
                           const int32_t *labels, int count, const uint8_t *low, uint8_t *images,
                           struct err *err)
{
    const struct sample_source *up = &src->chains[1];
    const struct told_options told = {.dev = up->dev,
                                      .stream = up->stream,
                                      .side = src->chains[0].image,
                                      .factor = up->image / src->chains[0].image,
                                      .rows = up->rows,
                                      .noise = src->noise};
    struct sample_options o = *opt;
    struct sample_source telling = *up;
    struct enlarger e = {.up = up, .low = low, .seed = rng_mix(opt->seed, CASCADE_STREAM_UPSCALER)};
    o.seed = e.seed;
    telling.arg = &e;
    telling.velocity = enlarge;
    int rc = told_open(&e.told, &told, err);
    if (rc == 0)
        rc = sample_run(&telling, &o, labels, count, images, err);
    told_close(&e.told);
    return rc;
}

int cascade_sample_from(const struct cascade_source *src, const struct sample_options *opt,
                        const int32_t *labels, int count, uint8_t *images, uint8_t *low,
                        struct err *err)
{
    struct both both = {.opt = opt};
    struct sample_options o = *opt;
    o.progress = opt->progress ? progress : NULL;
    o.arg = &both;
    int rc = sample_run(&src->chains[0], &o, labels, count, low, err);
    both.second = true;
    return rc < 0 ? rc : sample_upscaler(src, &o, labels, count, low, images, err);
}

int cascade_sample(struct net *net, const struct sample_options *opt,
                   const struct net_captions *captions, const int32_t *labels, int count,
                   uint8_t *images, uint8_t *low, struct err *err)
{
    const struct model_spec *spec = &net_model(net)->spec;
    struct cascade_source src = {.noise = spec->upscaler.noise};
    struct dit_rows rows[MODEL_CHAINS] = {{0}};
    uint8_t *own = low ? NULL : mem_try_array((size_t)count, (size_t)model_image_values(spec));
    int rc = low || own ? 0 : err_set(err, -ENOMEM, "no memory for %d small images", count);
    for (int i = 0; i < MODEL_CHAINS && rc == 0; i++) {
        rc = dit_rows_open(&rows[i], cascade_chain(net, i), err);
        if (rc == 0 && captions)
            dit_rows_captions(&rows[i], captions);
        if (rc == 0)
            src.chains[i] = sample_of_dit(&rows[i]);
    }
    src.chains[1].estimates = false;
    if (rc == 0)
        rc = cascade_sample_from(&src, opt, labels, count, images, low ? low : own, err);
    for (int i = 0; i < MODEL_CHAINS; i++)
        dit_rows_close(&rows[i]);
    mem_free(own);
    return rc;
}
