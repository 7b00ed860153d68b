/* Blobs as files of a directory.
 *
 *     DIR/ab/abcdef...           64 hex digits; complete, verified, fsynced
 *     DIR/tmp/abcdef....part     an upload of that blob, resumable
 *
 * A name appears (by rename) only when size and hash are right and the bytes are on the
 * disk. */
#ifndef COMMON_NET_BLOB_DIR_H
#define COMMON_NET_BLOB_DIR_H

#include "common/base/base.h"

struct blobstore;

/* Opens or makes `dir`, counts what is there, removes uploads untouched for a day.
 * quota_bytes 0: no limit but the disk. */
int blob_dir_open(const char *dir, uint64_t quota_bytes, struct blobstore **ret, struct err *err);

/* Where a blob of such a directory lies, mem_free it: to keep or read one while nobody has the
 * directory open as a store. */
char *blob_dir_file(const char *dir, const uint8_t sha256[32]);

#endif
