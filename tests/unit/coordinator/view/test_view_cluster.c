/* Who is late, of those that something waits for. */
#include "tests/unit/coordinator/rig.h"

struct seen {
    unsigned n, late;
    char who[128], why[256]; /* of the first that is late */
};

static void see(void *arg, const struct view_waiting *v)
{
    struct seen *s = arg;
    s->n++;
    if (!v->late)
        return;
    if (s->late++ == 0) {
        (void)str_copy(s->who, sizeof(s->who), v->what);
        (void)str_copy(s->why, sizeof(s->why), v->why);
    }
}

static struct seen look(struct rig *r, uint64_t job)
{
    struct seen s = {0};
    view_each_waiting(r->co, job, see, &s);
    assert_true(s.n > 0);
    return s;
}

static void test_late(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    struct job *j = state_job(&r->co->state, submit(r));
    loop_turn(r->loop, true);
    /* Nobody is there: nothing will come by itself. */
    assert_string_equal(look(r, j->id).why, "no worker is here; start one with workerd --join");

    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    /* The first phase is being trained, the second one waits: as it should be. */
    assert_int_equal(look(r, j->id).late, 0);
    assign(r, b, TASK_TRAIN);
    finish_train(r, a);
    finish_train(r, b);
    while (j->n_rounds == 0)
        loop_turn(r->loop, true);

    assign(r, a, TASK_TRAIN);
    assert_int_equal(look(r, j->id).late, 0);
    /* As if the second round had begun long before. */
    struct path_rec *path = job_edit_path(j, 0);
    const uint64_t usual_ms = (uint64_t)(j->rounds[0].seconds * 1e3f);
    path->ready_ms = core_now(r->co) - 10 * usual_ms - 60000;
    assert_int_equal(look(r, j->id).late, 1);
    assert_string_equal(look(r, j->id).who, "worker 1 (fake)");

    /* Not heard of for longer than it should be. */
    path->ready_ms = core_now(r->co);
    assert_int_equal(look(r, j->id).late, 0);
    edit_worker(r, a->id)->heard_ms = core_now(r->co) - 5000;
    assert_string_equal(look(r, j->id).why, "not heard of for 5.0 s");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_late, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
