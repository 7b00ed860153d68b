/* Blobs over HTTP: the data plane's server side.
 *
 *   GET, HEAD /v1/blobs/{sha256}   by GET ticket or a role; Range, ETag
 *   PUT       /v1/blobs/{sha256}   by PUT ticket; the body is the blob
 *
 * PUT answers 201 {"sha256","size"} when the blob is durable, 200 when it was
 * there already.  A cut upload is kept and resumed: `Content-Range: bytes
 * 1000-1999/2000` continues at 1000; an empty PUT with `Content-Range: bytes
 * * /2000` (no space) asks, and is answered 308 with `Range: bytes=0-999` or
 * none.  A piece that does not start where the last ended is refused with 409;
 * content that does not match its name with 422 `hash_mismatch`, and
 * what had arrived is dropped.
 *
 * A blob that is far away is brought here before it is sent: 503 where that cannot be done now.
 *
 * A client that sends `Skerry-Store: follow` moves bytes between itself and the store where it can
 * (docs/store.md): its GET, and its PUT that asks, are then answered 307 with a `Location` there,
 * which is good for one request and a few minutes.  A GET of what the store is about to have waits
 * for that, at most 10 s, and is then told to ask again.  After its PUT there it asks here again,
 * with `Skerry-Store: done`: the store is looked at, and the answer is that of any PUT that asks,
 * or 422 where other bytes are there.
 *
 * An answer of 503 with `Skerry-Store: wait`, which any client may get, is no failure: what was
 * asked for is under way.
 *
 * A client that sends `Skerry-Near: follow` may be led to another client that has the blob: 307
 * with a `Location` there and `Skerry-Pin`, the key that it shows, in hex.  With such a key in
 * place of `follow` it says which one has failed, and with `again` that it was told to wait there:
 * then it is not counted as served once more.
 */
#ifndef COMMON_NET_HTTP_BLOB_HTTP_H
#define COMMON_NET_HTTP_BLOB_HTTP_H

#include "common/base/base.h"
#include "common/net/ticket.h"

struct blob_http;
struct blob_id;
struct blobstore;
struct http_request;
struct http_server;
struct loop;
struct pool;

#define BLOB_NEAR_AGAIN "again"

/* What sends the bytes that a GET is answered with. */
enum blob_sender { BLOB_BY_US, BLOB_BY_STORE, BLOB_BY_NEIGHBOUR };

/* A neighbour that has a blob. */
struct blob_neighbour {
    char url[96 + TICKET_PATH_MAX];
    char pin[65];
};

struct blob_http_options {
    struct loop *loop;       /* of the server */
    struct blobstore *store; /* kept until close */
    struct pool *pool;       /* commits run here; kept until close */
    struct pool *far;        /* and what waits for a store far away; not asked of a directory */
    uint32_t away_wait_ms;   /* until the store has what it is about to have [10 s] */
    uint8_t key[TICKET_KEY_BYTES]; /* signs tickets */
    /* May this role GET this blob without a ticket?  NULL: nobody. */
    bool (*may_get)(void *arg, unsigned role, const struct blob_id *id);
    /* Does the holder of a ticket still count?  NULL: for as long as the ticket. */
    bool (*holds)(void *arg, uint64_t holder);
    /* After a PUT became durable (may be NULL); here: its bytes came this way. */
    void (*on_stored)(void *arg, const struct blob_id *id, uint64_t size, bool here);
    /* When a GET begins to be answered, ranges count whole (may be NULL). */
    void (*on_served)(void *arg, const struct blob_id *id, uint64_t size, enum blob_sender from);
    /* The neighbour that the holder of a ticket is led to for a blob that is here; false: none.
     * asks: the holder's `Skerry-Near`, or NULL: it is sent the blob, and may have it from now on.
     * May be NULL. */
    bool (*neighbour)(void *arg, const struct blob_id *id, uint64_t size, uint64_t holder,
                      const char *asks, struct blob_neighbour *ret);
    void *arg;
};

/* Registers the routes at the server. */
int blob_http_open(struct http_server *server, const struct blob_http_options *o,
                   struct blob_http **ret, struct err *err);
/* After http_server_close() and pool_free(). */
void blob_http_close(struct blob_http *b); /* accepts NULL */

/* Path with query (append it to token_http_url()) of a ticket valid for
 * TICKET_LIFE_S, as long as its holder counts. */
void blob_http_ticket(const struct blob_http *b, enum ticket_method method,
                      const struct blob_id *id, uint64_t max_bytes, uint64_t holder,
                      char ret_path[TICKET_PATH_MAX]);

/* Is a ticket with the request, of this key?  A client that serves others asks the same. */
int blob_http_check(const uint8_t key[TICKET_KEY_BYTES], struct http_request *r,
                    enum ticket_method method, const struct blob_id *id, uint64_t now_s,
                    struct ticket *ret, struct err *err);

struct blob_http_counters {
    uint64_t bytes_in, bytes_out; /* blob bytes; requests served for GET count whole */
    uint64_t gets, puts, rejected;
    uint64_t sent_away; /* answers that lead to the store */
    uint64_t sent_near; /* and to neighbours */
};
struct blob_http_counters blob_http_counters(const struct blob_http *b);

#endif
