/* A version 0 with which no phase can begin is made again.  Whole coordinators (grid.h). */
#include "coordinator/job/remake.h"
#include "tests/unit/coordinator/grid.h"

#define SPEC                                                                                       \
    "name: diloco\nseed: 3\ndata: {path: x, image_size: 16}\n"                                     \
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"                                  \
    "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 2}\n"                            \
    "outer: {rounds: 2, steps: 2}\neval: {every: 0}\nsample: {every: 0}\n"

enum { FIRST, SECOND, THIRD };

static void join_from(struct rig *r, int i, const char *address)
{
    if (r->workers[i].id == 0)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    (void)str_copy(edit_worker(r, r->workers[i].id)->address, 64, address);
}

static struct blob_ref weights(struct rig *r, uint64_t seed)
{
    char *path = fx_path(&r->f, "weights");
    float *x = fx_array();
    fx_normal(seed, 1.0f, x);
    fx_write_full(path, x);
    const struct blob_ref ref = put_file(r, path);
    free(x);
    mem_free(path);
    return ref;
}

static const struct task *init_task(struct grid *g)
{
    const struct state *s = &g->r->co->state;
    size_t i = 0;
    while (s->tasks[i]->kind != TASK_INIT)
        i++;
    return s->tasks[i];
}

static const struct blob_ref *version_0(struct grid *g)
{
    const struct module_rec *m = &grid_job(g)->modules[0];
    assert_int_equal(m->n_versions, 1);
    assert_int_equal(m->version, 0);
    return &m->versions[0].full;
}

static bool is(const struct blob_ref *a, struct blob_ref b)
{
    return a->size == b.size && memcmp(a->sha256, b.sha256, 32) == 0;
}

static void makes(struct grid *g, int i, uint64_t seed)
{
    static struct grid_result x;
    g->w = &g->r->workers[i];
    if (g->r->co->state.n_tasks > 0)
        task_memory(init_task(g))->not_before_ms = 0; /* the wait is over */
    assert_int_equal(grid_kind(grid_next(g)), TASK_INIT);
    grid_result(g, g->w->task, &x);
    x.m.contributions[0]->blob = grid_blob(&x, weights(g->r, seed));
    assert_int_equal(call_report(g->r, g->w, &x.m), 0);
}

static void fails(struct grid *g, int i)
{
    struct result x;
    g->w = &g->r->workers[i];
    assert_int_equal(grid_kind(grid_next(g)), TASK_TRAIN);
    begin_result(&x, g->w->task, NULL);
    x.m.failed = x.m.retryable = true;
    x.m.reason = (char *)"loading model weights: no file of the model holds head.weight";
    assert_true(report(g->r, g->w, &x));
}

/* The first worker alone has made it, then the second comes. */
static void begin_with(struct grid *g, struct rig *r, uint64_t seed)
{
    grid_begin(g, r, SPEC, false);
    join_from(r, FIRST, "10.0.0.1:1");
    makes(g, FIRST, seed);
    assert_int_equal(grid_job(g)->state, JOB_RUNNING);
    join_from(r, SECOND, "10.0.0.2:1");
}

/* The word of one from elsewhere is enough, and the phases begin anew with what that one makes. */
static void test_again(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_with(&g, r, 1);
    fails(&g, SECOND);
    assert_int_equal(init_task(&g)->state, TASK_PENDING);
    assert_non_null(strstr(init_task(&g)->reason, "could not begin with version 0"));
    assert_true(is(version_0(&g), weights(r, 1)));
    makes(&g, SECOND, 2);
    assert_true(is(version_0(&g), weights(r, 2)));
    assert_int_equal(init_task(&g)->state, TASK_DONE);
    assert_int_equal(grid_job(&g)->state, JOB_RUNNING);
    assert_int_equal(grid_kind(grid_next(&g)), TASK_TRAIN); /* SECOND need not wait */
    stop(r);
    start(r);
    assert_true(is(version_0(&g), weights(r, 2)));
}

/* If another one makes the same, the fault was not there. */
static void test_the_same(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_with(&g, r, 1);
    fails(&g, SECOND);
    makes(&g, SECOND, 1);
    assert_true(init_task(&g)->agreed);
    join_from(r, THIRD, "10.0.0.3:1");
    fails(&g, THIRD);
    assert_int_equal(init_task(&g)->state, TASK_DONE);
    assert_true(is(version_0(&g), weights(r, 1)));
}

/* A liar's word replaces no version 0 that two others have made. */
static void test_liar(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_with(&g, r, 1);
    fails(&g, SECOND);
    join_from(r, THIRD, "10.0.0.3:1");
    makes(&g, SECOND, 2);
    assert_true(is(version_0(&g), weights(r, 1)));
    makes(&g, THIRD, 1);
    assert_true(is(version_0(&g), weights(r, 1)));
    assert_int_equal(state_worker(&r->co->state, r->workers[SECOND].id)->failures_row, 2);
}

/* Where nobody else is, five failures are enough, and it waits before it does so again. */
static void test_alone(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    grid_begin(&g, r, SPEC, false);
    makes(&g, FIRST, 1);
    for (unsigned i = 0; i < TASK_FAILURES_MAX; i++) {
        assert_int_equal(init_task(&g)->state, TASK_DONE);
        for (size_t k = 0; k < r->co->state.n_tasks; k++)
            task_memory(r->co->state.tasks[k])->failed = (struct failure_list){0};
        edit_worker(r, r->workers[FIRST].id)->quarantined_until_ms = 0;
        fails(&g, FIRST);
    }
    assert_int_equal(init_task(&g)->state, TASK_PENDING);
    assert_true(init_task(&g)->not_before_ms > core_now(r->co));
    edit_worker(r, r->workers[FIRST].id)->quarantined_until_ms = 0;
    makes(&g, FIRST, 2);
    assert_true(is(version_0(&g), weights(r, 2)));
}

/* Whoever makes steps from it shows that it is of use. */
static void test_steps(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_with(&g, r, 1);
    g.w = &r->workers[FIRST];
    assert_int_equal(grid_kind(grid_next(&g)), TASK_TRAIN);
    const uint64_t phase = g.w->task->id;
    fails(&g, SECOND); /* before the first step */
    assert_int_equal(init_task(&g)->state, TASK_PENDING);
    task_memory(state_task(&r->co->state, phase))->steps_done = 1;
    makes(&g, SECOND, 2); /* too late */
    assert_int_equal(init_task(&g)->state, TASK_DONE);
    assert_true(is(version_0(&g), weights(r, 1)));
    fails(&g, SECOND);
    assert_int_equal(init_task(&g)->state, TASK_DONE);
}

/* What somebody has trained from is of use. */
static void test_of_use(void **state)
{
    struct rig *r = *state;
    struct grid g = {0};
    begin_with(&g, r, 1);
    g.w = &r->workers[FIRST];
    assert_int_equal(grid_step(&g), TASK_TRAIN);
    fails(&g, SECOND);
    assert_int_equal(init_task(&g)->state, TASK_DONE);
    assert_false(remake_may(&r->co->state, grid_job(&g), 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_again, begin, end),
        cmocka_unit_test_setup_teardown(test_the_same, begin, end),
        cmocka_unit_test_setup_teardown(test_liar, begin, end),
        cmocka_unit_test_setup_teardown(test_alone, begin, end),
        cmocka_unit_test_setup_teardown(test_steps, begin, end),
        cmocka_unit_test_setup_teardown(test_of_use, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
