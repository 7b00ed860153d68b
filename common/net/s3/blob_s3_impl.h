/* The inside of blob_s3.h's store, shared by its files. */
#ifndef COMMON_NET_S3_BLOB_S3_IMPL_H
#define COMMON_NET_S3_BLOB_S3_IMPL_H

#include <pthread.h>

#include "common/base/list.h"
#include "common/net/blobstore.h"
#include "common/net/s3/blob_s3.h"
#include "common/net/s3/promises.h"

#define BLOB_S3_THREADS 4 /* for uploads and deletions */

/* A blob that the store has, shall have, or shall delete. */
struct blob_s3_object {
    struct blob_id id; /* first: what the tree compares */
    uint64_t size;
    int64_t touched_s;
    bool here;           /* it exists for callers: stat finds it */
    bool stored;         /* the store has it, or may have it */
    bool stale;          /* the store's copy is not trusted: it is sent again */
    bool cached;         /* the directory has it */
    bool busy, fetching; /* a thread works on it */
    bool looking;        /* busy: checking a client's report that it put it there (blob_s3_found) */
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
    char *prefix; /* of blobs' keys: "PREFIX/blobs/" */
    char *beside; /* "PREFIX/" */
    char *cache_dir;
    /* Makes a blob that the directory has exist for callers (blob_s3_through.c); NULL: at once.
     * If the store does not take it now, it becomes an upload of `holder` again, which lacks only
     * its commit; 0: it is gone. */
    int (*enter)(struct blob_s3 *s, const struct blob_id *id, uint64_t size, uint64_t holder,
                 struct err *err);
    uint64_t quota, cache_max;
    uint64_t spare_bytes; /* left on the disk, for what is beside the cache */
    pthread_t threads[BLOB_S3_THREADS];
    unsigned n_threads;
    pthread_mutex_t lock; /* guards all below, and all objects */
    pthread_cond_t changed;
    void *tree; /* struct blob_s3_object, by id */
    struct list used, work;
    bool stopping;
    bool sums;         /* when last asked, the store reported the hash of a client's upload */
    unsigned failures; /* in a row */
    char failure[512]; /* the newest */
    uint64_t paused_until_ms;
    bool to_tidy; /* a thread shall tidy, with tidy_before_s */
    int64_t tidy_before_s;
    uint64_t hidden_bytes; /* gone from the cache, but perhaps not yet from the disk */
    uint64_t tidied_ms;    /* when abandoned uploads were last looked for; 0: not yet */
    struct promises promises;
};

/* A store without client, cache, threads, names, away and found; its close frees whichever of these
 * it has by then. */
struct blob_s3 *blob_s3_new(void);

/* Starts the threads.  Where writers wait for the store, this waits until it has all blobs that so
 * far only the directory has. */
int blob_s3_begin(struct blob_s3 *s, struct err *err);

/* Provides the operation fetch.  through: makes writers wait for the store, and provides save, drop
 * and saved, too. */
void blob_s3_through(struct blob_s3 *s, bool through);

/* The operations away and found of blobstore.h. */
int blob_s3_away(struct blobstore *base, const struct blob_id *id, bool put, uint64_t size,
                 char **ret_url);
int blob_s3_found(struct blobstore *base, const struct blob_id *id, uint64_t size, struct err *err);

/* ---- under the lock ---- */

struct blob_s3_object *blob_s3_find(struct blob_s3 *s, const struct blob_id *id); /* or NULL */
/* The same, or NULL if the object is hidden. */
struct blob_s3_object *blob_s3_find_here(struct blob_s3 *s, const struct blob_id *id);
/* The object of blob_s3_find(), or a new one; blob_s3_settle() frees it if it stays unused. */
struct blob_s3_object *blob_s3_make(struct blob_s3 *s, const struct blob_id *id);
/* To be called after each change of e: queues it if there is work, frees it if it is not needed. */
void blob_s3_settle(struct blob_s3 *s, struct blob_s3_object *e);
void blob_s3_appear(struct blob_s3 *s, struct blob_s3_object *e, uint64_t size);
void blob_s3_vanish(struct blob_s3 *s, struct blob_s3_object *e);
/* The directory has e, as the most recently used. */
void blob_s3_used_now(struct blob_s3 *s, struct blob_s3_object *e);
/* Removes e from the directory. */
void blob_s3_uncache(struct blob_s3 *s, struct blob_s3_object *e);
/* The bytes of the blobs that blob_s3_make_room() may evict now. */
uint64_t blob_s3_evictable_bytes(const struct blob_s3 *s);
bool blob_s3_is_to_be_sent(const struct blob_s3_object *e);
/* -ENOSPC: size bytes more exceed the quota. */
int blob_s3_check_quota(const struct blob_s3 *s, uint64_t size, struct err *err);
/* Notes the outcome of our last request to the store. */
void blob_s3_note(struct blob_s3 *s, int rc, const struct err *err);

/* ---- without it ---- */

/* Evicts blobs until the cache may hold need bytes more and the disk has disk_need, as far as that
 * is possible.  -EAGAIN: the cache cannot. */
int blob_s3_make_room(struct blob_s3 *s, uint64_t need, uint64_t disk_need, struct err *err);
int blob_s3_nothing(const struct blob_id *id, struct err *err); /* -ERR_NOTFOUND */
/* The blob's key in the bucket; mem_free it. */
char *blob_s3_key(const struct blob_s3 *s, const struct blob_id *id);
/* Fetches a blob from the store into the directory and verifies it.  -ERR_HASH: it had other bytes
 * twice; -EAGAIN: also if there is no room; -EBUSY: it has another writer. */
int blob_s3_download(struct blob_s3 *s, const struct blob_id *id, uint64_t size, struct err *err);

#endif
