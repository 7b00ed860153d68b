#include "common/net/blobstore.h"

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "common/net/blobstore_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PART_KEEP_S (24 * 3600)

void blob_id_hex(const struct blob_id *id, char ret_hex[BLOB_HEX_MAX])
{
    hash_hex(id->sha256, sizeof(id->sha256), ret_hex);
}

int blob_id_parse(const char *hex, struct blob_id *ret)
{
    if (strlen(hex) != 64 || strspn(hex, "0123456789abcdef") != 64)
        return -ERR_FORMAT;
    struct blob_id id;
    if (hash_unhex(hex, id.sha256, sizeof(id.sha256)) < 0)
        return -ERR_FORMAT;
    *ret = id;
    return 0;
}

bool blob_id_equal(const struct blob_id *a, const struct blob_id *b)
{
    return memcmp(a->sha256, b->sha256, sizeof(a->sha256)) == 0;
}

/* ---- accounting ---- */

int blobstore_charge(struct blobstore *s, uint64_t bytes, struct err *err)
{
    uint64_t used = atomic_fetch_add(&s->used, bytes) + bytes;
    if (s->quota && used > s->quota) {
        atomic_fetch_sub(&s->used, bytes);
        return err_set(err, -ENOSPC,
                       "the blob store %s is full: %llu of %llu bytes are used (raise its quota or "
                       "remove old jobs)",
                       s->dir, (unsigned long long)(used - bytes), (unsigned long long)s->quota);
    }
    return 0;
}

void blobstore_credit(struct blobstore *s, uint64_t bytes)
{
    atomic_fetch_sub(&s->used, bytes);
}

/* ---- opening ---- */

static int count_one(void *arg, const struct blob_id *id, uint64_t size)
{
    struct blobstore *s = arg;
    atomic_fetch_add(&s->used, size);
    atomic_fetch_add(&s->count, 1);
    return 0;
}

/* Uploads count against the quota too; what nobody will continue goes. */
static int sweep_tmp(struct blobstore *s, struct err *err)
{
    char *tmp = file_join(s->dir, "tmp");
    DIR *d = opendir(tmp);
    int rc = d ? 0 : err_errno(err, "cannot read %s", tmp);
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        if (e->d_name[0] == '.')
            continue;
        char *path = file_join(tmp, e->d_name);
        if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
            bool part = str_ends(e->d_name, ".part") && st.st_mtime + PART_KEEP_S > time(NULL);
            if (part)
                atomic_fetch_add(&s->used, (uint64_t)st.st_size);
            else if (!str_ends(e->d_name, ".corrupt"))
                (void)unlink(path); /* a leftover harms nobody */
        }
        mem_free(path);
    }
    if (d)
        closedir(d);
    mem_free(tmp);
    return rc;
}

int blobstore_open(const char *dir, uint64_t quota_bytes, struct blobstore **ret, struct err *err)
{
    struct blobstore *s = mem_alloc(sizeof(*s));
    s->dir = str_dup(dir);
    s->quota = quota_bytes;
    atomic_init(&s->used, 0);
    atomic_init(&s->count, 0);
    atomic_init(&s->next_writer, 0);
    pthread_mutex_init(&s->lock, NULL);
    list_init(&s->resumable);
    char *tmp = file_join(dir, "tmp");
    int rc = file_mkdirs(tmp, 0700, err);
    mem_free(tmp);
    if (rc == 0)
        rc = sweep_tmp(s, err);
    if (rc == 0)
        rc = blobstore_scan(s, count_one, s, err);
    if (rc < 0) {
        blobstore_close(s);
        return err_wrap(err, "the blob store %s", dir);
    }
    *ret = s;
    return 0;
}

void blobstore_close(struct blobstore *s)
{
    if (!s)
        return;
    pthread_mutex_destroy(&s->lock);
    mem_free(s->dir);
    mem_free(s);
}

uint64_t blobstore_used_bytes(const struct blobstore *s)
{
    return atomic_load(&((struct blobstore *)s)->used);
}

uint64_t blobstore_count(const struct blobstore *s)
{
    return atomic_load(&((struct blobstore *)s)->count);
}

uint64_t blobstore_quota_bytes(const struct blobstore *s)
{
    return s->quota;
}

/* ---- reading ---- */

int blobstore_path(const struct blobstore *s, const struct blob_id *id, char *ret_path, size_t cap)
{
    char hex[BLOB_HEX_MAX];
    blob_id_hex(id, hex);
    int n = snprintf(ret_path, cap, "%s/%.2s/%s", s->dir, hex, hex);
    return n < 0 || (size_t)n >= cap ? -ERR_LIMIT : 0;
}

char *blobstore_file(const struct blobstore *s, const struct blob_id *id)
{
    char hex[BLOB_HEX_MAX];
    blob_id_hex(id, hex);
    return str_printf("%s/%.2s/%s", s->dir, hex, hex);
}

