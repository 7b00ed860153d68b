/* A job from submit to its end, fences, restarts, bad results, full disk: on a
 * whole coordinator (rig.h). */
#include "common/net/ticket.h"
#include "coordinator/rpc/service.h"
#include "coordinator/work/member.h"
#include "coordinator/work/twins.h"
#include "tests/unit/coordinator/rig.h"

/* ---- tests --------------------------------------------------------------- */

static void test_life(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    assert_int_not_equal(a->id, b->id);
    uint64_t job = submit(r);
    do_init(r, a);
    for (int round = 0; round < 2; round++) {
        assign(r, a, TASK_TRAIN);
        assign(r, b, TASK_TRAIN);
        assert_int_not_equal(a->task->train->replica, b->task->train->replica);
        assert_int_equal(a->task->train->round, round);
        assert_int_equal(a->task->train->first_step, 2 * round);
        assert_int_equal(a->task->n_modules, 1);
        assert_non_null(a->task->modules[0]->full);
        assert_true(waiting(r) >= 3); /* the version, and two workers */
        /* The warm replica comes back to its worker. */
        if (round == 1)
            assert_int_equal(a->assigned->n_applied, 1);
        finish_train(r, a);
        finish_train(r, b);
    }
    finish_job(r, a);
    check_end(r, job);
}

/* What a worker is told when it asks where to send a file of its phase; coming: of the delta. */
static void ticket(struct rig *r, struct fake *w, uint8_t name, uint64_t module,
                   char coming[TICKET_PATH_MAX])
{
    Skerry__V1__TicketRequest m = SKERRY__V1__TICKET_REQUEST__INIT;
    Skerry__V1__Contribution c = SKERRY__V1__CONTRIBUTION__INIT;
    uint8_t sha256[32] = {name};
    m.task_id = w->task->id;
    m.attempt = w->task->attempt;
    m.sha256 = (ProtobufCBinaryData){32, sha256};
    m.size = 1 << 20;
    c.module_id = module;
    c.samples = 12;
    m.contribution = module != 0 ? &c : NULL;
    assert_int_equal(CALL(r, w, TICKET, ticket, &m), 0);
    Skerry__V1__TicketReply *reply = skerry__v1__ticket_reply__unpack(NULL, w->reply_len, w->reply);
    assert_non_null(reply);
    assert_true(!reply->have && str_starts(reply->url, "/v1/blobs/"));
    assert_true(str_copy(coming, TICKET_PATH_MAX, reply->coming));
    skerry__v1__ticket_reply__free_unpacked(reply, NULL);
}

/* Whoever announces a contribution is told where the next delta will be sent: all of a module the
 * same place, each with a ticket of its own. */
static void test_announced(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    char path[2][TICKET_PATH_MAX], none[TICKET_PATH_MAX];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    (void)submit(r);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    const uint64_t module = a->task->modules[0]->module_id;
    ticket(r, a, 1, 0, none);
    assert_string_equal(none, "");
    ticket(r, a, 1, module + 77, none);
    assert_string_equal(none, "");
    ticket(r, a, 1, module, path[0]);
    ticket(r, a, 1, module, path[1]);
    assert_true(str_starts(path[0], "/v1/blobs/") && strstr(path[0], "m=GET"));
    const size_t n = strcspn(path[0], "?");
    assert_true(n > 70 && strncmp(path[0], path[1], n) == 0);
}

/* A worker hears which jobs are over, however old one is that goes on. */
static void test_jobs_that_are_over(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    const uint64_t first = submit(r), second = submit(r);
    assert_int_equal(view_job_pause(r->co, first, true, NULL), 0);
    (void)assign(r, a, TASK_INIT);
    assert_int_equal(a->task->job_id, second);
    assert_int_equal(a->assigned->n_going, 2);
    assert_int_equal(a->assigned->over_before, second + 1);
    assert_int_equal(view_job_cancel(r->co, second, NULL), 0);
    settle(r);
    ask(r, a, 600);
    assert_null(got(r, a));
    assert_true(a->assigned->n_going == 1 && a->assigned->going[0] == first);
    assert_int_equal(a->assigned->over_before, second + 1);
    assert_int_equal(a->assigned->ended_before, first);
}

