#include "worker/engine/forward.h"

#include "worker/engine/encoders.h"
#include "worker/engine/engine.h"
#include "common/base/log.h"
#include "worker/net/net_parts.h"
#include "worker/order/task_model.h"
#include "worker/train/island.h"
#include "worker/train/plan.h"
#include "worker/train/train.h"

/* Bytes on the first device, beside the frozen networks that are there.  draws: they are to decode
 * what the network makes. */
static uint64_t bytes_of(const struct model *m, const struct net_options *opt, enum dtype dt,
                         const struct encoders *encoders, bool draws)
{
    return net_bytes(m, opt, dt) - encoders_there(encoders) +
           (draws ? encoders_missing(encoders, FROZEN_DECODE) : 0);
}

/* encoders NULL: the job has none. */
static int make(struct engine *e, const struct model *m, struct encoders *encoders, bool draws,
                struct net_options *opt, struct net **ret, struct err *err)
{
    const int n = island_size(e->island);
    struct plan_room room;
    opt->encoders = encoders ? encoders->tables : NULL;
    const enum dtype dt = net_dtype(e->dev, opt->precision);
    uint64_t need = bytes_of(m, opt, dt, encoders, draws);
    engine_room(e, need);
    plan_room(&e->dev, 1, &room);
    if (need > plan_room_bytes(&room) && encoders_can_stream(encoders)) {
        encoders_stream(encoders, true);
        need = bytes_of(m, opt, dt, encoders, draws);
        plan_room(&e->dev, 1, &room);
        log_info("forward", "the weights of the frozen encoders stay in the host's memory");
    }
    if (n == 1 || need <= plan_room_bytes(&room) || !net_has_parts(m, opt) ||
        m->spec.self_condition || model_has_upscaler(&m->spec))
        return net_new(e->dev, m, opt, ret, err);
    log_info("forward", "the model does not fit %s: its blocks lie on %d devices", e->dev->name, n);
    return net_parts_new(island_devices(e->island), n, m, opt, ret, err);
}

int forward_open_modules(struct engine *e, struct work *w, Skerry__V1__Network network,
                         Skerry__V1__ModuleRef *const *refs, size_t n_refs, int batch,
                         struct forward *ret, struct err *err)
{
    struct forward f = {0};
    struct encoders *encoders = NULL;
    float *flat = NULL;
    int rc = encoders_get(e, w, &encoders, err);
    if (rc == 0)
        rc = task_model(w, network, &f.model, err);
    if (rc == 0 && !(flat = model_flat_new(f.model)))
        rc = err_set(err, -ENOMEM, "out of memory for %" PRIu64 " parameters", f.model->params);
    if (rc == 0)
        rc = task_load(w, f.model, refs, n_refs, flat, err);
    struct train_options train;
    train_options_from_job(&w->spec, network == SKERRY__V1__NETWORK__NETWORK_ROUTER, 0, 0, &train);
    struct net_options opt = {.mode = NET_FORWARD,
                              .precision = train.precision,
                              .batch = batch,
                              .uniform_t = train.uniform_t,
                              .shift = train.shift};
    if (rc == 0)
        rc = make(e, f.model, encoders, w->task->sample != NULL, &opt, &f.net, err);
    if (rc == 0)
        rc = net_set(f.net, flat, err);
    mem_free(flat);
    if (rc < 0) {
        forward_close(&f);
        return rc;
    }
    *ret = f;
    return 0;
}

int forward_open(struct engine *e, struct work *w, int batch, struct forward *ret, struct err *err)
{
    const Skerry__V1__Task *t = w->task;
    return forward_open_modules(e, w, t->network, t->modules, t->n_modules, batch, ret, err);
}

void forward_close(struct forward *f)
{
    net_free(f->net);
    model_free(f->model);
    *f = (struct forward){0};
}
