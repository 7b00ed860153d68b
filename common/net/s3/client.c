#include "common/net/s3/client.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/net/http/http_curl.h"
#include "common/net/s3/client_impl.h"
#include "common/net/s3/xml.h"

#define TRIES 6
#define FIRST_WAIT_MS 200
#define STALL_S 30
#define STALL_FIRST_S 5
#define PRESIGNED_LEAST_S 60 /* a role gets its new key minutes earlier (request.c) */
#define IN_PREFIX "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/"

/* ---- opening ---- */

int s3_split(const char *url, char ret_bucket[64], char **ret_prefix, struct err *err)
{
    const char *name = str_starts(url, "s3://") ? url + 5 : "";
    const size_t n = strcspn(name, "/");
    const char *prefix = name[n] ? name + n + 1 : "";
    size_t len = strlen(prefix);
    while (len > 0 && prefix[len - 1] == '/')
        len--;
    if (n == 0 || n > 63 || len > 512 || *prefix == '/' || strspn(prefix, IN_PREFIX) < len)
        return err_set(err, -ERR_CONFIG,
                       "'%.200s' is not a store: expected s3://BUCKET or s3://BUCKET/PREFIX, with "
                       "a prefix of letters, digits and ._-/",
                       url);
    (void)snprintf(ret_bucket, 64, "%.*s", (int)n, name);
    *ret_prefix = str_ndup(prefix, len);
    return 0;
}

