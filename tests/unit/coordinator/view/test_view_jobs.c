/* What is told of a job.  A whole coordinator (rig.h). */
#include "tests/unit/coordinator/rig.h"

/* One round that was paused, or that waited for a machine, does not lengthen the others. */
static void eta_is_of_usual_rounds(void **state)
{
    static const float seconds[] = {11, 9, 10, 7200, 10, 12, 10, 8, 10};
    struct rig *r = *state;
    struct view_job v;
    const uint64_t id = submit(r);
    struct job *j = state_job(&r->co->state, id);
    for (uint32_t i = 0; i < sizeof seconds / sizeof *seconds; i++)
        job_add_round(j, &(struct round_rec){.round = i, .seconds = seconds[i]});
    assert_false(j->paths[0].ready);
    assert_int_equal(view_job(r->co, id, &v, NULL), 0);
    assert_int_equal(v.eta_ms, 10000 * (int64_t)j->spec.outer.rounds);
}

/* Of a round that began before a restart only the wall clock knows. */
static void eta_goes_on_after_a_restart(void **state)
{
    struct rig *r = *state;
    struct view_job v;
    const uint64_t id = submit(r);
    struct job *j = state_job(&r->co->state, id);
    job_add_round(j, &(struct round_rec){.round = 0, .seconds = 3600});
    job_add_round(j, &(struct round_rec){.round = 1, .seconds = 3600});
    job_add_round(j, &(struct round_rec){.round = 2, .seconds = -5}); /* of a clock put back */
    struct path_rec *p = job_edit_path(j, 0);
    p->ready = true;
    p->ready_ms = 0;
    p->ready_unix_ms = (int64_t)clock_wall_ms();
    assert_int_equal(view_job(r->co, id, &v, NULL), 0);
    const int64_t all = 3600000 * (int64_t)j->spec.outer.rounds;
    assert_true(v.eta_ms > all - DEADLINE_MS && v.eta_ms <= all);
    p->ready = false;
}

/* Nothing is given to workers once the budget is spent. */
static void no_end_is_near_without_a_budget(void **state)
{
    struct rig *r = *state;
    struct view_job v;
    struct view_cost c;
    const uint64_t id = submit(r);
    struct job *j = state_job(&r->co->state, id);
    job_add_round(j, &(struct round_rec){.round = 0, .seconds = 10});
    assert_int_equal(view_job(r->co, id, &v, NULL), 0);
    assert_true(v.eta_ms > 0);
    assert_int_equal(view_job_cost(r->co, id, &c, NULL), 0);
    assert_true(isnan(c.until_end)); /* nobody works, at no cost */
    j->quota.budget = j->cost.work = 5;
    assert_int_equal(view_job(r->co, id, &v, NULL), 0);
    assert_int_equal(v.eta_ms, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(eta_is_of_usual_rounds, begin, end),
        cmocka_unit_test_setup_teardown(eta_goes_on_after_a_restart, begin, end),
        cmocka_unit_test_setup_teardown(no_end_is_near_without_a_budget, begin, end),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
