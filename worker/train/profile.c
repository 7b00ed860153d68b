#include "worker/train/profile.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "worker/frozen/frozen_walk.h"
#include "worker/train/ahead.h"
#include "worker/train/plan_chain.h"

enum {
    TRIES = 4,
    TRIES_MAX = 20,
    ROUNDS = 3, /* over all parts: other programs keep the machine busy for a while */
    REPEATS = 2,
    UPDATES = 5,
    RATE_TRIES = 3,
    SIZES = 2,
    SIZE_MOST = 4,
    MESSAGES = 8,
    FROZEN_REPEATS = 2
};
#define TRIED_S 1.0             /* quick steps are repeated for this time */
#define FORWARD_S 0.3           /* the same for forwards */
#define ELEMENTS_MAX (8u << 20) /* most elements updated or summed: more than caches hold */
#define COLD_MAX (64u << 20)    /* most bytes written between timings */
#define LARGE (4u << 20)        /* bytes of a large message */
#define RATE_BYTES (64u << 20)  /* copied to time the way from the host's memory */
#define MEMORY_MAX 1e15         /* most memory in a profile */

/* Times of a part of one block, on one device. */
struct part_times {
    double f[SIZES], b[SIZES], w[SIZES]; /* seconds; with recomputation w is in b */
    double adding_b, adding_w;           /* of the least size, to earlier gradients */
};

enum { FIRST, MIDDLE, LAST, PARTS };

struct rank_times {
    struct part_times parts[COSTS_CHAINS_MAX][PARTS];
    double step;              /* seconds of an element's norm and update */
    double small, large;      /* seconds of a message to the next rank */
    double sum;               /* seconds of an element's sum over all ranks */
    double from_host;         /* bytes a second; 0: the device's memory is the host's */
    struct net_encoders stub; /* replaces the encoders */
    struct costs_frozen frozen[NET_ENCODERS];
};

struct measuring {
    struct island *is;
    const struct model *m;
    const struct train_options *opt;
    struct costs_points sizes, groups;
    enum net_encoder frozen[NET_ENCODERS];
    int n_frozen;
    struct rank_times ranks[ISLAND_MAX];
};

/* ---- parts ---- */

static int no_captions(void *arg, const int32_t *tokens, const int32_t *lengths, unsigned count,
                       void *d_states, struct err *err)
{
    return 0; /* any values will do for timing */
}

/* Rows of zeros; in texts each token is to be predicted. */
struct zeros {
    struct batch batch;
    uint64_t *keys;
    uint16_t *moments;
    uint8_t *images;
    int32_t *ints, *target, *pos, *classes;
};

static void zeros_release(struct zeros *z)
{
    mem_free(z->keys);
    mem_free(z->moments);
    mem_free(z->images);
    mem_free(z->ints);
    mem_free(z->target);
    mem_free(z->pos);
    mem_free(z->classes);
}

static void zeros_make(struct zeros *z, const struct model *m, const struct net_options *opt,
                       unsigned n)
{
    const struct batch_sizes sizes = net_batch_sizes(m, opt);
    const size_t rows = (size_t)n * (size_t)(m->spec.context + 1);
    *z = (struct zeros){.keys = mem_alloc_array(n, sizeof *z->keys), .batch.count = n};
    z->batch.keys = z->keys;
    if (!model_is_text(&m->spec)) {
        const struct net_encoders *e = opt->encoders;
        if (e && e->shift && !e->fly)
            z->batch.moments = z->moments = mem_alloc_array(n * sizes.moments, sizeof *z->moments);
        else
            z->batch.images = z->images = mem_alloc_array(n, sizes.image);
        if (m->spec.kind == MODEL_ROUTER)
            z->batch.partitions = z->classes = mem_alloc_array(n, sizeof *z->classes);
        if (sizes.caption_tokens > 0) {
            z->batch.captions = z->ints = mem_alloc_array((size_t)n * sizes.caption_tokens, 4);
            z->batch.caption_lengths = z->pos = mem_alloc_array(n, sizeof *z->pos);
        }
        for (unsigned i = 0; i < n && z->pos; i++)
            z->pos[i] = 1;
        return;
    }
    z->ints = mem_alloc_array(rows, sizeof *z->ints);
    z->target = mem_alloc_array(rows, sizeof *z->target);
    z->pos = mem_alloc_array(rows, sizeof *z->pos);
    for (size_t i = 0; i < rows; i++)
        z->pos[i] = (int32_t)(i % (size_t)m->spec.context);
    z->batch.seq = (unsigned)m->spec.context;
    z->batch.tokens = z->batch.start = z->ints;
    z->batch.target = z->target;
    z->batch.pos = z->pos;
}

