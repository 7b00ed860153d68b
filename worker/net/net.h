/* A network with its objective on a device: the interface to a model for training,
 * evaluation and features.  The kinds behind it:
 *
 *   dit      flow matching of images (MODEL_DIT)                    worker/net/image_net.c
 *   router   the partition that a noised image is from (MODEL_ROUTER)  worker/net/image_net.c
 *   llama    next token of texts (MODEL_LLAMA)                      worker/net/llama.c
 *   cascade  two dits: one draws small images and the other enlarges them
 *                                                                   worker/net/cascade.c
 *   student  a dit or cascade that learns from others               worker/net/distill.c
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
 * QUEUEING.  net_loss does three things; training calls them one by one, so that a whole step
 * is queued before the host waits:
 *
 *     net_load(net, &batch, grad_scale, err);        // checks, and one copy to the device
 *     net_forward(net, NULL, 0, &micro, err);        // a micro-batch of what was loaded
 *     net_backward(net, NULL, 0, err);
 *     net->d_losses                                  // of all samples, on the device
 *
 * PARTS AND SLOTS.  A part is a run of blocks; the first one has the embedding too and the last
 * one the head and the loss.  A slot holds the activations of one micro-batch, from the forward
 * of its first part to the backward of its first part, and what crosses between parts.  With
 * several slots the parts of several micro-batches may be interleaved:
 *
 *     net_forward(net, &first, 0, ..)   net_forward(net, &first, 1, ..)
 *     net_forward(net, &last, 0, ..)    net_backward(net, &last, 0, ..)    ...
 *
 * gives the same bits as one micro-batch after the other, as long as each part takes them in the
 * same order (except with tied heads, whose gradients both the first part and the last add to).  A
 * network on one device is one part (NULL) with one slot (0).
 *
 * PIPELINES.  A network made of one part of a model (model_part_new) has memory and weights for
 * only that part.  Several of them, each on a device of its own, are one network: each loads the
 * same batch, and the pieces of net_crossing go from one to the next after a forward, and back
 * after a backward.
 *
 * SPLIT.  A network made with opt.split leaves most gradients of weights out of its backward:
 * net_weights makes them from the slot's contents, at any time before the slot is used again.  The
 * bits are the same if its calls take the micro-batches in the same order, too.
 *
 * SELF-CONDITIONING (Chen et al., "Analog Bits", 2023).  A model that reads an estimate of the
 * image gets none, or, if the batch says so (batch.estimate), the one that a forward without
 * gradients has just made.  In several parts these forwards come first (net_micro.estimates), and
 * the last part's velocities go to the first part (net_velocities) before the micro-batch's
 * forward.
 *
 * RANDOMNESS.  All random draws for sample i (time, noise, label dropout) are a function
 * of (batch.seed, batch.keys[i]), and depend on no thread, batch size or order.
 *
 * A new kind embeds struct net as its first member, fills a struct net_ops, and is named in
 * net.c.  All calls on the compute thread of the device. */
#ifndef WORKER_NET_H
#define WORKER_NET_H

#include "common/base/base.h"
#include "worker/net/batch.h"
#include "worker/model/model.h"
#include "worker/model/weights.h"

struct net;

#define NET_SLOTS_MAX 64

enum net_mode {
    NET_FORWARD,   /* no gradients */
    NET_TRAIN,     /* keeps what the backward needs, except what it makes again in passing */
    NET_LEAN,      /* a DiT keeps the input of each MLP's GELU but not its output (a llama keeps
                    * both).  In bf16 the output is made again from the rounded input */
    NET_RECOMPUTE, /* keeps little and runs each block's forward twice */
};

enum net_precision {
    NET_AUTO, /* bf16 where the device is faster with it, else f32 */
    NET_BF16,
    NET_F32,
};

struct frozen;

/* The inputs that frozen networks encode for a net of images. */
enum net_encoder { NET_IMAGES, NET_CAPTIONS, NET_ENCODERS };

/* The frozen networks of a device before a net of images: they turn pixels into moments of latents,
 * and token ids into states.  Filled by their owner; borrowed until the last net made with it is
 * freed.
 *
 * net_load calls the functions on the device's thread, with at most as many samples as it
 * loads; their results are complete when they return.  The states and moments of a sample
 * must not depend on the samples beside it. */
