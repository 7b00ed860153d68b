/* Outer steps: when one is not taken, and what a new version lets go. */
#include "coordinator/job/folds.h"
#include "coordinator/outer/outer_exec.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"
#include "tests/unit/coordinator/bare.h"

#include <stdlib.h>

#include "common/base/file.h"
#include "common/net/blob_dir.h"

/* With an executor. */
static int folds_begin(void **state)
{
    static char dir[32];
    bare_begin(state);
    struct coordinator *co = *state;
    (void)str_copy(dir, sizeof(dir), "/tmp/folds-XXXXXX");
    assert_non_null(mkdtemp(dir));
    co->opt.data_dir = dir;
    assert_int_equal(blob_dir_open(dir, 0, &co->blobs, NULL), 0);
    assert_int_equal(outer_exec_new(co->loop, co->blobs, 1, &co->outer, NULL), 0);
    return 0;
}

static int folds_end(void **state)
{
    struct coordinator *co = *state;
    outer_exec_free(co->outer);
    co->blobs->ops->close(co->blobs);
    assert_int_equal(file_remove_tree(co->opt.data_dir, NULL), 0);
    return bare_end(state);
}

/* A job with its first version. */
static struct job *begun(struct coordinator *co, const char *yaml)
{
    struct job *j = add(&co->state, yaml);
    module_add_version(job_edit_module(j, &j->modules[0]),
                       &(struct version_rec){.full = {.sha256 = {1}, .size = 1}});
    return j;
}

static void expect(struct coordinator *co, struct job *j, const char *why)
{
    struct module_rec *m = module_memory(&j->modules[0]);
    m->outer_reason[0] = '\0';
    folds_consider(co, j, m);
    assert_string_equal(m->outer_reason, why);
    assert_int_equal(co->state.n_open, co->state.n_tasks);
}

static void test_not_asked(void **state)
{
    struct coordinator *co = *state;
    struct job *j = add(&co->state, diloco);
    struct module_rec *m = module_memory(&j->modules[0]);
    expect(co, j, ""); /* there is no version yet */
    module_add_version(m, &(struct version_rec){.full = {.sha256 = {1}, .size = 1}});
    m->outer_task = 7;
    expect(co, j, ""); /* one runs */
    m->outer_task = 0;
    expect(co, j, "0 of 2 contributions are in; 0 of the missing 2 are being worked on");
    m->version = (uint64_t)j->spec.outer.rounds;
    expect(co, j, ""); /* that was the last */
    expect(co, begun(co, async), "no contribution waits");
}

/* The grace begins with the quorum, and anew when that is lost. */
static void test_quorum(void **state)
{
    struct coordinator *co = *state;
    struct job *j = begun(co, diloco);
    struct module_rec *m = module_memory(&j->modules[0]);
    struct task *t = state_add_task(&co->state, 0, j->id, TASK_TRAIN);
    job_edit_replica(j, 0, 0)->task_id = t->id;
    j->spec.outer.quorum = 0.5;
    j->spec.outer.grace = 1000;
    folds_consider(co, j, m);
    assert_int_equal(m->quorum_ms, 0);
    task_add_contribution(t, &(struct contribution){.module_id = m->id});
    folds_consider(co, j, m);
    assert_int_equal(m->quorum_ms, core_now(co));
    task_edit_contribution(t, &t->train.contributions[0])->refused = true;
    folds_consider(co, j, m);
    assert_int_equal(m->quorum_ms, 0);
}

/* Whose connection is cut may have its contribution ready: what passes until it is back, or its
 * lease is gone, is not of the grace. */
static void test_grace_of_those_away(void **state)
{
    struct coordinator *co = *state;
    struct job *j = begun(co, diloco);
    struct module_rec *m = module_memory(&j->modules[0]);
    struct worker *w = state_add_worker(&co->state, 0);
    const uint64_t now = core_now(co), begin = now - 1500;
    j->spec.outer.quorum = 0.5;
    j->spec.outer.grace = 2;
    for (uint32_t r = 0; r < 2; r++) {
        struct task *t = state_add_task(&co->state, 0, j->id, TASK_TRAIN);
        job_edit_replica(j, 0, r)->task_id = t->id;
        if (r == 0)
            task_add_contribution(t, &(struct contribution){.module_id = m->id});
        else
            task_lease(co, t, w);
    }
    m->quorum_ms = begin;
    m->asked_ms = now - 1000;
    folds_consider(co, j, m);
    assert_int_equal(m->quorum_ms, begin + 1000);
    folds_consider(co, j, m);
    assert_int_equal(m->quorum_ms, begin + 1000);
    w->peer = (struct rpc_peer *)(uintptr_t)1; /* only whether it is there counts */
    m->asked_ms = now - 500;
    folds_consider(co, j, m);
    assert_int_equal(m->quorum_ms, begin + 1000);
    j->paused = true; /* whose phase nobody is given has none ready either */
    m->asked_ms = now - 200;
    folds_consider(co, j, m);
    assert_int_equal(m->quorum_ms, begin + 1200);
    w->peer = NULL;
}

