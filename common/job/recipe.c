#include "common/job/recipe.h"

#include "common/job/family.h"
#include "common/job/job.h"

/* ---- building blocks ----------------------------------------------------- */

static struct composition_level *add_level(struct composition_network *n, uint32_t modules)
{
    n->levels = mem_realloc(n->levels, (n->n_levels + 1) * sizeof(*n->levels));
    struct composition_level *l = &n->levels[n->n_levels++];
    memset(l, 0, sizeof(*l));
    l->modules = modules;
    return l;
}

static void add_block(struct composition_level *l, int block)
{
    l->blocks[l->n_blocks++] = (uint8_t)block;
}

/* A network of one level, which has all parts. */
static void whole_network(struct composition_network *n, int depth, uint32_t modules)
{
    struct composition_level *l = add_level(n, modules);
    for (int b = 0; b < depth; b++)
        add_block(l, b);
    l->embedders = l->head = true;
}

/* With an upscaler each chain is a level: the parts before its first block and after its last
 * go with it, and so do the parts between the chains. */
static void chains(struct composition_network *n, const struct job_spec *spec, uint32_t modules)
{
    if (!job_has_upscaler(spec)) {
        whole_network(n, spec->model.depth, modules);
        return;
    }
    struct composition_level *base = add_level(n, modules);
    for (int b = 0; b < spec->model.depth; b++)
        add_block(base, b);
    base->embedders = true;
    struct composition_level *upscaler = add_level(n, modules);
    for (int b = spec->model.depth; b < job_blocks(spec); b++)
        add_block(upscaler, b);
    upscaler->head = true;
}

/* Every level becomes `fragments` levels with strided blocks; embedders go with the
 * first, the head with the last; a trainer's model has no head.  Empty fragments are
 * left out. */
static void cut_fragments(struct composition_network *n, const struct job_spec *spec,
                          uint32_t fragments)
{
    const bool has_head = !job_family(spec)->external;
    struct composition_network cut = {0};
    for (uint32_t l = 0; l < n->n_levels; l++) {
        const struct composition_level *whole = &n->levels[l];
        for (uint32_t f = 0; f < fragments; f++) {
            bool embedders = whole->embedders && f == 0;
            bool head = has_head && whole->head && f == fragments - 1;
            if (f >= whole->n_blocks && !embedders && !head)
                continue;
            struct composition_level *part = add_level(&cut, whole->modules);
            part->whole = l;
            part->fragment = f;
            part->embedders = embedders;
            part->head = head;
            for (uint32_t b = f; b < whole->n_blocks; b += fragments)
                add_block(part, whole->blocks[b]);
        }
    }
    mem_free(n->levels);
    *n = cut;
}

/* Adds the modules of the networks, numbered by (network, level, index). */
static int add_modules(struct composition *c, struct err *err)
{
    uint64_t n = 0;
    for (uint32_t w = 0; w < COMPOSITION_NETWORKS; w++) {
        if (c->networks[w].n_levels > COMPOSITION_LEVELS_MAX)
            return err_set(err, -ERR_CONFIG, "the recipe makes %u levels, at most %d fit",
                           c->networks[w].n_levels, COMPOSITION_LEVELS_MAX);
        for (uint32_t l = 0; l < c->networks[w].n_levels; l++)
            n += c->networks[w].levels[l].modules;
    }
    if (n > COMPOSITION_MODULES_MAX)
        return err_set(err, -ERR_CONFIG, "the recipe makes %llu modules, at most %d are possible",
                       (unsigned long long)n, COMPOSITION_MODULES_MAX);
    c->modules = mem_alloc_array(n, sizeof(*c->modules));
    for (uint32_t w = 0; w < COMPOSITION_NETWORKS; w++)
        for (uint32_t l = 0; l < c->networks[w].n_levels; l++)
            for (uint32_t i = 0; i < c->networks[w].levels[l].modules; i++)
                c->modules[c->n_modules++] = (struct composition_module){w, l, i, 0};
    return 0;
}

