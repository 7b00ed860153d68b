#include "worker/net/image_net.h"

static struct image_net *of(struct net *net)
{
    return (struct image_net *)net;
}

static void plan(struct image_net *n, const struct model *m, const struct net_options *opt,
                 bool beside)
{
    const bool router = m->spec.kind == MODEL_ROUTER;
    n->values = router ? m->spec.classes : (int64_t)model_image_values(&m->spec);
    const uint64_t each = (uint64_t)opt->batch * (uint64_t)n->values * sizeof(float);
    const bool last = net_part_of(m).to == m->spec.depth;
    if (last)
        arena_add(&n->arena, &n->d_pred, each);
    if (last && opt->mode != NET_FORWARD)
        arena_add(&n->arena, &n->d_dpred, (uint64_t)net_slots(opt) * each);
    if (m->part.to > 0 || net_slots(opt) > 1)
        arena_add(&n->arena, &n->d_targets,
                  (uint64_t)net_slots(opt) * (uint64_t)opt->batch * model_image_values(&m->spec) *
                      sizeof(float));
    const bool first = net_part_of(m).from == 0, parts = m->part.to > 0 || net_slots(opt) > 1;
    if (m->spec.self_condition && first)
        arena_add(&n->arena, &n->d_estimate, each);
    if (m->spec.self_condition && !beside && parts && (first || last))
        arena_add(&n->arena, &n->d_velocities,
                  net_load_most(opt) * (uint64_t)n->values * sizeof(float));
    arena_add(&n->arena, &n->net.d_losses, net_load_most(opt) * sizeof(float));
}

int image_net_make(struct image_net *n, struct device *dev, const struct model *m,
                   const struct net_options *opt, struct net **ret, struct err *err)
{
    n->net.opt = *opt;
    int rc = n->whole ? dit_new_within(n->whole, m, opt, &n->dit, err)
                      : dit_new(dev, m, opt, &n->dit, err);
    if (rc == 0) {
        n->net.weights = dit_weights(n->dit);
        rc = flow_matching_init(&n->flow, n->net.weights, opt, err);
    }
    if (rc == 0) {
        plan(n, m, opt, n->beside != NULL);
        rc = arena_alloc(&n->arena, dev, err);
    }
    if (rc == 0 && m->spec.kind == MODEL_ROUTER) {
        n->logits = mem_try_array((size_t)opt->batch * (size_t)n->values, sizeof *n->logits);
        if (!n->logits)
            rc = err_set(err, -ENOMEM, "no memory for the logits of %d images", opt->batch);
    }
    if (rc < 0) {
        n->net.ops->free(&n->net);
        return rc;
    }
    *ret = &n->net;
    return 0;
}

void image_net_free(struct net *net)
{
    struct image_net *n = of(net);
    if (n->dit) {
        arena_free(&n->arena, dit_weights(n->dit)->dev);
        flow_matching_release(&n->flow);
        dit_free(n->dit);
    }
    mem_free(n->logits);
    mem_free(n);
}

static uint64_t bytes(const struct model *m, const struct net_options *opt, enum dtype dt,
                      bool beside)
{
    struct image_net n = {0};
    plan(&n, m, opt, beside);
    return arena_measure(&n.arena) + dit_bytes(m, opt, dt) + flow_matching_bytes(m, opt, dt);
}

uint64_t image_net_bytes(const struct model *m, const struct net_options *opt, enum dtype dt)
{
    return bytes(m, opt, dt, false);
}

uint64_t image_net_bytes_beside(const struct model *m, const struct net_options *opt, enum dtype dt)
{
    return bytes(m, opt, dt, true);
}

/* ---- passes ---- */

static float *dpred_of(const struct image_net *n, int slot)
{
    return n->d_dpred ? n->d_dpred + slot * n->net.opt.batch * n->values : NULL;
}

static struct dit_io io_of(struct image_net *n, int slot, const struct net_micro *micro)
{
    const struct flow_matching *f = &n->flow;
    return (struct dit_io){
        .B = (int)micro->count,
        .shape = f->shapes[micro->from],
        .x = f->d_xt,
        .t = f->d_t + micro->from,
        .labels = f->classes ? f->d_labels + micro->from : NULL,
        .states = f->d_states ? (const char *)f->d_states + micro->from * f->caption_bytes : NULL,
        .lengths = f->tokens > 0 ? f->d_lengths + micro->from : NULL,
        .pred = n->d_pred,
        .dpred = dpred_of(n, slot),
    };
}

int image_net_load(struct net *net, const struct batch *b, struct err *err)
{
    struct image_net *n = of(net);
    int rc = n->admit ? n->admit(n, b, err) : 0;
    return rc < 0 ? rc : flow_matching_load(&n->flow, b, err);
}

/* Values of an image of the micro-batch. */
static int64_t values_of(const struct image_net *n, const struct net_micro *micro)
{
    return model_shape_values(n->flow.spec, n->flow.shapes[micro->from]);
}

