#include "worker/net/cascade.h"

#include "common/base/rng.h"
#include "worker/net/distill.h"
#include "worker/net/image_net.h"
#include "worker/net/resize.h"
#include "worker/net/told.h"

/* The second chain. */
struct upscaler {
    struct image_net image; /* first */
    int side, factor;       /* side of the small images; its own side over that */
    float noise;
    uint64_t seed;
    struct net_encoders encoders; /* of captions: the base's, unless it encodes them itself */
    struct inputs inputs;         /* of the loaded batch: */
    uint8_t *large, *d_large;     /* (load,S,S,3) small images enlarged */
    uint64_t *told, *d_told;      /* (load) random streams */
};

struct cascade {
    struct net net;   /* first */
    struct weights w; /* of both chains */
    struct image_net *base;
    struct upscaler *up;
    uint8_t *low; /* host, (load,s,s,3) */
    struct arena arena;
};

static struct cascade *of(struct net *net)
{
    return (struct cascade *)net;
}

static size_t low_bytes(const struct model *m)
{
    return (size_t)model_image_values(&m->chains[0]->spec);
}
static size_t large_bytes(const struct model *m)
{
    return (size_t)model_image_values(&m->chains[1]->spec);
}

/* ---- the upscaler's small image ---- */

static void plan_told(struct upscaler *u, size_t bytes, unsigned load)
{
    inputs_add(&u->inputs, &u->large, &u->d_large, load * bytes);
    inputs_add(&u->inputs, &u->told, &u->d_told, load * sizeof *u->told);
}

static int beside(struct image_net *n, const struct net_micro *micro, struct err *err)
{
    const struct upscaler *u = (const struct upscaler *)n;
    const struct flow_matching *f = &n->flow;
    const struct told_mix t = {.d_images = u->d_large + micro->from * f->most,
                               .d_streams = u->d_told + micro->from,
                               .d_eps = f->d_eps,
                               .d_told = n->d_estimate,
                               .side = f->spec->image,
                               .seed = u->seed,
                               .noise = u->noise};
    return told_mix(f->dev, f->stream, &t, (int)micro->count, err);
}

/* ---- making ---- */

static void upscaler_free(struct net *net)
{
    inputs_free(&((struct upscaler *)net)->inputs);
    image_net_free(net);
}

static const struct net_ops upscaler_ops = {
    .free = upscaler_free,
    .forward = image_net_forward,
    .backward = image_net_backward,
    .crossing = image_net_crossing,
};

/* Does the chain begin in this part? */
static bool begins(const struct model *chain)
{
    return net_part_of(chain).from == 0;
}

/* Is any of the chain in this part? */
static bool is_here(const struct model *chain)
{
    return !model_part_is_none(net_part_of(chain));
}

static struct net_options upscaler_options(const struct net_options *opt)
{
    struct net_options o = *opt;
    o.slots = o.slots_upscaler > 0 ? o.slots_upscaler : o.slots;
    return o;
}

static void free_chain(struct image_net *n)
{
    for (int i = 0; i < NET_SLOTS_MAX; i++)
        weights_later_release(&n->net.later[i]);
    distill_end(n);
    n->net.ops->free(&n->net);
}

static void cascade_free(struct net *net)
{
    struct cascade *c = of(net);
    if (c->up)
        free_chain(&c->up->image);
    if (c->base)
        free_chain(c->base);
    if (c->w.dev)
        arena_free(&c->arena, c->w.dev);
    weights_release(&c->w);
    mem_free(c->low);
    mem_free(c);
}

static int make_base(struct cascade *c, const struct model *m, struct err *err)
{
    struct image_net *n = mem_alloc(sizeof *n);
    struct net *made = NULL;
    n->net.ops = &dit_net_ops;
    n->net.name = "base";
    n->objective = image_net_error;
    n->whole = &c->w;
    int rc = image_net_make(n, c->w.dev, m->chains[0], &c->net.opt, &made, err);
    if (rc < 0)
        return rc;
    c->base = n;
    if (c->net.opt.distill)
        distill_begin(n, 0);
    return 0;
}