/* In a step other blocks are computed in between, so a block's data come from memory, not from a
 * cache.  Much of a small model stays in the cache, so no more is written than its weights,
 * gradients and moments. */
struct cold {
    void *x;
    uint64_t bytes;
};

static int cold_alloc(const struct measuring *t, struct device *dev, struct cold *ret,
                      struct err *err)
{
    const uint64_t all = 4 * t->m->flat * sizeof(float);
    ret->bytes = all < COLD_MAX ? all : COLD_MAX;
    return dev->ops->alloc(dev, ret->bytes, &ret->x, err);
}

static int forget_caches(struct net *net, const struct cold *cold, struct err *err)
{
    struct weights *w = net->weights;
    weights_note(w, w->ops->zero(w->dev, cold->x, cold->bytes, w->stream), "zero");
    return weights_sync(w, err);
}

/* Times both backwards, the second right after the first. */
static int time_backward(struct net *net, double *b, double *w, struct err *err)
{
    uint64_t begun = clock_now_ns();
    int rc = net_backward(net, NULL, 0, err);
    if (rc == 0)
        rc = weights_sync(net->weights, err);
    *b = clock_since_s(begun);
    begun = clock_now_ns();
    if (rc == 0)
        rc = net_weights(net, 0, err);
    if (rc == 0)
        rc = weights_sync(net->weights, err);
    *w = net->opt.split ? clock_since_s(begun) : 0;
    return rc;
}

/* Takes the least of some times and of those that are there, since other programs may use the
 * machine meanwhile. */
static int time_size(struct net *net, const struct model *m, int samples, bool first,
                     const struct cold *cold, double *f, double *b, double *w, struct err *err)
{
    const struct net_micro micro = {0, (unsigned)samples, first, true};
    double b_now, w_now;
    struct zeros z;
    zeros_make(&z, m, &net->opt, (unsigned)samples);
    int rc = net_load(net, &z.batch, 1, err);
    for (int i = 0; i <= REPEATS && rc == 0; i++) { /* the first one warms up */
        rc = forget_caches(net, cold, err);
        const uint64_t begun = clock_now_ns();
        if (rc == 0)
            rc = net_forward(net, NULL, 0, &micro, err);
        if (rc == 0)
            rc = weights_sync(net->weights, err);
        *f = i > 0 ? fmin(*f, clock_since_s(begun)) : *f;
        if (rc == 0)
            rc = forget_caches(net, cold, err);
        if (rc == 0)
            rc = time_backward(net, &b_now, &w_now, err);
        *b = i > 0 && rc == 0 ? fmin(*b, b_now) : *b;
        *w = i > 0 && rc == 0 ? fmin(*w, w_now) : *w;
    }
    zeros_release(&z);
    return rc;
}

static int time_part(struct measuring *t, int rank, int chain, int which, struct err *err)
{
    struct rank_times *mine = &t->ranks[rank];
    const struct model *m = model_chain(t->m, chain);
    const int depth = m->spec.depth, from = which == FIRST ? 0 : which == LAST ? depth - 1 : 1;
    struct part_times *times = &mine->parts[chain][which];
    struct device *dev = island_device(t->is, rank);
    struct model *part = NULL;
    struct net *net = NULL;
    struct cold cold = {0};
    int rc = model_part_new(m, &(struct model_part){from, from + 1}, &part, err);
    struct net_options opt = train_net_options(t->opt);
    opt.batch = opt.load = t->sizes.samples[t->sizes.n - 1];
    opt.slots = 1;
    opt.mode = opt.mode == NET_LEAN ? NET_TRAIN : opt.mode; /* one profile for both */
    opt.split = opt.mode == NET_TRAIN;
    opt.encoders = t->opt->encoders ? &mine->stub : NULL;
    if (rc == 0)
        rc = net_new(dev, part, &opt, &net, err);
    if (rc == 0)
        rc = weights_changed(net->weights, err);
    if (rc == 0)
        rc = cold_alloc(t, dev, &cold, err);
    for (int i = 0; i < t->sizes.n && rc == 0; i++)
        rc = time_size(net, m, t->sizes.samples[i], true, &cold, &times->f[i], &times->b[i],
                       &times->w[i], err);
    double f = INFINITY;
    if (rc == 0)
        rc = time_size(net, m, t->sizes.samples[0], false, &cold, &f, &times->adding_b,
                       &times->adding_w, err);
    dev->ops->free(dev, cold.x);
    net_free(net);
    model_free(part);
    return rc;
}