static float *targets_of(const struct image_net *n, int slot)
{
    const int64_t most = (int64_t)model_image_values(n->flow.spec);
    return n->d_targets ? n->d_targets + slot * n->net.opt.batch * most : NULL;
}

/* Noises the samples and, if there are further parts, keeps the target for the last one. */
static int mix(struct image_net *n, int slot, const struct net_micro *micro, struct err *err)
{
    struct flow_matching *f = &n->flow;
    const size_t bytes = micro->count * (size_t)values_of(n, micro) * sizeof(float);
    int rc = flow_matching_mix(f, micro->from, micro->count, err);
    if (rc < 0 || !n->d_targets)
        return rc;
    rc = f->dev->ops->copy(f->dev, targets_of(n, slot), f->d_target, bytes, COPY_DEVICE, f->stream);
    return rc < 0
               ? err_set(err, rc, "the target cannot be kept on %s: %s", f->dev->name, err_text(rc))
               : 0;
}

static float *velocities_of(const struct image_net *n, const struct net_micro *micro)
{
    return n->d_velocities + micro->from * n->values;
}

/* The estimate xt - t v by velocities v that were made without one.  d_x0 and d_eps are unused by
 * now. */
static int estimate(struct image_net *n, const struct net_micro *micro, const float *v,
                    struct dit_io *io, struct err *err)
{
    const struct flow_matching *f = &n->flow;
    const struct kernel_ops *k = f->dev->ops;
    const int64_t each = values_of(n, micro);
    int rc = k->axpby(f->dev, f->d_eps, 1.0f, f->d_xt, -1.0f, v, io->B * each, f->stream);
    if (rc == 0) /* (1 - t) xt + t (xt - v) */
        rc = k->flow_mix(f->dev, n->d_estimate, f->d_x0, f->d_xt, f->d_eps, io->t, io->B, each,
                         f->stream);
    io->estimate = n->d_estimate;
    return rc < 0 ? err_set(err, rc, "the estimate failed on %s: %s", f->dev->name, err_text(rc))
                  : 0;
}

/* Gives the first part its estimate; in a network without parts from a forward of its own, without
 * gradients. */
static int tell(struct image_net *n, const struct model_part *part, int slot,
                const struct net_micro *micro, struct dit_io *io, struct err *err)
{
    const bool whole = part->to == net_model(&n->net)->spec.depth;
    int rc = whole ? dit_forward(n->dit, part, slot, io, err) : 0;
    return rc < 0 ? rc : estimate(n, micro, whole ? n->d_pred : velocities_of(n, micro), io, err);
}

/* The first part noises the samples; the last one computes the objective. */
int image_net_forward(struct net *net, const struct model_part *part, int slot,
                      const struct net_micro *micro, struct err *err)
{
    struct image_net *n = of(net);
    const bool last = part->to == net_model(net)->spec.depth;
    struct dit_io io = io_of(n, slot, micro);
    int rc = part->from == 0 ? mix(n, slot, micro, err) : 0;
    n->target = n->d_targets ? targets_of(n, slot) : n->flow.d_target;
    if (rc == 0 && n->beside && part->from == 0) {
        rc = n->beside(n, micro, err);
        io.estimate = n->d_estimate;
    } else if (rc == 0 && n->d_estimate && part->from == 0 && net->loaded.estimate &&
               !micro->estimates) {
        rc = tell(n, part, slot, micro, &io, err);
    }
    if (micro->estimates && last)
        io.pred = velocities_of(n, micro);
    if (rc == 0)
        rc = dit_forward(n->dit, part, slot, &io, err);
    if (rc == 0 && last && !micro->estimates)
        rc = n->objective(n, micro, micro->backward ? dpred_of(n, slot) : NULL, err);
    return rc;
}

int image_net_backward(struct net *net, const struct model_part *part, int slot,
                       const struct net_micro *micro, struct err *err)
{
    struct image_net *n = of(net);
    const struct dit_io io = io_of(n, slot, micro);
    return dit_backward(n->dit, part, slot, &io, micro->first, err);
}

int image_net_crossing(struct net *net, enum net_way way, int block, int slot,
                       const struct net_micro *micro, struct net_piece *ret)
{
    struct image_net *n = of(net);
    const struct dit_io io = io_of(n, slot, micro);
    const int pieces = dit_crossing(n->dit, way, block, slot, &io, ret);
    _Static_assert(NET_PIECES_MAX > DIT_PIECES_MAX, "the target crosses, too");
    if (way == NET_DOWN)
        return pieces;
    ret[pieces] = (struct net_piece){targets_of(n, slot),
                                     micro->count * (size_t)values_of(n, micro) * sizeof(float)};
    return pieces + 1;
}

static struct net_piece velocities(struct net *net, const struct net_micro *micro)
{
    struct image_net *n = of(net);
    return (struct net_piece){velocities_of(n, micro),
                              micro->count * (size_t)values_of(n, micro) * sizeof(float)};
}

