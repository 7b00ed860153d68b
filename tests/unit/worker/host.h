/* A worker without a network: its directories, cache, modules held and engine on two threads or as
 * many as it is told, and a task's way through them.  What the tests of tasks share. */
#ifndef TESTS_UNIT_WORKER_HOST_H
#define TESTS_UNIT_WORKER_HOST_H

#include "tests/unit/common/base/util.h"

#include "common/base/clock.h"
#include "worker/engine/engine.h"
#include "worker/kinds/kinds.h"
#include "worker/order/modules.h"
#include "worker/order/work.h"

struct host {
    char *dir, *state, *tmp;
    int threads;
    struct cache *cache;
    struct modules *modules;
    struct engine *engine;
};

static inline void host_start(struct host *h)
{
    char *held = in(h->state, "held"), *blobs = in(h->dir, "blobs");
    OK(cache_open(blobs, 0, &h->cache, err));
    h->modules = modules_open(held, h->cache);
    const struct engine_options opt = {
        .device = "cpu",
        .threads = h->threads,
        .decode_threads = 2,
        .memory_bytes = 1 << 30,
        .image_cache_bytes = 1 << 20,
        .state_dir = h->state,
        .cache = h->cache,
        .modules = h->modules,
        .started_ns = clock_now_ns(),
    };
    OK(engine_open(&opt, &h->engine, err));
    mem_free(held);
    mem_free(blobs);
}

static inline void host_stop(struct host *h)
{
    engine_close(h->engine);
    modules_close(h->modules);
    cache_close(h->cache);
}

static inline void host_restart(struct host *h)
{
    host_stop(h);
    host_start(h);
}

/* In TOP/NAME; host_free. */
static inline void host_open(struct host *h, const char *top, const char *name, int threads)
{
    h->dir = in(top, name);
    h->state = in(h->dir, "state");
    h->tmp = in(h->dir, "tmp");
    h->threads = threads;
    OK(file_mkdirs(h->state, 0700, err));
    OK(file_mkdirs(h->tmp, 0700, err));
    host_start(h);
}

/* The files stay: they are the scratch directory's. */
static inline void host_free(struct host *h)
{
    host_stop(h);
    mem_free(h->dir);
    mem_free(h->state);
    mem_free(h->tmp);
}

/* Puts a copy of the file into the cache. */
static inline void host_put(struct host *h, const char *from, const uint8_t sha256[32])
{
    struct buf b;
    char path[CACHE_PATH_MAX];
    OK(file_read(from, 1 << 24, &b, err));
    cache_path(h->cache, sha256, path);
    OK(file_write_atomic(path, b.data, b.len, 0600, err));
    OK(cache_added(h->cache, sha256, err));
    buf_release(&b);
}

/* The file as a message has it; keeps sha256. */
static inline void blob_of(Skerry__V1__Blob *b, const uint8_t sha256[32], uint64_t size)
{
    skerry__v1__blob__init(b);
    b->sha256 = (ProtobufCBinaryData){32, (uint8_t *)(uintptr_t)sha256};
    b->size = size;
    b->url = (char *)"/v1/blobs/x";
}

static inline uint64_t size_of(const char *path)
{
    uint64_t size = 0;
    OK(file_size(path, &size, err));
    return size;
}

/* The task's work, planned, whatever it still needs; work_free. */
static inline struct work *host_look(struct host *h, const Skerry__V1__Task *task)
{
    struct work *w;
    OK(work_new(kinds_all, task, h->cache, h->tmp, &w, err));
    OK(engine_plan(h->engine, w, err));
    return w;
}

/* The same; all that it needs is there. */
static inline struct work *host_plan(struct host *h, const Skerry__V1__Task *task)
{
    struct work *w = host_look(h, task);
    for (size_t i = 0; i < w->n_needs; i++)
        assert_false(w->needs[i].missing);
    return w;
}

static inline struct work *host_run(struct host *h, const Skerry__V1__Task *task)
{
    struct work *w = host_plan(h, task);
    OK(engine_run(h->engine, w, err));
    return w;
}

/* Runs it; it fails with a sentence that has these words.  The code. */
static inline int host_fails(struct host *h, const Skerry__V1__Task *task, const char *words)
{
    struct work *w = host_look(h, task);
    struct err e = {0};
    const int rc = engine_run(h->engine, w, &e);
    if (rc >= 0 || !strstr(e.msg, words))
        fail_msg("%d '%s' does not say '%s'", rc, e.msg, words);
    work_free(w);
    return rc;
}

#endif
