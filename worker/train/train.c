#include "worker/train/train_impl.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "worker/train/ahead.h"

static void plan(struct trainer *t)
{
    t->share = train_share_of(t->m->flat, t->opt.sharers, t->opt.sharer);
    const uint64_t bytes = (t->share.to - t->share.from) * sizeof(float);
    arena_add(&t->arena, &t->adam_m, bytes);
    arena_add(&t->arena, &t->adam_v, bytes);
    arena_add(&t->arena, &t->d_found, (FOUND_TENSORS + t->m->n) * sizeof *t->d_found);
    arena_add(&t->arena, &t->clip, sizeof *t->clip);
    inputs_add(&t->inputs, &t->now, &t->d_now, sizeof *t->now);
}

uint64_t trainer_bytes(const struct model *m, const struct train_options *opt, enum dtype dt)
{
    const struct net_options nopt = train_net_options(opt);
    struct trainer t = {.m = m, .opt = *opt};
    const struct ahead_options ahead = {
        .encoders = opt->encoders, .m = m, .batch = opt->batch, .first = net_reads(m)};
    plan(&t);
    return arena_measure(&t.arena) + inputs_measure(&t.inputs) + net_bytes(m, &nopt, dt) +
           (opt->fill && opt->encoders ? ahead_bytes(&ahead) : 0);
}

/* The most losses of a sample. */
static size_t losses_of(const struct model *m)
{
    return model_is_text(&m->spec) ? (size_t)m->spec.context : 1;
}

static int check_options(const struct train_options *opt, const struct net *net, struct err *err)
{
    if (opt->batch < 1 || opt->accumulate < 1 || opt->accumulate > opt->batch)
        return err_set(err, -EINVAL, "a batch of %d in %d micro-batches", opt->batch,
                       opt->accumulate);
    if (net->opt.batch < train_micro_share(opt))
        return err_set(err, -EINVAL, "micro-batches of %d in a network made for %d",
                       train_micro_share(opt), net->opt.batch);
    if (net_load_most(&net->opt) < (unsigned)opt->batch)
        return err_set(err, -EINVAL, "steps of %d samples in a network made to load %u", opt->batch,
                       net_load_most(&net->opt));
    return 0;
}

static int alloc_step(struct trainer *t, struct err *err)
{
    t->keys = mem_try_array((size_t)t->opt.batch, sizeof *t->keys);
    t->micros = mem_try_array((size_t)t->opt.batch, sizeof *t->micros);
    t->sizes = mem_try_array((size_t)t->opt.batch, sizeof *t->sizes);
    t->at = mem_try_array((size_t)t->opt.batch, sizeof *t->at);
    t->spans = mem_try_array(t->m->n, sizeof *t->spans);
    bool good = t->keys && t->micros && t->sizes && t->at && t->spans;
    for (int i = 0; i < 2; i++) {
        t->lists[i].sizes = mem_try_array((size_t)t->opt.batch, sizeof *t->sizes);
        good &= t->lists[i].sizes != NULL;
    }
    if (!good)
        return err_set(err, -ENOMEM, "no memory for a batch of %d samples", t->opt.batch);
    plan(t);
    int rc = inputs_alloc(&t->inputs, t->dev, err);
    if (rc == 0)
        rc = t->ops->alloc_host(t->dev, FOUND_TENSORS * sizeof(double), &t->found, err);
    return rc < 0 ? rc : arena_alloc(&t->arena, t->dev, err);
}

/* With one stage the network is the whole model, with all its chains. */
static void set_chains(struct trainer *t)
{
    t->n_chains = 0;
    for (int i = 0; i < t->plan.chains; i++) {
        const struct model *m = t->plan.chains > 1 ? model_chain(t->m, i) : t->m;
        struct net *net = t->plan.chains > 1 ? net_chain(t->net, i) : t->net;
        t->chains[i] =
            (struct trainer_chain){.net = net, .part = net_part_of(m), .depth = m->spec.depth};
        t->n_chains += net != NULL;
    }
}

