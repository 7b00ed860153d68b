/* What the networks of images have in common: a DiT or router, the noised batch it sees,
 * and room for its result.  An objective is one function of the result.  Base of
 * dit_net.c, router_net.c and distill.c; also the way from a net to its DiT. */
#ifndef WORKER_IMAGE_NET_H
#define WORKER_IMAGE_NET_H

#include "worker/net/arena.h"
#include "worker/net/dit.h"
#include "worker/net/flow.h"
#include "worker/net/net.h"

struct image_net {
    struct net net; /* first */
    struct dit *dit;
    struct flow flow; /* of the current batch */
    struct arena arena;
    int64_t values; /* of one sample's result: 3*S*S, or the router's classes */
    float *d_pred;  /* (B,values) */
    float *d_dpred; /* (B,values), NULL in NET_FORWARD */

    /* NULL, or refuses a batch that the objective cannot use. */
    int (*admit)(const struct image_net *n, const struct batch *b, struct err *err);
    /* Of the loaded samples [from, from+count), from d_pred to their losses and, with backward,
     * to d_dpred = grad_scale times the derivative; queued on flow.stream. */
    int (*objective)(struct image_net *n, unsigned from, unsigned count, bool backward,
                     struct err *err);
};

/* Fills n (zeroed, objective set) but net.ops.  release accepts what init left. */
int image_net_init(struct image_net *n, struct device *dev, const struct model *m,
                   const struct net_options *opt, struct err *err);
void image_net_release(struct image_net *n);

/* For tables of net_ops. */
uint64_t image_net_bytes(const struct model *m, const struct net_options *opt, enum dtype dt);
int image_net_load(struct net *net, const struct batch *b, struct err *err);
int image_net_queue(struct net *net, unsigned from, unsigned count, bool first, bool backward,
                    struct err *err);
int image_net_hidden(struct net *net, const struct batch *b, struct net_hidden *ret,
                     struct err *err);
void image_net_free(struct net *net); /* release and mem_free */

/* The objective of flow matching: the mean square between d_pred and flow.d_target. */
int image_net_error(struct image_net *n, unsigned from, unsigned count, bool backward,
                    struct err *err);

/* The DiT or router behind a net of images; NULL: a net of texts. */
struct dit *net_dit(struct net *n);

#endif
