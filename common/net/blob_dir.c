#include "common/net/blob_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/list.h"
#include "common/net/blobstore.h"

struct dir {
    struct blobstore base; /* first */
    char *path;
    uint64_t quota;
    pthread_mutex_t lock; /* guards the list */
    struct list uploads;  /* writers */
};

struct writer {
    struct blob_writer base; /* first */
    struct list link;        /* in dir->uploads */
    struct dir *dir;
    struct blob_id expect;
    uint64_t holder;
    bool hashed; /* all bytes went through `hash`; else the file is read at commit */
    struct hash hash;
    char *path;
    int fd;
    uint64_t max_bytes;
};

static struct dir *dir_of(struct blobstore *s)
{
    return (struct dir *)(void *)s;
}

static struct writer *writer_of(struct blob_writer *w)
{
    return (struct writer *)(void *)w;
}

char *blob_dir_file(const char *dir, const uint8_t sha256[32])
{
    char hex[HASH_HEX_MAX];
    hash_hex(sha256, HASH_BYTES, hex);
    return str_printf("%s/%.2s/%s", dir, hex, hex);
}

static char *part_of(const struct dir *d, const struct blob_id *id, uint64_t holder)
{
    char hex[BLOB_HEX_MAX];
    blob_id_hex(id, hex);
    return str_printf("%s/tmp/%s-%llu.part", d->path, hex, (unsigned long long)holder);
}

static char *file_of(const struct dir *d, const struct blob_id *id)
{
    return blob_dir_file(d->path, id->sha256);
}

/* ---- accounting ---- */

/* Counts bytes against the quota; -ENOSPC if it is used up.  credit() gives them back. */
static int charge(struct dir *d, uint64_t bytes, struct err *err)
{
    uint64_t used = atomic_fetch_add(&d->base.used_bytes, bytes) + bytes;
    if (d->quota && used > d->quota) {
        atomic_fetch_sub(&d->base.used_bytes, bytes);
        return err_set(err, -ENOSPC,
                       "the blob store %s is full: %llu of %llu bytes are used (raise its quota or "
                       "remove old jobs)",
                       d->path, (unsigned long long)(used - bytes), (unsigned long long)d->quota);
    }
    return 0;
}

static void credit(struct dir *d, uint64_t bytes)
{
    atomic_fetch_sub(&d->base.used_bytes, bytes);
}

/* ---- reading ---- */

/* The error for a failed call on a blob's path. */
static int not_there(const struct blob_id *id, const char *what, const char *path, struct err *err)
{
    char hex[BLOB_HEX_MAX];
    blob_id_hex(id, hex);
    return errno == ENOENT ? err_set(err, -ERR_NOTFOUND, "there is no blob %s", hex)
                           : err_errno(err, "cannot %s %s", what, path);
}

static int dir_stat(struct blobstore *s, const struct blob_id *id, struct blob_stat *ret,
                    struct err *err)
{
    struct stat st;
    char *path = file_of(dir_of(s), id);
    int rc = stat(path, &st) < 0 ? not_there(id, "look at", path, err) : 0;
    if (rc == 0)
        *ret = (struct blob_stat){(uint64_t)st.st_size, st.st_mtime};
    mem_free(path);
    return rc;
}

static int dir_touch(struct blobstore *s, const struct blob_id *id, struct err *err)
{
    char *path = file_of(dir_of(s), id);
    int rc = utimensat(AT_FDCWD, path, NULL, 0) < 0 ? not_there(id, "touch", path, err) : 0;
    mem_free(path);
    return rc;
}

static int dir_get(struct blobstore *s, const struct blob_id *id, int *ret_fd, uint64_t *ret_size,
                   struct err *err)
{
    char *path = file_of(dir_of(s), id);
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = 0;
    if (fd < 0 || fstat(fd, &st) < 0)
        rc = not_there(id, "open", path, err);
    mem_free(path);
    if (rc < 0) {
        if (fd >= 0)
            close(fd);
        return rc;
    }
    *ret_fd = fd;
    *ret_size = (uint64_t)st.st_size;
    return 0;
}

static int dir_part(struct blobstore *s, const struct blob_id *id, uint64_t holder, int *ret_fd,
                    struct err *err)
{
    char *path = part_of(dir_of(s), id, holder);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const int rc = fd < 0 ? not_there(id, "open", path, err) : 0;
    mem_free(path);
    if (rc == 0)
        *ret_fd = fd;
    return rc;
}

static int dir_local(struct blobstore *s, const struct blob_id *id, bool wait, char **ret_path,
                     struct err *err)
{
    struct blob_stat st;
    int rc = dir_stat(s, id, &st, err);
    if (rc == 0)
        *ret_path = file_of(dir_of(s), id);
    return rc;
}

static void dir_let_go(struct blobstore *s, const struct blob_id *id)
{
}

