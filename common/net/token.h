/* Join tokens: everything that a client needs to reach and trust a server, in
 * one string that a person can paste:
 *
 *     skerry1.<base64url of: version, role, flags, ports, cluster id, key
 *              fingerprint, secret, host, checksum>
 *
 * A token is a password: anybody who holds it may act in its role.  Pure
 * functions over strings; any thread. */
#ifndef COMMON_NET_TOKEN_H
#define COMMON_NET_TOKEN_H

#include "common/base/base.h"
#include "common/net/keys.h"

#define TOKEN_PREFIX "skerry1."
#define TOKEN_HOST_MAX 255 /* bytes, without the terminator */
#define TOKEN_CLUSTER_BYTES 16
#define TOKEN_STRING_MAX 512 /* longest token, with the terminator */
#define TOKEN_BEARER_MAX 44  /* base64url of a secret, with the terminator */
#define TOKEN_URL_MAX 300

/* Bits, so that they also serve as masks of allowed roles. */
enum token_role {
    TOKEN_ROLE_NONE = 0,
    TOKEN_ROLE_WORKER = 1,   /* joins */
    TOKEN_ROLE_OPERATOR = 2, /* reads and changes over HTTP */
    TOKEN_ROLE_VIEWER = 4,   /* reads over HTTP */
};

/* "worker", "operator" or "viewer", and back; TOKEN_ROLE_NONE: it is none of these. */
const char *token_role_name(enum token_role role);
enum token_role token_role_parse(const char *name);

struct token {
    char host[TOKEN_HOST_MAX + 1]; /* name or address, IPv6 without brackets */
    uint16_t rpc_port, http_port;
    bool http_plain; /* http:// instead of https:// (loopback only) */
    enum token_role role;
    uint8_t cluster_id[TOKEN_CLUSTER_BYTES];
    uint8_t pin[KEYS_PIN_BYTES];
    uint8_t secret[KEYS_SECRET_BYTES];
};

/* Writes the token's text, terminated.  -EINVAL when a field is out of range. */
int token_format(const struct token *t, char ret_text[TOKEN_STRING_MAX], struct err *err);

/* Reads a token; surrounding white space is ignored.  err says what is wrong:
 * no token at all, truncated, mistyped, of a newer release. */
int token_parse(const char *text, struct token *ret, struct err *err);

/* "https://host:port" (no slash at the end) of the HTTP side. */
void token_http_url(const struct token *t, char ret_url[TOKEN_URL_MAX]);

/* The secret as presented over HTTP (Authorization: Bearer ...). */
void token_bearer(const uint8_t secret[KEYS_SECRET_BYTES], char ret_text[TOKEN_BEARER_MAX]);

/* The secret of a bearer text, or of a whole token; -ERR_FORMAT: `presented` is neither. */
int token_bearer_read(const char *presented, uint8_t ret_secret[KEYS_SECRET_BYTES]);

#endif
