/* Questions about jobs, on jobs that no coordinator runs. */
#include "coordinator/job/rounds.h"
#include "coordinator/work/query.h"
#include "tests/unit/coordinator/plain.h"

/* A replica's phase, in this state. */
static struct task *phase(struct state *s, struct job *j, uint32_t path, uint32_t replica,
                          enum task_state to)
{
    struct task *t = state_add_task(s, 0, j->id, TASK_TRAIN);
    t->path = path;
    t->train.replica = replica;
    t->train.round = j->paths[path].round;
    job_edit_replica(j, path, replica)->task_id = t->id;
    state_set_task_state(s, t, to);
    return t;
}

static void give(struct task *t, uint64_t module, uint64_t base)
{
    task_add_contribution(t, &(struct contribution){.module_id = module, .base_version = base});
}

static void test_composition(void **state)
{
    struct job *p = add(*state, dipaco), *d = add(*state, ddm);
    assert_int_equal(query_main_paths(p), 4);
    assert_int_equal(query_main_paths(d), 3); /* the fourth is the router */
    assert_int_equal(d->comp.n_paths, 4);
    struct task t = {.path = 3};
    assert_int_equal(query_network(d, &t), 1);
    assert_int_equal(query_network(p, &t), 0);
    t.path = 9;
    assert_int_equal(query_network(d, &t), 0);
    t = (struct task){.path = 3, .kind = TASK_SAMPLE, .draw.mixture = true};
    assert_int_equal(query_network(d, &t), 2); /* it takes more memory than the router alone */
    t.draw.remote = true;
    assert_int_equal(query_network(d, &t), 3);
    for (uint32_t path = 0; path < 4; path++) {
        unsigned crossed = 0;
        for (uint32_t m = 0; m < p->comp.n_modules; m++)
            crossed += query_crosses(p, path, &p->modules[m]);
        assert_int_equal(crossed, 2);
        assert_true(query_share_module(p, path, path));
        assert_false(query_share_module(p, path, 3 - path)); /* the other of both levels */
        assert_true(query_share_module(p, path, path ^ 1));
        assert_true(query_share_module(p, path, path ^ 2));
    }
    assert_false(query_share_module(d, 0, 1));
}

static void test_streams(void **state)
{
    struct job *j = add(*state, diloco);
    assert_false(query_streams(j));
    j->spec.outer.delay = 1;
    assert_true(query_streams(j));
    j->spec.outer.delay = 0;
    j->spec.outer.mix = 0.5;
    assert_true(query_streams(j));
    j->spec.outer.mix = 0;
    j->spec.outer.fragments = 2;
    assert_true(query_streams(j));
}

static void test_how_far(void **state)
{
    struct job *j = add(*state, dipaco);
    assert_false(query_initialised(j));
    assert_false(query_modules_at(j, 0, 0));
    for (uint32_t m = 0; m < j->comp.n_modules; m++)
        module_memory(&j->modules[m])->n_versions = 1;
    assert_true(query_initialised(j));
    assert_true(query_modules_at(j, 0, 0));
    assert_false(query_modules_at(j, 0, 1));
    for (uint32_t m = 0; m < j->comp.n_modules; m++)
        module_memory(&j->modules[m])->version = query_crosses(j, 0, &j->modules[m]);
    assert_true(query_modules_at(j, 0, 1));
    assert_false(query_modules_at(j, 1, 1)); /* one of its two */
    assert_int_equal(query_barrier(j), 1);
    j->resharded = 1;
    assert_int_equal(query_barrier(j), 2);
    j->resharded = 2;
    assert_int_equal(query_barrier(j), UINT32_MAX);
    for (uint32_t p = 0; p < 4; p++) {
        assert_false(query_finished(j));
        job_edit_path(j, p)->round = 3;
    }
    assert_true(query_finished(j));
    assert_int_equal(query_barrier(add(*state, diloco)), UINT32_MAX);
}

static void test_partitioning(void **state)
{
    struct state *s = *state;
    struct job *j = add(s, dipaco); /* four partitions */
    uint32_t done, total;
    cut(j, "rtttttthh");
    assert_int_equal(query_split_group(j, 1, 9), 4);
    assert_int_equal(query_split_group(j, 5, 9), 2); /* no training shard is left */
    assert_int_equal(query_split_group(j, 7, 9), 2);
    assert_int_equal(query_split_group(j, 7, 8), 1);
    assert_int_equal(query_splits_most(j), 4 + 4 + 4);
    j->spec.data.shard_samples = 16;
    assert_int_equal(query_splits_most(j), 4 + 40 / 16 + 4 + 20 / 16 + 4 + 20 / 16);
    assert_int_equal(query_split_most(j, 1000000, false), 4096);
    j->spec.recipe.top = 2; /* of what is held out once all the same */
    assert_int_equal(query_split_most(j, 3, false), 4);
    assert_int_equal(query_split_most(j, 3, true), 3);
    j->state = JOB_SPLITTING;
    state_add_task(s, 0, j->id, TASK_SPLIT);
    query_progress(s, j, &done, &total);
    assert_int_equal(total, 3);
    assert_int_equal(done, 2);
    state_add_task(s, 0, j->id, TASK_FEATURE);
    assert_int_equal(query_open_tasks(s, j, TASK_FEATURE), 1);
    j->state = JOB_FEATURES;
    query_progress(s, j, &done, &total);
    assert_int_equal(total, 9);
    assert_int_equal(done, 8);
    j->state = JOB_RUNNING;
    query_progress(s, j, &done, &total);
    assert_int_equal(total, 0);
    assert_int_equal(done, 0);
}

