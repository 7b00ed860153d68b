/* Checks that a schedule can run, does what the plan says, and fits, before it is replayed. */
#ifndef WORKER_CHECK_H
#define WORKER_CHECK_H

#include "worker/pipe/simulate.h"

/* Requires: every micro-batch's F, B and W once on each device of its stage, in ascending order, F
 * before B before W; every SEND meets its RECV; no device waits for ever; one REDUCE per stage
 * after its last W, then CLIP, then STEP; frozen layers: none, or each sample of the step through
 * each layer once, in order, on one device; at no point more slots in use than the stage has, or
 * more bytes than the device has.
 *
 * -EINVAL, -EDEADLK or -ENOMEM (the device's memory, or the host's); err names the device and the
 * instruction. */
int schedule_check(const struct costs *p, const struct pipe_plan *plan,
                   const struct pipe_schedule *schedule, struct err *err);

/* Bytes on device d: what its stages keep, all their slots, the frozen networks that its list
 * runs, and the scratch of the most samples that are in those at once. */
uint64_t schedule_bytes(const struct costs *p, const struct pipe_plan *plan,
                        const struct pipe_schedule *schedule, int d);
/* The same, by use. */
struct schedule_memory {
    uint64_t model;   /* weights, gradients, the optimiser's state */
    uint64_t slots;   /* micro-batches in flight */
    uint64_t buffers; /* activations and gradients that cross between stages */
    uint64_t frozen;  /* weights of the frozen networks that it runs */
    uint64_t scratch; /* samples on their way through them */
};
struct schedule_memory schedule_memory(const struct costs *p, const struct pipe_plan *plan,
                                       const struct pipe_schedule *schedule, int d);
/* schedule_bytes without the frozen networks. */
uint64_t plan_bytes(const struct costs *p, const struct pipe_plan *plan, int d);
/* Weights of a frozen network, and its scratch for `samples` samples at once. */
uint64_t frozen_network_bytes(const struct costs *p, int frozen, int samples);

#endif
