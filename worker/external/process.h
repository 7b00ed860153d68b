/* A command of somebody else's, run by a worker: in a session of its own, with a working folder,
 * limits, an environment that holds nothing of the worker's but PATH, and its output taken line by
 * line into the log: a hundred, then one each 10 s and how many are left out, and of a line that is
 * drawn again and again (a progress bar) the last state.  Its session is killed with it, and it
 * with the worker.
 *
 * Its last lines are kept, so that a failure can be told with them.  One thread. */
#ifndef WORKER_EXTERNAL_PROCESS_H
#define WORKER_EXTERNAL_PROCESS_H

#include "common/base/base.h"

#define PROCESS_TAIL_MAX 512 /* bytes of last lines */

struct process;

struct process_options {
    const char *command; /* for a shell */
    const char *folder;  /* it runs there, and HOME and TMPDIR are there */
    const char *what;    /* "trainer", in the log and in messages */
    char *const *env;    /* "NAME=VALUE", n_env of them: over those of the worker */
    size_t n_env;
    int passed;            /* a descriptor that it inherits as SKERRY_TRAINER_FD; -1: none */
    uint64_t memory_bytes; /* 0: no limit */
    int threads;           /* OMP_NUM_THREADS; 0: not set */
};

/* Starts the command; that it cannot be run is told by its exit status. */
int process_start(const struct process_options *opt, struct process **ret, struct err *err);
/* Kills what is left of it and of its session, and waits for it. */
void process_end(struct process *p); /* accepts NULL */

/* For poll: readable when it has written something, or has closed its output. */
int process_output_fd(const struct process *p);
/* Takes what it has written: bytes of it, 0 when there is nothing. */
size_t process_take_output(struct process *p);
/* Its last lines, in one, apart by " | ", with what it has of the next; "" when it wrote none. */
const char *process_tail(struct process *p);
/* Has it ended by itself?  Then *ret_how says "ended with exit status 1", or by which signal. */
bool process_is_over(struct process *p, char *ret_how, size_t size);
/* What its whole session takes; 0: not known. */
struct process_use {
    uint64_t bytes;  /* of memory */
    uint64_t cpu_ms; /* of processor time, with that of those which it has waited for */
    size_t processes;
};
struct process_use process_use(const struct process *p);

#endif
