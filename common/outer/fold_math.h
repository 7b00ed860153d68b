/* The arithmetic of fold.h on arrays in memory; no files.
 *
 * A span is processed in strips of FOLD_STRIP elements, so that an element stays in
 * the first-level cache from its first load to its last.  Strips begin at multiples
 * of FOLD_STRIP from the start of the span: so if spans begin at such multiples in a
 * tensor, norms do not depend on how the tensor is cut.  The values never do. */
#ifndef COMMON_OUTER_FOLD_MATH_H
#define COMMON_OUTER_FOLD_MATH_H

#include "common/base/base.h"
#include "common/outer/arith.h"

#define FOLD_STRIP 1024 /* a multiple of CODEC_BLOCK */

/* The parameters of all spans of a step. */
struct fold_math {
    const struct arith *arith;
    enum codec down;
    struct arith_nesterov nesterov;
    double ema_decay;
};

/* Inputs of one codec and, if they are values, of one start. */
struct fold_group {
    enum codec codec;
    struct arith_inputs in;
    const float *start; /* theta of the version at which they began, for values */
};

/* n elements of one tensor, beginning at a block. */
struct fold_span {
    size_t n;
    const struct fold_group *groups; /* at least one; all weights sum to nesterov.total */
    size_t n_groups;                 /* groups are summed separately, and the sums in this order */
    const float *theta;              /* theta_v */
    float *theta_new;                /* theta_{v+1}; may be theta */
    float *mom, *target;             /* updated */
    float *buf;                      /* updated; NULL: the momentum moves every step */
    float *ema;                      /* updated; NULL: none */
    void *delta;                     /* payload of the down codec */
    uint16_t *delta_scales;
};

/* Sums of squares, to which a span adds. */
struct fold_squares {
    double delta; /* of total / scale * Delta */
    double step, residual;
};

/* The square of the norm of sum_i weight_i Delta_i over a strip: n elements from `first` on. */
double fold_math_square(const struct fold_math *m, const struct fold_group *groups, size_t n_groups,
                        size_t first, size_t n);

/* False: the result is not finite (arrays are then undefined). */
bool fold_math_span(const struct fold_math *m, const struct fold_span *s,
                    struct fold_squares *squares);

/* A buffer (layout.h), whose inputs and delta are f32: theta_{v+1} is the mean of their values, or
 * in delayed steps 1/N of the way to it, or with `first` the first group's first value.  target and
 * ema become the same; momenta are zero. */
bool fold_math_buffer(const struct fold_math *m, const struct fold_span *s, bool first);

#endif
