/* The store of blob_s3.h, for those who open it (blob_s3_open.c). */
#ifndef COMMON_NET_S3_BLOB_S3_IMPL_H
#define COMMON_NET_S3_BLOB_S3_IMPL_H

#include <pthread.h>

#include "common/base/list.h"
#include "common/net/blobstore.h"
#include "common/net/s3/blob_s3.h"
#include "common/net/s3/promises.h"

#define BLOB_S3_THREADS 4 /* that send and delete */

/* A blob that the store has, is to have, or is to lose. */
struct blob_s3_object {
    struct blob_id id; /* first: what the tree compares */
    uint64_t size;
    int64_t touched_s;
    bool here;           /* for everybody else: stat finds it */
    bool stored;         /* the store has it, or may have */
    bool stale;          /* what the store has is not to be believed: it is sent again */
    bool cached;         /* the directory has it */
    bool busy, fetching; /* a thread is at it */
    bool looking;        /* busy: somebody says to have put it there (blob_s3_found) */
    bool entering;       /* busy: whoever wrote it waits for the store (blob_s3_through.c) */
    unsigned pins;
    struct list used;  /* in blob_s3->used while cached, the longest unused first */
    struct list waits; /* in blob_s3->work */
};

struct blob_s3 {
    struct blobstore base; /* first */
    struct blobstore_ops ops;
    struct s3 *c;
    struct blobstore *cache;
    char *prefix; /* of names: "PREFIX/blobs/" */
    char *beside; /* "PREFIX/" */
    /* How a blob that the directory has comes to be here (blob_s3_through.c); NULL: at once. */
    int (*enter)(struct blob_s3 *s, const struct blob_id *id, uint64_t size, struct err *err);
    uint64_t quota, cache_max;
    pthread_t threads[BLOB_S3_THREADS];
    unsigned n_threads;
    pthread_mutex_t lock; /* guards all below, and all objects */
    pthread_cond_t changed;
    void *tree; /* struct blob_s3_object, by id */
    struct list used, work;
    bool stopping;
    bool sums;         /* the store told the hash of what somebody put, when it was last asked */
    unsigned failures; /* in a row */
    uint64_t paused_until_ms;
    bool to_tidy; /* a thread is to, with tidy_before_s */
    int64_t tidy_before_s;
    uint64_t tidied_ms; /* when given up uploads were looked for; 0: not yet */
    struct promises promises;
};

/* Without a client, a cache, threads, names, away and found; its close frees whatever it has by
 * then. */
struct blob_s3 *blob_s3_new(void);

/* What a listing of the bucket, or of the directory, names; before the threads begin. */
void blob_s3_add_stored(struct blob_s3 *s, const struct blob_id *id, uint64_t size);
void blob_s3_add_cached(struct blob_s3 *s, const struct blob_id *id, uint64_t size);

/* Starts the threads; where writers wait for the store, so does this, for what the directory alone
 * has. */
int blob_s3_begin(struct blob_s3 *s, struct err *err);

/* Writers wait for the store, and the operations save, fetch and drop are there. */
void blob_s3_through(struct blob_s3 *s);

/* The operations away and found of blobstore.h. */
int blob_s3_away(struct blobstore *base, const struct blob_id *id, bool put, uint64_t size,
                 char **ret_url);
int blob_s3_found(struct blobstore *base, const struct blob_id *id, uint64_t size, struct err *err);

/* ---- under the lock ---- */

struct blob_s3_object *blob_s3_find(struct blob_s3 *s, const struct blob_id *id); /* or NULL */
/* The same, or a new one, which settle frees where nothing came of it. */
struct blob_s3_object *blob_s3_make(struct blob_s3 *s, const struct blob_id *id);
/* After each change: somebody's work, or nobody's object any more, and then it is freed. */
void blob_s3_settle(struct blob_s3 *s, struct blob_s3_object *e);
void blob_s3_appear(struct blob_s3 *s, struct blob_s3_object *e, uint64_t size);
/* The directory has it, and it is the last to make room. */
void blob_s3_used_now(struct blob_s3 *s, struct blob_s3_object *e);
/* The directory is not to have it any more. */
void blob_s3_uncache(struct blob_s3 *s, struct blob_s3_object *e);
/* -ENOSPC. */
int blob_s3_check_quota(const struct blob_s3 *s, uint64_t size, struct err *err);
/* What the store's last answer to us was. */
void blob_s3_note(struct blob_s3 *s, int rc, const struct err *err);

/* ---- without it ---- */

int blob_s3_nothing(const struct blob_id *id, struct err *err); /* -ERR_NOTFOUND */
/* Its name in the bucket; mem_free it. */
char *blob_s3_key(const struct blob_s3 *s, const struct blob_id *id);
/* Out of the store into the directory, compared.  -ERR_HASH: twice other bytes; -EAGAIN: also no
 * room; -EBUSY: it is being written by others. */
int blob_s3_download(struct blob_s3 *s, const struct blob_id *id, uint64_t size, struct err *err);

#endif
