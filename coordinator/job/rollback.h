/* Rollback to an older version, after a person or the guard has seen that the last rounds made a
 * job worse.
 *
 *   version     5    6    7   8 = 5          the next is made of phases that begin with it
 *   round       6    7    8 (this one ends)  9 ...
 *
 * The next version has the content of version `to` under a new number: numbers only grow, and
 * workers that hold that version fetch nothing.  The running round ends without its phases, whose
 * samples are not seen again, and counts as one of the job's rounds.  Paths that share modules may
 * be a round apart, and one of a path's modules a version ahead of the others: all of them get the
 * number after the newest, and the paths that were behind skip rounds.  The outer optimiser and the
 * workers' moments start afresh.  All of it is one commit, and the provenance names the version. */
#ifndef COORDINATOR_ROLLBACK_H
#define COORDINATOR_ROLLBACK_H

#include "coordinator/state/core.h"

#define ROLLBACK_ALL UINT32_MAX

/* Rolls back the path and all that share modules with it, directly or not, or all paths
 * (ROLLBACK_ALL), as far as they have rounds to go.  `who` gives the reason in the job's events.
 * -EINVAL: the job has no rounds, or no such path; -ERR_STALE: it does not train now, or is not
 * beyond that version; -ERR_NOTFOUND: a module no longer keeps it. */
int rollback_job(struct coordinator *co, struct job *j, uint32_t path, uint64_t to, const char *who,
                 struct err *err);

#endif
