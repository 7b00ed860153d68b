/* A turn: what waits for a commit leaves after it, in order, and not at all while it fails.  A
 * whole coordinator (rig.h). */
#include "coordinator/turn.h"
#include "tests/unit/coordinator/rig.h"

#include <signal.h>
#include <sys/resource.h>

/* What was called, in order: r a reply, d a durable. */
static char called[16];
static int said; /* the rc that the last durable was told */

static void note(char what)
{
    size_t n = strlen(called);
    assert_true(n + 1 < sizeof(called));
    called[n] = what;
    called[n + 1] = '\0';
}

static void send_reply(struct coordinator *co, struct reply *r)
{
    note('r');
}

static void on_durable(void *arg, int rc)
{
    note('d');
    said = rc;
}

static void on_second(void *arg, int rc)
{
    note('e');
}

/* Asks for one more. */
static void ask_again(void *arg, int rc)
{
    note('a');
    core_when_durable(arg, on_durable, NULL);
}

static void queue(struct coordinator *co)
{
    memset(called, 0, sizeof(called));
    said = 1;
    core_when_durable(co, on_durable, NULL);
    core_when_durable(co, on_second, NULL);
    (void)core_reply(co, NULL, send_reply);
    (void)core_reply(co, NULL, send_reply);
}

/* Takes the turns that were asked for. */
static void settle(struct rig *r)
{
    do
        loop_turn(r->loop, false);
    while (r->co->turn_scheduled);
}

/* The tests take turns themselves; those that the loop still has come before the end. */
static int settle_end(void **state)
{
    settle(*state);
    return end(state);
}

/* Replies go before callbacks, whatever was queued first. */
static void test_order(void **state)
{
    struct rig *r = *state;
    queue(r->co);
    assert_true(r->co->turn_scheduled);
    assert_int_equal(r->co->n_replies, 2);
    assert_string_equal(called, "");
    turn(r->co);
    assert_string_equal(called, "rrde");
    assert_int_equal(said, 0);
    assert_int_equal(r->co->n_replies, 0);
    turn(r->co); /* once each */
    assert_string_equal(called, "rrde");
}

/* What a callback asks for is durable after the next commit, not after this one. */
static void test_next_commit(void **state)
{
    struct rig *r = *state;
    memset(called, 0, sizeof(called));
    core_when_durable(r->co, ask_again, r->co);
    turn(r->co);
    assert_string_equal(called, "a");
    assert_true(r->co->turn_scheduled);
    turn(r->co);
    assert_string_equal(called, "ad");
}

/* All that a turn has changed is one commit; without a change there is none. */
static void test_one_commit(void **state)
{
    struct rig *r = *state;
    turn(r->co);
    uint64_t before = store_commits(r->co->store);
    turn(r->co);
    assert_int_equal(store_commits(r->co->store), before);
    submit(r);
    submit(r);
    turn(r->co);
    assert_int_equal(store_commits(r->co->store), before + 1);
}

/* While nothing can be written nothing advances; a commit that goes well ends that. */
static void test_not_writable(void **state)
{
    struct rig *r = *state;
    struct job *j = state_job(&r->co->state, submit(r));
    r->co->store_ok = false;
    (void)str_copy(r->co->store_error, sizeof(r->co->store_error), "no room");
    queue(r->co);
    assert_int_equal(j->state, JOB_PENDING);
    turn(r->co); /* the commit itself goes well */
    assert_int_equal(j->state, JOB_PENDING);
    assert_true(r->co->store_ok);
    assert_string_equal(r->co->store_error, "");
    assert_string_equal(called, "rrde");
    turn(r->co);
    assert_int_equal(j->state, JOB_INITIALISING);
}

/* A commit that fails keeps all that waits for it, and is tried again. */
static void test_failed(void **state)
{
    struct rig *r = *state;
    struct coordinator *co = r->co;
    struct rlimit was, tight;
    settle(r);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    tight = (struct rlimit){.rlim_cur = 0, .rlim_max = was.rlim_max};
    uint64_t job = submit(r);
    queue(co);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    settle(r);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_false(co->store_ok);
    assert_true(co->store_error[0] != '\0');
    assert_string_equal(called, "");
    assert_int_equal(co->n_replies, 2);
    enum job_state then = state_job(&co->state, job)->state;
    uint64_t until = clock_now_ms() + DEADLINE_MS;
    while (!co->store_ok) { /* nobody asks for it */
        assert_true(clock_now_ms() < until);
        assert_int_equal(state_job(&co->state, job)->state, then);
        loop_turn(r->loop, true);
    }
    assert_string_equal(called, "rrde");
}

/* The optimiser's state of a job goes when its end is on record: until then a restart goes on with
 * the job. */
static void test_end_not_written(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct rlimit was, tight;
    char *outer = fx_path(&r->f, "outer/1");
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    const uint64_t job = submit(r);
    do_init(r, a);
    for (int i = 0; i < 2; i++) {
        assign(r, a, TASK_TRAIN);
        finish_train(r, a);
    }
    while (state_job(&r->co->state, job)->modules[0].version == 0 && clock_now_ms() < until)
        loop_turn(r->loop, true);
    settle(r);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    tight = (struct rlimit){.rlim_cur = 0, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    assert_int_equal(view_job_cancel(r->co, job, NULL), 0);
    settle(r);
    while (pool_pending(r->co->disk) > 0)
        loop_turn(r->loop, true);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_false(r->co->store_ok);
    assert_true(file_is_dir(outer));
    while (file_is_dir(outer) && clock_now_ms() < until)
        loop_turn(r->loop, true);
    assert_true(r->co->store_ok);
    assert_false(file_is_dir(outer));
    mem_free(outer);
}

static void test_closing(void **state)
{
    struct rig *r = *state;
    struct job *j = state_job(&r->co->state, submit(r));
    queue(r->co);
    r->co->closing = true;
    turn(r->co);
    assert_string_equal(called, "");
    assert_int_equal(j->state, JOB_PENDING);
    r->co->closing = false;
    turn(r->co);
    assert_string_equal(called, "rrde");
}

#define LIVE(test) cmocka_unit_test_setup_teardown(test, begin, settle_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LIVE(test_order),        LIVE(test_next_commit), LIVE(test_one_commit),
        LIVE(test_not_writable), LIVE(test_failed),      LIVE(test_end_not_written),
        LIVE(test_closing),
    };
    (void)signal(SIGXFSZ, SIG_IGN);
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
