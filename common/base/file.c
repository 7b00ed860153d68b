#include "common/base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <libgen.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/base/pieces.h"

#define TEMP ".tmp."          /* behind the name of what is not committed */
#define OWN_ENTRIES_MAX 65536 /* entries of a directory that may belong to another program */

#ifdef SKERRY_FAULTS
#define ENOSPC_OFF INT64_MAX
static _Atomic int64_t enospc_left = ENOSPC_OFF;

bool file_fault_enospc(long long bytes)
{
    atomic_store(&enospc_left, bytes < 0 ? ENOSPC_OFF : bytes);
    return true;
}

/* The number of the len bytes that may be written: 0 is a full disk. */
static size_t fault_budget(size_t len)
{
    int64_t left = atomic_load(&enospc_left);
    for (;;) {
        if (left == ENOSPC_OFF)
            return len;
        int64_t take = left < (int64_t)len ? left : (int64_t)len;
        if (atomic_compare_exchange_weak(&enospc_left, &left, left - take))
            return (size_t)take;
    }
}
#else
bool file_fault_enospc(long long bytes)
{
    (void)bytes;
    return false;
}

static size_t fault_budget(size_t len)
{
    return len;
}
#endif

/* One write(2) or pwrite(2) (offset >= 0) under the fault knob. */
static ssize_t write_once(int fd, const void *data, size_t len, int64_t offset)
{
    size_t allowed = fault_budget(len);
    if (allowed == 0 && len > 0) {
        errno = ENOSPC;
        return -1;
    }
    if (allowed > PIECE_BYTES)
        allowed = PIECE_BYTES;
    return offset < 0 ? write(fd, data, allowed) : pwrite(fd, data, allowed, (off_t)offset);
}

static int write_loop(int fd, const void *data, size_t len, int64_t offset, const char *path,
                      struct err *err)
{
    const uint8_t *p = data;
    while (len > 0) {
        ssize_t n = write_once(fd, p, len, offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = ENOSPC;
        if (n <= 0)
            return err_errno(err, "cannot write %s", path);
        pieces_done();
        p += n;
        len -= (size_t)n;
        if (offset >= 0)
            offset += n;
    }
    return 0;
}

int file_write_all(int fd, const void *data, size_t len, const char *path, struct err *err)
{
    return write_loop(fd, data, len, -1, path, err);
}

int file_pwrite_all(int fd, const void *data, size_t len, uint64_t offset, const char *path,
                    struct err *err)
{
    if (offset > INT64_MAX)
        return err_set(err, -EFBIG, "cannot write %s: offset too large", path);
    return write_loop(fd, data, len, (int64_t)offset, path, err);
}

int file_pread_all(int fd, void *data, size_t len, uint64_t offset, const char *path,
                   struct err *err)
{
    uint8_t *p = data;
    while (len > 0) {
        ssize_t n = pread(fd, p, len < PIECE_BYTES ? len : PIECE_BYTES, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(err, "cannot read %s", path);
        if (n == 0)
            return err_set(err, -ERR_FORMAT, "%s ends at byte %llu, %zu bytes too early", path,
                           (unsigned long long)offset, len);
        pieces_done();
        p += n;
        len -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

/* Writes a large file's pages to the disk, piece by piece, so that somebody who waits hears that it
 * goes on.  A file system that cannot leaves it to fsync. */
static int flush_pieces(int fd)
{
    struct stat st;
    if (!pieces_heard() || fstat(fd, &st) < 0)
        return 0;
    for (off_t at = 0; at < st.st_size; at += (off_t)PIECE_BYTES) {
        if (sync_file_range(fd, at, PIECE_BYTES,
                            SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                                SYNC_FILE_RANGE_WAIT_AFTER) < 0)
            return errno == EIO || errno == ENOSPC || errno == EDQUOT ? -1 : 0;
        pieces_done();
    }
    return 0;
}

int file_sync(int fd, const char *path, struct err *err)
{
    return flush_pieces(fd) < 0 || fsync(fd) < 0 ? err_errno(err, "cannot flush %s to disk", path)
                                                 : 0;
}

int file_read_fd(int fd, const char *name, size_t max, struct buf *out, struct err *err)
{
    int rc = 0;
    buf_init(out, max);
    for (;;) {
        uint8_t piece[16384];
        ssize_t n = read(fd, piece, sizeof(piece));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            rc = err_errno(err, "cannot read %s", name);
        if (n <= 0)
            break;
        rc = buf_append(out, piece, (size_t)n);
        if (rc < 0) {
            (void)err_set(err, rc, "%s is larger than the %zu bytes allowed", name, max);
            break;
        }
    }
    if (rc < 0)
        buf_release(out);
    return rc;
}

int file_read(const char *path, size_t max, struct buf *out, struct err *err)
{
    buf_init(out, max);
    if (!path[0])
        return err_set(err, -ENOENT, FILE_NAMELESS, "file");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "cannot open %s", path);
    int rc = file_read_fd(fd, path, max, out, err);
    (void)close(fd); /* read only: nothing to lose */
    return rc;
}

/* The directory part of a path, mem_free. */
static char *dir_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return str_dup(".");
    return slash == path ? str_dup("/") : str_ndup(path, (size_t)(slash - path));
}

int file_sync_dir(const char *dir, struct err *err)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "cannot open the directory %s", dir);
    /* EINVAL: a file system that has nothing to flush for directories. */
    int rc = fsync(fd) < 0 && errno != EINVAL
                 ? err_errno(err, "cannot flush the directory %s to disk", dir)
                 : 0;
    close(fd);
    return rc;
}

