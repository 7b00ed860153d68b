/* Reports of workers that fail, lie or give up: none of them ends a job.  A whole coordinator
 * (rig.h). */
#include "tests/unit/coordinator/rig.h"

#include <malloc.h>

#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"

static struct job *begun(struct rig *r)
{
    for (int i = 0; i < 3; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, &r->workers[0]);
    return j;
}

static bool fail_task(struct rig *r, struct fake *w, bool retryable, Skerry__V1__Failure why)
{
    struct result x;
    begin_result(&x, w->task, NULL);
    x.m.failed = true;
    x.m.retryable = retryable;
    x.m.failure = why;
    x.m.reason = (char *)(uintptr_t) "it is broken";
    return report(r, w, &x);
}

static bool stalled(struct rig *r, const struct job *j, const char *why)
{
    struct view_job v;
    assert_int_equal(view_job(r->co, j->id, &v, NULL), 0);
    if (v.stalled[0] != '\0' && !strstr(v.stalled, why))
        fail_msg("stalled: \"%s\", expected \"%s\"", v.stalled, why);
    return v.stalled[0] != '\0';
}

/* As if time had passed for everybody who waits. */
static void see_failures(void *arg, const struct view_waiting *v)
{
    *(bool *)arg |= strstr(v->why, "times, at last: it is broken") != NULL;
}

static void forgive(struct rig *r, uint64_t task)
{
    struct task *t = edit_task(r, task);
    for (unsigned i = 0; i < FAILURES_MAX; i++)
        t->failed.at[i].until_ms = 0;
    t->not_before_ms = 0;
    for (int i = 0; i < 3; i++)
        edit_worker(r, r->workers[i].id)->quarantined_until_ms = 0;
}

/* Holds the tasks that w is not to get. */
static uint64_t only_task(struct rig *r, struct fake *w)
{
    const uint64_t id = assign(r, w, TASK_TRAIN)->id;
    for (size_t i = 0; i < r->co->state.n_tasks; i++)
        if (r->co->state.tasks[i]->id != id)
            edit_task(r, r->co->state.tasks[i]->id)->not_before_ms = UINT64_MAX;
    return id;
}

/* "Nobody can do this", said by one, stalls the job; a healthy worker goes on with it. */
static void test_one_word(void **state)
{
    struct rig *r = *state;
    struct fake *evil = &r->workers[0], *good = &r->workers[1];
    struct job *j = begun(r);
    const uint64_t id = only_task(r, evil);
    for (int i = 0; i < 20; i++) {
        assert_true(fail_task(r, evil, false, SKERRY__V1__FAILURE__FAILURE_TASK));
        assert_int_equal(j->state, JOB_RUNNING);
        assert_null(j->doom);
        assert_true(stalled(r, j, "it is broken"));
        forgive(r, id);
        edit_task(r, id)->failed.at[0].lasting_ms = 1; /* long ago */
        assert_int_equal(assign(r, evil, TASK_TRAIN)->id, id);
        bool told = false; /* also while it is tried again */
        view_each_waiting(r->co, j->id, see_failures, &told);
        assert_int_equal(told, i > 0);
    }
    assert_true(fail_task(r, evil, false, SKERRY__V1__FAILURE__FAILURE_TASK));
    assert_int_equal(assign(r, good, TASK_TRAIN)->id, id); /* at once */
    finish_train(r, good);
    assert_int_equal(state_task(&r->co->state, id)->state, TASK_DONE);
    assert_false(stalled(r, j, ""));
}

/* The last loss is not lost by one who says that nobody can have it. */
static void test_aside(void **state)
{
    struct rig *r = *state;
    struct fake *evil = &r->workers[0], *good = &r->workers[1];
    struct job *j = begun(r);
    for (int i = 0; i < 4; i++) {
        assign(r, good, TASK_TRAIN);
        finish_train(r, good);
    }
    wait_state(r, j->id, JOB_FINISHING);
    const uint64_t id = assign(r, evil, TASK_EVAL)->id;
    assert_true(fail_task(r, evil, false, SKERRY__V1__FAILURE__FAILURE_TASK));
    assert_int_equal(j->state, JOB_FINISHING);
    finish_job(r, good);
    wait_state(r, j->id, JOB_DONE);
    assert_int_equal(state_task(&r->co->state, id)->state, TASK_DONE);
}

/* Nobody else is here: the job waits for somebody, however long the others are gone, unless the
 * worker is its user's own, who waits. */
