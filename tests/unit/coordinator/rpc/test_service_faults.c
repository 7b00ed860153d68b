/* What comes late, fails on our side, or is told twice: on a whole coordinator (rig.h). */
#include "coordinator/rpc/report.h"
#include "coordinator/work/member.h"
#include "coordinator/work/query.h"
#include "tests/unit/coordinator/rig.h"

/* A contribution that comes while the step of its round runs is not in it, nor in any other where
 * the job drops it. */
static void test_late_contribution(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    struct result x;
    struct err err = {0};
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    j->spec.outer.grace = 0.3;
    j->spec.outer.late = JOB_LATE_DROP;
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    assign(r, b, TASK_TRAIN);
    struct blob_ref blob = contribute(r, b->task, 7, 0.01f);
    begin_result(&x, b->task, &blob);
    hold_steps(r);
    finish_train(r, a);
    while (j->modules[0].outer_task == 0)
        loop_turn(r->loop, true);
    struct worker *w = edit_worker(r, b->id);
    assert_int_equal(report_apply(r->co, w, &x.m, &err), 0);
    let_steps();
    while (j->n_rounds == 0)
        loop_turn(r->loop, true);
    assert_int_equal(j->rounds[0].contributions, 1);
    assert_int_equal(j->rounds[0].expected, 2);
    assert_int_equal(w->n_verdicts, 1);
    assert_int_equal(w->verdicts[0].task_id, x.m.task_id);
    assert_false(w->verdicts[0].accepted);
    assert_non_null(strstr(w->verdicts[0].reason, "after round 1 was closed"));
    assert_int_equal(w->tasks_failed, 0);
}

static size_t verdicts_heard(struct rig *r, struct fake *w, bool unheard)
{
    Skerry__V1__HeartbeatRequest beat = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    beat.unheard = unheard;
    assert_int_equal(CALL(r, w, HEARTBEAT, heartbeat, &beat), 0);
    Skerry__V1__HeartbeatReply *reply =
        skerry__v1__heartbeat_reply__unpack(NULL, w->reply_len, w->reply);
    const size_t n = reply->n_applied;
    skerry__v1__heartbeat_reply__free_unpacked(reply, NULL);
    settle(r);
    return n;
}

/* A verdict is told until an answer that has it came: the next heartbeat says whether one did. */
static void test_unheard_verdict(void **state)
{
    struct rig *r = *state;
    struct fake *w = &r->workers[0];
    assert_int_equal(join(r, w, SKERRY_VERSION), 0);
    member_verdict(r->co, w->id, &(struct verdict){.task_id = 5, .accepted = true});
    core_touch(r->co);
    settle(r);
    assert_int_equal(verdicts_heard(r, w, false), 1);
    assert_int_equal(verdicts_heard(r, w, true), 1);
    assert_int_equal(verdicts_heard(r, w, true), 1);
    assert_int_equal(verdicts_heard(r, w, false), 0);
    assert_int_equal(state_worker(&r->co->state, w->id)->n_verdicts, 0);
}

/* A bad contribution and a fault of our disk in one step: it goes on after the fault. */
static void test_fault_of_ours(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct result x;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    const struct module_rec *m = &j->modules[0];
    char *in_the_way = str_printf("%s/outer/%llu/%llu/full.1.safetensors", r->f.dir,
                                  (unsigned long long)j->id, (unsigned long long)m->id);
    assert_int_equal(file_mkdirs(in_the_way, 0700, NULL), 0);
    assign(r, a, TASK_TRAIN);
    struct blob_ref junk = put_text(r, "this is no contribution");
    begin_result(&x, a->task, &junk);
    assert_true(report(r, a, &x));
    assign(r, a, TASK_TRAIN);
    finish_train(r, a);
    while (m->outer_failures == 0)
        loop_turn(r->loop, true);
    assert_int_equal(m->version, 0);
    assert_int_equal(file_remove_tree(in_the_way, NULL), 0);
    mem_free(in_the_way);
    WAIT_FOR(r, j->n_rounds > 0);
    assert_int_equal(m->version, 1);
    assert_int_equal(j->rounds[0].contributions, 1);
}

static char *file_of(struct rig *r, const struct blob_ref *b)
{
    struct blob_id id;
    char *path = NULL;
    memcpy(id.sha256, b->sha256, 32);
    assert_int_equal(r->co->blobs->ops->local(r->co->blobs, &id, false, &path, NULL), 0);
    return path;
}

