#include "coordinator/job/submit.h"

#include "coordinator/job/flow.h"
#include "coordinator/state/core.h"
#include "coordinator/work/shards.h"

#include "common/base/clock.h"
#include "common/job/family.h"

#define N(a) (sizeof(a) / sizeof(*(a)))
#define VOCAB_MAX 16777216

/* ---- uploads ------------------------------------------------------------- */

static int check_blob(struct coordinator *co, const uint8_t sha256[32], uint64_t size,
                      const char *what, struct err *err)
{
    struct blob_id id;
    char hex[BLOB_HEX_MAX];
    uint64_t have = 0;
    memcpy(id.sha256, sha256, 32);
    blob_id_hex(&id, hex);
    if (!blobstore_has(co->blobs, &id, &have))
        return err_set(err, -ERR_NOTFOUND,
                       "%s (%.12s...) was not uploaded, or more than a day ago, after which it is "
                       "deleted: submit again",
                       what, hex);
    if (have != size)
        return err_set(err, -EINVAL, "%s (%.12s...) has %llu bytes, %llu were announced", what, hex,
                       (unsigned long long)have, (unsigned long long)size);
    return 0;
}

static int check_file(struct coordinator *co, const struct blob_ref *b, bool wanted,
                      const char *what, const char *key, struct err *err)
{
    if (b == NULL && wanted)
        return err_set(err, -EINVAL, "%s is given, but %s was not uploaded with the job", key,
                       what);
    if (b != NULL && !wanted)
        return err_set(err, -EINVAL, "%s was uploaded, but the job file has no %s", what, key);
    return b != NULL ? check_blob(co, b->sha256, b->size, what, err) : 0;
}

/* The uploads must have the files of each frozen network that the job names, and of no other. */
static int check_encoders(struct coordinator *co, const struct job_spec *spec,
                          const struct submit *s, struct err *err)
{
    static const char *const parts[] = {"VAE", "text encoder", "tokenizer", "trainer",
                                        NULL}; /* companions: there may be none */
    const bool wanted[] = {job_has_latents(spec), job_has_captions(spec), job_has_captions(spec),
                           spec->trainer.files != NULL, spec->model.warm_start != NULL};
    bool there[N(parts)] = {false};
    int rc = 0;
    for (size_t i = 0; i < s->n_encoders && rc == 0; i++) {
        const struct encoder_file *f = &s->encoders[i];
        if (f->part >= N(parts) || !wanted[f->part])
            return err_set(
                err, -EINVAL,
                "%s was uploaded, but the job file does not name its encoder; leave it out",
                f->name);
        there[f->part] = true;
        rc = check_blob(co, f->blob.sha256, f->blob.size, f->name, err);
    }
    const struct network_input none = {0}, *in = s->input ? s->input : &none;
    if ((in->channels > 0 && in->side > 0) != wanted[0] ||
        (in->caption > 0 && in->caption_tokens > 0) != wanted[1])
        return err_set(err, -EINVAL,
                       "the job's input has %u channels of side %u and captions of %u tokens, "
                       "which is not what the section encoders of its file names",
                       in->channels, in->side, in->caption_tokens);
    for (size_t p = 0; p < N(parts) && rc == 0; p++)
        if (parts[p] && wanted[p] && !there[p])
            rc = err_set(err, -EINVAL,
                         "the job names a %s, but its files were not uploaded with it", parts[p]);
    return rc;
}

static int check_text(const struct job_spec *spec, const struct submit *s, struct err *err)
{
    if (!job_is_text(spec))
        return s->vocab == 0
                   ? 0
                   : err_set(err, -EINVAL,
                             "the dataset is text (vocab %u), but model.type %s is for %s",
                             s->vocab, job_family(spec)->name, job_family(spec)->what);
    if (s->vocab == 0 && (spec->data.path != NULL || spec->data.tokenizer != NULL))
        return err_set(err, -EINVAL,
                       "model.type %s is for text, but the dataset has no vocab: expected 257 "
                       "(bytes), or the number of tokens of data.tokenizer",
                       job_family(spec)->name);
    if (s->vocab > VOCAB_MAX)
        return err_set(err, -ERR_LIMIT, "vocab is %u, at most %d is possible", s->vocab, VOCAB_MAX);
    return 0;
}

