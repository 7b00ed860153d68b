/* Flow matching: the loss of an image is the mean over its values of (velocity - target)². */
#include <errno.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/image_net.h"

static int squared_error(struct image_net *n, const struct net_batch *b, float grad_scale,
                         bool backward, struct net_result *ret, struct err *err)
{
    const struct flow *f = &n->flow;
    int rc = f->dev->ops->mse(f->dev, n->d_loss, backward ? n->d_dpred : NULL, n->d_pred,
                              f->d_target, NULL, grad_scale, (int)b->count, f->n, f->stream);
    if (rc < 0)
        return err_set(err, rc, "the loss failed on %s: %s", f->dev->name, err_text(rc));
    return 0;
}

static int dit_net_make(struct device *dev, const struct model *m, const struct net_options *opt,
                        struct net **ret, struct err *err)
{
    struct image_net *n = mem_alloc(sizeof *n);
    n->net.ops = &dit_net_ops;
    n->objective = squared_error;
    int rc = image_net_init(n, dev, m, opt, err);
    if (rc < 0) {
        image_net_free(&n->net);
        return rc;
    }
    *ret = &n->net;
    return 0;
}

const struct net_ops dit_net_ops = {
    .name = "dit",
    .bytes = image_net_bytes,
    .make = dit_net_make,
    .free = image_net_free,
    .loss = image_net_loss,
    .hidden = image_net_hidden,
};