static uint32_t module_number(const struct composition *c, uint32_t network, uint32_t level,
                              uint32_t index)
{
    for (uint32_t i = 0; i < c->n_modules; i++)
        if (c->modules[i].network == network && c->modules[i].level == level &&
            c->modules[i].index == index)
            return i;
    return 0;
}

/* Path p takes module `index[l]` of each level. */
static void set_modules(struct composition *c, uint32_t p, const uint32_t *index)
{
    struct composition_path *path = &c->paths[p];
    for (uint32_t l = 0; l < c->networks[path->network].n_levels; l++) {
        path->modules[l] = module_number(c, path->network, l, index[l]);
        c->modules[path->modules[l]].paths++;
    }
}

static int add_paths(struct composition *c, const struct job_spec *spec, uint64_t n,
                     struct err *err)
{
    uint64_t k = (uint64_t)spec->recipe.replicas;
    if (c->elastic)
        k = n < COMPOSITION_ELASTIC_MAX ? COMPOSITION_ELASTIC_MAX / n : 1;
    if (n > COMPOSITION_PATHS_MAX || n * k > COMPOSITION_REPLICAS_MAX)
        return err_set(err, -ERR_CONFIG,
                       "the recipe makes %llu paths of %llu replicas, at most %d paths and %d "
                       "replicas of all are possible",
                       (unsigned long long)n, (unsigned long long)k, COMPOSITION_PATHS_MAX,
                       COMPOSITION_REPLICAS_MAX);
    c->n_paths = (uint32_t)n;
    c->paths = mem_alloc_array(n, sizeof(*c->paths));
    for (uint32_t p = 0; p < n; p++) {
        c->paths[p].replicas = (uint32_t)k;
        c->paths[p].batch = (uint32_t)spec->train.batch;
    }
    return 0;
}

/* ---- recipes ------------------------------------------------------------- */

static int compose_one(const struct job_spec *spec, struct composition *c, struct err *err)
{
    static const uint32_t zeros[COMPOSITION_LEVELS_MAX];
    chains(&c->networks[0], spec, 1);
    cut_fragments(&c->networks[0], spec, c->fragments);
    int rc = add_modules(c, err);
    if (rc == 0)
        rc = add_paths(c, spec, 1, err);
    if (rc == 0)
        set_modules(c, 0, zeros);
    return rc;
}

static int compose_distill(const struct job_spec *spec, struct composition *c, struct err *err)
{
    if (spec->recipe.teacher == 0)
        return err_set(err, -ERR_CONFIG,
                       "recipe.teacher is missing; give the number of the job whose experts are "
                       "the teachers");
    c->teacher_job = (uint32_t)spec->recipe.teacher;
    int rc = compose_one(spec, c, err);
    if (rc == 0)
        c->paths[0].partition = PARTITION_ALL;
    return rc;
}

static int limit_ddm(const struct job_spec *spec, const struct composition *c, struct err *err)
{
    const struct job_recipe *r = &spec->recipe;
    if (r->divide_batch && spec->train.batch % r->experts)
        return err_set(err, -ERR_CONFIG,
                       "train.batch is %d, which %d experts cannot share evenly; expected a "
                       "multiple of recipe.experts, or recipe.divide_batch: false",
                       spec->train.batch, r->experts);
    if (r->divide_batch && spec->train.accumulate &&
        spec->train.batch / r->experts % spec->train.accumulate)
        return err_set(err, -ERR_CONFIG,
                       "train.accumulate is %d, which does not divide the %d samples of an expert",
                       spec->train.accumulate, spec->train.batch / r->experts);
    if (spec->router.classes > 0 && spec->router.classes < r->experts)
        return err_set(err, -ERR_CONFIG,
                       "recipe.experts is %d, but the router has %d classes (router.classes)",
                       r->experts, spec->router.classes);
    return 0;
}