/* ---- frozen networks ---- */

/* Times all layers of a network over `n` samples of zeros, one after the other. */
static int time_layers(struct device *dev, struct frozen_walk *walk, const struct frozen_io *io,
                       int n, int point, struct costs_frozen *ret, struct err *err)
{
    int rc = 0;
    for (int k = 0; k < FROZEN_REPEATS && rc == 0; k++) {
        rc = frozen_walk_begin(walk, io, n, err);
        for (int i = 0; i < ret->n && rc == 0; i++) {
            double *t = &ret->layers[i].t.s[point];
            const uint64_t begun = clock_now_ns();
            rc = frozen_walk_run(walk, 0, n, i, i + 1, NULL, err);
            if (rc == 0)
                rc = dev->ops->sync(dev, NULL, err);
            *t = k > 0 ? fmin(*t, clock_since_s(begun)) : clock_since_s(begun);
        }
    }
    return rc;
}

/* Times a network; its output is meaningless. */
static int time_network(const struct measuring *t, struct device *dev, struct frozen *f,
                        uint64_t out_bytes, struct costs_frozen *ret, struct err *err)
{
    const size_t most = (size_t)t->groups.samples[t->groups.n - 1];
    uint8_t *in = mem_alloc_array(most, frozen_in_bytes(f));
    int32_t *lengths = mem_alloc_array(most, sizeof *lengths);
    struct frozen_io io = {.in = in, .lengths = lengths};
    struct frozen_walk *walk = NULL;
    for (size_t i = 0; i < most; i++)
        lengths[i] = 1;
    int rc = dev->ops->alloc(dev, most * out_bytes, &io.out, err);
    if (rc == 0)
        rc = frozen_walk_new(f, (int)most, &walk, err);
    for (int i = 0; i < t->groups.n && rc == 0; i++)
        rc = time_layers(dev, walk, &io, t->groups.samples[i], i, ret, err);
    frozen_walk_free(walk);
    dev->ops->free(dev, io.out);
    mem_free(lengths);
    mem_free(in);
    return rc;
}

static int time_frozen(struct measuring *t, int rank, struct err *err)
{
    struct rank_times *mine = &t->ranks[rank];
    const struct net_encoders *e = &t->opt->encoders[rank];
    const struct ahead_options opt = {.encoders = e, .m = t->m};
    uint64_t rest = e->bytes;
    int rc = 0;
    for (int k = 0; k < t->n_frozen && rc == 0; k++) {
        struct costs_frozen *c = &mine->frozen[k];
        struct frozen *f = NULL;
        rc = e->open(e->arg, t->frozen[k], &f, err);
        if (rc < 0)
            break;
        (void)snprintf(c->name, sizeof c->name, "%s",
                       t->frozen[k] == NET_IMAGES ? "images" : "captions");
        c->n = frozen_layers(f);
        c->out_bytes = ahead_out_bytes(&opt, t->frozen[k]);
        c->layers = mem_alloc_array((size_t)c->n, sizeof *c->layers);
        for (int i = 0; i < c->n; i++) {
            const uint64_t bytes = frozen_layer_bytes(f, i);
            c->layers[i].weight_bytes = bytes;
            c->layers[i].scratch_bytes = e->hold_bytes / (uint64_t)t->n_frozen;
            rest -= bytes < rest ? bytes : rest;
        }
        rc = time_network(t, island_device(t->is, rank), f, c->out_bytes, c, err);
        e->close(e->arg, t->frozen[k]);
    }
    if (rc == 0) /* which allocates working buffers */
        mine->frozen[0].layers[0].weight_bytes += rest;
    return rc;
}

/* ---- the update, and links ---- */

double profile_host_rate(struct device *dev)
{
    void *from = NULL, *to = NULL;
    double least = INFINITY;
    int rc = dev->ops->alloc_host(dev, RATE_BYTES, &from, NULL);
    if (rc == 0)
        rc = dev->ops->alloc(dev, RATE_BYTES, &to, NULL);
    if (rc == 0)
        memset(from, 0, RATE_BYTES);
    for (int i = 0; i < RATE_TRIES && rc == 0; i++) {
        const uint64_t begun = clock_now_ns();
        rc = dev->ops->copy(dev, to, from, RATE_BYTES, COPY_TO_DEVICE, NULL);
        if (rc == 0)
            rc = dev->ops->sync(dev, NULL, NULL);
        least = fmin(least, clock_since_s(begun));
    }
    dev->ops->free(dev, to);
    dev->ops->free_host(dev, from);
    return rc == 0 ? RATE_BYTES / fmax(least, 1e-9) : 0;
}