static int check_shards(struct coordinator *co, const struct job_spec *spec, const struct submit *s,
                        struct err *err)
{
    if (s->n_shards == 0 || (s->n_classes == 0 && !job_is_text(spec)))
        return err_set(err, -EINVAL,
                       "the dataset has no shards or no classes; data.path is cut "
                       "and uploaded by `skerry submit`");
    if (s->n_shards > JOB_SHARDS_MAX || s->n_classes > JOB_CLASSES_MAX)
        return err_set(err, -ERR_LIMIT,
                       "the dataset has %zu shards and %zu classes, at most %d "
                       "and %d fit; raise data.shard_samples",
                       s->n_shards, s->n_classes, JOB_SHARDS_MAX, JOB_CLASSES_MAX);
    for (size_t i = 0; i < s->n_shards; i++) {
        char what[32];
        (void)snprintf(what, sizeof(what), "shard %zu", i);
        int rc = check_blob(co, s->shards[i].sha256, s->shards[i].size, what, err);
        if (rc < 0)
            return rc;
        if (s->shards[i].samples == 0)
            return err_set(err, -EINVAL, "shard %zu has no samples", i);
        if (job_is_text(spec) && s->shards[i].tokens < s->shards[i].samples)
            return err_set(err, -EINVAL, "shard %zu has %u pieces of text, but %llu tokens", i,
                           s->shards[i].samples, (unsigned long long)s->shards[i].tokens);
    }
    return 0;
}

static int check_dataset(struct coordinator *co, const struct job_spec *spec,
                         const struct submit *s, struct err *err)
{
    int rc = check_text(spec, s, err);
    if (rc == 0)
        rc = check_file(co, s->tokenizer, spec->data.tokenizer != NULL, "the tokenizer",
                        "data.tokenizer", err);
    if (rc == 0)
        rc = check_file(co, s->warm_start, spec->model.warm_start != NULL, "the warm start",
                        "model.warm_start", err);
    if (rc == 0)
        rc = check_encoders(co, spec, s, err);
    if (rc < 0 || spec->recipe.teacher != 0)
        return rc;
    if (spec->data.path != NULL)
        return check_shards(co, spec, s, err);
    if (s->n_shards > 0)
        return err_set(err, -EINVAL,
                       "data.url is given, but shards were uploaded, too: leave out one");
    return 0;
}

/* ---- a teacher job ------------------------------------------------------- */

static bool same_data(const struct job_data *a, const struct job_data *b)
{
    if ((a->path == NULL) != (b->path == NULL) || a->url.n != b->url.n)
        return false;
    if (a->path != NULL && strcmp(a->path, b->path) != 0)
        return false;
    for (size_t i = 0; i < a->url.n; i++)
        if (strcmp(a->url.items[i], b->url.items[i]) != 0)
            return false;
    return true;
}

/* What a model does without a label can be learnt only from one that has learnt it. */
static int check_dropout(const struct job_model *a, const struct job_model *b, uint32_t id,
                         struct err *err)
{
    if (a->label_dropout == 0 || b->label_dropout > 0)
        return 0;
    return err_set(err, -ERR_CONFIG,
                   "model.label_dropout is %g, but the experts of job %u were trained with 0 and "
                   "cannot teach what to do without a label; give model.label_dropout 0",
                   a->label_dropout, id);
}

static int check_same_model(const struct job_model *a, const struct job_model *b, uint32_t id,
                            struct err *err)
{
    if (a->type == b->type && a->patch == b->patch && a->dim == b->dim && a->depth == b->depth &&
        a->heads == b->heads && fabs(a->mlp_ratio - b->mlp_ratio) < 1e-9)
        return check_dropout(a, b, id, err);
    return err_set(err, -ERR_CONFIG,
                   "the experts of job %u have another model (patch %d, dim %d, depth %d, heads "
                   "%d); give the same under model",
                   id, b->patch, b->dim, b->depth, b->heads);
}

