/* The store of blob_s3.h, for those who open it (blob_s3_open.c). */
#ifndef COMMON_NET_S3_BLOB_S3_IMPL_H
#define COMMON_NET_S3_BLOB_S3_IMPL_H

#include <pthread.h>

#include "common/base/list.h"
#include "common/net/blobstore.h"
#include "common/net/s3/blob_s3.h"

#define BLOB_S3_THREADS 4 /* that send and delete */

struct blob_s3 {
    struct blobstore base; /* first */
    struct s3 *c;
    struct blobstore *cache;
    char *prefix; /* of names: "PREFIX/blobs/" */
    uint64_t quota, cache_max;
    pthread_t threads[BLOB_S3_THREADS];
    unsigned n_threads;
    pthread_mutex_t lock; /* guards all below, and all objects */
    pthread_cond_t changed;
    void *tree; /* struct object, by id */
    struct list used, work;
    bool stopping;
    unsigned failures; /* in a row */
    uint64_t paused_until_ms;
    bool to_tidy; /* a thread is to, with tidy_before_s */
    int64_t tidy_before_s;
    uint64_t tidied_ms; /* when given up uploads were looked for; 0: not yet */
};

/* Without a client, a cache, threads and names; its close frees whatever it has by then. */
struct blob_s3 *blob_s3_new(void);

/* What a listing of the bucket, or of the directory, names; before the threads begin. */
void blob_s3_add_stored(struct blob_s3 *s, const struct blob_id *id, uint64_t size);
void blob_s3_add_cached(struct blob_s3 *s, const struct blob_id *id, uint64_t size);

/* Starts the threads. */
int blob_s3_begin(struct blob_s3 *s, struct err *err);

#endif
