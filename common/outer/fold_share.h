/* No sender owns a step: what one sender's contributions weigh together is at most a share of the
 * whole, however many they are and whatever each of them says of its samples.
 *
 *   at most   the larger of cap and twice an equal share: of k senders 2/k, so that of two each may
 *             weigh what it does
 *   above     all weights of the sender are multiplied by one factor, those of others stay
 *
 * Where nobody is above no bit changes, and doing it twice is as doing it once.  Pure. */
#ifndef COMMON_OUTER_FOLD_SHARE_H
#define COMMON_OUTER_FOLD_SHARE_H

#include "common/base/base.h"

/* Of n contributions, at most FOLD_INPUTS_MAX; weights are above 0.  True: some are less now. */
bool fold_share(double cap, const uint64_t *senders, double *weights, size_t n);

#endif
