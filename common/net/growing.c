#include "common/net/growing.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/hash.h"

#define PREFIX 8 /* bytes that say where the payload begins */
#define PIECE_BYTES (256u << 10)

struct growing {
    atomic_uint shares;
    _Atomic uint64_t reached;
    atomic_bool given_up;
    int fd;
    uint64_t from, bytes;
    char tag[GROWING_TAG_MAX];
};

struct growing *growing_new(int fd, uint64_t from, uint64_t bytes)
{
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return NULL;
    struct growing *g = mem_alloc(sizeof(*g));
    uint8_t tag[(GROWING_TAG_MAX - 1) / 2];
    hash_random(tag, sizeof(tag));
    (void)hash_hex(tag, sizeof(tag), g->tag);
    atomic_init(&g->shares, 1);
    atomic_init(&g->reached, from);
    g->fd = own;
    g->from = from;
    g->bytes = bytes;
    return g;
}

struct growing *growing_share(struct growing *g)
{
    atomic_fetch_add(&g->shares, 1);
    return g;
}

void growing_drop(struct growing *g)
{
    if (!g || atomic_fetch_sub(&g->shares, 1) > 1)
        return;
    close(g->fd);
    mem_free(g);
}

void growing_reach(struct growing *g, uint64_t reached)
{
    atomic_store(&g->reached, reached);
}

void growing_give_up(struct growing *g)
{
    atomic_store(&g->given_up, true);
}

bool growing_is_given_up(const struct growing *g)
{
    return atomic_load(&g->given_up);
}

const char *growing_tag(const struct growing *g)
{
    return g->tag;
}

uint64_t growing_length(const struct growing *g)
{
    return PREFIX + g->bytes;
}

ssize_t growing_read(const struct growing *g, uint64_t pos, void *out, size_t max)
{
    const uint64_t reached = atomic_load(&g->reached), tail = g->bytes - g->from;
    uint64_t at, there;
    if (growing_is_given_up(g))
        return -1;
    if (pos < PREFIX) {
        const size_t n = max < PREFIX - pos ? max : PREFIX - (size_t)pos;
        for (size_t i = 0; i < n; i++)
            ((uint8_t *)out)[i] = (uint8_t)(g->from >> 8 * (pos + i));
        return (ssize_t)n;
    }
    pos -= PREFIX;
    if (pos < tail) {
        at = g->from + pos;
        there = reached;
    } else {
        at = pos - tail;
        there = reached == g->bytes ? g->from : at;
    }
    if (at >= there)
        return 0;
    const ssize_t n = pread(g->fd, out, max < there - at ? max : (size_t)(there - at), (off_t)at);
    return n > 0 ? n : -1;
}

/* ---- the receiver ---- */

/* Copies n bytes between places of two files, and hashes them. */
static int copy(int in, const char *sent, uint64_t from, struct file_out *out, uint64_t to,
                uint64_t n, struct hash *hash, void *piece, struct err *err)
{
    int rc = 0;
    for (uint64_t done = 0; done < n && rc == 0;) {
        const size_t len = n - done < PIECE_BYTES ? (size_t)(n - done) : PIECE_BYTES;
        rc = file_pread_all(in, piece, len, from + done, sent, err);
        if (rc == 0)
            rc = file_out_pwrite(out, piece, len, to + done, err);
        if (rc == 0)
            hash_update(hash, piece, len);
        done += len;
    }
    return rc;
}

static int restore(int in, const char *sent, struct file_out *out, struct hash *hash,
                   uint64_t *ret_bytes, struct err *err)
{
    uint8_t prefix[PREFIX];
    uint64_t size = 0, from = 0;
    int rc = file_size(sent, &size, err);
    if (rc == 0)
        rc = file_pread_all(in, prefix, sizeof(prefix), 0, sent, err);
    if (rc < 0)
        return rc;
    const uint64_t bytes = size - PREFIX;
    for (size_t i = 0; i < sizeof(prefix); i++)
        from |= (uint64_t)prefix[i] << 8 * i;
    if (from > bytes)
        return err_set(err, -ERR_FORMAT, "%s is no file that was sent while it was written", sent);
    uint8_t *piece = mem_alloc(PIECE_BYTES);
    rc = copy(in, sent, size - from, out, 0, from, hash, piece, err);
    if (rc == 0)
        rc = copy(in, sent, PREFIX, out, from, bytes - from, hash, piece, err);
    mem_free(piece);
    *ret_bytes = bytes;
    return rc;
}

int growing_restore(const char *sent, const char *to, uint8_t ret_sha256[32], uint64_t *ret_bytes,
                    struct err *err)
{
    struct file_out out = {.fd = -1};
    struct hash hash;
    const int in = open(sent, O_RDONLY | O_CLOEXEC);
    if (in < 0)
        return err_errno(err, "cannot open %s", sent);
    hash_init(&hash);
    int rc = file_out_open(&out, to, 0600, err);
    if (rc == 0)
        rc = restore(in, sent, &out, &hash, ret_bytes, err);
    if (rc == 0)
        rc = file_out_put(&out, err);
    if (rc == 0)
        hash_final(&hash, ret_sha256);
    hash_release(&hash);
    file_out_abort(&out);
    close(in);
    return rc;
}
