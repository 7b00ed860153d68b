/* Cuts of chains into stages, by a dynamic program over the critical path.
 *
 *     C = (f + b + w of the stage's layers at u/r samples) / its slowest device's speed
 *     X = 2 (alpha + bytes of u/r samples / beta) on the link above the stage: ranks send at once
 *     Y = seconds to sum its gradients over its r devices and all copies
 *     P[e][l][d] = the pairs (greatest C or X, greatest Y) that no other beats in both, for
 *                  layers l.. in e+1 stages on the last d devices
 *                = over all l < k and r < d:  stage l..k on r devices, before P[e-1][k][d-r]
 *
 * A stage with e stages behind it must fit with min(M, e+1) slots: with fewer, 1F1B stalls.
 * (M + 2S - 2) T0 + Y is minimised, an upper bound of the step's time if there are enough warm-ups
 * (schedule.h); only a simulation tells which of the best cuts is fastest.  The program runs from
 * the last layer, because a stage's slots follow from the number of stages behind it.
 *
 * For two chains on the same devices, with one stage of each on each device:
 *
 *     Q[la][lb][d] = least T0 of the first la layers of A and the first lb of B (reversed: the last
 *                    lb of B) on the first d devices;  a device's time is C_A + C_B
 *
 * The memory of both stages on a device counts.  Pure. */
#ifndef WORKER_CUTS_H
#define WORKER_CUTS_H

#include "worker/pipe/schedule.h"

/* Cuts worse by this factor than the best with as many stages are not looked at. */
#define CUTS_WORSE 3

/* A chain on all devices of p, in their order. */
struct cuts_problem {
    const struct costs *p;
    int chain;
    int micros, samples; /* M, and u of each */
    int copies;
    bool shard;
    int stages; /* only this many; 0: any */
    int width;  /* most devices of a stage; 0: any */
};

struct cuts_found {
    struct pipe_cut cut; /* without warm-ups and slots */
    double t0, y;
    double seconds; /* (M + 2S - 2) T0 + Y */
    double flow;    /* (M - 1) T0 + one micro-batch's way + Y: orders cuts of equal seconds */
};

/* The `most` best cuts for each number of stages, best first by `seconds`: ret has room for `most`
 * times the number of devices.  *n is 0 if there are none.  -ENOMEM. */
int cuts_best(const struct cuts_problem *c, int most, struct cuts_found *ret, int *n,
              struct err *err);

/* Two chains, each with as many stages as devices.  *found is false if nothing fits. */
int cuts_pair(const struct cuts_problem c[2], bool reversed, struct pipe_cut ret[2], double *t0,
              bool *found, struct err *err);

#endif
