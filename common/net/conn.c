#include "common/net/conn.h"

#include "common/base/buf.h"
#include "common/base/hash.h"
#include "common/net/keys.h"
#include "common/net/loop.h"
#include "common/net/net_fault.h"

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#define READ_BYTES (64 * 1024)
#define RECORD_BYTES (16 * 1024)
#define HANDSHAKE_BYTES (16 * 1024) /* limit; Skerry's certificates have half a KiB */
#define FLUSH_BYTES (256 * 1024)    /* the most bytes that are encrypted at once */
#define CUT_FACTOR 8
#define FINISH_MS 5000
#define LOOK_UP_TIMES 3 /* as long as a connection may take to open, its name may be looked up */
#define KEEPALIVE_S 15
#define USER_TIMEOUT_MS 20000

/* AES-128 first: every supported machine has its instructions. */
#define PRIORITIES                                                                                 \
    "NONE:+VERS-TLS1.3:+AES-128-GCM:+AES-256-GCM:+CHACHA20-POLY1305:+AEAD:+ECDHE-ECDSA:"           \
    "+GROUP-X25519:+GROUP-SECP256R1:+SIGN-ECDSA-SECP256R1-SHA256:+SIGN-ECDSA-SHA256:"              \
    "+CTYPE-SRV-X509:+CTYPE-CLI-X509:%SAFE_RENEGOTIATION"

/* ---- TLS: credentials, sessions, the pin ---- */

struct conn_tls {
    gnutls_certificate_credentials_t credentials;
    gnutls_priority_t priorities;
    unsigned flags;
};

static int tls_make(unsigned flags, struct conn_tls **ret, struct err *err)
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

static int tls_use(struct conn_tls *tls, const struct keys *keys, struct err *err)
{
    const char *key = keys_key_pem(keys), *cert = keys_cert_pem(keys);
    gnutls_datum_t key_text = {(unsigned char *)key, (unsigned)strlen(key)};
    gnutls_datum_t cert_text = {(unsigned char *)cert, (unsigned)strlen(cert)};
    int rc = gnutls_certificate_set_x509_key_mem(tls->credentials, &cert_text, &key_text,
                                                 GNUTLS_X509_FMT_PEM);
    return rc < 0 ? err_set(err, -ERR_CONFIG, "cannot use the key for TLS: %s", gnutls_strerror(rc))
                  : 0;
}

static int tls_with(unsigned flags, const struct keys *keys, struct conn_tls **ret, struct err *err)
{
    struct conn_tls *tls = NULL;
    int rc = tls_make(flags, &tls, err);
    if (rc == 0 && keys && (rc = tls_use(tls, keys, err)) < 0)
        conn_tls_free(tls);
    if (rc == 0)
        *ret = tls;
    return rc;
}

int conn_tls_server(const struct keys *keys, struct conn_tls **ret, struct err *err)
{
    return tls_with(GNUTLS_SERVER, keys, ret, err);
}

int conn_tls_client(const struct keys *keys, struct conn_tls **ret, struct err *err)
{
    /* The server names no authorities, because it has none: the client sends its certificate
     * anyway. */
    return tls_with(GNUTLS_CLIENT | GNUTLS_FORCE_CLIENT_CERT, keys, ret, err);
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

/* A session that speaks only TLS 1.3, for a non-blocking transport. */
static int tls_session(const struct conn_tls *tls, gnutls_session_t *ret, struct err *err)
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
    gnutls_handshake_set_max_packet_length(s, HANDSHAKE_BYTES);
    if (tls->flags & GNUTLS_SERVER) /* a client of an older release has no key */
        gnutls_certificate_server_set_request(s, GNUTLS_CERT_REQUEST);
    /* The connection's own deadline guards the handshake; GnuTLS's would need a clock. */
    gnutls_handshake_set_timeout(s, GNUTLS_INDEFINITE_TIMEOUT);
    *ret = s;
    return 0;
}

