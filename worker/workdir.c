#include "worker/workdir.h"

#include <sys/stat.h>
#include <time.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/net/keys.h"
#include "worker/order/work.h"

#define ROOM_BYTES (1u << 20)

static int lock(const char *dir, struct workdir *w, struct err *err)
{
    static const char *const ours[] = {"identity", "state-", NULL};
    int rc = file_check_own(dir, ours, err);
    if (rc < 0)
        return err_wrap(err, "%s", dir);
    rc = file_mkdirs(dir, 0700, err);
    if (rc == 0)
        rc = file_lock_dir(dir, "lock", &w->lock, err);
    if (rc == 0)
        w->dir = str_dup(dir);
    return rc;
}

static int lock_default(struct workdir *w, struct err *err)
{
    char *base = file_cache_dir();
    if (!base)
        return err_set(err, -ERR_CONFIG, "neither XDG_CACHE_HOME nor HOME is set; give --work-dir");
    int rc = -EBUSY;
    for (unsigned i = 0; i < WORKDIR_DEFAULTS_MAX && rc == -EBUSY; i++) {
        char *dir = str_printf("%s/worker-%u", base, i);
        rc = lock(dir, w, err);
        mem_free(dir);
    }
    mem_free(base);
    return rc;
}

/* Reads the identity file, or makes it if it is missing or broken. */
static int read_identity(struct workdir *w, struct err *err)
{
    char *path = file_join(w->dir, "identity");
    struct buf text;
    int rc = -ENOENT;
    if (file_exists(path) && file_read(path, 64, &text, NULL) == 0) {
        if (text.len > 0 && text.data[text.len - 1] == '\n')
            text.data[--text.len] = '\0';
        rc = text.len == 32 ? hash_unhex(buf_str(&text), w->identity, 16) : -EINVAL;
        buf_release(&text);
        if (rc < 0)
            log_warn("workdir", "%s is not readable as an identity: making a new one", path);
    }
    if (rc < 0) {
        char hex[34];
        hash_random(w->identity, 16);
        hash_hex(w->identity, 16, hex);
        hex[32] = '\n';
        rc = file_write_atomic(path, hex, 33, 0600, err);
    }
    mem_free(path);
    return rc;
}

/* The job of a file; UINT64_MAX: none. */
static uint64_t job_of(const char *name)
{
    static const char *const kinds[] = {"replica-", "residual-", "external-"};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (str_starts(name, kinds[i]))
            return strtoull(name + strlen(kinds[i]), NULL, 10);
    return UINT64_MAX;
}

static bool is_over(uint64_t job, uint64_t before, const uint64_t *going, size_t n_going)
{
    bool over = job < before;
    for (size_t i = 0; i < n_going; i++)
        over &= job != going[i];
    return over;
}

void workdir_forget(const char *state, uint64_t before, const uint64_t *going, size_t n_going)
{
    struct file_names names;
    if (file_list(state, WORK_STATE_FILES_MAX, &names, NULL) < 0)
        return;
    for (size_t i = 0; i < names.n; i++) {
        char *path = file_join(state, names.items[i]);
        if (is_over(job_of(names.items[i]), before, going, n_going))
            (void)file_remove(path, NULL); /* it is tried again when the next job ends */
        mem_free(path);
    }
    file_names_release(&names);
}

/* What stat() says of an entry of the folder; st_mode 0: nothing. */
static struct stat look_at(const char *dir, const char *name)
{
    char *path = file_join(dir, name);
    struct stat st;
    if (stat(path, &st) < 0)
        st = (struct stat){0};
    mem_free(path);
    return st;
}

/* When a file of state was last touched; 0: it is no file. */
static time_t touched(const struct workdir *w, const char *name)
{
    const struct stat st = look_at(w->state, name);
    return S_ISREG(st.st_mode) ? st.st_mtime : 0;
}

/* When a folder of state for another coordinator was last used, which its own time says: its files
 * are made there, and renamed; 0: it is none of ours. */
static time_t used(const struct workdir *w, const char *name)
{
    const struct stat st = look_at(w->dir, name);
    const bool ours = str_starts(name, "state-") && strlen(name) == 22 &&
                      strspn(name + 6, "0123456789abcdef") == 16 && S_ISDIR(st.st_mode);
    return ours ? st.st_mtime : 0;
}

static bool is_own(const struct workdir *w, const char *name)
{
    return strcmp(name, strrchr(w->state, '/') + 1) == 0;
}

/* Removes what was not used for long before the last one was.  The clock alone says little: it may
 * jump, or the worker may have been away. */
static void prune(const struct workdir *w, const char *dir,
                  time_t (*time_of)(const struct workdir *w, const char *name))
{
    struct file_names names;
    const time_t now = time(NULL);
    time_t last = 0;
    if (file_list(dir, WORK_STATE_FILES_MAX, &names, NULL) < 0)
        return;
    for (size_t i = 0; i < names.n; i++) {
        const time_t at = time_of(w, names.items[i]);
        last = at > last && at <= now ? at : last;
    }
    for (size_t i = 0; i < names.n; i++) {
        const time_t at = time_of(w, names.items[i]);
        char *path = file_join(dir, names.items[i]);
        if (at != 0 && !is_own(w, names.items[i]) && at < last - WORKDIR_STATE_DAYS * 24 * 3600) {
            if (time_of == used)
                log_info("workdir", "removing %s: its coordinator was not joined for %d days", path,
                         WORKDIR_STATE_DAYS);
            (void)file_remove_tree(path, NULL); /* it is tried again at the next start */
        }
        mem_free(path);
    }
    file_names_release(&names);
}

