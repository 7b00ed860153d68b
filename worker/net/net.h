/* A network with its objective on a device: what training, evaluation and features
 * know of a model.  Behind it stand, by model kind,
 *
 *   dit      flow matching of images (MODEL_DIT)                    worker/net/image_net.c
 *   router   which partition a noised image is from (MODEL_ROUTER)  worker/net/image_net.c
 *   llama    next token of texts (MODEL_LLAMA)                      worker/net/llama.c
 *   cascade  two dits, of which one draws small images and the other enlarges them
 *                                                                   worker/net/cascade.c
 *   student  a dit that learns from other dits                      worker/net/distill.c
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
 * makes the bits of one micro-batch after the other, as long as each part takes them in the same
 * order (but for tied heads, whose gradients the first part and the last add to).  A network on
 * one device is one part (NULL) with one slot (0).
 *
 * PIPELINES.  A network made of one part of a model (model_part_new) has memory and weights for
 * that part alone.  Several such, on devices of their own, are one network: each loads the same
 * batch, and what net_crossing names goes from one to the next after a forward, and back after a
 * backward.
 *
 * SPLIT.  A network made with opt.split leaves most gradients of weights out of its backward:
 * net_weights makes them, from what the slot holds, at any time before the slot is used again.  The
 * bits are the same if micro-batches come in the same order there, too.
 *
 * SELF-CONDITIONING (Chen et al., "Analog Bits", 2023).  A model that reads an estimate of the
 * image is told none, or, where a batch says so, the one that a forward without gradients has just
 * made.  In several parts the forwards that make them come first (net_micro.estimates), and what
 * the last part found goes to the first one (net_velocities) before the micro-batch's forward.
 *
 * RANDOMNESS.  All that is drawn for sample i (time, noise, label dropout) is a
 * function of (batch.seed, batch.keys[i]): of no thread, batch size or order.
 *
 * A new kind: embed struct net as the first member, fill a struct net_ops, name it in
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
    NET_TRAIN,     /* keeps what the backward needs, but for what it makes again in passing */
    NET_LEAN,      /* keeps an MLP's input of the GELU but not its output: of a DiT (a llama keeps
                    * both).  In bf16 the output is made again from the rounded input */
    NET_RECOMPUTE, /* keeps little and runs each block's forward twice */
};

enum net_precision {
    NET_AUTO, /* bf16 where the device is faster with it, else f32 */
    NET_BF16,
    NET_F32,
};

struct frozen;

/* What the frozen networks before a net of images encode. */
enum net_encoder { NET_IMAGES, NET_CAPTIONS, NET_ENCODERS };

/* The frozen networks of a device that stand before a net of images: what turns pixels into the
 * moments of latents and token ids into states.  Filled by whoever has them; borrowed until the
 * last net made with it is freed.
 *
 * The functions are called by net_load, on the device's thread, with at most as many samples as
 * are loaded; what they write is there when they return.  The states and moments of a sample
 * must not depend on the samples beside it. */
struct net_encoders {
    void *arg;
    /* d_moments (count,2,Ch,s,s) = of images (count,pixels,pixels,3), host, of these shapes as in a
     * batch; those of a run of one shape densely behind each other (flow_matching.h).  NULL: the
     * network reads pixels, or every batch brings its moments. */
    int (*images)(void *arg, const uint8_t *images, const uint8_t *shapes, unsigned count,
                  bf16 *d_moments, struct err *err);
    /* d_states (count,L,D) (dt) = of tokens (count,L) and lengths (count), host.  NULL: there are
     * no captions. */
    int (*captions)(void *arg, const int32_t *tokens, const int32_t *lengths, unsigned count,
                    void *d_states, struct err *err);
    unsigned pixels; /* side of the images that batches bring */
    /* Latents: (Ch) each, the network's are (z - shift) * scale; NULL: it reads pixels. */
    const float *shift, *scale;
    /* The caption "", which stands for a dropped one: (null_length) ids, padded with null_pad. */
    const int32_t *null_tokens;
    int32_t null_length, null_pad;
    enum dtype dt;  /* of the states: that of the network */
    uint64_t bytes; /* that they take on the device */
    /* For whoever runs them in pieces (worker/frozen/frozen_walk.h): the network itself, until
     * close; NULL: nobody does. */
    int (*open)(void *arg, enum net_encoder which, struct frozen **ret, struct err *err);
    /* Once for each open: the device's memory is free where nobody else has the network. */
    void (*close)(void *arg, enum net_encoder which);
    bool fly;            /* images come as pixels, and are encoded in each step */
    bool made;           /* they give what was encoded before, of all that is loaded alone */
    uint64_t hold_bytes; /* that a sample takes between two layers of both */
};

