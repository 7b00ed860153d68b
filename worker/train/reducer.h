/* Sums a rank's gradients over the island, in buckets, while the backward still runs.
 *
 *     reducer_begin(r, how);              // each step
 *     reducer_ready(r, offset, count);    // gradients that are final, in the backward's order
 *     reducer_join(r, losses, n, err);    // the rest, and the losses
 *
 * Ranges gather until they are a bucket, which is then queued on a stream of its own behind
 * what has been queued on the trainer's.  After join the trainer's stream has the sums.  All
 * ranks run the same backward, so they name the same ranges in the same order and their
 * buckets meet; without overlap everything is summed at join.  Sums do not depend on how the
 * ranges are cut into buckets.
 *
 * A step that may take or give back device memory, or load code, is REDUCER_MEETS: no sum is
 * queued before all ranks have come to join, and no rank goes on before all have queued theirs.
 * Freeing memory of a card (cudaFree) can wait for what runs on it and on its peers, and a sum
 * that runs there waits for the rank that frees. */
#ifndef WORKER_REDUCER_H
#define WORKER_REDUCER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/comm.h"
#include "worker/net/weights.h"

struct err;
struct island;

/* Elements of the flat vector. */
struct range {
    uint64_t at, n;
};

/* Disjoint, ascending, none touches the next. */
struct ranges {
    struct range *v;
    size_t n, room;
};

enum reducer_how {
    REDUCER_OVERLAPS,
    REDUCER_WAITS, /* everything at join */
    REDUCER_MEETS, /* the same, when all ranks are there */
};

struct reducer {
    struct island *is;
    int rank;
    struct weights *w;     /* the trainer's */
    struct stream *stream; /* sums */
    uint64_t bucket;       /* elements */
    enum reducer_how how;
    struct ranges named;   /* in this step */
    struct ranges waiting; /* those that no bucket has yet */
    uint64_t waiting_n;    /* elements of it */
    struct comm_piece *pieces;
    int rc; /* first failure of the step */
    const char *failed;
};

/* release accepts what init left on failure, and { 0 }. */
int reducer_init(struct reducer *r, struct island *is, int rank, struct weights *w,
                 uint64_t bucket_bytes, struct err *err);
void reducer_release(struct reducer *r);

void reducer_begin(struct reducer *r, enum reducer_how how);
void reducer_ready(void *r, uint64_t offset, uint64_t count);
int reducer_join(void *r, float *losses, int64_t n, struct err *err);
int reducer_wait(void *r, struct stream *s, struct err *err);

#endif
