#include "worker/net/dit.h"

#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/net/dit_impl.h"

/* What one block computes on its way.  In NET_FORWARD and NET_RECOMPUTE all blocks
 * share this memory. */
static void plan_scratch(struct dit *d, struct dit_block *b, uint64_t rows)
{
    const uint64_t e = dtype_bytes(d->dt), C = (uint64_t)d->C, M = (uint64_t)d->M;
    struct arena *a = &d->arena;
    const bool train = d->opt.mode != NET_FORWARD;

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
        if (d->opt.mode != NET_TRAIN)
            arena_reset(a, start);
        plan_scratch(d, &d->blocks[i], rows);
    }
    const uint64_t shared = arena_mark(a);
    for (int i = 0; i < d->m->spec.depth; i++) {
        if (d->opt.mode == NET_FORWARD)
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

    arena_add(a, &d->dout,
              e * (dit_is_router(d) ? B * (uint64_t)d->m->spec.classes : rows * (uint64_t)d->P));
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
    arena_add(a, &d->patches, B * (uint64_t)model_patches(&d->m->spec) * (uint64_t)d->P * e);
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
    if (!dit_is_router(d))
        arena_add(a, &d->out, rows * (uint64_t)d->P * sizeof(float));
    if (d->opt.mode != NET_FORWARD)
        plan_backward(d, B, rows);
}

/* Sizes and plan, no device memory yet.  -ENOMEM. */
static int init_sizes(struct dit *d, const struct model *m, const struct dit_options *opt,
                      enum dtype dt)
{
    d->m = m;
    d->opt = *opt;
    d->dt = dt;
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

uint64_t dit_bytes(const struct model *m, const struct dit_options *opt, enum dtype dt)
{
    struct dit d = {0};
    uint64_t bytes = init_sizes(&d, m, opt, dt) == 0 ? arena_bytes(&d.arena) : 0;
    mem_free(d.blocks);
    mem_free(d.arena.slots);
    return bytes;
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
    int rc = init_sizes(d, m, opt, net_dtype(dev, opt->precision));
    if (rc < 0)
        (void)err_set(err, rc, "no memory for a model of %d blocks", m->spec.depth);
    if (rc == 0)
        rc = weights_init(&d->w, dev, m, d->dt, opt->mode != NET_FORWARD, err);
    d->stream = d->w.stream;
    if (rc == 0)
        rc = arena_alloc(&d->arena, dev, err);
    if (rc == 0 && d->opt.mode == NET_FORWARD) {
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
    weights_release(&d->w);
    mem_free(d->blocks);
    mem_free(d);
}

int dit_sync(struct dit *d, struct err *err)
{
    return weights_sync(&d->w, err);
}

struct weights *dit_weights(struct dit *d)
{
    return &d->w;
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

struct stream *dit_stream(const struct dit *d)
{
    return d->stream;
}

void dit_hidden(const struct dit *d, struct net_hidden *ret)
{
    *ret = (struct net_hidden){.x = d->xf, .dt = DT_F32, .T = d->T, .C = d->C};
}
