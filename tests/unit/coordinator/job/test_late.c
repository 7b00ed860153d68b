/* Phases that are not in when a quorum closes their round (outer.late), and the last snapshots of
 * workers that were lost.  A whole coordinator (rig.h). */
#include "tests/unit/coordinator/rig.h"

#include "coordinator/job/folds.h"
#include "coordinator/rpc/report.h"
#include "coordinator/state/audit.h"
#include "coordinator/work/query.h"

#define SPEC(recipe, outer)                                                                        \
    "name: fake\nseed: 3\ndata: {path: x, image_size: 16}\n"                                       \
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"                                  \
    "train: {batch: 4, lr: 0.1}\nrecipe: {" recipe "}\n"                                           \
    "outer: {" outer "}\nsample: {count: 4}\n"
#define QUORUM "rounds: 4, steps: 2, quorum: 0.5, grace: 0.05"

static void wait_version(struct rig *r, const struct job *j, uint64_t version)
{
    WAIT_FOR(r, j->modules[0].version >= version && j->paths[0].round >= version);
    settle(r);
}

static const struct task *phase(struct rig *r, const struct job *j, uint32_t replica)
{
    return query_phase(&r->co->state, j, 0, replica);
}

static void leave(struct rig *r, struct fake *w)
{
    Skerry__V1__LeaveRequest m = SKERRY__V1__LEAVE_REQUEST__INIT;
    assert_int_equal(CALL(r, w, LEAVE, leave, &m), 0);
    settle(r);
}

/* From here on rounds wait for all, also on a machine that is slow. */
static void be_patient(struct rig *r, const struct job *j)
{
    state_job(&r->co->state, j->id)->spec.outer.grace = 600;
}

/* Two workers train; the first is in, and the round is closed without the second; later ones are
 * not. */
static const struct job *closed_without_one(struct rig *r, const char *spec)
{
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit_spec(r, spec));
    do_init(r, &r->workers[0]);
    for (int i = 0; i < 2; i++)
        (void)assign(r, &r->workers[i], TASK_TRAIN);
    finish_train(r, &r->workers[0]);
    wait_version(r, j, 1);
    be_patient(r, j);
    return j;
}

static const char *provenance(const struct job *j, uint64_t version)
{
    return module_version(&j->modules[0], version)->provenance;
}

static struct ledger_epoch samples(const struct job *j)
{
    struct ledger_epoch all = {0}, e;
    for (uint32_t i = 0; i < ledger_first_open(j->ledgers[0]) + ledger_open(j->ledgers[0]); i++) {
        ledger_figures(j->ledgers[0], i, &e);
        all.done += e.done;
        all.leased += e.leased;
        all.pending += e.pending;
    }
    return all;
}

/* Every outer step that can be made again gives the same bits. */
static void audit(struct rig *r, const struct job *j, unsigned steps)
{
    struct audit_result a;
    struct err err = {0};
    FILE *out = tmpfile();
    char said[4096] = "";
    assert_non_null(out);
    if (audit_job(&r->co->opt, j->id, out, &a, &err) < 0)
        fail_msg("%s", err.msg);
    rewind(out);
    (void)!fread(said, 1, sizeof(said) - 1, out);
    (void)fclose(out);
    if (a.faults != 0 || a.steps != steps)
        fail_msg("%llu faults, %llu steps: %s", (unsigned long long)a.faults,
                 (unsigned long long)a.steps, said);
}

static bool was_told(struct rig *r, const struct fake *w, uint64_t task)
{
    const struct worker *rec = state_worker(&r->co->state, w->id);
    for (unsigned i = 0; i < rec->n_verdicts; i++)
        if (rec->verdicts[i].task_id == task)
            return rec->verdicts[i].accepted;
    fail_msg("worker %llu was told nothing of task %llu", (unsigned long long)w->id,
             (unsigned long long)task);
    return false;
}

