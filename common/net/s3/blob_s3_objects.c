/* What is known of each blob, and which of them leave the directory for others. */
#include "common/net/s3/blob_s3_impl.h"

#include <search.h>

#include "common/base/clock.h"
#include "common/base/file.h"

#define TIDY_EACH_MS 60000u
#define GIVEN_UP_S 900 /* an upload without writes for so long is given up */

static int order(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct blob_id));
}

struct blob_s3_object *blob_s3_find(struct blob_s3 *s, const struct blob_id *id)
{
    struct blob_s3_object *const *found =
        (struct blob_s3_object *const *)tfind(id, &s->tree, order);
    return found ? *found : NULL;
}

struct blob_s3_object *blob_s3_find_here(struct blob_s3 *s, const struct blob_id *id)
{
    struct blob_s3_object *e = blob_s3_find(s, id);
    return e && e->here ? e : NULL;
}

struct blob_s3_object *blob_s3_make(struct blob_s3 *s, const struct blob_id *id)
{
    struct blob_s3_object *e = blob_s3_find(s, id);
    if (e)
        return e;
    e = mem_alloc(sizeof(*e));
    e->id = *id;
    list_init(&e->used);
    list_init(&e->waits);
    if (!tsearch(e, &s->tree, order))
        abort(); /* as mem_alloc does */
    return e;
}

bool blob_s3_is_to_be_sent(const struct blob_s3_object *e)
{
    return e->here && (!e->stored || e->stale);
}

void blob_s3_settle(struct blob_s3 *s, struct blob_s3_object *e)
{
    const bool open = blob_s3_is_to_be_sent(e) || (!e->here && e->stored);
    if (open && !e->busy && list_empty(&e->waits)) {
        list_push(&s->work, &e->waits);
        pthread_cond_broadcast(&s->changed);
    }
    if (open || e->here || e->busy || e->fetching || e->pins > 0)
        return;
    list_remove(&e->used);
    list_remove(&e->waits);
    (void)tdelete(e, &s->tree, order);
    mem_free(e);
}

void blob_s3_used_now(struct blob_s3 *s, struct blob_s3_object *e)
{
    list_remove(&e->used);
    list_push(&s->used, &e->used);
}

/* Lets a thread free hidden blobs, and uploads without writes since before_s. */
static void tidy_soon(struct blob_s3 *s, int64_t before_s)
{
    s->to_tidy = true;
    if (before_s > s->tidy_before_s)
        s->tidy_before_s = before_s;
    pthread_cond_broadcast(&s->changed);
}

void blob_s3_uncache(struct blob_s3 *s, struct blob_s3_object *e)
{
    if (e->cached) {
        (void)s->cache->ops->hide(s->cache, &e->id, NULL); /* the next start finds leftovers */
        s->hidden_bytes += e->size;
        tidy_soon(s, 0);
    }
    e->cached = false;
    list_remove(&e->used);
}

void blob_s3_appear(struct blob_s3 *s, struct blob_s3_object *e, uint64_t size)
{
    e->touched_s = (int64_t)(clock_wall_ms() / 1000);
    if (e->here)
        return;
    promises_drop(&s->promises, &e->id);
    e->here = true;
    e->size = size;
    atomic_fetch_add(&s->base.used_bytes, size);
    atomic_fetch_add(&s->base.count, 1);
}

void blob_s3_vanish(struct blob_s3 *s, struct blob_s3_object *e)
{
    if (!e->here)
        return;
    e->here = false;
    atomic_fetch_sub(&s->base.used_bytes, e->size);
    atomic_fetch_sub(&s->base.count, 1);
}

int blob_s3_nothing(const struct blob_id *id, struct err *err)
{
    char hex[BLOB_HEX_MAX];
    blob_id_hex(id, hex);
    return err_set(err, -ERR_NOTFOUND, "there is no blob %s", hex);
}

/* ---- room in the directory ---- */

/* Drops uploads that were given up, but only once in a while: clients that are refused ask
 * again and again. */
static void drop_given_up(struct blob_s3 *s)
{
    const uint64_t now = clock_now_ms();
    if (s->tidied_ms > 0 && now - s->tidied_ms < TIDY_EACH_MS)
        return;
    s->tidied_ms = now;
    tidy_soon(s, (int64_t)(clock_wall_ms() / 1000) - GIVEN_UP_S);
}

/* Bytes free on the disk once what is hidden is gone. */
static uint64_t disk_room(const struct blob_s3 *s)
{
    uint64_t room = 0;
    return file_disk_free(s->cache_dir, &room, NULL) < 0 ? UINT64_MAX : room + s->hidden_bytes;
}

static bool is_evictable(const struct blob_s3_object *e)
{
    return e->pins == 0 && !e->busy && !e->fetching && !blob_s3_is_to_be_sent(e);
}

uint64_t blob_s3_evictable_bytes(const struct blob_s3 *s)
{
    uint64_t bytes = 0;
    for (const struct list *l = s->used.next; l != &s->used; l = l->next) {
        const struct blob_s3_object *e = list_entry(l, struct blob_s3_object, used);
        bytes += is_evictable(e) ? e->size : 0;
    }
    return bytes;
}

/* The room on the disk to evict for: without the spare, or none, where more cannot be had. */
static uint64_t disk_goal(const struct blob_s3 *s, uint64_t room, uint64_t disk_need)
{
    const uint64_t others = blob_s3_evictable_bytes(s),
                   most = room < UINT64_MAX - others ? room + others : UINT64_MAX;
    return most >= disk_need + s->spare_bytes ? disk_need + s->spare_bytes
           : most >= disk_need                ? disk_need
                                              : 0;
}

/* Evicts what it can for the cache's bound and the disk's; the disk refuses for itself. */
static int make_room(struct blob_s3 *s, uint64_t need, uint64_t disk_need, struct err *err)
{
    uint64_t room = disk_room(s);
    const bool low = room < disk_need + s->spare_bytes;
    const uint64_t goal = low ? disk_goal(s, room, disk_need) : 0;
    struct list *l = s->used.next;
    while (l != &s->used && (s->cache->used_bytes + need > s->cache_max || room < goal)) {
        struct blob_s3_object *e = list_entry(l, struct blob_s3_object, used);
        l = l->next;
        if (!is_evictable(e))
            continue;
        room = room < UINT64_MAX - e->size ? room + e->size : UINT64_MAX;
        blob_s3_uncache(s, e); /* it no longer counts, and another thread frees its bytes */
    }
    if (s->cache->used_bytes + need > s->cache_max || room < disk_need + s->spare_bytes)
        drop_given_up(s);
    if (s->cache->used_bytes + need <= s->cache_max)
        return 0;
    return err_set(err, -EAGAIN,
                   "the store's cache of %llu bytes is full of blobs that are in use or not sent "
                   "yet: raise --store-cache, or look at the store's errors",
                   (unsigned long long)s->cache_max);
}

int blob_s3_make_room(struct blob_s3 *s, uint64_t need, uint64_t disk_need, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    const int rc = make_room(s, need, disk_need, err);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int blob_s3_check_quota(const struct blob_s3 *s, uint64_t size, struct err *err)
{
    if (s->quota == 0 || s->base.used_bytes + size <= s->quota)
        return 0;
    return err_set(err, -ENOSPC,
                   "the blob quota is used up: %llu of %llu bytes (raise it or remove old jobs)",
                   (unsigned long long)s->base.used_bytes, (unsigned long long)s->quota);
}
