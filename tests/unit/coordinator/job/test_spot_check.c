/* A new worker's first phase is done once more by a proven one from elsewhere; one word against
 * another harms nobody, two against one put the third in quarantine.  A whole coordinator (rig.h).
 */
#include "tests/unit/coordinator/rig.h"

#include "coordinator/work/tasks.h"

#define SPEC(outer)                                                                                \
    "name: fake\nseed: 3\ndata: {path: x, image_size: 16}\n"                                       \
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"                                  \
    "train: {batch: 4, lr: 0.1}\nrecipe: {replicas: 1}\n"                                          \
    "outer: {rounds: 12, steps: 2" outer "}\nsample: {count: 4}\neval: {every: 0}\n"

enum { OLD, NEW, THIRD }; /* the workers: NEW is the one that is looked at */

#define SIZE 0.01f
enum { HONEST = 7, LIE = 8, OTHER_LIE = 9 }; /* seeds of what a phase gives */

static const struct worker *worker(struct rig *r, int i)
{
    return state_worker(&r->co->state, r->workers[i].id);
}

static void join_from(struct rig *r, int i, const char *address)
{
    assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    struct worker *w = edit_worker(r, r->workers[i].id);
    (void)str_copy(w->address, sizeof(w->address), address);
}

static void join_all(struct rig *r)
{
    join_from(r, OLD, "10.0.0.1:1");
    join_from(r, NEW, "10.0.0.2:1");
    join_from(r, THIRD, "10.0.0.3:1");
}

/* OLD and THIRD are proven. */
static const struct job *begin_job(struct rig *r, const char *spec)
{
    join_all(r);
    const struct job *j = state_job(&r->co->state, submit_spec(r, spec));
    edit_worker(r, r->workers[OLD].id)->confirmed = 1u << TASK_INIT;
    do_init(r, &r->workers[OLD]);
    edit_worker(r, r->workers[THIRD].id)->tasks_done = 1;
    return j;
}

static void give(struct rig *r, int i, uint64_t seed, float size)
{
    struct fake *w = &r->workers[i];
    struct result x;
    struct blob_ref blob = contribute(r, w->task, seed, size);
    begin_result(&x, w->task, &blob);
    if (!report(r, w, &x))
        fail_msg("%s", w->detail);
}

static unsigned checks(struct rig *r, enum task_state state)
{
    unsigned n = 0;
    for (size_t i = 0; i < r->co->state.n_tasks; i++)
        n += r->co->state.tasks[i]->kind == TASK_CHECK && r->co->state.tasks[i]->state == state;
    return n;
}

/* NEW's first phase; the next one is its own, too, so that others have nothing else to do. */
static void first_phase(struct rig *r, uint64_t seed)
{
    assert_true(assign(r, &r->workers[NEW], TASK_TRAIN)->train->fresh);
    give(r, NEW, seed, SIZE);
    assert_int_equal(checks(r, TASK_PENDING), 1);
    assert_false(assign(r, &r->workers[NEW], TASK_TRAIN)->train->fresh);
}

/* NEW's phase ends, and its replica is nobody's: does the next one begin anew? */
static bool begins_fresh(struct rig *r, struct job *j)
{
    const uint64_t v = j->modules[0].version;
    give(r, NEW, HONEST, SIZE);
    WAIT_FOR(r, j->modules[0].version != v);
    settle(r);
    job_edit_replica(j, 0, 0)->owner = 0;
    return assign(r, &r->workers[NEW], TASK_TRAIN)->train->fresh;
}

static void turn_until(struct rig *r, bool (*is)(struct rig *r))
{
    WAIT_FOR(r, is(r));
    settle(r);
}

static bool is_decided(struct rig *r)
{
    for (size_t i = 0; i < r->co->state.n_tasks; i++)
        if (r->co->state.tasks[i]->kind == TASK_CHECK &&
            r->co->state.tasks[i]->train.n_contributions > 0)
            return false;
    return true;
}

static bool asks_a_third(struct rig *r)
{
    return checks(r, TASK_PENDING) == 1;
}

