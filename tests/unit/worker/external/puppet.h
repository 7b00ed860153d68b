/* A trainer that is no process: whoever includes this says at its start all that it will ever say,
 * and what it is told is left in its socket.  Stands in for worker/external/process.c. */
#ifndef TESTS_UNIT_WORKER_EXTERNAL_PUPPET_H
#define TESTS_UNIT_WORKER_EXTERNAL_PUPPET_H

#include <sys/socket.h>
#include <unistd.h>

#include "common/trainer/channel.h"
#include "proto/trainer.pb-c.h"
#include "worker/external/process.h"

struct process {
    int fd;
};

static void (*puppet_speaks)(int fd);
static int puppet_fd;     /* its end of the socket, while it runs */
static bool puppet_stays; /* else it ends behind that */
static bool puppet_over;  /* it has ended; its end of the socket may be open, as a child's */
static bool puppet_lacked_memory;
static size_t puppet_processes;
static uint64_t puppet_busy_ms, puppet_cpu_ms; /* of processor time between two looks; in all */

/* The hello of a trainer whose model is one tensor "w" of four values; good until the next one. */
static inline Skerry__Trainer__V1__FromTrainer *puppet_hello(void)
{
    static Skerry__Trainer__V1__FromTrainer m;
    static Skerry__Trainer__V1__Hello hello;
    static Skerry__Trainer__V1__Tensor one, *list[] = {&one};
    static uint64_t shape[] = {4};
    skerry__trainer__v1__from_trainer__init(&m);
    skerry__trainer__v1__hello__init(&hello);
    skerry__trainer__v1__tensor__init(&one);
    one.name = (char *)(uintptr_t) "w";
    one.dtype = SKERRY__TRAINER__V1__DTYPE__DTYPE_F32;
    one.shape = shape;
    one.n_shape = 1;
    hello.protocol = CHANNEL_PROTOCOL;
    hello.tensors = list;
    hello.n_tensors = 1;
    m.what_case = SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_HELLO;
    m.hello = &hello;
    return &m;
}

static void puppet_ends(void)
{
    puppet_over = true;
    (void)shutdown(puppet_fd, SHUT_WR);
}

int process_start(const struct process_options *opt, struct process **ret, struct err *err)
{
    struct process *p = mem_alloc(sizeof(*p));
    p->fd = dup(opt->passed);
    puppet_fd = p->fd;
    puppet_over = false;
    puppet_speaks(p->fd);
    if (!puppet_stays)
        puppet_ends();
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
    return puppet_over;
}

bool process_lacked_memory(const struct process *p)
{
    return puppet_lacked_memory;
}

struct process_use process_use(struct process *p)
{
    puppet_cpu_ms += puppet_busy_ms;
    return (struct process_use){.processes = puppet_processes, .cpu_ms = puppet_cpu_ms};
}

uint64_t process_memory(const struct process *p)
{
    return 0;
}

#endif