static void test_the_others_are_gone(void **state)
{
    struct rig *r = *state;
    struct fake *evil = &r->workers[0];
    struct job *j = begun(r);
    const uint64_t id = only_task(r, evil);
    for (int i = 1; i < 3; i++)
        edit_worker(r, r->workers[i].id)->state = WORKER_LEFT;
    for (int i = 0; i < 3; i++) {
        assert_true(fail_task(r, evil, false, SKERRY__V1__FAILURE__FAILURE_TASK));
        assert_int_equal(j->state, JOB_RUNNING);
        assert_true(stalled(r, j,
                            "it is broken (the fault may be this machine's: the job waits for "
                            "a worker on another one, start one)"));
        for (int k = 1; k < 3; k++)
            edit_worker(r, r->workers[k].id)->heard_ms -= 3600000; /* also below 0: long ago */
        forgive(r, id);
        edit_task(r, id)->failed.at[0].lasting_ms = 1; /* long ago */
        assert_int_equal(assign(r, evil, TASK_TRAIN)->id, id);
    }
    r->co->opt.local = true;
    assert_true(fail_task(r, evil, false, SKERRY__V1__FAILURE__FAILURE_TASK));
    wait_state(r, j->id, JOB_FAILED);
}

/* What helps is not cut off where the reason is long. */
static void test_long_reason(void **state)
{
    struct rig *r = *state;
    struct coordinator *co = r->co;
    char reason[REASON_MAX], what[REASON_MAX];
    struct job *j = begun(r);
    const uint64_t id = only_task(r, &r->workers[0]);
    for (int i = 1; i < 3; i++)
        edit_worker(r, r->workers[i].id)->state = WORKER_LEFT;
    for (size_t n = 1; n < sizeof(reason); n++) {
        struct task *t = edit_task(r, id);
        memset(reason, 'x', n);
        reason[n] = '\0';
        t->worker_id = r->workers[0].id;
        task_failed(co, t, FAULT_LASTING, reason);
        assert_true(query_stalled(&co->state, j, what));
        assert_int_equal(what[strlen(what) - 1], ')');
        assert_non_null(strstr(what, "start "));
    }
}

/* Nor do two workers of one machine end it. */
static void test_one_machine(void **state)
{
    struct rig *r = *state;
    struct job *j = begun(r);
    const uint64_t id = only_task(r, &r->workers[0]);
    for (int i = 0; i < 2; i++)
        edit_worker(r, r->workers[i].id)->machine = 5;
    edit_worker(r, r->workers[2].id)->state = WORKER_LEFT;
    for (int i = 0; i < 4; i++) {
        assert_true(fail_task(r, &r->workers[i % 2], false, SKERRY__V1__FAILURE__FAILURE_TASK));
        assert_int_equal(j->state, JOB_RUNNING);
        assert_true(stalled(r, j, "the job waits for a worker on another one"));
        forgive(r, id);
        assert_int_equal(assign(r, &r->workers[(i + 1) % 2], TASK_TRAIN)->id, id);
    }
    edit_worker(r, r->workers[2].id)->state = WORKER_HERE;
    assert_true(fail_task(r, &r->workers[0], false, SKERRY__V1__FAILURE__FAILURE_TASK));
    assert_true(stalled(r, j, "it is broken (another worker is asked)"));
    assert_int_equal(assign(r, &r->workers[2], TASK_TRAIN)->id, id);
    assert_true(fail_task(r, &r->workers[2], false, SKERRY__V1__FAILURE__FAILURE_TASK));
    wait_state(r, j->id, JOB_FAILED);
}

/* A second one confirms it. */
static void test_two_words(void **state)
{
    struct rig *r = *state;
    struct job *j = begun(r);
    const uint64_t id = only_task(r, &r->workers[0]);
    assert_true(fail_task(r, &r->workers[0], false, SKERRY__V1__FAILURE__FAILURE_TASK));
    assert_int_equal(assign(r, &r->workers[1], TASK_TRAIN)->id, id);
    assert_true(fail_task(r, &r->workers[1], false, SKERRY__V1__FAILURE__FAILURE_TASK));
    wait_state(r, j->id, JOB_FAILED);
    assert_non_null(strstr(j->reason, "it is broken"));
}

