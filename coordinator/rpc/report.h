/* REPORT requests: checks that a report fits its lease, and handles failures of tasks and samples
 * that could not be read.  Results are the business of the task's kind (coordinator/kinds). */
#ifndef COORDINATOR_REPORT_H
#define COORDINATOR_REPORT_H

#include "coordinator/state/core.h"
#include "proto/skerry.pb-c.h"

/* Applies a report that fits its lease: 0, or -ERR_STALE / -EINVAL with the reason for the worker.
 * If nothing was applied yet and the worker shall report again: -EAGAIN, or -ERR_NOTFOUND if it
 * must upload its files again first (a result's files may be lost with our machine, or were sent to
 * a coordinator that was no longer the owner). */
int report_apply(struct coordinator *co, struct worker *w, const Skerry__V1__ReportRequest *r,
                 struct err *err);

#endif
