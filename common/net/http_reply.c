#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "common/net/http_internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void http_reply_response(struct http_request *r, unsigned status, struct MHD_Response *response,
                         const char *content_type)
{
    if (r->answered || !response || !r->connection || !r->server) {
        /* The client is gone, or memory is: nothing to say, the request ends. */
        if (response)
            MHD_destroy_response(response);
        r->answered = true;
        if (r->connection && r->suspended && r->server && !r->response) {
            r->status = 503;
            r->response = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
            r->suspended = false;
            MHD_resume_connection(r->connection);
            http_server_kick(r->server);
        }
        http_request_maybe_free(r);
        return;
    }
    if (content_type)
        (void)MHD_add_response_header(response, "Content-Type", content_type); /* valid names */
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    for (unsigned i = 0; i < r->header_count; i++)
        (void)MHD_add_response_header(response, r->headers[i].name, r->headers[i].value);
    r->response = response;
    r->status = status;
    r->answered = true;
    if (r->in_callback || !r->suspended)
        return; /* queued when the callback returns */
    r->suspended = false;
    MHD_resume_connection(r->connection);
    http_server_kick(r->server);
}

void http_reply_header(struct http_request *r, const char *name, const char *value)
{
    if (r->header_count == HTTP_HEADERS_MAX)
        return;
    r->headers[r->header_count].name = str_dup(name);
    r->headers[r->header_count++].value = str_dup(value);
}

static void reply_data(struct http_request *r, unsigned status, const char *content_type,
                       const void *data, size_t len, enum MHD_ResponseMemoryMode mode)
{
    if (r->server)
        r->server->counters.body_bytes_out += len;
    http_reply_response(r, status, MHD_create_response_from_buffer(len, (void *)data, mode),
                        content_type);
}

