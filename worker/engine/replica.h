/* Replicas that this worker trains from phase to phase: a trainer (Adam's moments and count) per
 * (job, path, replica), in memory, with a local checkpoint on disk.
 *
 *   wanted at step s:  in memory and standing at s     ─► goes on
 *                      the phase itself was cut here   ─► DIR/replica-J-P-R.mid   (bit-exact),
 *                                                         or .end, if only its report is missing
 *                      checkpoint of a phase's end at s ─► DIR/replica-J-P-R.end  (bit-exact),
 *                                                         or .end.spare, the one before it
 *                      moments came with the task      ─► those (worker/train/moments.h)
 *                      otherwise                       ─► fresh moments
 *
 * A task that says `fresh`, and a CHECK, begin with fresh moments in any case.  The replica of a
 * CHECK is one by itself, whoever has trained the same one here.
 *
 * At most REPLICAS_MAX and a number of bytes stay in memory; the longest unused goes first (its
 * checkpoint stays).  On disk stay those of a job's replicas that are at most four rounds behind
 * the phase that has ended: the others went on elsewhere.  Compute thread. */
#ifndef WORKER_REPLICA_H
#define WORKER_REPLICA_H

#include "common/base/base.h"
#include "worker/engine/fragment.h"
#include "worker/train/island_train.h"
#include "worker/order/work.h"

struct replica;
struct replicas;

#define REPLICAS_MAX 64

/* Where a phase that was cut goes on. */
struct replica_cursor {
    uint32_t steps;
    uint32_t skipped, skipped_row; /* of those, skipped ones; the newest ones, all skipped */
    uint64_t samples, position;
    double loss_sum; /* over the steps that were not skipped */
    float loss_first, loss_last;
    double seconds;
};

struct replica {
    uint64_t job_id;
    uint64_t spec; /* hash of the job's text: after a restore another job may have this number */
    uint32_t path, index;
    struct model *model;
    struct encoders *encoders; /* in front of the networks; NULL: none */
    struct island_trainer *ranks;
    struct trainer *trainer;   /* the first of them */
    float *flat;               /* host copy, scratch of a phase; all replicas share it */
    bool whole;                /* stands at the end of a phase: its moments may go on */
    struct replica_cursor end; /* whole: there */
    bool own; /* after replica_get: its weights are those that its last phase ended with */
    /* By level: the version that the weights were last merged with (worker/engine/fragment.h);
     * NO_VERSION: none. */
    uint64_t met[MODEL_LEVELS_MAX];
    /* On each device, for the weights of teachers: what the plan left, and one of them. */
    uint64_t room_for_teachers;
    uint64_t used; /* tick */
    uint64_t bytes;
    char way[128];    /* how several devices share a step: " in 2 stages, 4 micro-batches" */
    double predicted; /* seconds of a step; 0: nothing was measured */
    struct progress_plan plan; /* the same for the coordinator; devices 0: there is one */
    bool compared;             /* with what a step took */
};

/* Lets go of other memory on the devices; false: there was none to let go of. */
typedef bool replicas_more_fn(void *arg);
/* more is called where a plan does not fit; NULL: nothing else is there. */
struct replicas *replicas_new(struct island *is, const char *dir, uint64_t max_bytes,
                              replicas_more_fn *more, void *arg);
void replicas_free(struct replicas *rs); /* accepts NULL */

/* Lets go of what is kept between phases, the longest unused first, until other work has room for
 * `need` bytes on the first device, or nothing is left. */
void replicas_yield(struct replicas *rs, uint64_t need);

/* The replica of a TRAIN task, made if need be (with the encoders, or NULL), standing at the task's
 * first step; its weights are undefined unless they are its own.  With *ret_resumed it stands in
 * the middle of this very phase, weights and all, and *cursor says where. */
int replica_get(struct replicas *rs, const struct work *w, struct encoders *encoders,
                struct replica **ret, bool *ret_resumed, struct replica_cursor *cursor,
                struct err *err);

/* The replica of a TRAIN task without frozen encoders, made if it is not in memory: whatever it
 * holds, replica_get puts it where the task begins. */
int replica_make(struct replicas *rs, const struct work *w, struct replica **ret, struct err *err);

/* Before anything is fetched: can the devices hold the task's replica?  -ENOMEM with one
 * sentence (worker/train/plan.h).  One that is in memory fits. */
int replica_plan(struct replicas *rs, const struct work *w, struct err *err);
/* A step found no memory although it was planned.  True: the replica has been let go and will
 * be made with smaller micro-batches; false: there are none, or it is not for us to choose. */
bool replica_smaller(struct replicas *rs, const struct work *w);

/* What a step of the phase took at least: says how good the prediction was, and has the
 * next replica's measured again where it was not. */
void replica_stepped(struct replicas *rs, struct replica *r, double seconds);

/* Is it in memory at the end of a phase, where the task begins or where its moments stand? */
bool replica_stands(struct replicas *rs, const struct work *w);

/* NULL when it is not in memory. */
struct replica *replica_peek(struct replicas *rs, const struct work *w);

/* Lets go of the one that a CHECK task made. */
void replica_drop(struct replicas *rs, const struct work *w);

/* Writes the .mid file (in the phase) or the .end file (after it; .mid goes).  A worker that is
 * killed before the coordinator has the result goes on from .end when it is given the phase again,
 * and only contributes. */
int replica_save_mid(struct replicas *rs, struct replica *r, const struct work *w,
                     const struct replica_cursor *cursor, struct err *err);
int replica_save_end(struct replicas *rs, struct replica *r, const struct work *w, struct err *err);
/* Removes the .mid file: nobody goes on with what the phase has come to. */
int replica_drop_mid(struct replicas *rs, const struct replica *r, struct err *err);

#endif
