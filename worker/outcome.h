/* The outcome of a task: the message that reports it, and the cause that a failure is attributed
 * to. Nothing here sends, or changes the task. */
#ifndef WORKER_OUTCOME_H
#define WORKER_OUTCOME_H

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"

struct progress_view;
struct work;

/* A failure, reported in place of a result. */
struct outcome_failure {
    int code; /* 0: the task succeeded */
    bool retryable;
    char reason[1024];
};

/* The message and everything it points to; outcome_free it.  Until then borrows failure and w (may
 * be NULL for a task that failed before it had one), and view, which it fills with the progress
 * that no heartbeat has reported yet. */
Skerry__V1__ReportRequest *outcome_new(uint64_t task_id, uint32_t attempt, struct work *w,
                                       const struct outcome_failure *failure,
                                       struct progress_view *view);
void outcome_free(Skerry__V1__ReportRequest *r); /* accepts NULL */

/* Logs that the task is done, with its result. */
void outcome_log(uint64_t task_id, const struct work *w);

/* Whether the code alone determines the cause, whatever the state of the disk. */
bool outcome_own(int code);
/* The code to report.  A failure by this machine's disk is not the task's fault: a full disk counts
 * as too little memory, a missing work directory as a broken device.  A full disk during an upload
 * is the coordinator's.  disk: what outcome_try_disk returned. */
int outcome_blame(int code, int disk, bool uploading);
/* Whether the failure, blamed on `blamed`, leaves this process nothing to do; then *ret says why.
 * disk: what outcome_try_disk said. */
bool outcome_breaks(int code, int blamed, const char *detail, const char *disk, struct err *ret);
/* Writes and removes a small file: 0, or why the work directory does not take it. */
int outcome_try_disk(const char *tmp_dir, struct err *err);

/* Whether another worker, or this one later, may succeed.  ingest: a source outside was asked or
 * read, and another try would read the same, or be refused again. */
bool outcome_retryable(int code, bool ingest);

#endif
