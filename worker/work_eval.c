/* EVAL: the held-out loss of a path on fixed (t, noise). */
#include <errno.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "worker/data.h"
#include "worker/engine.h"
#include "worker/eval.h"
#include "worker/forward.h"

#define EVAL_BATCH 64
#define STREAM_EVAL 0x6576616cULL

static int open_data(struct engine *e, struct work *w, struct data **ret, struct err *err)
{
    const Skerry__V1__EvalTask *t = w->task->eval;
    struct data_range *ranges = NULL;
    int rc = work_ranges(w, t->ranges, t->n_ranges, &ranges, err);
    if (rc < 0)
        return rc;
    struct data_options opt = {
        .image_size = (unsigned)w->spec.data.image_size,
        .batch = EVAL_BATCH,
        .threads = e->opt.decode_threads,
        .classes = (unsigned)w->task->n_classes,
        .cache = e->images,
    };
    rc = data_open(&opt, ranges, t->n_ranges, ret, err);
    mem_free(ranges);
    return rc;
}

static int measure(struct work *w, struct data *data, struct eval *ev, struct err *err)
{
    uint64_t limit = w->task->eval->samples ? w->task->eval->samples : data_total(data);
    uint64_t n = 0;
    double sum = 0;
    float losses[EVAL_BATCH];
    while (n < limit) {
        struct batch b;
        if (work_stopped(w, err))
            return -ERR_CANCELLED;
        int rc = data_next(data, &b, err);
        if (rc < 0)
            return rc;
        if (b.count == 0)
            break;
        if (b.count > limit - n)
            b.count = (unsigned)(limit - n);
        if ((rc = eval_batch(ev, b.images, b.labels, b.ids, b.count, losses, err)) < 0)
            return rc;
        for (unsigned i = 0; i < b.count; i++)
            sum += (double)losses[i];
        n += b.count;
        progress_units(&w->progress, (uint32_t)n,
                       (uint32_t)(limit < data_total(data) ? limit : data_total(data)));
    }
    if (n == 0)
        return err_set(err, -ERR_FORMAT, "no held-out sample can be read");
    w->result.samples = n;
    w->result.loss_mean = (float)(sum / (double)n);
    return 0;
}

int work_eval_run(struct engine *e, struct work *w, struct err *err)
{
    struct forward f = {0};
    struct data *data = NULL;
    struct eval *ev = NULL;
    struct eval_options opt = {.seed = rng_mix(w->spec.seed, STREAM_EVAL),
                               .uniform_t = w->spec.train.t == JOB_T_UNIFORM};
    uint64_t begun = clock_now_ns();
    progress_activity(&w->progress, "evaluating");
    int rc = forward_open(e, w, EVAL_BATCH, &f, err);
    if (rc == 0)
        rc = open_data(e, w, &data, err);
    if (rc == 0)
        rc = eval_new(f.dit, &opt, &ev, err);
    if (rc == 0)
        rc = measure(w, data, ev, err);
    if (data)
        work_take_bad(w, data);
    w->result.seconds = (float)(clock_now_ns() - begun) / 1e9f;
    eval_free(ev);
    data_free(data);
    forward_close(&f);
    return rc;
}
