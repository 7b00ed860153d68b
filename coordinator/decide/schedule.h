/* Which task a worker that asks for work gets.
 *
 * Order: the job's priority; then what somebody waits for; then the job that is furthest below its
 * share; then the rank of its kind; then the paths that are furthest behind, so that more paths
 * than workers advance together; then warm before cold (the replica's last owner has its moments
 * and error feedback at hand); then age.  A replica whose last owner is here is kept for it for a
 * while.  A task that this worker failed waits for another one, or for its back-off (failure.h).
 * What the worker has no memory for is not offered to it for a while. Pure; the reason says what
 * the worker waits for. */
#ifndef COORDINATOR_SCHEDULE_H
#define COORDINATOR_SCHEDULE_H

#include "common/base/base.h"
#include "coordinator/decide/failure.h"

#define SCHEDULE_REASON_MAX 256
#define SCHEDULE_RANK_SHARED 2 /* somebody waits for tasks of lower ranks: no share counts */

/* What a worker has said that it has no memory for. */
struct schedule_small {
    uint64_t job_id;
    int kind; /* the task's; only compared */
    uint32_t network;
    uint64_t until_ms; /* then it is asked again: memory may have come free */
    uint32_t times;    /* that it said so */
};

/* A job that has tasks in the list. */
struct schedule_job {
    uint64_t id;
    int priority;     /* the higher goes first */
    double share;     /* above 0: its part of the leases, beside those of the others */
    uint32_t leases;  /* that it holds now; schedule_take() counts on */
    const char *held; /* why none of its tasks is given out; NULL: they are */
};

struct schedule_task {
    uint64_t id, job_id;
    uint32_t job; /* its place in the schedule's jobs */
    int kind;     /* only compared */
    unsigned
        rank; /* its kind's: the lower goes first, below SCHEDULE_RANK_SHARED whatever its job */
    uint32_t network;
    uint64_t owner;                    /* last owner of the replica; 0: none */
    bool owner_here;                   /* it is here and may be given work */
    bool owner_training;               /* it is in another phase: not waited for */
    uint32_t patience_ms;              /* how long the warm owner is waited for */
    const struct failure_list *failed; /* workers that failed it; NULL: none did */
    uint64_t ready_ms;                 /* since when it may run */
    uint64_t not_before_ms;            /* back-off of all workers; 0: none */
    uint32_t lag;        /* TRAIN: rounds that its path is ahead of the job's last one */
    bool needs_trainers; /* a program of the user's computes it */
    bool phase;          /* not for a worker that still fetches what the job's phases begin with */
    bool needs_known;    /* only a worker that has done tasks well before may have it */
    bool needs_helper;   /* another worker must have time for what it asks */
    uint64_t not_for[2]; /* workers that it is about; 0: none */
    uint64_t not_from;   /* and whence nobody may have it; 0: any may */
};

struct schedule_options {
    enum failure_standing standing;     /* the worker's */
    bool trainers;                      /* the worker runs such programs */
    bool known;                         /* it has done tasks well before */
    uint64_t origin;                    /* whence it comes */
    uint64_t behind;                    /* job of whose phases it has none now; 0: of none */
    bool helper;                        /* somebody else is left to help those that ask */
    const struct schedule_small *small; /* the worker's */
    unsigned n_small;
};

/* When the worker may be asked again; 0: it may be now. */
uint64_t schedule_small_until(uint64_t now_ms, const struct schedule_task *t,
                              const struct schedule_small *small, unsigned n);

struct schedule_decision {
    long index;        /* into tasks; -1: nothing now */
    uint64_t until_ms; /* when that may change by itself; 0: unknown */
    char reason[SCHEDULE_REASON_MAX];
};

/* Tasks of one moment, grouped: those of a group are alike to whoever is none's last owner, so that
 * a look for one of many workers is a look at each group's first and at the worker's own. */
struct schedule {
    uint64_t now_ms;
    struct schedule_job *jobs;
    const struct schedule_task *tasks;
    size_t n, n_left;  /* n_left: not taken */
    bool from_matters; /* some task has not_from: options.origin is asked for */
    struct schedule_group *groups;
    size_t n_groups;
    uint32_t
        later; /* of the tasks that nobody may take yet, the first to be ready; or UINT32_MAX */
    uint32_t *next; /* in the group; UINT32_MAX: the last */
    bool *taken;
    struct schedule_owned *owned; /* by owner */
    size_t n_owned;
};

/* keeps jobs, and tasks, which are in order of id. */
void schedule_init(struct schedule *s, uint64_t now_ms, struct schedule_job *jobs,
                   const struct schedule_task *tasks, size_t n);
/* Zeroed is fine. */
void schedule_release(struct schedule *s);
/* The best for the worker of those that were not taken. */
void schedule_pick(struct schedule *s, uint64_t worker, const struct schedule_options *o,
                   struct schedule_decision *ret);
/* It is the one that was picked. */
void schedule_take(struct schedule *s, size_t index);

/* A job that wants workers: how many it can use at once. */
struct schedule_claim {
    int priority;
    double share;
    uint32_t most;
};

/* How many of so many workers the claim at `mine` may expect: those that jobs of higher priorities
 * cannot use, divided among its equals by their shares. */
uint32_t schedule_part(uint32_t workers, const struct schedule_claim *claims, size_t n,
                       size_t mine);

#endif
