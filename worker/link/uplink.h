/* What the compute thread may ask of the coordinator while its task runs: a request and
 * its answer, a file to send, a blob to get.  The loop thread does it; the compute
 * thread goes on and looks or waits when it wants the outcome.
 *
 *    compute thread                                   loop thread
 *    j = uplink_put(u, w, path, sha256, size) ──────► TICKET, PUT
 *    ... computes ...
 *    rc = uplink_wait(j, err)                 ◄────── done
 *    uplink_free(j)
 *
 * Files that training waits for go `in_order`, one after another each way: sharing the line would
 * make each as late as the last.  Others go beside them.  While the connection is down jobs wait.
 * When the task is stopped (work_stopped) every wait returns -ERR_CANCELLED. */
#ifndef WORKER_UPLINK_H
#define WORKER_UPLINK_H

#include <protobuf-c/protobuf-c.h>

#include "common/base/base.h"
#include "worker/order/cache.h"
#include "worker/link/fetch.h"

struct session;
struct uplink;
struct uplink_job;
struct work;

/* ---- loop thread ---- */

/* env and session are kept until uplink_close. */
struct uplink *uplink_open(const struct fetch_env *env, struct session *session);
void uplink_close(struct uplink *u); /* accepts NULL; drops what is left */
/* Joined again: what waited for the connection goes on. */
void uplink_resume(struct uplink *u);
/* The task was stopped: wakes the waiting compute thread. */
void uplink_interrupt(struct uplink *u);
/* The compute thread is through with the task: what still runs for it is cancelled.
 * Its jobs were freed or are freed later. */
void uplink_drop(struct uplink *u);

/* ---- compute thread ---- */

/* Sends msg (packed before it returns) and keeps the answer. */
struct uplink_job *uplink_call(struct uplink *u, struct work *w, uint16_t method,
                               const ProtobufCMessage *msg, const ProtobufCMessageDescriptor *reply,
                               uint32_t deadline_ms);
/* Sends a file, which must stay as it is until the job is done. */
struct uplink_job *uplink_put(struct uplink *u, struct work *w, const char *path,
                              const uint8_t sha256[32], uint64_t size, bool in_order);
/* Gets a blob into the cache, pinned until uplink_free. */
struct uplink_job *uplink_get(struct uplink *u, struct work *w, const uint8_t sha256[32],
                              uint64_t size, const char *url, const char *what, bool in_order);

/* Has it ended, well or not?  Does not wait. */
bool uplink_done(struct uplink_job *j);
/* 0, or how it failed, or -ERR_CANCELLED. */
int uplink_wait(struct uplink_job *j, struct err *err);
/* The same, also while the task is being saved (WORK_SAVING). */
int uplink_wait_saving(struct uplink_job *j, struct err *err);
/* The answer of a call that is done with 0; owned by the job. */
const ProtobufCMessage *uplink_reply(const struct uplink_job *j);
/* Cancels what still runs.  Accepts NULL. */
void uplink_free(struct uplink_job *j);

#endif
