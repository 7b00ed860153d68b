#include "worker/model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/job.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "worker/model_index.h"

enum {
    ALIGN_ELEMENTS = 16, /* 64 bytes of f32 */
    HEAD_DIM_MAX = 128,  /* of the attention kernels */
    DIM_MAX = 16384,
    DEPTH_MAX = 512,
    TOKENS_MAX = 4096,
};

static int spec_check(const struct model_spec *s, struct err *err)
{
    if (s->patch < 1 || s->image < s->patch || s->image % s->patch != 0)
        return err_set(err, -ERR_CONFIG, "data.image_size %d must be a multiple of model.patch %d",
                       s->image, s->patch);
    if (model_tokens(s) > TOKENS_MAX)
        return err_set(err, -ERR_CONFIG,
                       "an image of %d pixels in patches of %d is %d tokens; at most %d", s->image,
                       s->patch, model_tokens(s), TOKENS_MAX);
    if (s->dim < 4 || s->dim > DIM_MAX || s->dim % 4 != 0)
        return err_set(err, -ERR_CONFIG, "model.dim %d must be a multiple of 4 from 4 to %d",
                       s->dim, DIM_MAX);
    if (s->heads < 1 || s->dim % s->heads != 0)
        return err_set(err, -ERR_CONFIG, "model.heads %d must divide model.dim %d", s->heads,
                       s->dim);
    if (s->dim / s->heads > HEAD_DIM_MAX)
        return err_set(err, -ERR_CONFIG,
                       "model.dim %d in %d heads is %d per head; at most %d: use more heads",
                       s->dim, s->heads, s->dim / s->heads, HEAD_DIM_MAX);
    if (s->depth < 1 || s->depth > DEPTH_MAX)
        return err_set(err, -ERR_CONFIG, "model.depth %d must be from 1 to %d", s->depth,
                       DEPTH_MAX);
    if (s->mlp < 1 || s->mlp > 8 * DIM_MAX)
        return err_set(err, -ERR_CONFIG,
                       "an MLP of width %d (model.dim * model.mlp_ratio) is "
                       "out of range",
                       s->mlp);
    if (s->classes < 1 || s->classes > MODEL_CLASSES_MAX)
        return err_set(err, -ERR_CONFIG, "the dataset has %d classes; from 1 to %d are possible",
                       s->classes, MODEL_CLASSES_MAX);
    if (s->levels < 1 || s->levels > s->depth || s->levels > MODEL_LEVELS_MAX)
        return err_set(err, -ERR_CONFIG, "%d blocks cannot be cut into %d levels", s->depth,
                       s->levels);
    return 0;
}

int model_spec_from_job(const struct job_spec *job, int classes, int levels, struct model_spec *ret,
                        struct err *err)
{
    struct model_spec s = {
        .image = job->data.image_size,
        .patch = job->model.patch,
        .dim = job->model.dim,
        .depth = job->model.depth,
        .heads = job->model.heads,
        .mlp = (int)(job->model.dim * job->model.mlp_ratio),
        .classes = classes,
        .levels = levels,
    };
    int rc = spec_check(&s, err);
    if (rc == 0)
        *ret = s;
    return rc;
}

static struct model_tensor *add(struct model *m, int level, bool decay, unsigned rank,
                                const int shape[4])
{
    struct model_tensor *t = &m->tensors[m->n++];
    t->rank = rank;
    t->count = 1;
    for (unsigned i = 0; i < rank; i++) {
        t->shape[i] = (uint64_t)shape[i];
        t->count *= t->shape[i];
    }
    t->level = level;
    t->decay = decay;
    m->params += t->count;
    return t;
}

/* A linear layer: NAME.weight (out,in) and NAME.bias (out). */
static void add_linear(struct model *m, int level, const char *name, int out, int in)
{
    struct model_tensor *w = add(m, level, true, 2, (int[4]){out, in});
    (void)snprintf(w->name, sizeof w->name, "%s.weight", name);
    struct model_tensor *b = add(m, level, false, 1, (int[4]){out});
    (void)snprintf(b->name, sizeof b->name, "%s.bias", name);
}

