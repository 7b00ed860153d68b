#include "coordinator/state/backup.h"

#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/net/blobstore.h"
#include "coordinator/state/blobs.h"
#include "coordinator/state/manifest.h"
#include "coordinator/state/persist.h"
#include "coordinator/state/store.h"

#define TRIES 8
#define COPY_BYTES ((size_t)1 << 20)
#define STAGE ".backup" /* in the data directory, on its file system */
#define DATABASE "coordinator.db"
#define ENDING ".manifest"
#define ID_GAP 1000000u

/* What is given out by the coordinator's own start only. */
static const char *const identity[] = {"tls-key.pem",   "tls-cert.pem", "cluster.secret",
                                       "worker.secret", "user.secret",  "ticket.secret"};
static const char *const outer_files[] = {"target", "momentum", "buffer"};

struct backup {
    const char *data_dir, *folder;
    char *stage;
    struct manifest manifest;
    uint8_t (*known)[32]; /* of each file: its hash on record; zeros: none is */
    size_t cap_known;
    struct backup_result *result;
    bool again; /* something was gone: a newer snapshot */
    struct err err;
};

/* ---- copying ------------------------------------------------------------- */

static char *object_path(const char *folder, const uint8_t sha256[32])
{
    char hex[HASH_HEX_MAX];
    hash_hex(sha256, 32, hex);
    return str_printf("%s/objects/%.2s/%s", folder, hex, hex);
}

static int pump(int fd, const char *from, struct file_out *out, struct hash *h, uint64_t *ret_size,
                struct err *err)
{
    uint8_t *bytes = mem_alloc(COPY_BYTES);
    ssize_t n;
    int rc = 0;
    *ret_size = 0;
    while (rc == 0 && (n = read(fd, bytes, COPY_BYTES)) > 0) {
        hash_update(h, bytes, (size_t)n);
        rc = file_out_write(out, bytes, (size_t)n, err);
        *ret_size += (uint64_t)n;
    }
    if (rc == 0 && n < 0)
        rc = err_errno(err, "cannot read %s", from);
    mem_free(bytes);
    return rc;
}

/* The bytes must be those of sha256. */
static int copy(const char *from, const char *to, const uint8_t sha256[32], uint64_t size,
                struct err *err)
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
        rc = pump(fd, from, &out, &h, &n, err);
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

static int make_parent(const char *path, struct err *err)
{
    char *dir = str_dup(path);
    *strrchr(dir, '/') = '\0';
    int rc = file_mkdirs(dir, 0700, err);
    mem_free(dir);
    return rc;
}

/* ---- what belongs to it -------------------------------------------------- */

static char *staged(const struct backup *b, size_t n)
{
    return str_printf("%s/%zu", b->stage, n);
}

/* path: relative to the data directory.  sha256 NULL: none is on record. */
static void pin(struct backup *b, const char *path, const uint8_t *sha256, uint64_t size,
                bool optional)
{
    static const uint8_t none[32];
    char *from = file_join(b->data_dir, path), *to = staged(b, b->manifest.n);
    if (link(from, to) < 0 && errno != EEXIST) {
        b->again |= errno == ENOENT && !optional;
        if (errno != ENOENT || !optional)
            (void)err_errno(&b->err, "cannot take %s into the backup", from);
    } else if (manifest_add(&b->manifest, sha256 ? sha256 : none, size, path, &b->err) == 0) {
        if (b->manifest.n > b->cap_known) {
            b->cap_known = b->manifest.cap;
            b->known = mem_realloc(b->known, b->cap_known * sizeof(b->known[0]));
        }
        memcpy(b->known[b->manifest.n - 1], sha256 ? sha256 : none, 32);
    }
    mem_free(from);
    mem_free(to);
}

static void pin_blob(void *arg, enum blob_role role, const struct blob_ref *ref, bool needed)
{
    struct backup *b = arg;
    char hex[HASH_HEX_MAX], path[MANIFEST_PATH_MAX];
    if (!needed || b->err.code != 0)
        return;
    hash_hex(ref->sha256, 32, hex);
    (void)snprintf(path, sizeof(path), "blobs/%.2s/%s", hex, hex);
    pin(b, path, ref->sha256, ref->size, false);
}

static void pin_outer(struct backup *b, const struct job *j, const struct module_rec *m)
{
    const struct version_rec *v = module_version(m, m->version);
    json_t *doc = v && v->provenance ? json_loads(v->provenance, 0, NULL) : NULL;
    const json_t *state = json_object_get(doc, "state");
    for (size_t i = 0; v != NULL && i < sizeof(outer_files) / sizeof(outer_files[0]); i++) {
        const json_t *record = json_object_get(state, outer_files[i]);
        const char *hex = json_string_value(json_object_get(record, "sha256"));
        const json_int_t size = json_integer_value(json_object_get(record, "size"));
        char path[MANIFEST_PATH_MAX];
        uint8_t sha256[32];
        const bool known = hex && size > 0 && strlen(hex) == 64 && hash_unhex(hex, sha256, 32) == 0;
        (void)snprintf(path, sizeof(path), "outer/%llu/%llu/%s.%llu.safetensors",
                       (unsigned long long)j->id, (unsigned long long)m->id, outer_files[i],
                       (unsigned long long)v->version);
        pin(b, path, known ? sha256 : NULL, known ? (uint64_t)size : 0, !known);
    }
    json_decref(doc);
}

