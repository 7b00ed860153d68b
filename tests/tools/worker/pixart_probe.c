/* Runs a model with captions on given inputs, for comparison with diffusers (tests/latents/
 * test_pixart.py):
 *
 *    pixart_probe DEVICE DTYPE DIM DEPTH HEADS PATCH WEIGHTS INPUTS OUT [SAVED]
 *
 * WEIGHTS is a diffusers' safetensors file, as model.warm_start takes it.  INPUTS: x and dpred
 * (B,Ch,S,S), t (B), states (B,L,D), lengths (B); OUT: pred and, per tensor, g.NAME, the gradient
 * of the sum of pred * dpred.  SAVED: the weights again, as a job's model is written. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/st/st.h"
#include "kernels/device/device.h"
#include "worker/net/dit.h"

struct probe {
    struct device *dev;
    struct model *m;
    struct dit *d;
    struct st in;
    const char *path;
    int fd;
    struct arena arena;
    float *x, *dpred, *t, *states32, *pred;
    void *states;
    int32_t *lengths;
    size_t n; /* values of all images */
    int B, shape;
    uint64_t dims[4]; /* of x */
};

static int open_inputs(struct probe *p, char **argv, struct model_spec *spec, struct err *err)
{
    p->path = argv[8];
    p->fd = open(p->path, O_RDONLY | O_CLOEXEC);
    int rc =
        p->fd < 0 ? err_errno(err, "opening %s", p->path) : st_read(p->fd, p->path, &p->in, err);
    if (rc < 0)
        return rc;
    const struct st_tensor *x = st_find(&p->in, "x"), *states = st_find(&p->in, "states");
    if (!x || x->rank != 4 || !states || states->rank != 3)
        return err_set(err, -ERR_FORMAT, "%s has no x or no states", p->path);
    p->B = (int)x->shape[0];
    p->n = x->count;
    memcpy(p->dims, x->shape, sizeof p->dims);
    /* Of rectangles `square` says with its length which square the model is made for. */
    const struct st_tensor *square = st_find(&p->in, "square");
    p->shape = square != NULL;
    *spec = (struct model_spec){
        .channels = (int)x->shape[1],
        .image = (int)(square ? square->shape[0] : x->shape[2]),
        .n_shapes = p->shape,
        .shapes = {{(int)x->shape[2], (int)x->shape[3]}},
        .caption_tokens = (int)states->shape[1],
        .caption = (int)states->shape[2],
        .dim = atoi(argv[3]),
        .depth = atoi(argv[4]),
        .heads = atoi(argv[5]),
        .patch = atoi(argv[6]),
        .mlp = 4 * atoi(argv[3]),
        .cut = {.n_levels = 1},
    };
    return 0;
}

static int open_model(struct probe *p, char **argv, struct err *err)
{
    struct model_spec spec;
    int rc = open_inputs(p, argv, &spec, err);
    if (rc == 0)
        rc = device_open(argv[1], 2, &p->dev, err);
    if (rc == 0)
        rc = model_new(&spec, &p->m, err);
    const struct net_options opt = {
        .mode = NET_TRAIN,
        .precision = strcmp(argv[2], "bf16") == 0 ? NET_BF16 : NET_F32,
        .batch = p->B,
    };
    if (rc == 0)
        rc = dit_new(p->dev, p->m, &opt, &p->d, err);
    float *flat = rc == 0 ? model_flat_new(p->m) : NULL;
    if (rc == 0)
        rc = model_load_foreign(p->m, argv[7], flat, err);
    if (rc == 0)
        rc = weights_set(dit_weights(p->d), flat, err);
    if (rc == 0 && argv[10])
        rc = model_save(p->m, -1, flat, argv[10], NULL, NULL, err);
    mem_free(flat);
    return rc;
}

/* A tensor of the inputs to the device. */
static int send(struct probe *p, const char *name, void *d, size_t values, struct err *err)
{
    const struct st_tensor *t = st_find(&p->in, name);
    if (!t || t->bytes != values * 4)
        return err_set(err, -ERR_FORMAT, "%s: %s is not there or of another size", p->path, name);
    void *host = mem_alloc(t->bytes);
    int rc = file_pread_all(p->fd, host, t->bytes, t->offset, p->path, err);
    struct weights *w = dit_weights(p->d);
    if (rc == 0) {
        weights_note(w, w->ops->copy(w->dev, d, host, t->bytes, COPY_TO_DEVICE, w->stream), "copy");
        rc = weights_sync(w, err);
    }
    mem_free(host);
    return rc;
}

