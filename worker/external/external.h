/* A running trainer: its process, its tensors, and the exchange of messages (docs/trainers.md).
 *
 *     external_open            starts it, waits for its hello, shares the memory of the weights
 *     external_ask             one order, until the trainer reports that it is done
 *     external_close
 *
 * While it works its messages are read.  A fault ends the order with one sentence that has its last
 * lines of output: it dies, sends an invalid message, does not answer a stop, or exceeds its
 * memory. After a failure it is of no further use: close it.  A lack of progress is left to the
 * coordinator, which takes the lease; work on a long step is reported (events.goes_on).
 *
 * Compute thread. */
#ifndef WORKER_EXTERNAL_EXTERNAL_H
#define WORKER_EXTERNAL_EXTERNAL_H

#include "common/base/base.h"
#include "proto/trainer.pb-c.h"
#include "worker/external/tensors.h"

struct external;

struct external_options {
    const struct job_trainer *job;
    const struct tensors_cut *cut;
    const char *folder; /* has the trainer's files */
    uint64_t memory_bytes;
    int threads;
    int hello_ms; /* to wait for its hello */
    /* Called while waiting.  stopped: whether the task must be abandoned.  goes_on: the command is
     * alive: it has written something, or is being set up (at most half an hour), or started (at
     * most hello_ms). */
    bool (*stopped)(void *arg);
    void (*goes_on)(void *arg);
    void *arg;
};

int external_open(const struct external_options *opt, struct external **ret, struct err *err);
void external_close(struct external *x); /* accepts NULL */

/* Runs a command to its end, like a trainer but without messages: trainer.setup. */
int external_setup(const struct external_options *opt, const char *command, struct err *err);

const struct tensors *external_tensors(const struct external *x);
/* The trainer's abilities. */
bool external_evaluates(const struct external *x);
bool external_draws(const struct external *x);
bool external_keeps_state(const struct external *x);
bool external_exchanges(const struct external *x);
/* The shared memory, a safetensors file of external_tensors()->bytes. */
uint8_t *external_shared(struct external *x);
/* Memory for tensors_seal()'s result over it. */
uint64_t *external_seal(struct external *x);

/* The trainer's requests and reports while it works; a negative return ends the order. */
struct external_events {
    int (*progress)(void *arg, const Skerry__Trainer__V1__Progress *p, struct err *err);
    /* Fills the message, and *ret_fd with a descriptor that the caller closes (-1: none). */
    int (*samples)(void *arg, Skerry__Trainer__V1__Samples *m, int *ret_fd, struct err *err);
    bool (*stopped)(void *arg);
    /* Called about once a second while the trainer uses processor time or writes, until an hour
     * after its last message: the first step of a compiled model may take long.  NULL: not called.
     */
    void (*goes_on)(void *arg);
    void *arg;
};

#define EXTERNAL_NUMBERS_MAX 17 /* one more than a task takes, so that an excess is reported */

struct external_number {
    char name[72]; /* a longer one is truncated, and still invalid */
    double value;
};

/* The result of an order: the figures of Done, and the descriptor sent with it (-1: none), which
 * the caller closes. */
struct external_done {
    double loss_sum;
    uint64_t units;
    struct external_number numbers[EXTERNAL_NUMBERS_MAX]; /* of an evaluation */
    size_t n_numbers;
    char *text; /* mem_free */
    int passed;
};

/* To be called in events.progress, for a step after which the trainer waits (Phase.pause).
 * external_give(): the trainer writes a level's weights to the shared memory, before this returns
 * (-ERR_CANCELLED: the task must be abandoned).  external_take(): it loads them.
 * external_go_on(): it continues until the step `pause` (0: to the end). */
int external_give(struct external *x, uint32_t level, struct err *err);
int external_take(struct external *x, uint32_t level, struct err *err);
int external_go_on(struct external *x, uint32_t pause, struct err *err);

void external_done_release(struct external_done *d); /* { .passed = -1 } is fine */

/* passed: a descriptor sent with the order, -1: none.  -ERR_CANCELLED: `stopped` returned true; if
 * *ret_alive the trainer can take another order.  *ret_alive is set on every return. */
int external_ask(struct external *x, const Skerry__Trainer__V1__FromWorker *order, int passed,
                 const struct external_events *ev, struct external_done *ret, bool *ret_alive,
                 struct err *err);

#endif
