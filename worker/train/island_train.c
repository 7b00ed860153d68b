#include "worker/train/island_train.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/pipe/trace.h"
#include "worker/train/ahead.h"
#include "worker/train/courier.h"

/* ---- the sum of the gradients ----
 *
 * Ranges are collected until they fill a bucket, which is queued on a stream of its own behind the
 * work on the trainer's stream, while the backward still runs.  After join the trainer's stream has
 * the sums.  All ranks run the same backward, so they name the same ranges in the same order and
 * their buckets match; without overlap everything is summed at join.  Sums do not depend on how the
 * ranges are cut into buckets.
 *
 * A step that may allocate or free device memory, or load code, is REDUCER_MEETS: no sum is queued
 * before all ranks have come to join, and no rank goes on before all have queued theirs.  Freeing
 * memory of a card (cudaFree) can wait for the work on it and on its peers, and a sum that runs
 * there waits for the rank that frees. */

/* Elements of the flat vector. */
struct range {
    uint64_t at, n;
};

/* Disjoint ranges, ascending, with gaps between them. */
struct ranges {
    struct range *v;
    size_t n, room;
};

enum reducer_how {
    REDUCER_OVERLAPS,
    REDUCER_WAITS, /* everything at join */
    REDUCER_MEETS, /* the same, once all ranks are there */
};

struct reducer {
    struct island *is;
    int rank;
    struct weights *w;     /* the trainer's */
    struct stream *stream; /* for sums */
    uint64_t bucket;       /* elements */
    enum reducer_how how;
    struct ranges named;   /* in this step */
    struct ranges waiting; /* ranges that are in no bucket yet */
    uint64_t waiting_n;    /* their elements */
    struct comm_piece *pieces;
    int rc; /* first failure of the step */
    const char *failed;
};

/* The first range that ends at or after `at`. */
static size_t find(const struct ranges *rs, uint64_t at)
{
    size_t i = 0;
    while (i < rs->n && rs->v[i].at + rs->v[i].n < at)
        i++;
    return i;
}

/* False: part of it is already there, or there are too many ranges. */
static bool add(struct ranges *rs, uint64_t at, uint64_t n)
{
    const size_t i = find(rs, at);
    struct range *p = &rs->v[i];
    const bool after = i < rs->n && p->at + p->n == at;
    const size_t next = after ? i + 1 : i;
    const bool before = next < rs->n && rs->v[next].at == at + n;
    if ((i < rs->n && !after && p->at < at + n) || (next < rs->n && rs->v[next].at < at + n))
        return false;
    if (after) {
        p->n += n;
        if (before) {
            p->n += rs->v[next].n;
            memmove(&rs->v[next], &rs->v[next + 1], (rs->n - next - 1) * sizeof *rs->v);
            rs->n--;
        }
        return true;
    }
    if (before) {
        p->at = at;
        p->n += n;
        return true;
    }
    if (rs->n == rs->room)
        return false;
    memmove(&rs->v[i + 1], &rs->v[i], (rs->n - i) * sizeof *rs->v);
    rs->v[i] = (struct range){at, n};
    rs->n++;
    return true;
}

/* The arg of a trainer's calls to its peers. */
struct peers {
    struct courier courier; /* first: its functions are called with this */
    struct reducer reducer;
    struct ahead *ahead; /* NULL: bubbles are not filled */
    struct batch next;   /* this copy's part of the next step */
};

static int reducer_init(struct reducer *r, struct island *is, int rank, struct weights *w,
                        uint64_t bucket_bytes, struct err *err)
{
    const size_t room = w->m->n + 2; /* there are never more ranges than tensors */
    *r = (struct reducer){.is = is, .rank = rank, .bucket = bucket_bytes / sizeof *w->g};
    r->named = (struct ranges){mem_try_array(room, sizeof *r->named.v), 0, room};
    r->waiting = (struct ranges){mem_try_array(room, sizeof *r->waiting.v), 0, room};
    r->pieces = mem_try_array(room + 1, sizeof *r->pieces);
    if (!r->named.v || !r->waiting.v || !r->pieces)
        return err_set(err, -ENOMEM, "no memory for the sums over devices");
    int rc = w->ops->stream_new(w->dev, &r->stream, err);
    if (rc == 0)
        r->w = w;
    return rc;
}

