#include "common/net/http/socket_bytes.h"

#include <linux/tcp.h> /* not netinet/tcp.h, whose tcp_info is older and shorter */
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* Asks for the counters; those that an older kernel lacks are 0. */
static struct tcp_info ask(int fd)
{
    struct tcp_info info;
    socklen_t len = sizeof info;
    memset(&info, 0, sizeof info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0)
        memset(&info, 0, sizeof info);
    return info;
}

void socket_bytes_add(int fd, uint64_t *in, uint64_t *out)
{
    const struct tcp_info info = ask(fd);
    *in += info.tcpi_bytes_received;
    *out += info.tcpi_bytes_sent;
}

static int port_of(int fd)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    if (getsockname(fd, (struct sockaddr *)&a, &len) < 0)
        return -1;
    const bool six = a.ss_family == AF_INET6;
    return ntohs(six ? ((struct sockaddr_in6 *)&a)->sin6_port
                     : ((struct sockaddr_in *)&a)->sin_port);
}

/* The connection on which the handle's present request travels; -1: none that counts here. */
static int socket_of(const struct socket_bytes *b, CURL *easy)
{
    /* During a transfer libcurl names as the active socket that of the transfer before; the port is
     * that of the present one. */
    long port = 0;
    curl_easy_getinfo(easy, CURLINFO_LOCAL_PORT, &port);
    for (unsigned i = 0; i < b->n_open && port > 0; i++)
        if (port_of(b->open[i]) == port)
            return b->open[i];
    return -1;
}

bool socket_bytes_delivered(const struct socket_bytes *b, CURL *easy)
{
    const struct tcp_info info = ask(socket_of(b, easy));
    return info.tcpi_bytes_sent > 0 && info.tcpi_unacked == 0 && info.tcpi_notsent_bytes == 0;
}

uint64_t socket_bytes_queued(const struct socket_bytes *b, CURL *easy)
{
    int n = 0;
    return ioctl(socket_of(b, easy), SIOCOUTQ, &n) == 0 && n > 0 ? (uint64_t)n : 0;
}

curl_socket_t socket_bytes_open(struct socket_bytes *b, const struct curl_sockaddr *address)
{
    int fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
    if (fd >= 0 && b->n_open < SOCKET_BYTES_OPEN_MAX)
        b->open[b->n_open++] = fd;
    return fd < 0 ? CURL_SOCKET_BAD : fd;
}

static curl_socket_t open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
    return socket_bytes_open(arg, address);
}

static int close_socket(void *arg, curl_socket_t fd)
{
    struct socket_bytes *b = arg;
    socket_bytes_add(fd, &b->in, &b->out);
    for (unsigned i = 0; i < b->n_open; i++) {
        if (b->open[i] == fd) {
            b->open[i] = b->open[--b->n_open];
            break;
        }
    }
    return close(fd);
}

void socket_bytes_attach(struct socket_bytes *b, CURL *easy)
{
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, b);
    curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, close_socket);
    curl_easy_setopt(easy, CURLOPT_CLOSESOCKETDATA, b);
}

void socket_bytes_read(const struct socket_bytes *b, uint64_t *ret_in, uint64_t *ret_out)
{
    *ret_in = b->in;
    *ret_out = b->out;
    for (unsigned i = 0; i < b->n_open; i++)
        socket_bytes_add(b->open[i], ret_in, ret_out);
}
