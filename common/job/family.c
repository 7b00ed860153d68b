#include "common/job/family.h"

#include "common/job/conf.h"
#include "common/job/recipe.h"

#define LR_LEAST 1e-4       /* wide models take what they always took */
#define WARM_START_STEPS 10 /* until Adam's moments, which begin empty, are of use */
#define TEXT_DECAY_STEPS 5000
#define TOKENS_MAX 4096
#define PROMPTS_MAX 8192  /* bytes of a prompt, or of all captions together (SampleTask.prompt) */
#define CAPTIONS_MAX 1024 /* captions of a grid, as many as samples */

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

double job_lr(bool texts, bool warm, int dim, double tokens)
{
    const double fresh = texts ? 0.1 * fmin(fmax(cbrt(tokens / 512), 1), 2) : 0.5;
    return fmax(fresh / (warm ? 2 * dim : dim), LR_LEAST);
}

int job_schedule(bool texts, bool warm, double steps)
{
    return texts && (warm || steps < TEXT_DECAY_STEPS) ? JOB_SCHEDULE_CONSTANT : JOB_SCHEDULE_DECAY;
}

/* Jobs from before defaults were written into job files had half of the rate for a dit, that of
 * small batches for a llama, no decay and no warm-up. */
static void complete_train(const struct yaml_doc *doc, struct job_spec *s)
{
    const bool texts = job_is_text(s), warm = s->model.warm_start != NULL;
    const double tokens = s->taken ? 0 : (double)s->train.batch * s->model.context;
    if (!conf_find(doc, "train.lr"))
        s->train.lr = job_lr(texts, s->taken ? !texts : warm, s->model.dim, tokens);
    if (!conf_find(doc, "train.schedule") && !s->taken)
        s->train.schedule =
            job_schedule(texts, warm, (double)s->outer.rounds * (double)s->outer.steps);
    if (!conf_find(doc, "train.warmup") && warm && !s->taken)
        s->train.warmup = WARM_START_STEPS;
}

/* Workers refuse to draw longer prompts; an old job with one goes on training. */
static int check_prompt(const struct yaml_doc *doc, const struct job_spec *s, struct err *err)
{
    const size_t n = s->sample.prompt ? strlen(s->sample.prompt) : 0;
    return n <= PROMPTS_MAX || s->taken
               ? 0
               : conf_error(doc, "sample.prompt", err, "has %zu bytes, at most %d are possible", n,
                            PROMPTS_MAX);
}

static int check_llama(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    struct job_model *m = &s->model;
    if (m->preset)
        return conf_error(doc, "model.preset", err,
                          "is %s, which is a dit; give model.dim, depth and heads of a llama",
                          m->preset);
    int rc = check_heads(doc, m, err);
    if (rc == 0)
        rc = check_prompt(doc, s, err);
    if (rc < 0)
        return rc;
    complete_train(doc, s);
    if (m->kv_heads == 0)
        m->kv_heads = m->heads;
    if (m->heads % m->kv_heads)
        return conf_error(doc, "model.kv_heads", err,
                          "is %d, which does not divide model.heads (%d)", m->kv_heads, m->heads);
    if (m->head_dim % 4 || m->dim % 4)
        return conf_error(doc, m->dim % 4 ? "model.dim" : "model.head_dim", err,
                          "is %d; a multiple of 4 is needed", m->dim % 4 ? m->dim : m->head_dim);
    if (m->head_dim == 0)
        m->head_dim = m->dim / m->heads;
    if (m->head_dim % 4)
        return conf_error(doc, "model.heads", err,
                          "is %d, which gives heads of width %d; a multiple of 4 is needed",
                          m->heads, m->head_dim);
    if (m->qkv_bias && m->head_dim * m->kv_heads % 16)
        return conf_error(doc, "model.qkv_bias", err,
                          "needs keys whose width is a multiple of 16, but %d heads are %d wide",
                          m->kv_heads, m->head_dim * m->kv_heads);
    if (m->qkv_bias && m->qk_norm)
        return conf_error(doc, "model.qk_norm", err,
                          "is true, and so is model.qkv_bias, but no model that is exported has "
                          "both; leave out one");
    if (m->no_rope_layer_interval && (m->qkv_bias || m->qk_norm))
        return conf_error(doc, "model.no_rope_layer_interval", err,
                          "is %d, and model.%s is true, but no model that is exported has both; "
                          "leave out one",
                          m->no_rope_layer_interval, m->qk_norm ? "qk_norm" : "qkv_bias");
    if (m->ffn == 0)
        m->ffn = (m->dim * 8 / 3 + 31) / 32 * 32;
    if (m->ffn % 4)
        return conf_error(doc, "model.ffn", err, "is %d; a multiple of 4 is needed", m->ffn);
    if (m->rope_scaling.low_freq_factor >= m->rope_scaling.high_freq_factor)
        return conf_error(doc, "model.rope_scaling.high_freq_factor", err,
                          "is %g, expected more than low_freq_factor (%g)",
                          m->rope_scaling.high_freq_factor, m->rope_scaling.low_freq_factor);
    return 0;
}

