/* Serves fetched blobs to workers of the same site: GET /v1/blobs/{sha256} over TLS with the
 * worker's own key, for workers that the coordinator redirects here with a ticket (docs/store.md).
 *
 *   in the cache                     it is sent
 *   being fetched, and bytes came in the last 10 s
 *                                    the request waits for it, at most 3 s, and is then told to
 *                                    ask again
 *   else                             404: the client asks the coordinator
 *
 * Bounded: 32 connections, 64 waiting requests, and a neighbour gets a blob at most four times.
 * Loop thread. */
#ifndef WORKER_SHARE_H
#define WORKER_SHARE_H

#include "common/base/base.h"
#include "worker/link/session.h"

struct cache;
struct keys;
struct loop;
struct share;

#define SHARE_SITE_MAX 64
#define SHARE_HOST_MAX 45

/* site and at, from --share and --share-at: "SITE"; "HOST[:PORT]", IPv6 in brackets, or NULL: the
 * source address of packets to the coordinator, and any free port. */
struct share_options {
    struct loop *loop;
    struct cache *cache;
    const struct keys *keys;
    const char *site, *at;
    const char *coordinator; /* its host */
};

int share_open(const struct share_options *o, struct share **ret, struct err *err);
void share_close(struct share *s); /* accepts NULL */

/* For session_options.share.  The session writes the coordinator's clock to it, by which tickets
 * expire. */
struct session_share *share_word(struct share *s);

#endif
