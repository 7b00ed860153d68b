#include "worker/net/dit_rows.h"

#include "common/base/err.h"
#include "common/base/mem.h"
#include "worker/net/dit.h"

static void plan(struct dit_rows *r, const struct model_spec *spec, int rows)
{
    const uint64_t batch = (uint64_t)rows;
    r->in = (int64_t)model_image_values(spec);
    r->out = spec->kind == MODEL_ROUTER ? spec->classes : r->in;
    arena_add(&r->arena, &r->d_t, batch * sizeof *r->d_t);
    arena_add(&r->arena, &r->d_labels, batch * sizeof *r->d_labels);
    arena_add(&r->arena, &r->x, DIT_ROWS_MIN * (uint64_t)r->in * sizeof *r->x);
    arena_add(&r->arena, &r->v, DIT_ROWS_MIN * (uint64_t)r->out * sizeof *r->v);
}

uint64_t dit_rows_bytes(const struct model *m, int batch)
{
    struct dit_rows r = {0};
    plan(&r, &m->spec, batch);
    const uint64_t bytes = arena_bytes(&r.arena);
    mem_free(r.arena.slots);
    return bytes;
}

int dit_rows_open(struct dit_rows *r, struct dit *d, struct err *err)
{
    *r = (struct dit_rows){.dit = d};
    plan(r, &dit_model(d)->spec, dit_batch(d));
    return arena_alloc(&r->arena, dit_device(d), err);
}

void dit_rows_close(struct dit_rows *r)
{
    if (r->dit)
        arena_free(&r->arena, dit_device(r->dit));
    *r = (struct dit_rows){0};
}

static int failed(const struct dit_rows *r, int rc, struct err *err)
{
    const struct device *dev = dit_device(r->dit);
    return err_set(err, rc, "%d rows cannot be run on %s: %s", dit_batch(r->dit), dev->name,
                   err_text(rc));
}

static int run_batch(struct dit_rows *r, float *v, const float *x, const float *t,
                     const int32_t *labels, int B, struct err *err)
{
    struct device *dev = dit_device(r->dit);
    struct stream *s = dit_stream(r->dit);
    int rc = dev->ops->copy(dev, r->d_t, t, (size_t)B * sizeof *t, COPY_TO_DEVICE, s);
    if (rc == 0 && labels)
        rc =
            dev->ops->copy(dev, r->d_labels, labels, (size_t)B * sizeof *labels, COPY_TO_DEVICE, s);
    if (rc < 0)
        return failed(r, rc, err);
    rc = dit_forward(r->dit, v, x, r->d_t, labels ? r->d_labels : NULL, B, err);
    return rc < 0 ? rc : dit_sync(r->dit, err);
}

/* Fewer than DIT_ROWS_MIN rows: the first one fills up. */
static int run_few(struct dit_rows *r, float *v, const float *x, const float *t,
                   const int32_t *labels, int B, struct err *err)
{
    struct device *dev = dit_device(r->dit);
    struct stream *s = dit_stream(r->dit);
    int rc = 0;
    for (int i = 0; i < DIT_ROWS_MIN && rc == 0; i++) {
        const int from = i < B ? i : 0;
        r->t[i] = t[from];
        r->labels[i] = labels ? labels[from] : 0;
        rc = dev->ops->copy(dev, r->x + i * r->in, x + from * r->in, (size_t)r->in * sizeof *x,
                            COPY_DEVICE, s);
    }
    if (rc < 0)
        return failed(r, rc, err);
    rc = run_batch(r, r->v, r->x, r->t, labels ? r->labels : NULL, DIT_ROWS_MIN, err);
    if (rc < 0)
        return rc;
    rc = dev->ops->copy(dev, v, r->v, (size_t)(B * r->out) * sizeof *v, COPY_DEVICE, s);
    return rc < 0 ? failed(r, rc, err) : dit_sync(r->dit, err);
}

int dit_rows_run(struct dit_rows *r, float *v, const float *x, const float *t,
                 const int32_t *labels, int rows, struct err *err)
{
    const int batch = dit_batch(r->dit);
    int rc = 0;
    for (int at = 0; at < rows && rc == 0; at += batch) {
        const int B = rows - at < batch ? rows - at : batch;
        const int32_t *y = labels ? labels + at : NULL;
        if (B < DIT_ROWS_MIN && batch >= DIT_ROWS_MIN)
            rc = run_few(r, v + at * r->out, x + at * r->in, t + at, y, B, err);
        else
            rc = run_batch(r, v + at * r->out, x + at * r->in, t + at, y, B, err);
    }
    return rc;
}
