/* Tickets: short-lived signed URLs for one blob, one method and one holder.
 *
 *     /v1/blobs/<sha256>?m=PUT&max=1048576&exp=70321&by=5&sig=<hmac, 64 hex>
 *
 * sig = HMAC-SHA256(key, method, sha256, max, exp, by).  Only the server that made a ticket checks
 * it, so only its own clock matters: the monotonic one of its machine, which steps of the wall
 * clock do not move.  That begins anew with each boot of the machine, and the key with it, so older
 * tickets are worth nothing then, as on another machine that takes the server over.  A PUT ticket
 * also allows asking how much has arrived; a GET ticket also allows HEAD.  Pure functions, any
 * thread. */
#ifndef COMMON_NET_TICKET_H
#define COMMON_NET_TICKET_H

#include "common/base/base.h"

#define TICKET_KEY_BYTES 32
#define TICKET_LIFE_S 3600  /* the longest life of a ticket */
#define TICKET_PATH_MAX 256 /* longest path with query, with the terminator */

/* What a ticket allows. */
enum ticket_method { TICKET_GET = 1, TICKET_PUT = 2 };

struct ticket {
    enum ticket_method method;
    uint8_t sha256[32];
    uint64_t max_bytes; /* of the blob; for PUT its exact or maximum size */
    uint64_t expires_s; /* by the server's monotonic clock */
    uint64_t holder;    /* to which it was given: a number chosen by the server */
};

/* The key of a boot (clock_boot()), from a secret that stays. */
void ticket_key(const uint8_t secret[TICKET_KEY_BYTES], const char *boot,
                uint8_t ret_key[TICKET_KEY_BYTES]);

/* Writes "/v1/blobs/<hex>?m=...". */
void ticket_path(const uint8_t key[TICKET_KEY_BYTES], const struct ticket *t,
                 char ret_path[TICKET_PATH_MAX]);

/* Checks a presented ticket.  `query` is everything after '?'.
 * -ERR_AUTH: absent, forged, expired or for something else (err says which). */
int ticket_check(const uint8_t key[TICKET_KEY_BYTES], enum ticket_method method,
                 const uint8_t sha256[32], const char *query, uint64_t now_s, struct ticket *ret,
                 struct err *err);

#endif
