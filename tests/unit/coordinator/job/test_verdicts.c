/* What the senders of a phase's contributions are told when its modules fare differently: a whole
 * coordinator (rig.h), a job of two modules. */
#include "tests/unit/coordinator/rig.h"

#include "coordinator/rpc/report.h"
#include "coordinator/work/member.h"

#define SPEC(outer)                                                                                \
    "name: fake\nseed: 3\ndata: {path: x, image_size: 16}\n"                                       \
    "model: {type: dit, patch: 4, dim: 32, depth: 2, heads: 2}\n"                                  \
    "train: {batch: 4, lr: 0.1}\nrecipe: {replicas: 2}\n"                                          \
    "outer: {rounds: 4, steps: 2, fragments: 2, quorum: 0.5, late: drop, " outer "}\n"             \
    "sample: {count: 4}\n"

/* A report of up to two modules. */
struct two {
    Skerry__V1__ReportRequest m;
    Skerry__V1__Contribution c[2], *list[2];
    Skerry__V1__Blob blob[2];
    struct blob_ref ref[2];
};

static void begin_two(struct two *x, const Skerry__V1__Task *t)
{
    skerry__v1__report_request__init(&x->m);
    x->m.task_id = t->id;
    x->m.attempt = t->attempt;
    x->m.steps = 2;
    x->m.samples = 8;
    x->m.loss_mean = 0.5f;
    x->m.contributions = x->list;
}

static void add(struct two *x, unsigned module, uint64_t base, struct blob_ref ref)
{
    const size_t i = x->m.n_contributions++;
    skerry__v1__contribution__init(&x->c[i]);
    skerry__v1__blob__init(&x->blob[i]);
    x->ref[i] = ref;
    x->blob[i].sha256 = (ProtobufCBinaryData){32, x->ref[i].sha256};
    x->blob[i].size = ref.size;
    x->c[i].module_id = MODULE + module;
    x->c[i].base_version = base;
    x->c[i].blob = &x->blob[i];
    x->list[i] = &x->c[i];
}

/* A contribution to that module by noise. */
static struct blob_ref noise(struct rig *r, const Skerry__V1__Task *t, unsigned module)
{
    char full[4096], *path = fx_path(&r->f, "contribution");
    float *theta = fx_array(), *theta_end = fx_array();
    const struct job *j = state_job(&r->co->state, t->job_id);
    const struct version_rec *v = module_version(&j->modules[module], t->train->round);
    struct contribution_result made;
    struct err err = {0};
    struct blob_id id;
    memcpy(id.sha256, v->full.sha256, 32);
    assert_int_equal(blob_file(r->co->blobs, &id, full, sizeof(full)), 0);
    fx_read_flat(full, theta);
    fx_normal(t->id * 2 + module, 0.01f, theta_end);
    for (size_t i = 0; i < PARAMS; i++)
        theta_end[i] += theta[i];
    struct contribution_job job =
        fx_job(full, t->train->round, theta_end, (enum codec)j->spec.wire.up, 8, path);
    job.module_id = MODULE + module;
    if (contribution_write(&job, &made, &err) < 0)
        fail_msg("%s", err.msg);
    struct blob_ref ref = put_file(r, path);
    free(theta);
    free(theta_end);
    mem_free(path);
    return ref;
}

static bool send_two(struct rig *r, struct fake *w, const struct two *x)
{
    if (CALL(r, w, REPORT, report, &x->m) != 0)
        fail_msg("REPORT: %s", w->detail);
    Skerry__V1__ReportReply *reply = skerry__v1__report_reply__unpack(NULL, w->reply_len, w->reply);
    const bool accepted = reply->accepted;
    (void)snprintf(w->detail, sizeof(w->detail), "%s", reply->reason);
    skerry__v1__report_reply__free_unpacked(reply, NULL);
    return accepted;
}