static int make_upscaler(struct cascade *c, const struct model *m, struct err *err)
{
    struct upscaler *u = mem_alloc(sizeof *u);
    struct net *made = NULL;
    u->image.net.ops = &upscaler_ops;
    u->image.net.name = "upscaler";
    u->image.objective = image_net_error;
    u->image.beside = beside;
    u->image.whole = &c->w;
    u->side = m->spec.image;
    u->factor = m->spec.upscaler.image / m->spec.image;
    u->noise = m->spec.upscaler.noise;
    struct net_options opt = upscaler_options(&c->net.opt);
    if (c->base && c->base->flow.reads && c->base->flow.tokens > 0 && begins(m->chains[1]) &&
        !opt.encoders->made) {
        flow_matching_share(&c->base->flow, &u->encoders);
        opt.encoders = &u->encoders;
    }
    int rc = image_net_make(&u->image, c->w.dev, m->chains[1], &opt, &made, err);
    if (rc < 0)
        return rc;
    c->up = u;
    if (c->net.opt.distill)
        distill_begin(&u->image, 1);
    if (!begins(m->chains[1]))
        return 0;
    plan_told(u, large_bytes(m), net_load_most(&c->net.opt));
    return inputs_alloc(&u->inputs, c->w.dev, err);
}

static int cascade_make(struct device *dev, const struct model *m, const struct net_options *opt,
                        struct net **ret, struct err *err)
{
    struct cascade *c = mem_alloc(sizeof *c);
    const unsigned load = net_load_most(opt);
    c->net.ops = opt->distill ? &cascade_student_ops : &cascade_net_ops;
    c->net.weights = &c->w;
    c->net.opt = *opt;
    int rc =
        weights_init(&c->w, dev, m, net_dtype(dev, opt->precision), opt->mode != NET_FORWARD, err);
    if (rc == 0 && is_here(m->chains[0]))
        rc = make_base(c, m, err);
    if (rc == 0 && is_here(m->chains[1]))
        rc = make_upscaler(c, m, err);
    c->low = mem_try_array(load, low_bytes(m));
    if (rc == 0 && !c->low)
        rc = err_set(err, -ENOMEM, "no memory for %u small images", load);
    arena_add(&c->arena, &c->net.d_losses, load * sizeof(float));
    if (rc == 0)
        rc = arena_alloc(&c->arena, dev, err);
    if (rc < 0) {
        cascade_free(&c->net);
        return rc;
    }
    c->net.d_base = c->base ? c->base->net.d_losses : NULL;
    *ret = &c->net;
    return 0;
}

static uint64_t cascade_bytes(const struct model *m, const struct net_options *opt, enum dtype dt)
{
    struct upscaler u = {0};
    const struct net_options up = upscaler_options(opt);
    if (begins(m->chains[1]))
        plan_told(&u, large_bytes(m), net_load_most(opt));
    uint64_t taught = 0;
    for (int i = 0; i < MODEL_CHAINS && opt->distill; i++)
        taught += distill_bytes(m->chains[i], opt, i);
    return taught + (is_here(m->chains[0]) ? image_net_bytes(m->chains[0], opt, dt) : 0) +
           (is_here(m->chains[1]) ? image_net_bytes_beside(m->chains[1], &up, dt) : 0) +
           inputs_measure(&u.inputs) + net_load_most(opt) * sizeof(float);
}

/* ---- passes ---- */

static int load_upscaler(struct upscaler *u, const struct batch *b, float scale, const uint8_t *low,
                         struct err *err)
{
    const size_t small = (size_t)u->side * (size_t)u->side * MODEL_PIXEL_CHANNELS;
    struct net *net = &u->image.net;
    net->loaded = *b;
    net->loaded.seed = rng_mix(b->seed, CASCADE_STREAM_UPSCALER);
    net->grad_scale = scale;
    u->seed = net->loaded.seed;
    if (!begins(net_model(net)))
        return image_net_load(net, &net->loaded, err);
    for (unsigned i = 0; i < b->count; i++) {
        resize_up(low + i * small, u->side, u->factor, u->large + i * u->image.flow.most);
        u->told[i] = rng_mix(b->keys[i], CASCADE_STREAM_TOLD);
    }
    int rc = image_net_load(net, &net->loaded, err);
    if (rc < 0)
        return rc;
    rc = inputs_send(&u->inputs, u->image.flow.stream);
    return rc < 0 ? err_set(err, rc, "%u small images cannot be loaded on %s: %s", b->count,
                            u->image.flow.dev->name, err_text(rc))
                  : 0;
}

