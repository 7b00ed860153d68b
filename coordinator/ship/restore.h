/* A data directory out of what a coordinator has shipped, which is deposed by it. */
#ifndef COORDINATOR_RESTORE_H
#define COORDINATOR_RESTORE_H

#include "common/base/base.h"
#include "coordinator/state/options.h"

struct restore_result {
    uint64_t snapshot, entries; /* that it begins with; that were read after it */
    uint64_t owned;             /* the entry that says that the log is the new one's */
};

/* o->data_dir is made, or is empty; o->store is the store.  The database comes last: what is cut
 * off does not start.  -ERR_NOTFOUND: nobody has shipped anything there.  Blocks. */
int restore_state(const struct coordinator_options *o, struct restore_result *ret, struct err *err);

#endif
