/* Outer steps: which contributions a module's next version is made of, the step that makes it, and
 * what became of them.  The arithmetic is the executor's (outer_exec.h), the decision quorum.h's.
 */
#ifndef COORDINATOR_FOLDS_H
#define COORDINATOR_FOLDS_H

#include "coordinator/state/core.h"

/* Takes the module's next outer step if it is time for it. */
void folds_consider(struct coordinator *co, struct job *j, struct module_rec *m);
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
