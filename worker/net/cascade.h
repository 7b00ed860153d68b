/* A network of two chains (docs/cascades.md; Ho et al., "Cascaded Diffusion Models", 2021): the
 * base draws small images; the upscaler is given a small image and draws a large one.  Both learn
 * by flow matching from the same samples in one step; the loss of a sample is the sum of theirs.
 *
 * The small image of a sample is the mean of its squares of pixels (resize.h).  The upscaler is
 * told the small image, enlarged again and mixed with a fixed share of noise (told.h), so that it
 * tolerates differences between the base's images and the data.  A sampler does the same to the
 * base's images.  Each chain draws the times, noise and dropout of a sample from a stream of its
 * own.
 *
 * If both chains begin on one device, a caption is encoded once for both.  Each chain drops
 * captions by itself, so one that the base has dropped and the upscaler has not is encoded besides.
 *
 * STUDENTS.  With net_options.distill both chains learn from teachers of two chains (distill.h);
 * such a network is not cut.
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

extern const struct net_ops cascade_net_ops, cascade_student_ops;

/* Random streams of the upscaler's own draws, of the noise in the image that it is told, and of
 * that in the image which a router is told (worker/engine/mixture.h). */
enum {
    CASCADE_STREAM_UPSCALER = 0x757073,
    CASCADE_STREAM_TOLD = 0x746f6c64,
    CASCADE_STREAM_ROUTED = 0x726f7574
};

/* For samplers (cascade_sample.h): the DiT of the base (0) or of the upscaler (1). */
struct dit *cascade_chain(struct net *net, int chain);

#endif
