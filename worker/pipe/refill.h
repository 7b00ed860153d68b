/* Fills bubbles again by measured steps, after they were filled by a profile's predictions.
 *
 *     struct refill r = {.share = 1};
 *     for (;;) {                                 // steps of equal numbers of samples
 *         struct refill_times seen = {0};
 *         refill_read(&seen, &p, device, list, trace);       // for each device of each copy
 *         if (refill_step(&r, &seen, seconds))
 *             ...                                // make the lists anew, with r.share
 *     }
 *
 *   SETTLES ─► EMPTY ───────────────► TRIES ─────────────────────────────────► DONE
 *              nothing in bubbles     whole bubbles; smaller shares while the
 *                                     pipeline is delayed by more than
 *                                     FILL_DELAY_MAX
 *
 * After EMPTY, refill_correct corrects the costs to those of its steps, in which no frozen layer
 * runs beside a stage: so it is known what fits a bubble.  TRIES shows how frozen work slows the
 * other devices, with which it may share memory.  DONE keeps the share whose steps were fastest,
 * which may be none: a delay stays if it saves more after STEP than it costs.  Pure. */
#ifndef WORKER_REFILL_H
#define WORKER_REFILL_H

#include "worker/pipe/simulate.h"

#define REFILL_SETTLED 16   /* steps before anything is measured */
#define REFILL_STEPS 4      /* steps of one share, of which the fastest counts */
#define REFILL_SMALLER 0.8  /* the next share over the one before */
#define REFILL_SHARES_MAX 5 /* most shares tried */

/* Measured times of a step.  Zeros: nothing was seen. */
struct refill_times {
    double pipeline; /* seconds until the last STEP is over */
    /* Seconds of an F, a B and a W that has samples, on the slowest copy's device. */
    double passes[COSTS_CHAINS_MAX][COSTS_DEVICES_MAX][3];
    double frozen[COSTS_FROZEN_MAX]; /* measured over predicted time, on the slowest device */
};

/* The states drawn above. */
enum refill_state { REFILL_SETTLES, REFILL_EMPTY, REFILL_TRIES, REFILL_DONE };

struct refill {
    enum refill_state state;
    double share;              /* share of bubbles that steps fill now (fill_options) */
    int steps, shares;         /* steps with this share; shares tried */
    double least, pipeline;    /* least seconds of a step with this share, and of its pipeline */
    struct refill_times times; /* the least times of EMPTY's steps */
    double empty;              /* seconds of the fastest step of EMPTY */
    double best, best_share, delay; /* seconds of the fastest step so far, its share and delay */
};

/* Adds a device's trace of a step to t. */
void refill_read(struct refill_times *t, const struct costs *p, int device,
                 const struct pipe_list *list, const struct trace *trace);

/* After a step filled with r->share that took `seconds`; true: share or state has changed. */
bool refill_step(struct refill *r, const struct refill_times *seen, double seconds);

/* Scales the costs p (of one copy) to the measured times: the layers of each stage by its slowest
 * device, and those of each frozen network.  In a plan that is not split B and W are one. */
void refill_correct(const struct refill_times *t, const struct pipe_plan *plan, struct costs *p);

#endif
