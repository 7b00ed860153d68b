/* Contributions within a phase, versions told to a phase that goes on, and phases without
 * rounds: on a whole coordinator (rig.h).  One module, so one fragment: it contributes
 * after the first of two steps and is merged after the second. */
#include "coordinator/rpc/report.h"
#include "tests/unit/coordinator/rig.h"

static const char stream[] = "name: fake\nseed: 3\n"
                             "data: {path: x, image_size: 16}\n"
                             "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                             "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 2}\n"
                             "outer: {rounds: 2, steps: 2, delay: 1, mix: 0.5}\n"
                             "sample: {count: 4}\n";

static const char async[] = "name: fake\nseed: 3\n"
                            "data: {path: x, image_size: 16}\n"
                            "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                            "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 2}\n"
                            "outer: {rounds: 2, steps: 2, async: true, warmup: 2}\n"
                            "sample: {count: 4}\n";

static const char async_long[] = "name: fake\nseed: 3\n"
                                 "data: {path: x, image_size: 16}\n"
                                 "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                                 "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 2}\n"
                                 "outer: {rounds: 20, steps: 2, async: true}\n"
                                 "sample: {count: 4}\n";

static const char timed[] = "name: fake\nseed: 3\n"
                            "data: {path: x, image_size: 16}\n"
                            "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                            "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 2}\n"
                            "outer: {rounds: 2, seconds: %d, async: true, grace: 8}\n"
                            "sample: {count: 4}\n";

