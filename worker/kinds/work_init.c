/* INIT: version 0 of a module of each level of a network, from the seed or from the job's weights.
 * Workers that need a version from the seed draw it again: that takes less time than to fetch it,
 * and its hash says whether it is the same. */

#include "common/base/base.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "worker/engine/engine.h"
#include "worker/order/task_model.h"
#include "worker/kinds/kinds.h"

static int save_module(struct work *w, const struct model *m, const float *flat,
                       const Skerry__V1__ModuleRef *ref, struct err *err)
{
    struct work_output *o;
    char name[64];
    snprintf(name, sizeof(name), "module-%" PRIu64, ref->module_id);
    int rc = work_output_new(w, WORK_CONTRIBUTION, name, &o, err);
    if (rc < 0)
        return rc;
    o->module_id = ref->module_id;
    cache_make_room(w->cache, m->params * sizeof(float));
    return model_save(m, (int)ref->level, flat, o->path, o->sha256, &o->size, err);
}

static int plan(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__Blob *warm = w->task->warm_start;
    return warm ? work_need_blob(w, warm, "the weights to start from", err) : 0;
}

static int first_values(const struct work *w, const struct model *m, float *flat, struct err *err)
{
    const Skerry__V1__Task *t = w->task;
    char path[CACHE_PATH_MAX];
    if (!t->warm_start || t->network == SKERRY__V1__NETWORK__NETWORK_ROUTER) {
        model_init(m, w->spec.seed, flat);
        return 0;
    }
    work_blob_path(w, t->warm_start->sha256.data, path);
    int rc = work_own_file(model_load_foreign(m, path, flat, err), err);
    return rc < 0 ? err_wrap(err, "the warm start %s",
                             w->spec.model.warm_start ? w->spec.model.warm_start : "of the job")
                  : 0;
}

/* Interchangeable modules of a level start equal: they will differ by the data that
 * they see. */
static int run(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__Task *t = w->task;
    struct model *m = NULL;
    float *flat = NULL;
    progress_activity(&w->progress, "drawing initial values");
    int rc = task_model(w, t->network, &m, err);
    if (rc == 0 && !(flat = model_flat_new(m)))
        rc = err_set(err, -ENOMEM, "out of memory for %" PRIu64 " parameters", m->params);
    if (rc == 0)
        rc = first_values(w, m, flat, err);
    for (size_t i = 0; rc == 0 && i < t->n_modules; i++) {
        if (work_stopped(w, err))
            rc = -ERR_CANCELLED;
        else
            rc = save_module(w, m, flat, t->modules[i], err);
        progress_units(&w->progress, (uint32_t)i + 1, (uint32_t)t->n_modules);
    }
    mem_free(flat);
    model_free(m);
    return rc;
}

const struct kind kind_init = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_INIT,
    .name = "init",
    .modules = KIND_MODULES_MADE,
    .labels = true,
    .plan = plan,
    .run = run,
};