static void check(struct rig *r, int i, uint64_t seed, float size)
{
    const Skerry__V1__Task *t = assign(r, &r->workers[i], TASK_CHECK);
    const Skerry__V1__TrainTask *m = t->train;
    assert_true(m->round == 0 && m->steps == 2 && m->first_step == 0 && m->n_ranges > 0);
    assert_true(t->n_modules == 1 && t->modules[0]->version == 0);
    assert_true(m->moments == NULL && !m->send_moments && m->n_ahead == 0 && m->snapshot_ms == 0);
    give(r, i, seed, size);
}

static void expect(struct rig *r, int i, bool checked, uint32_t strikes)
{
    const struct worker *w = worker(r, i);
    if (w->checked != checked || w->strikes != strikes)
        fail_msg("worker %d is%s checked, and was in quarantine %u times", i,
                 w->checked ? "" : " not", w->strikes);
}

static struct ledger_epoch ledger(const struct job *j)
{
    const struct ledger *l = j->ledgers[job_ledger(j, j->comp.paths[0].partition)];
    struct ledger_epoch e;
    ledger_figures(l, ledger_first_open(l), &e);
    return e;
}

static void equal_bits(void **state)
{
    struct rig *r = *state;
    struct job *j = state_job(&r->co->state, begin_job(r, SPEC(""))->id);
    first_phase(r, HONEST);
    const struct ledger_epoch before = ledger(j);
    const uint64_t samples = j->samples_done;
    check(r, OLD, HONEST, SIZE);
    settle(r);
    assert_true(is_decided(r));
    expect(r, NEW, true, 0);
    assert_int_equal(checks(r, TASK_DONE), 1);
    const struct ledger_epoch after = ledger(j);
    assert_true(after.epoch == before.epoch && after.done == before.done &&
                after.leased == before.leased && after.pending == before.pending);
    assert_true(j->samples_done == samples && j->modules[0].version == 1);
    assert_false(begins_fresh(r, j)); /* once is enough */
}

/* Of a job of hundreds of workers more tasks end in a round than are kept. */
static void many_tasks_end_meanwhile(void **state)
{
    struct rig *r = *state;
    struct job *j = state_job(&r->co->state, begin_job(r, SPEC(""))->id);
    first_phase(r, LIE);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i <= TASKS_ENDED_MAX; i++)
            task_end(r->co, task_make(r->co, j, TASK_EVAL), TASK_DONE, "");
        tasks_prune(r->co, j);
        check(r, k == 0 ? OLD : THIRD, HONEST, SIZE);
        turn_until(r, k == 0 ? asks_a_third : is_decided);
    }
    expect(r, NEW, false, 1);
    for (int i = 0; i <= TASKS_ENDED_MAX; i++)
        task_end(r->co, task_make(r->co, j, TASK_EVAL), TASK_DONE, "");
    tasks_prune(r->co, j);
    assert_int_equal(checks(r, TASK_DONE), 0); /* now they go as any other */
}

/* Another make of machine rounds otherwise. */
static void nearly_equal(void **state)
{
    struct rig *r = *state;
    (void)begin_job(r, SPEC(""));
    first_phase(r, HONEST);
    check(r, OLD, HONEST, SIZE * 1.01f);
    turn_until(r, is_decided);
    expect(r, NEW, true, 0);
}

static void a_poisoner_is_found(void **state)
{
    struct rig *r = *state;
    const struct job *j = begin_job(r, SPEC(""));
    first_phase(r, LIE);
    check(r, OLD, HONEST, SIZE);
    turn_until(r, asks_a_third);
    expect(r, NEW, false, 0);
    expect(r, OLD, false, 0);
    check(r, THIRD, HONEST, SIZE);
    turn_until(r, is_decided);
    expect(r, NEW, false, 1);
    expect(r, OLD, false, 0);
    expect(r, THIRD, false, 0);
    assert_true(worker(r, NEW)->quarantined_until_ms > core_now(r->co));
    assert_int_equal(j->paths[0].replicas[0].owner, 0);
}

