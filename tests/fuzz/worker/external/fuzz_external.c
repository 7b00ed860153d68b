/* A trainer that says anything: the worker opens it or refuses it with a sentence, and an order to
 * it ends, with a sentence where it fails. */
#include <stdlib.h>

#include "common/base/log.h"
#include "common/trainer/channel.h"
#include "tests/unit/worker/external/puppet.h"
#include "worker/external/external.h"

#define MESSAGES_MAX 60000 /* bytes, which its socket takes without a reader */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t *said;
static size_t said_size;
static bool greets; /* with a hello of ours: what comes behind is fuzzed */
static struct external *asked;
static volatile uint8_t sink; /* all bytes are looked at */

static void greet(int fd)
{
    if (channel_send(fd, &puppet_hello()->base, -1, 0, NULL) < 0)
        abort();
}

static void speak(int fd)
{
    if (greets)
        greet(fd);
    if (send(fd, said, said_size, MSG_DONTWAIT) != (ssize_t)said_size)
        abort();
}

static bool stopped(void *arg)
{
    return false;
}

static void goes_on(void *arg)
{
}

/* As of a job with fragments: a give, a take and a word to go on behind every step. */
static int on_progress(void *arg, const Skerry__Trainer__V1__Progress *p, struct err *err)
{
    for (size_t i = 0; i < p->n_numbers; i++)
        sink ^= (uint8_t)strlen(p->numbers[i]->name);
    int rc = external_give(asked, 0, err);
    if (rc == 0)
        rc = external_take(asked, 0, err);
    return rc < 0 ? rc : external_go_on(asked, 2, err);
}

static int on_samples(void *arg, Skerry__Trainer__V1__Samples *m, int *ret_fd, struct err *err)
{
    m->last = true;
    return 0;
}

static void must_say(int rc, const struct err *err)
{
    if (rc < 0 && err->msg[0] == '\0')
        abort();
}

static bool ask(struct external *x, bool evaluates)
{
    const struct external_events ev = {
        .progress = on_progress, .samples = evaluates ? NULL : on_samples, .stopped = stopped};
    Skerry__Trainer__V1__FromWorker m = SKERRY__TRAINER__V1__FROM_WORKER__INIT;
    Skerry__Trainer__V1__Phase phase = SKERRY__TRAINER__V1__PHASE__INIT;
    Skerry__Trainer__V1__Evaluate evaluate = SKERRY__TRAINER__V1__EVALUATE__INIT;
    struct external_done done = {.passed = -1};
    struct err err = {0};
    bool alive = false;
    m.what_case = evaluates ? SKERRY__TRAINER__V1__FROM_WORKER__WHAT_EVALUATE
                            : SKERRY__TRAINER__V1__FROM_WORKER__WHAT_PHASE;
    if (evaluates)
        m.evaluate = &evaluate;
    else
        m.phase = &phase;
    const int rc = external_ask(x, &m, -1, &ev, &done, &alive, &err);
    must_say(rc, &err);
    if (alive != (rc == 0) || done.n_numbers > EXTERNAL_NUMBERS_MAX)
        abort();
    for (size_t i = 0; i < done.n_numbers; i++)
        sink ^= (uint8_t)strnlen(done.numbers[i].name, sizeof(done.numbers[i].name));
    if (rc == 0)
        sink ^= (uint8_t)strlen(done.text);
    external_done_release(&done);
    return alive;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct job_trainer job = {.command = (char *)(uintptr_t) "puppet"};
    static const struct tensors_cut cut = {.n_levels = 1};
    const struct external_options opt = {.job = &job,
                                         .cut = &cut,
                                         .folder = "/",
                                         .hello_ms = 1000,
                                         .stopped = stopped,
                                         .goes_on = goes_on};
    struct err err = {0};
    if (size == 0 || size > MESSAGES_MAX)
        return 0;
    log_set_level(LOG_LEVEL_ERROR);
    greets = data[0] & 1;
    said = data + 1;
    said_size = size - 1;
    puppet_speaks = speak;
    asked = NULL;
    const int rc = external_open(&opt, &asked, &err);
    must_say(rc, &err);
    for (int i = 0; i < 16 && rc == 0 && ask(asked, i % 2 == 1); i++)
        ;
    external_close(asked);
    return 0;
}
