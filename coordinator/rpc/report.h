/* REPORT requests: whether a report fits its lease, what a failure means for the task and its
 * worker, and which samples could not be read.  What a result brings is its kind's business
 * (coordinator/kinds). */
#ifndef COORDINATOR_REPORT_H
#define COORDINATOR_REPORT_H

#include "coordinator/state/core.h"

struct Skerry__V1__ReportRequest;

/* Applies a report that fits its lease; 0, or -ERR_STALE / -EINVAL with the
 * reason that the worker is told.  Where nothing was applied yet and the worker is to report again:
 * -EAGAIN, or -ERR_NOTFOUND after it has sent its files once more (those of a result may be lost
 * with the machine, or have gone to a coordinator that was no longer the owner). */
int report_apply(struct coordinator *co, struct worker *w,
                 const struct Skerry__V1__ReportRequest *r, struct err *err);

#endif
