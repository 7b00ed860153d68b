/* The router of a mixture (McAllister et al., "Decentralized Diffusion Models", 2025, section
 * 3): which partition a noised image is from.  The loss of an image is the cross-entropy
 *
 *    -log softmax(logits(x_t, t))[partition]
 *
 * whose optimum is the posterior p(k | x_t, t), when t and noise are drawn as the experts draw
 * them and images come in natural proportion.  There are no labels. */
#include <errno.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/net/image_net.h"

struct router_net {
    struct image_net image; /* first */
    float *logits;          /* (B,classes) host */
};

static int check_classes(const struct image_net *n, const struct batch *b, struct err *err)
{
    if (!b->partitions)
        return err_set(err, -EINVAL, "a router's batch needs the partition of each image");
    for (unsigned i = 0; i < b->count; i++)
        if (b->partitions[i] < 0 || b->partitions[i] >= n->values)
            return err_set(err, -EINVAL, "sample %u is of partition %d, the router knows %d", i,
                           (int)b->partitions[i], (int)n->values);
    return 0;
}

/* The first of the largest logits of each image. */
static int find_best(struct net *net, unsigned count, int32_t *best, struct err *err)
{
    struct router_net *r = (struct router_net *)net;
    const struct image_net *n = &r->image;
    const struct flow *f = &n->flow;
    const int64_t K = n->values;
    int rc =
        f->dev->ops->copy(f->dev, r->logits, n->d_pred, (size_t)(count * K) * sizeof *r->logits,
                          COPY_FROM_DEVICE, f->stream);
    if (rc < 0)
        return err_set(err, rc, "reading logits from %s failed: %s", f->dev->name, err_text(rc));
    rc = dit_sync(n->dit, err);
    for (unsigned i = 0; i < count && rc == 0; i++) {
        const float *row = r->logits + i * K;
        best[i] = 0;
        for (int32_t k = 1; k < K; k++)
            if (row[k] > row[best[i]])
                best[i] = k;
    }
    return rc;
}

static int cross_entropy(struct image_net *n, unsigned from, unsigned count, bool backward,
                         struct err *err)
{
    const struct flow *f = &n->flow;
    const struct cross_entropy ce = {
        .loss = n->net.d_losses + from,
        .dlogits = backward ? n->d_dpred : NULL,
        .logits = n->d_pred,
        .target = f->d_partitions + from,
        .grad_scale = n->net.grad_scale,
        .rows = count,
        .V = (int)n->values,
        .dt = DT_F32,
        .grad_dt = DT_F32,
    };
    int rc = f->dev->ops->cross_entropy(f->dev, &ce, f->stream);
    if (rc < 0)
        return err_set(err, rc, "the loss failed on %s: %s", f->dev->name, err_text(rc));
    return 0;
}

static void router_net_free(struct net *net)
{
    mem_free(((struct router_net *)net)->logits);
    image_net_free(net);
}

static int router_net_make(struct device *dev, const struct model *m, const struct net_options *opt,
                           struct net **ret, struct err *err)
{
    struct router_net *r = mem_alloc(sizeof *r);
    r->image.net.ops = &router_net_ops;
    r->image.admit = check_classes;
    r->image.objective = cross_entropy;
    int rc = image_net_init(&r->image, dev, m, opt, err);
    if (rc == 0) {
        r->logits = mem_try_array((size_t)opt->batch * (size_t)m->spec.classes, sizeof *r->logits);
        if (!r->logits)
            rc = err_set(err, -ENOMEM, "no memory for the logits of %d images", opt->batch);
    }
    if (rc < 0) {
        router_net_free(&r->image.net);
        return rc;
    }
    *ret = &r->image.net;
    return 0;
}

const struct net_ops router_net_ops = {
    .name = "router",
    .bytes = image_net_bytes,
    .make = router_net_make,
    .free = router_net_free,
    .load = image_net_load,
    .queue = image_net_queue,
    .graphs = true,
    .best = find_best,
    .hidden = image_net_hidden,
};
