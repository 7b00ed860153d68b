/* The scrubber: rereads every blob, so that a damaged one is found before it is needed.  Every ten
 * minutes it reads one of 256 parts of the store, by the first byte of the names: the whole store
 * in less than two days, at a rate proportional to its size.  After a restart it continues with the
 * part that the wall clock gives.
 *
 * A damaged blob is logged, counted in /metrics, and stays where it is: folds, workers and backups
 * check the files they read, and make them again where possible.  An object store guards its own
 * bytes and is not read.  Loop thread; the disk pool does the reading. */
#ifndef COORDINATOR_SCRUB_H
#define COORDINATOR_SCRUB_H

#include "coordinator/state/core.h"

/* Starts reading the next part, unless one is being read. */
void scrub_next(struct coordinator *co);

#endif
