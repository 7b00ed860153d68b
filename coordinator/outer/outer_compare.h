/* How far apart two workers' contributions are that began with the same versions of the same
 * modules: |a - b| / |b| of their deltas, for the module where it is largest.  A thread of the pool
 * streams them; whatever the module's size, that takes the memory of a check
 * (common/outer/fold_check.h). */
#ifndef COORDINATOR_OUTER_COMPARE_H
#define COORDINATOR_OUTER_COMPARE_H

#include "common/base/base.h"
#include "common/base/codec.h"
#include "coordinator/outer/outer_exec.h"

struct blobstore;
struct pool;

struct outer_pair {
    uint64_t module_id, from; /* the version that both began with */
    struct blob_ref full;     /* of version from; of any version if the codec is not f32 */
    struct blob_ref a, b;
    enum codec codec;
};

/* Called on the loop thread, exactly once.  apart: INFINITY where b is zero and a is not.  rc: 0,
 * or negative: they could not be compared; why says the cause. */
typedef void (*outer_compared_fn)(void *arg, int rc, double apart, const char *why);

/* Copies the n pairs.  -EAGAIN: the pool is full, and fn is not called. [loop] */
int outer_compare(struct pool *pool, struct blobstore *store, const struct outer_pair *pairs,
                  size_t n, outer_compared_fn fn, void *arg);

#endif