int file_sync_all(const char *dir, struct err *err)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "cannot open the directory %s", dir);
    int rc = syncfs(fd) < 0 ? err_errno(err, "cannot flush the disk of %s", dir) : 0;
    close(fd);
    return rc;
}

int file_sync_parent(const char *path, struct err *err)
{
    char *dir = dir_of(path);
    int rc = file_sync_dir(dir, err);
    mem_free(dir);
    return rc;
}

static bool is_beside(const char *a, const char *b)
{
    const char *x = strrchr(a, '/'), *y = strrchr(b, '/');
    const size_t n = x ? (size_t)(x - a) : 0;
    return !x == !y && (!x || ((size_t)(y - b) == n && memcmp(a, b, n) == 0));
}

int file_sync_parents(const char *const *paths, size_t n, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        bool flushed = !paths[i];
        for (size_t k = 0; k < i && !flushed; k++)
            flushed = paths[k] && is_beside(paths[k], paths[i]);
        if (!flushed)
            rc = file_sync_parent(paths[i], err);
    }
    return rc;
}

int file_move(const char *from, const char *to, struct err *err)
{
    return rename(from, to) < 0 ? err_errno(err, "cannot rename %s to %s", from, to) : 0;
}

int file_rename(const char *from, const char *to, struct err *err)
{
    int rc = file_move(from, to, err);
    return rc < 0 ? rc : file_sync_parent(to, err);
}

/* Takes temp. */
static int out_open(struct file_out *f, const char *path, char *temp, int fd, struct err *err)
{
    if (fd < 0) {
        int rc = err_errno(err, "cannot create %s", path);
        mem_free(temp);
        return rc;
    }
    f->fd = fd;
    f->path = str_dup(path);
    f->temp = temp;
    return 0;
}

/* Opens with the mode that the umask leaves: a caller that needs a mode sets the umask for it. */
static int open_temp(const char *path, mode_t mode, char **ret)
{
    static _Atomic unsigned next;
    for (;;) {
        *ret = str_printf("%s" TEMP "%d-%u", path, (int)getpid(), atomic_fetch_add(&next, 1));
        const int fd = open(*ret, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (fd >= 0 || errno != EEXIST)
            return fd;
        mem_free(*ret);
    }
}

int file_check_place(const char *path, struct err *err)
{
    struct stat st;
    char to[8] = "";
    const bool proc = readlink(path, to, sizeof(to) - 1) > 0 && !strncmp(to, "/proc/", 6);
    if (stat(path, &st) < 0 || (!proc && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))))
        return 0;
    return err_set(err, -EINVAL, "%s is a device or a pipe, expected the name of a file", path);
}

