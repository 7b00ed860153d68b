/* Snapshots of phases: what a worker saves while its phase goes on, and what the next one goes on
 * from when it is lost (docs/spot.md). */
#ifndef COORDINATOR_KINDS_SNAPSHOT_H
#define COORDINATOR_KINDS_SNAPSHOT_H

#include "coordinator/kinds/message.h"

/* Takes what a report saved in place of what there was, unless that is further; as kind.apply. */
int snapshot_take(struct coordinator *co, const struct job *j, struct task *t,
                  const Skerry__V1__Snapshot *m, struct err *err);

/* Says how often they are wanted, and where the phase goes on. */
void snapshot_message(struct message *b, Skerry__V1__TrainTask *m);

#endif