/* A machine that comes back under other names does not confirm itself. */
static void test_other_names(void **state)
{
    struct rig *r = *state;
    struct fake *evil = &r->workers[0];
    struct job *j = begun(r);
    const uint64_t id = only_task(r, evil);
    for (uint8_t i = 0; i < 6; i++) {
        assert_true(fail_task(r, evil, false, SKERRY__V1__FAILURE__FAILURE_TASK));
        evil->identity[0] = evil->instance[0] = (uint8_t)(70 + i);
        assert_int_equal(join(r, evil, SKERRY_VERSION), 0);
        forgive(r, id);
        assert_int_equal(assign(r, evil, TASK_TRAIN)->id, id);
        assert_int_equal(j->state, JOB_RUNNING);
    }
    finish_train(r, evil);
    assert_int_equal(state_task(&r->co->state, id)->state, TASK_DONE);
}

/* Failures of a task, however many and by whomever, end nothing and leave nothing. */
static void test_many_failures(void **state)
{
    struct rig *r = *state;
    struct job *j = begun(r);
    const uint64_t id = only_task(r, &r->workers[0]);
    size_t held = 0;
    for (int i = 0; i < 1000; i++) {
        struct fake *w = &r->workers[i % 3];
        if (i == 100)
            held = mallinfo2().uordblks;
        if (i > 0)
            assert_int_equal(assign(r, w, TASK_TRAIN)->id, id);
        assert_true(fail_task(r, w, true, SKERRY__V1__FAILURE__FAILURE_TASK));
        assert_int_equal(j->state, JOB_RUNNING);
        assert_int_equal(stalled(r, j, "it is broken"), i + 1 >= TASK_FAILURES_MAX);
        forgive(r, id);
    }
    const size_t now = mallinfo2().uordblks; /* a sanitizer says 0 */
    print_message("900 failures more hold %zd bytes more\n", (ssize_t)(now - held));
    assert_true(now <= held + (1u << 20));
    assert_int_equal(assign(r, &r->workers[1], TASK_TRAIN)->id, id);
    assert_false(stalled(r, j, ""));
    finish_train(r, &r->workers[1]);
}

/* What the network, or a full disk elsewhere, has done is nobody's failure. */
static void test_network(void **state)
{
    struct rig *r = *state;
    struct job *j = begun(r);
    const uint64_t id = only_task(r, &r->workers[0]);
    for (int i = 0; i < 10; i++) {
        assert_true(fail_task(r, &r->workers[0], true, SKERRY__V1__FAILURE__FAILURE_NETWORK));
        assert_int_equal(state_worker(&r->co->state, r->workers[0].id)->tasks_failed, 0);
        forgive(r, id);
        assert_int_equal(assign(r, &r->workers[0], TASK_TRAIN)->id, id);
    }
    assert_int_equal(state_worker(&r->co->state, r->workers[0].id)->strikes, 0);
    assert_int_equal(j->state, JOB_RUNNING);
}

static bool report_bad(struct rig *r, struct fake *w, uint32_t count)
{
    struct result x;
    struct blob_ref blob = contribute(r, w->task, w->task->id, 0.01f);
    begin_result(&x, w->task, &blob);
    x.m.bad_count = count;
    return report(r, w, &x);
}

/* A count above data.max_bad is a claim like any other; below it a task has at most as many as it
 * has samples. */
static void test_bad_count(void **state)
{
    struct rig *r = *state;
    struct job *j = begun(r);
    j->spec.data.max_bad = 7;
    const uint64_t id = only_task(r, &r->workers[0]);
    assert_false(report_bad(r, &r->workers[0], 4000000000u)); /* held: 8 */
    assert_non_null(strstr(r->workers[0].detail, "samples that cannot be read: 8; data.max_bad"));
    assert_int_equal(j->state, JOB_RUNNING);
    assert_int_equal(j->bad_count, 0);
    assert_true(stalled(r, j, "data.max_bad"));
    assert_int_equal(assign(r, &r->workers[1], TASK_TRAIN)->id, id);
    assert_true(report_bad(r, &r->workers[1], 2));
    assert_int_equal(j->bad_count, 2);
    assert_false(stalled(r, j, ""));
    j->spec.data.max_bad = 100;
    for (size_t i = 0; i < r->co->state.n_tasks; i++)
        edit_task(r, r->co->state.tasks[i]->id)->not_before_ms = 0;
    assign(r, &r->workers[2], TASK_TRAIN);
    assert_true(report_bad(r, &r->workers[2], 4000000000u));
    assert_int_equal(j->bad_count, 8);
}

