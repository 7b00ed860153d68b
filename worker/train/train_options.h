/* What a job asks of the training of a replica, and the learning rate that follows from it.  Plain
 * data; any thread. */
#ifndef WORKER_TRAIN_OPTIONS_H
#define WORKER_TRAIN_OPTIONS_H

#include "common/base/base.h"
#include "common/job/job.h"
#include "worker/net/net.h"

struct train_options {
    int batch;            /* images or rows of a step, at most */
    int accumulate;       /* micro-batches that a step is cut into, those of several shapes apart */
    int slots;            /* micro-batches in flight, where a pipeline's plan says so; 0: 1 */
    int slots_upscaler;   /* those of its chain; 0: as many */
    bool accumulate_auto; /* more may be made of it (worker/train/plan.h); results are then those of
                           * `accumulate` but for the order of sums */
    double lr;
    int64_t warmup;             /* steps of linear warm-up */
    enum job_schedule schedule; /* cosine ends at final_lr * lr; decay is constant, then linear to
                                 * 0 over the last decay_fraction */
    double decay_fraction, final_lr;
    double weight_decay, beta1, beta2, eps;
    double clip; /* largest global gradient norm; 0 off */
    double ema;  /* decay of the inner EMA; 0 off */
    enum net_precision precision;
    bool uniform_t; /* else logit-normal */
    double label_dropout;
    double self_condition; /* share of the steps with an estimate; the model must read one */
    bool recompute;
    bool lean;  /* not with recompute: NET_LEAN, as the planner chooses */
    bool fill;  /* frozen encoders run in a pipeline's bubbles: of the trainers of one that is */
    bool split; /* of a pipeline's trainers: gradients of weights are made apart, by W */
    int sharers, sharer; /* trainers that share one state out, and which of them; 0: it is alone */
    int width; /* trainers of a stage, of which each has a share of each micro-batch; 0: it has all
                */
    enum job_parallel parallel; /* of the devices of an island */
    enum job_pipeline pipeline;
    enum job_shard shard;
    int stages;   /* of a pipeline; 0: the fewest that fit */
    bool distill; /* images: learn from teachers */
    /* One for each device of an island, or NULL: see net_options. */
    const struct net_encoders *encoders;
    int64_t moments_warmup; /* steps of linear warm-up where moments are younger than the replica */
    uint64_t seed;          /* the job's */
    uint64_t replica;       /* which one: rng_mix(path, replica) */
};
/* router: of the job's second network.  batch 0: as the job says. */
void train_options_from_job(const struct job_spec *job, bool router, int batch, uint64_t replica,
                            struct train_options *ret);

/* The values of a flat vector whose moments and average a trainer has. */
struct train_share {
    uint64_t from, to;
};
struct train_share train_share_of(uint64_t flat, int sharers, int sharer);

/* Does the job ask for stages? */
bool train_wants_pipeline(const struct train_options *o);

/* Samples of a micro-batch, at most; and of a trainer's share of it. */
int train_micro_batch(const struct train_options *o);
int train_micro_share(const struct train_options *o);

/* How the network must be made: for micro-batches. */
struct net_options train_net_options(const struct train_options *o);

/* Does step `step` tell the network its own estimate?  Of all replicas alike. */
bool train_has_estimate(const struct train_options *o, uint64_t step);

/* Learning rate of step `step` (0 is the first) of `total` (0: not known, then
 * constant after the warm-up). */
double train_lr(const struct train_options *o, uint64_t step, uint64_t total);

#endif
