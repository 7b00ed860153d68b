/* Deletes blobs that nothing in the state names as needed (coordinator/state/blobs.h): after the
 * commit that dropped the last name, never before.  What is handed over to be committed is looked
 * at for that, and the state again when that is durable, which may have gone on.  The loop looks
 * and hides them in one go, the disk pool frees their bytes: nothing that gets a name, or is
 * promised, meanwhile is lost. */
#ifndef COORDINATOR_GC_H
#define COORDINATOR_GC_H

#include "coordinator/state/core.h"

/* A blob lost a reference: it is deleted after the commit unless another one keeps it. */
void gc_drop(struct coordinator *co, const struct blob_ref *b);
/* Somebody is told that the blob is here: it is not deleted before a sweep finds it old. */
void gc_keep(struct coordinator *co, const uint8_t sha256[32]);
/* Drops what only a running job needs. */
void gc_job_ended(struct coordinator *co, const struct job *j);
/* Dooms what was dropped and is not named by the state that is handed over; deletes it once that is
 * durable; forgets it, for the next commit, when that fails. */
void gc_hand(struct coordinator *co);
void gc_after_commit(struct coordinator *co);
void gc_take_back(struct coordinator *co);
/* Deletes blobs without a name and uploads that were given up, both untouched for a day. */
void gc_sweep(struct coordinator *co);

#endif
