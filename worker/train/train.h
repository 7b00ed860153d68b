/* Trains one replica of any network: AdamW on the network's objective.
 *
 * Master weights, moments and gradients are f32; matrices and activations bf16
 * or f32.  The random numbers for the sample at position i of step s are a function of
 * (seed, replica, s, i): they depend neither on threads nor on the division into
 * micro-batches.  Whether step s has an estimate is a function of (seed, s), the same for all
 * replicas.
 *
 *     trainer_make(dev, model, &opt, &tr, err);
 *     trainer_set(tr, flat, err);                       // phase start
 *     trainer_position(tr, first_step, total_steps);
 *     while (...) trainer_step(tr, &batch, &r, err);
 *     trainer_get(tr, flat, err);                       // phase end
 *     trainer_free(tr);
 *
 * trainer_set keeps the moments: a replica's Adam continues across outer steps.
 * All calls on the compute thread of the device. */
#ifndef WORKER_TRAIN_H
#define WORKER_TRAIN_H

#include "common/base/base.h"
#include "kernels/comm.h"
#include "worker/model/model.h"
#include "worker/net/net.h"
#include "worker/model/weights.h"
#include "worker/pipe/simulate.h"
#include "worker/train/train_options.h"

struct trainer;

/* Takes the net, also on failure.  Moments are zero; weights are undefined until trainer_set.
 * -ENOMEM: the device is too small; err has the sizes. */
int trainer_new(struct net *net, const struct train_options *opt, struct trainer **ret,
                struct err *err);
/* The same, and makes the network of m's kind. */
int trainer_make(struct device *dev, const struct model *m, const struct train_options *opt,
                 struct trainer **ret, struct err *err);
void trainer_free(struct trainer *t); /* accepts NULL */

/* Total device bytes, those of the network of m's kind included. */
uint64_t trainer_bytes(const struct model *m, const struct train_options *opt, enum dtype dt);

struct step_result {
    double loss;      /* mean over the units of the step: images, or tokens */
    double grad_norm; /* before clipping */
    double lr;
    uint64_t step; /* number of the step, from 0 at the start of the job */
    bool skipped;  /* loss or gradient is not finite, and there was no update */
};

/* One optimiser step on b->count (1..batch) samples; the trainer sets seed and keys.  With
 * peers, b->whole is set, count may be 0, and ret is that of the whole step.  If a stage has
 * several trainers, each takes its share of each micro-batch out of b (pipe_share).  If loss or
 * gradient is not finite the step is skipped: weights, moments and Adam's count stay as they were,
 * and the step's number, by which the learning rate and the random streams go, advances. */
int trainer_step(struct trainer *t, const struct batch *b, struct step_result *ret,
                 struct err *err);

/* THE STEP is a static list of instructions (worker/pipe/schedule.h) for the trainer's device of a
 * plan; a trainer alone is the only stage of a plan of one device.  In a pipeline its model is a
 * part (model_part_new), and F and B of a micro-batch wait for data from a neighbour.  With two
 * chains a trainer in a pipeline has a part of each, and each F and B belongs to one of them.
 *
 * PEERS: the trainers that each do a part of every step (worker/train/island.h). */
struct train_peers {
    unsigned batch; /* most samples of a whole step */
    /* Called while the last micro-batch is queued; by the time of join it has named each value
     * once.  A trainer without samples names everything at once, as zeros. */
    struct weights_watch watch;
    /* Queues the sum: later work on the trainer's stream sees gradients and losses (n) (device)
     * summed over the peers.  Each peer has its own losses at their places in the whole step
     * and 0 elsewhere. */
    int (*join)(void *arg, float *losses, int64_t n, struct err *err);
    /* For a pipeline; NULL with one stage.  cross queues a SEND or RECV behind the trainer's work;
     * after arrive, later work on the trainer's stream sees the data received for a
     * micro-batch. */
    int (*cross)(void *arg, const struct pipe_instr *in, const struct net_piece *pieces, int n);
    int (*arrive)(void *arg, int chain, enum pipe_what what, int micro);
    /* Queues a SEND or RECV of velocities, from the last stage to the first; later work on the
     * trainer's stream sees received ones. */
    int (*feed)(void *arg, const struct pipe_instr *in, const struct net_piece *piece);
    /* Before a micro-batch uses a slot again: later work waits until the sends from the slot have
     * ended; -1: those from all slots. */
    int (*sent)(void *arg, int chain, int micro);
    /* x (n) of a type (device) becomes the sum over the devices of the copy; for each value one or
     * two of them have something, the others 0. */
    int (*gather)(void *arg, void *x, int64_t n, enum comm_type type);
    /* For trainers that divide their state: sends each one's share of the updated weights to the
     * others. */
    int (*spread)(void *arg);
    /* After a rehearsal: waits until all peers have done theirs. */
    int (*meet)(void *arg);
    /* Replaces ops->sync at the end of a step, which would wait for ever if a peer has failed. */
    int (*wait)(void *arg, struct stream *s, struct err *err);
    /* For a filled pipeline.  The step's samples are loaded: the next step's may be taken up. */
    int (*look_ahead)(void *arg, struct err *err);
    /* The trainer loads samples at[] of its copy's; at stays valid until the next step. */
    void (*takes)(void *arg, const unsigned *at);
    /* Queues FROZEN, or SEND and RECV of encoded samples, on the trainer's stream. */
    int (*encode)(void *arg, const struct pipe_instr *in, struct err *err);
    void *arg;   /* passed to all of these */
    bool graphs; /* they may be called while a graph is recorded */
    /* The plan, and the device of a copy that the trainer is; NULL: one stage. */
    const struct pipe_plan *plan;
    int device;
    /* The costs of one copy, by which the plan's lists were made; with frozen networks the bubbles
     * are filled (worker/pipe/fill.h).  NULL: neither. */
    const struct costs *costs;
};
/* Before the first step; peers and its plan are copied, costs are borrowed.  -ENOMEM. */
int trainer_set_peers(struct trainer *t, const struct train_peers *peers, struct err *err);