/* The side of the model's images in pixels. */
static int side_of(const struct job_spec *s)
{
    return job_has_upscaler(s) ? s->upscaler.low_side : s->data.image_size;
}

static const char *side_key(const struct job_spec *s)
{
    return job_has_upscaler(s) ? "upscaler.low_side" : "data.image_size";
}

/* True if the patch divides the sides of all shapes. */
static bool divides_all(const struct job_spec *s, int patch)
{
    bool all = side_of(s) % patch == 0;
    for (size_t i = 0; i < s->data.buckets.n; i++) {
        const struct job_shape h = job_bucket(s, i);
        all = all && h.width % patch == 0 && h.height % patch == 0;
    }
    return all;
}

/* Sets the router's sizes that the file leaves out: a smaller version of the model. */
static int complete_router(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    const struct job_model *m = &s->model;
    struct job_router *r = &s->router;
    int twice = 2 * m->patch;
    if (r->patch == 0)
        r->patch = divides_all(s, twice) && side_of(s) / twice >= 4 ? twice : m->patch;
    if (r->depth == 0)
        r->depth = (m->depth + 1) / 2;
    if (r->heads == 0)
        r->heads = m->heads;
    if (r->dim == 0) {
        const int half = m->dim / 2;
        r->dim = half + (4 - half % 4) % 4;
        while (r->heads > 1 && (half % r->heads || r->dim % r->heads || half / r->heads < 16))
            r->heads--;
    }
    if (r->lr == 0)
        r->lr = s->train.lr;
    if (r->dim % r->heads || r->dim % 4)
        return conf_error(doc, "router.dim", err,
                          "is %d, expected a multiple of 4 and of router.heads (%d)", r->dim,
                          r->heads);
    if (!job_has_latents(s) && !divides_all(s, r->patch))
        return conf_error(doc, "router.patch", err, "is %d, which does not divide %s (%d)%s",
                          r->patch, side_key(s), side_of(s),
                          s->data.buckets.n ? " and all of data.buckets" : "");
    double hidden = r->dim * r->mlp_ratio;
    if (hidden != floor(hidden))
        return conf_error(doc, "router.mlp_ratio", err,
                          "is %g, but %g x router.dim (%d) is not a whole number", r->mlp_ratio,
                          r->mlp_ratio, r->dim);
    return 0;
}

/* Checks which keys of `encoders` go together, and with the model. */
static int check_encoders(const struct yaml_doc *doc, const struct job_spec *s, struct err *err)
{
    const struct job_encoders *e = &s->encoders;
    static const char *const parts[] = {"encoders.vae", "encoders.text", "encoders.tokenizer"};
    for (size_t i = 0; e->path && i < 3; i++)
        if (conf_find(doc, parts[i]))
            return conf_error(doc, parts[i], err,
                              "and encoders.path are both given; leave out one");
    if (e->tokenizer && !e->text)
        return conf_error(doc, "encoders.tokenizer", err,
                          "is given without encoders.text; give the text encoder, too");
    if (job_has_captions(s) && s->model.dim % 16)
        return conf_error(doc, "model.dim", err,
                          "is %d, expected a multiple of 16 for a model that is told captions",
                          s->model.dim);
    const bool keeps = e->run == JOB_ENCODE_WORKER || e->run == JOB_ENCODE_JOB;
    if (keeps && !job_has_latents(s))
        return conf_error(doc, "encoders.run", err,
                          "keeps latents, but there is no encoders.vae to make them");
    if (keeps && s->data.crop == JOB_CROP_RANDOM)
        return conf_error(
            doc, "encoders.run", err,
            "keeps latents, but with data.crop: random each pass has other latents; use fly");
    size_t prompts = 0;
    for (size_t i = 0; i < s->sample.prompts.n; i++) {
        prompts += strlen(s->sample.prompts.items[i]) + 1;
        if (strchr(s->sample.prompts.items[i], '\n'))
            return conf_error(doc, "sample.prompts", err,
                              "holds a caption of two lines; write it in one");
    }
    if (s->sample.prompts.n > CAPTIONS_MAX)
        return conf_error(doc, "sample.prompts", err, "has %zu captions, at most %d are possible",
                          s->sample.prompts.n, CAPTIONS_MAX);
    if (prompts > PROMPTS_MAX)
        return conf_error(doc, "sample.prompts", err, "has %zu bytes, at most %d are possible",
                          prompts, PROMPTS_MAX);
    if (s->sample.prompts.n > 0 && !job_has_captions(s))
        return conf_error(doc, "sample.prompts", err,
                          "is given, but there is no encoders.text to read them");
    return 0;
}