/* Without rounds: whole values whose version went while others were folded before them are left
 * out, and hold nobody up. */
static void test_went_meanwhile(void **state)
{
    struct coordinator *co = *state;
    struct job *j = begun(co, async);
    struct module_rec *m = module_memory(&j->modules[0]);
    struct task *t = state_add_task(&co->state, 0, j->id, TASK_TRAIN);
    j->spec.wire.up = CODEC_F32;
    job_edit_replica(j, 0, 0)->task_id = t->id;
    task_add_contribution(t, &(struct contribution){.module_id = m->id});
    assert_int_equal(query_waiting(&co->state, j, m), 1);
    for (uint64_t v = 1; v <= m->kept; v++)
        folds_adopt(co, j, m,
                    &(struct version_rec){.version = v, .full = {.sha256 = {1}, .size = 10 + v}});
    folds_consider(co, j, m);
    assert_true(t->train.contributions[0].refused);
    assert_string_equal(t->reason, "version 0, which it began with, is not kept any more");
    assert_int_equal(query_waiting(&co->state, j, m), 0);
    expect(co, j, "no contribution waits");
}

/* A path that trains slowly begins its round with a version that the quorum of a shared module must
 * not have left behind. */
static void test_far_behind(void **state)
{
    static const char far[] =
        "a path is so far behind that its version would be dropped: it is waited for";
    struct coordinator *co = *state;
    struct job *j = begun(co, dipaco);
    struct module_rec *m = module_memory(&j->modules[0]);
    struct task *t = state_add_task(&co->state, 0, j->id, TASK_TRAIN);
    j->spec.outer.quorum = 0.5;
    j->spec.outer.grace = 0.001;
    j->spec.outer.rounds = 100;
    j->spec.outer.where = JOB_WHERE_WORKER;
    job_edit_replica(j, 0, 0)->task_id = t->id;
    for (uint64_t v = 1; v < m->kept; v++)
        module_add_version(
            m, &(struct version_rec){.version = v, .full = {.sha256 = {1}, .size = 10 + v}});
    task_add_contribution(t,
                          &(struct contribution){.module_id = m->id, .base_version = m->version});
    job_edit_path(j, 0)->round = (uint32_t)m->version;
    m->quorum_ms = 1;
    expect(co, j, far);
    job_edit_path(j, 1)->round = 1;    /* whose version will be kept */
    co->state.n_open = TASKS_OPEN_MAX; /* so that the step is not begun */
    folds_consider(co, j, m);
    assert_string_equal(m->outer_reason,
                        "1 of 2 contributions is a quorum and the grace of 0.0 s has passed");
    co->state.n_open = co->state.n_tasks;
}

/* ---- a full executor ---- */

static void forget(struct outer_step *step)
{
    outer_step_release(step);
    mem_free(step);
}

/* Fills the executor with steps whose files nobody has. */
static void fill(struct coordinator *co)
{
    while (outer_pending(co->outer) < OUTER_QUEUE_MAX) {
        struct outer_step *s = mem_alloc(sizeof(*s));
        s->state_dir = str_printf("%s/outer/%u", co->opt.data_dir, outer_pending(co->outer));
        s->old[OUTER_FULL].size = s->lr = s->scale = s->min_accepted = s->n_contributions = 1;
        s->contributions = mem_alloc_array(1, sizeof(*s->contributions));
        s->contributions[0].weight = 1;
        assert_int_equal(outer_submit(co->outer, s, forget, NULL), 0);
    }
}

