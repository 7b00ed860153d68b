/* The key of a daemon, and the secrets of a server, made on first start.
 *
 *   DIR/tls-key.pem    ECDSA P-256 private key, mode 0600
 *   DIR/tls-cert.pem   self-signed certificate of that key
 *   DIR/NAME.secret    32 random bytes in hex, mode 0600
 *
 * Clients pin the SHA-256 of the server's public key (SubjectPublicKeyInfo, DER), and a server
 * knows workers by the hash of theirs, so no certificate authority is needed, and the certificate's
 * dates and names do not matter.  P-256, because browsers accept no Ed25519 certificates.  If the
 * files are lost, all tokens given out so far are useless. */
#ifndef COMMON_NET_KEYS_H
#define COMMON_NET_KEYS_H

#include "common/base/base.h"

struct keys;

#define KEYS_PIN_BYTES 32
#define KEYS_SECRET_BYTES 32

/* Loads the key and certificate in `dir`, or makes them when neither exists.  A missing certificate
 * is made anew, with the same pin; a missing key, or one that others may read, is an error. */
int keys_open(const char *dir, struct keys **ret, struct err *err);
void keys_free(struct keys *keys); /* accepts NULL */

/* Fingerprint of the public key; KEYS_PIN_BYTES, borrowed from keys. */
const uint8_t *keys_pin(const struct keys *keys);

/* PEM texts, terminated, borrowed from keys. */
const char *keys_key_pem(const struct keys *keys);
const char *keys_cert_pem(const struct keys *keys);

/* Loads DIR/NAME.secret, or makes it. */
int keys_secret(const char *dir, const char *name, uint8_t ret_secret[KEYS_SECRET_BYTES],
                struct err *err);

#endif