static struct job *begin_job(struct rig *r, const char *spec, unsigned workers)
{
    for (unsigned i = 0; i < workers; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    uint64_t job = submit_spec(r, spec);
    do_init(r, &r->workers[0]);
    for (unsigned i = 0; i < workers; i++)
        assign(r, &r->workers[i], TASK_TRAIN);
    return state_job(&r->co->state, job);
}

/* The contribution after one step. */
static bool send_part(struct rig *r, struct fake *w)
{
    struct result x;
    struct blob_ref blob = contribute(r, w->task, w->task->id, 0.01f);
    begin_result(&x, w->task, &blob);
    x.m.snapshot = true;
    x.m.steps = 1;
    x.m.samples = 4;
    return report(r, w, &x);
}

/* The report at the end, without anything that has been sent before. */
static bool send_end(struct rig *r, struct fake *w)
{
    struct result x;
    begin_result(&x, w->task, NULL);
    x.m.waited_ms = 25;
    return report(r, w, &x);
}

static void ask_version(struct rig *r, struct fake *w, uint64_t version)
{
    Skerry__V1__VersionRequest m = SKERRY__V1__VERSION_REQUEST__INIT;
    m.task_id = w->task->id;
    m.attempt = w->task->attempt;
    m.module_id = MODULE;
    m.version = version;
    m.held = version - 1;
    m.wait_ms = 15000;
    begin_call(r, w, SKERRY__V1__METHOD__METHOD_VERSION, &m,
               &skerry__v1__version_reply__descriptor);
}

static Skerry__V1__VersionReply *got_version(struct rig *r, struct fake *w)
{
    wait_for(r, &w->done);
    if (w->code != 0)
        fail_msg("VERSION: %s", w->detail);
    return skerry__v1__version_reply__unpack(NULL, w->reply_len, w->reply);
}

static void leave(struct rig *r, struct fake *w)
{
    Skerry__V1__LeaveRequest m = SKERRY__V1__LEAVE_REQUEST__INIT;
    assert_int_equal(CALL(r, w, LEAVE, leave, &m), 0);
    w->instance[0]++; /* when it joins again it is a new process */
}

/* What was the word on the task in the last answer? */
static int verdict_on(const struct fake *w, uint64_t task)
{
    for (size_t i = 0; i < w->assigned->n_applied; i++)
        if (w->assigned->applied[i]->task_id == task)
            return w->assigned->applied[i]->accepted;
    return -1;
}

static void newest(void *arg, const struct view_module *m)
{
    *(uint64_t *)arg = m->version;
}

static void count(void *arg, const struct version_rec *v)
{
    ++*(unsigned *)arg;
}

/* The new version is made, its commit fails: neither the worker that waits for it nor anybody who
 * looks is told before another commit has it. */
static void test_told_after_the_commit(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    const struct module_rec *m = &begin_job(r, stream, 2)->modules[0];
    char *wal = str_printf("%s/coordinator.db-wal", r->f.dir), *away = str_printf("%s.away", wal);
    uint64_t version = 7;
    unsigned shown = 0;
    assert_true(send_part(r, a));
    ask_version(r, a, 1);
    struct blob_ref blob = contribute(r, b->task, b->task->id, 0.01f);
    struct result x;
    begin_result(&x, b->task, &blob);
    x.m.snapshot = true;
    x.m.samples = 4;
    hold_steps(r);
    assert_int_equal(report_apply(r->co, edit_worker(r, b->id), &x.m, NULL), 0);
    while (m->outer_task == 0)
        loop_turn(r->loop, false);
    assert_int_equal(m->version, 0);
    assert_int_equal(rename(wal, away), 0);
    let_steps();
    WAIT_FOR(r, !r->co->store_ok && m->version > 0);
    for (int i = 0; i < 100; i++)
        loop_turn(r->loop, false);
    assert_false(a->done);
    view_each_module(r->co, 0, newest, &version);
    view_each_version(r->co, m->id, count, &shown);
    assert_int_equal(version, 0);
    assert_int_equal(shown, 1);
    assert_int_equal(rename(away, wal), 0);
    skerry__v1__version_reply__free_unpacked(got_version(r, a), NULL);
    assert_true(r->co->store_ok);
    view_each_module(r->co, 0, newest, &version);
    assert_int_equal(version, 1);
    mem_free(wal);
    mem_free(away);
}

static void test_within_a_phase(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    const struct job *j = begin_job(r, stream, 2);
    const Skerry__V1__TrainTask *t = a->task->train;
    uint64_t first = a->task->id;
    assert_int_equal(t->n_fragments, 1);
    assert_int_equal(t->fragments[0]->step, 1);
    assert_int_equal(t->delay, 1);
    assert_true(t->mix == 0.5f && !t->fragments[0]->done);
    assert_true(send_part(r, a));
    assert_true(send_part(r, a)); /* once more: the answer was lost */
    assert_int_equal(state_task(&r->co->state, first)->train.n_contributions, 1);
    assert_int_equal(state_task(&r->co->state, first)->state, TASK_LEASED);
    ask_version(r, a, 1);
    loop_turn(r->loop, false);
    assert_false(a->done); /* the other one works on it */
    assert_true(send_part(r, b));
    Skerry__V1__VersionReply *reply = got_version(r, a);
    assert_non_null(reply->module);
    assert_int_equal(reply->module->version, 1);
    assert_int_equal(reply->module->n_deltas, 1);
    assert_int_equal(reply->module->deltas[0]->from, 0);
    skerry__v1__version_reply__free_unpacked(reply, NULL);
    assert_int_equal(j->modules[0].version, 1);
    assert_int_equal(j->paths[0].round, 0); /* the second step is still made */
    assert_true(send_end(r, a));
    assert_int_equal(j->paths[0].round, 0);
    assert_true(send_end(r, b));
    assign(r, a, TASK_TRAIN);
    assert_int_equal(a->task->train->round, 1);
    assert_int_equal(verdict_on(a, first), 1);
    assert_int_equal(j->rounds[0].contributions, 2);
    assert_int_equal(j->rounds[0].steps, 4);
    assert_int_equal(j->waited_ms, 50);
    assert_int_equal(j->modules[0].folded, 2);
    assert_int_equal(j->modules[0].stale_max, 0);
}

/* When the worker was last seen to get on, if that was a while ago, after some turns. */
static uint64_t got_on(struct rig *r, struct fake *w, uint64_t then_ms)
{
    task_memory(state_task(&r->co->state, w->task->id))->progress_ms = then_ms;
    for (int i = 0; i < 3; i++) {
        core_touch(r->co);
        settle(r);
    }
    return state_task(&r->co->state, w->task->id)->progress_ms;
}

/* Who has contributed is not stuck while it waits for the others; who has not waits for itself, and
 * who asks for what is there, or for ever, does not get on either. */
static void test_waiting_is_progress(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    (void)begin_job(r, stream, 2);
    const uint64_t then = core_now(r->co);
    ask_version(r, a, UINT64_MAX);
    assert_int_equal(got_on(r, a, then), then);
    assert_true(send_part(r, a));
    assert_true(got_on(r, a, then - 1) > then - 1);
    assert_true(send_part(r, b));
    while (state_job(&r->co->state, a->task->job_id)->modules[0].version == 0)
        loop_turn(r->loop, true);
    assert_int_equal(got_on(r, a, then), then);
}

/* However often a worker asks for a version, one of its questions waits. */
static void test_asked_again(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    (void)begin_job(r, stream, 2);
    ask_version(r, a, 1);
    settle(r);
    assert_false(a->done);
    ask_version(r, a, 1);
    wait_for(r, &a->done);
    assert_int_equal(a->code, -ERR_CANCELLED);
    a->done = false;
    settle(r);
    assert_false(a->done);
}

/* Its worker is lost after it has contributed: the next attempt does without. */
static void test_new_attempt(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1], *c = &r->workers[2];
    uint64_t job = begin_job(r, stream, 2)->id, task = a->task->id;
    assert_true(send_part(r, a));
    leave(r, a);
    stop(r); /* what is acknowledged is kept */
    start(r);
    const struct job *j = state_job(&r->co->state, job);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    assert_int_equal(join(r, c, SKERRY_VERSION), 0);
    assign(r, c, TASK_TRAIN);
    assert_int_equal(c->task->id, task);
    assert_int_equal(c->task->attempt, 2);
    assert_true(c->task->train->fragments[0]->done);
    assert_int_equal(c->task->modules[0]->version, 0);
    assert_true(send_part(r, b));
    assert_true(send_end(r, b));
    assert_true(send_end(r, c));
    assign(r, b, TASK_TRAIN);
    assert_int_equal(j->paths[0].round, 1);
    assert_int_equal(j->rounds[0].contributions, 2);
    /* The word on the contribution is for who made it. */
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    ask(r, a, 0);
    (void)got(r, a);
    assert_int_equal(verdict_on(a, task), 1);
}