/* Gets the fingerprint of the key whose possession the other side has proved: 1; 0: it has shown no
 * key. */
static int tls_peer_key(gnutls_session_t session, uint8_t ret[32], struct err *err)
{
    unsigned count = 0;
    const gnutls_datum_t *chain = gnutls_certificate_get_peers(session, &count);
    if (!chain || count == 0)
        return 0;
    gnutls_x509_crt_t crt;
    size_t n = 32;
    int rc = gnutls_x509_crt_init(&crt);
    if (rc < 0)
        return err_set(err, -ENOMEM, "cannot read a certificate");
    rc = gnutls_x509_crt_import(crt, &chain[0], GNUTLS_X509_FMT_DER);
    if (rc >= 0)
        rc = gnutls_x509_crt_get_key_id(crt, GNUTLS_KEYID_USE_SHA256, ret, &n);
    gnutls_x509_crt_deinit(crt);
    if (rc < 0)
        return err_set(err, -ERR_AUTH, "the other side's certificate is unreadable: %s",
                       gnutls_strerror(rc));
    return 1;
}

/* After the handshake: -ERR_AUTH unless the server's public key hashes to pin. */
static int tls_check_pin(gnutls_session_t session, const uint8_t pin[32], struct err *err)
{
    uint8_t got[HASH_BYTES];
    int rc = tls_peer_key(session, got, err);
    if (rc < 0)
        return rc;
    if (rc == 0 || !hash_equal(got, pin, sizeof(got)))
        return err_set(err, -ERR_AUTH,
                       "the server's key is not the one this token was made for: wrong address, a "
                       "reinstalled server (get a new token), or somebody in between");
    return 0;
}

/* ---- a connection ---- */

enum state { CONNECTING, HANDSHAKE, OPEN, FINISHING, CLOSED };

struct conn {
    uv_tcp_t tcp;
    uv_connect_t connecting;
    uv_getaddrinfo_t resolving;
    uv_write_t writing;
    struct loop *loop;
    struct loop_timer *deadline;
    const struct conn_tls *tls;
    gnutls_session_t session;         /* NULL: the connection waits for its turn */
    const struct conn_events *events; /* NULL: the owner has discarded the connection */
    void *arg;
    enum state state;
    unsigned refs; /* held by the socket, a look-up, a deferred flush */
    bool is_client, in_read, wire_busy, flush_due, was_full, paused;
    uint8_t pin[32];
    uint8_t peer_key[32]; /* of a client */
    bool has_peer_key;
    const uint8_t *raw; /* received, not yet pulled by GnuTLS; only during on_read */
    size_t raw_len;
    struct buf in;   /* decrypted, not yet consumed */
    struct buf out;  /* to be encrypted */
    struct buf wire; /* encrypted, being written */
    size_t wire_sent;
    size_t max_queue_bytes, max_unread_bytes;
    uint64_t bytes_in, bytes_out;
    unsigned attempt;
    uint32_t deadline_ms;
    uint16_t port;
    char host[256];
    char address[CONN_ADDRESS_MAX];
    struct sockaddr_storage sockaddr;
    struct err why;
};

/* Read buffer of a thread: libuv fills it, and on_read empties it before it returns. */
static _Thread_local char read_space[READ_BYTES];

static void flush(struct conn *c);

/* ---- end of life ---- */

static void unref(struct conn *c)
{
    if (--c->refs > 0)
        return;
    const struct conn_events *events = c->events;
    if (c->session)
        gnutls_deinit(c->session);
    buf_release(&c->in);
    buf_release(&c->out);
    buf_release(&c->wire);
    if (events)
        events->on_close(c->arg, &c->why);
    mem_free(c);
}

static void on_closed(uv_handle_t *h)
{
    unref(h->data);
}