static int compose_ddm(const struct job_spec *spec, struct composition *c, struct err *err)
{
    uint32_t index[COMPOSITION_LEVELS_MAX], k = (uint32_t)spec->recipe.experts;
    int rc;
    const bool mixes = job_family(spec)->mixes; /* else experts train without a router */
    if (!mixes && !job_family(spec)->external)
        return err_set(err, -ERR_CONFIG,
                       "recipe.name is ddm, which needs model.type dit or external");
    chains(&c->networks[0], spec, k);
    cut_fragments(&c->networks[0], spec, c->fragments);
    if (mixes) {
        whole_network(&c->networks[1], spec->router.depth, 1);
        cut_fragments(&c->networks[1], spec, c->fragments);
    }
    if ((rc = add_modules(c, err)) < 0 || (rc = add_paths(c, spec, (uint64_t)k + mixes, err)) < 0)
        return rc;
    uint32_t batch = (uint32_t)spec->train.batch / (spec->recipe.divide_batch ? k : 1);
    for (uint32_t p = 0; p < k + mixes; p++) {
        bool router = p == k;
        c->paths[p].network = router;
        c->paths[p].partition = router ? PARTITION_ALL : p;
        c->paths[p].batch = router && spec->router.batch ? (uint32_t)spec->router.batch : batch;
        for (uint32_t l = 0; l < COMPOSITION_LEVELS_MAX; l++)
            index[l] = router ? 0 : p;
        set_modules(c, p, index);
    }
    c->n_partitions = c->digits[0] = k;
    c->partitioned = true;
    c->mixture = mixes;
    c->router_path = mixes ? (int32_t)k : -1;
    return 0;
}

static bool is_private(const struct job_recipe *r, int block)
{
    for (size_t i = 0; i < r->private_blocks.n; i++)
        if (r->private_blocks.items[i] == block)
            return true;
    return false;
}

/* The key with the number of blocks. */
static const char *depth_key(const struct job_spec *spec)
{
    if (!job_family(spec)->external)
        return "model.depth";
    return spec->trainer.levels.n > 0 ? "trainer.levels" : "outer.fragments";
}

/* The levels of each chain: with an upscaler the first half are the base's. */
static int chain_levels(const struct job_spec *spec)
{
    return (int)spec->recipe.levels.n / (job_has_upscaler(spec) ? 2 : 1);
}

static int check_levels(const struct job_spec *spec, struct err *err)
{
    const struct job_recipe *r = &spec->recipe;
    const bool up = job_has_upscaler(spec);
    const int each = chain_levels(spec);
    if (up && r->levels.n % 2)
        return err_set(err, -ERR_CONFIG,
                       "recipe.levels has %zu level%s; with an upscaler half of them are the "
                       "model's and half the upscaler's: give an even number",
                       r->levels.n, str_plural(r->levels.n));
    const bool base = spec->model.depth % each != 0;
    if (base || (up && spec->upscaler.depth % each))
        return err_set(err, -ERR_CONFIG,
                       "recipe.levels has %d level%s%s, which do not divide the %d blocks of "
                       "%s evenly",
                       each, str_plural((uint64_t)each), up ? " for each chain" : "",
                       base ? spec->model.depth : spec->upscaler.depth,
                       base ? depth_key(spec) : "upscaler.depth");
    return 0;
}

static int count_paths(const struct job_spec *spec, uint64_t *ret_paths, struct err *err)
{
    const struct job_recipe *r = &spec->recipe;
    if (r->levels.n == 0)
        return err_set(err, -ERR_CONFIG,
                       "recipe.levels is missing; give the modules of each level, such as [2, 2]");
    if (r->levels.n > COMPOSITION_DIGITS_MAX)
        return err_set(err, -ERR_CONFIG, "recipe.levels has %zu levels, at most %d are possible",
                       r->levels.n, COMPOSITION_DIGITS_MAX);
    int rc = check_levels(spec, err);
    if (rc < 0)
        return rc;
    *ret_paths = 1;
    for (size_t l = 0; l < r->levels.n; l++) {
        *ret_paths *= (uint64_t)r->levels.items[l];
        if (*ret_paths > COMPOSITION_PATHS_MAX)
            return err_set(err, -ERR_CONFIG, "recipe.levels makes more than %d paths",
                           COMPOSITION_PATHS_MAX);
    }
    return 0;
}

