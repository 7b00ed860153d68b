#include "worker/net/arena.h"

#include "kernels/kernels.h"

void arena_add(struct arena *a, void *target, uint64_t bytes)
{
    if (a->n == a->cap) {
        a->cap = a->cap ? 2 * a->cap : 64;
        a->slots = mem_realloc(a->slots, a->cap * sizeof *a->slots);
    }
    a->slots[a->n++] = (struct arena_slot){.target = target, .offset = a->at};
    a->at += (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (a->at > a->high)
        a->high = a->at;
}

uint64_t arena_mark(const struct arena *a)
{
    return a->at;
}

void arena_reset(struct arena *a, uint64_t mark)
{
    a->at = mark;
}

uint64_t arena_bytes(const struct arena *a)
{
    return a->high;
}

uint64_t arena_measure(struct arena *a)
{
    const uint64_t bytes = a->high;
    mem_free(a->slots);
    *a = (struct arena){0};
    return bytes;
}

/* Targets are pointers of any type; a plain store through void ** would break the
 * aliasing rules. */
static void put_pointer(void *target, void *value)
{
    memcpy(target, &value, sizeof value);
}

/* Sets all pointers into memory that is the caller's. */
static void place(struct arena *a, void *base)
{
    for (size_t i = 0; i < a->n; i++)
        put_pointer(a->slots[i].target, (char *)base + a->slots[i].offset);
}

int arena_alloc(struct arena *a, struct device *dev, struct err *err)
{
    int rc = dev->ops->alloc(dev, a->high, &a->base, err);
    if (rc < 0) {
        a->base = NULL;
        return err_set(err, rc,
                       "no device memory for %.1f MiB of working buffers on %s: use a "
                       "smaller train.batch, more train.accumulate or train.recompute",
                       (double)a->high / (1 << 20), dev->name);
    }
    place(a, a->base);
    return 0;
}

void arena_free(struct arena *a, struct device *dev)
{
    if (a->base)
        dev->ops->free(dev, a->base);
    mem_free(a->slots);
    *a = (struct arena){0};
}

/* ---- inputs ---- */

void inputs_add(struct inputs *in, void *host, void *device, uint64_t bytes)
{
    arena_add(&in->host, host, bytes);
    arena_add(&in->device, device, bytes);
}

uint64_t inputs_measure(struct inputs *in)
{
    (void)arena_measure(&in->host);
    return arena_measure(&in->device);
}

int inputs_alloc(struct inputs *in, struct device *dev, struct err *err)
{
    const uint64_t bytes = arena_bytes(&in->device);
    in->dev = dev;
    int rc = dev->ops->alloc_host(dev, bytes, &in->block, err);
    if (rc < 0) {
        in->block = NULL;
        return err_wrap(err, "no memory for the inputs of a step");
    }
    memset(in->block, 0, bytes);
    place(&in->host, in->block);
    if (!dev->unified)
        return arena_alloc(&in->device, dev, err);
    place(&in->device, in->block);
    return 0;
}

void inputs_free(struct inputs *in)
{
    mem_free(in->host.slots);
    if (in->dev) {
        arena_free(&in->device, in->dev);
        in->dev->ops->free_host(in->dev, in->block);
    } else {
        mem_free(in->device.slots);
    }
    *in = (struct inputs){0};
}

int inputs_send(struct inputs *in, struct stream *s)
{
    if (in->dev->unified)
        return 0;
    return in->dev->ops->copy(in->dev, in->device.base, in->block, arena_bytes(&in->device),
                              COPY_TO_DEVICE, s);
}
