/* The part of file.h about directories, locks and views. */
#include "common/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/str.h"

#define TREE_DEPTH_MAX 64

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Removes what is in the open directory (takes fd), following no links. */
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

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list_into(DIR *dir, const char *path, size_t max, struct file_names *out,
                     struct err *err)
{
    size_t cap = 0;
    struct dirent *e;
    while ((errno = 0, e = readdir(dir))) {
        if (e->d_name[0] == '.')
            continue;
        if (out->n == max)
            return err_set(err, -ERR_LIMIT, "%s has more than %zu entries", path, max);
        if (out->n == cap) {
            cap = cap ? cap * 2 : 64;
            char **items = mem_try_realloc_array(out->items, cap, sizeof(*items));
            if (!items)
                return err_set(err, -ENOMEM, "out of memory while listing %s", path);
            out->items = items;
        }
        out->items[out->n++] = str_dup(e->d_name);
    }
    return errno ? err_errno(err, "cannot list %s", path) : 0;
}

int file_list(const char *path, size_t max, struct file_names *ret, struct err *err)
{
    struct file_names names = {0};
    DIR *dir = opendir(path);
    if (!dir)
        return err_errno(err, "cannot open the directory %s", path);
    int rc = list_into(dir, path, max, &names, err);
    closedir(dir);
    if (rc < 0) {
        file_names_release(&names);
        return rc;
    }
    if (names.n)
        qsort(names.items, names.n, sizeof(*names.items), by_name);
    *ret = names;
    return 0;
}

int file_names_add(struct file_names *names, size_t max, char *item, struct err *err)
{
    /* Doubling at powers of two, so there is no capacity to keep. */
    if (names->n == max || ((names->n & (names->n - 1)) == 0 && names->n >= 1)) {
        size_t cap = names->n * 2;
        char **items =
            names->n == max ? NULL : mem_try_realloc_array(names->items, cap, sizeof(*items));
        if (!items) {
            mem_free(item);
            return err_set(err, -ERR_LIMIT, "more than %zu names", max);
        }
        names->items = items;
    } else if (names->n == 0 && !names->items) {
        names->items = mem_alloc_array(1, sizeof(*names->items));
    }
    names->items[names->n++] = item;
    return 0;
}
void file_names_release(struct file_names *names)
{
    for (size_t i = 0; i < names->n; i++)
        mem_free(names->items[i]);
    mem_free(names->items);
    *names = (struct file_names){0};
}

/* Who holds it, from the file's own words. */
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
    if (rc < 0)
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