struct net_encoders {
    void *arg;
    /* d_moments (count,2,Ch,s,s) = those of images (count,pixels,pixels,3), host, with shapes as in
     * a batch; a run of one shape lies densely (flow_matching.h).  NULL: the network reads pixels,
     * or every batch brings its moments. */
    int (*images)(void *arg, const uint8_t *images, const uint8_t *shapes, unsigned count,
                  bf16 *d_moments, struct err *err);
    /* d_states (count,L,D) (dt) = those of tokens (count,L) with lengths (count), host.  NULL:
     * there are no captions. */
    int (*captions)(void *arg, const int32_t *tokens, const int32_t *lengths, unsigned count,
                    void *d_states, struct err *err);
    unsigned pixels; /* side of the images that batches bring */
    /* (Ch) each: the network reads latents as (z - shift) * scale; NULL: it reads pixels. */
    const float *shift, *scale;
    /* The caption "", which stands for a dropped one: (null_length) ids, padded with null_pad. */
    const int32_t *null_tokens;
    int32_t null_length, null_pad;
    enum dtype dt;  /* type of the states: the network's */
    uint64_t bytes; /* device memory of the frozen networks */
    /* To run a network in pieces (worker/frozen/frozen_walk.h): *ret is valid until close.  NULL:
     * they are not run in pieces. */
    int (*open)(void *arg, enum net_encoder which, struct frozen **ret, struct err *err);
    /* Once for each open; the last one frees the network's device memory. */
    void (*close)(void *arg, enum net_encoder which);
    bool fly;            /* images come as pixels, and are encoded in each step */
    bool made;           /* the functions give what was encoded before, only for a whole load */
    uint64_t hold_bytes; /* bytes per sample between two layers, of both networks */
};

/* Encoded captions whose numbers are the labels where velocities are asked for by label (dit_rows,
 * mixtures, samplers).  The last one stands for the null label. */
struct net_captions {
    int n;
    const void *states;     /* (n,L,D) (dt) on the device */
    const int32_t *lengths; /* (n) on the host */
};

struct net_options {
    enum net_mode mode;
    enum net_precision precision;
    int batch;                           /* most images or rows of text in a micro-batch */
    int load;                            /* most of them in one net_load; 0: batch */
    int slots;                           /* micro-batches in flight; 0: 1 */
    int slots_upscaler;                  /* the same for an upscaler's chain; 0: as slots */
    bool split;                          /* NET_TRAIN: net_weights follows each net_backward */
    bool uniform_t;                      /* images: else logit-normal */
    float shift;                         /* images: of the times (flow_matching.h); 0: none */
    double label_dropout;                /* images: share of labels replaced by the null label */
    bool distill;                        /* images: learn from teachers (worker/net/distill.h) */
    const struct net_encoders *encoders; /* for latents and captions; else NULL */
};

static inline unsigned net_load_most(const struct net_options *opt)
{
    return (unsigned)(opt->load > opt->batch ? opt->load : opt->batch);
}
/* Does each block use the same memory as the block before it? */
static inline bool net_shares_blocks(enum net_mode mode)
{
    return mode == NET_FORWARD || mode == NET_RECOMPUTE;
}
static inline int net_slots(const struct net_options *opt)
{
    return opt->slots > 1 ? opt->slots : 1;
}

/* Samples [from, from+count) of what was loaded; count <= opt.batch; all of one shape (batch_run).
 */
struct net_micro {
    unsigned from, count;
    bool first;    /* the first of its step: gradients =, else += */
    bool backward; /* a backward follows */
    /* A forward in parts, without a loss, that makes the velocities for the estimate. */
    bool estimates;
};

/* The direction of a crossing between parts: activations after a forward; gradients after a
 * backward. */
enum net_way { NET_UP, NET_DOWN };
#define NET_PIECES_MAX 5

/* A run of device memory. */
struct net_piece {
    void *x;
    size_t bytes;
};

/* Where results go: host memory of the caller; NULL: not wanted. */
struct net_result {
    float *losses; /* (count), texts (count,seq): 0 where there is no target */
    int32_t *best; /* (count) most probable class; routers only */
    float *base;   /* (count) the base's part of the losses; networks with an upscaler only */
};

/* Hidden states: device memory, valid until the net's next call. */
struct net_hidden {
    const void *x; /* (count,T,C) (dt) after the last block; texts: after the final norm */
    enum dtype dt;
    int T, C;
};

struct net_ops {
    /* Device bytes of everything except the weights and gradients. */
    uint64_t (*bytes)(const struct model *m, const struct net_options *opt, enum dtype dt);
    /* Sets all of struct net except its name; m is borrowed. */
    int (*make)(struct device *dev, const struct model *m, const struct net_options *opt,
                struct net **ret, struct err *err);
    void (*free)(struct net *n);
    int (*load)(struct net *n, const struct batch *b, struct err *err);
    /* forward and backward only queue work; part is never NULL. */
    int (*forward)(struct net *n, const struct model_part *part, int slot,
                   const struct net_micro *micro, struct err *err);
    int (*backward)(struct net *n, const struct model_part *part, int slot,
                    const struct net_micro *micro, struct err *err);
    /* NULL: there is one chain. */
    struct net *(*chain)(struct net *n, int chain);
    /* NULL: the kind cannot be cut, though its chains may be. */
    int (*crossing)(struct net *n, enum net_way way, int block, int slot,
                    const struct net_micro *micro, struct net_piece *ret);
    /* NULL: it reads no estimate. */
    struct net_piece (*velocities)(struct net *n, const struct net_micro *micro);
    /* forward and backward can be recorded: the arguments of all the work that they queue follow
     * from their own arguments, the loaded batch's numbers and device memory. */
    bool graphs;
    /* (count) the most probable classes of the last queued forward; waits.  NULL: no classes. */
    int (*best)(struct net *n, unsigned count, int32_t *ret, struct err *err);
    /* NULL: weights_set does it. */
    int (*set)(struct net *n, const float *flat, struct err *err);
    /* NULL: the kind has no states. */
    int (*hidden)(struct net *n, const struct batch *b, struct net_hidden *ret, struct err *err);
};

