/* Workers that are gone, and how long they stay on record.
 *
 *   here ── lost, left ──► gone ── 6 h ──► forgotten: under its key it is a newcomer then
 *
 * After hours such a worker has little use for its record: how well it did, its number, verdicts on
 * its last contributions.  These stay longer:
 *   - for a day, a worker that was in quarantine, or whose outer step was not believed;
 *   - a worker that its key alone lets in, since its token has an end, counts its uses or is
 *     no more; a revoked one whose token would let it in; one that a person wishes to leave;
 *   - a worker that a job which goes on names: in a task, or as the owner of a replica.
 * At most 1,024 others stay: when more are gone they are forgotten after an hour.  The bytes that
 * travelled for them stay in the sums, and their numbers in provenance and history.  Loop
 * thread. */
#ifndef COORDINATOR_GONE_H
#define COORDINATOR_GONE_H

#include "coordinator/state/core.h"

#define GONE_MAX 1024
#define GONE_AT_ONCE 1024 /* forgotten in one look: a fleet that goes holds up nobody */
#define GONE_LEAST_MS (3600 * 1000ll)
#define GONE_MS (6 * GONE_LEAST_MS)
#define GONE_DOUBTED_MS (24 * GONE_LEAST_MS)

/* Forgets those whose time has come. */
void gone_forget(struct coordinator *co);
/* One makes room for a newcomer, whatever it is needed for. */
void gone_make_room(struct coordinator *co);

#endif
