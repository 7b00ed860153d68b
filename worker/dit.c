#include "worker/dit.h"

#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/dit_impl.h"

static bool wants_bf16(const struct device *dev, enum dit_precision p)
{
    return p == DIT_BF16 || (p == DIT_AUTO && dev->fast_bf16);
}

/* What one block computes on its way.  In DIT_FORWARD and DIT_RECOMPUTE all blocks
 * share this memory. */
static void plan_scratch(struct dit *d, struct dit_block *b, uint64_t rows)
{
    const uint64_t e = dtype_bytes(d->dt), C = (uint64_t)d->C, M = (uint64_t)d->M;
    struct arena *a = &d->arena;
    const bool train = d->opt.mode != DIT_FORWARD;

    arena_add(a, &b->stats1, rows * 2 * sizeof(float));
    arena_add(a, &b->h1, rows * C * e);
    arena_add(a, &b->qkv, rows * 3 * C * e);
    arena_add(a, &b->o, rows * C * e);
    if (train)
        arena_add(a, &b->lse, rows * (uint64_t)d->m->spec.heads * sizeof(float));
    arena_add(a, &b->y1, rows * C * e);
    if (train) /* forward only: the residual stream is updated in place */
        arena_add(a, &b->x2, rows * C * sizeof(float));
    arena_add(a, &b->stats2, rows * 2 * sizeof(float));
    arena_add(a, &b->h2, rows * C * e);
    if (train)
        arena_add(a, &b->pre, rows * M * e);
    arena_add(a, &b->act, rows * M * e);
}

static void plan_blocks(struct dit *d, uint64_t rows)
{
    const uint64_t e = dtype_bytes(d->dt), C = (uint64_t)d->C;
    struct arena *a = &d->arena;
    const uint64_t start = arena_mark(a);

    /* Shared scratch first, laid over itself for each block. */
    for (int i = 0; i < d->m->spec.depth; i++) {
        if (d->opt.mode != DIT_TRAIN)
            arena_reset(a, start);
        plan_scratch(d, &d->blocks[i], rows);
    }
    const uint64_t shared = arena_mark(a);
    for (int i = 0; i < d->m->spec.depth; i++) {
        if (d->opt.mode == DIT_FORWARD)
            arena_reset(a, shared);
        arena_add(a, &d->blocks[i].x1, rows * C * sizeof(float));
        arena_add(a, &d->blocks[i].y2, rows * C * e);
    }
}

static void plan_backward(struct dit *d, uint64_t B, uint64_t rows)
{
    const uint64_t e = dtype_bytes(d->dt), C = (uint64_t)d->C, M = (uint64_t)d->M;
    const uint64_t wide = M > 3 * C ? M : 3 * C, ld = (uint64_t)d->mod_ld;
    struct arena *a = &d->arena;

    arena_add(a, &d->dout, rows * (uint64_t)d->P * e);
    arena_add(a, &d->dx, rows * C * sizeof(float));
    arena_add(a, &d->dh, rows * C * e);
    arena_add(a, &d->dy, rows * C * e);
    arena_add(a, &d->dwide, rows * wide * e);
    arena_add(a, &d->dmod, B * ld * sizeof(float));
    arena_add(a, &d->dscond, B * C * sizeof(float));
    arena_add(a, &d->dcond, B * C * sizeof(float));
    if (d->dt == DT_BF16) {
        arena_add(a, &d->dx16, rows * C * e);
        arena_add(a, &d->dmod16, B * ld * e);
        arena_add(a, &d->dcond16, B * C * e);
    }
}

static void plan(struct dit *d)
{
    const uint64_t B = (uint64_t)d->opt.batch, C = (uint64_t)d->C, e = dtype_bytes(d->dt);
    const uint64_t rows = B * (uint64_t)d->T;
    struct arena *a = &d->arena;

    arena_add(a, &d->pos, (uint64_t)d->T * C * sizeof(float));
    arena_add(a, &d->patches, rows * (uint64_t)d->P * e);
    arena_add(a, &d->t1000, B * sizeof(float));
    arena_add(a, &d->freq, B * MODEL_FREQS * e);
    arena_add(a, &d->pre0, B * C * sizeof(float));
    arena_add(a, &d->act0, B * C * e);
    arena_add(a, &d->cond, B * C * sizeof(float));
    arena_add(a, &d->scond, B * C * e);
    arena_add(a, &d->mod, B * (uint64_t)d->mod_ld * sizeof(float));
    plan_blocks(d, rows);
    arena_add(a, &d->xf, rows * C * sizeof(float));
    arena_add(a, &d->stats_f, rows * 2 * sizeof(float));
    arena_add(a, &d->hf, rows * C * e);
    arena_add(a, &d->out, rows * (uint64_t)d->P * sizeof(float));
    if (d->opt.mode != DIT_FORWARD)
        plan_backward(d, B, rows);
}

/* Sizes and plan, no device memory yet.  -ENOMEM. */
static int init_sizes(struct dit *d, const struct model *m, const struct dit_options *opt,
                      bool use_bf16)
{
    d->m = m;
    d->opt = *opt;
    d->dt = use_bf16 ? DT_BF16 : DT_F32;
    d->T = model_tokens(&m->spec);
    d->C = m->spec.dim;
    d->M = m->spec.mlp;
    d->P = model_patch_values(&m->spec);
    d->mod_ld = (int64_t)d->C * (6 * m->spec.depth + 2);
    d->blocks = mem_try_array((size_t)m->spec.depth, sizeof *d->blocks);
    if (!d->blocks)
        return -ENOMEM;
    plan(d);
    return 0;
}

