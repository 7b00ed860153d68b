#include "common/job/job.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "common/job/job_keys.h"
#include "common/job/recipe.h"

#define TOKENS_MAX 4096
#define URL_MAX 2048

/* Peebles & Xie, "Scalable diffusion models with transformers", table 1. */
static const struct preset {
    const char *name;
    int patch, dim, depth, heads;
} presets[] = {
    {"DiT-S/2", 2, 384, 12, 6},    {"DiT-S/4", 4, 384, 12, 6},    {"DiT-S/8", 8, 384, 12, 6},
    {"DiT-B/2", 2, 768, 12, 12},   {"DiT-B/4", 4, 768, 12, 12},   {"DiT-B/8", 8, 768, 12, 12},
    {"DiT-L/2", 2, 1024, 24, 16},  {"DiT-L/4", 4, 1024, 24, 16},  {"DiT-L/8", 8, 1024, 24, 16},
    {"DiT-XL/2", 2, 1152, 28, 16}, {"DiT-XL/4", 4, 1152, 28, 16}, {"DiT-XL/8", 8, 1152, 28, 16},
};
#define N_PRESETS (sizeof(presets) / sizeof(presets[0]))

static int find_preset(const struct yaml_doc *doc, const char *name, const struct preset **ret,
                       struct err *err)
{
    const char *names[N_PRESETS];
    char hint[STR_HINT_MAX];
    for (size_t i = 0; i < N_PRESETS; i++) {
        names[i] = presets[i].name;
        if (strcmp(name, names[i]) == 0) {
            *ret = &presets[i];
            return 0;
        }
    }
    return conf_error(doc, "model.preset", err,
                      "is '%.64s', expected DiT-S, DiT-B, DiT-L or DiT-XL with /2, /4 or /8%s",
                      name, str_hint(name, names, N_PRESETS, "", hint));
}

static int apply_preset(const struct yaml_doc *doc, struct job_model *m, struct err *err)
{
    const struct preset *p = NULL;
    int rc = find_preset(doc, m->preset, &p, err);
    if (rc < 0)
        return rc;
    const struct {
        const char *path;
        int *field;
        int value;
    } sets[] = {
        {"model.patch", &m->patch, p->patch},
        {"model.dim", &m->dim, p->dim},
        {"model.depth", &m->depth, p->depth},
        {"model.heads", &m->heads, p->heads},
    };
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
        if (conf_find(doc, sets[i].path) && *sets[i].field != sets[i].value)
            return conf_error(doc, sets[i].path, err,
                              "is %d, but preset %s says %d; leave out one of the two",
                              *sets[i].field, p->name, sets[i].value);
        *sets[i].field = sets[i].value;
    }
    return 0;
}

static int check_heads(const struct yaml_doc *doc, const struct job_model *m, struct err *err)
{
    static const char *const needed[] = {"model.dim", "model.depth", "model.heads"};
    for (size_t i = 0; !m->preset && i < 3; i++)
        if (!conf_find(doc, needed[i]))
            return conf_error(doc, needed[i], err,
                              "is missing; give it, or a model.preset such as DiT-S/2");
    if (m->dim % m->heads)
        return conf_error(doc, "model.heads", err,
                          "is %d, which does not divide model.dim (%d): every head needs the same "
                          "whole width",
                          m->heads, m->dim);
    return 0;
}

static int check_llama(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    struct job_model *m = &s->model;
    if (m->preset)
        return conf_error(doc, "model.preset", err,
                          "is %s, which is a dit; give model.dim, depth and heads of a llama",
                          m->preset);
    int rc = check_heads(doc, m, err);
    if (rc < 0)
        return rc;
    if (m->kv_heads == 0)
        m->kv_heads = m->heads;
    if (m->heads % m->kv_heads)
        return conf_error(doc, "model.kv_heads", err,
                          "is %d, which does not divide model.heads (%d)", m->kv_heads, m->heads);
    if (m->dim / m->heads % 4)
        return conf_error(doc, "model.heads", err,
                          "is %d, which gives heads of width %d; a multiple of 4 is needed",
                          m->heads, m->dim / m->heads);
    if (m->ffn == 0)
        m->ffn = (m->dim * 8 / 3 + 31) / 32 * 32;
    if (m->ffn % 4)
        return conf_error(doc, "model.ffn", err, "is %d; a multiple of 4 is needed", m->ffn);
    return 0;
}