static void test_fences(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    struct result x;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    uint64_t job = submit(r);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    struct blob_ref blob = contribute(r, a->task, 1, 0.01f);
    begin_result(&x, a->task, &blob);
    /* The same ask again: the answer was lost on the way. */
    uint64_t id = a->task->id;
    assign(r, a, TASK_TRAIN);
    assert_int_equal(a->task->id, id);
    /* Another's task, a wrong attempt. */
    assert_false(report(r, b, &x));
    x.m.attempt++;
    assert_false(report(r, a, &x));
    assert_non_null(strstr(a->detail, "lost its lease"));
    x.m.attempt--;
    assert_true(report(r, a, &x));
    assert_true(report(r, a, &x)); /* a repeated one is fine and counts once */
    const struct job *j = state_job(&r->co->state, job);
    struct ledger_epoch e;
    ledger_figures(j->ledgers[0], 0, &e);
    assert_int_equal(e.done, 8);
    /* A worker that says good-bye gives its task back at once. */
    assign(r, b, TASK_TRAIN);
    id = b->task->id;
    begin_result(&x, b->task, &blob);
    Skerry__V1__LeaveRequest leave = SKERRY__V1__LEAVE_REQUEST__INIT;
    assert_int_equal(CALL(r, b, LEAVE, leave, &leave), 0);
    assert_int_equal(state_task(&r->co->state, id)->state, TASK_PENDING);
    assert_int_equal(CALL(r, b, REPORT, report, &x.m), -ERR_STALE);
    assign(r, a, TASK_TRAIN);
    assert_int_equal(a->task->id, id);
    assert_int_equal(a->task->attempt, 2);
    finish_train(r, a);
    wait_state(r, job, JOB_RUNNING);
}

/* A heartbeat that says nothing new waits for no commit, and its row is not looked at; points of a
 * curve wait for one, by which nothing advances. */
static void test_heartbeat_commits(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    submit(r);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    Skerry__V1__HeartbeatRequest beat = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    Skerry__V1__Progress p = SKERRY__V1__PROGRESS__INIT;
    Skerry__V1__LossPoint point = SKERRY__V1__LOSS_POINT__INIT, *points[] = {&point};
    beat.progress = &p;
    p.task_id = a->task->id;
    p.attempt = a->task->attempt;
    uint64_t commits = store_commits(r->co->store);
    for (p.steps_done = 1; p.steps_done < 20; p.steps_done++) {
        r->co->touched = false;
        begin_call(r, a, SKERRY__V1__METHOD__METHOD_HEARTBEAT, &beat,
                   &skerry__v1__heartbeat_reply__descriptor);
        loop_timer_stop(r->co->tick); /* else it asks for turns of its own */
        wait_for(r, &a->done);
        assert_false(r->co->touched);
        assert_int_equal(r->co->state.workers_edited.n, 0);
    }
    assert_int_equal(store_commits(r->co->store), commits);
    p.points = points;
    p.n_points = 1;
    point.loss = 0.5f;
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
    assert_false(r->co->touched);
    WAIT_FOR(r, store_commits(r->co->store) != commits);
    assert_int_equal(store_commits(r->co->store), commits + 1);
    assert_false(r->co->touched);
    loop_timer_start(r->co->tick, CORE_TICK_MS, CORE_TICK_MS);
}

/* Who sends points without an end has no more of them kept than heartbeats may bring. */
static void test_points_flood(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    Skerry__V1__HeartbeatRequest beat = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    Skerry__V1__Progress p = SKERRY__V1__PROGRESS__INIT;
    Skerry__V1__LossPoint point = SKERRY__V1__LOSS_POINT__INIT, *points[256];
    for (int i = 0; i < 256; i++)
        points[i] = &point;
    beat.progress = &p;
    p.task_id = a->task->id;
    p.attempt = a->task->attempt;
    p.points = points;
    p.n_points = 256;
    point.loss = 0.5f;
    const uint64_t since = core_now(r->co);
    for (point.step = 0; point.step < 60; point.step++)
        assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
    const uint64_t beats = (core_now(r->co) - since) / r->co->opt.heartbeat_ms;
    assert_in_range(j->metric_n, 4 * 256, (beats + 6) * 256);
}

