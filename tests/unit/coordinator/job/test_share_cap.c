/* outer.share_cap: a worker that does most phases of a round has not most of the version.  A whole
 * coordinator (rig.h). */
#include "tests/unit/coordinator/rig.h"

#include <jansson.h>

#include "coordinator/state/audit.h"

#define SPEC(outer)                                                                                \
    "name: fake\nseed: 3\ndata: {path: x, image_size: 16}\n"                                       \
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"                                  \
    "train: {batch: 4, lr: 0.1}\nrecipe: {replicas: 10}\n"                                         \
    "outer: {rounds: 2, steps: 2" outer "}\nsample: {count: 4}\n"

enum { PHASES = 10, OFTEN = 8 };

/* A round of ten phases: the first worker does eight, two others one each. */
static const struct job *play(struct rig *r, const char *spec)
{
    for (int i = 0; i < 3; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit_spec(r, spec));
    do_init(r, &r->workers[0]);
    for (int i = 1; i < 3; i++)
        (void)assign(r, &r->workers[i], TASK_TRAIN);
    for (int i = 0; i < OFTEN; i++) {
        (void)assign(r, &r->workers[0], TASK_TRAIN);
        finish_train(r, &r->workers[0]);
    }
    for (int i = 1; i < 3; i++)
        finish_train(r, &r->workers[i]);
    return j;
}

static json_t *first_version(struct rig *r, const struct job *j)
{
    WAIT_FOR(r, j->modules[0].version >= 1);
    settle(r);
    json_t *doc = json_loads(module_version(&j->modules[0], 1)->provenance, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(doc, "contributions")), PHASES);
    return doc;
}

/* What the record says that worker 1's contributions weigh of all. */
static double share_of(struct rig *r, json_t *doc)
{
    double share = 0;
    const json_t *c;
    size_t i;
    json_array_foreach(json_object_get(doc, "contributions"), i, c)
    {
        assert_int_equal(json_integer_value(json_object_get(c, "samples")), 8);
        if ((uint64_t)json_integer_value(json_object_get(c, "worker")) == r->workers[0].id)
            share += json_number_value(json_object_get(c, "share"));
        else
            assert_true(json_number_value(json_object_get(c, "weight")) == 8);
    }
    json_decref(doc);
    return share;
}

/* Of three never below two thirds; and the step is made again from what is on record. */
static void a_worker_has_no_more_than_its_share(void **state)
{
    struct rig *r = *state;
    const struct job *j = play(r, SPEC(""));
    struct audit_result a;
    struct err err = {0};
    FILE *out = tmpfile();
    assert_non_null(out);
    assert_float_equal(share_of(r, first_version(r, j)), 2.0 / 3, 1e-9);
    if (audit_job(&r->co->opt, j->id, out, &a, &err) < 0)
        fail_msg("%s", err.msg);
    (void)fclose(out);
    assert_true(a.faults == 0 && a.steps == 1);
}

static void but_where_the_job_lets_it(void **state)
{
    const struct job *j = play(*state, SPEC(", share_cap: 1"));
    assert_float_equal(share_of(*state, first_version(*state, j)), 0.8, 1e-12);
}

/* A worker that makes the step is given the weights that are used here. */
static void so_it_is_where_workers_fold(void **state)
{
    struct rig *r = *state;
    (void)play(r, SPEC(", where: worker"));
    const Skerry__V1__OuterTask *o = assign(r, &r->workers[1], TASK_OUTER)->outer;
    double lowered = 0;
    assert_int_equal(o->n_inputs, PHASES);
    for (size_t i = 0; i < o->n_inputs; i++)
        lowered += o->inputs[i]->weight < 8 ? o->inputs[i]->weight : 0;
    assert_float_equal(lowered, 32, 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_worker_has_no_more_than_its_share, begin, end),
        cmocka_unit_test_setup_teardown(but_where_the_job_lets_it, begin, end),
        cmocka_unit_test_setup_teardown(so_it_is_where_workers_fold, begin, end),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
