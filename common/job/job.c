#include "common/job/job.h"

#include "common/job/family.h"
#include "common/job/job_keys.h"
#include "common/job/recipe.h"

#define URL_MAX 2048
#define MOMENTUM 0.8        /* of the outer steps, by default (docs/outer.md) */
#define MOMENTUM_BEFORE 0.9 /* that of releases which did not write it into jobs */

static int check_model(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    return job_family(s)->complete(doc, s, err);
}

/* Checks of new jobs only: older ones go on as they are. */
static int check_widths(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    const struct job_model *m = &s->model;
    const int wide = m->head_dim > 0 ? m->head_dim * m->heads : m->dim;
    const struct {
        const char *key;
        int dim, heads;
    } nets[] = {{"model.heads", wide, s->model.heads},
                {"upscaler.heads", s->upscaler.dim, s->upscaler.heads},
                {"router.heads", s->router.dim, s->router.heads}};
    for (size_t i = 0; !s->taken && i < sizeof nets / sizeof *nets; i++)
        if (nets[i].heads > 0 && nets[i].dim / nets[i].heads > JOB_HEAD_WIDTH_MAX)
            return conf_error(doc, nets[i].key, err,
                              "is %d, which gives heads of width %d, at most %d are possible; take "
                              "more heads",
                              nets[i].heads, nets[i].dim / nets[i].heads, JOB_HEAD_WIDTH_MAX);
    return 0;
}

static int check_partition(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    const struct job_partition *p = &s->partition;
    const bool text = job_is_text(s);
    if ((p->features == JOB_FEATURES_COLUMN) != (p->column != NULL))
        return conf_error(doc, p->column ? "partition.features" : "partition.column", err,
                          "is missing; features: column and the column's name go together");
    if (p->features == JOB_FEATURES_MODEL && s->model.warm_start == NULL)
        return conf_error(doc, "partition.features", err,
                          "is model, but there is no model.warm_start to take features from");
    if (p->features == JOB_FEATURES_MODEL && job_family(s)->external)
        return conf_error(doc, "partition.features", err,
                          "is model, but a trainer's model gives no features; leave it out, or "
                          "use column");
    if (p->features == JOB_FEATURES_MODEL && job_has_upscaler(s))
        return conf_error(doc, "partition.features", err,
                          "is model, but a model with an upscaler gives no features; leave it out, "
                          "or use column");
    if (p->features == JOB_FEATURES_PIXELS && job_has_latents(s))
        return conf_error(doc, "partition.features", err,
                          "is pixels, but the job's model sees latents; leave it out, or use "
                          "latents");
    if (p->features == JOB_FEATURES_LATENTS && !job_has_latents(s))
        return conf_error(doc, "partition.features", err,
                          "is latents, but there is no encoders.vae to make them");
    if (p->features == (text ? JOB_FEATURES_PIXELS : JOB_FEATURES_NGRAMS))
        return conf_error(doc, "partition.features", err, "is %s, which %s do not have",
                          job_features_name(p->features), job_family(s)->what);
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
    const bool parts = job_streams(s);
    if (parts && !s->outer.steps)
        return conf_error(doc, "outer.fragments", err,
                          "or outer.delay or outer.mix needs phases bounded by outer.steps");
    if (parts && s->outer.async)
        return conf_error(doc, "outer.async", err,
                          "and outer.fragments, outer.delay or outer.mix are both given; leave "
                          "out one");
    if (s->eval.guard > 0 && s->eval.guard <= 1)
        return conf_error(doc, "eval.guard", err,
                          "is %g, expected more than 1 (or 0: never go back by itself)",
                          s->eval.guard);
    if (s->recipe.early_stop && s->eval.every == 0)
        return conf_error(doc, "recipe.early_stop", err, "needs eval.every of at least 1");
    if (s->recipe.early_stop && s->outer.async)
        return conf_error(
            doc, "recipe.early_stop", err,
            "keeps the best of the rounds, which outer.async does not have; leave out one");
    return 0;
}