struct net {
    const struct net_ops *ops;
    const char *name;        /* "dit", "student" */
    struct weights *weights; /* belongs to the net */
    struct net_options opt;
    const float *d_base; /* the base's part of d_losses; NULL: there is no upscaler */
    float *d_losses;     /* (load) or (load,seq) device: losses of what was loaded and queued */
    struct batch loaded; /* the last net_load's batch; its pointers may dangle */
    float grad_scale;    /* the last net_load's */
    struct net_micro micro[NET_SLOTS_MAX];
    struct weights_later later[NET_SLOTS_MAX]; /* the work left to net_weights */
};

/* The network of m->spec.kind. */
int net_new(struct device *dev, const struct model *m, const struct net_options *opt,
            struct net **ret, struct err *err);
void net_free(struct net *n); /* accepts NULL */
/* All weights, from a host flat vector of the model. */
int net_set(struct net *n, const float *flat, struct err *err);

/* bf16 or f32: what the precision means on this device. */
static inline enum dtype net_dtype(const struct device *dev, enum net_precision p)
{
    return p == NET_BF16 || (p == NET_AUTO && dev->fast_bf16) ? DT_BF16 : DT_F32;
}
/* Total device bytes, encoders included. */
uint64_t net_bytes(const struct model *m, const struct net_options *opt, enum dtype dt);

/* Losses of a batch of one shape, count <= opt.batch, and with `backward` gradients.  Waits for the
 * device.  An error leaves the weights as they were and the gradients undefined. */
int net_loss(struct net *n, const struct batch *b, bool first, float grad_scale, bool backward,
             struct net_result *ret, struct err *err);

/* Loads a batch, count <= net_load_most; the stream must have been waited for since the last load.
 * The batch is not needed afterwards. */
int net_load(struct net *n, const struct batch *b, float grad_scale, struct err *err);
/* The last part's forward also makes the losses and, if a backward follows, does the part of it
 * that needs what is not kept. */
int net_forward(struct net *n, const struct model_part *part, int slot,
                const struct net_micro *micro, struct err *err);
/* After the same part's forward in this slot, and the later parts' backward. */
int net_backward(struct net *n, const struct model_part *part, int slot, struct err *err);
/* With opt.split: makes the gradients that the backward of the slot's micro-batch left out. */
int net_weights(struct net *n, int slot, struct err *err);

/* One chain of a network of two (worker/net/cascade.h), with its part, slots and losses: it runs
 * forward and backward by itself once the whole is loaded.  NULL: the model has no part of it.  For
 * any other network, the network itself. */
struct net *net_chain(struct net *n, int chain);

/* Can such a network be made of parts? */
bool net_has_parts(const struct model *m, const struct net_options *opt);

/* The pieces of a slot's micro-batch that cross between the part that ends before a block and the
 * part that begins with it: device memory of this network, which the one side writes and the other
 * reads.  Returns their number, at most NET_PIECES_MAX; sizes are equal on both sides. */
int net_crossing(struct net *n, enum net_way way, int block, int slot,
                 const struct net_micro *micro, struct net_piece ret[NET_PIECES_MAX]);

/* For a network in parts that reads an estimate: the velocities of a loaded micro-batch, which the
 * last part's forward writes and from which the first part makes the estimate. */
struct net_piece net_velocities(struct net *n, const struct net_micro *micro);

/* The hidden states of a batch of one shape.  -ERR_UNIMPLEMENTED: the kind has none. */
int net_hidden(struct net *n, const struct batch *b, struct net_hidden *ret, struct err *err);

/* The sizes of a sample in batches for a net of m. */
struct batch_sizes net_batch_sizes(const struct model *m, const struct net_options *opt);

/* The part of the model that a network of m has. */
static inline struct model_part net_part_of(const struct model *m)
{
    return m->part.to > 0 ? m->part : (struct model_part){0, m->spec.depth};
}

/* Does a chain of the model begin in this part, so that it reads captions and pictures? */
bool net_reads(const struct model *m);

/* The model that the net was made of, and the device that it works on. */
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
