/* Recipes become levels, modules, paths and partitions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "common/base/job.h"
#include "coordinator/recipe.h"

static void test_diloco(void **state)
{
    struct job_spec spec = {.recipe = {(char *)"diloco", 5}};
    struct composition c;
    assert_int_equal(recipe_compose(&spec, &c, NULL), 0);
    assert_int_equal(c.n_levels, 1);
    assert_int_equal(c.n_modules, 1);
    assert_int_equal(c.n_paths, 1);
    assert_int_equal(c.paths[0].replicas, 5);
    assert_int_equal(c.paths[0].modules[0], 0);
    for (uint64_t shard = 0; shard < 9; shard++)
        assert_int_equal(recipe_partition(&spec, &c, shard), 0);
    composition_release(&c);
}

static void test_unknown(void **state)
{
    struct job_spec spec = {.recipe = {(char *)"dilucu", 5}};
    struct composition c;
    struct err err = {0};
    assert_int_equal(recipe_compose(&spec, &c, &err), -ERR_CONFIG);
    assert_non_null(strstr(err.msg, "dilucu"));
    spec.recipe.name = (char *)"diloco";
    spec.recipe.replicas = 0;
    assert_int_equal(recipe_compose(&spec, &c, &err), -ERR_CONFIG);
    composition_release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_diloco),
        cmocka_unit_test(test_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
