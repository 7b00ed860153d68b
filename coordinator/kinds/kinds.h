/* The table of task kinds, and the two questions that the RPC room asks of it. */
#ifndef COORDINATOR_KINDS_KINDS_H
#define COORDINATOR_KINDS_KINDS_H

#include "coordinator/kinds/kind.h"

/* A leased task as the message for its worker; see message.h. */
int kinds_message(struct coordinator *co, const struct job *j, const struct task *t,
                  const struct worker *w, struct pbmem *mem, Skerry__V1__Task **ret,
                  struct err *err);
/* Takes what a report brings, by the kind of its task; see kind.h. */
int kinds_apply(struct coordinator *co, struct job *j, struct task *t,
                const Skerry__V1__ReportRequest *r, struct err *err);
/* The worker that has at hand what the task needs; 0: none. */
uint64_t kinds_owner(const struct job *j, const struct task *t);

#endif
