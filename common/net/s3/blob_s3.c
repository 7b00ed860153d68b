#include "common/net/s3/blob_s3_impl.h"

#include <search.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/log.h"

#define PROMISE_MORE_S (24 * 3600) /* a PUT past us may take hours, and shows nothing */
#define PAUSE_MS 1000u
#define PAUSE_MAX_MS 30000u

struct writer {
    struct blob_writer base; /* first */
    struct blob_writer *to;
    struct blob_s3 *s;
    struct blob_id id;
    uint64_t holder;
};

static struct blob_s3 *store_of(struct blobstore *s)
{
    return (struct blob_s3 *)(void *)s;
}

static void lock(struct blob_s3 *s)
{
    pthread_mutex_lock(&s->lock);
}

static void unlock(struct blob_s3 *s)
{
    pthread_mutex_unlock(&s->lock);
}

/* ---- up and away: the store's own threads ---- */

char *blob_s3_key(const struct blob_s3 *s, const struct blob_id *id)
{
    char hex[BLOB_HEX_MAX];
    blob_id_hex(id, hex);
    return str_printf("%s%s", s->prefix, hex);
}

/* Releases the lock meanwhile. */
static int send_up(struct blob_s3 *s, const struct blob_id *id, uint64_t size, bool stale,
                   struct err *err)
{
    char *key = blob_s3_key(s, id), *path = NULL;
    unlock(s);
    int rc = s->cache->ops->local(s->cache, id, false, &path, err);
    if (rc == 0 && stale) /* it is not to be taken for what is sent now */
        rc = s3_delete(s->c, key, err);
    if (rc == 0 && (rc = s3_put(s->c, key, path, size, id->sha256, err)) == -ERR_NOTFOUND)
        rc = err_set(err, -EAGAIN, "%s answers an upload as if it were not found", s3_where(s->c));
    mem_free(key);
    mem_free(path);
    lock(s);
    return rc;
}

/* The store got bytes that do not match the name of the blob, or none, as the file cannot be read.
 * True if the file is damaged, so that the blob is lost; else it was damaged on its way.  Releases
 * the lock meanwhile. */
static bool is_damaged(struct blob_s3 *s, const struct blob_id *id)
{
    uint8_t got[HASH_BYTES];
    char *path = NULL;
    unlock(s);
    int rc = s->cache->ops->local(s->cache, id, false, &path, NULL);
    if (rc == 0)
        rc = hash_file(path, got, NULL, NULL);
    const bool damaged = rc == 0 ? !hash_equal(got, id->sha256, sizeof(got)) : rc == -EIO;
    mem_free(path);
    lock(s);
    return damaged;
}

static int take_away(struct blob_s3 *s, const struct blob_id *id, struct err *err)
{
    char *key = blob_s3_key(s, id);
    unlock(s);
    const int rc = s3_delete(s->c, key, err);
    mem_free(key);
    lock(s);
    return rc;
}

/* After a failure all threads wait, each time longer: the store's client has tried several times.
 */
void blob_s3_note(struct blob_s3 *s, int rc, const struct err *err)
{
    if (rc == 0) {
        if (s->failures > 0)
            log_info("store", "%s takes blobs again", s3_where(s->c));
        s->failures = 0;
        return;
    }
    if (rc == -ERR_CANCELLED || rc == -ERR_NOTFOUND)
        return;
    if (s->failures == 0)
        log_warn("store", "%s; blobs wait in the cache", err->msg);
    (void)str_copy(s->failure, sizeof(s->failure), err->msg);
    const uint64_t wait = (uint64_t)PAUSE_MS << (s->failures < 5 ? s->failures : 5);
    s->failures++;
    s->paused_until_ms = clock_now_ms() + (wait < PAUSE_MAX_MS ? wait : PAUSE_MAX_MS);
}