static void folded_late(struct rig *r, const char *spec, const char *codec)
{
    const struct job *j = closed_without_one(r, spec);
    const struct task *late = phase(r, j, 1);
    char text[64];
    assert_true(late->state == TASK_LEASED && late->train.round == 0);
    assert_non_null(strstr(late->reason, "round 1 was closed without it"));
    assert_int_equal(samples(j).leased, 8); /* its own */
    (void)assign(r, &r->workers[0], TASK_TRAIN);
    finish_train(r, &r->workers[1]);
    assert_int_equal(j->n_late, 1);
    assert_int_equal(assign(r, &r->workers[1], TASK_TRAIN)->train->round, 1);
    assert_int_equal(r->workers[1].task->train->first_step, 2);
    const uint64_t id = j->late[0];
    finish_train(r, &r->workers[1]);
    finish_train(r, &r->workers[0]);
    wait_version(r, j, 2);
    (void)snprintf(text, sizeof(text), "\"codec\":\"%s\",\"staleness\":1,\"samples\":8,", codec);
    assert_non_null(strstr(provenance(j, 2), text));
    assert_non_null(strstr(provenance(j, 2), "\"weight\":5.65685424")); /* 8 / sqrt(2) */
    assert_int_equal(j->n_late, 0);
    assert_true(was_told(r, &r->workers[1], id));
    assert_int_equal(j->modules[0].stale_max, 1);
    assert_int_equal(j->rounds[0].samples, 8);
    assert_int_equal(j->rounds[1].samples, 24);
    assert_true(j->rounds[1].contributions == 3 && j->rounds[1].expected == 3);
    assert_int_equal(samples(j).done, 32);
    audit(r, j, 1);
}

static void goes_into_the_next_version(void **state)
{
    folded_late(*state, SPEC("replicas: 2", QUORUM), "e3m0");
}

/* So does what comes while the step of its round runs. */
static void also_while_the_step_runs(void **state)
{
    struct rig *r = *state;
    struct result x;
    struct err err = {0};
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit_spec(r, SPEC("replicas: 2", QUORUM)));
    do_init(r, &r->workers[0]);
    for (int i = 0; i < 2; i++)
        (void)assign(r, &r->workers[i], TASK_TRAIN);
    struct blob_ref blob = contribute(r, r->workers[1].task, 7, 0.01f);
    begin_result(&x, r->workers[1].task, &blob);
    hold_steps(r);
    finish_train(r, &r->workers[0]);
    while (j->modules[0].outer_task == 0)
        loop_turn(r->loop, true);
    assert_int_equal(report_apply(r->co, edit_worker(r, r->workers[1].id), &x.m, &err), 0);
    let_steps();
    wait_version(r, j, 1);
    be_patient(r, j);
    assert_true(j->rounds[0].contributions == 1 && j->rounds[0].expected == 2);
    assert_int_equal(j->n_late, 1);
    for (int i = 0; i < 2; i++)
        (void)assign(r, &r->workers[i], TASK_TRAIN);
    for (int i = 0; i < 2; i++)
        finish_train(r, &r->workers[i]);
    wait_version(r, j, 2);
    assert_int_equal(j->rounds[1].contributions, 3);
    assert_int_equal(samples(j).done, 32);
}

/* A late phase that comes while a step runs is followed by one of the version that this makes. */
static void its_replica_waits_for_the_step(void **state)
{
    struct rig *r = *state;
    struct result x;
    struct err err = {0};
    const struct job *j = closed_without_one(r, SPEC("replicas: 2", QUORUM));
    struct blob_ref blob = contribute(r, r->workers[1].task, 7, 0.01f);
    begin_result(&x, r->workers[1].task, &blob);
    (void)assign(r, &r->workers[0], TASK_TRAIN);
    state_job(&r->co->state, j->id)->spec.outer.grace = 0.05;
    hold_steps(r);
    finish_train(r, &r->workers[0]);
    while (j->modules[0].outer_task == 0)
        loop_turn(r->loop, true);
    be_patient(r, j);
    assert_int_equal(report_apply(r->co, edit_worker(r, r->workers[1].id), &x.m, &err), 0);
    settle(r);
    const uint32_t meanwhile = phase(r, j, 1)->train.round;
    let_steps();
    assert_int_equal(meanwhile, 0);
    wait_version(r, j, 2);
    const Skerry__V1__TrainTask *t = assign(r, &r->workers[1], TASK_TRAIN)->train;
    assert_true(t->round == 2 && t->first_step == 4);
    assert_int_equal(j->n_late, 1);
}