void conn_close(struct conn *c, const struct err *why)
{
    if (c->state == CLOSED)
        return;
    if (why && c->state != FINISHING)
        c->why = *why;
    c->state = CLOSED;
    loop_timer_free(c->deadline);
    c->deadline = NULL;
    if (c->resolving.loop)
        (void)uv_cancel((uv_req_t *)&c->resolving); /* if this fails, the callback comes anyway */
    uv_close((uv_handle_t *)&c->tcp, on_closed);
}

static void close_with(struct conn *c, int code, const char *what, const char *reason)
{
    struct err err = {0};
    (void)err_set(&err, code, "%s%s%s", what, *reason ? ": " : "", reason);
    conn_close(c, &err);
}

void conn_discard(struct conn *c)
{
    if (!c)
        return;
    c->events = NULL;
    conn_close(c, NULL);
}

static void finish_if_flushed(struct conn *c)
{
    if (c->state == FINISHING && !c->wire_busy && c->wire.len == 0 && c->out.len == 0) {
        (void)uv_read_stop((uv_stream_t *)&c->tcp); /* cannot fail */
        conn_close(c, NULL);
    }
}

static void on_deadline(void *arg)
{
    struct conn *c = arg;
    static const char *const what[] = {
        [CONNECTING] = "the other side did not accept the connection in time",
        [HANDSHAKE] = "the TLS handshake took too long",
        [OPEN] = "the other side did not introduce itself in time",
    };
    struct err err = {0};
    if (c->state == FINISHING) {
        conn_close(c, NULL);
    } else if (c->resolving.loop) {
        (void)err_set(&err, -ETIMEDOUT,
                      "no name server has found the address of %s in time: see to the name servers "
                      "of this machine (/etc/resolv.conf)",
                      c->host);
        conn_close(c, &err);
    } else {
        close_with(c, -ETIMEDOUT, what[c->state], "");
    }
}

void conn_finish(struct conn *c, const struct err *why)
{
    if (c->state >= FINISHING)
        return;
    if (c->state != OPEN) {
        conn_close(c, why);
        return;
    }
    if (why)
        c->why = *why;
    c->state = FINISHING;
    if (!c->deadline)
        c->deadline = loop_timer_new(c->loop, on_deadline, c);
    loop_timer_start(c->deadline, FINISH_MS, 0);
    if (!c->in_read)
        flush(c);
}

/* ---- writing ---- */

static void deferred_flush(void *arg)
{
    struct conn *c = arg;
    c->flush_due = false;
    if (c->state != CLOSED)
        flush(c);
    unref(c);
}

static void schedule_flush(struct conn *c)
{
    if (c->flush_due || c->wire_busy)
        return;
    c->flush_due = true;
    c->refs++;
    loop_defer(c->loop, deferred_flush, c);
}

static void wire_done(struct conn *c)
{
    c->wire_busy = false;
    c->wire_sent = 0;
    if (c->wire.cap > RECORD_BYTES)
        buf_release(&c->wire);
    else
        buf_clear(&c->wire);
    if (c->out.len == 0 && c->out.cap > RECORD_BYTES)
        buf_release(&c->out);
}

static void after_write(struct conn *c)
{
    if (c->was_full && c->out.len <= c->max_queue_bytes / 2 && c->state == OPEN) {
        c->was_full = false;
        if (c->events)
            c->events->on_drain(c->arg);
    }
    finish_if_flushed(c);
}

static void on_written(uv_write_t *req, int status)
{
    struct conn *c = req->data;
    if (c->state == CLOSED)
        return;
    if (status < 0) {
        close_with(c, status, "the connection broke while sending", uv_strerror(status));
        return;
    }
    c->bytes_out += c->wire.len - c->wire_sent;
    wire_done(c);
    if (c->out.len)
        flush(c);
    else
        after_write(c);
}

static ssize_t push(gnutls_transport_ptr_t ptr, const void *data, size_t len)
{
    struct conn *c = ptr;
    if (buf_append(&c->wire, data, len) < 0) {
        gnutls_transport_set_errno(c->session, ENOMEM);
        return -1;
    }
    return (ssize_t)len;
}