static void do_one(struct blob_s3 *s, struct blob_s3_object *e)
{
    struct err err = {0};
    int rc = -ERR_CANCELLED; /* nothing to do */
    e->busy = true;
    if (blob_s3_is_to_be_sent(e)) {
        const bool stale = e->stale;
        e->stored = e->stale = false; /* no client goes there until it is sent */
        rc = send_up(s, &e->id, e->size, stale, &err);
        if (rc == -ERR_NOTFOUND && !blobstore_has(s->cache, &e->id, NULL)) {
            /* The directory was emptied from outside: the blob is lost. */
            log_warn("store", "a blob that waited to be sent is gone from the cache: %s", err.msg);
            blob_s3_vanish(s, e);
        }
        if ((rc == -ERR_HASH || rc == -EIO) && is_damaged(s, &e->id)) {
            log_warn("store", "a blob that waited to be sent is damaged in the cache, and lost: %s",
                     err.msg);
            blob_s3_vanish(s, e);
            blob_s3_uncache(s, e);
            rc = -ERR_NOTFOUND; /* no failure of the store */
        }
        e->stored = rc == 0 || stale; /* the old object may still be there */
        e->stale |= rc < 0 && stale;
    } else if (!e->here && e->stored) {
        rc = take_away(s, &e->id, &err);
        e->stored = e->stale = rc < 0; /* it may be deleted all the same: then it is sent again */
    }
    e->busy = false;
    pthread_cond_broadcast(&s->changed);
    blob_s3_note(s, rc, &err);
    blob_s3_settle(s, e);
}