int file_out_open(struct file_out *f, const char *path, mode_t mode, struct err *err)
{
    *f = (struct file_out){.fd = -1};
    char *temp;
    int rc = file_check_place(path, err);
    if (rc < 0)
        return rc;
    int fd = open_temp(path, mode, &temp);
    return out_open(f, path, temp, fd, err);
}

/* A file that has another name, too, keeps what it holds: a new one takes its place. */
static int open_alone(const char *path, mode_t mode)
{
    struct stat st;
    const int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || (fstat(fd, &st) == 0 && st.st_nlink == 1))
        return fd;
    (void)close(fd); /* nothing was written */
    (void)unlink(path);
    return open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
}

int file_out_open_again(struct file_out *f, const char *path, const char *spare, mode_t mode,
                        struct err *err)
{
    *f = (struct file_out){.fd = -1};
    char *temp, *old = spare ? str_dup(spare) : str_printf("%s.spare", path);
    int fd = open_temp(path, mode, &temp);
    if (fd >= 0 && rename(old, temp) == 0) {
        (void)close(fd); /* just made and empty */
        fd = open_alone(temp, mode);
    }
    const int rc = out_open(f, path, temp, fd, err);
    if (rc == 0)
        f->spare = old;
    else
        mem_free(old);
    return rc;
}

int file_out_write(struct file_out *f, const void *data, size_t len, struct err *err)
{
    int rc = file_write_all(f->fd, data, len, f->path, err);
    if (rc == 0)
        f->written += len;
    return rc;
}

int file_out_pwrite(struct file_out *f, const void *data, size_t len, uint64_t offset,
                    struct err *err)
{
    int rc = file_pwrite_all(f->fd, data, len, offset, f->path, err);
    uint64_t end = offset + len, before = f->written;
    while (rc == 0 && end > before && !atomic_compare_exchange_weak(&f->written, &before, end))
        ;
    return rc;
}

/* Forgets everything except the files. */
static void out_reset(struct file_out *f)
{
    mem_free(f->path);
    mem_free(f->temp);
    mem_free(f->spare);
    *f = (struct file_out){.fd = -1};
}

void file_out_begin_sync(struct file_out *f)
{
    (void)sync_file_range(f->fd, 0, 0, SYNC_FILE_RANGE_WRITE); /* no more than a hint */
}

/* Gives the finished file its name; a file that had the name becomes the spare. */
static int take_name(const struct file_out *f)
{
    if (f->spare && renameat2(AT_FDCWD, f->temp, AT_FDCWD, f->path, RENAME_EXCHANGE) == 0)
        return rename(f->temp, f->spare);
    return rename(f->temp, f->path); /* there is no old file, or the file system cannot exchange */
}

/* What a spare had beyond the new file's end goes.  A flushed file is not touched again. */
static int cut(const struct file_out *f, struct err *err)
{
    struct stat st;
    if (f->spare == NULL)
        return 0;
    if (fstat(f->fd, &st) < 0 ||
        ((uint64_t)st.st_size != f->written && ftruncate(f->fd, (off_t)f->written) < 0))
        return err_errno(err, "cannot cut %s", f->path);
    return 0;
}

int file_out_sync(struct file_out *f, struct err *err)
{
    const int rc = cut(f, err);
    return rc < 0 ? rc : file_sync(f->fd, f->path, err);
}

int file_out_put(struct file_out *f, struct err *err)
{
    int rc = cut(f, err), fd = f->fd;
    f->fd = -1;
    if (close(fd) < 0 && rc == 0)
        rc = err_errno(err, "cannot close %s", f->path);
    if (rc == 0 && take_name(f) < 0)
        rc = err_errno(err, "cannot rename %s to %s", f->temp, f->path);
    if (rc < 0)
        (void)unlink(f->temp); /* already failing */
    out_reset(f);
    return rc;
}