static int limit_reshard(const struct job_spec *spec, struct err *err)
{
    const struct job_recipe *r = &spec->recipe;
    for (size_t i = 0; i < r->reshard.n; i++) {
        if (r->reshard.items[i] >= spec->outer.rounds ||
            (i > 0 && r->reshard.items[i] <= r->reshard.items[i - 1]))
            return err_set(err, -ERR_CONFIG,
                           "recipe.reshard holds %d; expected ascending rounds below "
                           "outer.rounds (%d)",
                           r->reshard.items[i], spec->outer.rounds);
    }
    if (r->reshard.n && !job_family(spec)->chunks)
        return err_set(err, -ERR_CONFIG,
                       "recipe.reshard is given, but model.type is %s: texts are routed again only "
                       "with llama; leave it out",
                       job_family(spec)->name);
    return 0;
}

static int limit_dipaco(const struct job_spec *spec, const struct composition *c, struct err *err)
{
    const struct job_recipe *r = &spec->recipe;
    const struct composition_network *n = &c->networks[0];
    int depth = job_blocks(spec);
    for (size_t i = 0; i < r->private_blocks.n; i++)
        if (r->private_blocks.items[i] >= depth)
            return err_set(err, -ERR_CONFIG,
                           "recipe.private_blocks holds %d, but the model has blocks 0 to %d",
                           r->private_blocks.items[i], depth - 1);
    if ((uint32_t)r->top > c->n_paths)
        return err_set(err, -ERR_CONFIG, "recipe.top is %d, but there are only %u paths", r->top,
                       c->n_paths);
    for (uint32_t l = 0, i = 0; l < r->levels.n; l++) {
        while (i < n->n_levels && n->levels[i].whole < l)
            i++;
        if (i == n->n_levels || n->levels[i].whole != l) /* an empty one was left out */
            return err_set(err, -ERR_CONFIG,
                           "recipe.private_blocks takes all blocks of level %u; a level needs at "
                           "least one that is shared",
                           l);
    }
    return limit_reshard(spec, err);
}

/* The shared levels, then one for the private parts, with one module for each path. */
static void dipaco_levels(const struct job_spec *spec, struct composition_network *n,
                          uint32_t paths)
{
    const struct job_recipe *r = &spec->recipe;
    const int depth = job_blocks(spec), each = chain_levels(spec);
    bool own = r->private_embeddings;
    int b = 0;
    for (size_t l = 0; l < r->levels.n; l++) {
        struct composition_level *level = add_level(n, (uint32_t)r->levels.items[l]);
        const int end = b + ((int)l < each ? spec->model.depth : spec->upscaler.depth) / each;
        for (; b < end; b++)
            if (!is_private(r, b))
                add_block(level, b);
        level->embedders = l == 0 && !own;
        level->head = l == r->levels.n - 1 && !own;
    }
    if (!own && r->private_blocks.n == 0)
        return;
    struct composition_level *level = add_level(n, paths);
    for (b = 0; b < depth; b++)
        if (is_private(r, b))
            add_block(level, b);
    level->embedders = level->head = own;
}

