/* Functions of partitioner.c for partitioner_fit.c. */
#ifndef WORKER_FIT_PARTITIONER_IMPL_H
#define WORKER_FIT_PARTITIONER_IMPL_H

#include "common/base/base.h"
#include "worker/fit/partitioner.h"

struct affine;

/* Scores of rows that are already projected. */
struct scorer {
    const struct partitioner *p;
    uint32_t rows; /* most rows of a block */
    struct affine *level[PARTITION_LEVELS_MAX];
    float *piece; /* (rows,d) of one level */
    float *y;     /* (rows,K) */
    float *spare; /* (K) while pieces are added */
    struct mem_arrays arrays;
};
int scorer_open(struct scorer *s, const struct partitioner *p, struct device *dev, struct err *err);
/* *ret_y (rows,K) = the scores of z (rows,r), with the bias if `priced`; valid until the next
 * call. */
int scorer_block(struct scorer *s, const float *z, uint32_t rows, bool priced, const float **ret_y,
                 struct err *err);
void scorer_close(struct scorer *s);

/* Makes a partitioner; the caller sets its input and makes n_fitted levels.  NULL: no memory. */
struct partitioner *partitioner_new(enum partition_kind kind, uint32_t n_levels,
                                    const uint32_t *radix, uint64_t seed);
/* Makes the arrays of level l.  -ENOMEM. */
int partitioner_level(struct partitioner *p, uint32_t l, uint32_t k, uint32_t at, uint32_t d);

#endif
