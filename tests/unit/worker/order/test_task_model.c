/* The networks of a task as models: how the message cuts them, and their files. */
#include "tests/unit/common/base/util.h"

#include "common/base/hash.h"
#include "worker/order/task_model.h"

enum { DEPTH = 3 };

static char *top;

/* A task of two levels: blocks 0 and 2 with the embedders, block 1 with the head. */
static struct order {
    Skerry__V1__Task task;
    Skerry__V1__Level level[2], *levels[2];
    Skerry__V1__Mixture mixture;
    uint32_t blocks[2][3];
    struct work w;
} o;

static int setup(void **state)
{
    (void)state;
    static const char spec[] = "name: tiny\ndata: {path: x, image_size: 8}\n"
                               "model: {type: dit, patch: 2, dim: 16, depth: 3, heads: 2}\n"
                               "router: {patch: 4, dim: 8, depth: 1, heads: 1}\n"
                               "recipe: {name: ddm, experts: 4}\n"
                               "train: {batch: 4, lr: 1e-3}\nouter: {rounds: 3, steps: 6}\n";
    top = scratch_new();
    memset(&o, 0, sizeof(o));
    skerry__v1__task__init(&o.task);
    skerry__v1__mixture__init(&o.mixture);
    for (int l = 0; l < 2; l++) {
        skerry__v1__level__init(&o.level[l]);
        o.level[l].blocks = o.blocks[l];
        o.level[l].n_blocks = l == 0 ? 2 : 1;
        o.level[l].embedders = l == 0;
        o.level[l].head = l == 1;
        o.levels[l] = &o.level[l];
    }
    o.blocks[0][1] = 2;
    o.blocks[1][0] = 1;
    o.task.network = SKERRY__V1__NETWORK__NETWORK_MAIN;
    o.task.levels = o.levels;
    o.task.n_levels = 2;
    o.task.n_classes = 5;
    o.task.partitions = 4;
    o.w.task = &o.task;
    OK(job_parse(spec, strlen(spec), "the job", &o.w.spec, err));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    job_release(&o.w.spec);
    scratch_free(top);
    return 0;
}

static struct model *model_of(Skerry__V1__Network network)
{
    struct model *m = NULL;
    OK(task_model(&o.w, network, &m, err));
    return m;
}

static void refused(Skerry__V1__Network network, const char *words)
{
    struct model *m = NULL;
    struct err e = {0};
    assert_int_equal(task_model(&o.w, network, &m, &e), -ERR_FORMAT);
    assert_null(m);
    if (!strstr(e.msg, words))
        fail_msg("'%s' does not say '%s'", e.msg, words);
}

#define MAIN SKERRY__V1__NETWORK__NETWORK_MAIN
#define ROUTER SKERRY__V1__NETWORK__NETWORK_ROUTER

/* ---- cuts ---- */

static void cut_as_the_levels_say(void **state)
{
    (void)state;
    struct model *m = model_of(MAIN);
    const struct model_cut *cut = &m->spec.cut;
    assert_int_equal(m->spec.kind, MODEL_DIT);
    assert_int_equal(m->spec.classes, 5);
    assert_int_equal(m->spec.depth, DEPTH);
    assert_int_equal(cut->n_levels, 2);
    assert_int_equal(cut->block_level[0], 0);
    assert_int_equal(cut->block_level[1], 1);
    assert_int_equal(cut->block_level[2], 0);
    assert_int_equal(cut->embed_level, 0);
    assert_int_equal(cut->head_level, 1);
    model_free(m);
    o.task.n_levels = 0;
    m = model_of(MAIN);
    assert_int_equal(m->spec.cut.n_levels, 1);
    for (size_t i = 0; i < m->n; i++)
        assert_int_equal(m->tensors[i].level, 0);
    model_free(m);
}

/* A level of each chain, over the blocks of both. */
static void levels_of_two_chains(void **state)
{
    (void)state;
    static const char spec[] = "name: tiny\ndata: {path: x, image_size: 8}\n"
                               "model: {patch: 2, dim: 16, depth: 2, heads: 2}\n"
                               "upscaler: {low_side: 4, depth: 1, noise: 0.3}\n"
                               "train: {batch: 4, lr: 1e-3}\nouter: {rounds: 3, steps: 6}\n";
    job_release(&o.w.spec);
    OK(job_parse(spec, strlen(spec), "the job", &o.w.spec, err));
    o.blocks[0][1] = 1;
    o.blocks[1][0] = 2;
    struct model *m = model_of(MAIN);
    assert_int_equal(m->spec.image, 4);
    assert_int_equal(m->spec.upscaler.image, 8);
    assert_int_equal(m->spec.upscaler.depth, 1);
    assert_true(m->spec.upscaler.noise == 0.3f);
    for (size_t i = 0; i < m->n; i++)
        assert_int_equal(m->tensors[i].level, strncmp(m->tensors[i].name, "upscaler.", 9) == 0);
    model_free(m);
    o.task.n_levels = 1;
    refused(MAIN, "the head in 0");
}

