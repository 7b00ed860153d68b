#include "coordinator/state/backup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/moving.h"
#include "common/net/blob_dir.h"
#include "coordinator/state/persist.h"
#include "coordinator/state/capture.h"
#include "coordinator/state/place.h"
#include "coordinator/state/store.h"

#define COPY_BYTES ((size_t)1 << 20)
#define ENDING ".manifest"
#define ID_GAP 1000000u
#define LOOK_S (7 * 24 * 3600) /* files that were not checked for so long are read again */

struct backup {
    const char *folder;
    struct capture capture;
    struct backup_result *result;
    struct moving_bytes moving;
    bool begun; /* a failure is the folder's */
};

/* ---- copying ------------------------------------------------------------- */

static char *object_path(const char *folder, const uint8_t sha256[32])
{
    char *objects = file_join(folder, "objects"), *path = blob_dir_file(objects, sha256);
    mem_free(objects);
    return path;
}

static int pump(int fd, const char *from, struct file_out *out, struct hash *h,
                struct moving_bytes *moving, uint64_t *ret_size, struct err *err)
{
    uint8_t *bytes = mem_alloc(COPY_BYTES);
    ssize_t n;
    int rc = 0;
    *ret_size = 0;
    while (rc == 0 && (n = read(fd, bytes, COPY_BYTES)) > 0) {
        hash_update(h, bytes, (size_t)n);
        rc = file_out_write(out, bytes, (size_t)n, err);
        *ret_size += (uint64_t)n;
        moving_add(moving, (uint64_t)n);
    }
    if (rc == 0 && n < 0)
        rc = err_errno(err, "cannot read %s", from);
    mem_free(bytes);
    return rc;
}

/* Copies a file; its bytes must have this hash. */
static int copy(const char *from, const char *to, const uint8_t sha256[32], uint64_t size,
                struct moving_bytes *moving, struct err *err)
{
    struct file_out out;
    struct hash h;
    uint8_t got[HASH_BYTES];
    uint64_t n = 0;
    int fd = open(from, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "cannot open %s", from);
    int rc = file_out_open(&out, to, 0600, err);
    if (rc == 0) {
        hash_init(&h);
        rc = pump(fd, from, &out, &h, moving, &n, err);
        hash_final(&h, got);
        if (rc == 0 && (n != size || !hash_equal(got, sha256, sizeof(got))))
            rc = err_set(err, -ERR_HASH,
                         "%s is damaged: its bytes are not those that its name or record says",
                         from);
        if (rc == 0)
            rc = file_out_commit(&out, err);
        file_out_abort(&out);
    }
    (void)close(fd);
    return rc;
}

static int by_hash(const void *a, const void *b)
{
    return memcmp(a, b, 32);
}

/* ---- making -------------------------------------------------------------- */

static bool is_zero(const uint8_t sha256[32])
{
    static const uint8_t none[32];
    return memcmp(sha256, none, 32) == 0;
}

/* Has the folder a file of this size?  Its modification time is that of the last check. */
static bool is_there(const char *path, const struct manifest_file *f, bool *ret_checked)
{
    struct stat st;
    if (stat(path, &st) < 0 || (uint64_t)st.st_size != f->size)
        return false;
    const int64_t age_s = (int64_t)(clock_wall_ms() / 1000) - st.st_mtime;
    *ret_checked = age_s >= 0 && age_s < LOOK_S;
    return true;
}

/* Is the file in the folder already, undamaged as far as a check per week can tell? */
static bool is_kept(const char *path, const struct manifest_file *f)
{
    uint8_t got[HASH_BYTES];
    uint64_t n;
    bool checked;
    if (!is_there(path, f, &checked))
        return false;
    if (checked)
        return true;
    return hash_file(path, got, &n, NULL) == 0 && hash_equal(got, f->sha256, sizeof(got)) &&
           utimensat(AT_FDCWD, path, NULL, 0) == 0;
}

/* How many bytes of a file will be read, at the least. */
static uint64_t to_read(const struct backup *b, const struct manifest_file *f)
{
    char *path =
        is_zero(f->sha256) ? file_join(b->capture.dir, f->path) : object_path(b->folder, f->sha256);
    uint64_t size = 0;
    bool checked = false;
    if (is_zero(f->sha256))
        (void)file_size(path, &size, NULL); /* whose hash is made first */
    else if (!is_there(path, f, &checked) || !checked)
        size = f->size;
    mem_free(path);
    return size;
}

