/* Tasks for workers that ask for them: a worker's long poll is parked until the schedule
 * (schedule.h) has a task for it, and answered after the commit. */
#ifndef COORDINATOR_ASSIGN_H
#define COORDINATOR_ASSIGN_H

#include "coordinator/state/core.h"
#include "proto/skerry.pb-c.h"

/* Gives tasks to parked workers.  Called once in each turn. */
void assign_parked(struct coordinator *co);
/* Sends an AssignReply: the task that r names, or none. */
void assign_send(struct coordinator *co, struct reply *r);
/* The worker's first APPLIED_MAX verdicts as messages in one block, which the caller frees.  They
 * borrow their texts from w. */
Skerry__V1__Applied **assign_verdicts(const struct worker *w, size_t *ret_n);

#endif
