/* Held-out loss: the training loss on fixed draws.
 *
 * A sample's time and noise are a function of only (seed, its content), so two models, or one
 * model at two times, are compared on exactly the same task, whatever the batch size, order,
 * machine or partition.  Labels are never dropped (the net is made without dropout); t has
 * the distribution of the job's training. */
#ifndef WORKER_EVAL_H
#define WORKER_EVAL_H

#include "common/base/base.h"
#include "worker/net/net.h"

/* batch.seed of all evaluations of a job; keys are those of the samples' contents. */
uint64_t eval_seed(uint64_t job_seed);

/* Sums over evaluated batches. */
struct eval_sum {
    double loss;      /* sum over units: images; texts: nats */
    double base;      /* the base's part of the loss, if there is an upscaler */
    uint64_t units;   /* images, or tokens that were predicted */
    uint64_t samples; /* images or rows */
    uint64_t hits;    /* routers: samples whose most probable class was right */
};

/* Adds a batch of any count, in pieces of the net's batch size. */
int eval_batch(struct net *net, const struct batch *b, struct eval_sum *sum, struct err *err);

#endif