static int compose_dipaco(const struct job_spec *spec, struct composition *c, struct err *err)
{
    struct composition_network *n = &c->networks[0];
    uint64_t paths = 0;
    int rc = count_paths(spec, &paths, err);
    if (rc < 0)
        return rc;
    size_t shared = spec->recipe.levels.n;
    dipaco_levels(spec, n, (uint32_t)paths);
    bool own_level = n->n_levels > shared;
    cut_fragments(n, spec, c->fragments);
    if ((rc = add_modules(c, err)) < 0 || (rc = add_paths(c, spec, paths, err)) < 0)
        return rc;
    for (uint32_t p = 0; p < paths; p++) {
        uint32_t digit[COMPOSITION_LEVELS_MAX], index[COMPOSITION_LEVELS_MAX], rest = p;
        for (size_t l = shared; l-- > 0; rest /= (uint32_t)spec->recipe.levels.items[l])
            digit[l] = rest % (uint32_t)spec->recipe.levels.items[l];
        if (own_level)
            digit[shared] = p;
        for (uint32_t l = 0; l < n->n_levels; l++)
            index[l] = digit[n->levels[l].whole];
        c->paths[p].partition = p;
        set_modules(c, p, index);
    }
    c->n_digits = (uint32_t)shared;
    for (size_t l = 0; l < shared; l++)
        c->digits[l] = (uint32_t)spec->recipe.levels.items[l];
    c->n_partitions = (uint32_t)paths;
    c->partitioned = paths > 1;
    c->weigh_partitions = c->root_rescale = true;
    return 0;
}

static const struct recipe {
    const char *name;
    int (*compose)(const struct job_spec *spec, struct composition *c, struct err *err);
    /* Further checks, which do not affect the composition; NULL: none. */
    int (*limit)(const struct job_spec *spec, const struct composition *c, struct err *err);
    bool experts, levels, teacher; /* it knows these optional keys */
} recipes[] = {
    {"diloco", compose_one, NULL, false, false, false},
    {"ddm", compose_ddm, limit_ddm, true, false, false},
    {"dipaco", compose_dipaco, limit_dipaco, false, true, false},
    {"distill", compose_distill, NULL, false, false, true},
};

static const struct recipe *find_recipe(const char *name)
{
    for (size_t i = 0; i < sizeof(recipes) / sizeof(recipes[0]); i++)
        if (strcmp(name, recipes[i].name) == 0)
            return &recipes[i];
    return NULL;
}

/* Checks the number of contributions: a fold of a module takes those of a whole round. */
static int limit_folds(const struct job_spec *spec, const struct composition *c, struct err *err)
{
    for (uint32_t m = 0; m < c->n_modules && !spec->outer.async; m++)
        if (c->modules[m].paths * (uint64_t)spec->recipe.replicas > COMPOSITION_FOLD_MAX)
            return err_set(err, -ERR_CONFIG,
                           "%u paths of %d replicas share a module, at most %d contributions can "
                           "be folded at once; use more modules in the smallest level, or fewer "
                           "replicas",
                           c->modules[m].paths, spec->recipe.replicas, COMPOSITION_FOLD_MAX);
    return 0;
}

int recipe_compose(const struct job_spec *spec, struct composition *ret, struct err *err)
{
    const struct recipe *recipe = find_recipe(spec->recipe.name);
    memset(ret, 0, sizeof(*ret));
    ret->router_path = -1;
    ret->n_partitions = ret->n_digits = ret->digits[0] = 1;
    ret->fragments = spec->outer.fragments > 1 ? (uint32_t)spec->outer.fragments : 1;
    if (recipe == NULL)
        return err_set(err, -ERR_CONFIG,
                       "recipe.name is '%s', expected diloco, ddm, dipaco or distill",
                       spec->recipe.name);
    ret->elastic = spec->recipe.replicas == 0;
    if (spec->recipe.replicas < 0 || spec->recipe.replicas > COMPOSITION_REPLICAS_MAX)
        return err_set(err, -ERR_CONFIG, "recipe.replicas is %d, expected 1 to %d",
                       spec->recipe.replicas, COMPOSITION_REPLICAS_MAX);
    int rc = recipe->compose(spec, ret, err);
    if (rc < 0)
        composition_release(ret);
    return rc;
}

