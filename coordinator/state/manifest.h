/* The manifest of a backup: a text that names each file of a data directory by its content.
 *
 *     skerry-backup 2
 *     release 0.1.0
 *     at 1790000000000                     ms since 1970
 *     <sha256, 64 hex> <bytes> blobs/ab/ab12…
 *     ...
 *     end 17 <sha256>                      the number of files, and the hash of all lines before
 *
 * Version 1, of older releases, has no such hash; it is read but no longer written.
 *
 * Paths are relative, of letters, digits, '.', '_', '-' and '/', without a component that begins
 * with '.'.  Pure functions. */
#ifndef COORDINATOR_MANIFEST_H
#define COORDINATOR_MANIFEST_H

#include "common/base/base.h"
#include "common/base/buf.h"

#define MANIFEST_FILES_MAX (1u << 20)
#define MANIFEST_PATH_MAX 256 /* with the terminator */
#define MANIFEST_BYTES_MAX ((size_t)512 << 20)

/* A file of the data directory as it was at the backup. */
struct manifest_file {
    uint8_t sha256[32];
    uint64_t size;
    char *path;
};

/* Zeroed: no file. */
struct manifest {
    char release[65];
    int64_t at_unix_ms;
    struct manifest_file *files;
    size_t n, cap;
};

/* Copies path.  -EINVAL: the path is not as above; -ERR_LIMIT: MANIFEST_FILES_MAX. */
int manifest_add(struct manifest *m, const uint8_t sha256[32], uint64_t size, const char *path,
                 struct err *err);
/* Appends the text to out. */
int manifest_format(const struct manifest *m, struct buf *out, struct err *err);
/* text is terminated; the caller releases *ret, also after a failure.  -ERR_FORMAT: err names the
 * line. */
int manifest_parse(const char *text, struct manifest *ret, struct err *err);
void manifest_release(struct manifest *m);

#endif
