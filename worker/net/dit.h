/* A DiT on a device, or a router, which is a DiT with a classification token: its weights
 * and one planned arena of activations.  It runs forward and, if made for training, backward;
 * whole or in parts, for one micro-batch or several (worker/net/net.h).
 * It uses the device only through the table of kernels/kernels.h, and knows no objective:
 * those are in worker/net/image_net.c.
 *
 * With NET_FORWARD the activations of all blocks share their memory.
 *
 * All calls on the compute thread of the device.  A kernel's error leaves
 * the weights as they were and the activations undefined.  dit_forward and
 * dit_backward only queue work on the weights' stream. */
#ifndef WORKER_DIT_H
#define WORKER_DIT_H

#include "common/base/base.h"
#include "kernels/kernels.h"
#include "worker/net/arena.h"
#include "worker/net/net.h"

struct dit;

/* The inputs and outputs of a pass over B samples, all in device memory. */
struct dit_io {
    int B;                  /* at most batch */
    int shape;              /* the shape of all samples (model_shape); S x S below stands for it */
    const float *x;         /* (B,Ch,S,S); need not stay for the backward */
    const float *estimate;  /* as x: the image's estimate, if the model reads one; NULL: none */
    const float *t;         /* (B) times in [0,1] */
    const int32_t *labels;  /* (B) in [0, classes], classes being the null label; NULL: a router,
                             * or there are captions: */
    const void *states;     /* (B,L,D) (dt); must stay for the backward */
    const int32_t *lengths; /* (B) tokens of each, 1..L; states of later tokens are not used, but
                             * must be finite */
    float *pred;            /* = (B,Ch,S,S) the velocity at x; a router: (B,classes) logits */
    const float *dpred;     /* for the backward: the loss's derivative by pred */
};

/* Device bytes that dit_new takes besides the weights and gradients. */
uint64_t dit_bytes(const struct model *m, const struct net_options *opt, enum dtype dt);

/* m is borrowed until dit_free.  Weights are undefined until weights_set. */
int dit_new(struct device *dev, const struct model *m, const struct net_options *opt,
            struct dit **ret, struct err *err);
/* The same for one chain of a model, on the weights of the whole model, which stay the caller's. */
int dit_new_within(const struct weights *whole, const struct model *chain,
                   const struct net_options *opt, struct dit **ret, struct err *err);
void dit_free(struct dit *d); /* accepts NULL */

/* Its weights, with the device and stream that it works on; its largest B. */
struct weights *dit_weights(struct dit *d);
int dit_batch(const struct dit *d);

/* One part (NULL: the whole) of the micro-batch in a slot.  Only the first part reads x, estimate,
 * t and labels, and only the last one writes pred.  backward comes after the same part's forward
 * and reads dpred and the labels or states; with `first` it overwrites the gradients of matrices,
 * else it adds to them (weights_zero_grads clears the others). */
int dit_forward(struct dit *d, const struct model_part *part, int slot, const struct dit_io *io,
                struct err *err);
int dit_backward(struct dit *d, const struct model_part *part, int slot, const struct dit_io *io,
                 bool first, struct err *err);

/* net_crossing for a micro-batch of io's size and shape. */
#define DIT_PIECES_MAX 4
int dit_crossing(const struct dit *d, enum net_way way, int block, int slot,
                 const struct dit_io *io, struct net_piece ret[DIT_PIECES_MAX]);

/* The residual stream after the last block in the last forward of slot 0, (B,T,C) f32, where T is
 * that of its shape. */
void dit_hidden(const struct dit *d, struct net_hidden *ret);

#endif
