/* A rate limit: a token bucket that holds a twentieth of a second's worth.  Bytes taken
 * beyond it are a debt for which later bytes wait, so over time the rate is kept whatever
 * the size of the pieces.  Pure. */
#ifndef COMMON_NET_HTTP_RATE_H
#define COMMON_NET_HTTP_RATE_H

#include "common/base/base.h"

struct rate {
    uint64_t bytes_per_s; /* 0: no limit */
    double tokens;        /* bytes that may move now; negative: a debt */
    uint64_t filled_ms;   /* monotonic time of the last refill */
};

/* How many bytes may move now: 0 while there is a debt, UINT64_MAX without a limit. */
uint64_t rate_allows(struct rate *r, uint64_t now_ms);
/* `bytes` have moved; they may be more than was allowed. */
void rate_take(struct rate *r, uint64_t bytes);

/* "20Mbit" -> bytes per second; bit, kbit, Mbit and Gbit (decimal).  -EINVAL with what
 * was expected. */
int rate_parse(const char *text, uint64_t *ret_bytes_per_s, struct err *err);

#endif
