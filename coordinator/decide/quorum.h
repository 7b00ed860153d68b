/* Whether a module may take its outer step now.
 *
 *   arrived:   1 .. 2 ...... quorum ...................... all -> fire
 *                               |<------ grace ------>| -> fire with a quorum
 *
 * With grace 0 the step waits for all contributions; the wait ends, because tasks of expired leases
 * go to other workers.  The grace period stands still while a missing contribution is with a
 * disconnected worker whose lease still holds, while the job is paused or its budget spent, and
 * while the coordinator did not listen.  A contribution that arrives after the step is refused.
 * Pure. */
#ifndef COORDINATOR_QUORUM_H
#define COORDINATOR_QUORUM_H

#include "common/base/base.h"

#define QUORUM_REASON_MAX 256

struct quorum_in {
    uint64_t now_ms;
    uint32_t expected, arrived;
    uint32_t leased;    /* missing ones that a worker has a lease for */
    double fraction;    /* the share of expected that makes a quorum */
    uint64_t grace_ms;  /* 0: wait for all */
    uint64_t quorum_ms; /* when the quorum became complete; 0: not yet */
    uint64_t retry_ms;  /* a failed step is not repeated before this; 0: none failed */
};

struct quorum_decision {
    bool fire;
    bool quorum;       /* the quorum is complete */
    uint64_t until_ms; /* when to ask again at the latest; 0: when a contribution arrives */
    char reason[QUORUM_REASON_MAX];
};

/* Contributions that make a quorum: at least 1, at most expected. */
uint32_t quorum_need(uint32_t expected, double fraction);

/* Whether the step is taken at now_ms. */
void quorum_decide(const struct quorum_in *in, struct quorum_decision *ret);

#endif
