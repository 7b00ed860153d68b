#include "worker/engine/engine.h"

#include "common/base/clock.h"
#include "common/base/pieces.h"
#include "worker/data/images.h"
#include "worker/engine/encoders.h"
#include "worker/engine/replica.h"
#include "worker/engine/trainers.h"
#include "worker/order/modules.h"
#include "worker/order/work.h"
#include "worker/train/island.h"
#include "worker/train/plan.h"

static bool yield_trainer(void *e)
{
    return trainers_yield(e);
}

int engine_open(const struct engine_options *opt, struct engine **ret, struct err *err)
{
    struct engine *e = mem_alloc(sizeof(*e));
    e->opt = *opt;
    e->state_dir = str_dup(opt->state_dir);
    int rc = (opt->again ? island_reopen : island_open)(opt->device, opt->threads, &e->island, err);
    if (rc == 0)
        rc = image_cache_new(opt->image_cache_bytes, &e->images, err);
    if (rc < 0) {
        engine_close(e);
        return rc;
    }
    e->dev = island_device(e->island, 0);
    e->replicas = replicas_new(e->island, e->state_dir, opt->memory_bytes, yield_trainer, e);
    *ret = e;
    return 0;
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    engine_keep(e, NULL, NULL);
    trainers_free(e->trainers);
    replicas_free(e->replicas);
    for (int i = 0; i < ENGINE_ENCODERS; i++)
        encoders_drop(e->encoders[i]);
    image_cache_free(e->images);
    island_close(e->island);
    mem_free(e->state_dir);
    mem_free(e);
}

_Atomic uint64_t *engine_snapshots(struct engine *e, uint64_t job_id)
{
    if (e->snapshot_job != job_id)
        atomic_store(&e->snapshot_ns, 0); /* its models may have another size */
    e->snapshot_job = job_id;
    return &e->snapshot_ns;
}

void engine_device_text(const struct engine *e, char *out, size_t size)
{
    island_text(e->island, out, size);
}

void engine_keep(struct engine *e, void *kept, void (*free_kept)(void *kept))
{
    if (e->kept)
        e->free_kept(e->kept);
    e->kept = kept;
    e->free_kept = free_kept;
}

static bool lacks(const struct engine *e, uint64_t bytes)
{
    struct plan_room room;
    plan_room(&e->dev, 1, &room);
    return bytes > plan_room_bytes(&room);
}

void engine_room(struct engine *e, uint64_t bytes)
{
    if (lacks(e, bytes))
        engine_keep(e, NULL, NULL);
    replicas_yield(e->replicas, bytes);
    if (lacks(e, bytes))
        encoders_yield(e);
    if (lacks(e, bytes))
        (void)trainers_yield(e);
}

void engine_rest(struct engine *e)
{
    engine_keep(e, NULL, NULL);
    if (e->replicas)
        replicas_yield(e->replicas, UINT64_MAX);
    encoders_rest(e);
}

int engine_plan(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__Task *t = w->task;
    progress_hear(&w->progress);
    int rc = modules_plan(e->opt.modules, w, err);
    if (rc == 0 && t->tokenizer)
        rc = work_need_blob(w, t->tokenizer, "the tokenizer", err);
    if (rc == 0 && w->kind->encoders)
        rc = encoders_plan(e, w, err);
    if (rc == 0 && w->kind->plan)
        rc = w->kind->plan(e, w, err);
    if (rc == 0)
        work_check_needs(w);
    pieces_hear(NULL, NULL);
    return rc;
}

void engine_prepare(struct engine *e, struct work *w)
{
    if (w->kind->prepare && !work_stopped(w, NULL))
        w->kind->prepare(e, w);
}

/* Who made a job's last outer step will probably make the next one, also of its own contribution.
 */
static void keep_for_steps(struct engine *e, const struct work *w)
{
    const Skerry__V1__Task *t = w->task;
    if (t->outer)
        e->folds = t->job_id;
    for (size_t i = 0; t->train && e->folds == t->job_id && i < w->result.n_outputs; i++)
        if (w->result.outputs[i].role == WORK_CONTRIBUTION)
            work_keep_output(w, &w->result.outputs[i]);
}

int engine_run(struct engine *e, struct work *w, struct err *err)
{
    progress_hear(&w->progress);
    int rc = modules_rebuild(e->opt.modules, w, err);
    times_take(&w->times, TIMES_BUILT);
    const uint64_t begun = clock_now_ns();
    if (rc == 0)
        rc = w->kind->run(e, w, err);
    if (rc == 0)
        keep_for_steps(e, w);
    pieces_hear(NULL, NULL);
    times_take(&w->times, TIMES_MADE);
    if (w->result.seconds == 0) /* a phase measures its own computing time */
        w->result.seconds = (float)(clock_now_ns() - begun) / 1e9f;
    return rc;
}

void engine_after(struct engine *e, struct work *w)
{
    if (!w->kind->after)
        return;
    progress_hear(&w->progress);
    w->kind->after(e, w);
    pieces_hear(NULL, NULL);
}
