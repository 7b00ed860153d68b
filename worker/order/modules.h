/* Module versions on this machine: which are here, how to get the ones that a task wants, and
 * making them out of deltas.
 *
 *   wanted version in the cache?           ── yes ──► done
 *   else: an older one here, and deltas from it? ──► fetch the deltas, rebuild, compare hashes
 *   else: fetch the full file
 *
 * A version is a full safetensors file in the blob cache, named by the hash that it has everywhere.
 * The newest of each module is kept and remembered in a small file, so that a restarted worker
 * fetches deltas only; together they take at most half of the cache, the longest unused are let go.
 * All of them go where a task needs the room.
 *
 * modules_held on any thread; the rest on the compute thread. */
#ifndef WORKER_MODULES_H
#define WORKER_MODULES_H

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"

struct cache;
struct modules;
struct work;

#define MODULES_MAX 64 /* modules remembered; the longest unused is forgotten */

/* A version that is held here. */
struct modules_version {
    uint64_t module_id, version;
};

/* path: the file that remembers.  A broken one means: nothing is held. */
struct modules *modules_open(const char *path, struct cache *cache);
void modules_close(struct modules *m); /* accepts NULL */

/* What is held, newest last; returns how many. */
size_t modules_held(struct modules *m, struct modules_version ret[MODULES_MAX]);

/* A blob that a version is made of; size 0 and url "": it is in the cache. */
typedef int (*modules_need_fn)(void *arg, const uint8_t sha256[32], uint64_t size, const char *url,
                               const char *what, struct err *err);
/* Names all blobs that the version of ref calls for: itself, or an older one and
 * deltas; full_only: no deltas. */
int modules_needs(struct modules *m, const Skerry__V1__ModuleRef *ref, bool full_only,
                  modules_need_fn need, void *arg, struct err *err);

/* Adds the blobs that w's modules, mixture and teachers call for to its needs.  Version 0 of its
 * own modules is drawn from the seed, not fetched, if that gives the right hash. */
int modules_plan(struct modules *m, struct work *w, struct err *err);

/* With all needs in the cache: makes every wanted version.  -ERR_HASH when a
 * rebuilt version is not what it should be: the held one is then forgotten, and
 * with w->full_only another plan gets the full blob. */
int modules_rebuild(struct modules *m, struct work *w, struct err *err);

/* The same for one version that came while the task of w ran (a fragment's next one), whose blobs
 * are in the cache; its file is one more of w's needs. */
int modules_make(struct modules *m, struct work *w, const Skerry__V1__ModuleRef *ref,
                 struct err *err);

/* Makes the version after `from` of its delta, which is in the cache, before anybody has named that
 * version: it is in the cache by its hash, for a task that names it.  temp: a path for the time
 * until then.  -ERR_NOTFOUND: `from` is not held. */
int modules_foresee(struct modules *m, uint64_t module_id, uint64_t from, const uint8_t delta[32],
                    const char *temp, struct err *err);

#endif
