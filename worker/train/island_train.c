#include "worker/train/island_train.h"

/* ---- the sum of the gradients ----
 *
 * Ranges gather until they are a bucket, which is then queued on a stream of its own behind what
 * has been queued on the trainer's, while the backward still runs.  After join the trainer's
 * stream has the sums.  All ranks run the same backward, so they name the same ranges in the same
 * order and their buckets meet; without overlap everything is summed at join.  Sums do not depend
 * on how the ranges are cut into buckets.
 *
 * A step that may take or give back device memory, or load code, is REDUCER_MEETS: no sum is
 * queued before all ranks have come to join, and no rank goes on before all have queued theirs.
 * Freeing memory of a card (cudaFree) can wait for what runs on it and on its peers, and a sum
 * that runs there waits for the rank that frees. */

/* Elements of the flat vector. */
struct range {
    uint64_t at, n;
};

/* Disjoint, ascending, none touches the next. */
struct ranges {
    struct range *v;
    size_t n, room;
};

enum reducer_how {
    REDUCER_OVERLAPS,
    REDUCER_WAITS, /* everything at join */
    REDUCER_MEETS, /* the same, when all ranks are there */
};

struct reducer {
    struct island *is;
    int rank;
    struct weights *w;     /* the trainer's */
    struct stream *stream; /* sums */
    uint64_t bucket;       /* elements */
    enum reducer_how how;
    struct ranges named;   /* in this step */
    struct ranges waiting; /* those that no bucket has yet */
    uint64_t waiting_n;    /* elements of it */
    struct comm_piece *pieces;
    int rc; /* first failure of the step */
    const char *failed;
};

/* The first that ends at or behind `at`. */
static size_t find(const struct ranges *rs, uint64_t at)
{
    size_t i = 0;
    while (i < rs->n && rs->v[i].at + rs->v[i].n < at)
        i++;
    return i;
}

/* False: part of it is there already, or there are too many. */
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

static int reducer_init(struct reducer *r, struct island *is, int rank, struct weights *w,
                        uint64_t bucket_bytes, struct err *err)
{
    const size_t room = w->m->n + 2; /* more ranges than tensors there are never */
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

/* Queues the sum of what waits, and of the losses. */
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

/* Everything that was not named waits too. */
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
    struct reducer *r = arg;
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

static int reducer_wait(void *arg, struct stream *s, struct err *err)
{
    struct reducer *r = arg;
    struct comm *c = island_comm(r->is, r->rank);
    return c->ops->wait(c, s, err);
}

/* ---- the trainers ---- */

struct island_trainer {
    struct island *is;
    const struct model *m;
    struct train_options opt, share;
    int n;
    struct trainer *trainers[ISLAND_MAX];
    struct reducer reducers[ISLAND_MAX]; /* unused in an island of one */

    /* The size of the last step: another of it needs no more memory than there is.  Teachers and
     * pictures of several shapes may take some in any step. */
    unsigned settled_count, settled_seq;

    /* What the ranks do now. */
    struct batch batch; /* the whole step */
    struct step_result results[ISLAND_MAX];
    int rcs[ISLAND_MAX]; /* the step's */
    struct err err;      /* rank 0's in the step */
    enum island_what what;
};

void island_share_options(const struct train_options *opt, int ranks, struct train_options *ret)
{
    *ret = *opt;
    ret->batch = (opt->batch + ranks - 1) / ranks;
    if (ret->accumulate > ret->batch)
        ret->accumulate = ret->batch;
}

static int join_peers(struct island_trainer *t, int rank, struct err *err)
{
    struct trainer *tr = t->trainers[rank];
    struct reducer *r = &t->reducers[rank];
    int rc = reducer_init(r, t->is, rank, trainer_net(tr)->weights, ISLAND_BUCKET_BYTES, err);
    const struct train_peers peers = {
        .batch = (unsigned)t->opt.batch,
        .watch = {reducer_ready, r},
        .join = reducer_join,
        .wait = reducer_wait,
        .arg = r,
        /* NCCL: several cards of one process that launch graphs with its calls may lock. */
        .graphs = false,
    };
    return rc < 0 ? rc : trainer_set_peers(tr, &peers, err);
}

static int make_job(void *arg, int rank, struct err *err)
{
    struct island_trainer *t = arg;
    struct train_options opt = t->share;
    opt.encoders = opt.encoders ? opt.encoders + rank : NULL;
    int rc = trainer_make(island_device(t->is, rank), t->m, &opt, &t->trainers[rank], err);
    return rc < 0 || t->n == 1 ? rc : join_peers(t, rank, err);
}

int island_trainer_new(struct island *is, const struct model *m, const struct train_options *opt,
                       struct island_trainer **ret, struct err *err)
{
    struct island_trainer *t = mem_alloc(sizeof *t);
    t->is = is;
    t->m = m;
    t->opt = *opt;
    t->n = island_size(is);
    island_share_options(opt, t->n, &t->share);
    int rc = island_run(is, make_job, t, err);
    if (rc < 0) {
        island_trainer_free(t);
        return rc;
    }
    *ret = t;
    return 0;
}

void island_trainer_free(struct island_trainer *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->n; i++) {
        reducer_release(&t->reducers[i]);
        trainer_free(t->trainers[i]);
    }
    mem_free(t);
}

