/* What a turn of the loop does. */
#ifndef COORDINATOR_TURN_H
#define COORDINATOR_TURN_H

/* One turn; arg: the coordinator.  Jobs advance, tasks are given out, what waits is answered,
 * and all that has changed is committed.  core_touch() asks for it. */
void turn(void *arg);

#endif
