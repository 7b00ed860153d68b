/* Workers that are gone, and how long they stay on record.
 *
 *   here ── lost, left ──► gone ── 6 h ──► forgotten: under its key it is a newcomer then
 *
 * What a record has that such a worker may want is little after hours: how well it did, its number,
 * verdicts on its last contributions.  Longer stay
 *   - who was in quarantine, or has made an outer step that was not believed: for a day;
 *   - who is let in by its key alone, since its token has an end, counts its uses or is no more;
 *     who is revoked, while its token would let it in; whom a person wishes to leave;
 *   - whom a job that goes on names: a task or a replica of it.
 * Of all others 1,024: when more are gone they are forgotten after an hour.  What has travelled for
 * them stays in the sums, and their numbers in provenance and history.  Loop thread. */
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
