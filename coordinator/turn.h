/* What a turn of the loop does. */
#ifndef COORDINATOR_TURN_H
#define COORDINATOR_TURN_H

struct coordinator;

/* One turn; arg is the coordinator.  Jobs advance, tasks are assigned, waiting requests are
 * answered, and all changes are committed.  core_touch() requests a turn. */
void turn(void *arg);

/* Queues what requests to the store have cost so far, if they have a price. */
void turn_spent(struct coordinator *co);

#endif
