/* What every kind of task has, and which results no kind takes. */
#include "tests/unit/coordinator/kinds/by_hand.h"

static const char spec[] = "name: q\ndata: {path: x, image_size: 16}\n"
                           "model: {type: dit, patch: 4, dim: 32, depth: 4, heads: 2}\n"
                           "train: {batch: 6}\nrecipe: {name: diloco, replicas: 2}\n"
                           "outer: {rounds: 9, steps: 2}\n";

static void refused(struct rig *r, struct job *j, struct task *t,
                    const Skerry__V1__ReportRequest *m, const char *why)
{
    struct err err = {0};
    assert_int_equal(kinds_apply(r->co, j, t, m, &err), -EINVAL);
    if (!strstr(err.msg, why))
        fail_msg("'%s', expected '%s'", err.msg, why);
}

/* Only a phase is reported in parts, while it goes on. */
static void test_parts(void **state)
{
    static const char why[] = "only a phase of training can be reported in parts";
    struct rig *r = *state;
    struct job *j = add_job(r, spec);
    Skerry__V1__ReportRequest m = SKERRY__V1__REPORT_REQUEST__INIT;
    m.snapshot = true;
    for (int kind = TASK_INIT; kind < TASK_KINDS; kind++)
        if (kind != TASK_TRAIN)
            refused(r, j, add_task(r, j, (enum task_kind)kind), &m, why);
    m.failed = true;
    refused(r, j, add_task(r, j, TASK_TRAIN), &m, why);
}

/* The next phase is for whoever did the last one, a path is evaluated by whoever did that, and a
 * version drawn by whoever has it. */
static void test_owner(void **state)
{
    struct rig *r = *state;
    struct job *j = add_job(r, spec);
    job_edit_replica(j, 0, 1)->owner = 5;
    job_edit_path(j, 0)->velocity_worker = 6;
    job_edit_path(j, 0)->drew_worker = 8;
    job_edit_path(j, 0)->drew_version = 3;
    job_edit_module(j, &j->modules[0])->fold_for = 7;
    for (int kind = TASK_INIT; kind < TASK_KINDS; kind++) {
        struct task *t = add_task(r, j, (enum task_kind)kind);
        if (task_has_phase(t))
            t->train.replica = 1;
        if (kind == TASK_OUTER)
            t->outer.module_id = j->modules[0].id;
        if (kind == TASK_EVAL || kind == TASK_SAMPLE)
            t->draw.version = 3;
        const uint64_t want = kind == TASK_TRAIN      ? 5
                              : kind == TASK_VELOCITY ? 6
                              : kind == TASK_OUTER    ? 7
                              : kind == TASK_SAMPLE   ? 8
                                                      : 0;
        assert_int_equal(kinds_owner(j, t), want);
        if (kind == TASK_SAMPLE)
            t->draw.version = 4;
        assert_int_equal(kinds_owner(j, t), kind == TASK_SAMPLE ? 0 : want);
    }
}

int main(void)
{
#define LIVE(f) cmocka_unit_test_setup_teardown(f, begin_by_hand, end_by_hand)
    const struct CMUnitTest tests[] = {LIVE(test_parts), LIVE(test_owner)};
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
