/* Frozen layers in a pipeline's bubbles: they run over the next step's samples while this step's
 * devices would wait.
 *
 *     fill_schedule(&p, &plan, &opt, &schedule, &report, err);
 *
 * STICKY SAMPLES.  A device takes its own samples through all frozen networks, and keeps their
 * states between layers.  In a bubble it runs the deepest layer for which samples wait, with as
 * many of them as fit into the rest of the bubble; if not even one fits, the next deepest.  So
 * a group is cut where a bubble ends, and goes on in the next one.  At most FILL_UNDERWAY samples
 * are on their way at a time.  Work that does not fit in bubbles runs after STEP.
 *
 * The devices get samples in proportion to their progress until a common end, the earliest at which
 * all samples are done: so the work after STEP is balanced.  After all of that, and so after CLIP,
 * which uses the same links, each device sends the encoded samples to the stages that read them.
 *
 * All work fits in the bubbles if rho M <= S - 1, where rho is the frozen over the trained time;
 * with more, devices are idle only in the rests of bubbles.  A device that has no frozen network by
 * the plan (pipe_plan.bare) takes no samples.  Pure. */
#ifndef WORKER_FILL_H
#define WORKER_FILL_H

#include "worker/pipe/check.h"

/* A pipeline may become slower by this share. */
#define FILL_DELAY_MAX 0.02

/* An island's option: samples of one instruction. */
#define FILL_GROUP 8

struct fill_options {
    int samples;  /* samples of the next step in this copy */
    int group;    /* most samples of one instruction */
    double share; /* share of a bubble's time that may be used; 0: all frozen work after STEP */
};

struct fill_report {
    double before, seconds;   /* seconds of the step without frozen work, and with it */
    double idle_before, idle; /* idle shares of all devices' time, likewise */
    double inside;            /* share of the frozen time that lies in bubbles */
    double prologue; /* seconds of the frozen work alone, as it runs before the first step */
};

/* Where the frozen networks lie: bare become the plan's devices that have no room for them with
 * FILL_UNDERWAY samples.  -ENOSPC: no device has, and err says how much they need. */
int fill_place(const struct costs *p, struct pipe_plan *plan, struct err *err);

/* schedule is the plan's, without frozen work, and becomes the filled one (without frozen networks
 * in p it stays as it is).  If by the simulator the pipeline becomes slower than FILL_DELAY_MAX
 * allows, it is filled again with a smaller share.  -EINVAL: all devices are bare.  -ENOMEM: the
 * host.  On an error the schedule stays. */
int fill_schedule(const struct costs *p, const struct pipe_plan *plan,
                  const struct fill_options *opt, struct pipe_schedule *schedule,
                  struct fill_report *ret, struct err *err);

/* Only the frozen work of a filled schedule: encodes the first step's samples.  -ENOMEM. */
int fill_prologue(const struct pipe_schedule *filled, struct pipe_schedule *ret, struct err *err);

#endif
