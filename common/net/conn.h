/* One TLS 1.3 connection: GnuTLS over a libuv TCP socket.
 *
 *   CONNECTING -> HANDSHAKE -> OPEN -> FINISHING -> CLOSED
 *                                 (flushing)       on_close, then freed
 *
 * All on the loop thread.  Nothing is handed to on_data before the handshake
 * is over and, at a client, the server's public key matches the pin.  Writes
 * made in one turn of the loop leave together, in as few records as possible.
 * Every conn ends with exactly one on_close (never from within a call into the
 * conn), unless it is closed by conn_discard(); its memory is gone after that. */
#ifndef COMMON_NET_CONN_H
#define COMMON_NET_CONN_H

#include <uv.h>

#include "common/base/base.h"

struct conn;
struct conn_tls;
struct keys;
struct loop;

#define CONN_EXPORT_BYTES 32
#define CONN_ADDRESS_MAX 64

/* Credentials, shared by connections; outlive them. */
int conn_tls_server(const struct keys *keys, struct conn_tls **ret, struct err *err);
/* keys: what a client shows when it is asked; NULL: nothing. */
int conn_tls_client(const struct keys *keys, struct conn_tls **ret, struct err *err);
void conn_tls_free(struct conn_tls *tls); /* accepts NULL */

struct conn_events {
    void (*on_open)(void *arg);
    /* Bytes that have not been consumed yet; returns how many are now.  They are
     * offered again, with more behind them, at the next arrival. */
    size_t (*on_data)(void *arg, const uint8_t *data, size_t len);
    /* The queue, which was full, is below half again. */
    void (*on_drain)(void *arg);
    void (*on_close)(void *arg, const struct err *why);
};

struct conn_options {
    const struct conn_tls *tls;
    const struct conn_events *events; /* kept */
    void *arg;
    size_t max_queue_bytes;  /* full above it; at 8 times it the connection is cut */
    size_t max_unread_bytes; /* most that on_data may leave unconsumed */
    uint32_t deadline_ms;    /* to be open, and until conn_no_deadline() */
    bool waits;              /* accepted, and nothing is read or made for it before conn_begin() */
};

/* Takes the next connection of a listening socket. */
int conn_accept(struct loop *loop, uv_stream_t *listener, const struct conn_options *o,
                struct conn **ret, struct err *err);

/* One that waits does so no longer; it has so long to be open. */
void conn_begin(struct conn *c, uint32_t deadline_ms);

/* Dials.  `attempt` counts up so that a name with several addresses has each of
 * them tried in turn.  Failures of the network come through on_close. */
int conn_connect(struct loop *loop, const char *host, uint16_t port, unsigned attempt,
                 const uint8_t pin[32], const struct conn_options *o, struct conn **ret,
                 struct err *err);

/* Room for len bytes at the end of the queue; write them before anything else
 * is called.  -EAGAIN: full. -ENOMEM.  `force` ignores fullness up to the cut. */
int conn_reserve(struct conn *c, size_t len, bool force, uint8_t **ret);
bool conn_is_full(const struct conn *c);

/* Reading stops and goes on; what was read already is still delivered. */
void conn_pause(struct conn *c, bool pause);

void conn_no_deadline(struct conn *c);
/* Fingerprint of the key that the client has shown and proved to have, as keys_pin(); NULL: none.
 */
const uint8_t *conn_peer_key(const struct conn *c);
/* Keying material of this session (RFC 5705), equal at both ends. */
int conn_export(struct conn *c, uint8_t ret_bytes[CONN_EXPORT_BYTES], struct err *err);

/* Sends what is queued (for at most 5 s), then closes; no more on_data. */
void conn_finish(struct conn *c, const struct err *why);
void conn_close(struct conn *c, const struct err *why);
/* Closes without a callback. */
void conn_discard(struct conn *c);

/* Of the other side, "192.0.2.1:51234". */
const char *conn_address(const struct conn *c);
const struct sockaddr *conn_sockaddr(const struct conn *c); /* family 0: not known */
uint64_t conn_bytes_in(const struct conn *c);
uint64_t conn_bytes_out(const struct conn *c);

#endif
