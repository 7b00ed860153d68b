/* Rounds: begins a path's next phases, follows each replica's, and closes the round.  Called by
 * flow.c for running jobs; a job that cannot go on is doomed, never ended here. */
#ifndef COORDINATOR_ROUNDS_H
#define COORDINATOR_ROUNDS_H

#include "coordinator/state/core.h"

/* Advances all paths and modules of a RUNNING job as far as possible. */
void rounds_advance(struct coordinator *co, struct job *j);

/* Closes the path's round as it is: contributions not yet in a version are refused, unless the job
 * takes late ones. */
void rounds_close(struct coordinator *co, struct job *j, uint32_t path);

/* Whether workers have all tasks for which the module's next version waits.  If not, no worker may
 * be kept from other tasks by waiting for it. */
bool rounds_coming(const struct state *s, const struct job *j, const struct module_rec *m,
                   uint64_t now_ms);

/* After the state was loaded: finds the ended phases that wait for a version. */
void rounds_resume(struct coordinator *co);

#endif
