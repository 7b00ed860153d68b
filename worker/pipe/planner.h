/* Which plan makes a step of an island shortest: the best of each order, and which of those.
 *
 *     planner_search(&p, &opt, &result, err);
 *     const struct planner_candidate *c = &result.of[result.chosen];
 *     c->schedule, c->seconds; result.why
 *     planner_release(&result);
 *
 * For each number of equal copies that divides the devices, and each number of micro-batches, the
 * cuts that are best by their bound (cuts.h) are scheduled, with as few and as many warm-ups as
 * 1F1B makes use of and memory allows, and timed by the simulator; the fastest also with W split
 * off; then the fastest of each order are filled with frozen layers.  Of two chains each way to
 * divide the devices is tried, each chain cut as is best on its own ones.
 *
 * `auto` takes the fastest, and of those within PLANNER_SAME of it the simplest: data parallelism,
 * 1F1B, divided, bidirectional, split.  Data parallelism shares its optimiser's state out where it
 * would not fit otherwise; so do copies of pipelines.
 *
 * Pure: the same profile and options give the same plan. */
#ifndef WORKER_PLANNER_H
#define WORKER_PLANNER_H

#include "common/job/job.h"
#include "worker/pipe/fill.h"

#define PLANNER_MICROS_MAX 16
#define PLANNER_WHY_MAX 320
/* Plans whose steps differ by less than this share are as fast as each other. */
#define PLANNER_SAME 0.02
/* Cuts that are looked at for each number of stages, and those of them that the simulator times,
 * for each number of copies and micro-batches. */
#define PLANNER_CUTS 64
#define PLANNER_TIMED 128

#define PLANNER_BIT(order) (1u << (order))

/* Bits of the orders of pipelines that a job's train.pipeline allows. */
unsigned planner_orders(enum job_pipeline asked);

struct planner_options {
    int samples;                              /* of a step, of all copies together */
    int n_micros, micros[PLANNER_MICROS_MAX]; /* of a copy's step: tried, where they divide it */
    int stages;         /* so many only, divided: of both chains together; 0: any */
    int width;          /* most devices of a pipeline's stage; 0: any */
    unsigned orders;    /* bits of those that may be; 0: any */
    bool shard;         /* moments and master weights may be shared out, where they would not fit */
    bool fill;          /* else frozen layers run behind STEP */
    int scratch, group; /* as fill_options */
    double estimate;    /* share of the steps that begin with one (pipe_plan) */
};

struct planner_candidate {
    bool possible;
    char why[PLANNER_WHY_MAX]; /* why not */
    struct pipe_plan plan;
    double bound;                  /* (M + 2S - 2) T0 + Y */
    double plain;                  /* seconds of a step without frozen layers */
    double seconds;                /* with them, and with the share of `estimate` */
    double least;                  /* of the fastest: without an estimate, unless all have one */
    double estimate;               /* seconds that an estimate adds to a step that has one */
    double idle_before, idle;      /* share of all devices' time: without and with them */
    double inside;                 /* share of the frozen work that lies in bubbles */
    uint64_t memory;               /* bytes, of the device that needs most */
    struct pipe_schedule schedule; /* of each copy */
};

struct planner_result {
    struct planner_candidate of[PIPE_ORDERS];
    enum pipe_order chosen;
    char why[PLANNER_WHY_MAX]; /* the chosen one: one sentence */
};

/* -ERR_CONFIG: what is asked for cannot be (no such number of stages, nothing divides the samples);
 * -ENOMEM: nothing fits on these devices, or the host has no memory. */
int planner_search(const struct costs *p, const struct planner_options *opt,
                   struct planner_result *ret, struct err *err);
void planner_release(struct planner_result *r);

/* The figures of one plan, such as one whose frozen networks lie elsewhere than the planner had put
 * them (pipe_plan.bare); of `opt` what is asked of frozen work and estimates counts.  The plan is
 * as given, the schedule left out.  -ENOMEM. */
int planner_time(const struct costs *p, const struct planner_options *opt,
                 const struct pipe_plan *plan, struct planner_candidate *ret, struct err *err);

#endif