static int load_base(struct cascade *c, const struct batch *b, struct err *err)
{
    struct net *base = &c->base->net;
    base->loaded = *b;
    base->loaded.images = c->low;
    base->grad_scale = c->net.grad_scale;
    return image_net_load(base, &base->loaded, err);
}

static int load(struct net *net, const struct batch *b, struct err *err)
{
    struct cascade *c = of(net);
    const struct model_spec *s = &c->w.m->spec;
    const size_t small = low_bytes(c->w.m), large = large_bytes(c->w.m);
    if (!b->images)
        return err_set(err, -EINVAL, "a batch of images without pixels");
    const bool read = begins(c->w.m->chains[0]) || begins(c->w.m->chains[1]);
    for (unsigned i = 0; i < b->count && read; i++)
        resize_down(b->images + i * large, s->upscaler.image, s->upscaler.image / s->image,
                    c->low + i * small);
    int rc = c->base ? load_base(c, b, err) : 0;
    return rc < 0 || !c->up ? rc : load_upscaler(c->up, b, net->grad_scale, c->low, err);
}

static struct model_part whole_of(const struct image_net *n)
{
    return net_part_of(net_model(&n->net));
}

static int forward(struct net *net, const struct model_part *part, int slot,
                   const struct net_micro *micro, struct err *err)
{
    struct cascade *c = of(net);
    const struct kernel_ops *k = c->w.ops;
    const struct model_part base = whole_of(c->base), up = whole_of(&c->up->image);
    const float *d_up = c->up->image.net.d_losses;
    (void)part; /* a network in parts is used chain by chain */
    int rc = image_net_forward(&c->base->net, &base, slot, micro, err);
    if (rc == 0)
        rc = image_net_forward(&c->up->image.net, &up, slot, micro, err);
    if (rc < 0)
        return rc;
    rc = k->axpby(c->w.dev, net->d_losses + micro->from, 1.0f, net->d_base + micro->from, 1.0f,
                  d_up + micro->from, micro->count, c->w.stream);
    return rc < 0 ? err_set(err, rc, "the loss failed on %s: %s", c->w.dev->name, err_text(rc)) : 0;
}

/* Announces a chain's gradients to the watch of the whole. */
static int chain_backward(const struct cascade *c, struct image_net *n, int slot,
                          const struct net_micro *micro, struct err *err)
{
    const struct model_part part = whole_of(n);
    n->net.weights->watch = c->w.watch;
    int rc = image_net_backward(&n->net, &part, slot, micro, err);
    n->net.weights->watch = NULL;
    return rc;
}

static int backward(struct net *net, const struct model_part *part, int slot,
                    const struct net_micro *micro, struct err *err)
{
    struct cascade *c = of(net);
    (void)part;
    int rc = chain_backward(c, c->base, slot, micro, err);
    return rc < 0 ? rc : chain_backward(c, &c->up->image, slot, micro, err);
}

static struct net *chain(struct net *net, int which)
{
    struct cascade *c = of(net);
    struct image_net *n = which == 0 ? c->base : c->up ? &c->up->image : NULL;
    return n ? &n->net : NULL;
}

const struct net_ops cascade_net_ops = {
    .bytes = cascade_bytes,
    .make = cascade_make,
    .free = cascade_free,
    .load = load,
    .forward = forward,
    .backward = backward,
    .chain = chain,
    .graphs = true,
};

const struct net_ops cascade_student_ops = {
    .bytes = cascade_bytes,
    .make = cascade_make,
    .free = cascade_free,
    .load = load,
    .forward = forward,
    .backward = backward,
    .chain = chain,
};

struct dit *cascade_chain(struct net *net, int chain)
{
    return chain == 0 ? of(net)->base->dit : of(net)->up->image.dit;
}
