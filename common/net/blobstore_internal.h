/* Shared by blobstore.c and blob_writer.c only. */
#ifndef COMMON_NET_BLOBSTORE_INTERNAL_H
#define COMMON_NET_BLOBSTORE_INTERNAL_H

#include "common/base/list.h"
#include "common/net/blobstore.h"

#include <pthread.h>
#include <stdatomic.h>

struct blobstore {
    char *dir;
    uint64_t quota;
    _Atomic uint64_t used, count;
    _Atomic uint64_t next_writer;
    pthread_mutex_t lock;  /* guards the list */
    struct list resumable; /* writers that own a .part file */
};

/* Bytes against the quota: -ENOSPC.  And back. */
int blobstore_charge(struct blobstore *s, uint64_t bytes, struct err *err);
void blobstore_credit(struct blobstore *s, uint64_t bytes);

/* Path of a blob, mem_free it. */
char *blobstore_file(const struct blobstore *s, const struct blob_id *id);

#endif