/* A newcomer's heartbeat waits in a crowd; who has a task, or has done one, is answered at once. */
static void test_heartbeat_of_a_crowd(void **state)
{
    struct rig *r = *state;
    struct coordinator *co = r->co;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    Skerry__V1__HeartbeatRequest beat = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    loop_timer_stop(co->tick);
    service_tick(co);
    assert_int_equal(co->beat_ms, 0); /* two are no crowd */
    co->beat_ms = 3600000;
    begin_call(r, a, SKERRY__V1__METHOD__METHOD_HEARTBEAT, &beat,
               &skerry__v1__heartbeat_reply__descriptor);
    WAIT_FOR(r, !list_empty(&co->beats));
    service_tick(co);
    assert_false(list_empty(&co->beats));
    submit(r);
    edit_worker(r, a->id)->task_id = 77; /* it is given something */
    service_tick(co);
    assert_true(list_empty(&co->beats));
    wait_for(r, &a->done);
    assert_int_equal(a->code, 0);
    edit_worker(r, a->id)->task_id = 0;
    loop_timer_start(co->tick, CORE_TICK_MS, CORE_TICK_MS);
    do_init(r, a);
    loop_timer_stop(co->tick);
    co->beat_ms = 3600000;
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
    begin_call(r, b, SKERRY__V1__METHOD__METHOD_HEARTBEAT, &beat,
               &skerry__v1__heartbeat_reply__descriptor); /* its answer waits when all ends */
    WAIT_FOR(r, !list_empty(&co->beats));
    co->opt.heartbeat_ms = 0;
    co->opt.lease_ms = 4 * 3600000;
    for (int i = 0; i < 3; i++)
        edit_worker(r, (i ? b : a)->id)->tasks_done = 0;
    service_tick(co);
    assert_int_equal(co->beat_ms, 1); /* two, of 2,000 a second */
}

/* Who has told a result and asks again a moment later is served before somebody new that waits; who
 * does not ask is not waited for. */
static void test_asks_again(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1], *c = &r->workers[2];
    for (int i = 0; i < 3; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    submit(r);
    assign(r, a, TASK_INIT);
    ask(r, b, 15000);
    ask(r, c, 15000);
    finish_init(r, a);
    wait_for(r, &b->done);
    assign(r, a, TASK_TRAIN);
    assert_false(c->done);
    finish_train(r, a);
    submit(r);
    assert_int_equal(got(r, c)->kind, SKERRY__V1__TASK_KIND__TASK_KIND_INIT);
    assert_int_equal(got(r, b)->kind, SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN);
}

static void test_revoked(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    uint64_t job = submit(r);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    Skerry__V1__HeartbeatRequest beat = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    Skerry__V1__Progress p = SKERRY__V1__PROGRESS__INIT;
    Skerry__V1__LossPoint point = SKERRY__V1__LOSS_POINT__INIT, *points[] = {&point};
    p.task_id = a->task->id;
    p.attempt = a->task->attempt;
    p.steps_done = 1;
    p.signs = 9;
    p.loss = 0.25f;
    p.points = points;
    p.n_points = 1;
    point.step = 1;
    point.loss = 0.25f;
    beat.progress = &p;
    beat.bytes_up = 1000;
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
    assert_int_equal(state_worker(&r->co->state, a->id)->bytes[2], 1000);
    struct task *t = task_memory(state_task(&r->co->state, p.task_id));
    assert_int_equal(state_job(&r->co->state, job)->metric_n, 1);
    t->progress_ms = 0;
    p.signs++; /* a checkpoint is being written: between two steps, but it keeps the lease */
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
    assert_true(t->progress_ms > 0);
    assert_int_equal(view_job_cancel(r->co, job, NULL), 0);
    settle(r);
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
    Skerry__V1__HeartbeatReply *reply =
        skerry__v1__heartbeat_reply__unpack(NULL, a->reply_len, a->reply);
    assert_int_equal(reply->revoked_task_id, p.task_id);
    assert_non_null(strstr(reply->revoked_reason, "cancelled"));
    skerry__v1__heartbeat_reply__free_unpacked(reply, NULL);
    assert_true(view_job_cancel(r->co, job, NULL) < 0);
    assert_int_equal(waiting(r), 0);
}

/* A heartbeat with what the worker does for the task that it lost. */
static bool told_to_go_on(struct rig *r, struct fake *a, Skerry__V1__Progress *p)
{
    Skerry__V1__HeartbeatRequest beat = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    beat.progress = p;
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
    Skerry__V1__HeartbeatReply *reply =
        skerry__v1__heartbeat_reply__unpack(NULL, a->reply_len, a->reply);
    assert_int_equal(reply->revoked_task_id, p->task_id);
    const bool goes_on = reply->job_goes_on;
    skerry__v1__heartbeat_reply__free_unpacked(reply, NULL);
    return goes_on;
}

