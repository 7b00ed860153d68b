/* Blobs that a worker was sent to put into the store, and that nobody has asked about since: they
 * may lie there, and no record names them.  One caller at a time. */
#ifndef COMMON_NET_S3_PROMISES_H
#define COMMON_NET_S3_PROMISES_H

#include "common/base/base.h"
#include "common/net/blobstore.h"

#define PROMISES_MAX 4096

struct promise {
    struct blob_id id;
    uint64_t size;
    int64_t at_s; /* of the wall clock: when a worker was last sent there */
};

struct promises {
    struct promise *list;
    size_t n;
    uint64_t bytes; /* of them all */
};

/* Once more: from now on.  False, and nothing has changed: there are too many, or all would have
 * more than most_bytes. */
bool promises_add(struct promises *p, const struct blob_id *id, uint64_t size, uint64_t most_bytes);
void promises_drop(struct promises *p, const struct blob_id *id);
/* Drops one that is older; false: there is none. */
bool promises_take_old(struct promises *p, int64_t before_s, struct blob_id *ret);
void promises_release(struct promises *p);

#endif
