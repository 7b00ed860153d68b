/* With early stopping a path keeps its best version, which no single worker's loss decides.  A
 * whole coordinator (rig.h). */
#include "tests/unit/coordinator/rig.h"

static const char spec[] = "name: fake\nseed: 3\ndata: {path: x, image_size: 16}\n"
                           "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                           "train: {batch: 4, lr: 0.1}\nrecipe: {replicas: 2, early_stop: true}\n"
                           "outer: {rounds: 12, steps: 2}\n"
                           "sample: {count: 4}\neval: {every: 1, guard: 0}\n";

enum { LIE = 3, LAST = 6 };

/* What a worker says of a version, by its place. */
typedef float (*opinion)(int worker, uint32_t version);

static unsigned n_evals;
static bool lied;

static float honest(int worker, uint32_t version)
{
    return 1.0f / (float)version + 0.001f * (float)worker;
}

/* The first loss of LIE that is told is far too small. */
static float one_lies(int worker, uint32_t version)
{
    const bool lies = version == LIE && !lied;
    lied |= lies;
    return lies ? 0.0001f : honest(worker, version);
}

/* From LIE on the model gets worse, but that is found out only by the second who is asked. */
static float first_overrates(int worker, uint32_t version)
{
    static uint32_t told;
    const bool first = version > told;
    told = first ? version : told;
    return version < LIE || first ? honest(worker, version) : 2.0f;
}

static float flat(int worker, uint32_t version)
{
    return 2.5f;
}

static float far_too_small(int worker, uint32_t version)
{
    return 0.1f;
}

static void say(struct rig *r, struct fake *w, float loss)
{
    struct result x;
    begin_result(&x, w->task, NULL);
    x.m.loss_mean = loss;
    x.m.units = 4;
    x.m.loss_sum = 4 * (double)loss;
    n_evals++;
    if (!report(r, w, &x))
        fail_msg("%s", w->detail);
}

static void serve(struct rig *r, int i, opinion says)
{
    struct fake *w = &r->workers[i];
    ask(r, w, 20);
    const Skerry__V1__Task *t = got(r, w);
    if (t == NULL)
        return;
    if (t->kind == SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN) {
        finish_train(r, w);
        return;
    }
    assert_int_equal(t->kind, TASK_EVAL);
    say(r, w, says(i, t->eval->version_round));
}

static const struct job *begin_job(struct rig *r, int workers)
{
    n_evals = 0;
    lied = false;
    for (int i = 0; i < workers; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit_spec(r, spec));
    do_init(r, &r->workers[0]);
    return j;
}

/* Until the version LAST is evaluated, and none is in question. */
static const struct job *play(struct rig *r, int workers, opinion says)
{
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    const struct job *j = begin_job(r, workers);
    while (j->paths[0].eval.round < LAST || j->paths[0].hope.best != NULL) {
        assert_true(clock_now_ms() < until);
        for (int i = 0; i < workers; i++)
            serve(r, i, says);
    }
    return j;
}

static void one_word_too_small_stops_nothing(void **state)
{
    const struct path_rec *path = &play(*state, 2, one_lies)->paths[0];
    assert_true(path->best_round >= LAST);
    assert_true(path->best_loss >= honest(0, path->best_round));
}

static void what_two_say_does(void **state)
{
    const struct path_rec *path = &play(*state, 2, first_overrates)->paths[0];
    assert_true(path->best != NULL && path->best_round == LIE - 1);
    assert_true(path->best_loss == honest(1, LIE - 1)); /* the larger */
}

static void a_worker_alone_is_believed(void **state)
{
    const struct path_rec *path = &play(*state, 1, honest)->paths[0];
    assert_int_equal(path->best_round, path->eval.round);
    assert_int_equal(n_evals, path->eval.round); /* each version once */
}

