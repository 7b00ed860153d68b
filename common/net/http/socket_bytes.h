/* Bytes that connections move, libcurl's above all, read off the sockets themselves
 * (TCP_INFO): TLS framing, handshakes and retransmissions included.
 *
 * A socket_bytes outlives all connections of its CURLM.  One thread. */
#ifndef COMMON_NET_HTTP_SOCKET_BYTES_H
#define COMMON_NET_HTTP_SOCKET_BYTES_H

#include <curl/curl.h>

#include "common/base/base.h"

#define SOCKET_BYTES_OPEN_MAX 64 /* open at once; what is beyond is counted when it closes */

struct socket_bytes {
    curl_socket_t open[SOCKET_BYTES_OPEN_MAX];
    unsigned n_open;
    uint64_t in, out; /* of sockets that are closed */
};

/* Makes this handle's connections count here. */
void socket_bytes_attach(struct socket_bytes *b, CURL *easy);

/* Opens a socket that counts: for a handle whose own callback opens them. */
curl_socket_t socket_bytes_open(struct socket_bytes *b, const struct curl_sockaddr *address);

/* Adds what one open socket has moved. */
void socket_bytes_add(int fd, uint64_t *in, uint64_t *out);

/* Has the other end acknowledged all that was written to the socket? */
bool socket_bytes_delivered(int fd);

/* Up to now: closed and open sockets. */
void socket_bytes_read(const struct socket_bytes *b, uint64_t *ret_in, uint64_t *ret_out);

#endif