bool blobstore_has(const struct blobstore *s, const struct blob_id *id, uint64_t *ret_size)
{
    struct stat st;
    char *path = blobstore_file(s, id);
    bool has = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    mem_free(path);
    if (has && ret_size)
        *ret_size = (uint64_t)st.st_size;
    return has;
}

int blobstore_open_blob(const struct blobstore *s, const struct blob_id *id, int *ret_fd,
                        uint64_t *ret_size, struct err *err)
{
    char hex[BLOB_HEX_MAX], *path = blobstore_file(s, id);
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = 0;
    blob_id_hex(id, hex);
    if (fd < 0 && errno == ENOENT)
        rc = err_set(err, -ERR_NOTFOUND, "there is no blob %s", hex);
    else if (fd < 0)
        rc = err_errno(err, "cannot open %s", path);
    else if (fstat(fd, &st) < 0) {
        rc = err_errno(err, "cannot look at %s", path);
        close(fd);
    }
    mem_free(path);
    if (rc < 0)
        return rc;
    *ret_fd = fd;
    *ret_size = (uint64_t)st.st_size;
    return 0;
}

int blobstore_read(const struct blobstore *s, const struct blob_id *id, size_t max, void **ret_data,
                   size_t *ret_len, struct err *err)
{
    int fd;
    uint64_t size;
    char hex[BLOB_HEX_MAX];
    int rc = blobstore_open_blob(s, id, &fd, &size, err);
    if (rc < 0)
        return rc;
    blob_id_hex(id, hex);
    uint8_t *data = NULL;
    if (size > max)
        rc = err_set(err, -ERR_LIMIT, "blob %s has %llu bytes, at most %zu are read", hex,
                     (unsigned long long)size, max);
    else if (!(data = mem_try((size_t)size + 1)))
        rc = err_set(err, -ENOMEM, "no memory for blob %s of %llu bytes", hex,
                     (unsigned long long)size);
    else
        rc = file_pread_all(fd, data, (size_t)size, 0, hex, err);
    close(fd);
    if (rc < 0) {
        mem_free(data);
        return rc;
    }
    data[size] = '\0';
    *ret_data = data;
    *ret_len = (size_t)size;
    return 0;
}

int blobstore_verify(struct blobstore *s, const struct blob_id *id, struct err *err)
{
    char hex[BLOB_HEX_MAX], *path = blobstore_file(s, id);
    uint8_t got[HASH_BYTES];
    uint64_t size = 0;
    blob_id_hex(id, hex);
    int rc = 0;
    if (!file_exists(path))
        rc = err_set(err, -ERR_NOTFOUND, "there is no blob %s", hex);
    else
        rc = hash_file(path, got, &size, err);
    if (rc == 0 && memcmp(got, id->sha256, sizeof(got)) != 0) {
        char *aside = str_printf("%s/tmp/%s.corrupt", s->dir, hex);
        if (file_rename(path, aside, NULL) == 0) {
            blobstore_credit(s, size);
            atomic_fetch_sub(&s->count, 1);
        }
        rc = err_set(err, -ERR_HASH, "blob %s is corrupt on disk; it was moved to %s", hex, aside);
        mem_free(aside);
    }
    mem_free(path);
    return rc;
}

int blobstore_delete(struct blobstore *s, const struct blob_id *id, struct err *err)
{
    uint64_t size;
    if (!blobstore_has(s, id, &size))
        return 0;
    char *path = blobstore_file(s, id);
    int rc = 0;
    if (unlink(path) == 0) {
        blobstore_credit(s, size);
        atomic_fetch_sub(&s->count, 1);
    } else if (errno != ENOENT) {
        rc = err_errno(err, "cannot remove %s", path);
    }
    mem_free(path);
    return rc;
}

static int scan_dir(const char *dir, int (*fn)(void *, const struct blob_id *, uint64_t), void *arg,
                    struct err *err)
{
    DIR *d = opendir(dir);
    if (!d)
        return err_errno(err, "cannot read %s", dir);
    int rc = 0;
    for (struct dirent *e; rc == 0 && (e = readdir(d));) {
        struct blob_id id;
        struct stat st;
        if (blob_id_parse(e->d_name, &id) == 0 && fstatat(dirfd(d), e->d_name, &st, 0) == 0 &&
            S_ISREG(st.st_mode))
            rc = fn(arg, &id, (uint64_t)st.st_size);
    }
    closedir(d);
    return rc;
}

int blobstore_scan(const struct blobstore *s,
                   int (*fn)(void *arg, const struct blob_id *id, uint64_t size), void *arg,
                   struct err *err)
{
    int rc = 0;
    for (unsigned i = 0; i < 256 && rc == 0; i++) {
        char *dir = str_printf("%s/%02x", s->dir, i);
        if (file_is_dir(dir))
            rc = scan_dir(dir, fn, arg, err);
        mem_free(dir);
    }
    return rc;
}
