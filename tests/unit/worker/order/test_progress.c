/* What a heartbeat is told of a task. */
#include "tests/unit/common/base/util.h"

#include "common/base/clock.h"
#include "common/base/pieces.h"
#include "worker/order/progress.h"

static struct progress p;
static struct progress_view view;

static void step(uint64_t n, float loss)
{
    const struct progress_point point = {.step = n, .loss = loss, .lr = 0.5f / (float)n};
    progress_step(&p, &point, 2.0f, (uint32_t)n, n * 10);
}

static void what_was_told(void **state)
{
    (void)state;
    progress_total(&p, 7);
    progress_activity(&p, "training %d", 3);
    step(1, 4);
    step(2, 2);
    progress_rates(&p, 1e9, 2e9);
    progress_take(&p, &view);
    assert_string_equal(view.told.activity, "training 3");
    assert_int_equal(view.told.steps_total, 7);
    assert_int_equal(view.told.steps_done, 2);
    assert_int_equal(view.told.samples_done, 20);
    assert_true(view.told.loss == 3 && view.told.grad_norm == 2);
    assert_true(view.flops == 1e9 && view.peak_flops == 2e9);
    assert_int_equal(view.told.n_points, 2);
    assert_int_equal(view.told.points[1]->step, 2);
    assert_true(view.told.points[1]->loss == 2 && view.told.points[1]->lr == 0.25f);

    /* Points are told until they were heard, the last known loss again. */
    step(3, 1);
    progress_heard(&p, 3);
    progress_take(&p, &view);
    assert_int_equal(view.told.n_points, 1);
    assert_int_equal(view.told.points[0]->step, 3);
    assert_true(view.told.loss == 1);
    progress_take(&p, &view); /* the answer was lost */
    assert_int_equal(view.told.n_points, 1);
    progress_heard(&p, 4);
    progress_take(&p, &view);
    assert_int_equal(view.told.n_points, 0);
    assert_true(view.told.loss == 1);
}

static void a_phase_goes_on(void **state)
{
    (void)state;
    progress_total(&p, 1000);
    step(901, 4);
    progress_take(&p, &view);
    assert_int_equal(view.told.steps_done, 901);
}

/* What is averaged with a newer one is told again with that. */
static void heard_in_part(void **state)
{
    (void)state;
    const double one[PROGRESS_NUMBERS_MAX] = {1};
    assert_int_equal(progress_number(&p, "one", NULL), 0);
    for (unsigned i = 1; i <= PROGRESS_POINTS_MAX; i++)
        step(i, (float)i);
    const struct progress_point more = {.step = PROGRESS_POINTS_MAX + 1, .numbers = one};
    progress_step(&p, &more, 0, PROGRESS_POINTS_MAX + 1, 1);
    progress_heard(&p, 4);
    progress_take(&p, &view);
    assert_int_equal(view.told.n_points, PROGRESS_POINTS_MAX / 2);
    assert_int_equal(view.told.points[0]->step, 4);
    assert_true(view.told.points[0]->loss == 3.5f);
    assert_true(isnan(view.told.points[0]->numbers[0]));
    assert_true(view.told.points[view.told.n_points - 1]->numbers[0] == 1);
}

static void units_are_not_steps_of_training(void **state)
{
    (void)state;
    progress_units(&p, 3, 9);
    progress_take(&p, &view);
    assert_int_equal(view.told.steps_done, 3);
    assert_int_equal(view.told.steps_total, 9);
    assert_int_equal(view.told.n_points, 0);
    /* Another part begins at 0: what is done of all parts goes on growing. */
    uint64_t sum = view.told.samples_done;
    progress_units(&p, 0, 4);
    progress_units(&p, 2, 4);
    progress_take(&p, &view);
    assert_int_equal(view.told.steps_done, 2);
    assert_int_equal(view.told.samples_done, sum + 2);
}

/* More points than there is room for: neighbours are averaged, none is dropped. */
static void points_are_thinned(void **state)
{
    (void)state;
    const unsigned n = PROGRESS_POINTS_MAX + 2;
    double sum = 0;
    for (unsigned i = 1; i <= n; i++)
        step(i, (float)i);
    progress_take(&p, &view);
    assert_int_equal(view.told.n_points, PROGRESS_POINTS_MAX / 2 + 2);
    assert_int_equal(view.told.points[0]->step, 2);
    assert_true(view.told.points[0]->loss == 1.5f);
    assert_int_equal(view.told.points[view.told.n_points - 1]->step, n);
    for (size_t i = 0; i < view.told.n_points; i++)
        sum += (double)view.told.points[i]->loss * (i < PROGRESS_POINTS_MAX / 2 ? 2 : 1);
    assert_true(sum == n * (n + 1) / 2.0);
    assert_true(view.told.loss == (float)((n + 1) / 2.0));
}

