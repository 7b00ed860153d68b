/* Files.  Every failure names the path; a short write, a failed fsync and a
 * failed close are failures.  Nothing here is left half-written under its final
 * name: writers go to a temporary file beside it and are renamed.
 *
 * Builds with SKERRY_FAULTS: SKERRY_FAULT_ENOSPC_AFTER=<bytes> in the
 * environment (or file_fault_enospc()) lets that many bytes be written through
 * this module, then every write fails with ENOSPC. */
#ifndef COMMON_BASE_FILE_H
#define COMMON_BASE_FILE_H

#include <sys/types.h>

#include "common/base/base.h"
#include "common/base/buf.h"

/* Whole file into out (which file_read inits with this max; release it).
 * -ERR_LIMIT when larger; out is then empty. */
int file_read(const char *path, size_t max, struct buf *out, struct err *err);
/* The same of what is open already, to its end; name: for errors. */
int file_read_fd(int fd, const char *name, size_t max, struct buf *out, struct err *err);

/* What a file is renamed onto is gone: -EINVAL where that is a device, a pipe or a link to one,
 * such as /dev/null or /dev/stdout, which root could lose. */
int file_check_place(const char *path, struct err *err);

/* temp + write + fsync + rename + fsync of the directory, after file_check_place().  Here and below
 * a mode is less the umask. */
int file_write_atomic(const char *path, const void *data, size_t len, mode_t mode, struct err *err);
/* The same without waiting for the disk: for what a power cut may take. */
int file_write_put(const char *path, const void *data, size_t len, mode_t mode, struct err *err);

/* The same, in pieces.  open -> write* -> commit, or abort (after commit it is a
 * no-op, so `out:` labels may always call it).  Pieces may also be placed with
 * file_out_pwrite.  fd may be read back before commit. */
struct file_out {
    int fd; /* -1 when closed */
    char *path;
    char *temp;
    _Atomic uint64_t written; /* threads may file_out_pwrite() at a time */
    char *spare;              /* of file_out_open_again; else NULL */
};
int file_out_open(struct file_out *f, const char *path, mode_t mode, struct err *err);
/* For a file that is made again and again, and put: it is written over `spare` (NULL: path.spare),
 * whose place in memory and on the disk is there already, and what `path` was becomes the spare.
 * What has either name is whole.  Takes twice the room. */
int file_out_open_again(struct file_out *f, const char *path, const char *spare, mode_t mode,
                        struct err *err);
int file_out_write(struct file_out *f, const void *data, size_t len, struct err *err);
int file_out_pwrite(struct file_out *f, const void *data, size_t len, uint64_t offset,
                    struct err *err);
/* The disk may begin with what was written so far; nothing is waited for or promised. */
void file_out_begin_sync(struct file_out *f);
int file_out_commit(struct file_out *f, struct err *err);
/* As commit, but without waiting for the disk: for what a power cut may take, or cut short. */
int file_out_put(struct file_out *f, struct err *err);
void file_out_abort(struct file_out *f);

/* On descriptors; `path` is for the message only.  pread: -ERR_FORMAT when the
 * file ends early. */
int file_write_all(int fd, const void *data, size_t len, const char *path, struct err *err);
int file_pwrite_all(int fd, const void *data, size_t len, uint64_t offset, const char *path,
                    struct err *err);
int file_pread_all(int fd, void *data, size_t len, uint64_t offset, const char *path,
                   struct err *err);
int file_sync(int fd, const char *path, struct err *err);
/* rename(2); file_rename: + fsync of the target's directory. */
int file_move(const char *from, const char *to, struct err *err);
int file_rename(const char *from, const char *to, struct err *err);
int file_sync_dir(const char *dir, struct err *err);
int file_sync_parent(const char *path, struct err *err); /* its name is durable */
/* All that was written to the file system of dir, by whomever: syncfs(2). */
int file_sync_all(const char *dir, struct err *err);

/* Where this user's programs keep what can be made again: $XDG_CACHE_HOME/skerry, else
 * ~/.cache/skerry; it may not be there.  mem_free; NULL: neither variable names a folder. */
char *file_cache_dir(void);

/* First of all in a program: a write beyond `ulimit -f` fails, as on a full disk; and where
 * standard input, output or errors are closed, no file that is opened later takes their place: the
 * input is empty, and what is written to the others is lost. */
void file_first(void);

/* Looking and removing; links are followed unless said otherwise. */
bool file_exists(const char *path);
bool file_is_dir(const char *path);
/* Where path is, or would be made, as seen from dir; apart also where one of both is not known.
 * SAME: path is there and is dir itself, which may then be a file. */
enum file_place { FILE_APART, FILE_INSIDE, FILE_SAME };
enum file_place file_place(const char *path, const char *dir);
int file_size(const char *path, uint64_t *ret, struct err *err);
/* An existing directory is fine; those that are made are durable by name.  "": -EINVAL. */
int file_mkdirs(const char *path, mode_t mode, struct err *err);
/* The folder that path lies in. */
int file_mkdirs_for(const char *path, mode_t mode, struct err *err);
int file_remove(const char *path, struct err *err); /* a missing file is fine */
/* What writers that were killed have left in a directory of files that were not committed; nobody
 * may be writing there. */
int file_remove_temps(const char *dir, struct err *err);
/* Everything below and the directory itself; follows no links; missing is fine. */
int file_remove_tree(const char *path, struct err *err);
/* Bytes free to us on the file system of `path`. */
int file_disk_free(const char *path, uint64_t *ret, struct err *err);

/* "dir/name", mem_free. */
char *file_join(const char *dir, const char *name);

/* Sorted names in a directory (bytewise), without . and .. and hidden ones; at
 * most max, else -ERR_LIMIT. */
struct file_names {
    char **items;
    size_t n;
};
int file_list(const char *dir, size_t max, struct file_names *ret, struct err *err);
/* Takes item (mem_free) over, also when it fails: -ERR_LIMIT beyond `max`. */
int file_names_add(struct file_names *names, size_t max, char *item, struct err *err);
void file_names_release(struct file_names *names);
/* Paths that stand for several files: part-{000..011}.tar, as WebDataset has it, or a shell
 * pattern such as part-*.tar.  Appended to *out, sorted; the files of a range need not be there.
 * -EINVAL, and nothing said, when it is no pattern; -ENOENT when nothing matches a shell
 * pattern; -ERR_LIMIT beyond `max`. */
int file_pattern(const char *pattern, size_t max, struct file_names *out, struct err *err);

/* Is a directory that a daemon is given its own?  Not one that has files, and none whose name
 * begins with one of `ours` (NULL at the end): -EEXIST.  Hidden files, a lock and what a new disk
 * comes with are nobody's; a directory that is not there is fine. */
int file_check_own(const char *dir, const char *const *ours, struct err *err);

/* One daemon per directory: an flock on DIR/NAME, which holds our pid.  A second
 * one gets "DIR is in use by process 123 ...", or (unknown) where the disk was full.  Survives as
 * long as the process or until unlock. */
struct file_lock {
    int fd;
    char *path;
};
int file_lock_dir(const char *dir, const char *name, struct file_lock *ret, struct err *err);
void file_unlock(struct file_lock *lock);

/* A read-only view.  An empty file gives data NULL, len 0.  The file must not be
 * shortened by others while mapped (blobs never are). */
struct file_map {
    const uint8_t *data;
    size_t len;
};
int file_map_open(const char *path, struct file_map *ret, struct err *err);
void file_map_close(struct file_map *map);

/* From now on this many bytes may be written; negative: no limit.  Returns false
 * where the build has no fault injection. */
bool file_fault_enospc(long long bytes);

#endif
