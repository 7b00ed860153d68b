#include "worker/net/net.h"

#include "worker/net/cascade.h"
#include "worker/net/distill.h"
#include "worker/net/llama.h"

struct kind {
    const char *name;
    const struct net_ops *ops;
};

static const struct kind *kind_of(const struct model *m, const struct net_options *opt)
{
    static const struct kind student = {"student", &distill_net_ops},
                             cascade = {"cascade", &cascade_net_ops},
                             students = {"student", &cascade_student_ops},
                             kinds[] = {
                                 [MODEL_DIT] = {"dit", &dit_net_ops},
                                 [MODEL_ROUTER] = {"router", &router_net_ops},
                                 [MODEL_LLAMA] = {"llama", &llama_net_ops},
                             };
    if (model_has_upscaler(&m->spec))
        return opt->distill ? &students : &cascade;
    return opt->distill ? &student : &kinds[m->spec.kind];
}

int net_new(struct device *dev, const struct model *m, const struct net_options *opt,
            struct net **ret, struct err *err)
{
    const struct kind *k = kind_of(m, opt);
    if (opt->slots > NET_SLOTS_MAX)
        return err_set(err, -EINVAL, "a network with %d slots; at most %d are possible", opt->slots,
                       NET_SLOTS_MAX);
    if (m->part.to > 0 && !net_has_parts(m, opt))
        return err_set(err, -EINVAL, "a %s network cannot be cut", k->name);
    if (opt->split && (opt->mode != NET_TRAIN || !net_has_parts(m, opt)))
        return err_set(err, -EINVAL, "the backward of this %s network cannot be split", k->name);
    int rc = k->ops->make(dev, m, opt, ret, err);
    if (rc == 0)
        (*ret)->name = k->name;
    return rc;
}

void net_free(struct net *n)
{
    for (int i = 0; n && i < NET_SLOTS_MAX; i++)
        weights_later_release(&n->later[i]);
    if (n)
        n->ops->free(n);
}

int net_set(struct net *n, const float *flat, struct err *err)
{
    return n->ops->set ? n->ops->set(n, flat, err) : weights_set(n->weights, flat, err);
}

bool net_reads(const struct model *m)
{
    bool reads = false;
    for (int i = 0; i < model_n_chains(&m->spec); i++)
        reads |= net_part_of(model_chain(m, i)).from == 0;
    return reads;
}

uint64_t net_bytes(const struct model *m, const struct net_options *opt, enum dtype dt)
{
    const bool encodes = opt->encoders && net_reads(m);
    return weights_bytes(m, dt, opt->mode != NET_FORWARD) +
           kind_of(m, opt)->ops->bytes(m, opt, dt) + (encodes ? opt->encoders->bytes : 0);
}

struct batch_sizes net_batch_sizes(const struct model *m, const struct net_options *opt)
{
    const struct net_encoders *e = opt->encoders;
    const uint64_t side = e && e->shift ? e->pixels : (uint64_t)model_drawn_side(&m->spec);
    return (struct batch_sizes){.image = MODEL_PIXEL_CHANNELS * side * side,
                                .moments = 2 * model_image_values(&m->spec),
                                .caption_tokens = (unsigned)m->spec.caption_tokens};
}

int net_load(struct net *n, const struct batch *b, float grad_scale, struct err *err)
{
    if (b->count < 1 || b->count > net_load_most(&n->opt))
        return err_set(err, -EINVAL, "a batch of %u samples in a network made for %u", b->count,
                       net_load_most(&n->opt));
    if (model_is_text(&net_model(n)->spec) != (b->tokens != NULL))
        return err_set(err, -EINVAL, "a %s network cannot read %s", n->name,
                       b->tokens ? "texts" : "images");
    n->loaded = *b;
    n->grad_scale = grad_scale;
    return n->ops->load(n, b, err);
}

static int check_part(const struct model_part *part, const struct net *n, int slot, struct err *err)
{
    const struct model_part own = net_part_of(net_model(n));
    if (part->from < own.from || part->from >= part->to || part->to > own.to)
        return err_set(err, -EINVAL, "blocks %d to %d of a network of blocks %d to %d", part->from,
                       part->to, own.from, own.to);
    if (slot < 0 || slot >= net_slots(&n->opt))
        return err_set(err, -EINVAL, "slot %d in a network made for %d", slot, net_slots(&n->opt));
    return 0;
}

