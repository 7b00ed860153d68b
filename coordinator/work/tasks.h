/* The life of a task: made, leased, requeued, ended.  A task that nobody can do dooms its job,
 * unless it is aside from the training (task_trait.aside).  One worker's report is not enough for
 * that (decide/failure.h), nor to end an aside task while other workers are here.  Nothing here
 * ends a job. */
#ifndef COORDINATOR_TASKS_H
#define COORDINATOR_TASKS_H

#include "coordinator/state/core.h"

/* A new pending task, for the caller to fill; NULL at TASKS_OPEN_MAX. */
struct task *task_make(struct coordinator *co, struct job *j, enum task_kind kind);
/* Leases t to w. */
void task_lease(struct coordinator *co, struct task *t, struct worker *w);
/* A worker that was taken for lost is back and at work on this attempt of t: leases t to it again
 * unless another worker has it. */
void task_lease_again(struct coordinator *co, const struct task *t, struct worker *w,
                      uint32_t attempt);
/* Replaces a phase's snapshot; takes s; NULL: the phase starts afresh.  Tasks of other kinds have
 * no snapshot. */
void task_keep_snapshot(struct coordinator *co, struct task *t, struct snapshot *s);
/* Makes t pending again, with the next attempt; a phase resumes from its snapshot. */
void task_requeue(struct coordinator *co, struct task *t, const char *reason);
/* Samples of a phase that are in a version; with fragments also before the phase has ended. */
uint64_t task_folded(const struct task *t);
/* Ends t as DONE, FAILED or CANCELLED.  Samples not yet settled become pending again, except those
 * that are in a version. */
void task_end(struct coordinator *co, struct task *t, enum task_state state, const char *reason);
/* Ends a pending phase with its last snapshot as the contribution: the samples used so far are
 * done, the others pending again.  False: there is no snapshot, the samples it has used are
 * unknown, or contributions to its starting version are no longer folded. */
bool task_end_in_part(struct coordinator *co, const struct job *j, struct task *t);
enum task_fault {
    FAULT_PASSING,  /* of the network, a disk, or ours: held against nobody, never final */
    FAULT_TASK,     /* another try may succeed, here or elsewhere */
    FAULT_PROGRAM,  /* as FAULT_TASK, but of a program that came with the job */
    FAULT_DIVERGED, /* as FAULT_TASK, but of the steps of a phase */
    FAULT_LASTING,  /* its worker says that nobody can do it */
};
/* The task's holder failed it. */
void task_failed(struct coordinator *co, struct task *t, enum task_fault fault, const char *reason);
/* Only workers of other origins than this one may have t from now on; the reason says why, and
 * which worker is needed. */
void task_from_elsewhere(const struct coordinator *co, struct task *t, uint64_t origin,
                         const char *why);
/* Archives are to be cut again by workers of other origins, and their shards go: those cut by
 * workers of this origin, or all (0).  False: there are none. */
bool tasks_recut(struct coordinator *co, struct job *j, uint64_t origin, const char *why);
/* As FAULT_PASSING, but not counted; if other workers are here, one of them gets the task first. */
void task_passed_on(struct coordinator *co, struct task *t, const char *reason);
/* Settles the task's samples in its ledger: the first `done` are done, the rest free. */
void task_settle(struct coordinator *co, struct task *t, uint64_t done);
#define RANGES_TAKEN_MAX 2048 /* a TRAIN task with its tickets must fit a frame of 1 MiB */
/* Whether there are samples for `phases` more phases of the path (at least a batch each if they are
 * bounded by time), or no task holds any that could come back.  If not, waiting is worthwhile. */
bool task_has_samples(const struct job *j, uint32_t path, uint64_t phases);
/* Takes samples for a TRAIN task; false: there are none. */
bool task_take_samples(struct coordinator *co, struct job *j, struct task *t);
/* Drops the oldest ended tasks of a job beyond TASKS_ENDED_MAX. */
void tasks_prune(struct coordinator *co, struct job *j);

#endif
