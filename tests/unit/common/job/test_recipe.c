/* Recipes become networks, levels, modules, paths and partitions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "common/job/job.h"
#include "common/job/recipe.h"

static void parse(const char *model, const char *recipe, struct job_spec *ret)
{
    char yaml[1024];
    struct err err = {0};
    (void)snprintf(yaml, sizeof(yaml),
                   "name: t\ndata: {path: d, image_size: 16}\n"
                   "model: {%s, dim: 32, depth: 12, heads: 2}\n"
                   "train: {batch: 48}\nouter: {rounds: 10, steps: 4%s\n",
                   model, recipe);
    if (job_parse(yaml, strlen(yaml), "job.yaml", ret, &err) < 0)
        fail_msg("%s", err.msg);
}

static int compose(const char *model, const char *recipe, struct composition *c, struct err *err)
{
    struct job_spec spec;
    parse(model, recipe, &spec);
    int rc = recipe_check(&spec, c, err);
    job_release(&spec);
    return rc;
}

/* Every block and both ends lie in exactly one level. */
static void assert_cut(const struct composition_network *n, uint32_t depth)
{
    unsigned seen[COMPOSITION_BLOCKS_MAX] = {0}, embedders = 0, heads = 0;
    for (uint32_t l = 0; l < n->n_levels; l++) {
        for (uint32_t b = 0; b < n->levels[l].n_blocks; b++)
            seen[n->levels[l].blocks[b]]++;
        embedders += n->levels[l].embedders;
        heads += n->levels[l].head;
    }
    for (uint32_t b = 0; b < depth; b++)
        assert_int_equal(seen[b], 1);
    assert_int_equal(embedders, 1);
    assert_int_equal(heads, 1);
}

static void test_diloco(void **state)
{
    struct composition c;
    assert_int_equal(compose("type: dit", "}\nrecipe: {replicas: 5}", &c, NULL), 0);
    assert_int_equal(c.networks[0].n_levels, 1);
    assert_int_equal(c.networks[1].n_levels, 0);
    assert_int_equal(c.n_modules, 1);
    assert_int_equal(c.n_paths, 1);
    assert_int_equal(c.n_partitions, 1);
    assert_false(c.partitioned);
    assert_int_equal(c.paths[0].replicas, 5);
    assert_int_equal(c.paths[0].modules[0], 0);
    assert_int_equal(c.paths[0].batch, 48);
    assert_cut(&c.networks[0], 12);
    composition_release(&c);
}

/* A level of each chain, and with fragments those of each chain. */
static void test_upscaler(void **state)
{
    static const char *const more[] = {"}\nupscaler: {low_side: 8, depth: 3}",
                                       ", fragments: 3}\nupscaler: {low_side: 8, depth: 3}"};
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t each = i ? 3 : 1;
        struct composition c;
        assert_int_equal(compose("type: dit", more[i], &c, NULL), 0);
        assert_int_equal(c.networks[0].n_levels, 2 * each);
        assert_int_equal(c.n_modules, 2 * each);
        assert_int_equal(c.n_paths, 1);
        assert_cut(&c.networks[0], 15);
        for (uint32_t l = 0; l < 2 * each; l++)
            for (uint32_t b = 0; b < c.networks[0].levels[l].n_blocks; b++)
                assert_int_equal(l < each, c.networks[0].levels[l].blocks[b] < 12);
        assert_true(c.networks[0].levels[0].embedders);
        assert_true(c.networks[0].levels[2 * each - 1].head);
        composition_release(&c);
    }
}

static void test_fragments(void **state)
{
    struct composition c;
    assert_int_equal(compose("type: dit", ", fragments: 5}", &c, NULL), 0);
    assert_int_equal(c.networks[0].n_levels, 5);
    assert_int_equal(c.n_modules, 5);
    assert_cut(&c.networks[0], 12);
    assert_int_equal(c.networks[0].levels[1].blocks[0], 1);
    assert_int_equal(c.networks[0].levels[1].blocks[1], 6);
    assert_int_equal(c.networks[0].levels[1].fragment, 1);
    assert_true(c.networks[0].levels[0].embedders);
    assert_true(c.networks[0].levels[4].head);
    composition_release(&c);
}

