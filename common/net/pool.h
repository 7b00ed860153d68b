/* Threads for long jobs: disk, hashing, arithmetic of an outer step.
 *
 *      loop thread                          threads of a pool ("outer", "disk")
 *   pool_submit(work, done) --- bounded queue --->  work(arg)
 *   done(arg, rc)           <-- uv_async ---------  returns rc
 *
 * A job owns its `arg` between submit and done: the loop must not touch it. */
#ifndef COMMON_NET_POOL_H
#define COMMON_NET_POOL_H

#include "common/base/base.h"

struct loop;
struct pool;

typedef int (*pool_work_fn)(void *arg);          /* on a pool thread; returns rc */
typedef void (*pool_done_fn)(void *arg, int rc); /* on the loop thread */

/* A pool of `threads` named threads (name at most 12 bytes is shown by ps)
 * with at most `max_jobs` submitted and not yet done. [loop] */
int pool_new(struct loop *loop, const char *name, unsigned threads, unsigned max_jobs,
             struct pool **ret, struct err *err);

/* Moves a job to the pool.  Exactly one done(arg, rc) follows unless this
 * returns -EAGAIN (pool full).  Jobs start in order. [loop] */
int pool_submit(struct pool *pool, pool_work_fn work, pool_done_fn done, void *arg);

/* Jobs submitted and not yet done. [loop] */
unsigned pool_pending(const struct pool *pool);

/* True once pool_stop() or pool_free() has begun: long jobs poll it and return early. [any] */
bool pool_stopping(const struct pool *pool);

/* Begins to free it: waits for running jobs, for at most so many milliseconds.  False: one goes on,
 * for which pool_free() would wait.  Only pool_free() may follow. [loop] */
bool pool_stop(struct pool *pool, uint32_t ms);

/* Waits for running jobs, answers the rest with -ERR_CANCELLED, joins the
 * threads.  All done callbacks have been called when it returns. [loop] */
void pool_free(struct pool *pool);

#endif
