/* Whose turn it is: which tasks let a job's phases go first, and whom a CHECK leaves alone.
 *
 * First come samples that a person asked for, losses that another worker measures again, and all
 * that a job ends with.  A job's own evaluations and samples are for a worker that has no phase to
 * begin: it has none in the round, or is done before the others.  When a round has ended without
 * them they come first, too.  So a round waits for an evaluation only if no worker had time for it
 * within a round.  Where there is always a next phase (async jobs, more paths than workers) an
 * evaluation comes a round late.
 *
 * A CHECK comes last, and only to a worker for which no phase of a fixed number of replicas waits
 * before the CHECK would end.  Two rounds later whoever is free gets it, but for a worker that has
 * made an outer step and has what the next one starts from: that would wait for the CHECK, or for
 * another worker to fetch all that.  Three rounds later even that one gets it. */
#ifndef COORDINATOR_TURNS_H
#define COORDINATOR_TURNS_H

#include "coordinator/state/core.h"

/* The task's rank for the schedule: its kind's, except of an evaluation or sample that can wait. */
unsigned turns_rank(const struct job *j, const struct task *t);
/* Whether the CHECK is only for a worker for which no phase waits: turns_has_phase(). */
bool turns_spares(const struct job *j, const struct task *t);
/* Whether the CHECK is not for a worker that makes outer steps: turns_makes_step(). */
bool turns_spares_makers(const struct job *j, const struct task *t);

/* The next phases and outer steps, for a turn in which many workers ask. */
struct turns {
    struct turns_phase {
        uint64_t worker; /* that had the replica last; 0: any */
        uint64_t job, left_ms;
        bool step; /* an outer step of the job */
    } * list;      /* by worker */
    size_t n;
};

void turns_init(struct turns *t, const struct coordinator *co);
void turns_release(struct turns *t); /* zeroed is fine */
/* Whether the worker, which has no task, will be given a phase sooner than it could repeat one: it
 * had a replica last, or a replica is nobody's. */
bool turns_has_phase(const struct turns *t, const struct worker *w);
/* Whether the worker has made the newest version of a module, so that the next step is for it, if
 * there is one. */
bool turns_makes_step(const struct turns *t, const struct worker *w);

#endif
