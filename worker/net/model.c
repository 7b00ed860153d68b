#include "worker/net/model.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "common/job/job.h"
#include "common/base/mem.h"
#include "worker/net/model_table.h"

enum {
    ALIGN_ELEMENTS = 16, /* 64 bytes of f32 */
    HEAD_DIM_MAX = 128,  /* of the attention kernels */
    DIM_MAX = 16384,
    TOKENS_MAX = 4096, /* of the attention kernels */
};

/* Every block, the embedders and the head in a level that exists, no level empty. */
static int cut_check(const struct model_spec *s, struct err *err)
{
    const struct model_cut *c = &s->cut;
    bool used[MODEL_LEVELS_MAX] = {false};
    if (c->n_levels < 1 || c->n_levels > MODEL_LEVELS_MAX)
        return err_set(err, -ERR_CONFIG, "a network in %d levels; from 1 to %d are possible",
                       c->n_levels, MODEL_LEVELS_MAX);
    if (c->embed_level >= c->n_levels || c->head_level >= c->n_levels)
        return err_set(err, -ERR_CONFIG,
                       "the embedders are in level %d and the head in level %d, but "
                       "there are %d levels",
                       c->embed_level, c->head_level, c->n_levels);
    used[c->embed_level] = used[c->head_level] = true;
    for (int i = 0; i < s->depth; i++) {
        if (c->block_level[i] >= c->n_levels)
            return err_set(err, -ERR_CONFIG, "block %d is in level %d, but there are %d levels", i,
                           c->block_level[i], c->n_levels);
        used[c->block_level[i]] = true;
    }
    for (int l = 0; l < c->n_levels; l++)
        if (!used[l])
            return err_set(err, -ERR_CONFIG, "level %d of %d holds nothing of the network", l,
                           c->n_levels);
    return 0;
}

static int image_check(const struct model_spec *s, struct err *err)
{
    if (s->patch < 1 || s->image < s->patch || s->image % s->patch != 0)
        return err_set(err, -ERR_CONFIG, "data.image_size %d must be a multiple of model.patch %d",
                       s->image, s->patch);
    if (model_tokens(s) > TOKENS_MAX)
        return err_set(err, -ERR_CONFIG,
                       "an image of %d pixels in patches of %d is %d tokens; at most %d", s->image,
                       s->patch, model_tokens(s), TOKENS_MAX);
    if (s->dim % 4 != 0)
        return err_set(err, -ERR_CONFIG, "model.dim %d must be a multiple of 4 from 4 to %d",
                       s->dim, DIM_MAX);
    if (s->classes < 1 || s->classes > MODEL_CLASSES_MAX)
        return err_set(err, -ERR_CONFIG, "%s %d classes; from 1 to %d are possible",
                       s->kind == MODEL_ROUTER ? "the router has" : "the dataset has", s->classes,
                       MODEL_CLASSES_MAX);
    return 0;
}

static int text_check(const struct model_spec *s, struct err *err)
{
    if (s->vocab < 2 || s->vocab > MODEL_VOCAB_MAX)
        return err_set(err, -ERR_CONFIG, "the dataset has %d token ids; from 2 to %d are possible",
                       s->vocab, MODEL_VOCAB_MAX);
    if (s->context < 2 || s->context > MODEL_CONTEXT_MAX)
        return err_set(err, -ERR_CONFIG, "model.context %d must be from 2 to %d", s->context,
                       MODEL_CONTEXT_MAX);
    if (s->kv_heads < 1 || s->heads % s->kv_heads != 0)
        return err_set(err, -ERR_CONFIG, "model.kv_heads %d must divide model.heads %d",
                       s->kv_heads, s->heads);
    /* Rotary positions turn pairs; and q, k, v (gate, up) are one product, so that they must
     * fill whole units of the flat vector. */
    if (s->dim / s->heads % 4 != 0 || s->mlp % 4 != 0)
        return err_set(err, -ERR_CONFIG,
                       "model.dim %d in %d heads is %d per head, and model.ffn is %d; both must be "
                       "multiples of 4",
                       s->dim, s->heads, s->dim / s->heads, s->mlp);
    if (!(s->rope_theta > 0) || !(s->norm_eps > 0))
        return err_set(err, -ERR_CONFIG, "model.rope_theta and model.norm_eps must be above 0");
    return 0;
}

