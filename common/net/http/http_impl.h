/* Shared by http_server.c, which drives libmicrohttpd, and http_request.c, which handles requests,
 * answers and streams.
 *
 * A request has two holders: libmicrohttpd until it reports it complete, and
 * the handler until it has answered.  It is freed when both are done. */
#ifndef COMMON_NET_HTTP_IMPL_H
#define COMMON_NET_HTTP_IMPL_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/list.h"
#include "common/net/http/http_server.h"
#include "common/net/strangers.h"

#include <microhttpd.h>
#include <uv.h>

struct loop_timer;

#define HTTP_PARAMS_MAX 4
#define HTTP_HEADERS_MAX 8
#define HTTP_GROUPS_MAX 16

struct http_server {
    struct loop *loop;
    struct MHD_Daemon *daemon;
    uv_poll_t *poll;
    struct loop_timer *timer; /* libmicrohttpd's timeouts */
    struct loop_timer *tick;  /* ours */
    struct http_server_options o;
    struct {
        const struct http_route *routes;
        unsigned count;
    } groups[HTTP_GROUPS_MAX];
    unsigned group_count;
    struct list conns, requests, streams, growths;
    struct loop_timer *more; /* looks for what growths wait for */
    struct strangers strangers;
    struct http_counters counters;
    int listen_fd;
    uint16_t port;
    unsigned spins; /* runs in a row without an event on the descriptor */
    bool run_due, closing;
    void (*kick)(struct http_server *s); /* runs libmicrohttpd in the next turn */
};

struct http_conn {
    struct list link;
    struct stranger stranger; /* until a request shows a token or a ticket */
    int fd;
    uint64_t waiting_since_ms; /* for a request's headers; 0: not waiting */
    unsigned requests;
    uint64_t holder; /* of the last request; 0: unknown */
};

struct http_request {
    struct http_server *server;
    struct list link;
    struct MHD_Connection *connection; /* NULL: complete or cut */
    struct http_conn *conn;
    const struct http_route *route;
    char *method, *path;
    struct {
        const char *name; /* of the pattern, not terminated */
        size_t name_len;
        char *value;
    } params[HTTP_PARAMS_MAX];
    unsigned param_count;
    unsigned role;
    uint64_t holder; /* of the role, or of the ticket */
    bool by_cookie;  /* the role is a session's */
    struct buf body;
    void *sink;
    bool sink_open;
    uint64_t body_bytes, max_body, start_ms;
    struct MHD_Response *response; /* the answer, not queued yet */
    unsigned status;
    struct {
        char *name, *value;
    } headers[HTTP_HEADERS_MAX];
    unsigned header_count;
    struct http_stream *stream;
    struct http_growth *growth;
    bool in_callback; /* of libmicrohttpd: the answer is queued when that returns */
    bool held;        /* by a handler */
    bool answered, suspended, queued, failed_body;
};

/* An endless answer: its queue, and the callback for its end. */
struct http_stream {
    struct list link;
    struct http_server *server;
    struct http_request *request;
    struct buf queue;
    bool suspended, ending, cut, is_events;
    uint64_t written_ms;
    void (*on_close)(void *arg, struct http_stream *s);
    void *arg;
};

/* An answer that follows a file that is still written. */
struct http_growth {
    struct list link;
    struct http_server *server;
    struct http_request *request; /* NULL: it is over */
    struct growing *file;
    struct http_tally tally;
    uint64_t from; /* where the answer begins in what is sent */
    uint64_t pos;  /* where it waits for more */
    bool suspended, cut;
};

/* A request that libmicrohttpd has begun; it is freed when neither side holds it any more. */
struct http_request *http_request_new(struct http_server *s, struct MHD_Connection *c,
                                      const char *path, const char *method);
void http_request_maybe_free(struct http_request *r);
/* Finds the route and checks the role; answers 404, 405, 401, 403 itself (< 0). */
int http_request_route(struct http_request *r);

/* Calls on_close and frees. */
void http_stream_gone(struct http_stream *s);
/* Its request is over. */
void http_growth_gone(struct http_growth *h);
/* Wakes those for whose files there is more; cut: all, which then end. */
void http_growth_wake(struct http_server *server, bool cut);
/* Sends comment lines to silent event streams. */
void http_stream_tick(struct http_server *s);

#endif
