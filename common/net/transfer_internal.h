/* Shared by transfer*.c and http_client.c only. */
#ifndef COMMON_NET_TRANSFER_INTERNAL_H
#define COMMON_NET_TRANSFER_INTERNAL_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/list.h"
#include "common/net/transfer.h"

#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct loop_timer;
struct pool;
struct transfer;

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

struct transfer {
    struct list link; /* in xfer->waiting or xfer->active */
    struct xfer *owner;
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
    bool asking, existed, resumed, refetched, over_limit;
    bool paused;       /* until the link has room again */
    int io_error;      /* errno of our own disk */
    struct buf answer; /* call: the body; else the body of an error */
    uint64_t have;     /* put: what the server said it has */
    long status;
    uint64_t moved, progress_shown;
    uint64_t best;  /* how far any attempt came */
    unsigned tries; /* in a row without progress */
    struct loop_timer *retry;
    struct transfer_verify *verifying;
};

/* The options that every request has; pin NULL: the system's authorities. */
void transfer_setup_tls(CURL *easy, const char *url, const uint8_t *pin);
/* libcurl's global part, once per process. */
void transfer_global_init(void);
/* "Authorization: Bearer ..." and "Expect:" appended; may return NULL. */
struct curl_slist *transfer_headers(struct curl_slist *list, const char *bearer);
/* Code and sentence for an HTTP status of 300 or more; body may be our JSON error. */
int transfer_status_error(long status, const char *body, const char *url, struct err *err);
/* The same for libcurl's own failures. */
int transfer_curl_error(CURLcode rc, const char *text, const char *url, struct err *err);
/* Whether trying again may help. */
bool transfer_is_retryable(int code, long status);

/* transfer_io.c: prepares t->easy for its next attempt; the result is judged by
 * transfer_judge().  -code: cannot begin. */
int transfer_prepare(struct transfer *t, struct err *err);
enum transfer_next transfer_judge(struct transfer *t, CURLcode rc, struct err *err);
void transfer_close_file(struct transfer *t);

/* transfer.c: how many bytes may move now; 0: the transfer is paused, and continued when
 * there is room.  And that they have moved. */
size_t transfer_allowance(struct transfer *t, bool up, size_t want);
void transfer_moved(struct transfer *t, bool up, size_t bytes);

#endif
