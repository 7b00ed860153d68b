/* What the RPC handlers share with assign.c. */
#ifndef COORDINATOR_SERVICE_H
#define COORDINATOR_SERVICE_H

#include "proto/skerry.pb-c.h"

#include <stddef.h>

struct coordinator;
struct reply;
struct worker;

/* Sends an AssignReply: the task that r names, or none. */
void assign_send(struct coordinator *co, struct reply *r);

/* The worker's verdicts as messages in one block, to be freed by the caller.
 * They borrow their texts from w. */
Skerry__V1__Applied **applied_of(const struct worker *w, size_t *ret_n);

#endif