static int encrypt(struct conn *c)
{
    size_t sent = 0;
    while (sent < c->out.len && c->wire.len < FLUSH_BYTES) {
        size_t n = c->out.len - sent;
        ssize_t rc =
            gnutls_record_send(c->session, c->out.data + sent, n < RECORD_BYTES ? n : RECORD_BYTES);
        if (rc < 0)
            return (int)rc;
        sent += (size_t)rc;
    }
    buf_consume(&c->out, sent);
    return 0;
}

/* Writes the content of `wire`; the rest waits for the socket. */
static void write_wire(struct conn *c)
{
    size_t left = c->wire.len - c->wire_sent;
    unsigned fault = net_fault()->write_max;
    uv_buf_t b = uv_buf_init((char *)c->wire.data + c->wire_sent,
                             (unsigned)(fault && fault < left ? fault : left));
    int rc = uv_try_write((uv_stream_t *)&c->tcp, &b, 1);
    if (rc < 0 && rc != UV_EAGAIN) {
        close_with(c, rc, "the connection broke while sending", uv_strerror(rc));
        return;
    }
    if (rc > 0) {
        c->bytes_out += (size_t)rc;
        c->wire_sent += (size_t)rc;
    }
    if (c->wire_sent == c->wire.len) {
        wire_done(c);
        return;
    }
    if (fault) {
        schedule_flush(c);
        return;
    }
    c->wire_busy = true;
    c->writing.data = c;
    b = uv_buf_init((char *)c->wire.data + c->wire_sent, (unsigned)(c->wire.len - c->wire_sent));
    rc = uv_write(&c->writing, (uv_stream_t *)&c->tcp, &b, 1, on_written);
    if (rc < 0)
        close_with(c, rc, "cannot write to the socket", uv_strerror(rc));
}

static void flush(struct conn *c)
{
    while (!c->wire_busy && !c->flush_due && c->state != CLOSED && c->state != CONNECTING) {
        if (c->wire.len == 0 && c->out.len && c->state != HANDSHAKE) {
            int rc = encrypt(c);
            if (rc < 0) {
                close_with(c, -ERR_FORMAT, "TLS failed while sending", gnutls_strerror(rc));
                return;
            }
        }
        if (c->wire.len == 0)
            break;
        write_wire(c);
    }
    if (c->state != CLOSED && !c->wire_busy)
        after_write(c);
}

int conn_reserve(struct conn *c, size_t len, bool force, uint8_t **ret)
{
    if (c->state != OPEN)
        return -ENOTCONN;
    if (c->out.len + len > c->max_queue_bytes) {
        c->was_full = true;
        if (!force)
            return -EAGAIN;
    }
    int rc = buf_reserve(&c->out, len, ret);
    if (rc < 0) {
        close_with(c, rc, "the other side does not read what it is sent", "");
        return rc;
    }
    buf_commit(&c->out, len);
    if (!c->in_read)
        schedule_flush(c);
    return 0;
}

bool conn_is_full(const struct conn *c)
{
    return c->out.len > c->max_queue_bytes;
}

/* ---- reading ---- */

static ssize_t pull(gnutls_transport_ptr_t ptr, void *data, size_t len)
{
    struct conn *c = ptr;
    if (c->raw_len == 0) {
        gnutls_transport_set_errno(c->session, EAGAIN);
        return -1;
    }
    size_t n = len < c->raw_len ? len : c->raw_len;
    memcpy(data, c->raw, n);
    c->raw += n;
    c->raw_len -= n;
    return (ssize_t)n;
}

static int pull_timeout(gnutls_transport_ptr_t ptr, unsigned ms)
{
    return ((struct conn *)ptr)->raw_len > 0;
}

static void deliver(struct conn *c)
{
    while (c->in.len && c->state == OPEN && c->events) {
        size_t n = c->events->on_data(c->arg, c->in.data, c->in.len);
        if (n == 0)
            break;
        if (c->state == CLOSED)
            return;
        buf_consume(&c->in, n);
    }
    if (c->state == OPEN && c->in.len > c->max_unread_bytes)
        close_with(c, -ERR_LIMIT, "the other side sent more than may be buffered", "");
}

