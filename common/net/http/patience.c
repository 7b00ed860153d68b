#include "common/net/http/patience.h"

#include "common/net/http/socket_bytes.h"

#define MEAN_SHARE 8.0
#define DEV_SHARE 4.0
/* Twice that of RFC 6298: a needless second request makes a busy store busier. */
#define DEVIATIONS 8.0
#define LOOKED_OVER_PER_S 67108864.0 /* bytes */

void patience_note(struct patience *p, double ms)
{
    p->silences = 0;
    if (!p->known) {
        *p = (struct patience){.mean_ms = ms, .dev_ms = ms / 2, .known = true};
        return;
    }
    p->dev_ms += (fabs(ms - p->mean_ms) - p->dev_ms) / DEV_SHARE;
    p->mean_ms += (ms - p->mean_ms) / MEAN_SHARE;
}

void patience_silent(struct patience *p)
{
    p->silences++;
}

static double doubled(unsigned times)
{
    return (double)(1u << (times < 8 ? times : 8));
}

double patience_ms(const struct patience *p, unsigned failures, uint64_t bytes)
{
    const double usual = p->mean_ms + DEVIATIONS * p->dev_ms;
    const double ms = !p->known || usual > PATIENCE_MOST_MS ? PATIENCE_MOST_MS
                      : usual < PATIENCE_LEAST_MS           ? PATIENCE_LEAST_MS
                                                            : usual;
    const double own = ms * doubled(failures), all = ms * doubled(p->silences);
    const double after = all < PATIENCE_MOST_MS ? all : PATIENCE_MOST_MS;
    return (own > after ? own : after) + 1e3 * (double)bytes / LOOKED_OVER_PER_S;
}

uint64_t patience_waited_ms(struct patience_wait *w, CURL *easy, bool given, uint64_t now_ms)
{
    curl_off_t asked_us = 0, first_us = 0;
    long status = 0;
    curl_easy_getinfo(easy, CURLINFO_PRETRANSFER_TIME_T, &asked_us);
    curl_easy_getinfo(easy, CURLINFO_STARTTRANSFER_TIME_T, &first_us);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    const bool answered = w->has_body ? status >= 200 : first_us > 0;
    const bool asked = asked_us > 0 && !answered;
    if (!asked || (w->has_body && (!given || !socket_bytes_delivered(w->sockets, easy))))
        w->since_ms = 0;
    else if (w->since_ms == 0)
        w->since_ms = w->has_body ? now_ms : w->began_ms + (uint64_t)asked_us / 1000;
    return w->since_ms > 0 && now_ms > w->since_ms ? now_ms - w->since_ms : 0;
}

void patience_answered(struct patience *p, const struct patience_wait *w, CURL *easy,
                       uint64_t now_ms)
{
    curl_off_t asked_us = 0, first_us = 0;
    curl_easy_getinfo(easy, CURLINFO_PRETRANSFER_TIME_T, &asked_us);
    curl_easy_getinfo(easy, CURLINFO_STARTTRANSFER_TIME_T, &first_us);
    if (w->has_body)
        patience_note(p, w->since_ms > 0 ? (double)(now_ms - w->since_ms) : 0);
    else if (first_us > asked_us)
        patience_note(p, (double)(first_us - asked_us) / 1e3);
}
