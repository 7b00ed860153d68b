/* What heartbeats tell of the work: the progress of the present task, and the rates and the plan of
 * the newest phase, which stay until another phase has its own.  Loop thread. */
#ifndef WORKER_PULSE_H
#define WORKER_PULSE_H

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"
#include "worker/order/progress.h"

struct pulse {
    struct progress_view view; /* what the last heartbeat or report points to */
    uint64_t points_next; /* smaller steps have theirs in the heartbeat that waits for its answer */
    float throughput;
    double flops, peak_flops;
    struct progress_plan plan;
    bool told_flops;
};

/* Copies a task's progress. */
void pulse_take(struct pulse *p, struct progress *from);
/* Fills a heartbeat, valid until the next call; progress NULL: no task is told of. */
void pulse_put(struct pulse *p, struct progress *progress, uint64_t task_id, uint32_t attempt,
               Skerry__V1__HeartbeatRequest *req);
/* The last heartbeat was answered: its points are not told again. */
void pulse_heard(const struct pulse *p, struct progress *progress);
/* The task is over, and the last heartbeat was not of its successor.  Returns whether there are
 * rates that no heartbeat has told. */
bool pulse_over(struct pulse *p);

#endif
