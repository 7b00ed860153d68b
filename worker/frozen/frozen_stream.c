/* Where weights lie on the device.  Of a network that is streamed, layer i has slot i modulo
 * FROZEN_SLOTS, so its pointers never change. */
#include "worker/frozen/frozen_impl.h"

static void plan_layer(struct frozen *f, int layer)
{
    for (size_t i = 0; i < f->n_loads; i++)
        if (f->loads[i].layer == layer)
            arena_add(&f->weights, f->loads[i].target,
                      f->loads[i].count * dtype_bytes(f->loads[i].dt));
}

void frozen_stream_plan(struct frozen *f)
{
    plan_layer(f, -1);
    for (int i = 0; i < f->n_layers && !f->opt.pass; i++)
        plan_layer(f, i);
    for (int k = 0; k < FROZEN_SLOTS && f->opt.pass; k++) {
        const uint64_t begin = arena_bytes(&f->weights);
        arena_reset(&f->weights, begin);
        arena_add(&f->weights, &f->slots[k].place, 0);
        for (int i = k; i < f->n_layers; i += FROZEN_SLOTS) {
            arena_reset(&f->weights, begin);
            plan_layer(f, i);
        }
    }
}

int frozen_stream_open(struct frozen *f, struct err *err)
{
    struct device *dev = f->dev;
    int rc = dev->ops->stream_new(dev, &f->copies, err);
    for (int k = 0; k < FROZEN_SLOTS && rc == 0; k++) {
        f->slots[k].layer = -1;
        rc = dev->ops->mark_new(dev, &f->slots[k].ready, err);
        if (rc == 0)
            rc = dev->ops->mark_new(dev, &f->slots[k].used, err);
    }
    return rc;
}

void frozen_stream_close(struct frozen *f)
{
    if (f->copies)
        f->dev->ops->stream_free(f->dev, f->copies);
    for (int k = 0; k < FROZEN_SLOTS; k++) {
        f->dev->ops->mark_free(f->dev, f->slots[k].ready);
        f->dev->ops->mark_free(f->dev, f->slots[k].used);
    }
}

/* Queues the copy of layer i's weights, unless they are in their slot. */
static int bring(struct frozen *f, int i)
{
    struct device *dev = f->dev;
    const struct frozen_layer *l = &f->layers[i];
    struct frozen_slot *slot = &f->slots[i % FROZEN_SLOTS];
    if (slot->layer == i)
        return 0;
    slot->layer = -1;
    int rc = dev->ops->stream_pass(dev, f->copies, slot->used);
    if (rc == 0)
        rc = dev->ops->copy(dev, slot->place, (const char *)f->opt.host->block + l->at, l->span,
                            COPY_TO_DEVICE, f->copies);
    if (rc == 0)
        rc = dev->ops->mark(dev, slot->ready, f->copies);
    slot->layer = rc == 0 ? i : -1;
    return rc;
}

int frozen_stream_begin(struct frozen *f, int i, struct stream *s)
{
    /* After the last layer comes the first one, of the next pass.  As if their number were a
     * multiple of the slots', lest it take the slot of one that is still to run. */
    const int all = (f->n_layers + FROZEN_SLOTS - 1) / FROZEN_SLOTS * FROZEN_SLOTS;
    int rc = 0;
    if (!f->opt.pass)
        return 0;
    for (int k = 0; k < FROZEN_SLOTS && rc == 0; k++)
        if ((i + k) % all < f->n_layers)
            rc = bring(f, (i + k) % all);
    return rc < 0 ? rc : f->dev->ops->stream_pass(f->dev, s, f->slots[i % FROZEN_SLOTS].ready);
}

int frozen_stream_end(struct frozen *f, int i, struct stream *s)
{
    return f->opt.pass ? f->dev->ops->mark(f->dev, f->slots[i % FROZEN_SLOTS].used, s) : 0;
}
