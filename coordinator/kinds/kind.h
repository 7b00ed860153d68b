/* A row of the table of task kinds: what the coordinator does with one.  What a kind is to all
 * rooms, its name among that, stands in task_traits (coordinator/state/state.h). */
#ifndef COORDINATOR_KINDS_KIND_H
#define COORDINATOR_KINDS_KIND_H

#include "coordinator/kinds/message.h"

struct kind {
    /* Adds to the task's message what is particular to the kind; NULL: nothing is. */
    void (*message)(struct message *b, Skerry__V1__Task *msg);
    /* Takes a result: 0, or a negative code and nothing has changed, with what is wrong with it.
     * NULL: a task of this kind is not reported. */
    int (*apply)(struct coordinator *co, struct job *j, struct task *t,
                 const Skerry__V1__ReportRequest *r, struct err *err);
    /* The worker that has at hand what the task needs (0: none does); NULL: no worker ever has. */
    uint64_t (*owner)(const struct job *j, const struct task *t);
    bool in_parts; /* a report may bring a part of what goes on */
};

#endif