static int check_same_upscaler(const struct job_upscaler *a, const struct job_upscaler *b,
                               uint32_t id, struct err *err)
{
    if (a->low_side == b->low_side &&
        (a->low_side == 0 || (a->patch == b->patch && a->dim == b->dim && a->depth == b->depth &&
                              a->heads == b->heads && fabs(a->noise - b->noise) < 1e-9)))
        return 0;
    if (b->low_side == 0)
        return err_set(err, -ERR_CONFIG,
                       "upscaler.low_side is given, but the experts of job %u have no upscaler; "
                       "leave it out",
                       id);
    return err_set(err, -ERR_CONFIG,
                   "the experts of job %u have another upscaler (low_side %d, patch %d, dim %d, "
                   "depth %d, heads %d, noise %g); give the same under upscaler",
                   id, b->low_side, b->patch, b->dim, b->depth, b->heads, b->noise);
}

static bool same_shapes(const struct conf_strs *a, const struct conf_strs *b)
{
    for (size_t i = 0; i < a->n && a->n == b->n; i++)
        if (strcmp(a->items[i], b->items[i]) != 0)
            return false;
    return a->n == b->n;
}

/* Latents that are made once fit only one VAE, the same shapes, and the same data.flip. */
static int check_same_latents(const struct job_spec *spec, const struct job *t, struct err *err)
{
    const uint32_t id = (uint32_t)t->id;
    const struct job_data *a = &spec->data, *b = &t->spec.data;
    const int run = t->spec.encoders.run;
    if (!job_has_latents(spec) || run == JOB_ENCODE_FLY || run == JOB_ENCODE_WORKER)
        return 0;
    if (a->flip && !b->flip)
        return err_set(err, -ERR_CONFIG,
                       "data.flip is true, but the latents of job %u, which are used again, have "
                       "no mirrored pictures; leave it out",
                       id);
    if (!same_shapes(&a->buckets, &b->buckets))
        return err_set(
            err, -ERR_CONFIG,
            "data.buckets differ from those of job %u, whose latents are used again: give the same",
            id);
    return 0;
}

/* Experts must have learnt from the same frozen networks, with equal weights. */
static int check_same_encoders(const struct job_spec *spec, const struct submit *s,
                               const struct job *t, struct err *err)
{
    const uint32_t id = (uint32_t)t->id;
    const struct network_input none = {0}, *in = s->input ? s->input : &none;
    if (memcmp(&t->input, in, sizeof *in) != 0)
        return err_set(err, -ERR_CONFIG,
                       "encoders differ from those of job %u, whose experts read %u channels and "
                       "captions of %u numbers: give the same",
                       id, t->input.channels, t->input.caption);
    if (spec->encoders.layer != t->spec.encoders.layer)
        return err_set(
            err, -ERR_CONFIG,
            "encoders.layer is %d, but the experts of job %u read layer %d: give the same",
            spec->encoders.layer, id, t->spec.encoders.layer);
    for (size_t i = 0; i < s->n_encoders || i < t->n_encoders; i++) {
        const struct encoder_file *a = &s->encoders[i], *b = &t->encoders[i];
        if (s->n_encoders != t->n_encoders || a->part != b->part || strcmp(a->name, b->name) != 0 ||
            memcmp(a->blob.sha256, b->blob.sha256, sizeof a->blob.sha256) != 0)
            return err_set(err, -ERR_CONFIG,
                           "encoders differ from those of job %u, on whose outputs its experts "
                           "were trained: %s is another file; give the same folders",
                           id, i < s->n_encoders ? a->name : b->name);
    }
    return check_same_latents(spec, t, err);
}

