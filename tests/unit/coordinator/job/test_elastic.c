/* Rounds with as many phases as there are workers (recipe.replicas: auto).  A whole coordinator
 * (rig.h). */
#include "tests/unit/coordinator/rig.h"

#include "coordinator/work/member.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"

#define SPEC(recipe, outer)                                                                        \
    "name: fake\nseed: 3\ndata: {path: x, image_size: 16}\n"                                       \
    "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"                                  \
    "train: {batch: 4, lr: 0.1}\nrecipe: {" recipe "}\n"                                           \
    "outer: {rounds: 4, steps: 2" outer "}\nsample: {count: 4}\n"

static uint32_t phases(struct rig *r, const struct job *j)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->comp.paths[0].replicas; i++)
        n += query_phase(&r->co->state, j, 0, i) != NULL;
    return n;
}

static void wait_version(struct rig *r, const struct job *j, uint64_t version)
{
    WAIT_FOR(r, j->modules[0].version >= version && j->paths[0].round >= version);
}

/* All workers below n get a phase each, and there are no others. */
static void begin_round(struct rig *r, const struct job *j, int n)
{
    for (int i = 0; i < n; i++)
        (void)assign(r, &r->workers[i], TASK_TRAIN);
    assert_int_equal(phases(r, j), n);
    assert_int_equal(query_replicas(&r->co->state, j, 0), n);
    for (uint32_t i = 0; i < j->comp.paths[0].replicas; i++) {
        const struct task *t = query_phase(&r->co->state, j, 0, i);
        assert_true(t == NULL || t->train.first_step == (uint64_t)t->train.round * 2);
    }
}

static void round_of(struct rig *r, const struct job *j, int n)
{
    const uint64_t before = j->modules[0].version;
    begin_round(r, j, n);
    for (int i = 0; i < n; i++)
        finish_train(r, &r->workers[i]);
    wait_version(r, j, before + 1);
}

static void leave(struct rig *r, struct fake *w)
{
    Skerry__V1__LeaveRequest m = SKERRY__V1__LEAVE_REQUEST__INIT;
    assert_int_equal(CALL(r, w, LEAVE, leave, &m), 0);
}

/* Those whose moments are somewhere here are chosen, and who comes goes on where the path is. */
static void as_many_as_there_are_workers(void **state)
{
    struct rig *r = *state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit_spec(r, SPEC("replicas: auto", "")));
    assert_true(j->comp.elastic && j->spec.outer.alone_lr == 1);
    do_init(r, &r->workers[0]);
    (void)assign(r, &r->workers[2], TASK_TRAIN); /* replica 0 */
    (void)assign(r, &r->workers[0], TASK_TRAIN);
    (void)assign(r, &r->workers[1], TASK_TRAIN);
    finish_train(r, &r->workers[2]);
    leave(r, &r->workers[2]);
    finish_train(r, &r->workers[0]);
    finish_train(r, &r->workers[1]);
    wait_version(r, j, 1);
    assert_int_equal(j->rounds[0].expected, 3);
    const uint64_t gone = r->workers[2].id;
    begin_round(r, j, 2);
    for (uint32_t i = 0; i < j->comp.paths[0].replicas; i++) {
        const struct replica_rec *rr = &j->paths[0].replicas[i];
        assert_true(rr->task_id == 0 || rr->owner != gone); /* who is here has the moments */
    }
    r->workers[2].instance[0] ^= 1;
    assert_int_equal(join(r, &r->workers[2], SKERRY_VERSION), 0);
    finish_train(r, &r->workers[0]);
    finish_train(r, &r->workers[1]);
    wait_version(r, j, 2);
    assert_int_equal(j->rounds[1].expected, 2);
    round_of(r, j, 3);
}

