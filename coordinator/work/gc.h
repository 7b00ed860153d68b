/* Deletes blobs that no record names as needed (coordinator/state/blobs.h), never before the commit
 * that dropped the last name.  The state is searched for names twice: when it is handed over to be
 * committed, and again when that is durable, since it may have changed meanwhile.  The loop checks
 * and hides the blobs in one step, then the disk pool frees their bytes; so no blob is lost that is
 * named or promised meanwhile. */
#ifndef COORDINATOR_GC_H
#define COORDINATOR_GC_H

#include "coordinator/state/core.h"

/* A blob lost a reference: it is deleted after the commit unless another reference keeps it. */
void gc_drop(struct coordinator *co, const struct blob_ref *b);
/* Somebody was told that the blob is here: only a sweep that finds it old may delete it. */
void gc_keep(struct coordinator *co, const uint8_t sha256[32]);
/* Drops the blobs that only a running job needs. */
void gc_job_ended(struct coordinator *co, const struct job *j);
/* Drops what an ended job holds: versions, averages, samples.  What was uploaded with it, or cut
 * from that, is left to the sweep: somebody who submits another job may just have been told that it
 * is here.  The bytes of it all, also of files that stay because another job names them; with
 * dry_run nothing is dropped. */
uint64_t gc_job_removed(struct coordinator *co, const struct job *j, bool dry_run);
/* gc_hand() dooms the dropped blobs that the state handed over does not name.  gc_after_commit()
 * deletes them once it is durable.  gc_take_back(), when the commit failed, leaves them to the next
 * one. */
void gc_hand(struct coordinator *co);
void gc_after_commit(struct coordinator *co);
void gc_take_back(struct coordinator *co);
/* Deletes unnamed blobs that nobody has touched for a day, and unfinished uploads without a writer
 * once a ticket's life has passed since their last byte: a phase's end may leave one. */
void gc_sweep(struct coordinator *co);

#endif
