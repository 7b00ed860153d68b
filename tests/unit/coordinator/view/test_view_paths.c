/* What is told of paths and partitions, of a state without a coordinator (over_data.h). */
#include "tests/unit/coordinator/over_data.h"

#include "coordinator/view/view.h"

#define LN2 0.69314718055994530942

struct heard {
    size_t n;
    struct view_path paths[4];
    uint64_t modules[4][2], versions[4][2];
    struct view_partition partitions[4];
};

static void hear_path(void *arg, const struct view_path *v)
{
    struct heard *h = arg;
    assert_int_equal(v->n_modules, 2);
    memcpy(h->modules[h->n], v->modules, sizeof(h->modules[0]));
    memcpy(h->versions[h->n], v->versions, sizeof(h->versions[0]));
    h->paths[h->n++] = *v;
}

static void hear_any_path(void *arg, const struct view_path *v)
{
    struct heard *h = arg;
    h->paths[h->n++] = *v;
}

static void hear_partition(void *arg, const struct view_partition *v)
{
    struct heard *h = arg;
    h->partitions[h->n++] = *v;
}

/* ---- paths ---- */

static void test_state(void **state)
{
    static const struct {
        enum job_state job;
        uint32_t round;
        bool ready;
        const char *want;
    } cases[] = {
        {JOB_RUNNING, 0, true, "running"}, {JOB_RUNNING, 2, false, "waiting"},
        {JOB_RUNNING, 3, true, "done"}, /* all its rounds */
        {JOB_FAILED, 1, true, "stopped"},  {JOB_CANCELLED, 1, false, "stopped"},
        {JOB_FAILED, 3, true, "done"},     {JOB_DONE, 1, false, "done"}, /* early */
    };
    struct coordinator *co = *state;
    struct job *j = job_of(co, diloco, 2);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct heard h = {0};
        j->state = cases[i].job;
        job_edit_path(j, 0)->round = cases[i].round;
        job_edit_path(j, 0)->ready = cases[i].ready;
        view_each_path(co, j->id, hear_any_path, &h);
        assert_int_equal(h.n, 1);
        assert_string_equal(h.paths[0].state, cases[i].want);
        assert_true(h.paths[0].round == cases[i].round && h.paths[0].rounds == 3);
        assert_true(h.paths[0].samples == 20 && h.paths[0].holdout == 0);
    }
    struct heard none = {0};
    view_each_path(co, 99, hear_any_path, &none);
    assert_int_equal(none.n, 0);
}

/* Only versions in a finished commit are told. */
static void test_modules(void **state)
{
    struct coordinator *co = *state;
    struct job *j = job_of(co, dipaco, 0);
    struct heard h = {0};
    for (uint32_t m = 0; m < j->comp.n_modules; m++) {
        module_memory(&j->modules[m])->untold = 0;
        for (uint64_t v = 1; v <= m; v++)
            module_add_version(module_memory(&j->modules[m]), &(struct version_rec){.version = v});
        if (m < 3)
            module_memory(&j->modules[m])->untold = 0;
    }
    view_each_path(co, j->id, hear_path, &h);
    assert_int_equal(h.n, 4);
    for (uint32_t p = 0; p < 4; p++)
        for (uint32_t l = 0; l < 2; l++) {
            const uint32_t m = j->comp.paths[p].modules[l];
            assert_int_equal(h.modules[p][l], j->modules[m].id);
            assert_int_equal(h.versions[p][l], m < 3 ? m : 0);
        }
}

/* Before the data are divided nobody knows what a path trains on. */
static void test_samples(void **state)
{
    struct coordinator *co = *state;
    struct job *j = job_of(co, dipaco, 0);
    struct heard h = {0};
    cut(j, "tth");
    view_each_path(co, j->id, hear_path, &h);
    assert_true(h.paths[0].samples == 0 && h.paths[0].tokens == 0 && h.paths[0].holdout == 0);
    in_partitions(j);
    job_edit_shard(j, 4)->holdout = true; /* of the second partition */
    h.n = 0;
    view_each_path(co, j->id, hear_path, &h);
    for (uint32_t p = 0; p < 4; p++) {
        assert_int_equal(h.paths[p].partition, p);
        assert_int_equal(h.paths[p].samples, p == 1 ? 80 : 90);
        assert_int_equal(h.paths[p].tokens, p == 1 ? 8000 : 9000);
        assert_int_equal(h.paths[p].holdout, p == 1 ? 10 : 0);
    }
}

