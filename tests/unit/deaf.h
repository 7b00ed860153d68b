/* A port where nobody answers: its queue is full, so the kernel drops what comes, as a firewall
 * does. */
#ifndef TESTS_UNIT_DEAF_H
#define TESTS_UNIT_DEAF_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#define DEAF_QUEUE 4

struct deaf {
    int listener, fill[DEAF_QUEUE];
    unsigned short port;
};

static inline void deaf_listen(struct deaf *d)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    d->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(d->listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(d->listener, 0), 0);
    assert_int_equal(getsockname(d->listener, (struct sockaddr *)&at, &len), 0);
    d->port = ntohs(at.sin_port);
    for (int i = 0; i < DEAF_QUEUE; i++) {
        d->fill[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(d->fill[i], (struct sockaddr *)&at, sizeof at); /* the last are dropped */
    }
}

static inline void deaf_close(struct deaf *d)
{
    for (int i = 0; i < DEAF_QUEUE; i++)
        close(d->fill[i]);
    close(d->listener);
}

#endif