static uint64_t elements_of(const struct measuring *t)
{
    return t->m->flat < ELEMENTS_MAX ? t->m->flat : ELEMENTS_MAX;
}

/* All ranks at once, as in a step, after other work: devices may share a memory. */
static int time_update(const struct measuring *t, struct device *dev, double *ret, struct err *err)
{
    const struct kernel_ops *k = dev->ops;
    const uint64_t n = elements_of(t);
    struct {
        double sum;
        struct adamw_now now;
    } *scalars = NULL;
    struct cold cold = {0};
    float *x = NULL;
    void *d = NULL;
    int rc = cold_alloc(t, dev, &cold, err);
    if (rc == 0)
        rc = k->alloc(dev, 4 * n * sizeof *x, &d, err);
    x = d;
    if (rc == 0)
        rc = k->alloc(dev, sizeof *scalars, (void **)&scalars, err);
    if (rc == 0)
        rc = k->zero(dev, x, 4 * n * sizeof *x, NULL);
    if (rc == 0)
        rc = k->zero(dev, scalars, sizeof *scalars, NULL);
    const struct adamw p = {.p = x,
                            .m = x + n,
                            .v = x + 2 * n,
                            .grad = x + 3 * n,
                            .now = &scalars->now,
                            .beta1 = 0.9f,
                            .beta2 = 0.999f,
                            .eps = 1,
                            .n = (int64_t)n};
    *ret = INFINITY;
    for (int i = 0; i < UPDATES && rc == 0; i++) {
        rc = k->zero(dev, cold.x, cold.bytes, NULL);
        if (rc == 0)
            rc = k->sync(dev, NULL, err);
        if (rc == 0)
            rc = island_meet(t->is);
        const uint64_t begun = clock_now_ns();
        if (rc == 0)
            rc = k->sumsq(dev, &scalars->sum, p.grad, &(struct vec_span){0, p.n}, 1, NULL);
        if (rc == 0)
            rc = k->adamw(dev, &p, NULL);
        if (rc == 0)
            rc = k->sync(dev, NULL, err);
        *ret = fmin(*ret, clock_since_s(begun) / (double)n);
    }
    k->free(dev, scalars);
    k->free(dev, d);
    k->free(dev, cold.x);
    return rc < 0 ? err_set(err, rc, "timing an update on %s failed: %s", dev->name, err_text(rc))
                  : 0;
}

/* Seconds of a message, by round trips. */
static int bounce(struct measuring *t, int rank, void *x, uint64_t bytes, double *ret,
                  struct err *err)
{
    struct comm *up = island_link(t->is, rank, rank + 1, 0, ISLAND_UP);
    struct comm *down = island_link(t->is, rank, rank + 1, 0, ISLAND_DOWN);
    const struct comm_piece piece = {x, bytes};
    int rc = 0;
    *ret = INFINITY;
    for (int i = 0; i < MESSAGES && rc == 0; i++) {
        const uint64_t begun = clock_now_ns();
        rc = up->ops->send(up, &piece, 1, 1, NULL);
        if (rc == 0)
            rc = down->ops->recv(down, &piece, 1, 1, NULL);
        if (rc == 0)
            rc = down->ops->wait(down, NULL, err);
        *ret = fmin(*ret, clock_since_s(begun) / 2);
    }
    return rc;
}

static int give_back(struct measuring *t, int rank, void *x, uint64_t bytes)
{
    struct comm *up = island_link(t->is, rank, rank - 1, 0, ISLAND_UP);
    struct comm *down = island_link(t->is, rank, rank - 1, 0, ISLAND_DOWN);
    const struct comm_piece piece = {x, bytes};
    int rc = 0;
    for (int i = 0; i < MESSAGES && rc == 0; i++) {
        rc = up->ops->recv(up, &piece, 1, 0, NULL);
        if (rc == 0)
            rc = down->ops->send(down, &piece, 1, 0, NULL);
    }
    return rc;
}

static int time_sum(struct measuring *t, int rank, void *x, double *ret, struct err *err)
{
    struct comm *all = island_pipe(t->is, rank);
    const struct comm_piece piece = {x, elements_of(t)};
    int rc = 0;
    *ret = INFINITY;
    for (int i = 0; i < MESSAGES && rc == 0; i++) {
        const uint64_t begun = clock_now_ns();
        rc = all->ops->all_reduce(all, &piece, 1, COMM_F32, NULL);
        if (rc == 0)
            rc = all->ops->wait(all, NULL, err);
        *ret = fmin(*ret, clock_since_s(begun) / (double)piece.n);
    }
    return rc;
}