/* Who lost a task by the clock makes ready what the next one needs, as long as there will be one.
 */
static void test_goes_on(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    const uint64_t job = submit(r);
    do_init(r, a);
    struct task *t = task_memory(state_task(&r->co->state, assign(r, a, TASK_TRAIN)->id));
    Skerry__V1__Progress p = SKERRY__V1__PROGRESS__INIT;
    p.task_id = t->id;
    p.attempt = t->attempt;
    p.activity = (char *)"starting the trainer";
    t->progress_ms = core_now(r->co) - 120000;
    member_check(r->co);
    settle(r);
    assert_int_equal(t->state, TASK_PENDING);
    assert_true(told_to_go_on(r, a, &p));
    assert_string_equal(state_worker(&r->co->state, a->id)->activity, p.activity);
    assert_int_equal(view_job_pause(r->co, job, true, NULL), 0);
    settle(r);
    assert_false(told_to_go_on(r, a, &p));
    assert_int_equal(view_job_pause(r->co, job, false, NULL), 0);
    settle(r);
    assert_true(told_to_go_on(r, a, &p));
    assert_int_equal(view_job_cancel(r->co, job, NULL), 0);
    settle(r);
    assert_false(told_to_go_on(r, a, &p));
}

/* A speed that makes no sense counts as unknown, and one of who is not at work adds to no sum. */
static void test_speed(void **state)
{
    const float none[] = {NAN, INFINITY, -3};
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct view_status v;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    submit(r);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    Skerry__V1__HeartbeatRequest beat = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    Skerry__V1__Progress p = SKERRY__V1__PROGRESS__INIT;
    p.task_id = a->task->id;
    p.attempt = a->task->attempt;
    beat.progress = &p;
    for (size_t i = 0; i < 3; i++) {
        p.samples_per_second = none[i];
        assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
        view_status(r->co, &v);
        assert_true(v.images_per_s == 0);
    }
    p.samples_per_second = 40;
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
    view_status(r->co, &v);
    assert_true(v.images_per_s == 40);
    struct view_worker w;
    assert_int_equal(view_worker(r->co, a->id, &w, NULL), 0);
    assert_true(w.images_per_s == 40);
    finish_train(r, a);
    assert_int_equal(state_worker(&r->co->state, a->id)->task_id, 0);
    /* It tells what it reached last, as it does until it trains again. */
    beat.progress = NULL;
    beat.throughput = 40;
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
    view_status(r->co, &v);
    assert_true(v.images_per_s == 0);
    assert_int_equal(view_worker(r->co, a->id, &w, NULL), 0);
    assert_true(isnan(w.images_per_s));
}

/* What a heartbeat says of devices is kept as it was until another one says more, and what
 * makes no sense counts as unknown. */
static void test_devices(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    const struct devices *d = &state_worker(&r->co->state, a->id)->devices;
    assert_true(isnan(devices_mfu(d)));
    Skerry__V1__HeartbeatRequest beat = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    Skerry__V1__DeviceState m[2] = {SKERRY__V1__DEVICE_STATE__INIT, SKERRY__V1__DEVICE_STATE__INIT};
    Skerry__V1__DeviceState *list[2] = {&m[0], &m[1]};
    char longest[500];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    m[0].name = (char *)"cuda:0";
    m[0].model = longest;
    m[0].utilization = 101;
    m[0].power = NAN;
    m[0].ecc_errors = -7;
    m[0].temperature = 55;
    m[1].utilization = 40;
    beat.devices = list;
    beat.n_devices = 2;
    beat.flops = 2e12;
    beat.peak_flops = INFINITY;
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
    assert_int_equal(d->n, 2);
    assert_string_equal(d->list[0].name, "cuda:0");
    assert_int_equal(strlen(d->list[0].model), sizeof(d->list[0].model) - 1);
    assert_int_equal(d->list[0].utilization, -1);
    assert_true(d->list[0].power == 0.0f);
    assert_int_equal(d->list[0].ecc_errors, -1);
    assert_int_equal(d->list[0].temperature, 55);
    assert_int_equal(d->list[1].utilization, 40);
    assert_true(isnan(devices_mfu(d))); /* of what is not known nothing is made */
    beat.n_devices = 0;
    beat.flops = NAN;
    beat.peak_flops = 4e12;
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
    assert_int_equal(d->n, 2);
    assert_true(devices_mfu(d) == 0.5);
    member_lost(r->co, edit_worker(r, a->id), WORKER_LOST, "silent");
    assert_int_equal(d->n, 0);
    assert_true(isnan(devices_mfu(d)));
}

