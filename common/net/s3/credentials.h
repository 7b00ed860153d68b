/* Who a coordinator is to an object store: the key of the environment (AWS_ACCESS_KEY_ID,
 * AWS_SECRET_ACCESS_KEY and, for a session, AWS_SESSION_TOKEN), or else the role of the machine, as
 * Amazon's metadata service tells it (IMDSv2).  Other places (files, web identities) are not asked.
 * Any thread; blocks. */
#ifndef COMMON_NET_S3_CREDENTIALS_H
#define COMMON_NET_S3_CREDENTIALS_H

#include "common/base/base.h"

struct s3_credentials {
    char access_key[160], secret_key[160];
    char token[4096]; /* "": none */
    int64_t ends_s;   /* wall clock; 0: not known to end */
    bool of_role;     /* a role's: they can be asked for again */
};

/* -ERR_CONFIG with a sentence that says what to set: there are none.  -EAGAIN: the machine's
 * metadata service is there, and did not answer in three tries. */
int s3_credentials_read(struct s3_credentials *ret, struct err *err);

/* What the metadata service says of a role (its JSON); -ERR_FORMAT. */
int s3_credentials_parse(const char *json, struct s3_credentials *ret, struct err *err);

#endif