/* As report_bad(), with names: `count` of them from number `first` on. */
static bool report_named(struct rig *r, struct fake *w, unsigned first, unsigned count)
{
    enum { MOST = 8 };
    Skerry__V1__BadSample bad[MOST], *list[MOST];
    char keys[MOST][24];
    struct result x;
    struct blob_ref blob = contribute(r, w->task, w->task->id, 0.01f);
    begin_result(&x, w->task, &blob);
    assert_true(count <= MOST);
    for (unsigned i = 0; i < count; i++) {
        skerry__v1__bad_sample__init(&bad[i]);
        (void)snprintf(keys[i], sizeof(keys[i]), "image-%u", first + i);
        bad[i].key = keys[i];
        bad[i].reason = (char *)(uintptr_t) "cut short";
        list[i] = &bad[i];
    }
    x.m.bad = list;
    x.m.n_bad = x.m.bad_count = count;
    return report(r, w, &x);
}

/* Workers in three places. */
static struct job *begun_apart(struct rig *r, int max_bad)
{
    static const char *const at[] = {"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"};
    struct job *j = begun(r);
    for (int i = 0; i < 3; i++)
        (void)str_copy(edit_worker(r, r->workers[i].id)->address, 64, at[i]);
    j->spec.data.max_bad = max_bad;
    return j;
}

/* What only one place has said counts against the job for nobody else: honest workers that find one
 * sample do not confirm the others. */
static void test_bad_for_one(void **state)
{
    for (int named = 0; named < 2; named++) {
        struct rig *r = *state;
        struct job *j = begun_apart(r, 8);
        struct fake *evil = &r->workers[0], *good = &r->workers[1];
        assign(r, evil, TASK_TRAIN);
        assert_true(named ? report_named(r, evil, 100, 8) : report_bad(r, evil, 8));
        if (named) { /* its own word counts for itself */
            assign(r, evil, TASK_TRAIN);
            assert_false(report_named(r, evil, 200, 1));
        }
        assign(r, good, TASK_TRAIN);
        assert_true(report_named(r, good, 0, 1));
        assert_int_equal(j->bad_count, 9);
        assert_int_equal(end(state), 0);
        assert_int_equal(begin(state), 0);
    }
}

/* What two places have said counts for a third one. */
static void test_bad_for_two(void **state)
{
    struct rig *r = *state;
    struct job *j = begun_apart(r, 6);
    for (int i = 0; i < 2; i++) {
        assign(r, &r->workers[i], TASK_TRAIN);
        assert_true(report_named(r, &r->workers[i], 0, 6));
    }
    assert_int_equal(j->bad_count, 6);
    assign(r, &r->workers[2], TASK_TRAIN);
    assert_false(report_named(r, &r->workers[2], 6, 1));
    assert_non_null(strstr(r->workers[2].detail, "samples that cannot be read: 7; data.max_bad"));
}

/* Those for whose names there is no room count once, too, although every epoch meets them. */
static void test_bad_beyond_names(void **state)
{
    struct rig *r = *state;
    struct job *j = begun_apart(r, 1000000);
    char key[24];
    for (unsigned i = 0; i < JOB_BAD_MAX; i++) {
        (void)snprintf(key, sizeof(key), "other-%u", i);
        assert_true(job_add_bad(j, "", key, "cut short", BAD_SUBMITTED));
    }
    for (int i = 0; i < 3; i++) {
        assign(r, &r->workers[i], TASK_TRAIN);
        assert_true(report_named(r, &r->workers[i], 0, 2));
        assert_int_equal(j->bad_count, 2);
    }
}

/* Each name is looked for among those of the job: a message of a hundred thousand took a second. */
static void test_bad_names(void **state)
{
    static Skerry__V1__BadSample one, *list[65];
    struct rig *r = *state;
    struct job *j = begun(r);
    struct fake *w = &r->workers[0];
    struct result x;
    j->spec.data.max_bad = 1000000;
    skerry__v1__bad_sample__init(&one);
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
        list[i] = &one;
    only_task(r, w);
    struct blob_ref blob = contribute(r, w->task, 1, 0.01f);
    begin_result(&x, w->task, &blob);
    x.m.bad = list;
    x.m.n_bad = sizeof(list) / sizeof(list[0]);
    assert_false(report(r, w, &x));
    assert_non_null(strstr(w->detail, "names 65 samples that cannot be read, expected at most 64"));
}

