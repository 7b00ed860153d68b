/* A directory of blobs: immutable files named by the SHA-256 of their content.
 *
 *     DIR/ab/abcdef...           64 hex digits; complete, verified, fsynced
 *     DIR/tmp/abcdef....part     an upload of that blob, resumable
 *     DIR/tmp/w-<pid>-<n>        a local writer's file, removed at next open
 *
 * A name appears (by rename) only when size and hash are right and the bytes
 * are on the disk.  All functions may be called on any thread; nothing here
 * waits for anything but the disk.  Two writers of the same blob are harmless:
 * the first that commits wins, the second finds it there. */
#ifndef COMMON_NET_BLOBSTORE_H
#define COMMON_NET_BLOBSTORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct blobstore;
struct blob_writer;

#define BLOB_HEX_MAX 65 /* 64 digits and the terminator */

struct blob_id {
    uint8_t sha256[32];
};

void blob_id_hex(const struct blob_id *id, char ret_hex[BLOB_HEX_MAX]);
/* 64 lower-case hex digits exactly; -ERR_FORMAT else. */
int blob_id_parse(const char *hex, struct blob_id *ret);
bool blob_id_equal(const struct blob_id *a, const struct blob_id *b);

/* Opens or makes `dir`, counts what is there, removes stale local files and
 * uploads untouched for a day.  quota_bytes 0: no limit but the disk. */
int blobstore_open(const char *dir, uint64_t quota_bytes, struct blobstore **ret, struct err *err);
void blobstore_close(struct blobstore *s); /* accepts NULL */

uint64_t blobstore_used_bytes(const struct blobstore *s);
uint64_t blobstore_count(const struct blobstore *s);
uint64_t blobstore_quota_bytes(const struct blobstore *s);

bool blobstore_has(const struct blobstore *s, const struct blob_id *id, uint64_t *ret_size);
/* Path of the blob's file, whether it exists or not. -ERR_LIMIT: longer than cap. */
int blobstore_path(const struct blobstore *s, const struct blob_id *id, char *ret_path, size_t cap);
/* Read-only descriptor (caller closes) and size; -ERR_NOTFOUND. */
int blobstore_open_blob(const struct blobstore *s, const struct blob_id *id, int *ret_fd,
                        uint64_t *ret_size, struct err *err);
/* Whole content, malloc'd (caller frees); -ERR_LIMIT above max. */
int blobstore_read(const struct blobstore *s, const struct blob_id *id, size_t max, void **ret_data,
                   size_t *ret_len, struct err *err);
/* Re-reads and hashes the file; -ERR_HASH: corrupt, it has been moved to
 * DIR/tmp/<hex>.corrupt and no longer exists as a blob. */
int blobstore_verify(struct blobstore *s, const struct blob_id *id, struct err *err);
/* Absent is fine.  Readers that hold a descriptor keep reading. */
int blobstore_delete(struct blobstore *s, const struct blob_id *id, struct err *err);
/* Calls fn for each blob until it returns non-zero, and returns that. */
int blobstore_scan(const struct blobstore *s,
                   int (*fn)(void *arg, const struct blob_id *id, uint64_t size), void *arg,
                   struct err *err);

/* Whole buffer in one call: hash, write, fsync, rename. */
int blobstore_put(struct blobstore *s, const void *data, size_t len, struct blob_id *ret_id,
                  struct err *err);

/* Takes a finished file as a blob: `path` lies on the same file system, is
 * fsynced, and the caller has hashed it while writing (its word is taken; size is
 * checked).  Renames it into place, fsyncs the directory; where the blob exists
 * already the file is removed.  -ENOSPC: quota; -EXDEV: another file system; the
 * file is then left alone.  Any thread. */
int blobstore_adopt(struct blobstore *s, const char *path, const struct blob_id *id, uint64_t size,
                    struct err *err);

/* ---- writers: one thread at a time ---- */

/* A writer for a blob of at most max_bytes.  With `expect` the content must
 * hash to it at commit.  Its bytes count against the quota as they come. */
int blob_writer_new(struct blobstore *s, const struct blob_id *expect, uint64_t max_bytes,
                    struct blob_writer **ret, struct err *err);
/* A resumable one: continues DIR/tmp/<hex>.part if there is one.  -EBUSY when
 * another writer has it. */
int blob_writer_resume(struct blobstore *s, const struct blob_id *expect, uint64_t max_bytes,
                       struct blob_writer **ret, struct err *err);
/* Bytes so far (what a resumed one already held included). */
uint64_t blob_writer_size(const struct blob_writer *w);
/* -ENOSPC: quota or disk full; -ERR_LIMIT: above max_bytes. */
int blob_writer_write(struct blob_writer *w, const void *data, size_t len, struct err *err);
/* fsync, verify, rename, fsync of the directory: slow, call it on a pool thread
 * where the loop must not wait.  expect_size UINT64_MAX: any.  -ERR_HASH or
 * -ERR_FORMAT (size): nothing was stored, what was written is gone.  The writer
 * is freed in every case. */
int blob_writer_commit(struct blob_writer *w, uint64_t expect_size, struct blob_id *ret_id,
                       struct err *err);
/* Gives up.  A resumable one keeps its bytes for the next when `keep`. */
void blob_writer_abort(struct blob_writer *w, bool keep); /* accepts NULL */

#endif
