/* Version 0 is that of a trainer which nothing else was asked: a restored coordinator asks for it
 * again, of the same job. */
#include "tests/unit/common/base/util.h"
#include "tests/unit/worker/external/puppet.h"

#include "common/trainer/channel.h"
#include "worker/engine/engine.h"
#include "worker/engine/replica.h"
#include "worker/engine/trainers.h"

typedef Skerry__Trainer__V1__FromTrainer from_trainer;

static unsigned starts;

static void say(int fd, from_trainer *m)
{
    OK(channel_send(fd, &m->base, -1, 0, err));
}

/* Hello, and that two orders are done. */
static void speaks(int fd)
{
    Skerry__Trainer__V1__Done done = SKERRY__TRAINER__V1__DONE__INIT;
    from_trainer m = SKERRY__TRAINER__V1__FROM_TRAINER__INIT;
    say(fd, puppet_hello());
    m.what_case = SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_DONE;
    m.done = &done;
    for (int i = 0; i < 2; i++)
        say(fd, &m);
    starts++;
}

static void ask(struct engine *e, struct work *w, Skerry__Trainer__V1__FromWorker *m)
{
    const struct external_events ev = {.stopped = trainers_stopped, .arg = w};
    struct external_done done = {.passed = -1};
    OK(trainers_ask(e, w, m, -1, &ev, &done, err));
    external_done_release(&done);
}

static void a_used_trainer_gives_no_version_0(void **state)
{
    (void)state;
    char *top = scratch_new();
    struct engine e = {.state_dir = top, .opt = {.allow_trainers = true}};
    Skerry__V1__Task task = SKERRY__V1__TASK__INIT;
    struct work w = {.task = &task};
    char *blobs = in(top, "blobs");
    struct external *x = NULL;
    Skerry__Trainer__V1__Begin begin = SKERRY__TRAINER__V1__BEGIN__INIT;
    Skerry__Trainer__V1__Evaluate evaluate = SKERRY__TRAINER__V1__EVALUATE__INIT;
    Skerry__Trainer__V1__FromWorker m = SKERRY__TRAINER__V1__FROM_WORKER__INIT;
    OK(island_open("cpu", 1, &e.island, err));
    e.dev = island_device(e.island, 0);
    e.replicas = replicas_new(e.island, top, 0, NULL, NULL);
    puppet_speaks = speaks;
    puppet_stays = true;
    w.spec.trainer.command = (char *)(uintptr_t) "puppet";
    OK(cache_open(blobs, 0, &w.cache, err));
    mem_free(blobs);
    progress_init(&w.progress);
    OK(trainers_get(&e, &w, &x, err));
    m.what_case = SKERRY__TRAINER__V1__FROM_WORKER__WHAT_BEGIN;
    m.begin = &begin;
    ask(&e, &w, &m);
    OK(trainers_get_new(&e, &w, &x, err));
    assert_int_equal(starts, 1);
    m.what_case = SKERRY__TRAINER__V1__FROM_WORKER__WHAT_EVALUATE;
    m.evaluate = &evaluate;
    ask(&e, &w, &m);
    OK(trainers_get(&e, &w, &x, err));
    assert_int_equal(starts, 1);
    OK(trainers_get_new(&e, &w, &x, err));
    assert_int_equal(starts, 2);
    engine_room(&e, 1); /* to another job */
    OK(trainers_get(&e, &w, &x, err));
    assert_int_equal(starts, 2);
    engine_room(&e, UINT64_MAX - 1); /* which needs its memory */
    assert_false(trainers_yield(&e));
    replicas_free(e.replicas);
    island_close(e.island);
    trainers_free(e.trainers);
    progress_release(&w.progress);
    cache_close(w.cache);
    scratch_free(top);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_used_trainer_gives_no_version_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
