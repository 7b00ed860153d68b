/* Multinomial logistic regression z -> K classes: full-batch L-BFGS with Armijo steps on
 *     mean_i -log softmax(W z_i + b)[y_i] + l2/2 |W|²      from zero.
 * Inputs should be standardised.  The bias is not decayed. */
#ifndef WORKER_FIT_LINEAR_H
#define WORKER_FIT_LINEAR_H

#include "common/base/base.h"

struct device;
struct fit_watch;

struct linear_options {
    uint32_t k;
    unsigned iterations; /* most iterations; 0: 200 */
    double l2;           /* 0: 1e-3 */
    double tolerance;    /* norm of the gradient over that of the first one; 0: 1e-4 */
};

struct linear {
    uint32_t k, d;
    float *weight; /* (k,d) */
    float *bias;   /* (k) */
    double loss;   /* mean cross-entropy, nats, without the penalty */
    double accuracy;
    unsigned iterations;
    bool converged;
};

/* x (n,d), y (n) in [0,k). */
int linear_fit(struct device *dev, const float *x, const uint32_t *y, uint64_t n, uint32_t d,
               const struct linear_options *opt, const struct fit_watch *watch, struct linear *ret,
               struct err *err);
void linear_release(struct linear *m); /* { 0 } and NULL are fine */

#endif
