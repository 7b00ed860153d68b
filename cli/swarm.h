/* A private swarm on this machine: a coordinatord and some workerd on free
 * loopback ports, with their state in a directory.  The children die with this
 * process whatever ends it (PR_SET_PDEATHSIG). */
#ifndef CLI_SWARM_H
#define CLI_SWARM_H

#include <sys/types.h>

#include "common/base/base.h"
#include "common/base/args.h"

#define SWARM_WORKERS_MAX 64

struct swarm {
    int folder;       /* locked; 0: not */
    char *bin;        /* folder of the programs */
    char *state;      /* data directories */
    char *logs;       /* coordinatord.log, worker-N.log */
    char *user_token; /* file */
    pid_t coordinator;
    pid_t workers[SWARM_WORKERS_MAX];
    int names[SWARM_WORKERS_MAX];  /* worker-N */
    int places[SWARM_WORKERS_MAX]; /* which of the first workers it stands for */
    int n_workers, next_name;
    int threads;        /* of a worker */
    const char *device; /* borrowed */
    bool trainers;      /* workers run trainers of the user's */
    /* More arguments of the n-th worker, words with blanks between them; the last
     * item serves all that follow, and a replacement gets those of the worker it replaces. */
    struct args_list extra;
    int deaths; /* replaced workers so far */
    bool keep;  /* the state: swarm_keep() */
};

/* Starts the coordinator and waits until it answers.  `dir` must exist; makes
 * dir/.swarm and dir/logs.  What an earlier one was to keep is moved to dir/.swarm-unsaved, or
 * .swarm-unsaved-2 and so on, with a line on stderr.  -EBUSY where another one is at work there, or
 * a coordinator that was started on what was kept. */
int swarm_start(struct swarm *s, const char *dir, struct err *err);
int swarm_add_worker(struct swarm *s, struct err *err);
/* SIGKILLs worker i (of those that live, modulo their number) and starts another in
 * its place: a drill. */
int swarm_kill_worker(struct swarm *s, unsigned i, struct err *err);
/* Reaps children.  A worker that died is replaced, with a line on stderr; a
 * dead coordinator, or workers that keep dying, is an error that names the log. */
int swarm_check(struct swarm *s, struct err *err);
/* From now on the coordinator's state must outlive this swarm, until it is saved. */
void swarm_keep(struct swarm *s);
void swarm_saved(struct swarm *s);
/* Ends all children (SIGTERM, then SIGKILL) and removes the state, or says on stderr how to export
 * the model from what is kept of it; the logs stay. */
void swarm_stop(struct swarm *s);

#endif
