/* Measures the costs of a model on an island, from which its training is planned
 * (worker/pipe/costs.h).
 *
 *     profile_get(is, model, &opt, state_dir, &costs, err);
 *     planner_search(&costs, ...);
 *     costs_release(&costs);
 *
 * For each chain three parts of one block each are made on every device at once: the first with the
 * embedders, one from the middle, and the last with the head.  Their forward and backward are timed
 * at two sizes of micro-batch, on inputs of zeros and without encoders.  Blocks in between get the
 * middle one's times.  The optimiser's update is timed per element, a link by round trips of
 * messages.
 *
 * A profile is kept in a file in the state directory, named by model, options and devices; people
 * and `workerd --plan` may read it.  All calls on the compute thread; the island is cut anew. */
#ifndef WORKER_TRAIN_PROFILE_H
#define WORKER_TRAIN_PROFILE_H

#include "worker/pipe/costs.h"
#include "worker/train/island_train.h"

/* Reads the file if there is one, else measures.  Frozen networks that could run in the bubbles of
 * a pipeline (opt->fill) are opened and timed, layer by layer, on all devices at once, too.
 *
 * opt: for the whole step.  memory: bytes on each device that training may take.  -EINVAL: a model
 * of one block, or one that cannot be cut. */
int profile_get(struct island *is, const struct model *m, const struct train_options *opt,
                uint64_t memory, const char *state_dir, struct costs *ret, struct err *err);
/* Plans whose predictions are within this factor are tried. */
#define PROFILE_CLOSE 1.35
/* Seconds of a step: `least`, the fastest one's, to compare plans; `mean`, over all steps, which
 * other programs on the machine prolong just as they will prolong a job's steps. */
struct profile_time {
    double least, mean;
};
/* Times a plan: makes a trainer, takes a few steps on zeros, and frees it.  opt, plan and costs are
 * island_trainer_new's.  -ENOMEM: it does not fit at present. */
int profile_try(struct island *is, const struct model *m, const struct train_options *opt,
                const struct pipe_plan *plan, const struct costs *costs, struct profile_time *ret,
                struct err *err);
/* Seconds of a forward of opt->batch samples without gradients, on the first device. */
int profile_forward(struct island *is, const struct model *m, const struct train_options *opt,
                    double *ret, struct err *err);
/* Bytes a second that the device copies from the host's memory; 0: it cannot be measured. */
double profile_host_rate(struct device *dev);
/* The next profile_get measures again. */
void profile_forget(const struct island *is, const struct model *m, const struct train_options *opt,
                    const char *state_dir);

#endif
