/* Random numbers that do not depend on threads or machines: Philox4x32-10
 * (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11) keyed by
 * (seed, stream).  Element i of a stream is a pure function of (seed, stream, i),
 * so any division of a fill over threads gives the same values.  The normal
 * transform uses only IEEE + - * / sqrt in a fixed order: the same bits everywhere.
 *
 * Streams: give every use its own number, e.g. rng_mix(job_id, rng_mix(round, 7)). */
#ifndef COMMON_BASE_RNG_H
#define COMMON_BASE_RNG_H

#include "common/base/base.h"

/* The raw function: ten rounds over a 128-bit counter with a 64-bit key. */
void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* A good 64-bit mixture of two numbers (not symmetric), for deriving streams. */
uint64_t rng_mix(uint64_t a, uint64_t b);

/* A sequential reader of a stream: plain data; save and restore it by copying. */
struct rng {
    uint64_t seed;
    uint64_t stream;
    uint64_t next; /* index of the next 32-bit word */
};

void rng_init(struct rng *r, uint64_t seed, uint64_t stream);
uint32_t rng_u32(struct rng *r);               /* the next word */
uint64_t rng_u64(struct rng *r);               /* the next two, the first one low */
double rng_uniform_double(struct rng *r);      /* [0, 1), 53 bits */
uint64_t rng_below(struct rng *r, uint64_t n); /* [0, n), unbiased; n > 0 */

/* Element i of a stream, without state.  uniform and normal number their own
 * elements: rng_at_normal(.., i) == element i of rng_fill_normal. */
uint32_t rng_at_u32(uint64_t seed, uint64_t stream, uint64_t i);
float rng_at_uniform(uint64_t seed, uint64_t stream, uint64_t i);
float rng_at_normal(uint64_t seed, uint64_t stream, uint64_t i);

/* out[j] = element first+j; normals are mean + std * z. */
void rng_fill_uniform(uint64_t seed, uint64_t stream, uint64_t first, float *out, size_t n);
void rng_fill_normal(uint64_t seed, uint64_t stream, uint64_t first, float *out, size_t n,
                     float mean, float std);

/* out (n) = a permutation of 0..n-1, by Fisher and Yates. */
void rng_permutation(uint64_t seed, uint64_t stream, uint32_t *out, size_t n);

#endif
