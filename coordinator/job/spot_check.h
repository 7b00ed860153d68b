/* Spot checks: the first phase of a worker with a new key is repeated by another worker, and the
 * two results are compared.
 *
 *   lease   spot_check_wants(): it begins with the versions alone, so that it can be repeated
 *   report  spot_check_consider(): a CHECK task with the phase's samples, seeds and steps
 *   CHECK   spot_check_hear(): equal bits, or at most SPOT_CHECK_APART ─► it is checked, for good
 *           else another CHECK, by a third worker: of the three, the one that differs from both
 *           others was wrong and is quarantined; if all differ, nobody can say
 *
 * The checker has done tasks well before, runs our release, and is of another origin than the
 * worker it checks (worker_origin), so a machine cannot vouch for itself under a second name;
 * without such a checker nothing is checked.  A CHECK does not affect the training: it is taken
 * when there is nothing else to do, is in no ledger, is never folded and never waited for.  The
 * contribution of a wrong phase stays in its version: undoing that is up to the guard (guard.h) or
 * a person (rollback.h).
 *
 * A CHECK is saved like any task, and its contributions are kept until it is decided; a comparison
 * that a restart interrupted is repeated.  A CHECK is cancelled when the version from which it
 * starts is no longer kept.
 *
 * Another release may make other bits of the same samples, so after an upgrade of the worker or of
 * the coordinator nobody knows.
 *
 * Not checked are phases bounded by time, in fragments or without rounds, those of users' programs,
 * those whose moments travelled, and those that another worker began. */
#ifndef COORDINATOR_SPOT_CHECK_H
#define COORDINATOR_SPOT_CHECK_H

#include "coordinator/state/core.h"

/* How far apart two honest phases may be (coordinator/outer/outer_compare.h).  On the same type of
 * CPU they are equal.  The largest distance seen was 0.12, between AVX-512 and AVX2 after 2,000
 * steps in bf16, sent as e3m0; noise of the same norm is 1.4 apart. */
#define SPOT_CHECK_APART 0.5

/* Whether this phase, which w is about to get, shall be repeated by another worker. */
bool spot_check_wants(const struct coordinator *co, const struct job *j, const struct task *t,
                      const struct worker *w);
/* The phase's worker has reported; the task still has its samples.  Makes the CHECK. */
void spot_check_consider(struct coordinator *co, struct job *j, const struct task *t);
/* The CHECK task has its contributions: compares them. */
void spot_check_hear(struct coordinator *co, struct job *j, struct task *t);
/* The workers that may not have a CHECK task, and the origin whose workers may not. */
void spot_check_not_for(const struct state *s, const struct task *t, uint64_t ret_workers[2],
                        uint64_t *ret_from);
/* The phase is being repeated, by any worker: drops the check of its former attempt. */
void spot_check_drop(struct coordinator *co, const struct task *phase);
/* The worker joins with another release: what it did before is not checked any more. */
void spot_check_upgraded(struct coordinator *co, const struct worker *w);
/* Cancels CHECK tasks that can no longer be done. */
void spot_check_prune(struct coordinator *co, struct job *j);
/* After a start: resumes interrupted comparisons. */
void spot_check_resume(struct coordinator *co);

#endif
