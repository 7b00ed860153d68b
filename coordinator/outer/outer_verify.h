/* Checks the SHA-256 of a step's files before the fold, so that a bit flipped on disk enters no
 * version.  A file that was hashed a moment ago is not read again (seen.h).  Any thread, blocking.
 */
#ifndef COORDINATOR_OUTER_VERIFY_H
#define COORDINATOR_OUTER_VERIFY_H

#include "coordinator/outer/outer_exec.h"
#include "coordinator/outer/seen.h"

/* 0 if want->size is 0: no hash is on record.  -ERR_HASH: the file is gone, cannot be read, or has
 * other bytes. what: the file's name in the error. */
int outer_verify(struct seen *seen, const char *path, const struct blob_ref *want, const char *what,
                 struct err *err);

/* The same for a blob that the caller holds: a damaged local copy is fetched again if the store has
 * another one. */
int outer_verify_blob(struct seen *seen, struct blobstore *store, const char *path,
                      const struct blob_ref *want, const char *what, struct err *err);

/* The same for the version from which the step starts.  A damaged one is made again from the
 * version before it and the delta, if both are kept. */
int outer_verify_base(struct seen *seen, struct blobstore *store, const struct outer_step *s,
                      const char *path, struct err *err);

/* Are all values of these files of ours finite?  Else every contribution looks as if it were not,
 * and none is to blame.  NULL: there is no such file.  -ERR_HASH, as for other files that must be
 * replaced: one is not. */
int outer_verify_finite(const char *const *paths, size_t n, struct err *err);

/* outer_hold(): the path of the blob's file, which is kept until outer_let_go(); that also frees
 * the path, and accepts NULL. */
int outer_hold(struct blobstore *store, const struct blob_ref *blob, char **ret, struct err *err);
void outer_let_go(struct blobstore *store, const struct blob_ref *blob, char *path);

/* Says that the blob store does not have a file of ours, as of a damaged one: -ERR_HASH. */
int outer_missing(struct err *err, const char *what, const struct blob_ref *blob);

/* Holds the version from which the step starts; one that is gone is made again like a damaged one.
 * -ERR_HASH: it cannot be, as what that takes is not kept or lost, too. */
int outer_hold_base(struct blobstore *store, const struct outer_step *s, char **ret,
                    struct err *err);

#endif