/* Numbers by name: a step that does not tell one has no value, and what is averaged is what was
 * told. */
static void numbers_have_names(void **state)
{
    (void)state;
    double values[PROGRESS_NUMBERS_MAX] = {0.25};
    const struct progress_point point = {.step = 1, .loss = 1, .numbers = values};
    assert_int_equal(progress_number(&p, "accuracy", NULL), 0);
    progress_step(&p, &point, 0, 1, 1);
    assert_int_equal(progress_number(&p, "top-5", NULL), 1);
    assert_int_equal(progress_number(&p, "accuracy", NULL), 0);
    values[0] = NAN;
    values[1] = 7;
    progress_step(&p, &point, 0, 2, 2);
    progress_take(&p, &view);
    assert_int_equal(view.told.n_number_names, 2);
    assert_string_equal(view.told.number_names[1], "top-5");
    assert_int_equal(view.told.points[1]->n_numbers, 2);
    assert_true(view.told.points[0]->numbers[0] == 0.25 && isnan(view.told.points[0]->numbers[1]));
    assert_true(isnan(view.told.points[1]->numbers[0]) && view.told.points[1]->numbers[1] == 7);
    progress_heard(&p, 2);
    for (unsigned i = 0; i <= PROGRESS_POINTS_MAX; i++) {
        values[0] = i;
        values[1] = i % 2 ? (double)NAN : i;
        progress_step(&p, &point, 0, i, i);
    }
    progress_take(&p, &view);
    assert_true(view.told.points[1]->numbers[0] == 2.5 && view.told.points[1]->numbers[1] == 2);
}

static void names_of_numbers_are_bounded(void **state)
{
    (void)state;
    struct err err = {0};
    char name[PROGRESS_NUMBER_NAME_MAX + 1];
    static const char *const bad[] = {"", "two words", "brace}", ".hidden"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        assert_int_equal(progress_number(&p, bad[i], &err), -ERR_TRAINER);
    assert_string_equal(err.msg,
                        "the trainer calls a number '.hidden', expected 1 to 64 of A-Z a-z 0-9 "
                        ". _ -, and neither . nor - first");
    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    assert_int_equal(progress_number(&p, name, &err), -ERR_TRAINER);
    for (int i = 0; i < PROGRESS_NUMBERS_MAX; i++) {
        (void)snprintf(name, sizeof(name), "n%d", i);
        assert_int_equal(progress_number(&p, name, &err), i);
    }
    assert_int_equal(progress_number(&p, "more", &err), -ERR_TRAINER);
    assert_string_equal(err.msg,
                        "the trainer tells a number 'more' beside 16 others, which is one more "
                        "than a task can have");
    assert_int_equal(progress_number(&p, "n3", &err), 3);
}

/* How devices share a step is told until there is another way. */
static void plan_stays(void **state)
{
    (void)state;
    struct progress_plan plan = {.told = SKERRY__V1__STEP_PLAN__INIT, .filled_with = "images"};
    progress_take(&p, &view);
    assert_int_equal(view.plan.told.devices, 0);
    plan.told.devices = 2;
    progress_step_plan(&p, &plan);
    for (int i = 0; i < 2; i++) {
        progress_take(&p, &view);
        assert_int_equal(view.plan.told.devices, 2);
        assert_string_equal(view.plan.filled_with, "images");
    }
}

/* Within an hour of a step: a loop without end keeps no lease for longer. */
static void pieces_are_signs(void **state)
{
    (void)state;
    pieces_done();
    assert_int_equal(progress_signs(&p), 0);
    progress_hear(&p);
    pieces_done();
    pieces_done();
    assert_int_equal(progress_signs(&p), 2);
    p.moved_ns -= 3601 * CLOCK_NS_PER_S;
    pieces_done();
    assert_int_equal(progress_signs(&p), 2);
    step(1, 4);
    pieces_done();
    assert_int_equal(progress_signs(&p), 3);
    pieces_hear(NULL, NULL);
    pieces_done();
    assert_int_equal(progress_signs(&p), 3);
}

static int setup(void **state)
{
    (void)state;
    progress_init(&p);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    progress_release(&p);
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_was_told),
        TEST(units_are_not_steps_of_training),
        TEST(points_are_thinned),
        TEST(numbers_have_names),
        TEST(names_of_numbers_are_bounded),
        TEST(plan_stays),
        TEST(heard_in_part),
        TEST(a_phase_goes_on),
        TEST(pieces_are_signs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
