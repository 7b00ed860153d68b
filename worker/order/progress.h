/* The progress of the present task: written by the compute thread, copied by the loop thread for
 * each heartbeat.  It has a lock and a fixed size: a loss point stays until the coordinator has
 * heard it, and when they come faster than that, neighbours are averaged. */
#ifndef WORKER_PROGRESS_H
#define WORKER_PROGRESS_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/base.h"
#include "proto/skerry.pb-c.h"

#define PROGRESS_POINTS_MAX 256
#define PROGRESS_ACTIVITY_MAX 129
#define PROGRESS_NUMBERS_MAX 16
#define PROGRESS_NUMBER_NAME_MAX 65

/* One inner step. */
struct progress_point {
    uint64_t step;
    float loss, lr;        /* loss NAN: the step was skipped, and has no point */
    uint32_t skipped;      /* steps of the phase so far */
    const double *numbers; /* by progress_number, NAN: none; NULL: the step has none at all */
};

/* How several devices share a step; devices 0: unknown, or there is only one.  The message is
 * complete except for filled_with, which is this struct's. */
struct progress_plan {
    Skerry__V1__StepPlan told;
    char filled_with[33];
};

struct progress_view {
    /* As a heartbeat carries it.  Activity and points are in this struct; the loss is the mean
     * since the last take, or the last known one.  The caller fills the ids. */
    Skerry__V1__Progress told;
    double flops, peak_flops; /* FLOP/s; 0: unknown */
    struct progress_plan plan;
    char activity[PROGRESS_ACTIVITY_MAX];
    Skerry__V1__LossPoint points[PROGRESS_POINTS_MAX], *list[PROGRESS_POINTS_MAX];
    double numbers[PROGRESS_POINTS_MAX][PROGRESS_NUMBERS_MAX];
    char number_names[PROGRESS_NUMBERS_MAX][PROGRESS_NUMBER_NAME_MAX], *names[PROGRESS_NUMBERS_MAX];
};

struct progress {
    pthread_mutex_t lock;
    struct progress_view view;
    double loss_sum; /* since the last copy */
    unsigned loss_n;
    uint64_t rate_ns, rate_samples; /* where the rate was last measured */
    uint64_t moved_ns;              /* the last step or unit, or progress_hear() */
};

void progress_init(struct progress *p);
void progress_release(struct progress *p);

/* The activity shown to people. */
void progress_activity(struct progress *p, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The number of steps to come in all. */
void progress_total(struct progress *p, uint32_t steps_total);

/* An inner step is done: the phase has had so many steps and samples, with those before it was cut.
 */
void progress_step(struct progress *p, const struct progress_point *point, float grad_norm,
                   uint32_t steps, uint64_t samples);

/* The index of a trainer's number in progress_point.numbers; a name keeps its index for the whole
 * task.  -ERR_TRAINER with a sentence: an invalid name, or a 17th.  One thread. */
int progress_number(struct progress *p, const char *name, struct err *err);

/* Progress in other units: done of total.  A task in several parts begins each at 0; the samples
 * reported are the units of all parts, which only grow, as the coordinator's progress must. */
void progress_units(struct progress *p, uint32_t done, uint32_t total);

/* This thread's pieces (common/base/pieces.h) are signs until pieces_hear(NULL), for at most an
 * hour without a step or unit: a checkpoint may take long to write, or a model to draw. */
void progress_hear(struct progress *p);

/* Work of the compute thread that is no task's, but for which one may wait: its pieces are counted
 * until pieces_hear(NULL).  If any were done since the last call, that is a sign of the task whose
 * progress is told; NULL: there is none. */
struct progress_beside {
    atomic_uint pieces;
    unsigned told;
};
void progress_hear_beside(struct progress_beside *b);
void progress_tell_beside(struct progress_beside *b, struct progress *to);

/* A user's trainer is at work, though it has reported no step. */
void progress_sign(struct progress *p);
uint64_t progress_signs(struct progress *p); /* so far */

/* Model FLOP/s of the phase so far, and the peak of matrix products on its devices (0: unknown). */
void progress_rates(struct progress *p, double flops, double peak_flops);

/* How several devices share a step, and how long a step takes. */
void progress_step_plan(struct progress *p, const struct progress_plan *plan);

/* Copies all; *ret must not be moved, since it points into itself. */
void progress_take(struct progress *p, struct progress_view *ret);

/* The coordinator has heard the points of the steps before `next`: they are not told again. */
void progress_heard(struct progress *p, uint64_t next);

#endif
