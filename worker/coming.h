/* Deltas that are fetched while the coordinator still makes them (TicketReply.coming): they come
 * down while contributions go up.
 *
 *   told ─► fetch, as far as the delta is made ─► its own order and hash (compute thread) ─► cache
 *                                                └► the version that it leads to ─► cache
 *
 * A delta is in the cache by its hash, like any other, and a task that names another one fetches
 * that.  So is the version: while the coordinator still writes it, it is made here.  A step that is
 * decided otherwise cuts the transfer.  A failure only costs what it brought.
 *
 * Loop thread. */
#ifndef WORKER_COMING_H
#define WORKER_COMING_H

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"

struct coming;
struct fetch_env;
struct modules;

/* env, modules (NULL: no versions are made) and tmp_dir are kept until coming_free; on_end(arg): a
 * delta is here, or will not come. */
struct coming *coming_new(const struct fetch_env *env, struct modules *modules, const char *tmp_dir,
                          void (*on_end)(void *arg), void *arg);
/* To be called after env->compute was freed.  Accepts NULL. */
void coming_free(struct coming *c);

/* Fetches the delta to a version of a module; an older one of the same module is given up.  At most
 * four are fetched at a time: further ones are not. */
void coming_start(struct coming *c, uint64_t module_id, uint64_t version, const char *url);
/* Whether a delta is on its way that the task, of a version that is made, will probably need. */
bool coming_awaits(const struct coming *c, const Skerry__V1__Task *task);
/* Gives up all. */
void coming_stop(struct coming *c); /* accepts NULL */

#endif
