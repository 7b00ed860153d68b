/* The GnuTLS side of conn.h: credentials, sessions, the pin.  For conn.c only. */
#ifndef COMMON_NET_CONN_TLS_H
#define COMMON_NET_CONN_TLS_H

#include <gnutls/gnutls.h>
#include <stdint.h>

struct conn_tls;
struct err;

/* A session of TLS 1.3 and nothing else, for a non-blocking transport. */
int conn_tls_session(const struct conn_tls *tls, gnutls_session_t *ret, struct err *err);

/* After the handshake: -ERR_AUTH unless the peer's public key hashes to pin. */
int conn_tls_check_pin(gnutls_session_t session, const uint8_t pin[32], struct err *err);

#endif