static int spec_check(const struct model_spec *s, struct err *err)
{
    if (s->dim < 4 || s->dim > DIM_MAX)
        return err_set(err, -ERR_CONFIG, "model.dim %d must be from 4 to %d", s->dim, DIM_MAX);
    if (s->heads < 1 || s->dim % s->heads != 0)
        return err_set(err, -ERR_CONFIG, "model.heads %d must divide model.dim %d", s->heads,
                       s->dim);
    if (s->dim / s->heads > HEAD_DIM_MAX)
        return err_set(err, -ERR_CONFIG,
                       "model.dim %d in %d heads is %d per head; at most %d: use more heads",
                       s->dim, s->heads, s->dim / s->heads, HEAD_DIM_MAX);
    if (s->depth < 1 || s->depth > MODEL_BLOCKS_MAX)
        return err_set(err, -ERR_CONFIG, "model.depth %d must be from 1 to %d", s->depth,
                       MODEL_BLOCKS_MAX);
    if (s->mlp < 1 || s->mlp > 8 * DIM_MAX)
        return err_set(err, -ERR_CONFIG, "an MLP of width %d is out of range", s->mlp);
    int rc = model_is_text(s) ? text_check(s, err) : image_check(s, err);
    return rc < 0 ? rc : cut_check(s, err);
}

/* The sizes of the job's second network. */
static void router_sizes(const struct job_spec *job, const struct model_facts *f,
                         struct model_spec *s)
{
    s->kind = MODEL_ROUTER;
    s->patch = job->router.patch;
    s->dim = job->router.dim;
    s->depth = job->router.depth;
    s->heads = job->router.heads;
    s->mlp = (int)(job->router.dim * job->router.mlp_ratio);
    s->classes = job->router.classes > 0 ? job->router.classes : f->partitions;
}

static void main_sizes(const struct job_spec *job, const struct model_facts *f,
                       struct model_spec *s)
{
    const struct job_model *m = &job->model;
    s->dim = m->dim;
    s->depth = m->depth;
    s->heads = m->heads;
    if (m->type == JOB_MODEL_LLAMA) {
        s->kind = MODEL_LLAMA;
        s->mlp = m->ffn;
        s->vocab = (int)f->vocab;
        s->context = m->context;
        s->kv_heads = m->kv_heads;
        s->rope_theta = (float)m->rope_theta;
        s->norm_eps = (float)m->norm_eps;
        s->tied = m->tied;
        return;
    }
    s->kind = MODEL_DIT;
    s->patch = m->patch;
    s->mlp = (int)(m->dim * m->mlp_ratio);
    s->classes = f->classes;
}

int model_spec_from_job(const struct job_spec *job, const struct model_facts *facts,
                        struct model_spec *ret, struct err *err)
{
    struct model_spec s = {.cut = {.n_levels = 1}};
    if (facts->cut)
        s.cut = *facts->cut;
    if (facts->router || job->model.type == JOB_MODEL_DIT)
        s.image = job->data.image_size;
    if (facts->router)
        router_sizes(job, facts, &s);
    else
        main_sizes(job, facts, &s);
    int rc = spec_check(&s, err);
    if (rc == 0)
        *ret = s;
    return rc;
}

uint64_t model_tensor_end(const struct model_tensor *t)
{
    return t->offset + (t->count + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
}

static void place(struct model *m)
{
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < m->n; i++) {
            struct model_tensor *t = &m->tensors[i];
            if (t->decay != (pass == 0))
                continue;
            t->offset = m->flat;
            m->flat = model_tensor_end(t);
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
    size_t n = model_table_size(spec);
    m->tensors = mem_try_array(n, sizeof *m->tensors);
    if (!m->tensors) {
        model_free(m);
        return err_set(err, -ENOMEM, "no memory for the model's table of %zu tensors", n);
    }
    model_table_fill(m);
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
