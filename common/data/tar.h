/* Tar archives: reads those that libarchive knows (ustar, pax, GNU; plain, gz,
 * zst), and writes deterministic ustar (mode 0644, owner 0, time 0), plain or
 * zst (deterministic for one version of libzstd).  Everything is bounded; a
 * truncated archive is an error that names the file and the entry.
 *
 * Links to libarchive: users pull it into their program. */
#ifndef COMMON_DATA_TAR_H
#define COMMON_DATA_TAR_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/hash.h"

#define TAR_NAME_MAX 1024

struct tar_entry {
    const char *name; /* borrowed until the next tar_next; no leading "./" */
    uint64_t size;
};

struct tar;
int tar_open(const char *path, struct tar **ret, struct err *err);
/* From memory, borrowed until close; `name` is for messages.  For tests. */
int tar_open_memory(const void *data, size_t len, const char *name, struct tar **ret,
                    struct err *err);
/* The next regular file (other entries are skipped): 1, or 0 at the end. */
int tar_next(struct tar *t, struct tar_entry *ret, struct err *err);
/* Appends the current entry's bytes to out.  -ERR_LIMIT: they exceed out->max. */
int tar_read(struct tar *t, struct buf *out, struct err *err);
/* Limits of a folder that is sent as one tar. */
#define TAR_FOLDER_FILES 4096
#define TAR_FOLDER_BYTES (64u << 20)
/* What to unpack: files for which wanted() is true (NULL: all), with this mode, up to
 * TAR_FOLDER_FILES and `max` bytes in all. */
struct tar_unpack {
    unsigned mode;
    size_t max;
    bool (*wanted)(const char *name); /* in the archive */
    bool compare;                     /* only: nothing is written */
};

/* Unpacks an archive into a folder, which is made if need be.  -ERR_FORMAT: a name leads out of it;
 * -ERR_LIMIT: too many or too large files; with compare -EEXIST: a file is there with other bytes.
 */
int tar_unpack(const char *path, const char *folder, const struct tar_unpack *how, struct err *err);
void tar_close(struct tar *t); /* NULL is fine */

struct tar_writer;
/* Plain, or compressed by zstd; then add*, commit, free. */
int tar_writer_open(const char *path, struct tar_writer **ret, struct err *err);
int tar_writer_open_zstd(const char *path, struct tar_writer **ret, struct err *err);
/* Adds a file with these bytes. */
int tar_writer_add(struct tar_writer *w, const char *name, const void *data, size_t len,
                   struct err *err);
/* fsync + rename; gives sha256 and size of the file (either may be NULL). */
int tar_writer_commit(struct tar_writer *w, uint8_t sha256[HASH_BYTES], uint64_t *ret_bytes,
                      struct err *err);
void tar_writer_free(struct tar_writer *w); /* uncommitted: leaves no file; NULL is fine */

#endif
