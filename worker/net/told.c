#include "worker/net/told.h"

#include "worker/model/model.h"
#include "worker/net/resize.h"

int told_mix(struct device *dev, struct stream *s, const struct told_mix *t, int B, struct err *err)
{
    const struct kernel_ops *k = dev->ops;
    const int64_t n = (int64_t)MODEL_PIXEL_CHANNELS * t->side * t->side;
    int rc =
        k->image_from_u8(dev, t->d_told, t->d_images, B, MODEL_PIXEL_CHANNELS, t->side, t->side, s);
    if (rc == 0)
        rc = k->normal(dev, t->d_eps, t->seed, t->d_streams, B, n, s);
    if (rc == 0)
        rc = k->axpby(dev, t->d_told, 1.0f - t->noise, t->d_told, t->noise, t->d_eps, B * n, s);
    return rc < 0 ? err_set(err, rc, "%d small images cannot be noised on %s: %s", B, dev->name,
                            err_text(rc))
                  : 0;
}

int told_open(struct told *t, const struct told_options *opt, struct err *err)
{
    const size_t rows = (size_t)opt->rows, side = (size_t)(opt->side * opt->factor);
    *t = (struct told){.opt = *opt, .n = MODEL_PIXEL_CHANNELS * side * side};
    arena_add(&t->arena, &t->d_x, rows * t->n * sizeof *t->d_x);
    arena_add(&t->arena, &t->d_eps, rows * t->n * sizeof *t->d_eps);
    arena_add(&t->arena, &t->d_images, rows * t->n);
    arena_add(&t->arena, &t->d_streams, rows * sizeof *t->d_streams);
    t->images = mem_arrays_add(&t->memory, rows * t->n, 1);
    t->streams = mem_arrays_add(&t->memory, rows, sizeof *t->streams);
    if (t->memory.failed)
        return err_set(err, -ENOMEM, "no memory for %zu small images", rows);
    return arena_alloc(&t->arena, opt->dev, err);
}

void told_close(struct told *t)
{
    if (t->opt.dev)
        arena_free(&t->arena, t->opt.dev);
    mem_arrays_free(&t->memory);
    *t = (struct told){0};
}

int told_run(struct told *t, const uint8_t *low, uint64_t seed, int B, struct err *err)
{
    const struct told_options *o = &t->opt;
    const struct kernel_ops *k = o->dev->ops;
    const size_t small = t->n / (size_t)(o->factor * o->factor), rows = (size_t)B;
    for (size_t i = 0; i < rows; i++)
        resize_up(low + i * small, o->side, o->factor, t->images + i * t->n);
    int rc = k->copy(o->dev, t->d_images, t->images, rows * t->n, COPY_TO_DEVICE, o->stream);
    if (rc == 0)
        rc = k->copy(o->dev, t->d_streams, t->streams, rows * sizeof *t->streams, COPY_TO_DEVICE,
                     o->stream);
    if (rc < 0)
        return err_set(err, rc, "small images cannot be copied to %s: %s", o->dev->name,
                       err_text(rc));
    const struct told_mix mix = {.d_images = t->d_images,
                                 .d_streams = t->d_streams,
                                 .d_eps = t->d_eps,
                                 .d_told = t->d_x,
                                 .side = o->side * o->factor,
                                 .seed = seed,
                                 .noise = o->noise};
    rc = told_mix(o->dev, o->stream, &mix, B, err);
    return rc < 0 ? rc : k->sync(o->dev, o->stream, err);
}
