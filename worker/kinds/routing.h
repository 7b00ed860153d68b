/* What paths scored, as a table: targets of a discriminative router, and how well ways of
 * routing would have done. */
#ifndef WORKER_ROUTING_H
#define WORKER_ROUTING_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/kinds/features.h"
#include "worker/fit/partitioner.h"
#include "worker/order/work.h"

struct device;
struct err;

struct routing {
    const struct features *features; /* borrowed */
    uint32_t *files;                 /* (n_files) of features that were scored, ascending */
    size_t n_files;
    uint64_t n; /* rows of them */
    uint32_t paths, columns;
    float *logp;     /* (n,paths,columns) */
    int32_t *tokens; /* (n,columns) */
    int32_t *bytes;  /* (n) */
};

/* The scores of a CLUSTER task whose blobs are in the cache, of the shards that are held out
 * (or of the others).  No such shard: n is 0. */
int routing_open(const struct work *w, const struct features *f, bool holdout, struct routing *ret,
                 struct err *err);
void routing_release(struct routing *r); /* { 0 } is fine */

/* y (n): the path with the highest sum of a row, the lowest of equals. */
int routing_targets(const struct routing *r, uint32_t *y, struct err *err);

/* Rows of the task's result: bits per byte (nats per token where bytes are not known) of the
 * held-out samples routed once by p, by hindsight, by the best single path and, with chunks,
 * anew after each chunk by a router that is fitted to `train`. */
int routing_evaluate(struct work *w, struct device *dev, const struct partitioner *p,
                     const struct routing *train, const struct routing *held, struct err *err);

#endif
