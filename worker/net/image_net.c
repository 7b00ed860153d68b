#include "worker/net/image_net.h"

#include <errno.h>

#include "common/base/err.h"
#include "common/base/mem.h"

static struct image_net *of(struct net *net)
{
    return (struct image_net *)net;
}

static struct dit_options dit_options_of(const struct net_options *opt)
{
    return (struct dit_options){
        .mode = opt->mode, .precision = opt->precision, .batch = opt->batch};
}

static void plan(struct image_net *n, const struct model *m, const struct net_options *opt)
{
    const uint64_t B = (uint64_t)opt->batch;
    const bool router = m->spec.kind == MODEL_ROUTER;
    n->values = router ? m->spec.classes : (int64_t)model_image_values(&m->spec);
    const uint64_t bytes = B * (uint64_t)n->values * sizeof(float);
    arena_add(&n->arena, &n->d_pred, bytes);
    if (opt->mode != NET_FORWARD)
        arena_add(&n->arena, &n->d_dpred, bytes);
    arena_add(&n->arena, &n->net.d_losses, net_load_most(opt) * sizeof(float));
}

int image_net_init(struct image_net *n, struct device *dev, const struct model *m,
                   const struct net_options *opt, struct err *err)
{
    const struct dit_options dopt = dit_options_of(opt);
    n->net.opt = *opt;
    int rc = dit_new(dev, m, &dopt, &n->dit, err);
    if (rc < 0)
        return rc;
    n->net.weights = dit_weights(n->dit);
    rc = flow_init(&n->flow, n->net.weights, opt, err);
    if (rc == 0) {
        plan(n, m, opt);
        rc = arena_alloc(&n->arena, dev, err);
    }
    return rc;
}

void image_net_release(struct image_net *n)
{
    if (!n->dit)
        return;
    arena_free(&n->arena, dit_device(n->dit));
    flow_release(&n->flow);
    dit_free(n->dit);
    n->dit = NULL;
}

void image_net_free(struct net *net)
{
    image_net_release(of(net));
    mem_free(net);
}

uint64_t image_net_bytes(const struct model *m, const struct net_options *opt, enum dtype dt)
{
    const struct dit_options dopt = dit_options_of(opt);
    struct image_net n = {0};
    plan(&n, m, opt);
    uint64_t bytes = arena_bytes(&n.arena);
    mem_free(n.arena.slots);
    return bytes + dit_bytes(m, &dopt, dt) + flow_bytes(m, opt);
}

/* Noises the samples and runs the network on them. */
static int forward(struct image_net *n, unsigned from, unsigned count, struct err *err)
{
    struct flow *f = &n->flow;
    int rc = flow_mix(f, from, count, err);
    if (rc < 0)
        return rc;
    return dit_forward(n->dit, n->d_pred, f->d_xt, f->d_t + from,
                       f->classes ? f->d_labels + from : NULL, (int)count, err);
}

int image_net_load(struct net *net, const struct batch *b, struct err *err)
{
    struct image_net *n = of(net);
    int rc = n->admit ? n->admit(n, b, err) : 0;
    return rc < 0 ? rc : flow_load(&n->flow, b, err);
}

int image_net_queue(struct net *net, unsigned from, unsigned count, bool first, bool backward,
                    struct err *err)
{
    struct image_net *n = of(net);
    const struct flow *f = &n->flow;
    int rc = forward(n, from, count, err);
    if (rc == 0)
        rc = n->objective(n, from, count, backward, err);
    if (rc == 0 && backward)
        rc = dit_backward(n->dit, n->d_dpred, f->classes ? f->d_labels + from : NULL, (int)count,
                          first, err);
    return rc;
}

int image_net_error(struct image_net *n, unsigned from, unsigned count, bool backward,
                    struct err *err)
{
    const struct flow *f = &n->flow;
    int rc =
        f->dev->ops->mse(f->dev, n->net.d_losses + from, backward ? n->d_dpred : NULL, n->d_pred,
                         f->d_target, NULL, n->net.grad_scale, (int)count, f->n, f->stream);
    if (rc < 0)
        return err_set(err, rc, "the loss failed on %s: %s", f->dev->name, err_text(rc));
    return 0;
}

int image_net_hidden(struct net *net, const struct batch *b, struct net_hidden *ret,
                     struct err *err)
{
    struct image_net *n = of(net);
    int rc = flow_load(&n->flow, b, err);
    if (rc == 0)
        rc = forward(n, 0, b->count, err);
    if (rc == 0)
        rc = dit_sync(n->dit, err);
    if (rc == 0)
        dit_hidden(n->dit, ret);
    return rc;
}

struct dit *net_dit(struct net *n)
{
    return model_is_text(&net_model(n)->spec) ? NULL : of(n)->dit;
}
