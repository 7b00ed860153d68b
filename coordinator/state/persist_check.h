/* Whether the rows that were loaded agree with each other, as far as the coordinator relies on it:
 * of a database that was damaged, or edited, each row may be one that could have been saved. */
#ifndef COORDINATOR_PERSIST_CHECK_H
#define COORDINATOR_PERSIST_CHECK_H

#include "common/base/base.h"
#include "coordinator/state/state.h"

/* -ERR_FORMAT: names what contradicts what, and *ret_job is the job of it.  Jobs that cannot be
 * read are passed over. */
int persist_check(const struct state *st, uint64_t *ret_job, struct err *err);

#endif