/* "The job's program failed" spares nobody where the job has none. */
static void test_no_such_program(void **state)
{
    struct rig *r = *state;
    begun(r);
    only_task(r, &r->workers[0]);
    assert_true(fail_task(r, &r->workers[0], true, SKERRY__V1__FAILURE__FAILURE_TRAINER));
    assert_int_equal(edit_worker(r, r->workers[0].id)->failures_row, 1);
}

/* What diverges is the job's fault: its workers train other jobs, and the status says why. */
static void test_diverged(void **state)
{
    struct rig *r = *state;
    struct fake *w = &r->workers[0];
    const struct job *j = begun(r);
    const uint64_t id = only_task(r, w);
    for (int i = 0; i < 6; i++) {
        assert_true(fail_task(r, w, true, SKERRY__V1__FAILURE__FAILURE_DIVERGED));
        edit_task(r, id)->not_before_ms = 0;
        memset(&edit_task(r, id)->failed, 0, sizeof(struct failure_list));
        assert_int_equal(assign(r, w, TASK_TRAIN)->id, id);
    }
    assert_int_equal(state_worker(&r->co->state, w->id)->strikes, 0);
    assert_int_equal(state_worker(&r->co->state, w->id)->failures_row, 0);
    assert_true(fail_task(r, w, true, SKERRY__V1__FAILURE__FAILURE_DIVERGED));
    assert_true(stalled(r, j, "at last: it is broken"));
}

/* The other tasks wait until this one is done. */
static void diverges_for(struct rig *r, struct fake *says, struct fake *does, Skerry__V1__Task *t)
{
    const uint64_t id = t->id;
    assert_true(fail_task(r, says, true, SKERRY__V1__FAILURE__FAILURE_DIVERGED));
    assert_int_equal(assign(r, does, TASK_TRAIN)->id, id);
    finish_train(r, does);
    assert_int_equal(state_task(&r->co->state, id)->state, TASK_DONE);
}

/* It is nobody's fault once, but not what one worker says again and again of phases that others do.
 */
static void test_diverged_for_one(void **state)
{
    struct rig *r = *state;
    struct fake *evil = &r->workers[0], *good = &r->workers[1];
    const struct job *j = begun(r);
    const struct worker *w = state_worker(&r->co->state, evil->id);
    for (unsigned i = 0; i < 3; i++) {
        only_task(r, evil);
        diverges_for(r, evil, good, evil->task);
        assert_int_equal(w->failures_row, i);
        for (size_t k = 0; k < r->co->state.n_tasks; k++)
            edit_task(r, r->co->state.tasks[k]->id)->not_before_ms = 0;
        if (i == 1) { /* the first round ends */
            WAIT_FOR(r, j->paths[0].round > 0);
        }
    }
}

/* Two say so, and a third one has done it: they are wrong if they are one place under two names,
 * and that one is not another of its names. */
static void test_diverged_for_two(void **state)
{
    static const struct {
        const char *second, *third; /* where they are; the first is here */
        unsigned failures;
    } cases[] = {{"10.0.0.2:1", "10.0.0.3:1", 0},
                 {"127.0.0.1:1", "10.0.0.3:1", 1},
                 {"127.0.0.1:1", "127.0.0.1:1", 0}};
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct rig *r = *state;
        begun(r);
        (void)str_copy(edit_worker(r, r->workers[1].id)->address, 64, cases[c].second);
        (void)str_copy(edit_worker(r, r->workers[2].id)->address, 64, cases[c].third);
        const uint64_t id = only_task(r, &r->workers[0]);
        for (int i = 0; i < 2; i++) {
            edit_worker(r, r->workers[i].id)->diverged_alone = 1;
            assert_true(fail_task(r, &r->workers[i], true, SKERRY__V1__FAILURE__FAILURE_DIVERGED));
            assert_int_equal(assign(r, &r->workers[i + 1], TASK_TRAIN)->id, id);
        }
        finish_train(r, &r->workers[2]);
        for (int i = 0; i < 2; i++)
            assert_int_equal(edit_worker(r, r->workers[i].id)->failures_row, cases[c].failures);
        assert_int_equal(end(state), 0);
        assert_int_equal(begin(state), 0);
    }
}

