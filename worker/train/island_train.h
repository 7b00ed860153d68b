/* Training of one replica on all devices of an island: what worker/train/train.h is on one.
 *
 *     island_trainer_new(is, model, &opt, &t, err);
 *     trainer_set(island_trainer_first(t), flat, err);        // rank 0 is what people see
 *     island_trainer_follow(t, ISLAND_ALL, err);              // the others are as rank 0
 *     island_trainer_step(t, &batch, &r, err);
 *     trainer_get(island_trainer_first(t), flat, err);
 *
 * Every rank has a whole trainer: weights, moments, EMA, gradients.  A step cuts the batch
 * over the ranks by position; the sample at position i draws what it draws on one device.
 * The gradients of the ranks are summed in buckets while the backward still runs, then
 * every rank makes the same update, so the ranks' weights stay equal to the bit.
 *
 * On an island of one this is the trainer itself: same calls, same bits.
 *
 * All calls on the compute thread. */
#ifndef WORKER_ISLAND_TRAIN_H
#define WORKER_ISLAND_TRAIN_H

#include "common/base/base.h"
#include "worker/train/island.h"
#include "worker/train/train.h"

struct island_trainer;

/* Gradients are summed in pieces of about this size. */
#define ISLAND_BUCKET_BYTES (25u << 20)

/* What a rank's trainer is made with: its share of the batch, in as many micro-batches. */
void island_share_options(const struct train_options *opt, int ranks, struct train_options *ret);

/* As trainer_make, on every rank; m is borrowed.  follow comes before the first step. */
int island_trainer_new(struct island *is, const struct model *m, const struct train_options *opt,
                       struct island_trainer **ret, struct err *err);
void island_trainer_free(struct island_trainer *t); /* accepts NULL */

/* The whole step's. */
const struct train_options *island_trainer_options(const struct island_trainer *t);
/* Rank 0's: position, reads and writes go through it. */
struct trainer *island_trainer_first(const struct island_trainer *t);
struct trainer *island_trainer_rank(const struct island_trainer *t, int rank);

/* After rank 0 was written to: the other ranks take over its weights, or all of its state
 * (weights, moments, EMA, Adam's count, position). */
enum island_what { ISLAND_WEIGHTS, ISLAND_ALL };
int island_trainer_follow(struct island_trainer *t, enum island_what what, struct err *err);

/* As trainer_step.  -EDOM leaves every rank as it was; after any other failure of an
 * island of several, weights and moments are undefined until rank 0 is written to and
 * followed. */
int island_trainer_step(struct island_trainer *t, const struct batch *b, struct step_result *ret,
                        struct err *err);

/* For tests: another size of the buckets. */
void island_trainer_set_bucket(struct island_trainer *t, uint64_t bytes);

#endif
