/* A log with one owner in an object store: entry N is one object, and belongs to the first that
 * writes it (If-None-Match).  It uses no clock.  docs/failover.md says why it is safe.
 *
 *     PREFIX/log/<N, 16 hex digits>
 *     PREFIX/snapshot/<N>-<hash of entry N>-<SHA-256 of the object>
 *
 *     s3_log_read(log, ...)* until -ERR_NOTFOUND     reads others' entries
 *     s3_log_next(log, S3_LOG_OWNER, ...)            makes the entry that claims the log for us
 *     s3_log_send(log, err)                          repeated, same bytes, after passing failures
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
#define S3_LOG_AHEAD_BYTES ((size_t)1 << 20) /* a larger entry is not read ahead */

enum s3_log_kind {
    S3_LOG_ROWS = 1,  /* body: the caller's */
    S3_LOG_OWNER = 2, /* the log's owner until the next such entry.  Body: its name, for people */
};

/* The store's operations, as client.h's functions. */
struct s3_log_ops {
    int (*put_new)(void *arg, const char *key, const void *data, size_t len, struct err *err);
    int (*get)(void *arg, const char *key, struct buf *ret, struct err *err);
    int (*list)(void *arg, const char *prefix, s3_list_fn *fn, void *fn_arg, struct err *err);
    int (*remove)(void *arg, const char *key, struct err *err);
    bool (*takes_both)(void *arg, const char *stem);
};
/* For a client: arg is a struct s3. */
extern const struct s3_log_ops s3_log_of_client;

struct s3_log {
    const struct s3_log_ops *ops;
    void *arg;
    const char *prefix; /* kept */
    uint8_t owner[S3_LOG_OWNER_BYTES];
    uint64_t seq;                    /* of the newest entry read or sent; 0: none */
    uint8_t hash[S3_LOG_HASH_BYTES]; /* of that entry */
    uint64_t gone;                   /* s3_log_clean() has removed the entries below */
    struct s3_log_held *held;        /* entries read ahead; NULL: they are read one by one */
    /* The entry made by s3_log_next(). */
    struct buf out;
    uint8_t out_hash[S3_LOG_HASH_BYTES];
};

struct s3_log_entry {
    enum s3_log_kind kind;
    uint64_t seq;
    uint8_t owner[S3_LOG_OWNER_BYTES], hash[S3_LOG_HASH_BYTES];
    const uint8_t *body; /* valid until the next one is read */
    size_t len;
};

/* A snapshot's name. */
struct s3_log_snapshot {
    uint64_t seq, size;
    uint8_t hash[S3_LOG_HASH_BYTES], sha256[32];
};

void s3_log_init(struct s3_log *log, const struct s3_log_ops *ops, void *arg, const char *prefix);
void s3_log_release(struct s3_log *log);

/* Checks that the store has conditional writes, and takes one of two at once.  -ERR_UNIMPLEMENTED
 * with a sentence: it does not. */
int s3_log_probe(struct s3_log *log, struct err *err);

/* Reads the entry seq into raw (cleared first).  -ERR_NOTFOUND: it does not exist; -ERR_FORMAT;
 * -ERR_VERSION: another release, or another program, wrote it. */
int s3_log_get(struct s3_log *log, uint64_t seq, struct buf *raw, struct s3_log_entry *ret,
               struct err *err);
/* Reads the entry after log->seq and advances to it.  -ERR_FORMAT: also if it does not follow the
 * previous one. */
int s3_log_read(struct s3_log *log, struct buf *raw, struct s3_log_entry *ret, struct err *err);
/* From here on s3_log_read() gets CREW_MAX entries by that many threads, since each takes a while
 * with a store that is far away: ops->get must bear them.  One that is not there yet when the
 * others are read is asked for again.  A second call forgets what was read ahead. */
void s3_log_ahead(struct s3_log *log, unsigned threads);
/* The highest number of an entry or a snapshot in the store; 0: there is none. */
int s3_log_top(struct s3_log *log, uint64_t *ret, struct err *err);

/* Makes the entry after log->seq.  -ERR_LIMIT: S3_LOG_ENTRY_MAX. */
int s3_log_next(struct s3_log *log, enum s3_log_kind kind, const void *body, size_t len,
                struct err *err);
/* Writes that entry, in one try of the client.  0: it is in the store, written now or by an earlier
 * try of ours.  -ERR_STALE: another owner's entry has this number, for good. */
int s3_log_send(struct s3_log *log, struct err *err);
/* To be called after an OWNER entry.  -ERR_STALE: entries that we took for not yet written had been
 * removed; the caller must discard all it has read and begin again.  Other codes: the store's. */
int s3_log_check(struct s3_log *log, struct err *err);

/* The key of a snapshot; mem_free it. */
char *s3_log_snapshot_key(const struct s3_log *log, const struct s3_log_snapshot *s);
/* The snapshots in the store, newest first, at most max; mem_free *ret. */
int s3_log_snapshots(struct s3_log *log, size_t max, struct s3_log_snapshot **ret, size_t *ret_n,
                     struct err *err);
/* Whether the snapshot's entry is in the log. */
int s3_log_counts(struct s3_log *log, const struct s3_log_snapshot *s, bool *ret, struct err *err);

/* Removes snapshots and entries below seq, except OWNER entries. */
int s3_log_clean(struct s3_log *log, uint64_t seq, struct err *err);

#endif