static int by_hash(const void *a, const void *b)
{
    return memcmp(a, b, 32);
}

/* One snapshot with all that it needs, pinned; b->again: something had gone meanwhile. */
static int take_snapshot(struct backup *b, struct err *err)
{
    struct store *s = NULL;
    struct state st;
    char *live = file_join(b->data_dir, DATABASE), *db = staged(b, 0);
    state_init(&st);
    b->again = false;
    b->err = (struct err){0};
    manifest_release(&b->manifest);
    int rc = file_remove_tree(b->stage, err);
    if (rc == 0)
        rc = file_mkdirs(b->stage, 0700, err);
    if (rc == 0)
        rc = store_snapshot(live, db, err);
    if (rc == 0)
        rc = store_open(db, &persist_schema, &s, err);
    if (rc == 0)
        rc = persist_load(s, &st, err);
    store_close(s); /* it has no -wal from here on */
    if (rc == 0) {
        static const uint8_t none[32];
        (void)manifest_add(&b->manifest, none, 0, DATABASE, &b->err);
        b->cap_known = b->manifest.cap;
        b->known = mem_realloc(b->known, b->cap_known * sizeof(b->known[0]));
        memset(b->known[0], 0, 32);
        for (size_t i = 0; i < sizeof(identity) / sizeof(identity[0]); i++)
            pin(b, identity[i], NULL, 0, false);
        each_blob(&st, 0, (int64_t)clock_wall_ms(), pin_blob, b);
        for (size_t i = 0; i < st.n_jobs && b->err.code == 0; i++)
            for (uint32_t m = 0; m < st.jobs[i]->comp.n_modules; m++)
                if (!job_is_ended(st.jobs[i]) && b->err.code == 0)
                    pin_outer(b, st.jobs[i], &st.jobs[i]->modules[m]);
        rc = b->err.code;
        if (rc < 0 && err)
            *err = b->err;
    }
    state_release(&st);
    mem_free(live);
    mem_free(db);
    return rc;
}

/* ---- making -------------------------------------------------------------- */

static bool is_zero(const uint8_t sha256[32])
{
    static const uint8_t none[32];
    return memcmp(sha256, none, 32) == 0;
}

static int keep_file(struct backup *b, size_t i, struct err *err)
{
    struct manifest_file *f = &b->manifest.files[i];
    char *from = staged(b, i), *to = NULL;
    uint64_t have = 0;
    int rc = is_zero(b->known[i]) ? hash_file(from, f->sha256, &f->size, err) : 0;
    if (rc == 0) {
        to = object_path(b->folder, f->sha256);
        b->result->files++;
        b->result->bytes += f->size;
        if (file_size(to, &have, NULL) < 0 || have != f->size) {
            rc = make_parent(to, err);
            if (rc == 0)
                rc = copy(from, to, f->sha256, f->size, err);
            b->result->new_files++;
            b->result->new_bytes += f->size;
        }
    }
    if (rc < 0)
        (void)err_wrap(err, "%s", f->path);
    mem_free(from);
    mem_free(to);
    return rc;
}

