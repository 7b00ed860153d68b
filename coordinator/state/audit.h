/* Audits a job's versions on disk: everything that can be recomputed is.
 *
 *   - files: each one that the job's record names has the recorded hash (of blobs in an object
 *     store only those of modules, which are fetched);
 *   - versions: each kept one came from the one before it by a step or was restored, as its
 *     provenance says, and equals that one plus its delta, to the bit;
 *   - the outer step, where the optimiser's state before it still exists (that of the newest
 *     version, while the job runs): its contributions are folded again, and version, delta,
 *     average and state must have the recorded hashes;
 *   - the balance of samples: done, leased and pending by the ledgers, folded by the rounds.
 *
 * Works on a capture (capture.h) while the coordinator runs.  Blocking. */
#ifndef COORDINATOR_AUDIT_H
#define COORDINATOR_AUDIT_H

#include "common/base/base.h"

struct coordinator_options;

struct audit_result {
    uint64_t files, bytes;     /* hashed */
    unsigned versions, deltas; /* checked; recomputed from the one before and the delta */
    unsigned steps;            /* outer steps folded again */
    unsigned faults;
};

/* Writes its findings to out, a line each.  Returns 0 also when there are faults; -ENOSPC: the data
 * directory's disk has no room for the outer steps made again, five times the largest version. */
int audit_job(const struct coordinator_options *o, uint64_t job_id, FILE *out,
              struct audit_result *ret, struct err *err);

#endif
