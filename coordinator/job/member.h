/* The workers: which are here, whether their leases hold, what they may be given, and what they
 * have to be told.  Called by the RPC room and by turns of the clock. */
#ifndef COORDINATOR_MEMBER_H
#define COORDINATOR_MEMBER_H

#include "coordinator/state/core.h"

struct lease_decision;

/* A request of w has come. */
void member_heard(struct coordinator *co, struct worker *w);
/* Judges leases; what is lost goes back. */
void member_check(struct coordinator *co);
/* w is gone, for good (WORKER_LEFT) or not: its lease goes back. */
void member_lost(struct coordinator *co, struct worker *w, enum worker_state to,
                 const char *reason);
/* w is shut out for good, at once: its key counts for nothing from now on, nor do its tickets. */
void member_revoke(struct coordinator *co, struct worker *w, const char *reason);
/* The connection of w is gone (it keeps its lease for a while). */
void member_closed(struct coordinator *co, struct worker *w);
/* Counts a task that w has done.  `judged`: what it brought will be looked at, and only
 * member_proved() ends a row of failures. */
void member_succeeded(struct coordinator *co, struct worker *w, bool judged);
/* What w brought was good. */
void member_proved(struct worker *w);
/* Counts a failure; quarantines after several in a row. */
void member_failed(struct coordinator *co, struct worker *w);
/* w has no memory for tasks like t: it is offered none for so long, and twice as long each time
 * that it says so again, up to half an hour. */
void member_note_small(struct coordinator *co, struct worker *w, const struct task *t,
                       uint64_t wait_ms);
/* Is another worker here that has not said so? */
bool member_others_fit(const struct coordinator *co, const struct worker *w, const struct task *t);
/* May w make outer steps?  It has done tasks, was never in quarantine, and those that it has made
 * were good. */
bool member_may_fold(const struct worker *w);
/* Is such a worker here, and is the job withheld from nobody? */
bool member_somebody_folds(const struct coordinator *co, const struct job *j);
/* The worker that is expected to be through with an outer step first: the step is bytes, and a
 * worker that did not make the version before (folded_by) reads as many as it writes.  0: no rate
 * is known. */
uint64_t member_first_through(const struct coordinator *co, uint64_t folded_by);
/* A phase or a CHECK of w was not what two others make of it: it is in quarantine. */
void member_was_wrong(struct coordinator *co, struct worker *w);
/* An outer step of w was not believed, for this reason, and made again: it was wrong, or not. */
void member_doubt_fold(struct coordinator *co, struct worker *w, bool wrong, int why);
/* May w be given a task?  Else why not, and until when (0: not known). */
bool member_may_work(struct coordinator *co, const struct worker *w, uint64_t *ret_until_ms,
                     char reason[REASON_MAX]);
/* What became of the contributions that a worker sent for a task: it is told at its next request.
 */
void member_verdict(struct coordinator *co, uint64_t worker_id, uint64_t task_id, bool accepted,
                    const char *reason);
/* How w's lease stands. */
void member_lease(const struct coordinator *co, const struct worker *w, struct lease_decision *ret);
/* Answers a parked long poll without a task. */
void member_unpark(struct coordinator *co, struct worker *w, const char *why);

#endif
