/* One task's life: who holds it, its samples, its attempts, and what its failure does to a job. */
#include "coordinator/work/tasks.h"
#include "tests/unit/coordinator/bare.h"

/* Its trainer reads data of its own. */
#define OWN                                                                                        \
    "name: own\ndata: {kind: none}\nmodel: {type: external}\ntrainer: {command: ./t}\n"            \
    "train: {batch: 4}\nrecipe: {replicas: 2}\nouter: {rounds: 3, seconds: 100, async: true}\n"

/* A job over this many samples in shards of 10, with its ledger. */
static struct job *trained(struct coordinator *co, const char *shards)
{
    struct err err = {0};
    struct job *j = add(&co->state, diloco);
    cut(j, shards);
    assert_int_equal(job_make_ledger(j, j->comp.paths[0].partition, &err), 0);
    return j;
}

static struct ledger_epoch figures(const struct job *j)
{
    struct ledger_epoch e;
    ledger_figures(j->ledgers[job_ledger(j, j->comp.paths[0].partition)], 0, &e);
    return e;
}

/* Samples of the ranges that a task has. */
static uint64_t held(const struct task *t)
{
    uint64_t n = 0;
    for (size_t i = 0; i < t->n_ranges; i++)
        n += t->ranges[i].count;
    return n;
}

static struct task *leased(struct coordinator *co, struct job *j, enum task_kind kind,
                           struct worker *w)
{
    struct task *t = task_make(co, j, kind);
    task_lease(co, t, w);
    return t;
}

static void expect_doom(const struct job *j, const char *why)
{
    if (j->doom == NULL || strcmp(j->doom, why) != 0)
        fail_msg("doomed by \"%s\", expected \"%s\"", j->doom ? j->doom : "nothing", why);
}

static void test_make(void **state)
{
    struct coordinator *co = *state;
    struct job *j = add(&co->state, diloco);
    const struct task *t = task_make(co, j, TASK_INIT);
    assert_int_equal(t->state, TASK_PENDING);
    assert_int_equal(t->attempt, 1);
    assert_int_equal(t->job_id, j->id);
    assert_int_equal(t->ready_ms, core_now(co));
    co->state.n_open = TASKS_OPEN_MAX;
    assert_null(task_make(co, j, TASK_INIT));
    co->state.n_open = 1;
    assert_non_null(task_make(co, j, TASK_INIT));
}

/* What the attempt before has left is forgotten. */
static void test_lease(void **state)
{
    struct coordinator *co = *state;
    struct worker *w = state_add_worker(&co->state, 0);
    struct task *t = task_make(co, add(&co->state, diloco), TASK_SAMPLE);
    (void)str_copy(w->waiting_for, sizeof(w->waiting_for), "work");
    t->reached.steps = t->samples_done = 7;
    t->steps_done = t->steps_total = 7;
    t->loss = 1;
    t->activity[0] = 'x';
    (void)str_copy(t->reason, sizeof(t->reason), "the lease ran out");
    task_lease(co, t, w);
    assert_int_equal(t->state, TASK_LEASED);
    assert_int_equal(t->worker_id, w->id);
    assert_int_equal(w->task_id, t->id);
    assert_int_equal(w->waiting_for[0], '\0');
    assert_int_equal(t->reached.steps + t->samples_done + t->steps_done + t->steps_total, 0);
    assert_true(isnan(t->loss));
    assert_int_equal(t->activity[0], 0);
    assert_string_equal(t->reason, "the lease ran out"); /* why there is another attempt */
}

static void test_requeue(void **state)
{
    struct coordinator *co = *state;
    struct worker *w = state_add_worker(&co->state, 0);
    struct job *j = trained(co, "tt");
    struct task *t = task_make(co, j, TASK_TRAIN);
    assert_true(task_take_samples(co, j, t));
    task_lease(co, t, w);
    assert_int_equal(figures(j).leased, 12); /* two steps of six */
    t->steps_done = 1;
    task_requeue(co, t, "the lease ran out");
    assert_int_equal(t->state, TASK_PENDING);
    assert_int_equal(t->attempt, 2);
    assert_int_equal(t->worker_id + w->task_id + t->steps_done, 0);
    assert_string_equal(t->reason, "the lease ran out");
    assert_int_equal(figures(j).leased, 0);
    assert_int_equal(held(t), 12); /* they stay its own */
    task_lease(co, t, w);
    w->task_id = 77; /* it has another one since */
    task_requeue(co, t, "");
    assert_int_equal(w->task_id, 77);
    struct task *s = leased(co, j, TASK_SAMPLE, w);
    s->draw.text_len = 3;
    task_requeue(co, s, "");
    assert_int_equal(s->draw.text_len, 0); /* the text begins anew */
}