static void reducer_release(struct reducer *r)
{
    if (r->w)
        r->w->ops->stream_free(r->w->dev, r->stream);
    mem_free(r->named.v);
    mem_free(r->waiting.v);
    mem_free(r->pieces);
    *r = (struct reducer){0};
}

static void reducer_begin(struct reducer *r, enum reducer_how how)
{
    r->how = how;
    r->named.n = r->waiting.n = 0;
    r->waiting_n = 0;
    r->rc = 0;
}

static void note(struct reducer *r, int rc, const char *what)
{
    if (rc < 0 && r->rc == 0) {
        r->rc = rc;
        r->failed = what;
    }
}

/* Queues the sum of the waiting ranges, and of the losses. */
static void flush(struct reducer *r, float *losses, int64_t n)
{
    struct weights *w = r->w;
    struct comm *c = island_comm(r->is, r->rank);
    size_t pieces = 0;
    for (size_t i = 0; i < r->waiting.n; i++)
        r->pieces[pieces++] = (struct comm_piece){w->g + r->waiting.v[i].at, r->waiting.v[i].n};
    if (losses)
        r->pieces[pieces++] = (struct comm_piece){losses, (uint64_t)n};
    r->waiting.n = 0;
    r->waiting_n = 0;
    if (!c)
        return;
    if (r->rc == 0)
        note(r, w->ops->stream_follow(w->dev, r->stream, w->stream), "waiting for the gradients");
    if (r->rc == 0)
        note(r, c->ops->all_reduce(c, r->pieces, pieces, COMM_F32, r->stream),
             "summing the gradients over the devices");
}

static void reducer_ready(void *arg, uint64_t offset, uint64_t count)
{
    struct reducer *r = arg;
    if (r->how != REDUCER_OVERLAPS || count == 0 || r->rc < 0)
        return;
    if (!add(&r->named, offset, count) || !add(&r->waiting, offset, count)) {
        note(r, -EINVAL, "naming gradients once");
        return;
    }
    r->waiting_n += count;
    if (r->waiting_n >= r->bucket)
        flush(r, NULL, 0);
}

/* Adds everything that was not named. */
static void add_rest(struct reducer *r)
{
    const uint64_t end = r->w->m->flat;
    uint64_t at = 0;
    for (size_t i = 0; i <= r->named.n && r->rc == 0; i++) {
        const uint64_t to = i < r->named.n ? r->named.v[i].at : end;
        if (to > at && !add(&r->waiting, at, to - at))
            note(r, -EINVAL, "finding the rest of the gradients");
        if (i < r->named.n)
            at = to + r->named.v[i].n;
    }
}

static void meet(struct reducer *r)
{
    if (r->rc == 0 && r->how == REDUCER_MEETS)
        note(r, island_meet(r->is), "waiting for the other devices");
}

static int reducer_join(void *arg, float *losses, int64_t n, struct err *err)
{
    struct reducer *r = &((struct peers *)arg)->reducer;
    struct weights *w = r->w;
    add_rest(r);
    meet(r);
    flush(r, losses, n);
    meet(r);
    if (r->rc == 0)
        note(r, w->ops->stream_follow(w->dev, w->stream, r->stream), "waiting for the sums");
    if (r->rc < 0)
        return err_set(err, r->rc, "%s failed on %s: %s", r->failed, w->dev->name, err_text(r->rc));
    return 0;
}

/* After each sharer has updated its share of the weights: sends it to the others. */
static int spread(void *arg)
{
    const struct reducer *r = &((struct peers *)arg)->reducer;
    struct weights *w = r->w;
    struct comm *c = island_comm(r->is, r->rank);
    int rc = 0;
    for (int k = 0; k < c->size && rc == 0; k++) {
        const struct train_share share = train_share_of(w->m->flat, c->size, k);
        if (share.to > share.from)
            rc = c->ops->broadcast(c, w->w + share.from, (share.to - share.from) * sizeof *w->w, k,
                                   w->stream);
    }
    return rc;
}

