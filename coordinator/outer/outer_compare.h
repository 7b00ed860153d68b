/* How far apart two workers' contributions to the same modules are, which began with the same
 * versions: the distance of their differences over the norm of the second one, |a - b| / |b|, that
 * of the module where it is largest.  They are streamed on a thread of the pool, in the memory of a
 * check (common/outer/fold_check.h), whatever the module's size. */
#ifndef COORDINATOR_OUTER_COMPARE_H
#define COORDINATOR_OUTER_COMPARE_H

#include "common/base/base.h"
#include "common/base/codec.h"
#include "coordinator/outer/outer_exec.h"

struct blobstore;
struct pool;

struct outer_pair {
    uint64_t module_id, from; /* the version that both began with */
    struct outer_blob full;   /* of that; of any version where the codec is not f32 */
    struct outer_blob a, b;
    enum codec codec;
};

/* On the loop thread, exactly once: apart is INFINITY where b is nothing and a is not.  rc: 0, or
 * negative: they could not be compared, and why. */
typedef void (*outer_compared_fn)(void *arg, int rc, double apart, const char *why);

/* Copies the n pairs.  -EAGAIN: the pool is full, and nothing follows. [loop] */
int outer_compare(struct pool *pool, struct blobstore *store, const struct outer_pair *pairs,
                  size_t n, outer_compared_fn fn, void *arg);

#endif
