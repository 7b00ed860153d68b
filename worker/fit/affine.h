/* y = x Wᵀ + b on a device, in blocks of rows: the product that gives nearest
 * centroids, logits and projections.
 *
 * A nearest centroid is a linear classifier: |x-c|² = |x|² - 2 (x.c - |c|²/2), so with W = c
 * and b = -|c|²/2 the nearest centroid has the highest score, and the squared distance is
 * |x|² - 2 score.  Centre the data first: a large common mean costs digits.
 *
 * Blocks depend on the shapes only.  Ties go to the lower index.  One thread at a time. */
#ifndef WORKER_FIT_AFFINE_H
#define WORKER_FIT_AFFINE_H

#include "common/base/base.h"

struct device;

struct affine;

/* For W (k,d); dev is kept until affine_free. */
int affine_new(struct device *dev, uint32_t d, uint32_t k, struct affine **ret, struct err *err);
void affine_free(struct affine *a); /* accepts NULL */

/* Copies w (k,d) and b (k), NULL: zeros.  May be called again. */
int affine_set(struct affine *a, const float *w, const float *b, struct err *err);
/* As affine_set, for centroids c (k,d): W = c and b = -|c|²/2 (+ bias (k), or NULL). */
int affine_set_centroids(struct affine *a, const float *c, const float *bias, struct err *err);

/* The most rows of one call of affine_block. */
uint32_t affine_rows(const struct affine *a);
/* *ret_y (rows,k) of x (rows,d), both in host memory; valid until the next call. */
int affine_block(struct affine *a, const float *x, uint32_t rows, const float **ret_y,
                 struct err *err);

/* The `top` highest scores of each row of x (n,d): index (n,top) and value (n,top), best first;
 * value may be NULL.  1 <= top <= k. */
int affine_best(struct affine *a, const float *x, uint64_t n, uint32_t top, uint32_t *index,
                float *value, struct err *err);
/* The same for one row of scores y (k). */
void affine_top(const float *y, uint32_t k, uint32_t top, uint32_t *index, float *value);

#endif
