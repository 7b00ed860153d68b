/* Undoes a version whose held-out loss is far worse than before: the job, or the paths that share
 * modules with the evaluated one, go back to the best version that is kept (rollback.h).  A loss
 * above eval.guard times the loss of that version is too much.
 *
 * One worker's evaluation undoes nothing: another worker repeats it, one of another origin if one
 * is here, and one repeats that of the best version, or a single loss that is too small would undo
 * all that follows; of two losses the larger counts as that of the best.  Only if no other comes
 * within GUARD_PATIENCE_MS may the same worker repeat it.  While a version is in question, and
 * kept, no evaluation of a later one is repeated.  A repetition that a restart forgets is asked for
 * again.  Each rollback costs the job a round, so the job still ends.
 */
#ifndef COORDINATOR_GUARD_H
#define COORDINATOR_GUARD_H

#include "coordinator/state/core.h"

#define GUARD_PATIENCE_MS 60000u

/* Sets the worker and the origin that may not have EVAL task t, where it repeats an evaluation and
 * a worker of another origin is here; else sets nothing. */
void guard_not_for(const struct coordinator *co, const struct task *t, uint64_t *ret_worker,
                   uint64_t *ret_from);
/* Judges the held-out loss of an EVAL task that its worker has just reported; pass INFINITY for a
 * loss that is not a number.  False: there is nothing to compare it with. */
bool guard_hear(struct coordinator *co, struct job *j, const struct task *t, float loss);
/* A second worker has measured a version whose loss its round has: the larger one counts, as which
 * what is no number is the largest. */
void guard_correct(struct job *j, uint32_t path, uint32_t version, float loss);
/* The first round on the present partitions of the data: earlier losses are on other data. */
uint32_t guard_first_round(const struct job *j);

#endif
