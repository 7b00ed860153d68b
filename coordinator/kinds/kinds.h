/* The table of task kinds, as the other rooms of the coordinator use it. */
#ifndef COORDINATOR_KINDS_KINDS_H
#define COORDINATOR_KINDS_KINDS_H

#include "coordinator/kinds/kind.h"

/* A leased task as the message for its worker; see message.h. */
int kinds_message(struct coordinator *co, const struct job *j, const struct task *t,
                  const struct worker *w, struct pbmem *mem, Skerry__V1__Task **ret,
                  struct err *err);
/* Takes a report's result as the kind of its task does; see kind.h. */
int kinds_apply(struct coordinator *co, struct job *j, struct task *t,
                const Skerry__V1__ReportRequest *r, struct err *err);
/* The worker that has the task's inputs at hand; 0: none. */
uint64_t kinds_owner(const struct job *j, const struct task *t);

#endif
