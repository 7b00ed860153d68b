#include "coordinator/ship/standby.h"

#include <time.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/net/s3/client.h"
#include "common/net/s3/log.h"
#include "coordinator/ship/ship.h"
#include "coordinator/state/place.h"

#define STALL_S 5

bool standby_look(struct standby *s, uint64_t now_ms, const char *sign, uint64_t after_ms)
{
    const uint64_t since = s->read_ms ? now_ms - s->read_ms : 0;
    s->read_ms = sign ? now_ms : 0;
    if (!sign)
        return false;
    if (strcmp(sign, s->sign) != 0) {
        (void)str_copy(s->sign, sizeof(s->sign), sign);
        s->silent_ms = 0;
    } else if (*sign) {
        /* A pause of ours is not the owner's silence. */
        s->silent_ms += since < 2 * STANDBY_POLL_MS ? since : 2 * STANDBY_POLL_MS;
    }
    return s->silent_ms >= after_ms;
}

static void pause_ms(uint32_t ms)
{
    const struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    (void)nanosleep(&t, NULL);
}

/* Logs each change once. */
static void tell(const char *sign, const char *why, struct log_change *told, uint64_t after_ms)
{
    if (!sign)
        (void)log_on_change(told, LOG_LEVEL_WARN, "standby",
                            "the store cannot be asked for signs of life: %s; asking again", why);
    else if (!*sign)
        (void)log_on_change(told, LOG_LEVEL_WARN, "standby",
                            "nobody has kept a state there yet: the first coordinator starts with "
                            "--store-state and without --standby");
    else /* without its count */
        (void)log_on_change(told, LOG_LEVEL_INFO, "standby",
                            "watches the coordinator%s, and goes on when it is silent for %.0f s",
                            sign + strcspn(sign, " "), (double)after_ms / 1e3);
}

/* Whether the store and our key allow what a takeover does; reading signs of life shows nothing of
 * that. */
static int try_writes(struct s3 *c, const char *prefix, struct err *err)
{
    struct s3_log log;
    char *key = str_printf("%s/probe-standby", prefix);
    s3_log_init(&log, &s3_log_of_client, c, prefix);
    int rc = s3_log_probe(&log, err);
    if (rc == 0)
        rc = s3_delete(c, key, err); /* which is not there */
    s3_log_release(&log);
    mem_free(key);
    return rc;
}

int standby_wait(const struct coordinator_options *o, uint64_t after_ms, struct err *err)
{
    struct standby s = {0};
    const struct s3_options once = {.tries = 1, .first_stall_s = STALL_S, .stall_s = STALL_S};
    struct s3 *c = NULL;
    char *prefix = NULL, sign[STANDBY_SIGN_MAX];
    struct log_change told = {0};
    int rc = place_open_state(o, &once, &c, &prefix, err);
    char *key = rc == 0 ? ship_sign_key(prefix) : NULL;
    bool able = false;
    for (bool first = true, over = false; rc == 0 && !over; first = false) {
        struct err why = {0};
        if (!first)
            pause_ms(STANDBY_POLL_MS);
        int got = able ? 0 : try_writes(c, prefix, &why);
        if (got == 0)
            got = s3_get_text(c, key, sign, sizeof(sign), &why);
        const char *is = got == 0 ? sign : got == -ERR_NOTFOUND ? "" : NULL;
        if (!able && !is && !s3_may_pass(got))
            rc = err_set(err, got, "%s", why.msg);
        else
            tell(is, why.msg, &told, after_ms);
        able |= is != NULL;
        over = standby_look(&s, clock_now_ms(), is, after_ms);
    }
    if (rc == 0)
        log_info("standby", "the coordinator%s has been silent for %.0f s: going on in its place",
                 s.sign + strcspn(s.sign, " "), (double)s.silent_ms / 1e3);
    s3_close(c);
    mem_free(key);
    mem_free(prefix);
    return rc;
}
