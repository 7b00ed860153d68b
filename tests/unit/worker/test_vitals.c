/* What a heartbeat says of the devices, with watches that answer when the test lets them. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "common/net/loop.h"
#include "kernels/kernels.h"
#include "kernels/device/watch.h"
#include "worker/order/cache.h"
#include "worker/train/island.h"
#include "worker/vitals.h"

/* ---- an island of made-up devices, and their watches; the linker leaves the real ones out */

struct island {
    struct device devs[3];
    int n;
};

int island_size(const struct island *is)
{
    return is->n;
}

struct device *island_device(const struct island *is, int rank)
{
    return (struct device *)(uintptr_t)&is->devs[rank];
}

struct watch {
    char name[33];
    int threads, reads;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool hung, disk_hung;
static uint64_t room = 4711;
static int alive;

struct watch *watch_new(const struct device *dev, int threads)
{
    static struct watch watches[8];
    struct watch *w = &watches[alive++];
    *w = (struct watch){.threads = threads};
    snprintf(w->name, sizeof w->name, "%s", dev->name);
    return w;
}

void watch_free(struct watch *w)
{
    alive--;
}

void watch_read(struct watch *w, struct watch_state *ret)
{
    pthread_mutex_lock(&lock);
    while (hung)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    *ret = (struct watch_state){.utilization = w->threads,
                                .memory_used = 5,
                                .memory_total = 7,
                                .temperature = (unsigned)++w->reads,
                                .power = 9,
                                .ecc_errors = 1,
                                .throttled = "power cap"};
    snprintf(ret->name, sizeof ret->name, "%s", w->name);
}

uint64_t cache_room(struct cache *c)
{
    pthread_mutex_lock(&lock);
    while (disk_hung)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return room;
}

static void hang(bool *what, bool on)
{
    pthread_mutex_lock(&lock);
    *what = on;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* ---- a loop that asks until something is as it should be ---- */

struct ask {
    struct loop *loop;
    struct vitals *v;
    Skerry__V1__HeartbeatRequest beat;
};

static void tick(void *arg)
{
}

static void until(struct ask *a, bool (*enough)(const struct ask *a))
{
    struct loop_timer *t = loop_timer_new(a->loop, tick, NULL);
    loop_timer_start(t, 1, 1);
    do {
        loop_turn(a->loop, true);
        skerry__v1__heartbeat_request__init(&a->beat);
        vitals_put(a->v, &a->beat);
    } while (!enough(a));
    loop_timer_free(t);
}

static bool known(const struct ask *a)
{
    return a->beat.n_devices > 0;
}

static bool read_again(const struct ask *a)
{
    return a->beat.n_devices > 0 && a->beat.devices[0]->temperature > 2;
}

static bool in_trouble(const struct ask *a)
{
    return a->beat.n_devices > 0 && a->beat.devices[0]->trouble[0];
}

static bool late(const struct ask *a)
{
    return vitals_late(a->v);
}

/* As long as the driver hangs: a slow answer is late, too, but comes. */
static bool hangs(const struct ask *a)
{
    return in_trouble(a) && late(a);
}

static bool well(const struct ask *a)
{
    return a->beat.n_devices > 0 && !a->beat.devices[0]->trouble[0];
}

static void open_vitals(struct ask *a, const struct island *is)
{
    struct err err = {0};
    assert_int_equal(loop_new(&a->loop, &err), 0);
    assert_int_equal(vitals_open(a->loop, is, NULL, &a->v, &err), 0);
}

static void close_vitals(struct ask *a)
{
    vitals_close(a->v);
    loop_free(a->loop);
    assert_int_equal(alive, 0);
}

static void each_card(void **state)
{
    const struct island is = {{{.name = "cuda:2"}, {.name = "cuda:5"}}, 2};
    struct ask a = {0};
    open_vitals(&a, &is);
    until(&a, read_again); /* each heartbeat begins the next reading */
    assert_int_equal(a.beat.n_devices, 2);
    assert_string_equal(a.beat.devices[0]->name, "cuda:2");
    assert_string_equal(a.beat.devices[1]->name, "cuda:5");
    assert_int_equal(a.beat.devices[1]->memory_used, 5);
    assert_int_equal(a.beat.devices[1]->memory_total, 7);
    assert_int_equal(a.beat.devices[1]->ecc_errors, 1);
    assert_true(a.beat.devices[1]->power == 9);
    assert_string_equal(a.beat.devices[1]->throttled, "power cap");
    assert_int_equal(a.beat.disk_room_bytes, 4711);
    close_vitals(&a);
}

/* It is told, and not taken for one of which nothing is known. */
static void a_full_disk(void **state)
{
    const struct island is = {{{.name = "cuda:0"}}, 1};
    struct ask a = {0};
    room = 0;
    open_vitals(&a, &is);
    until(&a, known);
    assert_int_equal(a.beat.disk_room_bytes, 1);
    close_vitals(&a);
    room = 4711;
}

/* CPU devices share one process, of which /proc speaks: they are one, with all threads. */
static void cpus_are_one(void **state)
{
    const struct island is = {{{.name = "cpu", .threads = 3},
                               {.name = "cpu", .threads = 3},
                               {.name = "cpu", .threads = 2}},
                              3};
    struct ask a = {0};
    open_vitals(&a, &is);
    until(&a, known);
    assert_int_equal(a.beat.n_devices, 1);
    assert_int_equal(a.beat.devices[0]->utilization, 8);
    close_vitals(&a);
}

/* A driver that hangs: heartbeats go on, and what was known before is not repeated. */
static void a_driver_that_hangs(void **state)
{
    const struct island is = {{{.name = "cuda:0"}}, 1};
    struct ask a = {0};
    hang(&hung, true);
    open_vitals(&a, &is);
    vitals_set_patience(a.v, 500);
    skerry__v1__heartbeat_request__init(&a.beat);
    vitals_put(a.v, &a.beat);
    assert_int_equal(a.beat.n_devices, 0); /* nothing was ever read */
    hang(&hung, false);
    until(&a, well);
    hang(&hung, true);
    until(&a, hangs); /* the process ends without vitals_close */
    assert_non_null(strstr(a.beat.devices[0]->trouble, "has not answered for"));
    assert_string_equal(a.beat.devices[0]->name, "cuda:0");
    assert_int_equal(a.beat.devices[0]->utilization, -1);
    assert_int_equal(a.beat.devices[0]->memory_total, 0);
    assert_int_equal(a.beat.devices[0]->temperature, 0);
    assert_int_equal(a.beat.devices[0]->ecc_errors, -1);
    assert_string_equal(a.beat.devices[0]->throttled, "");
    hang(&hung, false);
    until(&a, well);
    assert_false(vitals_late(a.v));
    assert_int_equal(a.beat.devices[0]->memory_total, 7);
    close_vitals(&a);
}

/* No device is to blame for a disk that hangs. */
static void a_disk_that_hangs(void **state)
{
    const struct island is = {{{.name = "cuda:0"}}, 1};
    struct ask a = {0};
    open_vitals(&a, &is);
    vitals_set_patience(a.v, 500);
    until(&a, well);
    hang(&disk_hung, true);
    until(&a, late); /* the process ends without vitals_close */
    assert_string_equal(a.beat.devices[0]->trouble, "");
    hang(&disk_hung, false);
    until(&a, well);
    close_vitals(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_card),         cmocka_unit_test(a_full_disk),
        cmocka_unit_test(cpus_are_one),      cmocka_unit_test(a_driver_that_hangs),
        cmocka_unit_test(a_disk_that_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