static void wait_for_work(struct blob_s3 *s)
{
    struct timespec until;
    const uint64_t now = clock_now_ms();
    if (now >= s->paused_until_ms) {
        pthread_cond_wait(&s->changed, &s->lock);
        return;
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t ns = until.tv_nsec + (int64_t)(s->paused_until_ms - now) * 1000000;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    (void)pthread_cond_timedwait(&s->changed, &s->lock, &until);
}

/* Releases the lock meanwhile. */
static void tidy_now(struct blob_s3 *s)
{
    const int64_t before_s = s->tidy_before_s;
    const uint64_t hidden = s->hidden_bytes;
    s->to_tidy = false;
    s->tidy_before_s = 0;
    unlock(s);
    (void)s->cache->ops->tidy(s->cache, before_s, NULL); /* or the next time */
    lock(s);
    s->hidden_bytes -= hidden < s->hidden_bytes ? hidden : s->hidden_bytes; /* two tidied at once */
}

static void *run(void *arg)
{
    struct blob_s3 *s = arg;
    lock(s);
    while (!s->stopping) {
        if (s->to_tidy)
            tidy_now(s);
        else if (list_empty(&s->work) || clock_now_ms() < s->paused_until_ms)
            wait_for_work(s);
        else
            do_one(s, list_entry(list_pop(&s->work), struct blob_s3_object, waits));
    }
    unlock(s);
    return NULL;
}

/* ---- reading ---- */

static int s3_stat(struct blobstore *base, const struct blob_id *id, struct blob_stat *ret,
                   struct err *err)
{
    struct blob_s3 *s = store_of(base);
    lock(s);
    const struct blob_s3_object *e = blob_s3_find_here(s, id);
    if (e)
        *ret = (struct blob_stat){e->size, e->touched_s};
    unlock(s);
    return e ? 0 : blob_s3_nothing(id, err);
}

static int s3_touch(struct blobstore *base, const struct blob_id *id, struct err *err)
{
    struct blob_s3 *s = store_of(base);
    lock(s);
    struct blob_s3_object *e = blob_s3_find_here(s, id);
    if (e)
        e->touched_s = (int64_t)(clock_wall_ms() / 1000);
    unlock(s);
    return e ? 0 : blob_s3_nothing(id, err);
}

/* True if the directory still has the blob. */
static bool is_cached(struct blob_s3 *s, struct blob_s3_object *e)
{
    if (e->cached && !blobstore_has(s->cache, &e->id, NULL)) {
        e->cached = false;
        list_remove(&e->used);
        if (!e->stored)
            blob_s3_vanish(s, e);
    }
    return e->cached;
}

static int elsewhere(struct err *err)
{
    return err_set(err, -EAGAIN, "the blob is in the store, and not here yet: ask again");
}

static int s3_open_blob(struct blobstore *base, const struct blob_id *id, int *ret_fd,
                        uint64_t *ret_size, struct err *err)
{
    struct blob_s3 *s = store_of(base);
    lock(s);
    struct blob_s3_object *e = blob_s3_find_here(s, id);
    int rc;
    if (e && is_cached(s, e)) {
        rc = s->cache->ops->get(s->cache, id, ret_fd, ret_size, err);
        blob_s3_used_now(s, e);
    } else {
        rc = e && e->here ? elsewhere(err) : blob_s3_nothing(id, err);
        if (e)
            blob_s3_settle(s, e);
    }
    unlock(s);
    return rc;
}

struct pouring {
    struct blob_writer *to;
    struct err *err;
};

static int pour(void *arg, const void *data, size_t len)
{
    const struct pouring *p = arg;
    return p->to->ops->write(p->to, data, len, p->err);
}

static int s3_begin(struct blobstore *base, const struct blob_id *expect, uint64_t holder,
                    uint64_t max_bytes, struct blob_writer **ret, struct err *err);

static int download(struct blob_s3 *s, const struct blob_id *id, uint64_t size, struct err *err)
{
    struct blob_writer *w;
    char *key = blob_s3_key(s, id);
    int rc = s3_begin(&s->base, id, 0, size, &w, err);
    if (rc == 0) {
        rc = s3_get(s->c, key, w->size, size, pour, &(struct pouring){w, err}, err);
        struct blob_writer *to = ((struct writer *)(void *)w)->to;
        mem_free(w);
        if (rc == 0)
            rc = to->ops->commit(to, size, err);
        else
            to->ops->abort(to, s3_may_pass(rc) || rc == -ERR_CANCELLED);
    }
    mem_free(key);
    return rc;
}

int blob_s3_download(struct blob_s3 *s, const struct blob_id *id, uint64_t size, struct err *err)
{
    int rc = download(s, id, size, err);
    if (rc == -ERR_HASH || rc == -ERR_FORMAT) /* damaged on its way, or in the store */
        rc = download(s, id, size, err);
    return rc == -ERR_FORMAT ? -ERR_HASH : rc; /* another length: other bytes */
}

/* Releases the lock meanwhile. */
static int bring(struct blob_s3 *s, struct blob_s3_object *e, struct err *err)
{
    const uint64_t size = e->size;
    e->fetching = true;
    unlock(s);
    const int rc = blob_s3_download(s, &e->id, size, err);
    lock(s);
    e->fetching = false;
    if (rc == 0) {
        e->cached = true;
        blob_s3_used_now(s, e);
        if (!e->here) /* the blob was hidden meanwhile */
            blob_s3_uncache(s, e);
    } else if ((rc == -ERR_NOTFOUND || rc == -ERR_HASH) && e->stored && !e->busy && !e->cached) {
        e->stored = e->stale = rc == -ERR_HASH; /* another program changed the bucket */
        blob_s3_vanish(s, e);
    }
    pthread_cond_broadcast(&s->changed);
    return rc;
}

/* Waits for another thread that fetches the blob, whose failure is that of all waiting threads. */
static int wait_for_fetch(struct blob_s3 *s, const struct blob_id *id, struct err *err)
{
    pthread_cond_wait(&s->changed, &s->lock);
    const struct blob_s3_object *e = blob_s3_find_here(s, id);
    return e && !e->fetching && !e->cached
               ? err_set(err, -EAGAIN, "the blob could not be fetched from the store just now")
               : 0;
}

static int s3_local(struct blobstore *base, const struct blob_id *id, bool wait, char **ret_path,
                    struct err *err)
{
    struct blob_s3 *s = store_of(base);
    struct blob_s3_object *e;
    int rc = 0;
    lock(s);
    while (rc == 0 && (e = blob_s3_find_here(s, id)) && !is_cached(s, e) && e->here) {
        if (!wait)
            rc = elsewhere(err);
        else if (s->stopping)
            rc = err_set(err, -ERR_CANCELLED, "the coordinator is stopping");
        else if (e->fetching)
            rc = wait_for_fetch(s, id, err);
        else if ((rc = bring(s, e, err)) < 0 || !e->here)
            blob_s3_settle(s, e);
    }
    if (rc == 0)
        e = blob_s3_find_here(s, id);
    if (rc == 0 && !e)
        rc = blob_s3_nothing(id, err);
    if (rc == 0)
        rc = s->cache->ops->local(s->cache, id, false, ret_path, err);
    if (rc == 0) {
        e->pins++;
        blob_s3_used_now(s, e);
    }
    unlock(s);
    return rc;
}

static int s3_read(struct blobstore *base, const struct blob_id *id, uint64_t from, void *data,
                   size_t len, struct err *err)
{
    struct blob_s3 *s = store_of(base);
    struct blob_stat st = {0};
    int rc = blobstore_read_here(base, id, from, data, len, err);
    if (rc != -EAGAIN || (rc = s3_stat(base, id, &st, err)) < 0)
        return rc;
    char *key = blob_s3_key(s, id);
    if (from + len > st.size)
        rc = err_set(err, -ERR_FORMAT, "a blob of %llu bytes is shorter than expected",
                     (unsigned long long)st.size);
    else
        rc = s3_get_piece(s->c, key, from, st.size, data, len, err);
    mem_free(key);
    return rc;
}

/* Its holder keeps holding it. */
static int s3_renew(struct blobstore *base, const struct blob_id *id, struct err *err)
{
    struct blob_s3 *s = store_of(base);
    lock(s);
    struct blob_s3_object *e = blob_s3_find_here(s, id);
    int rc = 0;
    while (e && e->fetching) {
        (void)wait_for_fetch(s, id, NULL);
        e = blob_s3_find_here(s, id);
    }
    if (!e || !e->stored || e->stale)
        rc = blob_s3_nothing(id, err);
    if (rc == 0) {
        blob_s3_uncache(s, e);
        rc = bring(s, e, err);
        blob_s3_settle(s, e);
    }
    unlock(s);
    return rc;
}

static void s3_let_go(struct blobstore *base, const struct blob_id *id)
{
    struct blob_s3 *s = store_of(base);
    lock(s);
    struct blob_s3_object *e = blob_s3_find(s, id);
    if (e && e->pins > 0 && --e->pins == 0 && !e->here)
        blob_s3_uncache(s, e);
    if (e)
        blob_s3_settle(s, e);
    unlock(s);
}

/* ---- leaving ---- */

static int s3_hide(struct blobstore *base, const struct blob_id *id, struct err *err)
{
    struct blob_s3 *s = store_of(base);
    lock(s);
    struct blob_s3_object *e = blob_s3_find_here(s, id);
    if (e) {
        blob_s3_vanish(s, e);
        if (e->pins == 0)
            blob_s3_uncache(s, e);
        blob_s3_settle(s, e);
    }
    unlock(s);
    return e ? 0 : blob_s3_nothing(id, err);
}

/* Removes the blob; an object in the store is no longer trusted. */
static int s3_remove(struct blobstore *base, const struct blob_id *id, struct err *err)
{
    struct blob_s3 *s = store_of(base);
    lock(s);
    struct blob_s3_object *e = blob_s3_find(s, id);
    if (e) {
        blob_s3_vanish(s, e);
        blob_s3_uncache(s, e);
        e->stale = e->stored || e->busy;
        blob_s3_settle(s, e);
    }
    unlock(s);
    return 0;
}

static int s3_tidy(struct blobstore *base, int64_t before_s, struct err *err)
{
    struct blob_s3 *s = store_of(base);
    struct blob_id id;
    lock(s);
    while (promises_take_old(&s->promises, before_s - PROMISE_MORE_S, &id)) {
        struct blob_s3_object *e = blob_s3_make(s, &id);
        e->stored |= !e->here; /* it may be in the store, uncounted */
        blob_s3_settle(s, e);
    }
    unlock(s);
    return s->cache->ops->tidy(s->cache, before_s, err);
}

struct listed {
    struct blob_id id;
    struct blob_stat stat;
};

struct copy {
    struct listed *all;
    size_t n, cap;
};

static void copy_one(const void *node, VISIT which, void *arg)
{
    const struct blob_s3_object *e = *(struct blob_s3_object *const *)node;
    struct copy *c = arg;
    if ((which == postorder || which == leaf) && e->here && c->n < c->cap)
        c->all[c->n++] = (struct listed){e->id, {e->size, e->touched_s}};
}

static int s3_each(struct blobstore *base, blob_list_fn *fn, void *arg, struct err *err)
{
    struct blob_s3 *s = store_of(base);
    int rc = 0;
    lock(s);
    struct copy c = {.cap = s->base.count};
    c.all = mem_alloc_array(c.cap + 1, sizeof(*c.all));
    twalk_r(s->tree, copy_one, &c);
    unlock(s);
    for (size_t i = 0; i < c.n && rc == 0; i++)
        rc = fn(arg, &c.all[i].id, &c.all[i].stat);
    mem_free(c.all);
    return rc;
}

/* ---- writing ---- */

/* Counts a blob that the directory has. */
static void take_in(struct blob_s3 *s, const struct blob_id *id, uint64_t size)
{
    lock(s);
    struct blob_s3_object *e = blob_s3_make(s, id);
    blob_s3_appear(s, e, size);
    e->cached = true;
    blob_s3_used_now(s, e);
    blob_s3_settle(s, e);
    unlock(s);
}

/* Enters a blob of the directory as present. */
static int enter(struct blob_s3 *s, const struct blob_id *id, uint64_t size, uint64_t holder,
                 struct err *err)
{
    if (s->enter)
        return s->enter(s, id, size, holder, err);
    take_in(s, id, size);
    return 0;
}

static struct writer *writer_of(struct blob_writer *w)
{
    return (struct writer *)(void *)w;
}

static bool is_freeing(struct blob_s3 *s)
{
    lock(s);
    const bool is = s->hidden_bytes > 0;
    unlock(s);
    return is;
}

static int still_full(struct err *err)
{
    return err_set(err, -EAGAIN, "the disk of the store's cache is full, and room is being made");
}

static int writer_write(struct blob_writer *base, const void *data, size_t len, struct err *err)
{
    struct writer *w = writer_of(base);
    int rc = w->to->ops->write(w->to, data, len, err);
    if (rc == -ENOSPC && (rc = blob_s3_make_room(w->s, len, len, err)) == 0) {
        const bool freeing = is_freeing(w->s); /* else what made room is gone by now */
        rc = w->to->ops->write(w->to, data, len, err);
        rc = rc == -ENOSPC && freeing ? still_full(err) : rc;
    }
    base->size = w->to->size;
    return rc;
}

/* Where writers wait for the store, one that has just refused is not asked by each of them. */
static int check_pause(struct blob_s3 *s, struct err *err)
{
    lock(s);
    const bool paused = s->enter && s->failures > 0 && clock_now_ms() < s->paused_until_ms;
    const int rc = paused ? err_set(err, -EAGAIN, "%s", s->failure) : 0;
    unlock(s);
    return rc;
}

static int writer_commit(struct blob_writer *base, uint64_t expect_size, struct err *err)
{
    struct writer *w = writer_of(base);
    struct blob_s3 *s = w->s;
    const struct blob_id id = w->id;
    const uint64_t size = w->to->size, holder = w->holder;
    int rc = check_pause(s, err);
    if (rc == 0)
        rc = blob_s3_check_quota(s, size, err);
    if (rc < 0)
        w->to->ops->abort(w->to, true);
    else
        rc = w->to->ops->commit(w->to, expect_size, err);
    if (rc == 0)
        rc = enter(s, &id, size, holder, err);
    mem_free(w);
    return rc;
}

static void writer_abort(struct blob_writer *base, bool keep)
{
    struct writer *w = writer_of(base);
    w->to->ops->abort(w->to, keep);
    mem_free(w);
}

/* A new file may need a block that only eviction frees. */
static int begin_upload(struct blob_s3 *s, const struct blob_id *expect, uint64_t holder,
                        uint64_t max_bytes, struct blob_writer **ret, struct err *err)
{
    int rc = s->cache->ops->put(s->cache, expect, holder, max_bytes, ret, err);
    if (rc == -ENOSPC && (rc = blob_s3_make_room(s, max_bytes, max_bytes, err)) == 0) {
        const bool freeing = is_freeing(s);
        rc = s->cache->ops->put(s->cache, expect, holder, max_bytes, ret, err);
        rc = rc == -ENOSPC && freeing ? still_full(err) : rc;
    }
    return rc;
}

static int s3_begin(struct blobstore *base, const struct blob_id *expect, uint64_t holder,
                    uint64_t max_bytes, struct blob_writer **ret, struct err *err)
{
    static const struct blob_writer_ops ops = {writer_write, writer_commit, writer_abort};
    struct blob_s3 *s = store_of(base);
    struct blob_writer *to;
    int rc = 0;
    lock(s);
    const struct blob_s3_object *e = blob_s3_find(s, expect);
    if (e && e->entering)
        rc = err_set(err, -EBUSY, "the blob is on its way to the store");
    unlock(s);
    if (rc == 0)
        rc = begin_upload(s, expect, holder, max_bytes, &to, err);
    if (rc < 0)
        return rc;
    const uint64_t left = max_bytes - to->size; /* what came before has its room */
    rc = blob_s3_make_room(s, left, left, err);
    if (rc < 0) {
        to->ops->abort(to, true);
        return rc;
    }
    struct writer *w = mem_alloc(sizeof(*w));
    *w = (struct writer){
        .base = {&ops, to->size}, .to = to, .s = s, .id = *expect, .holder = holder};
    *ret = &w->base;
    return 0;
}

static int s3_adopt(struct blobstore *base, const struct blob_file *files, size_t n,
                    struct err *err)
{
    struct blob_s3 *s = store_of(base);
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += files[i].size;
    int rc = blob_s3_check_quota(s, bytes, err);
    if (rc == 0)
        rc = blob_s3_make_room(s, bytes, 0, err); /* the files are on the disk already */
    /* One after the other: the directory has none that is not entered. */
    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = s->cache->ops->adopt(s->cache, &files[i], 1, err);
        if (rc == 0)
            rc = enter(s, &files[i].id, files[i].size, 0, err);
    }
    return rc;
}

