/* Bytes that connections move, mainly libcurl's, read from the sockets themselves
 * (TCP_INFO): including TLS framing, handshakes and retransmissions.
 *
 * A socket_bytes outlives all connections of its CURLM.  One thread. */
#ifndef COMMON_NET_HTTP_SOCKET_BYTES_H
#define COMMON_NET_HTTP_SOCKET_BYTES_H

#include <curl/curl.h>

#include "common/base/base.h"

#define SOCKET_BYTES_OPEN_MAX 64 /* open at once; further sockets are counted when they close */

struct socket_bytes {
    curl_socket_t open[SOCKET_BYTES_OPEN_MAX];
    unsigned n_open;
    uint64_t in, out; /* of closed sockets */
};

/* Makes this handle's connections count here. */
void socket_bytes_attach(struct socket_bytes *b, CURL *easy);

/* Opens a socket that counts here: for a handle whose own callback opens its sockets. */
curl_socket_t socket_bytes_open(struct socket_bytes *b, const struct curl_sockaddr *address);

/* Adds what one open socket has moved. */
void socket_bytes_add(int fd, uint64_t *in, uint64_t *out);

/* Whether the other end has acknowledged all bytes written to the connection on which the handle's
 * present request travels.  False also where that is none that counts here. */
bool socket_bytes_delivered(const struct socket_bytes *b, CURL *easy);

/* Bytes written to that connection that the other end has not acknowledged; 0 also where that is
 * none that counts here. */
uint64_t socket_bytes_queued(const struct socket_bytes *b, CURL *easy);

/* The bytes up to now, of closed and open sockets. */
void socket_bytes_read(const struct socket_bytes *b, uint64_t *ret_in, uint64_t *ret_out);

#endif
