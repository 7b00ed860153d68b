/* Removes files of the outer optimiser that are no longer needed: on disk, and their copies in an
 * object store.  A file that could not be removed goes the next time, or with the job.  While
 * the coordinator runs, each step sends its own copies (outer_exec.h). */
#ifndef COORDINATOR_LEFTOVER_H
#define COORDINATOR_LEFTOVER_H

#include "coordinator/state/core.h"

/* Once the present state is durable, removes files of `dir` on the disk pool, but keeps those from
 * which version `keep` was made; 0: keeps none.  Takes dir. */
void leftover_drop(struct coordinator *co, char *dir, uint64_t keep);
/* At a start: the same for ended jobs where a stop of the coordinator, or the loss of its machine,
 * prevented it.  An unread job may go on with the release that wrote it, and keeps them.  For
 * running jobs, removes what was made of versions that are not on record, and sends those files of
 * the newest versions that the store lacks, as where it did not get the state until now: else they
 * could not go on without our disk.  What is gone or damaged here is left to the next step, which
 * says so.  Blocks. */
int leftover_resume(struct coordinator *co, struct err *err);

#endif
