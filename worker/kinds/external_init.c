/* INIT of the model of a user's trainer: version 0 is the weights with which the trainer begins, or
 * the job's weights, for which the trainer must have tensors. */

#include "common/base/base.h"
#include "worker/engine/engine.h"
#include "worker/kinds/kinds.h"
#include "worker/engine/trainers.h"

static int plan(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__Blob *warm = w->task->warm_start;
    engine_rest(e); /* a trainer may need the room */
    int rc = trainers_need(w, err);
    return rc == 0 && warm ? work_need_blob(w, warm, "the weights to start from", err) : rc;
}

/* -ERR_CONFIG: names the first synchronised tensor that is missing. */
static int say_missing(const struct tensors *t, const char *path, size_t loaded, struct err *err)
{
    struct st st;
    size_t i = 0;
    int rc = st_open(path, &st, err);
    if (rc < 0)
        return rc;
    while (i + 1 < t->n && (t->items[i].level < 0 || st_find(&st, t->items[i].name)))
        i++;
    rc = err_set(err, -ERR_CONFIG,
                 "it has %zu of the %zu tensors of the trainer that are synchronised, and not %s",
                 loaded, tensors_chosen(t, -1), t->items[i].name);
    st_release(&st);
    return rc;
}

/* Loads the user's file, which must have every synchronised tensor. */
static int load_users(const struct engine *e, struct work *w, struct external *x, struct err *err)
{
    char path[CACHE_PATH_MAX];
    size_t loaded = 0;
    const struct tensors *t = external_tensors(x);
    work_blob_path(w, w->task->warm_start->sha256.data, path);
    const struct tensors_source from = {.path = path, .users = true};
    int rc = tensors_load(t, &from, external_shared(x), e->opt.threads, &loaded, err);
    if (rc == 0 && loaded != tensors_chosen(t, -1))
        rc = say_missing(t, path, loaded, err);
    return rc < 0 ? err_wrap(err, "the warm start %s", w->spec.model.warm_start) : 0;
}

static int ask_begin(struct engine *e, struct work *w, struct err *err)
{
    const struct external_events ev = {
        .stopped = trainers_stopped, .goes_on = trainers_goes_on, .arg = w};
    Skerry__Trainer__V1__FromWorker m = SKERRY__TRAINER__V1__FROM_WORKER__INIT;
    Skerry__Trainer__V1__Begin begin = SKERRY__TRAINER__V1__BEGIN__INIT;
    struct external_done done;
    m.what_case = SKERRY__TRAINER__V1__FROM_WORKER__WHAT_BEGIN;
    m.begin = &begin;
    progress_activity(&w->progress, "taking the trainer's initial values");
    int rc = trainers_ask(e, w, &m, -1, &ev, &done, err);
    if (rc == 0)
        external_done_release(&done);
    return rc;
}

static int save(struct work *w, struct external *x, const Skerry__V1__ModuleRef *ref,
                struct err *err)
{
    struct work_output *o;
    char name[64];
    snprintf(name, sizeof(name), "module-%" PRIu64, ref->module_id);
    int rc = work_output_new(w, WORK_CONTRIBUTION, name, &o, err);
    if (rc < 0)
        return rc;
    o->module_id = ref->module_id;
    cache_make_room(w->cache, external_tensors(x)->bytes);
    return tensors_save(external_tensors(x), (int)ref->level, external_shared(x), o->path,
                        o->sha256, &o->size, err);
}

static int run(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__Task *t = w->task;
    struct external *x = NULL;
    int rc = trainers_get_new(e, w, &x, err);
    if (rc == 0)
        rc = t->warm_start ? load_users(e, w, x, err) : ask_begin(e, w, err);
    if (rc == 0) { /* the coordinator needs nothing else */
        work_row(w, external_evaluates(x), "", "trainer evaluates");
        work_row(w, external_draws(x), "", "trainer draws");
    }
    for (size_t i = 0; rc == 0 && i < t->n_modules; i++) {
        rc = work_stopped(w, err) ? -ERR_CANCELLED : save(w, x, t->modules[i], err);
        progress_units(&w->progress, (uint32_t)i + 1, (uint32_t)t->n_modules);
    }
    return rc;
}

const struct kind kind_external_init = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_INIT,
    .name = "init",
    .external = true,
    .modules = KIND_MODULES_MADE,
    .plan = plan,
    .run = run,
};
