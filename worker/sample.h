/* Drawing samples: the flow's ODE from noise at t = 1 to an image at t = 0, with
 * classifier-free guidance (Ho & Salimans 2022):
 *
 *    v = v(null) + guidance (v(label) - v(null));   dx/dt = v
 *
 * Euler takes one evaluation a step, Heun two and is of second order.  The noise of
 * sample i is a function of (seed, i): equal for every batch size and device. */
#ifndef WORKER_SAMPLE_H
#define WORKER_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/dit.h"

struct err;

struct sample_options {
    int steps;      /* 1..1000 */
    bool heun;      /* else Euler */
    float guidance; /* 1: off, half the work */
    uint64_t seed;
    /* Called after every step with evaluations done and in all; nonzero stops the run
     * with -ERR_CANCELLED.  May be NULL. */
    int (*progress)(void *arg, unsigned done, unsigned total);
    void *arg;
};

/* images (count, S, S, 3) u8 on the host, rows from the top, RGB.  labels (count) in
 * [0, classes].  d is any dit; with guidance a call runs batch/2 samples at once
 * (d's batch must then be at least 2). */
int sample_run(struct dit *d, const struct sample_options *opt, const int32_t *labels, int count,
               uint8_t *images, struct err *err);

/* The same, as f32 (count, 3, S, S) before clamping; for tests. */
int sample_run_f32(struct dit *d, const struct sample_options *opt, const int32_t *labels,
                   int count, float *images, struct err *err);

#endif
