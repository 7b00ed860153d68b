/* Small images as a network is told them (docs/cascades.md): enlarged, and mixed with a fixed share
 * of noise,
 *
 *    told = (1 - noise) large(small) + noise eps
 *
 * An upscaler reads them beside its own noisy image; a router, for which nothing is enlarged, as
 * the noisy image of time `noise`.  The noise of a row is a function of (seed, its stream).
 *
 * Compute thread. */
#ifndef WORKER_TOLD_H
#define WORKER_TOLD_H

#include "common/base/base.h"
#include "kernels/kernels.h"
#include "worker/net/arena.h"

/* The arithmetic, of B images that are enlarged already, all on the device: d_told (B,3,side,side)
 * of d_images (B,side,side,3) and random streams (B); d_eps (B,3,side,side) is overwritten. */
struct told_mix {
    const uint8_t *d_images;
    const uint64_t *d_streams;
    float *d_eps, *d_told;
    int side;
    uint64_t seed;
    float noise;
};
/* Only queues work on s. */
int told_mix(struct device *dev, struct stream *s, const struct told_mix *t, int B,
             struct err *err);

/* The whole, with memory for up to `rows` images. */
struct told_options {
    struct device *dev;
    struct stream *stream;
    int side, factor; /* of the small images; the side of the large ones over that, 1: none */
    int rows;
    float noise;
};
struct told {
    struct told_options opt;
    size_t n; /* values of an image */
    struct arena arena;
    float *d_x, *d_eps; /* (rows,n): the result; noise */
    uint8_t *d_images;
    uint64_t *d_streams;
    uint8_t *images;   /* host */
    uint64_t *streams; /* host, (rows): set by the caller before told_run */
    struct mem_arrays memory;
};

/* close accepts the state after a failed open, and { 0 }. */
int told_open(struct told *t, const struct told_options *opt, struct err *err);
void told_close(struct told *t);
/* t->d_x = those of images low (B,s,s,3), host, and of t->streams.  Waits for the device. */
int told_run(struct told *t, const uint8_t *low, uint64_t seed, int B, struct err *err);

#endif