int trainer_new(struct net *net, const struct train_options *opt, struct trainer **ret,
                struct err *err)
{
    struct trainer *t = mem_alloc(sizeof *t);
    t->opt = *opt;
    t->net = net;
    t->w = net->weights;
    t->m = t->whole = net_model(net);
    t->plan = (struct pipe_plan){
        .order = PIPE_DATA,
        .chains = 1,
        .devices = 1,
        .copies = 1,
        .cuts[0] = {.n = 1,
                    .samples = 1,
                    .stages[0] = {.to = t->m->spec.depth, .devices = 1, .warm = 1, .slots = 1}},
    };
    set_chains(t);
    t->dev = net_device(net);
    t->ops = t->dev->ops;
    int rc = check_options(opt, net, err);
    if (rc == 0)
        rc = alloc_step(t, err);
    if (rc == 0)
        rc = trainer_reset_moments(t, err);
    if (rc < 0) {
        (void)err_wrap(err, "making a trainer of %.1f M parameters", (double)t->m->params / 1e6);
        trainer_free(t);
        return rc;
    }
    if (t->dev->graphs && !net->ops->graphs)
        log_debug("train", "steps are not recorded device=%s network=%s", t->dev->name, net->name);
    *ret = t;
    return 0;
}

int trainer_make(struct device *dev, const struct model *m, const struct train_options *opt,
                 struct trainer **ret, struct err *err)
{
    const struct net_options nopt = train_net_options(opt);
    struct net *net;
    int rc = net_new(dev, m, &nopt, &net, err);
    if (rc < 0)
        return err_wrap(err, "making a trainer of %.1f M parameters", (double)m->params / 1e6);
    return trainer_new(net, opt, ret, err);
}

static void forget_graph(const struct trainer *t, struct recording *r)
{
    if (r->graph)
        t->ops->graph_free(t->dev, r->graph);
    r->graph = NULL;
}

void trainer_free(struct trainer *t)
{
    if (!t)
        return;
    for (int i = 0; i < 2; i++)
        forget_graph(t, &t->recs[i]);
    t->ops->free(t->dev, t->losses);
    arena_free(&t->arena, t->dev);
    inputs_free(&t->inputs);
    t->ops->free_host(t->dev, t->found);
    net_free(t->net);
    for (int i = 0; i < 2; i++) {
        schedule_release(&t->lists[i].schedule);
        mem_free(t->lists[i].sizes);
    }
    batch_release(&t->own);
    mem_free(t->trace.rows);
    mem_free(t->micros);
    mem_free(t->sizes);
    mem_free(t->at);
    mem_free(t->spans);
    mem_free(t->keys);
    mem_free(t);
}

int trainer_set_peers(struct trainer *t, const struct train_peers *peers, struct err *err)
{
    const size_t bytes = (size_t)peers->batch * losses_of(t->m) * sizeof(float);
    t->ops->free(t->dev, t->losses);
    t->losses = NULL;
    t->with_peers = true;
    t->peers = *peers;
    t->fill_share = 1;
    if (peers->plan) {
        t->plan = *peers->plan;
        t->device = peers->device;
        set_chains(t);
    }
    return t->ops->alloc(t->dev, bytes, &t->losses, err);
}

/* ---- a step, queued ---- */

/* b becomes the trainer's share of it. */
static int take_share(struct trainer *t, struct batch *b, struct err *err)
{
    const struct batch_sizes sizes = net_batch_sizes(t->m, &t->net->opt);
    if (t->opt.width < 2)
        return 0;
    t->peers.takes(t->peers.arg, t->at);
    int rc = batch_pick(&t->own, b, t->at, t->count, &sizes, err);
    *b = t->own.batch;
    return rc;
}

static const struct pipe_list *list_of(const struct trainer *t)
{
    return &t->lists[t->plan.estimate].schedule.lists[t->device];
}

static int slot_of(const struct trainer *t, int chain, int micro)
{
    return micro % net_slots(&t->chains[chain].net->opt);
}

/* Was its slot used by another micro-batch before? */
static bool takes_again(const struct trainer *t, int chain, int micro)
{
    return micro >= net_slots(&t->chains[chain].net->opt);
}

static int crossing_failed(const struct trainer *t, int rc, struct err *err)
{
    return rc < 0 ? err_set(err, rc, "what crosses to or from %s did not: %s", t->dev->name,
                            err_text(rc))
                  : 0;
}