static int keep_file(struct backup *b, size_t i, struct err *err)
{
    struct manifest_file *f = &b->capture.manifest.files[i];
    char *from = file_join(b->capture.dir, f->path), *to = NULL;
    const uint64_t end = b->moving.done + to_read(b, f);
    int rc = is_zero(f->sha256) ? hash_file(from, f->sha256, &f->size, err) : 0;
    if (rc == 0) {
        to = object_path(b->folder, f->sha256);
        b->result->files++;
        b->result->bytes += f->size;
        if (!is_kept(to, f)) {
            rc = file_mkdirs_for(to, 0700, err);
            if (rc == 0)
                rc = copy(from, to, f->sha256, f->size, &b->moving, err);
            b->result->new_files += rc == 0;
            b->result->new_bytes += rc == 0 ? f->size : 0;
        }
    }
    if (rc < 0)
        (void)err_wrap(err, "%s", f->path);
    else if (b->moving.done < end) /* it was read, and not copied */
        moving_add(&b->moving, end - b->moving.done);
    mem_free(from);
    mem_free(to);
    return rc;
}

static void name_of(int64_t unix_ms, char ret[BACKUP_NAME_MAX])
{
    struct tm at;
    const time_t s = (time_t)(unix_ms / 1000);
    (void)strftime(ret, BACKUP_NAME_MAX, "%Y%m%dT%H%M%SZ", gmtime_r(&s, &at));
}

static int write_manifest(struct backup *b, struct err *err)
{
    struct buf text;
    (void)str_copy(b->capture.manifest.release, sizeof(b->capture.manifest.release),
                   SKERRY_VERSION);
    name_of(b->capture.manifest.at_unix_ms, b->result->name);
    char *path = str_printf("%s/%s" ENDING, b->folder, b->result->name);
    buf_init(&text, MANIFEST_BYTES_MAX);
    int rc = manifest_format(&b->capture.manifest, &text, err);
    if (rc == 0)
        rc = file_write_atomic(path, buf_str(&text), text.len, 0600, err);
    buf_release(&text);
    mem_free(path);
    return rc;
}

static int read_manifest(const char *folder, const char *file, struct manifest *ret,
                         struct err *err)
{
    struct buf text;
    char *path = file_join(folder, file);
    *ret = (struct manifest){0};
    int rc = file_read(path, MANIFEST_BYTES_MAX, &text, err);
    if (rc == 0) {
        rc = manifest_parse(buf_str(&text), ret, err);
        buf_release(&text);
    }
    if (rc < 0)
        (void)err_wrap(err, "%s", path);
    mem_free(path);
    return rc;
}

/* The names of all manifests, oldest first. */
static int list_backups(const char *folder, struct file_names *ret, struct err *err)
{
    int rc = file_list(folder, BACKUPS_MAX, ret, err);
    size_t n = 0;
    for (size_t i = 0; rc == 0 && i < ret->n; i++) {
        if (str_ends(ret->items[i], ENDING))
            ret->items[n++] = ret->items[i];
        else
            mem_free(ret->items[i]);
    }
    if (rc == 0)
        ret->n = n;
    return rc;
}

/* Names are times, and the last one counts: a backup made by a clock that ran ahead would seem
 * newer than all that follow, which would be dropped at once. */
static int check_clock(const char *folder, struct err *err)
{
    struct file_names all;
    char now[BACKUP_NAME_MAX];
    int rc = list_backups(folder, &all, err);
    if (rc < 0)
        return rc;
    name_of((int64_t)clock_wall_ms(), now);
    const char *last = all.n > 0 ? all.items[all.n - 1] : "";
    const int n = (int)strcspn(last, ".");
    if (strncmp(last, now, (size_t)n) > 0)
        rc = err_set(err, -EEXIST,
                     "%s has a backup of %.*s, which is later than this machine's clock (%s): set "
                     "the clock right, or move that manifest away",
                     folder, n, last, now);
    file_names_release(&all);
    return rc;
}

/* ---- dropping older ones ------------------------------------------------- */

struct hashes {
    uint8_t (*at)[32];
    size_t n, cap;
};

static int add_hashes(const char *folder, const char *file, struct hashes *h, struct err *err)
{
    struct manifest m;
    int rc = read_manifest(folder, file, &m, err);
    if (h->n + m.n > h->cap) {
        h->cap = 2 * (h->n + m.n);
        h->at = mem_realloc(h->at, h->cap * sizeof(h->at[0]));
    }
    for (size_t i = 0; i < m.n; i++)
        memcpy(h->at[h->n++], m.files[i].sha256, 32);
    manifest_release(&m);
    return rc;
}

/* Removes objects that no backup names any more from one folder. */
static int tidy(const char *dir, const struct hashes *keep, uint64_t *freed, struct err *err)
{
    struct file_names names = {0};
    int rc = file_list(dir, MANIFEST_FILES_MAX, &names, err);
    for (size_t i = 0; rc == 0 && i < names.n; i++) {
        uint8_t sha256[32];
        if (strlen(names.items[i]) != 64 || hash_unhex(names.items[i], sha256, 32) < 0 ||
            (keep->n > 0 && bsearch(sha256, keep->at, keep->n, 32, by_hash) != NULL))
            continue;
        char *path = file_join(dir, names.items[i]);
        uint64_t size = 0;
        (void)file_size(path, &size, NULL);
        if ((rc = file_remove(path, err)) == 0)
            *freed += size;
        mem_free(path);
    }
    file_names_release(&names);
    return rc;
}

