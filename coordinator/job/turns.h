/* Whose turn it is: which tasks let a job's phases go first.
 *
 * First come samples that a person asked for, losses that another worker measures again, and all
 * that a job ends with.  A job's own evaluations and samples are for a worker that has no phase to
 * begin: it has none in the round, or is done before the others.  When a round has ended without
 * them they come first, too.  So a round waits for an evaluation only if no worker had time for it
 * within a round.  Where there is always a next phase (async jobs, more paths than workers) an
 * evaluation comes a round late. */
#ifndef COORDINATOR_TURNS_H
#define COORDINATOR_TURNS_H

#include "coordinator/state/core.h"

/* The task's rank for the schedule: its kind's, except of an evaluation or sample that can wait. */
unsigned turns_rank(const struct job *j, const struct task *t);

#endif
