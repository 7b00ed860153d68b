/* outer.share_cap in an outer step. */
#ifndef COORDINATOR_OUTER_SHARE_H
#define COORDINATOR_OUTER_SHARE_H

#include "coordinator/outer/outer_exec.h"

/* Makes weights less where one sender's are above the cap (fold_share.h), of those that are not
 * refused.  True: there were such.  The executor does it when it has judged them; whoever gives the
 * step to somebody else does it before. */
bool outer_cap_shares(struct outer_step *s);

#endif
