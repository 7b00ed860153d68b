/* Frozen layers in a pipeline's bubbles: what the next step's samples need runs while this step's
 * devices wait.
 *
 *     fill_schedule(&p, &plan, &opt, &schedule, &report, err);
 *
 * STICKY SAMPLES.  A device takes samples of its own through all frozen networks, and keeps what
 * they leave between layers.  In a bubble it runs the deepest layer that samples wait for, with as
 * many of them as fit into what is left of the bubble; if not even one fits, the next deepest.  So
 * a group is cut where a bubble ends, and goes on in the next one.  At most `scratch` samples are
 * on their way at a time.  What does not fit in bubbles runs behind STEP.
 *
 * Samples are divided by what each device gets through until a common end, and the end is the
 * earliest at which all are through: so what runs behind STEP is balanced.  Behind
 * all of that, and so behind CLIP, which goes over the same links, it sends what its samples became
 * to the stages that want it.
 *
 * All of it fits in the bubbles if rho M <= S - 1, where rho is the frozen over the trained time;
 * with more the devices are never idle but for what is left of bubbles.  A device without the
 * memory for the frozen weights takes no samples, nor does one that the plan says has none of them.
 * Pure. */
#ifndef WORKER_FILL_H
#define WORKER_FILL_H

#include "worker/pipe/check.h"

/* A pipeline may become slower by this share. */
#define FILL_DELAY_MAX 0.02

/* What an island fills with: samples that a device has on their way, and of one instruction. */
#define FILL_UNDERWAY 16
#define FILL_GROUP 8

struct fill_options {
    int samples;  /* of the next step, of this copy */
    int scratch;  /* of a device, on their way; fewer where memory is short */
    int group;    /* of one instruction, at most */
    double share; /* of a bubble's time that may be used; 0: all frozen work behind STEP */
};

struct fill_report {
    double before, seconds; /* of the step without frozen work, and with it */
    double idle;            /* share of all devices' time, with it */
    double inside;          /* share of the frozen time that lies in bubbles */
    double prologue;        /* seconds of the frozen work alone, as it is before the first step */
};

/* schedule: of plan, without frozen work; becomes the filled one (p without frozen networks: it
 * stays).  Measured by the simulator: a pipeline that becomes slower than FILL_DELAY_MAX allows is
 * filled again with a smaller share.  -ENOSPC: no device has room for the frozen weights; the
 * sentence says how much they need.  -ENOMEM: the host.  The schedule is then as it was. */
int fill_schedule(const struct costs *p, const struct pipe_plan *plan,
                  const struct fill_options *opt, struct pipe_schedule *schedule,
                  struct fill_report *ret, struct err *err);

/* Could one sample at least be on its way on device d? */
bool fill_has_room(const struct costs *p, const struct pipe_plan *plan, int d);

/* The frozen work of a filled schedule alone: encodes the first step's samples.  -ENOMEM. */
int fill_prologue(const struct pipe_schedule *filled, struct pipe_schedule *ret, struct err *err);

#endif
