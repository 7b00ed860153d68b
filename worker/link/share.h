/* What a worker has fetched, for workers of its site: GET /v1/blobs/{sha256} over TLS with the
 * worker's own key, for those that the coordinator leads here with a ticket (docs/store.md).
 *
 *   in the cache                     it is sent
 *   on its way here, some bytes came in the last 10 s
 *                                    the request waits for it, at most 3 s, and is then told to
 *                                    ask again
 *   else                             404: the coordinator is asked
 *
 * Bounded: 32 connections, 64 requests that wait, and one neighbour gets a blob four times at most.
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

/* --share and --share-at: "SITE"; "HOST[:PORT]", IPv6 in brackets, or NULL: the address that
 * packets to the coordinator leave from, and any free port. */
struct share_options {
    struct loop *loop;
    struct cache *cache;
    const struct keys *keys;
    const char *site, *at;
    const char *coordinator; /* its host */
};

int share_open(const struct share_options *o, struct share **ret, struct err *err);
void share_close(struct share *s); /* accepts NULL */

/* For session_options.share, which writes the coordinator's clock there: its tickets end by it. */
struct session_share *share_word(struct share *s);

#endif
