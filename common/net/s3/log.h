/* A log in an object store that has one owner: entry N is one object, and the first that writes it
 * has it (If-None-Match).  No clock is in it.  docs/failover.md says why it holds.
 *
 *     PREFIX/log/<N, 16 hex digits>
 *     PREFIX/snapshot/<N>-<hash of entry N>-<SHA-256 of the object>
 *
 *     s3_log_read(log, ...)* until -ERR_NOTFOUND     what others have written
 *     s3_log_next(log, S3_LOG_OWNER, ...)            then the next entry says that it is ours:
 *     s3_log_send(log, err)                          again after what may pass, with the same bytes
 *     s3_log_check(log, err)                         0: all that we send from here on counts
 *
 * An entry is a head of 96 bytes (magic, kind, number, owner, hash of the entry before), a body,
 * and the SHA-256 of both; numbers are little-endian.  Not thread-safe. */
#ifndef COMMON_NET_S3_LOG_H
#define COMMON_NET_S3_LOG_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/net/s3/client.h"

#define S3_LOG_OWNER_BYTES 16
#define S3_LOG_HASH_BYTES 32
#define S3_LOG_ENTRY_MAX ((size_t)256 << 20)

enum s3_log_kind {
    S3_LOG_ROWS = 1,  /* body: the caller's */
    S3_LOG_OWNER = 2, /* whose the log is from here on, for ever.  Body: its name, for people */
};

/* The store, as client.h's functions of these names. */
struct s3_log_ops {
    int (*put_new)(void *arg, const char *key, const void *data, size_t len, struct err *err);
    int (*get)(void *arg, const char *key, struct buf *ret, struct err *err);
    int (*list)(void *arg, const char *prefix, s3_list_fn *fn, void *fn_arg, struct err *err);
    int (*remove)(void *arg, const char *key, struct err *err);
};
/* Of a client: arg is a struct s3. */
extern const struct s3_log_ops s3_log_of_client;

struct s3_log {
    const struct s3_log_ops *ops;
    void *arg;
    const char *prefix; /* kept */
    uint8_t owner[S3_LOG_OWNER_BYTES];
    uint64_t seq;                    /* of the newest entry that was read or sent; 0: none */
    uint8_t hash[S3_LOG_HASH_BYTES]; /* of that one */
    uint64_t gone;                   /* s3_log_clean() has removed what is below */
    /* What s3_log_next() made. */
    struct buf out;
    uint8_t out_hash[S3_LOG_HASH_BYTES];
};

struct s3_log_entry {
    enum s3_log_kind kind;
    uint64_t seq;
    uint8_t owner[S3_LOG_OWNER_BYTES], hash[S3_LOG_HASH_BYTES];
    const uint8_t *body; /* in the caller's buffer */
    size_t len;
};

/* A snapshot's name. */
struct s3_log_snapshot {
    uint64_t seq, size;
    uint8_t hash[S3_LOG_HASH_BYTES], sha256[32];
};

void s3_log_init(struct s3_log *log, const struct s3_log_ops *ops, void *arg, const char *prefix);
void s3_log_release(struct s3_log *log);

/* Does the store write conditionally?  -ERR_UNIMPLEMENTED with a sentence: it does not. */
int s3_log_probe(struct s3_log *log, struct err *err);

/* Reads the entry seq into raw (cleared first).  -ERR_NOTFOUND: it is not there; -ERR_FORMAT;
 * -ERR_VERSION: another release, or another program, wrote it. */
int s3_log_get(struct s3_log *log, uint64_t seq, struct buf *raw, struct s3_log_entry *ret,
               struct err *err);
/* Reads the entry after the newest, which it becomes.  -ERR_FORMAT also where it does not follow.
 */
int s3_log_read(struct s3_log *log, struct buf *raw, struct s3_log_entry *ret, struct err *err);
/* The highest number in the store, of an entry or a snapshot; 0: there is none. */
int s3_log_top(struct s3_log *log, uint64_t *ret, struct err *err);

/* Makes the entry after the newest.  -ERR_LIMIT. */
int s3_log_next(struct s3_log *log, enum s3_log_kind kind, const void *body, size_t len,
                struct err *err);
/* Writes it, in one try of the store's.  0: it is there, written now or by a try of ours before.
 * -ERR_STALE: somebody else's is, and always will be. */
int s3_log_send(struct s3_log *log, struct err *err);
/* After an OWNER entry: -EAGAIN where entries had been removed that we took for not written yet;
 * whoever gets this forgets what it has read. */
int s3_log_check(struct s3_log *log, struct err *err);

/* Where a snapshot of the entry seq goes; mem_free it. */
char *s3_log_snapshot_key(const struct s3_log *log, const struct s3_log_snapshot *s);
/* The snapshots that are there, newest first, at most max; mem_free *ret. */
int s3_log_snapshots(struct s3_log *log, size_t max, struct s3_log_snapshot **ret, size_t *ret_n,
                     struct err *err);
/* Is its entry in the log? */
int s3_log_counts(struct s3_log *log, const struct s3_log_snapshot *s, bool *ret, struct err *err);

/* Removes snapshots and entries below seq, but for those that say whose the log is. */
int s3_log_clean(struct s3_log *log, uint64_t seq, struct err *err);

#endif