/* Who has the phase of a lost one that had given all is not waited for. */
static void test_taken_at_the_end(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1], *c = &r->workers[2];
    struct job *j = begin_job(r, stream, 2);
    const uint64_t task = a->task->id;
    job_note_time(&j->phase_ms, 60000); /* so it does not lose it by the clock */
    assert_true(send_part(r, a));
    leave(r, a);
    assert_int_equal(join(r, c, SKERRY_VERSION), 0);
    assert_int_equal(assign(r, c, TASK_TRAIN)->id, task);
    edit_task(r, task)->begun = true; /* it trains */
    assert_true(send_part(r, b));
    assert_true(send_end(r, b));
    assign(r, b, TASK_TRAIN);
    assert_int_equal(j->paths[0].round, 1);
    assert_int_equal(j->rounds[0].contributions, 2);
    assert_int_equal(state_task(&r->co->state, task)->state, TASK_DONE);
    assert_int_equal(state_worker(&r->co->state, c->id)->task_id, 0);
}

/* Its worker is lost when nothing but the last steps was left: nobody makes them again. */
static void test_lost_at_the_end(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    const struct job *j = begin_job(r, stream, 2);
    uint64_t task = a->task->id;
    assert_true(send_part(r, a));
    assert_true(send_part(r, b));
    ask_version(r, b, 1);
    skerry__v1__version_reply__free_unpacked(got_version(r, b), NULL);
    leave(r, a);
    assert_true(send_end(r, b));
    assign(r, b, TASK_TRAIN);
    assert_int_equal(state_task(&r->co->state, task)->state, TASK_DONE);
    assert_int_equal(j->paths[0].round, 1);
    assert_int_equal(j->rounds[0].contributions, 2);
    struct ledger_epoch e;
    ledger_figures(j->ledgers[0], 0, &e);
    assert_int_equal(e.done, 16);
}

