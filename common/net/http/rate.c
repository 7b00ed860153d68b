#include "common/net/http/rate.h"

#include <strings.h>

#define BURST_S 0.05
#define BURST_MIN 2048.0

uint64_t rate_allows(struct rate *r, uint64_t now_ms)
{
    if (r->bytes_per_s == 0)
        return UINT64_MAX;
    double burst = (double)r->bytes_per_s * BURST_S;
    if (burst < BURST_MIN)
        burst = BURST_MIN;
    if (r->filled_ms == 0)
        r->tokens = burst;
    else if (now_ms > r->filled_ms)
        r->tokens += (double)(now_ms - r->filled_ms) / 1e3 * (double)r->bytes_per_s;
    if (r->tokens > burst)
        r->tokens = burst;
    r->filled_ms = now_ms;
    return r->tokens >= 1 ? (uint64_t)r->tokens : 0;
}

void rate_take(struct rate *r, uint64_t bytes)
{
    if (r->bytes_per_s)
        r->tokens -= (double)bytes;
}

int rate_parse(const char *text, uint64_t *ret_bytes_per_s, struct err *err)
{
    static const struct {
        const char *name;
        double bits;
    } units[] = {{"bit", 1}, {"kbit", 1e3}, {"Mbit", 1e6}, {"Gbit", 1e9}};
    char *end;
    double n = strtod(text, &end);
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        double bytes = n * units[i].bits / 8;
        if (end != text && strcasecmp(end, units[i].name) == 0 && isfinite(n) && bytes >= 1024 &&
            bytes < 1e15) {
            *ret_bytes_per_s = (uint64_t)bytes;
            return 0;
        }
    }
    return err_set(err, -EINVAL,
                   "'%.40s' is not a bandwidth; expected a number with kbit, Mbit or Gbit (at "
                   "least 8.2kbit), such as 20Mbit",
                   text);
}
