#include "worker/train/train_impl.h"

void trainer_stand_for(struct trainer *t, const struct model *m, const struct train_part *parts,
                       int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < parts[i].n; k++)
            parts[i].of[k]->whole = m;
    t->parts = parts;
    t->n_parts = n;
}

static int n_parts(const struct trainer *t)
{
    return t->n_parts > 0 ? t->n_parts : 1;
}

/* The number of sharers of part i. */
static int n_sharers(const struct trainer *t, int i)
{
    return t->n_parts > 0 ? t->parts[i].n : 1;
}

/* Sharer k of part i; weights are read from and written to the first one. */
static struct trainer *sharer(struct trainer *t, int i, int k)
{
    return t->n_parts > 0 ? t->parts[i].of[k] : t;
}

static struct trainer *part(struct trainer *t, int i)
{
    return sharer(t, i, 0);
}

static int copy_failed(struct trainer *t, int rc, struct err *err)
{
    if (rc < 0)
        return err_set(err, rc, "copying a vector on %s failed: %s", t->dev->name, err_text(rc));
    return weights_sync(t->w, err);
}

static int copy(struct trainer *t, void *dst, const void *src, uint64_t n, enum copy_kind kind,
                struct err *err)
{
    return copy_failed(t, t->ops->copy(t->dev, dst, src, n * sizeof(float), kind, t->w->stream),
                       err);
}

static uint64_t share_values(const struct trainer *t)
{
    return t->share.to - t->share.from;
}

/* Weights of one level, or of all (-1), from or to a flat vector of the whole model. */
static int copy_weights(struct trainer *t, int level, float *flat, enum copy_kind kind,
                        struct err *err)
{
    int rc = 0;
    for (size_t i = 0; i < t->m->n && rc == 0; i++) {
        const struct model_tensor *own = &t->m->tensors[i];
        float *host = flat + t->whole->tensors[i].offset, *w = t->w->w + own->offset;
        const bool in = kind == COPY_TO_DEVICE;
        if (own->count > 0 && (level < 0 || own->level == level))
            rc = t->ops->copy(t->dev, in ? w : host, in ? host : w, own->count * sizeof *w, kind,
                              t->w->stream);
    }
    return copy_failed(t, rc, err);
}

static int set_part(struct trainer *t, int i, int level, const float *flat, struct err *err)
{
    struct trainer *has = part(t, i);
    const int rc = copy_weights(has, level, (float *)(uintptr_t)flat, COPY_TO_DEVICE, err);
    return rc == 0 ? weights_changed(has->w, err) : rc;
}

int trainer_set_level(struct trainer *t, int level, const float *flat, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < n_parts(t) && rc == 0; i++)
        rc = set_part(t, i, level, flat, err);
    return rc;
}

int trainer_get_level(struct trainer *t, int level, float *flat, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < n_parts(t) && rc == 0; i++)
        rc = copy_weights(part(t, i), level, flat, COPY_FROM_DEVICE, err);
    return rc;
}

int trainer_set(struct trainer *t, const float *flat, struct err *err)
{
    return trainer_set_level(t, -1, flat, err);
}

int trainer_get(struct trainer *t, float *flat, struct err *err)
{
    return trainer_get_level(t, -1, flat, err);
}

static int zero_moments(struct trainer *t, struct err *err)
{
    const size_t bytes = share_values(t) * sizeof(float);
    struct stream *s = t->w->stream;
    int rc = t->ops->zero(t->dev, t->adam_m, bytes, s);
    if (rc == 0)
        rc = t->ops->zero(t->dev, t->adam_v, bytes, s);
    t->adam_step = 0;
    return copy_failed(t, rc, err);
}

int trainer_reset_moments(struct trainer *t, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < n_parts(t) && rc == 0; i++)
        for (int k = 0; k < n_sharers(t, i) && rc == 0; k++)
            rc = zero_moments(sharer(t, i, k), err);
    return rc;
}

float *trainer_device(struct trainer *t, enum trainer_vector which)
{
    switch (which) {
    case TRAINER_WEIGHTS:
        return t->w->w;
    case TRAINER_ADAM_M:
        return t->adam_m;
    case TRAINER_ADAM_V:
        return t->adam_v;
    case TRAINER_GRADIENT:
        return t->w->g;
    }
    return NULL;
}

/* The part that has a tensor of the whole model. */
static int owner(struct trainer *t, size_t tensor)
{
    for (int i = 0; i < n_parts(t); i++)
        if (part(t, i)->m->tensors[tensor].count > 0)
            return i;
    return 0;
}

/* Reads or writes trainer s's share of a tensor in a vector; `values` is the whole tensor's. */
static int move_share(struct trainer *s, enum trainer_vector which, size_t tensor, float *values,
                      bool in, struct err *err)
{
    const struct model_tensor *own = &s->m->tensors[tensor];
    const bool whole = which == TRAINER_WEIGHTS || which == TRAINER_GRADIENT;
    const struct train_share share = whole ? (struct train_share){0, s->m->flat} : s->share;
    const uint64_t end = own->offset + own->count;
    const uint64_t from = own->offset > share.from ? own->offset : share.from;
    const uint64_t to = end < share.to ? end : share.to;
    float *v = trainer_device(s, which);
    if (from >= to)
        return 0;
    float *there = v + (from - share.from), *here = values + (from - own->offset);
    return in ? copy(s, there, here, to - from, COPY_TO_DEVICE, err)
              : copy(s, here, there, to - from, COPY_FROM_DEVICE, err);
}

static int move_tensor(struct trainer *t, enum trainer_vector which,
                       const struct model_tensor *tensor, float *values, bool in, struct err *err)
{
    const size_t at = (size_t)(tensor - t->whole->tensors);
    const bool whole = which == TRAINER_WEIGHTS || which == TRAINER_GRADIENT;
    const int i = owner(t, at), n = whole ? 1 : n_sharers(t, i);
    int rc = 0;
    for (int k = 0; k < n && rc == 0; k++)
        rc = move_share(sharer(t, i, k), which, at, values, in, err);
    return rc;
}

int trainer_read(struct trainer *t, enum trainer_vector which, const struct model_tensor *tensor,
                 float *values, struct err *err)
{
    return move_tensor(t, which, tensor, values, false, err);
}

int trainer_write(struct trainer *t, enum trainer_vector which, const struct model_tensor *tensor,
                  const float *values, struct err *err)
{
    return move_tensor(t, which, tensor, (float *)(uintptr_t)values, true, err);
}

int trainer_written(struct trainer *t, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < n_parts(t) && rc == 0; i++)
        rc = weights_changed(part(t, i)->w, err);
    return rc;
}
