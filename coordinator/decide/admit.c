#include "coordinator/decide/admit.h"

#define QUARANTINE_MS 30000u
#define QUARANTINE_MAX_MS (30u * 60 * 1000)

static int refuse(char reason[ADMIT_REASON_MAX], int code, const char *text)
{
    (void)snprintf(reason, ADMIT_REASON_MAX, "%s", text);
    return code;
}

int admit_join(const struct admit_join *in, char ret_reason[ADMIT_REASON_MAX])
{
    ret_reason[0] = '\0';
    if (in->instance_len != 16 || in->identity_len != 16)
        return refuse(ret_reason, -EINVAL, "instance and identity must be 16 bytes each");
    if (in->name_len > 64)
        return refuse(ret_reason, -EINVAL, "a worker's name has at most 64 bytes");
    if (strcmp(in->version, in->our_version) != 0) {
        (void)snprintf(ret_reason, ADMIT_REASON_MAX,
                       "this worker is version '%.40s', the coordinator is '%.40s': install the "
                       "same release on both",
                       in->version, in->our_version);
        return -ERR_VERSION;
    }
    if (in->twin_here && !in->same_instance)
        return refuse(ret_reason, -EBUSY,
                      "a worker with the same work dir is connected: give each its own "
                      "--work-dir");
    if (in->workers >= in->workers_max && !in->known) {
        (void)snprintf(ret_reason, ADMIT_REASON_MAX, "all %zu places for workers are taken",
                       in->workers_max);
        return -EAGAIN;
    }
    return 0;
}

bool admit_work(const struct admit_work *in, uint64_t *ret_until_ms,
                char ret_reason[ADMIT_REASON_MAX])
{
    *ret_until_ms = 0;
    ret_reason[0] = '\0';
    if (!in->store_ok)
        return (void)snprintf(ret_reason, ADMIT_REASON_MAX,
                              "the coordinator cannot write to its disk: no work is given"),
               false;
    if (in->drain)
        return (void)snprintf(ret_reason, ADMIT_REASON_MAX, "draining: takes no more work"), false;
    if (in->quarantined_until_ms > in->now_ms) {
        *ret_until_ms = in->quarantined_until_ms;
        (void)snprintf(ret_reason, ADMIT_REASON_MAX,
                       "in quarantine for %llu s after %u failures in a row (strike %u)",
                       (unsigned long long)((in->quarantined_until_ms - in->now_ms + 999) / 1000),
                       ADMIT_FAILURES_ROW, in->strikes);
        return false;
    }
    return true;
}

uint64_t admit_quarantine_ms(uint32_t failures_row, uint32_t strikes)
{
    if (failures_row < ADMIT_FAILURES_ROW)
        return 0;
    uint64_t ms = (uint64_t)QUARANTINE_MS << (strikes < 10 ? strikes : 10);
    return ms < QUARANTINE_MAX_MS ? ms : QUARANTINE_MAX_MS;
}
