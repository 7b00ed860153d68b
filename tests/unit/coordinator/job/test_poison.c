/* One poisoner of two replicas: what it sends, however it points, does not move what is learned.
 * A whole coordinator (rig.h); the loss is the distance to a known optimum. */
#include "coordinator/work/tasks.h"
#include "tests/unit/coordinator/rig.h"

static const char sync_yaml[] = "name: fake\nseed: 3\ndata: {path: x, image_size: 16}\n"
                                "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                                "train: {batch: 4, lr: 0.1}\n"
                                "recipe: {name: diloco, replicas: 2, moments_warmup: 0}\n"
                                "outer: {rounds: 20, steps: 2, lr: 0.7, momentum: 0.3}\n"
                                "sample: {count: 4}\n";
static const char async_yaml[] =
    "name: fake\nseed: 3\ndata: {path: x, image_size: 16}\n"
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
    "train: {batch: 4, lr: 0.1}\nrecipe: {name: diloco, replicas: 2, moments_warmup: 0}\n"
    "outer: {rounds: 20, steps: 2, lr: 0.7, momentum: 0.3, async: true}\n"
    "sample: {count: 4}\n";

enum poison { NONE, HUGE_NORM, REVERSED, NOISE, POISONS, TURNED = POISONS };
#define TURNS_AT 8 /* the version from which all turn round once */

static const struct version_rec *newest(const struct job *j)
{
    return module_version(&j->modules[0], j->modules[0].version);
}

static void read_version(struct rig *r, const struct version_rec *v, char path[4096], float *theta)
{
    struct blob_id id;
    memcpy(id.sha256, v->full.sha256, 32);
    assert_int_equal(blob_file(r->co->blobs, &id, path, 4096), 0);
    fx_read_flat(path, theta);
}

/* Where the honest steps go. */
static void optimum(struct rig *r, float *best)
{
    fx_normal(77, 0.05f, best);
    for (size_t i = 0; i < PARAMS; i++)
        best[i] += r->f.theta[i];
}

static double distance(const float *a, const float *b)
{
    double sum = 0;
    for (size_t i = 0; i < PARAMS; i++)
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sum;
}

/* A phase towards the optimum, and what a poisoner makes of it. */
static struct blob_ref phase(struct rig *r, const struct job *j, uint64_t seed, enum poison how,
                             uint64_t base)
{
    float *theta = fx_array(), *best = fx_array(), *noise = fx_array();
    char full[4096], *path = fx_path(&r->f, "contribution");
    read_version(r, module_version(&j->modules[0], base), full, theta);
    optimum(r, best);
    fx_normal(seed, 1, noise);
    const float rms = (float)sqrt(distance(theta, best) / PARAMS);
    for (size_t i = 0; i < PARAMS; i++) {
        const float step = 0.2f * (best[i] - theta[i]) + 0.02f * rms * noise[i];
        const float made[] = {step, 1e6f * noise[i], -9 * step, rms * noise[i], -4 * step};
        theta[i] += made[how];
    }
    fx_contribute(full, base, theta, CODEC_E3M0, 8, path);
    struct blob_ref ref = put_file(r, path);
    free(theta);
    free(best);
    free(noise);
    mem_free(path);
    return ref;
}

/* One request for work and what is done with it; workers in quarantine are forgiven, until the last
 * rounds. */
static void serve(struct rig *r, const struct job *j, struct fake *w, enum poison how)
{
    struct result x;
    if (j->modules[0].version < 18)
        edit_worker(r, w->id)->quarantined_until_ms = 0;
    for (int i = 0; i < 2;
         i++) /* they ask in turns: nothing is kept for who has just told a result */
        edit_worker(r, r->workers[i].id)->reported_ms = 0;
    ask(r, w, 1);
    const Skerry__V1__Task *t = got(r, w);
    if (t == NULL || t->kind != SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN)
        return;
    const uint64_t base = j->spec.outer.async ? j->modules[0].version : t->train->round;
    const bool turns = how != TURNED || base == TURNS_AT;
    struct blob_ref blob = phase(r, j, t->id, turns ? how : NONE, base);
    begin_result(&x, t, &blob);
    x.c.base_version = base;
    (void)report(r, w, &x);
}

