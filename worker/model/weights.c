#include "worker/model/weights.h"

uint64_t weights_bytes(const struct model *m, enum dtype dt, bool gradients)
{
    return m->flat *
           (sizeof(float) + (dt == DT_BF16 ? sizeof(bf16) : 0) + (gradients ? sizeof(float) : 0));
}

/* A flat vector on the device; NULL on failure. */
static void *alloc_flat(struct weights *w, size_t element, int *rc)
{
    void *p = NULL;
    if (*rc == 0)
        *rc = w->ops->alloc(w->dev, w->m->flat * element, &p, NULL);
    return p;
}

int weights_init(struct weights *w, struct device *dev, const struct model *m, enum dtype dt,
                 bool gradients, struct err *err)
{
    *w = (struct weights){.dev = dev, .ops = dev->ops, .m = m, .dt = dt};
    int rc = w->ops->stream_new(dev, &w->stream, err);
    if (rc < 0)
        return rc;
    w->w = alloc_flat(w, sizeof *w->w, &rc);
    if (dt == DT_BF16)
        w->w16 = alloc_flat(w, sizeof *w->w16, &rc);
    if (gradients)
        w->g = alloc_flat(w, sizeof *w->g, &rc);
    if (rc < 0)
        return err_set(err, rc, "no memory on %s for a model of %.1f M parameters", dev->name,
                       (double)m->params / 1e6);
    /* The gaps between tensors are never written again. */
    weights_note(w, w->ops->zero(dev, w->w, m->flat * sizeof *w->w, w->stream), "zero");
    if (w->g)
        weights_note(w, w->ops->zero(dev, w->g, m->flat * sizeof *w->g, w->stream), "zero");
    return weights_sync(w, err);
}

void weights_release(struct weights *w)
{
    if (!w->dev)
        return;
    w->ops->free(w->dev, w->g);
    w->ops->free(w->dev, w->w16);
    w->ops->free(w->dev, w->w);
    if (w->stream)
        w->ops->stream_free(w->dev, w->stream);
    *w = (struct weights){0};
}

int weights_check(struct weights *w, struct err *err)
{
    int rc = w->rc;
    w->rc = 0;
    if (rc < 0)
        return err_set(err, rc, "%s failed on %s: %s", w->failed, w->dev->name, err_text(rc));
    return 0;
}

int weights_sync(struct weights *w, struct err *err)
{
    int rc = weights_check(w, err);
    int sync = w->ops->sync(w->dev, w->stream, rc < 0 ? NULL : err);
    return rc < 0 ? rc : sync;
}

/* Elements [at, at+n) of the flat vector. */
static void copy(struct weights *w, void *dst, const void *src, uint64_t n, enum copy_kind kind)
{
    weights_note(w, w->ops->copy(w->dev, dst, src, n * sizeof *w->w, kind, w->stream),
                 "copying weights");
}

#define BRING_BYTES (UINT64_C(4) << 20) /* most bytes on the host at a time */

int weights_bring(struct weights *to, void *dst, struct weights *from, const void *src,
                  uint64_t bytes, struct err *err)
{
    const uint64_t most = bytes < BRING_BYTES ? bytes : BRING_BYTES;
    char *host = mem_try_array(most, 1);
    int rc = host || bytes == 0 ? 0 : err_set(err, -ENOMEM, "no memory to copy between devices");
    for (uint64_t at = 0, n; at < bytes && rc == 0; at += n) {
        n = bytes - at < most ? bytes - at : most;
        weights_note(from,
                     from->ops->copy(from->dev, host, (const char *)src + at, n, COPY_FROM_DEVICE,
                                     from->stream),
                     "copying to another device");
        if ((rc = weights_sync(from, err)) < 0)
            break;
        weights_note(to,
                     to->ops->copy(to->dev, (char *)dst + at, host, n, COPY_TO_DEVICE, to->stream),
                     "copying from another device");
        rc = weights_sync(to, err);
    }
    mem_free(host);
    return rc;
}

int weights_set(struct weights *w, const float *flat, struct err *err)
{
    copy(w, w->w, flat, w->m->flat, COPY_TO_DEVICE);
    return weights_changed(w, err);
}

int weights_set_part(struct weights *w, const struct model *whole, const float *flat,
                     struct err *err)
{
    for (size_t i = 0; i < w->m->n; i++)
        if (w->m->tensors[i].count > 0)
            copy(w, w->w + w->m->tensors[i].offset, flat + whole->tensors[i].offset,
                 w->m->tensors[i].count, COPY_TO_DEVICE);
    return weights_changed(w, err);
}

int weights_changed(struct weights *w, struct err *err)
{
    if (w->w16)
        weights_note(
            w, w->ops->cast(w->dev, w->w16, DT_BF16, w->w, DT_F32, (int64_t)w->m->flat, w->stream),
            "casting weights");
    return weights_sync(w, err);
}

