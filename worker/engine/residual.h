/* Error-feedback residuals on disk: the part of updates that the codec has not sent yet.
 *
 *   DIR/residual-JOB-MODULE-PATH-REPLICA                 applied
 *   DIR/residual-JOB-MODULE-PATH-REPLICA.pending-TASK    unknown yet whether it was applied
 *
 * The coordinator's verdict ("applied") names the task; it may come after a restart, so
 * the file names contain everything.  Compute thread. */
#ifndef WORKER_RESIDUAL_H
#define WORKER_RESIDUAL_H

#include "common/base/base.h"
#include "worker/order/cache.h"

/* The contribution to which a residual belongs. */
struct residual_key {
    uint64_t job_id, module_id;
    uint32_t path, replica;
};

/* The two names, for a contribution that is about to be made.  A pending file of an earlier task of
 * the same key becomes the current one: a refusal is settled at once, so that task's contribution
 * still waits for its version, and the older residual would be sent twice.  Files left by an
 * earlier attempt of this task are removed. */
int residual_prepare(const char *dir, const struct residual_key *key, uint64_t task_id,
                     char ret_current[CACHE_PATH_MAX], char ret_pending[CACHE_PATH_MAX],
                     struct err *err);

/* Takes the verdict on a task's contributions: commits or drops their pending files. */
int residual_settle(const char *dir, uint64_t task_id, bool accepted, struct err *err);

#endif
