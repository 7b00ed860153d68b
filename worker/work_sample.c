/* SAMPLE: a grid of images drawn from a path's model, as a PNG. */
#include <errno.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/hash.h"
#include "common/base/image.h"
#include "common/base/mem.h"
#include "worker/engine.h"
#include "worker/forward.h"
#include "worker/sample.h"
#include "worker/task_check.h"

#define SAMPLE_BATCH_MAX 64
#define GRID_GAP 1

static int on_progress(void *arg, unsigned done, unsigned total)
{
    struct work *w = arg;
    struct err ignored;
    progress_units(&w->progress, done, total);
    return work_stopped(w, &ignored);
}

static int draw(struct work *w, struct forward *f, uint8_t *images, struct err *err)
{
    const Skerry__V1__SampleTask *t = w->task->sample;
    struct sample_options opt = {.steps = (int)t->steps,
                                 .heun = t->heun,
                                 .guidance = t->guidance,
                                 .seed = t->seed,
                                 .progress = on_progress,
                                 .arg = w};
    int32_t labels[TASK_LABELS_MAX];
    for (size_t i = 0; i < t->n_labels; i++)
        labels[i] = (int32_t)t->labels[i];
    struct sample_dit dit;
    struct sample_source src;
    int rc = sample_dit_open(&dit, f->dit, &src, err);
    if (rc == 0)
        rc = sample_run(&src, &opt, labels, (int)t->n_labels, images, err);
    sample_dit_close(&dit);
    return rc;
}

static int write_grid(struct work *w, const uint8_t *images, struct err *err)
{
    const Skerry__V1__SampleTask *t = w->task->sample;
    int n = (int)t->n_labels, columns = t->columns ? (int)t->columns : 8, width, height;
    if (columns > n)
        columns = n;
    uint8_t *rgb;
    int rc = image_grid(images, n, w->spec.data.image_size, columns, GRID_GAP, &rgb, &width,
                        &height, err);
    if (rc < 0)
        return rc;
    struct work_output *o = work_output(w);
    if (!o) {
        rc = err_set(err, -ENOMEM, "out of memory");
    } else {
        work_temp_path(w, "samples.png", o->path);
        rc = image_write_png(o->path, rgb, width, height, err);
        if (rc == 0)
            rc = hash_file(o->path, o->sha256, &o->size, err);
    }
    mem_free(rgb);
    return rc;
}

int work_sample_run(struct engine *e, struct work *w, struct err *err)
{
    size_t n = w->task->sample->n_labels;
    size_t side = (size_t)w->spec.data.image_size;
    struct forward f = {0};
    uint64_t begun = clock_now_ns();
    progress_activity(&w->progress, "drawing %zu samples", n);
    uint8_t *images = mem_try_array(n, side * side * 3);
    int batch = 2 * n < SAMPLE_BATCH_MAX ? (int)(2 * n) : SAMPLE_BATCH_MAX;
    int rc = images ? forward_open(e, w, batch, &f, err)
                    : err_set(err, -ENOMEM, "out of memory for %zu samples", n);
    if (rc == 0)
        rc = draw(w, &f, images, err);
    if (rc == 0)
        rc = write_grid(w, images, err);
    w->result.samples = n;
    w->result.seconds = (float)(clock_now_ns() - begun) / 1e9f;
    forward_close(&f);
    mem_free(images);
    return rc;
}
