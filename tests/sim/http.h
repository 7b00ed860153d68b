/* The coordinator's HTTP port, in place of common/net/http/http_server.c and of libmicrohttpd: a
 * connection for each request.  What a request is, who may ask, and how it is answered are as they
 * are (http_request.c, blob_http.c, coordinator/http).
 *
 *   http_ask() ── on its way ──► begun, its body in pieces, handled ── ... ──► said()
 *
 * An upload may be cut within its body, and answers of a coordinator that has crashed are lost. */
#ifndef TESTS_SIM_HTTP_H
#define TESTS_SIM_HTTP_H

#include "common/base/base.h"

struct http_call;

struct http_header {
    const char *name, *value;
};

struct http_ask {
    const char *method, *target; /* a path with its query */
    const char *bearer;          /* NULL: nobody's */
    const char *range;           /* Content-Range; NULL: none */
    const void *body;            /* copied */
    size_t len;
    const char *cookie;                /* the value of ours; NULL: none */
    const struct http_header *headers; /* further ones, at most 4 */
    size_t n_headers;
};

/* An answer, or a part of a stream. */
struct http_said {
    unsigned status; /* 0: the connection is gone */
    const char *body;
    size_t len;
    uint64_t have;                      /* bytes of a blob that are there, by `Range` */
    bool promises;                      /* the state could be written when it was made */
    const char *cookie, *content_range; /* Set-Cookie and Content-Range; "": without */
};

/* said() is called once, and for a stream until a status of 0. */
typedef void (*http_said_fn)(void *arg, const struct http_said *s);

/* NULL: nobody listens, and said() is not called. */
struct http_call *http_ask(const struct http_ask *a, http_said_fn said, void *arg);
/* Whoever asked is gone: said() is not called any more; NULL is fine. */
void http_hang_up(struct http_call *c);

/* Of answers that are on their way it is heard that the connection is gone. */
void http_lose_answers(void);
void http_end(void); /* forgets all */

#endif
