/* An HTTP/1.1 server inside the loop: libmicrohttpd driven through its epoll
 * descriptor, HTTPS on the server's own key (or plain HTTP on loopback).
 *
 *     static void get_job(void *arg, struct http_request *req)
 *     {
 *         uint64_t id;
 *         if (http_request_param_u64(req, "id", &id) < 0)
 *             return;                              // answered with 400
 *         http_reply_json(req, 200, json_pack("{s:I}", "id", id));
 *     }
 *     { "GET", "/v1/jobs/{id}", TOKEN_ROLE_OPERATOR, 0, get_job }
 *
 * Everything runs on the loop thread.  A handler is called when the whole body
 * has arrived (at most max_body) and must end the request by exactly one
 * http_reply_* or http_stream_open(), at once or later; the request pointer is
 * invalid after that.  Deferred requests survive a client that went away: the
 * answer is dropped.
 * Errors are JSON: {"error":{"code":"not_found","message":"..."}}.
 *
 * Limits: connections (at most half of them one holder's, whose next request is
 * answered with 503; when 7/8 are taken, the one that has waited for its next
 * request for longest makes room for each further one), header size, time to
 * send a request (slow loris), body size, bytes queued per stream; a client
 * beyond one is refused or cut.
 * A body that is too large is refused by its Content-Length; of one without,
 * HTTP_EXCESS_BYTES more are read, for a client that then reads the answer. */
#ifndef COMMON_NET_HTTP_SERVER_H
#define COMMON_NET_HTTP_SERVER_H

#include <jansson.h>

#include "common/base/base.h"

#define HTTP_EXCESS_BYTES (64u << 10)

struct growing;
struct keys;
struct loop;
struct http_server;
struct http_request;
struct http_stream;

typedef void (*http_handler)(void *arg, struct http_request *req);

/* Streaming uploads.  begin is called after the headers: it returns 0 and a
 * sink to go on, or answers the request itself (http_reply_error) and returns
 * negative.  data gets the body piece by piece; negative: the rest is dropped
 * (the request is then answered by `handle` as usual), and so is what exceeds
 * max_body, which data has to judge itself.  After the last piece the
 * route's handle is called; abort is called instead when the client went away
 * or stalled (the request is over then). */
struct http_upload {
    int (*begin)(void *arg, struct http_request *req, void **ret_sink);
    int (*data)(void *arg, struct http_request *req, void *sink, const void *data, size_t len);
    void (*abort)(void *arg, struct http_request *req, void *sink);
};

struct http_route {
    const char *method;  /* "GET" also answers HEAD */
    const char *pattern; /* "/v1/jobs/{id}"; a {name} is one non-empty segment */
    unsigned roles;      /* mask of allowed roles; 0: everybody, even without a token */
    size_t max_body;     /* bytes; 0: a body is refused */
    http_handler handle;
    const struct http_upload *upload; /* NULL: the body is collected */
    void *arg;                        /* NULL: the server's arg */
};

/* Zero means the default in brackets. */
struct http_server_options {
    const char *host;         /* address to bind ["0.0.0.0"] */
    uint16_t port;            /* 0: any free port */
    const struct keys *keys;  /* NULL: plain HTTP, then host must be a loopback address */
    unsigned max_connections; /* [256] */
    unsigned max_strangers;   /* of these not authenticated [half], see strangers.h */
    unsigned max_streams;     /* open http_stream_* [64] */
    uint32_t request_ms;      /* to send the request line and headers [10 s] */
    uint32_t idle_ms;         /* without a byte in or out [30 s] */
    size_t max_stream_bytes;  /* queued per stream before it is cut [256 KiB] */
    uint32_t ping_ms;         /* comment line to silent event streams [10 s] */
    /* Role of a presented bearer text, and a number for its holder; 0: nobody.  See
     * token_bearer_read().  NULL: every route with roles is refused. */
    unsigned (*authenticate)(void *arg, const char *presented, uint64_t *ret_holder);
    /* Name of our cookie, kept: a browser shares cookies among all ports of a host [skerry]. */
    const char *cookie;
    /* The same for that cookie.  A request that changes anything is refused with 403 unless a page
     * of this server asks (Sec-Fetch-Site, else Origin).  NULL: cookies count for nothing. */
    unsigned (*session)(void *arg, const char *cookie, uint64_t *ret_holder);
    /* A connection whose last request was this holder's has closed, after `bytes` had passed on it,
     * both ways.  Called also while the server closes.  May be NULL. */
    void (*on_gone)(void *arg, uint64_t holder, uint64_t bytes);
    void *arg;
};

int http_server_open(struct loop *loop, const struct http_server_options *o,
                     struct http_server **ret, struct err *err);
/* The bound port. */
uint16_t http_server_port(const struct http_server *s);

/* Adds routes (kept until close).  The first that matches wins. */
void http_server_routes(struct http_server *s, const struct http_route *routes, unsigned count);

/* Cuts the connections whose last request was this holder's, with the requests under way on them.
 */
void http_server_cut(struct http_server *s, uint64_t holder);

/* Bytes that have passed, both ways, on the open connections whose last request was this holder's.
 */
uint64_t http_server_moved(const struct http_server *s, uint64_t holder);

