#include "common/net/s3/sign.h"

#include <ctype.h>
#include <time.h>

#include "common/base/buf.h"
#include "common/base/hash.h"

#define CANONICAL_MAX 16384
#define PARAMS_MAX (S3_QUERY_MAX + 6)
#define SCOPE_MAX 128

struct params {
    char *names[PARAMS_MAX], *values[PARAMS_MAX]; /* encoded */
    size_t n;
};

/* Percent-encodes by RFC 3986: all characters except the unreserved, and '/' with keep_slash. */
static char *encoded(const char *text, bool keep_slash)
{
    char *out = mem_alloc(3 * strlen(text) + 1), *p = out;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if ((isascii(*c) && isalnum(*c)) || strchr("-._~", *c) || (keep_slash && *c == '/'))
            *p++ = (char)*c;
        else
            p += sprintf(p, "%%%02X", *c);
    }
    *p = '\0';
    return out;
}

/* Adds a parameter in the order of names. */
static void add(struct params *p, const char *name, const char *value)
{
    size_t i = p->n++;
    char *n = encoded(name, false);
    for (; i > 0 && strcmp(p->names[i - 1], n) > 0; i--) {
        p->names[i] = p->names[i - 1];
        p->values[i] = p->values[i - 1];
    }
    p->names[i] = n;
    p->values[i] = encoded(value, false);
}

static int write_params(const struct params *p, struct buf *out)
{
    int rc = 0;
    for (size_t i = 0; i < p->n && rc == 0; i++)
        rc = buf_printf(out, "%s%s=%s", i ? "&" : "", p->names[i], p->values[i]);
    return rc;
}

static void params_release(struct params *p)
{
    for (size_t i = 0; i < p->n; i++) {
        mem_free(p->names[i]);
        mem_free(p->values[i]);
    }
}

static void signed_names(const struct s3_ask *ask, char *out, size_t cap)
{
    size_t at = 0;
    bool host = false;
    out[0] = '\0';
    for (size_t i = 0; i <= S3_HEADERS_MAX; i++) {
        const char *name = i < S3_HEADERS_MAX ? ask->headers[i].name : NULL;
        if (!host && (!name || strcmp(name, "host") > 0)) {
            at += (size_t)snprintf(out + at, cap - at, "%shost", at ? ";" : "");
            host = true;
        }
        if (!name)
            return;
        at += (size_t)snprintf(out + at, cap - at, "%s%s", at ? ";" : "", name);
    }
}

static int write_headers(const struct s3_ask *ask, struct buf *out)
{
    bool host = false;
    int rc = 0;
    for (size_t i = 0; i <= S3_HEADERS_MAX && rc == 0; i++) {
        const struct s3_pair *h =
            i < S3_HEADERS_MAX && ask->headers[i].name ? &ask->headers[i] : NULL;
        if (!host && (!h || strcmp(h->name, "host") > 0)) {
            rc = buf_printf(out, "host:%s\n", ask->host);
            host = true;
        }
        if (!h)
            break;
        if (rc == 0)
            rc = buf_printf(out, "%s:%s\n", h->name, h->value);
    }
    return rc;
}

static void signature(const struct s3_signer *by, const char *date, const char *scope,
                      const struct buf *canonical, char ret_hex[HASH_HEX_MAX])
{
    uint8_t key[HASH_BYTES], sum[HASH_BYTES];
    char hex[HASH_HEX_MAX], text[256];
    char *first = str_printf("AWS4%s", by->secret_key);
    hash_hmac(first, strlen(first), date, 8, key);
    mem_free(first);
    hash_hmac(key, sizeof key, by->region, strlen(by->region), key);
    hash_hmac(key, sizeof key, by->service, strlen(by->service), key);
    hash_hmac(key, sizeof key, "aws4_request", 12, key);
    hash_sha256(canonical->data, canonical->len, sum);
    const int n = snprintf(text, sizeof text, "AWS4-HMAC-SHA256\n%s\n%s\n%s", date, scope,
                           hash_hex(sum, sizeof sum, hex));
    hash_hmac(key, sizeof key, text, (size_t)n, sum);
    hash_hex(sum, sizeof sum, ret_hex);
}

static void add_params(struct params *p, const struct s3_signer *by, const struct s3_ask *ask,
                       const char *date, const char *scope, const char *names)
{
    char life[16], *credential = str_printf("%s/%s", by->access_key, scope);
    (void)snprintf(life, sizeof life, "%u", ask->life_s);
    for (size_t i = 0; i < S3_QUERY_MAX && ask->query[i].name; i++)
        add(p, ask->query[i].name, ask->query[i].value);
    add(p, "X-Amz-Algorithm", "AWS4-HMAC-SHA256");
    add(p, "X-Amz-Credential", credential);
    add(p, "X-Amz-Date", date);
    add(p, "X-Amz-Expires", life);
    add(p, "X-Amz-SignedHeaders", names);
    if (by->token)
        add(p, "X-Amz-Security-Token", by->token);
    mem_free(credential);
}

int s3_sign(const struct s3_signer *by, const struct s3_ask *ask, struct buf *url)
{
    char date[20], scope[SCOPE_MAX], names[160], hex[HASH_HEX_MAX];
    struct params p = {0};
    struct buf canonical;
    struct tm tm;
    const time_t now = (time_t)ask->now_s;
    (void)strftime(date, sizeof date, "%Y%m%dT%H%M%SZ", gmtime_r(&now, &tm));
    if (snprintf(scope, sizeof scope, "%.8s/%s/%s/aws4_request", date, by->region, by->service) >=
        (int)sizeof scope)
        return -ERR_LIMIT;
    signed_names(ask, names, sizeof names);
    add_params(&p, by, ask, date, scope, names);
    buf_init(&canonical, CANONICAL_MAX);
    char *path = encoded(ask->path, true);
    int rc = buf_printf(&canonical, "%s\n%s\n", ask->method, path);
    if (rc == 0)
        rc = write_params(&p, &canonical);
    if (rc == 0)
        rc = buf_append_str(&canonical, "\n");
    if (rc == 0)
        rc = write_headers(ask, &canonical);
    if (rc == 0)
        rc = buf_printf(&canonical, "\n%s\n%s", names,
                        ask->payload ? ask->payload : "UNSIGNED-PAYLOAD");
    if (rc == 0)
        rc = buf_printf(url, "%s://%s%s?", ask->scheme, ask->host, path);
    if (rc == 0)
        rc = write_params(&p, url);
    if (rc == 0) {
        signature(by, date, scope, &canonical, hex);
        rc = buf_printf(url, "&X-Amz-Signature=%s", hex);
    }
    params_release(&p);
    buf_release(&canonical);
    mem_free(path);
    return rc;
}
