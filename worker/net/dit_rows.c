#include "worker/net/dit_rows.h"

#include "worker/net/image_net.h"
#include "worker/net/net_parts.h"

static size_t caption_bytes(const struct model_spec *spec, enum dtype dt)
{
    return (size_t)spec->caption_tokens * (size_t)spec->caption * dtype_bytes(dt);
}

static void take_shape(struct dit_rows *r, const struct model_spec *spec, int shape)
{
    r->shape = shape;
    r->in = model_shape_values(spec, shape);
    r->out = spec->kind == MODEL_ROUTER ? spec->classes : r->in;
}

static void plan_rows(struct dit_rows *r, const struct model_spec *spec, int rows, enum dtype dt)
{
    const uint64_t batch = (uint64_t)rows;
    take_shape(r, spec, 0);
    arena_add(&r->arena, &r->d_t, batch * sizeof *r->d_t);
    arena_add(&r->arena, &r->d_labels, batch * sizeof *r->d_labels);
    if (model_captioned(spec))
        arena_add(&r->arena, &r->states, batch * caption_bytes(spec, dt));
    arena_add(&r->arena, &r->x, DIT_ROWS_MIN * (uint64_t)r->in * sizeof *r->x);
    if (spec->self_condition)
        arena_add(&r->arena, &r->estimate, DIT_ROWS_MIN * (uint64_t)r->in * sizeof *r->estimate);
    arena_add(&r->arena, &r->v, DIT_ROWS_MIN * (uint64_t)r->out * sizeof *r->v);
}

uint64_t dit_rows_bytes(const struct model *m, int batch, enum dtype dt)
{
    struct dit_rows r = {0};
    plan_rows(&r, &m->spec, batch, dt);
    return arena_measure(&r.arena);
}

int dit_rows_open(struct dit_rows *r, struct dit *d, struct err *err)
{
    *r = (struct dit_rows){.dit = d};
    const struct weights *w = dit_weights(d);
    plan_rows(r, &w->m->spec, dit_batch(d), w->dt);
    r->lengths = mem_try_array((size_t)dit_batch(d), sizeof *r->lengths);
    if (!r->lengths)
        return err_set(err, -ENOMEM, "no memory for %d rows", dit_batch(d));
    return arena_alloc(&r->arena, w->dev, err);
}

int dit_rows_open_net(struct dit_rows *r, struct net *net, struct err *err)
{
    struct net *first = net_parts_first(net);
    int rc = dit_rows_open(r, net_dit(first ? first : net), err);
    r->parts = first ? net : NULL;
    return rc;
}

void dit_rows_close(struct dit_rows *r)
{
    if (r->dit)
        arena_free(&r->arena, dit_weights(r->dit)->dev);
    mem_free(r->lengths);
    *r = (struct dit_rows){0};
}

static int failed(const struct dit_rows *r, int rc, struct err *err)
{
    const struct device *dev = dit_weights(r->dit)->dev;
    return err_set(err, rc, "%d rows cannot be run on %s: %s", dit_batch(r->dit), dev->name,
                   err_text(rc));
}

void dit_rows_captions(struct dit_rows *r, const struct net_captions *captions)
{
    r->captions = *captions;
}

void dit_rows_shape(struct dit_rows *r, int shape)
{
    take_shape(r, &dit_weights(r->dit)->m->spec, shape);
}

int32_t dit_rows_null(const struct dit_rows *r)
{
    const struct model_spec *spec = &dit_weights(r->dit)->m->spec;
    return model_captioned(spec) ? r->captions.n - 1 : spec->classes;
}

/* Gathers the rows' captions densely, neighbours in one copy, and their lengths on the host. */
static int gather(struct dit_rows *r, const int32_t *labels, int B, struct err *err)
{
    const struct weights *w = dit_weights(r->dit);
    const struct net_captions *c = &r->captions;
    const size_t bytes = caption_bytes(&w->m->spec, w->dt);
    for (int i = 0; i < B; i++) {
        if (labels[i] < 0 || labels[i] >= c->n)
            return err_set(err, -EINVAL, "row %d asks for caption %d of %d", i, (int)labels[i],
                           c->n);
        r->lengths[i] = c->lengths[labels[i]];
    }
    int rc = 0;
    for (int at = 0, run; at < B && rc == 0; at += run) {
        for (run = 1; at + run < B && labels[at + run] == labels[at] + run;)
            run++;
        rc = w->ops->copy(w->dev, (char *)r->states + (size_t)at * bytes,
                          (const char *)c->states + (size_t)labels[at] * bytes, (size_t)run * bytes,
                          COPY_DEVICE, w->stream);
    }
    return rc < 0 ? failed(r, rc, err) : 0;
}

