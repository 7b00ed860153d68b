#include "worker/frozen/frozen_walk.h"

#include "worker/frozen/frozen_impl.h"

struct frozen_walk {
    struct frozen *f;
    struct frozen_io io;
    int count, underway;
    char *hold; /* (underway) places on the device; that of sample i is i % underway */
    uint64_t place;
    int first, n, layer; /* samples in f's scratch, and their next layer; n 0: none */
};

int frozen_walk_new(struct frozen *f, int underway, struct frozen_walk **ret, struct err *err)
{
    if (f->opt.pass)
        return err_set(err, -EINVAL, "a frozen network in pieces needs its weights on %s",
                       f->dev->name);
    struct frozen_walk *w = mem_alloc(sizeof *w);
    *w = (struct frozen_walk){.f = f, .underway = underway, .place = frozen_hold(f)};
    int rc = f->dev->ops->alloc(f->dev, (uint64_t)underway * w->place, (void **)&w->hold, err);
    if (rc < 0) {
        mem_free(w);
        return rc;
    }
    *ret = w;
    return 0;
}

void frozen_walk_free(struct frozen_walk *w)
{
    if (!w)
        return;
    w->f->dev->ops->free(w->f->dev, w->hold);
    mem_free(w);
}

int frozen_walk_begin(struct frozen_walk *w, const struct frozen_io *io, int count, struct err *err)
{
    w->io = *io;
    w->count = count;
    w->n = 0;
    return frozen_check(w->f, io, count, err);
}

/* Moves the group's samples before a layer between their places and the scratch. */
static int move(struct frozen_walk *w, const struct frozen_group *g, int first, int layer, bool out,
                struct stream *s)
{
    struct device *dev = w->f->dev;
    int rc = 0;
    for (int i = 0; i < g->n && rc == 0; i++) {
        char *place = w->hold + (uint64_t)((first + i) % w->underway) * w->place;
        for (int k = 0; k < FROZEN_LEFT && rc == 0; k++) {
            const uint64_t bytes = frozen_left(w->f, g, layer - 1, k);
            const int buffer = w->f->layers[layer - 1].left[k].buffer;
            char *here = (char *)w->f->scratch_base[buffer] + (uint64_t)i * bytes;
            if (bytes > 0)
                rc = dev->ops->copy(dev, out ? place : here, out ? here : place, bytes, COPY_DEVICE,
                                    s);
            place += bytes;
        }
    }
    return rc;
}

/* Moves the samples in the scratch to their places. */
static int put_away(struct frozen_walk *w, struct stream *s, struct err *err)
{
    struct frozen_group g;
    if (w->n == 0)
        return 0;
    int rc = frozen_group_of(w->f, &w->io, w->first, w->n, false, s, &g, err);
    if (rc == 0) {
        rc = move(w, &g, w->first, w->layer, true, s);
        if (rc < 0)
            rc = err_set(err, rc, "keeping what a frozen layer left failed on %s: %s",
                         w->f->dev->name, err_text(rc));
    }
    w->n = 0;
    return rc;
}

/* Runs at most a group of samples. */
static int run_group(struct frozen_walk *w, int first, int n, int from, int to, struct stream *s,
                     struct err *err)
{
    struct frozen_group g;
    const bool there = w->n == n && w->first == first && w->layer == from;
    int rc = there ? 0 : put_away(w, s, err);
    if (rc == 0)
        rc = frozen_group_of(w->f, &w->io, first, n, from == 0, s, &g, err);
    if (rc == 0 && from > 0 && !there) {
        rc = move(w, &g, first, from, false, s);
        if (rc < 0)
            rc = err_set(err, rc, "going on with a frozen layer failed on %s: %s", w->f->dev->name,
                         err_text(rc));
    }
    w->n = 0;
    if (rc == 0)
        rc = frozen_run_layers(w->f, &g, from, to, s, err);
    if (rc == 0 && to < w->f->n_layers) {
        w->n = n;
        w->first = first;
        w->layer = to;
    }
    return rc;
}

int frozen_walk_run(struct frozen_walk *w, int first, int count, int from, int to, struct stream *s,
                    struct err *err)
{
    const int group = w->f->opt.group;
    int rc = 0;
    if (first < 0 || count < 0 || count > w->count || first > w->count - count ||
        (count > w->underway && (from > 0 || to < w->f->n_layers)))
        return err_set(err, -EINVAL, "samples %d to %d of %d, of which %d are on their way", first,
                       first + count, w->count, w->underway);
    for (int i = 0; i < count && rc == 0; i += group)
        rc = run_group(w, first + i, count - i < group ? count - i : group, from, to, s, err);
    return rc;
}

/* ---- the whole chain ---- */

static int run_resident(struct frozen *f, const struct frozen_io *io, int count, struct err *err)
{
    const int group = f->opt.group;
    int rc = 0;
    for (int i = 0; i < count && rc == 0; i += group) {
        struct frozen_group g;
        rc = frozen_group_of(f, io, i, count - i < group ? count - i : group, true, f->stream, &g,
                             err);
        if (rc == 0)
            rc = frozen_run_layers(f, &g, 0, f->n_layers, f->stream, err);
    }
    return rc;
}

/* All groups of a pass take a layer, then the next one. */
static int run_streamed(struct frozen *f, const struct frozen_io *io, int count, struct err *err)
{
    const int pass = f->opt.pass;
    struct frozen_walk w = {.f = f,
                            .io = *io,
                            .count = count,
                            .underway = pass,
                            .hold = f->hold,
                            .place = frozen_hold(f)};
    int rc = 0;
    for (int first = 0; first < count; first += pass)
        for (int i = 0; i < f->n_layers && rc == 0; i++)
            rc = frozen_walk_run(&w, first, count - first < pass ? count - first : pass, i, i + 1,
                                 f->stream, err);
    return rc;
}

int frozen_run(struct frozen *f, const struct frozen_io *io, int count, struct err *err)
{
    int rc = frozen_check(f, io, count, err);
    if (rc < 0)
        return rc;
    rc = f->opt.pass ? run_streamed(f, io, count, err) : run_resident(f, io, count, err);
    int done = f->dev->ops->sync(f->dev, f->stream, rc < 0 ? NULL : err);
    return rc < 0 ? rc : done;
}
