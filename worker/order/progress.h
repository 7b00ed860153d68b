/* How far the task at hand is: written by the compute thread, taken by the loop
 * thread for each heartbeat.  A small box under a lock, of fixed size: when loss
 * points come faster than heartbeats take them, neighbours are averaged. */
#ifndef WORKER_PROGRESS_H
#define WORKER_PROGRESS_H

#include <pthread.h>

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"

#define PROGRESS_POINTS_MAX 256
#define PROGRESS_ACTIVITY_MAX 129
#define PROGRESS_NUMBERS_MAX 16
#define PROGRESS_NUMBER_NAME_MAX 65

/* One inner step. */
struct progress_point {
    uint64_t step;
    float loss, lr;
    const double *numbers; /* by progress_number, NAN: none; NULL: the step has none at all */
};

/* How several devices share a step; devices 0: it is not known, or there is one.  The message is
 * whole but for filled_with, which is that of this very struct. */
struct progress_plan {
    Skerry__V1__StepPlan told;
    char filled_with[33];
};

struct progress_view {
    /* As a heartbeat carries it: activity and points lie in this very struct, and the loss is the
     * mean since the last take, or the last known one.  Ids are the caller's. */
    Skerry__V1__Progress told;
    double flops, peak_flops; /* FLOP/s; 0: not known */
    struct progress_plan plan;
    char activity[PROGRESS_ACTIVITY_MAX];
    Skerry__V1__LossPoint points[PROGRESS_POINTS_MAX], *list[PROGRESS_POINTS_MAX];
    double numbers[PROGRESS_POINTS_MAX][PROGRESS_NUMBERS_MAX];
    char number_names[PROGRESS_NUMBERS_MAX][PROGRESS_NUMBER_NAME_MAX], *names[PROGRESS_NUMBERS_MAX];
};

struct progress {
    pthread_mutex_t lock;
    struct progress_view view;
    double loss_sum;
    unsigned loss_n;
    uint64_t rate_ns, rate_samples; /* where the rate was last measured */
};

void progress_init(struct progress *p);
void progress_release(struct progress *p);

/* What people are shown that the task is at. */
void progress_activity(struct progress *p, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Steps that there will be. */
void progress_total(struct progress *p, uint32_t steps_total);

/* One inner step is done; samples is the sum so far. */
void progress_step(struct progress *p, const struct progress_point *point, float grad_norm,
                   uint64_t samples);

/* The place of a number of the trainer's in progress_point.numbers: the same for a name as long as
 * the task lasts.  -ERR_TRAINER with a sentence: no name, or a 17th.  One thread. */
int progress_number(struct progress *p, const char *name, struct err *err);

/* Other units: done of total.  A task in several parts begins each at 0; the samples that are told
 * are the units of all parts, which only grow: the coordinator takes that for progress. */
void progress_units(struct progress *p, uint32_t done, uint32_t total);

/* A trainer of the user's is at work, though it has told no step. */
void progress_sign(struct progress *p);

/* Model FLOP/s of the phase so far, and of products on the same devices (0: not known). */
void progress_rates(struct progress *p, double flops, double peak_flops);

/* How several devices share a step, and what one takes. */
void progress_step_plan(struct progress *p, const struct progress_plan *plan);

/* Copies all and empties the points; *ret stays where it is. */
void progress_take(struct progress *p, struct progress_view *ret);

#endif
