/* A version that held-out losses call bad is undone; one worker's word undoes nothing.  A whole
 * coordinator (rig.h). */
#include "tests/unit/coordinator/rig.h"

#define SPEC(guard)                                                                                \
    "name: fake\nseed: 3\ndata: {path: x, image_size: 16}\n"                                       \
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"                                  \
    "train: {batch: 4, lr: 0.1}\nrecipe: {replicas: 2}\n"                                          \
    "outer: {rounds: 12, steps: 2}\nsample: {count: 4}\neval: {every: 1" guard "}\n"

enum { GOOD = 3, BAD = 4, LAST = 7 };

/* What a worker says of a version, by its place: NAN: the loss is no number. */
typedef float (*opinion)(int worker, uint32_t version);

static float all_say_bad(int worker, uint32_t version)
{
    return version == BAD ? 5.0f : version == GOOD ? 0.4f : 0.5f;
}

static float one_lies(int worker, uint32_t version)
{
    return worker == 0 && version >= BAD ? 5.0f : 0.5f;
}

static float no_number(int worker, uint32_t version)
{
    return version == BAD ? NAN : version == GOOD ? 0.4f : 0.5f;
}

static void serve(struct rig *r, int i, opinion says)
{
    struct fake *w = &r->workers[i];
    struct result x;
    ask(r, w, 20);
    const Skerry__V1__Task *t = got(r, w);
    if (t == NULL)
        return;
    if (t->kind == SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN) {
        finish_train(r, w);
        return;
    }
    assert_int_equal(t->kind, TASK_EVAL);
    begin_result(&x, t, NULL);
    x.m.loss_mean = says(i, t->eval->version_round);
    x.m.units = 4;
    x.m.loss_sum = 4 * (double)x.m.loss_mean;
    if (!report(r, w, &x))
        fail_msg("%s", w->detail);
}

static const struct version_rec *restored(const struct job *j)
{
    const struct module_rec *m = &j->modules[0];
    for (unsigned i = 0; i < m->n_versions; i++)
        if (m->versions[i].restored)
            return &m->versions[i];
    return NULL;
}

/* Until a version is undone, or the job is at LAST. */
static const struct job *play(struct rig *r, const char *spec, opinion says)
{
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit_spec(r, spec));
    do_init(r, &r->workers[0]);
    while (restored(j) == NULL && j->modules[0].version < LAST) {
        assert_true(clock_now_ms() < until);
        for (int i = 0; i < 2; i++)
            serve(r, i, says);
    }
    return j;
}

static void expect_undone(const struct job *j)
{
    const struct version_rec *now = restored(j), *good = module_version(&j->modules[0], GOOD);
    assert_non_null(now);
    assert_non_null(good);
    assert_true(now->version > BAD && j->paths[0].doubt.worker == 0);
    assert_memory_equal(&now->full, &good->full, sizeof(now->full));
    assert_memory_equal(&now->ema, &good->ema, sizeof(now->ema));
}

static void two_words_undo_it(void **state)
{
    struct rig *r = *state;
    const struct job *j = play(r, SPEC(""), all_say_bad);
    expect_undone(j);
    for (size_t i = 0; i < r->co->state.n_tasks; i++) {
        const struct task *t = r->co->state.tasks[i];
        assert_false(t->kind == TASK_EVAL && t->draw.version == BAD && task_is_open(t));
    }
}

static void a_loss_that_is_no_number_does_too(void **state)
{
    expect_undone(play(*state, SPEC(""), no_number));
}

static void one_word_does_not(void **state)
{
    const struct job *j = play(*state, SPEC(""), one_lies);
    assert_null(restored(j));
    assert_int_equal(j->modules[0].version, LAST);
}

/* The first loss of GOOD that is told is far too small. */
static bool is_told;

static float one_says_too_little(int worker, uint32_t version)
{
    const bool first = version == GOOD && !is_told;
    is_told |= first;
    return first ? 0.01f : 0.5f;
}

/* Whatever is compared with it looks bad, to everybody. */
static void one_word_too_small_does_not(void **state)
{
    is_told = false;
    const struct job *j = play(*state, SPEC(""), one_says_too_little);
    assert_true(is_told);
    assert_null(restored(j));
    assert_int_equal(j->modules[0].version, LAST);
    assert_true(j->rounds[GOOD - 1].eval_loss == 0.5f);
}

static void nor_do_two_where_the_job_forbids_it(void **state)
{
    assert_null(restored(play(*state, SPEC(", guard: 0"), all_say_bad)));
}

static void nor_less_than_the_job_says(void **state)
{
    assert_null(restored(play(*state, SPEC(", guard: 20"), all_say_bad)));
}

static float bad_from_there_on(int worker, uint32_t version)
{
    return version >= BAD ? 5.0f : 0.4f;
}

