/* Functions with which parts plan and run. */
#include "worker/frozen/frozen_impl.h"

struct frozen_layer *frozen_layer_add(struct frozen *f, frozen_layer_fn *run)
{
    struct frozen_layer *l = &f->layers[f->n_layers++];
    l->run = run;
    l->at = f->all;
    return l;
}

void frozen_weight(struct frozen *f, void *target, frozen_make_fn *make,
                   const struct component_tensor *t, uint64_t count, enum dtype dt)
{
    if (f->n_loads == f->loads_cap) {
        f->loads_cap = f->loads_cap ? 2 * f->loads_cap : 256;
        f->loads = mem_realloc(f->loads, f->loads_cap * sizeof *f->loads);
    }
    const uint64_t bytes = count * dtype_bytes(dt);
    const uint64_t span = (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    const int layer = f->n_layers - 1;
    f->loads[f->n_loads++] = (struct frozen_load){.make = make,
                                                  .t = t,
                                                  .target = target,
                                                  .at = f->all,
                                                  .count = count,
                                                  .dt = dt,
                                                  .layer = layer};
    f->layers[layer < 0 ? 0 : layer].bytes += bytes;
    if (layer < 0)
        f->common += span;
    else
        f->layers[layer].span += span;
    f->all += span;
}

const struct component_tensor *frozen_tensor(const struct frozen *f, const char *prefix,
                                             const char *leaf)
{
    char name[ST_NAME_MAX];
    (void)snprintf(name, sizeof name, "%s%s", prefix, leaf);
    return component_find(f->c, name);
}

int frozen_as_is(const struct frozen *f, const struct frozen_load *l, float *out, struct err *err)
{
    return component_read(f->c, l->t, out, err);
}

void frozen_add_norm(struct frozen *f, struct frozen_norm *n, const char *prefix, bool bias)
{
    const struct component_tensor *t = frozen_tensor(f, prefix, ".weight");
    frozen_weight(f, &n->w, frozen_as_is, t, t->count, DT_F32);
    if (bias)
        frozen_weight(f, &n->b, frozen_as_is, frozen_tensor(f, prefix, ".bias"), t->count, DT_F32);
}

void frozen_need(struct frozen *f, int i, uint64_t bytes)
{
    bytes *= (uint64_t)f->opt.group;
    f->buffers[i] = bytes > f->buffers[i] ? bytes : f->buffers[i];
}

/* ---- running ---- */

void frozen_cast(struct frozen_pass *p, void *dst, enum dtype dst_dt, const void *src,
                 enum dtype src_dt, int64_t n)
{
    struct device *dev = p->f->dev;
    if (dst != src || dst_dt != src_dt)
        frozen_note(p, dev->ops->cast(dev, dst, dst_dt, src, src_dt, n, p->s), "cast");
}