static int write_manifest(struct backup *b, struct err *err)
{
    struct buf text;
    struct tm at;
    const time_t s = (time_t)(b->manifest.at_unix_ms / 1000);
    (void)str_copy(b->manifest.release, sizeof(b->manifest.release), SKERRY_VERSION);
    (void)strftime(b->result->name, BACKUP_NAME_MAX, "%Y%m%dT%H%M%SZ", gmtime_r(&s, &at));
    char *path = str_printf("%s/%s" ENDING, b->folder, b->result->name);
    buf_init(&text, MANIFEST_BYTES_MAX);
    int rc = manifest_format(&b->manifest, &text, err);
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

/* Removes what no backup names any more from one folder of objects. */
static int tidy(const char *dir, const struct hashes *keep, struct err *err)
{
    struct file_names names;
    int rc = file_list(dir, MANIFEST_FILES_MAX, &names, err);
    for (size_t i = 0; rc == 0 && i < names.n; i++) {
        uint8_t sha256[32];
        if (strlen(names.items[i]) != 64 || hash_unhex(names.items[i], sha256, 32) < 0 ||
            bsearch(sha256, keep->at, keep->n, 32, by_hash) != NULL)
            continue;
        char *path = file_join(dir, names.items[i]);
        rc = file_remove(path, err);
        mem_free(path);
    }
    if (rc == 0)
        file_names_release(&names);
    return rc;
}

static int drop_older(const char *folder, unsigned keep, unsigned *ret_dropped, struct err *err)
{
    struct file_names all;
    struct hashes named = {0};
    int rc = list_backups(folder, &all, err);
    if (rc < 0)
        return rc;
    const size_t first = keep && all.n > keep ? all.n - keep : 0;
    for (size_t i = 0; rc == 0 && i < first; i++) {
        char *path = file_join(folder, all.items[i]);
        rc = file_remove(path, err);
        mem_free(path);
    }
    for (size_t i = first; rc == 0 && first > 0 && i < all.n; i++)
        rc = add_hashes(folder, all.items[i], &named, err);
    if (rc == 0 && first > 0) {
        qsort(named.at, named.n, sizeof(named.at[0]), by_hash);
        for (unsigned i = 0; rc == 0 && i < 256; i++) {
            char *dir = str_printf("%s/objects/%02x", folder, i);
            rc = file_is_dir(dir) ? tidy(dir, &named, err) : 0;
            mem_free(dir);
        }
    }
    *ret_dropped = (unsigned)first;
    mem_free(named.at);
    file_names_release(&all);
    return rc;
}

int backup_make(const char *data_dir, const char *folder, unsigned keep, struct backup_result *ret,
                struct err *err)
{
    struct backup b = {.data_dir = data_dir, .folder = folder, .result = ret};
    struct file_lock lock;
    *ret = (struct backup_result){0};
    int rc = file_mkdirs(folder, 0700, err);
    if (rc == 0)
        rc = file_lock_dir(folder, "lock", &lock, err);
    if (rc < 0)
        return rc;
    b.stage = file_join(data_dir, STAGE);
    rc = take_snapshot(&b, err);
    for (int i = 1; rc < 0 && b.again && i < TRIES; i++)
        rc = take_snapshot(&b, err);
    b.manifest.at_unix_ms = (int64_t)clock_wall_ms();
    for (size_t i = 0; rc == 0 && i < b.manifest.n; i++)
        rc = keep_file(&b, i, err);
    if (rc == 0)
        rc = write_manifest(&b, err);
    if (rc == 0)
        rc = drop_older(folder, keep, &ret->dropped, err);
    (void)file_remove_tree(b.stage, NULL); /* or the next one does */
    manifest_release(&b.manifest);
    mem_free(b.known);
    mem_free(b.stage);
    file_unlock(&lock);
    return rc;
}

/* ---- the way back -------------------------------------------------------- */

static int check_empty(const char *data_dir, struct err *err)
{
    struct file_names names;
    int rc = file_list(data_dir, BACKUPS_MAX, &names, err);
    if (rc < 0)
        return rc;
    if (names.n > 0)
        rc = err_set(err, -EEXIST, "%s is not empty (it has %s): restore into a new directory",
                     data_dir, names.items[0]);
    file_names_release(&names);
    return rc;
}

/* Ids beyond any that the lost coordinator may have given out. */
static int skip_ids(const char *db, struct err *err)
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
        persist_changes(s, &st);
        rc = store_commit(s, err);
    }
    store_close(s);
    state_release(&st);
    return rc;
}

static int put_back(const char *folder, const char *data_dir, const struct manifest_file *f,
                    struct err *err)
{
    const bool database = strcmp(f->path, DATABASE) == 0;
    char *from = object_path(folder, f->sha256), *to = file_join(data_dir, f->path);
    char *first = database ? str_printf("%s.restored", to) : str_dup(to);
    int rc = make_parent(to, err);
    if (rc == 0)
        rc = copy(from, first, f->sha256, f->size, err);
    if (rc == 0 && database && (rc = skip_ids(first, err)) == 0)
        rc = file_rename(first, to, err);
    mem_free(from);
    mem_free(to);
    mem_free(first);
    return rc;
}

int backup_restore(const char *folder, const char *name, const char *data_dir,
                   struct backup_result *ret, struct err *err)
{
    struct file_names all;
    struct manifest m = {0};
    *ret = (struct backup_result){0};
    int rc = list_backups(folder, &all, err);
    if (rc < 0)
        return rc;
    if (all.n == 0)
        rc = err_set(err, -ENOENT, "there is no backup in %s", folder);
    char *file = name ? str_printf("%s" ENDING, name) : str_dup(all.n ? all.items[all.n - 1] : "");
    file_names_release(&all);
    if (rc == 0 && (rc = file_mkdirs(data_dir, 0700, err)) == 0)
        rc = check_empty(data_dir, err);
    if (rc == 0)
        rc = read_manifest(folder, file, &m, err);
    for (size_t i = m.n; rc == 0 && i-- > 0;) { /* the database is the first */
        rc = put_back(folder, data_dir, &m.files[i], err);
        ret->files++;
        ret->bytes += m.files[i].size;
    }
    (void)snprintf(ret->name, sizeof(ret->name), "%.*s", (int)strcspn(file, "."), file);
    manifest_release(&m);
    mem_free(file);
    return rc;
}
