/* A turn: what waits for a commit leaves after it, in order, and not at all while it fails; while
 * the commit is under way the loop goes on.  A whole coordinator (rig.h). */
#include "coordinator/turn.h"
#include "tests/unit/coordinator/rig.h"
#include "tests/unit/coordinator/slow_disk.h"
#include "coordinator/work/gc.h"
#include "coordinator/work/member.h"

#include <signal.h>
#include <sys/resource.h>

/* What was called, in order: r a reply was made, d a durable. */
static char called[64];
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

/* A turn to the end of its commit. */
static void turn_over(struct coordinator *co)
{
    turn(co);
    while (co->writing)
        loop_turn(co->loop, true);
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
    turn_over(r->co);
    assert_string_equal(called, "rrde");
    assert_int_equal(said, 0);
    assert_int_equal(r->co->n_replies, 0);
    turn_over(r->co); /* once each */
    assert_string_equal(called, "rrde");
}

/* What a callback asks for is durable after the next commit, not after this one. */
static void test_next_commit(void **state)
{
    struct rig *r = *state;
    memset(called, 0, sizeof(called));
    core_when_durable(r->co, ask_again, r->co);
    turn_over(r->co);
    assert_string_equal(called, "a");
    assert_true(r->co->turn_scheduled);
    turn_over(r->co);
    assert_string_equal(called, "ad");
}

/* All that a turn has changed is one commit; without a change there is none. */
static void test_one_commit(void **state)
{
    struct rig *r = *state;
    turn_over(r->co);
    uint64_t before = store_commits(r->co->store);
    turn_over(r->co);
    assert_int_equal(store_commits(r->co->store), before);
    submit(r);
    submit(r);
    turn_over(r->co);
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
    turn_over(r->co); /* the commit itself goes well */
    assert_int_equal(j->state, JOB_PENDING);
    assert_true(r->co->store_ok);
    assert_string_equal(r->co->store_error, "");
    assert_string_equal(called, "");
    turn_over(r->co);
    assert_string_equal(called, "rrde");
    assert_int_equal(j->state, JOB_INITIALISING);
}

/* A commit that fails keeps all that waits for it, and is tried again; the answers are not made
 * for each trial. */
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
    assert_int_equal(co->store_code, -ENOSPC);
    assert_null(strpbrk(called, "de")); /* the replies were made, and thrown away */
    assert_int_equal(co->n_replies, 2);
    enum job_state then = state_job(&co->state, job)->state;
    uint64_t until = clock_now_ms() + DEADLINE_MS;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    for (int i = 0; i < 3; i++)
        turn_over(co);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_string_equal(called, "rr");
    while (!co->store_ok) { /* nobody asks for it */
        assert_true(clock_now_ms() < until);
        assert_int_equal(state_job(&co->state, job)->state, then);
        loop_turn(r->loop, true);
    }
    settle(r);
    assert_string_equal(called, "rrrrde"); /* made anew, once */
}

/* Another failure than a full disk is not called one. */
static void test_failed_otherwise(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    char *db = fx_path(&r->f, "coordinator.db"), *aside = fx_path(&r->f, "aside");
    settle(r);
    (void)submit(r);
    assert_int_equal(rename(db, aside), 0);
    settle(r);
    assert_int_equal(core_writable(r->co, &err), -EIO);
    assert_non_null(strstr(err.msg, "was removed or replaced"));
    assert_int_equal(rename(aside, db), 0);
    WAIT_FOR(r, r->co->store_ok);
    assert_int_equal(core_writable(r->co, &err), 0);
    mem_free(aside);
    mem_free(db);
}

/* The optimiser's state of a job goes when its end is on record: until then a restart goes on with
 * the job. */
static void test_end_not_written(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct rlimit was, tight;
    char *outer = fx_path(&r->f, "outer/1");
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    const uint64_t job = submit(r);
    do_init(r, a);
    for (int i = 0; i < 2; i++) {
        assign(r, a, TASK_TRAIN);
        finish_train(r, a);
    }
    WAIT_FOR(r, state_job(&r->co->state, job)->modules[0].version > 0);
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
    WAIT_FOR(r, !file_is_dir(outer));
    assert_true(r->co->store_ok);
    assert_false(file_is_dir(outer));
    mem_free(outer);
}

