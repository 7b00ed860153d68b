/* OUTER: makes a module's next version of the contributions to it, by the coordinator's own code.
 * The coordinator judges: here each contribution is folded as it is, and the squares of its cells
 * give the coordinator its norm. */

#include <fcntl.h>
#include <unistd.h>

#include "common/base/base.h"
#include "common/base/file.h"
#include "common/outer/fold.h"
#include "common/outer/fold_check.h"
#include "worker/kinds/kinds.h"
#include "worker/order/task_check.h"
#include "worker/order/work.h"

#define CODEC_NAME_MAX 16

/* In the order in which the report names them. */
enum { FULL, DELTA, AVERAGE, TARGET, MOMENTUM, SQUARES, FILES };
static const char *const names[FILES] = {"full",   "delta",    "average",
                                         "target", "momentum", "squares"};

struct run {
    struct work *w;
    const Skerry__V1__OuterTask *t;
    struct fold_input inputs[FOLD_INPUTS_MAX];
    char *paths[4 + 2 * FOLD_INPUTS_MAX]; /* paths of the inputs */
    size_t n_paths;
    struct work_output *out[FILES];
    uint32_t chunks; /* chunks folded so far */
};

static int check_input(const Skerry__V1__OuterInput *in, uint64_t version, struct err *err)
{
    enum codec codec;
    int rc = task_check_text(in->codec, CODEC_NAME_MAX, "outer.inputs.codec", err);
    if (rc == 0 && codec_parse(in->codec, &codec) < 0)
        rc = err_set(err, -ERR_FORMAT, "task: outer.inputs.codec '%s' is not known", in->codec);
    if (rc == 0 && (!isfinite(in->weight) || in->weight <= 0 || in->from > version))
        rc = err_set(err, -ERR_FORMAT, "task: outer.inputs has weight %g from version %" PRIu64,
                     in->weight, in->from);
    if (rc == 0 && in->from < version && codec == CODEC_F32 && !in->from_full)
        rc = err_set(err, -ERR_FORMAT, "task: outer.inputs.from_full is missing");
    if (rc == 0)
        rc = task_check_blob(in->blob, "outer.inputs.blob", err);
    if (rc == 0 && in->from_full)
        rc = task_check_blob(in->from_full, "outer.inputs.from_full", err);
    return rc;
}

static int check(const Skerry__V1__Task *task, struct err *err)
{
    const Skerry__V1__OuterTask *t = task->outer;
    const Skerry__V1__Blob *const blobs[] = {t->full, t->average, t->target, t->momentum};
    static const char *const fields[] = {"outer.full", "outer.average", "outer.target",
                                         "outer.momentum"};
    enum codec down;
    int rc = task_check_count(t->n_inputs, FOLD_INPUTS_MAX, "outer.inputs", err);
    if (rc == 0)
        rc = task_check_text(t->down, CODEC_NAME_MAX, "outer.down", err);
    if (rc < 0)
        return rc;
    if (t->module_id == 0 || t->n_inputs == 0 || codec_parse(t->down, &down) < 0 ||
        !isfinite(t->keep_norm) || t->keep_norm < 0 ||
        (t->version > 0 && (!t->target || !t->momentum)))
        return err_set(err, -ERR_FORMAT,
                       "task: outer needs a module, inputs, a codec and, after version 0, a state");
    for (size_t i = 0; i < sizeof(blobs) / sizeof(blobs[0]) && rc == 0; i++)
        if (i == 0 || blobs[i])
            rc = task_check_blob(blobs[i], fields[i], err);
    for (size_t i = 0; i < t->n_inputs && rc == 0; i++)
        rc = check_input(t->inputs[i], t->version, err);
    return rc;
}

static int plan(struct engine *e, struct work *w, struct err *err)
{
    const Skerry__V1__OuterTask *t = w->task->outer;
    const Skerry__V1__Blob *const blobs[] = {t->full, t->average, t->target, t->momentum};
    int rc = 0;
    for (size_t i = 0; i < sizeof(blobs) / sizeof(blobs[0]) && rc == 0; i++)
        if (blobs[i])
            rc = work_need_blob(w, blobs[i], "the module to step", err);
    for (size_t i = 0; i < t->n_inputs && rc == 0; i++) {
        rc = work_need_blob(w, t->inputs[i]->blob, "a contribution", err);
        if (rc == 0 && t->inputs[i]->from_full)
            rc = work_need_blob(w, t->inputs[i]->from_full, "an older version", err);
    }
    return rc;
}

/* The path of a blob; NULL: there is none. */
static const char *path_of(struct run *r, const Skerry__V1__Blob *blob)
{
    char path[CACHE_PATH_MAX];
    if (!blob)
        return NULL;
    work_blob_path(r->w, blob->sha256.data, path);
    return r->paths[r->n_paths++] = str_dup(path);
}

static void take_inputs(struct run *r, const char *full)
{
    for (size_t i = 0; i < r->t->n_inputs; i++) {
        const Skerry__V1__OuterInput *in = r->t->inputs[i];
        r->inputs[i] = (struct fold_input){
            .path = path_of(r, in->blob),
            .weight = in->weight,
            .origin = {.from = in->from,
                       .from_full = in->from_full ? path_of(r, in->from_full) : full},
        };
        (void)codec_parse(in->codec, &r->inputs[i].origin.codec); /* checked */
    }
}

/* Is it a fault of a contribution?  Then the result has no outputs, and the coordinator finds it.
 */