static int meet_peers(void *arg)
{
    return island_meet(((struct peers *)arg)->reducer.is);
}

/* ---- encoding ahead ---- */

static int look_ahead(void *arg, struct err *err)
{
    struct peers *p = arg;
    return ahead_begin(p->ahead, &p->next, err);
}

static void takes(void *arg, const unsigned *at)
{
    struct peers *p = arg;
    if (p->ahead)
        ahead_rows(p->ahead, at);
}

/* Runs a FROZEN, or sends its results over the communicator of all stages of a copy, which every
 * rank uses in one order. */
static int encode(void *arg, const struct pipe_instr *in, struct err *err)
{
    struct peers *p = arg;
    struct weights *w = p->reducer.w;
    struct comm *pipe = island_pipe(p->reducer.is, p->reducer.rank);
    if (in->op == PIPE_FROZEN)
        return ahead_run(p->ahead, in, w->stream, err);
    const struct comm_piece piece = ahead_piece(p->ahead, in);
    int rc = in->op == PIPE_SEND ? pipe->ops->send(pipe, &piece, 1, in->peer, w->stream)
                                 : pipe->ops->recv(pipe, &piece, 1, in->peer, w->stream);
    return rc < 0 ? err_set(err, rc, "what was encoded for %s did not come there: %s", w->dev->name,
                            err_text(rc))
                  : 0;
}

/* ---- the trainers ---- */

struct island_trainer {
    struct island *is;
    const struct model *m;
    struct pipe_plan plan;
    int places;
    struct model *parts[ISLAND_MAX]; /* of each place; none if there is only one */
    struct train_part owners[ISLAND_MAX];
    struct train_options opt, share;
    bool fills;
    bool measured;
    struct costs costs; /* of one copy, if there are costs; its own */
    struct refill refill;
    bool encoded; /* the announced samples of the next step are encoded */
    int n;
    struct trainer *trainers[ISLAND_MAX];
    struct peers peers[ISLAND_MAX]; /* unused in an island of one */

    bool rehearses; /* the first step of a shape, see trainer_rehearse() */

    /* The size of the last step: another one of that size allocates no more memory.  Teachers and
     * pictures of several shapes may allocate in any step. */
    unsigned settled_count, settled_seq;
    bool settled_estimate; /* one of them had an estimate */

    /* The present step. */
    struct batch batch, next; /* the whole step; the one after it, count 0: unknown */
    struct step_result results[ISLAND_MAX];
    enum island_what what;
    char *trace; /* path of the next step's trace; NULL: none */
};

/* Ends with the failure of any communicator, since they fail together. */
static int wait_peers(void *arg, struct stream *s, struct err *err)
{
    struct peers *p = arg;
    struct comm *c = island_comm(p->reducer.is, p->reducer.rank);
    if (!c)
        c = island_pipe(p->reducer.is, p->reducer.rank);
    return c->ops->wait(c, s, err);
}

/* The copy of a rank. */
static int copy_of(const struct island_trainer *t, int rank)
{
    return rank / t->plan.devices;
}

static int device_of(const struct island_trainer *t, int rank)
{
    return rank % t->plan.devices;
}

static int place_of(const struct island_trainer *t, int rank)
{
    return pipe_place_of(&t->plan, device_of(t, rank));
}

/* The rank's number among those of its place in all copies, and their number. */
static int sharer_of(const struct island_trainer *t, int rank, int *ret_n)
{
    const struct pipe_place p = pipe_place(&t->plan, place_of(t, rank));
    *ret_n = p.devices * t->plan.copies;
    return copy_of(t, rank) * p.devices + device_of(t, rank) - p.device;
}

