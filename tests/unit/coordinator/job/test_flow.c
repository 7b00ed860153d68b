/* How a job that cannot go on ends: marked where that is found, in the middle of whatever goes on,
 * and ended by the next turn, with everything that it had open.  A whole coordinator (rig.h). */
#include "coordinator/job/flow.h"
#include "coordinator/work/member.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"
#include "tests/unit/coordinator/kinds/by_hand.h"

static struct task *leased(struct rig *r, const struct fake *w)
{
    return edit_task(r, state_worker(&r->co->state, w->id)->task_id);
}

/* Two workers in a phase each. */
static struct job *begin_phases(struct rig *r)
{
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, &r->workers[0]);
    for (int i = 0; i < 2; i++)
        assign(r, &r->workers[i], TASK_TRAIN);
    return j;
}

/* The job has failed for this reason; nothing of it is open, nobody holds anything. */
static void expect_failed(struct rig *r, const struct job *j, const char *reason)
{
    const struct state *s = &r->co->state;
    wait_state(r, j->id, JOB_FAILED);
    if (strstr(j->reason, reason) == NULL)
        fail_msg("failed with \"%s\", expected \"%s\"", j->reason, reason);
    for (size_t i = 0; i < s->n_tasks; i++)
        assert_false(task_is_open(s->tasks[i]));
    for (size_t i = 0; i < s->n_workers; i++)
        assert_int_equal(s->workers[i]->task_id, 0);
    for (uint32_t e = 0; e < 2; e++) {
        struct ledger_epoch figures;
        ledger_figures(j->ledgers[0], e, &figures);
        assert_int_equal(figures.leased, 0);
    }
}

/* A turn in which nothing happens looks at no row: with ten thousand phases that is most of it. */
static void test_quiet_turn(void **state)
{
    struct rig *r = *state;
    (void)begin_phases(r);
    settle(r);
    flow_advance(r->co);
    assert_int_equal(r->co->state.tasks_edited.n, 0);
    assert_int_equal(r->co->state.workers_edited.n, 0);
}

/* The first reason stands, and what has ended stays as it is. */
static void test_mark(void **state)
{
    struct job j = {.state = JOB_RUNNING};
    job_doom(&j, "the %s reason", "first");
    job_doom(&j, "the second");
    assert_string_equal(j.doom, "the first reason");
    assert_int_equal(j.state, JOB_RUNNING);
    mem_free(j.doom);
    j = (struct job){.state = JOB_DONE};
    job_doom(&j, "too late");
    assert_null(j.doom);
}

/* Somebody else has said before that nobody can do it. */
static void doubt(struct rig *r, uint64_t task)
{
    edit_task(r, task)->failed =
        (struct failure_list){.at = {{.worker = 77, .lasting_ms = 1, .newest = 77}}, .n = 1};
}

/* Within the loop over the workers: both lose their leases, for the hundredth time.  The job goes
 * on when somebody comes. */
static void test_lost_leases(void **state)
{
    struct rig *r = *state;
    struct job *j = begin_phases(r);
    struct task *tasks[2];
    for (int i = 0; i < 2; i++) {
        struct worker *w = edit_worker(r, r->workers[i].id);
        struct task *t = tasks[i] = leased(r, &r->workers[i]);
        t->attempt = 100;
        w->heard_ms = core_now(r->co) - r->co->opt.lease_ms - 1000;
    }
    member_check(r->co);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(r->co->state.workers[i]->state, WORKER_LOST);
        assert_int_equal(tasks[i]->state, TASK_PENDING);
    }
    assert_int_equal(join(r, &r->workers[0], SKERRY_VERSION), 0);
    assign(r, &r->workers[0], TASK_TRAIN);
    assert_int_equal(j->state, JOB_RUNNING);
}

static void fail_for_good(struct rig *r, struct fake *w)
{
    struct result x;
    begin_result(&x, w->task, NULL);
    x.m.failed = true;
    x.m.reason = (char *)"it cannot be done";
    assert_true(report(r, w, &x));
}

/* Within a report: the other worker is in the middle of its phase. */
static void test_failed_task(void **state)
{
    struct rig *r = *state;
    struct job *j = begin_phases(r);
    doubt(r, r->workers[0].task->id);
    fail_for_good(r, &r->workers[0]);
    expect_failed(r, j, "failed: it cannot be done");
    struct result x;
    begin_result(&x, r->workers[1].task, NULL);
    assert_false(report(r, &r->workers[1], &x));
    assert_non_null(strstr(r->workers[1].detail, "it cannot be done"));
}