static void says_bad(struct rig *r, int i)
{
    struct result x;
    begin_result(&x, r->workers[i].task, NULL);
    x.m.loss_mean = 5;
    x.m.units = 4;
    x.m.loss_sum = 20;
    if (!report(r, &r->workers[i], &x))
        fail_msg("%s", r->workers[i].detail);
}

/* Lets the worker measure the version again that BAD is compared with, until BAD is undone. */
static void measure_good(struct rig *r, const struct job *j, int i)
{
    WAIT_DOING(restored(j) != NULL, serve(r, i, bad_from_there_on));
}

/* While one is asked about BAD, the next version is evaluated, and is as bad: that takes nothing
 * from what is said of BAD. */
static void two_words_of_one_version_undo_it_whatever_is_said_of_the_next(void **state)
{
    struct rig *r = *state;
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    int i = 0;
    for (int k = 0; k < 2; k++)
        assert_int_equal(join(r, &r->workers[k], SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit_spec(r, SPEC("")));
    do_init(r, &r->workers[0]);
    for (; j->paths[0].doubt.worker == 0; i = !i) {
        assert_true(clock_now_ms() < until);
        serve(r, i, bad_from_there_on);
    }
    i = j->paths[0].doubt.worker == r->workers[0].id ? 0 : 1;
    assert_int_equal(join(r, &r->workers[2], SKERRY_VERSION), 0);
    assert_int_equal(assign(r, &r->workers[2], TASK_EVAL)->eval->version_round, BAD);
    while (j->paths[0].eval.round <= BAD) {
        assert_true(clock_now_ms() < until);
        for (int k = 0; k < 2; k++)
            serve(r, k, bad_from_there_on);
    }
    assert_null(restored(j));
    says_bad(r, 2);
    measure_good(r, j, !i);
}

/* When the version that BAD is compared with is not kept any more, nobody measures it again. */
static void what_two_say_stands_though_nobody_measures_the_best_again(void **state)
{
    struct rig *r = *state;
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    int i = 0;
    for (int k = 0; k < 2; k++)
        assert_int_equal(join(r, &r->workers[k], SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit_spec(r, SPEC("")));
    do_init(r, &r->workers[0]);
    for (; j->paths[0].doubt.worker == 0; i = !i) {
        assert_true(clock_now_ms() < until);
        serve(r, i, bad_from_there_on);
    }
    i = j->paths[0].doubt.worker == r->workers[0].id ? 0 : 1;
    assert_int_equal(join(r, &r->workers[2], SKERRY_VERSION), 0);
    assert_int_equal(assign(r, &r->workers[2], TASK_EVAL)->eval->version_round, BAD);
    says_bad(r, 2);
    assert_true(j->paths[0].doubt.confirmed > 0 && j->paths[0].doubt.best_task != 0);
    job_edit_path(j, 0)->doubt.best_task = 0; /* as draw_renew() does */
    while (restored(j) == NULL) {
        assert_true(clock_now_ms() < until);
        for (int k = 0; k < 3; k++)
            serve(r, k, bad_from_there_on);
    }
    assert_int_equal(restored(j)->version, j->modules[0].version);
}

/* A machine with two names is one word, as long as somebody is here from elsewhere. */
static void two_names_of_one_place_do_not(void **state)
{
    struct rig *r = *state;
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    int i = 0;
    for (int k = 0; k < 3; k++)
        assert_int_equal(join(r, &r->workers[k], SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit_spec(r, SPEC("")));
    do_init(r, &r->workers[0]);
    (void)str_copy(edit_worker(r, r->workers[2].id)->address, 64, "10.0.0.2:1");
    for (; j->paths[0].doubt.worker == 0; i = !i) {
        assert_true(clock_now_ms() < until);
        serve(r, i, bad_from_there_on);
    }
    i = j->paths[0].doubt.worker == r->workers[0].id ? 0 : 1;
    (void)assign(r, &r->workers[!i], TASK_TRAIN);
    assert_int_equal(assign(r, &r->workers[2], TASK_EVAL)->eval->version_round, BAD);
    says_bad(r, 2);
    assert_null(restored(j));
    measure_good(r, j, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_two_say_stands_though_nobody_measures_the_best_again,
                                        begin, end),
        cmocka_unit_test_setup_teardown(two_names_of_one_place_do_not, begin, end),
        cmocka_unit_test_setup_teardown(
            two_words_of_one_version_undo_it_whatever_is_said_of_the_next, begin, end),
        cmocka_unit_test_setup_teardown(two_words_undo_it, begin, end),
        cmocka_unit_test_setup_teardown(a_loss_that_is_no_number_does_too, begin, end),
        cmocka_unit_test_setup_teardown(one_word_does_not, begin, end),
        cmocka_unit_test_setup_teardown(one_word_too_small_does_not, begin, end),
        cmocka_unit_test_setup_teardown(nor_do_two_where_the_job_forbids_it, begin, end),
        cmocka_unit_test_setup_teardown(nor_less_than_the_job_says, begin, end),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