/* A hundred attempts are enough for what is aside of the training; the rest has no end. */
static void test_attempts(void **state)
{
    struct coordinator *co = *state;
    struct job *j = add(&co->state, diloco);
    struct task *eval = task_make(co, j, TASK_EVAL), *init = task_make(co, j, TASK_INIT);
    for (int i = 0; i < 99; i++) {
        task_requeue(co, eval, "gone");
        task_requeue(co, init, "gone");
    }
    assert_int_equal(eval->state, TASK_PENDING);
    task_requeue(co, eval, "gone");
    task_requeue(co, init, "gone");
    assert_int_equal(eval->state, TASK_FAILED);
    assert_int_equal(init->state, TASK_PENDING);
    assert_null(j->doom);
}

/* Without an end, except for what is aside; of those the passing ones do not count. */
static void test_failures(void **state)
{
    struct coordinator *co = *state;
    struct worker *w = state_add_worker(&co->state, 0);
    struct job *j = add(&co->state, diloco);
    struct task *t = task_make(co, j, TASK_INIT);
    for (unsigned i = 1; i < 500; i++) {
        task_lease(co, t, w);
        task_failed(co, t, i % 2 ? FAULT_TASK : FAULT_PASSING, "no luck");
        assert_int_equal(t->state, TASK_PENDING);
        assert_int_equal(t->failures, i);
        assert_true(failure_until(&t->failed, w->id, worker_standing(w)) > core_now(co));
        assert_int_equal(t->not_before_ms, 0);
    }
    assert_null(j->doom);
    t = task_make(co, j, TASK_EVAL);
    for (unsigned i = 0; i < TASK_FAILURES_MAX; i++) {
        assert_int_equal(t->state, TASK_PENDING);
        task_lease(co, t, w);
        task_failed(co, t, FAULT_TASK, "no luck");
    }
    assert_int_equal(t->state, TASK_FAILED);
    assert_int_equal(w->task_id, 0);
    assert_null(j->doom);
}

/* One worker's word, or its five failures, do not end what is aside while others are here. */
static void test_aside_with_others(void **state)
{
    struct coordinator *co = *state;
    struct worker *evil = state_add_worker(&co->state, 0), *good = state_add_worker(&co->state, 0);
    struct job *j = add(&co->state, ddm);
    evil->state = good->state = WORKER_HERE;
    struct task *t = leased(co, j, TASK_SAMPLE, evil);
    task_failed(co, t, FAULT_LASTING, "no such thing");
    assert_int_equal(t->state, TASK_PENDING);
    assert_int_equal(failure_until(&t->failed, good->id, STANDING_NEW), 0); /* at once */
    task_lease(co, t, good);
    task_failed(co, t, FAULT_LASTING, "no such thing");
    assert_int_equal(t->state, TASK_FAILED);
    t = leased(co, j, TASK_EVAL, evil);
    for (unsigned i = 0; i < 3 * TASK_FAILURES_MAX; i++) {
        task_failed(co, t, FAULT_TASK, "no luck");
        assert_int_equal(t->state, TASK_PENDING);
        task_lease(co, t, evil);
    }
    good->state = WORKER_LEFT;
    task_failed(co, t, FAULT_TASK, "no luck");
    assert_int_equal(t->state, TASK_FAILED);
    assert_null(j->doom);
}

static void test_hopeless(void **state)
{
    struct coordinator *co = *state;
    struct worker *w = state_add_worker(&co->state, 0), *other = state_add_worker(&co->state, 0);
    struct job *j = add(&co->state, ddm);
    struct task *t = leased(co, j, TASK_SAMPLE, w);
    task_failed(co, t, FAULT_LASTING, "no such thing");
    assert_int_equal(t->state, TASK_FAILED);
    assert_string_equal(t->reason, "no such thing");
    t = leased(co, j, TASK_CLUSTER, w);
    t->cluster.evaluate = true; /* what routing is worth is asked for beside the training */
    task_failed(co, t, FAULT_LASTING, "no such thing");
    assert_null(j->doom);
    t = leased(co, j, TASK_CLUSTER, w);
    task_failed(co, t, FAULT_LASTING, "no such thing");
    assert_int_equal(t->state, TASK_PENDING);
    assert_null(j->doom);
    task_lease(co, t, other);
    task_failed(co, t, FAULT_LASTING, "no such thing");
    expect_doom(j, "CLUSTER task 3 failed: no such thing");
}

