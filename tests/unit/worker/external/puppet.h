/* A trainer that is no process: whoever includes this says at its start all that it will ever say,
 * and what it is told is left in its socket.  Stands in for worker/external/process.c. */
#ifndef TESTS_UNIT_WORKER_EXTERNAL_PUPPET_H
#define TESTS_UNIT_WORKER_EXTERNAL_PUPPET_H

#include <sys/socket.h>
#include <unistd.h>

#include "worker/external/process.h"

struct process {
    int fd;
};

static void (*puppet_speaks)(int fd);
static int puppet_fd;     /* its end of the socket, while it runs */
static bool puppet_stays; /* else its end of the socket is closed behind that */
static size_t puppet_processes;
static uint64_t puppet_busy_ms, puppet_cpu_ms; /* of processor time between two looks; in all */

int process_start(const struct process_options *opt, struct process **ret, struct err *err)
{
    struct process *p = mem_alloc(sizeof(*p));
    p->fd = dup(opt->passed);
    puppet_fd = p->fd;
    puppet_speaks(p->fd);
    if (!puppet_stays)
        (void)shutdown(p->fd, SHUT_WR);
    *ret = p;
    return 0;
}

void process_end(struct process *p)
{
    if (p)
        (void)close(p->fd);
    mem_free(p);
}

int process_output_fd(const struct process *p)
{
    return -1;
}

size_t process_take_output(struct process *p)
{
    return 0;
}

const char *process_tail(struct process *p)
{
    return "";
}

bool process_is_over(struct process *p, char *ret_how, size_t size)
{
    (void)snprintf(ret_how, size, "ended");
    return true;
}

struct process_use process_use(const struct process *p)
{
    puppet_cpu_ms += puppet_busy_ms;
    return (struct process_use){.processes = puppet_processes, .cpu_ms = puppet_cpu_ms};
}

#endif
