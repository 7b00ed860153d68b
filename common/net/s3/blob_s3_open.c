#include "common/base/file.h"
#include "common/net/blob_dir.h"
#include "common/net/s3/blob_s3_impl.h"

#define TOUCHED_MAX_S (12 * 3600) /* at a start: it may have been touched since it was stored */
#define SPARE_MIN ((uint64_t)1 << 30)
#define SPARE_MAX ((uint64_t)16 << 30)

static bool is_loopback(const char *endpoint)
{
    const char *host = endpoint ? strstr(endpoint, "://") : NULL;
    host = host ? host + 3 : "";
    const size_t n = strcspn(host, ":/");
    return str_starts(host, "127.") || str_starts(host, "[::1]") ||
           (n == 9 && strncasecmp(host, "localhost", n) == 0);
}

static int set_lead(struct blob_s3 *s, const struct blob_s3_options *o, struct err *err)
{
    const char *lead = o->lead ? o->lead : is_loopback(o->s3.endpoint) ? "no" : "yes";
    if (strcmp(lead, "no") == 0)
        return 0;
    if (strcmp(lead, "yes") != 0)
        return err_set(err, -ERR_CONFIG, "--store-workers is yes or no, not '%.40s'", lead);
    s->ops.away = blob_s3_away;
    s->ops.found = blob_s3_found;
    return 0;
}

/* Of two clusters that begin at once one gets the prefix, where the store has conditional writes.
 */
static int claim_new(struct s3 *c, const char *key, const char *cluster, struct err *err)
{
    char has[128] = "";
    int rc = s3_put_new(c, key, cluster, strlen(cluster), err);
    if (rc == -ERR_UNIMPLEMENTED)
        return s3_put_text(c, key, cluster, err);
    if (rc == -EEXIST && (rc = s3_get_text(c, key, has, sizeof(has), err)) == 0 &&
        strcmp(has, cluster) != 0)
        rc = err_set(err, -ERR_CONFIG,
                     "%s: another cluster (%.32s) has just taken this prefix: give this one a "
                     "prefix of its own in --store",
                     s3_where(c), has);
    return rc;
}

/* Writes down which cluster owns the prefix, or checks that. */
static int claim(const struct blob_s3 *s, const struct blob_s3_options *o, const char *prefix,
                 struct err *err)
{
    const char *cluster = o->cluster;
    char had[128] = "", *key = str_printf("%s%scluster", prefix, *prefix ? "/" : "");
    int rc = s3_get_text(s->c, key, had, sizeof(had), err);
    if (rc == 0 && strcmp(had, cluster) != 0)
        rc = err_set(err, -ERR_CONFIG,
                     "%s/%s has the blobs of another cluster (%.32s): give this one a prefix of "
                     "its own in --store",
                     s3_where(s->c), prefix, had);
    else if (rc == -ERR_NOTFOUND && o->known)
        rc = err_set(err, -ERR_CONFIG,
                     "%s/%s does not know this cluster: the endpoint is another one than before, "
                     "or the prefix was emptied",
                     s3_where(s->c), prefix);
    else if (rc == -ERR_NOTFOUND)
        rc = claim_new(s->c, key, cluster, err);
    else if (rc == 0)
        rc = s3_put_text(s->c, key, cluster, err);
    mem_free(key);
    return rc;
}

/* A key that may not delete fails now, and not when a job ends: of an object that is not there,
 * too.
 */
static int check_delete(const struct blob_s3 *s, struct err *err)
{
    char *key = str_printf("%sprobe", s->prefix);
    const int rc = s3_delete(s->c, key, err);
    mem_free(key);
    return rc;
}

static int add_stored(void *arg, const char *key, uint64_t size, int64_t modified_s)
{
    struct blob_s3 *s = arg;
    struct blob_id id;
    if (!str_starts(key, s->prefix) || blob_id_parse(key + strlen(s->prefix), &id) < 0)
        return 0; /* other names belong to other programs */
    struct blob_s3_object *e = blob_s3_make(s, &id);
    blob_s3_appear(s, e, size);
    const int64_t least_s = e->touched_s - TOUCHED_MAX_S;
    if (modified_s > 0 && modified_s < e->touched_s)
        e->touched_s = modified_s > least_s ? modified_s : least_s;
    e->stored = true;
    return 0;
}

static int add_cached(void *arg, const struct blob_id *id, const struct blob_stat *st)
{
    struct blob_s3 *s = arg;
    struct blob_s3_object *e = blob_s3_make(s, id);
    e->stale = e->here && e->size != st->size; /* the directory's copy was verified */
    if (e->stale) {
        atomic_fetch_add(&s->base.used_bytes, st->size - e->size);
        e->size = st->size;
    }
    if (!e->here) /* else it counts as touched when it was stored */
        blob_s3_appear(s, e, st->size);
    e->cached = true;
    blob_s3_used_now(s, e);
    blob_s3_settle(s, e);
    return 0;
}

/* What the cache leaves of its disk: copies of the database and an audit's files need some. */
static uint64_t spare_of(const char *dir)
{
    uint64_t size = 0, spare;
    if (file_disk_size(dir, &size, NULL) < 0)
        return SPARE_MIN;
    spare = size / 16 < SPARE_MIN ? SPARE_MIN : size / 16 > SPARE_MAX ? SPARE_MAX : size / 16;
    return spare < size / 2 ? spare : size / 2;
}

static int open_all(struct blob_s3 *s, const struct blob_s3_options *o, struct err *err)
{
    struct s3_options c = o->s3;
    char bucket[64], *prefix = NULL;
    int rc = s3_split(o->url, bucket, &prefix, err);
    if (rc < 0)
        return rc;
    c.bucket = bucket;
    s->prefix = str_printf("%s%sblobs/", prefix, *prefix ? "/" : "");
    s->beside = str_printf("%s%s", prefix, *prefix ? "/" : "");
    rc = s3_open(&c, &s->c, err);
    if (rc == 0)
        rc = claim(s, o, prefix, err);
    if (rc == 0)
        rc = check_delete(s, err);
    if (rc == 0)
        rc = s3_list(s->c, s->prefix, add_stored, s, err);
    if (rc == 0)
        rc = blob_dir_open(o->cache_dir, o->cache_bytes, &s->cache, err);
    if (rc == 0)
        rc = s->cache->ops->list(s->cache, add_cached, s, err);
    s->spare_bytes = spare_of(o->cache_dir);
    if (rc == 0)
        rc = blob_s3_begin(s, err);
    mem_free(prefix);
    return rc;
}

int blob_s3_open(const struct blob_s3_options *o, struct blobstore **ret, struct err *err)
{
    struct blob_s3 *s = blob_s3_new();
    s->quota = o->quota_bytes;
    s->cache_max = o->cache_bytes;
    s->cache_dir = str_dup(o->cache_dir);
    blob_s3_through(s, o->through);
    int rc = set_lead(s, o, err);
    if (rc == 0)
        rc = open_all(s, o, err);
    if (rc < 0) {
        s->base.ops->close(&s->base);
        return err ? err_wrap(err, "--store %s", o->url) : rc;
    }
    *ret = &s->base;
    return 0;
}
