/* Drawing with a network of two chains (worker/net/cascade.h): the base draws small images, then
 * the upscaler draws large ones, each from the small image of its number.  Compute thread. */
#ifndef WORKER_CASCADE_SAMPLE_H
#define WORKER_CASCADE_SAMPLE_H

#include "worker/net/net.h"
#include "worker/net/sample.h"

/* As sample_run, for a network of two chains whose batch has room for opt->guidance.  images
 * (count,S,S,3) have the upscaler's side; low (count,s,s,3) are those that the base drew, NULL: not
 * wanted.  captions: labels are their numbers, for both chains; NULL: labels are classes.
 * opt->decode is NULL; progress counts the evaluations of both chains. */
int cascade_sample(struct net *net, const struct sample_options *opt,
                   const struct net_captions *captions, const int32_t *labels, int count,
                   uint8_t *images, uint8_t *low, struct err *err);

#endif