/* Who has only ever failed is no reason for a phase. */
static void who_fails_is_not_counted(void **state)
{
    struct rig *r = *state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    edit_worker(r, r->workers[2].id)->failures_row = 1;
    const struct job *j = state_job(&r->co->state, submit_spec(r, SPEC("replicas: auto", "")));
    do_init(r, &r->workers[0]);
    round_of(r, j, 2);
    begin_round(r, j, 2);
    edit_worker(r, r->workers[2].id)->tasks_done = 1; /* it can work */
    core_touch(r->co);
    settle(r);
    assert_int_equal(phases(r, j), 2); /* the round had begun */
    for (int i = 0; i < 2; i++)
        finish_train(r, &r->workers[i]);
    wait_version(r, j, 2);
    round_of(r, j, 3);
}

/* Nor who has no memory for one. */
static void who_is_too_small_is_not_counted(void **state)
{
    struct rig *r = *state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit_spec(r, SPEC("replicas: auto", "")));
    const struct task phase = {.job_id = j->id, .kind = TASK_TRAIN};
    member_note_small(r->co, edit_worker(r, r->workers[2].id), &phase, 60000);
    do_init(r, &r->workers[0]);
    round_of(r, j, 2);
}

/* The modules that it is told to fetch while it waits; NULL: none. */
static Skerry__V1__ModuleRef *told(struct rig *r, struct fake *w)
{
    assert_null(got(r, w));
    const Skerry__V1__Ahead *m = w->assigned->ahead;
    assert_true(m == NULL || (m->n_modules == 1 && m->modules[0]->module_id == MODULE));
    return m != NULL ? m->modules[0] : NULL;
}

/* A newcomer that still fetches is no reason for a phase, and gets none that others can do; what it
 * is led to is a version that it can get through with, whatever versions come, and then deltas. */
static void who_fetches_is_not_waited_for(void **state)
{
    struct rig *r = *state;
    struct fake *late = &r->workers[2];
    late->fetches_ahead = true;
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit_spec(r, SPEC("replicas: auto", "")));
    do_init(r, &r->workers[0]);
    round_of(r, j, 2);
    begin_round(r, j, 2);
    assert_int_equal(join(r, late, SKERRY_VERSION), 0);
    ask(r, late, 15000);
    const Skerry__V1__ModuleRef *ref = told(r, late);
    assert_true(ref->version == 1 && ref->full != NULL && ref->full->url[0] == '/');
    for (int i = 0; i < 2; i++)
        finish_train(r, &r->workers[i]);
    wait_version(r, j, 2);
    begin_round(r, j, 2);
    leave(r, &r->workers[1]); /* its phase is for who has the version, or for who is alone */
    ask(r, late, 600);
    ref = told(r, late);
    assert_true(ref->version == 1 && ref->full != NULL);
    late->held.module_id = MODULE;
    late->held.version = 1;
    ask(r, late, 15000);
    ref = got(r, late)->modules[0];
    assert_true(ref->version == 2 && ref->n_deltas == 1 && ref->deltas[0]->from == 1);
}

/* Who is late in a round that begins, and is about to leave, is in nobody's place. */
static void who_leaves_late_takes_no_place(void **state)
{
    struct rig *r = *state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    const struct job *j = state_job(
        &r->co->state, submit_spec(r, SPEC("replicas: auto", ", quorum: 0.5, grace: 0.05")));
    do_init(r, &r->workers[0]);
    begin_round(r, j, 2);
    edit_worker(r, r->workers[1].id)->drain = true;
    finish_train(r, &r->workers[0]);
    wait_version(r, j, 1);
    assert_int_equal(assign(r, &r->workers[0], TASK_TRAIN)->train->round, 1);
    assert_int_equal(phases(r, j), 2);
}

/* Who comes before anybody has begun with the round is in it, and while the job is paused nobody
 * can begin: who comes and goes then is not. */