/* Checks the shapes, as far as possible without the VAE. */
static int check_buckets(const struct yaml_doc *doc, const struct job_spec *s, struct err *err)
{
    const int patch = s->model.patch, size = s->data.image_size;
    const struct conf_strs *b = &s->data.buckets;
    if (b->n > JOB_BUCKETS_MAX)
        return conf_error(doc, "data.buckets", err, "has %zu shapes, at most %d are possible", b->n,
                          JOB_BUCKETS_MAX);
    for (size_t i = 0; i < b->n; i++) {
        const struct job_shape h = job_bucket(s, i);
        if (h.width == 0)
            return conf_error(doc, "data.buckets", err,
                              "holds '%s', expected WIDTHxHEIGHT in pixels, as 320x192",
                              b->items[i]);
        if (h.width % patch || h.height % patch)
            return conf_error(doc, "data.buckets", err,
                              "holds %s, expected sides that are multiples of model.patch (%d)",
                              b->items[i], patch);
        if ((int64_t)h.width * h.height > (int64_t)size * size)
            return conf_error(doc, "data.buckets", err,
                              "holds %s, which has more pixels than data.image_size %d squared; "
                              "raise it, or give a smaller shape",
                              b->items[i], size);
        for (size_t k = 0; k < i; k++) {
            const struct job_shape o = job_bucket(s, k);
            if (o.width == h.width && o.height == h.height)
                return conf_error(doc, "data.buckets", err, "holds %s twice", b->items[i]);
        }
    }
    return 0;
}

static int patches(const struct job_spec *s)
{
    const int side = side_of(s) / s->model.patch;
    return job_has_latents(s) ? 0 : side * side;
}

/* Checks for keys that an upscaler excludes. */
static int check_beside_upscaler(const struct yaml_doc *doc, const struct job_spec *s,
                                 struct err *err)
{
    if (job_has_latents(s))
        return conf_error(
            doc, "upscaler.low_side", err,
            "is given with encoders.vae, but both chains read pixels; give only encoders.text");
    if (s->data.buckets.n > 0)
        return conf_error(
            doc, "upscaler.low_side", err,
            "is given with data.buckets, but an upscaler takes only square images; leave out one");
    return 0;
}

static int check_upscaler_sizes(const struct yaml_doc *doc, const struct job_spec *s,
                                struct err *err)
{
    const struct job_upscaler *u = &s->upscaler;
    const int size = s->data.image_size;
    if (u->dim % u->heads || u->dim % 4)
        return conf_error(doc, "upscaler.dim", err,
                          "is %d, expected a multiple of 4 and of upscaler.heads (%d)", u->dim,
                          u->heads);
    if (job_has_captions(s) && u->dim % 16)
        return conf_error(doc, "upscaler.dim", err,
                          "is %d, expected a multiple of 16 for a model that is told captions",
                          u->dim);
    const double hidden = u->dim * s->model.mlp_ratio;
    if (hidden != floor(hidden))
        return conf_error(doc, "model.mlp_ratio", err,
                          "is %g, but %g x upscaler.dim (%d) is not a whole number",
                          s->model.mlp_ratio, s->model.mlp_ratio, u->dim);
    if (size % u->patch)
        return conf_error(doc, "upscaler.patch", err,
                          "is %d, which does not divide data.image_size (%d)", u->patch, size);
    if (size / u->patch * (size / u->patch) > TOKENS_MAX)
        return conf_error(doc, "upscaler.patch", err,
                          "is %d, which cuts %d x %d pixels into more than %d tokens; use a "
                          "larger patch",
                          u->patch, size, size, TOKENS_MAX);
    if (job_blocks(s) > COMPOSITION_BLOCKS_MAX)
        return conf_error(doc, "upscaler.depth", err,
                          "is %d, which makes %d blocks with those of the model; at most %d are "
                          "possible",
                          u->depth, job_blocks(s), COMPOSITION_BLOCKS_MAX);
    return 0;
}

