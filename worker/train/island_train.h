/* Trains one replica on all devices of an island, as worker/train/train.h does on one device.
 *
 *     island_trainer_new(is, model, &opt, &t, err);
 *     trainer_set(island_trainer_first(t), flat, err);        // rank 0 stands for the model
 *     island_trainer_follow(t, ISLAND_ALL, err);              // the others become equal to it
 *     island_trainer_step(t, &batch, &r, err);
 *     trainer_get(island_trainer_first(t), flat, err);
 *
 * A plan (worker/pipe/schedule.h) gives each rank its part: the plan is one or more copies of a
 * pipeline of stages, and each device of a stage has a trainer of its part of the model, with its
 * weights, moments, EMA and gradients, which takes its share of every micro-batch.  Data
 * parallelism is the plan of one stage on one device: every rank is a copy.  A step divides the
 * batch among the copies by position; the sample at position i has the same draws as on one device.
 * The gradients of a stage's ranks are summed in buckets while the backward still runs; then all of
 * them make the same update, so their weights stay equal to the bit.
 *
 * On CPUs a pipeline has the bits of one device with the same micro-batches; copies of it, or
 * stages of several devices, have those of as many ranks of data parallelism.  On an island of one
 * this is the trainer itself.
 *
 * SHARED OUT.  With plan.shard each device of a stage has the moments of only a share of its
 * values, updates that share, and gives it to the others: the same bits.
 *
 * SPLIT.  In a plan of that order each stage computes gradients of weights separately, when it
 * would otherwise idle: the same bits.
 *
 * TWO CHAINS (docs/cascades.md).  A pipeline's device has a stage of each chain, and F and B of
 * both in one list, or a stage of one chain if the devices are divided.  The bits are those of one
 * device, whichever direction each chain has.
 *
 * FILLED.  If costs with frozen networks are given, a pipeline's ranks run those over the samples
 * of the next step in the bubbles of this one; the samples of a phase's first step are encoded
 * before it.  After some steps bubbles are filled again, by the times of those
 * (worker/pipe/refill.h). Results do not depend on it.
 *
 * All calls on the compute thread. */
#ifndef WORKER_ISLAND_TRAIN_H
#define WORKER_ISLAND_TRAIN_H

#include "common/base/base.h"
#include "worker/pipe/refill.h"
#include "worker/train/island_plan.h"
#include "worker/train/train.h"

struct island_trainer;

/* Gradients are summed in pieces of about this size. */
#define ISLAND_BUCKET_BYTES (25u << 20)

/* As trainer_make, on every rank; m is borrowed; plan NULL: one stage.  costs: the island's, by
 * which the plan was found, read only in the call; NULL: without costs, and nothing is filled.
 * Call follow before the first step. */
int island_trainer_new(struct island *is, const struct model *m, const struct train_options *opt,
                       const struct pipe_plan *plan, const struct costs *costs,
                       struct island_trainer **ret, struct err *err);
void island_trainer_free(struct island_trainer *t); /* accepts NULL */

/* The options of the whole step. */
const struct train_options *island_trainer_options(const struct island_trainer *t);
/* Does it fill bubbles, so that a step wants the next step's batch? */
bool island_trainer_fills(const struct island_trainer *t);
/* For tests: the share of the bubbles that its steps fill. */
const struct refill *island_trainer_refill(const struct island_trainer *t);
/* The trainer of rank 0, which stands for the whole model: position, reads and writes go through
 * it; and that of any rank. */
struct trainer *island_trainer_first(const struct island_trainer *t);
struct trainer *island_trainer_rank(const struct island_trainer *t, int rank);

/* After rank 0 was written to: the other copies take over the weights of the first copy, or all of
 * its state (weights, moments, EMA, Adam's count, position). */
enum island_what { ISLAND_WEIGHTS, ISLAND_ALL };
int island_trainer_follow(struct island_trainer *t, enum island_what what, struct err *err);

/* As trainer_set_done, for all ranks. */
void island_trainer_set_done(struct island_trainer *t, double done);

/* As trainer_step.  next: the batch of the next step, if it is known; else NULL.
 * After a failure of an island of several, weights and moments are undefined until rank 0 is
 * written to and followed. */
int island_trainer_step(struct island_trainer *t, const struct batch *b, const struct batch *next,
                        struct step_result *ret, struct err *err);

/* The next step writes a file of Chrome's trace events at path (worker/pipe/trace.h).  Only for an
 * island of several. */
void island_trainer_trace(struct island_trainer *t, const char *path);

/* For tests: another size of the buckets. */
void island_trainer_set_bucket(struct island_trainer *t, uint64_t bytes);
/* For tests: whether pipelines rehearse, which they do on cards (trainer_rehearse). */
void island_trainer_set_rehearsal(struct island_trainer *t, bool on);

#endif