static const struct job *begun(struct rig *r, const char *spec)
{
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    struct two x;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit_spec(r, spec));
    begin_two(&x, assign(r, a, TASK_INIT));
    for (unsigned m = 0; m < 2; m++)
        add(&x, m, 0, put_file(r, r->f.full));
    assert_true(send_two(r, a, &x));
    (void)assign(r, a, TASK_TRAIN);
    (void)assign(r, b, TASK_TRAIN);
    return j;
}

static void wait_version(struct rig *r, const struct module_rec *m, uint64_t version)
{
    WAIT_FOR(r, m->version >= version);
}

/* One part of the phase, in the middle of it. */
static void send_part(struct rig *r, struct fake *w, unsigned module)
{
    struct two x;
    begin_two(&x, w->task);
    x.m.snapshot = true;
    add(&x, module, w->task->train->round, noise(r, w->task, module));
    if (!send_two(r, w, &x))
        fail_msg("%s", w->detail);
}

static void check(const struct verdict *v, uint64_t task, uint64_t module, bool accepted)
{
    assert_int_equal(v->task_id, task);
    assert_int_equal(v->module_id, module);
    assert_int_equal(v->accepted, accepted);
}

/* Its second module's step begins without it: the residual of the first one is what was left, that
 * of the second one is not. */
static void one_module_is_late(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    const struct job *j = begun(r, SPEC("grace: 0.3"));
    const uint64_t task = b->task->id;
    struct err err = {0};
    struct two x;
    send_part(r, b, 0);
    send_part(r, a, 0);
    wait_version(r, &j->modules[0], 1);
    begin_two(&x, b->task);
    add(&x, 1, 0, noise(r, b->task, 1));
    hold_steps(r);
    send_part(r, a, 1);
    while (j->modules[1].outer_task == 0)
        loop_turn(r->loop, true);
    struct worker *w = edit_worker(r, b->id);
    assert_int_equal(report_apply(r->co, w, &x.m, &err), 0);
    let_steps();
    wait_version(r, &j->modules[1], 1);
    begin_two(&x, a->task);
    assert_true(send_two(r, a, &x));
    settle(r);
    assert_int_equal(j->paths[0].round, 1);
    assert_int_equal(w->n_verdicts, 2);
    check(&w->verdicts[0], task, MODULE + 1, false);
    assert_non_null(strstr(w->verdicts[0].reason, "after round 1 was closed"));
    check(&w->verdicts[1], task, 0, true);
    assert_int_equal(state_worker(&r->co->state, a->id)->n_verdicts, 1);
    check(&state_worker(&r->co->state, a->id)->verdicts[0], a->task->id, 0, true);
    /* So the worker hears it. */
    ask(r, b, 0);
    (void)got(r, b);
    assert_int_equal(b->assigned->n_applied, 2);
    assert_int_equal(b->assigned->applied[0]->module_id, MODULE + 1);
    assert_int_equal(b->assigned->applied[1]->module_id, 0);
}

/* A contribution to one module is refused, and has to be made again: nothing is said of the other.
 * When it comes again, what was said is of the past. */
static void one_module_is_made_again(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    const struct job *j = begun(r, SPEC("grace: 600"));
    const struct worker *w = state_worker(&r->co->state, a->id);
    const uint64_t task = a->task->id;
    struct two x;
    j = state_job(&r->co->state, j->id);
    state_job(&r->co->state, j->id)->spec.outer.quorum = 1;
    send_part(r, a, 0);
    begin_two(&x, a->task);
    add(&x, 1, 0, put_text(r, "this is no contribution"));
    assert_true(send_two(r, a, &x));
    send_part(r, b, 0);
    send_part(r, b, 1);
    WAIT_FOR(r, w->n_verdicts > 0);
    assert_int_equal(w->n_verdicts, 1);
    check(&w->verdicts[0], task, MODULE + 1, false);
    wait_version(r, &j->modules[0], 1);
    edit_task(r, task)->not_before_ms = 0;
    memset(&edit_task(r, task)->failed, 0, sizeof(struct failure_list));
    assert_int_equal(assign(r, a, TASK_TRAIN)->id, task);
    assert_int_equal(a->assigned->n_applied, 1);
    begin_two(&x, a->task);
    add(&x, 1, 0, noise(r, a->task, 1));
    assert_true(send_two(r, a, &x));
    wait_version(r, &j->modules[1], 1);
    begin_two(&x, b->task);
    assert_true(send_two(r, b, &x));
    settle(r);
    assert_int_equal(w->n_verdicts, 1);
    check(&w->verdicts[0], task, 0, true);
}