void http_reply_json(struct http_request *r, unsigned status, json_t *takes)
{
    char *text = takes ? json_dumps(takes, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(takes);
    if (!text) {
        http_reply_error(r, 500, "internal", "the answer could not be written as JSON");
        return;
    }
    http_reply_header(r, "Cache-Control", "no-store");
    reply_data(r, status, "application/json", text, strlen(text), MHD_RESPMEM_MUST_FREE);
}

void http_reply_text(struct http_request *r, unsigned status, const char *content_type,
                     const char *text)
{
    reply_data(r, status, content_type, text, strlen(text), MHD_RESPMEM_MUST_COPY);
}

void http_reply_bytes(struct http_request *r, unsigned status, const char *content_type,
                      const void *data, size_t len)
{
    reply_data(r, status, content_type, data, len, MHD_RESPMEM_MUST_COPY);
}

void http_reply_static(struct http_request *r, unsigned status, const char *content_type,
                       const void *data, size_t len)
{
    reply_data(r, status, content_type, data, len, MHD_RESPMEM_PERSISTENT);
}

void http_reply_empty(struct http_request *r, unsigned status)
{
    reply_data(r, status, NULL, "", 0, MHD_RESPMEM_PERSISTENT);
}

void http_reply_error(struct http_request *r, unsigned status, const char *code, const char *fmt,
                      ...)
{
    char message[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(message, sizeof(message), fmt, ap); /* cut is fine */
    va_end(ap);
    if (!str_is_utf8(message, strlen(message)))
        for (char *p = message; *p; p++)
            if ((unsigned char)*p >= 0x80)
                *p = '?'; /* a cut character or a client's rubbish */
    http_reply_json(r, status,
                    json_pack("{s:{s:s,s:s}}", "error", "code", code, "message", message));
}

void http_reply_err(struct http_request *r, const struct err *err)
{
    static const struct {
        int code;
        unsigned status;
        const char *word;
    } map[] = {
        {-EINVAL, 400, "invalid"},
        {-ERR_FORMAT, 400, "invalid_format"},
        {-ERR_CONFIG, 400, "invalid_config"},
        {-ERR_AUTH, 403, "forbidden"},
        {-ERR_NOTFOUND, 404, "not_found"},
        {-ENOENT, 404, "not_found"},
        {-EEXIST, 409, "exists"},
        {-EBUSY, 409, "busy"},
        {-ERR_STALE, 409, "stale"},
        {-ERR_LIMIT, 413, "too_large"},
        {-ERR_HASH, 422, "hash_mismatch"},
        {-EAGAIN, 503, "try_again"},
        {-ERR_CANCELLED, 503, "cancelled"},
        {-ENOSPC, 507, "no_space"},
        {-ERR_UNIMPLEMENTED, 501, "not_implemented"},
    };
    unsigned status = 500;
    const char *word = "internal";
    for (size_t i = 0; i < sizeof(map) / sizeof(map[0]); i++) {
        if (map[i].code == err->code) {
            status = map[i].status;
            word = map[i].word;
        }
    }
    http_reply_error(r, status, word, "%s", err->msg[0] ? err->msg : err_text(err->code));
}

/* ---- files ---- */

enum range { RANGE_NONE, RANGE_OK, RANGE_BAD };

/* One range of bytes; several, or another unit, are answered with the whole. */
static enum range parse_range(const char *h, uint64_t size, uint64_t *ret_from, uint64_t *ret_len)
{
    char *end;
    if (!h || strncmp(h, "bytes=", 6) != 0 || strchr(h, ','))
        return RANGE_NONE;
    h += 6;
    if (*h == '-') {
        unsigned long long n = strtoull(h + 1, &end, 10);
        if (end == h + 1 || *end)
            return RANGE_NONE;
        if (n == 0 || size == 0)
            return RANGE_BAD;
        *ret_len = n < size ? n : size;
        *ret_from = size - *ret_len;
        return RANGE_OK;
    }
    unsigned long long from = strtoull(h, &end, 10), to = UINT64_MAX;
    if (end == h || *end != '-')
        return RANGE_NONE;
    if (end[1]) {
        h = end + 1;
        to = strtoull(h, &end, 10);
        if (end == h || *end || to < from)
            return RANGE_NONE;
    }
    if (from >= size)
        return RANGE_BAD;
    *ret_from = from;
    *ret_len = (to < size - 1 ? to : size - 1) - from + 1;
    return RANGE_OK;
}

static bool etag_matches(const char *h, const char *etag)
{
    const char *p = h && etag ? strstr(h, etag) : NULL;
    size_t n = etag ? strlen(etag) : 0;
    return p && p > h && p[-1] == '"' && p[n] == '"';
}

void http_reply_file(struct http_request *r, int fd, uint64_t size, const char *content_type,
                     const char *etag)
{
    char text[96];
    uint64_t from = 0, len = size;
    unsigned status = 200;
    http_reply_header(r, "Accept-Ranges", "bytes");
    if (etag) {
        snprintf(text, sizeof(text), "\"%s\"", etag);
        http_reply_header(r, "ETag", text);
        if (etag_matches(http_request_header(r, "If-None-Match"), etag)) {
            close(fd);
            http_reply_empty(r, 304);
            return;
        }
    }
    const char *if_range = http_request_header(r, "If-Range");
    enum range range = parse_range(http_request_header(r, "Range"), size, &from, &len);
    if (range != RANGE_NONE && if_range && !etag_matches(if_range, etag))
        range = RANGE_NONE;
    if (range == RANGE_BAD) {
        snprintf(text, sizeof(text), "bytes */%llu", (unsigned long long)size);
        http_reply_header(r, "Content-Range", text);
        close(fd);
        http_reply_error(r, 416, "range", "the range lies behind the end: there are %llu bytes",
                         (unsigned long long)size);
        return;
    }
    if (range == RANGE_OK) {
        status = 206;
        snprintf(text, sizeof(text), "bytes %llu-%llu/%llu", (unsigned long long)from,
                 (unsigned long long)(from + len - 1), (unsigned long long)size);
        http_reply_header(r, "Content-Range", text);
    } else {
        from = 0;
        len = size;
    }
    if (r->server && strcmp(r->method, "HEAD") != 0)
        r->server->counters.body_bytes_out += len;
    /* Takes fd; sends with sendfile where there is no TLS. */
    struct MHD_Response *response = MHD_create_response_from_fd_at_offset64(len, fd, from);
    if (!response)
        close(fd);
    http_reply_response(r, status, response, content_type);
}
