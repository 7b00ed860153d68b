/* Files.  Every failure names the path; a short write, a failed fsync and a
 * failed close are failures.  No file is left half-written under its final
 * name: writers write a temporary file beside it and rename that.
 *
 * Builds with SKERRY_FAULTS: file_fault_enospc() lets so many bytes be written
 * through this module, then every write fails with ENOSPC. */
#ifndef COMMON_BASE_FILE_H
#define COMMON_BASE_FILE_H

#include <sys/types.h>

#include "common/base/base.h"
#include "common/base/buf.h"

/* Reads a whole file into out (which file_read inits with this max; release
 * it).  -ERR_LIMIT: the file is larger; out is then empty. */
int file_read(const char *path, size_t max, struct buf *out, struct err *err);
/* The same for an open descriptor, to its end; name: for errors. */
int file_read_fd(int fd, const char *name, size_t max, struct buf *out, struct err *err);

/* -ERR_FORMAT if a file begins as what a clone without Git LFS has in place of each large one;
 * eight bytes are enough. */
static inline int file_check_placeholder(const char *path, const void *data, size_t len,
                                         struct err *err)
{
    return len < 8 || memcmp(data, "version ", 8) != 0
               ? 0
               : err_set(err, -ERR_FORMAT,
                         "%s is a placeholder of Git LFS, without the file's contents: run `git "
                         "lfs pull` in its folder",
                         path);
}

/* A rename destroys its target: -EINVAL if path is a device, a pipe or a link to one, such as
 * /dev/null or /dev/stdout, which root could lose. */
int file_check_place(const char *path, struct err *err);

/* temp + write + fsync + rename + fsync of the directory, after file_check_place().  Here and below
 * the umask is taken from a mode. */
int file_write_atomic(const char *path, const void *data, size_t len, mode_t mode, struct err *err);
/* The same without waiting for the disk: for files that a power cut may destroy. */
int file_write_put(const char *path, const void *data, size_t len, mode_t mode, struct err *err);

/* The same in pieces: open -> write* -> commit, or abort (after commit it does
 * nothing, so `out:` labels may always call it).  file_out_pwrite writes a piece at
 * an offset.  fd may be read back before commit. */
struct file_out {
    int fd; /* -1 when closed */
    char *path;
    char *temp;
    _Atomic uint64_t written; /* bytes; several threads may file_out_pwrite() at once */
    char *spare;              /* file_out_open_again's; else NULL */
};
int file_out_open(struct file_out *f, const char *path, mode_t mode, struct err *err);
/* For a file that is replaced again and again, by put: the new one is written over `spare` (NULL:
 * path.spare), which already has its place in memory and on the disk, and the old one becomes the
 * spare.  A spare that has another name, too, is left alone.  A file of either name is whole. Takes
 * twice the room. */
int file_out_open_again(struct file_out *f, const char *path, const char *spare, mode_t mode,
                        struct err *err);
int file_out_write(struct file_out *f, const void *data, size_t len, struct err *err);
int file_out_pwrite(struct file_out *f, const void *data, size_t len, uint64_t offset,
                    struct err *err);
/* Lets the disk begin with the bytes written so far; waits for nothing and promises nothing. */
void file_out_begin_sync(struct file_out *f);
/* Waits until the bytes are on the disk, before put. */
int file_out_sync(struct file_out *f, struct err *err);
int file_out_commit(struct file_out *f, struct err *err);
/* As commit, but without waiting for the disk: a power cut may destroy or truncate the file. */
int file_out_put(struct file_out *f, struct err *err);
void file_out_abort(struct file_out *f);

/* On descriptors; `path` is only for messages.  pread: -ERR_FORMAT: the file ends
 * early. */
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
int file_sync_parent(const char *path, struct err *err); /* makes its name durable */
/* The same for n paths, of which some may be NULL: each directory is flushed once. */
int file_sync_parents(const char *const *paths, size_t n, struct err *err);
/* Everything that any process wrote to the file system of dir: syncfs(2). */
int file_sync_all(const char *dir, struct err *err);

