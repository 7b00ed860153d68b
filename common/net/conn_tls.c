#include "common/net/conn_tls.h"

#include "common/base/err.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/net/conn.h"
#include "common/net/keys.h"

#include <gnutls/x509.h>
#include <string.h>

/* AES-128 first: every machine we run on has its instructions. */
#define PRIORITIES                                                                                 \
    "NONE:+VERS-TLS1.3:+AES-128-GCM:+AES-256-GCM:+CHACHA20-POLY1305:+AEAD:+ECDHE-ECDSA:"           \
    "+GROUP-X25519:+GROUP-SECP256R1:+SIGN-ECDSA-SECP256R1-SHA256:+SIGN-ECDSA-SHA256:"              \
    "+CTYPE-SRV-X509:+CTYPE-CLI-X509:%SAFE_RENEGOTIATION"

struct conn_tls {
    gnutls_certificate_credentials_t credentials;
    gnutls_priority_t priorities;
    unsigned flags;
};

static int make(unsigned flags, struct conn_tls **ret, struct err *err)
{
    struct conn_tls *tls = mem_alloc(sizeof(*tls));
    tls->flags = flags | GNUTLS_NONBLOCK | GNUTLS_NO_TICKETS | GNUTLS_NO_SIGNAL;
    int rc = gnutls_certificate_allocate_credentials(&tls->credentials);
    if (rc >= 0)
        rc = gnutls_priority_init(&tls->priorities, PRIORITIES, NULL);
    if (rc < 0) {
        conn_tls_free(tls);
        return err_set(err, -ERR_CONFIG, "cannot set up TLS: %s", gnutls_strerror(rc));
    }
    *ret = tls;
    return 0;
}

int conn_tls_server(const struct keys *keys, struct conn_tls **ret, struct err *err)
{
    struct conn_tls *tls;
    int rc = make(GNUTLS_SERVER, &tls, err);
    if (rc < 0)
        return rc;
    const char *key = keys_key_pem(keys), *cert = keys_cert_pem(keys);
    gnutls_datum_t key_text = {(unsigned char *)key, (unsigned)strlen(key)};
    gnutls_datum_t cert_text = {(unsigned char *)cert, (unsigned)strlen(cert)};
    rc = gnutls_certificate_set_x509_key_mem(tls->credentials, &cert_text, &key_text,
                                             GNUTLS_X509_FMT_PEM);
    if (rc < 0) {
        conn_tls_free(tls);
        return err_set(err, -ERR_CONFIG, "cannot use the server's key: %s", gnutls_strerror(rc));
    }
    *ret = tls;
    return 0;
}

int conn_tls_client(struct conn_tls **ret, struct err *err)
{
    return make(GNUTLS_CLIENT, ret, err);
}

void conn_tls_free(struct conn_tls *tls)
{
    if (!tls)
        return;
    if (tls->priorities)
        gnutls_priority_deinit(tls->priorities);
    if (tls->credentials)
        gnutls_certificate_free_credentials(tls->credentials);
    mem_free(tls);
}

int conn_tls_session(const struct conn_tls *tls, gnutls_session_t *ret, struct err *err)
{
    gnutls_session_t s = NULL;
    int rc = gnutls_init(&s, tls->flags);
    if (rc >= 0)
        rc = gnutls_priority_set(s, tls->priorities);
    if (rc >= 0)
        rc = gnutls_credentials_set(s, GNUTLS_CRD_CERTIFICATE, tls->credentials);
    if (rc < 0) {
        if (s)
            gnutls_deinit(s);
        return err_set(err, -ENOMEM, "cannot make a TLS session: %s", gnutls_strerror(rc));
    }
    /* Our own deadline guards the handshake; GnuTLS's would need a clock. */
    gnutls_handshake_set_timeout(s, GNUTLS_INDEFINITE_TIMEOUT);
    *ret = s;
    return 0;
}

int conn_tls_check_pin(gnutls_session_t session, const uint8_t pin[32], struct err *err)
{
    static const char wrong[] =
        "the server's key is not the one this token was made for: wrong address, a reinstalled "
        "server (get a new token), or somebody in between";
    unsigned count = 0;
    const gnutls_datum_t *chain = gnutls_certificate_get_peers(session, &count);
    if (!chain || count == 0)
        return err_set(err, -ERR_AUTH, "the server showed no certificate");
    gnutls_x509_crt_t crt;
    uint8_t got[HASH_BYTES];
    size_t n = sizeof(got);
    int rc = gnutls_x509_crt_init(&crt);
    if (rc < 0)
        return err_set(err, -ENOMEM, "cannot read the server's certificate");
    rc = gnutls_x509_crt_import(crt, &chain[0], GNUTLS_X509_FMT_DER);
    if (rc >= 0)
        rc = gnutls_x509_crt_get_key_id(crt, GNUTLS_KEYID_USE_SHA256, got, &n);
    gnutls_x509_crt_deinit(crt);
    if (rc < 0)
        return err_set(err, -ERR_AUTH, "the server's certificate is unreadable: %s",
                       gnutls_strerror(rc));
    if (n != sizeof(got) || !hash_equal(got, pin, sizeof(got)))
        return err_set(err, -ERR_AUTH, "%s", wrong);
    return 0;
}
