/* Training of one replica of any network: AdamW on the network's objective.
 *
 * Master weights, moments and gradients are f32; matrices and activations bf16
 * or f32.  The random numbers for the sample at position i of step s are a function of
 * (seed, replica, s, i): they depend neither on threads nor on the split into
 * micro-batches.  Whether step s has an estimate is a function of (seed, s), equal for all
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

/* Takes the net over, also on failure.  Fresh moments; weights undefined until trainer_set.
 * -ENOMEM with the sizes when the device is too small. */
int trainer_new(struct net *net, const struct train_options *opt, struct trainer **ret,
                struct err *err);
/* The same with the network of m's kind, made for it. */
int trainer_make(struct device *dev, const struct model *m, const struct train_options *opt,
                 struct trainer **ret, struct err *err);
void trainer_free(struct trainer *t); /* accepts NULL */

/* Bytes on the device, in all, with the network of m's kind. */
uint64_t trainer_bytes(const struct model *m, const struct train_options *opt, enum dtype dt);

struct step_result {
    double loss;      /* mean over the units of the step: images, or tokens */
    double grad_norm; /* before clipping */
    double lr;
    uint64_t step; /* the step done, counted from 0 at the start of the job */
};

/* One optimiser step on b->count (1..batch) samples; seed and keys are the trainer's.  With
 * peers b->whole is set and count may be 0; ret is then of the whole step.  A trainer of a stage of
 * several takes its share of each micro-batch out of b, as the plan says (pipe_share).
 * -EDOM when loss or gradient is not finite: weights, moments and the step
 * number are then as they were before. */
int trainer_step(struct trainer *t, const struct batch *b, struct step_result *ret,
                 struct err *err);

/* THE STEP is a static list of instructions (worker/pipe/schedule.h) for the device of a plan that
 * the trainer is; by itself it is the one stage of a plan of one device.  In a pipeline its model
 * is a part (model_part_new), and F and B of a micro-batch wait for what a neighbour sends.  Of two
 * chains a trainer in a pipeline has a part of each, and F and B are of one of them.
 *
 * A trainer that is one of several, each with its part of every step (worker/train/island.h). */
struct train_peers {
    unsigned batch; /* samples of a whole step, at most */
    /* Called while the last micro-batch is queued; all values were named once when join is
     * called.  A trainer without samples names everything at once, as zeros. */
    struct weights_watch watch;
    /* Queues: what follows on the trainer's stream sees gradients and losses (n) (device)
     * summed over the peers.  Each has its own losses at their places of the whole step
     * and 0 elsewhere. */
    int (*join)(void *arg, float *losses, int64_t n, struct err *err);
    /* A pipeline's; NULL where there is one stage.  SEND and RECV of an instruction, queued behind
     * the trainer's work; and that what follows on the trainer's stream sees what was received
     * for a micro-batch. */
    int (*cross)(void *arg, const struct pipe_instr *in, const struct net_piece *pieces, int n);
    int (*arrive)(void *arg, int chain, enum pipe_what what, int micro);
    /* SEND and RECV of velocities, from the last stage to the first, queued; what follows on the
     * trainer's stream sees those that were received. */
    int (*feed)(void *arg, const struct pipe_instr *in, const struct net_piece *piece);
    /* Before a micro-batch takes a slot again: what was sent from there has gone; -1: from all. */
    int (*sent)(void *arg, int chain, int micro);
    /* x (n) of a type (device) becomes the sum over the devices of the copy; of each value one or
     * two of them have something, the others 0. */
    int (*gather)(void *arg, void *x, int64_t n, enum comm_type type);
    /* Of trainers that share their state out: each one's share of the updated weights goes to the
     * others. */
    int (*spread)(void *arg);
    /* In place of ops->sync at the end of a step, which waits for ever when a peer has failed. */
    int (*wait)(void *arg, struct stream *s, struct err *err);
    /* A filled pipeline's.  The step's samples are loaded: what the next ones are may be taken. */
    int (*look_ahead)(void *arg, struct err *err);
    /* Of its copy's samples the trainer loads those at[], which stay until the next step. */
    void (*takes)(void *arg, const unsigned *at);
    /* FROZEN, and SEND and RECV of what was encoded, queued on the trainer's stream. */
    int (*encode)(void *arg, const struct pipe_instr *in, struct err *err);
    void *arg;   /* passed to all of these */
    bool graphs; /* they may be called while a graph is recorded */
    /* The plan, of which the trainer is this device of a copy; NULL: one stage. */
    const struct pipe_plan *plan;
    int device;
    /* Of one copy: what the plan's lists were made by, and with frozen networks its bubbles are
     * filled (worker/pipe/fill.h).  NULL: neither. */
    const struct costs *costs;
};
/* Before the first step; peers and its plan are copied, costs are borrowed.  -ENOMEM. */
int trainer_set_peers(struct trainer *t, const struct train_peers *peers, struct err *err);

