#include "worker/net/net_parts.h"

#include "worker/net/image_net.h"
#include "worker/net/llama.h"

struct net_parts {
    struct net net;         /* first */
    struct weights weights; /* a copy of the last part's, for the whole model and without values */
    int n;
    struct net *of[NET_PARTS_MAX];
    struct model *models[NET_PARTS_MAX];
};

static struct net_parts *parts_of(struct net *net)
{
    return (struct net_parts *)net;
}

static void parts_free(struct net *net)
{
    struct net_parts *p = parts_of(net);
    for (int i = 0; i < p->n; i++) {
        net_free(p->of[i]);
        model_free(p->models[i]);
    }
    mem_free(p);
}

static int parts_load(struct net *net, const struct batch *b, struct err *err)
{
    struct net_parts *p = parts_of(net);
    int rc = 0;
    for (int i = 0; i < p->n && rc == 0; i++)
        rc = net_load(p->of[i], b, net->grad_scale, err);
    return rc;
}

static int bring(const struct net_parts *p, int to, void *dst, int from, const void *src,
                 size_t bytes, struct err *err)
{
    return weights_bring(p->of[to]->weights, dst, p->of[from]->weights, src, bytes, err);
}

static int bring_pieces(struct net_parts *p, int to, const struct net_piece *dst,
                        const struct net_piece *src, int n, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++)
        rc = bring(p, to, dst[i].x, to - 1, src[i].x, src[i].bytes, err);
    return rc;
}

static int parts_forward(struct net *net, const struct model_part *part, int slot,
                         const struct net_micro *micro, struct err *err)
{
    struct net_parts *p = parts_of(net);
    int rc = net_forward(p->of[0], NULL, 0, micro, err);
    for (int i = 1; i < p->n && rc == 0; i++) {
        struct net_piece dst[NET_PIECES_MAX], src[NET_PIECES_MAX];
        const int at = p->models[i]->part.from;
        const int n = net_crossing(p->of[i - 1], NET_UP, at, 0, micro, src);
        (void)net_crossing(p->of[i], NET_UP, at, 0, micro, dst);
        rc = bring_pieces(p, i, dst, src, n, err);
        if (rc == 0)
            rc = net_forward(p->of[i], NULL, 0, micro, err);
    }
    return rc;
}

static int parts_set(struct net *net, const float *flat, struct err *err)
{
    struct net_parts *p = parts_of(net);
    int rc = 0;
    for (int i = 0; i < p->n && rc == 0; i++)
        rc = weights_set_part(p->of[i]->weights, p->weights.m, flat, err);
    return rc;
}

static int parts_hidden(struct net *net, const struct batch *b, struct net_hidden *ret,
                        struct err *err)
{
    return err_set(err, -ERR_UNIMPLEMENTED,
                   "the states of a model that lies on %d devices cannot be looked at: one must "
                   "hold it whole",
                   parts_of(net)->n);
}

static const struct net_ops parts_net_ops = {
    .free = parts_free,
    .load = parts_load,
    .forward = parts_forward,
    .set = parts_set,
    .hidden = parts_hidden,
};

struct net *net_parts_first(struct net *net)
{
    return net->ops == &parts_net_ops ? parts_of(net)->of[0] : NULL;
}

int net_parts_new(struct device *const *devs, int n, const struct model *m,
                  const struct net_options *opt, struct net **ret, struct err *err)
{
    const int depth = m->spec.depth;
    struct net_parts *p = mem_alloc(sizeof *p);
    int rc = 0;
    n = n < depth ? n : depth;
    n = n < NET_PARTS_MAX ? n : NET_PARTS_MAX;
    p->net.ops = &parts_net_ops;
    for (int i = 0; i < n && rc == 0; i++) {
        const struct model_part part = {depth * i / n, depth * (i + 1) / n};
        struct net_options own = *opt;
        own.encoders = opt->encoders ? opt->encoders + i : NULL;
        p->n++;
        rc = model_part_new(m, &part, &p->models[i], err);
        if (rc == 0)
            rc = net_new(devs[i], p->models[i], &own, &p->of[i], err);
    }
    if (rc < 0) {
        parts_free(&p->net);
        return err_wrap(err, "in %d parts", n);
    }
    for (int i = 0; i + 1 < n; i++)
        llama_link(p->of[i], p->of[i + 1]);
    const struct net *last = p->of[n - 1];
    p->weights = *last->weights;
    p->weights.m = m;
    p->weights.w = NULL;
    p->weights.w16 = NULL;
    p->net.weights = &p->weights;
    p->net.opt = *opt;
    p->net.name = last->name;
    p->net.d_losses = last->d_losses;
    *ret = &p->net;
    return 0;
}

/* ---- velocities ---- */

static struct image_net *image_of(struct net_parts *p, int i)
{
    return (struct image_net *)p->of[i];
}

int net_parts_velocity(struct net *net, const struct dit_io *io, struct err *err)
{
    struct net_parts *p = parts_of(net);
    const int last = p->n - 1;
    const size_t values = (size_t)model_shape_values(&p->weights.m->spec, io->shape);
    struct dit_io here = *io;
    int rc = dit_forward(image_of(p, 0)->dit, NULL, 0, &here, err);
    for (int i = 1; i <= last && rc == 0; i++) {
        struct net_piece dst[NET_PIECES_MAX], src[NET_PIECES_MAX];
        struct dit *dit = image_of(p, i)->dit, *before = image_of(p, i - 1)->dit;
        const int at = p->models[i]->part.from;
        const int n = dit_crossing(before, NET_UP, at, 0, io, src);
        (void)dit_crossing(dit, NET_UP, at, 0, io, dst);
        rc = bring_pieces(p, i, dst, src, n, err);
        here.pred = image_of(p, i)->d_pred;
        if (io->lengths) {
            int32_t *lengths = image_of(p, i)->flow.d_lengths;
            rc = rc < 0
                     ? rc
                     : bring(p, i, lengths, 0, io->lengths, (size_t)io->B * sizeof *lengths, err);
            here.lengths = lengths;
        }
        if (rc == 0)
            rc = dit_forward(dit, NULL, 0, &here, err);
    }
    if (rc == 0 && last > 0)
        rc = bring(p, 0, io->pred, last, here.pred, (size_t)io->B * values * sizeof *io->pred, err);
    return rc < 0 ? rc : weights_sync(p->of[0]->weights, err);
}
