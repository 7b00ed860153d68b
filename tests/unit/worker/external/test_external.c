/* What a worker makes of a trainer that says nothing, something else, or nothing in time. */
#include "worker/external/external.h"

#include "common/base/clock.h"
#include "common/trainer/channel.h"
#include "tests/unit/common/base/util.h"
#include "tests/unit/worker/external/puppet.h"

#define HELLO_MS 1000

typedef Skerry__Trainer__V1__FromTrainer from_trainer;

static bool taken_back; /* the task */
static int signs;

static bool stopped(void *arg)
{
    return taken_back;
}

static void goes_on(void *arg)
{
    signs++;
}

static void say(int fd, from_trainer *m)
{
    OK(channel_send(fd, &m->base, -1, 0, err));
}

static void say_hello(int fd)
{
    from_trainer *m = puppet_hello();
    m->hello->exchanges = true;
    say(fd, m);
}

static Skerry__Trainer__V1__Failed failed;

static void say_failed(int fd)
{
    from_trainer m = SKERRY__TRAINER__V1__FROM_TRAINER__INIT;
    const bool memory = failed.memory;
    skerry__trainer__v1__failed__init(&failed);
    failed.reason = (char *)(uintptr_t) "too much";
    failed.memory = memory;
    m.what_case = SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_FAILED;
    m.failed = &failed;
    say(fd, &m);
}

static void say_progress(int fd)
{
    Skerry__Trainer__V1__Progress progress = SKERRY__TRAINER__V1__PROGRESS__INIT;
    from_trainer m = SKERRY__TRAINER__V1__FROM_TRAINER__INIT;
    progress.loss = 1;
    progress.samples = 1;
    m.what_case = SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_PROGRESS;
    m.progress = &progress;
    say(fd, &m);
}

static void say_given_and_done(int fd)
{
    Skerry__Trainer__V1__Given given = SKERRY__TRAINER__V1__GIVEN__INIT;
    Skerry__Trainer__V1__Done done = SKERRY__TRAINER__V1__DONE__INIT;
    from_trainer m = SKERRY__TRAINER__V1__FROM_TRAINER__INIT;
    m.what_case = SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_GIVEN;
    m.given = &given;
    say(fd, &m);
    m.what_case = SKERRY__TRAINER__V1__FROM_TRAINER__WHAT_DONE;
    m.done = &done;
    say(fd, &m);
}

static void nothing(int fd)
{
}

static void a_whole_phase(int fd)
{
    say_hello(fd);
    say_progress(fd);
    say_given_and_done(fd);
}

static void half_a_phase(int fd)
{
    say_hello(fd);
    say_progress(fd);
}

static int open_trainer(void (*speaks)(int fd), bool stays, struct external **ret, struct err *err)
{
    static const struct job_trainer job = {.command = (char *)(uintptr_t) "puppet"};
    static const struct tensors_cut cut = {.n_levels = 1};
    const struct external_options opt = {.job = &job,
                                         .cut = &cut,
                                         .folder = "/",
                                         .hello_ms = HELLO_MS,
                                         .stopped = stopped,
                                         .goes_on = goes_on};
    puppet_speaks = speaks;
    puppet_stays = stays;
    taken_back = false;
    return external_open(&opt, ret, err);
}

static void says_no_hello(void **state)
{
    struct external *x = NULL;
    const uint64_t begun_ms = clock_now_ms();
    FAILS(open_trainer(nothing, true, &x, err), "the trainer said no hello within 1 s");
    assert_true(clock_now_ms() - begun_ms >= HELLO_MS);
    FAILS(open_trainer(nothing, false, &x, err), "the trainer ended; it wrote nothing");
    FAILS(open_trainer(say_progress, true, &x, err), "the trainer's first message is no hello");
    assert_null(x);
}

/* That is the machine's failure, not the trainer's: a larger one may do the task. */
static void lacks_memory(void **state)
{
    struct external *x = NULL;
    struct err e = {0};
    assert_int_equal(open_trainer(say_failed, true, &x, &e), -ERR_TRAINER);
    failed.memory = true;
    assert_int_equal(open_trainer(say_failed, true, &x, &e), -ENOMEM);
    assert_string_equal(e.msg, "the trainer gave up: too much; it wrote nothing");
    assert_int_equal(open_trainer(nothing, false, &x, &e), -ERR_TRAINER);
    puppet_lacked_memory = true;
    assert_int_equal(open_trainer(nothing, false, &x, &e), -ENOMEM);
    puppet_lacked_memory = false;
}

static void has_too_many_processes(void **state)
{
    struct external *x = NULL;
    puppet_processes = 4097;
    FAILS(open_trainer(nothing, true, &x, err), "the trainer has 4097 processes, more than 4096");
    /* Also where it always has something to say. */
    FAILS(open_trainer(a_whole_phase, true, &x, err),
          "the trainer has 4097 processes, more than 4096");
    puppet_processes = 4096;
    FAILS(open_trainer(nothing, true, &x, err), "the trainer said no hello within 1 s");
    puppet_processes = 0;
}

