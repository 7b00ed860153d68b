#include "common/base/hash.h"

#include <fcntl.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <unistd.h>

#include "common/base/pieces.h"

/* GnuTLS fails here only without memory or in a broken FIPS set-up: neither can
 * be handled better than by stopping. */
static void must(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "%s: %s: aborting\n", what, gnutls_strerror(rc));
        abort();
    }
}

void hash_init(struct hash *h)
{
    gnutls_hash_hd_t handle;
    must(gnutls_hash_init(&handle, GNUTLS_DIG_SHA256), "sha256");
    h->impl = handle;
}

void hash_update(struct hash *h, const void *data, size_t len)
{
    if (len)
        must(gnutls_hash(h->impl, data, len), "sha256");
}

void hash_final(struct hash *h, uint8_t out[HASH_BYTES])
{
    gnutls_hash_deinit(h->impl, out);
    h->impl = NULL;
}

void hash_release(struct hash *h)
{
    if (h->impl)
        gnutls_hash_deinit(h->impl, NULL);
    h->impl = NULL;
}

void hash_sha256(const void *data, size_t len, uint8_t out[HASH_BYTES])
{
    must(gnutls_hash_fast(GNUTLS_DIG_SHA256, data, len, out), "sha256");
}

int hash_file_until(const char *path, bool (*stop)(void *arg), void *arg, uint8_t out[HASH_BYTES],
                    uint64_t *ret_size, struct err *err)
{
    enum { PIECE = 256 * 1024 };
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "cannot open %s", path);
    uint8_t *piece = mem_alloc(PIECE);
    struct hash h;
    hash_init(&h);
    uint64_t size = 0;
    int rc = 0;
    for (;;) {
        ssize_t n = read(fd, piece, PIECE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            rc = err_errno(err, "cannot read %s", path);
        else if (stop && stop(arg))
            rc = err_set(err, -ERR_CANCELLED, "interrupted");
        if (n == 0 || rc < 0)
            break;
        hash_update(&h, piece, (size_t)n);
        pieces_done();
        size += (uint64_t)n;
    }
    if (rc == 0) {
        hash_final(&h, out);
        if (ret_size)
            *ret_size = size;
    }
    hash_release(&h);
    mem_free(piece);
    close(fd);
    return rc;
}

int hash_file(const char *path, uint8_t out[HASH_BYTES], uint64_t *ret_size, struct err *err)
{
    return hash_file_until(path, NULL, NULL, out, ret_size, err);
}

void hash_hmac(const void *key, size_t key_len, const void *data, size_t len,
               uint8_t out[HASH_BYTES])
{
    must(gnutls_hmac_fast(GNUTLS_MAC_SHA256, key, key_len, data, len, out), "hmac");
}

void hash_random(void *out, size_t len)
{
    must(gnutls_rnd(GNUTLS_RND_KEY, out, len), "random bytes");
}

bool hash_equal(const void *a, const void *b, size_t len)
{
    return gnutls_memcmp(a, b, len) == 0;
}

char *hash_hex(const void *data, size_t len, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *p = data;
    for (size_t i = 0; i < len; i++) {
        out[2 * i] = digits[p[i] >> 4];
        out[2 * i + 1] = digits[p[i] & 15];
    }
    out[2 * len] = '\0';
    return out;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

int hash_unhex(const char *hex, void *out, size_t len)
{
    if (strlen(hex) != 2 * len)
        return -EINVAL;
    for (size_t i = 0; i < 2 * len; i++)
        if (hex_digit(hex[i]) < 0)
            return -EINVAL;
    uint8_t *p = out;
    for (size_t i = 0; i < len; i++)
        p[i] = (uint8_t)(hex_digit(hex[2 * i]) << 4 | hex_digit(hex[2 * i + 1]));
    return 0;
}

static const char b64_alphabet[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

char *hash_b64url(const void *data, size_t len, char *out)
{
    const uint8_t *p = data;
    uint32_t bits = 0;
    unsigned have = 0;
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        bits = bits << 8 | p[i];
        for (have += 8; have >= 6; have -= 6)
            out[n++] = b64_alphabet[bits >> (have - 6) & 63];
    }
    if (have)
        out[n++] = b64_alphabet[bits << (6 - have) & 63];
    out[n] = '\0';
    return out;
}

static int b64_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '-' ? 62 : c == '_' ? 63 : -1;
}

int hash_unb64url(const char *text, void *out, size_t out_size, size_t *ret_len)
{
    size_t n = strlen(text), made = 0;
    uint8_t *p = out;
    uint32_t bits = 0;
    unsigned have = 0;
    if (n % 4 == 1)
        return -EINVAL;
    if (n / 4 * 3 + (n % 4 ? n % 4 - 1 : 0) > out_size)
        return -ERR_LIMIT;
    for (size_t i = 0; i < n; i++) {
        int value = b64_value(text[i]);
        if (value < 0)
            return -EINVAL;
        bits = bits << 6 | (uint32_t)value;
        have += 6;
        if (have >= 8) {
            have -= 8;
            p[made++] = (uint8_t)(bits >> have);
        }
    }
    /* Leftover bits must be zero, or two texts would mean the same bytes. */
    if (bits & ((1u << have) - 1))
        return -EINVAL;
    *ret_len = made;
    return 0;
}