/* REHEARSAL.  The first step of a shape allocates, frees and loads code, and on a card some of that
 * waits for all work of the card and of those beside it: for a RECV, too, whose SEND may be behind
 * such a wait of another rank.  So before a step that may do so each trainer of a pipeline on cards
 * computes it once without its transfers, on whatever lies in its buffers, and waits for the
 * others; a trainer_encode() likewise.  Nothing of it stays.  Said before each step. */
void trainer_rehearse(struct trainer *t, bool on);

/* In a filled pipeline, before a step whose `count` samples (in this copy) were not encoded in the
 * step before: encodes the trainer's share of them.  Waits. */
int trainer_encode(struct trainer *t, unsigned count, struct err *err);

/* In a filled pipeline: makes the lists anew, by the costs as they are now, and fills this share of
 * each bubble (fill_options), which is 1 at first.  Between steps, the same for all trainers. */
void trainer_refill(struct trainer *t, double share);

/* A part of a pipeline: the one or more trainers that divide its moments.  Weights are read from
 * and written to the first. */
struct train_part {
    struct trainer *of[COMM_RANKS_MAX];
    int n;
};
/* t, the first of an island's trainers, stands for the whole model m from now on: reads and writes
 * below, by tensor, level or as a flat vector, go to the trainers that have the values, in n parts.
 * All are borrowed. */
void trainer_stand_for(struct trainer *t, const struct model *m, const struct train_part *parts,
                       int n);

/* The next step notes when each instruction of its list begins and ends, in seconds since begun_ns;
 * a card is waited for after each.  The row of an F, E or B includes its wait for received data,
 * and `ready` is when they were there. */
void trainer_trace(struct trainer *t, uint64_t begun_ns);
/* The last traced step, with its list: valid until the next step. */
void trainer_traced(const struct trainer *t, const struct trace **ret,
                    const struct pipe_list **list);

/* Called after each instruction of a step; ready_ns: when its inputs were there. */
typedef void trainer_pace_fn(void *arg, const struct pipe_instr *in, uint64_t ready_ns);
/* For tests.  NULL: none. */
void trainer_set_pace(struct trainer *t, trainer_pace_fn *pace, void *arg);

/* Sets the position in the schedule and the random streams: the next step's number and the
 * job's total (0: unknown).  Adam's own count stays. */
void trainer_position(struct trainer *t, uint64_t step, uint64_t total_steps);
/* In a phase bounded by time, before each step: the share of the job that is over, by which the
 * schedule goes until the position is set again (train_lr_timed); 0: by steps. */
void trainer_set_done(struct trainer *t, double done);
uint64_t trainer_next_step(const struct trainer *t);
uint64_t trainer_total_steps(const struct trainer *t);

/* Master weights, from or to a host flat vector. */
int trainer_set(struct trainer *t, const float *flat, struct err *err);
int trainer_get(struct trainer *t, float *flat, struct err *err);

/* The same for one level, as for a merged fragment; the other levels stay. */
int trainer_set_level(struct trainer *t, int level, const float *flat, struct err *err);
int trainer_get_level(struct trainer *t, int level, float *flat, struct err *err);

/* Moments and Adam's count become 0: the state of a new replica. */
int trainer_reset_moments(struct trainer *t, struct err *err);

/* Read or write one tensor of one vector, dense, on the host.  Gradients are those of the
 * last step, before clipping.  After writing weights call trainer_written. */
enum trainer_vector {
    TRAINER_WEIGHTS,
    TRAINER_ADAM_M,
    TRAINER_ADAM_V,
    TRAINER_GRADIENT,
};
int trainer_read(struct trainer *t, enum trainer_vector which, const struct model_tensor *tensor,
                 float *values, struct err *err);
int trainer_write(struct trainer *t, enum trainer_vector which, const struct model_tensor *tensor,
                  const float *values, struct err *err);
int trainer_written(struct trainer *t, struct err *err);
/* The same vectors on this trainer's device, moments of its share only. */
float *trainer_device(struct trainer *t, enum trainer_vector which);

/* The number of updates in the moments, for the bias correction. */
uint64_t trainer_adam_step(const struct trainer *t);
void trainer_set_adam_step(struct trainer *t, uint64_t step);

/* The model that the trainer was made for, or stands for; its options; its network. */
const struct model *trainer_model(const struct trainer *t);
const struct train_options *trainer_options(const struct trainer *t);
struct net *trainer_net(const struct trainer *t);

#endif
