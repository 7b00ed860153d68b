/* A version whose held-out loss says that it is worse than those before it is undone: the job, or
 * the paths that share modules with the one that was evaluated, go back to the best of the versions
 * that are kept (rollback.h).  eval.guard says how many times that one's loss is too much.
 *
 * One worker's word undoes nothing: another one is asked, from elsewhere if one is here (only if
 * nobody else comes within GUARD_PATIENCE_MS may the same one say it again).  While a version is
 * asked about, and kept, nobody is asked about later ones.  What a restart forgets is asked once
 * more.  Each time costs the job a round, so it comes to its end. */
#ifndef COORDINATOR_GUARD_H
#define COORDINATOR_GUARD_H

#include "coordinator/state/core.h"

#define GUARD_PATIENCE_MS 60000u

/* The worker that may not have an EVAL task, and the origin from which none may, where the task
 * asks for a second word and a worker from elsewhere is here; else nothing is set. */
void guard_not_for(const struct coordinator *co, const struct task *t, uint64_t *ret_worker,
                   uint64_t *ret_from);
/* The held-out loss of a path, of an EVAL task that its worker has just reported: INFINITY where it
 * is no number.  False: there is nothing to judge it by. */
bool guard_hear(struct coordinator *co, struct job *j, const struct task *t, float loss);

#endif