/* Waits for queued work, on a card. */
static int wait_queued(struct trainer *t, struct err *err)
{
    if (t->dev->unified)
        return 0;
    return t->with_peers ? t->peers.wait(t->peers.arg, t->w->stream, err) : weights_sync(t->w, err);
}

/* Notes that the inputs of an instruction are there. */
static int note_ready(struct trainer *t, struct err *err)
{
    const int rc = t->tracing ? wait_queued(t, err) : 0;
    t->ready_ns = clock_now_ns();
    return rc;
}

static int arrive(struct trainer *t, int chain, enum pipe_what what, int micro)
{
    return t->alone ? 0 : t->peers.arrive(t->peers.arg, chain, what, micro);
}

static int sent(struct trainer *t, int chain, int micro)
{
    return t->alone ? 0 : t->peers.sent(t->peers.arg, chain, micro);
}

/* F, or E: a forward that makes the velocities for the estimate. */
static int forward(struct trainer *t, int chain, int micro, bool estimates, struct err *err)
{
    const struct trainer_chain *c = &t->chains[chain];
    struct net_micro m = t->micros[micro];
    const bool again = takes_again(t, chain, micro);
    /* A send of an E may still be running: arriving data must not overwrite it. */
    const bool early = estimates ? again : t->plan.estimate && micro == 0;
    int rc = 0;
    if (early && t->plan.cuts[chain].n > 1)
        rc = sent(t, chain, -1);
    if (rc == 0 && c->part.from > 0)
        rc = arrive(t, chain, PIPE_STATES, micro);
    if (rc == 0 && t->plan.cuts[chain].n > 1 && again && !early)
        rc = sent(t, chain, micro);
    rc = crossing_failed(t, rc, err);
    if (rc == 0)
        rc = note_ready(t, err);
    m.estimates = estimates;
    m.backward = !estimates;
    return rc < 0 ? rc : net_forward(c->net, NULL, slot_of(t, chain, micro), &m, err);
}

/* The watch of gradients, which become final in the last micro-batch. */
static const struct weights_watch *watch_of(const struct trainer *t, int micro)
{
    const bool last = micro == t->plan.cuts[0].micros - 1;
    return t->with_peers && last && !t->alone ? &t->peers.watch : NULL;
}

static int backward(struct trainer *t, int chain, int micro, struct err *err)
{
    const struct trainer_chain *c = &t->chains[chain];
    int rc = 0;
    if (c->part.to < c->depth)
        rc = arrive(t, chain, PIPE_GRADIENTS, micro);
    rc = crossing_failed(t, rc, err);
    if (rc == 0)
        rc = note_ready(t, err);
    if (rc < 0)
        return rc;
    c->net->weights->watch = watch_of(t, micro);
    rc = net_backward(c->net, NULL, slot_of(t, chain, micro), err);
    c->net->weights->watch = NULL;
    return rc;
}

static int weights(struct trainer *t, int chain, int micro, struct err *err)
{
    const struct trainer_chain *c = &t->chains[chain];
    c->net->weights->watch = watch_of(t, micro);
    const int rc = net_weights(c->net, slot_of(t, chain, micro), err);
    c->net->weights->watch = NULL;
    return rc;
}

/* Narrows the pieces of the trainer's share of a micro-batch to the samples of an instruction. */
static void narrow(const struct trainer *t, const struct pipe_instr *in, struct net_piece *pieces,
                   int n)
{
    int first, count;
    pipe_share(&t->plan.cuts[in->chain], in->stage, step_rank(t, in->chain, in->stage), in->micro,
               &first, &count);
    for (int i = 0; i < n; i++) {
        const size_t each = pieces[i].bytes / (size_t)count;
        pieces[i].x = (char *)pieces[i].x + (size_t)(in->first - first) * each;
        pieces[i].bytes = (size_t)in->count * each;
    }
}

/* States go over a part's upper end and come over its lower one, gradients the other way. */
static int cross(struct trainer *t, const struct pipe_instr *in, struct err *err)
{
    struct net_piece pieces[NET_PIECES_MAX];
    const enum net_way way = in->what == PIPE_STATES ? NET_UP : NET_DOWN;
    const bool upper = (way == NET_UP) == (in->op == PIPE_SEND);
    const struct trainer_chain *c = &t->chains[in->chain];
    const int n = net_crossing(c->net, way, upper ? c->part.to : c->part.from,
                               slot_of(t, in->chain, in->micro), &t->micros[in->micro], pieces);
    narrow(t, in, pieces, n);
    return crossing_failed(t, t->peers.cross(t->peers.arg, in, pieces, n), err);
}

