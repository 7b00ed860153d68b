/* The loop, its thread and its timers.
 *
 * One thread per process runs the loop and owns all state (invariant 1 of
 * docs/architecture.md).  Functions marked [loop] may be called on that thread only
 * and assert it; [any] may be called on any thread.  Before loop_run() the
 * thread that called loop_new() counts as the loop thread.
 *
 * Long jobs go to the threads of a pool (pool.h, included here). */
#ifndef COMMON_NET_LOOP_H
#define COMMON_NET_LOOP_H

#include "common/base/base.h"
#include "common/net/pool.h"

#include <uv.h>

struct loop;
struct loop_timer;

typedef void (*loop_fn)(void *arg);
typedef void (*loop_signal_fn)(void *arg, int signo);

/* A new loop.  Also ignores SIGPIPE in this process. */
int loop_new(struct loop **ret, struct err *err);

/* Frees the loop.  First closes the loop's own handles and runs until all
 * handles are closed.  Everything built on the loop (servers, clients, pools,
 * timers) must have been closed or freed before; it finishes here. */
void loop_free(struct loop *loop);

/* Runs until loop_stop(); the calling thread becomes the loop thread.  Returns
 * at once if loop_stop() was called before. */
void loop_run(struct loop *loop);

/* One turn: waits for at most one batch of events when `wait`, else polls. */
void loop_turn(struct loop *loop, bool wait);

/* Makes loop_run() return after the current turn. [any] */
void loop_stop(struct loop *loop);

/* For code that uses libuv itself. [loop] */
uv_loop_t *loop_uv(struct loop *loop);

/* Aborts when called off the loop thread (our own mistake, never a peer's). */
void loop_assert_thread(const struct loop *loop);
#define ASSERT_LOOP_THREAD(loop) loop_assert_thread(loop)

/* Monotonic time of the current event, cached by the loop. [loop] */
uint64_t loop_now_ms(const struct loop *loop);

/* Runs fn(arg) on the loop thread in its next turn, in order. [loop] */
void loop_defer(struct loop *loop, loop_fn fn, void *arg);

#define LOOP_POST_MAX 4096
/* Same from another thread.  -EAGAIN when LOOP_POST_MAX posts wait. [any] */
int loop_post(struct loop *loop, loop_fn fn, void *arg);

/* Calls fn for SIGINT and SIGTERM (and SIGHUP) instead of dying. [loop] */
int loop_on_signals(struct loop *loop, loop_signal_fn fn, void *arg, struct err *err);

/* Timers [loop].  Not started when made.  start() re-arms; repeat_ms 0 fires
 * once; after_ms 0 counts as 1 (see loop_defer() for "at once").  After stop()
 * or free() the callback is not called again. */
struct loop_timer *loop_timer_new(struct loop *loop, loop_fn fn, void *arg);
void loop_timer_start(struct loop_timer *t, uint64_t after_ms, uint64_t repeat_ms);
void loop_timer_stop(struct loop_timer *t);
bool loop_timer_active(const struct loop_timer *t);
void loop_timer_free(struct loop_timer *t); /* accepts NULL */

#endif
