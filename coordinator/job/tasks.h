/* One task's life: made, leased, given back, ended.  A task that nobody can do dooms its job,
 * unless it is aside of the training; one worker's word is not enough for that (decide/failure.h),
 * nor for the end of what is aside while others are here.  Nothing here ends a job. */
#ifndef COORDINATOR_TASKS_H
#define COORDINATOR_TASKS_H

#include "coordinator/state/core.h"

/* A new task, pending, to be filled and saved; NULL at TASKS_OPEN_MAX. */
struct task *task_make(struct coordinator *co, struct job *j, enum task_kind kind);
/* To w. */
void task_lease(struct coordinator *co, struct task *t, struct worker *w);
/* A worker that was taken for lost is back, at work on this attempt of t: it has it again if nobody
 * else has got it. */
void task_lease_again(struct coordinator *co, const struct task *t, struct worker *w,
                      uint32_t attempt);
/* What a phase has saved, in place of what it had; takes s, or NULL: it begins anew.  Tasks of
 * other kinds have none. */
void task_keep_snapshot(struct coordinator *co, struct task *t, struct snapshot *s);
/* Back to pending with the next attempt; a phase goes on from its snapshot. */
void task_requeue(struct coordinator *co, struct task *t, const char *reason);
/* Samples of a phase that are in a version, also where it has not ended: of fragments. */
uint64_t task_folded(const struct task *t);
/* Ends it as DONE, FAILED or CANCELLED: samples that it has not settled are pending again, but for
 * those that are in a version. */
void task_end(struct coordinator *co, struct task *t, enum task_state state, const char *reason);
/* Ends a pending phase by its last snapshot, which becomes its contribution: the samples that it
 * has used are done, the others pending again.  False: there is none, or nobody can say which
 * samples it has used, or what it began with is not folded any more. */
bool task_end_in_part(struct coordinator *co, const struct job *j, struct task *t);
enum task_fault {
    FAULT_PASSING, /* of the network, a disk, or ours: nobody's, and never the last */
    FAULT_TASK,    /* it may go better, here or elsewhere */
    FAULT_PROGRAM, /* as FAULT_TASK, of a program that came with the job */
    FAULT_LASTING, /* its worker says that nobody can do it */
};
/* Its holder could not do it. */
void task_failed(struct coordinator *co, struct task *t, enum task_fault fault, const char *reason);
/* As FAULT_PASSING, and not counted; with other workers here one of them is first. */
void task_passed_on(struct coordinator *co, struct task *t, const char *reason);
/* Settles what the task holds in its ledger: `done` samples are done. */
void task_settle(struct coordinator *co, struct task *t, uint64_t done);
#define RANGES_TAKEN_MAX 2048 /* a TRAIN task with its tickets must fit a frame of 1 MiB */
/* Are there samples for so many more phases of the path, for a batch each at least where they are
 * bounded by time, or is nothing held that would come back?  Else it is worth to wait. */
bool task_has_samples(const struct job *j, uint32_t path, uint64_t phases);
/* Takes samples for a TRAIN task; false: none to be had. */
bool task_take_samples(struct coordinator *co, struct job *j, struct task *t);
/* Drops the oldest ended tasks of a job beyond TASKS_ENDED_MAX. */
void tasks_prune(struct coordinator *co, struct job *j);

#endif