/* Its files stay until another worker has measured it, which may be long after it was trained. */
static void a_version_in_question_is_kept(void **state)
{
    struct rig *r = *state;
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    const struct job *j = begin_job(r, 2);
    const struct path_rec *path = &j->paths[0];
    struct fake *told = NULL, *asked = NULL;
    for (int i = 0; path->hope.best == NULL; i = !i) {
        assert_true(clock_now_ms() < until);
        serve(r, i, honest);
    }
    for (int i = 0; i < 2; i++)
        *(r->workers[i].id == path->hope.worker ? &told : &asked) = &r->workers[i];
    assert_true(told != NULL && asked != NULL);
    const uint64_t again = path->hope.task;
    const struct blob_ref full = path->hope.best[0].full;
    struct task *t = edit_task(r, again);
    t->not_before_ms = UINT64_MAX;
    while (module_version(&j->modules[0], path->hope.version) != NULL) {
        assert_true(clock_now_ms() < until);
        ask(r, told, 20);
        const Skerry__V1__Task *got_now = got(r, told);
        if (got_now != NULL && got_now->kind == SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN)
            finish_train(r, told);
        else if (got_now != NULL)
            say(r, told, 9);
    }
    const uint32_t version = path->hope.version;
    edit_task(r, again)->not_before_ms = 0;
    const Skerry__V1__Task *e = assign(r, asked, TASK_EVAL);
    assert_int_equal(e->id, again);
    assert_int_equal(e->modules[0]->version, version);
    assert_memory_equal(e->modules[0]->full->sha256.data, full.sha256, 32);
    struct blob_id id;
    memcpy(id.sha256, full.sha256, 32);
    assert_true(blobstore_has(r->co->blobs, &id, NULL));
    say(r, asked, 0.75f);
    assert_true(path->best != NULL && path->best_round == version && path->hope.best == NULL);
}

/* While a false loss is in question, newer versions seem worse; they are looked at when it is
 * known. */
static void a_false_loss_hides_no_newer_version(void **state)
{
    struct rig *r = *state;
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    const struct job *j = begin_job(r, 2);
    const struct path_rec *path = &j->paths[0];
    for (int i = 0; path->hope.best == NULL || path->hope.version < LIE; i = !i) {
        assert_true(clock_now_ms() < until);
        serve(r, i, one_lies);
    }
    const int told = r->workers[0].id == path->hope.worker ? 0 : 1;
    const uint64_t again = path->hope.task;
    edit_task(r, again)->not_before_ms = UINT64_MAX;
    WAIT_DOING(path->eval.round != LIE, serve(r, told, one_lies));
    assert_int_equal(path->hope.version, LIE);
    edit_task(r, again)->not_before_ms = 0;
    assert_int_equal(assign(r, &r->workers[!told], TASK_EVAL)->id, again);
    say(r, &r->workers[!told], honest(!told, LIE));
    assert_int_equal(path->best_round, LIE);
    assert_true(path->hope.best != NULL && path->hope.version == LIE + 1);
    WAIT_DOING(path->best_round >= LIE + 1, serve(r, !told, honest));
}

/* A version whose evaluation ends after that of a newer one counts like any other. */
static void the_order_of_the_ends_does_not_matter(void **state)
{
    struct rig *r = *state;
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    const struct job *j = begin_job(r, 2);
    const struct path_rec *path = &j->paths[0];
    struct fake *slow = &r->workers[1];
    const Skerry__V1__Task *t = NULL;
    while (t == NULL || t->kind != SKERRY__V1__TASK_KIND__TASK_KIND_EVAL) {
        assert_true(clock_now_ms() < until);
        if (t != NULL)
            finish_train(r, slow);
        ask(r, slow, 20);
        t = got(r, slow);
    }
    const uint32_t version = t->eval->version_round;
    WAIT_DOING(!isnan(path->eval.loss) && path->eval.round > version, serve(r, 0, honest));
    const uint32_t newest = path->eval.round;
    say(r, slow, 0.0001f);
    assert_int_equal(path->eval.round, newest);
    assert_true(path->hope.best != NULL && path->hope.version == version);
    for (size_t i = 0; i < j->n_rounds; i++)
        if (j->rounds[i].round + 1 == version)
            assert_true(j->rounds[i].eval_loss == 0.0001f);
}

/* An older version is told while a false loss of a newer one is in question. */
static void a_false_loss_hides_no_older_version(void **state)
{
    struct rig *r = *state;
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    const struct job *j = begin_job(r, 2);
    const struct path_rec *path = &j->paths[0];
    struct fake *slow = &r->workers[1];
    const Skerry__V1__Task *t = NULL;
    for (int i = 0; path->best == NULL; i = !i) {
        assert_true(clock_now_ms() < until);
        serve(r, i, flat);
    }
    while (t == NULL || t->kind != SKERRY__V1__TASK_KIND__TASK_KIND_EVAL) {
        assert_true(clock_now_ms() < until);
        if (t != NULL)
            finish_train(r, slow);
        ask(r, slow, 20);
        t = got(r, slow);
    }
    const uint32_t older = t->eval->version_round;
    WAIT_DOING(path->hope.best != NULL, serve(r, 0, far_too_small));
    const uint32_t newer = path->hope.version;
    const uint64_t again = path->hope.task;
    assert_true(newer > older && older > path->best_round);
    say(r, slow, 2.0f);
    assert_int_equal(path->hope.version, newer);
    assert_int_equal(assign(r, slow, TASK_EVAL)->id, again);
    say(r, slow, 3.0f);
    assert_true(path->hope.best != NULL && path->hope.version == older);
    for (size_t i = 0; i < j->n_rounds; i++)
        if (j->rounds[i].round + 1 == newer)
            assert_true(j->rounds[i].eval_loss == 3.0f && j->rounds[i].eval_sure);
    WAIT_DOING(path->hope.best == NULL, serve(r, 0, far_too_small));
    assert_true(path->best_round == older && path->best_loss == 2.0f);
}