/* A phase of fewer steps than were asked for is none. */
static void test_too_few_steps(void **state)
{
    struct rig *r = *state;
    begun(r);
    struct fake *lazy = &r->workers[0], *good = &r->workers[1];
    const uint64_t id = only_task(r, lazy);
    struct blob_ref blob = contribute(r, lazy->task, id, 0.01f);
    struct result x;
    begin_result(&x, lazy->task, &blob);
    x.m.steps = 1;
    x.m.samples = 4;
    assert_false(report(r, lazy, &x));
    assert_non_null(strstr(lazy->detail, "the phase made only 1 of its 2 steps"));
    assert_int_equal(edit_worker(r, lazy->id)->failures_row, 1);
    assert_int_equal(state_task(&r->co->state, id)->train.n_contributions, 0);
    assert_int_equal(assign(r, good, TASK_TRAIN)->id, id);
    finish_train(r, good);
}

/* A report that is refused for its moments leaves its contribution out, too. */
static void test_refused_whole(void **state)
{
    struct rig *r = *state;
    struct job *j = begun(r);
    const uint64_t id = only_task(r, &r->workers[0]);
    struct blob_ref blob = contribute(r, r->workers[0].task, id, 0.01f);
    Skerry__V1__Blob moments = SKERRY__V1__BLOB__INIT;
    moments.sha256 = (ProtobufCBinaryData){sizeof blob.sha256, blob.sha256};
    moments.size = blob.size + 1;
    j->spec.recipe.moments = JOB_MOMENTS_TRAVEL;
    struct result x;
    begin_result(&x, r->workers[0].task, &blob);
    x.m.moments = &moments;
    assert_false(report(r, &r->workers[0], &x));
    assert_non_null(strstr(r->workers[0].detail, "the file of moments has "));
    assert_int_equal(state_task(&r->co->state, id)->train.n_contributions, 0);
}

/* The schedule of the replica goes on from its steps: a phase has no more of them than it was asked
 * for, whatever is said; and times that nothing takes are not added up. */
static void test_too_many_steps(void **state)
{
    struct rig *r = *state;
    const struct job *j = begun(r);
    struct fake *w = &r->workers[0];
    const Skerry__V1__Task *t = assign(r, w, TASK_TRAIN);
    struct blob_ref blob = contribute(r, t, t->id, 0.01f);
    struct result x;
    begin_result(&x, t, &blob);
    x.m.steps = 7;
    x.m.seconds = 1e38f;
    x.m.waited_ms = UINT64_MAX;
    x.m.steps_ms = 1234;
    assert_true(report(r, w, &x));
    assert_int_equal(state_task(&r->co->state, x.m.task_id)->steps, 2);
    assert_true(state_task(&r->co->state, x.m.task_id)->seconds == 0);
    assert_true(state_task(&r->co->state, x.m.task_id)->train.waited_ms < 1ull << 40);
    assert_int_equal(state_task(&r->co->state, x.m.task_id)->train.steps_ms, 1234);
    assert_int_equal(j->spec.outer.steps, 2);
}

static const char async[] = "name: fake\nseed: 3\n"
                            "data: {path: x, image_size: 16}\n"
                            "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                            "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 2}\n"
                            "outer: {rounds: 4, steps: 2, async: true}\nsample: {count: 4}\n";

/* Without fragments a phase contributes once, at its end: else it could count with every version
 * that others make meanwhile. */
static void test_in_parts(void **state)
{
    static const char *const specs[] = {async, yaml};
    for (size_t i = 0; i < 2; i++) {
        struct rig *r = *state;
        struct fake *w = &r->workers[0];
        struct result x;
        assert_int_equal(join(r, w, SKERRY_VERSION), 0);
        (void)submit_spec(r, specs[i]);
        do_init(r, w);
        const Skerry__V1__Task *t = assign(r, w, TASK_TRAIN);
        struct blob_ref blob = contribute(r, t, t->id, 0.01f);
        begin_result(&x, t, &blob);
        x.m.snapshot = true;
        assert_false(report(r, w, &x));
        assert_non_null(strstr(w->detail, "only a phase in fragments contributes before its end"));
        const struct task *task = state_task(&r->co->state, x.m.task_id);
        assert_int_equal(task->train.n_contributions, 0);
        assert_int_equal(task->state, TASK_LEASED); /* no failure */
        x.m.snapshot = false;
        assert_true(report(r, w, &x));
        assert_int_equal(end(state), 0);
        assert_int_equal(begin(state), 0);
    }
}

