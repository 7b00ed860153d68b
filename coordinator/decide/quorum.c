#include "coordinator/decide/quorum.h"

uint32_t quorum_need(uint32_t expected, double fraction)
{
    double want = ceil(fraction * expected - 1e-9);
    if (!(want >= 1))
        return 1;
    return want < expected ? (uint32_t)want : expected;
}

void quorum_decide(const struct quorum_in *in, struct quorum_decision *ret)
{
    uint32_t need = quorum_need(in->expected, in->fraction);
    uint32_t missing = in->expected - in->arrived;
    *ret = (struct quorum_decision){.quorum = in->arrived >= need};
    char *out = ret->reason;
    if (in->retry_ms > in->now_ms) {
        ret->until_ms = in->retry_ms;
        (void)snprintf(out, QUORUM_REASON_MAX, "the outer step failed, next try in %.1f s",
                       (double)(in->retry_ms - in->now_ms) / 1e3);
        return;
    }
    if (in->arrived >= in->expected && in->expected > 0) {
        ret->fire = true;
        (void)snprintf(out, QUORUM_REASON_MAX, "all %u contributions are in", in->expected);
        return;
    }
    if (in->grace_ms == 0) {
        (void)snprintf(out, QUORUM_REASON_MAX,
                       "%u of %u contributions are in, %u of the missing %u are being worked on",
                       in->arrived, in->expected, in->leased, missing);
        return;
    }
    if (!ret->quorum) {
        (void)snprintf(out, QUORUM_REASON_MAX,
                       "%u of %u contributions are in, %u make a quorum, %u of the missing %u are "
                       "being worked on",
                       in->arrived, in->expected, need, in->leased, missing);
        return;
    }
    uint64_t since = in->quorum_ms ? in->quorum_ms : in->now_ms;
    ret->until_ms = since + in->grace_ms;
    if (in->now_ms >= ret->until_ms) {
        ret->fire = true;
        (void)snprintf(out, QUORUM_REASON_MAX,
                       "%u of %u contributions are a quorum and the grace of %.1f s has passed",
                       in->arrived, in->expected, (double)in->grace_ms / 1e3);
        return;
    }
    (void)snprintf(out, QUORUM_REASON_MAX,
                   "%u of %u contributions are a quorum, the other %u have %.1f s left",
                   in->arrived, in->expected, missing, (double)(ret->until_ms - in->now_ms) / 1e3);
}
