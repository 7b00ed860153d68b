/* Predicts the memory that a phase of training needs on a device.
 *
 *     plan_room(devs, n, &room);
 *     room.kept = bytes that replicas kept between phases could give back;
 *     rc = plan_train(model, &opt, dt, &room, &plan, err);
 *     opt.accumulate = plan.accumulate;      // 0, or -ENOMEM with one sentence
 *     opt.lean = plan.lean;
 *
 * NEED is the trainer's own memory (trainer_bytes) and the memory that it cannot know: the working
 * memory of the device's operations and libraries; the replica's flat copy, if the device's memory
 * is the host's; and with teachers the memory of one of them (more are loaded if more is free).
 * It is per rank; ranks that share one memory (CPU devices of one process) share the room.
 *
 * ROOM is the device's free memory plus the memory that can be given back, less a reserve of a
 * sixteenth of it, at most 1 GiB, for other programs.
 *
 * With opt->accumulate_auto the plan cuts a step into the fewest micro-batches that fit, from
 * opt->accumulate on.  If fewer lean ones fit (NET_LEAN), it predicts the bytes that both ways
 * move: a micro-batch reads and writes the gradients, and a lean one reads and writes what it does
 * not keep.  An allocation may still fail (memory is fragmented, others allocate, too): then try
 * plan_smaller.  Pure, except plan_room. */
#ifndef WORKER_PLAN_H
#define WORKER_PLAN_H

#include "common/base/base.h"
#include "kernels/dtype.h"

struct device;
struct model;
struct train_options;

/* Bytes for one rank. */
struct plan_room {
    uint64_t free;
    uint64_t kept; /* in use, but can be given back */
    bool known;    /* false: the device does not say, and every plan is allowed */
    bool host;     /* the device's memory is the host's */
    int sharers;   /* devices that share it, each with its part; 0: 1 */
    bool brief;    /* a refusal has only the numbers, no advice */
    char device[32];
};

/* Bytes of one rank. */
struct plan {
    int accumulate;   /* micro-batches of a step */
    bool lean;        /* in NET_LEAN */
    uint64_t weights; /* master values and the bf16 copy */
    uint64_t gradients;
    uint64_t optimiser;   /* moments */
    uint64_t activations; /* the rest of the network's memory; grows with the micro-batch */
    uint64_t teachers;    /* distillation: their network, with the weights of one loaded */
    uint64_t workspace;   /* for the device's operations; on the host also the flat copies */
    uint64_t need;        /* their sum */
    uint64_t room;        /* memory available, after the reserve */
};

/* The room of the tightest of n devices (at least one). */
void plan_room(struct device *const *devs, size_t n, struct plan_room *ret);
/* Free and kept together, less the reserve. */
uint64_t plan_room_bytes(const struct plan_room *room);

/* opt->batch is one rank's.  -ENOMEM: "training needs 12.3 GiB on cuda:0 (weights ...) and
 * 8.0 GiB are free; train.recompute: true needs 6.1 GiB".  *ret is filled in both cases. */
int plan_train(const struct model *m, const struct train_options *opt, enum dtype dt,
               const struct plan_room *room, struct plan *ret, struct err *err);

/* After -ENOMEM with opt->accumulate micro-batches: twice as many, at most opt->batch.
 * False: the job fixes their number, or there can be no more. */
bool plan_smaller(const struct train_options *opt, int *ret_accumulate);

#endif
