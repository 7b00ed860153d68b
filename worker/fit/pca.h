/* Principal components of features, streamed.
 *
 *   z = scale * basis (x - mean)        x (d), basis (r,d) orthonormal rows, z (r)
 *
 * Up to PCA_EXACT columns: the covariance in one pass, and all its eigenvectors.  More columns:
 * a random start and subspace iteration over PCA_PASSES passes (Halko, Martinsson, Tropp,
 * "Finding structure with randomness", 2011, algorithms 4.4 and 5.3).  The largest entry of each
 * basis row (the first of equals) is positive. */
#ifndef WORKER_FIT_PCA_H
#define WORKER_FIT_PCA_H

#include "common/base/base.h"

struct device;
struct fit_source;
struct fit_watch;

#define PCA_EXACT 320
#define PCA_PASSES 4
#define PCA_DIM_MAX (1u << 20) /* columns of x */
#define PCA_OUT_MAX 4096       /* columns of z */

struct pca {
    uint32_t d, r;
    float *mean;      /* (d) */
    float *basis;     /* (r,d); NULL: the identity, r = d */
    float *scale;     /* (r) */
    double *variance; /* (r) along each basis row, in units of x² (population); NULL if read back */
    double total;     /* variance of x, summed over all columns */
};

/* r is cut to min(n, d).  whiten: scale = 1/sqrt(variance + 1e-6 of the largest); else 1. */
int pca_fit(struct device *dev, const struct fit_source *x, uint32_t r, bool whiten, uint64_t seed,
            const struct fit_watch *watch, struct pca *ret, struct err *err);

/* No projection: mean and, with standardise, scale = 1/std of each column (constant columns: 0). */
int pca_columns(const struct fit_source *x, bool standardise, struct pca *ret, struct err *err);

/* z (n,r) = the projection of all rows of a source. */
int pca_apply(const struct pca *p, struct device *dev, const struct fit_source *x, float *z,
              struct err *err);

void pca_release(struct pca *p); /* { 0 } and NULL are fine */

#endif
