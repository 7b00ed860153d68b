/* What workers' time costs, and which job pays for it (docs/sharing.md).
 *
 * The time of a worker with a price runs from its join until it leaves or is lost.  Each piece of
 * it is reckoned with once, when it ends: a lease for the lease's job; the time between two leases
 * for the job of the one before, or, where that has ended, of the one after.  What no job has
 * caused is nobody's, and so is the time in which a job is paused or its budget spent.  Amounts are
 * dollars.  Loop thread. */
#ifndef COORDINATOR_COST_H
#define COORDINATOR_COST_H

#include "coordinator/state/core.h"

#define COST_PRICE_MAX 1e6 /* dollars an hour */

/* The worker has joined, and costs this from now on; called before it is WORKER_HERE.  A price that
 * makes no sense counts as none. */
void cost_join(struct coordinator *co, struct worker *w, double price);
/* A piece of its time ends: a lease that it still holds, or the time since the last one.  next: the
 * job of the lease that begins; 0: none does. */
void cost_reckon(struct coordinator *co, struct worker *w, uint64_t next);
/* The time of those who wait for the job is reckoned with: it is about to end, to be paused or
 * resumed, or its budget to change. */
void cost_settle(struct coordinator *co, const struct job *j);

/* A job's cost with the pieces that go on, and what it costs now. */
struct cost {
    double work, waiting, per_hour;
    uint32_t workers, unpriced; /* that work or wait for it; those of them without a price */
};

/* Looks at all workers. */
void cost_of(const struct coordinator *co, const struct job *j, struct cost *ret);

#endif