static void dir_stop(struct blobstore *s)
{
}

static int dir_remove(struct blobstore *s, const struct blob_id *id, struct err *err)
{
    struct dir *d = dir_of(s);
    struct blob_stat st;
    if (dir_stat(s, id, &st, NULL) < 0)
        return 0;
    char *path = file_of(d, id);
    int rc = 0;
    if (unlink(path) == 0) {
        credit(d, st.size);
        atomic_fetch_sub(&s->count, 1);
    } else if (errno != ENOENT) {
        rc = err_errno(err, "cannot remove %s", path);
    }
    mem_free(path);
    return rc;
}

static int dir_hide(struct blobstore *s, const struct blob_id *id, struct err *err)
{
    struct dir *d = dir_of(s);
    struct blob_stat st;
    char hex[BLOB_HEX_MAX];
    int rc = dir_stat(s, id, &st, err);
    if (rc < 0)
        return rc;
    blob_id_hex(id, hex);
    char *path = file_of(d, id), *away = str_printf("%s/tmp/%s.gone", d->path, hex);
    if (rename(path, away) == 0) {
        credit(d, st.size);
        atomic_fetch_sub(&s->count, 1);
    } else {
        rc = err_errno(err, "cannot move %s away", path);
    }
    mem_free(path);
    mem_free(away);
    return rc;
}

int blob_dir_reopen(struct blobstore *s, const struct blob_id *id, uint64_t holder, struct err *err)
{
    struct dir *d = dir_of(s);
    char *path = file_of(d, id), *part = part_of(d, id, holder);
    int rc = 0;
    (void)utimensat(AT_FDCWD, path, NULL, 0); /* the upload is not given up, whatever its age */
    if (link(path, part) == 0 && unlink(path) == 0) {
        atomic_fetch_sub(&s->count, 1);
    } else {
        rc = err_errno(err, "cannot make %s an upload again", path);
    }
    mem_free(path);
    mem_free(part);
    return rc;
}

static int list_part(const char *path, blob_list_fn *fn, void *arg, struct err *err)
{
    DIR *d = opendir(path);
    if (!d)
        return err_errno(err, "cannot read %s", path);
    int rc = 0;
    for (struct dirent *e; rc == 0 && (e = readdir(d));) {
        struct blob_id id;
        struct stat st;
        if (blob_id_parse(e->d_name, &id) == 0 && fstatat(dirfd(d), e->d_name, &st, 0) == 0 &&
            S_ISREG(st.st_mode))
            rc = fn(arg, &id, &(struct blob_stat){(uint64_t)st.st_size, st.st_mtime});
    }
    closedir(d);
    return rc;
}

static int dir_list(struct blobstore *s, blob_list_fn *fn, void *arg, struct err *err)
{
    int rc = 0;
    for (unsigned i = 0; i < 256 && rc == 0; i++) {
        char *part = str_printf("%s/%02x", dir_of(s)->path, i);
        if (file_is_dir(part))
            rc = list_part(part, fn, arg, err);
        mem_free(part);
    }
    return rc;
}

/* ---- writing ---- */

static void writer_free(struct writer *w)
{
    if (w->fd >= 0)
        close(w->fd);
    pthread_mutex_lock(&w->dir->lock);
    list_remove(&w->link);
    pthread_mutex_unlock(&w->dir->lock);
    hash_release(&w->hash);
    mem_free(w->path);
    mem_free(w);
}

/* Under the lock: no writer opens the file meanwhile. */
static bool has_writer(const struct dir *d, const char *path)
{
    for (struct list *l = d->uploads.next; l != &d->uploads; l = l->next)
        if (strcmp(list_entry(l, struct writer, link)->path, path) == 0)
            return true;
    return false;
}

static bool is_only_writer(struct writer *w)
{
    struct dir *d = w->dir;
    bool busy;
    pthread_mutex_lock(&d->lock);
    busy = has_writer(d, w->path);
    if (!busy)
        list_push(&d->uploads, &w->link);
    pthread_mutex_unlock(&d->lock);
    return !busy;
}

