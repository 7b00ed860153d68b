#include "coordinator/decide/quorum.h"

uint32_t quorum_need(uint32_t expected, double fraction)
{
    double want = ceil(fraction * expected - 1e-9);
    if (!(want >= 1))
        return 1;
    return want < expected ? (uint32_t)want : expected;
}

/* Says who works on those that are missing into out, if that takes a number. */
static const char *missing_text(const struct quorum_in *in, char out[64])
{
    const uint32_t missing = in->expected - in->arrived;
    if (missing == 1)
        return in->leased ? "the missing one is being worked on"
                          : "nobody works on the missing one";
    (void)snprintf(out, 64, "%u of the missing %u %s being worked on", in->leased, missing,
                   in->leased == 1 ? "is" : "are");
    return out;
}

void quorum_decide(const struct quorum_in *in, struct quorum_decision *ret)
{
    const uint32_t need = quorum_need(in->expected, in->fraction);
    const char *are = in->arrived == 1 ? "is" : "are";
    char rest[64];
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
        (void)snprintf(out, QUORUM_REASON_MAX, "%u of %u contributions %s in", in->arrived,
                       in->expected, are);
        return;
    }
    if (in->grace_ms == 0) {
        (void)snprintf(out, QUORUM_REASON_MAX, "%u of %u contributions %s in; %s", in->arrived,
                       in->expected, are, missing_text(in, rest));
        return;
    }
    if (!ret->quorum) {
        (void)snprintf(out, QUORUM_REASON_MAX, "%u of %u contributions %s in, %u make a quorum; %s",
                       in->arrived, in->expected, are, need, missing_text(in, rest));
        return;
    }
    uint64_t since = in->quorum_ms ? in->quorum_ms : in->now_ms;
    ret->until_ms = since + in->grace_ms;
    if (in->now_ms >= ret->until_ms) {
        ret->fire = true;
        (void)snprintf(out, QUORUM_REASON_MAX,
                       "%u of %u contributions %s a quorum and the grace of %.1f s has passed",
                       in->arrived, in->expected, are, (double)in->grace_ms / 1e3);
        return;
    }
    (void)snprintf(out, QUORUM_REASON_MAX,
                   "%u of %u contributions %s a quorum, and there are %.1f s left for the others",
                   in->arrived, in->expected, are, (double)(ret->until_ms - in->now_ms) / 1e3);
}