/* ---- while a commit is under way ------------------------------------------- */

/* A commit that does not end before let_go(). */
static void stall_now(struct rig *r)
{
    slow_disk_stand(true);
    (void)submit(r);
    turn(r->co);
    assert_true(r->co->writing);
    slow_disk_wait();
}

static void stall(struct rig *r)
{
    settle(r);
    stall_now(r);
}

static void let_go(struct rig *r)
{
    slow_disk_stand(false);
    settle(r);
}

/* What comes meanwhile is the next commit's, and does not leave with this one. */
static void test_under_way(void **state)
{
    struct rig *r = *state;
    stall(r);
    const uint64_t commits = store_commits(r->co->store);
    queue(r->co);
    for (int i = 0; i < 20; i++)
        loop_turn(r->loop, false);
    turn(r->co);
    assert_string_equal(called, "");
    assert_true(r->co->writing);
    (void)submit(r);
    slow_disk_stand(false);
    while (store_commits(r->co->store) == commits)
        loop_turn(r->loop, true);
    assert_string_equal(called, "");
    settle(r);
    assert_string_equal(called, "rrde");
    assert_int_equal(said, 0);
}

static void beat(struct rig *r, struct fake *a, const Skerry__V1__Progress *p)
{
    Skerry__V1__HeartbeatRequest m = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    m.progress = (Skerry__V1__Progress *)p;
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &m), 0);
}

/* A heartbeat is answered, also one with points; a report and a join are not, and then they are. */
static void test_workers_wait(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    struct result x;
    Skerry__V1__JoinRequest j = SKERRY__V1__JOIN_REQUEST__INIT;
    Skerry__V1__Progress p = SKERRY__V1__PROGRESS__INIT;
    Skerry__V1__LossPoint point = SKERRY__V1__LOSS_POINT__INIT, *points[] = {&point};
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    dial(r, b);
    submit(r);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    p.task_id = a->task->id;
    p.attempt = a->task->attempt;
    p.points = points;
    p.n_points = 1;
    struct blob_ref blob = contribute(r, a->task, 1, 0.01f);
    stall(r);
    beat(r, a, NULL);
    beat(r, a, &p);
    begin_result(&x, a->task, &blob);
    begin_call(r, a, SKERRY__V1__METHOD__METHOD_REPORT, &x.m,
               &skerry__v1__report_reply__descriptor);
    j.name = j.device = (char *)"late";
    j.version = (char *)SKERRY_VERSION;
    j.instance.data = j.identity.data = b->identity;
    j.instance.len = j.identity.len = 16;
    begin_call(r, b, SKERRY__V1__METHOD__METHOD_JOIN, &j, &skerry__v1__join_reply__descriptor);
    while (r->co->n_replies < 2)
        loop_turn(r->loop, true);
    assert_false(a->done || b->done);
    const struct task *t = state_task(&r->co->state, x.m.task_id);
    assert_int_equal(t->state, TASK_DONE); /* in memory, and nobody was told */
    assert_false(core_row_durable(r->co, &t->row));
    let_go(r);
    wait_for(r, &a->done);
    wait_for(r, &b->done);
    assert_int_equal(a->code, 0);
    assert_int_equal(b->code, 0);
    assert_true(core_row_durable(r->co, &t->row));
}

/* A heartbeat does not tell of a lease that was taken away before that is durable. */
static void test_revoked_when_durable(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    Skerry__V1__Progress p = SKERRY__V1__PROGRESS__INIT;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    const uint64_t job = submit(r);
    p.task_id = assign(r, a, TASK_INIT)->id;
    p.attempt = a->task->attempt;
    stall(r);
    assert_int_equal(view_job_cancel(r->co, job, NULL), 0);
    for (int i = 0; i < 2; i++) {
        beat(r, a, &p);
        Skerry__V1__HeartbeatReply *reply =
            skerry__v1__heartbeat_reply__unpack(NULL, a->reply_len, a->reply);
        assert_int_equal(reply->revoked_task_id, i == 0 ? 0 : p.task_id);
        skerry__v1__heartbeat_reply__free_unpacked(reply, NULL);
        let_go(r);
    }
}