static int join_peers(struct island_trainer *t, int rank, struct err *err)
{
    struct trainer *tr = t->trainers[rank];
    struct peers *p = &t->peers[rank];
    struct weights *w = trainer_net(tr)->weights;
    int rc = reducer_init(&p->reducer, t->is, rank, w, ISLAND_BUCKET_BYTES, err);
    if (rc == 0 && t->places > 1)
        rc = courier_init(&p->courier, t->is, rank, rank - device_of(t, rank), trainer_net(tr),
                          &t->plan, err);
    const struct train_peers peers = {
        .batch = (unsigned)t->opt.batch,
        .watch = {reducer_ready, &p->reducer},
        .join = reducer_join,
        .cross = courier_cross,
        .arrive = courier_arrive,
        .feed = courier_feed,
        .sent = courier_sent,
        .gather = courier_gather,
        .spread = spread,
        .meet = meet_peers,
        .wait = wait_peers,
        .look_ahead = look_ahead,
        .takes = takes,
        .encode = encode,
        .arg = p,
        /* Several cards of one process that launch graphs with NCCL calls may deadlock. */
        .graphs = false,
        .plan = &t->plan,
        .device = device_of(t, rank),
        .costs = t->measured ? &t->costs : NULL,
    };
    return rc < 0 ? rc : trainer_set_peers(tr, &peers, err);
}

/* Makes a rank's encoding ahead, which comes before the network if a chain begins there. */
static int make_ahead(struct island_trainer *t, int rank, const struct model *m,
                      struct train_options *opt, struct err *err)
{
    const struct ahead_options o = {.encoders = opt->encoders,
                                    .m = m,
                                    .batch = opt->batch,
                                    .first = pipe_begins(&t->plan, device_of(t, rank)),
                                    .far = t->plan.bare[device_of(t, rank)]};
    int rc = ahead_new(island_device(t->is, rank), &o, &t->peers[rank].ahead, err);
    if (rc == 0 && o.first)
        opt->encoders = ahead_table(t->peers[rank].ahead);
    return rc;
}

static int make_job(void *arg, int rank, struct err *err)
{
    struct island_trainer *t = arg;
    const int place = place_of(t, rank);
    const struct model *m = t->places > 1 ? t->parts[place] : t->m;
    struct train_options opt = t->share;
    opt.encoders = opt.encoders ? opt.encoders + rank : NULL;
    int sharers;
    island_place_options(t->is, &t->plan, place, &opt);
    opt.sharer = t->plan.shard ? sharer_of(t, rank, &sharers) : 0;
    int rc = t->fills ? make_ahead(t, rank, m, &opt, err) : 0;
    if (rc == 0)
        rc = trainer_make(island_device(t->is, rank), m, &opt, &t->trainers[rank], err);
    return rc < 0 || t->n == 1 ? rc : join_peers(t, rank, err);
}

/* Sends the empty caption's states from the first device with the networks to devices without them
 * where a chain begins. */
static int empty_job(void *arg, int rank, struct err *err)
{
    struct island_trainer *t = arg;
    const int d = device_of(t, rank);
    struct comm *pipe = island_pipe(t->is, rank);
    struct peers *p = &t->peers[rank];
    struct stream *s = p->reducer.w->stream;
    struct comm_piece x = {0};
    int giver = 0;
    while (t->plan.bare[giver])
        giver++;
    int rc = d == giver || pipe_begins(&t->plan, d) ? ahead_empty(p->ahead, &x, err) : 0;
    if (rc < 0 || x.n == 0)
        return rc;
    for (int k = 0; k < t->plan.devices && rc == 0; k++) {
        const bool wants = t->plan.bare[k] && pipe_begins(&t->plan, k);
        if (wants && d == giver)
            rc = pipe->ops->send(pipe, &x, 1, k, s);
        else if (wants && d == k)
            rc = pipe->ops->recv(pipe, &x, 1, giver, s);
    }
    return rc < 0 ? err_set(err, rc, "the empty caption did not cross: %s", err_text(rc))
                  : wait_peers(p, s, err);
}

static int make_parts(struct island_trainer *t, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < t->places && t->places > 1 && rc == 0; i++) {
        struct model_part parts[MODEL_CHAINS];
        island_place_parts(&t->plan, i, parts);
        rc = model_part_new(t->m, parts, &t->parts[i], err);
    }
    return rc;
}

