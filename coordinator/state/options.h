/* The options of a coordinator. */
#ifndef COORDINATOR_OPTIONS_H
#define COORDINATOR_OPTIONS_H

#include "common/base/base.h"

struct coordinator_options {
    const char *data_dir;         /* exists; the caller has locked it */
    const char *listen;           /* address to bind */
    const char *host;             /* advertised to workers; NULL: determined automatically */
    uint16_t rpc_port, http_port; /* 0: any free port */
    bool plain_http;              /* loopback only */
    uint32_t heartbeat_ms, lease_ms;
    uint64_t blob_quota_bytes; /* 0: the disk's */
    const char *store;         /* s3://BUCKET/PREFIX of the blobs; NULL: a folder of the data dir */
    const char *store_endpoint; /* NULL: the environment's, or Amazon's */
    const char *store_workers;  /* "yes", "no" or NULL: blob_s3.h */
    bool store_plain, store_virtual_host;
    bool store_state;           /* the database is shipped there, too: docs/failover.md */
    uint64_t store_cache_bytes; /* of the local cache of a store's blobs */
    unsigned outer_threads;
    bool local;           /* one person's, who waits, with workers on this machine: failure.h */
    unsigned look_again;  /* of so many results of confirmed workers one is made again; 0: none */
    double egress_price;  /* dollars per GB (1e9 bytes) that workers download */
    double request_price; /* dollars per million requests to the store */
};

#endif