/* All turn round in one step, and it is long: nobody is to blame for it. */
static void test_turned(void **state)
{
    struct rig *r = *state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit_spec(r, sync_yaml));
    do_init(r, &r->workers[0]);
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    while (j->modules[0].version < TURNS_AT + 4) {
        assert_true(clock_now_ms() < until);
        for (int i = 0; i < 2; i++)
            serve(r, j, &r->workers[i], TURNED);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(state_worker(&r->co->state, r->workers[i].id)->tasks_failed, 0);
}

/* The loss at the end, over that at the beginning. */
static double train(struct rig *r, const char *spec, enum poison how)
{
    float *theta = fx_array(), *best = fx_array();
    char path[4096];
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit_spec(r, spec));
    do_init(r, &r->workers[0]);
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    while (j->state <= JOB_RUNNING) {
        assert_true(clock_now_ms() < until);
        serve(r, j, &r->workers[1], how);
        if (j->state <= JOB_RUNNING)
            serve(r, j, &r->workers[0], NONE);
    }
    if (j->state != JOB_FINISHING)
        fail_msg("the job is %s: %s", job_state_name(j->state), j->reason);
    read_version(r, newest(j), path, theta);
    optimum(r, best);
    assert_int_equal(state_worker(&r->co->state, r->workers[0].id)->strikes, 0);
    assert_int_equal(state_worker(&r->co->state, r->workers[1].id)->strikes > 0, how != NONE);
    const double loss = distance(theta, best) / distance(r->f.theta, best);
    free(theta);
    free(best);
    return loss;
}

static void check(const char *spec)
{
    static const char *const names[] = {"none", "huge", "reversed", "noise"};
    double loss[POISONS];
    for (int how = NONE; how < POISONS; how++) {
        void *state = NULL;
        assert_int_equal(begin(&state), 0);
        loss[how] = train(state, spec, (enum poison)how);
        assert_int_equal(end(&state), 0);
        print_message("%s: %.4f\n", names[how], loss[how]);
    }
    assert_true(loss[NONE] < 0.005);
    for (int how = NONE; how < POISONS; how++)
        if (!(loss[how] < loss[NONE] + 0.006))
            fail_msg("%s: the loss is %g of the first, without %g", names[how], loss[how],
                     loss[NONE]);
}

static void test_sync(void **state)
{
    check(sync_yaml);
}

static void test_async(void **state)
{
    check(async_yaml);
}

/* A phase that is done again already, for its contribution to another module, goes on. */
static void test_done_again_already(void **state)
{
    struct rig *r = *state;
    struct result x;
    for (int i = 0; i < 3; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit_spec(r, sync_yaml));
    j->spec.outer.quorum = 1;
    do_init(r, &r->workers[0]);
    assign(r, &r->workers[0], TASK_TRAIN);
    assign(r, &r->workers[1], TASK_TRAIN);
    finish_train(r, &r->workers[0]);
    struct blob_ref junk = put_text(r, "no contribution");
    begin_result(&x, r->workers[1].task, &junk);
    hold_steps(r);
    assert_true(report(r, &r->workers[1], &x));
    const struct task *t = state_task(&r->co->state, x.m.task_id);
    while (j->modules[0].outer_task == 0)
        loop_turn(r->loop, false);
    assert_true(task_take_samples(r->co, j, edit_task(r, t->id)));
    task_requeue(r->co, edit_task(r, t->id), "its other contribution was refused");
    assert_int_equal(assign(r, &r->workers[2], TASK_TRAIN)->id, t->id);
    let_steps();
    WAIT_FOR(r, t->train.n_contributions == 0);
    assert_int_equal(t->state, TASK_LEASED);
    assert_int_equal(t->worker_id, r->workers[2].id);
    finish_train(r, &r->workers[2]);
    WAIT_FOR(r, j->modules[0].version > 0);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_turned, begin, end),
        cmocka_unit_test_setup_teardown(test_done_again_already, begin, end),
        cmocka_unit_test(test_sync), cmocka_unit_test(test_async)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
