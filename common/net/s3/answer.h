/* Interprets an S3 store's error answers: a code, and a sentence for people.  Pure. */
#ifndef COMMON_NET_S3_ANSWER_H
#define COMMON_NET_S3_ANSWER_H

#include "common/base/base.h"

#define S3_SKEW_S 900 /* the difference of clocks that a store accepts */

struct s3_answer {
    const char *bucket, *endpoint, *region; /* of the request */
    bool writes;                            /* the request changes something */
    bool of_role;                           /* the key is a role's and can be renewed */
    long status;
    const char *body; /* the store's XML, or whatever was received */
    size_t len;
    const char *its_region; /* x-amz-bucket-region; "": absent */
    int64_t date_s, now_s;  /* the Date header, 0: none; our clock */
};

/* Fills err and returns its code.  -ERR_NOTFOUND only if the store says that this very object does
 * not exist (or a HEAD has 404, body NULL); -EAGAIN: the store is busy; -ERR_STALE: the session of
 * a role's key has ended; -EEXIST: a condition does not hold; -ERR_UNIMPLEMENTED, -ERR_CONFIG and
 * -ERR_AUTH: a person must change something. */
int s3_answer_error(const struct s3_answer *a, struct err *err);

/* Parses "Tue, 15 Nov 1994 08:12:31 GMT"; 0: it is no such date. */
int64_t s3_answer_date(const char *text);

#endif
