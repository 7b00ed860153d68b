#include "worker/kinds/engine.h"

#include <errno.h>
#include <stdio.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "kernels/kernels.h"
#include "worker/data/data.h"
#include "worker/train/island.h"
#include "worker/kinds/mixture.h"
#include "worker/order/modules.h"
#include "worker/kinds/replica.h"
#include "worker/kinds/velocity.h"

int engine_open(const struct engine_options *opt, struct engine **ret, struct err *err)
{
    struct engine *e = mem_alloc(sizeof(*e));
    e->opt = *opt;
    e->state_dir = str_dup(opt->state_dir);
    int rc = island_open(opt->device, opt->threads, &e->island, err);
    if (rc == 0)
        rc = data_cache_new(opt->image_cache_bytes, &e->images, err);
    if (rc < 0) {
        engine_close(e);
        return rc;
    }
    e->dev = island_device(e->island, 0);
    e->replicas = replicas_new(e->island, e->state_dir, opt->memory_bytes);
    *ret = e;
    return 0;
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    velocity_kept_free(e->velocity);
    replicas_free(e->replicas);
    data_cache_free(e->images);
    island_close(e->island);
    mem_free(e->state_dir);
    mem_free(e);
}

void engine_device_text(const struct engine *e, char *out, size_t size)
{
    island_text(e->island, out, size);
}

static bool is_text_sample(const Skerry__V1__Task *t)
{
    return t->kind == SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE && t->sample->tokens > 0;
}

static int plan_source(struct work *w)
{
    char path[CACHE_PATH_MAX];
    work_temp_path(w, "source.tar", path);
    mem_free(w->source_path);
    w->source_path = str_dup(path);
    return 0;
}

/* What the kind needs beyond modules and the tokenizer. */
static int plan_kind(struct engine *e, struct work *w, struct err *err)
{
    switch ((int)w->task->kind) {
    case SKERRY__V1__TASK_KIND__TASK_KIND_INIT:
        return work_init_plan(e, w, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_INGEST:
        return plan_source(w);
    case SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN:
        velocity_kept_free(e->velocity); /* training may need the room */
        e->velocity = NULL;
        return phase_plan(e, w, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_EVAL:
        return work_eval_plan(e, w, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE:
        return is_text_sample(w->task) ? work_text_plan(w, err) : 0;
    case SKERRY__V1__TASK_KIND__TASK_KIND_VELOCITY:
        return work_velocity_plan(e, w, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_FEATURE:
        return work_feature_plan(e, w, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_CLUSTER:
        return work_cluster_plan(e, w, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_SPLIT:
        return work_split_plan(e, w, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_SCORE:
        return work_score_plan(e, w, err);
    default:
        return 0;
    }
}

int engine_plan(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__Task *t = w->task;
    work_init_here(w);
    int rc = modules_plan(e->opt.modules, w, err);
    if (rc == 0 && t->tokenizer)
        rc = work_need_blob(w, t->tokenizer, "the tokenizer", err);
    if (rc == 0)
        rc = plan_kind(e, w, err);
    if (rc == 0)
        work_check_needs(w);
    return rc;
}

int engine_run(struct engine *e, struct work *w, struct err *err)
{
    int rc = modules_rebuild(e->opt.modules, w, err);
    if (rc < 0)
        return rc;
    switch ((int)w->task->kind) {
    case SKERRY__V1__TASK_KIND__TASK_KIND_INIT:
        return work_init_run(e, w, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_INGEST:
        return work_ingest_run(e, w, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN:
        return phase_run(e, w, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_EVAL:
        return w->task->mixture ? mixture_eval_run(e, w, err) : work_eval_run(e, w, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE:
        return is_text_sample(w->task) ? work_text_run(e, w, err) : work_sample_run(e, w, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_VELOCITY:
        return work_velocity_run(e, w, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_FEATURE:
        return work_feature_run(e, w, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_CLUSTER:
        return work_cluster_run(e, w, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_SPLIT:
        return work_split_run(e, w, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_SCORE:
        return work_score_run(e, w, err);
    default:
        return err_set(err, -ERR_UNIMPLEMENTED, "task kind %d", (int)w->task->kind);
    }
}

void engine_after(struct engine *e, struct work *w)
{
    if (w->task->kind != SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN)
        return;
    struct replica *r = replica_peek(e->replicas, w);
    struct err err = {0};
    if (r && r->whole && replica_save_end(e->replicas, r, &err) < 0)
        log_warn("engine", "no local checkpoint: %s", err.msg);
}