static int check_teacher(struct coordinator *co, const struct job_spec *spec,
                         const struct submit *s, struct err *err)
{
    uint32_t id = (uint32_t)spec->recipe.teacher;
    const struct job *t = state_job(&co->state, id);
    if (t == NULL)
        return err_set(err, -ERR_CONFIG, "recipe.teacher is %u, but there is no such job", id);
    if (t->unread)
        return err_set(err, -ERR_CONFIG, "recipe.teacher is job %u, which cannot be read: %.300s",
                       id, t->reason);
    if (!t->comp.mixture)
        return err_set(err, -ERR_CONFIG,
                       "recipe.teacher is job %u, a %s: expected a ddm job, whose experts teach",
                       id, t->spec.recipe.name);
    if (t->state != JOB_DONE)
        return err_set(err, -ERR_CONFIG,
                       "recipe.teacher is job %u, which is %s: wait until it is done", id,
                       job_state_name(t->state));
    if (t->spec.data.image_size != spec->data.image_size)
        return err_set(err, -ERR_CONFIG,
                       "data.image_size is %d, but the experts of job %u know images of %d",
                       spec->data.image_size, id, t->spec.data.image_size);
    int rc = check_same_encoders(spec, s, t, err);
    if (rc < 0)
        return rc;
    if (!same_data(&t->spec.data, &spec->data))
        return err_set(err, -ERR_CONFIG,
                       "data differs from that of job %u, whose shards are used again: give the "
                       "same data.path or data.url",
                       id);
    for (size_t i = 0; i < t->n_shards; i++) {
        struct blob_id blob;
        memcpy(blob.sha256, t->shards[i].blob.sha256, 32);
        if (t->shards[i].generation == t->generation && !blobstore_has(co->blobs, &blob, NULL))
            return err_set(
                err, -ERR_NOTFOUND,
                "the shards of job %u are not kept any more; run it again, then distill it", id);
    }
    rc = check_same_model(&spec->model, &t->spec.model, id, err);
    return rc < 0 ? rc : check_same_upscaler(&spec->upscaler, &t->spec.upscaler, id, err);
}

/* Takes the teacher job's shards, each with the number of its teacher. */
static void take_teacher(struct job *j, const struct job *t)
{
    for (size_t i = 0; i < t->n_classes; i++)
        job_add_class(j, t->classes[i], t->counts[i]);
    for (size_t i = 0; i < t->n_shards; i++) {
        if (t->shards[i].generation != t->generation || t->shards[i].router)
            continue;
        struct shard_rec *s = job_add_shard(j); /* there are as many as in the other job */
        s->blob = t->shards[i].blob;
        s->samples = t->shards[i].samples;
        s->tokens = t->shards[i].tokens;
        s->partition = t->shards[i].partition;
        s->holdout = t->shards[i].holdout;
    }
}

/* ---- on record ----------------------------------------------------------- */

static void take_dataset(struct job *j, const struct submit *s)
{
    j->vocab = s->vocab;
    if (job_is_text(&j->spec) && j->vocab == 0)
        j->vocab = JOB_VOCAB_BYTES;
    if (s->tokenizer != NULL)
        j->tokenizer = *s->tokenizer;
    if (s->warm_start != NULL)
        j->warm_start = *s->warm_start;
    for (size_t i = 0; i < s->n_encoders; i++)
        job_add_encoder(j, &s->encoders[i]);
    if (s->input != NULL)
        j->input = *s->input;
    if (j->spec.recipe.teacher != 0)
        return;
    for (size_t i = 0; i < s->n_classes; i++)
        job_add_class(j, s->classes[i], s->counts ? s->counts[i] : 0);
    for (size_t i = 0; i < s->n_shards; i++) {
        struct shard_rec *r = job_add_shard(j); /* the number was checked */
        memcpy(r->blob.sha256, s->shards[i].sha256, 32);
        r->blob.size = s->shards[i].size;
        r->samples = s->shards[i].samples;
        r->tokens = s->shards[i].tokens;
        r->holdout = s->shards[i].holdout;
    }
    for (size_t i = 0; i < s->n_bad; i++)
        (void)job_add_bad(j, s->bad[i].shard, s->bad[i].key, s->bad[i].reason, BAD_SUBMITTED);
    j->bad_count = (uint32_t)s->n_bad;
}

/* Can it be removed, though nobody asks for that: has it ended without a model? */
static bool may_go(const struct coordinator *co, const struct job *j)
{
    if (j->unread || flow_removable(co, j, NULL) < 0)
        return false;
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        if (j->modules[i].n_versions > 0)
            return false;
    return true;
}

/* Removes the oldest such job if there is one too many. */
static int make_room(struct coordinator *co, struct err *err)
{
    for (size_t i = 0; co->state.n_jobs > JOBS_MAX; i++) {
        if (i == co->state.n_jobs)
            return err_set(err, -ERR_LIMIT,
                           "all %d places for jobs are taken, and each has a model, runs or waits: "
                           "make room with `skerry remove JOB`, for one that has ended",
                           JOBS_MAX);
        struct job *j = co->state.jobs[i];
        if (!may_go(co, j))
            continue;
        core_say(co, 0, 0, "job %llu (%s), which ended without a model, made room for another",
                 (unsigned long long)j->id, j->spec.name);
        flow_remove(co, j);
    }
    return 0;
}

