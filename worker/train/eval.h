/* Held-out loss: the training loss on fixed draws.
 *
 * What is drawn for a sample (time, noise) is a function of (seed, its content) alone, so two
 * models, or one at two times, are compared on exactly the same task, whatever the
 * batch size, order, machine or partition.  Labels are always given (the net is made without
 * dropout); t is spread as the job trains it. */
#ifndef WORKER_EVAL_H
#define WORKER_EVAL_H

#include "common/base/base.h"
#include "worker/net/net.h"

/* batch.seed of all evaluations of a job; keys are of the samples' contents. */
uint64_t eval_seed(uint64_t job_seed);

/* What evaluated batches add up to. */
struct eval_sum {
    double loss;      /* sum over units: images; texts: nats */
    double base;      /* the base's part of it, where there is an upscaler */
    uint64_t units;   /* images, or tokens that were predicted */
    uint64_t samples; /* images or rows */
    uint64_t hits;    /* routers: the most probable class was right */
};

/* Adds a batch of any count, cut to what the net takes at once. */
int eval_batch(struct net *net, const struct batch *b, struct eval_sum *sum, struct err *err);

#endif
