/* Cuts of chains into stages, by a dynamic program over the critical path.
 *
 *     C = (f + b + w of the stage's layers at u/r samples) / its slowest device's speed
 *     X = 2 (alpha + bytes of u/r samples / beta), of the link above the stage: ranks send at once
 *     Y = the sum of its gradients over its r devices and all copies
 *     P[e][l][d] = the pairs (greatest C or X, greatest Y) of which none is beaten in both, of
 *                  layers l.. in e+1 stages on the last d devices
 *                = of all l < k and r < d:  stage l..k on r devices, before P[e-1][k][d-r]
 *
 * A stage with e behind it must fit with min(M, e+1) slots: with fewer 1F1B does not flow.  Minimal
 * is (M + 2S - 2) T0 + Y, an upper bound of the step's time where warm-ups are many enough
 * (schedule.h); which of the best cuts is fastest, only a simulation knows.  The program runs from
 * the last layer, because a stage's slots follow from how many are behind it.
 *
 * Of two chains on the same devices, one stage of each on each device:
 *
 *     Q[la][lb][d] = least T0 of the first la layers of A and the first lb of B (reversed: the last
 *                    lb of B) on the first d devices;  a device's time is C_A + C_B
 *
 * Memory of others on a device counts against it.  Pure. */
#ifndef WORKER_CUTS_H
#define WORKER_CUTS_H

#include "worker/pipe/schedule.h"

/* Cuts that are worse than the best of as many stages by this factor are not looked at. */
#define CUTS_WORSE 3

/* A chain on all devices of p, in their order. */
struct cuts_problem {
    const struct costs *p;
    int chain;
    int micros, samples; /* M, and u of each */
    int copies;
    bool shard;
    int stages; /* so many only; 0: any */
    int width;  /* most devices of a stage; 0: any */
};

struct cuts_found {
    struct pipe_cut cut; /* without warm-ups and slots */
    double t0, y;
    double seconds; /* (M + 2S - 2) T0 + Y */
    double flow;    /* (M - 1) T0 + the way of one micro-batch + Y: orders those of equal seconds */
};

/* The `most` best for each number of stages, best first by `seconds`: at most `most` times the
 * devices, which ret has room for.  None: *n is 0.  -ENOMEM. */
int cuts_best(const struct cuts_problem *c, int most, struct cuts_found *ret, int *n,
              struct err *err);

/* Two chains, as many stages as devices.  false in *found: nothing fits. */
int cuts_pair(const struct cuts_problem c[2], bool reversed, struct pipe_cut ret[2], double *t0,
              bool *found, struct err *err);

#endif
