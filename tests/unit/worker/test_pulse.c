/* What a heartbeat tells of a task, and what stays when the task is over. */
#include "worker/pulse.h"

#include "tests/unit/common/base/util.h"

static struct pulse pulse;
static struct progress progress;

static int setup(void **state)
{
    memset(&pulse, 0, sizeof(pulse));
    progress_init(&progress);
    return 0;
}

static int teardown(void **state)
{
    progress_release(&progress);
    return 0;
}

static Skerry__V1__HeartbeatRequest beat(struct progress *from)
{
    Skerry__V1__HeartbeatRequest req = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    pulse_put(&pulse, from, 11, 3, &req);
    return req;
}

static void step(uint64_t number)
{
    const struct progress_point point = {.step = number, .loss = 2};
    progress_step(&progress, &point, 0, (uint32_t)number, number);
}

static void without_a_task(void **state)
{
    const Skerry__V1__HeartbeatRequest req = beat(NULL);
    assert_true(!req.progress && !req.plan && req.flops == 0 && req.throughput == 0);
    assert_false(pulse_over(&pulse));
}

/* Points are told until they were heard, and then no more. */
static void points(void **state)
{
    step(5);
    step(6);
    Skerry__V1__HeartbeatRequest req = beat(&progress);
    assert_true(req.progress->task_id == 11 && req.progress->attempt == 3);
    assert_int_equal(req.progress->n_points, 2);
    step(7); /* while the answer is under way */
    pulse_heard(&pulse, &progress);
    req = beat(&progress);
    assert_int_equal(req.progress->n_points, 1);
    assert_int_equal(req.progress->points[0]->step, 7);
    /* What a heartbeat without a task, or of the last one, has told is not this task's. */
    (void)beat(NULL);
    pulse_heard(&pulse, &progress);
    assert_int_equal(beat(&progress).progress->n_points, 1);
    (void)pulse_over(&pulse);
    pulse_heard(&pulse, &progress);
    assert_int_equal(beat(&progress).progress->n_points, 1);
    pulse_heard(&pulse, &progress);
    assert_int_equal(beat(&progress).progress->n_points, 0);
}

/* They are of the newest phase that had any, also while no task is there. */
static void rates_stay(void **state)
{
    struct progress_plan plan = {.told = SKERRY__V1__STEP_PLAN__INIT, .filled_with = "frozen"};
    plan.told.devices = 1;
    progress_rates(&progress, 0.5, 9);
    progress_step_plan(&progress, &plan);
    progress.view.told.samples_per_second = 0.25f;
    (void)beat(NULL); /* which had no rates to tell */
    pulse_take(&pulse, &progress);
    assert_true(pulse_over(&pulse)); /* the phase was too short for a heartbeat */
    Skerry__V1__HeartbeatRequest req = beat(NULL);
    assert_true(req.flops == 0.5 && req.peak_flops == 9 && req.throughput == 0.25f);
    assert_int_equal(req.plan->devices, 1);
    assert_string_equal(req.plan->filled_with, "frozen");
    assert_false(pulse_over(&pulse));

    struct progress other;
    progress_init(&other); /* a task without rates */
    req = beat(&other);
    assert_true(req.flops == 0.5 && req.peak_flops == 9 && req.throughput == 0.25f);
    assert_int_equal(req.plan->devices, 1);
    progress_rates(&other, 0.75, 0);
    req = beat(&other);
    assert_true(req.flops == 0.75 && req.peak_flops == 0);
    progress_release(&other);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(without_a_task), TEST(points), TEST(rates_stay)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
