#include "worker/forward.h"

#include <errno.h>
#include <inttypes.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/engine.h"
#include "worker/task_model.h"
#include "worker/train.h"

int forward_open(struct engine *e, const struct work *w, int batch, struct forward *ret,
                 struct err *err)
{
    const Skerry__V1__Task *t = w->task;
    struct forward f = {0};
    float *flat = NULL;
    int rc = task_model(w, t->network, &f.model, err);
    if (rc == 0 && !(flat = model_flat_new(f.model)))
        rc = err_set(err, -ENOMEM, "out of memory for %" PRIu64 " parameters", f.model->params);
    if (rc == 0)
        rc = task_load(w, f.model, t->modules, t->n_modules, flat, err);
    struct train_options train;
    train_options_from_job(&w->spec, 0, &train);
    struct dit_options opt = {.mode = DIT_FORWARD, .precision = train.precision, .batch = batch};
    if (rc == 0)
        rc = dit_new(e->dev, f.model, &opt, &f.dit, err);
    if (rc == 0)
        rc = dit_set(f.dit, flat, err);
    mem_free(flat);
    if (rc < 0) {
        forward_close(&f);
        return rc;
    }
    *ret = f;
    return 0;
}

void forward_close(struct forward *f)
{
    dit_free(f->dit);
    model_free(f->model);
    *f = (struct forward){0};
}