/* Encoded captions that labels are numbers of, where velocities are asked for by label (dit_rows,
 * mixtures, samplers).  The last one stands for the null label. */
struct net_captions {
    int n;
    const void *states;     /* (n,L,D) (dt) on the device */
    const int32_t *lengths; /* (n) on the host */
};

struct net_options {
    enum net_mode mode;
    enum net_precision precision;
    int batch;                           /* images or rows of text of one micro-batch, at most */
    int load;                            /* those of one net_load, at most; 0: batch */
    int slots;                           /* micro-batches in flight; 0: 1 */
    int slots_upscaler;                  /* the same of an upscaler's chain; 0: as slots */
    bool split;                          /* NET_TRAIN: net_weights follows each net_backward */
    bool uniform_t;                      /* images: else logit-normal */
    double label_dropout;                /* images: share of labels replaced by the null label */
    bool distill;                        /* images: learn from teachers (worker/net/distill.h) */
    const struct net_encoders *encoders; /* images of latents, captions; else NULL */
};

static inline unsigned net_load_most(const struct net_options *opt)
{
    return (unsigned)(opt->load > opt->batch ? opt->load : opt->batch);
}
/* Does a block compute where the one before it has computed? */
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
    bool first;    /* its step's first: gradients =, else += */
    bool backward; /* a backward follows */
    /* A forward of parts without loss, which makes the velocities of the estimate. */
    bool estimates;
};

/* What crosses between parts: after a forward; gradients, after a backward. */
enum net_way { NET_UP, NET_DOWN };
#define NET_PIECES_MAX 5

/* A run of device memory. */
struct net_piece {
    void *x;
    size_t bytes;
};

/* Where results go, host memory of the caller; NULL: not wanted. */
struct net_result {
    float *losses; /* (count), texts (count,seq): 0 where there is no target */
    int32_t *best; /* (count) most probable class; routers only */
    float *base;   /* (count) the base's part of them; a network with an upscaler only */
};

/* Mean states: device memory, valid until the net's next call. */
struct net_hidden {
    const void *x; /* (count,T,C) (dt): after the last block; texts: after the final norm */
    enum dtype dt;
    int T, C;
};

struct net_ops {
    /* Device bytes of everything but the weights and gradients. */
    uint64_t (*bytes)(const struct model *m, const struct net_options *opt, enum dtype dt);
    /* All of base but name is set by make; m is borrowed. */
    int (*make)(struct device *dev, const struct model *m, const struct net_options *opt,
                struct net **ret, struct err *err);
    void (*free)(struct net *n);
    int (*load)(struct net *n, const struct batch *b, struct err *err);
    /* Both only queue; part is never NULL. */
    int (*forward)(struct net *n, const struct model_part *part, int slot,
                   const struct net_micro *micro, struct err *err);
    int (*backward)(struct net *n, const struct model_part *part, int slot,
                    const struct net_micro *micro, struct err *err);
    /* NULL: there is one chain. */
    struct net *(*chain)(struct net *n, int chain);
    /* NULL: the kind cannot be cut, but for its chains. */
    int (*crossing)(struct net *n, enum net_way way, int block, int slot,
                    const struct net_micro *micro, struct net_piece *ret);
    /* NULL: it is told no estimate. */
    struct net_piece (*velocities)(struct net *n, const struct net_micro *micro);
    /* The two queue nothing but work whose arguments follow from their own, from the loaded
     * batch's numbers and from device memory: it can be recorded. */
    bool graphs;
    /* (count) most probable class of what was queued last; waits.  NULL: there are no classes. */
    int (*best)(struct net *n, unsigned count, int32_t *ret, struct err *err);
    /* NULL: by weights_set. */
    int (*set)(struct net *n, const float *flat, struct err *err);
    /* NULL: the kind has none. */
    int (*hidden)(struct net *n, const struct batch *b, struct net_hidden *ret, struct err *err);
};

