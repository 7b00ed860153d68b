/* Spot checks: the first phase of a worker whose key is new is done once more by another one, and
 * the two are compared.
 *
 *   lease   spot_check_wants(): it begins with the versions alone, so that the phase repeats
 *   report  spot_check_consider(): a CHECK task with the phase's samples, seeds and steps
 *   CHECK   spot_check_hear(): equal bits, or at most SPOT_CHECK_APART ─► it is checked, for good
 *           else another CHECK, by a third: of the three the one that differs from both others
 *           was wrong, and is in quarantine; where all differ nobody can say
 *
 * The checker has done tasks well before, is of our release, and comes from elsewhere than the
 * worker that it checks (worker_origin), so a machine cannot vouch for itself under a second name;
 * without such a checker nothing is checked.  A CHECK is beside the training: taken when there is
 * nothing else to do, in no ledger, never folded and never waited for.  What a wrong phase gave
 * stays in its version: undoing that is up to the guard (guard.h), or a person (rollback.h).
 *
 * A CHECK is saved as any task, and its contributions stay until it is decided: a comparison that a
 * restart cut off is made again.  It is given up when the version that it begins with is not kept
 * any more.
 *
 * Not for phases bounded by time, in fragments or without rounds, of programs of users, with
 * moments that travelled, or begun by somebody else. */
#ifndef COORDINATOR_SPOT_CHECK_H
#define COORDINATOR_SPOT_CHECK_H

#include "coordinator/state/core.h"

/* How far apart two honest phases may be (coordinator/outer/outer_compare.h).  Those of one make of
 * CPU are equal; of AVX-512 and AVX2 they were 0.12 apart after 2,000 steps in bf16, sent as e3m0,
 * the most that was seen, and noise of the same norm is 1.4. */
#define SPOT_CHECK_APART 0.5

/* Is this phase, which w is about to get, to be done by another worker, too? */
bool spot_check_wants(const struct coordinator *co, const struct job *j, const struct task *t,
                      const struct worker *w);
/* The worker of the phase has reported; the task has its samples still. */
void spot_check_consider(struct coordinator *co, struct job *j, const struct task *t);
/* The CHECK task has its contributions. */
void spot_check_hear(struct coordinator *co, struct job *j, struct task *t);
/* The workers that may not have a CHECK task, and the origin from which none may. */
void spot_check_not_for(const struct state *s, const struct task *t, uint64_t ret_workers[2],
                        uint64_t *ret_from);
/* The phase is done anew, by whomever: what was begun of a check of it is of no use. */
void spot_check_drop(struct coordinator *co, const struct task *phase);
/* Gives up those that cannot be done any more. */
void spot_check_prune(struct coordinator *co, struct job *j);
/* After a start: what was being compared. */
void spot_check_resume(struct coordinator *co);

#endif
