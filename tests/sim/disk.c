#include "tests/sim/disk.h"

#include <dirent.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/rng.h"
#include "common/net/blob_dir.h"
#include "common/net/blobstore.h"
#include "tests/sim/sim.h"

#define FILES_MAX 8   /* that SQLite has at a time, and before */
#define SECTOR 512u   /* is written whole or not at all */
#define SLOW_MS 20000 /* that a flush takes at most */

static void must(int rc, const char *what, const char *path)
{
    if (rc < 0)
        sim_fail("cannot %s %s: %s", what, path, strerror(errno));
}

/* ---- what was flushed ---------------------------------------------------- */

/* Numbers of files and names as they were flushed: open addressing, 0: none. */
static struct {
    uint64_t *keys;
    size_t n, cap;
} flushed;

static bool flushed_find(uint64_t key, size_t *ret_at)
{
    size_t i = flushed.cap ? key & (flushed.cap - 1) : 0;
    for (; flushed.cap && flushed.keys[i] != 0 && flushed.keys[i] != key;)
        i = (i + 1) & (flushed.cap - 1);
    *ret_at = i;
    return flushed.cap && flushed.keys[i] == key;
}

static void flushed_add(uint64_t key)
{
    size_t at;
    if (flushed.n * 2 >= flushed.cap) {
        uint64_t *old = flushed.keys;
        const size_t n = flushed.cap;
        flushed.cap = n ? n * 2 : 1024;
        flushed.keys = mem_alloc_array(flushed.cap, sizeof(*flushed.keys));
        for (size_t i = 0; i < n; i++)
            if (old[i] != 0 && !flushed_find(old[i], &at))
                flushed.keys[at] = old[i];
        mem_free(old);
    }
    if (flushed_find(key, &at))
        return;
    flushed.keys[at] = key;
    flushed.n++;
}

static bool is_flushed(uint64_t key)
{
    size_t at;
    return flushed_find(key, &at);
}

static uint64_t key_of_name(const struct stat *dir, const char *name)
{
    uint64_t h = dir->st_ino;
    for (; *name != '\0'; name++)
        h = rng_mix(h, (uint8_t)*name);
    return h | 1;
}

static uint64_t key_of_content(const struct stat *st)
{
    return rng_mix(rng_mix(st->st_ino, (uint64_t)st->st_size),
                   rng_mix((uint64_t)st->st_mtim.tv_sec, (uint64_t)st->st_mtim.tv_nsec)) |
           1;
}

