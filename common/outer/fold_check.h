/* What a contribution is worth before it is folded. */
#ifndef COMMON_OUTER_FOLD_CHECK_H
#define COMMON_OUTER_FOLD_CHECK_H

#include "common/outer/fold.h"

struct fold_norm {
    double norm; /* of its Delta_i */
    uint64_t samples;
};
/* Streams one contribution: header against the layout of full_path, every scale
 * and value finite.  -ERR_FORMAT (or another code) with a sentence if it must be
 * refused; -EIO and the like for our own disk. */
int fold_check(const char *path, const char *full_path, uint64_t module_id, uint64_t base,
               enum codec up, struct fold_norm *ret, struct err *err);

#define FOLD_NORM_FACTOR 10.0
/* The norm bound: with three or more, a norm above 10x the median of the peers
 * (the others) is out of bounds.  refused[i] is set accordingly; pure. */
void fold_norm_bound(const double *norms, size_t n, bool *refused);

#endif
