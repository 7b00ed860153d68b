/* Prefetches the shards of the next phase, one after the other, while this one computes
 * (TrainTask.ahead).  A failed shard is fetched when the next phase needs it; one that the end of
 * this phase interrupts is resumed then.
 *
 * Compute thread. */
#ifndef WORKER_PREFETCH_H
#define WORKER_PREFETCH_H

#include "common/base/base.h"

struct uplink_job;
struct work;

struct prefetch {
    struct work *w;
    size_t next; /* in TrainTask.ahead */
    struct uplink_job *job;
};

/* Between steps: { w } begins, and goes on where it can without waiting. */
void prefetch_step(struct prefetch *p);
void prefetch_end(struct prefetch *p); /* { 0 } is fine */

#endif