static int load(struct probe *p, struct err *err)
{
    const struct model_spec *s = &p->m->spec;
    struct weights *w = dit_weights(p->d);
    const size_t B = (size_t)p->B, values = B * (size_t)(s->caption_tokens * s->caption);
    arena_add(&p->arena, &p->x, p->n * sizeof(float));
    arena_add(&p->arena, &p->dpred, p->n * sizeof(float));
    arena_add(&p->arena, &p->pred, p->n * sizeof(float));
    arena_add(&p->arena, &p->t, B * sizeof(float));
    arena_add(&p->arena, &p->lengths, B * sizeof(int32_t));
    arena_add(&p->arena, &p->states32, values * sizeof(float));
    arena_add(&p->arena, &p->states, values * sizeof(float));
    int rc = arena_alloc(&p->arena, p->dev, err);
    if (rc == 0)
        rc = send(p, "x", p->x, p->n, err);
    if (rc == 0)
        rc = send(p, "dpred", p->dpred, p->n, err);
    if (rc == 0)
        rc = send(p, "t", p->t, B, err);
    if (rc == 0)
        rc = send(p, "lengths", p->lengths, B, err);
    if (rc == 0)
        rc = send(p, "states", p->states32, values, err);
    if (rc == 0)
        weights_note(
            w,
            w->ops->cast(w->dev, p->states, w->dt, p->states32, DT_F32, (int64_t)values, w->stream),
            "cast");
    return rc;
}

static int run(struct probe *p, struct err *err)
{
    const struct dit_io io = {
        .B = p->B,
        .shape = p->shape,
        .x = p->x,
        .t = p->t,
        .states = p->states,
        .lengths = p->lengths,
        .pred = p->pred,
        .dpred = p->dpred,
    };
    weights_zero_grads(dit_weights(p->d));
    int rc = dit_forward(p->d, NULL, 0, &io, err);
    if (rc == 0)
        rc = dit_backward(p->d, NULL, 0, &io, true, err);
    return rc == 0 ? weights_sync(dit_weights(p->d), err) : rc;
}

static int write_device(struct probe *p, struct st_writer *out, const float *d, size_t n,
                        struct err *err)
{
    struct weights *w = dit_weights(p->d);
    float *host = mem_alloc_array(n, sizeof *host);
    weights_note(w, w->ops->copy(w->dev, host, d, n * sizeof *host, COPY_FROM_DEVICE, w->stream),
                 "copy");
    int rc = weights_sync(w, err);
    if (rc == 0)
        rc = st_writer_write(out, host, n * sizeof *host, err);
    mem_free(host);
    return rc;
}

static int write_results(struct probe *p, const char *path, struct err *err)
{
    struct st_writer *out = st_writer_new();
    int rc = st_writer_add(out, "pred", ST_F32, 4, p->dims, err);
    for (size_t i = 0; i < p->m->n && rc == 0; i++) {
        const struct model_tensor *t = &p->m->tensors[i];
        char name[MODEL_NAME_MAX + 2];
        (void)snprintf(name, sizeof name, "g.%s", t->name);
        rc = st_writer_add(out, name, ST_F32, t->rank, t->shape, err);
    }
    if (rc == 0)
        rc = st_writer_open(out, path, err);
    if (rc == 0)
        rc = write_device(p, out, p->pred, p->n, err);
    for (size_t i = 0; i < p->m->n && rc == 0; i++)
        rc =
            write_device(p, out, weights_g(dit_weights(p->d), (int)i), p->m->tensors[i].count, err);
    if (rc == 0)
        rc = st_writer_commit(out, NULL, NULL, err);
    st_writer_free(out);
    return rc;
}

int main(int argc, char **argv)
{
    struct probe p = {.fd = -1};
    struct err err = {0};
    if (argc != 10 && argc != 11) {
        (void)fprintf(stderr,
                      "usage: pixart_probe DEVICE DTYPE DIM DEPTH HEADS PATCH WEIGHTS INPUTS "
                      "OUT [SAVED]\n");
        return 2;
    }
    int rc = open_model(&p, argv, &err);
    if (rc == 0)
        rc = load(&p, &err);
    if (rc == 0)
        rc = run(&p, &err);
    if (rc == 0)
        rc = write_results(&p, argv[9], &err);
    if (p.dev)
        arena_free(&p.arena, p.dev);
    dit_free(p.d);
    model_free(p.m);
    device_close(p.dev);
    st_release(&p.in);
    if (p.fd >= 0)
        (void)close(p.fd);
    if (rc < 0)
        (void)fprintf(stderr, "pixart_probe: %s\n", err.msg);
    return rc < 0;
}
