/* The loops of coding.h and fold.h, in one variant per instruction set.
 *
 * arith_impl.h is the specification: plain loops.  It is compiled three times (arith.c,
 * arith_avx2.c, arith_avx512.c); some loops for e3m0 are written by hand in the wide variants.
 * All variants give the same bits, which tests check; arith_best() picks the best one that the CPU
 * can run.
 *
 * n is any number; arrays of a codec start at a block.  Payload arrays are
 * aligned only to their element.  "may be" names arrays that may be the same;
 * others must not overlap. */
#ifndef COMMON_OUTER_ARITH_H
#define COMMON_OUTER_ARITH_H

#include "common/base/base.h"
#include "common/outer/coding.h"

#define ARITH_INPUTS_MAX 256
#define ARITH_LANES 32 /* partial sums of squares */

/* Contributions of one strip, all of one codec: k payloads with their weights. */
struct arith_inputs {
    size_t k; /* at most ARITH_INPUTS_MAX */
    const void *const *payload;
    const uint16_t *const *scales; /* entries are NULL if the codec has none */
    const double *weight;
};

/* Scalars of the Nesterov step. */
struct arith_nesterov {
    double lr, mu;
    double total; /* sum of the weights */
    double scale; /* factor of the weighted mean */
    double parts; /* N: contributions over which one momentum step is spread */
    bool due;     /* delayed: this contribution completes them */
};

struct arith {
    const char *name;

    /* q[n] may be x[n]; false: a value is not finite or above CODEC_ABS_MAX. */
    bool (*encode[CODEC_COUNT])(size_t n, const float *x, void *payload, uint16_t *scales,
                                float *q);
    void (*decode[CODEC_COUNT])(size_t n, const void *payload, const uint16_t *scales, float *x);

    /* acc[n] = 0, then += w_i * decoded_i for i = 0..k-1, one double addition each.
     * f32 inputs are values: += w_i * (theta - value_i); theta is unused otherwise. */
    void (*accumulate[CODEC_COUNT])(size_t n, const struct arith_inputs *in, const float *theta,
                                    double *acc);

    /* D = acc / total * scale; mom = f32(mu mom + D);
     * target = f32(target - lr (D + mu mom)); diff = target - theta. */
    void (*nesterov)(size_t n, const struct arith_nesterov *p, const double *acc,
                     const float *theta, float *mom, float *target, float *diff);
    /* g = acc / total * scale / parts; buf = f32(buf + g); then
     *   due:  mom = f32(mu mom + buf); target = f32(target - lr (g + mu mom)); buf = 0
     *   else: target = f32(target - lr g)
     * diff = target - theta. */
    void (*delayed)(size_t n, const struct arith_nesterov *p, const double *acc, const float *theta,
                    float *mom, float *buf, float *target, float *diff);

    /* out = theta + q; out may be theta.  Adds the squares of q and of diff - q to partial sums, as
     * square_f32 does: element i to sum i % ARITH_LANES.  arith_sum() adds those up. */
    void (*settle)(size_t n, const float *theta, const float *diff, const float *q, float *out,
                   double step[ARITH_LANES], double residual[ARITH_LANES]);

    /* out = theta + q; out may be theta. */
    void (*add)(size_t n, const float *theta, const float *q, float *out);
    /* out = a - b; out may be a or b. */
    void (*sub)(size_t n, const float *a, const float *b, float *out);
    /* ema = f32(d ema + (1 - d) theta) */
    void (*ema)(size_t n, double d, const float *theta, float *ema);

    /* Sums of squares: 32 interleaved partial sums, added as a tree at the end. */
    double (*square_f32)(size_t n, const float *x);
    double (*square_f64)(size_t n, const double *x);
};

const struct arith *arith_best(void);

/* Asks for the lines behind n bytes at x, of which the next call will read as many.  Reading ahead,
 * as processors do by themselves, ends at each page, and a strip of floats is a page. */
static inline void arith_fetch_next(const void *x, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
        __builtin_prefetch((const char *)x + n + i);
}

/* The sum of partial sums, which it destroys. */
double arith_sum(double lanes[ARITH_LANES]);

/* For tests: the variants that this CPU can run, the specification first; NULL after the last. */
const struct arith *arith_variant(size_t i);

#ifdef __x86_64__
extern const struct arith arith_avx2;
extern const struct arith arith_avx512;
#endif

#endif
