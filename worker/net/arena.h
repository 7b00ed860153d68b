/* One block of device memory for everything that a step needs; it is planned before
 * it is allocated.
 *
 *     struct arena a = { 0 };
 *     arena_add(&a, &p->qkv, bytes);      // once per buffer: remembers its place
 *     arena_add(&a, &p->dx, bytes);
 *     arena_bytes(&a)                      // the size, before anything is allocated
 *     arena_alloc(&a, dev, err)            // one allocation; sets all pointers
 *     arena_free(&a, dev)
 *
 * Buffers that live at different times share memory through arena_mark and
 * arena_reset: after a reset the next buffers overlay those added since the
 * mark.  The size is the highest point reached. */
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

/* target is the address of a pointer that arena_alloc sets; the pointer must not move until
 * then. */
void arena_add(struct arena *a, void *target, uint64_t bytes);
uint64_t arena_mark(const struct arena *a);
void arena_reset(struct arena *a, uint64_t mark);
uint64_t arena_bytes(const struct arena *a);
/* The same for a plan that will not be allocated; frees the plan. */
uint64_t arena_measure(struct arena *a);

/* -ENOMEM: err names the size. */
int arena_alloc(struct arena *a, struct device *dev, struct err *err);
void arena_free(struct arena *a, struct device *dev); /* { 0 } is fine */

/* ---- inputs ----
 *
 * The arrays that the host gives a step: they lie in one block of memory that the device copies
 * from without staging, and go there in one copy.
 *
 *     inputs_add(&in, &f->t, &f->d_t, bytes);   // an array on the host and on the device
 *     inputs_add(&in, &f->labels, &f->d_labels, bytes);
 *     inputs_alloc(&in, dev, err)               // sets all pointers
 *     f->t[i] = ...;
 *     inputs_send(&in, stream);                 // queued
 *
 * The host's arrays may be written again once the stream was waited for.  Where device memory
 * is host memory, both pointers of an array are the same and nothing is copied. */

struct inputs {
    struct device *dev;
    struct arena host, device; /* the same plan twice */
    void *block;               /* the host's */
};

/* host and device are the addresses of pointers; see arena_add. */
void inputs_add(struct inputs *in, void *host, void *device, uint64_t bytes);
uint64_t inputs_measure(struct inputs *in); /* arena_measure of the device's block */

/* The host's arrays start as zeros.  -ENOMEM.  free accepts { 0 } and the state after a failure. */
int inputs_alloc(struct inputs *in, struct device *dev, struct err *err);
void inputs_free(struct inputs *in);
int inputs_send(struct inputs *in, struct stream *s);

#endif
