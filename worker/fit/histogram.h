/* A bias per class so that argmax(score + bias) fills the classes as wanted.  The trained bias
 * of a discriminative router (DiPaCo), the size cap of balanced k-means and the repair of empty
 * paths are all this problem.
 *
 * It is the dual of optimal transport: minimise over b
 *     sum_i w_i max_k (score_ik + b_k) - sum_k h_k(b_k),   h_k = lo_k b for b > 0, hi_k b below
 * whose optimum moves the rows that lose least.  A smoothed fixed point (Sinkhorn) comes near it;
 * exact coordinate steps follow: given the other biases, each class takes the bias at which its
 * load is within bounds.  A bias cannot separate rows with equal scores, so the report says how
 * close the result is. */
#ifndef WORKER_FIT_HISTOGRAM_H
#define WORKER_FIT_HISTOGRAM_H

#include "common/base/base.h"

struct histogram {
    const float *scores;  /* (n,k) */
    const float *weights; /* (n) positive, or NULL for 1 each */
    uint64_t n;
    uint32_t k;
    const double *lo, *hi; /* (k) load of each class, 0 <= lo <= hi; lo = hi: a target */
    unsigned rounds;       /* most rounds of coordinate steps; 0: 50 */
};

struct histogram_report {
    double gap;      /* load beyond the bounds, summed over classes, as a share of the total */
    unsigned rounds; /* rounds done */
    bool met;        /* every load within its bounds, to one row (and 1e-6 of the load) */
};

/* bias (k) = the best found (with mean 0 if all bounds are targets); load (k) = the loads that it
 * gives.  A class with hi 0 gets a bias below every score.  -EINVAL: no assignment meets the sums
 * of lo or hi; -ENOMEM. */
int histogram_fit(const struct histogram *h, float *bias, double *load,
                  struct histogram_report *ret, struct err *err);

/* The bounds of classes that share `total`: at most balance times the mean (0: no cap) and at
 * least `least`; narrowed by one row of weight `unit` where there is room, since a fit is exact
 * only to one row. */
void histogram_bounds(double total, uint32_t k, double balance, double least, double unit,
                      double *lo, double *hi);

#endif
