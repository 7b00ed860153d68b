#include "common/data/tar.h"

#include <archive.h>
#include <archive_entry.h>

#include "common/base/file.h"

#define BLOCK_BYTES (64 * 1024)
#define ZSTD_LEVEL "6"
#define SKIPPED_MAX 100000 /* directories and links in a row */

struct tar {
    struct archive *archive;
    char *name;
    char entry[TAR_NAME_MAX];
    uint64_t entry_bytes;
    bool ended; /* libarchive must not be asked again */
};

/* libarchive's complaint, with the file and the entry. */
static int fail(struct tar *t, struct err *err)
{
    const char *why = archive_error_string(t->archive);
    int code = archive_errno(t->archive) == ENOMEM ? -ENOMEM : -ERR_FORMAT;
    return err_set(err, code, "%s is cut short or not a tar archive, %s%s%s: %s", t->name,
                   *t->entry ? "after entry '" : "at its start", t->entry, *t->entry ? "'" : "",
                   why ? why : "unreadable");
}

static int begin(const char *name, struct tar **ret, struct err *err)
{
    struct tar *t = mem_alloc(sizeof(*t));
    t->name = str_dup(name);
    t->archive = archive_read_new();
    if (!t->archive) {
        tar_close(t);
        return err_set(err, -ENOMEM, "out of memory while opening %s", name);
    }
    archive_read_support_format_tar(t->archive);
    archive_read_support_filter_gzip(t->archive);
    archive_read_support_filter_zstd(t->archive);
    *ret = t;
    return 0;
}

/* Takes t on failure. */
static int finish_open(struct tar *t, int rc, struct tar **ret, struct err *err)
{
    if (rc == ARCHIVE_OK) {
        *ret = t;
        return 0;
    }
    rc = fail(t, err);
    tar_close(t);
    return rc;
}

int tar_open(const char *path, struct tar **ret, struct err *err)
{
    struct tar *t;
    uint64_t size;
    int rc = file_size(path, &size, err);
    if (rc == 0 && size == 0)
        rc = err_set(err, -ERR_FORMAT, "%s is empty, expected a tar archive", path);
    if (rc == 0)
        rc = begin(path, &t, err);
    if (rc < 0)
        return rc;
    return finish_open(t, archive_read_open_filename(t->archive, path, BLOCK_BYTES), ret, err);
}

int tar_open_memory(const void *data, size_t len, const char *name, struct tar **ret,
                    struct err *err)
{
    struct tar *t;
    int rc = begin(name, &t, err);
    if (rc < 0)
        return rc;
    return finish_open(t, archive_read_open_memory(t->archive, data, len), ret, err);
}

static int write_below(const char *path, const struct buf *bytes, unsigned mode, struct err *err)
{
    int rc = file_mkdirs_for(path, 0700, err);
    return rc < 0 ? rc
                  : file_write_atomic(path, bytes->len ? (const void *)bytes->data : "", bytes->len,
                                      mode, err);
}

/* A name that stays below its folder. */
static bool is_below(const char *name)
{
    if (name[0] == '/' || name[0] == '\0')
        return false;
    for (const char *p = name; p; p = strchr(p, '/')) {
        p += *p == '/';
        if (p[0] == '.' && p[1] == '.' && (p[2] == '/' || p[2] == '\0'))
            return false;
    }
    return true;
}

/* That no file with other bytes is there. */
static int compare_with(const char *path, const struct buf *bytes, struct err *err)
{
    struct buf there;
    const int rc = file_read(path, bytes->len + 1, &there, NULL);
    const bool same =
        rc == -ENOENT || (rc == 0 && there.len == bytes->len &&
                          (there.len == 0 || memcmp(there.data, bytes->data, there.len) == 0));
    buf_release(&there);
    return same ? 0 : err_set(err, -EEXIST, "%s is there already, with other bytes", path);
}

/* One file; *left is what all may still have. */
static int unpack_one(struct tar *tar, const char *path, const struct tar_unpack *how, size_t *left,
                      struct err *err)
{
    struct buf bytes;
    buf_init(&bytes, *left);
    int rc = tar_read(tar, &bytes, err);
    if (rc == 0)
        rc = how->compare ? compare_with(path, &bytes, err)
                          : write_below(path, &bytes, how->mode, err);
    *left -= bytes.len;
    buf_release(&bytes);
    return rc;
}

