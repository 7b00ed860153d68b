/* SAMPLE: a grid of images drawn from a path's model or a mixture of paths, as a PNG. */
#include <errno.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/hash.h"
#include "common/data/image.h"
#include "common/base/mem.h"
#include "worker/net/dit_rows.h"
#include "worker/kinds/engine.h"
#include "worker/kinds/forward.h"
#include "worker/net/image_net.h"
#include "worker/kinds/mixture.h"
#include "worker/net/sample.h"
#include "worker/order/task_check.h"

/* Points of one evaluation, two for a sample with guidance: so many that swapping experts
 * pays, so few that a small device has room. */
#define SAMPLE_ROWS_MAX 128
#define GRID_GAP 1

static int on_progress(void *arg, unsigned done, unsigned total)
{
    struct work *w = arg;
    struct err ignored;
    progress_units(&w->progress, done, total);
    return work_stopped(w, &ignored);
}

static int run(struct work *w, const struct sample_source *src, uint8_t *images, struct err *err)
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
    return sample_run(src, &opt, labels, (int)t->n_labels, images, err);
}

static int draw_path(struct engine *e, struct work *w, int rows, uint8_t *images, struct err *err)
{
    struct forward f = {0};
    struct dit_rows dit = {0};
    int rc = forward_open(e, w, rows, &f, err);
    if (rc == 0)
        rc = dit_rows_open(&dit, net_dit(f.net), err);
    if (rc == 0) {
        const struct sample_source src = sample_of_dit(&dit);
        rc = run(w, &src, images, err);
    }
    dit_rows_close(&dit);
    forward_close(&f);
    return rc;
}

static int draw_mixture(struct engine *e, struct work *w, int rows, uint8_t *images,
                        struct err *err)
{
    char doing[64];
    snprintf(doing, sizeof doing, "drawing %zu samples", w->task->sample->n_labels);
    const struct mixture_options opt = {.rows = mixture_rows(w, rows), .doing = doing};
    struct mixture *m = NULL;
    int rc = mixture_open(e, w, &opt, &m, err);
    if (rc == 0) {
        const struct sample_source src = mixture_source(m);
        rc = run(w, &src, images, err);
    }
    mixture_close(m);
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
    uint64_t begun = clock_now_ns();
    progress_activity(&w->progress, "drawing %zu samples", n);
    uint8_t *images = mem_try_array(n, side * side * 3);
    int rows = 2 * n < SAMPLE_ROWS_MAX ? (int)(2 * n) : SAMPLE_ROWS_MAX;
    rows = rows < DIT_ROWS_MIN ? DIT_ROWS_MIN : rows;
    int rc = images ? 0 : err_set(err, -ENOMEM, "out of memory for %zu samples", n);
    if (rc == 0)
        rc = w->task->mixture ? draw_mixture(e, w, rows, images, err)
                              : draw_path(e, w, rows, images, err);
    if (rc == 0)
        rc = write_grid(w, images, err);
    w->result.samples = n;
    w->result.seconds = (float)(clock_now_ns() - begun) / 1e9f;
    mem_free(images);
    return rc;
}
