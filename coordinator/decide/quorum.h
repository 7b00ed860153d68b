/* May a module take its outer step now?
 *
 *   arrived:   1 .. 2 ...... quorum ...................... all -> fire
 *                               |<------ grace ------>| -> fire with a quorum
 *
 * With grace 0 all are waited for: leases that run out are given to others, so
 * the wait ends.  The grace stands still while a missing one is at a worker without a connection,
 * whose lease still holds, while the job is paused or its budget spent, and while the coordinator
 * did not listen.  What comes after the step is
 * refused.  Pure. */
#ifndef COORDINATOR_QUORUM_H
#define COORDINATOR_QUORUM_H

#include "common/base/base.h"

#define QUORUM_REASON_MAX 256

struct quorum_in {
    uint64_t now_ms;
    uint32_t expected, arrived;
    uint32_t leased;    /* missing ones that are being worked on */
    double fraction;    /* the share of expected that makes a quorum */
    uint64_t grace_ms;  /* 0: wait for all */
    uint64_t quorum_ms; /* when the quorum became complete; 0: not yet */
    uint64_t retry_ms;  /* a failed step is not repeated before; 0: none failed */
};

struct quorum_decision {
    bool fire;
    bool quorum;       /* there are enough */
    uint64_t until_ms; /* when to ask again at the latest; 0: when something comes */
    char reason[QUORUM_REASON_MAX];
};

/* Contributions that make a quorum: at least 1, at most expected. */
uint32_t quorum_need(uint32_t expected, double fraction);

/* Whether the step is taken at now_ms. */
void quorum_decide(const struct quorum_in *in, struct quorum_decision *ret);

#endif
