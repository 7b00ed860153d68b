/* How a task ended: the message that reports it, and what a failure is put down to.  Nothing here
 * sends, or touches the task. */
#ifndef WORKER_OUTCOME_H
#define WORKER_OUTCOME_H

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"

struct progress_view;
struct work;

/* A failure: what the report says instead of a result. */
struct outcome_failure {
    int code; /* 0: the task succeeded */
    bool retryable;
    char reason[1024];
};

/* The message and everything it points to; outcome_free it.  Borrows w (may be NULL for a task that
 * failed before there was one) and failure until then, and fills view, which the message points
 * to, with the progress that no heartbeat has told yet. */
Skerry__V1__ReportRequest *outcome_new(uint64_t task_id, uint32_t attempt, struct work *w,
                                       const struct outcome_failure *failure,
                                       struct progress_view *view);
void outcome_free(Skerry__V1__ReportRequest *r); /* accepts NULL */

/* Does the code say by itself whose fault it is, whatever the disk does? */
bool outcome_own(int code);
/* The code that the report goes out with.  What this machine's disk did is not the task's fault:
 * a full one is as too little memory, a work dir that is gone as a broken device.  What an upload
 * finds full is the coordinator's disk.  disk: 0, or how a small file could not be written. */
int outcome_blame(int code, int disk, bool uploading);

/* May another worker, or this one later, do better?  ingest: the input comes
 * from outside, and a second look at it shows the same. */
bool outcome_retryable(int code, bool ingest);

#endif
