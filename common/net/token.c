#include "common/net/token.h"

#include "common/base/hash.h"

#include <ctype.h>

#define VERSION 1
#define FLAG_HTTP_PLAIN 1
#define UTF8_MARK "\xef\xbb\xbf" /* before the text of some editors */
#define CHECK_BYTES 4            /* of the SHA-256 of all bytes before; finds typing mistakes */

/* version, role, flags, rpc port, http port, cluster, pin, secret, host length */
#define FIXED_BYTES (3 + 2 + 2 + TOKEN_CLUSTER_BYTES + KEYS_PIN_BYTES + KEYS_SECRET_BYTES + 1)
#define BYTES_MAX (FIXED_BYTES + TOKEN_HOST_MAX + CHECK_BYTES)

_Static_assert(sizeof(TOKEN_PREFIX) + HASH_B64_MAX(BYTES_MAX) <= TOKEN_STRING_MAX, "token size");
_Static_assert(HASH_B64_MAX(KEYS_SECRET_BYTES) <= TOKEN_BEARER_MAX, "bearer size");

static const struct {
    enum token_role role;
    const char *name;
} roles[] = {
    {TOKEN_ROLE_WORKER, "worker"},
    {TOKEN_ROLE_OPERATOR, "operator"},
    {TOKEN_ROLE_VIEWER, "viewer"},
};

#define N_ROLES (sizeof(roles) / sizeof(roles[0]))

const char *token_role_name(enum token_role role)
{
    for (size_t i = 0; i < N_ROLES; i++)
        if (roles[i].role == role)
            return roles[i].name;
    return "";
}

enum token_role token_role_parse(const char *name)
{
    for (size_t i = 0; i < N_ROLES; i++)
        if (strcmp(roles[i].name, name) == 0)
            return roles[i].role;
    return TOKEN_ROLE_NONE;
}

static bool role_known(unsigned role)
{
    return *token_role_name(role) != '\0';
}

static bool host_ok(const char *host, size_t len)
{
    if (len == 0 || len > TOKEN_HOST_MAX)
        return false;
    const char *colon = memchr(host, ':', len);
    for (size_t i = 0; i < len; i++)
        if (!isalnum((unsigned char)host[i]) && !strchr(".-_:%", host[i]))
            return false;
    /* An address of IPv6 has two colons at least; with one it is a host and a port. */
    return colon == NULL || memchr(colon + 1, ':', len - (size_t)(colon + 1 - host)) != NULL;
}

static uint8_t *put(uint8_t *p, const void *data, size_t len)
{
    memcpy(p, data, len);
    return p + len;
}

static const uint8_t *get(const uint8_t *p, void *out, size_t len)
{
    memcpy(out, p, len);
    return p + len;
}

int token_format(const struct token *t, char ret_text[TOKEN_STRING_MAX], struct err *err)
{
    size_t host_len = strnlen(t->host, sizeof(t->host));
    if (!host_ok(t->host, host_len))
        return err_set(err, -EINVAL, "a token needs a plain host name or address, not \"%.80s\"",
                       t->host);
    if (!role_known(t->role))
        return err_set(err, -EINVAL, "a token cannot have the role %d", (int)t->role);
    uint8_t bytes[BYTES_MAX], *p = bytes, sum[HASH_BYTES];
    *p++ = VERSION;
    *p++ = (uint8_t)t->role;
    *p++ = t->http_plain ? FLAG_HTTP_PLAIN : 0;
    *p++ = (uint8_t)(t->rpc_port & 0xff);
    *p++ = (uint8_t)(t->rpc_port >> 8);
    *p++ = (uint8_t)(t->http_port & 0xff);
    *p++ = (uint8_t)(t->http_port >> 8);
    p = put(p, t->cluster_id, sizeof(t->cluster_id));
    p = put(p, t->pin, sizeof(t->pin));
    p = put(p, t->secret, sizeof(t->secret));
    *p++ = (uint8_t)host_len;
    p = put(p, t->host, host_len);
    hash_sha256(bytes, (size_t)(p - bytes), sum);
    p = put(p, sum, CHECK_BYTES);
    memcpy(ret_text, TOKEN_PREFIX, strlen(TOKEN_PREFIX));
    hash_b64url(bytes, (size_t)(p - bytes), ret_text + strlen(TOKEN_PREFIX));
    return 0;
}

