/* VELOCITY: one path's velocity at points that a sampler elsewhere sent.
 *
 * A sampler asks once per step and expert: the model of the last task stays on the device
 * until a task wants something else. */

#include "common/base/base.h"
#include "common/base/hash.h"
#include "worker/net/arena.h"
#include "worker/engine/encoders.h"
#include "worker/engine/engine.h"
#include "worker/net/experts.h"
#include "worker/order/task_model.h"
#include "worker/train/train.h"
#include "worker/engine/task_files.h"
#include "worker/kinds/kinds.h"
#include "worker/order/task_check.h"

#define VELOCITY_BATCH 64

struct kept {
    struct experts *experts; /* with one expert */
    struct model *model;
    uint8_t key[HASH_BYTES]; /* names the job and the modules */
    const struct work *w;    /* set only while weights are loaded */
};

static void kept_free(void *arg)
{
    struct kept *k = arg;
    experts_free(k->experts);
    model_free(k->model);
    mem_free(k);
}

/* Equal job files and module versions give equal networks. */
static void key_of(const struct work *w, uint8_t key[HASH_BYTES])
{
    const Skerry__V1__Task *t = w->task;
    struct hash h;
    hash_init(&h);
    hash_update(&h, t->spec, strlen(t->spec) + 1);
    for (size_t i = 0; i < t->n_modules; i++)
        hash_update(&h, t->modules[i]->sha256.data, t->modules[i]->sha256.len);
    hash_final(&h, key);
}

static int load(void *arg, int expert, float *flat, struct err *err)
{
    const struct kept *k = arg;
    const Skerry__V1__Task *t = k->w->task;
    return task_load(k->w, k->model, t->modules, t->n_modules, flat, err);
}

/* Gets the task's model, which the engine keeps from now on. */
static int keep_model(struct engine *e, const struct work *w, struct kept **ret, struct err *err)
{
    uint8_t key[HASH_BYTES];
    key_of(w, key);
    struct kept *k = e->free_kept == kept_free ? e->kept : NULL;
    if (k && memcmp(k->key, key, sizeof key) == 0) {
        k->w = w;
        *ret = k;
        return 0;
    }
    engine_keep(e, NULL, NULL);
    k = mem_alloc(sizeof *k);
    memcpy(k->key, key, sizeof key);
    k->w = w;
    struct train_options train;
    train_options_from_job(&w->spec, false, 0, 0, &train);
    const struct experts_options opt = {
        .count = 1, .batch = VELOCITY_BATCH, .precision = train.precision, .arg = k, .load = load};
    int rc = task_model(w, SKERRY__V1__NETWORK__NETWORK_MAIN, &k->model, err);
    if (rc == 0) {
        engine_room(e, experts_bytes(k->model, opt.batch, net_dtype(e->dev, opt.precision)));
        rc = experts_new(e->dev, k->model, &opt, &k->experts, err);
    }
    if (rc < 0) {
        kept_free(k);
        return rc;
    }
    engine_keep(e, k, kept_free);
    *ret = k;
    return 0;
}