/* ---- files that are not flushed ---- */

/* A short file's text, without its line end; "": there is none. */
static void read_line(const char *path, char out[CLOCK_BOOT_MAX])
{
    struct buf text;
    out[0] = '\0';
    if (!file_exists(path) || file_read(path, CLOCK_BOOT_MAX - 1, &text, NULL) < 0)
        return;
    (void)snprintf(out, CLOCK_BOOT_MAX, "%.*s", (int)strcspn(buf_str(&text), "\n"), buf_str(&text));
    buf_release(&text);
}

static bool is_unflushed(const char *name)
{
    return str_starts(name, "residual-") || str_ends(name, ".end") || str_ends(name, ".end.spare");
}

static int drop_unflushed(const struct workdir *w, struct err *err)
{
    struct file_names names;
    size_t dropped = 0;
    int rc = file_list(w->state, WORK_STATE_FILES_MAX, &names, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < names.n && rc == 0; i++) {
        if (!is_unflushed(names.items[i]))
            continue;
        char *path = file_join(w->state, names.items[i]);
        rc = file_remove(path, err);
        mem_free(path);
        dropped++;
    }
    file_names_release(&names);
    if (dropped > 0)
        log_warn("workdir",
                 "the machine stopped while %s was in use: %zu residuals and checkpoints that may "
                 "not have reached the disk are removed",
                 w->dir, dropped);
    return rc;
}

/* From here to settle() the state may have files that a loss of power destroys. */
static int begin_boot(const struct workdir *w, struct err *err)
{
    char *path = file_join(w->state, "boot"), now[CLOCK_BOOT_MAX], before[CLOCK_BOOT_MAX];
    const bool left = file_exists(path); /* the last process did not settle */
    clock_boot(now);
    read_line(path, before);
    int rc = left && (!now[0] || strcmp(before, now) != 0) ? drop_unflushed(w, err) : 0;
    if (rc == 0)
        rc = file_write_atomic(path, now, strlen(now), 0600, err);
    mem_free(path);
    return rc;
}

/* Everything is on the disk, so the next boot trusts it. */
static void settle(const struct workdir *w)
{
    struct err err = {0};
    char *path = file_join(w->state, "boot");
    int rc = file_sync_all(w->state, &err);
    if (rc == 0)
        rc = file_remove(path, &err);
    if (rc < 0)
        log_warn("workdir", "%s; after a restart of the machine residuals begin afresh", err.msg);
    mem_free(path);
}

/* On a full disk drops some blobs, which can be fetched again, for the small files of a start. */
static void make_room(const struct workdir *w)
{
    struct cache *c;
    uint64_t free_bytes;
    if (!file_is_dir(w->blobs) || file_disk_free(w->dir, &free_bytes, NULL) < 0 ||
        free_bytes >= ROOM_BYTES || cache_open(w->blobs, 0, &c, NULL) < 0)
        return;
    cache_make_room(c, ROOM_BYTES);
    cache_close(c);
}

int workdir_open(const char *dir, const uint8_t cluster_id[16], struct workdir *ret,
                 struct err *err)
{
    struct workdir w = {.lock = {.fd = -1}};
    char hex[33];
    int rc = dir ? lock(dir, &w, err) : lock_default(&w, err);
    if (rc < 0)
        return rc;
    w.blobs = file_join(w.dir, "blobs");
    w.tmp = file_join(w.dir, "tmp");
    w.state = str_printf("%s/state-%.16s", w.dir, hash_hex(cluster_id, 16, hex));
    w.held = file_join(w.state, "held");
    make_room(&w);
    prune(&w, w.dir, used);               /* before this start has touched its own folder */
    rc = file_mkdirs(w.state, 0700, err); /* first, since it marks the directory as ours */
    if (rc == 0)
        rc = file_remove_temps(w.state, err);
    if (rc == 0)
        (void)file_remove_tree(w.tmp, NULL); /* leftovers make the next line fail */
    if (rc < 0 || (rc = file_mkdirs(w.tmp, 0700, err)) < 0 ||
        (rc = file_mkdirs(w.blobs, 0700, err)) < 0 || (rc = read_identity(&w, err)) < 0 ||
        (rc = keys_open(w.dir, &w.keys, err)) < 0) {
        workdir_close(&w);
        return rc;
    }
    prune(&w, w.state, touched); /* of jobs whose end it missed; before anything is written */
    if ((rc = begin_boot(&w, err)) < 0) {
        workdir_close(&w);
        return rc;
    }
    w.opened = true;
    *ret = w;
    return 0;
}

void workdir_close(struct workdir *w)
{
    if (!w->dir)
        return;
    if (w->opened)
        settle(w);
    file_unlock(&w->lock);
    keys_free(w->keys);
    mem_free(w->dir);
    mem_free(w->blobs);
    mem_free(w->state);
    mem_free(w->tmp);
    mem_free(w->held);
    *w = (struct workdir){.lock = {.fd = -1}};
}
