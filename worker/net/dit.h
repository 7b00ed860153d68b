/* A DiT on a device, or a router, which is one with a classification token: its weights
 * and one planned arena of activations, able to run forward and, when made for
 * training, backward.  Speaks to the device only through the table of
 * kernels/kernels.h.  Objectives are in worker/dit_net.h and worker/net/router_net.c.
 *
 * With NET_FORWARD the activations of all blocks share their memory.
 *
 * All calls on the compute thread of the device.  An error of a kernel leaves
 * the weights as they were and the activations undefined.  dit_forward and
 * dit_backward only queue work on dit_stream; dit_sync waits for it. */
#ifndef WORKER_DIT_H
#define WORKER_DIT_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "worker/net/arena.h"
#include "worker/net/net.h"

struct err;

struct dit;

struct dit_options {
    enum net_mode mode;
    enum net_precision precision;
    int batch; /* largest number of samples of one call */
};

/* Bytes that dit_new takes on the device beyond the weights and gradients. */
uint64_t dit_bytes(const struct model *m, const struct dit_options *opt, enum dtype dt);

/* m is borrowed until dit_free.  Weights are undefined until weights_set. */
int dit_new(struct device *dev, const struct model *m, const struct dit_options *opt,
            struct dit **ret, struct err *err);
void dit_free(struct dit *d); /* accepts NULL */

struct weights *dit_weights(struct dit *d);
const struct model *dit_model(const struct dit *d);
struct device *dit_device(const struct dit *d);
int dit_batch(const struct dit *d);
struct stream *dit_stream(const struct dit *d);

int dit_sync(struct dit *d, struct err *err);

/* pred (B,3,S,S) = velocity at x (B,3,S,S), time t (B) in [0,1], labels (B) in
 * [0, classes], classes being the null label.  A router has no labels (NULL) and its
 * pred is (B,classes) logits.  All device pointers, B <= batch.  For the backward x need
 * not live on. */
int dit_forward(struct dit *d, float *pred, const float *x, const float *t, const int32_t *labels,
                int B, struct err *err);

/* Gradients of a loss whose derivative by pred is dpred, of its shape.  labels as in
 * the forward that came directly before.  first: gradients =, else +=. */
int dit_backward(struct dit *d, const float *dpred, const int32_t *labels, int B, bool first,
                 struct err *err);

/* The residual stream after the last block of the last forward, (B,T,C) f32. */
void dit_hidden(const struct dit *d, struct net_hidden *ret);

#endif