void dit_memory(const struct model *m, const struct dit_options *opt, bool use_bf16,
                struct dit_memory *ret)
{
    struct dit d = {0};
    *ret = (struct dit_memory){
        .weights = m->flat * (use_bf16 ? 6 : 4),
        .gradients = opt->mode == DIT_FORWARD ? 0 : m->flat * 4,
    };
    if (init_sizes(&d, m, opt, use_bf16) == 0)
        ret->activations = arena_bytes(&d.arena);
    mem_free(d.blocks);
    mem_free(d.arena.slots);
}

/* A flat vector on the device; *ret stays NULL on failure. */
static int alloc_flat(struct dit *d, size_t element, void **ret)
{
    return d->ops->alloc(d->dev, d->m->flat * element, ret, NULL);
}

static int alloc_all(struct dit *d, struct err *err)
{
    void *w = NULL, *w16 = NULL, *g = NULL;
    int rc = d->ops->stream_new(d->dev, &d->stream, err);
    if (rc < 0)
        return rc;
    rc = alloc_flat(d, sizeof *d->w, &w);
    if (rc == 0 && d->dt == DT_BF16)
        rc = alloc_flat(d, sizeof *d->w16, &w16);
    if (rc == 0 && d->opt.mode != DIT_FORWARD)
        rc = alloc_flat(d, sizeof *d->g, &g);
    d->w = w;
    d->w16 = w16;
    d->g = g;
    if (rc < 0)
        return err_set(err, rc, "no memory on %s for a model of %.1f M parameters", d->dev->name,
                       (double)d->m->params / 1e6);
    return arena_alloc(&d->arena, d->dev, err);
}

static int fill_constants(struct dit *d, struct err *err)
{
    size_t n = (size_t)d->T * (size_t)d->C;
    float *pos = mem_try_array(n, sizeof *pos);
    if (!pos)
        return err_set(err, -ENOMEM, "no memory for the positions");
    model_positions(&d->m->spec, pos);
    dit_op(d, d->ops->copy(d->dev, d->pos, pos, n * sizeof *pos, COPY_TO_DEVICE, d->stream),
           "copying the positions");
    /* What lies between the gradients of two tensors is never written again. */
    if (d->g)
        dit_op(d, d->ops->zero(d->dev, d->g, d->m->flat * sizeof *d->g, d->stream), "zero");
    int rc = dit_sync(d, err);
    mem_free(pos);
    return rc;
}

int dit_new(struct device *dev, const struct model *m, const struct dit_options *opt,
            struct dit **ret, struct err *err)
{
    if (opt->batch < 1)
        return err_set(err, -EINVAL, "a batch of %d samples", opt->batch);
    struct dit *d = mem_try_zero(sizeof *d);
    if (!d)
        return err_set(err, -ENOMEM, "no memory for a model");
    d->dev = dev;
    d->ops = dev->ops;
    int rc = init_sizes(d, m, opt, wants_bf16(dev, opt->precision));
    if (rc < 0)
        (void)err_set(err, rc, "no memory for a model of %d blocks", m->spec.depth);
    if (rc == 0)
        rc = alloc_all(d, err);
    if (rc == 0 && d->opt.mode == DIT_FORWARD) {
        for (int i = 0; i < m->spec.depth; i++)
            d->blocks[i].x2 = d->blocks[i].x1;
    }
    if (rc == 0)
        rc = fill_constants(d, err);
    if (rc < 0) {
        dit_free(d);
        return rc;
    }
    *ret = d;
    return 0;
}

void dit_free(struct dit *d)
{
    if (!d)
        return;
    arena_free(&d->arena, d->dev);
    d->ops->free(d->dev, d->g);
    d->ops->free(d->dev, d->w16);
    d->ops->free(d->dev, d->w);
    if (d->stream)
        d->ops->stream_free(d->dev, d->stream);
    mem_free(d->blocks);
    mem_free(d);
}

int dit_check(struct dit *d, struct err *err)
{
    int rc = d->rc;
    d->rc = 0;
    if (rc < 0)
        return err_set(err, rc, "%s failed on %s: %s", d->failed, d->dev->name, err_text(rc));
    return 0;
}

int dit_sync(struct dit *d, struct err *err)
{
    int rc = dit_check(d, err);
    int sync = d->ops->sync(d->dev, d->stream, rc < 0 ? NULL : err);
    return rc < 0 ? rc : sync;
}

int dit_set(struct dit *d, const float *flat, struct err *err)
{
    dit_op(d,
           d->ops->copy(d->dev, d->w, flat, d->m->flat * sizeof *flat, COPY_TO_DEVICE, d->stream),
           "copying weights");
    return dit_weights_changed(d, err);
}

int dit_get(struct dit *d, float *flat, struct err *err)
{
    dit_op(d,
           d->ops->copy(d->dev, flat, d->w, d->m->flat * sizeof *flat, COPY_FROM_DEVICE, d->stream),
           "copying weights");
    return dit_sync(d, err);
}

int dit_weights_changed(struct dit *d, struct err *err)
{
    if (d->w16)
        dit_op(d,
               d->ops->cast(d->dev, d->w16, DT_BF16, d->w, DT_F32, (int64_t)d->m->flat, d->stream),
               "casting weights");
    return dit_sync(d, err);
}

const struct model *dit_model(const struct dit *d)
{
    return d->m;
}

struct device *dit_device(const struct dit *d)
{
    return d->dev;
}

int dit_batch(const struct dit *d)
{
    return d->opt.batch;
}

bool dit_is_bf16(const struct dit *d)
{
    return d->dt == DT_BF16;
}

struct stream *dit_stream(const struct dit *d)
{
    return d->stream;
}

float *dit_weights(struct dit *d)
{
    return d->w;
}

bf16 *dit_weights_bf16(struct dit *d)
{
    return d->w16;
}

float *dit_gradients(struct dit *d)
{
    return d->g;
}
