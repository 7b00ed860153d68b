/* A job's life, from PENDING to its end; flow.c has the picture.  The only place that ends jobs. */
#ifndef COORDINATOR_FLOW_H
#define COORDINATOR_FLOW_H

#include "coordinator/state/core.h"

/* Advances all jobs as far as possible and ends doomed ones.  Called once in each turn. */
void flow_advance(struct coordinator *co);
/* Ends a job: its open tasks are cancelled, its files removed.  For the rooms above this one; those
 * below call job_doom(). */
void flow_end(struct coordinator *co, struct job *j, enum job_state state, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
