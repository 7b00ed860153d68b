/* Files of the outer optimiser that are needed no more: on the disk, and copies in a store far
 * away. What stays by a fault goes the next time, or with the job. */
#ifndef COORDINATOR_LEFTOVER_H
#define COORDINATOR_LEFTOVER_H

#include "coordinator/state/core.h"

/* Once what is said now is on record, files of `dir` go, on the disk pool; what makes version
 * `keep` stays; 0: nothing does.  Takes dir. */
void leftover_drop(struct coordinator *co, char *dir, uint64_t keep);
/* After a start: the same of jobs that had ended, of which a stop came before it was done. */
void leftover_resume(struct coordinator *co);

#endif