int tar_unpack(const char *path, const char *folder, const struct tar_unpack *how, struct err *err)
{
    struct tar *tar = NULL;
    struct tar_entry entry;
    size_t left = how->max;
    int files = 0, rc = tar_open(path, &tar, err), more = 0;
    while (rc == 0 && (more = tar_next(tar, &entry, err)) == 1) {
        if (!is_below(entry.name))
            rc = err_set(err, -ERR_FORMAT, "%s holds '%.80s', which is not below its folder", path,
                         entry.name);
        else if (++files > TAR_FOLDER_FILES)
            rc = err_set(err, -ERR_LIMIT, "%s holds more than %d files", path, TAR_FOLDER_FILES);
        if (rc < 0)
            break;
        char *to = file_join(folder, entry.name);
        if (!how->wanted || how->wanted(entry.name))
            rc = unpack_one(tar, to, how, &left, err);
        mem_free(to);
    }
    tar_close(tar);
    return rc < 0 ? rc : more;
}

void tar_close(struct tar *t)
{
    if (!t)
        return;
    if (t->archive)
        archive_read_free(t->archive);
    mem_free(t->name);
    mem_free(t);
}

int tar_next(struct tar *t, struct tar_entry *ret, struct err *err)
{
    if (t->ended)
        return 0;
    for (int skipped = 0; skipped < SKIPPED_MAX; skipped++) {
        struct archive_entry *e;
        int rc = archive_read_next_header(t->archive, &e);
        if (rc == ARCHIVE_EOF) {
            t->ended = true;
            return 0;
        }
        if (rc == ARCHIVE_WARN || rc == ARCHIVE_RETRY)
            rc = ARCHIVE_OK; /* odd names and times; the content is sound */
        if (rc != ARCHIVE_OK)
            return fail(t, err);
        if (archive_entry_filetype(e) != AE_IFREG || archive_entry_hardlink(e))
            continue;
        const char *name = archive_entry_pathname(e);
        while (name && str_starts(name, "./"))
            name += 2;
        if (!name || !*name || strlen(name) >= TAR_NAME_MAX || !archive_entry_size_is_set(e) ||
            archive_entry_size(e) < 0)
            return err_set(err, -ERR_FORMAT,
                           "%s: the entry after '%s' has an impossible name or size", t->name,
                           t->entry);
        (void)str_copy(t->entry, sizeof(t->entry), name);
        t->entry_bytes = (uint64_t)archive_entry_size(e);
        *ret = (struct tar_entry){.name = t->entry, .size = t->entry_bytes};
        return 1;
    }
    return err_set(err, -ERR_LIMIT, "%s has %d entries in a row that are not files", t->name,
                   SKIPPED_MAX);
}

int tar_read(struct tar *t, struct buf *out, struct err *err)
{
    if (t->entry_bytes > out->max - out->len)
        return err_set(err, -ERR_LIMIT, "%s: entry '%s' has %llu bytes, at most %zu are allowed",
                       t->name, t->entry, (unsigned long long)t->entry_bytes, out->max);
    for (uint64_t left = t->entry_bytes; left > 0;) {
        /* In pieces: a lying header costs no more memory than there is data. */
        size_t want = left < BLOCK_BYTES ? (size_t)left : BLOCK_BYTES;
        uint8_t *p;
        int rc = buf_reserve(out, want, &p);
        if (rc < 0)
            return err_set(err, rc, "no room for entry '%s' of %s", t->entry, t->name);
        la_ssize_t n = archive_read_data(t->archive, p, want);
        if (n < 0)
            return fail(t, err);
        if (n == 0)
            return err_set(err, -ERR_FORMAT, "%s is cut short in entry '%s'", t->name, t->entry);
        buf_commit(out, (size_t)n);
        left -= (uint64_t)n;
    }
    return 0;
}

struct tar_writer {
    struct archive *archive;
    struct file_out out;
    struct hash hash;
    struct err failed; /* what the write callback met */
};

/* Claims success even when the disk is full: an archive that libarchive calls
 * fatal leaks its block.  Our callers look at `failed` instead. */
