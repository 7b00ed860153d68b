/* Results that no single worker decides, where nobody could see that they are wrong: the shards of
 * an archive (INGEST), version 0 (INIT), and the partitions, which say what a path learns from
 * (FEATURE, CLUSTER, SPLIT); and that held-out texts are too short for a loss (EVAL).
 *
 *   report  agree_hear(): that of a worker nobody has confirmed, by a result of this kind or by a
 *           phase (spot_check.h), is only noted, and the task waits for a worker of another origin
 *           (worker_origin)
 *   again   the same result of both: it counts.  Else a third one makes it, and the two that agree
 *           decide; the other is quarantined if it copied samples otherwise, and has failed with
 *           the other kinds
 *
 * A result is the same if it has the same bytes.  A fit has on equal devices; on others the sizes
 * of its partitions may differ by AGREE_APART, and of AGREE_LOOKS samples drawn at random
 * AGREE_EQUAL must be in the same partition.  What two devices compute alike only nearly is not
 * compared (latents, features that a network makes), nor version 0 of a user's program.
 * A confirmed worker's results count at once, but for one in AGREE_ONE_IN, and for odd ones:
 * possible, but not what was to be expected.
 *
 * Only workers that are here are waited for, and only for AGREE_TRIES tries: while there is none of
 * another origin, and when three make three things of it, the newest result counts.
 * outer.spot_check: false switches it off.  A restart forgets what was noted, and who was
 * confirmed. */
#ifndef COORDINATOR_AGREE_H
#define COORDINATOR_AGREE_H

#include "coordinator/state/core.h"

#define AGREE_APART 0.05 /* of the samples by which sizes differ */
#define AGREE_EQUAL 0.9  /* of the samples looked at that are in the same partition */
#define AGREE_LOOKS 4096 /* samples, or all if they are fewer */
#define AGREE_TRIES 8    /* by others, until it goes on without them */
#define AGREE_ONE_IN 16  /* results of confirmed workers: coordinator_options.look_again */

struct agree_result {
    uint8_t hash[32];
    const uint64_t *sizes; /* of the partitions; borrowed; NULL: only the bytes say something */
    size_t n_sizes;
    const struct blob_ref *assignment; /* of CLUSTER; NULL: sizes say nothing either */
    bool odd;
};

/* Whether all files are here that agree_hear() would compare with this one.  -EAGAIN: some are
 * fetched first. */
int agree_fetch(struct coordinator *co, const struct task *t, const struct blob_ref *assignment,
                struct err *err);
/* Whether the result that the worker of t has reported counts.  False: it is noted. */
bool agree_hear(struct coordinator *co, struct job *j, struct task *t,
                const struct agree_result *result);
/* The workers and origins that made it, if anybody else is here who may, and task.not_from. */
void agree_not_for(const struct coordinator *co, const struct task *t, uint64_t ret_workers[2],
                   uint64_t ret_from[3]);

#endif
