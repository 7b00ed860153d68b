/* A job's life, from PENDING to its end; flow.c has the picture.  The only place that ends jobs,
 * and removes ended ones. */
#ifndef COORDINATOR_FLOW_H
#define COORDINATOR_FLOW_H

#include "coordinator/state/core.h"

/* Advances all jobs as far as possible and ends doomed ones.  Called once in each turn. */
void flow_advance(struct coordinator *co);
/* Ends a job: its open tasks are cancelled, its files removed.  For the rooms above this one; those
 * below call job_doom(). */
void flow_end(struct coordinator *co, struct job *j, enum job_state state, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* 0 if the job can be removed.  -ERR_STALE: it has not ended; -EBUSY: a job that has not ended
 * learns from it; -EAGAIN: an outer step of it has not stopped yet. */
int flow_removable(const struct coordinator *co, const struct job *j, struct err *err);
/* Frees the job and removes all that is on record of it: its tasks, open drawings included, its
 * metrics, its files.  What it has cost comes off its token's budget, since the token's jobs on
 * record are charged to that. */
void flow_remove(struct coordinator *co, struct job *j);

#endif
