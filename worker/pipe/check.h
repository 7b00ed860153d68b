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

/* Most samples that a device has on their way through the frozen networks. */
#define FILL_UNDERWAY 16

/* Bytes on device d, by use. */
struct plan_memory {
    uint64_t model;   /* weights, gradients, the optimiser's state */
    uint64_t slots;   /* micro-batches in flight */
    uint64_t beside;  /* the rest of training: inputs, passes, the operations' working memory */
    uint64_t frozen;  /* weights of the frozen networks, unless it is bare */
    uint64_t scratch; /* FILL_UNDERWAY samples on their way through them */
};
struct plan_memory plan_memory(const struct costs *p, const struct pipe_plan *plan, int d);
/* All of it; without frozen networks. */
uint64_t plan_bytes(const struct costs *p, const struct pipe_plan *plan, int d);
uint64_t plan_trained_bytes(const struct costs *p, const struct pipe_plan *plan, int d);
/* Weights of all frozen networks, and their scratch for `samples` samples at once. */
uint64_t frozen_networks_bytes(const struct costs *p, int samples);

#endif
