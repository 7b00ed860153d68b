/* A job's options for the training of a replica, and the learning rate that follows from them.
 * Plain data; any thread. */
#ifndef WORKER_TRAIN_OPTIONS_H
#define WORKER_TRAIN_OPTIONS_H

#include "common/base/base.h"
#include "common/job/job.h"
#include "worker/net/net.h"

struct train_options {
    int batch;            /* most images or rows of a step */
    int accumulate;       /* micro-batches of a step; each has samples of one shape */
    int slots;            /* micro-batches in flight, if a pipeline's plan says so; 0: 1 */
    int slots_upscaler;   /* the same for the upscaler's chain; 0: as many */
    bool accumulate_auto; /* there may be more (worker/train/plan.h); results are then those of
                           * `accumulate` except for the order of sums */
    double lr;
    int64_t warmup;             /* steps of linear warm-up */
    enum job_schedule schedule; /* cosine ends at final_lr * lr; decay is constant, then linear to
                                 * 0 over the last decay_fraction */
    double decay_fraction, final_lr;
    double weight_decay, beta1, beta2, eps;
    double clip; /* largest global gradient norm; 0 off */
    double ema;  /* of an average in older releases; only tells checkpoints apart */
    enum net_precision precision;
    bool uniform_t; /* else logit-normal */
    float shift;    /* of the times; 0: none */
    double label_dropout;
    double self_condition; /* share of the steps with an estimate; the model must read one */
    bool recompute;
    bool lean;           /* not with recompute: NET_LEAN, if the planner chooses it */
    bool fill;           /* frozen encoders run in the bubbles of the trainer's pipeline */
    bool split;          /* a pipeline's trainers make gradients of weights separately, by W */
    int sharers, sharer; /* trainers that divide one state, and this one's number; 0: no others */
    int width; /* trainers of a stage, each with a share of each micro-batch; 0: it has them whole
                */
    enum job_parallel parallel; /* of the devices of an island */
    enum job_pipeline pipeline;
    enum job_shard shard;
    int stages;   /* stages of a pipeline; 0: the fewest that fit */
    bool distill; /* images: learn from teachers */
    /* One for each device of an island, or NULL: see net_options. */
    const struct net_encoders *encoders;
    int64_t moments_warmup; /* steps of linear warm-up if moments are younger than the replica */
    uint64_t seed;          /* the job's */
    uint64_t replica;       /* number of the replica: rng_mix(path, replica) */
};
/* router: for the job's second network.  batch 0: the job's. */
void train_options_from_job(const struct job_spec *job, bool router, int batch, uint64_t replica,
                            struct train_options *ret);

/* The values of a flat vector for which a trainer has the moments. */
struct train_share {
    uint64_t from, to;
};
struct train_share train_share_of(uint64_t flat, int sharers, int sharer);

/* Does the job ask for stages? */
bool train_wants_pipeline(const struct train_options *o);

/* The most samples of a micro-batch, and of a trainer's share of it. */
int train_micro_batch(const struct train_options *o);
int train_micro_share(const struct train_options *o);

/* The options of the network, made for micro-batches. */
struct net_options train_net_options(const struct train_options *o);

/* Does the network read its own estimate in step `step`?  The same for all replicas. */
bool train_has_estimate(const struct train_options *o, uint64_t step);

/* Learning rate of step `step` (0 is the first) of `total` (0: unknown, and the rate is
 * constant after the warm-up). */
double train_lr(const struct train_options *o, uint64_t step, uint64_t total);
/* The same with phases bounded by time, and async ones: `done`, 0 to 1, is the share of the job
 * that is over.  Only the warm-up is counted in steps. */
double train_lr_timed(const struct train_options *o, uint64_t step, double done);

#endif