static void test_end(void **state)
{
    struct coordinator *co = *state;
    struct worker *w = state_add_worker(&co->state, 0);
    struct job *j = trained(co, "tt");
    struct task *t = task_make(co, j, TASK_TRAIN);
    assert_true(task_take_samples(co, j, t));
    task_lease(co, t, w);
    task_settle(co, t, 5);
    assert_int_equal(figures(j).done, 5);
    assert_int_equal(figures(j).pending, 15);
    assert_int_equal(t->n_ranges, 0);
    task_end(co, t, TASK_DONE, "");
    assert_int_equal(t->worker_id, w->id); /* it did it */
    assert_int_equal(w->task_id, 0);
    assert_false(co->velocities_old);
    t = task_make(co, j, TASK_TRAIN);
    assert_true(task_take_samples(co, j, t));
    task_lease(co, t, w);
    task_end(co, t, TASK_CANCELLED, "the job has ended");
    assert_int_equal(figures(j).done, 5); /* nothing of it counts */
    assert_int_equal(figures(j).pending, 15);
    t = leased(co, j, TASK_SAMPLE, w);
    t->draw.remote = true;
    task_end(co, t, TASK_DONE, "");
    assert_true(co->velocities_old);
}

/* Bounded by time: what 64 batches take, then half as much again as the last phase, and one. */
static void test_take_samples(void **state)
{
    struct coordinator *co = *state;
    struct job *j = trained(co, "tttttttttttttttttttttttttttttttttttttttttttttttttt"); /* 500 */
    struct task *t = task_make(co, j, TASK_TRAIN);
    j->spec.outer.steps = 0;
    assert_true(task_take_samples(co, j, t));
    assert_int_equal(held(t), 64 * 6);
    task_settle(co, t, 0);
    job_edit_replica(j, 0, 0)->samples_last = 20;
    assert_true(task_take_samples(co, j, t));
    assert_int_equal(held(t), 20 * 3 / 2 + 6);
}

/* Of little data one that told too short a time leaves something to many others. */
static void test_take_some(void **state)
{
    struct coordinator *co = *state;
    struct job *j = trained(co, "t");
    j->spec.outer.steps = 0;
    job_edit_replica(j, 0, 0)->samples_last = 1000000000;
    for (int i = 0; i < 24; i++) {
        struct task *t = task_make(co, j, TASK_TRAIN);
        assert_true(task_take_samples(co, j, t));
        assert_in_range(held(t), 6, LEDGER_EPOCHS_OPEN_MAX / 4 * 10);
    }
}

/* One that is alone leaves half: its phase is not to be short of samples for others' sake. */
static void test_take_half(void **state)
{
    struct coordinator *co = *state;
    struct job *j = trained(co, "t");
    struct task *t = task_make(co, j, TASK_TRAIN);
    j->spec.outer.steps = 0;
    j->comp.paths[0].replicas = 1;
    job_edit_replica(j, 0, 0)->samples_last = 1000000000;
    assert_true(task_take_samples(co, j, t));
    assert_int_equal(held(t), LEDGER_EPOCHS_OPEN_MAX / 2 * 10);
}

/* A trainer that reads its own data has no ledger; its phases have their time, and none is gone on
 * with from a version that is not kept. */
static void test_own_data(void **state)
{
    struct coordinator *co = *state;
    struct worker *w = state_add_worker(&co->state, 0);
    struct job *j = add(&co->state, OWN);
    struct task *t = leased(co, j, TASK_TRAIN, w);
    assert_int_equal(t->train.phase_s, 100);
    task_set_snapshot(t, snapshot_new(1)); /* of no module's version */
    task_requeue(co, t, "the lease ran out");
    task_lease(co, t, w);
    assert_null(t->train.snapshot);
}

/* Who runs no trainers is nobody who could do it after all. */
static void test_aside_without_others(void **state)
{
    struct coordinator *co = *state;
    struct worker *w = state_add_worker(&co->state, 0), *plain = state_add_worker(&co->state, 0);
    struct job *j = add(&co->state, OWN);
    w->state = plain->state = WORKER_HERE;
    w->allows_trainers = true;
    struct task *t = leased(co, j, TASK_SAMPLE, w);
    for (unsigned i = 1; i < TASK_FAILURES_MAX; i++) {
        task_failed(co, t, FAULT_PROGRAM, "no luck");
        assert_int_equal(t->state, TASK_PENDING);
        task_lease(co, t, w);
    }
    task_failed(co, t, FAULT_PROGRAM, "no luck");
    assert_int_equal(t->state, TASK_FAILED);
}

/* Nor is it asked whether anybody can. */
static void test_only_trainer(void **state)
{
    struct coordinator *co = *state;
    struct worker *w = state_add_worker(&co->state, 0), *plain = state_add_worker(&co->state, 0);
    struct job *j = add(&co->state, OWN);
    w->state = plain->state = WORKER_HERE;
    w->allows_trainers = true;
    struct task *t = leased(co, j, TASK_INIT, w);
    task_failed(co, t, FAULT_LASTING, "no such thing");
    assert_int_equal(t->state, TASK_PENDING);
    assert_non_null(strstr(t->reason, "the job waits for a worker on another one"));
    co->opt.local = true;
    t->failed.at[0].lasting_ms -= FAILURE_ALONE_MS;
    task_lease(co, t, w);
    task_failed(co, t, FAULT_LASTING, "no such thing");
    expect_doom(j, "INIT task 1 failed: no such thing");
}

