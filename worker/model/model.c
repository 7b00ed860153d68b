#include "worker/model/model.h"

#include "common/job/family.h"
#include "common/base/pieces.h"
#include "common/base/rng.h"
#include "worker/model/model_family.h"

enum { ALIGN_ELEMENTS = 16 }; /* 64 bytes of f32 */

const struct model_family *model_family(const struct model_spec *s)
{
    static const struct model_family *const families[] = {
        [MODEL_DIT] = &model_dit,
        [MODEL_ROUTER] = &model_router,
        [MODEL_LLAMA] = &model_llama,
    };
    return families[s->kind];
}

bool model_is_text(const struct model_spec *s)
{
    return model_family(s)->text;
}

int model_tokens(const struct model_spec *s)
{
    return model_family(s)->tokens(s);
}

bool model_teaches(const struct model_spec *s)
{
    return model_family(s)->teaches;
}

void model_chain_specs(const struct model_spec *s, struct model_spec ret[MODEL_CHAINS])
{
    const struct model_upscaler *u = &s->upscaler;
    struct model_spec *base = &ret[0], *up = &ret[1];
    *base = *up = *s;
    base->upscaler = up->upscaler = (struct model_upscaler){0};
    base->cut.head_level = s->cut.block_level[s->depth - 1];
    up->dim = u->dim;
    up->depth = u->depth;
    up->heads = u->heads;
    up->mlp = u->mlp;
    up->image = u->image;
    up->patch = u->patch;
    up->self_condition = true; /* its small image takes the place of an estimate */
    memmove(up->cut.block_level, s->cut.block_level + s->depth, (size_t)u->depth);
    up->cut.embed_level = up->cut.block_level[0];
}

/* ---- sizes ---- */