/* Takes the costs, by which lists are made; a plan that was made without has no sizes. */
static int take_costs(struct island_trainer *t, const struct costs *costs, struct err *err)
{
    struct costs share;
    for (int c = 0; c < t->plan.chains; c++) {
        t->plan.cuts[c].samples = train_micro_batch(&t->share);
        t->plan.cuts[c].micros = pipe_most(t->share.batch, t->plan.cuts[c].samples);
    }
    costs_share(costs, t->plan.copies, &share);
    for (int d = 0; d < share.n_devices; d++)
        share.devices[d].memory = UINT64_MAX; /* the plan determines where the networks are */
    return costs_copy(&share, &t->costs) < 0 ? err_set(err, -ENOMEM, "no memory for a profile") : 0;
}

static int cut(struct island_trainer *t, struct err *err)
{
    struct island_shape shape = {.stages = t->places, .chains = t->plan.chains};
    for (int i = 0; i < t->places; i++)
        shape.width[i] = pipe_place(&t->plan, i).devices;
    return island_cut(t->is, &shape, err);
}

static void stand_for_all(struct island_trainer *t)
{
    for (int rank = 0; rank < t->n; rank++) {
        struct train_part *p = &t->owners[place_of(t, rank)];
        if (p->n == 0 || t->plan.shard)
            p->of[p->n++] = t->trainers[rank];
    }
    trainer_stand_for(t->trainers[0], t->m, t->owners, t->places);
}

int island_trainer_new(struct island *is, const struct model *m, const struct train_options *opt,
                       const struct pipe_plan *plan, const struct costs *costs,
                       struct island_trainer **ret, struct err *err)
{
    enum net_encoder which[NET_ENCODERS];
    struct island_trainer *t = mem_alloc(sizeof *t);
    t->is = is;
    t->m = m;
    t->opt = *opt;
    t->n = island_size(is);
    int rc = 0;
    if (plan)
        t->plan = *plan;
    else
        rc = island_even_plan(is, m, 1, opt->accumulate, opt->pipeline, &t->plan, err);
    t->refill.share = 1;
    t->rehearses = !island_device(is, 0)->unified;
    t->places = pipe_places(&t->plan);
    t->plan.estimate = m->spec.self_condition; /* some steps have an estimate */
    island_share_options(opt, t->plan.copies, &t->share);
    t->measured = costs && t->places > 1;
    t->fills = t->measured && costs->n_frozen > 0 &&
               ahead_networks(opt->encoders, which) == costs->n_frozen;
    if (rc == 0 && t->measured)
        rc = take_costs(t, costs, err);
    if (rc == 0)
        rc = make_parts(t, err);
    if (rc == 0)
        rc = cut(t, err);
    if (rc == 0)
        rc = island_run(is, make_job, t, err);
    if (rc == 0 && t->fills)
        rc = island_run(is, empty_job, t, err);
    if (rc < 0) {
        island_trainer_free(t);
        return rc;
    }
    if (t->n > 1)
        stand_for_all(t);
    *ret = t;
    return 0;
}

void island_trainer_free(struct island_trainer *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->n; i++) {
        reducer_release(&t->peers[i].reducer);
        courier_release(&t->peers[i].courier);
        trainer_free(t->trainers[i]);
        ahead_free(t->peers[i].ahead);
    }
    for (int i = 0; i < t->places; i++)
        model_free(t->parts[i]);
    costs_release(&t->costs);
    mem_free(t->trace);
    mem_free(t);
}

const struct train_options *island_trainer_options(const struct island_trainer *t)
{
    return &t->opt;
}

bool island_trainer_fills(const struct island_trainer *t)
{
    return t->fills;
}

const struct refill *island_trainer_refill(const struct island_trainer *t)
{
    return &t->refill;
}

struct trainer *island_trainer_first(const struct island_trainer *t)
{
    return t->trainers[0];
}

struct trainer *island_trainer_rank(const struct island_trainer *t, int rank)
{
    return t->trainers[rank];
}

void island_trainer_set_bucket(struct island_trainer *t, uint64_t bytes)
{
    for (int i = 0; i < t->n; i++)
        t->peers[i].reducer.bucket = bytes / sizeof(float);
}