static void receive(struct conn *c)
{
    while (c->state == OPEN || c->state == FINISHING) {
        uint8_t *p;
        if (buf_reserve(&c->in, RECORD_BYTES, &p) < 0) {
            close_with(c, -ERR_LIMIT, "the other side sent more than may be buffered", "");
            return;
        }
        ssize_t n = gnutls_record_recv(c->session, p, RECORD_BYTES);
        if (n == GNUTLS_E_AGAIN)
            break;
        if (n == 0) {
            close_with(c, -ECONNRESET, "the other side closed the connection", "");
            return;
        }
        if (n < 0 && gnutls_error_is_fatal((int)n)) {
            close_with(c, -ERR_FORMAT, "TLS failed while receiving", gnutls_strerror((int)n));
            return;
        }
        if (n > 0 && c->state == OPEN) {
            buf_commit(&c->in, (size_t)n);
            if (c->in.len >= READ_BYTES)
                deliver(c);
        }
    }
    deliver(c);
    if (c->state != CLOSED && c->in.len == 0 && c->in.cap > RECORD_BYTES / 4)
        buf_release(&c->in);
}

/* What the other side ended the handshake with. */
static const char *refusal(gnutls_session_t session, char ret[128])
{
    const char *name = gnutls_alert_get_name(gnutls_alert_get(session));
    (void)snprintf(ret, 128,
                   "the other side refuses it (alert: %s), so it is another program, or one that "
                   "speaks no TLS 1.3",
                   name ? name : "unknown");
    return ret;
}

static void handshake(struct conn *c)
{
    char said[128];
    int rc = gnutls_handshake(c->session);
    if (rc < 0 && !gnutls_error_is_fatal(rc)) {
        flush(c);
        return;
    }
    if (rc < 0) {
        flush(c); /* the alert tells the other side the reason */
        if (c->state != CLOSED)
            close_with(c, -ERR_FORMAT, "the TLS handshake failed",
                       rc == GNUTLS_E_UNEXPECTED_PACKET
                           ? "the other side speaks no TLS, so it is another program"
                       : rc == GNUTLS_E_FATAL_ALERT_RECEIVED ? refusal(c->session, said)
                                                             : gnutls_strerror(rc));
        return;
    }
    struct err err = {0};
    rc = c->is_client ? tls_check_pin(c->session, c->pin, &err)
                      : tls_peer_key(c->session, c->peer_key, &err);
    if (rc < 0) {
        conn_close(c, &err);
        return;
    }
    c->has_peer_key = rc == 1;
    c->state = OPEN;
    if (c->events)
        c->events->on_open(c->arg);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *b)
{
    *b = uv_buf_init(read_space, sizeof(read_space));
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct conn *c = s->data;
    if (n < 0) {
        close_with(c, n == UV_EOF ? -ECONNRESET : (int)n,
                   c->state == HANDSHAKE ? "the other side hung up during the TLS handshake"
                                         : "the connection was lost",
                   n == UV_EOF ? "" : uv_strerror((int)n));
        return;
    }
    c->bytes_in += (size_t)n;
    c->raw = (const uint8_t *)b->base;
    c->raw_len = (size_t)n;
    c->in_read = true;
    c->refs++; /* callbacks may close */
    if (c->state == HANDSHAKE)
        handshake(c);
    if (c->state != HANDSHAKE)
        receive(c);
    c->raw_len = 0;
    c->in_read = false;
    if (c->state != CLOSED && (c->out.len || c->wire.len || c->state == FINISHING))
        flush(c);
    unref(c);
}

void conn_pause(struct conn *c, bool pause)
{
    if (c->state != OPEN || c->paused == pause)
        return;
    c->paused = pause;
    if (pause)
        (void)uv_read_stop((uv_stream_t *)&c->tcp); /* cannot fail */
    else
        (void)uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read); /* was reading before */
}

