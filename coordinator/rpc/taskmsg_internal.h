/* Shared by taskmsg.c and taskmsg_kinds.c: a message under construction. */
#ifndef COORDINATOR_TASKMSG_INTERNAL_H
#define COORDINATOR_TASKMSG_INTERNAL_H

#include "coordinator/state/core.h"
#include "coordinator/rpc/taskmsg.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct taskmsg {
    struct coordinator *co;
    const struct job *job;
    const struct task *task;
    const struct worker *worker;
    struct pbmem *mem;
    bool failed; /* the arena is used up, or a version is gone */
};

/* Room in the arena, zeroed or not; something harmless after a failure. */
void *taskmsg_need(struct taskmsg *b, size_t size);
/* With a ticket; ref stays as it is while the message lives. */
Skerry__V1__Blob *taskmsg_blob(struct taskmsg *b, const struct blob_ref *ref);
/* The same, or NULL when there is none. */
Skerry__V1__Blob *taskmsg_blob_or_null(struct taskmsg *b, const struct blob_ref *ref);
/* How to get the modules of a path, by level; j may be another job than the task's. */
Skerry__V1__ModuleRef **taskmsg_modules(struct taskmsg *b, const struct job *j, uint32_t path,
                                        size_t *ret_n);
/* All main paths of a job as experts; without modules when they stay elsewhere. */
Skerry__V1__Expert **taskmsg_experts(struct taskmsg *b, const struct job *j, bool modules,
                                     size_t *ret_n);
/* What is particular to the task's kind. */
void taskmsg_kind(struct taskmsg *b, Skerry__V1__Task *msg);

#endif
