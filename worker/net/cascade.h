/* A network of two chains (docs/cascades.md; Ho et al., "Cascaded Diffusion Models", 2021): the
 * base draws small images; the upscaler is given a small image and draws a large one.  Both learn
 * by flow matching from the same samples in one step; the loss of a sample is the sum of theirs.
 *
 * The small image of a sample is the mean of its squares of pixels (resize.h).  The upscaler is
 * given the small image enlarged again and mixed with a fixed share of noise,
 *
 *    told = (1 - noise) large(small) + noise eps
 *
 * so that it tolerates differences between the base's images and the data.  A sampler does the same
 * to the base's images.  Each chain draws the times, noise and dropout of a sample from a stream of
 * its own.
 *
 * If both chains begin on one device, a caption is encoded once for both.  Each chain drops
 * captions by itself, so one that the base has dropped and the upscaler has not is encoded besides.
 *
 * PIPELINES.  A device has a part of each chain, or of only one, and a network of such a part is
 * used chain by chain (net_chain): each chain has its own loss, and the trainer adds the two up.
 * The inputs of a chain are loaded where it begins.
 *
 * Otherwise as net.h says; compute thread. */
#ifndef WORKER_CASCADE_H
#define WORKER_CASCADE_H

#include "worker/net/dit.h"
#include "worker/net/net.h"

extern const struct net_ops cascade_net_ops;

/* Random streams of the upscaler's own draws, and of the noise in the image that it is given. */
enum { CASCADE_STREAM_UPSCALER = 0x757073, CASCADE_STREAM_TOLD = 0x746f6c64 };

/* For samplers (cascade_sample.h): the DiT of the base (0) or of the upscaler (1). */
struct dit *cascade_chain(struct net *net, int chain);

/* d_told (B,3,S,S) = the image that the upscaler of these sizes is given, made of large images
 * (B,S,S,3) and random streams (B), all on the device; d_eps (B,3,S,S) is overwritten. */
struct cascade_telling {
    const uint8_t *d_large;
    const uint64_t *d_streams;
    float *d_eps, *d_told;
    uint64_t seed;
    float noise;
};

/* Only queues work on s. */
int cascade_tell(struct device *dev, struct stream *s, const struct model_spec *spec,
                 const struct cascade_telling *t, int B, struct err *err);

#endif
