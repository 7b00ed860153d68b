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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(eta_is_of_usual_rounds, begin, end),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
