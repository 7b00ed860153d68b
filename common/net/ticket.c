#include "common/net/ticket.h"

#include "common/base/hash.h"

static const char *method_name(enum ticket_method m)
{
    return m == TICKET_PUT ? "PUT" : "GET";
}

static void sign(const uint8_t *key, const struct ticket *t, uint8_t out[HASH_BYTES])
{
    char hex[HASH_HEX_MAX], text[192];
    int n = snprintf(text, sizeof(text), "skerry ticket 2\n%s\n%s\n%llu\n%llu\n%llu\n",
                     method_name(t->method), hash_hex(t->sha256, 32, hex),
                     (unsigned long long)t->max_bytes, (unsigned long long)t->expires_s,
                     (unsigned long long)t->holder);
    hash_hmac(key, TICKET_KEY_BYTES, text, (size_t)n, out);
}

void ticket_key(const uint8_t secret[TICKET_KEY_BYTES], const char *boot,
                uint8_t ret_key[TICKET_KEY_BYTES])
{
    _Static_assert(TICKET_KEY_BYTES == HASH_BYTES, "a key is a hash");
    hash_hmac(secret, TICKET_KEY_BYTES, boot, strlen(boot), ret_key);
}

void ticket_path(const uint8_t key[TICKET_KEY_BYTES], const struct ticket *t,
                 char ret_path[TICKET_PATH_MAX])
{
    uint8_t sig[HASH_BYTES];
    char id_hex[HASH_HEX_MAX], sig_hex[HASH_HEX_MAX];
    sign(key, t, sig);
    snprintf(ret_path, TICKET_PATH_MAX, "/v1/blobs/%s?m=%s&max=%llu&exp=%llu&by=%llu&sig=%s",
             hash_hex(t->sha256, 32, id_hex), method_name(t->method),
             (unsigned long long)t->max_bytes, (unsigned long long)t->expires_s,
             (unsigned long long)t->holder, hash_hex(sig, sizeof(sig), sig_hex));
}

/* Copies the value of `name` in the query to out; false if it is absent, there twice
 * or longer than out. */
static bool query_value(const char *query, const char *name, char *out, size_t cap)
{
    size_t name_len = strlen(name);
    bool found = false;
    for (const char *p = query; *p;) {
        size_t len = strcspn(p, "&");
        if (len > name_len && strncmp(p, name, name_len) == 0 && p[name_len] == '=') {
            size_t value_len = len - name_len - 1;
            if (found || value_len >= cap)
                return false;
            memcpy(out, p + name_len + 1, value_len);
            out[value_len] = '\0';
            found = true;
        }
        p += len;
        if (*p == '&')
            p++;
    }
    return found;
}

int ticket_check(const uint8_t key[TICKET_KEY_BYTES], enum ticket_method method,
                 const uint8_t sha256[32], const char *query, uint64_t now_s, struct ticket *ret,
                 struct err *err)
{
    char m[8], max[24], exp[24], by[24], sig_hex[HASH_HEX_MAX];
    if (!query || !query_value(query, "m", m, sizeof(m)) ||
        !query_value(query, "max", max, sizeof(max)) ||
        !query_value(query, "exp", exp, sizeof(exp)) || !query_value(query, "by", by, sizeof(by)) ||
        !query_value(query, "sig", sig_hex, sizeof(sig_hex)))
        return err_set(err, -ERR_AUTH, "the URL carries no complete ticket (m, max, exp, by, sig)");
    struct ticket t = {.method = strcmp(m, "PUT") == 0 ? TICKET_PUT : TICKET_GET};
    char ago[STR_HUMAN_MAX];
    uint8_t want[HASH_BYTES], got[HASH_BYTES];
    if (str_parse_u64(max, &t.max_bytes) < 0 || str_parse_u64(exp, &t.expires_s) < 0 ||
        str_parse_u64(by, &t.holder) < 0 || strlen(sig_hex) != 64 ||
        hash_unhex(sig_hex, got, sizeof(got)) < 0)
        return err_set(err, -ERR_AUTH, "the ticket is malformed");
    memcpy(t.sha256, sha256, 32);
    sign(key, &t, want);
    if (!hash_equal(want, got, sizeof(want)))
        return err_set(err, -ERR_AUTH,
                       "the ticket's signature is wrong: it is for another blob or server, or "
                       "was changed, or the server's machine was started anew");
    if (now_s >= t.expires_s)
        return err_set(err, -ERR_AUTH, "the ticket expired %s ago: ask for a new one",
                       str_human_duration((now_s - t.expires_s) * 1000, ago));
    if (t.expires_s - now_s > TICKET_LIFE_S)
        return err_set(
            err, -ERR_AUTH,
            "the ticket expired when its server's machine was started: ask for a new one");
    if (t.method != method || strcmp(m, method_name(method)) != 0)
        return err_set(err, -ERR_AUTH, "the ticket allows %s, not %s", method_name(t.method),
                       method_name(method));
    *ret = t;
    return 0;
}
