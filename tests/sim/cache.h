/* The versions that a worker keeps on its disk, the newest of each module, and what it makes of
 * them: a phase begins with whole files, or with deltas that lead on from a version that the worker
 * has said it holds.  What they come to must have the bits that the task names. */
#ifndef TESTS_SIM_CACHE_H
#define TESTS_SIM_CACHE_H

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"

#define CACHE_MODULES_MAX 64 /* as AssignRequest.held */

struct cache;

struct cache *cache_new(const char *dir);
void cache_free(struct cache *c);
void cache_clear(struct cache *c); /* another machine */

/* What it holds, into ret. */
size_t cache_held(const struct cache *c, Skerry__V1__HeldVersion ret[CACHE_MODULES_MAX]);
/* The blobs that lead to the modules of a phase: how many there are. */
size_t cache_needs(const Skerry__V1__Task *t, const Skerry__V1__Blob **ret);
/* files: those blobs, which are taken.  made: a file of each module, that stays as long as it is
 * the newest one; mem_free them.  False: what is held is of a coordinator that is gone, or of a
 * version 0 that was made again, and was forgotten, as a real worker does. */
bool cache_build(struct cache *c, const Skerry__V1__Task *t, char *const *files, char **made);

#endif
