/* A DiT on a device: its weights and one planned arena of activations, able to
 * run forward and, when made for training, backward.  Speaks to the device only
 * through the table of kernels/kernels.h.
 *
 * Make one with DIT_FORWARD for sampling and evaluation (activations of all
 * blocks share their memory), or let struct trainer (worker/train.h) own one.
 *
 * All calls on the compute thread of the device.  An error of a kernel leaves
 * the weights as they were and the activations undefined.  dit_forward and
 * dit_backward only queue work on dit_stream; dit_sync waits for it. */
#ifndef WORKER_DIT_H
#define WORKER_DIT_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "worker/arena.h"
#include "worker/model.h"

struct err;

enum dit_mode {
    DIT_FORWARD,   /* no gradients */
    DIT_TRAIN,     /* keeps what the backward needs */
    DIT_RECOMPUTE, /* keeps little and runs each block's forward twice */
};

enum dit_precision {
    DIT_AUTO, /* bf16 where the device is faster with it, else f32 */
    DIT_BF16,
    DIT_F32,
};

struct dit;

struct dit_options {
    enum dit_mode mode;
    enum dit_precision precision;
    int batch; /* largest number of samples of one call */
};

/* Bytes that dit_new will take on the device. */
struct dit_memory {
    uint64_t weights; /* f32, and the bf16 copy */
    uint64_t gradients;
    uint64_t activations; /* the arena */
};
void dit_memory(const struct model *m, const struct dit_options *opt, bool use_bf16,
                struct dit_memory *ret);

/* m is borrowed until dit_free.  Weights are undefined until dit_set. */
int dit_new(struct device *dev, const struct model *m, const struct dit_options *opt,
            struct dit **ret, struct err *err);
void dit_free(struct dit *d); /* accepts NULL */

/* All weights, from or to a host flat vector (see worker/model.h). */
int dit_set(struct dit *d, const float *flat, struct err *err);
int dit_get(struct dit *d, float *flat, struct err *err);

/* After writing weights on the device: refresh the copy that computes. */
int dit_weights_changed(struct dit *d, struct err *err);

const struct model *dit_model(const struct dit *d);
struct device *dit_device(const struct dit *d);
int dit_batch(const struct dit *d);
struct stream *dit_stream(const struct dit *d);
bool dit_is_bf16(const struct dit *d);
/* Device pointers, flat layout. */
float *dit_weights(struct dit *d);
bf16 *dit_weights_bf16(struct dit *d); /* NULL in f32 */
float *dit_gradients(struct dit *d);   /* NULL in DIT_FORWARD */

int dit_sync(struct dit *d, struct err *err);

/* pred (B,3,S,S) = velocity at x (B,3,S,S), time t (B) in [0,1], labels (B) in
 * [0, classes], classes being the null label.  All device pointers, B <= batch.
 * For the backward x need not live on. */
int dit_forward(struct dit *d, float *pred, const float *x, const float *t, const int32_t *labels,
                int B, struct err *err);

/* Gradients of a loss whose derivative by pred is dpred (B,3,S,S).  labels as in
 * the forward that came directly before.  first: gradients =, else +=. */
int dit_backward(struct dit *d, const float *dpred, const int32_t *labels, int B, bool first,
                 struct err *err);

#endif