int image_net_hidden(struct net *net, const struct batch *b, struct net_hidden *ret,
                     struct err *err)
{
    struct image_net *n = of(net);
    const struct net_micro micro = {.count = b->count};
    int rc = flow_matching_load(&n->flow, b, err);
    if (rc == 0)
        rc = flow_matching_mix(&n->flow, 0, b->count, err);
    const struct dit_io io = io_of(n, 0, &micro);
    if (rc == 0)
        rc = dit_forward(n->dit, NULL, 0, &io, err);
    if (rc == 0)
        rc = weights_sync(net->weights, err);
    if (rc == 0)
        dit_hidden(n->dit, ret);
    return rc;
}

struct dit *net_dit(struct net *n)
{
    const struct model_spec *s = &net_model(n)->spec;
    return model_is_text(s) || model_has_upscaler(s) ? NULL : of(n)->dit;
}

static int check_loss(const struct image_net *n, int rc, struct err *err)
{
    return rc < 0 ? err_set(err, rc, "the loss failed on %s: %s", n->flow.dev->name, err_text(rc))
                  : 0;
}

/* ---- flow matching: the mean over an image's values of (velocity - target)² ---- */

int image_net_error(struct image_net *n, const struct net_micro *micro, float *dpred,
                    struct err *err)
{
    const struct flow_matching *f = &n->flow;
    return check_loss(n,
                      f->dev->ops->mse(f->dev, n->net.d_losses + micro->from, dpred, n->d_pred,
                                       n->target, NULL, n->net.grad_scale, (int)micro->count,
                                       values_of(n, micro), f->stream),
                      err);
}

static int dit_net_make(struct device *dev, const struct model *m, const struct net_options *opt,
                        struct net **ret, struct err *err)
{
    struct image_net *n = mem_alloc(sizeof *n);
    n->net.ops = &dit_net_ops;
    n->objective = image_net_error;
    return image_net_make(n, dev, m, opt, ret, err);
}

const struct net_ops dit_net_ops = {
    .bytes = image_net_bytes,
    .make = dit_net_make,
    .free = image_net_free,
    .load = image_net_load,
    .forward = image_net_forward,
    .backward = image_net_backward,
    .crossing = image_net_crossing,
    .velocities = velocities,
    .graphs = true,
    .hidden = image_net_hidden,
};

/* ---- the router of a mixture ----
 *
 * It finds the partition that a noised image is from (McAllister et al., "Decentralized Diffusion
 * Models", 2025, section 3).  The loss of an image is the cross-entropy
 *
 *    -log softmax(logits(x_t, t))[partition]
 *
 * whose optimum is the posterior p(k | x_t, t) if t and noise are drawn as for the experts and
 * images come in natural proportion.  There are no labels. */

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

/* The first class with the largest logit, for each image. */
static int find_best(struct net *net, unsigned count, int32_t *best, struct err *err)
{
    const struct image_net *n = of(net);
    const struct flow_matching *f = &n->flow;
    const int64_t K = n->values;
    int rc =
        f->dev->ops->copy(f->dev, n->logits, n->d_pred, (size_t)(count * K) * sizeof *n->logits,
                          COPY_FROM_DEVICE, f->stream);
    if (rc < 0)
        return err_set(err, rc, "reading logits from %s failed: %s", f->dev->name, err_text(rc));
    rc = weights_sync(net->weights, err);
    for (unsigned i = 0; i < count && rc == 0; i++) {
        const float *row = n->logits + i * K;
        best[i] = 0;
        for (int32_t k = 1; k < K; k++)
            if (row[k] > row[best[i]])
                best[i] = k;
    }
    return rc;
}

static int cross_entropy(struct image_net *n, const struct net_micro *micro, float *dpred,
                         struct err *err)
{
    const struct flow_matching *f = &n->flow;
    const struct cross_entropy ce = {
        .loss = n->net.d_losses + micro->from,
        .dlogits = dpred,
        .logits = n->d_pred,
        .target = f->d_partitions + micro->from,
        .grad_scale = n->net.grad_scale,
        .rows = micro->count,
        .V = (int)n->values,
        .dt = DT_F32,
        .grad_dt = DT_F32,
    };
    return check_loss(n, f->dev->ops->cross_entropy(f->dev, &ce, f->stream), err);
}

static int router_net_make(struct device *dev, const struct model *m, const struct net_options *opt,
                           struct net **ret, struct err *err)
{
    struct image_net *n = mem_alloc(sizeof *n);
    n->net.ops = &router_net_ops;
    n->admit = check_classes;
    n->objective = cross_entropy;
    return image_net_make(n, dev, m, opt, ret, err);
}

const struct net_ops router_net_ops = {
    .bytes = image_net_bytes,
    .make = router_net_make,
    .free = image_net_free,
    .load = image_net_load,
    .forward = image_net_forward,
    .backward = image_net_backward,
    .graphs = true,
    .best = find_best,
    .hidden = image_net_hidden,
};
