/* Finds a plan of a phase that fits the memory of an island's devices, before anything is measured;
 * if none does, says what each device would need and what would fit.
 *
 *     struct phase_room r = {island};
 *     plan_room(.., &r.each);
 *     rc = phase_fit(&r, model, &opt, &plan, err);       // -ENOMEM: one sentence
 *
 * Pure, except for queries of the devices.  Compute thread. */
#ifndef WORKER_PHASE_FIT_H
#define WORKER_PHASE_FIT_H

#include "worker/engine/phase_plan.h"
#include "worker/train/island_train.h"

struct phase_room {
    const struct island *is;
    struct plan_room each; /* of the tightest device */
};

/* Whether the network of a model can be cut, and the job allows it. */
bool phase_may_cut(const struct model *m, const struct train_options *opt);

/* opt's numbers become the plan's, where they are for us to choose. */
void phase_take(struct train_options *opt, const struct phase_plan *plan);

/* Data parallelism where it fits and nothing else is asked for, else the fewest stages that do;
 * such that do not divide the devices where none that does will do, of one chain; also such that
 * the first stage has no room for the frozen encoders (ret->spread), where nothing else is.
 *
 * -ENOMEM: "in 2 stages the model needs 91.2 MiB and 80.1 MiB on a device (60.0 MiB of model and
 * optimiser, 31.2 MiB of micro-batches where it is most), but cpu has 64.0 MiB; train.stages: 4
 * needs 52.3 MiB on each device". */
int phase_fit(const struct phase_room *r, const struct model *m, struct train_options *opt,
              struct phase_plan *ret, struct err *err);

/* The same of a plan that stands: can the devices hold their parts of ret->pipe?  Sets its memory,
 * and where the frozen networks lie. */
int phase_fit_parts(const struct phase_room *r, const struct model *m,
                    const struct train_options *opt, struct phase_plan *ret, struct err *err);

#endif