/* How a worker's devices share a step stays as it was told last; what makes no sense counts as
 * unknown. */
static void test_step_plan(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    const struct step_plan *p = &state_worker(&r->co->state, a->id)->devices.plan;
    Skerry__V1__HeartbeatRequest beat = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    Skerry__V1__StepPlan m = SKERRY__V1__STEP_PLAN__INIT;
    char longest[200];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    assert_int_equal(p->devices, 0);
    m.schedule = SKERRY__V1__SCHEDULE__SCHEDULE_SPLIT;
    m.devices = 4;
    m.stages = 2;
    m.predicted_s = 0.5;
    m.idle_before = 0.25f;
    m.idle = -1;
    m.inside = 1.5f;
    m.measured_s = NAN;
    m.filled_with = longest;
    beat.plan = &m;
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
    assert_string_equal(p->schedule, "split");
    assert_int_equal(p->widest_stage, 1); /* an older worker does not tell */
    assert_int_equal(p->stages, 2);
    assert_true(p->predicted_s == 0.5 && p->measured_s == 0 && p->idle_before == 0.25);
    assert_true(isnan(p->idle) && isnan(p->inside));
    assert_int_equal(strlen(p->filled_with), sizeof(p->filled_with) - 1);
    beat.plan = NULL;
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
    assert_int_equal(p->devices, 4);
    m.schedule = SKERRY__V1__SCHEDULE__SCHEDULE_JOINED;
    m.widest_stage = 3;
    beat.plan = &m;
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
    assert_string_equal(p->schedule, "joined");
    assert_int_equal(p->widest_stage, 3);
    m.schedule = SKERRY__V1__SCHEDULE__SCHEDULE_DIVIDED;
    beat.plan = &m;
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
    assert_string_equal(p->schedule, "divided");
    m.schedule = (Skerry__V1__Schedule)77;
    m.predicted_s = 0; /* of which no share is known */
    beat.plan = &m;
    assert_int_equal(CALL(r, a, HEARTBEAT, heartbeat, &beat), 0);
    assert_string_equal(p->schedule, "");
    assert_true(p->predicted_s == 0 && isnan(p->idle_before));
}

/* The daemon is replaced in the middle of a phase: the lease is still there. */
static void test_restart(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct result x;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    uint64_t job = submit(r), before = a->id;
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    struct blob_ref blob = contribute(r, a->task, 1, 0.01f);
    begin_result(&x, a->task, &blob);
    stop(r);
    start(r);
    assert_int_equal(state_job(&r->co->state, job)->state, JOB_RUNNING);
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(a->id, before);
    assert_true(report(r, a, &x));
    stop(r);
    start(r);
    /* What was acknowledged is there; a new process of the worker gets the rest. */
    a->instance[0]++;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assign(r, a, TASK_TRAIN);
    assert_int_equal(a->task->train->replica, 1);
    finish_train(r, a);
    for (int i = 0; i < 2; i++) {
        assign(r, a, TASK_TRAIN);
        assert_int_equal(a->task->train->round, 1);
        finish_train(r, a);
    }
    finish_job(r, a);
    check_end(r, job);
}

/* What is told of a job that is paused.  Returns whether it is. */
static bool is_paused(struct rig *r, uint64_t job)
{
    struct view_job v;
    char want[REASON_MAX];
    assert_int_equal(view_job(r->co, job, &v, NULL), 0);
    (void)snprintf(want, sizeof(want), "a person has paused it; `skerry resume %llu` lets it go on",
                   (unsigned long long)job);
    assert_string_equal(v.stalled, v.paused ? want : "");
    return v.paused;
}

/* What runs goes on to its end and counts, over a restart; nobody is given more until it is
 * resumed. */
