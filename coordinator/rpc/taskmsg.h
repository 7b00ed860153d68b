/* A leased task as the message that its worker gets, with tickets for every
 * blob it needs.  Everything is allocated in `mem` and borrows from the state:
 * pack it before either changes. */
#ifndef COORDINATOR_TASKMSG_H
#define COORDINATOR_TASKMSG_H

#include "common/net/pbmem.h"
#include "proto/skerry.pb-c.h"

struct coordinator;
struct err;
struct job;
struct module_rec;
struct task;
struct worker;

#define TASKMSG_BYTES_MAX (8u << 20)

int taskmsg_build(struct coordinator *co, const struct job *j, const struct task *t,
                  const struct worker *w, struct pbmem *mem, Skerry__V1__Task **ret,
                  struct err *err);

/* The newest version of a module on the path of a TRAIN task, for who has the task. */
int taskmsg_module(struct coordinator *co, const struct job *j, const struct task *t,
                   const struct worker *w, const struct module_rec *m, struct pbmem *mem,
                   Skerry__V1__ModuleRef **ret, struct err *err);

#endif
