/* INIT: first versions from the seed or from weights that the job came with. */
#include "tests/unit/worker/partition_task.h"

#include "worker/order/task_model.h"

#define INIT SKERRY__V1__TASK_KIND__TASK_KIND_INIT

/* Initial values of the order's network, from any seed. */
static float *values_of(const struct work *w, uint64_t seed, struct model **ret)
{
    OK(task_model(w, w->task->network, ret, err));
    float *flat = model_flat_new(*ret);
    model_init(*ret, seed, flat);
    return flat;
}

static void is_file_of(const struct work_output *out, const struct model *m, int level,
                       const float *flat)
{
    uint8_t sha256[32];
    uint64_t size;
    char *path = in(top, "expected");
    OK(model_save(m, level, flat, path, sha256, &size, err));
    assert_memory_equal(out->sha256, sha256, 32);
    assert_int_equal(out->size, size);
    mem_free(path);
}

/* Modules of one level start equal; each level has its own file. */
static void one_file_for_each_module(void **state)
{
    (void)state;
    static const uint64_t ids[] = {7, 8, 9};
    static const uint32_t level_of[] = {0, 1, 1};
    struct order o;
    Skerry__V1__Level level[2], *levels[2];
    Skerry__V1__ModuleRef ref[3], *refs[3];
    uint32_t blocks[] = {0, 1};
    order_init(&o, INIT, IMAGES, images, 1);
    for (int i = 0; i < 3; i++) {
        ref[i] = o.module;
        ref[i].module_id = ids[i];
        ref[i].level = level_of[i];
        refs[i] = &ref[i];
    }
    for (int l = 0; l < 2; l++) {
        skerry__v1__level__init(&level[l]);
        level[l].embedders = l == 0;
        level[l].head = l == 1;
        level[l].blocks = &blocks[l];
        level[l].n_blocks = 1;
        levels[l] = &level[l];
    }
    o.task.levels = levels;
    o.task.n_levels = 2;
    o.task.modules = refs;
    o.task.n_modules = 3;
    struct work *w = run(&o);
    struct model *m;
    float *flat = values_of(w, 3, &m);
    assert_int_equal(w->result.n_outputs, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(w->result.outputs[i].role, WORK_CONTRIBUTION);
        assert_int_equal(w->result.outputs[i].module_id, ids[i]);
        is_file_of(&w->result.outputs[i], m, (int)level_of[i], flat);
    }
    assert_memory_equal(w->result.outputs[1].sha256, w->result.outputs[2].sha256, 32);
    mem_free(flat);
    model_free(m);
    work_free(w);
}

/* The weights of the job are taken as they are, not those of its seed. */
static void from_the_weights_of_the_job(void **state)
{
    (void)state;
    struct order o;
    struct model *m;
    uint8_t sha256[32];
    char *path = in(top, "warm");
    order_init(&o, INIT, WARM, images, 1);
    o.task.n_modules = 1;
    struct work *w = run(&o); /* without a blob: the seed */
    float *flat = values_of(w, 3, &m);
    is_file_of(output_of(w, WORK_CONTRIBUTION), m, 0, flat);
    model_init(m, 4, flat);
    OK(model_save(m, -1, flat, path, sha256, NULL, err));
    work_free(w);

    o.task.warm_start = give(&o, path, sha256);
    w = run(&o);
    assert_int_equal(w->n_needs, 1);
    assert_memory_equal(w->needs[0].sha256, sha256, 32);
    is_file_of(output_of(w, WORK_CONTRIBUTION), m, 0, flat);
    work_free(w);
    mem_free(flat);
    model_free(m);
    mem_free(path);
}

/* No worker will ever read them: that is the job's fault, and not tried again. */
static void weights_of_another_network(void **state)
{
    (void)state;
    struct order o;
    order_init(&o, INIT, WARM, images, 1);
    o.task.n_modules = 1;
    o.task.warm_start = &o.full;
    o.full.sha256.data = version0[1]; /* those of the texts' model */
    o.full.size = version0_size[1];
    fails(&o, -ERR_CONFIG, "the warm start y: ");
}

static void stopped(void **state)
{
    (void)state;
    struct order o;
    struct err e = {0};
    order_init(&o, INIT, IMAGES, images, 1);
    o.task.n_modules = 1;
    struct work *w = host_look(&host, &o.task);
    atomic_store(&w->stop, WORK_REVOKED);
    assert_int_equal(engine_run(host.engine, w, &e), -ERR_CANCELLED);
    assert_int_equal(w->result.n_outputs, 0);
    work_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_file_for_each_module),
        cmocka_unit_test(from_the_weights_of_the_job),
        cmocka_unit_test(weights_of_another_network),
        cmocka_unit_test(stopped),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
