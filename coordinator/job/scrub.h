/* The scrubber: reads every blob again, so that a bit that the disk has lost is known before
 * somebody needs it.  One of 256 parts of the store, by the first byte of the names, every ten
 * minutes: all of it in less than two days, at a pace that goes with its size.  A coordinator that
 * is started again goes on at the part of the clock.
 *
 * What is damaged is told in the log and counted in /metrics, and stays where it is: folds, workers
 * and backups check what they read, and make again what can be made again.  A store far away guards
 * its own bytes and is not read.  Loop thread; the reading is done on the disk pool. */
#ifndef COORDINATOR_SCRUB_H
#define COORDINATOR_SCRUB_H

#include "coordinator/state/core.h"

/* Reads the next part, unless one is being read. */
void scrub_next(struct coordinator *co);

#endif