/* Values are subtracted from the version that they began with. */
static void also_as_values(void **state)
{
    folded_late(*state, SPEC("replicas: 2", QUORUM) "wire: {up: f32}\n", "f32");
}

static void is_dropped_where_the_job_says_so(void **state)
{
    struct rig *r = *state;
    const struct job *j = closed_without_one(r, SPEC("replicas: 2", QUORUM ", late: drop"));
    struct result x;
    struct blob_ref blob = contribute(r, r->workers[1].task, 3, 0.01f);
    begin_result(&x, r->workers[1].task, &blob);
    assert_false(report(r, &r->workers[1], &x));
    assert_non_null(strstr(r->workers[1].detail, "was closed without it"));
    assert_true(samples(j).done == 8 && samples(j).leased + samples(j).pending == 32);
}

/* It waits on record: a coordinator that is started again folds it. */
static void waits_over_a_restart(void **state)
{
    struct rig *r = *state;
    const struct job *j = closed_without_one(r, SPEC("replicas: 2", QUORUM));
    (void)assign(r, &r->workers[0], TASK_TRAIN);
    finish_train(r, &r->workers[1]);
    settle(r);
    const uint64_t job = j->id, late = j->late[0];
    stop(r);
    start(r);
    j = state_job(&r->co->state, job);
    assert_true(j->n_late == 1 && j->late[0] == late);
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    finish_train(r, &r->workers[0]);
    wait_version(r, j, 2);
    assert_int_equal(state_task(&r->co->state, late)->train.contributions[0].version, 2);
    assert_int_equal(j->n_late, 0);
}

/* A phase that no version takes any more is cancelled, and its replica's next one begins where
 * those of the others do. */
static void too_late_it_catches_up(void **state)
{
    struct rig *r = *state;
    const struct job *j =
        closed_without_one(r, SPEC("replicas: 2", "rounds: 9, steps: 2, quorum: 0.5, grace: 0.05"));
    const uint64_t late = phase(r, j, 1)->id;
    state_job(&r->co->state, j->id)->spec.outer.grace = 0.05;
    for (uint64_t round = 2; phase(r, j, 1)->id == late; round++) {
        (void)assign(r, &r->workers[0], TASK_TRAIN);
        finish_train(r, &r->workers[0]);
        wait_version(r, j, round);
    }
    be_patient(r, j);
    assert_int_equal(state_task(&r->co->state, late)->state, TASK_CANCELLED);
    assert_true(j->paths[0].round > 2);
    assert_int_equal(phase(r, j, 1)->train.first_step, 2 * j->paths[0].round);
}

/* The schedule has gone on without a phase that was two rounds late. */
static void two_rounds_late(struct rig *r, const char *spec)
{
    const struct job *j = closed_without_one(r, spec);
    state_job(&r->co->state, j->id)->spec.outer.grace = 0.05;
    (void)assign(r, &r->workers[0], TASK_TRAIN);
    finish_train(r, &r->workers[0]);
    wait_version(r, j, 2);
    be_patient(r, j);
    finish_train(r, &r->workers[1]);
    const Skerry__V1__TrainTask *t = assign(r, &r->workers[1], TASK_TRAIN)->train;
    assert_int_equal(t->first_step, 4);
    assert_int_equal(t->moments_step, 2);
    assert_int_equal(assign(r, &r->workers[0], TASK_TRAIN)->train->moments_step, 0);
}

/* Its worker keeps the moments, which stand where that phase has ended. */
static void its_worker_keeps_the_moments(void **state)
{
    two_rounds_late(*state, SPEC("replicas: 2", QUORUM));
}