static void test_pause(void **state)
{
    const struct draw_request draw = {.guidance = NAN, .temperature = NAN};
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    struct result x;
    struct err err = {0};
    uint64_t drawn;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    uint64_t job = submit(r);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    struct blob_ref blob = contribute(r, a->task, 1, 0.01f);
    begin_result(&x, a->task, &blob);
    assert_false(is_paused(r, job));
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    struct worker *w = edit_worker(r, b->id);
    w->served = job;
    w->price = 3600;
    w->since_ms = core_now(r->co) - 1000;
    assert_int_equal(view_job_pause(r->co, job, true, &err), 0);
    assert_true(is_paused(r, job));
    assert_true(state_job(&r->co->state, job)->cost.waiting >= 1); /* until now it has waited */
    assert_int_equal(view_sample_request(r->co, job, &draw, &drawn, &err), -ERR_STALE);
    assert_non_null(strstr(err.msg, "is paused"));
    settle(r);
    stop(r);
    start(r);
    assert_true(is_paused(r, job));
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    assert_true(report(r, a, &x)); /* with the lease from before */
    ask(r, b, 1);
    assert_null(got(r, b));
    assert_non_null(strstr(b->assigned->waiting_for, "a person has paused"));
    ask(r, b, 15000);
    settle(r);
    assert_false(b->done);
    assert_int_equal(view_job_pause(r->co, job, false, &err), 0);
    assert_non_null(got(r, b)); /* who waits is told at once */
    assert_false(is_paused(r, job));
    finish_train(r, b);
    assign(r, b, TASK_TRAIN);
    assert_int_equal(b->task->train->round, 1);
    assert_int_equal(view_job_pause(r->co, job, true, &err), 0);
    assert_int_equal(view_job_cancel(r->co, job, &err), 0); /* it may end while it is paused */
    assert_false(is_paused(r, job));
    assert_int_equal(view_job_pause(r->co, job, false, &err), -ERR_STALE);
    assert_int_equal(view_job_pause(r->co, 99, true, &err), -ERR_NOTFOUND);
}

/* A broken contribution is refused by the check, its phase is done again. */
static void test_bad_contribution(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct result x;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    uint64_t job = submit(r);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    struct blob_ref junk = put_text(r, "this is no contribution");
    begin_result(&x, a->task, &junk);
    assert_true(report(r, a, &x)); /* it is looked into when it is folded */
    uint64_t bad = a->task->id;
    assign(r, a, TASK_TRAIN);
    finish_train(r, a);
    wait_state(r, job, JOB_RUNNING);
    /* One good of two is a quorum: the round closes without the bad one. */
    assign(r, a, TASK_TRAIN);
    const struct job *j = state_job(&r->co->state, job);
    assert_int_equal(j->modules[0].version, 1);
    assert_int_equal(j->rounds[0].contributions, 1);
    assert_int_equal(j->rounds[0].expected, 2);
    assert_true(state_task(&r->co->state, bad)->train.contributions[0].refused);
    assert_int_equal(state_worker(&r->co->state, a->id)->tasks_failed, 1);
    bool told_bad = false;
    for (size_t i = 0; i < a->assigned->n_applied; i++)
        told_bad |= a->assigned->applied[i]->task_id == bad && !a->assigned->applied[i]->accepted;
    assert_true(told_bad);
}

static void test_all_bad(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    uint64_t job = submit(r);
    do_init(r, a);
    for (int i = 0; i < 2; i++) {
        struct result x;
        assign(r, a, TASK_TRAIN);
        struct blob_ref junk = put_text(r, i ? "junk one" : "junk two");
        begin_result(&x, a->task, &junk);
        assert_true(report(r, a, &x));
    }
    /* Nothing changed, both phases come again with a new attempt. */
    assign(r, a, TASK_TRAIN);
    assert_int_equal(a->task->attempt, 2);
    assert_int_equal(state_job(&r->co->state, job)->modules[0].version, 0);
    finish_train(r, a);
}

static void test_refused_results(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct result x;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    uint64_t job = submit(r);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    struct blob_ref blob = contribute(r, a->task, 1, 0.01f);
    begin_result(&x, a->task, &blob);
    x.m.samples = 9; /* more than it was given */
    assert_false(report(r, a, &x));
    assert_non_null(strstr(a->detail, "expected 1 to 8"));
    assert_int_equal(state_task(&r->co->state, x.m.task_id)->state, TASK_PENDING);
    assert_int_equal(state_task(&r->co->state, x.m.task_id)->failures, 1);
    /* What two workers say that nobody can do fails the job, with its reason. */
    assign(r, a, TASK_TRAIN);
    struct failure_list *failed = &edit_task(r, a->task->id)->failed;
    *failed = (struct failure_list){.at = {{.worker = 77, .lasting_ms = 1, .newest = 77}}, .n = 1};
    begin_result(&x, a->task, NULL);
    x.m.failed = true;
    x.m.reason = (char *)"this model does not fit";
    assert_true(report(r, a, &x));
    wait_state(r, job, JOB_FAILED);
    assert_non_null(strstr(state_job(&r->co->state, job)->reason, "does not fit"));
}