static void flush_names(int fd, const struct stat *dir)
{
    DIR *d = fdopendir(dup(fd));
    if (d == NULL)
        sim_fail("a directory cannot be read to be flushed");
    rewinddir(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        flushed_add(key_of_name(dir, e->d_name));
    closedir(d);
}

/* ---- the state ------------------------------------------------------------ */

/* A write, or where `data` is NULL a cut, that was not flushed. */
struct change {
    uint64_t at;
    size_t len;
    uint8_t *data;
};

/* A file of SQLite's. */
struct kept {
    char name[32];   /* in the data directory; "": free */
    uint8_t *bytes;  /* as it was flushed */
    size_t len, cap; /* of bytes */
    struct change *changes;
    size_t n, cap_changes;
};

static struct {
    char *root, *dir;
    unsigned number; /* of dir */
    unsigned others; /* directories of other machines */
    bool crashed, full, elsewhere;
    unsigned armed, slow;
    enum disk_loss loss;
    struct kept files[FILES_MAX];
} disk;

static void operation(void)
{
    if (disk.elsewhere)
        return;
    if (disk.armed > 0 && --disk.armed == 0 && !disk.crashed)
        disk_crash(disk.loss);
}

/* ---- files of SQLite's ---------------------------------------------------- */

static void put(struct kept *k, uint64_t at, const void *data, size_t len)
{
    const size_t end = (size_t)at + len;
    if (end > k->cap) {
        k->cap = end * 2;
        k->bytes = mem_realloc(k->bytes, k->cap);
    }
    if (end > k->len) {
        memset(k->bytes + k->len, 0, end - k->len);
        k->len = end;
    }
    if (len > 0)
        memcpy(k->bytes + at, data, len);
}

static void apply(struct kept *k, const struct change *c, size_t len)
{
    if (c->data != NULL)
        put(k, c->at, c->data, len);
    else if (c->at < k->len)
        k->len = (size_t)c->at;
}

static void note(struct kept *k, uint64_t at, const void *data, size_t len)
{
    if (k->n == k->cap_changes) {
        k->cap_changes = k->cap_changes ? k->cap_changes * 2 : 16;
        k->changes = mem_realloc(k->changes, k->cap_changes * sizeof(*k->changes));
    }
    k->changes[k->n++] =
        (struct change){at, len, data != NULL ? memcpy(mem_alloc(len ? len : 1), data, len) : NULL};
}

/* Each of what was not flushed may be lost, or torn. */
static void settle(struct kept *k, bool lose)
{
    for (size_t i = 0; i < k->n; i++) {
        const struct change *c = &k->changes[i];
        size_t len = c->len;
        if (lose && c->data != NULL && sim_chance(100))
            len = (size_t)sim_below(c->len / SECTOR + 1) * SECTOR;
        if (!lose || sim_chance(500))
            apply(k, c, len);
        mem_free(c->data);
    }
    k->n = 0;
}

static struct kept *kept_of(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    struct kept *k = NULL;
    for (int i = FILES_MAX - 1; i >= 0; i--)
        if (strcmp(disk.files[i].name, name) == 0)
            return &disk.files[i];
        else if (disk.files[i].name[0] == '\0')
            k = &disk.files[i];
    if (k == NULL)
        sim_fail("SQLite has more than %d files", FILES_MAX);
    (void)str_copy(k->name, sizeof(k->name), name);
    return k;
}

static void forget(struct kept *k)
{
    settle(k, false);
    mem_free(k->bytes);
    mem_free(k->changes);
    *k = (struct kept){0};
}

struct file {
    sqlite3_file base;
    struct kept *kept; /* NULL: a temporary one */
    unsigned number;   /* of the directory; of another one than the disk's nothing is kept */
    sqlite3_file *real;
};

static sqlite3_vfs *usual;

#define REAL(f) (((struct file *)(void *)(f))->real)
#define KEPT(f) kept_by((struct file *)(void *)(f))

static struct kept *kept_by(const struct file *f)
{
    return f->number == disk.number ? f->kept : NULL;
}

static int f_close(sqlite3_file *f)
{
    const int rc = REAL(f)->pMethods ? REAL(f)->pMethods->xClose(REAL(f)) : SQLITE_OK;
    mem_free(REAL(f));
    return rc;
}

static int f_read(sqlite3_file *f, void *to, int n, sqlite3_int64 at)
{
    return REAL(f)->pMethods->xRead(REAL(f), to, n, at);
}

static int f_write(sqlite3_file *f, const void *data, int n, sqlite3_int64 at)
{
    if (disk.full && KEPT(f) != NULL)
        return SQLITE_FULL;
    operation();
    if (KEPT(f) != NULL && !disk.crashed)
        note(KEPT(f), (uint64_t)at, data, (size_t)n);
    return REAL(f)->pMethods->xWrite(REAL(f), data, n, at);
}

static int f_truncate(sqlite3_file *f, sqlite3_int64 size)
{
    operation();
    if (KEPT(f) != NULL && !disk.crashed)
        note(KEPT(f), (uint64_t)size, NULL, 0);
    return REAL(f)->pMethods->xTruncate(REAL(f), size);
}

static int f_sync(sqlite3_file *f, int flags)
{
    if (disk.full && KEPT(f) != NULL)
        return SQLITE_IOERR_FSYNC;
    operation();
    if (sim_chance(disk.slow))
        sim_slow(sim_below(SLOW_MS));
    if (KEPT(f) != NULL && !disk.crashed)
        settle(KEPT(f), false);
    return SQLITE_OK; /* the machine's own flush is of no use here */
}

static int f_size(sqlite3_file *f, sqlite3_int64 *size)
{
    return REAL(f)->pMethods->xFileSize(REAL(f), size);
}

static int f_lock(sqlite3_file *f, int level)
{
    return REAL(f)->pMethods->xLock(REAL(f), level);
}

static int f_unlock(sqlite3_file *f, int level)
{
    return REAL(f)->pMethods->xUnlock(REAL(f), level);
}

static int f_reserved(sqlite3_file *f, int *out)
{
    return REAL(f)->pMethods->xCheckReservedLock(REAL(f), out);
}

static int f_control(sqlite3_file *f, int op, void *arg)
{
    return REAL(f)->pMethods->xFileControl(REAL(f), op, arg);
}

static int f_sector(sqlite3_file *f)
{
    return REAL(f)->pMethods->xSectorSize(REAL(f));
}

static int f_traits(sqlite3_file *f)
{
    return REAL(f)->pMethods->xDeviceCharacteristics(REAL(f));
}

static int f_map(sqlite3_file *f, int page, int size, int extend, void volatile **out)
{
    return REAL(f)->pMethods->xShmMap(REAL(f), page, size, extend, out);
}

static int f_shm_lock(sqlite3_file *f, int offset, int n, int flags)
{
    return REAL(f)->pMethods->xShmLock(REAL(f), offset, n, flags);
}

static void f_barrier(sqlite3_file *f)
{
    REAL(f)->pMethods->xShmBarrier(REAL(f));
}

static int f_unmap(sqlite3_file *f, int delete)
{
    return REAL(f)->pMethods->xShmUnmap(REAL(f), delete);
}

static const sqlite3_io_methods methods = {
    2,          f_close,   f_read,   f_write,  f_truncate, f_sync,     f_size,    f_lock, f_unlock,
    f_reserved, f_control, f_sector, f_traits, f_map,      f_shm_lock, f_barrier, f_unmap};

/* Files of captures and backups are nobody's to crash amid. */
static bool is_ours(const char *path)
{
    const size_t n = strlen(disk.dir);
    return path != NULL && str_starts(path, disk.dir) && path[n] == '/' &&
           strchr(path + n + 1, '/') == NULL;
}

static int v_open(sqlite3_vfs *vfs, const char *path, sqlite3_file *file, int flags, int *out)
{
    struct file *f = (struct file *)(void *)file;
    *f = (struct file){.base.pMethods = &methods,
                       .number = disk.number,
                       .real = mem_alloc((size_t)usual->szOsFile)};
    if (is_ours(path))
        f->kept = kept_of(path);
    const int rc = usual->xOpen(usual, path, f->real, flags, out);
    if (rc != SQLITE_OK) {
        f->base.pMethods = NULL;
        mem_free(f->real);
    }
    return rc;
}

static int v_delete(sqlite3_vfs *vfs, const char *path, int sync)
{
    operation();
    if (!disk.crashed && is_ours(path))
        forget(kept_of(path));
    return usual->xDelete(usual, path, sync);
}

/* Soon, so that crashes meet checkpoints, too. */
static int checkpoint_soon(sqlite3 *db, const char **ret_error,
                           const struct sqlite3_api_routines *api)
{
    return sqlite3_wal_autocheckpoint(db, (int)sim_between(10, 200));
}

static void register_vfs(void)
{
    static sqlite3_vfs ours;
    if (usual != NULL)
        return;
    usual = sqlite3_vfs_find(NULL);
    ours = *usual;
    ours.szOsFile = (int)sizeof(struct file);
    ours.zName = "sim";
    ours.pNext = NULL;
    ours.xOpen = v_open;
    ours.xDelete = v_delete;
    if (sqlite3_vfs_register(&ours, 1) != SQLITE_OK ||
        sqlite3_auto_extension((void (*)(void))checkpoint_soon) != SQLITE_OK)
        sim_fail("SQLite does not take the VFS");
}

/* ---- other files: the calls of libc that count ---------------------------- */

int __wrap_fsync(int fd);
int __wrap_syncfs(int fd);
int __real_link(const char *from, const char *to);
static void flush_tree(const char *path)
{
    struct file_names names = {0};
    struct err err = {0};
    struct stat dir, st;
    must(stat(path, &dir), "look at", path);
    if (file_list(path, 65536, &names, &err) < 0)
        sim_fail("%s", err.msg);
    for (size_t i = 0; i < names.n; i++) {
        char *inner = file_join(path, names.items[i]);
        flushed_add(key_of_name(&dir, names.items[i]));
        must(stat(inner, &st), "look at", inner);
        if (S_ISDIR(st.st_mode))
            flush_tree(inner);
        else
            flushed_add(key_of_content(&st));
        mem_free(inner);
    }
    file_names_release(&names);
}

int __wrap_syncfs(int fd)
{
    operation();
    if (disk.crashed)
        return 0;
    for (int i = 0; i < FILES_MAX; i++)
        settle(&disk.files[i], false);
    flush_tree(disk.dir);
    return 0;
}

int __wrap_link(const char *from, const char *to);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __real_unlink(const char *path);
int __wrap_unlink(const char *path);

int __wrap_fsync(int fd)
{
    struct stat st;
    operation();
    if (disk.crashed || fstat(fd, &st) < 0)
        return 0;
    if (S_ISDIR(st.st_mode))
        flush_names(fd, &st);
    else
        flushed_add(key_of_content(&st));
    return 0;
}

int __wrap_link(const char *from, const char *to)
{
    operation();
    return __real_link(from, to);
}

int __wrap_rename(const char *from, const char *to)
{
    operation();
    return __real_rename(from, to);
}

int __wrap_unlink(const char *path)
{
    operation();
    return __real_unlink(path);
}

/* ---- the image ------------------------------------------------------------ */

static bool is_sqlites(const char *name)
{
    return str_starts(name, "coordinator.db");
}

static void cut(const char *from, const char *to)
{
    struct buf b;
    struct err err = {0};
    if (file_read(from, 64 << 20, &b, &err) < 0)
        sim_fail("%s", err.msg);
    const size_t len = sim_chance(500) ? 0 : (size_t)sim_below(b.len + 1);
    const int fd = open(to, O_WRONLY | O_CREAT | O_EXCL, 0600);
    must(fd, "make", to);
    if (file_write_all(fd, b.data, len, to, &err) < 0)
        sim_fail("%s", err.msg);
    close(fd);
    buf_release(&b);
}

static void copy_tree(const char *from, const char *to, enum disk_loss loss);

static void copy_entry(const char *from, const char *to, enum disk_loss loss)
{
    struct stat st;
    must(stat(from, &st), "look at", from);
    if (S_ISDIR(st.st_mode)) {
        copy_tree(from, to, loss);
        return;
    }
    if (loss == DISK_POWER && !is_flushed(key_of_content(&st)) && sim_chance(667))
        cut(from, to);
    else
        must(__real_link(from, to), "link", to);
    if (loss == DISK_POWER && stat(to, &st) == 0)
        flushed_add(key_of_content(&st));
}

static void copy_tree(const char *from, const char *to, enum disk_loss loss)
{
    struct file_names names = {0};
    struct err err = {0};
    struct stat was, is;
    must(mkdir(to, 0700), "make", to);
    must(stat(from, &was), "look at", from);
    must(stat(to, &is), "look at", to);
    if (file_list(from, 65536, &names, &err) < 0)
        sim_fail("%s", err.msg);
    for (size_t i = 0; i < names.n; i++) {
        const bool known = is_flushed(key_of_name(&was, names.items[i]));
        if (is_sqlites(names.items[i]) || (loss == DISK_POWER && !known && sim_chance(500)))
            continue;
        char *a = file_join(from, names.items[i]), *b = file_join(to, names.items[i]);
        copy_entry(a, b, loss);
        mem_free(a);
        mem_free(b);
        if (known || loss == DISK_POWER)
            flushed_add(key_of_name(&is, names.items[i]));
    }
    file_names_release(&names);
}

static char *dir_number(unsigned n)
{
    return str_printf("%s/%u", disk.root, n);
}

/* What a killed program wrote is there and not flushed yet: the list of changes stays. */
static void image_of(struct kept *k, const char *to, enum disk_loss loss)
{
    struct kept all = {0};
    struct err err = {0};
    if (loss == DISK_POWER)
        settle(k, true);
    put(&all, 0, k->bytes, k->len);
    for (size_t i = 0; i < k->n; i++)
        apply(&all, &k->changes[i], k->changes[i].len);
    char *path = file_join(to, k->name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    must(fd, "make", path);
    if (file_write_all(fd, all.bytes, all.len, path, &err) < 0)
        sim_fail("%s", err.msg);
    close(fd);
    mem_free(path);
    mem_free(all.bytes);
}

void disk_crash(enum disk_loss loss)
{
    char *to = dir_number(disk.number + 1);
    if (disk.crashed)
        return;
    sim_say("the coordinator %s", loss == DISK_POWER ? "loses its power" : "is killed");
    copy_tree(disk.dir, to, loss);
    for (int i = 0; i < FILES_MAX; i++)
        if (disk.files[i].name[0] != '\0')
            image_of(&disk.files[i], to, loss);
    disk.crashed = true;
    disk.loss = loss;
    disk.armed = 0;
    mem_free(to);
}

void disk_arm(unsigned n, enum disk_loss loss)
{
    disk.armed = n;
    disk.loss = loss;
}

bool disk_crashed(void)
{
    return disk.crashed;
}

enum disk_loss disk_lost(void)
{
    return disk.loss;
}

/* All is flushed that fill() has left. */
static void take_over(const char *dir)
{
    static const char name[] = "coordinator.db";
    struct buf b;
    struct err err = {0};
    char *path = file_join(dir, name);
    if (file_read(path, 64 << 20, &b, &err) < 0)
        sim_fail("%s", err.msg);
    flush_tree(dir);
    put(kept_of(name), 0, b.data, b.len);
    buf_release(&b);
    mem_free(path);
}

char *disk_other(void)
{
    struct err err = {0};
    char *dir = str_printf("%s/other.%u", disk.root, ++disk.others);
    if (file_remove_tree(dir, &err) < 0)
        sim_fail("%s", err.msg);
    return dir;
}

void disk_move(char *dir, bool keep)
{
    struct err err = {0};
    disk.number++;
    for (int i = 0; i < FILES_MAX; i++)
        if (disk.files[i].name[0] != '\0')
            forget(&disk.files[i]);
    if (!keep && file_remove_tree(disk.dir, &err) < 0)
        sim_fail("%s", err.msg);
    mem_free(disk.dir);
    disk.dir = dir;
    disk.crashed = false;
    take_over(dir);
}

void disk_recover(void)
{
    struct err err = {0};
    if (file_remove_tree(disk.dir, &err) < 0)
        sim_fail("%s", err.msg);
    mem_free(disk.dir);
    disk.dir = dir_number(++disk.number);
    disk.crashed = false;
}

void disk_fill(bool full)
{
    disk.full = full;
}

void disk_slow(unsigned in_thousand)
{
    disk.slow = in_thousand;
}

void disk_elsewhere(bool elsewhere)
{
    disk.elsewhere = elsewhere;
}

void disk_begin(const char *root)
{
    register_vfs();
    disk.root = str_dup(root);
    disk.number = disk.others = 0;
    disk.dir = dir_number(0);
    must(mkdir(disk.dir, 0700), "make", disk.dir);
    disk.crashed = disk.full = false;
    disk.armed = disk.slow = 0;
}

const char *disk_dir(void)
{
    return disk.dir;
}

/* ---- when blobs were stored ------------------------------------------------ */

struct stored {
    struct blob_id id;
    int64_t at_s;
};

static struct {
    struct stored *list;
    size_t n, cap;
    const struct blobstore_ops *real;
} blobs;

static struct stored *find_stored(const struct blob_id *id)
{
    for (size_t i = 0; i < blobs.n; i++)
        if (blob_id_equal(&blobs.list[i].id, id))
            return &blobs.list[i];
    return NULL;
}

static void stored_now(const struct blob_id *id)
{
    struct stored *s = find_stored(id);
    if (s == NULL) {
        if (blobs.n == blobs.cap) {
            blobs.cap = blobs.cap ? blobs.cap * 2 : 64;
            blobs.list = mem_realloc(blobs.list, blobs.cap * sizeof(*blobs.list));
        }
        s = &blobs.list[blobs.n++];
        s->id = *id;
    }
    s->at_s = (int64_t)(clock_wall_ms() / 1000);
}

/* What came over HTTP is as old as the first look at it. */
static void set_time(const struct blob_id *id, struct blob_stat *st)
{
    if (find_stored(id) == NULL)
        stored_now(id);
    st->touched_s = find_stored(id)->at_s;
}

static void forget_stored(const struct blob_id *id)
{
    struct stored *x = find_stored(id);
    if (x != NULL)
        *x = blobs.list[--blobs.n];
}

static int b_remove(struct blobstore *s, const struct blob_id *id, struct err *err)
{
    forget_stored(id);
    return blobs.real->remove(s, id, err);
}

static int b_hide(struct blobstore *s, const struct blob_id *id, struct err *err)
{
    forget_stored(id);
    return blobs.real->hide(s, id, err);
}

static int b_stat(struct blobstore *s, const struct blob_id *id, struct blob_stat *ret,
                  struct err *err)
{
    const int rc = blobs.real->stat(s, id, ret, err);
    if (rc == 0)
        set_time(id, ret);
    return rc;
}

static int b_touch(struct blobstore *s, const struct blob_id *id, struct err *err)
{
    struct blob_stat st;
    const int rc = blobs.real->stat(s, id, &st, err);
    if (rc == 0)
        stored_now(id);
    return rc;
}

struct listing {
    blob_list_fn *fn;
    void *arg;
};

static int tell(void *arg, const struct blob_id *id, const struct blob_stat *st)
{
    const struct listing *l = arg;
    struct blob_stat mine = *st;
    set_time(id, &mine);
    return l->fn(l->arg, id, &mine);
}

static int b_list(struct blobstore *s, blob_list_fn *fn, void *arg, struct err *err)
{
    struct listing l = {fn, arg};
    return blobs.real->list(s, tell, &l, err);
}

static int b_adopt(struct blobstore *s, const struct blob_file *files, size_t n, struct err *err)
{
    const int rc = blobs.real->adopt(s, files, n, err);
    for (size_t i = 0; i < n && rc == 0; i++)
        stored_now(&files[i].id);
    return rc;
}

int __real_blob_dir_open(const char *path, uint64_t quota_bytes, struct blobstore **ret,
                         struct err *err);
int __wrap_blob_dir_open(const char *path, uint64_t quota_bytes, struct blobstore **ret,
                         struct err *err);

int __wrap_blob_dir_open(const char *path, uint64_t quota_bytes, struct blobstore **ret,
                         struct err *err)
{
    static struct blobstore_ops ours;
    const int rc = __real_blob_dir_open(path, quota_bytes, ret, err);
    if (rc < 0)
        return rc;
    blobs.real = (*ret)->ops;
    ours = *blobs.real;
    ours.stat = b_stat;
    ours.touch = b_touch;
    ours.list = b_list;
    ours.adopt = b_adopt;
    ours.remove = b_remove;
    ours.hide = b_hide;
    (*ret)->ops = &ours;
    return 0;
}

int disk_upload(struct blobstore *s, const struct blob_id *id, const void *data, size_t len)
{
    struct blob_writer *w;
    if (blobstore_has(s, id, NULL))
        return 0;
    int rc = s->ops->put(s, id, 1, len, &w, NULL);
    if (rc < 0)
        return rc;
    rc = w->ops->write(w, (const char *)data + w->size, len - (size_t)w->size, NULL);
    if (rc == 0 && !sim_chance(100)) {
        rc = w->ops->commit(w, len, NULL);
        if (rc == 0)
            stored_now(id);
        return disk.crashed ? -ECONNRESET : rc;
    }
    w->ops->abort(w, true);
    return -ECONNRESET;
}

size_t disk_held(void)
{
    size_t n = flushed.cap * sizeof(*flushed.keys) + blobs.cap * sizeof(*blobs.list);
    for (int i = 0; i < FILES_MAX; i++) {
        const struct kept *k = &disk.files[i];
        n += k->cap + k->cap_changes * sizeof(*k->changes);
        for (size_t c = 0; c < k->n; c++)
            n += k->changes[c].data != NULL ? k->changes[c].len : 0;
    }
    return n;
}

void disk_end(void)
{
    struct err err = {0};
    for (int i = 0; i < FILES_MAX; i++)
        if (disk.files[i].name[0] != '\0')
            forget(&disk.files[i]);
    if (file_remove_tree(disk.dir, &err) < 0)
        sim_fail("%s", err.msg);
    mem_free(disk.dir);
    mem_free(disk.root);
    mem_free(flushed.keys);
    memset(&flushed, 0, sizeof(flushed));
    mem_free(blobs.list);
    memset(&blobs, 0, sizeof(blobs));
}