/* Nor does it, or a refusal, tell a worker that it is gone; and what somebody is refused for a
 * task that is not his any more is durable, too. */
static void test_gone_when_durable(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    Skerry__V1__AssignRequest q = SKERRY__V1__ASSIGN_REQUEST__INIT;
    Skerry__V1__StreamRequest s = SKERRY__V1__STREAM_REQUEST__INIT;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    settle(r);
    for (int gone = 0; gone < 2; gone++) {
        stall(r);
        if (gone)
            member_lost(r->co, edit_worker(r, a->id), WORKER_LOST, "was not heard");
        else
            (void)submit(r); /* what is not durable could be that the task has ended */
        s.task_id = 7;
        s.text = (char *)"";
        if (gone) {
            beat(r, a, NULL);
            Skerry__V1__HeartbeatReply *reply =
                skerry__v1__heartbeat_reply__unpack(NULL, a->reply_len, a->reply);
            assert_false(reply->rejoin);
            skerry__v1__heartbeat_reply__free_unpacked(reply, NULL);
            begin_call(r, a, SKERRY__V1__METHOD__METHOD_ASSIGN, &q,
                       &skerry__v1__assign_reply__descriptor);
        } else {
            begin_call(r, a, SKERRY__V1__METHOD__METHOD_STREAM, &s,
                       &skerry__v1__stream_reply__descriptor);
        }
        const unsigned before = r->co->n_replies;
        for (uint64_t until = clock_now_ms() + DEADLINE_MS; r->co->n_replies == before;) {
            assert_true(!a->done && clock_now_ms() < until);
            loop_turn(r->loop, true);
        }
        assert_false(a->done);
        let_go(r);
        wait_for(r, &a->done);
        assert_int_equal(a->code, -ERR_STALE);
        assert_int_equal(a->retryable, gone); /* it joins again, and its text is given up */
    }
}

/* That somebody is not known any more is not durable when it is queued. */
static void test_gone_is_queued(void **state)
{
    struct coordinator *co = ((struct rig *)*state)->co;
    state_drop_worker(&co->state, state_add_worker(&co->state, 0));
    assert_false(core_gone_durable(co));
    assert_false(core_is_shown(co, NULL));
    assert_false(co->writing);
    assert_int_equal(co->state.workers_gone.n, 0);
    assert_false(core_gone_durable(co));
    core_touch(co);
    settle(*state);
    assert_true(core_gone_durable(co));
}

/* What cannot be queued now is nobody's final answer. */
static void test_refused_when_full(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    Skerry__V1__StreamRequest s = SKERRY__V1__STREAM_REQUEST__INIT;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    settle(r);
    s.task_id = 7;
    s.text = (char *)"";
    r->co->n_replies += CORE_REPLIES_MAX;
    begin_call(r, a, SKERRY__V1__METHOD__METHOD_STREAM, &s, &skerry__v1__stream_reply__descriptor);
    wait_for(r, &a->done);
    r->co->n_replies -= CORE_REPLIES_MAX;
    assert_int_equal(a->code, -EAGAIN);
    assert_true(a->retryable);
}

