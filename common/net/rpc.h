/* Remote calls over TLS 1.3: many small requests in flight on one connection.
 *
 *   client                                   server
 *     | TCP, TLS 1.3 (client pins the key)     |
 *     | Hello {versions, proof} -------------> |  checks version, then proof
 *     | <--- Hello {version, ...} | Error      |
 *     | request id 7, id 8, id 9 ------------> |  table: method -> handler
 *     | <------------ reply 8, error 7, ...    |  in any order; 9 may wait (long poll)
 *
 * Everything here runs on the loop thread.  Each call has an id, a deadline and
 * exactly one completion: reply, error or cancel.  Nothing is parsed before
 * the TLS handshake is over; before the proof only one frame of at most 4 KiB
 * is read.  The proof is HMAC-SHA256(secret, material exported from this TLS
 * session): the secret itself is never sent, and a recorded proof is useless.
 * A client may also have a key, which it proves in the handshake.
 * Many frames written in one turn of the loop leave as one TLS record.
 *
 * Lost connections: calls in flight complete with -ECONNRESET, and the client
 * redials with jittered backoff.  It does not repeat calls: requests are
 * idempotent, and the caller knows which still matter.
 *
 * Method numbers: 1 is Hello, up to RPC_METHOD_FIRST - 1 reserved. */
#ifndef COMMON_NET_RPC_H
#define COMMON_NET_RPC_H

#include "common/base/base.h"
#include "common/net/keys.h"

#include <protobuf-c/protobuf-c.h>

struct keys;
struct loop;
struct token;
struct rpc_server;
struct rpc_peer;    /* a client's authenticated connection, at the server */
struct rpc_request; /* a request that awaits its answer */
struct rpc_client;

#define RPC_METHOD_HELLO 1
#define RPC_METHOD_FIRST 16
#define RPC_VERSION_MIN 1 /* protocol versions this build speaks */
#define RPC_VERSION_MAX 1

/* Bytes at the socket (TLS included), and frames read and written. */
struct rpc_counters {
    uint64_t bytes_in, bytes_out;
    uint64_t frames_in, frames_out;
};

/* ---- server ---- */

/* One method.  The message is valid during the handler only; the request
 * belongs to the handler until it is answered, at once or later, by exactly
 * one of rpc_reply() and rpc_fail(). */
typedef void (*rpc_handler)(void *arg, struct rpc_request *req, const ProtobufCMessage *msg);

struct rpc_method {
    uint16_t method; /* RPC_METHOD_FIRST or more */
    const char *name;
    const ProtobufCMessageDescriptor *request;
    unsigned roles; /* mask of the roles (rpc_authenticate_fn) that may call it */
    rpc_handler handle;
};

/* The identity that a client has proved. */
struct rpc_claim;
/* The fingerprint of the client's key, as keys_pin(); NULL: it has shown none. */
const uint8_t *rpc_claim_key(const struct rpc_claim *c);
/* Whether the client has proved to know the secret. */
bool rpc_claim_proves(const struct rpc_claim *c, const uint8_t secret[KEYS_SECRET_BYTES]);

/* The client's role, one bit of enum token_role, and the id of the token that grants it.  0:
 * refused; the client is sent err's code and sentence. */
typedef unsigned (*rpc_authenticate_fn)(void *arg, const struct rpc_claim *c, uint64_t *ret_token,
                                        struct err *err);

/* Zero means the default in brackets. */
struct rpc_server_options {
    const char *host;        /* address to bind ["0.0.0.0"] */
    uint16_t port;           /* 0: any free port */
    const struct keys *keys; /* kept until close */
    rpc_authenticate_fn authenticate;
    const struct rpc_method *methods; /* kept until close */
    unsigned method_count;
    const char *build_id; /* kept until close; shown in errors */
    uint8_t cluster_id[16];
    uint32_t min_version, max_version; /* [RPC_VERSION_MIN, RPC_VERSION_MAX] */
    unsigned max_connections;          /* authenticated [1024]; more are told to retry later */
    unsigned max_strangers;            /* not authenticated yet [512], see strangers.h */
    unsigned max_waiting;   /* unread, waiting for such a place [8192; less with few descriptors] */
    unsigned max_in_flight; /* requests per connection [16384] */
    uint32_t max_body_bytes; /* [64 KiB] */
    /* Replies queued per connection [1 MiB]; above it reading stops, at 8 times
     * it the peer is cut. */
    size_t max_queue_bytes;
    /* TLS and Hello together [3 s]; three times as long while half of the places are free. */
    uint32_t handshake_ms;
    uint32_t idle_ms; /* a peer silent for longer is cut; 0: never */
    void *arg;        /* passed to all callbacks */
    void (*on_open)(void *arg, struct rpc_peer *peer); /* authenticated */
    /* The peer is freed after it.  Its unanswered requests stay with their
     * handlers; answering them is allowed and has no effect. */
    void (*on_close)(void *arg, struct rpc_peer *peer, const struct err *why);
};

int rpc_server_open(struct loop *loop, const struct rpc_server_options *o, struct rpc_server **ret,
                    struct err *err);
uint16_t rpc_server_port(const struct rpc_server *s);                /* the bound one */
unsigned rpc_server_connections(const struct rpc_server *s);         /* for tests */
struct rpc_counters rpc_server_counters(const struct rpc_server *s); /* all peers, ever */

/* Stops listening and cuts all peers (on_close is called for each).  Requests
 * not answered yet must still be answered, before loop_free(). */
void rpc_server_close(struct rpc_server *s); /* accepts NULL */

/* Answers.  Each ends the request: the pointer is invalid afterwards.
 * rpc_reply() packs msg before it returns. */
