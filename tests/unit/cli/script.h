/* A coordinator that answers with one canned answer after the other, on a thread. */
#ifndef TESTS_UNIT_CLI_SCRIPT_H
#define TESTS_UNIT_CLI_SCRIPT_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/base/cli.h"
#include "common/net/token.h"

/* What the coordinator says, one answer for each call: JSON, where an error is a 404, or a status
 * as "503", or "@PATH" for what that file has, or a page as "<401>"; the last one is NULL. */
struct script {
    int listener;
    const char *const *answers;
    pthread_t thread;
    char asked[256]; /* the first line of the first request */
    char last[256];  /* and that of the newest one */
    char body[1024]; /* and its body */
};

static inline void answer(struct script *s, const char *job)
{
    char request[4096], head[256], bytes[16384];
    const char *body = NULL, *says = job;
    size_t len = 0, need = sizeof request - 1, size = strlen(job);
    int fd = accept(s->listener, NULL, NULL);
    while (fd >= 0 && len < need) {
        ssize_t n = recv(fd, request + len, sizeof request - 1 - len, 0);
        if (n <= 0)
            break;
        len += (size_t)n;
        request[len] = '\0';
        if ((body = strstr(request, "\r\n\r\n")) != NULL) {
            const char *more = strcasestr(request, "\r\nContent-Length: ");
            body += 4;
            need = (size_t)(body - request) + (more ? strtoul(more + 18, NULL, 10) : 0);
        }
    }
    request[len] = '\0';
    (void)snprintf(s->body, sizeof s->body, "%s", body ? body : "");
    if (request[0])
        (void)snprintf(s->last, sizeof s->last, "%.*s", (int)strcspn(request, "\r"), request);
    if (!s->asked[0])
        (void)snprintf(s->asked, sizeof s->asked, "%s", s->last);
    const char *status = !strncmp(job, "{\"error\"", 8)                  ? "404"
                         : job[0] && job[strspn(job, "0123456789")] == 0 ? job
                         : !strcmp(job, "<401>")                         ? "401"
                                                                         : "200";
    FILE *file = job[0] == '@' ? fopen(job + 1, "rb") : NULL;
    if (file) {
        size = fread(bytes, 1, sizeof bytes, file);
        says = bytes;
        (void)fclose(file);
    }
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 %s So\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                     "Connection: close\r\n\r\n",
                     status, size);
    (void)send(fd, head, (size_t)n, MSG_NOSIGNAL); /* the test tells when it is not there */
    (void)send(fd, says, size, MSG_NOSIGNAL);
    close(fd);
}

static inline void *play(void *arg)
{
    struct script *s = arg;
    for (size_t i = 0; s->answers[i]; i++)
        answer(s, s->answers[i]);
    return NULL;
}

static inline void connect_to(struct script *s, struct cli *cli, const char *const *answers)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    char text[TOKEN_STRING_MAX];
    struct err err = {0};
    *s = (struct script){.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
                         .answers = answers};
    assert_int_equal(bind(s->listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s->listener, 8), 0);
    assert_int_equal(getsockname(s->listener, (struct sockaddr *)&a, &len), 0);
    struct token t = {.host = "127.0.0.1",
                      .rpc_port = 1,
                      .http_port = ntohs(a.sin_port),
                      .http_plain = true,
                      .role = TOKEN_ROLE_OPERATOR};
    if (token_format(&t, text, &err) < 0)
        fail_msg("%s", err.msg);
    cli->token = text;
    if (cli_connect(cli, &err) < 0)
        fail_msg("%s", err.msg);
    cli->token = NULL;
    assert_int_equal(pthread_create(&s->thread, NULL, play, s), 0);
}

static inline void disconnect(struct script *s, struct cli *cli)
{
    cli_close(cli);
    (void)shutdown(s->listener, SHUT_RDWR); /* ends a thread whose answers nobody asked for */
    assert_int_equal(pthread_join(s->thread, NULL), 0);
    close(s->listener);
}

#endif