/* p->x becomes the velocities. */
static int compute(struct engine *e, struct kept *kept, const struct encoder_prompts *prompts,
                   struct velocity_points *p, struct err *err)
{
    const struct kernel_ops *k = e->dev->ops;
    const struct mix_experts one = experts_mix(kept->experts);
    const int chain = p->beside ? 1 : 0;
    const size_t values = (size_t)model_image_values(&model_chain(kept->model, chain)->spec);
    const size_t bytes = (size_t)p->rows * values * sizeof *p->x;
    struct arena a = {0};
    float *x = NULL, *v = NULL, *beside = NULL;
    arena_add(&a, &x, bytes);
    arena_add(&a, &v, bytes);
    if (p->beside)
        arena_add(&a, &beside, bytes);
    int rc = arena_alloc(&a, e->dev, err);
    if (rc < 0)
        return rc;
    rc = k->copy(e->dev, x, p->x, bytes, COPY_TO_DEVICE, NULL);
    if (rc == 0 && p->beside)
        rc = k->copy(e->dev, beside, p->beside, bytes, COPY_TO_DEVICE, NULL);
    rc = rc < 0 ? err_set(err, rc, "%s: %s", e->dev->name, err_text(rc))
                : k->sync(e->dev, NULL, err);
    const struct mix_call call = {.expert = 0,
                                  .rows = p->rows,
                                  .chain = chain,
                                  .x = x,
                                  .beside = beside,
                                  .t = p->t,
                                  .labels = p->labels,
                                  .captions = prompts->states ? &prompts->captions : NULL,
                                  .v = v};
    if (rc == 0)
        rc = one.run(one.arg, &call, 1, err);
    if (rc == 0) {
        rc = k->copy(e->dev, p->x, v, bytes, COPY_FROM_DEVICE, NULL);
        rc = rc < 0 ? err_set(err, rc, "%s: %s", e->dev->name, err_text(rc))
                    : k->sync(e->dev, NULL, err);
    }
    arena_free(&a, e->dev);
    return rc;
}

/* Reads the captions whose numbers the labels are; none if labels are classes. */
static int read_prompts(struct engine *e, struct work *w, struct encoder_prompts *ret,
                        struct err *err)
{
    struct encoders *enc = NULL;
    int rc = encoders_get(e, w, &enc, err);
    if (rc < 0 || !enc || !enc->text)
        return rc;
    engine_room(e, encoders_missing(enc, FROZEN_TEXT));
    return encoders_prompts(enc, w->task->velocity->prompt, TASK_LABELS_MAX, ret, err);
}

static int check(const Skerry__V1__Task *t, struct err *err)
{
    int rc = task_check_text(t->velocity->prompt, TASK_PROMPT_MAX, "velocity.prompt", err);
    return rc < 0 ? rc : task_check_blob(t->velocity->input, "velocity.input", err);
}

static int plan(struct engine *e, struct work *w, struct err *err)
{
    return work_need_blob(w, w->task->velocity->input, "the points", err);
}

static int run(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__VelocityTask *t = w->task->velocity;
    struct velocity_points p = {0};
    struct kept *kept = NULL;
    struct encoder_prompts prompts = {0};
    struct work_output *o = NULL;
    char path[CACHE_PATH_MAX];
    progress_activity(&w->progress, "computing velocities for a sampler");
    work_blob_path(w, t->input->sha256.data, path);
    /* First, since the kept model may be in their way. */
    int rc = read_prompts(e, w, &prompts, err);
    if (rc == 0)
        rc = keep_model(e, w, &kept, err);
    const struct model_spec *spec = rc == 0 ? &kept->model->spec : NULL;
    if (rc == 0) {
        const struct velocity_sizes sizes = {spec->channels, spec->image, spec->upscaler.image,
                                             prompts.states ? prompts.captions.n - 1
                                                            : (int)w->task->n_classes};
        rc = velocity_read(path, &sizes, &p, err);
    }
    if (rc == 0)
        rc = compute(e, kept, &prompts, &p, err);
    encoder_prompts_release(&prompts);
    if (rc == 0)
        rc = work_output_new(w, WORK_RESULT, "velocities", &o, err);
    if (rc == 0)
        rc = velocity_write_result(o->path, p.x, p.rows, p.channels, p.image, o->sha256, &o->size,
                                   err);
    w->result.samples = (uint64_t)p.rows;
    velocity_points_release(&p);
    return rc;
}

const struct kind kind_velocity = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_VELOCITY,
    .name = "velocity",
    .part = offsetof(Skerry__V1__Task, velocity),
    .encoders = true,
    .modules = KIND_MODULES_NEEDED,
    .labels = true,
    .check = check,
    .plan = plan,
    .run = run,
};
