/* A network of two chains (docs/cascades.md; Ho et al., "Cascaded Diffusion Models", 2021): the
 * base draws small images, the upscaler draws large ones and is told a small one.  Both learn by
 * flow matching from the same samples in one step; the loss of a sample is the sum of theirs.
 *
 * The small image of a sample is the mean of its squares of pixels (resize.h).  What the upscaler
 * is told is that one made large again, with a fixed share of noise:
 *
 *    told = (1 - noise) large(small) + noise eps
 *
 * so that it forgives what the base draws otherwise than the data are.  A sampler does the same to
 * what the base has drawn.  What is drawn for a sample (times, noise, dropout) is of one stream for
 * each chain.
 *
 * A caption is encoded once for both chains, where both begin on a device: each drops captions by
 * itself, so what the base has dropped and the upscaler has not is encoded besides.
 *
 * PIPELINES.  A device has a part of each chain, or of one alone, and a network of such a part is
 * used chain by chain (net_chain): the loss of each stays its own, and what adds the two up is the
 * trainer.  What a chain reads is loaded where it begins.
 *
 * As net.h says; compute thread. */
#ifndef WORKER_CASCADE_H
#define WORKER_CASCADE_H

#include "worker/net/dit.h"
#include "worker/net/net.h"

extern const struct net_ops cascade_net_ops;

/* Random streams: of the upscaler's own draws, and of the noise in what it is told. */
enum { CASCADE_STREAM_UPSCALER = 0x757073, CASCADE_STREAM_TOLD = 0x746f6c64 };

/* For whoever draws (cascade_sample.h): the DiT of the base (0) or of the upscaler (1). */
struct dit *cascade_chain(struct net *net, int chain);

/* d_told (B,3,S,S) = what an upscaler of these sizes is told, of large images (B,S,S,3) and random
 * streams (B), all on the device; d_eps (B,3,S,S) is written over. */
struct cascade_telling {
    const uint8_t *d_large;
    const uint64_t *d_streams;
    float *d_eps, *d_told;
    uint64_t seed;
    float noise;
};

/* Only queues. */
int cascade_tell(struct device *dev, struct stream *s, const struct model_spec *spec,
                 const struct cascade_telling *t, int B, struct err *err);

#endif