/* The last part of a path, with '-' for what a name cannot have; "": too little is left. */
static void near_name(const char *s, char out[JOB_NAME_MAX + 1])
{
    const char *slash = strrchr(s, '/');
    size_t n = 0;
    for (s = slash && slash[1] ? slash + 1 : s; *s && n < JOB_NAME_MAX; s++) {
        const char one[] = {*s, '\0'};
        if ((unsigned char)*s >= 0x80) { /* without its letters it is another name */
            n = 0;
            break;
        }
        const bool fits = *s == '.' || str_is_name(one, 1);
        if (fits ? n > 0 || *s != '.' : n > 0 && out[n - 1] != '-')
            out[n++] = fits ? *s : '-';
    }
    while (n > 0 && out[n - 1] == '-')
        n--;
    out[n] = '\0';
}

char *job_name_rule(const char *name, char out[JOB_NAME_RULE_MAX])
{
    char near[JOB_NAME_MAX + 1];
    near_name(name, near);
    (void)snprintf(out, JOB_NAME_RULE_MAX,
                   "expected 1 to %d of A-Z a-z 0-9 . _ -, not starting with . or -%s%s%s",
                   JOB_NAME_MAX, *near ? "; did you mean '" : "", near, *near ? "'?" : "");
    return out;
}

static int check_name(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    char rule[JOB_NAME_RULE_MAX];
    if (str_is_name(s->name, JOB_NAME_MAX))
        return 0;
    return conf_error(doc, "name", err, "is '%.80s', %s", s->name, job_name_rule(s->name, rule));
}

