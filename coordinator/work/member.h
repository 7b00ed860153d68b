/* The workers: which are here, whether their leases hold, which tasks they may have, and which
 * verdicts they must be told.  Called by the RPC room and the coordinator's tick. */
#ifndef COORDINATOR_MEMBER_H
#define COORDINATOR_MEMBER_H

#include "coordinator/state/core.h"

struct lease_decision;

/* A request of w has come. */
void member_heard(struct coordinator *co, struct worker *w);
/* Judges all leases; tasks of lost ones become pending again. */
void member_check(struct coordinator *co);
/* w is gone, for good (WORKER_LEFT) or not: it loses its lease. */
void member_lost(struct coordinator *co, struct worker *w, enum worker_state to,
                 const char *reason);
/* Shuts w out at once and for good: its key and its tickets are no longer valid. */
void member_revoke(struct coordinator *co, struct worker *w, const char *reason);
/* The connection of w has closed; it keeps its lease for a while. */
void member_closed(struct coordinator *co, struct worker *w);
/* Counts a task that w has done.  `judged`: its result will be checked, and only member_proved()
 * ends its series of failures. */
void member_succeeded(struct coordinator *co, struct worker *w, bool judged);
/* w's result passed its check. */
void member_proved(struct worker *w);
/* Counts a failure of w; quarantines it after several in a row. */
void member_failed(struct coordinator *co, struct worker *w);
/* w has too little memory for tasks like t: it is offered none for wait_ms, and twice as long each
 * further time, up to half an hour. */
void member_note_small(struct coordinator *co, struct worker *w, const struct task *t,
                       uint64_t wait_ms);
/* Whether another worker is here that has not reported so. */
bool member_others_fit(const struct coordinator *co, const struct worker *w, const struct task *t);
/* Whether all workers here that could do t have reported so. */
bool member_none_fits(const struct coordinator *co, const struct task *t);
/* Whether w is here and could do t, as far as we know. */
bool member_could_do(const struct coordinator *co, const struct worker *w, const struct task *t);
/* Whether a worker is here that could do t and is not of that origin (worker_origin()).  One
 * that has failed a task aside from the training TASK_FAILURES_MAX times does not count any more.
 */
bool member_elsewhere(const struct coordinator *co, uint64_t origin, const struct task *t);
/* Whether a worker other than that one is here that could do t. */
bool member_another(const struct coordinator *co, uint64_t worker, const struct task *t);
/* Whether the worker of t, which repeats what `worker` of `origin` did, is another witness: it is
 * from elsewhere; or, if nobody from elsewhere could do t, it is another worker; or nobody else is
 * here, not even one that could not do t now. */
bool member_confirms(const struct coordinator *co, uint64_t worker, uint64_t origin,
                     const struct task *t);
/* Whether w may make outer steps: it has done tasks, was never in quarantine, and its earlier outer
 * steps were right. */
bool member_may_fold(const struct worker *w);
/* Whether such a worker is here, and the job's tasks are not withheld. */
bool member_somebody_folds(const struct coordinator *co, const struct job *j);
/* The worker expected to finish an outer step first.  Its time is that of its transfers: a worker
 * other than folded_by, which made the previous version, reads as many bytes as it writes.  0: no
 * rate is known. */
uint64_t member_first_through(const struct coordinator *co, uint64_t folded_by);
/* Quarantines w: a phase or a CHECK of it differs from the results of two others. */
void member_was_wrong(struct coordinator *co, struct worker *w);
/* An outer step of w was rejected with code `why` and made again; wrong: w's result differed. */
void member_doubt_fold(struct coordinator *co, struct worker *w, bool wrong, int why);
/* Whether w may be given a task; if not, the reason and until when (0: unknown). */
bool member_may_work(struct coordinator *co, const struct worker *w, uint64_t *ret_until_ms,
                     char reason[REASON_MAX]);
/* Stores a verdict on a worker's contributions, to be sent with the answer to its next request.  A
 * worker that is forgotten gets none. */
void member_verdict(struct coordinator *co, uint64_t worker_id, const struct verdict *v);
/* How w's lease stands. */
void member_lease(const struct coordinator *co, const struct worker *w, struct lease_decision *ret);
/* Answers a parked long poll without a task. */
void member_unpark(struct coordinator *co, struct worker *w, const char *why);

#endif