/* The router is as the model, but smaller. */
static int complete_router(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    const struct job_model *m = &s->model;
    struct job_router *r = &s->router;
    int twice = 2 * m->patch;
    if (r->patch == 0)
        r->patch =
            s->data.image_size % twice == 0 && s->data.image_size / twice >= 4 ? twice : m->patch;
    if (r->depth == 0)
        r->depth = (m->depth + 1) / 2;
    if (r->heads == 0)
        r->heads = m->heads;
    if (r->dim == 0) {
        r->dim = m->dim / 2;
        while (r->heads > 1 && (r->dim % r->heads || r->dim / r->heads < 16))
            r->heads--;
        r->dim += (4 - r->dim % 4) % 4;
    }
    if (r->lr == 0)
        r->lr = s->train.lr;
    if (r->dim % r->heads || r->dim % 4)
        return conf_error(doc, "router.dim", err,
                          "is %d, expected a multiple of 4 and of router.heads (%d)", r->dim,
                          r->heads);
    if (s->data.image_size % r->patch)
        return conf_error(doc, "router.patch", err,
                          "is %d, which does not divide data.image_size (%d)", r->patch,
                          s->data.image_size);
    double hidden = r->dim * r->mlp_ratio;
    if (hidden != floor(hidden))
        return conf_error(doc, "router.mlp_ratio", err,
                          "is %g, but %g x router.dim (%d) is not a whole number", r->mlp_ratio,
                          r->mlp_ratio, r->dim);
    return 0;
}

static int check_dit(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    struct job_model *m = &s->model;
    if (s->data.image_size == 0)
        return conf_error(doc, "data.image_size", err,
                          "is missing; give the side in pixels that images are scaled to");
    int rc = m->preset ? apply_preset(doc, m, err) : 0;
    if (rc == 0)
        rc = check_heads(doc, m, err);
    if (rc < 0)
        return rc;
    if (m->dim % 4)
        return conf_error(
            doc, "model.dim", err,
            "is %d, expected a multiple of 4 (two sines and two cosines per position)", m->dim);
    double hidden = m->dim * m->mlp_ratio;
    if (hidden != floor(hidden))
        return conf_error(doc, "model.mlp_ratio", err,
                          "is %g, but %g x model.dim (%d) is not a whole number", m->mlp_ratio,
                          m->mlp_ratio, m->dim);
    if (s->data.image_size % m->patch)
        return conf_error(doc, "model.patch", err,
                          "is %d, which does not divide data.image_size (%d)", m->patch,
                          s->data.image_size);
    if (job_tokens(s) > TOKENS_MAX)
        return conf_error(doc, "model.patch", err,
                          "is %d, which cuts %d x %d pixels into %d tokens, at most %d are "
                          "possible; use a larger patch",
                          m->patch, s->data.image_size, s->data.image_size, job_tokens(s),
                          TOKENS_MAX);
    return complete_router(doc, s, err);
}

static int check_model(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    return s->model.type == JOB_MODEL_LLAMA ? check_llama(doc, s, err) : check_dit(doc, s, err);
}

static int check_partition(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    const struct job_partition *p = &s->partition;
    bool text = s->model.type == JOB_MODEL_LLAMA;
    if ((p->features == JOB_FEATURES_COLUMN) != (p->column != NULL))
        return conf_error(doc, p->column ? "partition.features" : "partition.column", err,
                          "is missing; features: column and the column's name go together");
    if (p->features == JOB_FEATURES_MODEL && s->model.warm_start == NULL)
        return conf_error(doc, "partition.features", err,
                          "is model, but there is no model.warm_start to take features from");
    if (p->features == (text ? JOB_FEATURES_PIXELS : JOB_FEATURES_NGRAMS))
        return conf_error(doc, "partition.features", err, "is %s, which %s do not have",
                          job_features_name(p->features), text ? "texts" : "images");
    if (p->balance > 0 && p->balance < 1)
        return conf_error(doc, "partition.balance", err,
                          "is %g; the largest partition is at least the mean: expected 0 or >= 1",
                          p->balance);
    if (p->chunk > 0 && (!text || p->chunk > s->model.context))
        return conf_error(doc, "partition.chunk", err,
                          "is %d, expected 0, or for texts at most model.context (%d)", p->chunk,
                          s->model.context);
    if (s->outer.delay > 0 && s->outer.steps && s->outer.delay >= s->outer.steps)
        return conf_error(doc, "outer.delay", err,
                          "is %d, expected fewer than the %d steps of a phase", s->outer.delay,
                          s->outer.steps);
    bool parts = s->outer.fragments > 1 || s->outer.delay > 0 || s->outer.mix > 0;
    if (parts && !s->outer.steps)
        return conf_error(doc, "outer.fragments", err,
                          "or outer.delay or outer.mix needs phases bounded by outer.steps");
    if (parts && s->outer.async)
        return conf_error(doc, "outer.async", err,
                          "and outer.fragments, outer.delay or outer.mix are both given; leave "
                          "out one");
    if (s->recipe.early_stop && s->eval.every == 0)
        return conf_error(doc, "recipe.early_stop", err, "needs eval.every of at least 1");
    if (s->recipe.early_stop && s->outer.async)
        return conf_error(doc, "recipe.early_stop", err,
                          "keeps the best of the rounds, which outer.async has not; leave out one");
    return 0;
}