static int check_data(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    const struct job_data *d = &s->data;
    if (!job_has_data(s))
        return 0;
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

static int check_parallel(const struct yaml_doc *doc, const struct job_spec *s, struct err *err)
{
    const struct job_train *t = &s->train;
    if (t->stages > 0 && t->parallel == JOB_PARALLEL_DATA)
        return conf_error(doc, "train.stages", err,
                          "is given, but train.parallel is data; leave out one");
    const bool divided = job_has_upscaler(s) &&
                         (t->pipeline == JOB_PIPELINE_DIVIDED || t->pipeline == JOB_PIPELINE_AUTO);
    if (divided && t->stages > s->model.depth + s->upscaler.depth)
        return conf_error(doc, "train.stages", err,
                          "is %d, but the model and the upscaler have %d blocks", t->stages,
                          s->model.depth + s->upscaler.depth);
    if (t->stages > s->model.depth && !divided)
        return conf_error(doc, "train.stages", err, "is %d, but the model has %d block%s",
                          t->stages, s->model.depth, s->model.depth == 1 ? "" : "s");
    if ((t->stages > 0 || t->parallel == JOB_PARALLEL_PIPELINE) && s->model.tied)
        return conf_error(doc, t->stages > 0 ? "train.stages" : "train.parallel", err,
                          "asks for a pipeline, but with model.tied the head is the embedding: "
                          "such a model cannot be cut");
    if (job_has_upscaler(s) && t->stages > s->upscaler.depth && !divided)
        return conf_error(doc, "train.stages", err, "is %d, but the upscaler has %d block%s",
                          t->stages, s->upscaler.depth, s->upscaler.depth == 1 ? "" : "s");
    if (!job_has_upscaler(s) && t->pipeline >= JOB_PIPELINE_DIVIDED)
        return conf_error(
            doc, "train.pipeline", err,
            "is %s, which is for two chains, but there is no upscaler; take 1f1b or split",
            t->pipeline == JOB_PIPELINE_DIVIDED ? "divided" : "bidirectional");
    if (t->pipeline != JOB_PIPELINE_AUTO && t->parallel == JOB_PARALLEL_DATA)
        return conf_error(doc, "train.pipeline", err,
                          "is given, but train.parallel is data; leave out one");
    if (t->pipeline == JOB_PIPELINE_SPLIT && t->recompute)
        return conf_error(doc, "train.pipeline", err,
                          "is split, which keeps what train.recompute forgets; leave out one");
    return 0;
}

static int check_training(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    int rc = check_parallel(doc, s, err);
    if (rc < 0)
        return rc;
    if (!s->taken && conf_find(doc, "train.ema"))
        return conf_error(doc, "train.ema", err,
                          "is no longer a key, since nothing used its average: leave it out "
                          "(samples, held-out losses and exports use outer.ema)");
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
    if (s->eval.every && !job_has_data(s))
        return conf_error(doc, "eval.every", err,
                          "is %d, but data.kind is none: there is nothing to evaluate on",
                          s->eval.every);
    if (s->eval.every && s->data.holdout == 0 && !s->data.holdout_path)
        return conf_error(doc, "eval.every", err,
                          "is %d, but data.holdout is 0: there is nothing to evaluate on",
                          s->eval.every);
    if (job_has_captions(s) && !s->taken && !conf_find(doc, "sample.guidance"))
        s->sample.guidance = JOB_GUIDANCE_CAPTIONS;
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

int job_check_grid(const struct job_spec *spec, uint32_t count, uint32_t columns, struct err *err)
{
    const uint64_t n = count, each = (uint64_t)spec->data.image_size + JOB_GRID_GAP;
    const uint64_t most = (JOB_GRID_SIDE_MAX - JOB_GRID_GAP) / each; /* in a row or column */
    const uint64_t across = columns < n ? columns : n, down = (n + across - 1) / across;
    char would[48] = "fewer samples";
    if (across <= most && down <= most)
        return 0;
    if (n <= most * most)
        (void)snprintf(would, sizeof(would), "%llu columns",
                       (unsigned long long)(across > most ? most : (n + most - 1) / most));
    return err_set(err, -ERR_LIMIT,
                   "%u samples of %d pixels in %u column%s make a picture of %llu x %llu pixels, "
                   "but a side has at most %d: take %s",
                   count, spec->data.image_size, columns, columns == 1 ? "" : "s",
                   (unsigned long long)(across * each + JOB_GRID_GAP),
                   (unsigned long long)(down * each + JOB_GRID_GAP), JOB_GRID_SIDE_MAX, would);
}

static int check_sample(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    const struct job_family *f = job_family(s);
    struct err why = {0};
    if (s->taken || f->texts || f->external ||
        job_check_grid(s, (uint32_t)s->sample.count, (uint32_t)s->sample.columns, &why) == 0)
        return 0;
    return conf_error(doc, "sample.columns", err, "does not do: %s", why.msg);
}

/* Nesterov's momentum averages the contributions of several replicas.  With those of only one
 * it makes the loss jump after the first rounds, so such a job gets plain steps by default.  Stale
 * contributions point the same way again, so asynchronous jobs get less of it (docs/outer.md).
 * Earlier releases gave all others MOMENTUM_BEFORE. */
static double default_momentum(const struct job_spec *s, bool alone)
{
    return alone ? 0 : s->taken ? MOMENTUM_BEFORE : s->outer.async ? 0.5 : MOMENTUM;
}

/* Trained weights need no warm-up of the momentum.  Jobs are taken with their momentum written, and
 * such a text may be submitted again, so the default's value counts as none. */
static int complete_outer(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    struct composition c;
    if (recipe_compose(s, &c, NULL) < 0)
        return 0; /* recipe_check gives the reason when the job is submitted */
    const bool alone = !composition_shares(&c);
    /* Here an honest worker may well have most of the weight: it is faster, or has more data. */
    if ((s->outer.seconds > 0 || c.weigh_partitions) && !conf_find(doc, "outer.share_cap"))
        s->outer.share_cap = 1;
    const bool given = conf_find(doc, "outer.momentum") != NULL;
    if (c.elastic && (!given || s->outer.momentum == MOMENTUM))
        s->outer.alone_lr = conf_find(doc, "outer.lr") ? s->outer.lr : 1;
    composition_release(&c);
    if (alone && !conf_find(doc, "outer.lr"))
        s->outer.lr = 1;
    if (!given)
        s->outer.momentum = default_momentum(s, alone);
    if (s->model.warm_start && !conf_find(doc, "outer.warmup"))
        s->outer.warmup = 0;
    return 0;
}

/* A job of one path takes all workers there are: more paths are what other recipes do with them.
 * Only whole rounds can, and a trainer that shares out its own data wants a number.  Jobs on record
 * that say nothing were taken when the default was 1. */
static int complete_recipe(const struct yaml_doc *doc, struct job_spec *s, struct err *err)
{
    struct composition c;
    (void)err;
    if (s->taken || conf_find(doc, "recipe.replicas") || s->outer.async || job_streams(s) ||
        !job_has_data(s) || recipe_compose(s, &c, NULL) < 0)
        return 0;
    if (c.n_paths == 1)
        s->recipe.replicas = 0;
    composition_release(&c);
    return 0;
}

/* The keys that decide on the model and its composition. */
static const char shape_keys[] =
    "name model upscaler model.rope_scaling router recipe data.path data.url "
    "data.tokenizer data.image_size train.batch outer.rounds outer.fragments outer.async "
    "data.kind trainer";

static const struct {
    int (*check)(const struct yaml_doc *doc, struct job_spec *s, struct err *err);
    bool shape; /* a saved job must pass it, too */
} checks[] = {
    {check_name, true},    {check_data, false},      {check_model, true},
    {check_widths, false}, {check_training, false},  {check_partition, false},
    {check_sample, false}, {complete_recipe, false}, {complete_outer, false},
};

/* A new job; one of the coordinator's; one that an older release accepted. */
enum origin { FRESH, TAKEN, SAVED };

static int parse(const char *text, size_t len, const char *file, enum origin origin,
                 struct job_spec *ret, struct err *err)
{
    const bool saved = origin == SAVED;
    struct job_spec spec = {.taken = origin != FRESH};
    struct yaml_doc doc;
    *ret = (struct job_spec){0};
    if (len > JOB_SPEC_MAX)
        return err_set(err, -ERR_LIMIT, "%s has %zu bytes; a job file has at most %d", file, len,
                       JOB_SPEC_MAX);
    int rc = yaml_parse(text, len, file, &doc, err);
    if (rc < 0)
        return rc;
    rc = saved ? conf_bind_saved(&doc, doc.root, job_spec_keys, shape_keys, &spec, err)
               : conf_bind(&doc, doc.root, job_spec_keys, &spec, err);
    for (size_t i = 0; rc >= 0 && i < sizeof(checks) / sizeof(checks[0]); i++) {
        int refused = checks[i].check(&doc, &spec, rc ? NULL : err); /* the first is reported */
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
    return parse(text, len, file, FRESH, ret, err);
}

int job_parse_taken(const char *text, size_t len, const char *file, struct job_spec *ret,
                    struct err *err)
{
    return parse(text, len, file, TAKEN, ret, err);
}

int job_parse_saved(const char *text, size_t len, const char *file, struct job_spec *ret,
                    struct err *err)
{
    return parse(text, len, file, SAVED, ret, err);
}

/* ---- defaults that a job keeps ---- */

/* The offset of a node; columns count characters. */
static size_t place_of(const char *text, int line, int column)
{
    size_t at = 0;
    for (; line > 1 && text[at]; at++)
        line -= text[at] == '\n';
    for (; column > 1 && text[at]; at++)
        column -= ((unsigned char)text[at + 1] & 0xc0) != 0x80;
    return at;
}

/* Adds the key at the beginning of its section (NULL: of the text), if the text does not have it,
 * or gives it the value if it has none; takes text. */
static char *write_in(char *text, const char *section, const char *key, const char *value)
{
    struct yaml_doc doc;
    char *whole = NULL;
    if (yaml_parse(text, strlen(text), "job.yaml", &doc, NULL) < 0)
        return text;
    const struct yaml_node *map = section ? yaml_get(doc.root, section) : doc.root;
    const struct yaml_node *had = map && map->kind == YAML_MAP ? yaml_get(map, key) : NULL;
    if (had && yaml_is_null(had)) {
        const size_t at = place_of(text, had->line, had->column);
        whole = str_printf("%.*s %s%s", (int)at, text, value, text + at + strlen(had->text));
        mem_free(text);
    } else if (map && map->kind == YAML_MAP && !had) {
        const size_t at = place_of(text, map->line, map->column);
        const char *rest = text + at;
        whole = *rest == '{' ? str_printf("%.*s{%s: %s, %s", (int)at, text, key, value, rest + 1)
                             : str_printf("%.*s%s: %s\n%*s%s", (int)at, text, key, value,
                                          map->column - 1, "", rest);
        mem_free(text);
    }
    yaml_release(&doc);
    return whole ? whole : text;
}

/* True if the text parses to the same spec. */
static bool keeps(const char *text, const struct job_spec *spec)
{
    struct job_spec got;
    if (job_parse_taken(text, strlen(text), "job.yaml", &got, NULL) < 0)
        return false;
    const bool same =
        got.train.lr == spec->train.lr && got.train.schedule == spec->train.schedule &&
        got.train.warmup == spec->train.warmup && got.outer.warmup == spec->outer.warmup &&
        got.outer.momentum == spec->outer.momentum &&
        got.sample.guidance == spec->sample.guidance &&
        got.recipe.replicas == spec->recipe.replicas;
    job_release(&got);
    return same;
}

int job_keep_defaults(const char *text, const struct job_spec *spec, char **ret, struct err *err)
{
    char lr[32], steps[32], warmup[32], momentum[32], guidance[32], *whole = str_dup(text);
    (void)snprintf(lr, sizeof lr, "%.17g", spec->train.lr);
    (void)snprintf(steps, sizeof steps, "%d", spec->train.warmup);
    (void)snprintf(warmup, sizeof warmup, "%d", spec->outer.warmup);
    (void)snprintf(momentum, sizeof momentum, "%g", spec->outer.momentum);
    if (spec->outer.momentum > 0 && spec->outer.momentum != MOMENTUM_BEFORE)
        whole = write_in(whole, "outer", "momentum", momentum);
    whole = write_in(whole, "outer", "warmup", warmup);
    if (!job_family(spec)->external) { /* the user's trainer has its own defaults */
        const bool decay = spec->train.schedule == JOB_SCHEDULE_DECAY;
        if (spec->train.warmup > 0)
            whole = write_in(whole, "train", "warmup", steps);
        whole = write_in(whole, "train", "schedule", decay ? "decay" : "constant");
        whole = write_in(whole, "train", "lr", lr);
    }
    if (job_has_captions(spec) && spec->sample.guidance == JOB_GUIDANCE_CAPTIONS) {
        (void)snprintf(guidance, sizeof guidance, "{guidance: %g}", spec->sample.guidance);
        whole = write_in(whole, NULL, "sample", guidance);
        (void)snprintf(guidance, sizeof guidance, "%g", spec->sample.guidance);
        whole = write_in(whole, "sample", "guidance", guidance);
    }
    if (spec->recipe.replicas == 0) {
        whole = write_in(whole, NULL, "recipe", "{replicas: auto}");
        whole = write_in(whole, "recipe", "replicas", "auto");
    }
    if (keeps(whole, spec)) {
        *ret = whole;
        return 0;
    }
    mem_free(whole);
    return err_set(err, -ERR_CONFIG,
                   "train.lr, train.schedule, train.warmup, outer.warmup, outer.momentum, "
                   "recipe.replicas or sample.guidance, which the job file leaves out, cannot be "
                   "written into it: "
                   "give them, or shorten it "
                   "(%zu bytes of at most %d)",
                   strlen(text), JOB_SPEC_MAX);
}

/* Replaces the key's auto, or adds the key if the text does not have it; takes text. */
static char *write_over(char *text, const char *section, const char *key, const char *value)
{
    struct yaml_doc doc;
    if (yaml_parse(text, strlen(text), "job.yaml", &doc, NULL) < 0)
        return text;
    const struct yaml_node *map = yaml_get(doc.root, section);
    const struct yaml_node *node = map ? yaml_get(map, key) : NULL;
    const size_t at = node ? place_of(text, node->line, node->column) : 0;
    char *whole = NULL;
    if (node && str_starts(text + at, "auto")) {
        whole = str_printf("%.*s%s%s", (int)at, text, value, text + at + strlen("auto"));
        mem_free(text);
    }
    yaml_release(&doc);
    return whole ? whole : write_in(text, section, key, value);
}

int job_write_fragments(const char *text, int fragments, int delay, double mix, const char *why,
                        char **ret, struct err *err)
{
    struct job_spec got;
    char number[3][32];
    (void)snprintf(number[0], sizeof number[0], "%g", mix);
    (void)snprintf(number[1], sizeof number[1], "%d", delay);
    (void)snprintf(number[2], sizeof number[2], "%d", fragments);
    char *whole = str_printf("%s%s# outer.fragments was auto: %s\n", text,
                             str_ends(text, "\n") ? "" : "\n", why);
    whole = write_in(whole, "outer", "mix", number[0]);
    whole = write_in(whole, "outer", "delay", number[1]);
    whole = write_over(whole, "outer", "fragments", number[2]);
    int rc = job_parse(whole, strlen(whole), "job.yaml", &got, err);
    if (rc == 0) {
        const bool same = got.outer.fragments == fragments && got.outer.delay == delay;
        job_release(&got);
        if (same) {
            *ret = whole;
            return 0;
        }
        rc = err_set(err, -ERR_CONFIG, "outer.fragments cannot be written into the job file");
    }
    mem_free(whole);
    return rc;
}

/* ---- secrets ---- */

static void blank_variable(char *item)
{
    char *value = strchr(item, '=');
    item[value ? value + 1 - item : 0] = '\0';
}

void job_blank_url(char *url)
{
    url[strcspn(url, "?#")] = '\0';
    char *host = strstr(url, "://"), *end;
    if (host == NULL) {
        *url = '\0';
        return;
    }
    host += strlen("://");
    end = host + strcspn(host, "/\\");
    for (char *at = end; at > host; at--)
        if (at[-1] == '@') {
            memmove(host, at, strlen(at) + 1);
            return;
        }
}

static void add_item(struct buf *out, const struct yaml_node *item, void (*blank)(char *item))
{
    char *text = str_dup(item->kind == YAML_SCALAR ? item->text : "");
    if (blank != NULL)
        blank(text);
    (void)buf_append_str(out, out->len > 0 ? ", '" : "'");
    for (const char *c = text; *c; c++) {
        (void)buf_append_byte(out, (uint8_t)*c);
        if (*c == '\'')
            (void)buf_append_byte(out, '\'');
    }
    (void)buf_append_str(out, "'");
    mem_free(text);
}

/* The texts of a list, or of one text, as YAML without the brackets. */
static void list_items(struct buf *out, const struct yaml_node *node, void (*blank)(char *item))
{
    buf_init(out, 2 * JOB_SPEC_MAX);
    if (node->kind == YAML_SCALAR)
        add_item(out, node, blank);
    for (const struct yaml_node *item = node->first; item; item = item->next)
        add_item(out, item, blank);
}

/* Whether the key's list is `want` in the text. */
static bool lists(const char *text, const char *path, const struct buf *want)
{
    struct yaml_doc doc;
    struct buf got = {0};
    if (yaml_parse(text, strlen(text), "job.yaml", &doc, NULL) < 0)
        return false;
    const struct yaml_node *node = conf_find(&doc, path);
    if (node)
        list_items(&got, node, NULL);
    const bool same = node && strcmp(buf_str(&got), buf_str(want)) == 0;
    buf_release(&got);
    yaml_release(&doc);
    return same;
}

/* Replaces the key's list, and comments within it; takes text. */
static char *write_blanked(char *text, const char *path, void (*blank)(char *item))
{
    struct yaml_doc doc;
    if (yaml_parse(text, strlen(text), "job.yaml", &doc, NULL) < 0) {
        *text = '\0';
        return text;
    }
    const struct yaml_node *node = conf_find(&doc, path);
    if (node && !yaml_is_null(node)) {
        struct buf list;
        const size_t from = place_of(text, node->line, node->column);
        size_t to = place_of(text, node->end_line, node->end_column);
        while (to > from && strchr(" \r\n", text[to - 1]))
            to--; /* a block of text ends with its line */
        list_items(&list, node, blank);
        const char *deeper = text[from] == '-' ? " " : ""; /* than the key, as brackets must be */
        char *whole =
            str_printf("%.*s%s[%s]%s", (int)from, text, deeper, buf_str(&list), text + to);
        mem_free(text);
        text = whole;
        if (!lists(text, path, &list)) /* it was elsewhere */
            *text = '\0';
        buf_release(&list);
    }
    yaml_release(&doc);
    return text;
}

char *job_without_secrets(const char *text)
{
    char *whole = write_blanked(str_dup(text), "trainer.env", blank_variable);
    return write_blanked(whole, "data.url", job_blank_url);
}

void job_release(struct job_spec *spec)
{
    conf_release(job_spec_keys, spec);
    *spec = (struct job_spec){0};
}

int job_tokens(const struct job_spec *spec)
{
    return job_family(spec)->tokens(spec);
}

int job_piece(const struct job_spec *spec)
{
    return spec->model.context + (job_family(spec)->packs ? 1 : 0);
}

/* ---- snapshots ---- */

#define SNAPSHOT_LEAST_S 60.0
#define SNAPSHOT_GB_S 900.0 /* between two of a gigabyte each */

double job_snapshot_s(const struct job_spec *s, uint64_t parameters)
{
    const double bytes =
        (double)codec_bytes(codec_of_part((enum codec)s->wire.up), (size_t)parameters);
    if (job_streams(s))
        return 0;
    return s->outer.snapshot >= 0 ? s->outer.snapshot
                                  : fmax(SNAPSHOT_LEAST_S, SNAPSHOT_GB_S * sqrt(bytes / 1e9));
}

/* ---- keys that would have no effect ---- */

#define KEY_MAX 64

/* The next of the keys that the file has; false: there is none. */
static bool next_given(const struct yaml_doc *doc, const char **keys, char key[KEY_MAX])
{
    while (str_take_word(keys, key, KEY_MAX))
        if (conf_find(doc, key))
            return true;
    return false;
}

/* Keys only for mixtures.  The sections `router` and `partition` are not among them: a file with
 * either may be run with each recipe in turn. */
static const char mixture_keys[] = "sample.strategy sample.top sample.nucleus sample.threshold "
                                   "sample.remote recipe.divide_batch";

static int check_families(const struct yaml_doc *doc, const struct job_spec *s, struct err *err)
{
    const struct job_family *own = job_family(s), *f;
    char key[KEY_MAX];
    for (int n = 0; (f = job_family_at(n)) != NULL; n++)
        for (const char *keys = f->keys; f != own && next_given(doc, &keys, key);)
            if (!str_has_word(own->keys, key))
                return conf_error(
                    doc, key, err,
                    "goes only with %s, but model.type is %s: it would do nothing; leave it out",
                    f->external ? "model.type external" : f->what, own->name);
    const char *without = own->without ? own->without : "";
    if (next_given(doc, &without, key))
        return conf_error(doc, key, err,
                          "would do nothing: model.type is %s, whose trainer sees to that itself; "
                          "leave it out",
                          own->name);
    return 0;
}

/* Refuses keys of a schedule that the job does not have. */
static int check_schedule(const struct yaml_doc *doc, const struct job_spec *s, struct err *err)
{
    if (s->train.schedule != JOB_SCHEDULE_COSINE && conf_find(doc, "train.final_lr"))
        return conf_error(
            doc, "train.final_lr", err,
            "goes only with train.schedule cosine: it would do nothing; leave it out");
    if (s->train.schedule != JOB_SCHEDULE_DECAY && conf_find(doc, "train.decay_fraction"))
        return conf_error(doc, "train.decay_fraction", err,
                          "goes only with train.schedule decay: it would do nothing; leave it out");
    return 0;
}

static int check_mixture(const struct yaml_doc *doc, const struct job_spec *s, struct err *err)
{
    const char *keys = mixture_keys;
    char key[KEY_MAX];
    if (!recipe_mixes(s->recipe.name) && next_given(doc, &keys, key))
        return conf_error(doc, key, err,
                          "goes only with mixtures of experts, but recipe.name is %.80s: it would "
                          "do nothing; leave it out",
                          s->recipe.name);
    return 0;
}

static int check_encoder_keys(const struct yaml_doc *doc, const struct job_spec *s, struct err *err)
{
    const char *text = "encoders.tokens encoders.layer";
    char key[KEY_MAX];
    if (!job_has_captions(s) && next_given(doc, &text, key))
        return conf_error(doc, key, err,
                          "goes only with a text encoder (encoders.text or path): it would do "
                          "nothing; leave it out");
    const int run = s->encoders.run;
    if (run != JOB_ENCODE_WORKER && run != JOB_ENCODE_AUTO && conf_find(doc, "encoders.cache"))
        return conf_error(doc, "encoders.cache", err,
                          "is for encoders.run worker: it would do nothing; leave it out");
    return 0;
}

static int check_scope(const struct yaml_doc *doc, const struct job_spec *s, struct err *err)
{
    int rc = check_families(doc, s, err);
    if (rc == 0)
        rc = check_schedule(doc, s, err);
    if (rc == 0)
        rc = check_mixture(doc, s, err);
    if (rc == 0)
        rc = check_encoder_keys(doc, s, err);
    if (rc == 0 && s->outer.async && conf_find(doc, "outer.quorum"))
        rc = conf_error(doc, "outer.quorum", err,
                        "is for rounds, which outer.async has not; leave it out");
    if (rc == 0 && s->outer.async && conf_find(doc, "outer.late"))
        rc = conf_error(doc, "outer.late", err,
                        "is for rounds, which outer.async has not; leave it out");
    if (rc == 0 && s->outer.async && conf_find(doc, "outer.share_cap"))
        rc = conf_error(doc, "outer.share_cap", err,
                        "is for rounds, which outer.async does not have: there each contribution "
                        "makes a version; leave it out");
    if (rc == 0 && s->outer.where == JOB_WHERE_WORKER && (s->outer.async || job_streams(s)))
        rc = conf_error(doc, "outer.where", err,
                        "is worker, but with %s contributions are folded at the coordinator; use "
                        "auto or coordinator",
                        s->outer.async ? "outer.async" : "outer.fragments, delay or mix");
    if (rc == 0 && s->outer.async && s->outer.seconds == 0 && conf_find(doc, "outer.grace"))
        rc = conf_error(doc, "outer.grace", err,
                        "with outer.async is only for phases of outer.seconds; leave it out");
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