/* ---- the whole ---- */

/* The number and bytes of blobs that are not sent yet; under the lock. */
static uint64_t waiting(const struct blob_s3 *s, uint64_t *ret_bytes)
{
    uint64_t n = 0;
    *ret_bytes = 0;
    for (const struct list *l = s->used.next; l != &s->used; l = l->next) {
        const struct blob_s3_object *e = list_entry(l, struct blob_s3_object, used);
        n += blob_s3_is_to_be_sent(e);
        *ret_bytes += blob_s3_is_to_be_sent(e) ? e->size : 0;
    }
    return n;
}

static void s3_health_of(struct blobstore *base, struct blob_health *ret)
{
    struct blob_s3 *s = store_of(base);
    const struct s3_health h = s3_health(s->c);
    memset(ret, 0, sizeof(*ret));
    (void)snprintf(ret->where, sizeof(ret->where), "%.255s", s3_where(s->c));
    ret->requests = h.requests;
    ret->repeats = h.repeats;
    ret->bytes_in = h.bytes_in;
    ret->bytes_out = h.bytes_out;
    ret->failing_since_unix_ms = h.failing_since_unix_ms;
    memcpy(ret->error, h.error, sizeof(ret->error));
    ret->cache_bytes = s->cache->used_bytes;
    ret->cache_max_bytes = s->cache_max;
    lock(s);
    ret->sums = s->sums;
    ret->waiting = waiting(s, &ret->waiting_bytes);
    ret->evictable_bytes = blob_s3_evictable_bytes(s);
    unlock(s);
}

