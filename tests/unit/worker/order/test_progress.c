/* What a heartbeat is told of a task. */
#include "tests/unit/common/base/util.h"

#include "worker/order/progress.h"

static struct progress p;
static struct progress_view view;

static void step(uint64_t n, float loss)
{
    const struct progress_point point = {n, loss, 0.5f / (float)n};
    progress_step(&p, &point, 2.0f, n * 10);
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

    /* Points are told once, the last known loss again. */
    progress_take(&p, &view);
    assert_int_equal(view.told.n_points, 0);
    assert_true(view.told.loss == 3);
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
        TEST(plan_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