static int run_batch(struct dit_rows *r, float *v, const struct dit_rows_in *in, int B,
                     struct err *err)
{
    struct device *dev = dit_weights(r->dit)->dev;
    struct stream *s = dit_weights(r->dit)->stream;
    const bool captioned = model_captioned(&dit_weights(r->dit)->m->spec);
    const int32_t *from = captioned ? r->lengths : in->labels;
    int rc = captioned ? gather(r, in->labels, B, err) : 0;
    if (rc < 0)
        return rc;
    rc = dev->ops->copy(dev, r->d_t, in->t, (size_t)B * sizeof *in->t, COPY_TO_DEVICE, s);
    if (rc == 0 && from)
        rc = dev->ops->copy(dev, r->d_labels, from, (size_t)B * sizeof *from, COPY_TO_DEVICE, s);
    if (rc < 0)
        return failed(r, rc, err);
    const struct dit_io io = {.B = B,
                              .shape = r->shape,
                              .x = in->x,
                              .estimate = in->estimate,
                              .t = r->d_t,
                              .labels = in->labels && !captioned ? r->d_labels : NULL,
                              .states = r->states,
                              .lengths = captioned ? r->d_labels : NULL,
                              .pred = v};
    if (r->parts)
        return net_parts_velocity(r->parts, &io, err);
    rc = dit_forward(r->dit, NULL, 0, &io, err);
    return rc < 0 ? rc : weights_sync(dit_weights(r->dit), err);
}

/* Copies row `from` of x to row `to` of out. */
static int copy_row(struct dit_rows *r, float *out, int to, const float *x, int from)
{
    const struct weights *w = dit_weights(r->dit);
    return w->ops->copy(w->dev, out + to * r->in, x + from * r->in, (size_t)r->in * sizeof *x,
                        COPY_DEVICE, w->stream);
}

/* Runs fewer than DIT_ROWS_MIN rows, padded with the first one. */
static int run_few(struct dit_rows *r, float *v, const struct dit_rows_in *in, int B,
                   struct err *err)
{
    struct device *dev = dit_weights(r->dit)->dev;
    const struct dit_rows_in four = {r->x, in->estimate ? r->estimate : NULL, r->t,
                                     in->labels ? r->labels : NULL};
    int rc = 0;
    for (int i = 0; i < DIT_ROWS_MIN && rc == 0; i++) {
        const int from = i < B ? i : 0;
        r->t[i] = in->t[from];
        r->labels[i] = in->labels ? in->labels[from] : 0;
        rc = copy_row(r, r->x, i, in->x, from);
        if (rc == 0 && in->estimate)
            rc = copy_row(r, r->estimate, i, in->estimate, from);
    }
    if (rc < 0)
        return failed(r, rc, err);
    rc = run_batch(r, r->v, &four, DIT_ROWS_MIN, err);
    if (rc < 0)
        return rc;
    rc = dev->ops->copy(dev, v, r->v, (size_t)(B * r->out) * sizeof *v, COPY_DEVICE,
                        dit_weights(r->dit)->stream);
    return rc < 0 ? failed(r, rc, err) : weights_sync(dit_weights(r->dit), err);
}

int dit_rows_run(struct dit_rows *r, float *v, const struct dit_rows_in *in, int rows,
                 struct err *err)
{
    const int batch = dit_batch(r->dit);
    int rc = 0;
    for (int at = 0; at < rows && rc == 0; at += batch) {
        const int B = rows - at < batch ? rows - at : batch;
        const struct dit_rows_in some = {in->x + at * r->in,
                                         in->estimate ? in->estimate + at * r->in : NULL,
                                         in->t + at, in->labels ? in->labels + at : NULL};
        if (B < DIT_ROWS_MIN && batch >= DIT_ROWS_MIN)
            rc = run_few(r, v + at * r->out, &some, B, err);
        else
            rc = run_batch(r, v + at * r->out, &some, B, err);
    }
    return rc;
}