/* Times one pair after the other. */
static int time_links(void *arg, int rank, struct err *err)
{
    struct measuring *t = arg;
    struct device *dev = island_device(t->is, rank);
    struct rank_times *mine = &t->ranks[rank];
    const uint64_t sum = elements_of(t) * sizeof(float), bytes = sum > LARGE ? sum : LARGE;
    void *x = NULL;
    int rc = dev->ops->alloc(dev, bytes, &x, err);
    if (rc == 0)
        rc = dev->ops->zero(dev, x, bytes, NULL);
    for (int lower = 0; lower + 1 < island_size(t->is) && rc == 0; lower++) {
        if (rank == lower)
            rc = bounce(t, rank, x, 64, &mine->small, err);
        if (rc == 0 && rank == lower)
            rc = bounce(t, rank, x, LARGE, &mine->large, err);
        if (rank == lower + 1)
            rc = give_back(t, rank, x, 64);
        if (rc == 0 && rank == lower + 1)
            rc = give_back(t, rank, x, LARGE);
        if (rc == 0)
            rc = island_meet(t->is);
    }
    if (rc == 0)
        rc = time_sum(t, rank, x, &mine->sum, err);
    if (rc == 0)
        rc = dev->ops->sync(dev, NULL, err);
    dev->ops->free(dev, x);
    return rc;
}

/* Of no part anything is known. */
static void forget_times(struct rank_times *r)
{
    for (int i = 0; i < COSTS_CHAINS_MAX * PARTS; i++) {
        struct part_times *p = &r->parts[i / PARTS][i % PARTS];
        for (int k = 0; k < SIZES; k++)
            p->f[k] = p->b[k] = p->w[k] = INFINITY;
        p->adding_b = p->adding_w = INFINITY;
    }
}

static int time_rank(void *arg, int rank, struct err *err)
{
    struct measuring *t = arg;
    struct device *dev = island_device(t->is, rank);
    int rc = 0;
    t->ranks[rank].from_host = dev->unified ? 0 : profile_host_rate(dev);
    forget_times(&t->ranks[rank]);
    for (int r = 0; r < ROUNDS; r++)
        for (int c = 0; c < model_n_chains(&t->m->spec); c++)
            for (int i = 0; i < PARTS && rc == 0; i++)
                if (i != MIDDLE || model_chain(t->m, c)->spec.depth > 2)
                    rc = time_part(t, rank, c, i, err);
    if (rc == 0 && t->n_frozen > 0)
        rc = time_frozen(t, rank, err);
    return rc < 0 ? rc : time_update(t, dev, &t->ranks[rank].step, err);
}

/* ---- a plan, tried ---- */

static int take_steps(struct island_trainer *t, const struct batch *b, struct profile_time *ret,
                      struct err *err)
{
    struct step_result r;
    double least = INFINITY, sum = 0;
    int n = -1; /* the first one warms up */
    const uint64_t first = clock_now_ns();
    for (; n < TRIES || (n < TRIES_MAX && clock_since_s(first) < TRIED_S); n++) {
        const uint64_t begun = clock_now_ns();
        int rc = island_trainer_step(t, b, b, &r, err);
        if (rc < 0)
            return rc;
        least = n >= 0 ? fmin(least, clock_since_s(begun)) : least;
        sum += n >= 0 ? clock_since_s(begun) : 0;
    }
    *ret = (struct profile_time){least, sum / n};
    return 0;
}

int profile_try(struct island *is, const struct model *m, const struct train_options *opt,
                const struct pipe_plan *plan, const struct costs *costs, struct profile_time *ret,
                struct err *err)
{
    const struct net_options net = train_net_options(opt);
    struct island_trainer *t = NULL;
    struct zeros z;
    float *flat = model_flat_new(m);
    int rc = flat ? island_trainer_new(is, m, opt, plan, costs, &t, err)
                  : err_set(err, -ENOMEM, "no memory to try a plan");
    zeros_make(&z, m, &net, (unsigned)opt->batch);
    if (rc == 0)
        rc = trainer_set(island_trainer_first(t), flat, err);
    if (rc == 0)
        rc = island_trainer_follow(t, ISLAND_ALL, err);
    if (rc == 0)
        rc = take_steps(t, &z.batch, ret, err);
    zeros_release(&z);
    island_trainer_free(t);
    mem_free(flat);
    return rc;
}

