/* Back to an older version.  A whole coordinator (rig.h). */
#include "tests/unit/coordinator/rig.h"

#include "coordinator/job/folds.h"
#include "coordinator/job/rollback.h"
#include "coordinator/state/audit.h"
#include "coordinator/work/query.h"

#define SPEC(outer)                                                                                \
    "name: fake\nseed: 3\ndata: {path: x, image_size: 16}\n"                                       \
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"                                  \
    "train: {batch: 4, lr: 0.1}\nrecipe: {replicas: 2}\n"                                          \
    "outer: {rounds: 6, steps: 2" outer "}\nsample: {count: 4}\n"

static const struct job *start_job(struct rig *r, const char *spec)
{
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit_spec(r, spec));
    do_init(r, &r->workers[0]);
    return j;
}

static void wait_version(struct rig *r, const struct job *j, uint64_t version)
{
    WAIT_FOR(r, j->modules[0].version >= version && j->paths[0].round >= version);
}

static void round_of_two(struct rig *r, const struct job *j)
{
    const uint64_t before = j->modules[0].version;
    for (int i = 0; i < 2; i++)
        (void)assign(r, &r->workers[i], TASK_TRAIN);
    for (int i = 0; i < 2; i++)
        finish_train(r, &r->workers[i]);
    wait_version(r, j, before + 1);
}

static void expect_audit(struct rig *r, const struct job *j)
{
    struct audit_result result;
    struct err err = {0};
    FILE *out = tmpfile();
    assert_non_null(out);
    assert_int_equal(audit_job(&r->co->opt, j->id, out, &result, &err), 0);
    assert_int_equal(result.faults, 0);
    assert_true(result.steps >= 1);
    fclose(out);
}

static void it_is_what_it_was(void **state)
{
    struct rig *r = *state;
    const struct job *j = start_job(r, SPEC(""));
    for (int i = 0; i < 3; i++)
        round_of_two(r, j);
    for (int i = 0; i < 2; i++)
        (void)assign(r, &r->workers[i], TASK_TRAIN);
    const uint64_t given = r->workers[0].task->id, held = r->workers[1].task->id;
    assert_false(r->workers[0].task->train->fresh);
    finish_train(r, &r->workers[0]);
    const uint64_t job = j->id;
    assert_int_equal(view_job_rollback(r->co, job, UINT32_MAX, 1, NULL), 0);

    const struct module_rec *m = &j->modules[0];
    const struct version_rec *now = module_version(m, 4), *then = module_version(m, 1);
    assert_true(m->version == 4 && j->paths[0].round == 4 && now->restored);
    assert_memory_equal(&now->full, &then->full, sizeof(now->full));
    assert_memory_equal(&now->ema, &then->ema, sizeof(now->ema));
    assert_false(blob_ref_is_set(&now->delta));
    assert_true(j->rounds[3].contributions == 0 && j->rounds[3].samples == 0);
    assert_int_equal(state_task(&r->co->state, held)->state, TASK_CANCELLED);
    assert_true(state_task(&r->co->state, given)->train.contributions[0].refused);
    for (uint32_t i = 0; i < 2; i++)
        assert_true(j->paths[0].replicas[i].owner == 0 && j->paths[0].replicas[i].step > 8);

    settle(r);
    stop(r);
    start(r);
    j = state_job(&r->co->state, job);
    assert_true(module_version(&j->modules[0], 4)->restored);
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    const Skerry__V1__Task *t = assign(r, &r->workers[0], TASK_TRAIN);
    assert_true(t->modules[0]->version == 4 && t->modules[0]->full != NULL);
    assert_true(t->train->fresh); /* nothing of what was undone goes into it */
    (void)assign(r, &r->workers[1], TASK_TRAIN);
    for (int i = 0; i < 2; i++)
        finish_train(r, &r->workers[i]);
    wait_version(r, j, 5); /* of a fresh optimiser */
    settle(r);             /* so that it is on record */
    expect_audit(r, j);
    assert_false(assign(r, &r->workers[0], TASK_TRAIN)->train->fresh);
    finish_train(r, &r->workers[0]);
    (void)assign(r, &r->workers[1], TASK_TRAIN);
    finish_train(r, &r->workers[1]);
    wait_version(r, j, 6);
    finish_job(r, &r->workers[0]);
    wait_state(r, job, JOB_DONE);
}

