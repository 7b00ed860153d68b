/* One world: a coordinator that is stopped, killed and cut off, its workers, and jobs. */
#ifndef TESTS_SIM_WORLD_H
#define TESTS_SIM_WORLD_H

#include "common/base/base.h"

struct world_figures {
    uint64_t events, kills, power_losses, stops, jobs;
    uint64_t ms; /* of the world's time */
};

/* Runs the world of this seed to its end, adds to the figures, and returns the digest of what
 * happened in it.  root: a directory for its files. */
uint64_t world_run(uint64_t seed, const char *root, struct world_figures *sum);

/* Can the coordinator write its state? */
bool world_writes(void);
/* The verifier of the token that workers join by. */
const uint8_t *world_token(void);

#endif