/* ---- beginning of life ---- */

static int secure(struct conn *c, struct err *err)
{
    int rc = tls_session(c->tls, &c->session, err);
    if (rc < 0)
        return rc;
    gnutls_transport_set_ptr(c->session, c);
    gnutls_transport_set_push_function(c->session, push);
    gnutls_transport_set_pull_function(c->session, pull);
    gnutls_transport_set_pull_timeout_function(c->session, pull_timeout);
    return 0;
}

static int make(struct loop *loop, const struct conn_options *o, bool is_client, struct conn **ret,
                struct err *err)
{
    struct conn *c = mem_alloc(sizeof(*c));
    c->loop = loop;
    c->events = o->events;
    c->arg = o->arg;
    c->is_client = is_client;
    c->max_queue_bytes = o->max_queue_bytes;
    c->max_unread_bytes = o->max_unread_bytes;
    c->tls = o->tls;
    buf_init(&c->in, o->max_unread_bytes + READ_BYTES + 2 * RECORD_BYTES);
    buf_init(&c->out, o->max_queue_bytes * CUT_FACTOR);
    buf_init(&c->wire, FLUSH_BYTES + 4 * RECORD_BYTES);
    int rc = o->waits ? 0 : secure(c, err);
    if (rc < 0) {
        mem_free(c);
        return rc;
    }
    (void)uv_tcp_init(loop_uv(loop), &c->tcp); /* opens no descriptor yet: cannot fail */
    c->tcp.data = c;
    c->refs = 1;
    c->deadline = loop_timer_new(loop, on_deadline, c);
    loop_timer_start(c->deadline, o->deadline_ms, 0);
    *ret = c;
    return 0;
}

