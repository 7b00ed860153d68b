/* What kmeans.c and its parts share: one fit under way. */
#ifndef WORKER_KMEANS_IMPL_H
#define WORKER_KMEANS_IMPL_H

#include "worker/fit/kmeans.h"

struct affine;

struct kmeans_run {
    struct device *dev;
    const float *x;       /* (n,d) */
    const float *weights; /* (n) or NULL */
    uint64_t n;
    uint32_t d, k;
    double total; /* weight of all rows */
    const struct kmeans_options *opt;
    const struct fit_watch *watch;
    uint64_t seed; /* of this start */

    struct affine *near;
    float *centroids; /* (k,d) */
    float *bias;      /* (k) */
    uint32_t *labels; /* (n) */
    float *dist;      /* (n) squared distance to the own centroid */
    double *sums;     /* (k,d) weighted sum of the rows of each cluster */
    double *sizes;    /* (k) */
    double inertia;
    unsigned iterations, repaired;
    bool converged, met;
};

static inline double kmeans_weight(const struct kmeans_run *r, uint64_t i)
{
    return r->weights ? (double)r->weights[i] : 1.0;
}

/* Squared distance of two rows of d values; eight partial sums, added in order. */
float kmeans_distance(const float *a, const float *b, uint32_t d);

/* centroids = rows by k-means++. */
int kmeans_start(struct kmeans_run *r, struct err *err);

/* labels, dist, sums, sizes and inertia for the present centroids and bias. */
int kmeans_assign(struct kmeans_run *r, struct err *err);
/* centroids = means of their rows; a cluster without rows stays where it is. */
void kmeans_update(struct kmeans_run *r);

/* Each empty cluster takes a row; sizes, sums and labels follow.  Returns how many stay empty
 * for want of distinct rows, and adds what it did to repaired. */
uint32_t kmeans_repair(struct kmeans_run *r);

/* Sets bias so that the sizes keep balance and least, moving the centroids along. */
int kmeans_balance(struct kmeans_run *r, struct err *err);

#endif
