/* Deletes blobs that nothing in the state names as needed (coordinator/state/blobs.h): after the
 * commit that dropped the last name, never before, and on the disk pool. */
#ifndef COORDINATOR_GC_H
#define COORDINATOR_GC_H

#include "coordinator/state/core.h"

/* A blob lost a reference: it is deleted after the commit unless another one keeps it. */
void gc_drop(struct coordinator *co, const struct blob_ref *b);
/* Drops what only a running job needs. */
void gc_job_ended(struct coordinator *co, const struct job *j);
/* Deletes what was dropped.  After each commit. */
void gc_after_commit(struct coordinator *co);
/* Deletes blobs without a name that are older than a day. */
void gc_sweep(struct coordinator *co);

#endif
