#include "worker/engine/task_experts.h"

#include "worker/engine/engine.h"
#include "worker/order/task_model.h"
#include "worker/train/train.h"

static int load_files(void *arg, int expert, float *flat, struct err *err)
{
    const struct task_experts *t = arg;
    const Skerry__V1__Expert *e = t->by_partition[expert];
    int rc = task_load(t->w, t->model, e->modules, e->n_modules, flat, err);
    return rc < 0 ? err_wrap(err, "expert %d (path %" PRIu32 ")", expert, e->path) : 0;
}

static int tell(void *arg, int expert, struct err *err)
{
    struct task_experts *t = arg;
    if (work_stopped(t->w, err))
        return -ERR_CANCELLED;
    if (t->doing)
        progress_activity(&t->w->progress, "%s: expert %d of %d", t->doing, expert + 1, t->count);
    return 0;
}

int task_experts_order(struct task_experts *t, struct work *w, Skerry__V1__Expert *const *list,
                       size_t n, struct err *err)
{
    *t = (struct task_experts){.w = w, .count = (int)n};
    if (n < 1 || n > MIX_EXPERTS_MAX)
        return err_set(err, -ERR_LIMIT, "task: %zu experts, expected 1 to %d", n, MIX_EXPERTS_MAX);
    for (size_t i = 0; i < n; i++) {
        const uint32_t p = list[i]->partition;
        if (p >= n || t->by_partition[p])
            return err_set(err, -ERR_FORMAT,
                           "task: expert %zu is of partition %" PRIu32
                           ", expected one expert for each of %zu partitions",
                           i, p, n);
        t->by_partition[p] = list[i];
    }
    return task_model(w, SKERRY__V1__NETWORK__NETWORK_MAIN, &t->model, err);
}

int task_experts_open(struct task_experts *t, struct engine *e, struct device *dev, int batch,
                      uint64_t memory_bytes, struct err *err)
{
    struct train_options train;
    train_options_from_job(&t->w->spec, false, 0, 0, &train);
    struct experts_options opt = {
        .count = t->count,
        .batch = batch,
        .precision = train.precision,
        .memory_bytes = memory_bytes ? memory_bytes : e->opt.memory_bytes / 2,
        .arg = t,
        .load = load_files,
        .begin = t->silent ? NULL : tell,
    };
    return experts_new(dev, t->model, &opt, &t->experts, err);
}

void task_experts_close(struct task_experts *t)
{
    experts_free(t->experts);
    model_free(t->model);
    *t = (struct task_experts){0};
}