static int check_name(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    if (str_is_name(s->name, 64))
        return 0;
    return conf_error(doc, "name", err,
                      "is '%.80s', expected 1 to 64 of A-Z a-z 0-9 . _ -, starting with a "
                      "letter or digit",
                      s->name);
}

static int check_data(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    const struct job_data *d = &s->data;
    if (d->path && !*d->path)
        return conf_error(doc, "data.path", err, "is empty, expected a folder or a tar");
    if (!d->path && d->url.n == 0)
        return conf_error(doc, "data.path", err,
                          "is missing; give a folder or tars, or data.url with http(s) tars");
    if (d->path && d->url.n)
        return conf_error(doc, "data.url", err, "and data.path are both given; leave out one");
    for (size_t i = 0; i < d->url.n; i++) {
        const char *url = d->url.items[i];
        if (!str_starts(url, "http://") && !str_starts(url, "https://"))
            return conf_error(doc, "data.url", err,
                              "holds '%.200s', expected an address that starts with http:// or "
                              "https://",
                              url);
        if (strlen(url) > URL_MAX)
            return conf_error(doc, "data.url", err, "holds an address of more than %d bytes",
                              URL_MAX);
    }
    return 0;
}

static int check_training(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    if (s->train.accumulate && s->train.batch % s->train.accumulate)
        return conf_error(doc, "train.accumulate", err,
                          "is %d, which does not divide train.batch (%d); use auto or a divisor",
                          s->train.accumulate, s->train.batch);
    if (s->outer.steps && s->outer.seconds)
        return conf_error(doc, "outer.seconds", err,
                          "and outer.steps are both given; leave out "
                          "one");
    if (!s->outer.steps && !s->outer.seconds)
        return conf_error(doc, "outer.steps", err,
                          "is missing; give the inner steps of a phase, "
                          "or outer.seconds");
    if (!str_is_name(s->recipe.name, 64))
        return conf_error(doc, "recipe.name", err, "is '%.80s', expected a name such as diloco",
                          s->recipe.name);
    if (s->eval.every && s->data.holdout == 0 && !s->data.holdout_path)
        return conf_error(doc, "eval.every", err,
                          "is %d, but data.holdout is 0: there is nothing to evaluate on",
                          s->eval.every);
    if (s->model.label_dropout == 0 && s->sample.guidance != 1) {
        if (conf_find(doc, "sample.guidance"))
            return conf_error(doc, "sample.guidance", err,
                              "is %g, but with model.label_dropout 0 the model never learns to do "
                              "without a label; use guidance 1",
                              s->sample.guidance);
        s->sample.guidance = 1;
    }
    return 0;
}

/* What says which model it is, and how it is composed. */
static const char *const shape_keys[] = {
    "name",        "model",        "router",          "recipe",
    "data.path",   "data.url",     "data.tokenizer",  "data.image_size",
    "train.batch", "outer.rounds", "outer.fragments", "outer.async",
    NULL};

static const struct {
    int (*check)(const struct yaml_doc *doc, struct job_spec *s, struct err *err);
    bool shape; /* of the shape, which a saved job must have, too */
} checks[] = {
    {check_name, true},      {check_data, false},      {check_model, true},
    {check_training, false}, {check_partition, false},
};

static int parse(const char *text, size_t len, const char *file, bool saved, struct job_spec *ret,
                 struct err *err)
{
    struct job_spec spec = {0};
    struct yaml_doc doc;
    *ret = spec;
    if (len > JOB_SPEC_MAX)
        return err_set(err, -ERR_LIMIT, "%s has %zu bytes; a job file has at most %d", file, len,
                       JOB_SPEC_MAX);
    int rc = yaml_parse(text, len, file, &doc, err);
    if (rc < 0)
        return rc;
    rc = saved ? conf_bind_saved(&doc, doc.root, job_spec_keys, shape_keys, &spec, err)
               : conf_bind(&doc, doc.root, job_spec_keys, &spec, err);
    for (size_t i = 0; rc >= 0 && i < sizeof(checks) / sizeof(checks[0]); i++) {
        int refused = checks[i].check(&doc, &spec, rc ? NULL : err); /* the first is told */
        if (refused < 0)
            rc = saved && !checks[i].shape ? 1 : refused;
    }
    yaml_release(&doc);
    if (rc < 0)
        job_release(&spec);
    *ret = spec;
    return rc;
}