const struct train_options *island_trainer_options(const struct island_trainer *t)
{
    return &t->opt;
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
        t->reducers[i].bucket = bytes / sizeof(float);
}

/* ---- rank 0 is followed ---- */

static int take_over(struct island_trainer *t, int rank, enum trainer_vector which, struct err *err)
{
    struct comm *c = island_comm(t->is, rank);
    struct trainer *tr = t->trainers[rank];
    float *x = trainer_device(tr, which);
    int rc =
        x ? c->ops->broadcast(c, x, t->m->flat * sizeof *x, 0, trainer_net(tr)->weights->stream)
          : 0;
    return rc < 0 ? err_set(err, rc, "taking over from rank 0 failed: %s", err_text(rc)) : 0;
}

static int follow_job(void *arg, int rank, struct err *err)
{
    struct island_trainer *t = arg;
    struct trainer *tr = t->trainers[rank], *first = t->trainers[0];
    static const enum trainer_vector all[] = {TRAINER_WEIGHTS, TRAINER_ADAM_M, TRAINER_ADAM_V,
                                              TRAINER_EMA};
    const size_t n = t->what == ISLAND_ALL ? sizeof all / sizeof *all : 1;
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = take_over(t, rank, all[i], err);
    if (rc == 0)
        rc = reducer_wait(&t->reducers[rank], trainer_net(tr)->weights->stream, err);
    if (rc < 0 || rank == 0)
        return rc;
    if (t->what == ISLAND_ALL) {
        trainer_set_adam_step(tr, trainer_adam_step(first));
        trainer_position(tr, trainer_next_step(first), trainer_total_steps(first));
    }
    return trainer_written(tr, err);
}

int island_trainer_follow(struct island_trainer *t, enum island_what what, struct err *err)
{
    if (t->n == 1)
        return 0;
    t->what = what;
    return island_run(t->is, follow_job, t, err);
}

/* ---- steps ---- */

/* Where rank's part of `count` samples begins: the parts differ by one sample at most. */
static unsigned part_at(unsigned count, int rank, int n)
{
    return (unsigned)((uint64_t)count * (uint64_t)rank / (uint64_t)n);
}

/* A rank without samples names no gradients on the way: then none does. */
static enum reducer_how how_to_reduce(const struct island_trainer *t)
{
    const struct batch *b = &t->batch;
    if (t->opt.distill || t->m->spec.n_shapes > 0 || t->settled_count != b->count ||
        t->settled_seq != b->seq)
        return REDUCER_MEETS;
    return b->count >= (unsigned)t->n ? REDUCER_OVERLAPS : REDUCER_WAITS;
}

static int step_job(void *arg, int rank, struct err *err)
{
    struct island_trainer *t = arg;
    const unsigned all = t->batch.count;
    const unsigned from = part_at(all, rank, t->n), to = part_at(all, rank + 1, t->n);
    struct batch mine;
    const struct net *net = trainer_net(t->trainers[rank]);
    const struct batch_sizes sizes = net_batch_sizes(t->m, &net->opt);
    batch_slice(&t->batch, from, to - from, &sizes, &mine);
    mine.first = from;
    reducer_begin(&t->reducers[rank], how_to_reduce(t));
    int rc = trainer_step(t->trainers[rank], &mine, &t->results[rank], err);
    t->rcs[rank] = rc;
    if (rc != -EDOM)
        return rc;
    /* All ranks see it alike, and are as before: no failure of one of them. */
    if (rank == 0)
        t->err = *err;
    return 0;
}

int island_trainer_step(struct island_trainer *t, const struct batch *b, struct step_result *ret,
                        struct err *err)
{
    if (t->n == 1)
        return trainer_step(t->trainers[0], b, ret, err);
    if (b->count < 1 || b->count > (unsigned)t->opt.batch)
        return err_set(err, -EINVAL, "a step on %u samples; from 1 to %d are possible", b->count,
                       t->opt.batch);
    t->batch = *b;
    t->batch.whole = b->count;
    t->batch.units = batch_units(b);
    int rc = island_run(t->is, step_job, t, err);
    if (rc < 0)
        return rc;
    t->settled_count = b->count;
    t->settled_seq = b->seq;
    for (int i = 1; i < t->n; i++)
        if (t->rcs[i] != t->rcs[0])
            return err_set(
                err, -ERR_DEVICE,
                "the devices of the island disagree on step %" PRIu64 ": %s on %s, %s on %s",
                trainer_next_step(t->trainers[0]), err_text(t->rcs[0]),
                island_device(t->is, 0)->name, err_text(t->rcs[i]), island_device(t->is, i)->name);
    if (t->rcs[0] < 0) {
        if (err)
            *err = t->err;
        return t->rcs[0];
    }
    *ret = t->results[0];
    return 0;
}
