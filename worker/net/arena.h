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
struct stream;

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

/* -ENOMEM with a sentence that names the size. */
int arena_alloc(struct arena *a, struct device *dev, struct err *err);
void arena_free(struct arena *a, struct device *dev); /* { 0 } is fine */

/* ---- inputs ----
 *
 * What the host gives a step: several arrays in one block, in memory that the device copies
 * from without staging, and sent to it at once.
 *
 *     inputs_add(&in, &f->t, &f->d_t, bytes);   // an array on the host and on the device
 *     inputs_add(&in, &f->labels, &f->d_labels, bytes);
 *     inputs_alloc(&in, dev, err)               // sets all pointers
 *     f->t[i] = ...;
 *     inputs_send(&in, stream);                 // queued
 *
 * The host's arrays may be written again when the stream was waited for.  Where device memory
 * is host memory both pointers of an array are the same and nothing is copied. */

struct inputs {
    struct device *dev;
    struct arena host, device; /* the same plan twice */
    void *block;               /* the host's */
};

/* host and device are the addresses of pointers; see arena_add. */
void inputs_add(struct inputs *in, void *host, void *device, uint64_t bytes);
uint64_t inputs_measure(struct inputs *in); /* as arena_measure, on the device */

/* Starts as zeros on the host.  -ENOMEM.  free accepts { 0 } and what a failure left. */
int inputs_alloc(struct inputs *in, struct device *dev, struct err *err);
void inputs_free(struct inputs *in);
int inputs_send(struct inputs *in, struct stream *s);

#endif
