/* Fetches what the coordinator says that the next task will probably want, while the worker waits
 * for one (AssignReply.ahead): files into the cache, and module versions made of deltas.
 *
 *   told ─► plan (compute thread) ─► fetch ─► make versions (compute thread) ─► on_done
 *
 * A task, another hint or none stops it; what has arrived of a file stays, and whatever fetches it
 * next goes on from there.  What cannot be had is logged and left to the task that needs it.
 * Loop thread. */
#ifndef WORKER_EARLY_H
#define WORKER_EARLY_H

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"

struct early;
struct fetch_env;
struct modules;
struct pool;

struct early_options { /* kept until early_free */
    const struct fetch_env *env;
    struct modules *modules;
    struct pool *compute;
    const char *tmp_dir;
    void *arg;
    void (*on_done)(void *arg); /* all is here, and some of it is new */
};

struct early *early_new(const struct early_options *o);
/* After the pool. Accepts NULL. */
void early_free(struct early *a);

/* What is said now; the same as before goes on.  m NULL: nothing is. */
void early_take(struct early *a, const Skerry__V1__Ahead *m);
/* Is something fetched?  If not it is here, or cannot be had. */
bool early_busy(const struct early *a);

#endif
