/* One TLS 1.3 connection: GnuTLS over a libuv TCP socket.
 *
 *   CONNECTING -> HANDSHAKE -> OPEN -> FINISHING -> CLOSED
 *                                 (flushing)       on_close, then freed
 *
 * All on the loop thread.  on_data gets nothing before the handshake is over
 * and, at a client, the server's public key matches the pin.  Writes made in
 * one turn of the loop leave together, in as few records as possible.
 * Every conn ends with exactly one on_close (never from within a call into the
 * conn), unless it is closed by conn_discard(); its memory is freed after that. */
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

/* Credentials, shared by connections; they must outlive them. */
int conn_tls_server(const struct keys *keys, struct conn_tls **ret, struct err *err);
/* keys: the client's own, shown when the server asks; NULL: none. */
int conn_tls_client(const struct keys *keys, struct conn_tls **ret, struct err *err);
void conn_tls_free(struct conn_tls *tls); /* accepts NULL */

struct conn_events {
    void (*on_open)(void *arg);
    /* Gets all bytes not consumed yet; returns how many it consumes now.  The
     * rest is offered again, followed by new bytes, at the next arrival. */
    size_t (*on_data)(void *arg, const uint8_t *data, size_t len);
    /* The queue was full and is below half again. */
    void (*on_drain)(void *arg);
    void (*on_close)(void *arg, const struct err *why);
};

struct conn_options {
    const struct conn_tls *tls;
    const struct conn_events *events; /* kept */
    void *arg;
    size_t max_queue_bytes;  /* above it the queue is full; at 8 times it the connection is cut */
    size_t max_unread_bytes; /* the most that on_data may leave unconsumed */
    uint32_t deadline_ms;    /* until it is open and conn_no_deadline() was called */
    bool waits;              /* accepted, but nothing is read or allocated before conn_begin() */
};

/* Takes the next connection of a listening socket. */
int conn_accept(struct loop *loop, uv_stream_t *listener, const struct conn_options *o,
                struct conn **ret, struct err *err);

/* Begins a connection that waits; its deadline runs from now. */
void conn_begin(struct conn *c, uint32_t deadline_ms);

/* Dials.  The caller counts `attempt` up, so that all addresses of a name are tried
 * in turn.  The deadline runs from when the name's address is known, for which there is three times
 * as much: a resolver tries a second server after 5 s, and each twice.  Failures of the network
 * come through on_close. */
int conn_connect(struct loop *loop, const char *host, uint16_t port, unsigned attempt,
                 const uint8_t pin[32], const struct conn_options *o, struct conn **ret,
                 struct err *err);

/* Room for len bytes at the end of the queue; write them before anything else
 * is called.  -EAGAIN: full. -ENOMEM.  `force` ignores fullness up to the cut. */
int conn_reserve(struct conn *c, size_t len, bool force, uint8_t **ret);
bool conn_is_full(const struct conn *c);

/* Stops or resumes reading; bytes already read are still delivered. */
void conn_pause(struct conn *c, bool pause);

void conn_no_deadline(struct conn *c);
/* Fingerprint, as keys_pin(), of the key that the client has shown and proved to have; NULL: none.
 */
const uint8_t *conn_peer_key(const struct conn *c);
/* Keying material of this session (RFC 5705), equal at both ends. */
int conn_export(struct conn *c, uint8_t ret_bytes[CONN_EXPORT_BYTES], struct err *err);

/* Sends the queue (for at most 5 s), then closes; on_data is not called any more. */
void conn_finish(struct conn *c, const struct err *why);
void conn_close(struct conn *c, const struct err *why);
/* Closes without a callback. */
void conn_discard(struct conn *c);

/* The address of the other side, "192.0.2.1:51234". */
const char *conn_address(const struct conn *c);
const struct sockaddr *conn_sockaddr(const struct conn *c); /* family 0: unknown */
uint64_t conn_bytes_in(const struct conn *c);
uint64_t conn_bytes_out(const struct conn *c);

#endif