static void refused(struct rig *r, uint64_t job, uint32_t path, uint64_t to, const char *why)
{
    struct err err = {0};
    assert_true(view_job_rollback(r->co, job, path, to, &err) < 0);
    assert_non_null(strstr(err.msg, why));
}

static void what_cannot_go_back(void **state)
{
    struct rig *r = *state;
    const struct job *j = start_job(r, SPEC(""));
    for (int i = 0; i < 5; i++)
        round_of_two(r, j);
    refused(r, j->id, UINT32_MAX, 5, "give an older version");
    refused(r, j->id, 0, 1, "keeps versions 2 to 5, not 1");
    refused(r, j->id, 1, 3, "has no path 1");
    refused(r, 99, UINT32_MAX, 1, "does not exist");
    round_of_two(r, j);
    refused(r, j->id, UINT32_MAX, 3, "not training now");
    const uint64_t without = submit_spec(r, SPEC(", async: true"));
    refused(r, without, UINT32_MAX, 0, "trains without rounds");
}

/* Two paths of a module each and one that they share. */
#define GRID                                                                                       \
    "name: grid\nseed: 3\ndata: {path: x, image_size: 16}\n"                                       \
    "model: {type: dit, patch: 4, dim: 32, depth: 2, heads: 2}\n"                                  \
    "train: {batch: 4, lr: 0.1}\nrecipe: {name: dipaco, levels: [2, 1]}\n"                         \
    "outer: {rounds: 8, steps: 2}\nsample: {count: 4}\n"

/* In the middle of round `round` of both paths: module 0 has its next version already. */
static struct job *one_ahead(struct rig *r, uint32_t round)
{
    struct job *j = state_job(&r->co->state, submit_spec(r, GRID));
    assert_true(j->comp.n_modules == 3 && j->comp.n_paths == 2);
    for (uint32_t i = 0; i < 3; i++)
        for (uint64_t v = 0; v <= round + (i == 0); v++)
            folds_adopt(
                r->co, j, job_edit_module(j, &j->modules[i]),
                &(struct version_rec){.version = v,
                                      .full = {.sha256 = {(uint8_t)i, (uint8_t)v}, .size = 1},
                                      .provenance = str_dup("{}")});
    for (uint32_t p = 0; p < 2; p++)
        job_edit_path(j, p)->round = round;
    j->state = JOB_RUNNING;
    return j;
}

/* No phase begins with what was undone. */
static void a_module_that_is_ahead_goes_back_too(void **state)
{
    struct rig *r = *state;
    struct job *j = one_ahead(r, 5);
    assert_int_equal(rollback_job(r->co, j, 1, 3, "for a test", NULL), 0);
    for (uint32_t p = 0; p < 2; p++)
        for (uint32_t l = 0; l < 2; l++) {
            const struct module_rec *m = &j->modules[j->comp.paths[p].modules[l]];
            const struct version_rec *v = module_version(m, j->paths[p].round);
            assert_non_null(v);
            assert_true(v->restored && v->version == m->version && v->full.sha256[1] == 3);
        }
    for (uint32_t p = 0; p < 2; p++) /* rounds that are left out are in the schedule */
        assert_int_equal(j->paths[p].replicas[0].step, 2 + 1);
    j->state = JOB_CANCELLED;
}

static void nor_beyond_the_last_round(void **state)
{
    struct rig *r = *state;
    struct job *j = one_ahead(r, 7);
    struct err err = {0};
    assert_int_equal(rollback_job(r->co, j, ROLLBACK_ALL, 6, "for a test", &err), -ERR_STALE);
    assert_non_null(strstr(err.msg, "all of its rounds"));
    j->state = JOB_CANCELLED;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_module_that_is_ahead_goes_back_too, begin, end),
        cmocka_unit_test_setup_teardown(nor_beyond_the_last_round, begin, end),
        cmocka_unit_test_setup_teardown(it_is_what_it_was, begin, end),
        cmocka_unit_test_setup_teardown(what_cannot_go_back, begin, end),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
