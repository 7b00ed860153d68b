/* Waiting for a condition, with a deadline: a test never sleeps.  A test that waits longer fails
 * with the condition. */
#ifndef TESTS_UNIT_WAIT_H
#define TESTS_UNIT_WAIT_H

#include "common/base/clock.h"

#define WAIT_MS 120000 /* longer than it takes on the slowest machine under a sanitizer */

/* Does something, again and again, until the condition holds. */
#define WAIT_DOING(cond, action)                                                                   \
    do {                                                                                           \
        const uint64_t until_ = clock_now_ms() + WAIT_MS;                                          \
        while (!(cond)) {                                                                          \
            action;                                                                                \
            if (clock_now_ms() > until_)                                                           \
                fail_msg("still waiting for: %s", #cond);                                          \
        }                                                                                          \
    } while (0)

/* Turns the loop of r until the condition holds. */
#define WAIT_FOR(r, cond) WAIT_DOING(cond, loop_turn((r)->loop, true))

#endif