/* Sends velocities of the last stage's E to the first stage. */
static int feed(struct trainer *t, const struct pipe_instr *in, struct err *err)
{
    struct net_piece piece = net_velocities(t->chains[in->chain].net, &t->micros[in->micro]);
    narrow(t, in, &piece, 1);
    return crossing_failed(t, t->peers.feed(t->peers.arg, in, &piece), err);
}

static int no_gradients(struct trainer *t, struct err *err)
{
    struct weights *w = t->w;
    w->watch = &t->peers.watch;
    weights_note(w, t->ops->zero(t->dev, w->g, t->m->flat * sizeof *w->g, w->stream), "zero");
    weights_ready(w, 0, t->m->flat);
    w->watch = NULL;
    return weights_check(w, err);
}

/* Adds a chain's losses of the trainer's samples at their places in the whole step's, a run at a
 * time. */
static int place_losses(struct trainer *t, int chain, const struct batch *b, size_t each,
                        float *all)
{
    const float *own = t->chains[chain].net->d_losses;
    int rc = 0;
    for (unsigned i = 0, n; i < b->count && rc == 0; i += n) {
        for (n = 1; i + n < b->count && t->at[i + n] == t->at[i] + n;)
            n++;
        float *place = all + (b->first + t->at[i]) * each;
        rc = t->ops->axpby(t->dev, place, 1.0f, place, 1.0f, own + i * each, (int64_t)(n * each),
                           t->w->stream);
    }
    return rc;
}

/* Queues the losses of the whole step, in its order, and the sums of gradients and losses over the
 * peers. */
static int queue_losses(struct trainer *t, const struct batch *b, struct err *err)
{
    const size_t each = b->seq ? b->seq : 1;
    const int64_t n = (int64_t)(b->whole * each);
    const float *losses = t->net->d_losses;
    int rc = 0;
    if (t->with_peers) {
        float *all = t->losses;
        rc = t->ops->zero(t->dev, all, (size_t)n * sizeof *all, t->w->stream);
        for (int i = 0; i < t->plan.chains && rc == 0; i++)
            if (t->chains[i].part.to == t->chains[i].depth)
                rc = place_losses(t, i, b, each, all);
        losses = all;
    }
    if (rc == 0 && b->count == 0)
        rc = no_gradients(t, err);
    if (rc == 0 && t->with_peers)
        rc = t->peers.join(t->peers.arg, t->losses, n, err);
    /* A sample's loss is the sum of two chains', whose last stages may lie on two devices. */
    if (rc == 0 && t->plan.chains > 1)
        rc = t->peers.gather(t->peers.arg, t->losses, n, COMM_F32);
    if (rc == 0)
        rc = t->ops->zero(t->dev, t->d_found, (FOUND_TENSORS + t->m->n) * sizeof(double),
                          t->w->stream);
    if (rc == 0)
        rc = t->ops->sum(t->dev, t->d_found + FOUND_LOSS, losses, n, t->w->stream);
    return rc < 0 ? err_set(err, rc, "the losses failed on %s: %s", t->dev->name, err_text(rc)) : 0;
}

/* Queues the norm of the whole model's gradient: tensor by tensor, so that it does not depend on
 * the division into devices. */