static void test_ddm(void **state)
{
    struct composition c;
    assert_int_equal(
        compose("type: dit", "}\nrecipe: {name: ddm, experts: 4, replicas: 2}", &c, NULL), 0);
    assert_int_equal(c.n_paths, 5);
    assert_int_equal(c.n_modules, 5);
    assert_int_equal(c.n_partitions, 4);
    assert_true(c.partitioned && c.mixture);
    assert_int_equal(c.router_path, 4);
    for (uint32_t p = 0; p < 4; p++) {
        assert_int_equal(c.paths[p].partition, p);
        assert_int_equal(c.paths[p].modules[0], p);
        assert_int_equal(c.paths[p].batch, 12);
        assert_int_equal(c.modules[p].paths, 1);
    }
    assert_int_equal(c.paths[4].partition, PARTITION_ALL);
    assert_int_equal(c.paths[4].network, 1);
    assert_int_equal(c.modules[c.paths[4].modules[0]].network, 1);
    assert_cut(&c.networks[1], 6);
    composition_release(&c);
}

/* Experts have both chains, a level each, and share none. */
static void test_ddm_upscaler(void **state)
{
    struct composition c;
    assert_int_equal(
        compose("type: dit",
                "}\nrecipe: {name: ddm, experts: 4}\nupscaler: {low_side: 8, depth: 3}", &c, NULL),
        0);
    assert_int_equal(c.n_paths, 5);
    assert_int_equal(c.n_modules, 9);
    assert_int_equal(c.networks[0].n_levels, 2);
    assert_cut(&c.networks[0], 15);
    assert_true(c.mixture);
    for (uint32_t p = 0; p < 4; p++)
        for (uint32_t l = 0; l < 2; l++) {
            const struct composition_module *m = &c.modules[c.paths[p].modules[l]];
            assert_true(m->network == 0 && m->level == l && m->index == p && m->paths == 1);
        }
    assert_int_equal(c.networks[1].n_levels, 1);
    assert_int_equal(c.modules[c.paths[4].modules[0]].network, 1);
    composition_release(&c);
}

static int compose_external(const char *data, const char *more, struct composition *c,
                            struct err *err)
{
    char yaml[512];
    struct job_spec spec;
    (void)snprintf(yaml, sizeof(yaml),
                   "name: t\ndata: {kind: %s}\nmodel: {type: external}\ntrainer: {command: x}\n"
                   "train: {batch: 48}\nouter: {rounds: 10, steps: 4}\n"
                   "recipe: {name: ddm, experts: 4}\n%s",
                   data, more);
    int rc = job_parse(yaml, strlen(yaml), "job.yaml", &spec, err);
    if (rc < 0)
        return rc;
    rc = recipe_check(&spec, c, err);
    job_release(&spec);
    return rc;
}

