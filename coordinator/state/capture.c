#include "coordinator/state/capture.h"

#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/net/blob_dir.h"
#include "common/net/s3/client.h"
#include "coordinator/state/blobs.h"
#include "coordinator/outer/outer_exec.h"
#include "coordinator/state/persist.h"
#include "coordinator/state/place.h"
#include "coordinator/state/store.h"

#define FOLDER ".capture"
#define LOCK "capture.lock"
#define TRIES 8
#define SPARE_BYTES (64ull << 20)

static const char *const outer_files[] = {"target", "momentum", "buffer"};
static const uint8_t no_hash[32];

struct taking {
    struct capture *s;
    const char *data_dir;
    struct s3 *far; /* NULL: the blobs are in the folder */
    char *prefix;   /* prefix of all names there */
    bool again;     /* a file was gone: take a newer capture */
    bool missed;    /* the newest step's initial state was gone: a newer capture may have it */
    struct err err;
};

/* ---- links --------------------------------------------------------------- */

/* 1: it is already there, since the records also name it otherwise. */
static int link_file(const char *from, const char *to)
{
    if (link(from, to) == 0)
        return 0;
    if (errno == EEXIST)
        return 1;
    if (errno != ENOENT || !file_exists(from))
        return -errno;
    int rc = file_mkdirs_for(to, 0700, NULL);
    return rc < 0 || link(from, to) == 0 ? rc : -errno;
}

/* The disk may be a running coordinator's. */
static int check_room(const struct taking *t, uint64_t size, struct err *err)
{
    uint64_t room = 0;
    char need[STR_HUMAN_MAX], has[STR_HUMAN_MAX], spare[STR_HUMAN_MAX];
    const int rc = file_disk_free(t->data_dir, &room, err);
    if (rc < 0 || (room >= size && room - size >= SPARE_BYTES))
        return rc;
    return err_set(err, -ENOSPC,
                   "the disk of %s has %s left, too little for a file of %s from the store beside "
                   "the %s that stay free: make room there",
                   t->data_dir, str_human_bytes(room, has), str_human_bytes(size, need),
                   str_human_bytes(SPARE_BYTES, spare));
}

static int fetch(const struct taking *t, const char *key, uint64_t size, const char *to,
                 struct err *err)
{
    int rc = check_room(t, size, err);
    if (rc < 0)
        return rc;
    rc = file_mkdirs_for(to, 0700, err);
    if (rc == 0)
        rc = s3_get_file(t->far, key, to, size, err);
    return rc < 0 ? err_wrap(err, "%s of %s", key, s3_where(t->far)) : 0;
}

/* Fetches a file that is not a blob, which a coordinator with --store-state keeps in the store.
 * -ENOENT: it is not there. */
static int fetch_kept(struct taking *t, const char *path, const uint8_t sha256[32], uint64_t size,
                      const char *to)
{
    char hex[HASH_HEX_MAX],
        *key = str_printf("%s%s-%s", t->prefix, path, hash_hex(sha256, 32, hex));
    struct err why = {0};
    const int rc = fetch(t, key, size, to, &why);
    mem_free(key);
    if (rc < 0 && rc != -ERR_NOTFOUND)
        t->err = why;
    return rc == -ERR_NOTFOUND ? -ENOENT : rc;
}

/* Adds a file to the capture; true: it has it.  sha256 NULL: no hash is on record. */
static bool pin(struct taking *t, const char *path, const uint8_t *sha256, uint64_t size,
                bool optional)
{
    if (t->err.code != 0)
        return false;
    char *from = file_join(t->data_dir, path), *to = file_join(t->s->dir, path);
    int rc = link_file(from, to);
    if (rc == -ENOENT && t->far && sha256)
        rc = fetch_kept(t, path, sha256, size, to);
    if (rc == 0)
        (void)manifest_add(&t->s->manifest, sha256 ? sha256 : no_hash, size, path, &t->err);
    else if (rc < 0 && t->err.code == 0 && (rc != -ENOENT || !optional))
        (void)err_set(&t->err, rc, "cannot take %s into the capture: %s", from, strerror(-rc));
    t->again |= rc == -ENOENT && !optional;
    mem_free(from);
    mem_free(to);
    return rc >= 0;
}

/* Are the contents of such blobs checked by an audit?  Those of modules are: nobody else does it.
 */
static bool is_judged(enum blob_role role)
{
    return role == BLOB_FULL || role == BLOB_DELTA || role == BLOB_EMA ||
           role == BLOB_CONTRIBUTION || role == BLOB_OUTER_STATE || role == BLOB_BEST;
}