int profile_forward(struct island *is, const struct model *m, const struct train_options *opt,
                    double *ret, struct err *err)
{
    struct train_options whole = *opt;
    struct net *net = NULL;
    struct zeros z;
    float *flat = model_flat_new(m);
    whole.accumulate = 1;
    struct net_options o = train_net_options(&whole);
    o.mode = NET_FORWARD;
    int rc = flat ? net_new(island_device(is, 0), m, &o, &net, err)
                  : err_set(err, -ENOMEM, "no memory to try a forward");
    zeros_make(&z, m, &o, (unsigned)opt->batch);
    float *losses = mem_alloc_array((size_t)opt->batch * batch_losses(&z.batch), sizeof *losses);
    struct net_result r = {.losses = losses};
    if (rc == 0)
        rc = net_set(net, flat, err);
    uint64_t begun = 0;
    int n = -1; /* the first one warms up */
    for (; rc == 0 && (n < 1 || (n < TRIES && clock_since_s(begun) < FORWARD_S)); n++) {
        begun = n <= 0 ? clock_now_ns() : begun;
        rc = net_loss(net, &z.batch, false, 0.0f, false, &r, err);
    }
    if (rc == 0)
        *ret = clock_since_s(begun) / n;
    net_free(net);
    zeros_release(&z);
    mem_free(losses);
    mem_free(flat);
    return rc;
}

/* ---- as costs ---- */

/* Bytes of a sample's states, and what is sent upwards with them. */
static uint64_t out_bytes(const struct measuring *t, const struct model_spec *s)
{
    const enum dtype dt = net_dtype(island_device(t->is, 0), t->opt->precision);
    const uint64_t rows = (uint64_t)model_tokens(s), C = (uint64_t)s->dim;
    const uint64_t states = rows * C * sizeof(float);
    if (model_is_text(s))
        return states;
    return states + model_image_values(s) * sizeof(float) +
           (model_captioned(s)
                ? 7 * C * sizeof(float) + (uint64_t)s->caption_tokens * C * dtype_bytes(dt)
                : C * dtype_bytes(dt));
}

static int fill_layers(const struct measuring *t, int chain, struct costs_chain *c, struct err *err)
{
    const struct model *m = model_chain(t->m, chain);
    const enum dtype dt = net_dtype(island_device(t->is, 0), t->opt->precision);
    const int depth = m->spec.depth;
    c->layers = mem_try_array((size_t)depth, sizeof *c->layers);
    if (!c->layers)
        return err_set(err, -ENOMEM, "no memory for a profile of %d layers", depth);
    c->n = depth;
    const int rc = plan_chain(t->m, chain, t->opt, t->n_frozen > 0, dt, c, err);
    for (int i = 0; i < depth && rc == 0; i++) {
        const int which = i == 0 ? FIRST : i == depth - 1 ? LAST : MIDDLE;
        const struct part_times *times = &t->ranks[0].parts[chain][which];
        struct costs_layer *l = &c->layers[i];
        l->out_bytes = out_bytes(t, &m->spec);
        for (int k = 0; k < t->sizes.n; k++) {
            l->f.s[k] = times->f[k];
            l->b.s[k] = times->b[k];
            l->w.s[k] = times->w[k];
        }
        l->add = fmax(0, times->adding_b + times->adding_w - times->b[0] - times->w[0]);
        l->step = t->ranks[0].step * (double)(l->gradient_bytes / sizeof(float));
    }
    return rc;
}

/* The first one's equal: of a host's cores one is as fast as another. */
static bool is_alike(const struct measuring *t, int rank)
{
    const struct device *a = island_device(t->is, 0), *b = island_device(t->is, rank);
    return a->unified && b->unified && strcmp(a->about, b->about) == 0;
}

/* What slowed one of equal devices down is no cost of theirs. */
static void take_least(struct part_times *p, const struct part_times *by)
{
    for (int k = 0; k < SIZES; k++) {
        p->f[k] = fmin(p->f[k], by->f[k]);
        p->b[k] = fmin(p->b[k], by->b[k]);
        p->w[k] = fmin(p->w[k], by->w[k]);
    }
    p->adding_b = fmin(p->adding_b, by->adding_b);
    p->adding_w = fmin(p->adding_w, by->adding_w);
}

/* The speed of a device relative to the first, by the times of all of them at once. */
static double speed_of(const struct measuring *t, int rank)
{
    const int last = t->sizes.n - 1;
    double first = 0, own = 0;
    if (is_alike(t, rank))
        return 1;
    for (int c = 0; c < model_n_chains(&t->m->spec); c++) {
        const struct part_times *a = &t->ranks[0].parts[c][LAST];
        const struct part_times *b = &t->ranks[rank].parts[c][LAST];
        first += a->f[last] + a->b[last] + a->w[last];
        own += b->f[last] + b->b[last] + b->w[last];
    }
    return first / own;
}

