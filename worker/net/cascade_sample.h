/* Drawing with a network of two chains (worker/net/cascade.h): the base draws small images, then
 * the upscaler large ones, each told the small one of its number.  Compute thread. */
#ifndef WORKER_CASCADE_SAMPLE_H
#define WORKER_CASCADE_SAMPLE_H

#include "worker/net/net.h"
#include "worker/net/sample.h"

/* As sample_run, of a network of two chains with room for opt->guidance: images (count,S,S,3) of
 * the upscaler's side, low (count,s,s,3) of those that the base drew, NULL: not wanted.  captions:
 * what labels are numbers of, told to both chains; NULL: they are classes.  opt->decode is NULL;
 * progress is of both. */
int cascade_sample(struct net *net, const struct sample_options *opt,
                   const struct net_captions *captions, const int32_t *labels, int count,
                   uint8_t *images, uint8_t *low, struct err *err);

#endif