static void a_checker_that_lies_harms_nobody(void **state)
{
    struct rig *r = *state;
    (void)begin_job(r, SPEC(""));
    first_phase(r, HONEST);
    check(r, OLD, LIE, SIZE);
    turn_until(r, asks_a_third);
    expect(r, NEW, false, 0);
    check(r, THIRD, HONEST, SIZE);
    turn_until(r, is_decided);
    expect(r, NEW, true, 0);
    expect(r, OLD, false, 1);
    expect(r, THIRD, false, 0);
}

static void three_opinions_are_none(void **state)
{
    struct rig *r = *state;
    (void)begin_job(r, SPEC(""));
    first_phase(r, HONEST);
    check(r, OLD, LIE, SIZE);
    turn_until(r, asks_a_third);
    check(r, THIRD, OTHER_LIE, SIZE);
    turn_until(r, is_decided);
    for (int i = OLD; i <= THIRD; i++)
        expect(r, i, false, 0);
    assert_int_equal(checks(r, TASK_PENDING), 0);
}

/* Files that cannot be compared are no word at all. */
static void what_is_no_contribution(void **state)
{
    struct rig *r = *state;
    struct result x;
    (void)begin_job(r, SPEC(""));
    first_phase(r, HONEST);
    struct fake *w = &r->workers[OLD];
    (void)assign(r, w, TASK_CHECK);
    struct blob_ref blob = put_text(r, "no contribution");
    begin_result(&x, w->task, &blob);
    assert_true(report(r, w, &x));
    turn_until(r, is_decided);
    expect(r, NEW, false, 0);
    assert_int_equal(checks(r, TASK_PENDING), 0);
}

/* Who did the phase, and whoever comes from the same place, is no other. */
static void who_may_check(void **state)
{
    struct rig *r = *state;
    (void)begin_job(r, SPEC(""));
    first_phase(r, HONEST);
    (void)str_copy(edit_worker(r, r->workers[OLD].id)->address, 64, "10.0.0.2:9");
    ask(r, &r->workers[OLD], 100);
    assert_null(got(r, &r->workers[OLD]));
    assert_non_null(strstr(r->workers[OLD].assigned->waiting_for, "from elsewhere"));
    edit_worker(r, r->workers[THIRD].id)->tasks_done = 0;
    ask(r, &r->workers[THIRD], 100);
    assert_null(got(r, &r->workers[THIRD]));
    edit_worker(r, r->workers[THIRD].id)->tasks_done = 1;
    check(r, THIRD, HONEST, SIZE);
    settle(r);
    expect(r, NEW, true, 0);
}

static void expect_none(struct rig *r)
{
    assert_false(assign(r, &r->workers[NEW], TASK_TRAIN)->train->fresh);
    give(r, NEW, HONEST, SIZE);
    assert_int_equal(checks(r, TASK_PENDING), 0);
}

static void nothing_without_a_proven_other(void **state)
{
    struct rig *r = *state;
    (void)begin_job(r, SPEC(""));
    edit_worker(r, r->workers[OLD].id)->strikes = 1;
    edit_worker(r, r->workers[THIRD].id)->tasks_done = 0;
    expect_none(r);
}

static void nor_from_elsewhere(void **state)
{
    struct rig *r = *state;
    (void)begin_job(r, SPEC(""));
    for (int i = OLD; i <= THIRD; i++)
        (void)str_copy(edit_worker(r, r->workers[i].id)->address, 64, "10.0.0.2:1");
    expect_none(r);
}

static void nor_of_a_release_before(void **state)
{
    struct rig *r = *state;
    (void)begin_job(r, SPEC(""));
    struct worker *w = edit_worker(r, r->workers[NEW].id);
    (void)str_copy(w->version, sizeof(w->version), "0.0.0");
    expect_none(r);
}

static void nor_where_the_job_forbids_it(void **state)
{
    struct rig *r = *state;
    (void)begin_job(r, SPEC(", spot_check: false"));
    expect_none(r);
}

