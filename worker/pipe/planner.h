/* Finds the plan that makes a step of an island shortest: the best of each order, and the best of
 * those.
 *
 *     planner_search(&p, &opt, &result, err);
 *     const struct planner_candidate *c = &result.of[result.chosen];
 *     c->schedule, c->seconds; result.why
 *     planner_release(&result);
 *
 * For each number of equal copies that divides the devices, and each number of micro-batches, the
 * cuts that are best by their bound (cuts.h) are scheduled, with the fewest and the most warm-ups
 * that 1F1B can use and memory allows, and timed by the simulator; the fastest also with W split
 * off; then the fastest of each order are filled with frozen layers.  For two chains each division
 * of the devices is tried, with the best cut of each chain on its own devices.
 *
 * `auto` takes the fastest, and of those within PLANNER_SAME of it the simplest: data parallelism,
 * 1F1B, divided, bidirectional, split.  Devices with the same layers share the optimiser's state if
 * that is asked for, or the model would not fit otherwise.
 *
 * Pure: the same profile and options give the same plan. */
#ifndef WORKER_PLANNER_H
#define WORKER_PLANNER_H

#include "common/job/job.h"
#include "worker/pipe/fill.h"

#define PLANNER_MICROS_MAX 17 /* powers of two up to the largest batch of a job */
#define PLANNER_WHY_MAX 320
/* Plans whose steps differ by less than this share count as equally fast. */
#define PLANNER_SAME 0.02
/* Cuts considered for each number of stages, and the most that the simulator times for each
 * number of copies and micro-batches. */
#define PLANNER_CUTS 64
#define PLANNER_TIMED 128

#define PLANNER_BIT(order) (1u << (order))

/* Bits of the orders of pipelines that a job's train.pipeline allows. */
unsigned planner_orders(enum job_pipeline asked);

struct planner_options {
    int samples;                              /* samples of a step, in all copies together */
    int n_micros, micros[PLANNER_MICROS_MAX]; /* numbers to try per copy, if they divide its step */
    int stages;           /* only this many, if divided in both chains together; 0: any */
    int width;            /* most devices of a pipeline's stage; 0: any */
    unsigned orders;      /* bits of allowed orders; 0: any */
    enum job_shard shard; /* auto: moments are shared if they would not fit otherwise */
    bool fill;            /* else frozen layers run after STEP */
    int group;            /* as in fill_options */
    double estimate;      /* share of the steps that begin with an estimate (pipe_plan) */
};

/* Sets the numbers of micro-batches to try if they are automatic: powers of two from `least` to
 * `most`, or `least` if there is none. */
void planner_powers(struct planner_options *opt, int least, int most);

struct planner_candidate {
    bool possible;
    char why[PLANNER_WHY_MAX]; /* why not */
    struct pipe_plan plan;
    double bound;                  /* (M + 2S - 2) T0 + Y */
    double plain;                  /* seconds of a step without FROZEN */
    double seconds;                /* seconds with them, and with the share of `estimate` */
    double least;                  /* the shortest step: without estimate, unless all have one */
    double estimate;               /* seconds that an estimate adds to a step */
    double idle_before, idle;      /* idle share of all devices' time without, with frozen layers */
    double inside;                 /* share of the frozen work that lies in bubbles */
    uint64_t memory;               /* bytes on the device that needs most */
    struct pipe_schedule schedule; /* the schedule of each copy */
};

struct planner_result {
    struct planner_candidate of[PIPE_ORDERS];
    enum pipe_order chosen;
    char why[PLANNER_WHY_MAX]; /* why it was chosen: one sentence */
};

/* -ERR_CONFIG: the options cannot be met (no such number of stages, no number of micro-batches
 * divides the samples); -ENOMEM: no plan fits on these devices, or the host has no memory. */
int planner_search(const struct costs *p, const struct planner_options *opt,
                   struct planner_result *ret, struct err *err);
void planner_release(struct planner_result *r);

/* The figures of a given plan, such as one whose frozen networks lie elsewhere than the planner had
 * put them (pipe_plan.bare); of `opt` only the options of frozen work and estimates are read.
 * ret->plan is the given one, and ret->schedule stays empty.  -ENOMEM. */
int planner_time(const struct costs *p, const struct planner_options *opt,
                 const struct pipe_plan *plan, struct planner_candidate *ret, struct err *err);

#endif
