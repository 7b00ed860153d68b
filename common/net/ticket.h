/* Tickets: short-lived signed URLs for one blob, one method and one holder.
 *
 *     /v1/blobs/<sha256>?m=PUT&max=1048576&exp=70321&by=5&sig=<hmac, 64 hex>
 *
 * sig = HMAC-SHA256(key, method, sha256, max, exp, by).  Only the server that made
 * a ticket checks it, so only its own clock matters: the monotonic one of its machine, which no
 * step of the time moves.  A ticket from before a start of the machine has expired.  A PUT ticket
 * also allows to ask how much has arrived; a GET ticket also allows HEAD. Pure functions, any
 * thread. */
#ifndef COMMON_NET_TICKET_H
#define COMMON_NET_TICKET_H

#include "common/base/base.h"

#define TICKET_KEY_BYTES 32
#define TICKET_LIFE_S 3600  /* no ticket has longer */
#define TICKET_PATH_MAX 256 /* longest path with query, with the terminator */

/* What a ticket allows. */
enum ticket_method { TICKET_GET = 1, TICKET_PUT = 2 };

struct ticket {
    enum ticket_method method;
    uint8_t sha256[32];
    uint64_t max_bytes; /* of the blob; for PUT its exact or highest size */
    uint64_t expires_s; /* of the server's monotonic clock */
    uint64_t holder;    /* to which it was given: a number of its maker's */
};

/* Writes "/v1/blobs/<hex>?m=...". */
void ticket_path(const uint8_t key[TICKET_KEY_BYTES], const struct ticket *t,
                 char ret_path[TICKET_PATH_MAX]);

/* Checks the parts of a presented ticket.  `query` is everything behind '?'.
 * -ERR_AUTH: absent, forged, expired or for something else (err says which). */
int ticket_check(const uint8_t key[TICKET_KEY_BYTES], enum ticket_method method,
                 const uint8_t sha256[32], const char *query, uint64_t now_s, struct ticket *ret,
                 struct err *err);

#endif
