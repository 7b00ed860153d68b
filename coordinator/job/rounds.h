/* Phases: when a path's next one begins, what became of each replica's, when a round is over.
 * Called by flow.c for jobs that run; a job that cannot go on is doomed, never ended here. */
#ifndef COORDINATOR_ROUNDS_H
#define COORDINATOR_ROUNDS_H

#include "coordinator/state/core.h"

/* All paths and modules of a job that is RUNNING, as far as they go. */
void rounds_advance(struct coordinator *co, struct job *j);

/* The path's round ends as it is: what no version has taken none will, unless it may be late. */
void rounds_close(struct coordinator *co, struct job *j, uint32_t path);

/* Is everything that the module's next version waits for being worked on?  If not, no worker may
 * be kept from other tasks by waiting for it. */
bool rounds_coming(const struct state *s, const struct job *j, const struct module_rec *m,
                   uint64_t now_ms);

/* After the records were read: which ended phases wait for a version. */
void rounds_resume(struct coordinator *co);

#endif
