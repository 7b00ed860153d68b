/* How the devices of a worker share a phase of training, and how that is reported: in the log, in
 * the status, to the coordinator.  Plain data; compute thread. */
#ifndef WORKER_PHASE_PLAN_H
#define WORKER_PHASE_PLAN_H

#include "common/base/base.h"
#include "worker/order/progress.h"
#include "worker/pipe/schedule.h"
#include "worker/train/plan.h"
#include "worker/train/train_options.h"

struct phase_plan {
    struct pipe_plan pipe;
    struct plan memory; /* what the device that needs most needs */
    int accumulate;
    bool lean;
    double seconds; /* of a step, predicted; 0: nothing was measured */
    double least;   /* of the fastest: without an estimate, unless all have one */
    double idle_before,
        idle;            /* shares of the devices' time: without frozen layers in it and with */
    double inside;       /* share of the frozen layers' work that lies in bubbles */
    bool spread;         /* the first stage has no room for the frozen encoders, another has: it
                          * can be only where those run ahead */
    struct costs *costs; /* what the pipeline's lists are made by; NULL: nothing was measured, or it
                          * does not matter */
};

/* Micro-batches per stage of a pipeline if the job leaves them to us: enough that bubbles are at
 * most a fifth of the time. */
#define PHASE_MICROS_PER_STAGE 4

bool phase_plan_fills(const struct phase_plan *plan); /* bubbles, with frozen layers */

/* Why the phase has no pipeline although the job asks for one; NULL: it has one, or need not. */
const char *phase_plan_why_whole(const struct phase_plan *plan, const struct train_options *opt,
                                 bool may_cut);

/* The cost of fewer micro-batches than stages, as a sentence; false: there are enough. */
bool phase_plan_idles(const struct phase_plan *plan, const struct train_options *opt, char *out,
                      size_t size);

/* The log: memory, and what the job asks for that cannot be.  may_cut: that of its network. */
void phase_plan_say(const struct phase_plan *plan, const struct train_options *opt, bool may_cut);

/* " in 2 stages on 1 + 2 devices, 4 micro-batches, idle 17 %, filled 4 %"; nothing of one
 * device. */
void phase_plan_way(const struct phase_plan *plan, char *out, size_t size);

/* The plan for the coordinator, which shows it. */
void phase_plan_tell(const struct phase_plan *plan, struct progress_plan *ret);

#endif