static int queue_norm(struct trainer *t, struct err *err)
{
    const struct kernel_ops *k = t->ops;
    const struct model *m = t->m;
    struct stream *s = t->w->stream;
    const bool cut = pipe_places(&t->plan) > 1;
    double *f = t->d_found;
    for (size_t i = 0; i < m->n; i++)
        t->spans[i] =
            (struct vec_span){(int64_t)m->tensors[i].offset, (int64_t)m->tensors[i].count};
    int rc = k->sumsq(t->dev, f + FOUND_TENSORS, t->w->g, t->spans, (int)m->n, s);
    /* Ranks of a stage have found the same norm, which counts once.  So does the loss of two
     * chains, which all devices know. */
    if (rc == 0 && cut && t->plan.chains > 1 && t->device > 0)
        rc = k->zero(t->dev, f + FOUND_LOSS, sizeof *f, s);
    if (rc == 0 && cut && step_rank_in_place(t) > 0)
        rc = k->zero(t->dev, f + FOUND_LOSS, (m->n + 1) * sizeof *f, s);
    if (rc == 0 && cut)
        rc = t->peers.gather(t->peers.arg, f + FOUND_LOSS, (int64_t)(m->n + 1), COMM_F64);
    if (rc == 0)
        rc = k->sum_f64(t->dev, f + FOUND_SQUARES, f + FOUND_TENSORS, (int64_t)m->n, s);
    if (rc == 0)
        rc = k->clip_scale(t->dev, t->clip, f + FOUND_SQUARES, f + FOUND_LOSS, (float)t->opt.clip,
                           s);
    return rc < 0 ? err_set(err, rc, "the gradient's norm failed on %s: %s", t->dev->name,
                            err_text(rc))
                  : 0;
}

/* Queues the update of a range of the trainer's share. */
static int update_range(struct trainer *t, uint64_t from, uint64_t to, double decay)
{
    bf16 *w16 = t->w->w16;
    from = from > t->share.from ? from : t->share.from;
    to = to < t->share.to ? to : t->share.to;
    if (from >= to)
        return 0;
    const uint64_t at = from - t->share.from;
    struct adamw p = {
        .p = t->w->w + from,
        .p_bf16 = w16 ? w16 + from : NULL,
        .m = t->adam_m + at,
        .v = t->adam_v + at,
        .grad = t->w->g + from,
        .grad_scale = t->clip,
        .now = t->d_now,
        .beta1 = (float)t->opt.beta1,
        .beta2 = (float)t->opt.beta2,
        .eps = (float)t->opt.eps,
        .weight_decay = (float)decay,
        .n = (int64_t)(to - from),
    };
    return t->ops->adamw(t->dev, &p, t->w->stream);
}

/* Queues the update, which does nothing if loss or gradient is not finite. */
static int queue_update(struct trainer *t, struct err *err)
{
    const struct model *m = t->m;
    const uint64_t decayed = t->opt.weight_decay > 0 ? m->decayed : 0;
    int rc = decayed > 0 ? update_range(t, 0, decayed, t->opt.weight_decay) : 0;
    if (rc == 0)
        rc = update_range(t, decayed, m->flat, 0.0);
    if (rc == 0 && t->opt.sharers > 1)
        rc = t->peers.spread(t->peers.arg);
    if (rc == 0 && t->opt.sharers > 1)
        return weights_changed(t->w, err);
    if (rc < 0)
        return err_set(err, rc, "the optimiser failed on %s: %s", t->dev->name, err_text(rc));
    return 0;
}

static int queue_one(struct trainer *t, const struct batch *b, const struct pipe_instr *in,
                     struct err *err)
{
    const bool any = in->count > 0;
    switch (in->op) {
    case PIPE_F:
    case PIPE_E:
        return any ? forward(t, in->chain, in->micro, in->op == PIPE_E, err) : 0;
    case PIPE_B: /* with W, unless W is split off */
        return any ? backward(t, in->chain, in->micro, err) : 0;
    case PIPE_W:
        return any && t->opt.split ? weights(t, in->chain, in->micro, err) : 0;
    case PIPE_SEND:
    case PIPE_RECV:
        if (in->what == PIPE_ENCODED)
            return t->peers.encode(t->peers.arg, in, err);
        return in->what == PIPE_VELOCITIES ? feed(t, in, err) : cross(t, in, err);
    case PIPE_FROZEN:
        return t->peers.encode(t->peers.arg, in, err);
    case PIPE_REDUCE: /* all chains are summed at once, with the last one's REDUCE */
        return ++t->reduced == t->n_chains ? queue_losses(t, b, err) : 0;
    case PIPE_CLIP:
        return queue_norm(t, err);
    case PIPE_STEP:
        return queue_update(t, err);
    case PIPE_LOAD: /* is done already: it is not recorded */
    case PIPE_OPS:
        break;
    }
    return 0;
}

