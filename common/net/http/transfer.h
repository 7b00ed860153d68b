/* Transfers: an HTTP(S) client, by libcurl.
 *
 * struct xfer runs them inside the loop (all its functions: loop thread).
 *   get   to a file: resumes PATH.part (without a hash only what it got itself, of
 *         the same version), retries with backoff, verifies size and SHA-256, fsyncs,
 *         renames to PATH (from the hash on: on a thread)
 *   put   a file, to a ticket of blob_http.h: first asks how much the server has,
 *         resumes, retries
 * Each ends with exactly one done(), never from within the call that made it.
 * There is no total timeout: a transfer is cut when it moves less than
 * min_bytes_per_s over floor_s, and tried again.
 *
 * A blob's server may redirect to its object store (blob_http.h) if `follow` allows it.  The
 * transfer then goes there for one attempt, trusts the system's authorities, and follows no further
 * redirect.  Before the next attempt it asks the server again, whatever went wrong: an expired URL,
 * 503, a cut.  Bytes received so far are kept.  After three failures in a row at the store the
 * transfer goes through the server.
 *
 * The server may also redirect to a neighbour that has the blob, if `near` allows it, and gives the
 * neighbour's pin: for one attempt, as above; after a failure the server is asked again at once.  A
 * neighbour that has failed or is slow (below 128 KiB/s, unless down_bytes_per_s is set) is avoided
 * for a minute, as is one that sends wrong bytes; after two failures, or wrong bytes, the server
 * sends the blob.
 *
 * Servers are trusted by `pin` (SHA-256 of the public key, 32 bytes; no
 * authority, no names) or, with pin NULL, by the system's authorities.
 *
 * libcurl is initialised by the first transfer, not before.  http_client.h has blocking
 * variants, and small requests, for command-line programs. */
#ifndef COMMON_NET_HTTP_TRANSFER_H
#define COMMON_NET_HTTP_TRANSFER_H

#include "common/base/base.h"

struct loop;
struct xfer;

/* Seconds without a byte after which a download from an object store or a neighbour ends; doubled
 * for each later attempt.  How long to wait for a store's answer: see patience.h. */
#define XFER_AWAY_FLOOR_S 5u

/* Zero means the default in brackets. */
struct xfer_options {
    unsigned max_parallel;                   /* running at once [8]; others wait in order */
    unsigned max_queued;                     /* running and waiting [4096] */
    uint32_t connect_ms;                     /* [10 s] */
    uint64_t min_bytes_per_s;                /* floor [1024] */
    uint32_t floor_s;                        /* window of the floor [20 s] */
    unsigned max_tries;                      /* attempts without a byte of progress [6] */
    uint32_t patience_ms;                    /* and they go on for at least as long [0] */
    uint32_t backoff_min_ms, backoff_max_ms; /* [250, 15000] */
    const char *user_agent;                  /* kept ["skerry"] */
    /* Files' bytes per second of all transfers together [no limit]. */
    uint64_t up_bytes_per_s, down_bytes_per_s;
};

struct xfer_result {
    int code;           /* 0 or negative: -ERR_HASH, -ERR_LIMIT, -ERR_AUTH, -ERR_NOTFOUND,
                           -ERR_REMOTE, -ETIMEDOUT, -ECONNRESET, -ENOSPC, -ERR_CANCELLED ... */
    const char *detail; /* one sentence when code is not 0, else "" */
    long status;        /* last HTTP status, 0 if none */
    uint64_t bytes;     /* body bytes moved by this transfer, including repeats */
    uint64_t size;      /* of the file */
    bool existed;       /* put: the server had it already */
};

typedef void (*xfer_done_fn)(void *arg, const struct xfer_result *r);
/* done bytes of total (0: unknown yet); of a put those that the other end's system has. */
typedef void (*xfer_progress_fn)(void *arg, uint64_t done, uint64_t total);

int xfer_new(struct loop *loop, const struct xfer_options *o, struct xfer **ret, struct err *err);
/* All transfers complete with -ERR_CANCELLED before it returns. */
void xfer_free(struct xfer *x); /* accepts NULL */

struct xfer_get {
    const char *url;       /* strings and bytes are copied */
    const uint8_t *pin;    /* 32 bytes or NULL */
    const char *bearer;    /* Authorization, or NULL (tickets need none) */
    const char *path;      /* where the file shall appear */
    const uint8_t *sha256; /* 32 bytes the content must hash to, or NULL */
    uint64_t size;         /* exact size, or 0: unknown */
    uint64_t max_bytes;    /* refuse more; 0: `size`, or 1 TiB */
    /* Connect to public addresses only (address.h), whatever the name resolves to and wherever a
     * redirect leads; -EACCES: err names the refused address. */
    bool public_only;
    bool follow; /* may go to the object store of its server */
    bool near;   /* may go to a neighbour that its server names */
    /* Nothing is flushed: after a loss of power readers check the file's hash first. */
    bool cached;
    mode_t mode;               /* of the file, less the umask; 0: 0600 */
    xfer_progress_fn progress; /* may be NULL */
    xfer_done_fn done;
    void *arg;
};
struct xfer_put {
    const char *url;
    const uint8_t *pin;
    const char *path; /* must not change until done */
    /* The file's hash, 32 bytes, which allows going to the object store (it is sent the hash); or
     * NULL. */
    const uint8_t *sha256;
    xfer_progress_fn progress;
    xfer_done_fn done;
    void *arg;
};
/* 0 and an id (ids are never reused), or -EAGAIN (queue full), -EINVAL. */
int xfer_get(struct xfer *x, const struct xfer_get *g, uint64_t *ret_id, struct err *err);
int xfer_put(struct xfer *x, const struct xfer_put *p, uint64_t *ret_id, struct err *err);
/* Completes with -ERR_CANCELLED before it returns; unknown ids are ignored. */
void xfer_cancel(struct xfer *x, uint64_t id);

/* The server is known to be back: transfers that wait for another try retry now. */
void xfer_hurry(struct xfer *x);

struct xfer_counters {
    uint64_t bytes_in, bytes_out; /* at the sockets: with TLS and retransmissions */
    unsigned running, waiting;
    uint64_t retries;
};
struct xfer_counters xfer_counters(const struct xfer *x);

#endif
