/* One world: a coordinator that is stopped, killed and cut off, its workers, and jobs. */
#ifndef TESTS_SIM_WORLD_H
#define TESTS_SIM_WORLD_H

#include "common/base/base.h"

struct world_figures {
    uint64_t events, kills, power_losses, stops, jobs, backups, restored, clocks, taken_over;
    uint64_t ms;      /* of the world's time */
    uint64_t calm_ms; /* that it took at most until all jobs had ended, once all was well */
};

/* Runs the world of this seed to its end, adds to the figures, and returns the digest of what
 * happened in it.  root: a directory for its files. */
uint64_t world_run(uint64_t seed, const char *root, struct world_figures *sum);

struct world_at {
    uint64_t rounds, database; /* database: bytes */
    size_t gone;               /* workers on record that are */
};

struct world_life {
    struct world_at before, end; /* before: after two thirds of the time */
    int64_t held;                /* bytes of heap that the coordinator gives back when it closes */
    int64_t left;                /* that nobody has given back when the world is over */
    uint64_t events;
};

/* One coordinator that is never stopped, a job that does not end, and workers that come and go for
 * so long.  The seed alone says what happens: a longer run of it begins with the shorter one. */
void world_live(uint64_t seed, uint64_t ms, const char *root, struct world_life *ret);

/* ---- a world without mishaps: what happens is the caller's ---- */

struct coordinator;
struct spec;

/* A coordinator, and so many honest workers. */
void world_open(uint64_t seed, const char *root, unsigned workers);
void world_submit(const struct spec *spec); /* a job, if there is room for one */
void world_pass(uint64_t ms);               /* of its time, all of which the oracle looks at */
void world_restart(void);                   /* the coordinator is stopped, and is back */
void world_close(void);
/* NULL: it is down. */
struct coordinator *world_coordinator(void);

/* ---- all worlds ---- */

/* Has its state gone back to that of a backup? */
bool world_went_back(void);
/* The verifier of the token that workers join by. */
const uint8_t *world_token(void);

#endif