/* What was made within the phase and left with its last report weighs what it would have weighed
 * if its own had been in time; what says nothing weighs what the report counts. */
static void test_left_at_the_end(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    uint64_t tasks[2], expected[2] = {4, 8};
    (void)begin_job(r, stream, 2);
    for (unsigned i = 0; i < 2; i++) {
        struct fake *w = i == 0 ? a : b;
        struct result x;
        struct blob_ref blob = contribute(r, w->task, w->task->id, 0.01f);
        begin_result(&x, w->task, &blob);
        x.c.samples = i == 0 ? 4 : 0;
        tasks[i] = w->task->id;
        assert_true(report(r, w, &x));
    }
    for (unsigned i = 0; i < 2; i++) {
        const struct task *t = state_task(&r->co->state, tasks[i]);
        assert_int_equal(t->train.contributions[0].samples, expected[i]);
        assert_int_equal(t->samples, 8);
    }
}

/* Nobody works for the other replica: who has contributed is told not to wait. */
static void test_later(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    const struct job *j = begin_job(r, stream, 1);
    assert_true(send_part(r, a));
    ask_version(r, a, 1);
    Skerry__V1__VersionReply *reply = got_version(r, a);
    assert_null(reply->module);
    assert_true(reply->later);
    skerry__v1__version_reply__free_unpacked(reply, NULL);
    assert_true(send_end(r, a));
    assign(r, a, TASK_TRAIN);
    assert_true(send_part(r, a));
    ask_version(r, a, 1);
    reply = got_version(r, a);
    assert_non_null(reply->module);
    skerry__v1__version_reply__free_unpacked(reply, NULL);
    assert_true(send_end(r, a));
    assign(r, a, TASK_TRAIN);
    assert_int_equal(a->task->train->round, 1);
    assert_int_equal(j->modules[0].version, 1);
}

static void test_refused_parts(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct result x;
    (void)begin_job(r, stream, 1);
    struct blob_ref blob = contribute(r, a->task, 1, 0.01f);
    begin_result(&x, a->task, &blob);
    x.m.snapshot = true;
    x.c.module_id = MODULE + 1;
    assert_false(report(r, a, &x));
    assert_non_null(strstr(a->detail, "not on path"));
    x.c.module_id = MODULE;
    x.c.base_version = 1;
    assert_false(report(r, a, &x));
    x.c.base_version = 0;
    x.blob.size++;
    assert_false(report(r, a, &x));
    /* None of it has ended the phase. */
    assert_int_equal(state_task(&r->co->state, a->task->id)->state, TASK_LEASED);
    x.blob.size--;
    x.c.samples = x.m.samples + 1;
    assert_false(report(r, a, &x));
    assert_non_null(strstr(a->detail, "the contribution counts 9 samples, but the report only 8"));
    x.c.samples = 0;
    assert_true(report(r, a, &x));
    Skerry__V1__VersionRequest m = SKERRY__V1__VERSION_REQUEST__INIT;
    m.task_id = a->task->id;
    m.attempt = a->task->attempt;
    m.module_id = MODULE + 1;
    assert_int_equal(CALL(r, a, VERSION, version, &m), -EINVAL);
    m.module_id = MODULE;
    m.version = 1;
    m.attempt++;
    assert_int_equal(CALL(r, a, VERSION, version, &m), -ERR_STALE);
}

static void test_nothing_contributed(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    (void)begin_job(r, stream, 1);
    assert_false(send_end(r, a));
    assert_non_null(strstr(a->detail, "has no contribution"));
    assert_int_equal(state_task(&r->co->state, a->task->id)->state, TASK_PENDING);
}

/* ---- without rounds ------------------------------------------------------ */

