#include "tests/sim/host.h"

#include "common/base/file.h"
#include "common/net/loop.h"
#include "coordinator/coordinator.h"
#include "coordinator/ship/restore.h"
#include "coordinator/state/core.h"
#include "tests/sim/disk.h"
#include "tests/sim/fiber.h"
#include "tests/sim/net.h"
#include "tests/sim/sim.h"
#include "tests/sim/store.h"

#define HEARTBEAT_MS 2000
#define LEASE_MS 8000
#define AGAIN_MS                                                                                   \
    3000 /* until what a full disk or a store out of reach has ended is tried again                \
          */

struct process {
    unsigned number; /* 0: there is none */
    char *dir;
    struct loop *loop;
    struct coordinator *co; /* NULL: it opens */
};

static struct {
    bool ships, restores;
    unsigned look_again;
    void (*serves)(struct coordinator *co);
    struct process now, old; /* old: deposed */
    unsigned processes;
    uint64_t start; /* the event; 0: it runs, or does not start again */
    uint64_t taken_over;
} host;

static struct coordinator_options options(const char *dir)
{
    return (struct coordinator_options){
        .data_dir = dir,
        .listen = "127.0.0.1",
        .host = "127.0.0.1",
        .plain_http = true,
        .heartbeat_ms = HEARTBEAT_MS,
        .lease_ms = LEASE_MS,
        .outer_threads = 2,
        .store = host.ships ? STORE_URL : NULL,
        .store_workers = "no",
        .store_state = host.ships,
        .store_cache_bytes = 1u << 30,
        .look_again = host.look_again,
    };
}

/* Ends a process; one that opens is to have nothing more from the store. */
static void end(struct process *p)
{
    const unsigned number = p->number;
    if (p->co != NULL)
        net_down(p->co->rpc);
    else
        store_kill(number);
    if (p->co == NULL)
        fiber_finish(number);
    coordinator_close(p->co);
    loop_free(p->loop);
    store_kill(number);
    mem_free(p->dir);
    *p = (struct process){0};
}

static void start(void *arg);

static void start_in(uint64_t ms)
{
    sim_cancel(host.start);
    host.start = host.restores ? 0 : sim_in(ms, start, NULL);
}

/* ---- opening --------------------------------------------------------------------- */

/* On the data directory that the disk has. */
static void open_here(void *arg)
{
    struct process *p = &host.now;
    struct coordinator *co = NULL;
    struct err err = {0};
    *p = (struct process){.number = host.ships ? fiber_process() : ++host.processes,
                          .dir = str_dup(disk_dir())};
    const unsigned number = p->number;
    const struct coordinator_options o = options(p->dir);
    sim_say("the coordinator starts");
    store_is_for(number);
    if (loop_new(&p->loop, &err) < 0)
        sim_fail("%s", err.msg);
    const int rc = coordinator_open(p->loop, &o, &co, &err);
    p->co = co;
    if (rc == 0)
        loop_run(p->loop);
    if (disk_crashed() || store_is_gone(number))
        return; /* whoever has seen to that closes it */
    if (rc == 0) {
        host.serves(co);
        return;
    }
    if (rc != -EAGAIN && rc != -ENOSPC && !(rc == -ERR_STALE && host.restores))
        sim_fail("the coordinator does not start: %s", err.msg);
    sim_say("the coordinator does not start: %s", err.msg);
    loop_free(p->loop);
    mem_free(p->dir);
    *p = (struct process){0};
    start_in(AGAIN_MS);
}

static void start(void *arg)
{
    host.start = 0;
    if (host.ships)
        fiber_new(++host.processes, open_here, NULL, NULL);
    else
        open_here(NULL);
}

void host_start(void)
{
    start(NULL);
}

static void down(void)
{
    host.serves(NULL);
    if (host.now.number != 0)
        end(&host.now);
    start_in(sim_chance(300) ? sim_below(30000) : sim_below(2000));
}

void host_stop(void)
{
    sim_say("the coordinator is stopped");
    down();
}

void host_crashed(void)
{
    store_kill(host.now.number);
    down();
}

/* ---- taking over ------------------------------------------------------------------- */

/* Makes the data directory of the machine that we are; the owner is deposed. */
static char *restore(void)
{
    for (;;) {
        struct restore_result r;
        struct err err = {0};
        char *dir = disk_other();
        const struct coordinator_options o = options(dir);
        const int rc = restore_state(&o, &r, &err);
        if (rc == 0) {
            sim_say("another machine has restored entry %llu",
                    (unsigned long long)r.snapshot + r.entries);
            return dir;
        }
        if (rc != -EAGAIN)
            sim_fail("the state in the store cannot be restored: %s", err.msg);
        sim_say("another machine cannot restore: %s", err.msg);
        mem_free(dir);
        (void)fiber_wait(&host, AGAIN_MS);
    }
}

/* Between two events, as whatever ends a process. */
static void move_in(void *arg)
{
    host.serves(NULL);
    if (host.old.number != 0)
        end(&host.old);
    if (host.now.number != 0 && host.now.co == NULL)
        end(&host.now);
    host.old = host.now;
    disk_move(arg, host.old.number != 0);
    host.now = (struct process){0};
    host.restores = false;
    host.taken_over++;
    start(NULL);
}

static void take_over(void *arg)
{
    (void)sim_in(0, move_in, restore());
}

void host_take_over(void)
{
    if (!host.ships || host.restores || store_entries() == 0)
        return;
    sim_say("another machine takes over");
    host.restores = true;
    sim_cancel(host.start);
    host.start = 0;
    fiber_new(++host.processes, take_over, NULL, NULL);
}

static void end_itself(void *arg)
{
    const unsigned number = (unsigned)(uintptr_t)arg;
    if (host.old.number == number) {
        sim_say("the deposed coordinator ends");
        end(&host.old);
    } else if (host.now.number == number) {
        if (!host.restores)
            sim_fail("the coordinator ends itself, and nobody takes over");
        sim_say("the coordinator is deposed");
        host.serves(NULL);
        end(&host.now);
    }
}

void host_ends(const struct loop *loop)
{
    const struct process *p = loop == host.old.loop ? &host.old : &host.now;
    (void)sim_in(0, end_itself, (void *)(uintptr_t)p->number);
}

void host_cut(void)
{
    const struct process *p = host.old.number != 0 && sim_chance(500) ? &host.old : &host.now;
    if (p->number != 0)
        store_cut(p->number);
}

bool host_is_settled(void)
{
    return host.old.number == 0 && !host.restores;
}

uint64_t host_taken_over(void)
{
    return host.taken_over;
}

void host_begin(bool ships, unsigned look_again, void (*serves)(struct coordinator *co))
{
    memset(&host, 0, sizeof(host));
    host.ships = ships;
    host.look_again = look_again;
    host.serves = serves;
    store_begin();
}

void host_down(void)
{
    host.serves(NULL);
    end(&host.now);
}

/* Nothing runs any more but what is on its way. */
void host_end(void)
{
    sim_cancel(host.start);
    if (host.old.number != 0)
        end(&host.old);
    if (host.now.number != 0)
        end(&host.now);
    while (sim_step())
        ;
    store_end();
    fiber_end();
}
