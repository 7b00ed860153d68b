/* What workers' time, downloads and requests to the store cost, and which job pays
 * (docs/sharing.md).
 *
 * The time of a worker with a price runs from its join until it leaves or is lost.  Each interval
 * is charged once, when it ends: a lease to its job; the time between two leases to the job of the
 * first, or of the second where the first job has ended.  Time that no job has caused is charged to
 * nobody, and so is the time in which a job is paused or its budget spent.  Across a restart of the
 * coordinator an interval goes on if the worker's process comes back; else its cost is unknown, and
 * nothing is charged.  Downloads and requests are charged when they are made, at the price that we
 * have then.  Amounts are dollars.  Loop thread. */
#ifndef COORDINATOR_COST_H
#define COORDINATOR_COST_H

#include "coordinator/state/core.h"

#define COST_PRICE_MAX 1e6     /* dollars an hour */
#define COST_BUDGET_LEAST 1e-9 /* to which older releases lowered a budget that was spent */

/* The worker has joined and costs `price` an hour from now on; called before it is WORKER_HERE.
 * again: it is the process that we know.  An invalid price counts as none. */
void cost_join(struct coordinator *co, struct worker *w, bool again, double price);
/* Charges the interval that ends now: the lease that the worker still holds, or the time since its
 * last one.  next: the job of the lease that begins; 0: none. */
void cost_reckon(struct coordinator *co, struct worker *w, uint64_t next);
/* Charges the time of the workers that wait for the job, which is about to end, be paused or
 * resumed, or get another budget. */
void cost_settle(struct coordinator *co, const struct job *j);
/* The wall clock was set: until when the worker's time is charged is told by it from now on. */
void cost_clock_set(const struct coordinator *co, struct worker *w);

/* The job that the worker works for, or served last; NULL: none. */
struct job *cost_payer(const struct coordinator *co, const struct worker *w);
/* Charges bytes that a worker downloaded from us or from our store. */
void cost_egress(const struct coordinator *co, struct job *j, uint64_t bytes);
/* Charges the requests to the store of which none were charged yet; n: all since our start. */
void cost_requests(struct coordinator *co, uint64_t n);
/* What requests have cost, with those that are yet to be charged. */
double cost_of_requests(const struct coordinator *co, uint64_t n);

/* A job's cost, including the intervals that still run, and its present rate. */
struct cost {
    double work, waiting, per_hour;
    uint32_t workers, unpriced; /* that work or wait for it; of these without a price */
};

/* Looks at all workers. */
void cost_of(const struct coordinator *co, const struct job *j, struct cost *ret);
/* The job is to be removed: what it has cost stays spent of its token's budget. */
void cost_forget(struct coordinator *co, const struct job *j);

#endif
