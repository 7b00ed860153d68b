/* The files of replicas (worker/engine/replica.h): DIR/replica-J-P-R.mid, .end and .end.spare,
 * which say beside the trainer's state of which phase and at which step they are.  Compute thread.
 */
#ifndef WORKER_REPLICA_FILE_H
#define WORKER_REPLICA_FILE_H

#include "worker/engine/replica.h"

/* Writes .mid: where the phase of w stands. */
int replica_file_mid(const char *dir, struct replica *r, const struct work *w,
                     const struct replica_cursor *c, struct err *err);
/* Writes .end, removes .mid, and what other replicas of the job have left some rounds ago. */
int replica_file_end(const char *dir, struct replica *r, const struct work *w, struct err *err);
/* Removes .mid. */
int replica_file_drop_mid(const char *dir, const struct replica *r, struct err *err);

/* Each of these says whether the replica has loaded it; what cannot be read is logged. */

/* This very phase, where it was cut: at its end or in the middle, *cursor says where. */
bool replica_file_resume(const char *dir, struct replica *r, const struct work *w,
                         struct replica_cursor *cursor);
/* The end of a phase at the step; the spare has it if a later end was saved but not reported. */
bool replica_file_load_end(const char *dir, struct replica *r, uint64_t step);
/* The moments that came with the task, from the replica's last worker. */
bool replica_file_load_moments(struct replica *r, const struct work *w);

#endif
