/* What became of a contribution, for its residual's files (engine/residual.h): heard by the compute
 * thread, which may be using them. */
#ifndef WORKER_SETTLE_H
#define WORKER_SETTLE_H

#include "worker/engine/residual.h"

struct pool;

/* Once the compute thread gets to it, or here if that has ended; a failure is logged.  state_dir is
 * kept until then.  Loop thread. */
void settle_residual(struct pool *compute, const char *state_dir, const struct residual_word *word);

#endif
