/* Chooses the task for a worker that asks for work.
 *
 * Order: the job's priority; then tasks that somebody waits for; then the job furthest below its
 * share; then the rank of the task's kind; then the paths furthest behind, so that more paths than
 * workers advance together; then warm before cold (the replica's last owner has its moments and
 * error feedback at hand); then age.  A replica whose last owner is here is kept for it for a
 * while.  A task that this worker failed waits for another worker, or for its back-off (failure.h).
 * A task that needs more memory than the worker has is not offered to it for a while.  Pure; the
 * reason says what the worker waits for. */
#ifndef COORDINATOR_SCHEDULE_H
#define COORDINATOR_SCHEDULE_H

#include "common/base/base.h"
#include "coordinator/decide/failure.h"

#define SCHEDULE_REASON_MAX 256
#define SCHEDULE_RANK_SHARED 2 /* tasks of lower ranks ignore shares: somebody waits for them */

/* Tasks for which a worker has reported too little memory. */
struct schedule_small {
    uint64_t job_id;
    int kind; /* the task's; only compared */
    uint32_t network;
    uint64_t until_ms; /* then such tasks are offered again: memory may have become free */
    uint32_t times;    /* how often it reported so */
};

/* A job that has tasks in the list. */
struct schedule_job {
    uint64_t id;
    int priority;     /* higher ones go first */
    double share;     /* > 0: its part of the leases, relative to the other jobs' */
    uint32_t leases;  /* held now; schedule_take() adds to it */
    const char *held; /* why none of its tasks is assigned; NULL: they are */
};

struct schedule_task {
    uint64_t id, job_id;
    uint32_t job; /* its place in the schedule's jobs */
    int kind;     /* only compared */
    unsigned
        rank; /* its kind's: lower ones go first; below SCHEDULE_RANK_SHARED shares are ignored */
    uint32_t network;
    uint64_t owner;                    /* last owner of the replica; 0: none */
    bool owner_here;                   /* the owner is here and may be given work */
    bool owner_busy;                   /* with something long: it is not waited for */
    uint32_t patience_ms;              /* how long the warm owner is waited for */
    const struct failure_list *failed; /* workers that failed the task; NULL: none did */
    uint64_t ready_ms;                 /* when it became ready */
    uint64_t not_before_ms;            /* back-off for all workers; 0: none */
    uint32_t lag;         /* TRAIN: rounds by which its path is ahead of the job's last path */
    bool needs_trainers;  /* a user's program computes it */
    int reads;            /* its worker must know at least this (Reads of skerry.proto) */
    bool phase;           /* not for a worker that still fetches the files its phases begin with */
    bool needs_known;     /* only for a worker that has done tasks well before */
    bool needs_spare;     /* only for a worker that is not about to get a phase */
    bool spares_makers;   /* not for a worker that is about to make an outer step */
    bool needs_helper;    /* another worker must be free to answer its requests */
    uint64_t not_for[2];  /* workers that may not have it, since it checks them; 0: none */
    uint64_t not_from[3]; /* the origins whose workers may not have it; the first 0 ends them */
};

struct schedule_options {
    enum failure_standing standing;     /* the worker's */
    bool trainers;                      /* the worker runs users' programs */
    int reads;                          /* the newest that it knows */
    bool known;                         /* it has done tasks well before */
    uint64_t origin;                    /* where it comes from (failure.h) */
    uint64_t behind;                    /* the job whose phases it may not have yet; 0: none */
    bool has_phase;                     /* it is about to get one */
    bool makes_step;                    /* it is about to make an outer step */
    bool helper;                        /* another worker is free to answer requests */
    const struct schedule_small *small; /* the worker's */
    unsigned n_small;
};

/* When the worker may be offered the task again; 0: now. */
uint64_t schedule_small_until(uint64_t now_ms, const struct schedule_task *t,
                              const struct schedule_small *small, unsigned n);

struct schedule_decision {
    long index;        /* into tasks; -1: no task now */
    uint64_t until_ms; /* when that may change by itself; 0: unknown */
    char reason[SCHEDULE_REASON_MAX];
};

/* The tasks of one moment, in groups.  The tasks of a group are alike to any worker that is not the
 * last owner of one, so a pick looks only at the first task of each group and at the worker's own.
 */
struct schedule {
    uint64_t now_ms;
    struct schedule_job *jobs;
    const struct schedule_task *tasks;
    size_t n, n_left;  /* n_left: tasks not yet taken */
    bool from_matters; /* some task has not_from: options.origin is needed */
    bool spares;       /* options.has_phase and makes_step matter to some task */
    struct schedule_group *groups;
    size_t n_groups;
    uint32_t later; /* the first task to become ready of those that are not; UINT32_MAX: none */
    uint32_t *next; /* in the group; UINT32_MAX: the last */
    bool *taken;
    struct schedule_owned *owned; /* by owner */
    size_t n_owned;
};

/* Keeps jobs and tasks; tasks are sorted by id. */
void schedule_init(struct schedule *s, uint64_t now_ms, struct schedule_job *jobs,
                   const struct schedule_task *tasks, size_t n);
/* Zeroed is fine. */
void schedule_release(struct schedule *s);
/* The best task for the worker among those not yet taken. */
void schedule_pick(struct schedule *s, uint64_t worker, const struct schedule_options *o,
                   struct schedule_decision *ret);
/* Marks the picked task as taken. */
void schedule_take(struct schedule *s, size_t index);

/* A job that wants workers: how many it can use at once. */
struct schedule_claim {
    int priority;
    double share;
    uint32_t most;
};

/* How many of `workers` the claim at `mine` may expect: those that jobs of higher priority cannot
 * use, divided by share among the claims of its own priority; what one of these cannot use, the
 * others divide. */
uint32_t schedule_part(uint32_t workers, const struct schedule_claim *claims, size_t n,
                       size_t mine);

#endif
