#include "worker/vitals.h"

#include <stdatomic.h>

#include "common/net/loop.h"
#include "kernels/device/watch.h"
#include "worker/order/cache.h"
#include "worker/train/island.h"

#define LATE_MS 10000

struct vitals {
    struct loop *loop;
    struct pool *pool;
    int n;
    struct watch *watches[ISLAND_MAX];
    struct watch_state next[ISLAND_MAX]; /* the thread's while it reads */
    struct watch_state now[ISLAND_MAX];
    struct cache *cache;
    uint64_t next_room, room; /* as next and now */
    _Atomic bool at_disk;     /* the devices have answered */
    bool reading, known;
    uint64_t asked_ms, patience_ms;

    /* The states for vitals_put. */
    struct watch_state told[ISLAND_MAX];
    Skerry__V1__DeviceState messages[ISLAND_MAX];
    Skerry__V1__DeviceState *list[ISLAND_MAX];
};

static int read_all(void *arg)
{
    struct vitals *v = arg;
    for (int i = 0; i < v->n; i++)
        watch_read(v->watches[i], &v->next[i]);
    atomic_store(&v->at_disk, true);
    v->next_room = cache_room(v->cache);
    return 0;
}

static void on_read(void *arg, int rc)
{
    struct vitals *v = arg;
    v->reading = false;
    if (rc < 0)
        return; /* the read was cancelled */
    v->known = true;
    memcpy(v->now, v->next, sizeof v->now);
    v->room = v->next_room;
}

static void ask(struct vitals *v)
{
    v->asked_ms = loop_now_ms(v->loop);
    atomic_store(&v->at_disk, false);
    v->reading = pool_submit(v->pool, read_all, on_read, v) == 0;
}

static bool is_card(const struct device *dev)
{
    return strncmp(dev->name, "cuda:", 5) == 0;
}

int vitals_open(struct loop *loop, const struct island *is, struct cache *cache,
                struct vitals **ret, struct err *err)
{
    struct vitals *v = mem_alloc(sizeof *v);
    int threads = 0;
    v->loop = loop;
    v->cache = cache;
    v->patience_ms = LATE_MS;
    for (int i = 0; i < island_size(is); i++)
        threads += island_device(is, i)->threads;
    for (int i = 0; i < island_size(is); i++)
        if (i == 0 || is_card(island_device(is, i)))
            v->watches[v->n++] = watch_new(island_device(is, i), threads);
    int rc = pool_new(loop, "watch", 1, 1, &v->pool, err);
    if (rc < 0) {
        vitals_close(v);
        return rc;
    }
    ask(v);
    *ret = v;
    return 0;
}

void vitals_set_patience(struct vitals *v, uint64_t ms)
{
    v->patience_ms = ms;
}

void vitals_close(struct vitals *v)
{
    if (!v)
        return;
    if (v->pool)
        pool_free(v->pool);
    for (int i = 0; i < v->n; i++)
        watch_free(v->watches[i]);
    mem_free(v);
}

static uint64_t waited_ms(const struct vitals *v)
{
    return v->reading ? loop_now_ms(v->loop) - v->asked_ms : 0;
}

bool vitals_late(const struct vitals *v)
{
    return waited_ms(v) > v->patience_ms;
}

/* Marks the state of a device that has stopped answering: its last values are not valid any more.
 */
static void say_late(struct watch_state *s, uint64_t ms)
{
    s->utilization = -1;
    s->ecc_errors = -1;
    s->memory_used = s->memory_total = 0;
    s->temperature = 0;
    s->power = 0;
    s->throttled[0] = '\0';
    snprintf(s->trouble, sizeof s->trouble, "its driver has not answered for %llu s",
             (unsigned long long)ms / 1000);
}

static void put(Skerry__V1__DeviceState *m, struct watch_state *s)
{
    skerry__v1__device_state__init(m);
    m->name = s->name;
    m->model = s->model;
    m->memory_used = s->memory_used;
    m->memory_total = s->memory_total;
    m->utilization = s->utilization;
    m->temperature = s->temperature;
    m->power = s->power;
    m->ecc_errors = s->ecc_errors;
    m->throttled = s->throttled;
    m->trouble = s->trouble;
}

void vitals_put(struct vitals *v, Skerry__V1__HeartbeatRequest *req)
{
    if (!v->reading)
        ask(v);
    if (!v->known)
        return;
    for (int i = 0; i < v->n; i++) {
        v->told[i] = v->now[i];
        if (vitals_late(v) && !atomic_load(&v->at_disk))
            say_late(&v->told[i], waited_ms(v));
        put(&v->messages[i], &v->told[i]);
        v->list[i] = &v->messages[i];
    }
    req->devices = v->list;
    req->n_devices = (size_t)v->n;
    req->disk_room_bytes = v->room > 0 ? v->room : 1; /* 0 tells nothing */
}