static int fill(struct measuring *t, uint64_t memory, struct costs *p, struct err *err)
{
    *p = (struct costs){.sizes = t->sizes, .n_devices = island_size(t->is)};
    for (int r = 1; r < p->n_devices; r++)
        for (int i = 0; i < COSTS_CHAINS_MAX * PARTS && is_alike(t, r); i++)
            take_least(&t->ranks[0].parts[i / PARTS][i % PARTS],
                       &t->ranks[r].parts[i / PARTS][i % PARTS]);
    p->groups = t->groups;
    for (; p->n_frozen < t->n_frozen; p->n_frozen++) { /* moves those of the first rank */
        p->frozen[p->n_frozen] = t->ranks[0].frozen[p->n_frozen];
        t->ranks[0].frozen[p->n_frozen].layers = NULL;
    }
    (void)snprintf(p->model, sizeof p->model, "%.1f M parameters", (double)t->m->params / 1e6);
    for (int i = 0; i < p->n_devices; i++) {
        struct costs_device *d = &p->devices[i];
        (void)snprintf(d->name, sizeof d->name, "%s", island_device(t->is, i)->name);
        d->speed = speed_of(t, i);
        d->memory = memory;
        d->sums_apart = island_device(t->is, i)->threads > 0;
        d->from_host = t->ranks[i].from_host;
        d->kind = island_device(t->is, i)->unified ? COSTS_HOST : COSTS_CARD;
        if (i + 1 == p->n_devices)
            break;
        const struct rank_times *r = &t->ranks[i];
        const int n = p->n_devices;
        p->links[i].alpha = r->small;
        /* The rate of messages, or of a ring sum: the slower of the two. */
        p->links[i].bytes_per_s = fmin((double)LARGE / fmax(r->large - r->small, 1e-9),
                                       2.0 * (n - 1) / n * sizeof(float) / fmax(r->sum, 1e-15));
    }
    static const char *const names[] = {"base", "upscaler"};
    const int chains = model_n_chains(&t->m->spec);
    int rc = 0;
    for (int i = 0; i < chains && rc == 0; i++) {
        struct costs_chain *c = &p->chains[p->n_chains++];
        (void)snprintf(c->name, sizeof c->name, "%s", chains == 1 ? "model" : names[i]);
        rc = fill_layers(t, i, c, err);
    }
    if (rc < 0)
        costs_release(p);
    return rc;
}

static int measure(struct measuring *t, struct err *err)
{
    struct island_shape shape = {.stages = 1, .chains = 1, .width = {1}};
    int rc = island_cut(t->is, &shape, err);
    if (rc == 0)
        rc = island_run(t->is, time_rank, t, err);
    shape.stages = island_size(t->is);
    for (int i = 0; i < shape.stages; i++)
        shape.width[i] = 1;
    if (rc == 0)
        rc = island_cut(t->is, &shape, err);
    return rc < 0 ? rc : island_run(t->is, time_links, t, err);
}

/* ---- the file ---- */

/* The larger of both sizes of micro-batch. */
static int most_samples(const struct train_options *opt)
{
    return opt->batch < SIZE_MOST ? opt->batch : SIZE_MOST;
}

static char *path_of(const struct island *is, const struct model *m,
                     const struct train_options *opt, const char *state_dir)
{
    enum net_encoder which[NET_ENCODERS];
    const struct net_encoders *e = opt->encoders;
    const int numbers[] = {7, /* version of the measurement */
                           most_samples(opt),
                           (int)opt->precision,
                           opt->recompute,
                           e != NULL,
                           opt->fill ? ahead_networks(e, which) : 0,
                           e ? (int)(e->bytes >> 10) : 0};
    char hex[HASH_HEX_MAX];
    uint8_t sum[HASH_BYTES];
    struct hash h;
    hash_init(&h);
    hash_update(&h, numbers, sizeof numbers);
    for (int i = 0; i < island_size(is); i++) {
        const struct device *dev = island_device(is, i);
        hash_update(&h, dev->name, strlen(dev->name) + 1);
        hash_update(&h, dev->about, strlen(dev->about) + 1);
    }
    for (size_t i = 0; i < m->n; i++) {
        hash_update(&h, m->tensors[i].name, strlen(m->tensors[i].name) + 1);
        hash_update(&h, m->tensors[i].shape, sizeof m->tensors[i].shape);
    }
    for (int c = 0; c < model_n_chains(&m->spec); c++) {
        const struct model_spec *spec = &model_chain(m, c)->spec;
        const int more[] = {model_tokens(spec), spec->heads, spec->caption_tokens};
        hash_update(&h, more, sizeof more);
    }
    hash_final(&h, sum);
    hash_hex(sum, 8, hex);
    return str_printf("%s/profile-%s.json", state_dir, hex);
}