int file_out_commit(struct file_out *f, struct err *err)
{
    int rc = file_out_sync(f, err);
    if (rc < 0) {
        file_out_abort(f);
        return rc;
    }
    char *dir = dir_of(f->path);
    rc = file_out_put(f, err);
    if (rc == 0)
        rc = file_sync_dir(dir, err);
    mem_free(dir);
    return rc;
}

void file_out_abort(struct file_out *f)
{
    if (!f->temp)
        return;
    if (f->fd >= 0)
        close(f->fd);
    (void)unlink(f->temp); /* best effort: a stray temporary is harmless */
    out_reset(f);
}

static int write_whole(const char *path, const void *data, size_t len, mode_t mode,
                       int (*end)(struct file_out *, struct err *), struct err *err)
{
    struct file_out f;
    int rc = file_out_open(&f, path, mode, err);
    if (rc == 0)
        rc = file_out_write(&f, data, len, err);
    if (rc == 0)
        rc = end(&f, err);
    file_out_abort(&f);
    return rc;
}

int file_write_atomic(const char *path, const void *data, size_t len, mode_t mode, struct err *err)
{
    return write_whole(path, data, len, mode, file_out_commit, err);
}

int file_write_put(const char *path, const void *data, size_t len, mode_t mode, struct err *err)
{
    return write_whole(path, data, len, mode, file_out_put, err);
}

/* A relative path there would mean another folder in each place: it counts as none. */
static char *user_dir(const char *variable, const char *in_home)
{
    const char *given = getenv(variable), *home = getenv("HOME");
    if (given && given[0] == '/')
        return str_printf("%s/skerry", given);
    return home && home[0] == '/' ? str_printf("%s/%s/skerry", home, in_home) : NULL;
}

char *file_cache_dir(void)
{
    return user_dir("XDG_CACHE_HOME", ".cache");
}

char *file_config_dir(void)
{
    return user_dir("XDG_CONFIG_HOME", ".config");
}

void file_first(void)
{
    int ends[2];
    (void)signal(SIGXFSZ, SIG_IGN);
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || pipe(ends) < 0)
            continue; /* pipe() takes the lowest free number, which is this */
        (void)close(ends[1]);
    }
}

bool file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool file_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* The real path of the part of a path that exists, without links; free().  NULL: not known. */
static char *real_place(const char *path)
{
    char *at = str_dup(path), *real;
    while (!(real = realpath(at, NULL)) && errno == ENOENT && strcmp(at, ".") != 0) {
        const char *up = dirname(at); /* in `at`, or "." */
        memmove(at, up, strlen(up) + 1);
    }
    mem_free(at);
    return real;
}

enum file_place file_place(const char *path, const char *dir)
{
    char *of = realpath(dir, NULL), *at = of ? real_place(path) : NULL;
    const size_t n = of && strcmp(of, "/") != 0 ? strlen(of) : 0;
    enum file_place ret = FILE_APART;
    if (at && strncmp(at, of, n) == 0 && strchr("/", at[n]))
        ret = strcmp(at, of) == 0 && file_exists(path) ? FILE_SAME : FILE_INSIDE;
    free(at);
    free(of);
    return ret;
}

int file_size(const char *path, uint64_t *ret, struct err *err)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return err_errno(err, "cannot look at %s", path);
    *ret = (uint64_t)st.st_size;
    return 0;
}

int file_mkdirs(const char *path, mode_t mode, struct err *err)
{
    if (!path[0]) /* what is made in it would lie in the root directory */
        return err_set(err, -EINVAL, FILE_NAMELESS, "directory");
    char *part = str_dup(path);
    int rc = 0;
    for (char *p = part; rc == 0; p++) {
        char end = *p;
        if ((end != '/' && end != '\0') || p == part) {
            if (end == '\0')
                break;
            continue;
        }
        *p = '\0';
        if (mkdir(part, mode) == 0)
            rc = file_sync_parent(part, err);
        else if (!(errno == EEXIST && file_is_dir(part)))
            rc = errno == EEXIST
                     ? err_set(err, -ENOTDIR, "%s is a file, expected a directory", part)
                     : err_errno(err, "cannot make the directory %s", part);
        if (end == '\0')
            break;
        *p = end;
    }
    mem_free(part);
    return rc;
}