/* Steps that contributions of other paths have made (DiPaCo). */
static void step_without(struct rig *r, const struct job *j, uint64_t version)
{
    struct job *edit = state_job(&r->co->state, j->id);
    const struct version_rec *v = module_version(&j->modules[0], 0);
    folds_adopt(
        r->co, edit, job_edit_module(edit, &j->modules[0]),
        &(struct version_rec){.version = version, .full = v->full, .provenance = str_dup("{}")});
    core_touch(r->co);
    wait_version(r, j, version);
}

/* So it has where the path has no other replica. */
static void two_rounds_late_with_one_replica(void **state)
{
    struct rig *r = *state;
    assert_int_equal(join(r, &r->workers[0], SKERRY_VERSION), 0);
    const struct job *j = state_job(
        &r->co->state, submit_spec(r, SPEC("replicas: 1", "rounds: 9, steps: 2, grace: 600")));
    do_init(r, &r->workers[0]);
    (void)assign(r, &r->workers[0], TASK_TRAIN);
    step_without(r, j, 1);
    step_without(r, j, 2);
    assert_int_equal(phase(r, j, 0)->train.round, 0);
    finish_train(r, &r->workers[0]);
    const Skerry__V1__TrainTask *t = assign(r, &r->workers[0], TASK_TRAIN)->train;
    assert_true(t->round == 2 && t->first_step == 4);
    assert_int_equal(t->moments_step, 2);
}

/* Who is lost with a late phase has nothing to give, and its replica is in the round again. */
static void is_cancelled_when_its_worker_is_lost(void **state)
{
    struct rig *r = *state;
    const struct job *j = closed_without_one(r, SPEC("replicas: 2", QUORUM));
    const uint64_t late = phase(r, j, 1)->id;
    leave(r, &r->workers[1]);
    assert_int_equal(state_task(&r->co->state, late)->state, TASK_CANCELLED);
    assert_true(phase(r, j, 1)->id != late && phase(r, j, 1)->train.round == 1);
    assert_int_equal(phase(r, j, 1)->train.first_step, 2);
    assert_int_equal(samples(j).done, 8);
}

/* After the last version there is none that takes it. */
static void nothing_is_late_for_the_last_round(void **state)
{
    struct rig *r = *state;
    const struct job *j =
        closed_without_one(r, SPEC("replicas: 2", "rounds: 1, steps: 2, grace: 0.05"));
    assert_int_equal(j->n_late, 0);
    assert_int_equal(samples(j).done, 8);
    assert_int_equal(samples(j).leased, 0);
}

/* ---- last snapshots ------------------------------------------------------- */

static void save(struct rig *r, struct fake *w, uint64_t used, float size)
{
    struct result x;
    struct blob_ref blob = contribute_as(r, w->task, 77, size, CODEC_INT8);
    Skerry__V1__Snapshot s = SKERRY__V1__SNAPSHOT__INIT;
    begin_result(&x, w->task, &blob);
    s.modules = x.list;
    s.n_modules = 1;
    s.steps = 1;
    s.samples = 5;
    s.position = 5;
    s.used = used;
    s.loss_sum = 0.25;
    x.m.n_contributions = 0;
    x.m.snapshot = true;
    x.m.saved = &s;
    if (!report(r, w, &x))
        fail_msg("%s", w->detail);
}

#define TIMED "rounds: 4, seconds: 60"

/* Two train for a time; the second saves something of this size and leaves, then the first is
 * through. */
static const struct job *left_with(struct rig *r, const char *spec, uint64_t used, float size)
{
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit_spec(r, spec));
    do_init(r, &r->workers[0]);
    for (int i = 0; i < 2; i++)
        (void)assign(r, &r->workers[i], TASK_TRAIN);
    save(r, &r->workers[1], used, size);
    leave(r, &r->workers[1]);
    finish_train(r, &r->workers[0]);
    return j;
}

static const struct job *one_left(struct rig *r, const char *spec, uint64_t used)
{
    return left_with(r, spec, used, 0.01f);
}

