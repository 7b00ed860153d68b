/* What an outer step reads is what was recorded: its SHA-256 is looked at before the fold, so that
 * a bit that a disk lost goes into no version.  What was hashed a moment ago is not read again
 * (seen.h).  Any thread, blocking. */
#ifndef COORDINATOR_OUTER_VERIFY_H
#define COORDINATOR_OUTER_VERIFY_H

#include "coordinator/outer/outer_exec.h"
#include "coordinator/outer/seen.h"

/* 0 for bytes 0: nothing is on record.  -ERR_HASH: the file is gone or has other bytes; what: whose
 * file it is, for the sentence. */
int outer_verify(struct seen *seen, const char *path, const struct outer_blob *want,
                 const char *what, struct err *err);

/* The same for a blob, which whoever asks holds: one that is damaged here is fetched again where
 * the store has another copy. */
int outer_verify_blob(struct seen *seen, struct blobstore *store, const char *path,
                      const struct outer_blob *want, const char *what, struct err *err);

/* The same for the version that the step starts from.  A damaged one is made again from the version
 * before it and the delta, where both are kept. */
int outer_verify_base(struct seen *seen, struct blobstore *store, const struct outer_step *s,
                      const char *path, struct err *err);

/* The blob's file, held until it is let go of; mem_free by that.  NULL is accepted. */
int outer_hold(struct blobstore *store, const struct outer_blob *blob, char **ret, struct err *err);
void outer_let_go(struct blobstore *store, const struct outer_blob *blob, char *path);

#endif