/* A worker is lost with its second module; who does the phase anew makes the first one again, for
 * nothing. */
static void one_module_is_made_in_vain(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1], *c = &r->workers[2];
    Skerry__V1__LeaveRequest bye = SKERRY__V1__LEAVE_REQUEST__INIT;
    const struct job *j = begun(r, SPEC("grace: 600"));
    const uint64_t task = a->task->id;
    struct two x;
    send_part(r, a, 0);
    assert_int_equal(CALL(r, a, LEAVE, leave, &bye), 0);
    assert_int_equal(join(r, c, SKERRY_VERSION), 0);
    edit_task(r, task)->ready_ms = 0; /* nobody is waited for */
    assert_int_equal(assign(r, c, TASK_TRAIN)->id, task);
    begin_two(&x, c->task);
    for (unsigned m = 0; m < 2; m++)
        add(&x, m, 0, noise(r, c->task, m));
    assert_true(send_two(r, c, &x));
    const struct worker *w = state_worker(&r->co->state, c->id);
    assert_int_equal(w->n_verdicts, 1);
    check(&w->verdicts[0], task, MODULE, false);
    begin_two(&x, b->task);
    for (unsigned m = 0; m < 2; m++)
        add(&x, m, 0, noise(r, b->task, m));
    assert_true(send_two(r, b, &x));
    wait_version(r, &j->modules[0], 1);
    wait_version(r, &j->modules[1], 1);
    settle(r);
    assert_int_equal(w->n_verdicts, 2);
    check(&w->verdicts[1], task, 0, true);
    check(&state_worker(&r->co->state, a->id)->verdicts[0], task, 0, true);
}

static void beat(struct rig *r, struct fake *w)
{
    Skerry__V1__HeartbeatRequest m = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    assert_int_equal(CALL(r, w, HEARTBEAT, heartbeat, &m), 0);
}

/* More than an answer holds wait for the next one, and no task makes still more of them meanwhile.
 */
static void many_are_told_in_turn(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    const unsigned n = APPLIED_MAX + 5;
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    (void)submit(r);
    for (unsigned i = 0; i < n; i++)
        member_verdict(r->co, a->id, &(struct verdict){.task_id = 1000 + i});
    settle(r);
    const struct worker *w = state_worker(&r->co->state, a->id);
    assert_int_equal(w->n_verdicts, n);
    ask(r, a, 20);
    assert_null(got(r, a));
    assert_int_equal(a->assigned->n_applied, APPLIED_MAX);
    assert_int_equal(a->assigned->applied[0]->task_id, 1000);
    assert_non_null(strstr(a->assigned->waiting_for, "what became of 69 contributions"));
    beat(r, a);
    beat(r, a); /* which confirms what the first was answered */
    assert_int_equal(w->n_verdicts, n - APPLIED_MAX);
    assert_int_equal(w->verdicts[0].task_id, 1000 + APPLIED_MAX);
    (void)assign(r, a, TASK_INIT);
}

static void all_are_on_record(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    for (unsigned i = 0; i < 2 * APPLIED_MAX; i++)
        member_verdict(r->co, a->id, &(struct verdict){.task_id = 1000 + i});
    stop(r);
    start(r);
    assert_int_equal(state_worker(&r->co->state, a->id)->n_verdicts, 2 * APPLIED_MAX);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(one_module_is_late),         TEST(one_module_is_made_again),
        TEST(one_module_is_made_in_vain), TEST(many_are_told_in_turn),
        TEST(all_are_on_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