/* Of a worker's phases one at a time is looked at. */
static void one_at_a_time(void **state)
{
    struct rig *r = *state;
    struct job *j = state_job(&r->co->state, begin_job(r, SPEC(""))->id);
    first_phase(r, HONEST);
    assert_false(begins_fresh(r, j));
    check(r, OLD, LIE, SIZE);
    turn_until(r, asks_a_third);
    check(r, THIRD, OTHER_LIE, SIZE);
    turn_until(r, is_decided); /* to nothing: the next one is looked at */
    assert_true(begins_fresh(r, j));
}

/* What a phase came to is kept for its check, though newer versions have come. */
static void rounds_later(void **state)
{
    struct rig *r = *state;
    const struct job *j = begin_job(r, SPEC(""));
    first_phase(r, LIE);
    for (uint64_t v = 2; v < VERSIONS_KEPT; v++) {
        give(r, NEW, HONEST, SIZE);
        (void)assign(r, &r->workers[NEW], TASK_TRAIN);
        assert_int_equal(j->modules[0].version, v);
    }
    check(r, OLD, HONEST, SIZE);
    turn_until(r, asks_a_third);
    check(r, THIRD, HONEST, SIZE);
    turn_until(r, is_decided);
    expect(r, NEW, false, 1);
}

/* Rounds go on, and when the version is gone so is the check. */
static void nobody_waits(void **state)
{
    struct rig *r = *state;
    const struct job *j = begin_job(r, SPEC(""));
    first_phase(r, HONEST);
    for (uint64_t v = 2; v <= VERSIONS_KEPT; v++) {
        assert_int_equal(checks(r, TASK_PENDING), 1);
        give(r, NEW, HONEST, SIZE);
        (void)assign(r, &r->workers[NEW], TASK_TRAIN);
        assert_int_equal(j->modules[0].version, v);
    }
    settle(r);
    assert_int_equal(checks(r, TASK_PENDING), 0);
    assert_int_equal(checks(r, TASK_CANCELLED), 1);
    expect(r, NEW, false, 0);
}

/* What the fold refuses is done anew, by its owner perhaps, who has moments: that is not what a
 * check would come to. */
static void a_phase_that_is_done_anew(void **state)
{
    struct rig *r = *state;
    struct job *j = state_job(&r->co->state, begin_job(r, SPEC(""))->id);
    const uint64_t id = assign(r, &r->workers[NEW], TASK_TRAIN)->id;
    job_edit_replica(j, 0, 0)->owner = r->workers[THIRD].id;
    give(r, NEW, LIE, 1e6f);
    for (const uint64_t until = clock_now_ms() + DEADLINE_MS;
         state_task(&r->co->state, id)->state != TASK_PENDING; loop_turn(r->loop, true))
        assert_true(clock_now_ms() < until);
    assert_int_equal(assign(r, &r->workers[THIRD], TASK_TRAIN)->id, id);
    assert_false(r->workers[THIRD].task->train->fresh);
    give(r, THIRD, OTHER_LIE, SIZE);
    settle(r);
    assert_int_equal(checks(r, TASK_PENDING), 0);
    assert_int_equal(checks(r, TASK_CANCELLED), 1);
}

/* The third one is asked for, and nobody can do it: what the second gave goes, with the word. */
static void a_third_that_cannot(void **state)
{
    struct rig *r = *state;
    struct job *j = state_job(&r->co->state, begin_job(r, SPEC(""))->id);
    first_phase(r, HONEST);
    check(r, OLD, LIE, SIZE);
    turn_until(r, asks_a_third);
    const uint64_t id = assign(r, &r->workers[THIRD], TASK_CHECK)->id;
    task_end(r->co, edit_task(r, id), TASK_FAILED, "as if two had said that it cannot be done");
    (void)begins_fresh(r, j); /* its round's end looks through them */
    assert_true(is_decided(r));
    assert_int_equal(checks(r, TASK_FAILED), 1);
    expect(r, NEW, false, 0);
}

static void again(struct rig *r)
{
    settle(r);
    stop(r);
    start(r);
    join_all(r);
}

