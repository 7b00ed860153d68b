#include "worker/order/times.h"

#include "common/base/clock.h"

void times_begin(struct times *t, uint64_t at_ns)
{
    *t = (struct times){.at_ns = at_ns};
}

void times_take(struct times *t, enum times_span span)
{
    const uint64_t now = clock_now_ns();
    t->ns[span] += now - t->at_ns;
    t->at_ns = now;
}

char *times_text(const struct times *t, char out[TIMES_TEXT_MAX])
{
    static const char *const names[TIMES_SPANS] = {"asked",  "planned", "fetched", "built",
                                                   "loaded", "steps",   "between", "made",
                                                   "sent",   "told",    "saved"};
    size_t at = 0;
    out[0] = '\0';
    for (int i = 0; i < TIMES_SPANS; i++)
        if (t->ns[i] > 0)
            at += (size_t)snprintf(out + at, TIMES_TEXT_MAX - at, "%s%s %.4f", at ? " " : "",
                                   names[i], (double)t->ns[i] / 1e9);
    return out;
}
