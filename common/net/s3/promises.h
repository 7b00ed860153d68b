/* Blobs that a worker was redirected to put into the store, but has not reported yet: they may be
 * there although no record names them.  One caller at a time. */
#ifndef COMMON_NET_S3_PROMISES_H
#define COMMON_NET_S3_PROMISES_H

#include "common/base/base.h"
#include "common/net/blobstore.h"

#define PROMISES_MAX 4096

struct promise {
    struct blob_id id;
    uint64_t size;
    int64_t at_s; /* wall clock: when a worker was last redirected */
};

struct promises {
    struct promise *list;
    size_t n;
    uint64_t bytes; /* of all of them */
};

/* Adds a promise, or renews its time.  False, and nothing has changed: there are PROMISES_MAX, or
 * all together would have more than most_bytes. */
bool promises_add(struct promises *p, const struct blob_id *id, uint64_t size, uint64_t most_bytes);
void promises_drop(struct promises *p, const struct blob_id *id);
/* Removes one that is older than before_s; false: there is none. */
bool promises_take_old(struct promises *p, int64_t before_s, struct blob_id *ret);
void promises_release(struct promises *p);

#endif
