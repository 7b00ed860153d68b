/* A job's life, from PENDING to its end; flow.c has the picture.  The only place that ends jobs. */
#ifndef COORDINATOR_FLOW_H
#define COORDINATOR_FLOW_H

#include "coordinator/state/core.h"

/* All jobs, as far as they go; those that are doomed end.  Once in each turn. */
void flow_advance(struct coordinator *co);
/* Ends a job: its open tasks are cancelled, its files go.  For those above; below, job_doom(). */
void flow_end(struct coordinator *co, struct job *j, enum job_state state, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