/* Removes objects that none of the n manifests names. */
static int drop_unnamed(const char *folder, char *const *manifests, size_t n, uint64_t *ret_freed,
                        struct err *err)
{
    struct hashes named = {0};
    int rc = 0;
    *ret_freed = 0;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = add_hashes(folder, manifests[i], &named, err);
    if (rc == 0 && named.n > 0)
        qsort(named.at, named.n, sizeof(named.at[0]), by_hash);
    for (unsigned i = 0; rc == 0 && i < 256; i++) {
        char *dir = str_printf("%s/objects/%02x", folder, i);
        rc = file_is_dir(dir) ? tidy(dir, &named, ret_freed, err) : 0;
        mem_free(dir);
    }
    mem_free(named.at);
    return rc;
}

static int drop_older(const char *folder, unsigned keep, unsigned *ret_dropped, struct err *err)
{
    struct file_names all;
    uint64_t freed;
    int rc = keep > 0 ? list_backups(folder, &all, err) : 0;
    if (rc < 0 || keep == 0)
        return rc;
    const size_t first = all.n > keep ? all.n - keep : 0;
    for (size_t i = 0; rc == 0 && i < first; i++) {
        char *path = file_join(folder, all.items[i]);
        rc = file_remove(path, err);
        mem_free(path);
    }
    if (rc == 0 && first > 0)
        rc = drop_unnamed(folder, all.items + first, all.n - first, &freed, err);
    *ret_dropped = (unsigned)first;
    file_names_release(&all);
    return rc;
}

/* Removes the leftovers of a killed backup; the lock is held. */
static int sweep(const char *folder, struct err *err)
{
    int rc = file_remove_temps(folder, err);
    for (unsigned i = 0; rc == 0 && i < 256; i++) {
        char *dir = str_printf("%s/objects/%02x", folder, i);
        rc = file_is_dir(dir) ? file_remove_temps(dir, err) : 0;
        mem_free(dir);
    }
    return rc;
}

static int make(struct backup *b, const char *data_dir, struct err *err)
{
    const struct coordinator_options of = {.data_dir = data_dir};
    *b->result = (struct backup_result){0};
    int rc = capture_take(&of, 0, &b->capture, err);
    b->begun = rc == 0;
    if (rc < 0)
        return rc;
    b->capture.manifest.at_unix_ms = (int64_t)clock_wall_ms();
    b->moving = (struct moving_bytes){moving_begin("backing up"), 0, 0};
    for (size_t i = 0; i < b->capture.manifest.n; i++)
        b->moving.total += to_read(b, &b->capture.manifest.files[i]);
    for (size_t i = 0; rc == 0 && i < b->capture.manifest.n; i++)
        rc = keep_file(b, i, err);
    moving_clear();
    if (rc == 0)
        rc = write_manifest(b, err);
    capture_release(&b->capture);
    return rc;
}

/* On a full disk: removes what no backup names (the beginning of this one, and objects of manifests
 * that a person has removed) and, if that freed any room, tries again. */
static int make_with_room(struct backup *b, const char *data_dir, struct err *err)
{
    struct file_names all;
    int rc = -ENOSPC;
    for (bool more = true; rc == -ENOSPC && more;) {
        struct err why = {0};
        uint64_t freed = 0;
        rc = make(b, data_dir, &why);
        if (rc == -ENOSPC && list_backups(b->folder, &all, NULL) == 0) {
            (void)drop_unnamed(b->folder, all.items, all.n, &freed, NULL);
            file_names_release(&all);
        }
        more = freed > b->result->new_bytes;
        if (rc < 0)
            (void)err_set(err, rc, "%s%s", why.msg,
                          rc != -ENOSPC ? ""
                          : b->begun    ? "; to make room, remove the manifest of an old backup: "
                                          "the next one drops what only that names"
                                        : "; make room on the disk of the data dir");
    }
    return rc;
}

