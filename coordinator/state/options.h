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
    unsigned outer_threads;
};

#endif