/* In the order of model_index.h. */
static void add_all(struct model *m)
{
    const struct model_spec *s = &m->spec;
    const int C = s->dim;

    struct model_tensor *w = add(m, 0, true, 4, (int[4]){C, MODEL_CHANNELS, s->patch, s->patch});
    (void)snprintf(w->name, sizeof w->name, "x_embedder.proj.weight");
    struct model_tensor *b = add(m, 0, false, 1, (int[4]){C});
    (void)snprintf(b->name, sizeof b->name, "x_embedder.proj.bias");
    add_linear(m, 0, "t_embedder.mlp.0", C, MODEL_FREQS);
    add_linear(m, 0, "t_embedder.mlp.2", C, C);
    struct model_tensor *y = add(m, 0, false, 2, (int[4]){s->classes + 1, C});
    (void)snprintf(y->name, sizeof y->name, "y_embedder.embedding_table.weight");

    for (int i = 0; i < s->depth; i++) {
        const struct {
            const char *name;
            int out, in;
        } layers[] = {
            {"attn.qkv", 3 * C, C},           {"attn.proj", C, C},
            {"mlp.fc1", s->mlp, C},           {"mlp.fc2", C, s->mlp},
            {"adaLN_modulation.1", 6 * C, C},
        };
        int level = (int)((int64_t)i * s->levels / s->depth);
        for (size_t j = 0; j < sizeof layers / sizeof *layers; j++) {
            char name[48];
            (void)snprintf(name, sizeof name, "blocks.%d.%s", i, layers[j].name);
            add_linear(m, level, name, layers[j].out, layers[j].in);
        }
    }
    add_linear(m, s->levels - 1, "final_layer.linear", model_patch_values(s), C);
    add_linear(m, s->levels - 1, "final_layer.adaLN_modulation.1", 2 * C, C);
}

static void place(struct model *m)
{
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < m->n; i++) {
            struct model_tensor *t = &m->tensors[i];
            if (t->decay != (pass == 0))
                continue;
            t->offset = m->flat;
            m->flat += (t->count + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
        }
        if (pass == 0)
            m->decayed = m->flat;
    }
}

int model_new(const struct model_spec *spec, struct model **ret, struct err *err)
{
    int rc = spec_check(spec, err);
    if (rc < 0)
        return rc;
    struct model *m = mem_try_zero(sizeof *m);
    if (!m)
        return err_set(err, -ENOMEM, "no memory for the model's table");
    m->spec = *spec;
    size_t n = (size_t)model_final_tensor(spec, T_PER_FINAL);
    m->tensors = mem_try_array(n, sizeof *m->tensors);
    if (!m->tensors) {
        model_free(m);
        return err_set(err, -ENOMEM, "no memory for the model's table of %zu tensors", n);
    }
    add_all(m);
    place(m);
    *ret = m;
    return 0;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    mem_free(m->tensors);
    mem_free(m);
}

const struct model_tensor *model_find(const struct model *m, const char *name)
{
    for (size_t i = 0; i < m->n; i++) {
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    }
    return NULL;
}

float *model_flat_new(const struct model *m)
{
    float *p = mem_try_aligned(64, m->flat * sizeof *p);
    if (p)
        memset(p, 0, m->flat * sizeof *p);
    return p;
}

static uint64_t name_stream(const char *name)
{
    uint64_t h = 0;
    for (const char *p = name; *p; p++)
        h = rng_mix(h, (unsigned char)*p);
    return h;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

void model_init(const struct model *m, uint64_t seed, float *flat)
{
    memset(flat, 0, m->flat * sizeof *flat);
    for (size_t i = 0; i < m->n; i++) {
        const struct model_tensor *t = &m->tensors[i];
        float *p = flat + t->offset;
        if (ends_with(t->name, ".bias") || strstr(t->name, "adaLN_modulation") ||
            strncmp(t->name, "final_layer.", 12) == 0)
            continue;
        uint64_t stream = name_stream(t->name);
        if (strncmp(t->name, "t_embedder.", 11) == 0 || strncmp(t->name, "y_embedder.", 11) == 0) {
            rng_fill_normal(seed, stream, 0, p, t->count, 0.0f, 0.02f);
            continue;
        }
        uint64_t out = t->shape[0], in = t->count / t->shape[0];
        float bound = sqrtf(6.0f / (float)(in + out));
        rng_fill_uniform(seed, stream, 0, p, t->count);
        for (uint64_t j = 0; j < t->count; j++)
            p[j] = (2.0f * p[j] - 1.0f) * bound;
    }
}

void model_positions(const struct model_spec *s, float *out)
{
    /* The original's meshgrid puts the column first: half of the channels
     * encode the column, the other half the row, each as sines then cosines. */
    const int side = s->image / s->patch, quarter = s->dim / 4;
    for (int row = 0; row < side; row++) {
        for (int col = 0; col < side; col++) {
            float *p = out + (size_t)(row * side + col) * (size_t)s->dim;
            for (int i = 0; i < quarter; i++) {
                double w = pow(10000.0, -(double)i / quarter);
                p[i] = (float)sin(col * w);
                p[quarter + i] = (float)cos(col * w);
                p[2 * quarter + i] = (float)sin(row * w);
                p[3 * quarter + i] = (float)cos(row * w);
            }
        }
    }
}