static int writer_open(struct writer *w, struct err *err)
{
    struct stat st;
    char hex[BLOB_HEX_MAX];
    blob_id_hex(&w->expect, hex);
    w->path = part_of(w->dir, &w->expect, w->holder);
    if (!is_only_writer(w))
        return err_set(err, -EBUSY, "blob %s is being uploaded on another connection", hex);
    w->fd = open(w->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (w->fd < 0 || fstat(w->fd, &st) < 0)
        return err_errno(err, "cannot open %s", w->path);
    w->base.size = (uint64_t)st.st_size;
    if (w->base.size > w->max_bytes) { /* larger than the blob that is announced now */
        if (ftruncate(w->fd, 0) < 0)
            return err_errno(err, "cannot empty %s", w->path);
        credit(w->dir, w->base.size);
        w->base.size = 0;
    }
    w->hashed = w->base.size == 0;
    return 0;
}

static int writer_write(struct blob_writer *base, const void *data, size_t len, struct err *err)
{
    struct writer *w = writer_of(base);
    if (len > w->max_bytes - w->base.size)
        return err_set(err, -ERR_LIMIT, "a blob is larger than the %llu bytes announced",
                       (unsigned long long)w->max_bytes);
    int rc = charge(w->dir, len, err);
    if (rc < 0)
        return rc;
    rc = file_pwrite_all(w->fd, data, len, w->base.size, w->path, err);
    if (rc < 0) {
        credit(w->dir, len);
        return rc;
    }
    w->base.size += len;
    if (w->hashed)
        hash_update(&w->hash, data, len);
    return 0;
}

static void writer_abort(struct blob_writer *base, bool keep)
{
    struct writer *w = writer_of(base);
    /* Truncating drops the tail of a failed write; leftovers are removed at the next open. */
    if (!keep || w->base.size == 0 || ftruncate(w->fd, (off_t)w->base.size) < 0) {
        (void)unlink(w->path);
        credit(w->dir, w->base.size);
    }
    writer_free(w);
}

static int verify(struct writer *w, uint64_t expect_size, struct err *err)
{
    struct blob_id id;
    if (expect_size != UINT64_MAX && w->base.size != expect_size)
        return err_set(err, -ERR_FORMAT, "a blob has %llu bytes, %llu were announced",
                       (unsigned long long)w->base.size, (unsigned long long)expect_size);
    if (w->hashed) {
        hash_final(&w->hash, id.sha256);
    } else {
        int rc = hash_file(w->path, id.sha256, NULL, err);
        if (rc < 0)
            return rc;
    }
    if (blob_id_equal(&id, &w->expect))
        return 0;
    char want[BLOB_HEX_MAX], got[BLOB_HEX_MAX];
    blob_id_hex(&w->expect, want);
    blob_id_hex(&id, got);
    return err_set(err, -ERR_HASH, "the content of blob %s hashes to %s: it was damaged on its way",
                   want, got);
}

/* Makes the temporary file the blob at `path`, unless the blob is there; the name is not on the
 * disk yet. */
static int publish(struct dir *d, const char *from, uint64_t size, const char *path,
                   struct err *err)
{
    if (link(from, path) == 0)
        atomic_fetch_add(&d->base.count, 1);
    else if (errno == EEXIST)
        credit(d, size); /* another upload was first, with the same bytes */
    else
        return err_errno(err, "cannot make %s", path);
    (void)unlink(from); /* a leftover is removed at the next open */
    return 0;
}

static int adopt_one(struct dir *d, const struct blob_file *f, const char *path, struct err *err)
{
    uint64_t found = 0;
    int rc = file_size(f->path, &found, err);
    if (rc == 0 && found != f->size)
        rc = err_set(err, -ERR_FORMAT, "%s has %llu bytes, expected %llu", f->path,
                     (unsigned long long)found, (unsigned long long)f->size);
    if (rc == 0)
        rc = charge(d, f->size, err);
    if (rc < 0)
        return rc;
    rc = publish(d, f->path, f->size, path, err);
    if (rc < 0)
        credit(d, f->size);
    return rc;
}

static int dir_adopt(struct blobstore *s, const struct blob_file *files, size_t n, struct err *err)
{
    char **paths = mem_alloc_array(n + 1, sizeof(*paths));
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        paths[i] = file_of(dir_of(s), &files[i].id);
        rc = adopt_one(dir_of(s), &files[i], paths[i], err);
    }
    /* After all names: the first flush takes what it can of the others along. */
    if (rc == 0)
        rc = file_sync_parents((const char *const *)paths, n, err);
    for (size_t i = 0; i < n; i++)
        mem_free(paths[i]);
    mem_free(paths);
    return rc;
}

static int writer_commit(struct blob_writer *base, uint64_t expect_size, struct err *err)
{
    struct writer *w = writer_of(base);
    int rc = file_sync(w->fd, w->path, err);
    if (rc == 0)
        rc = verify(w, expect_size, err);
    char *path = file_of(w->dir, &w->expect);
    if (rc == 0)
        rc = publish(w->dir, w->path, w->base.size, path, err);
    if (rc == 0)
        rc = file_sync_parent(path, err);
    mem_free(path);
    if (rc < 0)
        writer_abort(base, false);
    else
        writer_free(w);
    return rc;
}