static int queue_instr(struct trainer *t, const struct batch *b, const struct pipe_instr *in,
                       struct err *err)
{
    t->ready_ns = clock_now_ns();
    int rc = queue_one(t, b, in, err);
    if (t->pace && rc == 0)
        t->pace(t->pace_arg, in, t->ready_ns);
    return rc;
}

/* If the step is new computes what the list does, without its transfers; then waits until all peers
 * have. */
static int rehearse(struct trainer *t, const struct batch *b, const struct pipe_list *list,
                    bool is_new, struct err *err)
{
    int rc = 0;
    t->alone = true;
    for (int i = 0; i < list->n && is_new && rc == 0; i++) {
        const enum pipe_op op = list->items[i].op;
        if (op < PIPE_SEND || op == PIPE_FROZEN)
            rc = queue_one(t, b, &list->items[i], err);
    }
    t->alone = false;
    if (rc == 0)
        rc = weights_sync(t->w, err);
    if (rc < 0)
        return rc;
    rc = t->peers.meet(t->peers.arg);
    return crossing_failed(t, rc, err);
}

static double since(const struct trainer *t, uint64_t at_ns)
{
    return (double)(at_ns - t->traced_from) / 1e9;
}

/* One instruction, and when it ran. */
static int trace_instr(struct trainer *t, const struct batch *b, int i, struct err *err)
{
    struct trace_row *row = &t->trace.rows[i];
    row->start = since(t, clock_now_ns());
    int rc = queue_instr(t, b, &list_of(t)->items[i], err);
    if (rc == 0)
        rc = wait_queued(t, err);
    row->ready = since(t, t->ready_ns);
    row->end = since(t, clock_now_ns());
    return rc;
}

static int begin_trace(struct trainer *t, int n, struct err *err)
{
    mem_free(t->trace.rows);
    t->trace = (struct trace){.rows = mem_try_array((size_t)n, sizeof *t->trace.rows), .n = n};
    return t->trace.rows ? 0 : err_set(err, -ENOMEM, "no memory to trace a step");
}

/* Queues all work that can be recorded: varying values are in device memory, or follow from the
 * batch's numbers. */
static int queue_step(struct trainer *t, const struct batch *b, struct err *err)
{
    const struct pipe_list *list = list_of(t);
    const bool trace = t->tracing;
    t->reduced = 0;
    int rc = trace ? begin_trace(t, list->n, err) : 0;
    for (int i = 0; i < list->n && rc == 0; i++)
        rc = trace ? trace_instr(t, b, i, err) : queue_instr(t, b, &list->items[i], err);
    t->tracing = false;
    return rc;
}

/* ---- the step as a graph ---- */

static struct recording *recording_of(struct trainer *t, const struct batch *b)
{
    return &t->recs[b->estimate];
}

/* Can the step be recorded?  Steps with several shapes are all different. */
static bool can_record(const struct trainer *t, const struct recording *r)
{
    return t->dev->graphs && t->net->ops->graphs && !t->dev->profile && !r->off && !t->tracing &&
           (!t->with_peers || t->peers.graphs) && t->m->spec.n_shapes == 0;
}

/* Is this step equal to the last one?  Remembers it.  The loss's scale is an argument for
 * images, and data for texts. */
static bool same_step(struct trainer *t, const struct batch *b)
{
    struct recording *r = recording_of(t, b);
    const struct batch *a = &r->last;
    const bool same = r->known && a->count == b->count && a->seq == b->seq &&
                      (b->seq || a->units == b->units) && a->first == b->first &&
                      a->whole == b->whole;
    r->known = true;
    r->last = *b;
    return same;
}

/* Records the graph of the step, without running it; on failure this trainer records no more, but
 * for a lack of memory, which may pass. */
static int record(struct trainer *t, const struct batch *b)
{
    struct recording *r = recording_of(t, b);
    struct err err = {0};
    int rc = t->ops->graph_begin(t->dev, t->w->stream, &err);
    if (rc == 0) {
        const int queued = queue_step(t, b, &err);
        rc = t->ops->graph_end(t->dev, t->w->stream, &r->graph, queued < 0 ? NULL : &err);
        if (queued < 0) {
            forget_graph(t, r);
            rc = rc == -ENOMEM ? rc : queued;
        }
    }
    if (rc == 0)
        r->asked = 0;
    if (rc < 0) {
        (void)weights_check(t->w, NULL);
        r->off = rc != -ENOMEM;
        log_warn("train", "steps are not recorded device=%s reason=\"%s\"", t->dev->name, err.msg);
    }
    return rc;
}