static void test_losses(void **state)
{
    struct coordinator *co = *state;
    struct job *j = job_of(co, diloco, 2);
    struct heard h = {0};
    struct path_rec *p = job_edit_path(j, 0);
    p->eval.loss = NAN;
    p->best_loss = 5; /* of what was not kept */
    view_each_path(co, j->id, hear_any_path, &h);
    assert_true(isnan(h.paths[0].loss) && isnan(h.paths[0].eval_loss));
    assert_true(isnan(h.paths[0].best_loss) && isnan(h.paths[0].bits_per_byte));
    job_replica_memory(j, 0, 1)->loss = 3;
    p->eval = (struct eval_rec){.loss = 2, .loss_sum = 8 * LN2, .bytes = 4, .round = 2};
    p->best = mem_alloc_array(1, sizeof(*p->best));
    p->best_loss = 1;
    p->best_round = 1;
    h.n = 0;
    view_each_path(co, j->id, hear_any_path, &h);
    assert_true(h.paths[0].loss == 3); /* the other replica has none */
    assert_true(h.paths[0].eval_loss == 2 && h.paths[0].eval_round == 2);
    assert_true(h.paths[0].best_loss == 1 && h.paths[0].best_round == 1);
    assert_ptr_equal(h.paths[0].best, p->best);
    assert_true(fabs(h.paths[0].bits_per_byte - 2) < 1e-12);
    job_replica_memory(j, 0, 0)->loss = 2;
    h.n = 0;
    view_each_path(co, j->id, hear_any_path, &h);
    assert_true(h.paths[0].loss == 2.5);
}

/* Of all paths that were evaluated, by their bytes; a router's loss is of no text. */
static void test_bits_per_byte(void **state)
{
    struct coordinator *co = *state;
    struct job *j = job_of(co, ddm, 0);
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        job_edit_path(j, p)->eval.loss = NAN;
    assert_true(isnan(view_job_bits_per_byte(j)));
    const struct eval_rec a = {.loss = 1, .loss_sum = 10 * LN2, .bytes = 10};
    const struct eval_rec b = {.loss = 1, .loss_sum = 90 * LN2, .bytes = 30};
    job_edit_path(j, 0)->eval = a;
    job_edit_path(j, 2)->eval = b;
    job_edit_path(j, (uint32_t)j->comp.router_path)->eval = b;
    assert_true(fabs(view_job_bits_per_byte(j) - 2.5) < 1e-12);
    job_edit_path(j, 2)->eval.loss = NAN;
    assert_true(fabs(view_job_bits_per_byte(j) - 1) < 1e-12);
    job_edit_path(j, 0)->eval.bytes = 0; /* images */
    assert_true(isnan(view_job_bits_per_byte(j)));
}

/* ---- partitions ---- */

static void test_partitions(void **state)
{
    static const uint64_t sizes[] = {10, 20, 30, 40};
    struct coordinator *co = *state;
    struct job *whole = job_of(co, diloco, 2), *j = job_of(co, dipaco, 0);
    struct heard h = {0};
    cut(j, "tth");
    view_each_partition(co, whole->id, hear_partition, &h);
    view_each_partition(co, 99, hear_partition, &h);
    assert_int_equal(h.n, 0);
    view_each_partition(co, j->id, hear_partition, &h);
    assert_int_equal(h.n, 4);
    assert_true(h.partitions[0].samples == 0 && h.partitions[0].shards == 0);
    assert_true(isnan(h.partitions[0].share));
    memcpy(j->sizes, sizes, sizeof(sizes)); /* assigned, not divided yet */
    h.n = 0;
    view_each_partition(co, j->id, hear_partition, &h);
    assert_true(h.partitions[3].samples == 40 && h.partitions[3].shards == 0);
    assert_true(h.partitions[3].share == 0.4 && h.partitions[0].share == 0.1);
    in_partitions(j);
    job_edit_shard(j, 4)->holdout = true;
    h.n = 0;
    view_each_partition(co, j->id, hear_partition, &h);
    for (uint32_t k = 0; k < 4; k++) {
        assert_int_equal(h.partitions[k].partition, k);
        assert_int_equal(h.partitions[k].shards, k == 1 ? 8 : 9);
        assert_int_equal(h.partitions[k].tokens, k == 1 ? 8000 : 9000);
        assert_int_equal(h.partitions[k].holdout, k == 1 ? 10 : 0);
    }
}

int main(void)
{
#define LIVE(f) cmocka_unit_test_setup_teardown(f, bare_begin, bare_end)
    const struct CMUnitTest tests[] = {
        LIVE(test_state),  LIVE(test_modules),       LIVE(test_samples),
        LIVE(test_losses), LIVE(test_bits_per_byte), LIVE(test_partitions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