static int dir_put(struct blobstore *s, const struct blob_id *expect, uint64_t holder,
                   uint64_t max_bytes, struct blob_writer **ret, struct err *err)
{
    static const struct blob_writer_ops ops = {writer_write, writer_commit, writer_abort};
    struct writer *w = mem_alloc(sizeof(*w));
    *w = (struct writer){.base.ops = &ops,
                         .dir = dir_of(s),
                         .expect = *expect,
                         .holder = holder,
                         .max_bytes = max_bytes,
                         .fd = -1};
    list_init(&w->link);
    hash_init(&w->hash);
    int rc = writer_open(w, err);
    if (rc < 0)
        writer_free(w);
    else
        *ret = &w->base;
    return rc;
}

/* ---- opening ---- */

static int count_one(void *arg, const struct blob_id *id, const struct blob_stat *st)
{
    struct blobstore *s = arg;
    atomic_fetch_add(&s->used_bytes, st->size);
    atomic_fetch_add(&s->count, 1);
    return 0;
}

typedef void tmp_fn(struct dir *d, const char *name, const char *path, int64_t before_s);

static int each_tmp(struct dir *dir, tmp_fn *fn, int64_t before_s, struct err *err)
{
    char *tmp = file_join(dir->path, "tmp");
    DIR *d = opendir(tmp);
    int rc = d ? 0 : err_errno(err, "cannot read %s", tmp);
    for (struct dirent *e; d && (e = readdir(d));) {
        char *path = file_join(tmp, e->d_name);
        if (e->d_name[0] != '.')
            fn(dir, e->d_name, path, before_s);
        mem_free(path);
    }
    if (d)
        closedir(d);
    mem_free(tmp);
    return rc;
}

/* Counts unfinished uploads, which may be continued, against the quota; removes other leftovers. */
static void count_tmp(struct dir *d, const char *name, const char *path, int64_t before_s)
{
    struct stat st;
    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode))
        return;
    if (str_ends(name, ".part"))
        atomic_fetch_add(&d->base.used_bytes, (uint64_t)st.st_size);
    else
        (void)unlink(path); /* a leftover harms nobody */
}

static void tidy_tmp(struct dir *d, const char *name, const char *path, int64_t before_s)
{
    struct stat st;
    if (str_ends(name, ".gone")) {
        (void)unlink(path); /* or the next time */
    } else if (str_ends(name, ".part")) {
        pthread_mutex_lock(&d->lock);
        if (!has_writer(d, path) && stat(path, &st) == 0 && st.st_mtime < before_s &&
            unlink(path) == 0)
            credit(d, (uint64_t)st.st_size);
        pthread_mutex_unlock(&d->lock);
    }
}

static int dir_tidy(struct blobstore *s, int64_t before_s, struct err *err)
{
    return each_tmp(dir_of(s), tidy_tmp, before_s, err);
}

/* Makes all folders at once: publishing a blob must not wait for a new folder to be durable. */
static int make_parts(const struct dir *d, struct err *err)
{
    bool made = false;
    int rc = 0;
    for (unsigned i = 0; i < 256 && rc == 0; i++) {
        char *part = str_printf("%s/%02x", d->path, i);
        if (mkdir(part, 0700) == 0)
            made = true;
        else if (errno != EEXIST)
            rc = err_errno(err, "cannot make %s", part);
        mem_free(part);
    }
    return rc == 0 && made ? file_sync_dir(d->path, err) : rc;
}

static void dir_close(struct blobstore *s)
{
    struct dir *d = dir_of(s);
    pthread_mutex_destroy(&d->lock);
    mem_free(d->path);
    mem_free(d);
}

int blob_dir_open(const char *path, uint64_t quota_bytes, struct blobstore **ret, struct err *err)
{
    static const struct blobstore_ops ops = {
        .stat = dir_stat,
        .touch = dir_touch,
        .get = dir_get,
        .local = dir_local,
        .read = blobstore_read_here,
        .let_go = dir_let_go,
        .remove = dir_remove,
        .hide = dir_hide,
        .tidy = dir_tidy,
        .list = dir_list,
        .put = dir_put,
        .part = dir_part,
        .adopt = dir_adopt,
        .stop = dir_stop,
        .close = dir_close,
    };
    struct dir *d = mem_alloc(sizeof(*d));
    d->base.ops = &ops;
    d->path = str_dup(path);
    d->quota = quota_bytes;
    pthread_mutex_init(&d->lock, NULL);
    list_init(&d->uploads);
    char *tmp = file_join(path, "tmp");
    int rc = file_mkdirs(tmp, 0700, err);
    mem_free(tmp);
    if (rc == 0)
        rc = make_parts(d, err);
    if (rc == 0)
        rc = each_tmp(d, count_tmp, 0, err);
    if (rc == 0)
        rc = dir_list(&d->base, count_one, &d->base, err);
    if (rc < 0) {
        dir_close(&d->base);
        return err_wrap(err, "the blob store %s", path);
    }
    *ret = &d->base;
    return 0;
}