/* The folder for files that this user's programs can make again: $XDG_CACHE_HOME/skerry, else
 * ~/.cache/skerry; it may not exist.  mem_free; NULL: neither variable names a folder. */
char *file_cache_dir(void);
/* The same for files that a user would miss: $XDG_CONFIG_HOME/skerry, else ~/.config/skerry. */
char *file_config_dir(void);

/* The sentence for a path that is "", with "file" or "directory". */
#define FILE_NAMELESS                                                                              \
    "the name of the %s is empty, as that of a variable that is not set: give its name"

/* To be called first in a program.  A write beyond `ulimit -f` then fails, as on a full disk; and
 * if standard input, output or error is closed, no file that is opened later takes its place: the
 * input is empty, and output is lost. */
void file_first(void);

/* Looking and removing; links are followed unless noted otherwise. */
bool file_exists(const char *path);
bool file_is_dir(const char *path);
/* Where path is, or would be made, relative to dir; APART also if either cannot be found.
 * SAME: path exists and is dir itself, which may then be a file. */
enum file_place { FILE_APART, FILE_INSIDE, FILE_SAME };
enum file_place file_place(const char *path, const char *dir);
int file_size(const char *path, uint64_t *ret, struct err *err);
/* An existing directory is fine; those that are made are durable by name.  "": -EINVAL. */
int file_mkdirs(const char *path, mode_t mode, struct err *err);
/* The same for the folder that path lies in. */
int file_mkdirs_for(const char *path, mode_t mode, struct err *err);
int file_remove(const char *path, struct err *err); /* a missing file is fine */
/* Removes temporary files that killed writers left in a directory; nobody may be writing there. */
int file_remove_temps(const char *dir, struct err *err);
/* Removes a directory and everything in it; follows no links; a missing one is fine. */
int file_remove_tree(const char *path, struct err *err);
/* Bytes free to us on the file system of `path`. */
int file_disk_free(const char *path, uint64_t *ret, struct err *err);
/* Bytes of that file system, free or not. */
int file_disk_size(const char *path, uint64_t *ret, struct err *err);

/* "dir/name", mem_free. */
char *file_join(const char *dir, const char *name);

/* The names in a directory, sorted bytewise, without . and .. and hidden ones; at
 * most max, else -ERR_LIMIT. */
struct file_names {
    char **items;
    size_t n;
};
int file_list(const char *dir, size_t max, struct file_names *ret, struct err *err);
/* Takes item (mem_free), also on failure.  -ERR_LIMIT beyond `max`. */
int file_names_add(struct file_names *names, size_t max, char *item, struct err *err);
void file_names_release(struct file_names *names);
/* Appends the paths of a pattern to *out, sorted: part-{000..011}.tar, as in WebDataset, whose
 * files need not exist, or a shell pattern such as part-*.tar.  -EINVAL, without a message: it is
 * no pattern; -ENOENT: nothing matches a shell pattern; -ERR_LIMIT beyond `max`. */
int file_pattern(const char *pattern, size_t max, struct file_names *out, struct err *err);

/* -EEXIST: a directory given to a daemon is not its own: it has files, but none whose name begins
 * with one of `ours` (NULL at the end).  Hidden files, a lock and the files of a new disk do not
 * count; a missing directory is fine. */
int file_check_own(const char *dir, const char *const *ours, struct err *err);

/* One daemon per directory: an flock on DIR/NAME, which holds our pid.  A second daemon
 * gets "DIR is in use by process 123 ...", or (unknown) if the disk was full.  Lasts until
 * unlock or the end of the process. */
struct file_lock {
    int fd;
    char *path;
};
int file_lock_dir(const char *dir, const char *name, struct file_lock *ret, struct err *err);
void file_unlock(struct file_lock *lock);

/* A read-only view.  An empty file gives data NULL, len 0.  The file must not be
 * shortened while it is mapped (blobs never are). */
struct file_map {
    const uint8_t *data;
    size_t len;
};
int file_map_open(const char *path, struct file_map *ret, struct err *err);
void file_map_close(struct file_map *map);

/* For tests: from now on this many bytes may be written; negative: no limit.  Returns false
 * if the build has no fault injection. */
bool file_fault_enospc(long long bytes);

#endif
