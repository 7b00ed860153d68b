/* What a phase gives to a module: the difference between the version that the phase
 * began with and the replica's weights, with the residual of earlier rounds, coded
 * (common/outer/contribution.h).  Compute thread. */
#ifndef WORKER_CONTRIBUTE_H
#define WORKER_CONTRIBUTE_H

#include <stdint.h>

#include "proto/skerry.pb-c.h"

struct err;
struct model;
struct work;
struct work_output;

struct contribute {
    struct work *w;                    /* a TRAIN task */
    const char *state_dir;             /* residuals */
    const Skerry__V1__ModuleRef *base; /* its file is in the cache */
    const struct model *model;
    const float *flat; /* the replica's weights; those of the module's level are read */
    uint64_t samples;  /* behind them */
};

/* Writes the blob into the task's temporary directory and fills *ret.  A residual that
 * does not fit is left out with a warning. */
int contribute(const struct contribute *c, struct work_output *ret, struct err *err);

#endif