static struct model_part part_of(const struct net *n, const struct model_part *part)
{
    return part ? *part : net_part_of(net_model(n));
}

int net_forward(struct net *n, const struct model_part *part, int slot,
                const struct net_micro *micro, struct err *err)
{
    const struct model_part p = part_of(n, part);
    int rc = check_part(&p, n, slot, err);
    if (rc < 0)
        return rc;
    if (micro->count < 1 || micro->count > (unsigned)n->opt.batch ||
        micro->from > n->loaded.count || micro->count > n->loaded.count - micro->from)
        return err_set(err, -EINVAL, "samples %u to %u of %u in a network made for %d", micro->from,
                       micro->from + micro->count, n->loaded.count, n->opt.batch);
    if (micro->backward && n->opt.mode == NET_FORWARD)
        return err_set(err, -EINVAL, "a backward in a network made for looking only");
    n->micro[slot] = *micro;
    if (p.from == net_part_of(net_model(n)).from)
        n->later[slot].n = 0; /* leftovers of a failed step */
    if (micro->backward && micro->first && p.from == net_part_of(net_model(n)).from)
        weights_zero_grads(n->weights);
    return n->ops->forward(n, &p, slot, micro, err);
}

int net_backward(struct net *n, const struct model_part *part, int slot, struct err *err)
{
    const struct model_part p = part_of(n, part);
    int rc = check_part(&p, n, slot, err);
    if (rc < 0)
        return rc;
    if (!n->micro[slot].backward)
        return err_set(err, -EINVAL, "a backward of a micro-batch that was not said to have one");
    n->weights->later = n->opt.split ? &n->later[slot] : NULL;
    rc = n->ops->backward(n, &p, slot, &n->micro[slot], err);
    n->weights->later = NULL;
    return rc;
}

int net_weights(struct net *n, int slot, struct err *err)
{
    weights_run_later(n->weights, &n->later[slot]);
    return weights_check(n->weights, err);
}

struct net *net_chain(struct net *n, int chain)
{
    return n->ops->chain ? n->ops->chain(n, chain) : n;
}

bool net_has_parts(const struct model *m, const struct net_options *opt)
{
    const struct net_ops *ops = kind_of(m, opt)->ops;
    return (ops->crossing || ops->chain) && !m->spec.tied && !opt->distill;
}

int net_crossing(struct net *n, enum net_way way, int block, int slot,
                 const struct net_micro *micro, struct net_piece ret[NET_PIECES_MAX])
{
    return n->ops->crossing(n, way, block, slot, micro, ret);
}

struct net_piece net_velocities(struct net *n, const struct net_micro *micro)
{
    return n->ops->velocities(n, micro);
}

static void bring_losses(struct net *n, float *to, const float *d_from, const struct batch *b)
{
    struct weights *w = n->weights;
    if (to && d_from)
        weights_note(w,
                     w->ops->copy(w->dev, to, d_from,
                                  (size_t)b->count * batch_losses(b) * sizeof(float),
                                  COPY_FROM_DEVICE, w->stream),
                     "copying losses");
}

int net_loss(struct net *n, const struct batch *b, bool first, float grad_scale, bool backward,
             struct net_result *ret, struct err *err)
{
    struct weights *w = n->weights;
    const struct net_micro micro = {.count = b->count, .first = first, .backward = backward};
    int rc = net_load(n, b, grad_scale, err);
    if (rc == 0)
        rc = net_forward(n, NULL, 0, &micro, err);
    if (rc == 0 && backward)
        rc = net_backward(n, NULL, 0, err);
    if (rc < 0)
        return rc;
    bring_losses(n, ret->losses, n->d_losses, b);
    bring_losses(n, ret->base, n->d_base, b);
    rc = weights_sync(w, err);
    return rc == 0 && ret->best && n->ops->best ? n->ops->best(n, b->count, ret->best, err) : rc;
}

int net_hidden(struct net *n, const struct batch *b, struct net_hidden *ret, struct err *err)
{
    if (!n->ops->hidden)
        return err_set(err, -ERR_UNIMPLEMENTED, "a %s network has no states to look at", n->name);
    if (b->count < 1 || b->count > (unsigned)n->opt.batch)
        return err_set(err, -EINVAL, "a batch of %u samples in a network made for %d", b->count,
                       n->opt.batch);
    return n->ops->hidden(n, b, ret, err);
}