static void until_round(struct rig *r, const struct job *j, uint32_t n)
{
    WAIT_FOR(r, j->n_rounds >= n);
}

/* Version 0 is in a store far away: it is brought on a thread, and its worker reports again without
 * having failed. */
static struct blobstore_ops far_ops;
static const struct blobstore_ops *near_ops;
static _Atomic bool is_near;

static int far_local(struct blobstore *s, const struct blob_id *id, bool wait, char **ret_path,
                     struct err *err)
{
    is_near |= wait;
    return is_near ? near_ops->local(s, id, wait, ret_path, err)
                   : err_set(err, -EAGAIN, "it is far away");
}

static void test_far_init(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct result x;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit(r));
    struct blob_ref full = put_file(r, r->f.full);
    near_ops = r->co->blobs->ops;
    far_ops = *near_ops;
    far_ops.local = far_local;
    r->co->blobs->ops = &far_ops;
    is_near = false;
    begin_result(&x, assign(r, a, TASK_INIT), &full);
    assert_int_equal(CALL(r, a, REPORT, report, &x.m), -EAGAIN);
    assert_true(a->retryable);
    WAIT_FOR(r, is_near);
    if (!report(r, a, &x))
        fail_msg("%s", a->detail);
    assert_int_equal(state_worker(&r->co->state, a->id)->tasks_failed, 0);
    assert_int_equal(j->modules[0].n_versions, 1);
    r->co->blobs->ops = near_ops;
}

/* Our disk loses a bit of what was acknowledged: of a contribution, whose phase is done again, and
 * of the outer optimiser, which waits for a person. */
static void test_lost_bits(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct result x;
    char why[REASON_MAX];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    uint64_t first = a->task->id;
    struct blob_ref blob = contribute(r, a->task, 7, 0.01f);
    begin_result(&x, a->task, &blob);
    assert_true(report(r, a, &x));
    char *path = file_of(r, &blob);
    fx_flip(path);
    mem_free(path);
    assign(r, a, TASK_TRAIN);
    finish_train(r, a);
    assign(r, a, TASK_TRAIN);
    assert_int_equal(a->task->id, first);
    assert_int_equal(a->task->attempt, 2);
    assert_int_equal(edit_worker(r, a->id)->tasks_failed, 0);
    finish_train(r, a);
    until_round(r, j, 1);
    assert_int_equal(j->rounds[0].contributions, 2);
    const struct module_rec *m = &j->modules[0];
    path = str_printf("%s/outer/%llu/%llu/target.1.safetensors", r->f.dir,
                      (unsigned long long)j->id, (unsigned long long)m->id);
    fx_flip(path);
    for (int i = 0; i < 2; i++) {
        assign(r, a, TASK_TRAIN);
        finish_train(r, a);
    }
    while (!query_stalled(&r->co->state, j, why))
        loop_turn(r->loop, true);
    assert_int_equal(m->version, 1);
    assert_non_null(strstr(why, "the outer optimiser's target is damaged"));
    fx_flip(path);
    mem_free(path);
    until_round(r, j, 2);
    assert_false(query_stalled(&r->co->state, j, why));
    assert_int_equal(m->version, 2);
}

static void test_cancelled_in_a_step(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct result x;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    finish_train(r, a);
    assign(r, a, TASK_TRAIN);
    struct blob_ref blob = contribute(r, a->task, 7, 0.01f);
    begin_result(&x, a->task, &blob);
    hold_steps(r);
    assert_int_equal(report_apply(r->co, edit_worker(r, a->id), &x.m, NULL), 0);
    while (j->modules[0].outer_task == 0)
        loop_turn(r->loop, false);
    assert_int_equal(view_job_cancel(r->co, j->id, NULL), 0);
    let_steps();
    char *dir = str_printf("%s/outer/%llu", r->f.dir, (unsigned long long)j->id);
    WAIT_FOR(r, j->modules[0].outer_task == 0 && !file_is_dir(dir));
    mem_free(dir);
}

