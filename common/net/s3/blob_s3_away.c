/* Blobs that clients get from the store, or put there, without passing this process. */
#include "common/net/s3/blob_s3_impl.h"

#include "common/base/hash.h"
#include "common/net/http/http_curl.h"

#define AWAY_MAX (5ull << 30) /* bytes of one PUT, by the manual of S3 */
#define AWAY_LIFE_S 900       /* life of a URL; requests that have begun may take longer */

/* Counts a promised blob against the quota, as it may come to the store; false: it does not fit,
 * and must be sent through this process. */
static bool promise(struct blob_s3 *s, const struct blob_id *id, uint64_t size)
{
    const uint64_t used = s->base.used_bytes;
    const uint64_t room = s->quota == 0 ? UINT64_MAX : s->quota > used ? s->quota - used : 0;
    return promises_add(&s->promises, id, size, room);
}

int blob_s3_away(struct blobstore *base, const struct blob_id *id, bool put, uint64_t size,
                 char **ret_url)
{
    struct blob_s3 *s = (struct blob_s3 *)(void *)base;
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    const struct blob_s3_object *e = blob_s3_find(s, id);
    if (put && (e || size == 0 || size > AWAY_MAX || s->failures > 0 || !promise(s, id, size)))
        rc = -ERR_UNIMPLEMENTED; /* also while its DELETE is under way */
    else if (!put && (!e || !e->here || e->stale || (s->failures > 0 && (e->cached || !e->stored))))
        rc = -ERR_UNIMPLEMENTED;
    else if (!put && !e->stored) /* the store will have it soon, if it answers */
        rc = s3_health(s->c).failing_since_unix_ms != 0 ? -ERR_UNIMPLEMENTED : -EAGAIN;
    pthread_mutex_unlock(&s->lock);
    if (rc < 0)
        return rc;
    char *key = blob_s3_key(s, id);
    rc = s3_presign(s->c, key, put ? size : 0, id->sha256, AWAY_LIFE_S, ret_url);
    mem_free(key);
    return rc < 0 ? -ERR_UNIMPLEMENTED : 0;
}

/* Without the lock.  -ERR_HASH: the store has other bytes.  If the store tells no hash, the
 * length proves nothing: the blob is fetched, which compares it. */
static int look(struct blob_s3 *s, const struct blob_id *id, uint64_t size, bool *ret_brought,
                struct err *err)
{
    char *key = blob_s3_key(s, id), sum[S3_SUM_MAX], want[S3_SUM_MAX];
    uint64_t got = 0;
    int rc = s3_head(s->c, key, &got, sum, err);
    mem_free(key);
    http_curl_base64(id->sha256, want);
    if (rc == 0 && (got != size || (*sum && strcmp(sum, want) != 0)))
        rc = err_set(err, -ERR_NOTFOUND, "the store has other bytes under the blob's name");
    *ret_brought = rc == 0 && !*sum;
    return *ret_brought ? blob_s3_download(s, id, size, err) : rc;
}

/* The object is busy meanwhile, and not counted yet: a blob that comes through this process now is
 * sent after this, and none is deleted meanwhile. */
int blob_s3_found(struct blobstore *base, const struct blob_id *id, uint64_t size, struct err *err)
{
    struct blob_s3 *s = (struct blob_s3 *)(void *)base;
    bool brought = false;
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    struct blob_s3_object *e = blob_s3_find(s, id);
    const bool here = e && e->here;
    if (e && e->looking)
        rc = err_set(err, -EBUSY, "the store is being asked for this blob: ask again");
    else if (e && !here)
        rc = blob_s3_nothing(id, err); /* the store is about to delete it */
    else if (!here)
        rc = blob_s3_check_quota(s, size, err);
    if (rc < 0 || here) {
        pthread_mutex_unlock(&s->lock);
        return rc;
    }
    e = blob_s3_make(s, id);
    e->busy = e->looking = true;
    pthread_mutex_unlock(&s->lock);
    rc = look(s, id, size, &brought, err);
    pthread_mutex_lock(&s->lock);
    e->busy = e->looking = false;
    pthread_cond_broadcast(&s->changed);
    /* If it does not answer, no client is sent there until it takes blobs. */
    if (!brought && (rc == 0 || s3_health(s->c).failing_since_unix_ms != 0))
        blob_s3_note(s, rc, err);
    if (rc == 0)
        s->sums = !brought;
    if (brought && rc == 0) {
        e->cached = true;
        blob_s3_used_now(s, e);
    }
    if (rc == 0 && e->stale)
        rc = err_set(err, -ERR_HASH, "the blob was removed while it was looked for");
    if (rc == 0)
        blob_s3_appear(s, e, size);
    e->stored |= rc == 0 || rc == -ERR_HASH;
    e->stale |= rc == -ERR_HASH;  /* so that the store deletes it */
    if (!e->here && e->pins == 0) /* else the last holder drops it */
        blob_s3_uncache(s, e);
    blob_s3_settle(s, e);
    pthread_mutex_unlock(&s->lock);
    return rc;
}