int file_mkdirs_for(const char *path, mode_t mode, struct err *err)
{
    char *dir = dir_of(path);
    int rc = file_mkdirs(dir, mode, err);
    mem_free(dir);
    return rc;
}

int file_remove(const char *path, struct err *err)
{
    if (unlink(path) < 0 && errno != ENOENT)
        return err_errno(err, "cannot remove %s", path);
    return 0;
}

int file_disk_free(const char *path, uint64_t *ret, struct err *err)
{
    struct statvfs vfs;
    if (statvfs(path, &vfs) < 0)
        return err_errno(err, "cannot ask for the free space of %s", path);
    *ret = (uint64_t)vfs.f_bavail * vfs.f_frsize;
    return 0;
}

int file_disk_size(const char *path, uint64_t *ret, struct err *err)
{
    struct statvfs vfs;
    if (statvfs(path, &vfs) < 0)
        return err_errno(err, "cannot ask for the size of the disk of %s", path);
    *ret = (uint64_t)vfs.f_blocks * vfs.f_frsize;
    return 0;
}

char *file_join(const char *dir, const char *name)
{
    size_t n = strlen(dir);
    return str_printf("%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
}

/* ---- directories, locks, views ---- */

#define TREE_DEPTH_MAX 64

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Removes the content of the open directory (takes fd), following no links. */
static int remove_inside(int fd, const char *path, int depth, struct err *err)
{
    DIR *dir = fdopendir(fd);
    if (!dir) {
        int rc = err_errno(err, "cannot list %s", path);
        close(fd);
        return rc;
    }
    int rc = depth > TREE_DEPTH_MAX ? err_set(err, -ERR_LIMIT, "%s is nested too deeply", path) : 0;
    struct dirent *e;
    while (rc == 0 && (errno = 0, e = readdir(dir))) {
        if (is_dots(e->d_name) || unlinkat(fd, e->d_name, 0) == 0 || errno == ENOENT)
            continue;
        if (errno != EISDIR && errno != EPERM) {
            rc = err_errno(err, "cannot remove %s/%s", path, e->d_name);
            break;
        }
        int child = openat(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        char *name = file_join(path, e->d_name);
        if (child < 0)
            rc = err_errno(err, "cannot open %s", name);
        else
            rc = remove_inside(child, name, depth + 1, err);
        if (rc == 0 && unlinkat(fd, e->d_name, AT_REMOVEDIR) < 0 && errno != ENOENT)
            rc = err_errno(err, "cannot remove %s", name);
        mem_free(name);
    }
    if (rc == 0 && errno)
        rc = err_errno(err, "cannot list %s", path);
    closedir(dir);
    return rc;
}

int file_remove_tree(const char *path, struct err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
        return file_remove(path, err);
    if (fd < 0)
        return err_errno(err, "cannot open %s", path);
    int rc = remove_inside(fd, path, 0, err);
    if (rc == 0 && rmdir(path) < 0 && errno != ENOENT)
        rc = err_errno(err, "cannot remove %s", path);
    return rc;
}

/* Takes item; -ERR_LIMIT beyond `max`, or without memory. */
static int names_push(struct file_names *names, size_t max, char *item)
{
    /* Doubling at powers of two, so there is no capacity to keep. */
    bool grow = (names->n & (names->n - 1)) == 0;
    size_t cap = names->n ? names->n * 2 : 1;
    char **items = names->n == max ? NULL
                   : grow          ? mem_try_realloc_array(names->items, cap, sizeof(*items))
                                   : names->items;
    if (!items) {
        mem_free(item);
        return -ERR_LIMIT;
    }
    names->items = items;
    names->items[names->n++] = item;
    return 0;
}

static int list_into(DIR *dir, const char *path, size_t max, struct file_names *out,
                     struct err *err)
{
    struct dirent *e;
    while ((errno = 0, e = readdir(dir))) {
        if (e->d_name[0] == '.')
            continue;
        if (names_push(out, max, str_dup(e->d_name)) < 0)
            return err_set(err, -ERR_LIMIT, "%s has more than %zu entries", path, max);
    }
    return errno ? err_errno(err, "cannot list %s", path) : 0;
}

int file_list(const char *path, size_t max, struct file_names *ret, struct err *err)
{
    struct file_names names = {0};
    DIR *dir = opendir(path);
    if (!dir)
        return err_errno(err, "cannot open the directory %s", path);
    if (faccessat(dirfd(dir), ".", X_OK, AT_EACCESS) < 0) { /* its names lead nowhere */
        const int rc = err_errno(err, "cannot enter the directory %s", path);
        closedir(dir);
        return rc;
    }
    int rc = list_into(dir, path, max, &names, err);
    closedir(dir);
    if (rc < 0) {
        file_names_release(&names);
        return rc;
    }
    if (names.n)
        qsort(names.items, names.n, sizeof(*names.items), str_order);
    *ret = names;
    return 0;
}

int file_remove_temps(const char *path, struct err *err)
{
    const struct dirent *e;
    int rc = 0;
    DIR *dir = opendir(path);
    if (!dir)
        return err_errno(err, "cannot open the directory %s", path);
    while (rc == 0 && (errno = 0, e = readdir(dir)))
        if (strstr(e->d_name, TEMP) && unlinkat(dirfd(dir), e->d_name, 0) < 0)
            rc = err_errno(err, "cannot remove %s/%s", path, e->d_name);
    if (rc == 0 && errno)
        rc = err_errno(err, "cannot list %s", path);
    closedir(dir);
    return rc;
}

int file_names_add(struct file_names *names, size_t max, char *item, struct err *err)
{
    return names_push(names, max, item) < 0 ? err_set(err, -ERR_LIMIT, "more than %zu names", max)
                                            : 0;
}

void file_names_release(struct file_names *names)
{
    for (size_t i = 0; i < names->n; i++)
        mem_free(names->items[i]);
    mem_free(names->items);
    *names = (struct file_names){0};
}

int file_check_own(const char *dir, const char *const *ours, struct err *err)
{
    struct file_names names;
    const char *other = NULL;
    bool own = false;
    if (!file_is_dir(dir))
        return 0;
    int rc = file_list(dir, OWN_ENTRIES_MAX, &names, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < names.n && !own; i++) {
        const char *name = names.items[i];
        for (size_t k = 0; ours[k] && !own; k++)
            own = strncmp(name, ours[k], strlen(ours[k])) == 0;
        if (name[0] != '.' && strcmp(name, "lock") != 0 && strcmp(name, "lost+found") != 0)
            other = name;
    }
    if (other && !own)
        rc = err_set(err, -EEXIST,
                     "it has %s, but no file of this program: give this program an empty directory "
                     "of its own",
                     other);
    file_names_release(&names);
    return rc;
}

/* Names the process that holds the lock, as the file says. */
static int held_elsewhere(int fd, const char *dir, struct err *err)
{
    char pid[32] = "";
    ssize_t n = pread(fd, pid, sizeof(pid) - 1, 0);
    pid[n > 0 ? strspn(pid, "0123456789") : 0] = '\0';
    return err_set(err, -EBUSY, "%s is in use by process %s; stop it, or use another directory",
                   dir, *pid ? pid : "(unknown)");
}

int file_lock_dir(const char *dir, const char *name, struct file_lock *ret, struct err *err)
{
    char *path = file_join(dir, name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    int rc = 0;
    if (fd < 0) {
        rc = err_errno(err, "cannot open %s", path);
        goto out;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        rc = errno == EWOULDBLOCK ? held_elsewhere(fd, dir, err)
                                  : err_errno(err, "cannot lock %s", path);
        goto out;
    }
    char pid[32];
    int n = snprintf(pid, sizeof(pid), "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) < 0)
        rc = err_errno(err, "cannot write %s", path);
    else
        rc = file_pwrite_all(fd, pid, (size_t)n, 0, path, err);
    if (rc < 0 && rc != -ENOSPC) /* it holds without its number, too, and may make room */
        goto out;
    *ret = (struct file_lock){.fd = fd, .path = path};
    return 0;
out:
    if (fd >= 0)
        close(fd);
    mem_free(path);
    return rc;
}

void file_unlock(struct file_lock *lock)
{
    if (!lock->path)
        return;
    /* The file stays: unlinking it would let two processes lock two files. */
    close(lock->fd);
    mem_free(lock->path);
    *lock = (struct file_lock){.fd = -1};
}

int file_map_open(const char *path, struct file_map *ret, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "cannot open %s", path);
    struct stat st;
    int rc = fstat(fd, &st) < 0 ? err_errno(err, "cannot look at %s", path) : 0;
    struct file_map map = {0};
    if (rc == 0 && !S_ISREG(st.st_mode))
        rc = err_set(err, -EINVAL, "%s is not a regular file", path);
    if (rc == 0 && st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            rc = err_errno(err, "cannot map %s", path);
        else
            map = (struct file_map){.data = p, .len = (size_t)st.st_size};
    }
    close(fd);
    if (rc == 0)
        *ret = map;
    return rc;
}

void file_map_close(struct file_map *map)
{
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->len);
    *map = (struct file_map){0};
}

/* ---- patterns ---- */

/* Expands part-{000..011}.tar into names; -EINVAL if it is not such a pattern. */
static int expand_braces(const char *pattern, size_t max, struct file_names *out, struct err *err)
{
    const char *open = strchr(pattern, '{'), *dots = open ? strstr(open, "..") : NULL;
    const char *close = dots ? strchr(dots, '}') : NULL;
    char first[24] = "", last[24] = "";
    uint64_t from, to;
    if (!close || dots - open - 1 >= 20 || close - dots - 2 >= 20)
        return -EINVAL;
    memcpy(first, open + 1, (size_t)(dots - open - 1));
    memcpy(last, dots + 2, (size_t)(close - dots - 2));
    if (strncmp(first, "0x", 2) == 0 || str_parse_u64(first, &from) < 0 ||
        str_parse_u64(last, &to) < 0 || from > to)
        return err_set(err, -ERR_CONFIG, "'%s': expected a range such as {000..011}", pattern);
    if (to - from >= max)
        return err_set(err, -ERR_LIMIT, "'%s' names more than %zu files", pattern, max);
    for (uint64_t i = from; i <= to; i++) {
        char *name = str_printf("%.*s%0*llu%s", (int)(open - pattern), pattern, (int)strlen(first),
                                (unsigned long long)i, close + 1);
        int rc = file_names_add(out, max, name, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int expand_glob(const char *pattern, size_t max, struct file_names *out, struct err *err)
{
    glob_t found;
    int rc = glob(pattern, 0, NULL, &found);
    if (rc == GLOB_NOMATCH)
        return err_set(err, -ENOENT, "no file matches '%s'", pattern);
    if (rc != 0)
        return err_set(err, -EIO, "cannot look for files matching '%s'", pattern);
    rc = 0;
    for (size_t i = 0; rc == 0 && i < found.gl_pathc; i++)
        rc = file_names_add(out, max, str_dup(found.gl_pathv[i]), err);
    globfree(&found);
    return rc;
}

int file_pattern(const char *pattern, size_t max, struct file_names *out, struct err *err)
{
    int rc = strchr(pattern, '{') ? expand_braces(pattern, max, out, err) : -EINVAL;
    if (rc == -EINVAL && strpbrk(pattern, "*?["))
        rc = expand_glob(pattern, max, out, err);
    return rc;
}