/* The same broken images in every phase count once, named or not. */
static void test_bad_samples(void **state)
{
    enum { NAMED = 6, ALL = 8 };
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    Skerry__V1__BadSample bad[NAMED], *list[NAMED];
    char keys[NAMED][24];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    for (int i = 0; i < NAMED; i++) {
        skerry__v1__bad_sample__init(&bad[i]);
        (void)snprintf(keys[i], sizeof(keys[i]), "image-%d", i);
        bad[i].key = keys[i];
        bad[i].reason = (char *)"cut short";
        list[i] = &bad[i];
    }
    for (int phase = 0; phase < 2; phase++) {
        struct result x;
        assign(r, a, TASK_TRAIN);
        struct blob_ref blob = contribute(r, a->task, 7, 0.01f);
        begin_result(&x, a->task, &blob);
        x.m.bad = list;
        x.m.n_bad = NAMED;
        x.m.bad_count = ALL;
        assert_true(report(r, a, &x));
        assert_int_equal(j->bad_count, ALL);
        assert_int_equal(j->n_bad, NAMED);
    }
}

/* Phases bounded by time: the schedule goes by the rounds, and for workers that do not know that
 * its end is foretold from the last phase. */
static void test_seconds(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    j->spec.outer.steps = 0;
    j->spec.outer.seconds = 10;
    do_init(r, a);
    for (int replica = 0; replica < 2; replica++) {
        struct result x;
        assign(r, a, TASK_TRAIN);
        assert_int_equal(a->task->train->seconds, 10);
        assert_int_equal(a->task->train->total_steps, 0); /* nobody knows yet */
        assert_true(a->task->train->done_from == 0 && a->task->train->done_to == 0.5);
        struct blob_ref blob = contribute(r, a->task, 7, 0.01f);
        begin_result(&x, a->task, &blob);
        x.m.seconds = 1; /* 8 samples, then there were no more */
        assert_true(report(r, a, &x));
    }
    assign(r, a, TASK_TRAIN);
    assert_int_equal(a->task->train->first_step, 2);
    assert_int_equal(a->task->train->total_steps, 2 + 80 / 4);
    assert_true(a->task->train->done_from == 0.5 && a->task->train->done_to == 1);
}

/* Async: the schedule is the job's, although replicas do not have the same number of phases. */
static void test_async_schedule(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit(r));
    j->spec.outer.async = true;
    do_init(r, a);
    job_edit_path(j, 0)->phases = 1; /* of 4, by anybody */
    assign(r, a, TASK_TRAIN);
    assert_true(a->task->train->seconds == 0 && a->task->train->first_step == 0);
    assert_true(a->task->train->done_from == 0.25 && a->task->train->done_to == 0.75);
}

/* A connection belongs to the worker that joined on it last. */
static void test_two_workers_on_a_connection(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    uint64_t first = a->id;
    a->identity[0] = a->instance[0] = 77;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_not_equal(a->id, first);
    assert_null(state_worker(&r->co->state, first)->peer);
    assert_non_null(state_worker(&r->co->state, a->id)->peer);
}

/* Neither our restart nor our full disk is held against a worker. */
static void test_excused(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    stop(r);
    start(r);
    struct worker *w = edit_worker(r, a->id);
    assert_int_equal(w->state, WORKER_HERE);
    assert_true(w->heard_ms >= core_now(r->co) + 10000); /* the longest pause of a dialler */
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    r->co->store_ok = false;
    w->heard_ms = core_now(r->co) - r->co->opt.lease_ms - 1000;
    member_check(r->co);
    assert_int_equal(w->state, WORKER_HERE);
    r->co->store_ok = true;
    w->heard_ms = core_now(r->co) - r->co->opt.lease_ms - 1000;
    member_check(r->co);
    assert_int_equal(w->state, WORKER_LOST);
}

