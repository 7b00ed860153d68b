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

void arena_place(struct arena *a, void *base)
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
    arena_place(a, a->base);
    return 0;
}

void arena_free(struct arena *a, struct device *dev)
{
    if (a->base)
        dev->ops->free(dev, a->base);
    mem_free(a->slots);
    *a = (struct arena){0};
}
