/* What a recipe's name means.  The only file that knows such names: it turns
 * them into levels, modules, paths and partitions, and all other code knows
 * nothing but those (docs/architecture.md, section 1).
 *
 *   diloco   DiLoCo (Douillard et al., 2023): one level with one module, one
 *            path, k replicas of it, one i.i.d. partition
 *
 * Pure; any thread. */
#ifndef COORDINATOR_RECIPE_H
#define COORDINATOR_RECIPE_H

#include <stdint.h>

struct err;
struct job_spec;

#define COMPOSITION_LEVELS_MAX 16
#define COMPOSITION_MODULES_MAX 1024
#define COMPOSITION_PATHS_MAX 1024
#define COMPOSITION_REPLICAS_MAX 1024 /* of all paths together */

struct composition_module {
    uint32_t level, index;
};

struct composition_path {
    uint32_t modules[COMPOSITION_LEVELS_MAX]; /* number in composition.modules, by level */
    uint32_t replicas;
    uint32_t partition;
};

struct composition {
    uint32_t n_levels, n_modules, n_paths, n_partitions;
    struct composition_module *modules;
    struct composition_path *paths;
};

/* -ERR_CONFIG with a sentence for an unknown name or impossible figures. */
int recipe_compose(const struct job_spec *spec, struct composition *ret, struct err *err);
void composition_release(struct composition *c);

/* Which partition a shard of the dataset belongs to. */
uint32_t recipe_partition(const struct job_spec *spec, const struct composition *c, uint64_t shard);

#endif