void island_trainer_set_rehearsal(struct island_trainer *t, bool on)
{
    t->rehearses = on;
}

/* ---- following the first copy ---- */

static int take_over(struct island_trainer *t, int rank, enum trainer_vector which, struct err *err)
{
    struct comm *c = island_comm(t->is, rank);
    struct trainer *tr = t->trainers[rank];
    struct weights *w = trainer_net(tr)->weights;
    float *x = trainer_device(tr, which);
    int rc = c ? c->ops->broadcast(c, x, w->m->flat * sizeof *x, 0, w->stream) : 0;
    return rc < 0 ? err_set(err, rc, "taking over from the first copy failed: %s", err_text(rc))
                  : 0;
}

static int follow_job(void *arg, int rank, struct err *err)
{
    struct island_trainer *t = arg;
    struct trainer *tr = t->trainers[rank], *first = t->trainers[0];
    static const enum trainer_vector all[] = {TRAINER_WEIGHTS, TRAINER_ADAM_M, TRAINER_ADAM_V};
    const size_t n = t->what == ISLAND_ALL && !t->plan.shard ? sizeof all / sizeof *all : 1;
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = take_over(t, rank, all[i], err);
    if (rc == 0)
        rc = wait_peers(&t->peers[rank], trainer_net(tr)->weights->stream, err);
    if (rc < 0 || rank == 0)
        return rc;
    if (t->what == ISLAND_ALL) {
        trainer_set_adam_step(tr, trainer_adam_step(first));
        trainer_position(tr, trainer_next_step(first), trainer_total_steps(first));
    }
    int sharers;
    return sharer_of(t, rank, &sharers) == 0 ? 0 : trainer_written(tr, err);
}

int island_trainer_follow(struct island_trainer *t, enum island_what what, struct err *err)
{
    if (t->n == 1)
        return 0;
    t->what = what;
    int rc = cut(t, err);
    return rc < 0 ? rc : island_run(t->is, follow_job, t, err);
}

/* ---- steps ---- */

void island_trainer_set_done(struct island_trainer *t, double done)
{
    for (int i = 0; i < t->n; i++)
        trainer_set_done(t->trainers[i], done);
}

/* The first sample of a copy's part of `count`: parts differ by one sample at most. */
static unsigned part_at(unsigned count, int copy, int n)
{
    return (unsigned)((uint64_t)count * (uint64_t)copy / (uint64_t)n);
}

/* Does a device have two chains, either of which may end first? */
static bool mixes_chains(const struct pipe_plan *plan)
{
    return plan->chains > 1 && plan->order != PIPE_1F1B && !pipe_is_divided(plan);
}

/* Does every rank have samples of its copy's last micro-batch and, if either of two chains may end
 * first, each copy the same number of micro-batches? */
static bool all_end_alike(const struct island_trainer *t)
{
    const unsigned micro = (unsigned)train_micro_batch(&t->share);
    const unsigned copies = (unsigned)t->plan.copies;
    const unsigned width = (unsigned)pipe_width(&t->plan);
    const unsigned least = t->batch.count / copies, most = (t->batch.count + copies - 1) / copies;
    for (unsigned n = least; n <= most; n++)
        if (n == 0 || (n - 1) % micro + 1 < width)
            return false;
    return !mixes_chains(&t->plan) || (least - 1) / micro == (most - 1) / micro;
}

static bool has_estimate(const struct island_trainer *t)
{
    return t->m->spec.self_condition &&
           train_has_estimate(&t->opt, trainer_next_step(t->trainers[0]));
}

/* A rank without samples of the last micro-batch cannot name gradients in it, so then no rank does.
 * Except with joined chains, the number of micro-batches determines which of two chains ends first
 * at a device: copies with different numbers would name gradients in different orders. */
