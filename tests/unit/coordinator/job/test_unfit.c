/* Workers that cannot: no memory for a task, a device that breaks.  A whole coordinator (rig.h). */
#include "tests/unit/coordinator/rig.h"

#include "coordinator/job/draw.h"

static void fail_with(struct rig *r, struct fake *w, Skerry__V1__Failure why, const char *reason)
{
    struct result x;
    begin_result(&x, w->task, NULL);
    x.m.failed = x.m.retryable = true;
    x.m.failure = why;
    x.m.reason = (char *)(uintptr_t)reason;
    assert_true(report(r, w, &x));
}

#define TOO_SMALL SKERRY__V1__FAILURE__FAILURE_MEMORY
#define BROKEN SKERRY__V1__FAILURE__FAILURE_DEVICE

/* Nothing for w within this long: what it is told. */
static void nothing(struct rig *r, struct fake *w, const char *why)
{
    ask(r, w, 1);
    assert_null(got(r, w));
    if (!strstr(w->assigned->waiting_for, why))
        fail_msg("told \"%s\", expected \"%s\"", w->assigned->waiting_for, why);
}

struct seen {
    char text[4096];
};

static void see(void *arg, const struct view_waiting *v)
{
    struct seen *s = arg;
    size_t at = strlen(s->text);
    (void)snprintf(s->text + at, sizeof(s->text) - at, "%s: %s\n", v->what, v->why);
}

static void expect_waiting(struct rig *r, uint64_t job, const char *text)
{
    struct seen s = {{0}};
    view_each_waiting(r->co, job, see, &s);
    if (!strstr(s.text, text))
        fail_msg("\"%s\" is not in\n%s", text, s.text);
}

/* What is too large for one worker goes to another and counts for nothing. */
static void test_larger_worker(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    const struct task *t = state_task(&r->co->state, assign(r, a, TASK_TRAIN)->id);
    fail_with(r, a, TOO_SMALL, "needs 3 GiB on cpu");
    assert_int_equal(t->state, TASK_PENDING);
    assert_int_equal(t->failures, 0);
    assert_int_equal(state_worker(&r->co->state, a->id)->tasks_failed, 0);
    nothing(r, a, "needs more memory or disk than this worker has");
    assert_int_equal(assign(r, b, TASK_TRAIN)->id, t->id);
    finish_train(r, b);
    finish_train(r, (assign(r, b, TASK_TRAIN), b));
    assert_int_equal(j->state, JOB_RUNNING);
    /* A new process of it may have another device. */
    a->instance[0]++;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    while (j->n_rounds == 0)
        loop_turn(r->loop, true);
    assign(r, a, TASK_TRAIN);
}

/* When the one that can has gone, a job that has begun waits for it, and says so. */
static void test_begun_job_waits(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    for (int i = 0; i < 2; i++) {
        assign(r, a, TASK_TRAIN);
        finish_train(r, a);
    }
    while (j->n_rounds == 0)
        loop_turn(r->loop, true);
    const struct task *t = state_task(&r->co->state, assign(r, a, TASK_TRAIN)->id);
    fail_with(r, a, TOO_SMALL, "needs 3 GiB on cpu");
    assert_int_equal(t->failures, 0);
    nothing(r, a, "needs more memory");
    expect_waiting(r, j->id, "no worker here has the memory: needs 3 GiB on cpu");
}

/* A job that the only worker there is could never begin is stalled with the worker's sentence; a
 * person's own swarm ends it when the worker has said so twice. */
