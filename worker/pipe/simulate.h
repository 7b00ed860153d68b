/* When each instruction of a schedule runs by a profile: the events of one step, without chance.
 *
 *     simulate(&p, &plan, &schedule, &run, err);
 *     run.seconds                       // of the step
 *     run.traces[d].rows[i]             // of item i of device d's list
 *     simulation_release(&run);
 *
 * A device computes one instruction at a time, in the list's order.  A transfer begins once it is
 * sent, its RECV is reached, and the one before it between the same two stages has ended;
 * transfers of different chains or directions do not disturb each other.  A REDUCE is over
 * when all ranks of its stage have reached it and the last layer is summed: the others are summed
 * beside the last backward, as on an island (docs/island.md).  CLIP
 * begins everywhere at once and takes two messages over the slowest link.  STEP is the update and,
 * if the optimiser's state is shared, the new weights' way to the others.
 *
 * An executor's measurement has rows of the same form. */
#ifndef WORKER_SIMULATE_H
#define WORKER_SIMULATE_H

#include "worker/pipe/schedule.h"

/* Seconds since the beginning of the step.  SEND, RECV and REDUCE last from being queued to being
 * done, beside the device's computing.  ready, of an instruction that computes: when its inputs are
 * there.  In a simulation that is its start; a measured F, E or B starts when waiting begins. */
struct trace_row {
    double start, end;
    double ready;
};

struct trace {
    struct trace_row *rows; /* one for each item of the list */
    int n;
    double busy; /* seconds that the device computes */
};

struct simulation {
    double seconds; /* of the step */
    double idle;    /* share of all devices' time in which they do not compute */
    int n_devices;
    struct trace traces[COSTS_DEVICES_MAX];
};

/* -EDEADLK: no device can go on; err names one and its instruction.  -ENOMEM. */
int simulate(const struct costs *p, const struct pipe_plan *plan,
             const struct pipe_schedule *schedule, struct simulation *ret, struct err *err);
void simulation_release(struct simulation *s);

/* Does the device compute it, so that nothing else runs there meanwhile? */
bool pipe_computes(enum pipe_op op);

/* Seconds of layers [from, to) of a frozen network over `count` samples, on device d. */
double frozen_seconds(const struct costs *p, int d, int frozen, int from, int to, int count);

#endif