/* ---- orders ---- */

enum gives { GIVES_NOT, GIVES, IS_STOPPED };

static enum gives gives;
static int gave;
static struct external *asked;

static int on_progress(void *arg, const Skerry__Trainer__V1__Progress *p, struct err *err)
{
    if (gives == GIVES_NOT)
        return 0;
    taken_back = gives == IS_STOPPED; /* as soon as the trainer is to give */
    gave = external_give(asked, 0, err);
    return gave == -ERR_CANCELLED ? 0 : gave;
}

static int ask(struct external *x, bool *ret_alive, struct err *err)
{
    const struct external_events ev = {.progress = on_progress, .stopped = stopped};
    Skerry__Trainer__V1__FromWorker m = SKERRY__TRAINER__V1__FROM_WORKER__INIT;
    Skerry__Trainer__V1__Phase phase = SKERRY__TRAINER__V1__PHASE__INIT;
    struct external_done done = {.passed = -1};
    m.what_case = SKERRY__TRAINER__V1__FROM_WORKER__WHAT_PHASE;
    m.phase = &phase;
    asked = x;
    const int rc = external_ask(x, &m, -1, &ev, &done, ret_alive, err);
    external_done_release(&done);
    return rc;
}

/* A task that is taken back while the trainer is to give is left at once, and the trainer, which
 * gives all the same, may be asked again. */
static void is_stopped_while_it_gives(void **state)
{
    struct external *x;
    bool alive = false;
    gives = GIVES;
    OK(open_trainer(a_whole_phase, true, &x, err));
    OK(ask(x, &alive, err));
    assert_true(gave == 0 && alive);
    external_close(x);
    gives = IS_STOPPED;
    OK(open_trainer(a_whole_phase, true, &x, err));
    FAILS(ask(x, &alive, err), "the task was taken back");
    assert_true(gave == -ERR_CANCELLED && alive);
    external_close(x);
}

static void says_something_else(void **state)
{
    struct external *x;
    bool alive = true;
    gives = GIVES_NOT;
    OK(open_trainer(a_whole_phase, true, &x, err));
    FAILS(ask(x, &alive, err), "which has no place here"); /* Given, which nobody asked for */
    assert_false(alive);
    external_close(x);
    gives = GIVES;
    OK(open_trainer(half_a_phase, false, &x, err));
    FAILS(ask(x, &alive, err), "the trainer ended; it wrote nothing");
    external_close(x);
}

static bool ends_alone(void *arg)
{
    int *looks = arg;
    puppet_over = true;
    return ++*looks > 20;
}

/* What it has started holds its socket; what it said before its end is heard. */
static void ends_but_its_children_stay(void **state)
{
    const Skerry__Trainer__V1__FromWorker m = SKERRY__TRAINER__V1__FROM_WORKER__INIT;
    int looks = 0;
    const struct external_events ev = {
        .progress = on_progress, .stopped = ends_alone, .arg = &looks};
    struct external_done done = {.passed = -1};
    struct external *x;
    bool alive = true;
    gives = GIVES;
    OK(open_trainer(a_whole_phase, true, &x, err));
    asked = x;
    OK(external_ask(x, &m, -1, &ev, &done, &alive, err));
    external_done_release(&done);
    external_close(x);
    gives = GIVES_NOT;
    OK(open_trainer(half_a_phase, true, &x, err));
    FAILS(external_ask(x, &m, -1, &ev, &done, &alive, err), "the trainer ended; it wrote nothing");
    assert_false(alive);
    external_close(x);
}

static int signs;

static void tells_sign(void *arg)
{
    if (++signs == 2)
        puppet_ends();
}

static bool ends_when_late(void *arg)
{
    if (clock_now_ms() > *(const uint64_t *)arg)
        puppet_ends();
    return false;
}

/* A step may take long: that the trainer is at work is told, and that it is not, is not. */
static void is_long_at_a_step(void **state)
{
    const Skerry__Trainer__V1__FromWorker m = SKERRY__TRAINER__V1__FROM_WORKER__INIT;
    for (int works = 1; works >= 0; works--) {
        uint64_t until = clock_now_ms() + (works ? 60000 : 1500);
        const struct external_events ev = {
            .stopped = ends_when_late, .goes_on = tells_sign, .arg = &until};
        struct external_done done = {.passed = -1};
        struct external *x;
        bool alive;
        signs = 0;
        puppet_busy_ms = works ? 1000 : 1;
        OK(open_trainer(half_a_phase, true, &x, err));
        FAILS(external_ask(x, &m, -1, &ev, &done, &alive, err), "the trainer ended");
        assert_int_equal(signs, works ? 2 : 0);
        external_close(x);
    }
    puppet_busy_ms = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_no_hello),
        cmocka_unit_test(lacks_memory),
        cmocka_unit_test(has_too_many_processes),
        cmocka_unit_test(is_stopped_while_it_gives),
        cmocka_unit_test(is_long_at_a_step),
        cmocka_unit_test(says_something_else),
        cmocka_unit_test(ends_but_its_children_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
