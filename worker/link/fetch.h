/* Getting blobs by ticket into the cache: several at once, resumed, verified; a blob that arrives
 * with wrong content is asked for once more, then it is an error that names it.  Loop thread. */
#ifndef WORKER_FETCH_H
#define WORKER_FETCH_H

#include "common/base/base.h"

struct cache;
struct fetch;
struct loop;
struct pool;
struct progress;
struct token;
struct work_need;
struct xfer;

/* What all transfers of this process share. */
struct fetch_env {
    struct loop *loop;
    struct xfer *xfer;
    struct cache *cache;
    const struct token *token; /* names the coordinator whose key is pinned */
    bool near;                 /* the coordinator may lead to neighbours */
    /* Archives that a job names by URL. */
    bool private_sources;           /* they may come from addresses that are not public */
    uint64_t source_max_bytes;      /* larger ones are refused; 0: 1 TiB */
    struct pool *compute;           /* there files are removed that must go for them */
    struct progress_beside *beside; /* hears of what it does between tasks */
};

/* code 0, or negative with one sentence. */
typedef void (*fetch_done_fn)(void *arg, int code, const char *detail);

struct fetch_what {
    const struct work_need *needs; /* the missing ones are fetched */
    size_t n;
    const char *source_url, *source_path; /* an archive from outside, and its file; or NULL */
    bool *ret_blob_failed;                /* set when it is a blob that fails; or NULL */
    struct progress *progress;            /* gets the progress; or NULL */
};

/* Exactly one done() follows, never from within this call, unless cancelled.  All that
 * `what` points to must live until then. */
struct fetch *fetch_start(const struct fetch_env *env, const struct fetch_what *what,
                          fetch_done_fn done, void *arg);

/* Stops the transfers (partial files stay for a resume); done() is not called. */
void fetch_cancel(struct fetch *f); /* accepts NULL */

#define FETCH_URL_MAX 2560
/* The absolute URL of a task's blob or archive, and the pin of its server.  A path is a ticket of
 * the coordinator, at the token's address.  Servers of URLs (of archives) are trusted by the
 * system's authorities: *ret_pin is NULL.  -ERR_LIMIT: too long. */
int fetch_resolve(const struct token *token, const char *url, char ret_url[FETCH_URL_MAX],
                  const uint8_t **ret_pin, struct err *err);

#endif
