#include "coordinator/decide/admit.h"

#define QUARANTINE_MS 30000u
#define QUARANTINE_MAX_MS (30u * 60 * 1000)

static int refuse(char reason[ADMIT_REASON_MAX], int code, const char *text)
{
    (void)snprintf(reason, ADMIT_REASON_MAX, "%s", text);
    return code;
}

int admit_token(const struct admit_token *in, char ret_reason[ADMIT_REASON_MAX])
{
    char ago[STR_HUMAN_MAX];
    ret_reason[0] = '\0';
    if (in->revoked)
        return (void)snprintf(ret_reason, ADMIT_REASON_MAX,
                              "the token '%.64s' was revoked: ask an operator for another",
                              in->name),
               -ERR_AUTH;
    if (in->is_new && in->ends_unix_ms != 0 && in->now_unix_ms >= in->ends_unix_ms)
        return (void)snprintf(
                   ret_reason, ADMIT_REASON_MAX,
                   "the token '%.64s' ended %s ago: ask an operator for another", in->name,
                   str_human_duration((uint64_t)(in->now_unix_ms - in->ends_unix_ms), ago)),
               -ERR_AUTH;
    if (in->is_new && in->uses_max != 0 && in->uses >= in->uses_max)
        return (void)snprintf(ret_reason, ADMIT_REASON_MAX,
                              "the token '%.64s' is used up, by %u worker%s: ask an operator for "
                              "another",
                              in->name, in->uses, str_plural(in->uses)),
               -ERR_AUTH;
    if (in->workers_max != 0 && in->workers_here >= in->workers_max)
        return (void)snprintf(ret_reason, ADMIT_REASON_MAX,
                              "the token '%.64s' allows %u worker%s at once, and %u %s here",
                              in->name, in->workers_max, str_plural(in->workers_max),
                              in->workers_here, in->workers_here == 1 ? "is" : "are"),
               -EAGAIN;
    return 0;
}

/* The first two numbers of "1.2.3-x". */
static bool release_of(const char *version, unsigned *ret_major, unsigned *ret_minor)
{
    return sscanf(version, "%9u.%9u", ret_major, ret_minor) == 2;
}

/* How many releases a worker is ahead of us, within [-2, 2]; 2 also if it is not a release. */
static int releases_ahead(const char *version, const char *ours)
{
    unsigned a[2], b[2];
    if (strcmp(version, ours) == 0)
        return 0;
    if (!release_of(version, &a[0], &a[1]) || !release_of(ours, &b[0], &b[1]))
        return 2;
    if (a[0] != b[0])
        return a[0] < b[0] ? -2 : 2;
    long long d = (long long)a[1] - b[1];
    return d < -2 ? -2 : d > 2 ? 2 : (int)d;
}

int admit_join(const struct admit_join *in, char ret_reason[ADMIT_REASON_MAX])
{
    ret_reason[0] = '\0';
    if (in->instance_len != 16 || in->identity_len != 16)
        return refuse(ret_reason, -EINVAL, "instance and identity must be 16 bytes each");
    if (in->name_len > 64)
        return refuse(ret_reason, -EINVAL, "a worker's name has at most 64 bytes");
    const int ahead = releases_ahead(in->version, in->our_version);
    if (ahead < -1 || ahead > 1) {
        (void)snprintf(ret_reason, ADMIT_REASON_MAX,
                       "this worker is version '%.40s', the coordinator is '%.40s': a release "
                       "works with the one before and the one after; upgrade the %s",
                       in->version, in->our_version, ahead < 0 ? "worker" : "coordinator");
        return -EAGAIN;
    }
    if (in->other_key)
        return refuse(ret_reason, -ERR_AUTH,
                      "the identity of this work dir is known by another key: put tls-key.pem and "
                      "tls-cert.pem back there, or remove its file `identity` to join as a new "
                      "worker");
    if (in->twin_here && !in->same_instance)
        return refuse(ret_reason, -EBUSY,
                      "a worker with the same work dir is here: give each its own --work-dir, or, "
                      "if this machine was made from an image of another, remove identity, "
                      "tls-key.pem and tls-cert.pem from its work dir");
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
                              "the coordinator cannot write its files: no work is given"),
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
    if (in->unheard > 0)
        return (void)snprintf(ret_reason, ADMIT_REASON_MAX,
                              "hears first what became of %u contributions", in->unheard),
               false;
    return true;
}

uint64_t admit_quarantine_ms(uint32_t failures_row, uint32_t strikes)
{
    if (failures_row < ADMIT_FAILURES_ROW)
        return 0;
    uint64_t ms = (uint64_t)QUARANTINE_MS << (strikes < 10 ? strikes : 10);
    return ms < QUARANTINE_MAX_MS ? ms : QUARANTINE_MAX_MS;
}
