/* A world in one thread: the real coordinator, workers that follow the protocol, some that do not,
 * and a clock, network and disk that do what a seed says.
 *
 *   main.c ── world.c ─┬─ coordinator, common/outer, blob_dir ...   as they are
 *                      ├─ host.c   the machines that the coordinator is on
 *                      ├─ loop.c   in place of common/net/loop.c, pool.c
 *                      ├─ net.c    in place of common/net/rpc_server.c
 *                      ├─ http.c   in place of http_server.c and libmicrohttpd
 *                      ├─ disk.c   under SQLite, and behind fsync()
 *                      ├─ store.c  in place of common/net/s3/client.c
 *                      ├─ fiber.c  what waits for the store, threads too
 *                      ├─ worker.c, result.c   the other side of the protocol
 *                      └─ oracle.c   what must hold after every event
 *
 * Whatever happens is an event at a time.  Chance is drawn from the seed alone and time passes only
 * here, so that a seed repeats a run exactly: sim_digest() of two runs is the same. */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

#include "common/base/base.h"

typedef void (*sim_fn)(void *arg);

/* A new world: nothing is to come, its clock begins anew. */
void sim_begin(uint64_t seed);

/* ---- time ---- */
uint64_t sim_now_ms(void);
/* Sets the wall clock, which runs with the world's time, so far ahead of it. */
void sim_set_wall(int64_t ahead_ms);
/* Calls fn(arg) in about ms; what is at the same time comes in the order of the calls.  The number
 * is for sim_cancel(), and never 0. */
uint64_t sim_in(uint64_t ms, sim_fn fn, void *arg);
void sim_cancel(uint64_t event); /* one that has passed, or 0, is fine */
/* What happens now takes that long: what was to come meanwhile comes late. */
void sim_stall(uint64_t ms);
/* The same of a disk: what a pool's thread does takes that long, and the loop goes on. */
void sim_slow(uint64_t ms);
bool sim_step(void); /* the next event; false: there is none */
uint64_t sim_events(void);

/* ---- chance ---- */
uint64_t sim_below(uint64_t n); /* [0, n) */
uint64_t sim_between(uint64_t low, uint64_t high);
bool sim_chance(unsigned in_thousand);
void sim_bytes(void *out, size_t n);

/* ---- what is said ---- */
extern bool sim_verbose;
/* What `make` is told to see it again, but for the seed. */
extern const char *sim_target;
/* A line of the story: counts in the digest, and is shown if sim_verbose. */
void sim_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
uint64_t sim_digest(void);
/* Something that must hold does not: says what, and how to see it again, and ends the process. */
void sim_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
