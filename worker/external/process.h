/* A user's command, run by a worker: in its own session, with a working folder, limits, and an
 * environment with nothing of the worker's but PATH.  Its output is logged line by line: a hundred
 * lines, then one every 10 s with the number left out, and of a redrawn line (a progress bar) the
 * last state.  Its session is killed with it.  It is killed with the worker; what it has started
 * ends, where the worker itself was killed, when it next writes to its output or its socket.
 *
 * Its last lines are kept for the report of a failure.  One thread. */
#ifndef WORKER_EXTERNAL_PROCESS_H
#define WORKER_EXTERNAL_PROCESS_H

#include "common/base/base.h"

#define PROCESS_TAIL_MAX 512 /* bytes of its last lines */

struct process;

struct process_options {
    const char *command; /* for a shell */
    const char *folder;  /* its working directory, HOME and TMPDIR */
    const char *what;    /* "trainer", in the log and in messages */
    char *const *env;    /* "NAME=VALUE", n_env of them: over those of the worker */
    size_t n_env;
    int passed;            /* a descriptor that it inherits as SKERRY_TRAINER_FD; -1: none */
    uint64_t memory_bytes; /* 0: no limit */
    const char *vmstat;    /* the kernel's counts; NULL: /proc/vmstat */
    int threads;           /* OMP_NUM_THREADS; 0: not set */
};

/* Starts the command; if it cannot be run, its exit status says so. */
int process_start(const struct process_options *opt, struct process **ret, struct err *err);
/* Kills the command and its session, and waits for it. */
void process_end(struct process *p); /* accepts NULL */

/* A descriptor for poll: readable when it has written something, or has closed its output. */
int process_output_fd(const struct process *p);
/* Takes its new output; returns the number of bytes, 0 when there is none. */
size_t process_take_output(struct process *p);
/* Its last lines joined by " | ", including an unfinished one; "" when it wrote none. */
const char *process_tail(struct process *p);
/* Whether it has ended by itself; ret_how: "ended with exit status 1", or by which signal. */
bool process_is_over(struct process *p, char *ret_how, size_t size);
/* Whether the kernel has killed it, because the machine's or the container's memory was short;
 * after process_is_over().  The kernel does not say whom it killed: a SIGKILL counts as its own if
 * it killed something in the half minute before, as far as process_use() is asked often. */
bool process_lacked_memory(const struct process *p);
/* The resources that its whole session uses; 0: unknown. */
struct process_use {
    uint64_t bytes;  /* of memory; what processes share counts for each */
    uint64_t cpu_ms; /* processor time, including that of children it has waited for */
    size_t processes;
};
struct process_use process_use(struct process *p);
/* The bytes of memory of its whole session, of which what processes share counts once; it takes
 * about a second for 50 GB. */
uint64_t process_memory(const struct process *p);

#endif
