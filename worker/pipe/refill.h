/* Bubbles filled again by what steps took, where they were filled by what a profile predicts.
 *
 *     struct refill r = {.share = 1};
 *     for (;;) {                                 // steps that are alike: of as many samples
 *         struct refill_times seen = {0};
 *         refill_read(&seen, &p, device, list, trace);       // of each device of each copy
 *         if (refill_step(&r, &seen, seconds))
 *             ...                                // lists are made anew, of r.share of the bubbles
 *     }
 *
 *   SETTLES ─► EMPTY ───────────────► TRIES ─────────────────────────────────► DONE
 *              nothing in bubbles     all of them; smaller shares while the
 *                                     pipeline is delayed by more than
 *                                     FILL_DELAY_MAX
 *
 * Once EMPTY is over refill_correct makes costs those of its steps, in which no frozen layer runs
 * beside a stage: so what fits a bubble is known.  What it does to the other devices,
 * with which it may share memory, TRIES shows.  DONE keeps the share, none included, whose steps
 * were fastest: a delay that saves more behind STEP than it costs stays.  Pure. */
#ifndef WORKER_REFILL_H
#define WORKER_REFILL_H

#include "worker/pipe/simulate.h"

#define REFILL_SETTLED 16   /* steps before anything is measured */
#define REFILL_STEPS 4      /* of which the fastest counts */
#define REFILL_SMALLER 0.8  /* of the share before */
#define REFILL_SHARES_MAX 5 /* tried */

/* What a step took.  Zeros: nothing was seen. */
struct refill_times {
    double pipeline; /* seconds until the last STEP is over */
    /* Of an F, a B and a W of a chain that has samples, on the slowest copy's device. */
    double passes[COSTS_CHAINS_MAX][COSTS_DEVICES_MAX][3];
    double frozen[COSTS_FROZEN_MAX]; /* over what the costs say, of the device where most */
};

/* As drawn above. */
enum refill_state { REFILL_SETTLES, REFILL_EMPTY, REFILL_TRIES, REFILL_DONE };

struct refill {
    enum refill_state state;
    double share;              /* of bubbles that steps fill now: fill_options */
    int steps, shares;         /* of this share; tried */
    double least, pipeline;    /* seconds of the fastest step of this share, and its pipeline's */
    struct refill_times times; /* the least of those of EMPTY's steps */
    double empty;              /* seconds of the fastest step of EMPTY */
    double best, best_share, delay; /* seconds of the fastest step of all; how it was filled */
};

/* Takes in what a device did in a step. */
void refill_read(struct refill_times *t, const struct costs *p, int device,
                 const struct pipe_list *list, const struct trace *trace);

/* After a step that was filled so and took so many seconds; true: share or state are others now. */
bool refill_step(struct refill *r, const struct refill_times *seen, double seconds);

/* p (of one copy) becomes what was seen: the layers of each stage in proportion, by the slowest of
 * its devices, and those of each frozen network.  A plan that is not split has B and W as one. */
void refill_correct(const struct refill_times *t, const struct pipe_plan *plan, struct costs *p);

#endif