int backup_make(const char *data_dir, const char *folder, unsigned keep, struct backup_result *ret,
                struct err *err)
{
    struct backup b = {.folder = folder, .result = ret};
    struct file_lock lock;
    *ret = (struct backup_result){0};
    if (file_place(folder, data_dir) != FILE_APART)
        return err_set(err, -EINVAL, "%s is in the data dir %s, and would be lost with it", folder,
                       data_dir);
    int rc = file_mkdirs(folder, 0700, err);
    if (rc == 0)
        rc = file_lock_dir(folder, "lock", &lock, err);
    if (rc == -EBUSY)
        return err_set(err, rc, "another backup into %s is under way: try again when it is over",
                       folder);
    if (rc < 0)
        return rc;
    if ((rc = sweep(folder, err)) == 0 && (rc = check_clock(folder, err)) == 0)
        rc = make_with_room(&b, data_dir, err);
    if (rc == 0 && (rc = drop_older(folder, keep, &ret->dropped, err)) < 0)
        (void)err_wrap(err, "backup %s is made, but older ones could not be removed", ret->name);
    file_unlock(&lock);
    return rc;
}

/* ---- the way back -------------------------------------------------------- */

/* Ids beyond any that the lost coordinator may have given out.  The time since the backup costs no
 * job anything: nothing that was done in it is left. */
static int begin_anew(const char *db, struct err *err)
{
    struct store *s = NULL;
    struct state st;
    state_init(&st);
    int rc = store_open(db, &persist_schema, &s, err);
    if (rc == 0)
        rc = persist_load(s, &st, err);
    if (rc == 0) {
        st.next_worker += ID_GAP;
        st.next_job += ID_GAP;
        st.next_task += ID_GAP;
        st.next_module += ID_GAP;
        st.next_token += ID_GAP;
        for (size_t i = 0; i < st.n_workers; i++)
            if (st.workers[i]->state == WORKER_HERE)
                state_edit_worker(&st, st.workers[i])->since_unix_ms = (int64_t)clock_wall_ms();
        persist_changes(s, &st);
        rc = store_commit(s, err);
    }
    store_close(s);
    state_release(&st);
    return rc;
}

static int put_back(const char *folder, const char *data_dir, const struct manifest_file *f,
                    struct moving_bytes *moving, struct err *err)
{
    const bool database = strcmp(f->path, CAPTURE_DATABASE) == 0;
    char *from = object_path(folder, f->sha256), *to = file_join(data_dir, f->path);
    char *first = database ? file_join(data_dir, PLACE_BEGUN) : str_dup(to);
    int rc = file_mkdirs_for(to, 0700, err);
    if (rc == 0)
        rc = copy(from, first, f->sha256, f->size, moving, err);
    if (rc == 0 && database && (rc = begin_anew(first, err)) == 0)
        rc = file_rename(first, to, err);
    mem_free(from);
    mem_free(to);
    mem_free(first);
    return rc;
}

/* Its file's name, mem_free it. */
static int newest_backup(const char *folder, char **ret, struct err *err)
{
    struct file_names all;
    int rc = list_backups(folder, &all, err);
    if (rc < 0)
        return rc;
    if (all.n > 0)
        *ret = str_dup(all.items[all.n - 1]);
    else
        rc = err_set(err, -ENOENT, "there is no backup in %s", folder);
    file_names_release(&all);
    return rc;
}

static int put_all_back(const char *folder, const char *file, const char *data_dir,
                        struct manifest *m, struct backup_result *ret, struct err *err)
{
    struct err why = {0};
    int rc = read_manifest(folder, file, m, &why);
    struct moving_bytes moving = {moving_begin("restoring"), 0, 0};
    for (size_t i = 0; rc == 0 && i < m->n; i++)
        moving.total += m->files[i].size;
    for (size_t i = m->n; rc == 0 && i-- > 0;) { /* the database is the first */
        if ((rc = put_back(folder, data_dir, &m->files[i], &moving, &why)) < 0)
            (void)err_wrap(&why, "%s", m->files[i].path);
        ret->files++;
        ret->bytes += m->files[i].size;
    }
    moving_clear();
    if (rc < 0)
        (void)err_set(err, rc, "%s%s", why.msg,
                      rc == -ENOENT || rc == -ERR_HASH || rc == -ERR_FORMAT
                          ? "; `skerry restore --from` takes another backup of the folder"
                          : "");
    return rc;
}

int backup_restore(const char *folder, const char *name, const char *data_dir,
                   struct backup_result *ret, struct err *err)
{
    char *file = name ? str_printf("%s" ENDING, name) : NULL;
    struct manifest m = {0};
    *ret = (struct backup_result){0};
    int rc = name ? 0 : newest_backup(folder, &file, err);
    if (rc < 0)
        return rc;
    char *path = file_join(folder, file);
    if (name && !file_exists(path))
        rc = err_set(err, -ENOENT, "there is no backup %s in %s", name, folder);
    mem_free(path);
    if (rc == 0)
        rc = place_begin(data_dir, err);
    if (rc == 0 && (rc = put_all_back(folder, file, data_dir, &m, ret, err)) < 0)
        place_undo(data_dir);
    (void)snprintf(ret->name, sizeof(ret->name), "%.*s", (int)strcspn(file, "."), file);
    manifest_release(&m);
    mem_free(file);
    return rc;
}
