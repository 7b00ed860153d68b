/* Blobs put into a store, and where their files lie, for tests. */
#ifndef TESTS_UNIT_BLOBS_H
#define TESTS_UNIT_BLOBS_H

#include <errno.h>
#include <stdio.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/net/blob_dir.h"
#include "common/net/blobstore.h"

/* 0 also where it is there already. */
static inline int blob_put(struct blobstore *s, const void *data, size_t len, struct blob_id *ret,
                           struct err *err)
{
    struct blob_writer *w;
    hash_sha256(data, len, ret->sha256);
    if (blobstore_has(s, ret, NULL))
        return 0;
    int rc = s->ops->put(s, ret, 1, len, &w, err);
    if (rc < 0)
        return rc;
    rc = w->ops->write(w, (const uint8_t *)data + w->size, len - w->size, err);
    if (rc == 0)
        return w->ops->commit(w, len, err);
    w->ops->abort(w, false);
    return rc;
}

static inline int blob_file(struct blobstore *s, const struct blob_id *id, char *ret, size_t cap)
{
    char *path;
    int rc = s->ops->local(s, id, false, &path, NULL);
    if (rc < 0)
        return rc;
    rc = (size_t)snprintf(ret, cap, "%s", path) < cap ? 0 : -ENOSPC;
    mem_free(path);
    return rc;
}

#endif
