/* Time.  Decisions use monotonic nanoseconds, read once per event; wall time is
 * only for display and for names of files, and is never compared between hosts. */
#ifndef COMMON_BASE_CLOCK_H
#define COMMON_BASE_CLOCK_H

#include <pthread.h>

#include "common/base/base.h"

#define CLOCK_NS_PER_US 1000ULL
#define CLOCK_NS_PER_MS 1000000ULL
#define CLOCK_NS_PER_S 1000000000ULL

/* Monotonic; any thread.  Never 0, so 0 can mean "not yet". */
uint64_t clock_now_ns(void);
uint64_t clock_now_ms(void);
/* Seconds since that time. */
double clock_since_s(uint64_t begun_ns);

/* Names the boot of the machine, since which they count, in a line; "": not known.  Returns out. */
#define CLOCK_BOOT_MAX 64
char *clock_boot(char out[CLOCK_BOOT_MAX]);

/* Milliseconds since 1970, for display. */
uint64_t clock_wall_ms(void);

/* A condition whose timed waits use CLOCK_MONOTONIC: setting the clock back does not prolong them.
 */
void clock_cond_init(pthread_cond_t *cond);

#define CLOCK_ISO_MAX 32
/* "2026-11-21T12:53:15.042Z" of wall milliseconds into out; returns out. */
char *clock_iso(uint64_t wall_ms, char out[CLOCK_ISO_MAX]);

/* A fake for tests: after clock_fake_set, clock_now_* and clock_wall_ms stand
 * still until advanced (the wall clock shows the same count).
 * clock_fake_clear() goes back to the real clock. */
void clock_fake_set(uint64_t now_ns);
void clock_fake_advance(uint64_t by_ns);
void clock_fake_clear(void);

#endif
