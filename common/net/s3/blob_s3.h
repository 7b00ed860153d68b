/* Blobs in an S3-compatible object store, with a directory before it.
 *
 *     PREFIX/blobs/<sha256>     in the bucket; PREFIX/cluster holds the cluster's id
 *     the cache's folder        as blob_dir.h: what the store has yet to take, and what was
 *                               used last
 *
 * A blob is there as soon as the directory has it, durably: threads of the store's own send it up
 * and delete what was hidden, and try again until the store takes it.  So neither an upload nor an
 * outer step waits for the store, and nothing that writes fails with it.  What is in the store
 * alone is fetched by `local` (on a thread); `get` answers -EAGAIN until then.
 *
 * The directory is bounded: what the store has and nobody holds by `local` makes room, the longest
 * unused first; what the store has not taken stays.  Where nothing can make room, put, adopt and
 * local fail with -EAGAIN and a sentence.
 *
 * All names are in memory: they are listed once, at the start, when everything counts as touched
 * now.  Two clusters do not share a prefix. */
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
    /* Are others led to the store (away)?  "yes", "no", or NULL: unless its endpoint is this
     * machine, which to others is theirs. */
    const char *lead;
    const char *cluster; /* whose blobs these are */
    /* A blob is there when the store has it, not before: its writer waits for the store.  And
     * files beside the blobs are kept there (blobstore.h: save). */
    bool through;
    bool known; /* they have been there before: the prefix must say so */
};

/* Opens the store: writes the cluster's id (so that a key that may not write shows now), lists what
 * is there.  -ERR_CONFIG: the URL, the bucket or another cluster's prefix. */
int blob_s3_open(const struct blob_s3_options *o, struct blobstore **ret, struct err *err);

#endif
