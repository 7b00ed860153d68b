#include "common/trainer/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HEADER 4

static int64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Waits until fd is ready: 1; 0: not before the deadline (negative: there is none). */
static int wait_for(int fd, short events, int64_t deadline, struct err *err)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        int64_t left = deadline < 0 ? -1 : deadline - now_ms();
        if (deadline >= 0 && left < 0)
            left = 0;
        const int n = poll(&p, 1, left > INT_MAX ? INT_MAX : (int)left);
        if (n >= 0)
            return n;
        if (errno != EINTR)
            return err_errno(err, "waiting on the trainer's socket");
    }
}

static int64_t deadline_of(int wait_ms)
{
    return wait_ms < 0 ? -1 : now_ms() + wait_ms;
}

/* The control message that carries one descriptor. */
union control {
    struct cmsghdr align;
    char space[CMSG_SPACE(sizeof(int))];
};

static void attach(struct msghdr *m, union control *c, int passed)
{
    memset(c, 0, sizeof(*c));
    m->msg_control = c->space;
    m->msg_controllen = sizeof(c->space);
    struct cmsghdr *h = CMSG_FIRSTHDR(m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(h), &passed, sizeof(passed));
}

static int send_all(int fd, const uint8_t *data, size_t len, int passed, int64_t deadline,
                    struct err *err)
{
    union control control;
    while (len > 0) {
        struct iovec v = {(void *)(uintptr_t)data, len};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
        if (passed >= 0)
            attach(&m, &control, passed);
        const ssize_t n = sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            data += n;
            len -= (size_t)n;
            passed = -1; /* it went with the first byte */
        } else if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) {
            return err_set(err, -EPIPE, "the other side of the trainer's socket is gone");
        } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
            return err_errno(err, "writing to the trainer's socket");
        } else {
            const int rc = wait_for(fd, POLLOUT, deadline, err);
            if (rc <= 0)
                return rc < 0 ? rc
                              : err_set(err, -ETIMEDOUT,
                                        "the other side does not read the trainer's socket");
        }
    }
    return 0;
}

int channel_send(int fd, const ProtobufCMessage *m, int passed, int wait_ms, struct err *err)
{
    const size_t len = protobuf_c_message_get_packed_size(m);
    if (len > CHANNEL_FRAME_MAX)
        return err_set(err, -ERR_LIMIT,
                       "a message of %zu bytes for the trainer's socket, at most "
                       "%u are possible",
                       len, CHANNEL_FRAME_MAX);
    uint8_t small[512], *frame = len + HEADER <= sizeof(small) ? small : mem_try(len + HEADER);
    if (!frame)
        return err_set(err, -ENOMEM, "no memory for a message of %zu bytes", len);
    for (int i = 0; i < HEADER; i++)
        frame[i] = (uint8_t)(len >> (8 * i));
    (void)protobuf_c_message_pack(m, frame + HEADER);
    const int rc = send_all(fd, frame, len + HEADER, passed, deadline_of(wait_ms), err);
    if (frame != small)
        mem_free(frame);
    return rc;
}

/* Takes the first descriptor that came with the message and closes all others. */
static void take_passed(struct msghdr *m, int *passed)
{
    for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(h) + i * sizeof(fd), sizeof(fd));
            if (*passed < 0)
                *passed = fd;
            else
                (void)close(fd);
        }
    }
}

/* Reads size bytes: 1; 0: nothing came before `begin`. */
static int receive_all(int fd, uint8_t *data, size_t len, int64_t begin, int64_t deadline,
                       int *passed, struct err *err)
{
    size_t have = 0;
    while (have < len) {
        const bool first = have == 0 && begin != 0;
        const int ready = wait_for(fd, POLLIN, first ? begin : deadline, err);
        if (ready < 0 || (ready == 0 && first))
            return ready;
        if (ready == 0)
            return err_set(err, -ETIMEDOUT, "a message on the trainer's socket does not end");
        union control control;
        struct iovec v = {data + have, len - have};
        struct msghdr m = {.msg_iov = &v,
                           .msg_iovlen = 1,
                           .msg_control = control.space,
                           .msg_controllen = sizeof(control.space)};
        const ssize_t n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n > 0)
            take_passed(&m, passed);
        if (n == 0 || (n < 0 && errno == ECONNRESET))
            return err_set(err, -EPIPE, "the other side of the trainer's socket is gone");
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return err_errno(err, "reading from the trainer's socket");
        have += n > 0 ? (size_t)n : 0;
    }
    return 1;
}

static int receive_body(int fd, size_t len, int64_t deadline, struct channel_frame *f,
                        struct err *err)
{
    if (len > CHANNEL_FRAME_MAX)
        return err_set(err, -ERR_LIMIT,
                       "a message on the trainer's socket has %zu bytes, at most %u are possible",
                       len, CHANNEL_FRAME_MAX);
    f->data = mem_try(len + 1);
    if (!f->data)
        return err_set(err, -ENOMEM, "no memory for a message of %zu bytes", len);
    f->len = len;
    return receive_all(fd, f->data, len, 0, deadline, &f->passed, err);
}

int channel_receive(int fd, int wait_ms, int whole_ms, struct channel_frame *ret, struct err *err)
{
    struct channel_frame f = {.passed = -1};
    uint8_t header[HEADER];
    const int64_t begin = wait_ms < 0 ? -1 : now_ms() + wait_ms;
    const int64_t deadline =
        wait_ms < 0 || whole_ms < 0 ? -1 : begin + (whole_ms > wait_ms ? whole_ms : 0) + whole_ms;
    int rc = receive_all(fd, header, HEADER, begin, deadline, &f.passed, err);
    if (rc == 1) {
        size_t len = 0;
        for (int i = HEADER; i-- > 0;)
            len = len << 8 | header[i];
        rc = receive_body(fd, len, deadline, &f, err);
    }
    if (rc == 1) {
        *ret = f;
        return 1;
    }
    mem_free(f.data);
    if (f.passed >= 0)
        (void)close(f.passed);
    return rc;
}

int channel_memory(const char *name, uint64_t bytes, int *ret_fd, struct err *err)
{
    const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return err_errno(err, "making shared memory");
    if (ftruncate(fd, (off_t)bytes) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        const int rc =
            err_errno(err, "making %llu bytes of shared memory", (unsigned long long)bytes);
        (void)close(fd);
        return rc;
    }
    *ret_fd = fd;
    return 0;
}
