/* Every blob that the state names, and whether it is still needed: the one list that the sweep,
 * the end of a job, and jobs that cannot be read go by.
 *
 * A record with a new blob gets a role here, a line in blobs.c, and one in persist_load.c for jobs
 * whose rows are not loaded.  Nothing here reads a disk.  Loop thread. */
#ifndef COORDINATOR_BLOBS_H
#define COORDINATOR_BLOBS_H

#include <jansson.h>

#include "coordinator/state/state.h"

enum blob_role {
    /* Needed while the job goes on. */
    BLOB_SHARD, /* and for a while after, and as long as another job may learn from it */
    BLOB_FEATURES,
    BLOB_SCORES,
    BLOB_WARM_START,
    BLOB_ASSIGNMENT,
    BLOB_MOMENTS,       /* a replica's */
    BLOB_PHASE_MOMENTS, /* an unsettled phase's */
    BLOB_SNAPSHOT,      /* an open phase's */
    BLOB_OUTER_STATE,   /* of the newest version, and what it began with */
    /* Needed as long as they are on record. */
    BLOB_CONTRIBUTION, /* folded into a kept version; while the job goes on, or to be folded */
    BLOB_TOKENIZER,
    BLOB_ENCODER,
    BLOB_PARTITIONER,
    BLOB_PARTITIONER_BEFORE,
    BLOB_FULL,
    BLOB_DELTA,
    BLOB_EMA,
    BLOB_BEST,
    BLOB_GRID,
    BLOB_OUTPUT, /* a task's, where no other record has it */
    BLOB_INPUT,
    BLOB_ROLES
};

/* A file in a version's provenance, {"sha256": hex, "size": bytes}.  False: it says none. */
bool blob_ref_read(const json_t *record, struct blob_ref *ret);

/* The outer optimiser's state after a version, by its provenance: false, and both of size 0, where
 * that is not in the blob store. */
bool blob_outer_state(const char *provenance, struct blob_ref *ret_target,
                      struct blob_ref *ret_momentum);

/* Does the provenance say that it is an older version once more? */
bool blob_is_restored(const char *provenance);

/* May it be needed when its job has ended? */
static inline bool blob_role_stays(enum blob_role role)
{
    return role >= BLOB_CONTRIBUTION;
}

/* needed: it must not be deleted; else it will not be asked for any more by this name. */
typedef void (*blob_fn)(void *arg, enum blob_role role, const struct blob_ref *b, bool needed);

/* Calls fn for each name of a blob, of one job or (job_id 0) of all; a blob may have several. */
void each_blob(const struct state *s, uint64_t job_id, int64_t now_unix_ms, blob_fn fn, void *arg);

#endif
