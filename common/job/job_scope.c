/* Keys of a job file that are written and would be without effect. */
#include "common/job/conf.h"
#include "common/base/err.h"
#include "common/job/job.h"
#include "common/job/recipe.h"
#include "common/job/yaml.h"

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

static int check(const struct yaml_doc *doc, const struct job_spec *s, struct err *err)
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
    rc = check(&doc, spec, err);
    yaml_release(&doc);
    return rc;
}
