/* Operations of a store that alone has the blobs (blob_s3_options.through). */
#include "common/base/hash.h"
#include "common/net/blob_dir.h"
#include "common/net/s3/blob_s3_impl.h"

static int put(struct blob_s3 *s, const struct blob_id *id, uint64_t size, struct err *err)
{
    char *key = blob_s3_key(s, id), *path = NULL;
    int rc = s->cache->ops->local(s->cache, id, false, &path, err);
    if (rc == 0)
        rc = s3_put(s->c, key, path, size, id->sha256, err);
    mem_free(key);
    mem_free(path);
    return rc;
}

/* Holds the object, after any other put or delete of the same bytes has ended. */
static struct blob_s3_object *hold(struct blob_s3 *s, const struct blob_id *id)
{
    struct blob_s3_object *e = blob_s3_make(s, id);
    while (e->busy) {
        pthread_cond_wait(&s->changed, &s->lock);
        e = blob_s3_make(s, id);
    }
    list_remove(&e->waits);
    e->busy = true;
    return e;
}

/* Enters a blob, which counts once the store has it, too.  -EAGAIN: the store does not, and the
 * directory has at most an upload. */
static int enter(struct blob_s3 *s, const struct blob_id *id, uint64_t size, uint64_t holder,
                 struct err *err)
{
    struct err why = {0};
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    struct blob_s3_object *e = hold(s, id);
    if (!e->here || !e->stored || e->stale) {
        e->entering = true;
        pthread_mutex_unlock(&s->lock);
        rc = put(s, id, size, &why);
        pthread_mutex_lock(&s->lock);
    }
    e->busy = e->entering = false;
    e->cached = true;
    if (rc == 0) {
        e->stored = true;
        e->stale = false;
        blob_s3_appear(s, e, size);
        blob_s3_used_now(s, e);
    } else if (!e->here) {
        e->stored = true; /* the store may have it: then it is deleted there */
        if (holder != 0 && rc != -ERR_HASH && rc != -EIO &&
            blob_dir_reopen(s->cache, id, holder, NULL) == 0)
            e->cached = false;
        blob_s3_uncache(s, e);
    }
    blob_s3_note(s, rc, &why);
    pthread_cond_broadcast(&s->changed);
    blob_s3_settle(s, e);
    pthread_mutex_unlock(&s->lock);
    return rc < 0 ? err_set(err, rc == -ERR_CANCELLED ? rc : -EAGAIN, "%s", why.msg) : 0;
}

/* ---- files beside the blobs ---- */

static struct blob_s3 *store_of(struct blobstore *s)
{
    return (struct blob_s3 *)(void *)s;
}

/* The key names the bytes, because a repeated step may make others, and so may a coordinator that
 * was deposed and does not know it.  These neither continue an interrupted upload nor replace an
 * object that is on record. */
static char *key_of(const struct blob_s3 *s, const char *name, const uint8_t sha256[32])
{
    char hex[HASH_HEX_MAX];
    return str_printf("%s%s-%s", s->beside, name, hash_hex(sha256, HASH_BYTES, hex));
}

static int save(struct blobstore *base, const char *name, const char *path,
                const uint8_t sha256[32], uint64_t size, struct err *err)
{
    struct blob_s3 *s = store_of(base);
    char *key = key_of(s, name, sha256);
    const int rc = s3_put(s->c, key, path, size, sha256, err);
    mem_free(key);
    return rc;
}

static int fetch(struct blobstore *base, const char *name, const char *path,
                 const uint8_t sha256[32], uint64_t size, struct err *err)
{
    struct blob_s3 *s = store_of(base);
    char *key = key_of(s, name, sha256);
    int rc = s3_get_file(s->c, key, path, size, err);
    mem_free(key);
    if (rc == -ERR_NOTFOUND) { /* the name from before keys named the bytes */
        key = str_printf("%s%s", s->beside, name);
        rc = s3_get_file(s->c, key, path, size, err);
        mem_free(key);
    }
    return rc;
}

struct dropping {
    struct s3 *c;
    struct err *err;
};

static int drop_one(void *arg, const char *key, uint64_t size, int64_t modified_s)
{
    const struct dropping *d = arg;
    return s3_delete(d->c, key, d->err);
}

static int drop(struct blobstore *base, const char *names, struct err *err)
{
    struct blob_s3 *s = store_of(base);
    char *prefix = str_printf("%s%s", s->beside, names);
    const int rc = s3_list(s->c, prefix, drop_one, &(struct dropping){s->c, err}, err);
    mem_free(prefix);
    return rc;
}

struct naming {
    size_t prefix;
    blob_saved_fn *fn;
    void *arg;
};

static int name_one(void *arg, const char *key, uint64_t size, int64_t modified_s)
{
    const struct naming *n = arg;
    return n->fn(n->arg, key + n->prefix);
}

static int saved(struct blobstore *base, const char *names, blob_saved_fn *fn, void *arg,
                 struct err *err)
{
    struct blob_s3 *s = store_of(base);
    char *prefix = str_printf("%s%s", s->beside, names);
    const int rc =
        s3_list(s->c, prefix, name_one, &(struct naming){strlen(s->beside), fn, arg}, err);
    mem_free(prefix);
    return rc;
}

void blob_s3_through(struct blob_s3 *s, bool through)
{
    s->ops.fetch = fetch; /* also what was saved while it was one */
    if (!through)
        return;
    s->enter = enter;
    s->ops.save = save;
    s->ops.drop = drop;
    s->ops.saved = saved;
}
