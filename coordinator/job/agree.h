/* Results that no single worker decides, where nobody could see that they are wrong: the shards of
 * an archive (INGEST), their latents (ENCODE), version 0 (INIT), and the partitions, which say what
 * a path learns from (FEATURE, CLUSTER, SPLIT, SCORE); and that held-out texts are too short for a
 * loss (EVAL).
 *
 *   report  agree_hear(): that of a worker nobody has confirmed, by a result of this kind or by a
 *           phase (spot_check.h), is only noted, and the task waits for a worker of another origin
 *           (worker_origin)
 *   again   the same result of both: it counts.  Else a third one makes it, and the two that agree
 *           decide; one that is like neither is quarantined if it copied samples otherwise, and has
 *           failed with the other kinds
 *
 * A result is the same if it has the same bytes.  What is computed has on equal devices; on others
 * a thread compares the files (alike.h), and the sizes of partitions may differ by AGREE_APART.
 * Version 0 of a user's program is not compared: it may draw other values each time.
 * A confirmed worker's results count at once, but for one in AGREE_ONE_IN, and for odd ones:
 * possible, but not what was to be expected.
 *
 * Only workers that are here are waited for, and only for AGREE_TRIES tries: while there is none of
 * another origin, and when three make three things of it, the newest result counts.
 * outer.spot_check: false switches it off.  A restart forgets what was noted, and who was
 * confirmed. */
#ifndef COORDINATOR_AGREE_H
#define COORDINATOR_AGREE_H

#include "coordinator/job/alike.h"
#include "coordinator/state/core.h"

#define AGREE_APART 0.05 /* of the samples by which sizes differ */
#define AGREE_TRIES 8    /* by others, until it goes on without them */
#define AGREE_ONE_IN 16  /* results of confirmed workers: coordinator_options.look_again */

struct agree_result {
    uint8_t hash[32];
    enum alike_of of;            /* how the file is compared where the hash differs */
    const struct blob_ref *file; /* NULL: of ALIKE_BYTES */
    const uint64_t *sizes;       /* of the partitions; borrowed; NULL: not of CLUSTER */
    size_t n_sizes;
    bool odd;
};

/* Whether all is known that agree_hear() needs.  -EAGAIN: a thread looks at its file, alone or
 * beside that of another worker, or the store did not give one, and the result is to be reported
 * again.  -EINVAL: it is an assignment that nobody can follow. */
int agree_look(struct coordinator *co, const struct job *j, struct task *t,
               const struct agree_result *result, struct err *err);
/* Whether the result that the worker of t has reported counts.  False: it is noted. */
bool agree_hear(struct coordinator *co, struct job *j, struct task *t,
                const struct agree_result *result);
/* The result of t counts, and may be wrong for all that: it is noted as what its worker has made,
 * before t is done once more. */
void agree_doubt(struct coordinator *co, const struct job *j, struct task *t,
                 const uint8_t hash[32]);
/* The workers and origins that made it, if anybody else is here who may, and task.not_from. */
void agree_not_for(const struct coordinator *co, const struct task *t, uint64_t ret_workers[2],
                   uint64_t ret_from[3]);

#endif