int job_parse(const char *text, size_t len, const char *file, struct job_spec *ret, struct err *err)
{
    return parse(text, len, file, false, ret, err);
}

int job_parse_saved(const char *text, size_t len, const char *file, struct job_spec *ret,
                    struct err *err)
{
    return parse(text, len, file, true, ret, err);
}

void job_release(struct job_spec *spec)
{
    conf_release(job_spec_keys, spec);
    *spec = (struct job_spec){0};
}

int job_tokens(const struct job_spec *spec)
{
    if (spec->model.type == JOB_MODEL_LLAMA)
        return spec->model.context;
    int side = spec->data.image_size / spec->model.patch;
    return side * side;
}

/* ---- keys that are written and would be without effect ---- */

static const char *const llama_keys[] = {
    "model.kv_heads",     "model.ffn",    "model.context",   "model.rope_theta",
    "model.norm_eps",     "model.tied",   "sample.prompt",   "sample.tokens",
    "sample.temperature", "sample.top_p", "data.text_field",
};
static const char *const dit_keys[] = {
    "data.image_size",     "data.flip",      "model.patch",     "model.mlp_ratio",
    "model.label_dropout", "train.t",        "sample.steps",    "sample.sampler",
    "sample.guidance",     "sample.columns", "sample.strategy", "sample.remote",
};

/* The sections `router` and `partition` are not among them: one file with either may be run with
 * each recipe in turn. */
static const char *const mixture_keys[] = {"sample.strategy", "sample.remote",
                                           "recipe.divide_batch"};

static int refuse(const struct yaml_doc *doc, const char *const *keys, size_t n, const char *whose,
                  const char *type, struct err *err)
{
    for (size_t i = 0; i < n; i++)
        if (conf_find(doc, keys[i]))
            return conf_error(doc, keys[i], err,
                              "is of %s alone, but model.type is %s: it would do nothing; leave "
                              "it out",
                              whose, type);
    return 0;
}

/* The schedule that a key shapes, if the job has another. */
static int check_schedule(const struct yaml_doc *doc, const struct job_spec *s, struct err *err)
{
    if (s->train.schedule != JOB_SCHEDULE_COSINE && conf_find(doc, "train.final_lr"))
        return conf_error(doc, "train.final_lr", err,
                          "is of train.schedule cosine alone: it would do nothing; leave it out");
    if (s->train.schedule != JOB_SCHEDULE_DECAY && conf_find(doc, "train.decay_fraction"))
        return conf_error(doc, "train.decay_fraction", err,
                          "is of train.schedule decay alone: it would do nothing; leave it out");
    return 0;
}

static int check_mixture(const struct yaml_doc *doc, const struct job_spec *s, struct err *err)
{
    for (size_t i = 0; i < sizeof(mixture_keys) / sizeof(*mixture_keys); i++)
        if (!recipe_mixes(s->recipe.name) && conf_find(doc, mixture_keys[i]))
            return conf_error(doc, mixture_keys[i], err,
                              "is of mixtures of experts alone, and recipe.name is %.80s: it would "
                              "do nothing; leave it out",
                              s->recipe.name);
    return 0;
}

static int check_scope(const struct yaml_doc *doc, const struct job_spec *s, struct err *err)
{
    bool text = s->model.type == JOB_MODEL_LLAMA;
    int rc =
        text ? refuse(doc, dit_keys, sizeof(dit_keys) / sizeof(*dit_keys), "images", "llama", err)
             : refuse(doc, llama_keys, sizeof(llama_keys) / sizeof(*llama_keys), "texts", "dit",
                      err);
    if (rc == 0)
        rc = check_schedule(doc, s, err);
    if (rc == 0)
        rc = check_mixture(doc, s, err);
    if (rc == 0 && s->outer.async && conf_find(doc, "outer.quorum"))
        rc = conf_error(doc, "outer.quorum", err,
                        "is for rounds, which outer.async has not; leave it out");
    if (rc == 0 && s->outer.async && s->outer.seconds == 0 && conf_find(doc, "outer.grace"))
        rc = conf_error(doc, "outer.grace", err,
                        "is with outer.async for phases of outer.seconds; leave it out");
    if (rc == 0 && !s->outer.async && conf_find(doc, "outer.nesterov_delay"))
        rc = conf_error(doc, "outer.nesterov_delay", err,
                        "is for outer.async, which is false: it would do nothing; leave it out");
    return rc;
}

int job_check_scope(const char *text, size_t len, const char *file, const struct job_spec *spec,
                    struct err *err)
{
    struct yaml_doc doc;
    int rc = yaml_parse(text, len, file, &doc, err);
    if (rc < 0)
        return rc;
    rc = check_scope(&doc, spec, err);
    yaml_release(&doc);
    return rc;
}
