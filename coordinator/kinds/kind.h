/* A row of the table of task kinds: what the coordinator does with a kind.  What all rooms need to
 * know of it, such as its name, is in task_traits (coordinator/state/state.h). */
#ifndef COORDINATOR_KINDS_KIND_H
#define COORDINATOR_KINDS_KIND_H

#include "coordinator/kinds/message.h"

#define KIND_WAITS 1

struct kind {
    /* Adds the fields particular to the kind to the task's message; NULL: there are none. */
    void (*message)(struct message *b, Skerry__V1__Task *msg);
    /* Takes a result: 0, or a negative code with the result's fault, and nothing has changed;
     * KIND_WAITS: it may be right, and another worker has to make it again (agree.h).
     * NULL: tasks of this kind are not reported. */
    int (*apply)(struct coordinator *co, struct job *j, struct task *t,
                 const Skerry__V1__ReportRequest *r, struct err *err);
    /* The worker that has the task's inputs at hand (0: none); NULL: no worker ever has. */
    uint64_t (*owner)(const struct job *j, const struct task *t);
    bool in_parts; /* a report may bring a part of the result while the task goes on */
};

/* The rows: kinds.c is the table. */
extern const struct kind kind_init, kind_ingest, kind_train, kind_check, kind_eval, kind_sample,
    kind_velocity, kind_feature, kind_cluster, kind_split, kind_score, kind_encode, kind_outer;

#endif