int recipe_limits(const struct job_spec *spec, const struct composition *c, struct err *err)
{
    const struct recipe *recipe = find_recipe(spec->recipe.name);
    if (spec->outer.fragments > spec->model.depth)
        return err_set(err, -ERR_CONFIG, "outer.fragments is %d, more than the %d blocks of %s",
                       spec->outer.fragments, spec->model.depth, depth_key(spec));
    if (c->elastic && (spec->outer.async || job_streams(spec)))
        return err_set(err, -ERR_CONFIG,
                       "recipe.replicas is auto, which goes only with whole rounds; give a number, "
                       "or leave out outer.async, fragments, delay and mix");
    if (c->partitioned && !job_has_data(spec))
        return err_set(err, -ERR_CONFIG,
                       "recipe.name is %s, whose paths each learn from a part of the data, but "
                       "data.kind is none; give images or texts",
                       recipe->name);
    if (c->partitioned && spec->partition.chunk && !job_family(spec)->chunks)
        return err_set(err, -ERR_CONFIG,
                       "partition.chunk is %d, but model.type is %s: a path is chosen again only "
                       "with llama; leave it out",
                       spec->partition.chunk, job_family(spec)->name);
    int rc = recipe->limit ? recipe->limit(spec, c, err) : 0;
    return rc < 0 ? rc : limit_folds(spec, c, err);
}

#define EXPERTS_DEFAULT 8 /* as in job_keys.c */

/* Refuses keys of other recipes, which would have no effect. */
static int check_keys(const struct recipe *recipe, const struct job_recipe *r, struct err *err)
{
    const struct {
        const char *key;
        bool given, known;
        const char *whose;
    } keys[] = {
        {"experts", r->experts != EXPERTS_DEFAULT, recipe->experts, "ddm"},
        {"levels", r->levels.n > 0, recipe->levels, "dipaco"},
        {"private_blocks", r->private_blocks.n > 0, recipe->levels, "dipaco"},
        {"private_embeddings", r->private_embeddings, recipe->levels, "dipaco"},
        {"top", r->top > 1, recipe->levels, "dipaco"},
        {"reshard", r->reshard.n > 0, recipe->levels, "dipaco"},
        {"teacher", r->teacher != 0, recipe->teacher, "distill"},
    };
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (keys[i].given && !keys[i].known)
            return err_set(err, -ERR_CONFIG,
                           "recipe.%s is given, but recipe.name is %s: the key is only for %s",
                           keys[i].key, recipe->name, keys[i].whose);
    return 0;
}

int recipe_check(const struct job_spec *spec, struct composition *ret, struct err *err)
{
    int rc = recipe_compose(spec, ret, err);
    if (rc == 0)
        rc = recipe_limits(spec, ret, err);
    if (rc == 0)
        rc = check_keys(find_recipe(spec->recipe.name), &spec->recipe, err);
    if (rc == 0 && ret->mixture && spec->sample.strategy == JOB_STRATEGY_TOPK &&
        (uint32_t)spec->sample.top > ret->n_partitions)
        rc = err_set(err, -ERR_CONFIG, "sample.top is %d, but there are only %u experts",
                     spec->sample.top, ret->n_partitions);
    if (rc == 0 && spec->model.self_condition > 0 && (ret->mixture || ret->teacher_job))
        rc = err_set(err, -ERR_CONFIG,
                     "model.self_condition is %g, but with recipe.name %s velocities come from "
                     "several networks, none of which made the estimate; leave it out",
                     spec->model.self_condition, spec->recipe.name);
    if (rc < 0)
        composition_release(ret);
    return rc;
}

bool recipe_mixes(const char *name)
{
    const struct recipe *recipe = find_recipe(name);
    return recipe != NULL && recipe->experts;
}

bool composition_shares(const struct composition *c)
{
    for (uint32_t m = 0; m < c->n_modules; m++) {
        uint32_t n = 0;
        for (uint32_t p = 0; p < c->n_paths; p++)
            for (uint32_t l = 0; l < composition_levels(c, p); l++)
                n += c->paths[p].modules[l] == m ? c->paths[p].replicas : 0;
        if (n > 1)
            return true;
    }
    return false;
}

void composition_release(struct composition *c)
{
    for (uint32_t w = 0; w < COMPOSITION_NETWORKS; w++)
        mem_free(c->networks[w].levels);
    mem_free(c->modules);
    mem_free(c->paths);
    memset(c, 0, sizeof(*c));
}