static enum reducer_how how_to_reduce(const struct island_trainer *t)
{
    const struct batch *b = &t->batch;
    if (t->opt.distill || t->m->spec.n_shapes > 0 || t->settled_count != b->count ||
        t->settled_seq != b->seq || (has_estimate(t) && !t->settled_estimate))
        return REDUCER_MEETS;
    return all_end_alike(t) ? REDUCER_OVERLAPS : REDUCER_WAITS;
}

/* Is this a pipeline's first step of a shape, on cards? */
static bool rehearses(const struct island_trainer *t)
{
    return t->rehearses && t->places > 1 && how_to_reduce(t) == REDUCER_MEETS;
}

/* The part of a batch of a rank's copy. */
static void slice(const struct island_trainer *t, int rank, const struct batch *b,
                  struct batch *ret)
{
    const int copy = copy_of(t, rank), copies = t->plan.copies;
    const unsigned from = part_at(b->count, copy, copies);
    const struct net *net = trainer_net(t->trainers[rank]);
    const struct batch_sizes sizes = net_batch_sizes(t->m, &net->opt);
    batch_slice(b, from, part_at(b->count, copy + 1, copies) - from, &sizes, ret);
    ret->first = from;
}

/* Did the step before encode the samples of this one? */
static bool is_encoded(const struct island_trainer *t)
{
    bool has = t->encoded;
    for (int rank = 0; rank < t->n && has; rank += t->plan.devices) {
        struct batch mine;
        slice(t, rank, &t->batch, &mine);
        has = mine.count == 0 || ahead_has(t->peers[rank].ahead, &mine);
    }
    return has;
}

/* Encodes the samples of a step that was not announced in the step before.  Who has none of them
 * meets the others all the same where they rehearse. */
static int encode_now(struct island_trainer *t, int rank, const struct batch *mine, struct err *err)
{
    struct peers *p = &t->peers[rank];
    int rc = 0;
    p->next = *mine;
    if (mine->count > 0)
        rc = trainer_encode(t->trainers[rank], mine->count, err);
    else if (rehearses(t) && (rc = island_meet(t->is)) < 0)
        rc = err_set(err, rc, "waiting for the other devices: %s", err_text(rc));
    if (rc == 0)
        ahead_end(p->ahead);
    return rc;
}

static int step_job(void *arg, int rank, struct err *err)
{
    struct island_trainer *t = arg;
    struct peers *p = &t->peers[rank];
    struct batch mine;
    int rc = 0;
    slice(t, rank, &t->batch, &mine);
    trainer_rehearse(t->trainers[rank], rehearses(t));
    if (t->fills && !t->encoded)
        rc = encode_now(t, rank, &mine, err);
    if (t->fills && t->next.count > 0) {
        slice(t, rank, &t->next, &p->next);
        mine.next = p->next.count;
    }
    reducer_begin(&p->reducer, how_to_reduce(t));
    courier_begin(&p->courier);
    if (rc == 0)
        rc = trainer_step(t->trainers[rank], &mine, &t->results[rank], err);
    if (rc == 0 && mine.next > 0)
        ahead_end(p->ahead);
    return rc;
}

void island_trainer_trace(struct island_trainer *t, const char *path)
{
    mem_free(t->trace);
    t->trace = str_dup(path);
}

/* ", stage 1, upscaler's stage 0": the stages of a rank. */
static const char *where_is(const struct island_trainer *t, int rank, char out[64])
{
    const int d = device_of(t, rank), stage = pipe_stage_of(&t->plan.cuts[0], d);
    const int up = t->plan.chains > 1 ? pipe_stage_of(&t->plan.cuts[1], d) : -1;
    const struct pipe_place p = pipe_place(&t->plan, place_of(t, rank));
    int n = stage >= 0 ? snprintf(out, 64, ", stage %d", stage) : 0;
    if (up >= 0)
        n += snprintf(out + n, (size_t)(64 - n), ", upscaler's stage %d", up);
    if (t->places > 1 && p.devices > 1)
        (void)snprintf(out + n, (size_t)(64 - n), ", device %d of %d", d - p.device, p.devices);
    return out;
}