/* Brings a blob from the cache, or else from the store, unless it is already there. */
static void bring(struct taking *t, const struct blob_ref *ref, bool optional)
{
    struct err why = {0};
    char *path = blob_dir_file(CAPTURE_BLOBS, ref->sha256), *to = file_join(t->s->dir, path);
    char *cache = file_join(t->data_dir, PLACE_CACHE), *from = blob_dir_file(cache, ref->sha256);
    char hex[HASH_HEX_MAX],
        *key = str_printf("%sblobs/%s", t->prefix, hash_hex(ref->sha256, 32, hex));
    int rc = t->err.code != 0 || file_exists(to) ? 1 : link_file(from, to);
    if (rc == -ENOENT)
        rc = fetch(t, key, ref->size, to, &why);
    else if (rc < 0)
        (void)err_set(&why, rc, "cannot take %s into the capture: %s", from, strerror(-rc));
    if (rc == 0)
        (void)manifest_add(&t->s->manifest, ref->sha256, ref->size, path, &why);
    if (why.code != 0 && (rc != -ERR_NOTFOUND || !optional))
        t->err = why;
    t->again |= rc == -ERR_NOTFOUND && !optional;
    mem_free(path);
    mem_free(to);
    mem_free(cache);
    mem_free(from);
    mem_free(key);
}

static void pin_blob(void *arg, enum blob_role role, const struct blob_ref *ref,
                     enum blob_need need)
{
    struct taking *t = arg;
    char *path = blob_dir_file(CAPTURE_BLOBS, ref->sha256);
    if (need != BLOB_FREE && !t->far)
        (void)pin(t, path, ref->sha256, ref->size, need == BLOB_SPARED);
    else if (need != BLOB_FREE && is_judged(role))
        bring(t, ref, need == BLOB_SPARED);
    else
        t->s->left += need != BLOB_FREE;
    mem_free(path);
}

/* age 0: the state from which the next step starts must be there.  1: that of the step before is
 * there, unless a step has ended since the records were read.  Older ones may be there. */
static void pin_outer(struct taking *t, const struct job *j, const struct module_rec *m,
                      const struct version_rec *v, unsigned age)
{
    json_t *doc = v->provenance ? json_loads(v->provenance, 0, NULL) : NULL;
    const json_t *state = json_object_get(doc, "state");
    char *dir = outer_state_dir(j->id, m->id);
    const bool stored = blob_ref_is_set(&v->target); /* then they are among the blobs */
    for (size_t i = 0; !stored && i < sizeof(outer_files) / sizeof(outer_files[0]); i++) {
        char *path = outer_state_file(dir, outer_files[i], v->version);
        struct blob_ref blob;
        const bool known = blob_ref_read(json_object_get(state, outer_files[i]), &blob);
        if (!pin(t, path, known ? blob.sha256 : NULL, known ? blob.size : 0, !known || age > 0))
            t->missed |= known && age == 1;
        mem_free(path);
    }
    mem_free(dir);
    json_decref(doc);
}

/* Everything in a folder, or the file of this name: which files are needed is unknown. */
static void pin_all(struct taking *t, const char *path)
{
    struct file_names names;
    char *from = file_join(t->data_dir, path);
    if (!file_is_dir(from)) {
        (void)pin(t, path, NULL, 0, true);
    } else if (t->err.code == 0 && file_list(from, MANIFEST_FILES_MAX, &names, &t->err) == 0) {
        for (size_t i = 0; i < names.n; i++) {
            char *inner = file_join(path, names.items[i]);
            pin_all(t, inner);
            mem_free(inner);
        }
        file_names_release(&names);
    }
    mem_free(from);
}

static void pin_job(struct taking *t, const struct job *j)
{
    if (j->unread) {
        char *dir = outer_state_dir(j->id, 0);
        pin_all(t, dir);
        mem_free(dir);
    }
    for (uint32_t i = 0; !job_is_ended(j) && i < j->comp.n_modules; i++) {
        const struct module_rec *m = &j->modules[i];
        for (unsigned v = 0; v < m->n_versions; v++)
            pin_outer(t, j, m, &m->versions[v], m->n_versions - 1 - v);
    }
}

/* ---- taking -------------------------------------------------------------- */

static int load(struct capture *s, const char *live, struct err *err)
{
    struct store *store = NULL;
    char *db = file_join(s->dir, CAPTURE_DATABASE);
    int rc = store_snapshot(live, db, err);
    if (rc == 0)
        rc = store_open(db, &persist_schema, &store, err);
    if (rc == 0)
        rc = persist_load(store, &s->state, err);
    store_close(store); /* which removes its -wal */
    mem_free(db);
    return rc;
}

