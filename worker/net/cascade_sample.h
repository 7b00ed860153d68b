/* Drawing with two chains (worker/net/cascade.h): the base draws small images, then the upscaler
 * draws large ones, each from the small image of its number.  Compute thread. */
#ifndef WORKER_CASCADE_SAMPLE_H
#define WORKER_CASCADE_SAMPLE_H

#include "worker/net/net.h"
#include "worker/net/sample.h"

/* Where the velocities of both chains come from: a network, or a mixture of experts. */
struct cascade_source {
    /* The base and the upscaler, on one device.  Each call of the upscaler's has as its estimate
     * the small images that it is told (told.h); neither asks for estimates of its own. */
    struct sample_source chains[MODEL_CHAINS];
    float noise; /* share of noise in what the upscaler is told */
};

/* As sample_run.  images (count,S,S,3) have the upscaler's side; low (count,s,s,3) = those that the
 * base drew, all of them before the upscaler's first call.  opt->decode is NULL; progress counts
 * the evaluations of both chains. */
int cascade_sample_from(const struct cascade_source *src, const struct sample_options *opt,
                        const int32_t *labels, int count, uint8_t *images, uint8_t *low,
                        struct err *err);

/* The same for a network of two chains whose batch has room for opt->guidance.  low NULL: not
 * wanted.  captions: labels are their numbers, for both chains; NULL: labels are classes. */
int cascade_sample(struct net *net, const struct sample_options *opt,
                   const struct net_captions *captions, const int32_t *labels, int count,
                   uint8_t *images, uint8_t *low, struct err *err);

#endif
