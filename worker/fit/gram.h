/* The sum over rows of aᵀ b, in blocks on a device, added up in f64: for covariances and
 * the gradient of a linear classifier.  One thread at a time. */
#ifndef WORKER_FIT_GRAM_H
#define WORKER_FIT_GRAM_H

#include "common/base/base.h"

struct device;

#define GRAM_ROWS 2048 /* rows of one block, summed in f32; blocks are summed in f64 */

struct gram;

/* Makes a sum of shape (m,n), zero; dev is kept until gram_free. */
int gram_new(struct device *dev, uint32_t m, uint32_t n, struct gram **ret, struct err *err);
void gram_free(struct gram *g); /* accepts NULL */
void gram_clear(struct gram *g);

/* sum += aᵀ b of a (rows,m) and b (rows,n); rows <= GRAM_ROWS. */
int gram_add(struct gram *g, const float *a, const float *b, uint32_t rows, struct err *err);

double *gram_sum(struct gram *g); /* (m,n), owned by g */

#endif