static la_ssize_t write_block(struct archive *a, void *ctx, const void *data, size_t len)
{
    (void)a;
    struct tar_writer *w = ctx;
    if (w->failed.code == 0 && file_out_write(&w->out, data, len, &w->failed) == 0)
        hash_update(&w->hash, data, len);
    return (la_ssize_t)len;
}

static int writer_fail(struct tar_writer *w, struct err *err)
{
    if (w->failed.code)
        return err_set(err, w->failed.code, "%s", w->failed.msg);
    const char *why = archive_error_string(w->archive);
    return err_set(err, -EINVAL, "cannot write %s: %s", w->out.path ? w->out.path : "the tar",
                   why ? why : "unknown reason");
}

static bool compress(struct archive *a)
{
    return archive_write_add_filter_zstd(a) == ARCHIVE_OK &&
           archive_write_set_filter_option(a, "zstd", "compression-level", ZSTD_LEVEL) ==
               ARCHIVE_OK;
}

static int open_writer(const char *path, bool zstd, struct tar_writer **ret, struct err *err)
{
    struct tar_writer *w = mem_alloc(sizeof(*w));
    w->archive = archive_write_new();
    hash_init(&w->hash);
    int rc = file_out_open(&w->out, path, 0644, err);
    if (rc == 0 && (!w->archive || archive_write_set_format_ustar(w->archive) != ARCHIVE_OK ||
                    (zstd && !compress(w->archive)) ||
                    archive_write_set_bytes_per_block(w->archive, BLOCK_BYTES) != ARCHIVE_OK ||
                    archive_write_set_bytes_in_last_block(w->archive, 1) != ARCHIVE_OK ||
                    archive_write_open(w->archive, w, NULL, write_block, NULL) != ARCHIVE_OK))
        rc = err_set(err, -ENOMEM, "cannot start the tar %s", path);
    if (rc < 0)
        tar_writer_free(w);
    else
        *ret = w;
    return rc;
}

int tar_writer_open(const char *path, struct tar_writer **ret, struct err *err)
{
    return open_writer(path, false, ret, err);
}

int tar_writer_open_zstd(const char *path, struct tar_writer **ret, struct err *err)
{
    return open_writer(path, true, ret, err);
}

int tar_writer_add(struct tar_writer *w, const char *name, const void *data, size_t len,
                   struct err *err)
{
    struct archive_entry *e = archive_entry_new();
    if (!e)
        return err_set(err, -ENOMEM, "out of memory while writing %s", w->out.path);
    archive_entry_set_pathname(e, name);
    archive_entry_set_filetype(e, AE_IFREG);
    archive_entry_set_perm(e, 0644);
    archive_entry_set_mtime(e, 0, 0);
    archive_entry_set_size(e, (la_int64_t)len);
    int rc = 0;
    if (archive_write_header(w->archive, e) != ARCHIVE_OK ||
        (len && archive_write_data(w->archive, data, len) != (la_ssize_t)len) ||
        archive_write_finish_entry(w->archive) != ARCHIVE_OK || w->failed.code)
        rc = writer_fail(w, err);
    archive_entry_free(e);
    return rc;
}

int tar_writer_commit(struct tar_writer *w, uint8_t sha256[HASH_BYTES], uint64_t *ret_bytes,
                      struct err *err)
{
    if (archive_write_close(w->archive) != ARCHIVE_OK || w->failed.code)
        return writer_fail(w, err);
    uint64_t size = w->out.written;
    int rc = file_out_commit(&w->out, err);
    if (rc < 0)
        return rc;
    uint8_t digest[HASH_BYTES];
    hash_final(&w->hash, digest);
    if (sha256)
        memcpy(sha256, digest, HASH_BYTES);
    if (ret_bytes)
        *ret_bytes = size;
    return 0;
}

void tar_writer_free(struct tar_writer *w)
{
    if (!w)
        return;
    w->failed.code = w->failed.code ? w->failed.code : -ERR_CANCELLED; /* write no more */
    if (w->archive)
        archive_write_free(w->archive);
    file_out_abort(&w->out);
    hash_release(&w->hash);
    mem_free(w);
}