static bool is_of_a_contribution(int rc)
{
    return rc == -ERR_FORMAT || rc == -ERR_STALE || rc == -ERR_LIMIT || rc == -ERR_VERSION ||
           rc == -ERANGE;
}

/* Fills in the norm of each contribution, and writes the squares of their cells to the file; those
 * of the mean will follow. */
static int measure(struct run *r, struct fold_cells *to, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < r->t->n_inputs && rc == 0; i++) {
        struct fold_norm norm;
        if (work_stopped(r->w, err))
            return -ERR_CANCELLED;
        rc = fold_check_cells(r->inputs[i].path, &r->inputs[i].origin, r->t->module_id, to->fd,
                              to->at, &norm, err);
        if (rc < 0)
            return rc;
        r->inputs[i].norm = norm.norm;
        to->at += norm.cells * sizeof(double);
        progress_units(&r->w->progress, (uint32_t)i + 1, (uint32_t)r->t->n_inputs + 1);
    }
    return rc;
}

/* Called before each chunk: a large module takes minutes, in which the coordinator must see
 * progress. */
static bool stopping(void *arg)
{
    struct run *r = arg;
    progress_units(&r->w->progress, r->chunks++, 0);
    return work_stopped(r->w, NULL);
}

static int fold(struct run *r, const char *full, const struct fold_cells *mean, struct err *err)
{
    const Skerry__V1__OuterTask *t = r->t;
    struct fold_result made;
    struct fold_step step = {
        .module_id = t->module_id,
        .base = t->version,
        .full = full,
        .ema = path_of(r, t->average),
        .target = path_of(r, t->target),
        .mom = path_of(r, t->momentum),
        .inputs = r->inputs,
        .n_inputs = t->n_inputs,
        .lr = t->lr,
        .momentum = t->outer_momentum,
        .scale = t->keep_norm > 0 ? t->keep_norm : 1,
        .keep_norm = t->keep_norm > 0,
        .mean = mean,
        .delay = 1,
        .ema_decay = t->ema_decay,
        .full_out = r->out[FULL]->path,
        .delta_out = r->out[DELTA]->path,
        .ema_out = r->out[AVERAGE]->path,
        .target_out = r->out[TARGET]->path,
        .mom_out = r->out[MOMENTUM]->path,
        .stop = stopping,
        .stop_arg = r,
    };
    (void)codec_parse(t->down, &step.down); /* checked */
    int rc = fold_run(&step, &made, err);
    if (rc < 0)
        return rc;
    const struct fold_file *const files[] = {[FULL] = &made.full,
                                             [DELTA] = &made.delta,
                                             [AVERAGE] = &made.ema,
                                             [TARGET] = &made.target,
                                             [MOMENTUM] = &made.mom};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        memcpy(r->out[i]->sha256, files[i]->sha256, 32);
        r->out[i]->size = files[i]->bytes;
    }
    work_row(r->w, made.delta_norm, "", "delta_norm");
    work_row(r->w, made.step_norm, "", "step_norm");
    work_row(r->w, made.residual_norm, "", "residual_norm");
    return 0;
}

static int measure_and_fold(struct run *r, const char *full, struct err *err)
{
    struct work_output *o = r->out[SQUARES];
    struct fold_cells cells = {.fd = open(o->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)};
    if (cells.fd < 0)
        return err_errno(err, "opening %s", o->path);
    int rc = measure(r, &cells, err);
    if (rc == 0)
        rc = fold(r, full, &cells, err);
    (void)close(cells.fd); /* it is hashed before it is used */
    return rc < 0 ? rc : hash_file(o->path, o->sha256, &o->size, err);
}

/* Keeps the initial state of the module's next step. */
static void keep(struct run *r)
{
    for (size_t i = FULL; i < SQUARES; i++)
        work_keep_output(r->w, r->out[i]);
    (void)cache_reserve(r->w->cache, 0, NULL); /* enforces the limit */
}

static int outputs_new(struct run *r, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < FILES && rc == 0; i++) {
        struct work_output *o = NULL;
        rc = work_output_new(r->w, WORK_CONTRIBUTION, names[i], &o, err);
        if (rc == 0)
            o->module_id = r->t->module_id;
    }
    for (size_t i = 0; i < FILES && rc == 0; i++) /* the list does not grow any more */
        r->out[i] = &r->w->result.outputs[i];
    return rc;
}

static int run(struct engine *e, struct work *w, struct err *err)
{
    struct run *r = mem_alloc(sizeof(*r));
    *r = (struct run){.w = w, .t = w->task->outer};
    const char *full = path_of(r, r->t->full);
    uint64_t bytes;
    if (file_size(full, &bytes, NULL) == 0) /* else folding fails, with a message */
        cache_make_room(w->cache, FILES * bytes);
    progress_activity(&w->progress, "folding contributions");
    take_inputs(r, full);
    int rc = outputs_new(r, err);
    if (rc == 0)
        rc = measure_and_fold(r, full, err);
    if (rc == 0)
        keep(r);
    if (is_of_a_contribution(rc)) {
        w->result.n_outputs = 0;
        w->result.text = str_dup(err->msg);
        rc = 0;
    }
    for (size_t i = 0; i < r->n_paths; i++)
        mem_free(r->paths[i]);
    mem_free(r);
    return rc;
}

const struct kind kind_outer = {
    .id = SKERRY__V1__TASK_KIND__TASK_KIND_OUTER,
    .name = "outer",
    .part = offsetof(Skerry__V1__Task, outer),
    .check = check,
    .plan = plan,
    .run = run,
};
