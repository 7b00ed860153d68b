/* The key with which a coordinator accesses an object store: from the environment
 * (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, for a session, AWS_SESSION_TOKEN), or else of the
 * machine's role, from Amazon's metadata service (IMDSv2).  Other sources (files, web identities)
 * are not read.  Any thread; blocks. */
#ifndef COMMON_NET_S3_CREDENTIALS_H
#define COMMON_NET_S3_CREDENTIALS_H

#include "common/base/base.h"

struct s3_credentials {
    char access_key[160], secret_key[160];
    char token[4096]; /* "": none */
    int64_t ends_s;   /* expiry, wall clock; 0: none known */
    bool of_role;     /* of a role: they can be renewed */
};

/* -ERR_CONFIG: there are none; the sentence says what to set.  -EAGAIN: the machine has a metadata
 * service, but it did not answer in three tries. */
int s3_credentials_read(struct s3_credentials *ret, struct err *err);

/* Parses the metadata service's JSON for a role; -ERR_FORMAT. */
int s3_credentials_parse(const char *json, struct s3_credentials *ret, struct err *err);

#endif
