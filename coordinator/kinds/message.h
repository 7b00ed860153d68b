/* Builds the message with which a worker gets a leased task, with tickets for all blobs it needs:
 * the parts that several kinds have in common.  Everything is allocated in `mem` and borrows from
 * the state: pack the message before either changes. */
#ifndef COORDINATOR_KINDS_MESSAGE_H
#define COORDINATOR_KINDS_MESSAGE_H

#include "common/net/pbmem.h"
#include "coordinator/state/core.h"
#include "proto/skerry.pb-c.h"

#define MESSAGE_BYTES_MAX (8u << 20)

/* A message under construction. */
struct message {
    struct coordinator *co;
    const struct job *job;
    const struct task *task;
    const struct worker *worker;
    struct pbmem *mem;
    bool best;   /* of paths that stopped early, use the best version */
    bool phase;  /* modules are those with which a phase begins, or none */
    bool failed; /* the arena is full, or a version is gone */
};

/* Memory of the arena.  After a failure: scratch memory that may be written, or NULL where `size`
 * exceeds it. */
void *message_need(struct message *b, size_t size);
/* An initialised part of the message; after a failure scratch memory, as from message_need(). */
void *message_new(struct message *b, const ProtobufCMessageDescriptor *d);
/* The blob with a ticket; ref must not change while the message lives. */
Skerry__V1__Blob *message_blob(struct message *b, const struct blob_ref *ref);
/* The same, or NULL when ref names no blob. */
Skerry__V1__Blob *message_blob_or_null(struct message *b, const struct blob_ref *ref);
/* A module without weights. */
Skerry__V1__ModuleRef *message_bare_module(struct message *b, const struct module_rec *m);
/* All main paths of a job as experts; modules false: without their modules, which stay with other
 * workers. */
Skerry__V1__Expert **message_experts(struct message *b, const struct job *j, bool modules,
                                     size_t *ret_n);
/* The modules of the task's path, or its mixture. */
void message_networks(struct message *b, Skerry__V1__Task *msg);
/* The samples of the task. */
Skerry__V1__Range **message_ranges(struct message *b, size_t *ret_n);
/* The fields of the job that its workers need. */
void message_job(struct message *b, Skerry__V1__Task *m);
/* The newest version of a module on the path of a TRAIN task, for its worker. */
int message_module(struct coordinator *co, const struct job *j, const struct task *t,
                   const struct worker *w, const struct module_rec *m, struct pbmem *mem,
                   Skerry__V1__ModuleRef **ret, struct err *err);
/* What w shall fetch while it waits (work/ahead.h); *ret NULL: nothing. */
int message_ahead(struct coordinator *co, const struct worker *w, struct pbmem *mem,
                  Skerry__V1__Ahead **ret, struct err *err);

#endif
