#include "common/net/keys.h"

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/base/hash.h"

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <sys/stat.h>
#include <time.h>

#define PEM_MAX_BYTES (16 * 1024)
#define LIFETIME_S (100LL * 365 * 24 * 3600) /* no program checks the dates */

struct keys {
    uint8_t pin[KEYS_PIN_BYTES];
    char *key_pem, *cert_pem;
};

static int tls_error(struct err *err, int rc, const char *what)
{
    return err_set(err, -ERR_CONFIG, "cannot %s: %s", what, gnutls_strerror(rc));
}

/* Reads a private file; refuses one that others may read. */
static int read_private(const char *path, struct buf *out, struct err *err)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return err_errno(err, "cannot look at %s", path);
    if (st.st_mode & 077)
        return err_set(err, -ERR_CONFIG,
                       "%s is a secret but others may read it (mode %03o); run: chmod 600 %s", path,
                       (unsigned)st.st_mode & 0777, path);
    return file_read(path, PEM_MAX_BYTES, out, err);
}

#define RESTORE                                                                                    \
    "restore tls-key.pem and tls-cert.pem as a pair, or remove both for a new key (a "             \
    "coordinator's "                                                                               \
    "old tokens stop working, a worker is known as a new one)"

static int make_key(const char *path, gnutls_x509_privkey_t key, struct keys *k, struct err *err)
{
    gnutls_datum_t d;
    int rc = gnutls_x509_privkey_generate(key, GNUTLS_PK_ECDSA,
                                          GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0);
    if (rc < 0)
        return tls_error(err, rc, "make a key");
    rc = gnutls_x509_privkey_export2_pkcs8(key, GNUTLS_X509_FMT_PEM, NULL, GNUTLS_PKCS_PLAIN, &d);
    if (rc < 0)
        return tls_error(err, rc, "write the key as PEM");
    k->key_pem = str_ndup((const char *)d.data, d.size);
    gnutls_free(d.data);
    return file_write_atomic(path, k->key_pem, strlen(k->key_pem), 0600, err);
}

static int load_key(const char *path, gnutls_x509_privkey_t key, struct keys *k, struct err *err)
{
    struct buf text;
    buf_init(&text, PEM_MAX_BYTES);
    int rc = read_private(path, &text, err);
    gnutls_datum_t d = {text.data, (unsigned)text.len};
    int tls = rc < 0 ? 0 : gnutls_x509_privkey_import(key, &d, GNUTLS_X509_FMT_PEM);
    if (tls < 0)
        rc = err_set(err, -ERR_FORMAT, "%s is not a private key in PEM form: %s; " RESTORE, path,
                     gnutls_strerror(tls));
    if (rc == 0)
        k->key_pem = str_ndup(buf_str(&text), text.len);
    buf_release(&text);
    return rc;
}

static int self_sign(gnutls_x509_privkey_t key, gnutls_x509_crt_t crt)
{
    uint8_t serial[16];
    hash_random(serial, sizeof(serial));
    serial[0] = (uint8_t)((serial[0] & 0x7f) | 1); /* positive, no leading zero */
    time_t now = time(NULL);
    int rc = gnutls_x509_crt_set_version(crt, 3);
    if (rc >= 0)
        rc = gnutls_x509_crt_set_serial(crt, serial, sizeof(serial));
    if (rc >= 0)
        rc = gnutls_x509_crt_set_dn(crt, "CN=skerry", NULL);
    if (rc >= 0)
        rc = gnutls_x509_crt_set_subject_alt_name(crt, GNUTLS_SAN_DNSNAME, "localhost", 9,
                                                  GNUTLS_FSAN_SET);
    if (rc >= 0)
        rc = gnutls_x509_crt_set_activation_time(crt, now - 24 * 3600);
    if (rc >= 0)
        rc = gnutls_x509_crt_set_expiration_time(crt, now + LIFETIME_S);
    if (rc >= 0)
        rc = gnutls_x509_crt_set_key(crt, key);
    if (rc >= 0)
        rc = gnutls_x509_crt_sign2(crt, crt, key, GNUTLS_DIG_SHA256, 0);
    return rc;
}

static int make_cert(const char *path, gnutls_x509_privkey_t key, gnutls_x509_crt_t crt,
                     struct keys *k, struct err *err)
{
    gnutls_datum_t d;
    int rc = self_sign(key, crt);
    if (rc < 0)
        return tls_error(err, rc, "make a certificate");
    rc = gnutls_x509_crt_export2(crt, GNUTLS_X509_FMT_PEM, &d);
    if (rc < 0)
        return tls_error(err, rc, "write the certificate as PEM");
    k->cert_pem = str_ndup((const char *)d.data, d.size);
    gnutls_free(d.data);
    return file_write_atomic(path, k->cert_pem, strlen(k->cert_pem), 0644, err);
}

static int load_cert(const char *path, gnutls_x509_crt_t crt, struct keys *k, struct err *err)
{
    struct buf text = {0};
    int rc = file_read(path, PEM_MAX_BYTES, &text, err);
    gnutls_datum_t d = {text.data, (unsigned)text.len};
    int tls = rc < 0 ? 0 : gnutls_x509_crt_import(crt, &d, GNUTLS_X509_FMT_PEM);
    if (tls < 0)
        rc = err_set(err, -ERR_FORMAT, "%s is not a certificate in PEM form: %s; " RESTORE, path,
                     gnutls_strerror(tls));
    if (rc == 0)
        k->cert_pem = str_ndup(buf_str(&text), text.len);
    buf_release(&text);
    return rc;
}