/* At the first, second, fourth .. step that could be recorded, since a try costs the host as much
 * as a step. */
static bool is_due(struct recording *r)
{
    const unsigned asked = ++r->asked;
    return (asked & (asked - 1)) == 0;
}

static int run_step(struct trainer *t, const struct batch *b, struct err *err)
{
    struct recording *r = recording_of(t, b);
    if (!can_record(t, r))
        return queue_step(t, b, err);
    if (!same_step(t, b))
        forget_graph(t, r);
    else if (r->graph || (is_due(r) && record(t, b) == 0)) {
        int rc = t->ops->graph_launch(t->dev, r->graph, t->w->stream);
        if (rc != -ESTALE)
            return rc < 0 ? err_set(err, rc, "a step cannot be started on %s: %s", t->dev->name,
                                    err_text(rc))
                          : 0;
        forget_graph(t, r);
    }
    return queue_step(t, b, err);
}

/* ---- the step ---- */

/* The factor of the learning rate while moments are younger than the replica, since they were lost
 * with a worker: Adam's estimates are then poor. */
static double young(const struct trainer *t)
{
    const double age = (double)t->adam_step + 1, warmup = (double)t->opt.moments_warmup;
    return t->adam_step < t->step && age < warmup ? age / warmup : 1.0;
}

/* Sends the samples and the factors of this update to the device. */
static int send(struct trainer *t, struct batch *b, double lr, struct err *err)
{
    for (unsigned i = 0; i < b->count; i++)
        t->keys[i] = rng_mix(t->step, b->first + t->at[i]);
    b->seed = rng_mix(t->opt.seed, t->opt.replica);
    b->keys = t->keys;
    b->estimate = step_has_estimate(t);
    int rc = b->count ? net_load(t->net, b, 1.0f / (float)b->units, err) : 0;
    if (rc < 0)
        return rc;
    *t->now = adamw_now(lr, (float)t->opt.beta1, (float)t->opt.beta2, (int64_t)t->adam_step + 1);
    rc = inputs_send(&t->inputs, t->w->stream);
    if (rc < 0)
        return err_set(err, rc, "a step cannot be sent to %s: %s", t->dev->name, err_text(rc));
    return 0;
}

/* Waits for the step. */
static int receive(struct trainer *t, double ret[FOUND_TENSORS], struct err *err)
{
    const size_t bytes = FOUND_TENSORS * sizeof *ret;
    int rc = t->ops->copy(t->dev, t->found, t->d_found, bytes, COPY_FROM_DEVICE, t->w->stream);
    if (rc < 0)
        return err_set(err, rc, "a step cannot be read from %s: %s", t->dev->name, err_text(rc));
    if (t->with_peers)
        rc = t->peers.wait(t->peers.arg, t->w->stream, err);
    if (rc == 0)
        rc = weights_sync(t->w, err);
    memcpy(ret, t->found, bytes);
    return rc;
}

static int check_step(const struct trainer *t, const struct batch *b, struct err *err)
{
    if ((b->count < 1 && !t->with_peers) || b->count > (unsigned)t->opt.batch)
        return err_set(err, -EINVAL, "a step on %u samples; from 1 to %d are possible", b->count,
                       t->opt.batch);
    if (b->tokens && b->seq > losses_of(t->m))
        return err_set(err, -EINVAL, "rows of %u tokens in a model of context %d", b->seq,
                       t->m->spec.context);
    if (b->units == 0)
        return err_set(err, -EINVAL, "a step of %u rows without a token to predict", b->whole);
    if (b->first > b->whole || b->count > b->whole - b->first ||
        (t->with_peers ? b->whole > t->peers.batch : b->whole != b->count))
        return err_set(err, -EINVAL, "samples %u to %u of a step of %u", b->first,
                       b->first + b->count, b->whole);
    return 0;
}

