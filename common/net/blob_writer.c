#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "common/net/blobstore_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct blob_writer {
    struct list link; /* in store->resumable when registered */
    struct blobstore *store;
    struct blob_id expect;
    bool has_expect, resumable;
    bool hashed; /* all bytes went through `hash`; else the file is read at commit */
    struct hash hash;
    char *path;
    int fd;
    uint64_t size, max_bytes;
};

static struct blob_writer *make(struct blobstore *s, const struct blob_id *expect,
                                uint64_t max_bytes)
{
    struct blob_writer *w = mem_alloc(sizeof(*w));
    w->store = s;
    w->max_bytes = max_bytes;
    w->fd = -1;
    w->hashed = true;
    list_init(&w->link);
    hash_init(&w->hash);
    if (expect) {
        w->expect = *expect;
        w->has_expect = true;
    }
    return w;
}

static void writer_free(struct blob_writer *w)
{
    if (w->fd >= 0)
        close(w->fd);
    pthread_mutex_lock(&w->store->lock);
    list_remove(&w->link);
    pthread_mutex_unlock(&w->store->lock);
    hash_release(&w->hash);
    mem_free(w->path);
    mem_free(w);
}

int blob_writer_new(struct blobstore *s, const struct blob_id *expect, uint64_t max_bytes,
                    struct blob_writer **ret, struct err *err)
{
    struct blob_writer *w = make(s, expect, max_bytes);
    w->path = str_printf("%s/tmp/w-%ld-%llu", s->dir, (long)getpid(),
                         (unsigned long long)atomic_fetch_add(&s->next_writer, 1));
    w->fd = open(w->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (w->fd < 0) {
        int rc = err_errno(err, "cannot make %s", w->path);
        writer_free(w);
        return rc;
    }
    *ret = w;
    return 0;
}

static bool register_part(struct blob_writer *w)
{
    struct blobstore *s = w->store;
    bool busy = false;
    pthread_mutex_lock(&s->lock);
    for (struct list *l = s->resumable.next; l != &s->resumable; l = l->next)
        busy |= blob_id_equal(&list_entry(l, struct blob_writer, link)->expect, &w->expect);
    if (!busy)
        list_push(&s->resumable, &w->link);
    pthread_mutex_unlock(&s->lock);
    return !busy;
}

int blob_writer_resume(struct blobstore *s, const struct blob_id *expect, uint64_t max_bytes,
                       struct blob_writer **ret, struct err *err)
{
    struct blob_writer *w = make(s, expect, max_bytes);
    char hex[BLOB_HEX_MAX];
    struct stat st;
    int rc = 0;
    blob_id_hex(expect, hex);
    w->resumable = true;
    w->path = str_printf("%s/tmp/%s.part", s->dir, hex);
    if (!register_part(w))
        rc = err_set(err, -EBUSY, "blob %s is being uploaded by somebody else", hex);
    else if ((w->fd = open(w->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600)) < 0 ||
             fstat(w->fd, &st) < 0)
        rc = err_errno(err, "cannot open %s", w->path);
    if (rc < 0) {
        writer_free(w);
        return rc;
    }
    w->size = (uint64_t)st.st_size;
    if (w->size > max_bytes) { /* cannot become the blob that is announced now */
        if (ftruncate(w->fd, 0) < 0) {
            rc = err_errno(err, "cannot empty %s", w->path);
            writer_free(w);
            return rc;
        }
        blobstore_credit(s, w->size);
        w->size = 0;
    }
    w->hashed = w->size == 0;
    *ret = w;
    return 0;
}

uint64_t blob_writer_size(const struct blob_writer *w)
{
    return w->size;
}

int blob_writer_write(struct blob_writer *w, const void *data, size_t len, struct err *err)
{
    if (len > w->max_bytes - w->size)
        return err_set(err, -ERR_LIMIT, "a blob is larger than the %llu bytes announced",
                       (unsigned long long)w->max_bytes);
    int rc = blobstore_charge(w->store, len, err);
    if (rc < 0)
        return rc;
    rc = file_pwrite_all(w->fd, data, len, w->size, w->path, err);
    if (rc < 0) {
        blobstore_credit(w->store, len);
        return rc;
    }
    w->size += len;
    if (w->hashed)
        hash_update(&w->hash, data, len);
    return 0;
}

void blob_writer_abort(struct blob_writer *w, bool keep)
{
    if (!w)
        return;
    if (!keep || !w->resumable || w->size == 0) {
        (void)unlink(w->path); /* a leftover is swept at the next open */
        blobstore_credit(w->store, w->size);
    } else if (ftruncate(w->fd, (off_t)w->size) < 0) { /* drops the tail of a failed write */
        (void)unlink(w->path);
        blobstore_credit(w->store, w->size);
    }
    writer_free(w);
}

static int check(struct blob_writer *w, uint64_t expect_size, struct blob_id *ret_id,
                 struct err *err)
{
    if (expect_size != UINT64_MAX && w->size != expect_size)
        return err_set(err, -ERR_FORMAT, "a blob has %llu bytes, %llu were announced",
                       (unsigned long long)w->size, (unsigned long long)expect_size);
    struct blob_id id;
    if (w->hashed) {
        hash_final(&w->hash, id.sha256);
    } else {
        int rc = hash_file(w->path, id.sha256, NULL, err);
        if (rc < 0)
            return rc;
    }
    if (w->has_expect && !blob_id_equal(&id, &w->expect)) {
        char want[BLOB_HEX_MAX], got[BLOB_HEX_MAX];
        blob_id_hex(&w->expect, want);
        blob_id_hex(&id, got);
        return err_set(err, -ERR_HASH,
                       "the content of blob %s hashes to %s: it was damaged on "
                       "its way",
                       want, got);
    }
    *ret_id = id;
    return 0;
}

/* The temporary file becomes the blob, unless the blob is there. */
static int publish(struct blobstore *s, const char *from, uint64_t size, const struct blob_id *id,
                   struct err *err)
{
    char *path = blobstore_file(s, id), *dir = str_ndup(path, strlen(path) - BLOB_HEX_MAX);
    int rc = file_mkdirs(dir, 0700, err);
    if (rc == 0 && link(from, path) < 0) {
        if (errno == EEXIST)
            blobstore_credit(s, size); /* somebody was first: same bytes */
        else
            rc = err_errno(err, "cannot make %s", path);
    } else if (rc == 0) {
        atomic_fetch_add(&s->count, 1);
    }
    if (rc == 0) {
        (void)unlink(from); /* a leftover is swept at the next open */
        rc = file_sync_dir(dir, err);
    }
    mem_free(path);
    mem_free(dir);
    return rc;
}

int blobstore_adopt(struct blobstore *s, const char *path, const struct blob_id *id, uint64_t size,
                    struct err *err)
{
    uint64_t found = 0;
    int rc = file_size(path, &found, err);
    if (rc == 0 && found != size)
        rc = err_set(err, -ERR_FORMAT, "%s has %llu bytes, expected %llu", path,
                     (unsigned long long)found, (unsigned long long)size);
    if (rc == 0)
        rc = blobstore_charge(s, size, err);
    if (rc < 0)
        return rc;
    rc = publish(s, path, size, id, err);
    if (rc < 0)
        blobstore_credit(s, size);
    return rc;
}

int blob_writer_commit(struct blob_writer *w, uint64_t expect_size, struct blob_id *ret_id,
                       struct err *err)
{
    struct blob_id id;
    int rc = file_sync(w->fd, w->path, err);
    if (rc == 0)
        rc = check(w, expect_size, &id, err);
    if (rc == 0)
        rc = publish(w->store, w->path, w->size, &id, err);
    if (rc < 0) {
        blob_writer_abort(w, false);
        return rc;
    }
    if (ret_id)
        *ret_id = id;
    writer_free(w);
    return 0;
}

int blobstore_put(struct blobstore *s, const void *data, size_t len, struct blob_id *ret_id,
                  struct err *err)
{
    struct blob_writer *w;
    struct blob_id id;
    hash_sha256(data, len, id.sha256);
    if (!blobstore_has(s, &id, NULL)) {
        int rc = blob_writer_new(s, &id, len, &w, err);
        if (rc < 0)
            return rc;
        rc = blob_writer_write(w, data, len, err);
        if (rc < 0) {
            blob_writer_abort(w, false);
            return rc;
        }
        rc = blob_writer_commit(w, len, NULL, err);
        if (rc < 0)
            return rc;
    }
    if (ret_id)
        *ret_id = id;
    return 0;
}
