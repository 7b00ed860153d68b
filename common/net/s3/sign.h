/* AWS Signature Version 4 in the query string ("presigned"): a URL made by a holder of the key that
 * anybody may use, for one method, one object and a limited time.
 * https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html
 *
 * Our own requests are signed this way, too: libcurl's own signatures are in headers, which cannot
 * be passed on, and libcurl 7.88 does not sort a query.  Pure functions, any thread. */
#ifndef COMMON_NET_S3_SIGN_H
#define COMMON_NET_S3_SIGN_H

#include "common/base/base.h"

struct buf;

/* Who signs.  All strings are borrowed. */
struct s3_signer {
    const char *access_key, *secret_key;
    const char *token; /* of a session; NULL: the key is not a session's */
    const char *region, *service;
};

/* A parameter or a header. */
struct s3_pair {
    const char *name, *value;
};

#define S3_QUERY_MAX 6   /* parameters of our own */
#define S3_HEADERS_MAX 4 /* signed headers besides Host */

/* The request to sign. */
struct s3_ask {
    const char *method;
    const char *scheme, *host;              /* "https", "bucket.s3.amazonaws.com" or "host:9000" */
    const char *path;                       /* begins with '/', not yet encoded */
    struct s3_pair query[S3_QUERY_MAX];     /* not yet encoded; name NULL: the end */
    struct s3_pair headers[S3_HEADERS_MAX]; /* sorted by their lower-case names, no "host" */
    const char *payload;                    /* SHA-256 in hex; NULL: UNSIGNED-PAYLOAD */
    int64_t now_s;                          /* wall clock */
    uint32_t life_s;                        /* at most a week */
};

/* Appends the signed URL to url; its request must be sent with the headers of `ask`.  -ERR_LIMIT:
 * url would exceed its maximum. */
int s3_sign(const struct s3_signer *by, const struct s3_ask *ask, struct buf *url);

#endif
