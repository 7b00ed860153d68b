/* Workers that are gone, and how long they stay on record.
 *
 *   here ── lost, left ──► gone ── 6 h ──► forgotten: if it returns, its key is new to us
 *
 * After hours such a worker has little use for its record: its successes, its number, verdicts on
 * its last contributions.  These records stay longer:
 *   - for a day: a worker that was in quarantine, or whose outer step was rejected;
 *   - for 30 days: a worker that only its key lets in, since its token expires, counts its uses or
 *     no longer exists;
 *   - a revoked one whose token would let it in again; one that a person is draining;
 *   - a worker that a job not yet ended names: in a task, or as the owner of a replica.
 * At most 1,024 others stay 6 hours: when more are gone, they are forgotten after an hour.  Their
 * bytes stay in the totals, and their numbers in provenance and history.  Loop thread. */
#ifndef COORDINATOR_GONE_H
#define COORDINATOR_GONE_H

#include "coordinator/state/core.h"

#define GONE_MAX 1024
#define GONE_AT_ONCE 1024 /* forgotten in one call: a large fleet does not block the loop */
#define GONE_LEAST_MS (3600 * 1000ll)
#define GONE_MS (6 * GONE_LEAST_MS)
#define GONE_DOUBTED_MS (24 * GONE_LEAST_MS)
#define GONE_KEY_MS (30 * GONE_DOUBTED_MS)

/* Forgets the workers whose time is over. */
void gone_forget(struct coordinator *co);
/* Forgets the one that is gone longest, to make room for a new worker: one of the last two kinds
 * only if there are no others. */
void gone_make_room(struct coordinator *co);

#endif
