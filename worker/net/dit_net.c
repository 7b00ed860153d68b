/* Flow matching: the loss of an image is the mean over its values of (velocity - target)². */
#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/net/image_net.h"

static int dit_net_make(struct device *dev, const struct model *m, const struct net_options *opt,
                        struct net **ret, struct err *err)
{
    struct image_net *n = mem_alloc(sizeof *n);
    n->net.ops = &dit_net_ops;
    n->objective = image_net_error;
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
    .load = image_net_load,
    .queue = image_net_queue,
    .graphs = true,
    .hidden = image_net_hidden,
};