/* We were stopped, or sat in a commit, for far longer than a lease: nobody could be heard. */
static void test_standstill(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    (void)submit(r);
    struct task *t = task_memory(state_task(&r->co->state, assign(r, a, TASK_INIT)->id));
    struct worker *w = edit_worker(r, a->id), *cut = edit_worker(r, b->id);
    uint64_t now = core_now(r->co);
    r->co->checked_ms = now - 70000;
    w->heard_ms = t->progress_ms = t->leased_ms = now - 70100;
    cut->heard_ms = cut->closed_ms = now - 70200;
    member_check(r->co);
    assert_int_equal(t->state, TASK_LEASED);
    assert_int_equal(w->state, WORKER_HERE);
    assert_int_equal(cut->state, WORKER_HERE);
    assert_int_equal(now - w->heard_ms, 100 + CORE_TICK_MS); /* as old as it was when we stopped */
    assert_int_equal(now - t->progress_ms, 100 + CORE_TICK_MS);
    assert_int_equal(now - t->leased_ms,
                     100 + CORE_TICK_MS); /* what it takes is no longer either */
    assert_int_equal(now - cut->closed_ms, 200 + CORE_TICK_MS);
    rpc_client_close(b->rpc); /* it had hung up, which we hear only now */
    b->rpc = NULL;
    cut->closed_ms = 0;
    while (cut->closed_ms == 0)
        loop_turn(r->loop, true);
    assert_true(cut->closed_ms > now + 10000 && cut->heard_ms == cut->closed_ms);
    w->heard_ms = now - r->co->opt.lease_ms - 1;
    member_check(r->co); /* and now we listen */
    assert_int_equal(w->state, WORKER_LOST);
}

/* A heartbeat of a's task; true: it counted as progress. */
static bool beat(struct rig *r, struct fake *a, uint32_t steps, const char *activity)
{
    Skerry__V1__HeartbeatRequest m = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    Skerry__V1__Progress p = SKERRY__V1__PROGRESS__INIT;
    struct task *t = task_memory(state_task(&r->co->state, a->task->id));
    uint64_t before = t->progress_ms = core_now(r->co) - 1000;
    p.task_id = t->id;
    p.attempt = a->task->attempt;
    p.steps_done = steps;
    p.activity = (char *)activity;
    m.progress = &p;
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &m), 0);
    return t->progress_ms != before;
}

/* Words are no progress: only steps beyond those that were reached keep the lease. */
static void test_words_keep_no_lease(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    (void)submit(r);
    struct task *t = task_memory(state_task(&r->co->state, assign(r, a, TASK_INIT)->id));
    assert_true(beat(r, a, 1, "at one"));
    assert_true(beat(r, a, 2, "at two"));
    assert_false(beat(r, a, 2, "other words"));
    assert_false(beat(r, a, 1, "at one again"));
    t->progress_ms = core_now(r->co) - 61000;
    member_check(r->co);
    assert_int_equal(t->state, TASK_PENDING);
    assert_non_null(strstr(t->reason, "no progress for 61 s"));
    assert_int_equal(state_worker(&r->co->state, a->id)->state, WORKER_HERE);
}

/* Taken for lost, and back before anybody else had the task: it goes on with its attempt, by a
 * heartbeat or by what it has finished meanwhile. */
static void test_back_in_time(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    (void)submit(r);
    do_init(r, a);
    struct task *t = task_memory(state_task(&r->co->state, assign(r, a, TASK_TRAIN)->id));
    for (int i = 0; i < 2; i++) {
        edit_worker(r, a->id)->closed_ms = core_now(r->co) - 1000;
        member_check(r->co);
        assert_true(t->state == TASK_PENDING && t->attempt == 2);
        assert_int_equal(state_worker(&r->co->state, a->id)->state, WORKER_LOST);
        assert_int_equal(join(r, a, SKERRY_VERSION), 0);
        if (i == 0)
            assert_true(beat(r, a, 1, "training"));
        else
            finish_train(r, a);
        assert_int_equal(t->attempt, 1);
        assert_int_equal(t->state, i == 0 ? TASK_LEASED : TASK_DONE);
    }
    t = task_memory(state_task(&r->co->state, assign(r, a, TASK_TRAIN)->id));
    edit_worker(r, a->id)->closed_ms = core_now(r->co) - 1000;
    member_check(r->co);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    t->ready_ms = 0;
    assert_int_equal(assign(r, b, TASK_TRAIN)->id, t->id);
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    (void)beat(r, a, 1, "training");
    assert_true(t->worker_id == b->id && t->attempt == 2); /* too late */
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
#define LIVE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        LIVE(test_late_contribution),
        LIVE(test_unheard_verdict),
        LIVE(test_fault_of_ours),
        LIVE(test_lost_bits),
        LIVE(test_far_init),
        LIVE(test_cancelled_in_a_step),
        LIVE(test_bad_samples),
        LIVE(test_seconds),
        LIVE(test_async_schedule),
        LIVE(test_two_workers_on_a_connection),
        LIVE(test_excused),
        LIVE(test_standstill),
        LIVE(test_words_keep_no_lease),
        LIVE(test_back_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
