#include "coordinator/recipe.h"

#include "common/base/err.h"
#include "common/base/job.h"
#include "common/base/mem.h"

#include <errno.h>
#include <string.h>

static int compose_diloco(const struct job_spec *spec, struct composition *c, struct err *err)
{
    int k = spec->recipe.replicas;
    if (k < 1 || k > COMPOSITION_REPLICAS_MAX)
        return err_set(err, -ERR_CONFIG, "recipe.replicas is %d, expected 1 to %d", k,
                       COMPOSITION_REPLICAS_MAX);
    c->n_levels = c->n_modules = c->n_paths = c->n_partitions = 1;
    c->modules = mem_alloc_array(1, sizeof(*c->modules));
    c->paths = mem_alloc_array(1, sizeof(*c->paths));
    c->paths[0].replicas = (uint32_t)k;
    return 0;
}

static const struct recipe {
    const char *name;
    int (*compose)(const struct job_spec *spec, struct composition *c, struct err *err);
} recipes[] = {
    {"diloco", compose_diloco},
};

int recipe_compose(const struct job_spec *spec, struct composition *ret, struct err *err)
{
    memset(ret, 0, sizeof(*ret));
    for (size_t i = 0; i < sizeof(recipes) / sizeof(recipes[0]); i++)
        if (strcmp(spec->recipe.name, recipes[i].name) == 0)
            return recipes[i].compose(spec, ret, err);
    return err_set(err, -ERR_CONFIG, "recipe.name is '%s', expected 'diloco'", spec->recipe.name);
}

void composition_release(struct composition *c)
{
    mem_free(c->modules);
    mem_free(c->paths);
    memset(c, 0, sizeof(*c));
}

uint32_t recipe_partition(const struct job_spec *spec, const struct composition *c, uint64_t shard)
{
    return (uint32_t)(shard % c->n_partitions);
}