/* A phase from the version that the task names. */
static void finish_phase(struct rig *r, struct fake *w)
{
    struct result x;
    struct err err = {0};
    char *path = fx_path(&r->f, "contribution");
    struct contribution_result done;
    float *end = fx_array();
    fx_normal(w->task->id, 0.02f, end);
    uint64_t base = w->task->modules[0]->version;
    struct contribution_job job = fx_job(r->f.full, base, end, CODEC_E3M0, 8, path);
    assert_int_equal(contribution_write(&job, &done, &err), 0);
    struct blob_ref blob = put_file(r, path);
    begin_result(&x, w->task, &blob);
    x.c.base_version = base;
    if (!report(r, w, &x))
        fail_msg("%s", w->detail);
    free(end);
    mem_free(path);
}

static void wait_version(struct rig *r, const struct module_rec *m, uint64_t version)
{
    WAIT_FOR(r, m->version >= version);
}

/* Of the record of the version, which one contribution has made. */
static double figure_of(const struct module_rec *m, uint64_t version, const char *name)
{
    const char *at = strstr(module_version(m, version)->provenance, name);
    assert_non_null(at);
    return strtod(at + strlen(name), NULL);
}

static void test_async(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    struct job *j = begin_job(r, async, 2);
    const struct module_rec *m = &j->modules[0];
    uint64_t first = a->task->id;
    assert_int_equal(a->task->train->n_fragments, 0);
    finish_phase(r, a); /* nobody is waited for */
    wait_version(r, m, 1);
    assign(r, a, TASK_TRAIN);
    assert_int_equal(verdict_on(a, first), 1);
    assert_int_equal(a->task->modules[0]->version, 1);
    assert_int_equal(a->task->train->first_step, 2);
    assert_int_equal(j->paths[0].round, 0);
    finish_phase(r, a);
    wait_version(r, m, 2);
    loop_turn(r->loop, false);
    assert_int_equal(j->paths[0].round, 1); /* as many phases as there are replicas */
    uint64_t job = j->id;
    stop(r);
    start(r);
    j = state_job(&r->co->state, job);
    m = &j->modules[0];
    assert_int_equal(j->paths[0].phases, 2);
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    finish_phase(r, b); /* it began two versions ago */
    wait_version(r, m, 3);
    assert_non_null(strstr(m->versions[m->n_versions - 1].provenance, "\"staleness\":2"));
    assert_non_null(strstr(m->versions[m->n_versions - 1].provenance, "\"delay\":2"));
    assert_int_equal(m->stale_max, 2);
    assert_int_equal(m->folded, 3);
    /* Of two replicas each is at most one version behind, if they take turns. */
    assert_true(figure_of(m, 2, "\"scale\":") == 1);
    assert_true(figure_of(m, 3, "\"scale\":") == 1 / sqrt(2));
    /* The momentum grows by the round: half of it in the second. */
    assert_non_null(strstr(m->versions[m->n_versions - 1].provenance, "\"momentum\":0.25"));
    assign(r, a, TASK_TRAIN);
    finish_phase(r, a); /* the fourth of 2 rounds of 2 */
    finish_job(r, a);
    wait_state(r, j->id, JOB_DONE);
    assert_int_equal(m->version, 4);
    assert_int_equal(j->paths[0].phases, 4);
    assert_int_equal(j->n_rounds, 2);
}

/* The first step has nothing to be judged by: it waits for a second contribution, and of two that
 * are unlike the longer counts for little. */
static void test_async_first(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    struct job *j = begin_job(r, async_long, 2);
    const struct module_rec *m = &j->modules[0];
    struct result x;
    edit_task(r, a->task->id)->leased_ms -= 60000;
    struct blob_ref blob = contribute(r, a->task, 1, 0.1f);
    begin_result(&x, a->task, &blob);
    assert_true(report(r, a, &x));
    settle(r);
    assert_int_equal(m->version, 0);
    assert_non_null(strstr(m->outer_reason, "for another to be compared with"));
    finish_train(r, b); /* a tenth of it */
    wait_version(r, m, 2);
    assert_in_range((int)(1000 * figure_of(m, 1, "\"shrink\":")), 5, 20);
    assert_true(figure_of(m, 2, "\"shrink\":") == 1);
}

