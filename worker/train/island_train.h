/* Training of one replica on all devices of an island, as worker/train/train.h does on one.
 *
 *     island_trainer_new(is, model, &opt, &t, err);
 *     trainer_set(island_trainer_first(t), flat, err);        // rank 0 stands for the model
 *     island_trainer_follow(t, ISLAND_ALL, err);              // the others become equal to it
 *     island_trainer_step(t, &batch, &r, err);
 *     trainer_get(island_trainer_first(t), flat, err);
 *
 * A plan (worker/pipe/schedule.h) says which rank has what: copies of a pipeline of stages, on each
 * device of a stage a trainer of its part of the model, with its weights, moments, EMA and
 * gradients, which takes its share of every micro-batch.  Data parallelism is the plan of one stage
 * on one device: every rank is a copy.  A step cuts the batch over the copies by position; the
 * sample at position i draws what it draws on one device.  The gradients of a stage's ranks are
 * summed in buckets while the backward still runs, then all of them make the same update, so their
 * weights stay equal to the bit.
 *
 * On CPUs a pipeline has the bits of one device with the same micro-batches, and copies of it, or
 * stages of several devices, those of as many ranks of data parallelism.  On an island of one this
 * is the trainer itself.
 *
 * SHARED OUT.  With plan.shard each device that holds a stage has the moments and the average of a
 * share of its values alone, updates that share, and gives it to the others: the same bits.
 *
 * SPLIT.  In a plan of that order each stage computes gradients of weights separately, when it
 * would otherwise idle: the same bits.
 *
 * TWO CHAINS (docs/cascades.md).  A pipeline's device has a stage of each, and F and B of both in
 * one list, or, where the devices are divided, of one: the bits are those of one device, whichever
 * chain goes which way.
 *
 * FILLED.  Where costs with frozen networks are given, a pipeline's ranks run those over the
 * samples of the next step in the bubbles of this one; of a phase's first step alone, before it.
 * After some steps bubbles are filled again, by what those took (worker/pipe/refill.h).  Results do
 * not depend on it.
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

/* As trainer_make, on every rank; m is borrowed; plan NULL: one stage.  costs: of the island, by
 * which the plan was found, read in the call alone; NULL: it was not, and nothing is filled.
 * follow comes before the first step. */
int island_trainer_new(struct island *is, const struct model *m, const struct train_options *opt,
                       const struct pipe_plan *plan, const struct costs *costs,
                       struct island_trainer **ret, struct err *err);
void island_trainer_free(struct island_trainer *t); /* accepts NULL */

/* The whole step's. */
const struct train_options *island_trainer_options(const struct island_trainer *t);
bool island_trainer_fills(const struct island_trainer *t); /* asks for the next step's batch */
/* For tests: how much of the bubbles its steps fill. */
const struct refill *island_trainer_refill(const struct island_trainer *t);
/* Rank 0's, which stands for the whole model: position, reads and writes go through it. */
struct trainer *island_trainer_first(const struct island_trainer *t);
struct trainer *island_trainer_rank(const struct island_trainer *t, int rank);

/* After rank 0 was written to: the other copies take over the weights of the first, or all of its
 * state (weights, moments, EMA, Adam's count, position). */
enum island_what { ISLAND_WEIGHTS, ISLAND_ALL };
int island_trainer_follow(struct island_trainer *t, enum island_what what, struct err *err);

/* As trainer_step.  next: the batch of the step after this one, where that is known; else NULL.
 * -EDOM leaves every rank as it was; after any other failure of an island of several, weights and
 * moments are undefined until rank 0 is written to and followed. */
int island_trainer_step(struct island_trainer *t, const struct batch *b, const struct batch *next,
                        struct step_result *ret, struct err *err);

/* The next step, which must be of an island of several, leaves a file of Chrome's trace events at
 * path (worker/pipe/trace.h). */
void island_trainer_trace(struct island_trainer *t, const char *path);

/* For tests: another size of the buckets. */
void island_trainer_set_bucket(struct island_trainer *t, uint64_t bytes);

#endif
