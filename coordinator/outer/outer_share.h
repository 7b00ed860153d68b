/* Applies outer.share_cap to an outer step. */
#ifndef COORDINATOR_OUTER_SHARE_H
#define COORDINATOR_OUTER_SHARE_H

#include "coordinator/outer/outer_exec.h"

/* Reduces the weights of senders above the cap (fold_share.h), among the contributions that are not
 * refused.  Returns whether there were any.  The executor calls it after judging the contributions;
 * code that hands the step to a worker calls it before. */
bool outer_cap_shares(struct outer_step *s);

#endif