static void part_is_folded(struct rig *r, const struct job *j)
{
    wait_version(r, j, 1);
    assert_non_null(strstr(provenance(j, 1), "\"codec\":\"int8\",\"staleness\":0,\"samples\":4,"));
    assert_int_equal(j->rounds[0].samples, 12);
    assert_int_equal(j->rounds[0].contributions, 2);
    assert_int_equal(samples(j).done, 12);
    assert_false(was_told(r, &r->workers[1], 3)); /* of its residual nothing is in a version */
    audit(r, j, 1);
}

static void a_last_snapshot_counts(void **state)
{
    struct rig *r = *state;
    part_is_folded(r, one_left(r, SPEC("replicas: auto", TIMED), 4));
}

static void it_counts_past_the_grace(void **state)
{
    struct rig *r = *state;
    part_is_folded(r, one_left(r, SPEC("replicas: 2", TIMED ", grace: 0.05"), 4));
}

/* And where its worker is lost while a step runs: the next version takes it. */
static void it_counts_after_the_step(void **state)
{
    struct rig *r = *state;
    const struct job *j = closed_without_one(r, SPEC("replicas: 2", TIMED ", grace: 0.05"));
    const uint64_t late = phase(r, j, 1)->id;
    save(r, &r->workers[1], 4, 0.01f);
    (void)assign(r, &r->workers[0], TASK_TRAIN);
    state_job(&r->co->state, j->id)->spec.outer.grace = 0.05;
    hold_steps(r);
    finish_train(r, &r->workers[0]);
    while (j->modules[0].outer_task == 0)
        loop_turn(r->loop, true);
    be_patient(r, j);
    leave(r, &r->workers[1]);
    let_steps();
    wait_version(r, j, 2);
    assert_int_equal(state_task(&r->co->state, late)->state, TASK_DONE);
    assert_int_equal(j->n_late, 1);
}

/* Somebody must go on with a phase of which nobody can say what it has used. */
static void without_a_stretch_it_is_gone_on_with(void **state)
{
    struct rig *r = *state;
    const struct job *j = one_left(r, SPEC("replicas: auto", TIMED), 0);
    const Skerry__V1__Task *t = assign(r, &r->workers[0], TASK_TRAIN);
    assert_int_equal(t->train->round, 0);
    assert_int_equal(t->train->resume->steps, 1);
    assert_int_equal(j->modules[0].version, 0);
}

/* One that is refused is no end of its phase, where the round needs that: it begins anew. */
static void a_bad_one_is_done_again(void **state)
{
    struct rig *r = *state;
    const struct job *j = left_with(r, SPEC("replicas: auto", TIMED ", quorum: 1"), 4, 1e6f);
    const Skerry__V1__Task *t = assign(r, &r->workers[0], TASK_TRAIN);
    assert_true(t->train->round == 0 && t->train->resume == NULL);
    finish_train(r, &r->workers[0]);
    wait_version(r, j, 1);
    assert_int_equal(j->rounds[0].contributions, 2);
}

/* A late phase whose record is gone is forgotten, and the job goes on. */
static void its_record_is_gone(void **state)
{
    struct rig *r = *state;
    const struct job *j = closed_without_one(r, SPEC("replicas: 2", QUORUM));
    const size_t before = j->n_late;
    job_add_late(state_job(&r->co->state, j->id), 9999);
    core_touch(r->co);
    settle(r);
    assert_int_equal(j->n_late, before);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        TEST(goes_into_the_next_version),
        TEST(also_while_the_step_runs),
        TEST(its_replica_waits_for_the_step),
        TEST(also_as_values),
        TEST(is_dropped_where_the_job_says_so),
        TEST(waits_over_a_restart),
        TEST(too_late_it_catches_up),
        TEST(its_worker_keeps_the_moments),
        TEST(two_rounds_late_with_one_replica),
        TEST(is_cancelled_when_its_worker_is_lost),
        TEST(nothing_is_late_for_the_last_round),
        TEST(a_last_snapshot_counts),
        TEST(it_counts_past_the_grace),
        TEST(it_counts_after_the_step),
        TEST(without_a_stretch_it_is_gone_on_with),
        TEST(a_bad_one_is_done_again),
        TEST(its_record_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