/* Logs the times of each chain's first block, at the most samples. */
static void say_measured(const struct costs *p, double seconds, int samples)
{
    char blocks[96] = "";
    for (int c = 0; c < p->n_chains; c++) {
        const struct costs_layer *l = p->chains[c].layers;
        const int at = p->sizes.n - 1;
        const size_t n = strlen(blocks);
        (void)snprintf(blocks + n, sizeof blocks - n, "%s%.3g s", c > 0 ? " and " : "",
                       l->f.s[at] + l->b.s[at] + l->w.s[at]);
    }
    log_info("profile", "measured in %.1f s what a block%s here: %s for %d samples", seconds,
             p->n_chains > 1 ? " of the base and one of the upscaler cost" : " costs", blocks,
             samples);
}

void profile_forget(const struct island *is, const struct model *m, const struct train_options *opt,
                    const char *state_dir)
{
    char *path = path_of(is, m, opt, state_dir);
    (void)file_remove(path, NULL);
    mem_free(path);
}

/* Reads what was kept; false: nothing was, or nothing of use. */
static bool read_kept(const struct measuring *t, const char *path, struct costs *ret)
{
    struct err why = {0};
    if (!file_exists(path))
        return false;
    const int rc = costs_read(path, ret, &why);
    bool ours = rc == 0 && ret->n_chains == model_n_chains(&t->m->spec) &&
                ret->n_devices == island_size(t->is) && ret->n_frozen == t->n_frozen;
    for (int i = 0; ours && i < ret->n_chains; i++)
        ours = ret->chains[i].n == model_chain(t->m, i)->spec.depth;
    if (ours)
        return true;
    if (rc == 0)
        costs_release(ret);
    log_warn("profile", "measured again, since it cannot be used: %s",
             rc < 0 ? why.msg : "it is of another model");
    return false;
}

static int measure_anew(struct measuring *t, uint64_t memory, const char *path, struct costs *ret,
                        struct err *err)
{
    const int most = most_samples(t->opt);
    struct err why = {0};
    t->sizes.samples[t->sizes.n++] = 1;
    if (most > 1)
        t->sizes.samples[t->sizes.n++] = most;
    if (t->n_frozen > 0)
        t->groups = (struct costs_points){2, {1, FILL_GROUP}};
    for (int i = 0; i < island_size(t->is) && t->opt->encoders; i++) {
        t->ranks[i].stub = t->opt->encoders[i];
        t->ranks[i].stub.captions = no_captions;
        t->ranks[i].stub.fly = false;
    }
    const uint64_t begun = clock_now_ns();
    int rc = measure(t, err);
    if (rc == 0)
        rc = fill(t, memory, ret, err);
    if (rc == 0)
        say_measured(ret, clock_since_s(begun), most);
    if (rc == 0 &&
        costs_write(path, ret, &why) < 0) /* without the file the next process measures again */
        log_warn("profile", "not kept: %s", why.msg);
    for (int i = 0; i < island_size(t->is); i++)
        for (int k = 0; k < t->n_frozen; k++)
            mem_free(t->ranks[i].frozen[k].layers);
    return rc;
}

int profile_get(struct island *is, const struct model *m, const struct train_options *opt,
                uint64_t memory, const char *state_dir, struct costs *ret, struct err *err)
{
    memory = memory < (uint64_t)MEMORY_MAX ? memory : (uint64_t)MEMORY_MAX;
    if (model_blocks(&m->spec) < 2)
        return err_set(err, -EINVAL, "a model of one block is not cut");
    char *path = path_of(is, m, opt, state_dir);
    struct measuring *t = mem_alloc(sizeof *t);
    *t = (struct measuring){.is = is, .m = m, .opt = opt};
    t->n_frozen = opt->fill ? ahead_networks(opt->encoders, t->frozen) : 0;
    const bool kept = read_kept(t, path, ret);
    for (int i = 0; kept && i < ret->n_devices; i++)
        ret->devices[i].memory = memory;
    const int rc = kept ? 0 : measure_anew(t, memory, path, ret, err);
    mem_free(t);
    mem_free(path);
    return rc;
}
