#include "tests/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/rng.h"

#define BEGIN_US 1767225600000000ull /* of the wall clock, too */

struct event {
    uint64_t at_us, n; /* n: in the order of the calls */
    sim_fn fn;
    void *arg;
};

/* A binary heap, the next one first. */
static struct {
    struct event *list;
    size_t n, cap;
    uint64_t now_us, made, seed, digest, events;
    int64_t wall_ahead_ms;
    struct rng rng;
} sim;

bool sim_verbose;
const char *sim_target = "sim EVENTS=1";

static void set_clock(uint64_t us)
{
    sim.now_us = us;
    clock_fake_set(us * 1000);
}

void sim_begin(uint64_t seed)
{
    sim.n = 0;
    sim.made = 0;
    sim.events = 0;
    sim.digest = sim.seed = seed;
    sim.wall_ahead_ms = 0;
    rng_init(&sim.rng, seed, 0x51);
    set_clock(BEGIN_US);
}

/* ---- time ---- */

static bool before(const struct event *a, const struct event *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->n < b->n;
}

static void sift_up(size_t i)
{
    const struct event e = sim.list[i];
    for (; i > 0 && before(&e, &sim.list[(i - 1) / 2]); i = (i - 1) / 2)
        sim.list[i] = sim.list[(i - 1) / 2];
    sim.list[i] = e;
}

static void sift_down(size_t i)
{
    const struct event e = sim.list[i];
    for (size_t child; (child = 2 * i + 1) < sim.n; i = child) {
        if (child + 1 < sim.n && before(&sim.list[child + 1], &sim.list[child]))
            child++;
        if (!before(&sim.list[child], &e))
            break;
        sim.list[i] = sim.list[child];
    }
    sim.list[i] = e;
}

static void take_out(size_t i)
{
    sim.list[i] = sim.list[--sim.n];
    if (i < sim.n) {
        sift_down(i);
        sift_up(i);
    }
}

uint64_t sim_now_ms(void)
{
    return sim.now_us / 1000;
}

uint64_t __real_clock_wall_ms(void);
uint64_t __wrap_clock_wall_ms(void);

uint64_t __wrap_clock_wall_ms(void)
{
    return __real_clock_wall_ms() + (uint64_t)sim.wall_ahead_ms;
}

void sim_set_wall(int64_t ahead_ms)
{
    sim_say("the wall clock is %lld s ahead", (long long)ahead_ms / 1000);
    sim.wall_ahead_ms = ahead_ms;
}

uint64_t sim_in(uint64_t ms, sim_fn fn, void *arg)
{
    if (sim.n == sim.cap) {
        sim.cap = sim.cap ? sim.cap * 2 : 256;
        sim.list = mem_realloc(sim.list, sim.cap * sizeof(*sim.list));
    }
    const uint64_t part_us = ms > 0 ? sim_below(1000) : 0;
    sim.list[sim.n] = (struct event){sim.now_us + ms * 1000 + part_us, ++sim.made, fn, arg};
    sift_up(sim.n++);
    return sim.made;
}

void sim_cancel(uint64_t event)
{
    for (size_t i = 0; i < sim.n; i++)
        if (sim.list[i].n == event) {
            take_out(i);
            return;
        }
}

void sim_stall(uint64_t ms)
{
    set_clock(sim.now_us + ms * 1000);
}

bool sim_step(void)
{
    if (sim.n == 0)
        return false;
    const struct event e = sim.list[0];
    take_out(0);
    if (e.at_us > sim.now_us)
        set_clock(e.at_us);
    sim.events++;
    e.fn(e.arg);
    return true;
}

uint64_t sim_events(void)
{
    return sim.events;
}

/* ---- chance ---- */

uint64_t sim_below(uint64_t n)
{
    return rng_below(&sim.rng, n);
}

uint64_t sim_between(uint64_t low, uint64_t high)
{
    return low + sim_below(high - low + 1);
}

bool sim_chance(unsigned in_thousand)
{
    return sim_below(1000) < in_thousand;
}

void sim_bytes(void *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)out)[i] = (uint8_t)sim_below(256);
}

/* ---- what is said ---- */

void sim_say(const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    for (const char *p = text; *p != '\0'; p++)
        sim.digest = (sim.digest ^ (uint8_t)*p) * 0x100000001b3ull;
    sim.digest = rng_mix(sim.digest, sim.now_us);
    if (sim_verbose)
        printf("%10.3f %s\n", (double)(sim.now_us - BEGIN_US) / 1e6, text);
}

uint64_t sim_digest(void)
{
    return sim.digest;
}

void sim_fail(const char *fmt, ...)
{
    va_list ap;
    fflush(stdout);
    fprintf(stderr, "seed %llu, event %llu, %.3f s: ", (unsigned long long)sim.seed,
            (unsigned long long)sim.events, (double)(sim.now_us - BEGIN_US) / 1e6);
    va_start(ap, fmt);
    (void)vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\nsee it again: make %s SEED=%llu SIMFLAGS=-v\n", sim_target,
            (unsigned long long)sim.seed);
    exit(1);
}
