/* What an S3 store means when it refuses: a code, a sentence for people, and whether asking again
 * may help.  Pure. */
#ifndef COMMON_NET_S3_ANSWER_H
#define COMMON_NET_S3_ANSWER_H

#include "common/base/base.h"

#define S3_SKEW_S 900 /* by which the store lets clocks differ */

struct s3_answer {
    const char *bucket, *endpoint, *region; /* what we asked, and as whom */
    bool writes;                            /* the request changes something */
    bool of_role;                           /* the key is a role's, and may be asked for again */
    long status;
    const char *body; /* XML of the store, or whatever came */
    size_t len;
    const char *its_region; /* x-amz-bucket-region; "": not said */
    int64_t date_s, now_s;  /* the Date header, 0: none; our clock */
};

/* Fills err and returns its code: -ERR_NOTFOUND only where the store says that this one object is
 * not there (or a HEAD has 404, body NULL), -EAGAIN where it is busy, -ERR_STALE where the session
 * of a role's key has ended, -EEXIST where a condition does not hold, -ERR_UNIMPLEMENTED,
 * -ERR_CONFIG and -ERR_AUTH where a person must change something. */
int s3_answer_error(const struct s3_answer *a, struct err *err);

/* "Tue, 15 Nov 1994 08:12:31 GMT"; 0: it is no such date. */
int64_t s3_answer_date(const char *text);

#endif