/* With a result that brings the sample that is one too many, for the second worker. */
static void test_bad_samples(void **state)
{
    struct rig *r = *state;
    struct job *j = begin_phases(r);
    Skerry__V1__BadSample bad = SKERRY__V1__BAD_SAMPLE__INIT, *list[] = {&bad};
    struct result x;
    struct blob_ref blob = contribute(r, r->workers[0].task, 7, 0.01f);
    j->spec.data.max_bad = 0;
    bad.key = (char *)"image-1";
    bad.reason = (char *)"cut short";
    begin_result(&x, r->workers[0].task, &blob);
    x.m.bad = list;
    x.m.n_bad = x.m.bad_count = 1;
    doubt(r, x.m.task_id);
    assert_false(report(r, &r->workers[0], &x));
    expect_failed(r, j, "data.max_bad allows 0; the first is image-1: cut short");
}

/* A round whose phases find no samples, as others hold them all, begins when they are back. */
static void test_no_samples(void **state)
{
    struct rig *r = *state;
    struct job *j = begin_phases(r);
    struct ledger *l = j->ledgers[0];
    static struct ledger_range first[RANGES_TAKEN_MAX], other[RANGES_TAKEN_MAX];
    const size_t n = ledger_take(l, 1000, UINT32_MAX, 0, 1, first, RANGES_TAKEN_MAX);
    for (uint64_t holder = 1001;
         ledger_take(l, holder, UINT32_MAX, 0, 1, other, RANGES_TAKEN_MAX) > 0; holder++)
        ;
    assert_false(ledger_has(l, 1));
    for (int i = 0; i < 2; i++)
        finish_train(r, &r->workers[i]);
    while (j->n_rounds == 0)
        loop_turn(r->loop, true);
    settle(r);
    assert_int_equal(j->state, JOB_RUNNING);
    assert_int_equal(j->paths[0].replicas[0].task_id, 0);
    assert_int_equal(ledger_settle(l, 1000, first, n, 0, NULL), 0);
    core_touch(r->co);
    for (int i = 0; i < 2; i++)
        (void)assign(r, &r->workers[i], TASK_TRAIN);
}

/* Within the end of an outer step: what was refused is trained again when others give samples back.
 */
static void test_no_samples_to_repeat(void **state)
{
    struct rig *r = *state;
    struct job *j = begin_phases(r);
    static struct ledger_range first[RANGES_TAKEN_MAX], other[RANGES_TAKEN_MAX];
    const size_t n = ledger_take(j->ledgers[0], 1000, UINT32_MAX, 0, 1, first, RANGES_TAKEN_MAX);
    for (uint64_t holder = 1001;
         ledger_take(j->ledgers[0], holder, UINT32_MAX, 0, 1, other, RANGES_TAKEN_MAX) > 0;
         holder++)
        ;
    for (int i = 0; i < 2; i++) {
        struct result x;
        struct blob_ref junk = put_text(r, "this is no contribution");
        begin_result(&x, r->workers[i].task, &junk);
        assert_true(report(r, &r->workers[i], &x));
    }
    while (j->modules[0].outer_failures == 0)
        loop_turn(r->loop, true);
    settle(r);
    for (int i = 0; i < 2; i++) {
        const struct task *t = query_phase(&r->co->state, j, 0, (uint32_t)i);
        assert_int_equal(t->state, TASK_DONE);
        assert_non_null(strstr(t->reason, "until other phases give samples back"));
    }
    assert_int_equal(j->state, JOB_RUNNING);
    assert_int_equal(ledger_settle(j->ledgers[0], 1000, first, n, 0, NULL), 0);
    core_touch(r->co);
    for (int i = 0; i < 2; i++) {
        (void)assign(r, &r->workers[i], TASK_TRAIN);
        finish_train(r, &r->workers[i]);
    }
    while (j->n_rounds == 0)
        loop_turn(r->loop, true);
}

/* What a person cancels before the turn is cancelled, not failed. */
static void test_cancelled_first(void **state)
{
    struct rig *r = *state;
    struct job *j = begin_phases(r);
    job_doom(j, "too late");
    assert_int_equal(view_job_cancel(r->co, j->id, NULL), 0);
    flow_advance(r->co);
    assert_int_equal(j->state, JOB_CANCELLED);
    assert_string_equal(j->reason, "cancelled by a person");
}