struct net {
    const struct net_ops *ops;
    const char *name;        /* "dit", "student" */
    struct weights *weights; /* belongs to the net */
    struct net_options opt;
    const float *d_base; /* of d_losses the base's part; NULL: there is no upscaler */
    float *d_losses;     /* (load) or (load,seq) device: of what was loaded and queued */
    struct batch loaded; /* the last net_load's; what it points to may be gone */
    float grad_scale;    /* its */
    struct net_micro micro[NET_SLOTS_MAX];
    struct weights_later later[NET_SLOTS_MAX]; /* what net_weights is to do */
};

/* The network of m->spec.kind. */
int net_new(struct device *dev, const struct model *m, const struct net_options *opt,
            struct net **ret, struct err *err);
void net_free(struct net *n); /* accepts NULL */
/* All weights, from a host flat vector of the model. */
int net_set(struct net *n, const float *flat, struct err *err);

/* bf16 or f32, as NET_AUTO and this device mean it. */
static inline enum dtype net_dtype(const struct device *dev, enum net_precision p)
{
    return p == NET_BF16 || (p == NET_AUTO && dev->fast_bf16) ? DT_BF16 : DT_F32;
}
/* Device bytes in all, encoders included. */
uint64_t net_bytes(const struct model *m, const struct net_options *opt, enum dtype dt);

/* count <= opt.batch, of one shape.  Waits for the device.  An error leaves the weights as they
 * were; gradients are then undefined. */
int net_loss(struct net *n, const struct batch *b, bool first, float grad_scale, bool backward,
             struct net_result *ret, struct err *err);

/* count <= net_load_most.  The stream must have been waited for since the last load; the batch
 * is not needed any more. */
int net_load(struct net *n, const struct batch *b, float grad_scale, struct err *err);
/* The last part's forward makes the losses and, where a backward follows, begins it as far as
 * what it needs is not kept. */
int net_forward(struct net *n, const struct model_part *part, int slot,
                const struct net_micro *micro, struct err *err);
/* After the same part's forward in this slot, and the later parts' backward. */
int net_backward(struct net *n, const struct model_part *part, int slot, struct err *err);
/* With opt.split: what the backward of the slot's micro-batch has left. */
int net_weights(struct net *n, int slot, struct err *err);

/* Of a network of two chains (worker/net/cascade.h) one of them, with its part, slots and losses:
 * it goes forward and back by itself once the whole is loaded; NULL: its model has no part of it.
 * Of any other the network. */
struct net *net_chain(struct net *n, int chain);

/* Can it be made of parts? */
bool net_has_parts(const struct model *m, const struct net_options *opt);

/* What crosses between the part that ends before a block and the part that begins with it, of the
 * micro-batch in a slot: device memory of this network, written to by what comes before it and
 * read by what comes after.  The number of pieces, at most NET_PIECES_MAX, of equal sizes on both
 * sides. */
int net_crossing(struct net *n, enum net_way way, int block, int slot,
                 const struct net_micro *micro, struct net_piece ret[NET_PIECES_MAX]);

/* Of a network in parts that reads an estimate: the velocities of a micro-batch that was loaded,
 * which the last part's forward makes and the first one's is told by. */
struct net_piece net_velocities(struct net *n, const struct net_micro *micro);

/* A batch of one shape.  -ERR_UNIMPLEMENTED where the kind has no states. */
int net_hidden(struct net *n, const struct batch *b, struct net_hidden *ret, struct err *err);

/* What samples of a batch take for a net of m. */
struct batch_sizes net_batch_sizes(const struct model *m, const struct net_options *opt);

/* The part of the model that a network made of m is. */
static inline struct model_part net_part_of(const struct model *m)
{
    return m->part.to > 0 ? m->part : (struct model_part){0, m->spec.depth};
}

/* Does a chain of the model begin in this part, with what it reads: captions, pictures? */
bool net_reads(const struct model *m);

/* What the net was made from and works on. */
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
