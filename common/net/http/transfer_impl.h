/* One transfer, for transfer.c, which runs it, and transfer_io.c, which asks and judges. */
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
enum transfer_kind { TRANSFER_GET, TRANSFER_PUT, TRANSFER_CALL };
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
    struct loop_timer *pace;  /* runs while one is paused */
    struct patience got, put; /* with what the object store answers */
    /* The object store could not be dialled: nobody asks to be led there until then. */
    uint64_t home_until_ms;
    /* The key of the neighbour that failed last: nobody goes there until then. */
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
    char *url, *path, *part, *bearer, *method;
    uint8_t pin[32], sha256[32];
    bool has_pin, has_sha256;
    uint64_t max_bytes, size; /* size 0: unknown */
    uint32_t deadline_ms;
    uint8_t *request_body;
    size_t request_len;
    struct curl_slist *call_headers;
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
    bool paused;       /* until the link has room again; transfer.c goes on then */
    int io_error;      /* errno of our own disk */
    struct buf answer; /* call: the body; else the body of an error */
    uint64_t have;     /* put: what the server said it has */
    long status;
    uint64_t moved, progress_shown;
    bool follow;           /* where the server leads */
    char *away;            /* the store's URL for the next attempt; NULL: the server is asked */
    char *location;        /* where the answer in hand leads */
    bool near;             /* where the server leads, to a neighbour */
    uint8_t neighbour[32]; /* the key at `away`, or of the answer in hand */
    bool is_near;          /* it has one: what is there is no store */
    unsigned near_failures, near_waits;
    bool told_to_wait;         /* the server is at it: this try does not count */
    bool was_away;             /* put: the store may have it by now */
    unsigned away_failures;    /* in a row */
    struct patience_wait wait; /* for the object store's answer */
    uint64_t best;             /* how far any attempt came */
    unsigned tries;            /* in a row without progress */
    struct loop_timer *retry;
    struct transfer_verify *verifying;
};

/* Prepares t->easy for its next attempt; the result is judged by
 * transfer_judge().  -code: cannot begin. */
int transfer_prepare(struct transfer *t, struct err *err);
enum transfer_next transfer_judge(struct transfer *t, CURLcode rc, struct err *err);
/* Has the object store all of the request, and says nothing?  To be asked again and again while an
 * attempt runs; true: that should be judged, as CURLE_OPERATION_TIMEDOUT. */
bool transfer_is_unanswered(struct transfer *t);
void transfer_close_file(struct transfer *t);

#endif
