/* Snapshots of phases: a worker saves them during its phase, and the next worker resumes from the
 * last one when the first is lost (docs/spot.md). */
#ifndef COORDINATOR_KINDS_SNAPSHOT_H
#define COORDINATOR_KINDS_SNAPSHOT_H

#include "coordinator/kinds/message.h"

/* Takes a report's snapshot in place of the previous one, unless that one is further along; returns
 * as kind.apply.  held: samples that the phase may count. */
int snapshot_take(struct coordinator *co, struct job *j, struct task *t,
                  const Skerry__V1__Snapshot *m, uint64_t held, struct err *err);

/* Adds how often snapshots are wanted, and the one from which the phase resumes. */
void snapshot_message(struct message *b, Skerry__V1__TrainTask *m);

#endif
