#include "worker/flow.h"

#include <errno.h>
#include <math.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

enum {
    STREAM_T = 1,
    STREAM_NOISE = 2,
};

static int64_t image_values(const struct model *m)
{
    return (int64_t)MODEL_CHANNELS * m->spec.image * m->spec.image;
}

static void plan(struct flow *f, int batch, bool backward)
{
    const uint64_t B = (uint64_t)batch, bytes = B * (uint64_t)f->n * sizeof(float);
    struct arena *a = &f->arena;

    arena_add(a, &f->d_u8, B * (uint64_t)f->n);
    arena_add(a, &f->d_x0, bytes);
    arena_add(a, &f->d_eps, bytes);
    arena_add(a, &f->d_xt, bytes);
    arena_add(a, &f->d_target, bytes);
    arena_add(a, &f->d_pred, bytes);
    if (backward)
        arena_add(a, &f->d_dpred, bytes);
    arena_add(a, &f->d_t, B * sizeof(float));
    arena_add(a, &f->d_loss, B * sizeof(float));
    arena_add(a, &f->d_labels, B * sizeof(int32_t));
}

int flow_init(struct flow *f, struct dit *dit, bool backward, struct err *err)
{
    const int batch = dit_batch(dit);
    *f = (struct flow){.dit = dit, .n = image_values(dit_model(dit))};
    f->t = mem_try_array((size_t)batch, sizeof *f->t);
    f->eps = mem_try_array((size_t)batch * (size_t)f->n, sizeof *f->eps);
    f->labels = mem_try_array((size_t)batch, sizeof *f->labels);
    f->loss = mem_try_array((size_t)batch, sizeof *f->loss);
    if (!f->t || !f->eps || !f->labels || !f->loss)
        return err_set(err, -ENOMEM, "no memory for a batch of %d images", batch);
    plan(f, batch, backward);
    return arena_alloc(&f->arena, dit_device(dit), err);
}

void flow_release(struct flow *f)
{
    if (!f->dit)
        return;
    arena_free(&f->arena, dit_device(f->dit));
    mem_free(f->t);
    mem_free(f->eps);
    mem_free(f->labels);
    mem_free(f->loss);
    *f = (struct flow){0};
}

uint64_t flow_bytes(const struct model *m, int batch, bool backward)
{
    struct flow f = {.n = image_values(m)};
    plan(&f, batch, backward);
    uint64_t bytes = arena_bytes(&f.arena);
    mem_free(f.arena.slots);
    return bytes;
}

void flow_draw(struct flow *f, int i, uint64_t seed, uint64_t key, bool uniform_t)
{
    uint64_t stream = rng_mix(key, STREAM_T);
    f->t[i] = uniform_t ? rng_at_uniform(seed, stream, 0)
                        : 1.0f / (1.0f + expf(-rng_at_normal(seed, stream, 0)));
    rng_fill_normal(seed, rng_mix(key, STREAM_NOISE), 0, f->eps + (int64_t)i * f->n, (size_t)f->n,
                    0.0f, 1.0f);
}

/* The first failure of several calls. */
static void note(int *rc, int result)
{
    if (*rc == 0 && result < 0)
        *rc = result;
}

static int upload(struct flow *f, const uint8_t *images, int B)
{
    struct device *dev = dit_device(f->dit);
    struct stream *s = dit_stream(f->dit);
    const struct kernel_ops *k = dev->ops;
    const size_t b = (size_t)B, n = (size_t)f->n;
    int rc = 0;

    note(&rc, k->copy(dev, f->d_u8, images, b * n, COPY_TO_DEVICE, s));
    note(&rc, k->copy(dev, f->d_eps, f->eps, b * n * sizeof(float), COPY_TO_DEVICE, s));
    note(&rc, k->copy(dev, f->d_t, f->t, b * sizeof(float), COPY_TO_DEVICE, s));
    note(&rc, k->copy(dev, f->d_labels, f->labels, b * sizeof(int32_t), COPY_TO_DEVICE, s));
    note(&rc, k->image_from_u8(dev, f->d_x0, f->d_u8, B, MODEL_CHANNELS,
                               dit_model(f->dit)->spec.image, s));
    note(&rc, k->flow_mix(dev, f->d_xt, f->d_target, f->d_x0, f->d_eps, f->d_t, B, f->n, s));
    return rc;
}

int flow_run(struct flow *f, const uint8_t *images, int B, float grad_scale, struct err *err)
{
    struct device *dev = dit_device(f->dit);
    struct stream *s = dit_stream(f->dit);
    int rc = upload(f, images, B);
    if (rc < 0)
        return err_set(err, rc, "a batch of %d images cannot be loaded on %s: %s", B, dev->name,
                       err_text(rc));
    rc = dit_forward(f->dit, f->d_pred, f->d_xt, f->d_t, f->d_labels, B, err);
    if (rc < 0)
        return rc;
    note(&rc, dev->ops->mse(dev, f->d_loss, f->d_dpred, f->d_pred, f->d_target, NULL, grad_scale, B,
                            f->n, s));
    note(&rc,
         dev->ops->copy(dev, f->loss, f->d_loss, (size_t)B * sizeof *f->loss, COPY_FROM_DEVICE, s));
    if (rc < 0)
        return err_set(err, rc, "the loss failed on %s: %s", dev->name, err_text(rc));
    return dit_sync(f->dit, err);
}
