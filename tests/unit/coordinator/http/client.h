/* A client of the server under test, on the same thread: it turns the loop while it waits. */
#ifndef TESTS_UNIT_COORDINATOR_HTTP_CLIENT_H
#define TESTS_UNIT_COORDINATOR_HTTP_CLIENT_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/net/http/http_server.h"
#include "common/net/loop.h"
#include "tests/unit/wait.h"

#define DEADLINE_MS WAIT_MS
#define BEARER "Authorization: Bearer right\r\n"

static struct loop *loop;
static struct http_server *server;

struct answer {
    int fd, status;
    char text[65536]; /* headers and body */
    size_t len;
    bool ended;
};

static inline void send_request(struct answer *a, const char *method, const char *path,
                                const char *headers, const char *body)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(http_server_port(server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char request[8192];
    int len = snprintf(request, sizeof request,
                       "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s"
                       "Content-Length: %zu\r\n\r\n%s",
                       method, path, headers, strlen(body), body);
    *a = (struct answer){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_true(a->fd >= 0);
    assert_int_equal(connect(a->fd, (struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(send(a->fd, request, (size_t)len, 0), len);
}

static inline void pump(struct answer *a)
{
    loop_turn(loop, false);
    ssize_t n = recv(a->fd, a->text + a->len, sizeof a->text - 1 - a->len, MSG_DONTWAIT);
    if (n > 0)
        a->len += (size_t)n;
    else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
        a->ended = true;
    a->text[a->len] = '\0';
    (void)sscanf(a->text, "HTTP/1.1 %d", &a->status);
}

/* Until the text is there; NULL: until the connection ended. */
static inline void wait_for(struct answer *a, const char *text)
{
    uint64_t deadline = clock_now_ms() + DEADLINE_MS;
    while (text ? strstr(a->text, text) == NULL : !a->ended) {
        if (clock_now_ms() > deadline || (text && a->ended))
            fail_msg("no \"%s\" in %s", text ? text : "end", a->text);
        pump(a);
    }
}

static inline void ask(struct answer *a, const char *method, const char *path, const char *headers,
                       const char *body)
{
    send_request(a, method, path, headers, body);
    wait_for(a, NULL);
    close(a->fd);
}

static inline void expect(struct answer *a, int status, const char *text)
{
    if (a->status != status || (text && strstr(a->text, text) == NULL))
        fail_msg("not %d with \"%s\" but %s", status, text ? text : "", a->text);
}

#endif
