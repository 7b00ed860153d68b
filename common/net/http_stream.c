#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/net/http_internal.h"
#include "common/net/loop.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#define BLOCK_BYTES 8192

static ssize_t read_queue(void *cls, uint64_t pos, char *out, size_t max)
{
    struct http_stream *s = cls;
    if (s->cut)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (s->queue.len == 0 && s->ending)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (s->queue.len == 0) {
        /* Without this libmicrohttpd would ask again and again. */
        s->suspended = true;
        MHD_suspend_connection(s->request->connection);
        return 0;
    }
    size_t n = s->queue.len < max ? s->queue.len : max;
    memcpy(out, s->queue.data, n);
    buf_consume(&s->queue, n);
    if (s->queue.len == 0 && s->queue.cap > BLOCK_BYTES)
        buf_release(&s->queue);
    s->server->counters.body_bytes_out += n;
    return (ssize_t)n;
}

static void wake(struct http_stream *s)
{
    if (!s->suspended)
        return;
    s->suspended = false;
    MHD_resume_connection(s->request->connection);
    http_server_kick(s->server);
}

int http_stream_open(struct http_request *r, const char *content_type,
                     void (*on_close)(void *arg, struct http_stream *s), void *arg,
                     struct http_stream **ret)
{
    struct http_server *server = r->server;
    if (!server || !r->connection || server->counters.streams >= server->o.max_streams) {
        http_reply_error(r, 503, "too_many_streams", "too many event streams are open");
        return -EAGAIN;
    }
    struct http_stream *s = mem_alloc(sizeof(*s));
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_queue, s, NULL);
    if (!response) {
        mem_free(s);
        http_reply_error(r, 503, "no_memory", "no memory for another stream");
        return -EAGAIN;
    }
    s->server = server;
    s->request = r;
    s->on_close = on_close;
    s->arg = arg;
    s->is_events = strcmp(content_type, "text/event-stream") == 0;
    s->written_ms = loop_now_ms(server->loop);
    buf_init(&s->queue, server->o.max_stream_bytes);
    list_push(&server->streams, &s->link);
    server->counters.streams++;
    r->stream = s;
    http_reply_header(r, "Cache-Control", "no-store");
    http_reply_response(r, 200, response, content_type);
    *ret = s;
    return 0;
}

int http_stream_write(struct http_stream *s, const void *data, size_t len)
{
    if (s->cut)
        return -ERR_LIMIT;
    if (s->ending)
        return -ERR_CANCELLED;
    s->written_ms = loop_now_ms(s->server->loop);
    if (buf_append(&s->queue, data, len) < 0) {
        s->cut = true;
        s->server->counters.streams_cut++;
        if (s->request->conn)
            (void)shutdown(s->request->conn->fd, SHUT_RDWR); /* libmicrohttpd closes then */
        wake(s);
        return -ERR_LIMIT;
    }
    wake(s);
    return 0;
}

int http_stream_event(struct http_stream *s, const char *event, const char *data)
{
    struct buf b;
    buf_init(&b, s->server->o.max_stream_bytes);
    int rc = event ? buf_printf(&b, "event: %s\n", event) : 0;
    for (const char *p = data; rc == 0;) {
        size_t n = strcspn(p, "\n");
        rc = buf_printf(&b, "data: %.*s\n", (int)n, p);
        p += n;
        if (*p++ == '\0')
            break;
    }
    if (rc == 0)
        rc = buf_append_str(&b, "\n");
    if (rc == 0)
        rc = http_stream_write(s, b.data, b.len);
    buf_release(&b);
    return rc;
}

void http_stream_close(struct http_stream *s)
{
    s->ending = true;
    wake(s);
}

void http_stream_gone(struct http_stream *s)
{
    list_remove(&s->link);
    s->server->counters.streams--;
    s->request->stream = NULL;
    if (s->on_close)
        s->on_close(s->arg, s);
    buf_release(&s->queue);
    mem_free(s);
}

void http_stream_tick(struct http_server *server)
{
    uint64_t now = loop_now_ms(server->loop);
    for (struct list *l = server->streams.next; l != &server->streams; l = l->next) {
        struct http_stream *s = list_entry(l, struct http_stream, link);
        if (s->is_events && !s->ending && !s->cut && now - s->written_ms >= server->o.ping_ms)
            (void)http_stream_write(s, ":\n\n", 3); /* a slow one is cut by it */
    }
}
