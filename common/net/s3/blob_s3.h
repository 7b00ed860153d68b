/* Blobs in an S3-compatible object store, with a directory as its cache.
 *
 *     PREFIX/blobs/<sha256>     in the bucket; PREFIX/cluster holds the cluster's id
 *     the cache's folder        as blob_dir.h: blobs not yet sent to the store, and those used
 *                               most recently
 *
 * A blob exists as soon as it is durable in the directory.  The store's own threads upload it and
 * delete hidden blobs, and retry until the store accepts.  So neither an upload nor an outer step
 * waits for the store, and no write fails with it.  A blob that is only in the store is fetched by
 * `local` (on a thread); `get` returns -EAGAIN until then.
 *
 * The directory is bounded: blobs that the store has and nobody holds by `local` make room, the
 * longest unused first; those not yet in the store stay.  They also go while the disk has less than
 * a spare beside what is to be written, where evicting helps: a sixteenth of the disk, 1 to 16 GiB,
 * and no more than half.  If nothing can make room, put, adopt and local fail with
 * -EAGAIN and a sentence, and write with -ENOSPC where it is the disk that is full.
 *
 * All names are kept in memory.  They are listed once, at the start, and then count as touched when
 * they were stored, but at most 12 h ago.
 * Two clusters must not share a prefix. */
#ifndef COMMON_NET_S3_BLOB_S3_H
#define COMMON_NET_S3_BLOB_S3_H

#include "common/base/base.h"
#include "common/net/s3/client.h"

struct blobstore;

struct blob_s3_options {
    const char *url;      /* s3://BUCKET or s3://BUCKET/PREFIX */
    struct s3_options s3; /* without its bucket */
    const char *cache_dir;
    uint64_t cache_bytes;
    uint64_t quota_bytes; /* of all blobs; 0: none */
    /* Whether clients are redirected to the store (away): "yes", "no", or NULL: yes unless its
     * endpoint is a loopback address, which clients could not reach. */
    const char *lead;
    const char *cluster; /* the cluster's id */
    /* A blob exists only once the store has it: its writer waits for the store.  Also keeps files
     * beside the blobs there (blobstore.h: save). */
    bool through;
    bool known; /* the blobs were there before, so the prefix must have our cluster's id */
};

/* Opens the store: writes the cluster's id, so that a key that may not write fails now, deletes
 * what is not there, for the same reason, and lists the blobs.  -ERR_CONFIG: the URL or the bucket
 * is wrong, or the prefix is another cluster's. */
int blob_s3_open(const struct blob_s3_options *o, struct blobstore **ret, struct err *err);

#endif