void rpc_reply(struct rpc_request *req, const ProtobufCMessage *msg);
void rpc_fail(struct rpc_request *req, int code, bool retryable, uint32_t retry_after_ms,
              const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* From now on an answer is kept instead of sent, and the request stays open until
 * rpc_request_send() sends the kept answer.  rpc_request_again() discards it, and the request is
 * unanswered again. */
void rpc_request_hold(struct rpc_request *req);
void rpc_request_send(struct rpc_request *req);
void rpc_request_again(struct rpc_request *req);

/* NULL when the connection is gone. */
struct rpc_peer *rpc_request_peer(const struct rpc_request *req);
/* Calls fn once if the connection closes before the answer; the request must
 * still be answered (with anything).  fn NULL removes the callback. */
void rpc_request_on_gone(struct rpc_request *req, void (*fn)(void *arg, struct rpc_request *req),
                         void *arg);

const char *rpc_peer_address(const struct rpc_peer *p);  /* "192.0.2.1:51234" */
unsigned rpc_peer_role(const struct rpc_peer *p);        /* for tests */
const uint8_t *rpc_peer_key(const struct rpc_peer *p);   /* as rpc_claim_key() */
uint64_t rpc_peer_token(const struct rpc_peer *p);       /* as rpc_authenticate_fn gave it */
const char *rpc_peer_build_id(const struct rpc_peer *p); /* for tests */
/* A pointer of the server's user. */
void rpc_peer_set_user(struct rpc_peer *p, void *user);
void *rpc_peer_user(const struct rpc_peer *p);
/* Sends the queue and closes; on_close follows in a later turn. */
void rpc_peer_kick(struct rpc_peer *p, const char *why);

/* ---- client ---- */

enum rpc_state {
    RPC_CONNECTING,   /* dialling, or waiting to redial */
    RPC_CONNECTED,    /* authenticated; calls go through */
    RPC_DISCONNECTED, /* reported once per loss or failed try, then CONNECTING */
    RPC_FAILED,       /* for good: wrong key, secret or version; `why` says which.  But a wrong key
                       * after a good connection is a failed try: the server may return */
};

typedef void (*rpc_state_fn)(void *arg, enum rpc_state state, const struct err *why);

struct rpc_client_options {
    const struct token *token;         /* address, pin and secret; copied */
    const struct keys *keys;           /* its own key, only read here; NULL: none */
    const char *build_id;              /* kept until close */
    uint32_t min_version, max_version; /* [RPC_VERSION_MIN, RPC_VERSION_MAX] */
    uint32_t connect_ms;               /* TCP, TLS and Hello together [10 s], after the look-up */
    /* Bounds of the wait between dials [200, 10000]: a sixteenth of the time without a server.  The
     * lower one doubles up to four times while the server cuts handshakes, as a crowded one does.
     */
    uint32_t backoff_min_ms, backoff_max_ms;
    unsigned max_in_flight;  /* calls [16384] */
    uint32_t max_body_bytes; /* [64 KiB] */
    size_t max_queue_bytes;  /* requests queued unsent [1 MiB] */
    rpc_state_fn on_state;   /* may be NULL */
    void *arg;
};

/* The outcome of a call, valid only during the callback. */
struct rpc_result {
    int code; /* 0, or negative: the peer's code, -ETIMEDOUT, -ECONNRESET, -ERR_CANCELLED */
    const ProtobufCMessage *reply; /* when code is 0 */
    const char *detail;            /* one sentence when code is not 0, else "" */
    bool remote;                   /* the peer answered; false: there was no answer */
    bool retryable;
    uint32_t retry_after_ms;
};

typedef void (*rpc_done_fn)(void *arg, const struct rpc_result *r);

/* Starts to dial; on_state reports the progress.  Of a host's addresses it dials the one where it
 * was connected last, and after a failure the next. */
int rpc_client_open(struct loop *loop, const struct rpc_client_options *o, struct rpc_client **ret,
                    struct err *err);

/* Calls in flight complete with -ERR_CANCELLED before it returns; no callback
 * follows. */
void rpc_client_close(struct rpc_client *c); /* accepts NULL */

/* Sends a request.  0: done follows exactly once, never from within this call.
 *   -ENOTCONN  not connected now      -EAGAIN    a queue is full, retry later
 *   -ERR_LIMIT the request is larger than max_body_bytes
 * deadline_ms 0 means none (the connection's end still completes the call).
 * ret_id may be NULL. */
int rpc_client_call(struct rpc_client *c, uint16_t method, const ProtobufCMessage *msg,
                    const ProtobufCMessageDescriptor *reply, uint32_t deadline_ms, rpc_done_fn done,
                    void *arg, uint64_t *ret_id);

/* Completes the call with -ERR_CANCELLED before it returns; unknown ids are ignored.
 * The server may still do the work. */
void rpc_client_cancel(struct rpc_client *c, uint64_t id);

enum rpc_state rpc_client_state(const struct rpc_client *c); /* as last passed to on_state */
unsigned rpc_client_in_flight(const struct rpc_client *c);   /* for tests */
struct rpc_counters rpc_client_counters(const struct rpc_client *c); /* all connections */
const char *rpc_client_server_build_id(const struct rpc_client *c); /* for tests; "" before Hello */
/* From the next dial on, uses this token's host and ports, which must be of the same server, and of
 * the host's addresses first that one, counted from 0 round and round. */
void rpc_client_move(struct rpc_client *c, const struct token *token, unsigned address);
/* Drops the connection and redials now (tests). */
void rpc_client_reconnect(struct rpc_client *c);

/* The code of an envelope Error for a negative code of err.h, and back. */
uint32_t rpc_code_to_wire(int code);
int rpc_code_from_wire(uint32_t wire);

#endif