static void who_comes_before_it_begins_takes_part(void **state)
{
    struct rig *r = *state;
    assert_int_equal(join(r, &r->workers[0], SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit_spec(r, SPEC("replicas: auto", "")));
    do_init(r, &r->workers[0]);
    begin_round(r, j, 1);
    finish_train(r, &r->workers[0]);
    leave(r, &r->workers[0]);
    wait_version(r, j, 1);
    settle(r);
    assert_int_equal(phases(r, j), 1); /* for whoever comes */
    r->workers[0].instance[0] ^= 1;
    state_job(&r->co->state, j->id)->paused = true;
    for (int i = 0; i < 3; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    settle(r);
    leave(r, &r->workers[2]);
    settle(r);
    assert_int_equal(phases(r, j), 1);
    state_job(&r->co->state, j->id)->paused = false;
    core_touch(r->co);
    settle(r);
    assert_int_equal(phases(r, j), 2);
    r->workers[2].instance[0] ^= 1;
    assert_int_equal(join(r, &r->workers[2], SKERRY_VERSION), 0);
    settle(r);
    assert_int_equal(phases(r, j), 3);
    round_of(r, j, 3);
}

/* Nobody who may not work is told to fetch, nor who does not say that it would. */
static void who_is_told(void **state)
{
    struct rig *r = *state;
    struct fake *late = &r->workers[2];
    assert_int_equal(join(r, &r->workers[0], SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit_spec(r, SPEC("replicas: auto", "")));
    do_init(r, &r->workers[0]);
    round_of(r, j, 1);
    begin_round(r, j, 1);
    assert_int_equal(join(r, late, SKERRY_VERSION), 0);
    ask(r, late, 600);
    assert_null(told(r, late));
    late->fetches_ahead = true;
    assert_int_equal(join(r, late, SKERRY_VERSION), 0);
    edit_worker(r, late->id)->quarantined_until_ms = UINT64_MAX;
    ask(r, late, 600);
    assert_null(told(r, late));
    edit_worker(r, late->id)->quarantined_until_ms = 0;
    ask(r, late, 15000);
    assert_int_equal(told(r, late)->version, 1);
    edit_worker(r, late->id)->drain = true;
    ask(r, late, 600);
    assert_null(told(r, late));
    assert_true(late->assigned->drain);
}

/* Phases bounded by time have as many steps as their workers make: each replica goes on at its own,
 * where its moments are, and only one that has never trained begins where the path is. */
static void each_at_its_own_pace(void **state)
{
    struct rig *r = *state;
    const uint32_t pace[] = {8, 5, 5};
    for (int i = 0; i < 2; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    struct job *j = state_job(&r->co->state, submit_spec(r, SPEC("replicas: auto", "")));
    j->spec.outer.steps = 0;
    j->spec.outer.seconds = 10;
    do_init(r, &r->workers[0]);
    for (uint32_t round = 0; round < 3; round++) {
        const int n = round < 2 ? 2 : 3;
        for (int i = 0; i < n; i++) {
            const Skerry__V1__TrainTask *t = assign(r, &r->workers[i], TASK_TRAIN)->train;
            assert_int_equal(t->first_step, pace[i < 2 ? i : 0] * round);
        }
        if (round == 1)
            assert_int_equal(join(r, &r->workers[2], SKERRY_VERSION), 0);
        for (int i = 0; i < n; i++) {
            struct result x;
            struct blob_ref b = contribute(r, r->workers[i].task, round, 0.01f);
            begin_result(&x, r->workers[i].task, &b);
            x.m.steps = pace[i];
            assert_true(report(r, &r->workers[i], &x));
        }
        wait_version(r, j, round + 1);
    }
}

static void alone_it_trains_plainly(void **state)
{
    struct rig *r = *state;
    assert_int_equal(join(r, &r->workers[0], SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit_spec(r, SPEC("replicas: auto", "")));
    do_init(r, &r->workers[0]);
    round_of(r, j, 1);
    const char *plain = j->modules[0].versions[1].provenance;
    assert_non_null(strstr(plain, "\"lr\":1,\"momentum\":0,"));
    (void)assign(r, &r->workers[0], TASK_TRAIN);
    assert_int_equal(join(r, &r->workers[1], SKERRY_VERSION), 0);
    settle(r);
    assert_int_equal(phases(r, j), 1); /* the round had begun */
    finish_train(r, &r->workers[0]);
    wait_version(r, j, 2);
    round_of(r, j, 2);
    const struct version_rec *v = module_version(&j->modules[0], 3);
    assert_non_null(strstr(v->provenance, "\"momentum\":0.16")); /* in its warm-up */
}

/* Where others hold nearly all samples a round has as many phases as there are samples for; where
 * nothing is left it begins when somebody is through. */
static void few_samples_are_few_phases(void **state)
{
    struct rig *r = *state;
    static struct ledger_range held[2][RANGES_TAKEN_MAX];
    size_t n[2];
    for (int i = 0; i < 3; i++)
        assert_int_equal(join(r, &r->workers[i], SKERRY_VERSION), 0);
    const struct job *j = state_job(&r->co->state, submit_spec(r, SPEC("replicas: auto", "")));
    do_init(r, &r->workers[0]);
    begin_round(r, j, 3); /* of 8 samples each */
    struct ledger *l = j->ledgers[0];
    n[0] = ledger_take(l, 1000, UINT32_MAX, 0, 1, held[0], RANGES_TAKEN_MAX);
    n[1] = ledger_take(l, 1001, ledger_room(l) - 20, 0, 1, held[1], RANGES_TAKEN_MAX);
    assert_true(ledger_has(l, 20) && !ledger_has(l, 21));
    for (int i = 0; i < 3; i++)
        finish_train(r, &r->workers[i]);
    wait_version(r, j, 1);
    begin_round(r, j, 2);
    ask(r, &r->workers[2], 15000);
    for (int i = 0; i < 2; i++)
        finish_train(r, &r->workers[i]);
    wait_version(r, j, 2);
    settle(r);
    assert_int_equal(j->state, JOB_RUNNING);
    assert_int_equal(phases(r, j), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(ledger_settle(l, 1000 + (uint64_t)i, held[i], n[i], 0, NULL), 0);
    core_touch(r->co);
    assert_int_equal(got(r, &r->workers[2])->kind, TASK_TRAIN);
    for (int i = 0; i < 2; i++)
        (void)assign(r, &r->workers[i], TASK_TRAIN);
    assert_int_equal(phases(r, j), 3);
}

static void what_does_not_go_together(void **state)
{
    struct rig *r = *state;
    struct err err = {0};
    uint64_t id;
    assert_true(try_submit(r, SPEC("replicas: auto", ", async: true"), &id, &err) < 0);
    assert_non_null(strstr(err.msg, "recipe.replicas is auto, which goes only with whole rounds"));
    const struct job *j =
        state_job(&r->co->state, submit_spec(r, SPEC("replicas: auto", ", lr: 0.5")));
    assert_true(j->spec.outer.lr == 0.5 && j->spec.outer.momentum == 0.8);
    assert_true(j->spec.outer.alone_lr == 0.5);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(as_many_as_there_are_workers, begin, end),
        cmocka_unit_test_setup_teardown(who_fails_is_not_counted, begin, end),
        cmocka_unit_test_setup_teardown(who_is_too_small_is_not_counted, begin, end),
        cmocka_unit_test_setup_teardown(who_fetches_is_not_waited_for, begin, end),
        cmocka_unit_test_setup_teardown(who_leaves_late_takes_no_place, begin, end),
        cmocka_unit_test_setup_teardown(who_comes_before_it_begins_takes_part, begin, end),
        cmocka_unit_test_setup_teardown(who_is_told, begin, end),
        cmocka_unit_test_setup_teardown(each_at_its_own_pace, begin, end),
        cmocka_unit_test_setup_teardown(alone_it_trains_plainly, begin, end),
        cmocka_unit_test_setup_teardown(few_samples_are_few_phases, begin, end),
        cmocka_unit_test_setup_teardown(what_does_not_go_together, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