/* Whole values that come when their version is gone: the phase is done, its samples are not. */
static void test_async_late(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    struct job *j = begin_job(r, async_long, 2);
    const struct module_rec *m = &j->modules[0];
    struct ledger_epoch before, after;
    for (uint64_t v = 1; v <= m->kept; v++) {
        finish_phase(r, a);
        wait_version(r, m, v);
        assign(r, a, TASK_TRAIN);
    }
    ledger_figures(j->ledgers[0], 0, &before);
    const enum codec up = j->spec.wire.up;
    j->spec.wire.up = CODEC_F32;
    finish_phase(r, b); /* it began with version 0 */
    j->spec.wire.up = up;
    assert_int_equal(state_task(&r->co->state, b->task->id)->state, TASK_DONE);
    ledger_figures(j->ledgers[0], 0, &after);
    assert_int_equal(after.done, before.done);
    loop_turn(r->loop, false);
    assert_int_equal(m->version, m->kept);
    assign(r, b, TASK_TRAIN);
    finish_phase(r, b);
    wait_version(r, m, m->kept + 1);
    ledger_figures(j->ledgers[0], 0, &after);
    assert_true(after.done > before.done);
}

/* Phases that end together begin together: no contribution is older than the ones beside
 * it. */
static void test_async_together(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    char spec[1024];
    (void)snprintf(spec, sizeof(spec), timed, 5);
    struct job *j = begin_job(r, spec, 2);
    const struct module_rec *m = &j->modules[0];
    finish_phase(r, a);
    wait_version(r, m, 1);
    ask(r, a, 10000);
    for (unsigned i = 0; i < 3; i++)
        loop_turn(r->loop, false);
    assert_false(a->done); /* the other one ends within the grace */
    assert_non_null(strstr(m->outer_reason, "replica 1 of path 0 is about to end its phase"));
    assert_true(waiting(r) > 0);
    finish_phase(r, b);
    wait_version(r, m, 2);
    (void)got(r, a);
    assert_int_equal(a->task->modules[0]->version, 2);
    assign(r, b, TASK_TRAIN);
    assert_int_equal(b->task->modules[0]->version, 2);
    assert_int_equal(m->stale_max, 1);
}

/* Who is far from its end is not waited for. */
static void test_async_apart(void **state)
{
    struct rig *r = *state;
    char spec[1024];
    (void)snprintf(spec, sizeof(spec), timed, 600);
    struct job *j = begin_job(r, spec, 2);
    finish_phase(r, &r->workers[0]);
    wait_version(r, &j->modules[0], 1);
    assign(r, &r->workers[0], TASK_TRAIN);
    assert_int_equal(r->workers[0].task->modules[0]->version, 1);
}

/* A phase that begins while others run ends when they end. */
static void test_async_aligned(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    char spec[1024];
    (void)snprintf(spec, sizeof(spec), timed, 120);
    struct job *j = begin_job(r, spec, 2);
    assert_int_equal(a->task->train->seconds, 120);
    assert_int_equal(b->task->train->seconds, 120);
    struct task *running = edit_task(r, b->task->id);
    running->leased_ms -= 40000; /* the clock began with the machine: it may be young */
    finish_phase(r, a);
    wait_version(r, &j->modules[0], 1);
    assign(r, a, TASK_TRAIN);
    assert_in_range(a->task->train->seconds, 75, 80);
    running->leased_ms -= 50000; /* in 30 s: rather the end after that */
    finish_phase(r, a);
    wait_version(r, &j->modules[0], 2);
    assign(r, a, TASK_TRAIN);
    assert_in_range(a->task->train->seconds, 145, 150);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(test_told_after_the_commit),
        TEST(test_within_a_phase),
        TEST(test_waiting_is_progress),
        TEST(test_asked_again),
        TEST(test_new_attempt),
        TEST(test_lost_at_the_end),
        TEST(test_taken_at_the_end),
        TEST(test_later),
        TEST(test_refused_parts),
        TEST(test_nothing_contributed),
        TEST(test_async),
        TEST(test_async_late),
        TEST(test_async_together),
        TEST(test_async_apart),
        TEST(test_async_aligned),
        TEST(test_async_first),
        TEST(test_left_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
