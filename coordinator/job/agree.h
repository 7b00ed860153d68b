/* Partitions that no single worker decides: which samples a path learns from is in the results of
 * CLUSTER and SPLIT alone.
 *
 *   report  agree_hear(): that of a worker nobody has confirmed is only noted, and the task waits
 *           for a worker of another origin (worker_origin)
 *   again   the same result of both: it counts.  Else a third one makes it, and the two that agree
 *           decide; the other is quarantined if it copied samples otherwise, and has failed if it
 *           fitted otherwise
 *
 * A copy has the same bytes everywhere.  A fit has on equal devices; on others the sizes of its
 * partitions may differ by AGREE_APART.  A confirmed worker's results count at once, unless they
 * are odd: possible, but not what was to be expected.
 *
 * Only workers that are here are waited for, and only for AGREE_TRIES tries: while there is none of
 * another origin, and when three make three things of it, the newest result counts.
 * outer.spot_check: false switches it off.  A restart forgets what was noted, and who was
 * confirmed. */
#ifndef COORDINATOR_AGREE_H
#define COORDINATOR_AGREE_H

#include "coordinator/state/core.h"

#define AGREE_APART 0.05 /* of the samples */
#define AGREE_TRIES 8    /* by others, until it goes on without them */

struct agree_result {
    uint8_t hash[32];
    const uint64_t *sizes; /* of the partitions; borrowed; NULL: only the bytes say something */
    size_t n_sizes;
    bool odd;
};

/* Whether the result that the worker of t has reported counts.  False: it is noted. */
bool agree_hear(struct coordinator *co, struct job *j, struct task *t,
                const struct agree_result *result);
/* The workers and origins that may not have the task, if anybody else is here who may. */
void agree_not_for(const struct coordinator *co, const struct task *t, uint64_t ret_workers[2],
                   uint64_t ret_from[2]);

#endif