/* Sets the upscaler's sizes that the file leaves out: those of the model. */
static int complete_upscaler(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    const struct job_model *m = &s->model;
    struct job_upscaler *u = &s->upscaler;
    const int size = s->data.image_size;
    if (!job_has_upscaler(s))
        return !conf_find(doc, "upscaler")
                   ? 0
                   : conf_error(doc, "upscaler.low_side", err,
                                "is missing; give the side in pixels that the model draws");
    if (u->low_side >= size || size % u->low_side)
        return conf_error(doc, "upscaler.low_side", err,
                          "is %d, which does not divide data.image_size (%d) into parts",
                          u->low_side, size);
    const struct {
        int *field, as;
    } sets[] = {
        {&u->patch, m->patch}, {&u->dim, m->dim}, {&u->depth, m->depth}, {&u->heads, m->heads}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        *sets[i].field = *sets[i].field ? *sets[i].field : sets[i].as;
    int rc = check_beside_upscaler(doc, s, err);
    return rc < 0 ? rc : check_upscaler_sizes(doc, s, err);
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
    if (!job_has_latents(s) && side_of(s) % m->patch)
        return conf_error(doc, "model.patch", err, "is %d, which does not divide %s (%d)", m->patch,
                          side_key(s), side_of(s));
    if (patches(s) > TOKENS_MAX)
        return conf_error(doc, "model.patch", err,
                          "is %d, which cuts %d x %d pixels into %d tokens, at most %d are "
                          "possible; use a larger patch",
                          m->patch, side_of(s), side_of(s), patches(s), TOKENS_MAX);
    rc = complete_upscaler(doc, s, err);
    if (rc == 0)
        rc = check_encoders(doc, s, err);
    if (rc == 0)
        rc = check_buckets(doc, s, err);
    complete_train(doc, s);
    return rc < 0 ? rc : complete_router(doc, s, err);
}

static int context(const struct job_spec *s)
{
    return s->model.context;
}

static int no_tokens(const struct job_spec *s)
{
    return 0;
}

/* Checks for NAME=VALUE, with a name that the worker does not use itself. */
static int check_env(const struct yaml_doc *doc, const struct conf_strs *env, struct err *err)
{
    for (size_t i = 0; i < env->n; i++) {
        const char *item = env->items[i], *end = strchr(item, '=');
        if (!end || end == item || strcspn(item, " \t") < (size_t)(end - item))
            return conf_error(doc, "trainer.env", err, "holds '%.80s', expected NAME=VALUE", item);
        if (str_starts(item, "SKERRY_"))
            return conf_error(doc, "trainer.env", err,
                              "holds '%.80s': names that begin with SKERRY_ are the worker's",
                              item);
    }
    return 0;
}

static int check_patterns(const struct yaml_doc *doc, const char *key, const struct conf_strs *list,
                          struct err *err)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->items[i][strspn(list->items[i], " ")] == '\0')
            return conf_error(doc, key, err, "holds an empty pattern; leave it out");
    return 0;
}

/* The blocks are those of trainer.levels; without that key the tensors are cut into as many blocks
 * as there are fragments. */
static int check_external(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    const struct job_trainer *t = &s->trainer;
    const struct job_family *f = job_family(s);
    if (!t->command || !t->command[strspn(t->command, " \t\n")])
        return conf_error(doc, "trainer.command", err,
                          "is missing; give the command that starts the trainer, such as "
                          "`python3 train.py`");
    if (s->data.kind == JOB_KIND_AUTO)
        return conf_error(doc, "data.kind", err,
                          "is missing; a trainer learns from images, texts or none (the trainer "
                          "has its own data)");
    if (!f->data && (s->data.path || s->data.url.n))
        return conf_error(doc, "data.kind", err,
                          "is none, but data.path or data.url is given; leave out one");
    if (t->levels.n > COMPOSITION_BLOCKS_MAX)
        return conf_error(doc, "trainer.levels", err, "has %zu blocks, at most %d are possible",
                          t->levels.n, COMPOSITION_BLOCKS_MAX);
    int rc = check_env(doc, &t->env, err);
    if (rc == 0)
        rc = check_patterns(doc, "trainer.tensors", &t->tensors, err);
    if (rc == 0)
        rc = check_patterns(doc, "trainer.levels", &t->levels, err);
    s->model.depth = t->levels.n > 0          ? (int)t->levels.n
                     : s->outer.fragments > 0 ? s->outer.fragments
                                              : 1;
    s->model.tied = false;
    if (t->levels.n > 0 && !conf_find(doc, "recipe.private_embeddings") && s->recipe.levels.n > 0)
        s->recipe.private_embeddings = true; /* the tensors outside all blocks */
    return rc;
}