/* Whoever waits for `skerry run` is told after five failures of his own program, or of its steps;
 * a swarm, where a worker may come that can do it, waits.  Other failures, of the network say, are
 * not counted. */
static void test_hopeless_here(void **state)
{
    struct coordinator *co = *state;
    struct worker *w = state_add_worker(&co->state, 0), *other = state_add_worker(&co->state, 0);
    static const struct {
        enum task_fault fault, before;
        bool local, ends;
    } cases[] = {
        {FAULT_PROGRAM, .local = true, .ends = true},
        {FAULT_DIVERGED, .local = true, .ends = true},
        {FAULT_DIVERGED, FAULT_TASK, .local = true, .ends = true},
        {FAULT_TASK, .local = true},
        {FAULT_PASSING, .local = true},
        {FAULT_PROGRAM},
        {FAULT_DIVERGED},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct job *j = add(&co->state, cases[i].fault == FAULT_PROGRAM ? OWN : diloco);
        struct task *t = leased(co, j, TASK_TRAIN, w);
        co->opt.local = cases[i].local;
        for (unsigned n = 1; n < 2 * TASK_FAILURES_MAX; n++) {
            task_failed(co, t, n <= TASK_FAILURES_MAX ? cases[i].before : cases[i].fault,
                        "no luck");
            assert_int_equal(t->state, TASK_PENDING);
            task_lease(co, t, n % 2 ? other : w);
        }
        task_failed(co, t, cases[i].fault, "no luck");
        assert_int_equal(t->state, cases[i].ends ? TASK_FAILED : TASK_PENDING);
        assert_int_equal(j->doom != NULL, cases[i].ends);
    }
}

/* The oldest ended ones go; not what is open, what a replica stands at, or another job's. */
static void test_prune(void **state)
{
    struct coordinator *co = *state;
    struct job *j = add(&co->state, diloco), *other = add(&co->state, diloco);
    task_end(co, task_make(co, other, TASK_INIT), TASK_DONE, "");
    struct task *open = task_make(co, j, TASK_EVAL), *stands = task_make(co, j, TASK_TRAIN);
    struct task *train = task_make(co, j, TASK_TRAIN);
    const uint64_t open_id = open->id, stands_id = stands->id, train_id = train->id;
    job_edit_replica(j, 0, 0)->task_id = stands_id;
    task_add_contribution(train, &(struct contribution){.blob = {.size = 5}});
    task_end(co, stands, TASK_DONE, "");
    task_end(co, train, TASK_DONE, "");
    for (size_t i = 2; i < TASKS_ENDED_MAX; i++)
        task_end(co, task_make(co, j, TASK_EVAL), TASK_DONE, "");
    const uint64_t first_id = train_id + 1;
    tasks_prune(co, j);
    assert_int_equal(co->state.n_tasks, TASKS_ENDED_MAX + 2); /* as many as may be */
    task_end(co, task_make(co, j, TASK_EVAL), TASK_DONE, "");
    tasks_prune(co, j);
    assert_null(state_task(&co->state, train_id));
    assert_int_equal(co->n_garbage, 1);
    assert_int_equal(co->garbage[0].size, 5);
    assert_non_null(state_task(&co->state, first_id));
    assert_non_null(state_task(&co->state, stands_id));
    assert_int_equal(open->state, TASK_PENDING);
    assert_int_equal(co->state.n_tasks, TASKS_ENDED_MAX + 2);
    j->state = JOB_DONE; /* no replica stands anywhere */
    task_end(co, open, TASK_DONE, "");
    task_end(co, task_make(co, j, TASK_EVAL), TASK_DONE, "");
    tasks_prune(co, j);
    assert_null(state_task(&co->state, open_id));
    assert_null(state_task(&co->state, stands_id));
    assert_int_equal(co->state.n_tasks, TASKS_ENDED_MAX + 1);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, bare_begin, bare_end)
    const struct CMUnitTest tests[] = {
        CASE(test_make),         CASE(test_lease),
        CASE(test_requeue),      CASE(test_attempts),
        CASE(test_failures),     CASE(test_aside_with_others),
        CASE(test_hopeless),     CASE(test_end),
        CASE(test_take_samples), CASE(test_take_some),
        CASE(test_take_half),    CASE(test_own_data),
        CASE(test_prune),        CASE(test_aside_without_others),
        CASE(test_only_trainer), CASE(test_hopeless_here),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
