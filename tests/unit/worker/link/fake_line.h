/* A loop whose timers and deferred calls a test runs by hand, a pool whose job it runs by hand, and
 * transfers that it ends by hand: in place of common/net, which the linker then leaves out. */
#ifndef TESTS_UNIT_WORKER_LINK_FAKE_LINE_H
#define TESTS_UNIT_WORKER_LINK_FAKE_LINE_H

#include "tests/unit/common/base/util.h"

#include <errno.h>

#include "common/base/str.h"
#include "common/net/http/transfer.h"
#include "common/net/loop.h"
#include "common/net/pool.h"

enum { MOST = 64 };

/* ---- loop ---- */

struct loop_timer {
    loop_fn fn;
    void *arg;
    bool active;
    uint64_t after_ms, repeat_ms;
};

static struct {
    loop_fn fn[MOST];
    void *arg[MOST];
    unsigned n;
} deferred;

void loop_defer(struct loop *loop, loop_fn fn, void *arg)
{
    assert_true(deferred.n < MOST);
    deferred.fn[deferred.n] = fn;
    deferred.arg[deferred.n++] = arg;
}

/* What has been deferred so far. */
static inline void turn(void)
{
    const unsigned n = deferred.n;
    deferred.n = 0;
    for (unsigned i = 0; i < n; i++)
        deferred.fn[i](deferred.arg[i]);
}

static struct loop_timer *timers[MOST]; /* in the order in which they were made */
static unsigned n_timers;

struct loop_timer *loop_timer_new(struct loop *loop, loop_fn fn, void *arg)
{
    struct loop_timer *t = mem_alloc(sizeof(*t));
    t->fn = fn;
    t->arg = arg;
    assert_true(n_timers < MOST);
    timers[n_timers++] = t;
    return t;
}

void loop_timer_start(struct loop_timer *t, uint64_t after_ms, uint64_t repeat_ms)
{
    t->active = true;
    t->after_ms = after_ms;
    t->repeat_ms = repeat_ms;
}

void loop_timer_stop(struct loop_timer *t)
{
    t->active = false;
}

void loop_timer_free(struct loop_timer *t)
{
    mem_free(t);
}

static inline void fire(struct loop_timer *t)
{
    assert_true(t->active);
    t->active = t->repeat_ms > 0;
    t->fn(t->arg);
}

/* ---- the compute thread, with one job ---- */

static struct {
    pool_work_fn work;
    pool_done_fn done;
    void *arg;
    bool full;
} job;

int pool_submit(struct pool *pool, pool_work_fn work, pool_done_fn fn, void *arg)
{
    if (job.full)
        return -EAGAIN;
    assert_null(job.work);
    job.work = work;
    job.done = fn;
    job.arg = arg;
    return 0;
}

static inline void compute(void)
{
    const pool_work_fn work = job.work;
    assert_non_null(work);
    job.work = NULL;
    job.done(job.arg, work(job.arg));
}

/* ---- transfers ---- */

struct transfer {
    char url[2600], path[4096];
    const uint8_t *pin;
    xfer_progress_fn progress;
    xfer_done_fn done;
    void *arg;
    bool running, public_only, cached;
    uint64_t max_bytes;
};

static struct {
    struct transfer at[MOST]; /* by id - 1 */
    unsigned n, running, most, cancelled;
    int refuse; /* the code of the next one, once */
} line;

static int start(const char *url, const char *path, const uint8_t *pin, xfer_done_fn done,
                 void *arg, uint64_t *ret_id)
{
    const int rc = line.refuse;
    line.refuse = 0;
    if (rc < 0)
        return rc;
    assert_true(line.n < MOST);
    struct transfer *t = &line.at[line.n++];
    *t = (struct transfer){.pin = pin, .done = done, .arg = arg, .running = true};
    str_copy(t->url, sizeof(t->url), url);
    str_copy(t->path, sizeof(t->path), path);
    line.running++;
    line.most = line.running > line.most ? line.running : line.most;
    *ret_id = line.n;
    return 0;
}

int xfer_get(struct xfer *x, const struct xfer_get *g, uint64_t *ret_id, struct err *err)
{
    const int rc = start(g->url, g->path, g->pin, g->done, g->arg, ret_id);
    if (rc == 0) {
        line.at[line.n - 1].progress = g->progress;
        line.at[line.n - 1].public_only = g->public_only;
        line.at[line.n - 1].cached = g->cached;
        line.at[line.n - 1].max_bytes = g->max_bytes;
    }
    return rc;
}

int xfer_put(struct xfer *x, const struct xfer_put *p, uint64_t *ret_id, struct err *err)
{
    const int rc = start(p->url, p->path, p->pin, p->done, p->arg, ret_id);
    if (rc == 0)
        line.at[line.n - 1].progress = p->progress;
    return rc;
}

/* Ends transfer number i by an answer. */
static inline void end_by(unsigned i, int code, unsigned status, const char *detail)
{
    struct transfer *t = &line.at[i];
    assert_true(t->running);
    t->running = false;
    line.running--;
    const struct xfer_result r = {.code = code, .detail = detail, .status = status};
    t->done(t->arg, &r);
}

static inline void end_with(unsigned i, int code, const char *detail)
{
    end_by(i, code, 0, detail);
}

void xfer_cancel(struct xfer *x, uint64_t id)
{
    if (id < 1 || id > line.n || !line.at[id - 1].running)
        return;
    line.cancelled++;
    end_with((unsigned)id - 1, -ERR_CANCELLED, "cancelled");
}

#endif
