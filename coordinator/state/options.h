/* What a coordinator is opened with. */
#ifndef COORDINATOR_OPTIONS_H
#define COORDINATOR_OPTIONS_H

#include "common/base/base.h"

struct coordinator_options {
    const char *data_dir;         /* exists, is locked by the caller */
    const char *listen;           /* address to bind */
    const char *host;             /* advertised; NULL: found out */
    uint16_t rpc_port, http_port; /* 0: a free one */
    bool plain_http;              /* loopback only */
    uint32_t heartbeat_ms, lease_ms;
    uint64_t blob_quota_bytes; /* 0: the disk's */
    const char *store;         /* s3://BUCKET/PREFIX of the blobs; NULL: a folder of the data dir */
    const char *store_endpoint; /* NULL: the environment's, or Amazon's */
    const char *store_workers;  /* "yes", "no" or NULL: blob_s3.h */
    bool store_plain, store_virtual_host;
    bool store_state;           /* the database goes there, too: docs/failover.md */
    uint64_t store_cache_bytes; /* of the folder before a store */
    unsigned outer_threads;
    double egress_price;  /* dollars a GB (1e9 bytes) that workers download */
    double request_price; /* dollars a million requests to the store */
};

#endif
