/* The common part of the networks of images: a DiT or router, the noised batch that it reads,
 * and memory for its result.  An objective is one function of the result; those of flow matching
 * and of a router are in image_net.c, that of a student in worker/net/distill.c. */
#ifndef WORKER_IMAGE_NET_H
#define WORKER_IMAGE_NET_H

#include "worker/net/arena.h"
#include "worker/net/dit.h"
#include "worker/net/flow_matching.h"
#include "worker/net/net.h"

struct image_net {
    struct net net; /* first */
    struct dit *dit;
    struct flow_matching flow; /* the current batch */
    struct arena arena;
    int64_t values; /* most values of a sample's result: Ch*S*S, or the router's classes */
    float *d_pred;  /* (B,values) */
    float *d_dpred; /* (slots,B,values), NULL in NET_FORWARD */
    /* (slots,B,Ch*S*S) targets of the micro-batches, which cross to the last part; only with
     * several slots or parts. */
    float *d_targets;
    const float *target;   /* (B,Ch*S*S) target of the micro-batch whose objective runs */
    float *d_estimate;     /* (B,Ch*S*S) if the model reads an estimate */
    float *d_velocities;   /* (load,Ch*S*S) velocities of estimates, if there are several parts */
    float *logits;         /* a router: (B,classes) host */
    struct lesson *lesson; /* a student's (distill.h), its owner's to free; else NULL */

    /* A chain of a model: the weights of the whole that it works on; else NULL. */
    const struct weights *whole;
    /* NULL, or makes in d_estimate, on the first part, what the network reads in place of an
     * estimate beside a micro-batch's noised samples.  It may overwrite flow's d_x0 and d_eps. */
    int (*beside)(struct image_net *n, const struct net_micro *micro, struct err *err);
    /* NULL, or refuses a batch that the objective cannot use. */
    int (*admit)(const struct image_net *n, const struct batch *b, struct err *err);
    /* Makes the losses of a micro-batch from its d_pred and, unless dpred is NULL, dpred =
     * grad_scale times their derivative; queued on flow.stream. */
    int (*objective)(struct image_net *n, const struct net_micro *micro, float *dpred,
                     struct err *err);
};

/* Takes n, also on failure, and makes the rest of it: n is zeroed except for net.ops, whole and the
 * functions. */
int image_net_make(struct image_net *n, struct device *dev, const struct model *m,
                   const struct net_options *opt, struct net **ret, struct err *err);

/* For tables of net_ops. */
uint64_t image_net_bytes(const struct model *m, const struct net_options *opt, enum dtype dt);
/* The same for a network with `beside`. */
uint64_t image_net_bytes_beside(const struct model *m, const struct net_options *opt,
                                enum dtype dt);
int image_net_load(struct net *net, const struct batch *b, struct err *err);
int image_net_forward(struct net *net, const struct model_part *part, int slot,
                      const struct net_micro *micro, struct err *err);
int image_net_backward(struct net *net, const struct model_part *part, int slot,
                       const struct net_micro *micro, struct err *err);
int image_net_crossing(struct net *net, enum net_way way, int block, int slot,
                       const struct net_micro *micro, struct net_piece *ret);
int image_net_hidden(struct net *net, const struct batch *b, struct net_hidden *ret,
                     struct err *err);
void image_net_free(struct net *net);

/* The objective of flow matching: the mean square between d_pred and the target. */
int image_net_error(struct image_net *n, const struct net_micro *micro, float *dpred,
                    struct err *err);

/* The DiT or router of a net of images; NULL: a net of texts, or of two chains. */
struct dit *net_dit(struct net *n);

#endif
