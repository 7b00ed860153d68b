/* SHA-256, HMAC, random bytes and text codecs, by GnuTLS.  Any thread; a struct
 * hash is used by one at a time. */
#ifndef COMMON_BASE_HASH_H
#define COMMON_BASE_HASH_H

#include "common/base/base.h"

#define HASH_BYTES 32
#define HASH_HEX_MAX 65 /* with the terminator */

/* Incremental SHA-256.  init allocates; release it, or final, which releases. */
struct hash {
    void *impl;
};
void hash_init(struct hash *h);
void hash_update(struct hash *h, const void *data, size_t len);
void hash_final(struct hash *h, uint8_t out[HASH_BYTES]);
void hash_release(struct hash *h); /* after final: harmless */

/* In one call: of memory; of a whole file (read in pieces; ret_size may be NULL); keyed. */
void hash_sha256(const void *data, size_t len, uint8_t out[HASH_BYTES]);
int hash_file(const char *path, uint8_t out[HASH_BYTES], uint64_t *ret_size, struct err *err);
/* Of a file, until stop(arg), which is asked before each piece, is true: -ERR_CANCELLED.  stop may
 * be NULL. */
int hash_file_until(const char *path, bool (*stop)(void *arg), void *arg, uint8_t out[HASH_BYTES],
                    uint64_t *ret_size, struct err *err);
void hash_hmac(const void *key, size_t key_len, const void *data, size_t len,
               uint8_t out[HASH_BYTES]);

/* Random bytes from the system's generator; aborts if there is none. */
void hash_random(void *out, size_t len);

/* Compares in constant time. */
bool hash_equal(const void *a, const void *b, size_t len);

/* Lower-case hex; out has 2*len+1 bytes.  unhex expects exactly 2*len digits,
 * else -EINVAL. */
char *hash_hex(const void *data, size_t len, char *out);
int hash_unhex(const char *hex, void *out, size_t len);

/* base64url without padding (RFC 4648).  The size macro counts the terminator.
 * decode: strict (no padding, no stray bits); -EINVAL, or -ERR_LIMIT if out is
 * too small. */
#define HASH_B64_MAX(len) (((len)*4 + 2) / 3 + 1)
/* out of hash_b64url has HASH_B64_MAX(len) bytes, and is returned. */
char *hash_b64url(const void *data, size_t len, char *out);
int hash_unb64url(const char *text, void *out, size_t out_size, size_t *ret_len);

#endif
