/* One block of device memory for everything that a step needs, planned before
 * it is allocated.
 *
 *     struct arena a = { 0 };
 *     arena_add(&a, &p->qkv, bytes);      // once per buffer: remembers where to put it
 *     arena_add(&a, &p->dx, bytes);
 *     arena_bytes(&a)                      // the size, before anything is allocated
 *     arena_alloc(&a, dev, err)            // one allocation; sets all pointers
 *     arena_free(&a, dev)
 *
 * Buffers that live at different times share memory through arena_mark and
 * arena_reset: after a reset the next buffers overlay what was added since the
 * mark; the size is the highest point reached. */
#ifndef WORKER_ARENA_H
#define WORKER_ARENA_H

#include "common/base/base.h"

struct device;

#define ARENA_ALIGN 64

struct arena_slot {
    void *target; /* address of the pointer to set */
    uint64_t offset;
};

struct arena {
    struct arena_slot *slots;
    size_t n, cap;
    uint64_t at, high; /* bytes */
    void *base;        /* NULL until allocated */
};

/* target is the address of a pointer: it is set by arena_alloc
 * and must stay where it is until then. */
void arena_add(struct arena *a, void *target, uint64_t bytes);
uint64_t arena_mark(const struct arena *a);
void arena_reset(struct arena *a, uint64_t mark);
uint64_t arena_bytes(const struct arena *a);
/* arena_bytes of a plan that will not be carried out; frees it. */
uint64_t arena_measure(struct arena *a);

/* Sets all pointers into memory that is the caller's. */
void arena_place(struct arena *a, void *base);
/* -ENOMEM with a sentence that names the size. */
int arena_alloc(struct arena *a, struct device *dev, struct err *err);
void arena_free(struct arena *a, struct device *dev); /* { 0 } is fine */

#endif