static void nobody_fits(struct rig *r, bool local)
{
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    const struct task *t = state_task(&r->co->state, assign(r, a, TASK_TRAIN)->id);
    fail_with(r, a, TOO_SMALL, "needs 3 GiB on cpu");
    assert_int_equal(j->state, JOB_RUNNING);
    expect_waiting(r, j->id, "needs 3 GiB on cpu");
    edit_worker(r, a->id)->n_small = 0; /* as if its time had passed */
    for (size_t k = 0; k < r->co->state.n_tasks; k++) {
        struct task *other = edit_task(r, r->co->state.tasks[k]->id);
        other->not_before_ms = other == t ? 0 : UINT64_MAX;
    }
    edit_task(r, t->id)->failed.at[0].until_ms = 0;
    edit_task(r, t->id)->failed.at[0].lasting_ms -= FAILURE_ALONE_MS;
    assert_int_equal(assign(r, a, TASK_TRAIN)->id, t->id);
    r->co->opt.local = local;
    fail_with(r, a, TOO_SMALL, "needs 3 GiB on cpu");
    if (!local) {
        expect_waiting(r, j->id, "needs 3 GiB on cpu (the fault may be this machine's");
        assert_int_equal(j->state, JOB_RUNNING);
        return;
    }
    assert_int_equal(j->state, JOB_FAILED);
    assert_non_null(strstr(j->reason, "needs 3 GiB on cpu"));
    assert_int_equal(state_worker(&r->co->state, a->id)->strikes, 0);
}

static void test_nobody_fits(void **state)
{
    nobody_fits(*state, false);
    assert_int_equal(end(state), 0);
    assert_int_equal(begin(state), 0);
    nobody_fits(*state, true);
}

/* Where others are known they may come back: too little memory never ends the job, and a worker is
 * asked ever more seldom. */
static void test_all_too_small(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    uint64_t last = 0;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, &r->workers[1], SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    edit_worker(r, r->workers[1].id)->state = WORKER_LEFT;
    for (int i = 0; i < 20; i++) {
        assign(r, a, TASK_TRAIN);
        const uint64_t now = core_now(r->co);
        fail_with(r, a, TOO_SMALL, "needs 3 GiB on cpu");
        struct worker *w = edit_worker(r, a->id);
        assert_int_equal(w->n_small, 1);
        assert_true(w->small[0].until_ms - now >= last);
        last = w->small[0].until_ms - core_now(r->co);
        w->small[0].until_ms = 0;
    }
    assert_true(last > 25 * 60 * 1000 && last <= 30 * 60 * 1000);
    assert_int_equal(j->state, JOB_RUNNING);
}

/* Of a trainer, a person who waits for `skerry run` is told after five times. */
static void test_trainer_lacks_memory(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, &r->workers[1], SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    edit_worker(r, r->workers[1].id)->state = WORKER_LEFT;
    edit_worker(r, a->id)->allows_trainers = true;
    j->spec.model.type = JOB_MODEL_EXTERNAL;
    r->co->opt.local = true;
    const uint64_t id = assign(r, a, TASK_TRAIN)->id;
    for (int i = 1; i < TASK_FAILURES_MAX; i++) {
        fail_with(r, a, TOO_SMALL, "MemoryError");
        assert_int_equal(j->state, JOB_RUNNING);
        edit_worker(r, a->id)->small[0].until_ms = 0; /* as if its time had passed */
        edit_task(r, id)->failed = (struct failure_list){0};
        for (size_t k = 0; k < r->co->state.n_tasks; k++) {
            struct task *other = edit_task(r, r->co->state.tasks[k]->id);
            other->not_before_ms = other->id == id ? 0 : UINT64_MAX;
        }
        assert_int_equal(assign(r, a, TASK_TRAIN)->id, id);
    }
    fail_with(r, a, TOO_SMALL, "MemoryError");
    wait_state(r, j->id, JOB_FAILED);
    assert_non_null(strstr(j->reason, "MemoryError"));
}

/* What the training can do without ends when the last one here has no memory for it, with all that
 * take as much, and no more are made: the end of the job does not wait for them.  A person's
 * request does not end with them. */
