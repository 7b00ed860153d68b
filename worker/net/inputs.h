/* What the host gives a step: several arrays in one block, in memory that the device copies
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
#ifndef WORKER_INPUTS_H
#define WORKER_INPUTS_H

#include "common/base/base.h"
#include "worker/net/arena.h"

struct stream;

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
