#include "worker/engine/prefetch.h"

#include "common/base/log.h"
#include "worker/order/cache.h"
#include "worker/link/uplink.h"
#include "worker/order/work.h"

static void take_outcome(struct prefetch *p)
{
    struct err err = {0};
    if (uplink_wait(p->job, &err) < 0) { /* the others would fail alike, as with a full cache */
        log_debug("prefetch", "%s", err.msg);
        p->next = p->w->task->train->n_ahead;
    }
    prefetch_end(p);
}

void prefetch_step(struct prefetch *p)
{
    const Skerry__V1__TrainTask *t = p->w->task->train;
    if (p->job && uplink_done(p->job))
        take_outcome(p);
    while (!p->job && p->w->uplink && p->next < t->n_ahead) {
        const Skerry__V1__Blob *b = t->ahead[p->next++];
        if (cache_has(p->w->cache, b->sha256.data))
            continue;
        log_debug("prefetch", "shard %zu of %zu for the next phase: %" PRIu64 " bytes", p->next,
                  t->n_ahead, b->size);
        p->job = uplink_get(p->w->uplink, p->w, b->sha256.data, b->size, b->url,
                            "a shard of the next phase", false);
    }
}

void prefetch_end(struct prefetch *p)
{
    uplink_free(p->job);
    p->job = NULL;
}