static void test_scored(void **state)
{
    struct job *j = add(*state, dipaco);
    size_t n = 77;
    cut(j, "rrt");
    assert_null(query_scored(j, &n));
    assert_int_equal(n, 0);
    job_add_score(j, &(struct score_rec){.path = 0, .shard = 1});
    job_add_score(j, &(struct score_rec){.path = 0, .shard = 0});
    job_add_score(j, &(struct score_rec){.path = 1, .shard = 1});
    uint32_t *list = query_scored(j, &n);
    assert_int_equal(n, 2);
    assert_int_equal(list[0], 0);
    assert_int_equal(list[1], 1);
    mem_free(list);
}

static void test_contributions(void **state)
{
    struct state *s = *state;
    struct job *j = add(s, diloco);
    const struct module_rec *m = &j->modules[0];
    struct outer_count count;
    query_outer_count(s, j, m, &count);
    assert_int_equal(count.expected, 2);
    assert_int_equal(count.arrived + count.leased, 0);
    assert_false(rounds_coming(s, j, m, 0)); /* no phase has begun */
    assert_null(query_phase(s, j, 0, 1));
    struct task *a = phase(s, j, 0, 0, TASK_LEASED), *b = phase(s, j, 0, 1, TASK_PENDING);
    assert_ptr_equal(query_phase(s, j, 0, 1), b);
    query_outer_count(s, j, m, &count);
    assert_int_equal(count.leased, 1);
    assert_false(rounds_coming(s, j, m, 0)); /* nobody is there for b */
    state_park(s, state_add_worker(s, 0), (struct rpc_request *)(void *)s, 0);
    assert_true(rounds_coming(s, j, m, 0));
    give(b, m->id, 0);
    assert_non_null(state_unpark(worker_memory(s->workers[0])));
    assert_true(rounds_coming(s, j, m, 0));
    query_outer_count(s, j, m, &count);
    assert_int_equal(count.arrived, 1);
    assert_ptr_equal(query_given(b, m), query_contribution(b, m->id, 0));
    task_edit_contribution(b, &b->train.contributions[0])->refused = true;
    assert_null(query_given(b, m));
    assert_non_null(query_contribution(b, m->id, 0));
    assert_null(query_contribution(b, m->id, 1));
    assert_null(query_given(NULL, m));
    job_edit_path(j, 0)->round = 1; /* the path is done with that version */
    query_outer_count(s, j, m, &count);
    assert_int_equal(count.expected, 0);
    a->ranges = mem_alloc_array(2, sizeof(*a->ranges));
    a->n_ranges = 2;
    a->ranges[0].count = 3;
    a->ranges[1].count = 4;
    assert_int_equal(query_held(a), 7);
}

/* Who may have a phase: a worker that runs trainers, where one trains; that has the memory; that is
 * not in quarantine, and did not fail it just now. */
static void test_could_have(void **state)
{
    struct state *s = *state;
    struct job *j = add(s, "name: own\ndata: {kind: none}\nmodel: {type: external}\n"
                           "trainer: {command: ./t}\ntrain: {batch: 4}\n"
                           "recipe: {replicas: 2}\nouter: {rounds: 3, steps: 2, fragments: 2}\n");
    struct task *t = phase(s, j, 0, 1, TASK_PENDING);
    struct worker *w = state_add_worker(s, 0);
    (void)phase(s, j, 0, 0, TASK_LEASED);
    state_park(s, w, (struct rpc_request *)(void *)s, 0);
    assert_false(query_could_have(j, t, w, 5));
    assert_false(rounds_coming(s, j, &j->modules[0], 5)); /* nobody waits for ever */
    w->allows_trainers = true;
    assert_true(query_could_have(j, t, w, 5));
    assert_true(rounds_coming(s, j, &j->modules[0], 5));
    w->small[0] = (struct schedule_small){.job_id = j->id, .kind = TASK_TRAIN, .until_ms = 9};
    w->n_small = 1;
    assert_false(query_could_have(j, t, w, 5));
    assert_false(query_fits(j, TASK_TRAIN, 0, w, 5));
    assert_true(query_fits(j, TASK_EVAL, 0, w, 5));
    assert_true(query_could_have(j, t, w, 9));
    w->quarantined_until_ms = 20;
    assert_false(query_could_have(j, t, w, 9));
    assert_false(rounds_coming(s, j, &j->modules[0], 9));
    assert_true(query_could_have(j, t, w, 20));
    failure_bar(&t->failed, w->id, 30);
    assert_false(query_could_have(j, t, w, 20));
    assert_true(query_could_have(j, t, w, 30));
    w->drain = true;
    assert_false(query_could_have(j, t, w, 30));
    assert_non_null(state_unpark(w));
}