static int decode(const char *text, size_t len, uint8_t bytes[BYTES_MAX], size_t *ret_n,
                  struct err *err)
{
    static const char damaged[] = "the token is damaged: copy the whole line of the token file";
    char copy[TOKEN_STRING_MAX];
    if (len >= sizeof(copy) || strstr(text, TOKEN_PREFIX))
        return err_set(err, -ERR_FORMAT,
                       "the token is too long (%zu characters): was it pasted "
                       "twice?",
                       len);
    memcpy(copy, text, len);
    copy[len] = '\0';
    size_t n = 0;
    if (hash_unb64url(copy, bytes, BYTES_MAX, &n) < 0)
        return err_set(err, -ERR_FORMAT, "%s", damaged);
    if (n < FIXED_BYTES + 1 + CHECK_BYTES)
        return err_set(err, -ERR_FORMAT,
                       "the token is cut short: copy the whole line of the "
                       "token file");
    uint8_t sum[HASH_BYTES];
    hash_sha256(bytes, n - CHECK_BYTES, sum);
    if (memcmp(sum, bytes + n - CHECK_BYTES, CHECK_BYTES) != 0)
        return err_set(err, -ERR_FORMAT, "%s", damaged);
    if (bytes[0] != VERSION)
        return err_set(err, -ERR_VERSION,
                       "the token is of format %u, this program reads format %u: install the "
                       "release that made it",
                       bytes[0], VERSION);
    *ret_n = n - CHECK_BYTES;
    return 0;
}

int token_parse(const char *text, struct token *ret, struct err *err)
{
    if (str_starts(text, UTF8_MARK))
        text += strlen(UTF8_MARK);
    while (isspace((unsigned char)*text))
        text++;
    size_t len = strlen(text);
    while (len && isspace((unsigned char)text[len - 1]))
        len--;
    size_t prefix = strlen(TOKEN_PREFIX);
    if (len < prefix || strncmp(text, TOKEN_PREFIX, prefix) != 0)
        return err_set(err, -ERR_FORMAT,
                       "this is not a Skerry token (a token begins with \"%s\"; coordinatord "
                       "prints it and keeps it in its data directory)",
                       TOKEN_PREFIX);
    uint8_t bytes[BYTES_MAX];
    size_t n = 0;
    int rc = decode(text + prefix, len - prefix, bytes, &n, err);
    if (rc < 0)
        return rc;
    struct token t = {0};
    const uint8_t *p = bytes + 1;
    unsigned role = *p++, flags = *p++;
    t.http_plain = flags & FLAG_HTTP_PLAIN;
    t.rpc_port = (uint16_t)(p[0] | p[1] << 8);
    t.http_port = (uint16_t)(p[2] | p[3] << 8);
    p = get(p + 4, t.cluster_id, sizeof(t.cluster_id));
    p = get(p, t.pin, sizeof(t.pin));
    p = get(p, t.secret, sizeof(t.secret));
    size_t host_len = *p++;
    if (FIXED_BYTES + host_len != n || !host_ok((const char *)p, host_len))
        return err_set(err, -ERR_FORMAT, "the token names no valid host");
    memcpy(t.host, p, host_len);
    if (!role_known(role))
        return err_set(err, -ERR_FORMAT, "the token has an unknown role %u", role);
    t.role = role;
    *ret = t;
    return 0;
}

void token_http_url(const struct token *t, char ret_url[TOKEN_URL_MAX])
{
    bool v6 = strchr(t->host, ':') != NULL;
    snprintf(ret_url, TOKEN_URL_MAX, "%s://%s%s%s:%u", t->http_plain ? "http" : "https",
             v6 ? "[" : "", t->host, v6 ? "]" : "", t->http_port);
}

void token_bearer(const uint8_t secret[KEYS_SECRET_BYTES], char ret_text[TOKEN_BEARER_MAX])
{
    hash_b64url(secret, KEYS_SECRET_BYTES, ret_text);
}

int token_bearer_read(const char *presented, uint8_t ret_secret[KEYS_SECRET_BYTES])
{
    uint8_t bytes[KEYS_SECRET_BYTES];
    struct token t;
    size_t n = 0;
    if (strncmp(presented, TOKEN_PREFIX, strlen(TOKEN_PREFIX)) == 0) {
        if (token_parse(presented, &t, NULL) < 0)
            return -ERR_FORMAT;
        memcpy(ret_secret, t.secret, KEYS_SECRET_BYTES);
        return 0;
    }
    if (hash_unb64url(presented, bytes, sizeof(bytes), &n) < 0 || n != sizeof(bytes))
        return -ERR_FORMAT;
    memcpy(ret_secret, bytes, sizeof(bytes));
    return 0;
}