/* ---- rows ---- */

static const char llama_keys[] =
    "model.kv_heads model.head_dim model.qkv_bias model.qk_norm model.no_rope_layer_interval "
    "model.vocab model.ffn model.context model.rope_theta model.rope_scaling model.norm_eps "
    "model.tied "
    "sample.prompt sample.tokens sample.temperature sample.top_p data.text_field";
static const char dit_keys[] =
    "encoders router upscaler sample.prompts data.image_size data.crop data.buckets "
    "data.flip model.patch model.mlp_ratio model.label_dropout model.self_condition train.t "
    "train.shift sample.steps sample.sampler sample.guidance sample.columns sample.strategy "
    "sample.top sample.nucleus sample.threshold sample.remote";

/* Keys for things that a trainer decides itself. */
static const char external_without[] =
    "model.preset model.dim model.depth model.heads train.lr train.fill train.shard "
    "train.beta1 train.beta2 train.eps train.clip train.recompute train.stages "
    "train.pipeline train.parallel train.accumulate train.weight_decay recipe.reshard "
    "recipe.private_blocks";
#define EXTERNAL_KEYS "data.kind trainer"
#define WRITING_KEYS " sample.prompt sample.tokens sample.temperature sample.top_p"

static const struct job_family families[] = {
    [JOB_MODEL_DIT] = {.name = "dit",
                       .what = "images",
                       .samples = "images",
                       .data = true,
                       .mixes = true,
                       .features = JOB_FEATURES_PIXELS,
                       .keys = dit_keys,
                       .tokens = patches,
                       .complete = check_dit},
    [JOB_MODEL_LLAMA] = {.name = "llama",
                         .texts = true,
                         .data = true,
                         .packs = true,
                         .what = "texts",
                         .samples = "pieces of text",
                         .chunks = true,
                         .features = JOB_FEATURES_NGRAMS,
                         .keys = llama_keys,
                         .tokens = context,
                         .complete = check_llama},
    /* One for each data.kind. */
    [JOB_MODEL_EXTERNAL] = {.name = "external",
                            .external = true,
                            .data = true,
                            .what = "images",
                            .samples = "images",
                            .features = JOB_FEATURES_PIXELS,
                            .keys = EXTERNAL_KEYS,
                            .without = external_without,
                            .tokens = no_tokens,
                            .complete = check_external},
    {.name = "external",
     .texts = true,
     .external = true,
     .data = true,
     .what = "texts",
     .samples = "pieces of text",
     .features = JOB_FEATURES_NGRAMS,
     .keys = EXTERNAL_KEYS WRITING_KEYS " model.context data.text_field",
     .without = external_without,
     .tokens = context,
     .complete = check_external},
    {.name = "external",
     .external = true,
     .what = "data of its own",
     .samples = "samples",
     .keys = EXTERNAL_KEYS WRITING_KEYS,
     .without = external_without,
     .tokens = no_tokens,
     .complete = check_external},
};
enum { N_FAMILIES = sizeof families / sizeof *families };

const struct job_family *job_family_at(int i)
{
    return i >= 0 && i < N_FAMILIES ? &families[i] : NULL;
}

const struct job_family *job_family(const struct job_spec *spec)
{
    const bool other = spec->model.type == JOB_MODEL_EXTERNAL && spec->data.kind > JOB_KIND_IMAGES;
    return &families[spec->model.type + (other ? spec->data.kind - JOB_KIND_IMAGES : 0)];
}

int job_features(const struct job_spec *spec)
{
    if (spec->partition.features != JOB_FEATURES_AUTO)
        return spec->partition.features;
    if (spec->model.warm_start && !job_family(spec)->external && !job_has_upscaler(spec))
        return JOB_FEATURES_MODEL;
    return job_has_latents(spec) ? JOB_FEATURES_LATENTS : job_family(spec)->features;
}
