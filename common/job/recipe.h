/* The meaning of a recipe's name.  Only this file knows such names: it turns them
 * into networks, levels, modules, paths and partitions, and all other code knows
 * only those (docs/architecture.md).
 *
 *   diloco   DiLoCo (Douillard et al., 2023): one level with one module, one
 *            path, k replicas of it, one i.i.d. partition; with an upscaler a
 *            level for each of the two chains
 *   ddm      Decentralized Diffusion Models (McAllister et al., 2025): K paths
 *            that share nothing, each with a partition of its own, and a router:
 *            one more path, of a second network, that learns from all of the data
 *            which partition a noised sample is from; with an upscaler an expert has
 *            both chains, a level each
 *   dipaco   DiPaCo (Douillard et al., 2024): L levels of K_l modules, a path for
 *            each combination, with a partition of its own; chosen blocks private; with an
 *            upscaler L/2 levels of each chain
 *   distill  one path that learns from the experts of another job
 *
 * Fragments (Streaming DiLoCo) cut every level into levels with the same modules,
 * strided over the blocks: a fragment is a module like any other, which
 * contributes at a step of its own in the phase.
 *
 * Pure; any thread. */
#ifndef COMMON_JOB_RECIPE_H
#define COMMON_JOB_RECIPE_H

#include "common/base/base.h"

struct job_spec;

#define COMPOSITION_LEVELS_MAX 64 /* levels of a network, fragments counted */
#define COMPOSITION_DIGITS_MAX 16 /* levels of dipaco, see ClusterTask.levels */
#define COMPOSITION_BLOCKS_MAX 256
#define COMPOSITION_MODULES_MAX 4096
#define COMPOSITION_PATHS_MAX 1024
#define COMPOSITION_REPLICAS_MAX 1024 /* sum over all paths */
#define COMPOSITION_ELASTIC_MAX 32    /* replicas of all paths, if elastic */
#define COMPOSITION_FOLD_MAX 256      /* contributions of a round to one module */
#define COMPOSITION_NETWORKS 2        /* main and router, see enum Network of skerry.proto */

/* All partitions of the data together. */
#define PARTITION_ALL UINT32_MAX

struct composition_level {
    uint8_t blocks[COMPOSITION_BLOCKS_MAX]; /* ascending */
    uint32_t n_blocks;
    bool embedders, head;
    uint32_t modules;  /* number of interchangeable modules */
    uint32_t whole;    /* the level before it was cut into fragments */
    uint32_t fragment; /* 0..fragments-1 */
};

struct composition_network {
    struct composition_level *levels;
    uint32_t n_levels; /* 0: this composition has no such network */
};

struct composition_module {
    uint32_t network, level, index;
    uint32_t paths; /* number of paths that cross it */
};

struct composition_path {
    uint32_t network;
    uint32_t modules[COMPOSITION_LEVELS_MAX]; /* number in composition.modules, by level */
    uint32_t replicas;                        /* elastic: the most */
    uint32_t partition;                       /* or PARTITION_ALL */
    uint32_t batch;                           /* samples of an inner step */
};

struct composition {
    struct composition_network networks[COMPOSITION_NETWORKS];
    uint32_t n_modules, n_paths;
    uint32_t n_partitions;                             /* 1: the data stay whole */
    uint32_t digits[COMPOSITION_DIGITS_MAX], n_digits; /* their product is n_partitions */
    uint32_t fragments;
    bool elastic; /* each round has as many replicas as there are workers for them */
    struct composition_module *modules;
    struct composition_path *paths;
    /* Partitions are learned: FEATURE, CLUSTER and SPLIT tasks make them. */
    bool partitioned;
    /* Contributions are weighted by the size of their partition, and their mean is
     * rescaled to the norm of its parts, at most by the root of the number of paths. */
    bool weigh_partitions, root_rescale;
    /* Paths of the main network are sampled together: the router's path, or -1. */
    int32_t router_path;
    bool mixture;
    /* The paths learn from another job's experts. */
    uint32_t teacher_job;
};

/* -ERR_CONFIG: an unknown name, or numbers of which nothing can be composed. */
int recipe_compose(const struct job_spec *spec, struct composition *ret, struct err *err);
/* The limits of a job that runs; -ERR_CONFIG: it breaks one.  A job on record that breaks a newer
 * limit keeps its modules. */
int recipe_limits(const struct job_spec *spec, const struct composition *c, struct err *err);
/* Both, and refuses keys without effect: for a job that a person submits.  Jobs on record are not
 * checked for such keys, so that rules may be added. */
int recipe_check(const struct job_spec *spec, struct composition *ret, struct err *err);
/* Is a job of this recipe a mixture of experts, from which samples are drawn by a strategy? */
bool recipe_mixes(const char *name);

void composition_release(struct composition *c); /* { 0 } is fine */

/* Does any module get more than one contribution per round? */
bool composition_shares(const struct composition *c);

/* The number of levels of a path's network. */
static inline uint32_t composition_levels(const struct composition *c, uint32_t path)
{
    return c->networks[c->paths[path].network].n_levels;
}

#endif