static void write_trace(struct island_trainer *t)
{
    struct trace_device devices[ISLAND_MAX];
    char names[ISLAND_MAX][144], where[64];
    struct err err = {0};
    for (int i = 0; i < t->n; i++) {
        (void)snprintf(names[i], sizeof names[i], "%s, copy %d%s", island_device(t->is, i)->name,
                       copy_of(t, i), where_is(t, i, where));
        devices[i].chains = t->plan.chains;
        devices[i].name = names[i];
        trainer_traced(t->trainers[i], &devices[i].trace, &devices[i].list);
    }
    if (trace_write(t->trace, devices, t->n, &err) < 0)
        log_warn("island", "no trace of a step: %s", err.msg);
    else
        log_info("island", "when each device did what in a step: %s", t->trace);
    mem_free(t->trace);
    t->trace = NULL;
}

/* Does the step show how to fill bubbles?  It and the next one must be whole, it must be encoded by
 * the step before, and be of the faster kind if there are two. */
static bool shows_filling(const struct island_trainer *t)
{
    return t->fills && t->refill.state != REFILL_DONE && t->encoded &&
           t->batch.count == (unsigned)t->opt.batch && t->next.count == t->batch.count &&
           (!has_estimate(t) || t->opt.self_condition >= 1);
}

static void refill_bubbles(struct island_trainer *t, double seconds)
{
    const struct refill *r = &t->refill;
    const bool empty = r->state == REFILL_EMPTY;
    struct refill_times seen = {0};
    for (int i = 0; i < t->n; i++) {
        const struct trace *trace;
        const struct pipe_list *list;
        trainer_traced(t->trainers[i], &trace, &list);
        refill_read(&seen, &t->costs, device_of(t, i), list, trace);
    }
    if (!refill_step(&t->refill, &seen, seconds))
        return;
    if (empty)
        refill_correct(&r->times, &t->plan, &t->costs);
    for (int i = 0; i < t->n; i++)
        trainer_refill(t->trainers[i], r->share);
    if (r->state == REFILL_DONE)
        log_info("island",
                 "bubbles are filled to %.0f %%, which delays the pipeline by %.1f %%: %.3g s a "
                 "step, %.3g s with the frozen encoders behind it",
                 100 * r->share, 100 * r->delay, r->best, r->empty);
}

int island_trainer_step(struct island_trainer *t, const struct batch *b, const struct batch *next,
                        struct step_result *ret, struct err *err)
{
    if (t->n == 1)
        return trainer_step(t->trainers[0], b, ret, err);
    if (b->count < 1 || b->count > (unsigned)t->opt.batch)
        return err_set(err, -EINVAL, "a step on %u samples; from 1 to %d are possible", b->count,
                       t->opt.batch);
    t->batch = *b;
    t->batch.whole = b->count;
    t->batch.units = batch_units(b);
    t->next = next ? *next : (struct batch){0};
    const uint64_t begun = clock_now_ns();
    t->encoded = t->fills && is_encoded(t);
    const bool shows = shows_filling(t), estimate = has_estimate(t);
    for (int i = 0; i < t->n && (t->trace || shows); i++)
        trainer_trace(t->trainers[i], begun);
    int rc = cut(t, err);
    if (rc == 0)
        rc = island_run(t->is, step_job, t, err);
    const double seconds = clock_since_s(begun);
    t->encoded = rc == 0 && t->next.count > 0;
    if (rc < 0)
        return rc;
    if (t->trace)
        write_trace(t);
    const bool same = t->settled_count == b->count && t->settled_seq == b->seq;
    t->settled_estimate = estimate || (same && t->settled_estimate);
    t->settled_count = b->count;
    t->settled_seq = b->seq;
    for (int i = 1; i < t->n; i++)
        if (t->results[i].skipped != t->results[0].skipped)
            return err_set(err, -ERR_DEVICE,
                           "the devices of the island disagree on step %" PRIu64
                           ": gradient norm %g on %s, %g on %s",
                           t->results[0].step, t->results[0].grad_norm,
                           island_device(t->is, 0)->name, t->results[i].grad_norm,
                           island_device(t->is, i)->name);
    if (shows)
        refill_bubbles(t, seconds);
    *ret = t->results[0];
    return 0;
}
