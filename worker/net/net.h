/* A network with its objective on a device: what training, evaluation and features
 * know of a model.  Behind it stand (model kind in parentheses)
 *
 *   dit      flow matching of images (MODEL_DIT)                 worker/net/dit_net.c
 *   router   which partition a noised image is from (MODEL_ROUTER)  worker/net/router_net.c
 *   llama    next token of texts (MODEL_LLAMA)                   worker/llama_net.c
 *   distill  a dit that learns from other dits                   worker/net/distill.c
 *
 *     net_new(dev, model, &opt, &net, err);
 *     weights_set(net->weights, flat, err);
 *     net_loss(net, &batch, first, grad_scale, true, &result, err);   // gradients in weights->g
 *     net_free(net);
 *
 * LOSS.  A batch has units: images, or the targets of texts.  Each unit has a loss;
 * gradients are those of  grad_scale * sum of the losses,  so grad_scale = 1 / units
 * of the whole step makes a mean, however the step is cut into calls.
 *
 * QUEUEING.  net_loss is three things that training does one by one, so that a whole step is
 * on its way before the host waits:
 *
 *     net_load(net, &batch, grad_scale, err);           // checks, and one copy to the device
 *     net_queue(net, from, count, first, true, err);    // micro-batches of what was loaded
 *     net->d_losses                                     // of all samples, on the device
 *
 * RANDOMNESS.  All that is drawn for sample i (time, noise, label dropout) is a
 * function of (batch.seed, batch.keys[i]): of no thread, batch size or order.
 *
 * A new kind: embed struct net as the first member, fill a struct net_ops, name it in
 * net.c.  All calls on the compute thread of the device. */
#ifndef WORKER_NET_H
#define WORKER_NET_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/net/batch.h"
#include "worker/net/model.h"
#include "worker/net/weights.h"

struct err;
struct net;

enum net_mode {
    NET_FORWARD,   /* no gradients */
    NET_TRAIN,     /* keeps what the backward needs */
    NET_RECOMPUTE, /* keeps little and runs each block's forward twice */
};

enum net_precision {
    NET_AUTO, /* bf16 where the device is faster with it, else f32 */
    NET_BF16,
    NET_F32,
};

struct net_options {
    enum net_mode mode;
    enum net_precision precision;
    int batch;            /* images or rows of text of one call, at most */
    int load;             /* those of one net_load, at most; 0: batch */
    bool uniform_t;       /* images: else logit-normal */
    double label_dropout; /* images: share of labels replaced by the null label */
    bool distill;         /* images: learn from teachers (worker/net/distill.h) */
};

/* Where results go, host memory of the caller; NULL: not wanted. */
struct net_result {
    float *losses; /* (count), texts (count,seq): 0 where there is no target */
    int32_t *best; /* (count) most probable class; routers only */
};

/* Mean states: device memory, valid until the net's next call. */
struct net_hidden {
    const void *x; /* (count,T,C) (dt): after the last block; texts: after the final norm */
    enum dtype dt;
    int T, C;
};

struct net_ops {
    const char *name; /* "dit" */
    /* Device bytes of everything but the weights and gradients. */
    uint64_t (*bytes)(const struct model *m, const struct net_options *opt, enum dtype dt);
    /* base.ops, base.opt, base.weights and base.d_losses are set by make; m is borrowed. */
    int (*make)(struct device *dev, const struct model *m, const struct net_options *opt,
                struct net **ret, struct err *err);
    void (*free)(struct net *n);
    int (*load)(struct net *n, const struct batch *b, struct err *err);
    int (*queue)(struct net *n, unsigned from, unsigned count, bool first, bool backward,
                 struct err *err);
    /* queue only queues work whose arguments follow from its own, from the loaded batch's
     * numbers and from device memory: it can be recorded. */
    bool graphs;
    /* (count) most probable class of what was queued last; waits.  NULL: there are no classes. */
    int (*best)(struct net *n, unsigned count, int32_t *ret, struct err *err);
    /* NULL: the kind has none. */
    int (*hidden)(struct net *n, const struct batch *b, struct net_hidden *ret, struct err *err);
};

struct net {
    const struct net_ops *ops;
    struct weights *weights; /* belongs to the net */
    struct net_options opt;
    float *d_losses;     /* (load) or (load,seq) device: of what was loaded and queued */
    struct batch loaded; /* the last net_load's; what it points to may be gone */
    float grad_scale;    /* its */
};

/* The network of m->spec.kind. */
int net_new(struct device *dev, const struct model *m, const struct net_options *opt,
            struct net **ret, struct err *err);
void net_free(struct net *n); /* accepts NULL */

/* bf16 or f32, as NET_AUTO and this device mean it. */
enum dtype net_dtype(const struct device *dev, enum net_precision p);
/* Device bytes in all. */
uint64_t net_bytes(const struct model *m, const struct net_options *opt, enum dtype dt);

static inline unsigned net_load_most(const struct net_options *opt)
{
    return (unsigned)(opt->load > opt->batch ? opt->load : opt->batch);
}

/* count <= opt.batch.  Waits for the device.  An error leaves the weights as they were;
 * gradients are then undefined. */
int net_loss(struct net *n, const struct batch *b, bool first, float grad_scale, bool backward,
             struct net_result *ret, struct err *err);

/* count <= net_load_most.  The stream must have been waited for since the last load; the batch
 * is not needed any more. */
int net_load(struct net *n, const struct batch *b, float grad_scale, struct err *err);
/* Losses and, with backward, gradients = (first) or += of samples [from, from+count) of what
 * was loaded; count <= opt.batch. */
int net_queue(struct net *n, unsigned from, unsigned count, bool first, bool backward,
              struct err *err);
/* -ERR_UNIMPLEMENTED where the kind has no states. */
int net_hidden(struct net *n, const struct batch *b, struct net_hidden *ret, struct err *err);

static inline const struct model *net_model(const struct net *n)
{
    return n->weights->m;
}
static inline struct device *net_device(const struct net *n)
{
    return n->weights->dev;
}

/* The kinds.  (llama_net_ops: worker/net/llama.h) */
extern const struct net_ops dit_net_ops, router_net_ops;

#endif
