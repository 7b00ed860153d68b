/* What is told of a job.  A whole coordinator (rig.h). */
#include "coordinator/work/member.h"
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

/* Pieces of text differ in length, so their tokens are what a price is for. */
static void a_million_of_what_a_job_trains_on(void **state)
{
    struct rig *r = *state;
    struct view_cost c;
    const uint64_t id = submit(r);
    struct job *j = state_job(&r->co->state, id);
    assert_int_equal(view_job_cost(r->co, id, &c, NULL), 0);
    assert_true(isnan(c.per_million) && isnan(c.per_million_tokens));
    j->cost.waiting = 3;
    j->samples_done = 1000000;
    assert_int_equal(view_job_cost(r->co, id, &c, NULL), 0);
    assert_true(c.per_million == 3 && isnan(c.per_million_tokens));
    for (size_t i = 0; i < j->n_shards; i++)
        job_edit_shard(j, i)->holdout = true; /* images */
    *job_add_shard(j) = (struct shard_rec){.samples = 100, .tokens = 2500};
    *job_add_shard(j) = (struct shard_rec){.samples = 100, .tokens = 1, .holdout = true};
    assert_int_equal(view_job_cost(r->co, id, &c, NULL), 0);
    assert_true(fabs(c.per_million_tokens - 0.12) < 1e-9);
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

/* The first round has steps before it has a time of its own: here the only worker trains both
 * replicas, one after the other. */
static void eta_of_the_first_round(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct view_job v;
    const uint64_t id = submit(r);
    struct job *j = state_job(&r->co->state, id);
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    assert_int_equal(view_job(r->co, id, &v, NULL), 0);
    assert_int_equal(v.eta_ms, -1);
    struct task *t = state_edit_task(&r->co->state, state_task(&r->co->state, a->task->id));
    t->steps_done = 1;
    job_edit_path(j, 0)->ready_ms = core_now(r->co) - 10000;
    assert_int_equal(view_job(r->co, id, &v, NULL), 0);
    const int64_t want = 10000 * (2 * (int64_t)v.total_steps - 1);
    assert_true(v.total_steps > 1 && v.eta_ms >= want && v.eta_ms < want + DEADLINE_MS * 10);
}

/* A plain job learns from all the data: its only path and its epochs have no partition. */
static void see_epoch(void *arg, const struct view_epoch *e)
{
    assert_int_equal(e->partition, PARTITION_ALL);
    (*(unsigned *)arg)++;
}

static void see_path(void *arg, const struct view_path *p)
{
    assert_int_equal(p->partition, PARTITION_ALL);
    (*(unsigned *)arg)++;
}

static void whole_data_are_no_partition(void **state)
{
    struct rig *r = *state;
    unsigned epochs = 0, paths = 0;
    const uint64_t id = submit(r);
    assert_int_equal(join(r, &r->workers[0], SKERRY_VERSION), 0);
    do_init(r, &r->workers[0]);
    assign(r, &r->workers[0], TASK_TRAIN);
    view_each_epoch(r->co, id, see_epoch, &epochs);
    view_each_path(r->co, id, see_path, &paths);
    assert_true(epochs > 0 && paths == 1);
}

struct phases {
    uint64_t worker, gone;
    const char *state;
};

static void see_phase(void *arg, const struct view_replica *v)
{
    struct phases *p = arg;
    if (v->replica == 0)
        *p = (struct phases){v->worker_id, v->gone_id, v->gone_state};
}

static struct phases first_phase(struct rig *r, uint64_t job)
{
    struct phases p = {0};
    view_each_replica(r->co, job, see_phase, &p);
    return p;
}

/* A worker that is gone with a phase is told of until another one has ended that, or it is back. */
static void who_is_gone_with_a_phase(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    const uint64_t id = submit(r);
    assert_int_equal(join(r, a, SKERRY_VERSION), 0);
    assert_int_equal(join(r, b, SKERRY_VERSION), 0);
    do_init(r, a);
    assign(r, a, TASK_TRAIN);
    assert_int_equal(first_phase(r, id).gone, 0);
    member_lost(r->co, edit_worker(r, a->id), WORKER_LOST, "it is silent");
    struct phases p = first_phase(r, id);
    assert_true(p.gone == a->id && p.worker == 0);
    assert_string_equal(p.state, "lost");
    assign(r, b, TASK_TRAIN);
    p = first_phase(r, id);
    assert_true(p.gone == a->id && p.worker == b->id);
    edit_worker(r, a->id)->state = WORKER_HERE;
    assert_int_equal(first_phase(r, id).gone, 0);
    edit_worker(r, a->id)->state = WORKER_LEFT;
    assert_string_equal(first_phase(r, id).state, "left");
    finish_train(r, b);
    assert_int_equal(first_phase(r, id).gone, 0);
}

struct files {
    unsigned versions, full, ema, delta;
};

static void see_version(void *arg, const struct version_rec *v)
{
    struct files *f = arg;
    f->versions++;
    f->full += blob_ref_is_set(&v->full);
    f->ema += blob_ref_is_set(&v->ema);
    f->delta += blob_ref_is_set(&v->delta);
}

/* An asynchronous job may have many versions on record; when it has ended, only the files of the
 * newest ones are shown: others are gone. */
static void versions_name_files_that_are_kept(void **state)
{
    struct rig *r = *state;
    struct job *j = state_job(&r->co->state, submit(r));
    struct module_rec *m = job_edit_module(j, &j->modules[0]);
    m->kept = 2 * VERSIONS_KEPT;
    for (uint64_t v = 0; v < 2 * VERSIONS_KEPT; v++) {
        const struct blob_ref file = {.sha256 = {(uint8_t)(v + 1)}, .size = 1};
        module_add_version(
            m, &(struct version_rec){.version = v, .full = file, .ema = file, .delta = file});
    }
    m->untold = 0;
    struct files f = {0};
    view_each_version(r->co, m->id, see_version, &f);
    assert_true(f.versions == 2 * VERSIONS_KEPT && f.full == f.versions && f.delta == f.versions);
    assert_int_equal(f.ema, VERSIONS_KEPT);
    j->state = JOB_DONE;
    job_edit_path(j, 0)->round = 2 * VERSIONS_KEPT - 1;
    f = (struct files){0};
    view_each_version(r->co, m->id, see_version, &f);
    assert_true(f.versions == 2 * VERSIONS_KEPT && f.delta == f.versions);
    assert_int_equal(f.full, VERSIONS_KEPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(eta_is_of_usual_rounds, begin, end),
        cmocka_unit_test_setup_teardown(eta_goes_on_after_a_restart, begin, end),
        cmocka_unit_test_setup_teardown(a_million_of_what_a_job_trains_on, begin, end),
        cmocka_unit_test_setup_teardown(no_end_is_near_without_a_budget, begin, end),
        cmocka_unit_test_setup_teardown(eta_of_the_first_round, begin, end),
        cmocka_unit_test_setup_teardown(whole_data_are_no_partition, begin, end),
        cmocka_unit_test_setup_teardown(who_is_gone_with_a_phase, begin, end),
        cmocka_unit_test_setup_teardown(versions_name_files_that_are_kept, begin, end),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