/* An evaluation that fails for good leaves the job as it is. */
static void test_aside(void **state)
{
    struct rig *r = *state;
    struct job *j = begin_phases(r);
    for (int i = 0; i < 2; i++)
        finish_train(r, &r->workers[i]);
    for (int i = 0; i < 2; i++) {
        assign(r, &r->workers[i], TASK_TRAIN);
        finish_train(r, &r->workers[i]);
    }
    wait_state(r, j->id, JOB_FINISHING);
    struct fake *w = &r->workers[0];
    while (j->state == JOB_FINISHING) {
        ask(r, w, 15000);
        assert_non_null(got(r, w));
        fail_for_good(r, w);
        w = w == &r->workers[0] ? &r->workers[1] : &r->workers[0];
    }
    wait_state(r, j->id, JOB_DONE);
}

/* Where its shards may not fit, a re-sharding is dropped before anything is done for it. */
static void test_no_room_to_reshard(void **state)
{
    static const char resharding[] =
        "name: q\ndata: {path: x}\n"
        "model: {type: llama, dim: 32, depth: 4, heads: 2, context: 64}\n"
        "train: {batch: 6}\nrecipe: {name: dipaco, levels: [2, 2], reshard: [1, 2]}\n"
        "outer: {rounds: 3, steps: 2}\n";
    for (unsigned fits = 0; fits < 2; fits++) {
        struct rig *r = *state;
        struct job *j = add_job(r, resharding);
        for (uint8_t i = 0; i < 3; i++)
            add_shard(j, i, 10)->router = i == 0;
        while (j->n_shards < JOB_SHARDS_MAX - 3 - fits)
            *job_add_shard(j) = (struct shard_rec){.generation = 1, .samples = 10};
        j->generation = 1;
        for (uint32_t p = 0; p < j->comp.n_paths; p++)
            job_edit_path(j, p)->round = 1;
        flow_advance(r->co);
        assert_int_equal(j->state, fits ? JOB_SCORING : JOB_RUNNING);
        assert_int_equal(j->resharded, !fits);
        assert_int_equal(end(state), 0);
        assert_int_equal(begin(state), 0);
    }
}

/* While too many tasks are open a job waits with what comes next, and leaves nothing of it out. */
static void test_no_room_for_tasks(void **state)
{
    static const char urls[] = "name: q\ndata: {url: ['http://a/1.tar', 'http://a/2.tar'], "
                               "image_size: 16}\nmodel: {type: dit, patch: 4, dim: 32, depth: 1, "
                               "heads: 2}\ntrain: {batch: 6}\nouter: {rounds: 3, steps: 2}\n";
    struct rig *r = *state;
    struct state *s = &r->co->state;
    struct job *j = add_job(r, urls);
    const size_t open = s->n_open;
    j->state = JOB_PENDING;
    s->n_open = TASKS_OPEN_MAX - 1;
    flow_advance(r->co);
    assert_int_equal(j->state, JOB_PENDING);
    s->n_open = open;
    flow_advance(r->co);
    assert_int_equal(j->state, JOB_INGESTING);
    assert_int_equal(s->n_open, open + 2);

    j = add_job(r, urls);
    job_edit_path(j, 0)->round = 3;
    s->n_open = TASKS_OPEN_MAX;
    flow_advance(r->co);
    assert_int_equal(j->state, JOB_RUNNING);
    s->n_open = TASKS_OPEN_MAX - 1; /* room for an evaluation, but not for the samples */
    flow_advance(r->co);
    assert_int_equal(j->state, JOB_FINISHING);
    assert_int_equal(j->finishing, FINISHING_EVAL);
    s->n_open = open + 2;
    flow_advance(r->co);
    assert_int_equal(j->state, JOB_DONE);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
#define LIVE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mark),  LIVE(test_lost_leases),
        LIVE(test_failed_task),       LIVE(test_bad_samples),
        LIVE(test_no_samples),        LIVE(test_no_samples_to_repeat),
        LIVE(test_cancelled_first),   LIVE(test_aside),
        LIVE(test_quiet_turn),        LIVE(test_no_room_to_reshard),
        LIVE(test_no_room_for_tasks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
