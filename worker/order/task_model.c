#include "worker/order/task_model.h"

static int cut_blocks(const Skerry__V1__Level *level, size_t l, int depth, bool *seen,
                      struct model_cut *cut, struct err *err)
{
    for (size_t i = 0; i < level->n_blocks; i++) {
        const uint32_t b = level->blocks[i];
        if (b >= (uint32_t)depth)
            return err_set(err, -ERR_FORMAT,
                           "task: levels[%zu] has block %" PRIu32 ", but the network has %d blocks",
                           l, b, depth);
        if (seen[b])
            return err_set(err, -ERR_FORMAT, "task: block %" PRIu32 " is in two levels", b);
        seen[b] = true;
        cut->block_level[b] = (uint8_t)l;
    }
    return 0;
}

static int cut_of(Skerry__V1__Level *const *levels, size_t n, int depth, struct model_cut *ret,
                  struct err *err)
{
    struct model_cut cut = {.n_levels = n ? (int)n : 1};
    bool seen[MODEL_BLOCKS_MAX] = {false};
    unsigned embedders = 0, heads = 0;
    for (size_t l = 0; l < n; l++) {
        int rc = cut_blocks(levels[l], l, depth, seen, &cut, err);
        if (rc < 0)
            return rc;
        if (levels[l]->embedders) {
            cut.embed_level = (uint8_t)l;
            embedders++;
        }
        if (levels[l]->head) {
            cut.head_level = (uint8_t)l;
            heads++;
        }
    }
    if (n > 0 && (embedders != 1 || heads != 1))
        return err_set(err, -ERR_FORMAT,
                       "task: the embedders are in %u levels and the head in %u, expected one each",
                       embedders, heads);
    for (int b = 0; n > 0 && b < depth; b++)
        if (!seen[b])
            return err_set(err, -ERR_FORMAT, "task: block %d is in no level", b);
    *ret = cut;
    return 0;
}

static int spec_of(const struct work *w, Skerry__V1__Network network, struct model_spec *ret,
                   struct err *err)
{
    const Skerry__V1__Task *t = w->task;
    const bool router = network == SKERRY__V1__NETWORK__NETWORK_ROUTER;
    Skerry__V1__Level *const *levels = NULL;
    size_t n = 0;
    if (network == t->network) {
        levels = t->levels;
        n = t->n_levels;
    } else if (router && t->mixture) {
        levels = t->mixture->router_levels;
        n = t->mixture->n_router_levels;
    }
    struct model_cut cut;
    const int depth = router ? w->spec.router.depth : job_blocks(&w->spec);
    int rc = depth > MODEL_BLOCKS_MAX
                 ? err_set(err, -ERR_CONFIG, "model.depth %d is above %d", depth, MODEL_BLOCKS_MAX)
                 : cut_of(levels, n, depth, &cut, err);
    if (rc < 0)
        return rc;
    const Skerry__V1__NetworkInput none = SKERRY__V1__NETWORK_INPUT__INIT;
    const Skerry__V1__NetworkInput *in = t->input ? t->input : &none;
    const struct model_facts facts = {
        .channels = (int)in->channels,
        .side = (int)in->side,
        .caption = router ? 0 : (int)in->caption,
        .caption_tokens = router ? 0 : (int)in->caption_tokens,
        .router = router,
        .classes = (int)t->n_classes,
        .partitions = (int)t->partitions,
        .vocab = t->vocab,
        .cut = &cut,
    };
    return model_spec_from_job(&w->spec, &facts, ret, err);
}

int task_model(const struct work *w, Skerry__V1__Network network, struct model **ret,
               struct err *err)
{
    struct model_spec spec;
    int rc = spec_of(w, network, &spec, err);
    return rc < 0 ? rc : model_new(&spec, ret, err);
}

int task_load(const struct work *w, const struct model *m, Skerry__V1__ModuleRef *const *refs,
              size_t n, float *flat, struct err *err)
{
    char(*paths)[CACHE_PATH_MAX] = mem_try_zero(n * sizeof *paths);
    const char **list = mem_try_array(n, sizeof *list);
    int rc = paths && list ? 0 : err_set(err, -ENOMEM, "no memory for %zu paths", n);
    for (size_t i = 0; i < n && rc == 0; i++) {
        work_blob_path(w, refs[i]->sha256.data, paths[i]);
        list[i] = paths[i];
    }
    if (rc == 0)
        rc = model_load(m, -1, list, n, flat, err);
    mem_free(list);
    mem_free(paths);
    return rc;
}