/* In a filled pipeline: encodes the trainer's share of a step's samples, of which its copy has
 * `count`, before that step, as nobody did in the step before.  Waits. */
int trainer_encode(struct trainer *t, unsigned count, struct err *err);

/* In a filled pipeline: lists are made anew, by what the costs say now, and of each bubble so large
 * a share is filled (fill_options); 1 until then.  Between steps, of all trainers alike. */
void trainer_refill(struct trainer *t, double share);

/* A part of a pipeline: the trainers that share its moments and averages out, one or several, of
 * which the first has the weights that are read and written. */
struct train_part {
    struct trainer *of[COMM_RANKS_MAX];
    int n;
};
/* t, the first of an island's trainers, stands for the whole model m from now on: what is read and
 * written below by tensor, level or as a flat vector is that of the trainer which has it, of n
 * parts.  All are borrowed. */
void trainer_stand_for(struct trainer *t, const struct model *m, const struct train_part *parts,
                       int n);

/* The next step notes when each instruction of its list begins and ends, in seconds since begun_ns;
 * a card is waited for after each.  The row of an F, E or B has its waiting for what it receives,
 * and says when that was there. */
void trainer_trace(struct trainer *t, uint64_t begun_ns);
/* The last one's, with its list: valid until the next step. */
void trainer_traced(const struct trainer *t, const struct trace **ret,
                    const struct pipe_list **list);

/* After an instruction of a step, with when what it waited for was there. */
typedef void trainer_pace_fn(void *arg, const struct pipe_instr *in, uint64_t ready_ns);
/* For tests.  NULL: none. */
void trainer_set_pace(struct trainer *t, trainer_pace_fn *pace, void *arg);

/* Where the schedule and the random streams stand: the next step's number and the
 * job's total (0: not known).  Adam's own count is not changed by it. */
void trainer_position(struct trainer *t, uint64_t step, uint64_t total_steps);
uint64_t trainer_next_step(const struct trainer *t);
uint64_t trainer_total_steps(const struct trainer *t);

/* Master weights, from or to a host flat vector. */
int trainer_set(struct trainer *t, const float *flat, struct err *err);
int trainer_get(struct trainer *t, float *flat, struct err *err);

/* Those of one level, the rest stays: what a merged fragment brings. */
int trainer_set_level(struct trainer *t, int level, const float *flat, struct err *err);
int trainer_get_level(struct trainer *t, int level, float *flat, struct err *err);

/* Moments to zero, Adam's count to 0, EMA to the weights: as a new replica starts. */
int trainer_reset_moments(struct trainer *t, struct err *err);

/* One tensor of one vector, dense, from or to the host.  Gradients are those of the
 * last step, before clipping.  After writing weights call trainer_written. */
enum trainer_vector {
    TRAINER_WEIGHTS,
    TRAINER_ADAM_M,
    TRAINER_ADAM_V,
    TRAINER_EMA, /* only when on, else -ENOENT */
    TRAINER_GRADIENT,
};
int trainer_read(struct trainer *t, enum trainer_vector which, const struct model_tensor *tensor,
                 float *values, struct err *err);
int trainer_write(struct trainer *t, enum trainer_vector which, const struct model_tensor *tensor,
                  const float *values, struct err *err);
int trainer_written(struct trainer *t, struct err *err);
/* The same vectors, as this trainer's device has them, moments and EMA of its share; NULL: an EMA
 * that is off. */
float *trainer_device(struct trainer *t, enum trainer_vector which);

/* Updates behind the moments: what the bias correction counts. */
uint64_t trainer_adam_step(const struct trainer *t);
void trainer_set_adam_step(struct trainer *t, uint64_t step);

/* What the trainer was made from, or stands for, and its network. */
const struct model *trainer_model(const struct trainer *t);
const struct train_options *trainer_options(const struct trainer *t);
struct net *trainer_net(const struct trainer *t);

#endif
