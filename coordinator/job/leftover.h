/* Removes files of the outer optimiser that are no longer needed: on disk, and their copies in an
 * object store.  A file that could not be removed goes the next time, or with the job. */
#ifndef COORDINATOR_LEFTOVER_H
#define COORDINATOR_LEFTOVER_H

#include "coordinator/state/core.h"

/* Once the present state is durable, removes files of `dir` on the disk pool, but keeps those from
 * which version `keep` was made; 0: keeps none.  Takes dir. */
void leftover_drop(struct coordinator *co, char *dir, uint64_t keep);
/* After a start: the same for ended jobs where a stop of the coordinator prevented it.  An unread
 * job may go on with the release that wrote it, and keeps them. */
void leftover_resume(struct coordinator *co);

#endif