/* A release that would take the experts' tasks for others gets none of them. */
static void test_reads(void **state)
{
    struct state *s = *state;
    static const char upscaled[] = "name: q\ndata: {path: x, image_size: 16}\n"
                                   "model: {patch: 4, dim: 32, depth: 4, heads: 2}\n"
                                   "upscaler: {low_side: 8}\ntrain: {batch: 6}\n"
                                   "recipe: {name: ddm, experts: 3}\n"
                                   "outer: {rounds: 3, steps: 2}\n";
    const struct job *plain = add(s, ddm), *cascades = add(s, upscaled);
    struct worker *old = state_add_worker(s, 0), *new = state_add_worker(s, 0);
    new->reads = SKERRY__V1__READS__READS_CASCADE_EXPERTS;
    assert_int_equal(query_reads(plain), SKERRY__V1__READS__READS_UNSPECIFIED);
    assert_int_equal(query_reads(cascades), SKERRY__V1__READS__READS_CASCADE_EXPERTS);
    assert_true(query_is_able(plain, TASK_TRAIN, old) && query_is_able(plain, TASK_TRAIN, new));
    assert_false(query_is_able(cascades, TASK_TRAIN, old));
    assert_false(query_fits(cascades, TASK_EVAL, 0, old, 5));
    assert_true(query_fits(cascades, TASK_EVAL, 0, new, 5));
    new->reads++; /* a release to come */
    assert_true(query_is_able(cascades, TASK_TRAIN, new));
}

/* A phase is not as good as begun because somebody waits who still fetches what it begins with,
 * where others get it first: who merges fragments would wait for that download. */
static void test_behind(void **state)
{
    struct state *s = *state;
    struct job *j = add(s, diloco);
    const struct module_rec *m = &j->modules[0];
    struct worker *trains = state_add_worker(s, 0), *fetches = state_add_worker(s, 0);
    (void)phase(s, j, 0, 0, TASK_LEASED);
    (void)phase(s, j, 0, 1, TASK_PENDING);
    state_set_worker_state(s, trains, WORKER_HERE);
    fetches->ahead.due = true;
    fetches->ahead.job_id = j->id;
    state_park(s, fetches, (struct rpc_request *)(void *)s, 0);
    assert_true(rounds_coming(s, j, m, 0)); /* with nobody proven here it gets the phase */
    trains->tasks_done = 1;
    assert_false(rounds_coming(s, j, m, 0));
    fetches->ahead.due = false; /* it is through */
    assert_true(rounds_coming(s, j, m, 0));
    assert_non_null(state_unpark(fetches));
}

/* What is late goes into later versions of a few, but into none of other data. */
static void test_takes_late(void **state)
{
    struct job *j = add(*state, dipaco);
    struct module_rec *m = module_memory(&j->modules[0]);
    j->spec.outer.rounds = 9;
    j->spec.recipe.reshard.n = 1;
    j->spec.recipe.reshard.items[0] = 3;
    m->version = 2;
    assert_true(query_takes_late(j, m, 0));
    m->version = 3; /* from here on they are cut anew, or will be */
    assert_false(query_takes_late(j, m, 0));
    assert_false(query_takes_late(j, m, 2));
    m->version = 4;
    assert_false(query_takes_late(j, m, 2));
    assert_true(query_takes_late(j, m, 3));
}

/* Asynchronous phases end together: with the next that ends, or half a phase later or more. */
static void test_phase_seconds(void **state)
{
    struct state *s = *state;
    struct job *j = add(s, async);
    struct task *a = phase(s, j, 0, 0, TASK_LEASED), *b = phase(s, j, 0, 1, TASK_PENDING);
    assert_int_equal(query_phase_seconds(s, 5000, j, a), 100); /* alone */
    a->leased_ms = 10000;
    a->train.phase_s = 100;
    assert_true(query_phase_end(a) == 110000);
    assert_int_equal(query_phase_seconds(s, 10000, j, b), 100);
    assert_int_equal(query_phase_seconds(s, 40000, j, b), 70);
    assert_int_equal(query_phase_seconds(s, 60000, j, b), 50);
    assert_int_equal(query_phase_seconds(s, 61000, j, b), 149);
    assert_int_equal(query_phase_seconds(s, 120000, j, b), 100); /* a is late */
    struct task *c = phase(s, j, 0, 2, TASK_LEASED);
    c->leased_ms = 20000;
    c->train.phase_s = 60; /* ends at 80 s */
    assert_int_equal(query_phase_seconds(s, 25000, j, b), 55);
    j->spec.outer.async = false;
    assert_int_equal(query_phase_seconds(s, 25000, j, b), 100);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        CASE(test_composition),   CASE(test_streams),    CASE(test_how_far),
        CASE(test_partitioning),  CASE(test_scored),     CASE(test_contributions),
        CASE(test_phase_seconds), CASE(test_could_have), CASE(test_behind),
        CASE(test_takes_late),    CASE(test_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
