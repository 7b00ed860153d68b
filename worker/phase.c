/* TRAIN: a phase of inner steps from a module version to a contribution. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/base/str.h"
#include "common/outer/contribution.h"
#include "common/outer/layout.h"
#include "worker/engine.h"
#include "worker/replica.h"
#include "worker/residual.h"

/* A local checkpoint is written this often, but never for more than 2 % of the time. */
#define CHECKPOINT_EVERY_NS (10 * CLOCK_NS_PER_S)
#define CHECKPOINT_SHARE 50
#define STREAM_DATA 0x7068617365ULL
/* A phase bounded by time ends at a multiple of this many batches, so that the
 * samples it used are a prefix of its ranges. */
#define WINDOW_BATCHES 4

struct phase {
    struct engine *e;
    struct work *w;
    const Skerry__V1__TrainTask *t;
    struct replica *r;
    struct data *data;
    struct replica_cursor at;
    uint64_t window;
    uint64_t begun_ns; /* minus what ran before a cut */
    uint64_t saved_ns, save_cost_ns;
};

static int open_data(struct phase *p, struct err *err)
{
    const struct job_spec *spec = &p->w->spec;
    struct data_range *ranges = NULL;
    int rc = work_ranges(p->w, p->t->ranges, p->t->n_ranges, &ranges, err);
    if (rc < 0)
        return rc;
    p->window = p->t->seconds ? (uint64_t)WINDOW_BATCHES * (uint64_t)spec->train.batch : 0;
    struct data_options opt = {
        .image_size = (unsigned)spec->data.image_size,
        .batch = (unsigned)spec->train.batch,
        .threads = p->e->opt.decode_threads,
        .classes = (unsigned)p->w->task->n_classes,
        .flip = spec->data.flip,
        .shuffle = true,
        .repeat = p->t->steps > 0, /* bad images are made up for, so that all steps are done */
        .seed = rng_mix(rng_mix(spec->seed, STREAM_DATA),
                        rng_mix(rng_mix(p->t->path, p->t->replica), p->t->first_step)),
        .window = (uint32_t)p->window,
        .cache = p->e->images,
    };
    rc = data_open(&opt, ranges, p->t->n_ranges, &p->data, err);
    mem_free(ranges);
    if (rc == 0 && p->at.position > 0)
        rc = data_seek(p->data, p->at.position, err);
    return rc;
}

static int load_weights(struct phase *p, struct err *err)
{
    const Skerry__V1__Task *task = p->w->task;
    for (size_t i = 0; i < task->n_modules; i++) {
        char path[CACHE_PATH_MAX];
        work_blob_path(p->w, task->modules[i]->sha256.data, path);
        int rc = model_load(p->r->model, (int)task->modules[i]->level, path, p->r->flat, err);
        if (rc < 0)
            return rc;
    }
    return trainer_set(p->r->trainer, p->r->flat, err);
}

static double seconds_so_far(const struct phase *p)
{
    return (double)(clock_now_ns() - p->begun_ns) / 1e9;
}

static void save_mid(struct phase *p)
{
    struct err err = {0};
    uint64_t begun = clock_now_ns();
    p->at.seconds = seconds_so_far(p);
    if (p->at.steps > 0 && replica_save_mid(p->e->replicas, p->r, p->w, &p->at, &err) < 0)
        log_warn("phase", "no local checkpoint: %s", err.msg);
    p->saved_ns = clock_now_ns();
    p->save_cost_ns = p->saved_ns - begun;
}

static bool save_is_due(const struct phase *p)
{
    uint64_t since = clock_now_ns() - p->saved_ns;
    return since > CHECKPOINT_EVERY_NS && since > CHECKPOINT_SHARE * p->save_cost_ns;
}

static void note_step(struct phase *p, const struct step_result *s, const struct batch *b)
{
    if (!p->e->stepped) {
        p->e->stepped = true;
        log_info("phase", "first step after %.2f s",
                 (double)(clock_now_ns() - p->e->opt.started_ns) / 1e9);
    }
    if (p->at.steps == 0)
        p->at.loss_first = (float)s->loss;
    p->at.loss_last = (float)s->loss;
    p->at.loss_sum += s->loss;
    p->at.steps++;
    p->at.samples += b->count;
    p->at.position = data_position(p->data);
    struct progress_point point = {s->step, (float)s->loss, (float)s->lr};
    progress_step(&p->w->progress, &point, (float)s->grad_norm, p->at.samples);
}

/* Are the phase's steps or seconds over? */
static bool over(const struct phase *p, uint64_t position_before)
{
    if (p->t->steps)
        return p->at.steps >= p->t->steps;
    if (p->at.position >= data_total(p->data))
        return true;
    bool boundary = p->at.position / p->window != position_before / p->window;
    return boundary && seconds_so_far(p) >= (double)p->t->seconds;
}