/* Leases stand still, however long it takes. */
static void test_leases_stand(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    submit(r);
    assign(r, a, TASK_INIT);
    stall(r);
    loop_timer_stop(r->co->tick);
    struct worker *w = worker_memory(state_worker(&r->co->state, a->id));
    const uint64_t now = core_now(r->co);
    assert_true(now > 30000); /* since the machine started */
    for (unsigned ms = 20000; ms > 0; ms -= CORE_TICK_MS) {
        w->heard_ms = now - 1000;
        r->co->writing_ms = now - ms;
        r->co->checked_ms = now - CORE_TICK_MS;
        r->co->awaited_ms = 0;
        member_check(r->co);
        assert_int_equal(now - w->heard_ms, ms > CORE_TICK_MS ? 1000 - CORE_TICK_MS : 1000);
        assert_int_equal(r->co->awaited_ms, 0); /* we listened */
    }
    assert_int_equal(w->state, WORKER_HERE);
    loop_timer_start(r->co->tick, CORE_TICK_MS, CORE_TICK_MS);
    let_go(r);
}

static void note_shown(void *arg, int rc)
{
    *(int *)arg = rc;
}

/* What is shown of a job waits for the commit that has it, not for any other. */
static void test_shown(void **state)
{
    struct rig *r = *state;
    struct coordinator *co = r->co;
    int first = 1, second = 1, third = 1;
    struct job *j = state_job(&co->state, submit(r));
    stall(r);
    struct job *k = co->state.jobs[1];
    assert_false(core_when_shown(co, j, note_shown, &first)); /* durable since before */
    assert_true(core_when_shown(co, k, note_shown, &first));
    assert_true(core_when_shown(co, NULL, note_shown, &second));
    assert_int_equal(view_job_cancel(co, j->id, NULL), 0);
    assert_true(core_when_shown(co, j, note_shown, &third));
    const uint64_t commits = store_commits(co->store);
    slow_disk_stand(false);
    while (store_commits(co->store) == commits)
        loop_turn(r->loop, true);
    assert_int_equal(first, 0);
    assert_int_equal(second, 0);
    assert_int_equal(third, 1);
    settle(r);
    assert_int_equal(third, 0);
    assert_false(core_when_shown(co, NULL, note_shown, &first));
}

/* Who has lost the log of the state, and does not know it yet, must not delete what the new owner
 * names: so deleting from a store needs a row. */
static void test_garbage(void **state)
{
    struct rig *r = *state;
    struct coordinator *co = r->co;
    const struct blob_ref gone = {.size = 1, .sha256 = {1}};
    turn_over(co);
    gc_drop(co, &gone);
    turn(co);
    assert_false(co->writing);
    gc_drop(co, &gone);
    co->ship = (struct ship *)r; /* any, which is not looked at */
    turn(co);
    co->ship = NULL;
    assert_true(co->writing);
    while (co->writing)
        loop_turn(co->loop, true);
}

static int said_of_first;

static void on_first(void *arg, int rc)
{
    said_of_first = rc;
}

/* The commit that is under way ends before the coordinator does; who waits for it is told, who
 * waits for the next one is refused. */
static void test_close_under_way(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    settle(r);
    said = said_of_first = 1;
    core_when_durable(r->co, on_first, NULL);
    stall_now(r);
    core_when_durable(r->co, on_durable, NULL);
    slow_disk_stand(false);
    stop(r);
    assert_int_equal(said_of_first, 0);
    assert_int_equal(said, -ERR_CANCELLED);
    start(r);
    assert_int_equal(r->co->state.n_jobs, 1);
    settle(r);
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
    turn_over(r->co);
    assert_string_equal(called, "rrde");
}

#define LIVE(test) cmocka_unit_test_setup_teardown(test, begin, settle_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LIVE(test_order),           LIVE(test_next_commit),
        LIVE(test_one_commit),      LIVE(test_not_writable),
        LIVE(test_failed),          LIVE(test_failed_otherwise),
        LIVE(test_end_not_written), LIVE(test_closing),
        LIVE(test_garbage),         LIVE(test_under_way),
        LIVE(test_workers_wait),    LIVE(test_leases_stand),
        LIVE(test_shown),           LIVE(test_revoked_when_durable),
        LIVE(test_close_under_way), LIVE(test_gone_when_durable),
        LIVE(test_gone_is_queued),  LIVE(test_refused_when_full),
    };
    (void)signal(SIGXFSZ, SIG_IGN);
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
