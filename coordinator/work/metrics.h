/* Records losses, rounds and bytes.  Called where they arrive; each becomes a row in the store and
 * an event.  No decision depends on them. */
#ifndef COORDINATOR_METRICS_H
#define COORDINATOR_METRICS_H

#include "coordinator/state/core.h"
#include "proto/skerry.pb-c.h"

/* Points as a worker sent them, or the numbers of an evaluation, with the numbers' names. */
struct metrics_heard {
    Skerry__V1__LossPoint *const *points;
    size_t n;
    char *const *names;
    size_t n_names;
    const double *numbers;
    size_t n_numbers;
};

/* Points of a phase's loss curve and of its trainer's own numbers, by rising steps; those that a
 * worker tells again are passed over.  A job can have JOB_NUMBERS_MAX numbers; further ones are
 * left out, and that is logged once.  metrics_turn() then updates the job's loss. */
void metrics_points(struct coordinator *co, struct job *j, struct task *t,
                    const struct metrics_heard *heard);
/* Before each commit. */
void metrics_turn(struct coordinator *co);
/* A held-out loss was measured, with the trainer's other numbers of the evaluation. */
void metrics_eval(struct coordinator *co, struct job *j, const struct task *t,
                  const struct metrics_heard *heard);
/* A round of a path is over. */
void metrics_round(struct coordinator *co, struct job *j, const struct round_rec *r);
/* A delta to the module is being sent. */
void metrics_delta(struct coordinator *co, struct job *j, const struct module_rec *m,
                   uint64_t bytes);
/* A blob of ours was served to a worker (NULL: to another client); near: by its neighbour.  What no
 * job's figures count, such as a contribution to one that folds, is still the worker's job's
 * egress.
 */
void metrics_served(struct coordinator *co, const struct worker *w, const struct blob_id *id,
                    uint64_t bytes, bool near);
/* A snapshot was taken: its bytes count for the job, not for a round. */
void metrics_saved(struct job *j, const struct snapshot *s);
/* A contribution was uploaded. */
void metrics_uploaded(struct coordinator *co, struct job *j, const struct task *t,
                      const struct contribution *c);

#endif
