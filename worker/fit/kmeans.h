/* k-means on a device, deterministic by its seed.
 *
 * Start: k-means++ (Arthur, Vassilvitskii 2007), on a subsample when there are many rows;
 * then Lloyd on blocked distances, or mini-batches (Sculley 2010) followed by two full Lloyd
 * steps.  An empty cluster takes the farthest row of the largest cluster that has distinct
 * rows.  Rows may have weights: a row of weight 2 counts as two. */
#ifndef WORKER_FIT_KMEANS_H
#define WORKER_FIT_KMEANS_H

#include "common/base/base.h"

struct device;
struct fit_watch;

struct kmeans_options {
    uint32_t k;
    uint64_t seed;
    unsigned iterations; /* steps of Lloyd, 0: 100; passes over the rows in mini-batches, 0: 5 */
    unsigned restarts;   /* number of starts, of which that with least inertia is kept; 0: 1 */
    uint32_t batch;      /* rows of a mini-batch; 0: full Lloyd */
    double tolerance;    /* stop when inertia falls by less than this share; 0: 1e-5 */
    double balance;      /* >= 1: no cluster above balance times the mean; 0: no cap */
    double least;        /* least weight of a cluster; 0: any */
    bool shrink;         /* fewer distinct rows than k: fewer clusters, not an error */
};

struct kmeans {
    uint32_t k, d;
    float *centroids; /* (k,d) */
    float *bias;      /* (k) added to x.c - |c|²/2 before the maximum; zeros without balance */
    double *sizes;    /* (k) weight of its rows */
    uint32_t *labels; /* (n) */
    double inertia;   /* sum of weight times squared distance to the row's centroid */
    double largest;   /* size of the largest cluster over the mean size */
    unsigned iterations, repaired;
    bool converged;
    bool met; /* sizes are within balance and least (always, if neither was asked for) */
};

/* x (n,d) finite and centred (a common mean costs digits of the distances), weights (n)
 * positive or NULL.  -ERR_CONFIG: k above n or above the number of
 * distinct rows, unless shrink. */
int kmeans_fit(struct device *dev, const float *x, const float *weights, uint64_t n, uint32_t d,
               const struct kmeans_options *opt, const struct fit_watch *watch, struct kmeans *ret,
               struct err *err);
void kmeans_release(struct kmeans *m); /* { 0 } and NULL are fine */

#endif
