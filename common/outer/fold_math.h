/* The arithmetic of fold.h on arrays in memory; no files.
 *
 * A span is worked through in strips of FOLD_STRIP elements, so that everything
 * between the first and the last load of an element stays in the first-level
 * cache.  Strips begin at multiples of FOLD_STRIP from the start of the span:
 * spans that begin at such multiples of a tensor give the same norms however a
 * tensor is cut.  The values do not depend on the cut at all. */
#ifndef COMMON_OUTER_FOLD_MATH_H
#define COMMON_OUTER_FOLD_MATH_H

#include "common/base/base.h"
#include "common/outer/arith.h"

#define FOLD_STRIP 1024 /* a multiple of CODEC_BLOCK */

/* What is the same for all spans of a step. */
struct fold_math {
    const struct arith *arith;
    enum codec down;
    struct arith_nesterov nesterov;
    double ema_decay;
};

/* Inputs that are alike. */
struct fold_group {
    enum codec codec;
    struct arith_inputs in;
    const float *start; /* what values are subtracted from: theta of the version that they began
                           with */
};

/* n elements of one tensor, beginning at a block. */
struct fold_span {
    size_t n;
    const struct fold_group *groups; /* at least one; all weights sum to nesterov.total */
    size_t n_groups;                 /* each is summed by itself, and the sums in this order */
    const float *theta;              /* theta_v */
    float *theta_new;                /* theta_{v+1}; may be theta */
    float *mom, *target;             /* updated */
    float *buf;                      /* updated; NULL: the momentum takes part in every step */
    float *ema;                      /* updated; NULL: none */
    void *delta;                     /* payload of the down codec */
    uint16_t *delta_scales;
};

/* Sums of squares, added to. */
struct fold_squares {
    double delta; /* of total / scale * Delta */
    double step, residual;
};

/* The square of the norm of sum_i weight_i Delta_i over n elements from `first` on, a strip. */
double fold_math_square(const struct fold_math *m, const struct fold_group *groups, size_t n_groups,
                        size_t first, size_t n);

/* False: the result is not finite (arrays are then undefined). */
bool fold_math_span(const struct fold_math *m, const struct fold_span *s,
                    struct fold_squares *squares);

/* A buffer (layout.h), of which inputs and delta are f32: theta_{v+1} is the mean of their values,
 * of delayed steps so much nearer to it; with `first` the value of the first group's first.  target
 * and ema are the same; momenta are zero. */
bool fold_math_buffer(const struct fold_math *m, const struct fold_span *s, bool first);

#endif