static void test_aside_for_nobody(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    for (int i = 0; i < 4; i++) {
        assign(r, a, TASK_TRAIN);
        finish_train(r, a);
    }
    wait_state(r, j->id, JOB_FINISHING);
    const struct task *t = state_task(&r->co->state, assign(r, a, TASK_EVAL)->id);
    fail_with(r, a, TOO_SMALL, "needs 3 GiB on cpu");
    assert_int_equal(t->state, TASK_PENDING);
    assert_int_equal(assign(r, b, TASK_EVAL)->id, t->id);
    const struct task *other = draw_eval(r->co, j, 0, 2);
    fail_with(r, b, TOO_SMALL, "needs 2 GiB on cpu");
    assert_int_equal(t->state, TASK_FAILED);
    assert_string_equal(t->reason, "it is too large for every worker here: needs 2 GiB on cpu");
    assert_int_equal(other->state, TASK_FAILED);
    assert_null(draw_eval(r->co, j, 0, 2));
    assign(r, a, TASK_SAMPLE);
    fail_with(r, a, TOO_SMALL, "needs 3 GiB on cpu");
    t = state_task(&r->co->state, assign(r, b, TASK_SAMPLE)->id);
    const struct task *asked = draw_sample(r->co, j, 0, 2, &(struct draw_request){.ema = -1});
    fail_with(r, b, TOO_SMALL, "needs 3 GiB on cpu");
    assert_int_equal(t->state, TASK_FAILED);
    assert_int_equal(asked->state, TASK_PENDING); /* a person's waits for another worker */
    assert_int_equal(view_task_cancel(r->co, asked->id, NULL), 0);
    wait_state(r, j->id, JOB_DONE);
}

/* A device that broke costs its task nothing: another worker has it at once. */
static void test_broken_device(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    for (int i = 0; i < TASK_FAILURES_MAX + 1; i++) {
        struct fake *w = i % 2 ? b : a;
        struct task *t = edit_task(r, assign(r, w, TASK_TRAIN)->id);
        fail_with(r, w, BROKEN, "device cuda:0 failed: unspecified launch failure");
        assert_int_equal(t->failures, 0);
        assert_int_equal(t->not_before_ms, 0);
        assert_true(failure_until(&t->failed, w->id, STANDING_NEW) > core_now(r->co));
        assert_non_null(strstr(t->reason, "launch failure"));
        if (w == b) /* as if time had passed for the first */
            t->failed = (struct failure_list){0};
    }
    assert_int_equal(j->state, JOB_RUNNING);
    assert_int_equal(state_worker(&r->co->state, a->id)->device_failures, 3);
    assert_int_equal(state_worker(&r->co->state, a->id)->strikes, 0);
    assign(r, b, TASK_TRAIN);
    finish_train(r, b);
}

/* A release that would take a cascade's tasks for others gets none, and people are told. */
static void test_older_release(void **state)
{
    static const char spec[] = "name: cascade\nseed: 3\ndata: {path: x, image_size: 16}\n"
                               "model: {patch: 4, dim: 32, depth: 1, heads: 2}\n"
                               "upscaler: {low_side: 8}\ntrain: {batch: 4}\n"
                               "recipe: {name: ddm, experts: 2}\n"
                               "outer: {rounds: 2, steps: 2}\n";
    struct rig *r = *state;
    struct fake *old = &r->workers[0], *new = &r->workers[1];
    old->old = true;
    assert_int_equal(join(r, old, SKERRY_VERSION), 0);
    const uint64_t id = submit_spec(r, spec);
    nothing(r, old, "needs a worker of a newer release");
    expect_waiting(r, id, "all workers here are of an older release");
    assert_int_equal(join(r, new, SKERRY_VERSION), 0);
    (void)assign(r, new, TASK_INIT);
    nothing(r, old, "needs a worker of a newer release");
    old->old = false;
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_larger_worker, begin, end),
        cmocka_unit_test_setup_teardown(test_begun_job_waits, begin, end),
        cmocka_unit_test_setup_teardown(test_nobody_fits, begin, end),
        cmocka_unit_test_setup_teardown(test_all_too_small, begin, end),
        cmocka_unit_test_setup_teardown(test_trainer_lacks_memory, begin, end),
        cmocka_unit_test_setup_teardown(test_aside_for_nobody, begin, end),
        cmocka_unit_test_setup_teardown(test_broken_device, begin, end),
        cmocka_unit_test_setup_teardown(test_older_release, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
