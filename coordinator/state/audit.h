/* Looks a job's versions over, as they stand on the disk: nothing is believed that can be computed.
 *
 *   - every file that the job's record names has the bytes that its hash says (of blobs in an
 *     object store: those of modules, which are brought);
 *   - each kept version came from the one before it, as its provenance says, and is that one plus
 *     its delta, to the bit;
 *   - the outer step itself, where the optimiser's state before it is still there (that of the
 *     newest version, while the job goes on): its contributions are folded again, and version,
 *     delta, average and state must have the recorded hashes;
 *   - the balance of samples: done, leased and pending by the ledgers, folded by the rounds.
 *
 * Works on a capture (capture.h) beside a coordinator that runs.  Blocking. */
#ifndef COORDINATOR_AUDIT_H
#define COORDINATOR_AUDIT_H

#include "common/base/base.h"

struct coordinator_options;

struct audit_result {
    uint64_t files, bytes;     /* that were hashed */
    unsigned versions, deltas; /* looked at; made again from the one before and the delta */
    unsigned steps;            /* folded again */
    unsigned faults;
};

/* Writes what it finds, a line each, to out.  0 also when there are faults. */
int audit_job(const struct coordinator_options *o, uint64_t job_id, FILE *out,
              struct audit_result *ret, struct err *err);

#endif
