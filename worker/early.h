/* Prefetches the files that, by the coordinator (AssignReply.ahead), the next task will probably
 * need, while the worker waits for one: blobs into the cache, and module versions made of deltas.
 *
 *   told ─► plan (compute thread) ─► fetch ─► make versions (compute thread) ─► on_done
 *
 * A task, or a hint that changes or is withdrawn, stops it.  Partial files stay, and the next fetch
 * resumes them.  A file that cannot be fetched is logged and left to the task that needs it.  Loop
 * thread. */
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
    void (*on_done)(void *arg); /* all files are here, and some are new */
};

struct early *early_new(const struct early_options *o);
/* To be called after the pool was freed.  Accepts NULL. */
void early_free(struct early *a);

/* Takes the present hint; an unchanged one continues.  m NULL: there is none.  Returns whether it
 * differs from the last one. */
bool early_take(struct early *a, const Skerry__V1__Ahead *m);
/* Whether it is fetching.  If not, all files are here or cannot be fetched. */
bool early_busy(const struct early *a);

#endif
