/* workerd whose steps begin SKERRY_STEP_MS after each other, however long the arithmetic of a small
 * model takes on cores that others use: linked with --wrap=island_trainer_step. */
#include "common/base/base.h"

#include <time.h>

#include "common/base/clock.h"
#include "worker/train/island_train.h"

int __real_island_trainer_step(struct island_trainer *t, const struct batch *b,
                               const struct batch *next, struct step_result *ret, struct err *err);
int __wrap_island_trainer_step(struct island_trainer *t, const struct batch *b,
                               const struct batch *next, struct step_result *ret, struct err *err);

int __wrap_island_trainer_step(struct island_trainer *t, const struct batch *b,
                               const struct batch *next, struct step_result *ret, struct err *err)
{
    static uint64_t next_ns; /* only one phase trains */
    const char *ms = getenv("SKERRY_STEP_MS");
    for (uint64_t now; (now = clock_now_ns()) < next_ns;)
        (void)nanosleep(&(struct timespec){.tv_sec = (time_t)((next_ns - now) / 1000000000),
                                           .tv_nsec = (long)((next_ns - now) % 1000000000)},
                        NULL);
    next_ns = clock_now_ns() + (ms ? strtoull(ms, NULL, 10) * 1000000 : 0);
    return __real_island_trainer_step(t, b, next, ret, err);
}
