/* Outer steps: chooses the contributions to a module's next version, has the step made, and records
 * its outcome.  outer_exec.h does the arithmetic; quorum.h decides when. */
#ifndef COORDINATOR_FOLDS_H
#define COORDINATOR_FOLDS_H

#include "coordinator/state/core.h"

struct outer_claim;

/* Contributions that have not been reported: at most n; of(arg, t) is that of a phase, or NULL. */
struct folds_coming {
    size_t n;
    const struct contribution *(*of)(void *arg, const struct task *t);
    void *arg;
};

/* What a contribution's weight is divided by: sqrt(1 + the versions that it is behind), as in
 * FedBuff (Nguyen et al. 2022, 2106.06639).  Without rounds n replicas that take turns are each n -
 * 1 versions behind, and these do not count. */
double folds_behind(const struct job *j, const struct module_rec *m, const struct contribution *c);

/* The module's next step as it stands, in rounds: of all contributions that are in no version yet,
 * and of those that are coming (NULL: none).  The caller frees it and its contributions. */
struct outer_step *folds_step(struct coordinator *co, const struct job *j,
                              const struct module_rec *m, const struct folds_coming *coming);

/* Phases whose contribution was refused, and that could not be repeated since others held all
 * samples, are repeated if there are samples again. */
void folds_redo(struct coordinator *co, struct job *j);
/* Takes the module's next outer step if it is time for it. */
void folds_consider(struct coordinator *co, struct job *j, struct module_rec *m);
/* Takes a worker's result of its OUTER task t; claim NULL: the worker reports that the step cannot
 * be made as it stands, and why.  0: the claim will be checked.  -ERR_STALE: nobody waits for it.
 * -EAGAIN: the executor is full. */
int folds_claim(struct coordinator *co, struct job *j, struct task *t,
                const struct outer_claim *claim, const char *why, struct err *err);
/* Forgets the step that waits for a worker, when the job or the coordinator ends or the job goes
 * back: without a word to its task. */
void folds_release(struct module_rec *m);
/* Adds a new version; takes v->provenance. */
void folds_adopt(struct coordinator *co, struct job *j, struct module_rec *m,
                 const struct version_rec *v);
/* A commit with all new versions is handed over; folds_told(): it is done, and they may be shown;
 * folds_take_back(): it has failed. */
void folds_hand(struct coordinator *co);
void folds_told(struct coordinator *co);
void folds_take_back(struct coordinator *co);
/* Removes the outer optimiser's files of an ended job once no step runs. */
void folds_clean_up(struct coordinator *co, const struct job *j);

#endif