static uint64_t skipped(struct rig *r)
{
    struct view_job v;
    assert_int_equal(view_job(r->co, r->co->state.jobs[0]->id, &v, NULL), 0);
    return v.skipped;
}

/* Steps without an update are counted: those of an open phase as its worker tells of them, and for
 * good those of a phase that is done. */
static void test_skipped(void **state)
{
    struct rig *r = *state;
    struct fake *w = &r->workers[0];
    struct result x;
    Skerry__V1__HeartbeatRequest beat = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    Skerry__V1__Progress p = SKERRY__V1__PROGRESS__INIT;
    assert_int_equal(join(r, w, SKERRY_VERSION), 0);
    (void)submit_spec(r, async);
    do_init(r, w);
    const Skerry__V1__Task *t = assign(r, w, TASK_TRAIN);
    p.task_id = t->id;
    p.attempt = t->attempt;
    p.steps_done = 1;
    p.skipped = 7; /* of one step */
    beat.progress = &p;
    assert_int_equal(CALL(r, w, HEARTBEAT, heartbeat, &beat), 0);
    assert_int_equal(skipped(r), 1);
    struct blob_ref blob = contribute(r, t, t->id, 0.01f);
    begin_result(&x, t, &blob);
    x.m.skipped = 2;
    x.m.steps = 2;
    assert_true(report(r, w, &x));
    WAIT_FOR(r, r->co->state.jobs[0]->steps_done == 2);
    assert_int_equal(skipped(r), 2);
    assert_int_equal(state_task(&r->co->state, x.m.task_id)->skipped, 2);
    stop(r);
    start(r);
    assert_int_equal(skipped(r), 2);
    assert_int_equal(state_task(&r->co->state, x.m.task_id)->skipped, 2);
}

/* Nor are those forgotten of a phase that is done and waits for the others of its round. */
static void test_skipped_of_a_round(void **state)
{
    struct rig *r = *state;
    struct fake *w = &r->workers[0];
    struct result x;
    assert_int_equal(join(r, w, SKERRY_VERSION), 0);
    (void)submit_spec(r, yaml);
    do_init(r, w);
    for (uint64_t n = 1; n <= 2; n++) {
        const Skerry__V1__Task *t = assign(r, w, TASK_TRAIN);
        struct blob_ref blob = contribute(r, t, t->id, 0.01f);
        begin_result(&x, t, &blob);
        x.m.skipped = 1;
        assert_true(report(r, w, &x));
        assert_int_equal(skipped(r), n);
    }
    WAIT_FOR(r, r->co->state.jobs[0]->steps_done == 4);
    assert_int_equal(skipped(r), 2);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_word, begin, end),
        cmocka_unit_test_setup_teardown(test_aside, begin, end),
        cmocka_unit_test_setup_teardown(test_two_words, begin, end),
        cmocka_unit_test_setup_teardown(test_the_others_are_gone, begin, end),
        cmocka_unit_test_setup_teardown(test_one_machine, begin, end),
        cmocka_unit_test_setup_teardown(test_long_reason, begin, end),
        cmocka_unit_test_setup_teardown(test_other_names, begin, end),
        cmocka_unit_test_setup_teardown(test_many_failures, begin, end),
        cmocka_unit_test_setup_teardown(test_network, begin, end),
        cmocka_unit_test_setup_teardown(test_in_parts, begin, end),
        cmocka_unit_test_setup_teardown(test_bad_count, begin, end),
        cmocka_unit_test_setup_teardown(test_bad_for_one, begin, end),
        cmocka_unit_test_setup_teardown(test_bad_for_two, begin, end),
        cmocka_unit_test_setup_teardown(test_bad_beyond_names, begin, end),
        cmocka_unit_test_setup_teardown(test_bad_names, begin, end),
        cmocka_unit_test_setup_teardown(test_no_such_program, begin, end),
        cmocka_unit_test_setup_teardown(test_diverged, begin, end),
        cmocka_unit_test_setup_teardown(test_diverged_for_one, begin, end),
        cmocka_unit_test_setup_teardown(test_diverged_for_two, begin, end),
        cmocka_unit_test_setup_teardown(test_too_many_steps, begin, end),
        cmocka_unit_test_setup_teardown(test_too_few_steps, begin, end),
        cmocka_unit_test_setup_teardown(test_refused_whole, begin, end),
        cmocka_unit_test_setup_teardown(test_skipped, begin, end),
        cmocka_unit_test_setup_teardown(test_skipped_of_a_round, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