/* The step is not begun, here or with what a worker has made, and that is no failure. */
static void test_executor_is_full(void **state)
{
    static const char full[] = "it waits for a place in the executor";
    struct coordinator *co = *state;
    struct err err = {0};
    fill(co); /* the loop does not turn, so that none is done */

    struct job *jobs[] = {begun(co, diloco), begun(co, async)};
    for (size_t i = 0; i < 2; i++) {
        struct job *j = jobs[i];
        for (uint32_t r = 0; r < j->comp.paths[0].replicas; r++) {
            struct task *t = state_add_task(&co->state, 0, j->id, TASK_TRAIN);
            job_edit_replica(j, 0, r)->task_id = t->id;
            task_add_contribution(
                t, &(struct contribution){.module_id = j->modules[0].id, .samples = 1});
        }
        expect(co, j, full);
        assert_int_equal(j->modules[0].outer_task + j->modules[0].outer_failures, 0);
    }

    struct job *j = jobs[0];
    struct module_rec *m = module_memory(&j->modules[0]);
    struct outer_step *made = mem_alloc(sizeof(*made));
    struct task *t = state_add_task(&co->state, 0, j->id, TASK_OUTER);
    t->outer.module_id = m->id;
    m->outer_task = t->id;
    m->at_worker = made;
    assert_int_equal(folds_claim(co, j, t, NULL, "", &err), -EAGAIN);
    folds_consider(co, j, m); /* no worker is here to make it */
    assert_ptr_equal(m->at_worker, made);
    assert_int_equal(m->outer_failures, 0);
    assert_true(task_is_open(t));
    folds_release(m);
}

static void test_adopt(void **state)
{
    struct coordinator *co = *state;
    struct job *j = begun(co, diloco);
    struct module_rec *m = module_memory(&j->modules[0]);
    struct task *t = state_add_task(&co->state, 0, j->id, TASK_TRAIN);
    m->quorum_ms = m->retry_ms = m->outer_failures = 7;
    for (uint64_t v = 1; v < m->kept; v++)
        folds_adopt(co, j, m,
                    &(struct version_rec){.version = v, .full = {.sha256 = {1}, .size = 10 + v}});
    assert_int_equal(m->quorum_ms + m->retry_ms + m->outer_failures, 0);
    assert_int_equal(co->n_garbage, 0); /* there was room for all */
    for (uint64_t v = m->version; v <= m->version + 1; v++)
        task_add_contribution(t, &(struct contribution){.module_id = m->id,
                                                        .version = v,
                                                        .blob = {.sha256 = {2}, .size = 20 + v}});
    folds_adopt(co, j, m,
                &(struct version_rec){.version = m->kept, .full = {.sha256 = {1}, .size = 10}});
    assert_int_equal(co->n_garbage, 2);
    assert_int_equal(co->garbage[0].size, 1); /* the oldest version, and the newest but one's */
    assert_int_equal(co->garbage[1].size, 20 + m->version - 1); /* contribution */
}

/* Where more versions are kept their averages are not. */
static void test_averages(void **state)
{
    struct coordinator *co = *state;
    struct job *j = begun(co, async);
    struct module_rec *m = module_memory(&j->modules[0]);
    m->kept = 2 * VERSIONS_KEPT;
    for (uint64_t v = 1; v <= VERSIONS_KEPT + 2; v++)
        folds_adopt(co, j, m,
                    &(struct version_rec){.version = v,
                                          .full = {.sha256 = {1}, .size = 10 + v},
                                          .ema = {.sha256 = {2}, .size = 20 + v}});
    assert_int_equal(co->n_garbage, 2);
    assert_int_equal(co->garbage[0].size, 21);
    assert_int_equal(co->garbage[1].size, 22);
}

/* Without rounds replicas that take turns are all behind, and only one that is further behind
 * weighs less. */
static void test_behind(void **state)
{
    struct coordinator *co = *state;
    struct job *jobs[] = {begun(co, diloco), begun(co, async)};
    for (size_t i = 0; i < 2; i++) {
        struct module_rec *m = module_memory(&jobs[i]->modules[0]);
        const uint64_t usual = i ? query_replicas_through(jobs[i], m) - 1 : 0;
        for (uint64_t v = 1; v <= 4; v++)
            module_add_version(m, &(struct version_rec){.version = v, .full = {.size = 1}});
        for (uint64_t s = 0; s <= 4; s++) {
            const struct contribution c = {.module_id = m->id, .base_version = 4 - s};
            assert_true(folds_behind(jobs[i], m, &c) ==
                        sqrt(s > usual ? (double)(1 + s - usual) : 1));
        }
        assert_int_equal(usual > 0, i);
    }
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, folds_begin, folds_end)
    const struct CMUnitTest tests[] = {
        CASE(test_not_asked),      CASE(test_quorum),     CASE(test_grace_of_those_away),
        CASE(test_went_meanwhile), CASE(test_far_behind), CASE(test_executor_is_full),
        CASE(test_adopt),          CASE(test_averages),   CASE(test_behind)};
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
