#include <math.h>
#include <string.h>

#include "common/base/rng.h"
#include "worker/net/model.h"

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

static bool begins_with(const char *s, const char *head)
{
    return strncmp(s, head, strlen(head)) == 0;
}

/* DIT and ROUTER. */
static void init_dit(const struct model_tensor *t, uint64_t seed, uint64_t stream, float *p)
{
    if (ends_with(t->name, ".bias") || strstr(t->name, "adaLN_modulation") ||
        begins_with(t->name, "final_layer."))
        return;
    if (begins_with(t->name, "t_embedder.") || begins_with(t->name, "y_embedder.") ||
        begins_with(t->name, "head.") || begins_with(t->name, "cls_token")) {
        rng_fill_normal(seed, stream, 0, p, t->count, 0.0f, 0.02f);
        return;
    }
    uint64_t out = t->shape[0], in = t->count / t->shape[0];
    float bound = sqrtf(6.0f / (float)(in + out));
    rng_fill_uniform(seed, stream, 0, p, t->count);
    for (uint64_t j = 0; j < t->count; j++)
        p[j] = (2.0f * p[j] - 1.0f) * bound;
}

static void init_llama(const struct model_tensor *t, int depth, uint64_t seed, uint64_t stream,
                       float *p)
{
    if (t->rank == 1) { /* a norm */
        for (uint64_t j = 0; j < t->count; j++)
            p[j] = 1.0f;
        return;
    }
    const bool ends_branch =
        ends_with(t->name, "o_proj.weight") || ends_with(t->name, "down_proj.weight");
    const float std = ends_branch ? 0.02f / sqrtf(2.0f * (float)depth) : 0.02f;
    rng_fill_normal(seed, stream, 0, p, t->count, 0.0f, std);
}

void model_init(const struct model *m, uint64_t seed, float *flat)
{
    memset(flat, 0, m->flat * sizeof *flat);
    for (size_t i = 0; i < m->n; i++) {
        const struct model_tensor *t = &m->tensors[i];
        float *p = flat + t->offset;
        uint64_t stream = name_stream(t->name);
        if (m->spec.kind == MODEL_LLAMA)
            init_llama(t, m->spec.depth, seed, stream, p);
        else
            init_dit(t, seed, stream, p);
    }
}

void model_positions(const struct model_spec *s, float *out)
{
    /* The original's meshgrid puts the column first: half of the channels
     * encode the column, the other half the row, each as sines then cosines. */
    const int side = s->image / s->patch, quarter = s->dim / 4;
    if (s->kind == MODEL_ROUTER) {
        memset(out, 0, (size_t)s->dim * sizeof *out);
        out += s->dim;
    }
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