/* The key comes first: a certificate can be made for it at any time, and a certificate without its
 * key means that the key was lost. */
static int load_or_make(const char *key_path, const char *cert_path, gnutls_x509_privkey_t key,
                        gnutls_x509_crt_t crt, struct keys *k, struct err *err)
{
    const bool certified = file_exists(cert_path);
    int rc;
    if (file_exists(key_path))
        rc = load_key(key_path, key, k, err);
    else if (certified)
        rc = err_set(err, -ERR_CONFIG, "%s is gone, and its certificate is there; " RESTORE,
                     key_path);
    else
        rc = make_key(key_path, key, k, err);
    if (rc == 0)
        rc = certified ? load_cert(cert_path, crt, k, err) : make_cert(cert_path, key, crt, k, err);
    return rc;
}

/* SHA-256 of the public key, checked in both files: if they were not a pair, every
 * client would refuse the server with an error that is hard to understand. */
static int fingerprint(gnutls_x509_privkey_t key, gnutls_x509_crt_t crt, const char *cert_path,
                       struct keys *k, struct err *err)
{
    uint8_t of_key[KEYS_PIN_BYTES];
    size_t n = sizeof(k->pin);
    int rc = gnutls_x509_crt_get_key_id(crt, GNUTLS_KEYID_USE_SHA256, k->pin, &n);
    if (rc < 0)
        return tls_error(err, rc, "hash the certificate's key");
    n = sizeof(of_key);
    rc = gnutls_x509_privkey_get_key_id(key, GNUTLS_KEYID_USE_SHA256, of_key, &n);
    if (rc < 0)
        return tls_error(err, rc, "hash the key");
    if (!hash_equal(of_key, k->pin, sizeof(of_key)))
        return err_set(err, -ERR_CONFIG,
                       "%s belongs to another key than tls-key.pem beside it; " RESTORE, cert_path);
    return 0;
}

int keys_open(const char *dir, struct keys **ret, struct err *err)
{
    struct keys *k = mem_alloc(sizeof(*k));
    char *key_path = file_join(dir, "tls-key.pem");
    char *cert_path = file_join(dir, "tls-cert.pem");
    gnutls_x509_privkey_t key = NULL;
    gnutls_x509_crt_t crt = NULL;
    int rc = gnutls_x509_privkey_init(&key);
    if (rc >= 0)
        rc = gnutls_x509_crt_init(&crt);
    if (rc < 0)
        rc = tls_error(err, rc, "start GnuTLS");
    else
        rc = load_or_make(key_path, cert_path, key, crt, k, err);
    if (rc == 0)
        rc = fingerprint(key, crt, cert_path, k, err);
    gnutls_x509_privkey_deinit(key);
    if (crt)
        gnutls_x509_crt_deinit(crt);
    mem_free(key_path);
    mem_free(cert_path);
    if (rc < 0) {
        keys_free(k);
        return err_wrap(err, "the key in %s", dir);
    }
    *ret = k;
    return 0;
}

void keys_free(struct keys *k)
{
    if (!k)
        return;
    if (k->key_pem)
        gnutls_memset(k->key_pem, 0, strlen(k->key_pem));
    mem_free(k->key_pem);
    mem_free(k->cert_pem);
    mem_free(k);
}

const uint8_t *keys_pin(const struct keys *k)
{
    return k->pin;
}

const char *keys_key_pem(const struct keys *k)
{
    return k->key_pem;
}

const char *keys_cert_pem(const struct keys *k)
{
    return k->cert_pem;
}

int keys_secret(const char *dir, const char *name, uint8_t ret_secret[KEYS_SECRET_BYTES],
                struct err *err)
{
    char *file = str_printf("%s.secret", name);
    char *path = file_join(dir, file);
    char hex[2 * KEYS_SECRET_BYTES + 2];
    struct buf text;
    int rc = 0;
    buf_init(&text, PEM_MAX_BYTES);
    if (!file_exists(path)) {
        hash_random(ret_secret, KEYS_SECRET_BYTES);
        hash_hex(ret_secret, KEYS_SECRET_BYTES, hex);
        hex[2 * KEYS_SECRET_BYTES] = '\n';
        rc = file_write_atomic(path, hex, sizeof(hex) - 1, 0600, err);
        goto out;
    }
    rc = read_private(path, &text, err);
    if (rc < 0)
        goto out;
    if (text.len && text.data[text.len - 1] == '\n')
        text.data[--text.len] = '\0';
    if (text.len != 2 * KEYS_SECRET_BYTES ||
        hash_unhex(buf_str(&text), ret_secret, KEYS_SECRET_BYTES) < 0)
        rc = err_set(err, -ERR_FORMAT,
                     "%s must hold %d hex digits; remove it for a new secret (old tokens stop "
                     "working)",
                     path, 2 * KEYS_SECRET_BYTES);
out:
    buf_release(&text);
    mem_free(path);
    mem_free(file);
    return rc;
}
