/* Back to an older version: a person has seen that the last rounds made a job worse.
 *
 *   version     5    6    7   8 = 5          the next is made of phases that begin with it
 *   round       6    7    8 (this one ends)  9 ...
 *
 * What the job is at becomes what version `to` was, under a new number: numbers only grow, and
 * workers that hold that version fetch nothing.  The round that runs ends without its phases, whose
 * samples are not seen again, and counts as one of the job's.  Paths that share modules may be a
 * round apart, and one of a path's modules a version ahead of the others: they all come to the
 * version behind the newest, and the paths that were behind leave rounds out.  The outer optimiser
 * and the workers' moments begin anew.  All of it is one commit, and the provenance names the
 * version. */
#ifndef COORDINATOR_ROLLBACK_H
#define COORDINATOR_ROLLBACK_H

#include "coordinator/state/core.h"

#define ROLLBACK_ALL UINT32_MAX

/* Of the path and those that it shares modules with, directly or not, or of all; as far as they
 * have rounds to go.  `who` says why in the job's events.  -EINVAL: the job is not one of rounds,
 * or has no such path; -ERR_STALE: it does not train now, or is not beyond that version;
 * -ERR_NOTFOUND: a module keeps it no more. */
int rollback_job(struct coordinator *co, struct job *j, uint32_t path, uint64_t to, const char *who,
                 struct err *err);

#endif