static int train(struct phase *p, struct err *err)
{
    p->begun_ns = clock_now_ns() - (uint64_t)(p->at.seconds * 1e9);
    p->saved_ns = clock_now_ns();
    while (!p->t->steps || p->at.steps < p->t->steps) {
        if (work_stopped(p->w, err)) {
            if (atomic_load(&p->w->stop) == WORK_LEAVING)
                save_mid(p);
            return -ERR_CANCELLED;
        }
        struct batch b;
        struct step_result s;
        uint64_t before = p->at.position;
        int rc = data_next(p->data, &b, err);
        if (rc < 0)
            return rc;
        if (b.count == 0)
            break; /* bounded by time, and the samples are used up */
        rc = trainer_step(p->r->trainer, b.images, b.labels, b.count, &s, err);
        if (rc < 0)
            return err_wrap(err, "step %" PRIu64, trainer_next_step(p->r->trainer));
        note_step(p, &s, &b);
        if (over(p, before))
            break;
        if (save_is_due(p))
            save_mid(p);
    }
    if (p->at.steps == 0)
        return err_set(err, -ERR_FORMAT, "no sample of the phase can be read");
    return 0;
}

/* theta_end, out of the replica's flat vector. */
static int read_end(void *arg, const struct layout *layout, size_t t, uint64_t first, size_t n,
                    float *out, struct err *err)
{
    const struct replica *r = arg;
    const char *name = layout->st.tensors[t].name;
    const struct model_tensor *tensor = model_find(r->model, name);
    if (!tensor || first > tensor->count || n > tensor->count - first)
        return err_set(err, -ERR_FORMAT, "the model has no tensor %s of this size", name);
    memcpy(out, r->flat + tensor->offset + first, n * sizeof(*out));
    return 0;
}

static int contribute(struct phase *p, const Skerry__V1__ModuleRef *ref, struct err *err)
{
    const Skerry__V1__Task *task = p->w->task;
    char base[CACHE_PATH_MAX], current[CACHE_PATH_MAX], pending[CACHE_PATH_MAX], name[64];
    struct residual_key key = {task->job_id, ref->module_id, p->t->path, p->t->replica};
    int rc = residual_prepare(p->e->state_dir, &key, task->id, current, pending, err);
    struct work_output *o = rc == 0 ? work_output(p->w) : NULL;
    if (!o)
        return rc < 0 ? rc : err_set(err, -ENOMEM, "out of memory");
    snprintf(name, sizeof(name), "contribution-%" PRIu64, ref->module_id);
    work_temp_path(p->w, name, o->path);
    work_blob_path(p->w, ref->sha256.data, base);
    struct contribution_job job = {
        .base_path = base,
        .read = read_end,
        .read_arg = p->r,
        .codec = (enum codec)p->w->spec.wire.up,
        .module_id = ref->module_id,
        .base = ref->version,
        .samples = p->at.samples,
        .residual_path = current,
        .residual_pending = pending,
        .out_path = o->path,
    };
    struct contribution_result result;
    rc = contribution_write(&job, &result, err);
    if (rc == -ERR_FORMAT && file_exists(current) && file_remove(current, NULL) == 0) {
        log_warn("phase", "%s; once more without the residual of earlier rounds", err->msg);
        rc = contribution_write(&job, &result, err);
    }
    if (rc < 0)
        return err_wrap(err, "the contribution to module %" PRIu64, ref->module_id);
    memcpy(o->sha256, result.sha256, 32);
    o->size = result.bytes;
    o->module_id = ref->module_id;
    o->base_version = ref->version;
    return 0;
}

static int finish(struct phase *p, struct err *err)
{
    struct work_result *res = &p->w->result;
    res->seconds = (float)seconds_so_far(p);
    res->steps = p->at.steps;
    res->samples = p->t->steps ? p->at.samples : p->at.position;
    if (res->samples > data_total(p->data)) /* fewer than a batch: some were used twice */
        res->samples = data_total(p->data);
    res->loss_first = p->at.loss_first;
    res->loss_last = p->at.loss_last;
    res->loss_mean = (float)(p->at.loss_sum / p->at.steps);
    work_take_bad(p->w, p->data);
    progress_activity(&p->w->progress, "encoding the contribution");
    int rc = trainer_get(p->r->trainer, p->r->flat, err);
    for (size_t i = 0; rc == 0 && i < p->w->task->n_modules; i++)
        rc = contribute(p, p->w->task->modules[i], err);
    if (rc == 0)
        p->r->whole = true;
    return rc;
}

int phase_run(struct engine *e, struct work *w, struct err *err)
{
    struct phase p = {.e = e, .w = w, .t = w->task->train};
    bool resumed;
    progress_total(&w->progress, p.t->steps);
    progress_activity(&w->progress, "loading the model");
    int rc = replica_get(e->replicas, w, &p.r, &resumed, &p.at, err);
    if (rc == 0 && !resumed)
        rc = load_weights(&p, err);
    if (rc == 0)
        rc = open_data(&p, err);
    if (rc == 0) {
        progress_activity(&w->progress, "training");
        if (resumed)
            log_info("phase", "going on at step %u of a phase that was cut task=%" PRIu64,
                     p.at.steps, w->task->id);
        rc = train(&p, err);
    }
    if (rc == 0)
        rc = finish(&p, err);
    data_free(p.data);
    return rc;
}