int trainer_step(struct trainer *t, const struct batch *part, struct step_result *ret,
                 struct err *err)
{
    struct batch b = *part;
    if (b.whole == 0) {
        b.whole = b.count;
        b.units = b.count ? batch_units(&b) : 1;
    }
    struct step_result r = {
        .step = t->step,
        .lr = (t->done > 0 ? train_lr_timed(&t->opt, t->step, t->done)
                           : train_lr(&t->opt, t->step, t->total_steps)) *
              young(t),
    };
    double found[FOUND_TENSORS] = {0};
    int rc = check_step(t, &b, err);
    if (rc == 0)
        rc = step_make_list(t, &b, err);
    if (rc == 0)
        rc = take_share(t, &b, err);
    if (rc == 0)
        rc = send(t, &b, r.lr, err);
    if (rc == 0 && b.next > 0)
        rc = t->peers.look_ahead(t->peers.arg, err);
    if (rc == 0 && t->rehearses)
        rc = rehearse(t, &b, list_of(t), step_is_new(t, &b), err);
    if (rc == 0)
        rc = run_step(t, &b, err);
    if (rc == 0)
        rc = receive(t, found, err);
    if (rc < 0)
        return rc;
    r.loss = found[FOUND_LOSS] / (double)b.units;
    r.grad_norm = sqrt(found[FOUND_SQUARES]);
    r.skipped = !isfinite(r.loss) || !isfinite(r.grad_norm);
    t->step++;
    t->adam_step += !r.skipped;
    *ret = r;
    return 0;
}

int trainer_encode(struct trainer *t, unsigned count, struct err *err)
{
    const unsigned most = (unsigned)train_micro_batch(&t->opt);
    struct pipe_plan plan = t->plan;
    struct pipe_schedule filled, alone = {0};
    for (int c = 0; c < plan.chains; c++) {
        plan.cuts[c].micros = (int)((count + most - 1) / most);
        plan.cuts[c].sizes = NULL;
    }
    plan.estimate = false;
    int rc = step_schedule(t, &plan, count, &filled, err);
    if (rc < 0)
        return rc;
    rc = fill_prologue(&filled, &alone, err);
    if (rc == 0)
        rc = t->peers.look_ahead(t->peers.arg, err);
    const struct pipe_list *list = &alone.lists[t->device];
    const struct batch none = {0};
    if (rc == 0 && t->rehearses)
        rc = rehearse(t, &none, list, true, err);
    for (int i = 0; rc == 0 && i < list->n; i++)
        rc = queue_instr(t, &none, &list->items[i], err);
    if (rc == 0)
        rc = t->peers.wait(t->peers.arg, t->w->stream, err);
    schedule_release(&alone);
    schedule_release(&filled);
    return rc;
}

void trainer_rehearse(struct trainer *t, bool on)
{
    t->rehearses = on;
}

void trainer_refill(struct trainer *t, double share)
{
    t->fill_share = share;
    for (int i = 0; i < 2; i++) {
        schedule_release(&t->lists[i].schedule);
        t->lists[i].micros = 0;
    }
}

void trainer_trace(struct trainer *t, uint64_t begun_ns)
{
    t->tracing = true;
    t->traced_from = begun_ns;
}

void trainer_traced(const struct trainer *t, const struct trace **ret,
                    const struct pipe_list **list)
{
    *ret = &t->trace;
    *list = list_of(t);
}

void trainer_set_pace(struct trainer *t, trainer_pace_fn *pace, void *arg)
{
    t->pace = pace;
    t->pace_arg = arg;
}

void trainer_position(struct trainer *t, uint64_t step, uint64_t total_steps)
{
    t->step = step;
    t->total_steps = total_steps;
    t->done = 0;
}

void trainer_set_done(struct trainer *t, double done)
{
    t->done = done;
}

uint64_t trainer_next_step(const struct trainer *t)
{
    return t->step;
}

uint64_t trainer_total_steps(const struct trainer *t)
{
    return t->total_steps;
}

uint64_t trainer_adam_step(const struct trainer *t)
{
    return t->adam_step;
}

void trainer_set_adam_step(struct trainer *t, uint64_t step)
{
    t->adam_step = step;
}

const struct model *trainer_model(const struct trainer *t)
{
    return t->whole;
}

const struct train_options *trainer_options(const struct trainer *t)
{
    return &t->opt;
}

struct net *trainer_net(const struct trainer *t)
{
    return t->net;
}