/* Every block, the embedders and the head must be in an existing level, and no level empty. */
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
    for (int i = 0; i < model_blocks(s); i++) {
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

static int chain_check(const struct model_spec *s, struct err *err)
{
    if (s->dim < 4 || s->dim > MODEL_DIM_MAX)
        return err_set(err, -ERR_CONFIG, "model.dim %d must be from 4 to %d", s->dim,
                       MODEL_DIM_MAX);
    if (s->heads < 1 || s->dim % s->heads != 0)
        return err_set(err, -ERR_CONFIG, "model.heads %d must divide model.dim %d", s->heads,
                       s->dim);
    if (model_head_dim(s) > JOB_HEAD_WIDTH_MAX)
        return err_set(err, -ERR_CONFIG,
                       "model.dim %d in %d heads is %d per head; at most %d: use more heads",
                       s->dim, s->heads, model_head_dim(s), JOB_HEAD_WIDTH_MAX);
    if (s->depth < 1 || s->depth > MODEL_BLOCKS_MAX)
        return err_set(err, -ERR_CONFIG, "model.depth %d must be from 1 to %d", s->depth,
                       MODEL_BLOCKS_MAX);
    if (s->mlp < 1 || s->mlp > 8 * MODEL_DIM_MAX)
        return err_set(err, -ERR_CONFIG, "an MLP of width %d is out of range", s->mlp);
    return model_family(s)->check(s, err);
}

static int upscaler_check(const struct model_spec *s, struct err *err)
{
    const struct model_upscaler *u = &s->upscaler;
    struct model_spec chains[MODEL_CHAINS];
    if (s->kind != MODEL_DIT || s->channels != MODEL_PIXEL_CHANNELS || s->n_shapes > 0)
        return err_set(err, -ERR_CONFIG, "an upscaler needs a model of pixels, of one shape");
    if (u->depth < 0 || model_blocks(s) > MODEL_BLOCKS_MAX)
        return err_set(err, -ERR_CONFIG, "%d and %d blocks of two chains; at most %d are possible",
                       s->depth, u->depth, MODEL_BLOCKS_MAX);
    if (u->image <= s->image || u->image % s->image != 0)
        return err_set(err, -ERR_CONFIG,
                       "upscaler.low_side %d must divide data.image_size %d into parts", s->image,
                       u->image);
    if (!(u->noise >= 0 && u->noise < 1))
        return err_set(err, -ERR_CONFIG, "upscaler.noise %g must be from 0 to below 1",
                       (double)u->noise);
    model_chain_specs(s, chains);
    return chain_check(&chains[1], err);
}

static int spec_check(const struct model_spec *s, struct err *err)
{
    int rc = chain_check(s, err);
    if (rc == 0 && s->upscaler.depth != 0)
        rc = upscaler_check(s, err);
    return rc < 0 ? rc : cut_check(s, err);
}

int model_spec_from_job(const struct job_spec *job, const struct model_facts *facts,
                        struct model_spec *ret, struct err *err)
{
    static const enum model_kind kinds[] = {
        [JOB_MODEL_DIT] = MODEL_DIT,
        [JOB_MODEL_LLAMA] = MODEL_LLAMA,
    };
    if (job_family(job)->external)
        return err_set(err, -ERR_CONFIG, "model.type is external: only its trainer has the model");
    struct model_spec s = {.kind = facts->router ? MODEL_ROUTER : kinds[job->model.type],
                           .cut = {.n_levels = 1}};
    if (facts->cut)
        s.cut = *facts->cut;
    model_family(&s)->sizes(job, facts, &s);
    int rc = spec_check(&s, err);
    if (rc == 0)
        *ret = s;
    return rc;
}

/* ---- the table ---- */

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

static int one_chain(const struct model_spec *spec, struct model **ret, struct err *err)
{
    struct model *m = mem_try_zero(sizeof *m);
    if (!m)
        return err_set(err, -ENOMEM, "no memory for the model's table");
    m->spec = *spec;
    size_t n = model_family(spec)->tensors(spec);
    m->tensors = mem_try_array(n, sizeof *m->tensors);
    if (!m->tensors) {
        model_free(m);
        return err_set(err, -ENOMEM, "no memory for the model's table of %zu tensors", n);
    }
    model_family(spec)->fill(m);
    place(m);
    *ret = m;
    return 0;
}

/* Puts the tensors of m's chains in one flat vector; the chains then share the whole's tables. */
static int join_chains(struct model *m, struct err *err)
{
    for (int i = 0; i < MODEL_CHAINS; i++) {
        m->n += m->chains[i]->n;
        m->params += m->chains[i]->params;
    }
    m->tensors = mem_try_array(m->n, sizeof *m->tensors);
    if (!m->tensors)
        return err_set(err, -ENOMEM, "no memory for the model's table of %zu tensors", m->n);
    for (size_t i = 0, at = 0; i < MODEL_CHAINS; at += m->chains[i++]->n)
        memcpy(m->tensors + at, m->chains[i]->tensors, m->chains[i]->n * sizeof *m->tensors);
    place(m);
    for (size_t i = 0, at = 0; i < MODEL_CHAINS; at += m->chains[i++]->n) {
        struct model *c = m->chains[i];
        memcpy(c->tensors, m->tensors + at, c->n * sizeof *c->tensors);
        c->flat = m->flat;
        c->decayed = m->decayed;
    }
    return 0;
}

static int two_chains(struct model *m, struct err *err)
{
    struct model_spec specs[MODEL_CHAINS];
    int rc = 0;
    model_chain_specs(&m->spec, specs);
    for (int i = 0; i < MODEL_CHAINS && rc == 0; i++)
        rc = one_chain(&specs[i], &m->chains[i], err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < m->chains[1]->n; i++) {
        struct model_tensor *t = &m->chains[1]->tensors[i];
        const struct model_tensor plain = *t;
        (void)snprintf(t->name, sizeof t->name, MODEL_UPSCALER "%.*s",
                       (int)(sizeof t->name - sizeof MODEL_UPSCALER), plain.name);
    }
    return join_chains(m, err);
}

int model_new(const struct model_spec *spec, struct model **ret, struct err *err)
{
    int rc = spec_check(spec, err);
    if (rc < 0 || !model_has_upscaler(spec))
        return rc < 0 ? rc : one_chain(spec, ret, err);
    struct model *m = mem_try_zero(sizeof *m);
    if (!m)
        return err_set(err, -ENOMEM, "no memory for the model's table");
    m->spec = *spec;
    rc = two_chains(m, err);
    if (rc < 0) {
        model_free(m);
        return rc;
    }
    *ret = m;
    return 0;
}

/* The block of tensor i; -1: the embedders, depth: the head. */
static int block_of(const struct model *m, size_t i)
{
    int first, each;
    model_family(&m->spec)->blocks(&m->spec, &first, &each);
    const int at = (int)i < first ? -1 : ((int)i - first) / each;
    return at < m->spec.depth ? at : m->spec.depth;
}

static bool in_part(const struct model *m, struct model_part part, size_t i)
{
    const int block = block_of(m, i);
    if (block < 0 || block == m->spec.depth)
        return block < 0 ? part.from == 0 : part.to == block;
    return block >= part.from && block < part.to;
}

static int chain_part(const struct model *m, struct model_part part, struct model *p,
                      struct err *err)
{
    if (!model_part_is_none(part) &&
        (part.from < 0 || part.from >= part.to || part.to > m->spec.depth))
        return err_set(err, -EINVAL, "blocks %d to %d of %d", part.from, part.to, m->spec.depth);
    if (m->spec.tied && (part.from > 0 || part.to < m->spec.depth))
        return err_set(err, -EINVAL, "a network whose head is its embedding cannot be cut");
    p->tensors = mem_try_array(m->n, sizeof *p->tensors);
    if (!p->tensors)
        return err_set(err, -ENOMEM, "no memory for the table of a part");
    p->n = m->n;
    memcpy(p->tensors, m->tensors, m->n * sizeof *p->tensors);
    for (size_t i = 0; i < p->n; i++) {
        if (!in_part(m, part, i))
            p->tensors[i].count = 0;
        p->params += p->tensors[i].count;
    }
    place(p);
    return 0;
}

int model_part_new(const struct model *m, const struct model_part *parts, struct model **ret,
                   struct err *err)
{
    struct model *p = mem_try_zero(sizeof *p);
    int rc = p ? 0 : err_set(err, -ENOMEM, "no memory for the table of a part");
    if (rc < 0)
        return rc;
    p->spec = m->spec;
    p->part = parts[0];
    if (!model_has_upscaler(&m->spec))
        rc = chain_part(m, parts[0], p, err);
    for (int i = 0; i < MODEL_CHAINS && m->chains[i] && rc == 0; i++)
        rc = model_part_new(m->chains[i], &parts[i], &p->chains[i], err);
    if (rc == 0 && model_has_upscaler(&m->spec))
        rc = join_chains(p, err);
    if (rc < 0) {
        model_free(p);
        return rc;
    }
    *ret = p;
    return 0;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    for (int i = 0; i < MODEL_CHAINS; i++)
        model_free(m->chains[i]);
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

uint64_t model_largest(const struct model *m)
{
    uint64_t most = 0;
    for (size_t i = 0; i < m->n; i++)
        most = m->tensors[i].count > most ? m->tensors[i].count : most;
    return most;
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

static void init_tensors(const struct model *m, uint64_t seed, float *flat)
{
    for (size_t i = 0; i < m->n; i++) {
        const struct model_tensor *t = &m->tensors[i];
        model_family(&m->spec)->init(t, &m->spec, seed, name_stream(t->name), flat + t->offset);
        pieces_done();
    }
}

void model_init(const struct model *m, uint64_t seed, float *flat)
{
    memset(flat, 0, m->flat * sizeof *flat);
    if (!model_has_upscaler(&m->spec))
        init_tensors(m, seed, flat);
    for (int i = 0; i < MODEL_CHAINS && m->chains[i]; i++)
        init_tensors(m->chains[i], seed, flat);
}
