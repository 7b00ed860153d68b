/* Restores a data directory from the state that a coordinator shipped to a store; that coordinator
 * is deposed by it. */
#ifndef COORDINATOR_RESTORE_H
#define COORDINATOR_RESTORE_H

#include "common/base/base.h"
#include "coordinator/state/options.h"

struct restore_result {
    uint64_t snapshot, entries; /* the snapshot's number; the entries read after it */
    uint64_t owned;             /* the entry that makes the log the new coordinator's */
};

/* o->data_dir must be missing or empty; o->store is the store.  The database is written last, so an
 * interrupted restore cannot be started.  -ERR_NOTFOUND: the store has no shipped state.  Blocks.
 */
int restore_state(const struct coordinator_options *o, struct restore_result *ret, struct err *err);

#endif
