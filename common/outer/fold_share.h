/* No sender owns a step: the contributions of one sender together weigh at most a share of the
 * whole, however many they are and however many samples they claim.
 *
 *   at most   the larger of cap and twice an equal share, 2/k of k senders; so with two senders
 *             there is no bound
 *   above     all weights of the sender are multiplied by one factor, and those of others stay
 *
 * If no sender is above, no bit changes; doing it twice is the same as once.  Pure. */
#ifndef COMMON_OUTER_FOLD_SHARE_H
#define COMMON_OUTER_FOLD_SHARE_H

#include "common/base/base.h"

/* n contributions, at most FOLD_INPUTS_MAX, with weights above 0.  True: some weights became less.
 */
bool fold_share(double cap, const uint64_t *senders, double *weights, size_t n);

#endif