void weights_forward(struct weights *w, const struct weights_linear *l, void *y, enum dtype y_dt,
                     int64_t ldy, const void *x, int64_t ldx)
{
    struct matmul mm = {
        .layout = MM_NT,
        .epilogue = l->epilogue,
        .m = l->rows,
        .n = l->out,
        .k = l->in,
        .c = y,
        .a = x,
        .b = weights_mm(w, l->w),
        .bias = l->no_bias ? NULL : weights_f32(w, l->w + 1),
        .bias16 = l->no_bias || !w->w16 ? NULL : weights_mm(w, l->w + 1),
        .aux = l->aux,
        .lda = ldx,
        .ldc = ldy,
        .dt = w->dt,
        .c_dt = y_dt,
    };
    weights_note(w, w->ops->matmul(w->dev, &mm, w->stream), "matmul");
}

void weights_grad(struct weights *w, const struct weights_linear *l, const void *dy, int64_t ld_dy,
                  const void *x, int64_t ldx, bool first)
{
    struct matmul mm = {
        .layout = MM_TN,
        .m = l->out,
        .n = l->in,
        .k = l->rows,
        .c = weights_g(w, l->w),
        .a = dy,
        .b = x,
        .a_colsum = l->no_bias ? NULL : weights_g(w, l->w + 1),
        .lda = ld_dy,
        .ldb = ldx,
        .dt = w->dt,
        .c_dt = DT_F32,
        .accumulate = !first,
        .a_colsum_zero = first,
    };
    weights_note(w, w->ops->matmul(w->dev, &mm, w->stream), "matmul");
}

/* ---- work that is put off ---- */

struct weights_put_off {
    struct weights_linear linear;
    const void *dy, *x; /* NULL: an announcement */
    int64_t ld_dy, ldx;
    bool first;
    uint64_t offset, count; /* of the announcement */
};

/* False: nothing is put off, or there is no memory for it. */
static bool put_off(struct weights *w, const struct weights_put_off *p)
{
    struct weights_later *l = w->later;
    if (l && l->n == l->room) {
        const int room = l->room > 0 ? 2 * l->room : 64;
        void *more = mem_try_realloc_array(l->items, (size_t)room, sizeof *l->items);
        if (!more) {
            weights_note(w, -ENOMEM, "putting gradients off");
            return false;
        }
        l->items = more;
        l->room = room;
    }
    if (l)
        l->items[l->n++] = *p;
    return l;
}

void weights_grad_later(struct weights *w, const struct weights_linear *l, const void *dy,
                        int64_t ld_dy, const void *x, int64_t ldx, bool first)
{
    const struct weights_put_off p = {
        .linear = *l, .dy = dy, .x = x, .ld_dy = ld_dy, .ldx = ldx, .first = first};
    if (!put_off(w, &p))
        weights_grad(w, l, dy, ld_dy, x, ldx, first);
}

void weights_ready(struct weights *w, uint64_t offset, uint64_t count)
{
    if (!put_off(w, &(struct weights_put_off){.offset = offset, .count = count}) && w->watch)
        w->watch->ready(w->watch->arg, offset, count);
}

void weights_run_later(struct weights *w, struct weights_later *later)
{
    for (int i = 0; i < later->n; i++) {
        const struct weights_put_off *p = &later->items[i];
        if (p->dy)
            weights_grad(w, &p->linear, p->dy, p->ld_dy, p->x, p->ldx, p->first);
        else
            weights_ready(w, p->offset, p->count);
    }
    later->n = 0;
}

void weights_later_release(struct weights_later *l)
{
    mem_free(l->items);
    *l = (struct weights_later){0};
}

void weights_input_grad(struct weights *w, const struct weights_linear *l, void *dx,
                        enum dtype dx_dt, int64_t ldx, const void *dy, int64_t ld_dy,
                        bool accumulate)
{
    struct matmul mm = {
        .layout = MM_NN,
        .epilogue = l->epilogue,
        .m = l->rows,
        .n = l->in,
        .k = l->out,
        .c = dx,
        .a = dy,
        .b = weights_mm(w, l->w),
        .aux = l->aux,
        .lda = ld_dy,
        .ldc = ldx,
        .dt = w->dt,
        .c_dt = dx_dt,
        .accumulate = accumulate,
    };
    weights_note(w, w->ops->matmul(w->dev, &mm, w->stream), "matmul");
}

void weights_zero_grads(struct weights *w)
{
    const struct model *m = w->m;
    uint64_t from = m->flat, to = m->decayed; /* those of a chain lie together */
    for (size_t i = 0; i < m->n; i++) {
        const struct model_tensor *t = &m->tensors[i];
        if (t->decay)
            continue;
        from = t->offset < from ? t->offset : from;
        to = model_tensor_end(t) > to ? model_tensor_end(t) : to;
    }
    if (from < to)
        weights_note(w, w->ops->zero(w->dev, w->g + from, (to - from) * sizeof *w->g, w->stream),
                     "zero");
}

void weights_ready_matrices(struct weights *w, int first, int last)
{
    const struct model_tensor *t = w->m->tensors;
    uint64_t from = UINT64_MAX, to = 0;
    for (int i = first; i <= last; i++) {
        if (!t[i].decay)
            continue;
        from = t[i].offset < from ? t[i].offset : from;
        to = model_tensor_end(&t[i]);
    }
    if (to > from)
        weights_ready(w, from, to - from);
}

const void *weights_as_dt(struct weights *w, const float *x, void *copy, int64_t n)
{
    if (w->dt == DT_F32)
        return x;
    weights_note(w, w->ops->cast(w->dev, copy, w->dt, x, DT_F32, n, w->stream), "cast");
    return copy;
}
