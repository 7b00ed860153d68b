/* What the compute thread may request while its task runs: a call to the coordinator, the
 * upload of a file, the download of a blob.  The loop thread does it; the compute thread
 * goes on, and polls or waits when it needs the outcome.
 *
 *    compute thread                                   loop thread
 *    j = uplink_put(u, w, path, sha256, size) ──────► TICKET, PUT
 *    ... computes ...
 *    rc = uplink_wait(j, err)                 ◄────── done
 *    uplink_free(j)
 *
 * Files for which training waits are sent `in_order`, one after another each way: in parallel, each
 * would be as late as the last.  Others are sent in parallel.  Without a connection jobs wait.
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
/* Joined again: jobs that waited for the connection continue. */
void uplink_resume(struct uplink *u);
/* The task was stopped: wakes the waiting compute thread. */
void uplink_interrupt(struct uplink *u);
/* The compute thread is done with the task: cancels what still runs for it.  Its
 * jobs were freed, or will be. */
void uplink_drop(struct uplink *u);

/* ---- compute thread ---- */

/* Sends msg (packed before it returns) and keeps the answer. */
struct uplink_job *uplink_call(struct uplink *u, struct work *w, uint16_t method,
                               const ProtobufCMessage *msg, const ProtobufCMessageDescriptor *reply,
                               uint32_t deadline_ms);
/* Sends a file, which must not change until the job is done. */
struct uplink_job *uplink_put(struct uplink *u, struct work *w, const char *path,
                              const uint8_t sha256[32], uint64_t size, bool in_order);
/* Gets a blob into the cache, pinned until uplink_free. */
struct uplink_job *uplink_get(struct uplink *u, struct work *w, const uint8_t sha256[32],
                              uint64_t size, const char *url, const char *what, bool in_order);

/* Whether the job has ended, successfully or not.  Does not wait. */
bool uplink_done(struct uplink_job *j);
/* Waits for the job: 0, its error, or -ERR_CANCELLED. */
int uplink_wait(struct uplink_job *j, struct err *err);
/* The same, also while the task is being saved (WORK_SAVING). */
int uplink_wait_saving(struct uplink_job *j, struct err *err);
/* The answer of a call that has ended with 0; owned by the job. */
const ProtobufCMessage *uplink_reply(const struct uplink_job *j);
/* Cancels the job if it still runs.  Accepts NULL. */
void uplink_free(struct uplink_job *j);

#endif