static int try_once(struct taking *t, uint64_t job_id, struct err *err)
{
    struct capture *s = t->s;
    char *live = file_join(t->data_dir, CAPTURE_DATABASE);
    t->again = t->missed = false;
    t->err = (struct err){0};
    s->left = 0;
    manifest_release(&s->manifest);
    state_release(&s->state);
    state_init(&s->state);
    int rc = file_remove_tree(s->dir, err);
    if (rc == 0)
        rc = file_mkdirs(s->dir, 0700, err);
    if (rc == 0)
        rc = load(s, live, err);
    mem_free(live);
    if (rc == 0 && job_id != 0 && state_job(&s->state, job_id) == NULL)
        rc = err_set(err, -ERR_NOTFOUND, "job %llu does not exist", (unsigned long long)job_id);
    if (rc < 0)
        return rc;
    (void)manifest_add(&s->manifest, no_hash, 0, CAPTURE_DATABASE, &t->err);
    for (size_t i = 0; job_id == 0 && i < PLACE_IDENTITY; i++)
        (void)pin(t, place_identity[i], NULL, 0, false);
    each_blob(&s->state, job_id, (int64_t)clock_wall_ms(), pin_blob, t);
    for (size_t i = 0; i < s->state.n_jobs; i++)
        if (job_id == 0 || s->state.jobs[i]->id == job_id)
            pin_job(t, s->state.jobs[i]);
    if (t->err.code != 0 && err)
        *err = t->err;
    return t->err.code;
}

void capture_tidy(const char *data_dir)
{
    struct file_lock lock;
    char *dir = file_join(data_dir, FOLDER);
    if (file_is_dir(dir) && file_lock_dir(data_dir, LOCK, &lock, NULL) == 0) {
        (void)file_remove_tree(dir, NULL); /* after a failure the next capture removes it */
        file_unlock(&lock);
    }
    mem_free(dir);
}

static int reach(struct taking *t, const struct coordinator_options *o, uint64_t job_id,
                 struct err *err)
{
    char *live = file_join(o->data_dir, CAPTURE_DATABASE);
    const bool there = file_exists(live);
    mem_free(live);
    if (!there) /* leave nothing there that would hinder a standby */
        return err_set(err, -ENOENT,
                       "there is no coordinator's database in %s: say with --data-dir where it is "
                       "(one that stands by has none)",
                       o->data_dir);
    char *url = place_url(o->data_dir);
    struct coordinator_options at = *o;
    int rc = 0;
    if (url && job_id == 0)
        rc = err_set(err, -ENOTSUP,
                     "the blobs of %s are in %s, and only those of a folder can be copied: back "
                     "that bucket up by its own means",
                     o->data_dir, url);
    at.store = o->store ? o->store : url;
    if (rc == 0)
        rc = place_check(&at, err);
    if (rc == 0 && url)
        rc = place_open_all(&at, &t->far, &t->prefix, err);
    mem_free(url);
    return rc;
}

static int lock(const char *data_dir, struct file_lock *ret, struct err *err)
{
    const int rc = file_lock_dir(data_dir, LOCK, ret, err);
    if (rc == -EBUSY)
        return err_set(err, rc,
                       "another backup or audit of %s is under way: try again when it is over",
                       data_dir);
    return rc < 0 ? err_wrap(err, "a capture of %s", data_dir) : 0;
}

/* After all tries nobody can tell which of the two it is. */
static int say_again(struct err *err)
{
    const struct err last = *err;
    return err_set(err, last.code,
                   "%s, in %d tries: if rounds replace files faster than that, run it again or "
                   "`skerry pause` the job meanwhile; else the file is lost",
                   last.msg, TRIES);
}

int capture_take(const struct coordinator_options *o, uint64_t job_id, struct capture *ret,
                 struct err *err)
{
    struct taking t = {.s = ret, .data_dir = o->data_dir};
    *ret = (struct capture){.dir = file_join(o->data_dir, FOLDER)};
    state_init(&ret->state);
    int rc = reach(&t, o, job_id, err);
    if (rc == 0)
        rc = lock(o->data_dir, &ret->lock, err);
    if (rc < 0) {
        mem_free(ret->dir);
    } else {
        rc = try_once(&t, job_id, err);
        for (int i = 1; (rc < 0 ? t.again : t.missed) && i < TRIES; i++)
            rc = try_once(&t, job_id, err);
        if (rc < 0 && t.again)
            rc = say_again(err);
        if (rc < 0)
            capture_release(ret);
    }
    s3_close(t.far);
    mem_free(t.prefix);
    return rc;
}

void capture_release(struct capture *s)
{
    (void)file_remove_tree(s->dir, NULL); /* after a failure the next capture removes it */
    manifest_release(&s->manifest);
    state_release(&s->state);
    file_unlock(&s->lock);
    mem_free(s->dir);
    *s = (struct capture){0};
}
