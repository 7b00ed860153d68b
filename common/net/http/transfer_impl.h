/* One transfer, shared by transfer.c, which runs it, and transfer_io.c, which prepares its attempts
 * and judges their results. */
#ifndef COMMON_NET_HTTP_TRANSFER_IMPL_H
#define COMMON_NET_HTTP_TRANSFER_IMPL_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/hash.h"
#include "common/base/list.h"
#include "common/net/http/patience.h"
#include "common/net/http/rate.h"
#include "common/net/http/socket_bytes.h"
#include "common/net/http/transfer.h"

#include <curl/curl.h>
#include <sys/types.h>

struct loop_timer;
struct transfer;

/* What is moved, and where a transfer stands. */
enum transfer_kind { TRANSFER_GET, TRANSFER_PUT };
enum transfer_state { TRANSFER_WAITING, TRANSFER_RUNNING, TRANSFER_BACKOFF, TRANSFER_VERIFYING };
/* What to do after an attempt. */
enum transfer_next {
    TRANSFER_DONE,
    TRANSFER_FAILED,
    TRANSFER_RETRY,
    TRANSFER_AGAIN,
    TRANSFER_VERIFY
};

/* The link that all transfers share. */
struct transfer_link {
    struct loop *loop;
    struct rate up, down;
    struct socket_bytes bytes;
    struct loop_timer *pace;  /* runs while a transfer is paused */
    struct patience got, put; /* for the object store's answers */
    /* The object store could not be dialled: no transfer asks to be redirected there until then. */
    uint64_t home_until_ms;
    /* The pin of the neighbour that failed last: no transfer goes there until then. */
    char shunned[HASH_HEX_MAX];
    uint64_t shunned_until_ms;
};

struct transfer {
    struct list link; /* in xfer->waiting or xfer->active */
    struct xfer *owner;
    struct transfer_link *shared;
    uint64_t id;
    enum transfer_kind kind;
    enum transfer_state state;
    char *url, *path, *part, *bearer;
    uint8_t pin[32], sha256[32];
    bool has_pin, has_sha256;
    uint64_t max_bytes, size; /* size 0: unknown */
    xfer_progress_fn progress;
    xfer_done_fn done;
    void *arg;

    CURL *easy; /* while RUNNING */
    struct curl_slist *headers;
    char curl_error[CURL_ERROR_SIZE];
    int fd;             /* of part or path; -1: closed */
    uint64_t offset;    /* get: of the file, so far; put: next byte to send */
    uint64_t sent_from; /* put: start of this attempt */
    bool public_only, cached;
    mode_t mode;
    char refused[64]; /* the address that public_only kept us from; "": none */
    bool asking, existed, resumed, refetched, over_limit;
    bool elsewhere;    /* the answer is another part of the file than the one asked for */
    char version[128]; /* get: the file's, as the server calls it; "": it does not say */
    bool paused;       /* until the rate limit allows more; transfer.c resumes it */
    int io_error;      /* errno of our own disk */
    struct buf answer; /* the body of an error */
    uint64_t have;     /* put: bytes that the server said it has */
    long status;
    uint64_t moved, progress_shown, told_ms; /* told_ms: when that was shown */
    uint64_t paced;                          /* `moved` when bandwidth was last given out */
    bool follow;                             /* follows redirects to the store */
    char *away;            /* URL for the next attempt; NULL: the server is asked */
    char *location;        /* the redirect of the present answer */
    bool near;             /* follows redirects to a neighbour */
    uint8_t neighbour[32]; /* the pin for `away`, or of the present answer */
    bool is_near;          /* there is such a pin: `away` is a neighbour's, not the store's */
    unsigned near_failures, near_waits;
    bool told_to_wait;         /* the server is working on it: this try does not count */
    bool was_away;             /* put: the store may have the blob by now */
    unsigned away_failures;    /* in a row */
    struct patience_wait wait; /* for the object store's answer */
    uint64_t best;             /* the furthest offset of any attempt */
    uint64_t failed_ms;        /* when the first attempt that came no further failed */
    unsigned tries;            /* in a row without progress */
    struct loop_timer *retry;
    struct transfer_verify *verifying;
};

/* Prepares t->easy for its next attempt; the result is judged by
 * transfer_judge().  -code: cannot begin. */
int transfer_prepare(struct transfer *t, struct err *err);
enum transfer_next transfer_judge(struct transfer *t, CURLcode rc, struct err *err);
/* Whether the object store has the whole request but has been silent for too long.  To be polled
 * while an attempt runs; true: judge the attempt as CURLE_OPERATION_TIMEDOUT. */
bool transfer_is_unanswered(struct transfer *t);
void transfer_close_file(struct transfer *t);
/* The neighbour of this attempt, or of the last, is avoided for a while. */
void transfer_shun(struct transfer *t);
/* How far the file is: a put has come as far as the other end has acknowledged, since a slow link's
 * buffers hold megabytes. */
uint64_t transfer_reached(const struct transfer *t);

#endif
