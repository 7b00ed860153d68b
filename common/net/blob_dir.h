/* Blobs as files of a directory.
 *
 *     DIR/ab/abcdef...           64 hex digits; complete, verified, fsynced
 *     DIR/tmp/abcdef...-6.part   an upload of that blob by holder 6, resumable
 *
 * A name appears (by rename) only when size and hash are right and the bytes are on disk. */
#ifndef COMMON_NET_BLOB_DIR_H
#define COMMON_NET_BLOB_DIR_H

#include "common/base/base.h"

struct blobstore;
struct blob_id;

/* Opens or makes `dir`, counts its blobs and unfinished uploads (old ones are for `tidy`), and
 * removes other leftovers.  quota_bytes 0: only the disk limits. */
int blob_dir_open(const char *dir, uint64_t quota_bytes, struct blobstore **ret, struct err *err);

/* Makes a blob an upload of this holder again, which lacks nothing but its commit. */
int blob_dir_reopen(struct blobstore *s, const struct blob_id *id, uint64_t holder,
                    struct err *err);

/* The path of a blob in such a directory, mem_free it: to link or read one while nobody has the
 * directory open as a store. */
char *blob_dir_file(const char *dir, const uint8_t sha256[32]);

#endif