/* That a phase began with the versions alone is known when it ends. */
static void a_restart_before_the_phase_ends(void **state)
{
    struct rig *r = *state;
    (void)begin_job(r, SPEC(""));
    assert_true(assign(r, &r->workers[NEW], TASK_TRAIN)->train->fresh);
    again(r);
    give(r, NEW, HONEST, SIZE);
    assert_int_equal(checks(r, TASK_PENDING), 1);
}

/* What is asked, what was said and who is checked outlive a restart. */
static void a_restart_in_between(void **state)
{
    struct rig *r = *state;
    (void)begin_job(r, SPEC(""));
    first_phase(r, LIE);
    again(r);
    check(r, OLD, HONEST, SIZE);
    turn_until(r, asks_a_third);
    again(r);
    assert_int_equal(checks(r, TASK_PENDING), 1);
    check(r, THIRD, HONEST, SIZE);
    turn_until(r, is_decided);
    expect(r, NEW, false, 1);
    again(r);
    expect(r, NEW, false, 1);
    assert_int_equal(checks(r, TASK_DONE), 2);
}

/* A comparison that was cut off is made again. */
static void a_restart_while_it_is_compared(void **state)
{
    struct rig *r = *state;
    (void)begin_job(r, SPEC(""));
    first_phase(r, HONEST);
    check(r, OLD, LIE, SIZE);
    turn_until(r, asks_a_third);
    for (size_t i = r->co->state.n_tasks; i-- > 0;) /* as if it had not been asked yet */
        if (r->co->state.tasks[i]->kind == TASK_CHECK &&
            r->co->state.tasks[i]->state == TASK_PENDING)
            state_drop_task(&r->co->state, r->co->state.tasks[i]);
    core_touch(r->co);
    again(r);
    turn_until(r, asks_a_third);
    check(r, THIRD, HONEST, SIZE);
    turn_until(r, is_decided);
    expect(r, NEW, true, 0);
    again(r);
    expect(r, NEW, true, 0);
}

/* A phase of another release is not held against its worker, nor against who repeats it. */
static void an_upgrade_of_the_coordinator(void **state)
{
    struct rig *r = *state;
    (void)begin_job(r, SPEC(""));
    first_phase(r, LIE);
    check(r, OLD, HONEST, SIZE);
    turn_until(r, asks_a_third);
    edit_worker(r, r->workers[NEW].id)->version[0]++; /* as if ours were newer when it starts */
    core_touch(r->co);
    again(r);
    assert_int_equal(checks(r, TASK_PENDING), 0);
    assert_true(is_decided(r));
    expect(r, NEW, false, 0);
    expect(r, OLD, false, 0);
}

static void an_upgrade_of_the_worker(void **state)
{
    struct rig *r = *state;
    (void)begin_job(r, SPEC(""));
    first_phase(r, LIE);
    check(r, OLD, HONEST, SIZE);
    turn_until(r, asks_a_third);
    edit_worker(r, r->workers[NEW].id)->version[0]++; /* as it was before this JOIN */
    assert_int_equal(join(r, &r->workers[NEW], SKERRY_VERSION), 0);
    settle(r);
    assert_int_equal(checks(r, TASK_PENDING), 0);
    assert_true(is_decided(r));
    expect(r, NEW, false, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_upgrade_of_the_coordinator),
        TEST(an_upgrade_of_the_worker),
        TEST(equal_bits),
        TEST(many_tasks_end_meanwhile),
        TEST(nearly_equal),
        TEST(a_poisoner_is_found),
        TEST(a_checker_that_lies_harms_nobody),
        TEST(three_opinions_are_none),
        TEST(what_is_no_contribution),
        TEST(who_may_check),
        TEST(nothing_without_a_proven_other),
        TEST(nor_from_elsewhere),
        TEST(nor_of_a_release_before),
        TEST(nor_where_the_job_forbids_it),
        TEST(one_at_a_time),
        TEST(rounds_later),
        TEST(nobody_waits),
        TEST(a_phase_that_is_done_anew),
        TEST(a_third_that_cannot),
        TEST(a_restart_before_the_phase_ends),
        TEST(a_restart_in_between),
        TEST(a_restart_while_it_is_compared),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