static void test_refused_joins(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    assert_int_equal(join(r, a, "9.0.0-other"), -EAGAIN); /* it waits */
    assert_non_null(strstr(a->detail, "upgrade the coordinator"));
    Skerry__V1__AssignRequest early = SKERRY__V1__ASSIGN_REQUEST__INIT;
    assert_int_equal(CALL(r, a, ASSIGN, assign, &early), -ERR_STALE);
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    memcpy(b->identity, a->identity, 16);
    assert_int_equal(join(r, b, SKERRY_VERSION), -EBUSY);
    assert_non_null(strstr(b->detail, "--work-dir"));
}

/* A worker's connection is cut, and processes with a copy of its identity are quicker than it. */
static void test_twins_wait(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    (void)submit(r);
    assign(r, a, TASK_INIT);
    loop_timer_stop(r->co->tick); /* however long it takes, nobody is given up */
    const struct worker *w = state_worker(&r->co->state, a->id);
    const uint64_t task = w->task_id;
    memcpy(b->identity, a->identity, 16);
    assert_int_equal(join(r, b, SKERRY_VERSION), -EBUSY); /* so it is known as one */
    hang_up(a);
    while (w->peer != NULL)
        loop_turn(r->loop, true);
    assert_int_equal(join(r, b, SKERRY_VERSION), -EBUSY);
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(w->task_id, task);
    hang_up(a);
    while (w->peer != NULL)
        loop_turn(r->loop, true);
    (void)str_copy(edit_worker(r, a->id)->address, sizeof(w->address), "192.0.2.1:99");
    b->instance[0]++; /* another one, and from elsewhere */
    assert_int_equal(join(r, b, SKERRY_VERSION), -EBUSY);
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(w->task_id, task);
    hang_up(a);
    while (w->peer != NULL)
        loop_turn(r->loop, true);
    a->instance[0]++; /* it was started again, on the same machine */
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(w->task_id, 0);
    hang_up(a);
    while (w->peer != NULL)
        loop_turn(r->loop, true);
    state_set_worker_state(&r->co->state, edit_worker(r, a->id), WORKER_LOST);
    assert_true(twins_has(r->co, w, b->instance));
    assert_int_equal(join(r, b, SKERRY_VERSION), 0); /* whose place it takes now */
    assert_false(twins_has(r->co, w, b->instance));
}

/* A worker's process was started again elsewhere while the coordinator was: it asks until the time
 * is over in which the old process might come back, and no longer. */
static void test_twins_are_told_when(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    memcpy(b->identity, a->identity, 16);
    for (int i = 0; i <= TWINS_QUICK; i++)
        assert_int_equal(join(r, b, SKERRY_VERSION), -EBUSY);
    assert_int_equal(b->retry_after_ms, TWINS_AGAIN_MS); /* the worker is alive */
    loop_timer_stop(r->co->tick);
    const struct worker *w = state_worker(&r->co->state, a->id);
    hang_up(a);
    while (w->peer != NULL)
        loop_turn(r->loop, true);
    const uint64_t back_ms = core_now(r->co) + 3000;
    edit_worker(r, a->id)->heard_ms = edit_worker(r, a->id)->closed_ms = back_ms;
    assert_int_equal(join(r, b, SKERRY_VERSION), -EBUSY);
    assert_in_range(core_now(r->co) + b->retry_after_ms, back_ms, back_ms + TWINS_QUICK_MS);
    edit_worker(r, a->id)->closed_ms = 1; /* over, and nobody has looked yet */
    assert_int_equal(join(r, b, SKERRY_VERSION), -EBUSY);
    assert_in_range(b->retry_after_ms, 1, TWINS_QUICK_MS);
}