static void s3_halt(struct blobstore *base)
{
    struct blob_s3 *s = store_of(base);
    s3_stop(s->c);
    lock(s);
    s->stopping = true;
    pthread_cond_broadcast(&s->changed);
    unlock(s);
}

static void free_object(void *object)
{
    mem_free(object);
}

static void s3_shut(struct blobstore *base)
{
    struct blob_s3 *s = store_of(base);
    if (s->c)
        s3_halt(base);
    for (unsigned i = 0; i < s->n_threads; i++)
        pthread_join(s->threads[i], NULL);
    if (s->cache)
        s->cache->ops->close(s->cache);
    s3_close(s->c);
    tdestroy(s->tree, free_object);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    promises_release(&s->promises);
    mem_free(s->prefix);
    mem_free(s->beside);
    mem_free(s->cache_dir);
    mem_free(s);
}

/* ---- opening ---- */

/* Waits for blobs that the last process was still sending: no client may learn of them before. */
static int wait_until_sent(struct blob_s3 *s, struct err *err)
{
    int rc = 0;
    uint64_t bytes;
    char size[STR_HUMAN_MAX];
    lock(s);
    if (waiting(s, &bytes) > 0)
        log_info("store", "blobs that only the data directory has go to the store first: %s",
                 str_human_bytes(bytes, size));
    while (rc == 0 && waiting(s, &bytes) > 0)
        if (s->failures > 0)
            rc = err_set(err, -EAGAIN, "%s", s->failure);
        else
            pthread_cond_wait(&s->changed, &s->lock);
    unlock(s);
    return rc;
}

int blob_s3_begin(struct blob_s3 *s, struct err *err)
{
    for (; s->n_threads < BLOB_S3_THREADS; s->n_threads++)
        if (pthread_create(&s->threads[s->n_threads], NULL, run, s) != 0)
            return err_set(err, -EAGAIN, "cannot start a thread for the store");
    return s->enter ? wait_until_sent(s, err) : 0;
}

struct blob_s3 *blob_s3_new(void)
{
    static const struct blobstore_ops ops = {
        .stat = s3_stat,
        .touch = s3_touch,
        .get = s3_open_blob,
        .local = s3_local,
        .read = s3_read,
        .renew = s3_renew,
        .let_go = s3_let_go,
        .remove = s3_remove,
        .hide = s3_hide,
        .tidy = s3_tidy,
        .list = s3_each,
        .put = s3_begin,
        .adopt = s3_adopt,
        .health = s3_health_of,
        .stop = s3_halt,
        .close = s3_shut,
    };
    struct blob_s3 *s = mem_alloc(sizeof(*s));
    s->ops = ops;
    s->base.ops = &s->ops;
    pthread_mutex_init(&s->lock, NULL);
    clock_cond_init(&s->changed);
    list_init(&s->used);
    list_init(&s->work);
    return s;
}