static void name_peer(struct conn *c)
{
    struct sockaddr *a = (struct sockaddr *)&c->sockaddr;
    int len = sizeof(c->sockaddr);
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (uv_tcp_getpeername(&c->tcp, a, &len) < 0 ||
        getnameinfo(a, (socklen_t)len, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        (void)str_copy(c->address, sizeof(c->address), "unknown");
        return;
    }
    char *text = str_printf(strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
    (void)str_copy(c->address, sizeof(c->address), text);
    mem_free(text);
}

static void read_on(struct conn *c)
{
    int rc = uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
    if (rc < 0)
        close_with(c, rc, "cannot read from the socket", uv_strerror(rc));
    else if (c->is_client)
        handshake(c);
}

/* Failures of socket options are ignored: the connection works without them. */
static void start(struct conn *c)
{
    uv_os_fd_t fd;
    unsigned timeout = USER_TIMEOUT_MS;
    name_peer(c);
    (void)uv_tcp_nodelay(&c->tcp, 1);
    (void)uv_tcp_keepalive(&c->tcp, 1, KEEPALIVE_S);
    if (uv_fileno((uv_handle_t *)&c->tcp, &fd) == 0)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
    c->state = HANDSHAKE;
    if (c->session)
        read_on(c);
}

void conn_begin(struct conn *c, uint32_t deadline_ms)
{
    struct err err = {0};
    if (c->state == CLOSED || c->session)
        return;
    if (secure(c, &err) < 0) {
        conn_close(c, &err);
        return;
    }
    loop_timer_start(c->deadline, deadline_ms, 0);
    read_on(c);
}

int conn_accept(struct loop *loop, uv_stream_t *listener, const struct conn_options *o,
                struct conn **ret, struct err *err)
{
    struct conn *c;
    int rc = make(loop, o, false, &c, err);
    if (rc < 0)
        return rc;
    rc = uv_accept(listener, (uv_stream_t *)&c->tcp);
    if (rc < 0) {
        conn_discard(c);
        return err_set(err, rc, "cannot accept a connection: %s", uv_strerror(rc));
    }
    start(c);
    *ret = c;
    return 0;
}

static void on_connected(uv_connect_t *req, int status)
{
    struct conn *c = req->data;
    if (c->state == CLOSED)
        return;
    if (status < 0) {
        char *what = str_printf("cannot connect to %s port %u", c->host, c->port);
        close_with(c, status, what, uv_strerror(status));
        mem_free(what);
        return;
    }
    start(c);
}

static void dial(struct conn *c, const struct addrinfo *list)
{
    unsigned n = 0;
    for (const struct addrinfo *a = list; a; a = a->ai_next)
        n++;
    const struct addrinfo *a = list;
    for (unsigned i = n ? c->attempt % n : 0; i > 0; i--)
        a = a->ai_next;
    c->connecting.data = c;
    loop_timer_start(c->deadline, c->deadline_ms, 0);
    int rc = uv_tcp_connect(&c->connecting, &c->tcp, a->ai_addr, on_connected);
    if (rc < 0)
        close_with(c, rc, "cannot open a socket", uv_strerror(rc));
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
    struct conn *c = req->data;
    c->resolving.loop = NULL;
    if (c->state != CLOSED) {
        if (status < 0) {
            char *what = str_printf("cannot find the address of %s", c->host);
            close_with(c, -ENOENT, what, uv_strerror(status));
            mem_free(what);
        } else {
            dial(c, list);
        }
    }
    if (list)
        uv_freeaddrinfo(list);
    unref(c);
}

int conn_connect(struct loop *loop, const char *host, uint16_t port, unsigned attempt,
                 const uint8_t pin[32], const struct conn_options *o, struct conn **ret,
                 struct err *err)
{
    struct conn *c;
    int rc = make(loop, o, true, &c, err);
    if (rc < 0)
        return rc;
    (void)str_copy(c->host, sizeof(c->host), host);
    memcpy(c->pin, pin, sizeof(c->pin));
    c->port = port;
    c->attempt = attempt;
    c->deadline_ms = o->deadline_ms;
    char service[8];
    snprintf(service, sizeof(service), "%u", port);
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    *ret = c;
    /* An address needs no resolver and none of libuv's threads. */
    if (getaddrinfo(host, service, &hints, &list) == 0) {
        dial(c, list);
        freeaddrinfo(list);
        return 0;
    }
    hints.ai_flags = AI_NUMERICSERV;
    c->resolving.data = c;
    rc = uv_getaddrinfo(loop_uv(loop), &c->resolving, on_resolved, host, service, &hints);
    if (rc < 0) {
        c->resolving.loop = NULL;
        close_with(c, rc, "cannot look up a host name", uv_strerror(rc));
    } else {
        c->refs++;
        loop_timer_start(c->deadline, (uint64_t)LOOK_UP_TIMES * o->deadline_ms, 0);
    }
    return 0;
}

void conn_no_deadline(struct conn *c)
{
    if (c->state == FINISHING)
        return;
    loop_timer_free(c->deadline);
    c->deadline = NULL;
}

const uint8_t *conn_peer_key(const struct conn *c)
{
    return c->has_peer_key ? c->peer_key : NULL;
}

int conn_export(struct conn *c, uint8_t ret_bytes[CONN_EXPORT_BYTES], struct err *err)
{
    static const char label[] = "EXPORTER-skerry-hello-1";
    int rc = gnutls_prf_rfc5705(c->session, sizeof(label) - 1, label, 0, NULL, CONN_EXPORT_BYTES,
                                (char *)ret_bytes);
    if (rc < 0)
        return err_set(err, -ERR_AUTH, "cannot derive keying material: %s", gnutls_strerror(rc));
    return 0;
}

const char *conn_address(const struct conn *c)
{
    return c->address;
}

const struct sockaddr *conn_sockaddr(const struct conn *c)
{
    return (const struct sockaddr *)&c->sockaddr;
}

uint64_t conn_bytes_in(const struct conn *c)
{
    return c->bytes_in;
}

uint64_t conn_bytes_out(const struct conn *c)
{
    return c->bytes_out;
}
