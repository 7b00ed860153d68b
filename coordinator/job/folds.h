/* Outer steps: which contributions a module's next version is made of, the step that makes it, and
 * what became of them.  The arithmetic is the executor's (outer_exec.h), the decision quorum.h's.
 */
#ifndef COORDINATOR_FOLDS_H
#define COORDINATOR_FOLDS_H

#include "coordinator/state/core.h"

struct outer_claim;

/* Takes the module's next outer step if it is time for it. */
void folds_consider(struct coordinator *co, struct job *j, struct module_rec *m);
/* What a worker says that the step of its OUTER task t gives; claim NULL: that it cannot be made as
 * it stands, and why.  0: it is looked over.  -ERR_STALE: nobody waits for it. */
int folds_claim(struct coordinator *co, struct job *j, struct task *t,
                const struct outer_claim *claim, const char *why, struct err *err);
/* Forgets steps that wait for workers: the job ends, or the coordinator does. */
void folds_release(const struct job *j);
/* A new version; takes v->provenance. */
void folds_adopt(struct coordinator *co, struct job *j, struct module_rec *m,
                 const struct version_rec *v);
/* A commit with all versions is handed over: once it is done they are shown, after a failure not.
 */
void folds_hand(struct coordinator *co);
void folds_told(struct coordinator *co);
void folds_take_back(struct coordinator *co);
/* Removes the outer optimiser's files of an ended job, as soon as no step runs. */
void folds_clean_up(struct coordinator *co, const struct job *j);

#endif