/* Cuts all connections.  Deferred requests must have been answered before. */
void http_server_close(struct http_server *s); /* accepts NULL */

struct http_counters {
    uint64_t requests, errors_4xx, errors_5xx;
    uint64_t body_bytes_in, body_bytes_out; /* without headers and TLS */
    unsigned connections, strangers, streams;
    uint64_t streams_cut; /* slow clients */
};
struct http_counters http_server_counters(const struct http_server *s);

/* ---- the request; all strings are borrowed until it is answered ---- */
const char *http_request_method(const struct http_request *r);
const char *http_request_param(const struct http_request *r, const char *name); /* of the pattern */
const char *http_request_query(const struct http_request *r, const char *name); /* NULL: absent */
const char *http_request_header(const struct http_request *r, const char *name);
const char *http_request_cookie(const struct http_request *r); /* ours; NULL: absent */
const void *http_request_body(const struct http_request *r, size_t *ret_len);
unsigned http_request_role(const struct http_request *r);
uint64_t http_request_holder(const struct http_request *r); /* of the role or ticket; 0: none */
void *http_request_sink(const struct http_request *r);      /* of an upload, NULL else */

/* The request was allowed by other means than a token (a ticket): it and its connection are the
 * holder's, which is no longer a stranger, and does not make room for others.  -EAGAIN: the holder
 * has as many as one may have, and the connection stays what it was. */
int http_request_trust(struct http_request *r, uint64_t holder, struct err *err);

/* Whole-number parameter; answers 400 and returns negative when it is none.
 * The query variant returns `fallback` when absent. */
int http_request_param_u64(struct http_request *r, const char *name, uint64_t *ret);
int http_request_query_u64(struct http_request *r, const char *name, uint64_t fallback,
                           uint64_t max, uint64_t *ret);
/* Of this request at most so many bytes are taken, instead of its route's max_body; for begin of an
 * upload.  -ERR_LIMIT: it says that it has more. */
int http_request_limit(struct http_request *r, uint64_t bytes, struct err *err);
/* Body as JSON object (new reference); answers 400 and returns negative. */
int http_request_json(struct http_request *r, json_t **ret);

/* ---- answers: each ends the request ---- */
void http_reply_json(struct http_request *r, unsigned status, json_t *takes);
void http_reply_text(struct http_request *r, unsigned status, const char *content_type,
                     const char *text);
void http_reply_bytes(struct http_request *r, unsigned status, const char *content_type,
                      const void *data, size_t len); /* copied */
/* Sends this ETag with what follows; true: the client has that already, and was answered so. */
bool http_reply_unchanged(struct http_request *r, const char *etag);
/* Bytes that outlive the server (the dashboard's files): not copied. */
void http_reply_static(struct http_request *r, unsigned status, const char *content_type,
                       const void *data, size_t len);
void http_reply_empty(struct http_request *r, unsigned status);
/* An open file of `size` bytes, takes fd.  Honours Range (206, 416), HEAD and
 * If-None-Match when etag is not NULL (etag without quotes). */
void http_reply_file(struct http_request *r, int fd, uint64_t size, const char *content_type,
                     const char *etag);
/* Who counts the bytes that go out of an answer, as they do, and under which number. */
struct http_tally {
    void (*sent)(void *arg, uint64_t of, uint64_t bytes);
    void *arg;
    uint64_t of;
};
/* A file that is still written (growing.h), of which a share is taken.  What has been written is
 * sent, and the request waits for more; if no more comes the connection is cut.  Its ETag is the
 * file's tag, and Range is heeded with an If-Range that names it. */
void http_reply_growing(struct http_request *r, struct growing *g, const char *content_type,
                        const struct http_tally *tally);
/* code: lower_snake word for programs; the message is for people. */
void http_reply_error(struct http_request *r, unsigned status, const char *code, const char *fmt,
                      ...) __attribute__((format(printf, 4, 5)));
/* Status and code word for an error's code: -ERR_NOTFOUND 404, -EINVAL 400, ... */
unsigned http_reply_status(int code, const char **ret_word);
/* The same as an answer. */
void http_reply_err(struct http_request *r, const struct err *err);
/* Header of the coming answer, copied; at most 8. */
void http_reply_header(struct http_request *r, const char *name, const char *value);
/* Sends our cookie with the answer, for our own pages only and for max_age_s. */
void http_reply_cookie(struct http_request *r, const char *value, uint64_t max_age_s);

/* ---- streams ---- */

/* Answers 200 with an endless body.  -EAGAIN: too many streams (already answered
 * with 503).  "text/event-stream" gets a comment line when silent for ping_ms.
 * on_close is called exactly once, when the client went away, was cut, or after
 * http_stream_close(); the stream is gone after it. */
int http_stream_open(struct http_request *r, const char *content_type,
                     void (*on_close)(void *arg, struct http_stream *s), void *arg,
                     struct http_stream **ret);
/* Queues bytes.  -ERR_LIMIT: the client is too slow and has been cut (on_close
 * follows in a later turn). */
int http_stream_write(struct http_stream *s, const void *data, size_t len);
/* One server-sent event; data may have several lines. */
int http_stream_event(struct http_stream *s, const char *event, const char *data);
void http_stream_close(struct http_stream *s);

#endif
