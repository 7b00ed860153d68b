#include "worker/train/island_train.h"

#include <errno.h>
#include <inttypes.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/train/reducer.h"

struct island_trainer {
    struct island *is;
    const struct model *m;
    struct train_options opt, share;
    int n;
    struct trainer *trainers[ISLAND_MAX];
    struct reducer reducers[ISLAND_MAX]; /* unused in an island of one */

    /* The shape of the last step: another of it needs no more memory than there is.  Teachers
     * may take some in any step. */
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
    int rc = trainer_make(island_device(t->is, rank), t->m, &t->share, &t->trainers[rank], err);
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
    if (t->opt.distill || t->settled_count != b->count || t->settled_seq != b->seq)
        return REDUCER_MEETS;
    return b->count >= (unsigned)t->n ? REDUCER_OVERLAPS : REDUCER_WAITS;
}

static int step_job(void *arg, int rank, struct err *err)
{
    struct island_trainer *t = arg;
    const unsigned all = t->batch.count;
    const unsigned from = part_at(all, rank, t->n), to = part_at(all, rank + 1, t->n);
    struct batch mine;
    batch_slice(&t->batch, from, to - from, model_image_values(&t->m->spec), &mine);
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