static int set_bucket(struct s3 *c, const char *bucket, struct err *err)
{
    const size_t n = strlen(bucket);
    if (n < 3 || n > 63 || strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789.-") != n)
        return err_set(
            err, -ERR_CONFIG,
            "'%.80s' is not a valid name of a bucket: expected 3 to 63 of a-z, 0-9, '.' and '-'",
            bucket);
    (void)str_copy(c->bucket, sizeof(c->bucket), bucket);
    return 0;
}

/* HOST, or HOST:PORT; an IPv6 address is in brackets. */
static bool is_host(const char *text, size_t n)
{
    const char *close = *text == '[' ? memchr(text, ']', n) : NULL;
    const size_t host = close ? (size_t)(close - text) + 1 : strcspn(text, ":[]");
    char port[6] = "";
    if (host == 0 || host >= n)
        return host > 0;
    const size_t digits = n - host - 1;
    if (text[host] != ':' || digits == 0 || digits >= sizeof(port) ||
        strspn(text + host + 1, "0123456789") < digits)
        return false;
    memcpy(port, text + host + 1, digits);
    const long value = strtol(port, NULL, 10);
    return value > 0 && value <= UINT16_MAX;
}

static int set_endpoint(struct s3 *c, const struct s3_options *o, struct err *err)
{
    char amazon[128];
    (void)snprintf(amazon, sizeof(amazon), "https://s3.%s.amazonaws.com", c->region);
    const char *url = o->endpoint ? o->endpoint : amazon;
    const char *host = strstr(url, "://");
    size_t n = host ? strlen(host + 3) : 0;
    n -= n > 0 && url[strlen(url) - 1] == '/';
    if (n == 0 || n > 180 || strcspn(host + 3, "/?#@ ") < n || !is_host(host + 3, n) ||
        (!str_starts(url, "https://") && !str_starts(url, "http://")))
        return err_set(
            err, -ERR_CONFIG,
            "'%.200s' is not an endpoint of a store: expected https://HOST or https://HOST:PORT",
            url);
    if (str_starts(url, "http://") && !o->plain)
        return err_set(err, -ERR_CONFIG,
                       "the endpoint %.200s is without TLS: somebody who listens can read and "
                       "change all blobs (--store-plain allows it)",
                       url);
    (void)snprintf(c->scheme, sizeof(c->scheme), "%.*s", (int)(host - url), url);
    /* A name with dots matches no certificate of Amazon's as a part of a host. */
    c->virtual_host = o->virtual_host || (!o->endpoint && !strchr(c->bucket, '.'));
    const char *usual = str_starts(url, "https://") ? ":443" : ":80"; /* no client names it */
    const size_t tail = strlen(usual);
    if (n > tail && strncmp(host + 3 + n - tail, usual, tail) == 0)
        n -= tail;
    (void)snprintf(c->host, sizeof(c->host), "%s%s%.*s", c->virtual_host ? c->bucket : "",
                   c->virtual_host ? "." : "", (int)n, host + 3);
    (void)snprintf(c->where, sizeof(c->where), "%s://%s%s%s", c->scheme, c->host,
                   c->virtual_host ? "" : "/", c->virtual_host ? "" : c->bucket);
    return 0;
}

int s3_open(const struct s3_options *o, struct s3 **ret, struct err *err)
{
    struct s3 *c = mem_alloc(sizeof(*c));
    *c = (struct s3){
        .part_bytes = o->part_bytes ? o->part_bytes : S3_PART_BYTES,
        .tries = o->tries ? o->tries : TRIES,
        .first_wait_ms = o->first_wait_ms ? o->first_wait_ms : FIRST_WAIT_MS,
        .stall_s = o->stall_s ? o->stall_s : STALL_S,
        .first_stall_s = o->first_stall_s ? o->first_stall_s : STALL_FIRST_S,
    };
    const char *region = o->region && *o->region ? o->region : "us-east-1";
    int rc = 0;
    if (!str_copy(c->region, sizeof(c->region), region) || !str_is_name(region, 63))
        rc = err_set(err, -ERR_CONFIG, "'%.80s' is not a valid name of a region", region);
    if (rc == 0)
        rc = set_bucket(c, o->bucket, err);
    if (rc == 0)
        rc = set_endpoint(c, o, err);
    if (rc == 0)
        rc = s3_credentials_read(&c->who, err);
    if (rc < 0) {
        mem_free(c);
        return rc;
    }
    pthread_mutex_init(&c->lock, NULL);
    clock_cond_init(&c->wake);
    *ret = c;
    return 0;
}

void s3_stop(struct s3 *c)
{
    pthread_mutex_lock(&c->lock);
    c->stopping = true;
    pthread_cond_broadcast(&c->wake);
    pthread_mutex_unlock(&c->lock);
}

void s3_close(struct s3 *c)
{
    if (!c)
        return;
    while (c->n_idle > 0)
        s3_handle_free(c->idle[--c->n_idle]);
    pthread_cond_destroy(&c->wake);
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

const char *s3_where(const struct s3 *c)
{
    return c->where;
}

struct s3_health s3_health(struct s3 *c)
{
    struct s3_health h = {.requests = c->requests,
                          .repeats = c->repeats,
                          .bytes_in = c->bytes_in,
                          .bytes_out = c->bytes_out};
    pthread_mutex_lock(&c->lock);
    h.failing_since_unix_ms = c->failing_since_unix_ms;
    memcpy(h.error, c->error, sizeof(h.error));
    pthread_mutex_unlock(&c->lock);
    return h;
}

/* ---- operations ---- */

static int run_put(struct s3 *c, struct s3_request *r, struct err *err)
{
    const int rc = s3_request_run(c, r, err);
    if (rc < 0 || *r->etag)
        return rc;
    return err_set(err, -ERR_REMOTE, "%s took an object, but its answer has no ETag", c->where);
}

static int put_whole(struct s3 *c, const char *key, int fd, uint64_t size, const uint8_t sha256[32],
                     struct err *err)
{
    struct s3_request r;
    char sum[45];
    http_curl_base64(sha256, sum);
    s3_request_init(&r, "PUT", key);
    r.headers[0] = (struct s3_pair){"x-amz-checksum-sha256", sum};
    r.fd = fd;
    r.size = size;
    const int rc = run_put(c, &r, err);
    s3_request_release(&r);
    return rc;
}

int s3_put(struct s3 *c, const char *key, const char *path, uint64_t size, const uint8_t sha256[32],
           struct err *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "cannot open %s", path);
    const int rc = size > c->part_bytes ? s3_put_parts(c, key, fd, size, err)
                                        : put_whole(c, key, fd, size, sha256, err);
    close(fd);
    return rc;
}

int s3_put_text(struct s3 *c, const char *key, const char *text, struct err *err)
{
    struct s3_request r;
    s3_request_init(&r, "PUT", key);
    r.text = text;
    r.size = strlen(text);
    const int rc = run_put(c, &r, err);
    s3_request_release(&r);
    return rc;
}

static void new_object(struct s3_request *r, const char *key, const void *data, size_t len)
{
    s3_request_init(r, "PUT", key);
    r->headers[0] = (struct s3_pair){"if-none-match", "*"};
    r->text = data;
    r->size = len;
}

int s3_put_new(struct s3 *c, const char *key, const void *data, size_t len, struct err *err)
{
    struct s3_request r;
    new_object(&r, key, data, len);
    const int rc = run_put(c, &r, err);
    s3_request_release(&r);
    return rc;
}

#define PAIRS 3 /* a store may see the second of two before the first */

/* The second write of an object, within the first. */
struct second {
    struct s3 *c;
    const char *key;
    int rc;
};

static void put_second(void *arg)
{
    struct second *s = arg;
    struct err why = {0}; /* of no interest */
    struct s3_request r;
    new_object(&r, s->key, "second", 6);
    r.once = true; /* the first one waits */
    s->rc = run_put(s->c, &r, &why);
    s3_request_release(&r);
}

/* 0: both were taken; -EEXIST: one was; another code: it is unknown. */
static int put_pair(struct s3 *c, const char *key)
{
    struct second second = {c, key, -ECANCELED};
    struct err why = {0};
    struct s3_request r;
    new_object(&r, key, "first", 5);
    r.between = put_second;
    r.between_arg = &second;
    const int rc = run_put(c, &r, &why);
    s3_request_release(&r);
    (void)s3_delete(c, key, &why); /* one that stays is small */
    return second.rc == 0 ? rc : second.rc;
}

bool s3_takes_both(struct s3 *c, const char *stem)
{
    int rc = -EEXIST;
    for (int i = 0; i < PAIRS && rc == -EEXIST; i++) {
        uint8_t chance[8];
        char hex[2 * sizeof(chance) + 1];
        hash_random(chance, sizeof(chance));
        char *key = str_printf("%s-%s", stem, hash_hex(chance, sizeof(chance), hex));
        rc = put_pair(c, key);
        mem_free(key);
    }
    return rc == 0;
}

int s3_get(struct s3 *c, const char *key, uint64_t from, uint64_t size, s3_sink_fn *sink, void *arg,
           struct err *err)
{
    struct s3_request r;
    int rc = 0;
    s3_request_init(&r, "GET", key);
    r.sink = sink;
    r.arg = arg;
    r.from = from;
    r.whole = size;
    if (from < size)
        rc = s3_request_run(c, &r, err);
    if (rc == -ERR_FORMAT)
        rc = err_set(err, rc, "the store has more bytes of %s than the %llu expected", key,
                     (unsigned long long)size);
    else if (rc == 0 && from + r.got != size)
        rc = err_set(err, -ERR_FORMAT, "the store has %llu bytes of %s, expected %llu",
                     (unsigned long long)(from + r.got), key, (unsigned long long)size);
    s3_request_release(&r);
    return rc;
}

struct writing {
    struct file_out out;
    struct err *err;
};

static int into_file(void *arg, const void *data, size_t len)
{
    struct writing *w = arg;
    return file_out_write(&w->out, data, len, w->err);
}

int s3_get_file(struct s3 *c, const char *key, const char *path, uint64_t size, struct err *err)
{
    struct writing w = {.err = err};
    int rc = file_out_open(&w.out, path, 0600, err);
    if (rc == 0) {
        rc = s3_get(c, key, 0, size, into_file, &w, err);
        rc = rc == 0 ? file_out_commit(&w.out, err) : rc;
        file_out_abort(&w.out);
    }
    return rc;
}

struct piece {
    uint8_t *at;
    size_t left;
};

static int into_piece(void *arg, const void *data, size_t len)
{
    struct piece *p = arg;
    if (len > p->left)
        return -ERR_FORMAT; /* the store does not support ranges */
    memcpy(p->at, data, len);
    p->at += len;
    p->left -= len;
    return 0;
}

int s3_get_piece(struct s3 *c, const char *key, uint64_t from, uint64_t size, void *data,
                 size_t len, struct err *err)
{
    struct s3_request r;
    struct piece p = {data, len};
    s3_request_init(&r, "GET", key);
    r.sink = into_piece;
    r.arg = &p;
    r.from = from;
    r.until = from + len;
    r.whole = size;
    int rc = len > 0 ? s3_request_run(c, &r, err) : 0;
    if (rc == -ERR_FORMAT || (rc == 0 && p.left > 0))
        rc = err_set(err, -ERR_FORMAT, "the store sent other bytes of %s than were asked for", key);
    s3_request_release(&r);
    return rc;
}

static int into_buf(void *arg, const void *data, size_t len)
{
    return buf_append(arg, data, len) < 0 ? -ERR_LIMIT : 0;
}

int s3_get_all(struct s3 *c, const char *key, struct buf *ret, struct err *err)
{
    struct s3_request r;
    s3_request_init(&r, "GET", key);
    r.sink = into_buf;
    r.arg = ret;
    int rc = s3_request_run(c, &r, err);
    if (rc == -ERR_LIMIT)
        rc = err_set(err, rc, "%s in the store is longer than %zu bytes", key, ret->max);
    s3_request_release(&r);
    return rc;
}

int s3_get_text(struct s3 *c, const char *key, char *ret, size_t cap, struct err *err)
{
    struct s3_request r;
    s3_request_init(&r, "GET", key);
    int rc = s3_request_run(c, &r, err);
    if (rc == 0 && !str_copy(ret, cap, buf_str(&r.answer)))
        rc = err_set(err, -ERR_LIMIT, "%s in the store is longer than %zu bytes", key, cap - 1);
    s3_request_release(&r);
    return rc;
}

int s3_head(struct s3 *c, const char *key, uint64_t *ret_size, char ret_sum[S3_SUM_MAX],
            struct err *err)
{
    struct s3_request r;
    s3_request_init(&r, "HEAD", key);
    r.headers[0] = (struct s3_pair){"x-amz-checksum-mode", "ENABLED"};
    r.once = true;
    const int rc = s3_request_run(c, &r, err);
    if (rc == 0) {
        *ret_size = r.length;
        memcpy(ret_sum, r.sum, S3_SUM_MAX);
    }
    s3_request_release(&r);
    return rc;
}

int s3_presign(struct s3 *c, const char *key, uint64_t size, const uint8_t sha256[32],
               uint32_t life_s, char **ret_url)
{
    struct s3_request r;
    struct s3_credentials who;
    struct buf url;
    char sum[S3_SUM_MAX], length[24];
    pthread_mutex_lock(&c->lock);
    who = c->who;
    pthread_mutex_unlock(&c->lock);
    const int64_t left_s = who.ends_s - (int64_t)(clock_wall_ms() / 1000);
    if (who.ends_s != 0 && left_s < PRESIGNED_LEAST_S)
        return -EAGAIN;
    if (who.ends_s != 0 && left_s < (int64_t)life_s)
        life_s = (uint32_t)left_s;
    s3_request_init(&r, size > 0 ? "PUT" : "GET", key);
    if (size > 0) {
        http_curl_base64(sha256, sum);
        (void)snprintf(length, sizeof(length), "%llu", (unsigned long long)size);
        r.headers[0] = (struct s3_pair){"content-length", length};
        r.headers[1] = (struct s3_pair){"x-amz-checksum-sha256", sum};
    }
    buf_init(&url, S3_URL_MAX);
    const int rc = s3_request_sign(c, &r, &who, life_s, &url);
    if (rc == 0)
        *ret_url = str_dup(buf_str(&url));
    buf_release(&url);
    s3_request_release(&r);
    return rc;
}

int s3_delete(struct s3 *c, const char *key, struct err *err)
{
    struct s3_request r;
    s3_request_init(&r, "DELETE", key);
    const int rc = s3_request_run(c, &r, err);
    s3_request_release(&r);
    return rc == -ERR_NOTFOUND ? 0 : rc;
}

/* ---- listing ---- */

struct page {
    s3_list_fn *fn;
    void *arg;
    const char *prefix;
    char key[S3_KEY_MAX + 1], next[S3_XML_TEXT_MAX];
    uint64_t size;
    int64_t modified_s;
    bool sized, more;
};

/* "2009-10-12T17:50:30.000Z", or 0. */
static int64_t time_of(const char *text)
{
    struct tm tm = {0};
    return strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) ? (int64_t)timegm(&tm) : 0;
}

