/* How long an answer of an object store is waited for before it is asked again: its machines are
 * many, and one that is silent for much longer than they usually take will stay so.  What is usual
 * is a mean and a mean deviation with the weights of RFC 6298.  Only the wait for an answer counts:
 * it begins when the store has all of the request, which the kernel knows (TCP_INFO).  Of one
 * caller at a time. */
#ifndef COMMON_NET_HTTP_PATIENCE_H
#define COMMON_NET_HTTP_PATIENCE_H

#include <curl/curl.h>

#include "common/base/base.h"

#define PATIENCE_LEAST_MS 1000.0
#define PATIENCE_MOST_MS 5000.0 /* also as long as nothing is known */

/* What the answers of one store took. */
struct patience {
    double mean_ms, dev_ms;
    bool known;
};

/* An answer took so long, or was not waited for any longer: so a caller that is too hasty with a
 * store that has become slow learns to wait. */
void patience_note(struct patience *p, double ms);
/* After so many failures in a row: twice as long for each.  bytes: of the body, which a store may
 * look over before it answers. */
double patience_ms(const struct patience *p, unsigned failures, uint64_t bytes);

/* One attempt of a libcurl handle. */
struct patience_wait {
    bool has_body;
    uint64_t began_ms; /* by the clock of now_ms */
    uint64_t since_ms; /* since when the store has all of it; 0: it has not, or has answered */
};

/* How long it is waited for now; to be asked again and again.  given: libcurl has all of the body.
 */
uint64_t patience_waited_ms(struct patience_wait *w, CURL *easy, bool given, uint64_t now_ms);
/* The answer is here: notes how long it took. */
void patience_answered(struct patience *p, const struct patience_wait *w, CURL *easy,
                       uint64_t now_ms);

#endif