/* The task that has the second measurement of what worker 0 said of a version, where worker 1 is
 * elsewhere, and worker 2 where worker 0 is. */
static uint64_t asked_elsewhere(struct rig *r)
{
    const struct path_rec *path = &begin_job(r, 3)->paths[0];
    (void)str_copy(edit_worker(r, r->workers[1].id)->address, 64, "10.0.0.2:1");
    WAIT_DOING(path->hope.best != NULL, serve(r, 0, honest));
    return path->hope.task;
}

/* Worker 1 is given the task, which worker 2 is not, and says that it cannot do it. */
static void fail_elsewhere(struct rig *r, uint64_t task, Skerry__V1__Failure how)
{
    struct result x;
    ask(r, &r->workers[2], 1);
    const Skerry__V1__Task *t = got(r, &r->workers[2]);
    assert_true(t == NULL || t->id != task);
    if (t != NULL && t->kind == SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN)
        finish_train(r, &r->workers[2]);
    else if (t != NULL) /* of a newer version, which is no better */
        say(r, &r->workers[2], 9);
    assert_int_equal(assign(r, &r->workers[1], TASK_EVAL)->id, task);
    begin_result(&x, r->workers[1].task, NULL);
    x.m.failed = x.m.retryable = true;
    x.m.failure = how;
    x.m.reason = (char *)(uintptr_t) "no answer";
    assert_true(report(r, &r->workers[1], &x));
    for (unsigned i = 0; i < FAILURES_MAX; i++) /* as if time had passed */
        edit_task(r, task)->failed.at[i].until_ms = 0;
    edit_worker(r, r->workers[1].id)->n_small = 0;
}

/* Who is elsewhere, and never gets it done, holds it up for some failures of its own. */
static void a_worker_elsewhere_holds_nothing_up(void **state)
{
    struct rig *r = *state;
    const uint64_t again = asked_elsewhere(r);
    const struct path_rec *path = &state_job(&r->co->state, 1)->paths[0];
    for (int i = 0; i < TASK_FAILURES_MAX; i++)
        fail_elsewhere(r, again, SKERRY__V1__FAILURE__FAILURE_NETWORK);
    assert_int_equal(assign(r, &r->workers[2], TASK_EVAL)->id, again);
    say(r, &r->workers[2], honest(2, 1));
    assert_true(path->best != NULL && path->best_round == 1);
}

/* Attempts that end by no failure of a worker's leave the word to it. */
static void what_is_no_failure_counts_for_none(void **state)
{
    struct rig *r = *state;
    const uint64_t again = asked_elsewhere(r);
    const struct path_rec *path = &state_job(&r->co->state, 1)->paths[0];
    for (int i = 0; i <= TASK_FAILURES_MAX; i++)
        fail_elsewhere(r, again, SKERRY__V1__FAILURE__FAILURE_MEMORY);
    assert_int_equal(assign(r, &r->workers[1], TASK_EVAL)->id, again);
    say(r, &r->workers[1], honest(1, 1));
    assert_true(path->best != NULL && path->best_round == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_word_too_small_stops_nothing, begin, end),
        cmocka_unit_test_setup_teardown(what_two_say_does, begin, end),
        cmocka_unit_test_setup_teardown(a_worker_alone_is_believed, begin, end),
        cmocka_unit_test_setup_teardown(a_version_in_question_is_kept, begin, end),
        cmocka_unit_test_setup_teardown(a_false_loss_hides_no_newer_version, begin, end),
        cmocka_unit_test_setup_teardown(the_order_of_the_ends_does_not_matter, begin, end),
        cmocka_unit_test_setup_teardown(a_false_loss_hides_no_older_version, begin, end),
        cmocka_unit_test_setup_teardown(a_worker_elsewhere_holds_nothing_up, begin, end),
        cmocka_unit_test_setup_teardown(what_is_no_failure_counts_for_none, begin, end),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
