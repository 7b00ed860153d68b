/* Early stopping: the version of each path with the least held-out loss, which is drawn, exported
 * and learned from.
 *
 * One worker's loss makes no version the best, or a single one that is too small would end what the
 * path learns.  Another worker measures the version again, one of another origin if one is here,
 * and the larger loss counts.  Only if no other worker is here, or comes within GUARD_PATIENCE_MS,
 * is the first word enough.  Other versions that seemed worse meanwhile are considered after it.
 * The files of a version in question are kept; a restart forgets it, and takes the second
 * measurement for a first one. */
#ifndef COORDINATOR_BEST_H
#define COORDINATOR_BEST_H

#include "coordinator/state/core.h"

/* Considers the loss that EVAL task t has just measured. */
void best_hear(struct coordinator *co, struct job *j, const struct task *t, float loss);
/* The same of a task that measures again; INFINITY: it is no number.  False: t is another task. */
bool best_hear_again(struct coordinator *co, struct job *j, const struct task *t, float loss);
/* Sets the worker and the origin that may not have EVAL task t, as guard_not_for() does.  False: t
 * measures nothing again for this. */
bool best_not_for(const struct coordinator *co, const struct task *t, uint64_t *ret_worker,
                  uint64_t *ret_from);
/* Before the job advances: nobody measures a version again whose task has ended otherwise. */
void best_settle(struct coordinator *co, struct job *j);
/* The data are others now, and what was best says nothing of them. */
void best_forget(struct coordinator *co, struct job *j);

#endif
