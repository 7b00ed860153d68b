/* Blobs over HTTP: the data plane's server side.
 *
 *   GET, HEAD /v1/blobs/{sha256}   by GET ticket or a role; Range, ETag
 *   PUT       /v1/blobs/{sha256}   by PUT ticket; the body is the blob
 *
 * PUT answers 201 {"sha256","size"} when the blob is durable, 200 when it was
 * there already.  A cut upload is kept and resumed: `Content-Range: bytes
 * 1000-1999/2000` continues at 1000; an empty PUT with `Content-Range: bytes
 * * /2000` (no space) asks for the state, and is answered 308 with `Range: bytes=0-999` or
 * none; or 201, if all bytes had come and only the commit was missing.  Where they
 * cannot be stored yet, the answer is 503 with the reason, they are kept, and the next
 * question tries again.  A piece that
 * does not start where the last one ended is refused with 409; content that does
 * not match its name is refused with 422 `hash_mismatch`, and the bytes that had
 * arrived are dropped.  So they are where more comes than the ticket allows: 413, or
 * the connection is cut.
 *
 * A blob far away is fetched before it is sent: 503 if that cannot be done now.
 *
 * A client that sends `Skerry-Store: follow` transfers directly with the store where it can
 * (docs/store.md): its GET, and its PUT that asks, are then answered 307 with a `Location` there,
 * valid for one request and a few minutes.  A GET of a blob that the store will have soon waits for
 * that, at most 10 s, and is then told to ask again.  After its PUT there, the client asks here
 * again, with `Skerry-Store: done`: we check the store, and answer as to any PUT that asks, or with
 * 422 if the store has other bytes.
 *
 * An answer of 503 with `Skerry-Store: wait`, which any client may get, is no failure: the
 * requested operation is under way.
 *
 * A GET may also be for a file that is still written (growing.h), which is waited for as for a blob
 * that the store will have soon.
 *
 * A client that sends `Skerry-Near: follow` may be redirected to another client that has the blob:
 * 307 with a `Location` there and `Skerry-Pin`, the hex pin of that client's key.  Such a pin in
 * place of `follow` names the neighbour that has failed; `again` says that the neighbour told the
 * client to wait, so that it is not counted as served twice. */
#ifndef COMMON_NET_HTTP_BLOB_HTTP_H
#define COMMON_NET_HTTP_BLOB_HTTP_H

#include "common/base/base.h"
#include "common/net/ticket.h"

struct blob_http;
struct blob_id;
struct blobstore;
struct growing;
struct http_request;
struct http_server;
struct loop;
struct pool;

#define BLOB_NEAR_AGAIN "again"

/* Who sends the bytes of a GET. */
enum blob_sender { BLOB_BY_US, BLOB_BY_STORE, BLOB_BY_NEIGHBOUR };

/* A neighbour that has a blob. */
struct blob_neighbour {
    char url[96 + TICKET_PATH_MAX];
    char pin[65];
};

struct blob_http_options {
    struct loop *loop;       /* of the server */
    struct blobstore *store; /* kept until close */
    struct pool *pool;       /* runs commits; kept until close */
    struct pool *far;        /* runs what waits for a store far away; unused with a directory */
    uint32_t away_wait_ms;   /* how long a GET waits until the store has the blob [10 s] */
    uint8_t key[TICKET_KEY_BYTES]; /* signs tickets */
    /* Whether this role may GET this blob without a ticket.  NULL: no role may. */
    bool (*may_get)(void *arg, unsigned role, const struct blob_id *id);
    /* Whether the holder of a ticket still has access.  NULL: for the ticket's life. */
    bool (*holds)(void *arg, uint64_t holder);
    /* Called after a PUT became durable (may be NULL); here: its bytes came through us. */
    void (*on_stored)(void *arg, const struct blob_id *id, uint64_t size, bool here);
    /* Called when a PUT of this ticket's holder is answered 503 or 507, after which it tries again
     * (may be NULL). */
    void (*on_full)(void *arg, uint64_t holder);
    /* Called when the answer to a GET begins; size: of the whole blob, also for ranges; holder: who
     * asked.  May be NULL. */
    void (*on_served)(void *arg, const struct blob_id *id, uint64_t size, uint64_t holder,
                      enum blob_sender from);
    /* The neighbour to which a ticket's holder is redirected for a blob that is here; false: none.
     * asks: the holder's `Skerry-Near`; NULL: it is sent the blob, and may serve it from now on.
     * May be NULL. */
    bool (*neighbour)(void *arg, const struct blob_id *id, uint64_t size, uint64_t holder,
                      const char *asks, struct blob_neighbour *ret);
    /* A file that is sent while it is written, under a name that no blob has: 0, a share of it, and
     * the number under which on_sent counts its bytes; -EAGAIN: it will be begun, -ERR_NOTFOUND:
     * there is none.  May be NULL. */
    int (*growing)(void *arg, const struct blob_id *id, struct growing **ret, uint64_t *ret_of);
    /* Called as bytes of such a file go out, each time it is sent, and only for those that do. */
    void (*on_sent)(void *arg, uint64_t of, uint64_t bytes);
    void *arg;
};

/* Registers the routes at the server. */
int blob_http_open(struct http_server *server, const struct blob_http_options *o,
                   struct blob_http **ret, struct err *err);
/* To be called after http_server_close() and pool_free(). */
void blob_http_close(struct blob_http *b); /* accepts NULL */

/* Path with query (append it to token_http_url()) of a ticket valid for
 * TICKET_LIFE_S, as long as its holder counts. */
void blob_http_ticket(const struct blob_http *b, enum ticket_method method,
                      const struct blob_id *id, uint64_t max_bytes, uint64_t holder,
                      char ret_path[TICKET_PATH_MAX]);

/* Checks the ticket of a request against this key; also for clients that serve others. */
int blob_http_check(const uint8_t key[TICKET_KEY_BYTES], struct http_request *r,
                    enum ticket_method method, const struct blob_id *id, uint64_t now_s,
                    struct ticket *ret, struct err *err);

struct blob_http_counters {
    uint64_t bytes_in, bytes_out; /* blob bytes; a GET counts the whole blob, if it is one */
    uint64_t gets, puts, rejected;
    uint64_t sent_away; /* redirects to the store */
    uint64_t sent_near; /* redirects to neighbours */
};
struct blob_http_counters blob_http_counters(const struct blob_http *b);

#endif
