/* What the networks of images have in common: a DiT or router, the noised batch it sees,
 * and room for its result.  An objective is one function of the result; those of flow matching
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
    int64_t values; /* a sample's result at most: 3*S*S, or the router's classes */
    float *d_pred;  /* (B,values) */
    float *d_dpred; /* (slots,B,values), NULL in NET_FORWARD */
    /* Where there are several slots, or parts: (slots,B,3*S*S) of each micro-batch, which crosses
     * to the last part. */
    float *d_targets;
    const float *target; /* (B,3*S*S) of the micro-batch that has its objective now */
    float *d_estimate;   /* (B,3*S*S) of a model that reads one */
    float *d_velocities; /* (load,3*S*S) that it is made of, where there are several parts */
    float *logits;       /* a router: (B,classes) host */

    /* A chain of a model: the weights of the whole that it works on; else NULL. */
    const struct weights *whole;
    /* NULL, or makes what the network reads beside the noised samples of a micro-batch, in place
     * of an estimate, in d_estimate, on the first part.  d_x0 and d_eps of flow are free. */
    int (*beside)(struct image_net *n, const struct net_micro *micro, struct err *err);
    /* NULL, or refuses a batch that the objective cannot use. */
    int (*admit)(const struct image_net *n, const struct batch *b, struct err *err);
    /* From d_pred of a micro-batch to its losses and, unless dpred is NULL, to dpred =
     * grad_scale times the derivative; queued on flow.stream. */
    int (*objective)(struct image_net *n, const struct net_micro *micro, float *dpred,
                     struct err *err);
};

/* Makes the rest of n, which is zeroed but for net.ops, whole and the functions, and takes it over,
 * also on failure. */
int image_net_make(struct image_net *n, struct device *dev, const struct model *m,
                   const struct net_options *opt, struct net **ret, struct err *err);

/* For tables of net_ops. */
uint64_t image_net_bytes(const struct model *m, const struct net_options *opt, enum dtype dt);
/* Of one with `beside`. */
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

/* The DiT or router behind a net of images; NULL: a net of texts, or of two chains. */
struct dit *net_dit(struct net *n);

#endif