/* A name is a cell of a table: it makes no rows, and gives no orders. */
static void test_names_are_one_line(void **state)
{
    struct rig *r = *state;
    struct fake *w = &r->workers[0];
    Skerry__V1__JoinRequest m = SKERRY__V1__JOIN_REQUEST__INIT;
    dial(r, w);
    m.name = (char *)"a\n 7  forged \x1b[2J";
    m.device = (char *)"cpu\r\xc3";
    m.version = (char *)SKERRY_VERSION;
    m.instance.data = w->instance;
    m.identity.data = w->identity;
    m.instance.len = m.identity.len = 16;
    assert_int_equal(CALL(r, w, JOIN, join, &m), 0);
    assert_string_equal(r->co->state.workers[0]->name, "a  7  forged ?[2J");
    assert_string_equal(r->co->state.workers[0]->device, "cpu ?");
}

static void test_refused_jobs(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    uint64_t id;
    struct submit_shard shard = {.sha256 = {1}, .size = 5, .samples = 4};
    static const char *const classes[] = {"cat"};
    static const uint64_t counts[] = {4};
    struct submit s = {.spec = yaml,
                       .classes = classes,
                       .counts = counts,
                       .n_classes = 1,
                       .shards = &shard,
                       .n_shards = 1};
    assert_int_equal(view_job_submit(r->co, &s, &id, &err), -ERR_NOTFOUND);
    assert_non_null(strstr(err.msg, "was not uploaded"));
    struct blob_ref blob = put_text(r, "12345");
    memcpy(shard.sha256, blob.sha256, 32);
    shard.size = 6;
    assert_int_equal(view_job_submit(r->co, &s, &id, &err), -EINVAL);
    shard.size = 5;
    shard.holdout = true;
    assert_int_equal(view_job_submit(r->co, &s, &id, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "held out"));
    shard.holdout = false;
    s.spec = "name: fake\ndata: {path: x, image_size: 16}\n"
             "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
             "train: {batch: 4}\nouter: {rounds: 2, steps: 2049}\n";
    assert_int_equal(view_job_submit(r->co, &s, &id, &err), -ERR_CONFIG); /* 4 images */
    assert_non_null(strstr(err.msg, "data.shard_samples"));
    s.spec = "name: x\nspeed: 3\n";
    assert_int_equal(view_job_submit(r->co, &s, &id, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "speed"));
    assert_int_equal(r->co->state.n_jobs, 0);
}

/* What waits for a commit is bounded: whoever comes then keeps what he has and asks again. */
static void test_backlog(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct result x;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    submit(r);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    struct blob_ref blob = contribute(r, a->task, 1, 0.01f);
    begin_result(&x, a->task, &blob);
    const unsigned before = r->co->n_replies;
    r->co->n_replies = CORE_REPLIES_MAX;
    assert_int_equal(CALL(r, a, REPORT, report, &x.m), -EAGAIN);
    assert_true(a->retryable);
    r->co->n_replies = before;
    assert_true(report(r, a, &x));
}

/* While nothing can be written nothing is acknowledged, and then it goes on. */
static void test_disk_full(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct err err = {0};
    uint64_t id;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    r->co->store_ok = false;
    r->co->store_code = -ENOSPC;
    (void)str_copy(r->co->store_error, sizeof(r->co->store_error), "the disk is full");
    assert_int_equal(try_submit(r, yaml, &id, &err), -ENOSPC);
    assert_non_null(strstr(err.msg, "the disk is full"));
    assert_int_equal(waiting(r), 1);
    ask(r, a, 1000);
    wait_for(r, &a->done);
    assert_int_equal(a->code, -ENOSPC);
    core_touch(r->co); /* the retry's timer does this */
    settle(r);
    assert_true(r->co->store_ok);
    submit(r);
    do_init(r, a);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
#define LIVE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        LIVE(test_life),
        LIVE(test_announced),
        LIVE(test_jobs_that_are_over),
        LIVE(test_fences),
        LIVE(test_heartbeat_commits),
        LIVE(test_points_flood),
        LIVE(test_speed),
        LIVE(test_revoked),
        LIVE(test_goes_on),
        LIVE(test_devices),
        LIVE(test_step_plan),
        LIVE(test_restart),
        LIVE(test_pause),
        LIVE(test_bad_contribution),
        LIVE(test_all_bad),
        LIVE(test_refused_results),
        LIVE(test_refused_joins),
        LIVE(test_twins_wait),
        LIVE(test_twins_are_told_when),
        LIVE(test_names_are_one_line),
        LIVE(test_refused_jobs),
        LIVE(test_backlog),
        LIVE(test_disk_full),
        LIVE(test_asks_again),
        LIVE(test_heartbeat_of_a_crowd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
