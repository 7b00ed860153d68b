/* A trainer that runs: its process, its tensors, and the conversation with it (docs/trainers.md).
 *
 *     external_open            starts it, waits for its hello, shares the memory of the weights
 *     external_ask             one order, until it says that it is done
 *     external_close
 *
 * While it works it is listened to; what it does wrong ends the order with one sentence that has
 * its last lines: it dies, says something that is no message, does not answer a stop, takes more
 * memory than it may.  After a failure it is of no further use: close it.  That it makes no
 * progress is the coordinator's to see, which takes the lease; that it is at work on a long step is
 * told (events.goes_on).
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
    const char *folder; /* with its files */
    uint64_t memory_bytes;
    int threads;
    int hello_ms; /* to wait for its hello */
    /* While waiting: is the task to be left?  And the command goes on: it has written something, or
     * is being set up, which may take half an hour, or started, which may take hello_ms. */
    bool (*stopped)(void *arg);
    void (*goes_on)(void *arg);
    void *arg;
};

int external_open(const struct external_options *opt, struct external **ret, struct err *err);
void external_close(struct external *x); /* accepts NULL */

/* Runs a command to its end, as a trainer is run but without a conversation: trainer.setup. */
int external_setup(const struct external_options *opt, const char *command, struct err *err);

const struct tensors *external_tensors(const struct external *x);
/* What it can do. */
bool external_evaluates(const struct external *x);
bool external_draws(const struct external *x);
bool external_keeps_state(const struct external *x);
bool external_exchanges(const struct external *x);
/* The shared memory, a safetensors file of external_tensors()->bytes. */
uint8_t *external_shared(struct external *x);
/* Room for what tensors_seal() makes of it. */
uint64_t *external_seal(struct external *x);

/* What the trainer asks for and tells while it works; a negative return ends the order. */
struct external_events {
    int (*progress)(void *arg, const Skerry__Trainer__V1__Progress *p, struct err *err);
    /* Fills the message, and *ret_fd with a descriptor that is closed afterwards (-1: none). */
    int (*samples)(void *arg, Skerry__Trainer__V1__Samples *m, int *ret_fd, struct err *err);
    bool (*stopped)(void *arg);
    /* About once a second while it uses a processor or writes, for an hour after its last word: the
     * first step of a model that is compiled may take long.  NULL: nobody wants to know. */
    void (*goes_on)(void *arg);
    void *arg;
};

#define EXTERNAL_NUMBERS_MAX 17 /* one more than a task takes, which is to be told */

struct external_number {
    char name[72]; /* a longer one is cut, and still no name */
    double value;
};

/* What it is done with: the figures of Done, and the descriptor that came along (-1: none; the
 * caller's). */
struct external_done {
    double loss_sum;
    uint64_t units;
    struct external_number numbers[EXTERNAL_NUMBERS_MAX]; /* of an evaluation */
    size_t n_numbers;
    char *text; /* mem_free */
    int passed;
};

/* From within events.progress, of a step after which the trainer waits (Phase.pause): it writes a
 * level's weights into the shared memory, has written them on return (-ERR_CANCELLED: the task is
 * to be left meanwhile); it loads them; it goes on, until the step `pause` (0: to the end). */
int external_give(struct external *x, uint32_t level, struct err *err);
int external_take(struct external *x, uint32_t level, struct err *err);
int external_go_on(struct external *x, uint32_t pause, struct err *err);

void external_done_release(struct external_done *d); /* { .passed = -1 } is fine */

/* passed: a descriptor that goes along, -1: none.  -ERR_CANCELLED when `stopped` says so; the
 * trainer may then be asked again if *ret_alive.  ret_alive is set on every return. */
int external_ask(struct external *x, const Skerry__Trainer__V1__FromWorker *order, int passed,
                 const struct external_events *ev, struct external_done *ret, bool *ret_alive,
                 struct err *err);

#endif
