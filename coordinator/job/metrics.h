/* Figures that are kept: losses, rounds and bytes.  Called where they come in; each is a row in the
 * store and an event.  Nothing is decided by them. */
#ifndef COORDINATOR_METRICS_H
#define COORDINATOR_METRICS_H

#include "coordinator/state/core.h"

struct Skerry__V1__LossPoint;

/* Points as a worker sent them, or the numbers of an evaluation; with the names of what those are.
 */
struct metrics_heard {
    struct Skerry__V1__LossPoint *const *points;
    size_t n;
    char *const *names;
    size_t n_names;
    const double *numbers;
    size_t n_numbers;
};

/* Points of a phase's loss curve, and of the numbers that its trainer names, of which a job can
 * have JOB_NUMBERS_MAX: what is beyond is left out, which is said once.  The job's own loss follows
 * with the turn. */
void metrics_points(struct coordinator *co, struct job *j, const struct task *t,
                    const struct metrics_heard *heard);
/* Before each commit. */
void metrics_turn(struct coordinator *co);
/* A held-out loss was measured, and what the trainer has numbers for beside it. */
void metrics_eval(struct coordinator *co, struct job *j, const struct task *t,
                  const struct metrics_heard *heard);
/* A round of a path is over. */
void metrics_round(struct coordinator *co, struct job *j, const struct round_rec *r);
/* A blob of ours was served; near: by a neighbour of the worker that asked. */
void metrics_served(struct coordinator *co, const struct blob_id *id, uint64_t bytes, bool near);
/* A contribution has come up. */
void metrics_uploaded(struct coordinator *co, struct job *j, const struct task *t,
                      const struct contribution *c);

#endif