static int on_listed(void *arg, const char *parent, const char *name, const char *text)
{
    struct page *p = arg;
    if (strcmp(parent, "Contents") == 0 && text) {
        if (strcmp(name, "Key") == 0 && !str_copy(p->key, sizeof(p->key), text))
            return -ERR_FORMAT;
        if (strcmp(name, "Size") == 0)
            p->sized = str_parse_u64(text, &p->size) == 0;
        if (strcmp(name, "LastModified") == 0)
            p->modified_s = time_of(text);
    } else if (strcmp(name, "Contents") == 0) {
        if (!*p->key || !p->sized || !str_starts(p->key, p->prefix))
            return -ERR_FORMAT;
        const int rc = p->fn(p->arg, p->key, p->size, p->modified_s);
        p->modified_s = 0;
        p->key[0] = '\0';
        p->sized = false;
        return rc;
    } else if (strcmp(name, "IsTruncated") == 0 && text) {
        p->more = strcmp(text, "true") == 0;
    } else if (strcmp(name, "NextContinuationToken") == 0 && text) {
        (void)str_copy(p->next, sizeof(p->next), text); /* as long as a text can be */
    }
    return 0;
}

/* seen: a token of an earlier request. */
static int list_page(struct s3 *c, const char *prefix, const char *token, const char *seen,
                     struct page *p, struct err *err)
{
    struct s3_request r;
    s3_request_init(&r, "GET", "");
    r.query[0] = (struct s3_pair){"list-type", "2"};
    r.query[1] = (struct s3_pair){"prefix", prefix};
    if (*token)
        r.query[2] = (struct s3_pair){"continuation-token", token};
    int rc = s3_request_run(c, &r, err);
    if (rc == 0) {
        rc = s3_xml_read(buf_str(&r.answer), r.answer.len, on_listed, p);
        const bool stuck = p->more && (!*p->next || strcmp(p->next, seen) == 0);
        if (rc == -ERR_FORMAT || (rc == 0 && stuck)) /* the listing would never end */
            rc = err_set(err, -ERR_REMOTE, "%s lists its objects in a form that is not S3's",
                         c->where);
    }
    s3_request_release(&r);
    return rc;
}

int s3_list(struct s3 *c, const char *prefix, s3_list_fn *fn, void *arg, struct err *err)
{
    struct page *p = mem_alloc(sizeof(*p));
    char *token = str_dup(""), *seen = NULL;
    int rc;
    for (uint64_t n = 0;; n++) {
        if ((n & (n - 1)) == 0) { /* at powers of two, so that a circle of any length is found */
            mem_free(seen);
            seen = str_dup(token);
        }
        *p = (struct page){.fn = fn, .arg = arg, .prefix = prefix};
        rc = list_page(c, prefix, token, seen, p, err);
        if (rc != 0 || !p->more)
            break;
        mem_free(token);
        token = str_dup(p->next);
    }
    mem_free(token);
    mem_free(seen);
    mem_free(p);
    return rc;
}
