/* How long to wait for an object store's answer before asking again: the store has many machines,
 * and one that is silent for much longer than usual will probably stay silent.  The usual time is
 * tracked as a mean and a mean deviation with the weights of RFC 6298.  Only the wait for the
 * answer counts: it begins when the store has received the whole request, as the kernel reports
 * (TCP_INFO). One caller at a time. */
#ifndef COMMON_NET_HTTP_PATIENCE_H
#define COMMON_NET_HTTP_PATIENCE_H

#include <curl/curl.h>

#include "common/base/base.h"

struct socket_bytes;

#define PATIENCE_LEAST_MS 500.0
#define PATIENCE_MOST_MS 5000.0 /* also before any time is known */

/* The times of one store's answers. */
struct patience {
    double mean_ms, dev_ms;
    bool known;
    unsigned silences; /* since the last answer */
};

/* An answer took ms. */
void patience_note(struct patience *p, double ms);
/* A wait was abandoned.  Until the next answer, others wait twice as long: a store that has become
 * slow is not asked in vain for ever, and one silent machine of many does not make all requests
 * patient. */
void patience_silent(struct patience *p);
/* How long to wait; doubled for each failure of this request, or for each silence since the last
 * answer, of whichever request, but for those not over PATIENCE_MOST_MS.  bytes: of the body, which
 * a store may check before it answers. */
double patience_ms(const struct patience *p, unsigned failures, uint64_t bytes);

/* One attempt of a libcurl handle. */
struct patience_wait {
    const struct socket_bytes *sockets; /* the handle's connections count there */
    bool has_body;
    uint64_t began_ms; /* by the clock of now_ms */
    uint64_t since_ms; /* when the store had the whole request; 0: it has not, or has answered */
};

/* How long the attempt has waited for its answer; to be polled.  given: libcurl has the whole body.
 */
uint64_t patience_waited_ms(struct patience_wait *w, CURL *easy, bool given, uint64_t now_ms);
/* The answer has arrived: notes how long it took. */
void patience_answered(struct patience *p, const struct patience_wait *w, CURL *easy,
                       uint64_t now_ms);

#endif