/* Each network is cut by its own levels only. */
static void levels_of_the_router(void **state)
{
    (void)state;
    struct model *m = model_of(ROUTER); /* no mixture: one level */
    assert_int_equal(m->spec.kind, MODEL_ROUTER);
    assert_int_equal(m->spec.classes, 4);
    assert_int_equal(m->spec.depth, 1);
    assert_int_equal(m->spec.cut.n_levels, 1);
    model_free(m);
    o.task.mixture = &o.mixture;
    o.mixture.router_levels = o.levels;
    o.mixture.n_router_levels = 2;
    o.task.n_levels = 0;
    refused(ROUTER, "levels[0] has block 2, but the network has 1 blocks");
    o.level[0].n_blocks = 1;
    o.level[1].n_blocks = 0;
    m = model_of(ROUTER);
    assert_int_equal(m->spec.cut.n_levels, 2);
    assert_int_equal(m->spec.cut.head_level, 1);
    model_free(m);
    m = model_of(MAIN);
    assert_int_equal(m->spec.cut.n_levels, 1);
    model_free(m);
    o.task.network = ROUTER; /* a task of the router alone: Task.levels */
    o.task.n_levels = 2;
    o.mixture.n_router_levels = 1;
    m = model_of(ROUTER);
    assert_int_equal(m->spec.cut.n_levels, 2);
    model_free(m);
    m = model_of(MAIN);
    assert_int_equal(m->spec.cut.n_levels, 1);
    model_free(m);
}

static void each_block_once(void **state)
{
    (void)state;
    o.blocks[1][0] = DEPTH;
    refused(MAIN, "levels[1] has block 3, but the network has 3 blocks");
    o.blocks[1][0] = UINT32_MAX;
    refused(MAIN, "levels[1] has block 4294967295, but");
    o.blocks[1][0] = 2;
    refused(MAIN, "block 2 is in two levels");
    o.level[1].n_blocks = 0;
    refused(MAIN, "block 1 is in no level");
    o.blocks[0][0] = 2;
    refused(MAIN, "block 2 is in two levels"); /* twice in one */
}

static void one_embedding_and_one_head(void **state)
{
    (void)state;
    o.level[1].embedders = true;
    refused(MAIN, "the embedders are in 2 levels and the head in 1, expected one each");
    o.level[0].embedders = o.level[1].embedders = o.level[1].head = false;
    refused(MAIN, "the embedders are in 0 levels and the head in 0, expected one each");
    o.level[0].embedders = o.level[0].head = true;
    model_free(model_of(MAIN));
}

static void more_blocks_than_a_model_has(void **state)
{
    (void)state;
    struct model *m = NULL;
    struct err e = {0};
    o.w.spec.model.depth = MODEL_BLOCKS_MAX + 1;
    assert_int_equal(task_model(&o.w, MAIN, &m, &e), -ERR_CONFIG);
    assert_string_equal(e.msg, "model.depth 257 is above 256");
}

/* ---- files ---- */

/* Blob l of the cache is level l of flat. */
static void save_level(const struct model *m, int l, const float *flat, uint8_t sha256[32])
{
    char to[CACHE_PATH_MAX];
    char *path = in(top, "level");
    OK(model_save(m, l, flat, path, sha256, NULL, err));
    cache_path(o.w.cache, sha256, to);
    assert_int_equal(rename(path, to), 0);
    OK(cache_added(o.w.cache, sha256, err));
    mem_free(path);
}

static void files_of_all_levels(void **state)
{
    (void)state;
    uint8_t sha256[2][32];
    Skerry__V1__ModuleRef ref[2], *refs[2], *twice[2];
    struct model *m = model_of(MAIN);
    float *flat = model_flat_new(m), *got = model_flat_new(m);
    char *dir = in(top, "blobs");
    OK(cache_open(dir, 0, &o.w.cache, err));
    model_init(m, 7, flat);
    for (int l = 0; l < 2; l++) {
        save_level(m, l, flat, sha256[l]);
        skerry__v1__module_ref__init(&ref[l]);
        ref[l].sha256 = (ProtobufCBinaryData){32, sha256[l]};
        refs[1 - l] = &ref[l]; /* in any order */
        twice[l] = &ref[0];
    }
    OK(task_load(&o.w, m, refs, 2, got, err));
    assert_memory_equal(got, flat, m->flat * sizeof(*flat));
    o.task.n_levels = 0; /* and however the model is cut */
    struct model *whole = model_of(MAIN);
    memset(got, 0, m->flat * sizeof(*got));
    OK(task_load(&o.w, whole, refs, 2, got, err));
    assert_memory_equal(got, flat, m->flat * sizeof(*flat));
    FAILS(task_load(&o.w, m, refs, 1, got, err), "no file of the model holds");
    FAILS(task_load(&o.w, m, twice, 2, got, err), "which another file held already");
    cache_close(o.w.cache);
    model_free(whole);
    model_free(m);
    mem_free(flat);
    mem_free(got);
    mem_free(dir);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(cut_as_the_levels_say),      TEST(levels_of_two_chains),
        TEST(levels_of_the_router),       TEST(each_block_once),
        TEST(one_embedding_and_one_head), TEST(more_blocks_than_a_model_has),
        TEST(files_of_all_levels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