/* A trainer of the user's has experts, too, but no router that mixes them. */
static void test_ddm_external(void **state)
{
    struct composition c;
    struct err err = {0};
    if (compose_external("images, path: x", "", &c, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(c.n_paths, 4);
    assert_int_equal(c.n_modules, 4);
    assert_int_equal(c.n_partitions, 4);
    assert_true(c.partitioned && !c.mixture);
    assert_int_equal(c.router_path, -1);
    assert_int_equal(c.networks[1].n_levels, 0);
    assert_int_equal(c.paths[3].batch, 12);
    composition_release(&c);
    assert_true(compose_external("none", "", &c, &err) < 0);
    assert_non_null(strstr(err.msg, "data.kind is none"));
    assert_true(compose_external("texts, path: x", "partition: {chunk: 16}\n", &c, &err) < 0);
    assert_non_null(strstr(err.msg, "partition.chunk is 16, but model.type is external"));
}

static void test_dipaco(void **state)
{
    struct composition c;
    assert_int_equal(compose("type: llama",
                             "}\nrecipe: {name: dipaco, levels: [2, 3], private_blocks: [0, 11], "
                             "private_embeddings: true}",
                             &c, NULL),
                     0);
    assert_int_equal(c.n_paths, 6);
    assert_int_equal(c.networks[0].n_levels, 3);
    assert_int_equal(c.n_modules, 2 + 3 + 6);
    assert_cut(&c.networks[0], 12);
    assert_int_equal(c.networks[0].levels[0].n_blocks, 5);
    assert_true(c.networks[0].levels[2].embedders && c.networks[0].levels[2].head);
    /* Path 4 is (1, 1): the digit of level 0 is the most significant. */
    assert_int_equal(c.modules[c.paths[4].modules[0]].index, 1);
    assert_int_equal(c.modules[c.paths[4].modules[1]].index, 1);
    assert_int_equal(c.modules[c.paths[4].modules[2]].index, 4);
    assert_int_equal(c.modules[c.paths[4].modules[0]].paths, 3);
    assert_int_equal(c.modules[c.paths[4].modules[1]].paths, 2);
    assert_int_equal(c.modules[c.paths[4].modules[2]].paths, 1);
    assert_int_equal(c.n_digits, 2);
    assert_true(c.root_rescale && c.weigh_partitions);
    composition_release(&c);
}

/* Each chain has half of the levels; its private blocks are numbered behind the base's. */
static void test_dipaco_upscaler(void **state)
{
    struct composition c;
    assert_int_equal(compose("type: dit",
                             "}\nrecipe: {name: dipaco, levels: [2, 1, 1, 3], "
                             "private_blocks: [0, 15]}\nupscaler: {low_side: 8, depth: 4}",
                             &c, NULL),
                     0);
    const struct composition_network *n = &c.networks[0];
    assert_cut(n, 16);
    assert_int_equal(c.n_paths, 6);
    assert_int_equal(c.n_partitions, 6);
    assert_int_equal(n->n_levels, 5);
    assert_int_equal(c.n_modules, 2 + 1 + 1 + 3 + 6);
    static const struct {
        uint8_t first, last;
    } blocks[] = {{1, 5}, {6, 11}, {12, 13}, {14, 14}, {0, 15}};
    for (uint32_t l = 0; l < n->n_levels; l++) {
        assert_int_equal(n->levels[l].blocks[0], blocks[l].first);
        assert_int_equal(n->levels[l].blocks[n->levels[l].n_blocks - 1], blocks[l].last);
    }
    assert_true(n->levels[0].embedders && n->levels[3].head);
    /* Path 4 is (1, 0, 0, 1). */
    assert_int_equal(c.modules[c.paths[4].modules[0]].index, 1);
    assert_int_equal(c.modules[c.paths[4].modules[3]].index, 1);
    assert_int_equal(c.modules[c.paths[4].modules[2]].paths, 6);
    composition_release(&c);
}

static void test_dipaco_fragments(void **state)
{
    struct composition c;
    assert_int_equal(compose("type: llama",
                             ", fragments: 2}\nrecipe: {name: dipaco, levels: [2, 2], "
                             "private_blocks: [0, 1, 2, 3, 4]}",
                             &c, NULL),
                     0);
    assert_cut(&c.networks[0], 12);
    for (uint32_t p = 0; p < 4; p++)
        for (uint32_t l = 0; l < c.networks[0].n_levels; l++) {
            uint32_t whole = c.networks[0].levels[l].whole;
            uint32_t want = whole == 0 ? p / 2 : whole == 1 ? p % 2 : p;
            assert_int_equal(c.modules[c.paths[p].modules[l]].level, l);
            assert_int_equal(c.modules[c.paths[p].modules[l]].index, want);
        }
    composition_release(&c);
}

/* A trainer's model has no head, so no level is of that alone: each has blocks, or what is in none.
 */
static void test_external_fragments(void **state)
{
    static const struct {
        const char *trainer;
        int fragments;
        uint32_t levels; /* that are to come of it; 0: what is said */
        const char *says;
    } cases[] = {
        {", levels: [a, b]", 2, 3, ""},       /* a block each, and what is private */
        {", levels: [a, b, c, d]", 2, 5, ""}, /* two blocks each */
        {", levels: [a, b, c, d]", 3, 5, ""},
        {"", 2, 2, ""},
        {", levels: [a, b]", 3, 0,
         "outer.fragments is 3, more than the 2 blocks of trainer.levels"},
        {"", 3, 0, "which do not divide the 3 blocks of outer.fragments"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct job_spec spec;
        struct composition c;
        char yaml[512];
        (void)snprintf(yaml, sizeof(yaml),
                       "name: t\ndata: {kind: texts, path: d}\nmodel: {type: external}\n"
                       "trainer: {command: x%s}\ntrain: {batch: 4}\n"
                       "recipe: {name: dipaco, levels: [2, 2]}\n"
                       "outer: {rounds: 2, steps: 4, fragments: %d}\n",
                       cases[i].trainer, cases[i].fragments);
        struct err err = {0};
        if (job_parse(yaml, strlen(yaml), "job.yaml", &spec, &err) < 0)
            fail_msg("%s", err.msg);
        const int rc = recipe_check(&spec, &c, &err);
        job_release(&spec);
        if ((rc < 0) != (cases[i].levels == 0) || strstr(err.msg, cases[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", err.msg, cases[i].says);
        if (rc < 0)
            continue;
        const struct composition_network *n = &c.networks[0];
        assert_int_equal(n->n_levels, cases[i].levels);
        for (uint32_t l = 0; l < n->n_levels; l++) {
            assert_true(n->levels[l].n_blocks > 0 || n->levels[l].embedders);
            assert_false(n->levels[l].head);
        }
        composition_release(&c);
    }
}

static void test_refused(void **state)
{
    static const struct {
        const char *model, *recipe, *says;
    } bad[] = {
        {"type: dit", "}\nrecipe: {name: dilucu}", "dilucu"},
        {"type: dit", "}\nrecipe: {name: ddm, experts: 5}", "evenly"},
        {"type: dit", "}\nrecipe: {name: ddm, experts: 4}\nrouter: {classes: 3}", "3 classes"},
        {"type: llama", "}\nrecipe: {name: ddm, experts: 4}", "type dit or external"},
        {"type: dit", "}\nrecipe: {name: ddm, experts: 4, top: 2}", "recipe.top is given"},
        {"type: dit", "}\nrecipe: {name: ddm, experts: 4, teacher: 1}", "only for distill"},
        {"type: dit", "}\nrecipe: {name: ddm, experts: 4}\nsample: {strategy: topk, top: 5}",
         "sample.top is 5"},
        {"type: llama", "}\nrecipe: {levels: [2, 2]}", "recipe.levels is given"},
        {"type: llama", "}\nrecipe: {name: dipaco, levels: [1, 200], replicas: 2}",
         "200 paths of 2 replicas share a module, at most 256"},
        {"type: llama", "}\nrecipe: {name: dipaco}", "recipe.levels is missing"},
        {"type: llama", "}\nrecipe: {name: dipaco, levels: [2, 2, 2, 2, 2]}", "divide"},
        {"type: llama", "}\nrecipe: {name: dipaco, levels: [2, 2], private_blocks: [12]}",
         "0 to 11"},
        {"type: llama", "}\nrecipe: {name: dipaco, levels: [2], top: 3}", "there are only 2 paths"},
        {"type: llama", "}\nrecipe: {name: dipaco, levels: [2], reshard: [10]}", "below"},
        {"type: dit", "}\nrecipe: {name: dipaco, levels: [2], reshard: [2]}", "llama"},
        {"type: llama", ", fragments: 13}", "more than the 12 blocks"},
        {"type: dit", "}\nrecipe: {name: distill}", "recipe.teacher"},
        {"self_condition: 0.5", "}\nrecipe: {name: ddm, experts: 4}",
         "model.self_condition is 0.5, but with recipe.name ddm"},
        {"self_condition: 1", "}\nrecipe: {name: distill, teacher: 1}",
         "model.self_condition is 1, but with recipe.name distill"},
        {"type: dit", "}\nrecipe: {name: dipaco, levels: [2]}\nupscaler: {low_side: 8}",
         "recipe.levels has 1 level; with an upscaler half of them are the model's and half the "
         "upscaler's: give an even number"},
        {"type: dit",
         "}\nrecipe: {name: dipaco, levels: [2, 2, 2, 2]}\nupscaler: {low_side: 8, depth: 3}",
         "recipe.levels has 2 levels for each chain, which do not divide the 3 blocks of "
         "upscaler.depth evenly"},
        {"type: dit",
         "}\nrecipe: {name: dipaco, levels: [2, 2], private_blocks: [15]}\nupscaler: {low_side: 8, "
         "depth: 3}",
         "but the model has blocks 0 to 14"},
        {"type: llama", "}\nrecipe: {name: dipaco, levels: [256, 256]}", "more than 1024 paths"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct composition c;
        struct err err = {0};
        assert_int_equal(compose(bad[i].model, bad[i].recipe, &c, &err), -ERR_CONFIG);
        if (strstr(err.msg, bad[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", err.msg, bad[i].says);
        composition_release(&c);
    }
}

/* What was accepted once can be read again, though today it would be refused. */
static void test_on_record(void **state)
{
    struct job_spec spec;
    struct composition c;
    parse("type: dit", "}\nrecipe: {name: ddm, experts: 4, levels: [2, 2]}", &spec);
    assert_int_equal(recipe_check(&spec, &c, NULL), -ERR_CONFIG);
    assert_int_equal(recipe_compose(&spec, &c, NULL), 0);
    assert_int_equal(recipe_limits(&spec, &c, NULL), 0);
    assert_int_equal(c.n_partitions, 4);
    composition_release(&c);
    job_release(&spec);
    /* Beyond a limit: not to run, but its modules can be told. */
    parse("type: dit", ", fragments: 13}\nrecipe: {replicas: 3}", &spec);
    assert_int_equal(recipe_check(&spec, &c, NULL), -ERR_CONFIG);
    assert_int_equal(recipe_compose(&spec, &c, NULL), 0);
    assert_int_equal(recipe_limits(&spec, &c, NULL), -ERR_CONFIG);
    assert_int_equal(c.n_paths, 1);
    assert_int_equal(c.networks[0].n_levels, 13); /* the last with the head alone */
    composition_release(&c);
    job_release(&spec);
}

/* More levels than a path has room for. */
static void test_too_many_levels(void **state)
{
    static const struct {
        int levels, fragments;
        const char *says;
    } bad[] = {{32, 1, "32 levels, at most 16"}, {16, 16, "256 levels, at most 64"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char levels[512] = "1", yaml[1024];
        struct job_spec spec;
        struct composition c;
        struct err err = {0};
        for (int l = 1; l < bad[i].levels; l++)
            (void)strcat(levels, ",1");
        (void)snprintf(yaml, sizeof(yaml),
                       "name: t\ndata: {path: d}\n"
                       "model: {type: llama, dim: 32, depth: 256, heads: 2, context: 64}\n"
                       "train: {batch: 8}\nouter: {rounds: 2, steps: 4, fragments: %d}\n"
                       "recipe: {name: dipaco, levels: [%s]}\n",
                       bad[i].fragments, levels);
        if (job_parse(yaml, strlen(yaml), "job.yaml", &spec, &err) < 0)
            fail_msg("%s", err.msg);
        assert_int_equal(recipe_compose(&spec, &c, &err), -ERR_CONFIG);
        if (strstr(err.msg, bad[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", err.msg, bad[i].says);
        job_release(&spec);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_diloco),          cmocka_unit_test(test_upscaler),
        cmocka_unit_test(test_fragments),       cmocka_unit_test(test_ddm),
        cmocka_unit_test(test_ddm_upscaler),    cmocka_unit_test(test_ddm_external),
        cmocka_unit_test(test_dipaco),          cmocka_unit_test(test_dipaco_fragments),
        cmocka_unit_test(test_dipaco_upscaler), cmocka_unit_test(test_external_fragments),
        cmocka_unit_test(test_refused),         cmocka_unit_test(test_on_record),
        cmocka_unit_test(test_too_many_levels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