static size_t active_jobs(const struct state *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_jobs; i++)
        n += !job_is_ended(s->jobs[i]);
    return n;
}

static uint64_t token_of(const struct coordinator *co, const struct submit *s)
{
    const struct token_rec *t = access_token_of(&co->state, s->holder);
    return t != NULL ? t->id : 0;
}

static int check_quota(const struct coordinator *co, const struct submit *s, struct err *err)
{
    const struct token_rec *t = access_token_of(&co->state, s->holder);
    size_t n = 0;
    for (size_t i = 0; t != NULL && i < co->state.n_jobs; i++)
        n += co->state.jobs[i]->token_id == t->id && !job_is_ended(co->state.jobs[i]);
    if (t == NULL || t->jobs_max == 0 || n < t->jobs_max)
        return 0;
    return err_set(err, -ERR_LIMIT,
                   "the token '%s' may have %u job%s at once, and %zu %s active: wait until one "
                   "ends, or cancel one",
                   t->name, t->jobs_max, str_plural(t->jobs_max), n, n == 1 ? "is" : "are");
}

/* Makes a job, complete in memory and not on record yet; takes spec. */
static int make_job(struct coordinator *co, const struct submit *s, struct job_spec *spec,
                    struct job **ret, struct err *err)
{
    struct composition comp;
    char *yaml = NULL;
    int rc = recipe_check(spec, &comp, err);
    if (rc == 0 && (rc = check_dataset(co, spec, s, err)) == 0 && spec->recipe.teacher != 0)
        rc = check_teacher(co, spec, s, err);
    if (rc == 0)
        rc = job_keep_defaults(s->spec, spec, &yaml, err);
    struct job *j = rc == 0 ? state_add_job(&co->state, 0) : NULL;
    if (j == NULL) {
        mem_free(yaml);
        composition_release(&comp);
        job_release(spec);
        return rc < 0 ? rc : err_set(err, -ERR_LIMIT, "all %d places for jobs are taken", JOBS_MAX);
    }
    j->yaml = yaml;
    j->spec = *spec;
    j->comp = comp;
    j->state = JOB_PENDING;
    j->made_unix_ms = (int64_t)clock_wall_ms();
    j->token_id = token_of(co, s);
    job_build(j, &co->state.next_module);
    take_dataset(j, s);
    if (comp.teacher_job != 0)
        take_teacher(j, state_job(&co->state, comp.teacher_job));
    *ret = j;
    return 0;
}

int submit_job(struct coordinator *co, const struct submit *s, uint64_t *ret_id, struct err *err)
{
    struct job_spec spec;
    struct job *j = NULL;
    int rc = core_writable(co, err);
    if (rc < 0 || (rc = job_parse(s->spec, strlen(s->spec), "job.yaml", &spec, err)) < 0)
        return rc;
    if ((rc = job_check_scope(s->spec, strlen(s->spec), "job.yaml", &spec, err)) < 0) {
        job_release(&spec);
        return rc;
    }
    if (active_jobs(&co->state) >= JOBS_ACTIVE_MAX)
        rc = err_set(err, -ERR_LIMIT, "%d jobs are active, no more are taken", JOBS_ACTIVE_MAX);
    if (rc < 0 || (rc = check_quota(co, s, err)) < 0) {
        job_release(&spec);
        return rc;
    }
    uint64_t next_job = co->state.next_job, next_module = co->state.next_module;
    if ((rc = make_job(co, s, &spec, &j, err)) < 0)
        return rc;
    if (j->n_shards > 0)
        rc = shards_check(j, err);
    if (rc < 0 || (rc = make_room(co, err)) < 0) {
        state_drop_job(&co->state, j);
        co->state.next_job = next_job;
        co->state.next_module = next_module;
        return rc;
    }
    core_say(co, j->id, 0, "job %llu (%s) was submitted", (unsigned long long)j->id, j->spec.name);
    core_touch(co);
    *ret_id = j->id;
    return 0;
}
