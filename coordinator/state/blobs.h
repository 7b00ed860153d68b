/* Lists every blob that the state names, and whether it is still needed: used by the sweep, at the
 * end of a job, and by captures.
 *
 * A new kind of blob in a record needs a role here, a line in blobs.c, and one in persist_load.c
 * for jobs whose rows are not loaded.  Nothing here reads a disk.  Loop thread. */
#ifndef COORDINATOR_BLOBS_H
#define COORDINATOR_BLOBS_H

#include <jansson.h>

#include "coordinator/state/state.h"

enum blob_role {
    /* Needed while the job goes on. */
    BLOB_SHARD, /* also while another job may learn from this one; spared for an hour after */
    BLOB_FEATURES,
    BLOB_SCORES,
    BLOB_WARM_START,
    BLOB_ASSIGNMENT,
    BLOB_MOMENTS,       /* a replica's */
    BLOB_PHASE_MOMENTS, /* an unsettled phase's */
    BLOB_SNAPSHOT,      /* an open phase's */
    BLOB_OUTER_STATE,   /* of the newest version and of the one before it */
    BLOB_CONTRIBUTION,  /* to be folded, folded into the newest version, or to be compared */
    /* Needed as long as they are on record. */
    BLOB_TOKENIZER,
    BLOB_ENCODER,
    BLOB_PARTITIONER,
    BLOB_PARTITIONER_BEFORE,
    BLOB_FULL,
    BLOB_DELTA,
    BLOB_EMA,
    BLOB_BEST,
    BLOB_GRID,
    BLOB_OUTPUT, /* a task's, if no other record names it */
    BLOB_INPUT,
    BLOB_ROLES
};

/* Reads a file of a version's provenance, {"sha256": hex, "size": bytes}.  False: it is none. */
bool blob_ref_read(const json_t *record, struct blob_ref *ret);

/* The outer optimiser's state after a version, by its provenance.  False, and both of size 0: it is
 * not in the blob store. */
bool blob_outer_state(const char *provenance, struct blob_ref *ret_target,
                      struct blob_ref *ret_momentum);

/* Whether the version repeats an older one, by its provenance (job/rollback.h). */
bool blob_is_restored(const char *provenance);

/* Whether such blobs may be needed after their job has ended. */
static inline bool blob_role_stays(enum blob_role role)
{
    return role > BLOB_CONTRIBUTION;
}

/* Of a version on record: are its whole file and its average kept?  A running job keeps the file of
 * each, which a phase may go on with or a rollback come back to, and the averages of the newest
 * VERSIONS_KEPT.  One that has ended keeps the files of those, which an audit makes again from the
 * deltas, but the averages of a module's newest version only; and both of those at which a path has
 * stopped. */
bool blob_full_stays(const struct job *j, const struct module_rec *m, uint64_t version);
bool blob_ema_stays(const struct job *j, const struct module_rec *m, uint64_t version);

enum blob_need {
    BLOB_FREE,   /* nobody will ask for it any more by this name */
    BLOB_SPARED, /* it must not be deleted, but may be gone */
    BLOB_NEEDED, /* it must not be deleted */
};

typedef void (*blob_fn)(void *arg, enum blob_role role, const struct blob_ref *b,
                        enum blob_need need);

/* Calls fn for each blob name of a job (job_id 0: of all jobs); a blob may have several names. */
void each_blob(const struct state *s, uint64_t job_id, int64_t now_unix_ms, blob_fn fn, void *arg);

#endif
