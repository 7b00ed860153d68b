/* The state of this worker's devices and of its disk, for its heartbeats.
 *
 *   loop thread                       thread "watch"
 *   vitals_put ──── read ──────────►  watch_read of every device (a driver may take long)
 *   the next vitals_put ◄── done ───
 *
 * A reading that does not return does not delay heartbeats: the devices' entries then say so.
 * CPU devices of one process count as one device here. */
#ifndef WORKER_VITALS_H
#define WORKER_VITALS_H

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"

struct cache;
struct island;
struct loop;
struct vitals;

/* Begins the first reading.  Only reads the island's devices; keeps the cache, and asks it for the
 * room on its disk. [loop] */
int vitals_open(struct loop *loop, const struct island *is, struct cache *cache,
                struct vitals **ret, struct err *err);
/* Waits for a reading under way. [loop] */
void vitals_close(struct vitals *v); /* accepts NULL */

/* Fills req->devices and the disk's room (of a full one 1 byte, since 0 tells nothing) with the
 * newest reading, if there is one, valid until the next call, and begins another. [loop] */
void vitals_put(struct vitals *v, Skerry__V1__HeartbeatRequest *req);

/* Whether a driver, or the disk, has not answered for so long that vitals_close may never return.
 * [loop] */
bool vitals_late(const struct vitals *v);

/* For tests: a reading that takes longer than this is late (10 s). */
void vitals_set_patience(struct vitals *v, uint64_t ms);

#endif
