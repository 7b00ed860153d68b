#include "worker/order/task_check.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/err.h"
#include "common/job/job.h"
#include "worker/net/mix.h"
#include "worker/order/task_check_impl.h"

static int check_text(const char *text, size_t max, const char *field, struct err *err)
{
    size_t len = text ? strlen(text) : 0;
    if (len > max)
        return err_set(err, -ERR_LIMIT, "task: %s is %zu bytes long, at most %zu are allowed",
                       field, len, max);
    return 0;
}

int task_check_count(size_t n, size_t max, const char *field, struct err *err)
{
    if (n > max)
        return err_set(err, -ERR_LIMIT, "task: %s has %zu entries, at most %zu are allowed", field,
                       n, max);
    return 0;
}

static int check_hash(const ProtobufCBinaryData *hash, const char *field, struct err *err)
{
    if (hash->len != 32)
        return err_set(err, -ERR_FORMAT, "task: %s is %zu bytes long, expected a SHA-256 (32)",
                       field, hash->len);
    return 0;
}

/* A ticket may also be a path: the coordinator that the worker knows anyway. */
static int check_url(const char *url, bool path_allowed, const char *field, struct err *err)
{
    int rc = check_text(url, TASK_URL_MAX, field, err);
    if (rc < 0)
        return rc;
    if (path_allowed && url && url[0] == '/' && url[1] != '/')
        return 0;
    if (!url || (strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0))
        return err_set(err, -ERR_FORMAT, "task: %s is not an http or https address", field);
    return 0;
}

int task_check_blob(const Skerry__V1__Blob *blob, const char *field, struct err *err)
{
    if (!blob)
        return err_set(err, -ERR_FORMAT, "task: %s is missing", field);
    int rc = check_hash(&blob->sha256, field, err);
    if (rc < 0)
        return rc;
    if (blob->size == 0 || blob->size > TASK_BLOB_MAX)
        return err_set(err, -ERR_LIMIT, "task: %s has the size %" PRIu64 ", expected 1..%llu",
                       field, blob->size, TASK_BLOB_MAX);
    return check_url(blob->url, true, field, err);
}

int validate_module(const Skerry__V1__ModuleRef *m, struct err *err)
{
    if (!m || m->module_id == 0)
        return err_set(err, -ERR_FORMAT, "task: a module without an id");
    int rc = check_hash(&m->sha256, "modules.sha256", err);
    if (rc < 0)
        return rc;
    if (!m->full && m->n_deltas == 0)
        return err_set(err, -ERR_FORMAT,
                       "task: module %" PRIu64 " has neither a full blob nor "
                       "deltas",
                       m->module_id);
    if (m->full && (rc = task_check_blob(m->full, "modules.full", err)) < 0)
        return rc;
    if ((rc = task_check_count(m->n_deltas, TASK_DELTAS_MAX, "modules.deltas", err)) < 0)
        return rc;
    for (size_t i = 0; i < m->n_deltas; i++) {
        const Skerry__V1__Delta *d = m->deltas[i];
        if ((rc = task_check_blob(d->blob, "modules.deltas.blob", err)) < 0)
            return rc;
        if (d->to != d->from + 1 || (i > 0 && d->from != m->deltas[i - 1]->to))
            return err_set(err, -ERR_FORMAT,
                           "task: module %" PRIu64 ": delta %zu goes from %" PRIu64 " to %" PRIu64
                           ", which does not continue the chain",
                           m->module_id, i, d->from, d->to);
    }
    if (m->n_deltas > 0 && m->deltas[m->n_deltas - 1]->to != m->version)
        return err_set(err, -ERR_FORMAT,
                       "task: module %" PRIu64 ": the deltas end at %" PRIu64
                       ", expected version %" PRIu64,
                       m->module_id, m->deltas[m->n_deltas - 1]->to, m->version);
    return 0;
}

static int check_modules(const Skerry__V1__Task *t, struct err *err)
{
    if (t->n_modules == 0)
        return err_set(err, -ERR_FORMAT, "task: modules is empty");
    bool init = t->kind == SKERRY__V1__TASK_KIND__TASK_KIND_INIT;
    for (size_t i = 0; i < t->n_modules; i++) {
        const Skerry__V1__ModuleRef *m = t->modules[i];
        if (m->module_id == 0)
            return err_set(err, -ERR_FORMAT, "task: a module without an id");
        for (size_t j = 0; j < i; j++)
            if (t->modules[j]->module_id == m->module_id)
                return err_set(err, -ERR_FORMAT, "task: module %" PRIu64 " is named twice",
                               m->module_id);
        if (!init && m->level != i)
            return err_set(err, -ERR_FORMAT,
                           "task: modules[%zu] is of level %u; one module per "
                           "level is expected, in order",
                           i, m->level);
        if (m->level >= TASK_MODULES_MAX)
            return err_set(err, -ERR_LIMIT,
                           "task: modules[%zu] is of level %u, at most %u levels "
                           "are allowed",
                           i, m->level, TASK_MODULES_MAX);
        int rc = init ? 0 : validate_module(m, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int check_refs(Skerry__V1__ModuleRef *const *refs, size_t n, const char *field,
                      struct err *err)
{
    if (n < 1 || n > TASK_MODULES_MAX)
        return err_set(err, -ERR_LIMIT, "task: %s has %zu modules, expected 1 to %d", field, n,
                       TASK_MODULES_MAX);
    for (size_t i = 0; i < n; i++) {
        int rc = validate_module(refs[i], err);
        if (rc < 0)
            return rc;
        if (refs[i]->level != i)
            return err_set(err, -ERR_FORMAT,
                           "task: module %zu of %s is of level %" PRIu32
                           "; one per level is expected, in order",
                           i, field, refs[i]->level);
    }
    return 0;
}

static int check_experts(Skerry__V1__Expert *const *list, size_t n, bool remote, const char *field,
                         struct err *err)
{
    if (n < 1 || n > MIX_EXPERTS_MAX)
        return err_set(err, -ERR_LIMIT, "task: %s has %zu experts, expected 1 to %d", field, n,
                       MIX_EXPERTS_MAX);
    for (size_t i = 0; i < n; i++) {
        int rc = remote && list[i]->n_modules == 0
                     ? 0
                     : check_refs(list[i]->modules, list[i]->n_modules, field, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int check_mixture(const Skerry__V1__Mixture *m, struct err *err)
{
    if (!m->experts)
        return err_set(err, -ERR_FORMAT, "task: mixture.experts is missing");
    int rc =
        check_experts(m->experts->expert, m->experts->n_expert, m->remote, "mixture.experts", err);
    if (rc == 0)
        rc = check_refs(m->router, m->n_router, "mixture.router", err);
    if (rc < 0)
        return rc;
    if (m->strategy > JOB_STRATEGY_ORACLE)
        return err_set(err, -ERR_FORMAT, "task: mixture.strategy %" PRIu32 " is not known",
                       m->strategy);
    if (m->strategy == JOB_STRATEGY_TOPK && (m->top < 1 || m->top > m->experts->n_expert))
        return err_set(err, -ERR_LIMIT, "task: mixture.top is %" PRIu32 ", expected 1 to %zu",
                       m->top, m->experts->n_expert);
    if (m->strategy == JOB_STRATEGY_NUCLEUS && !(m->nucleus > 0 && m->nucleus <= 1))
        return err_set(err, -ERR_LIMIT, "task: mixture.nucleus is %g, expected above 0, at most 1",
                       (double)m->nucleus);
    if (m->strategy == JOB_STRATEGY_THRESHOLD && !(m->threshold >= 0 && m->threshold <= 1))
        return err_set(err, -ERR_LIMIT, "task: mixture.threshold is %g, expected 0 to 1",
                       (double)m->threshold);
    return 0;
}

int task_check_ranges(Skerry__V1__Range *const *ranges, size_t n, const char *field,
                      struct err *err)
{
    int rc = task_check_count(n, TASK_RANGES_MAX, field, err);
    if (rc < 0)
        return rc;
    if (n == 0)
        return err_set(err, -ERR_FORMAT, "task: %s is empty", field);
    for (size_t i = 0; i < n; i++) {
        if ((rc = task_check_blob(ranges[i]->shard, field, err)) < 0)
            return rc;
        if (ranges[i]->count == 0 || ranges[i]->count > TASK_SHARD_SAMPLES_MAX ||
            ranges[i]->start > TASK_SHARD_SAMPLES_MAX - ranges[i]->count)
            return err_set(err, -ERR_LIMIT,
                           "task: %s[%zu] covers %u samples from %u, a shard "
                           "holds at most %u",
                           field, i, ranges[i]->count, ranges[i]->start, TASK_SHARD_SAMPLES_MAX);
    }
    return 0;
}

static int check_fragments(const Skerry__V1__TrainTask *t, size_t n_modules, struct err *err)
{
    if (t->n_fragments == 0)
        return 0;
    if (t->n_fragments != n_modules || t->delay >= t->steps)
        return err_set(err, -ERR_FORMAT,
                       "task: train has %zu fragments for %zu modules, merged %u steps later in a "
                       "phase of %u",
                       t->n_fragments, n_modules, t->delay, t->steps);
    if (!(t->mix >= 0 && t->mix <= 1))
        return err_set(err, -ERR_LIMIT, "task: train.mix is %g, expected 0..1", (double)t->mix);
    for (size_t i = 0; i < t->n_fragments; i++) {
        const Skerry__V1__Fragment *f = t->fragments[i];
        bool twice = false;
        for (size_t j = 0; j < i; j++)
            twice |= t->fragments[j]->level == f->level;
        if (f->level >= n_modules || twice || f->step == 0 || f->step > t->steps)
            return err_set(err, -ERR_FORMAT,
                           "task: train.fragments[%zu] is level %u at step %u; expected each of "
                           "%zu levels once, at a step from 1 to %u",
                           i, f->level, f->step, n_modules, t->steps);
    }
    return 0;
}

static int check_train(const Skerry__V1__TrainTask *t, size_t n_modules, struct err *err)
{
    if (!t)
        return err_set(err, -ERR_FORMAT, "task: train is missing");
    if ((t->steps == 0) == (t->seconds == 0))
        return err_set(err, -ERR_FORMAT, "task: train needs exactly one of steps and seconds");
    if (t->steps > TASK_STEPS_MAX || t->seconds > TASK_SECONDS_MAX)
        return err_set(err, -ERR_LIMIT,
                       "task: train asks for %u steps or %u seconds, at most %u "
                       "and %u are allowed",
                       t->steps, t->seconds, TASK_STEPS_MAX, TASK_SECONDS_MAX);
    if (t->batch > TASK_BATCH_MAX)
        return err_set(err, -ERR_LIMIT, "task: train.batch is %u, at most %u are allowed", t->batch,
                       TASK_BATCH_MAX);
    int rc = t->moments ? task_check_blob(t->moments, "train.moments", err) : 0;
    if (rc == 0)
        rc = check_fragments(t, n_modules, err);
    if (rc == 0 && t->n_teachers > 0)
        rc = check_experts(t->teachers, t->n_teachers, false, "train.teachers", err);
    if (rc == 0)
        rc = task_check_count(t->n_ahead, TASK_AHEAD_MAX, "train.ahead", err);
    for (size_t i = 0; i < t->n_ahead && rc == 0; i++)
        rc = task_check_blob(t->ahead[i], "train.ahead", err);
    return rc < 0 ? rc : task_check_ranges(t->ranges, t->n_ranges, "train.ranges", err);
}

static int check_eval(const Skerry__V1__EvalTask *t, struct err *err)
{
    if (!t)
        return err_set(err, -ERR_FORMAT, "task: eval is missing");
    if (t->skip > TASK_PIECE_MAX)
        return err_set(err, -ERR_LIMIT, "task: eval.skip is %u tokens, at most %u are allowed",
                       t->skip, TASK_PIECE_MAX);
    return task_check_ranges(t->ranges, t->n_ranges, "eval.ranges", err);
}

static int check_text_sample(const Skerry__V1__SampleTask *t, struct err *err)
{
    int rc = check_text(t->prompt, TASK_PROMPT_MAX, "sample.prompt", err);
    if (rc < 0)
        return rc;
    if (t->tokens > TASK_TOKENS_MAX)
        return err_set(err, -ERR_LIMIT, "task: sample.tokens is %u, at most %u are allowed",
                       t->tokens, TASK_TOKENS_MAX);
    if (!isfinite(t->temperature) || t->temperature < 0 || t->temperature > 10)
        return err_set(err, -ERR_LIMIT, "task: sample.temperature is %g, expected 0..10",
                       (double)t->temperature);
    if (!(t->top_p > 0) || t->top_p > 1)
        return err_set(err, -ERR_LIMIT, "task: sample.top_p is %g, expected above 0, at most 1",
                       (double)t->top_p);
    return 0;
}

static int check_sample(const Skerry__V1__SampleTask *t, size_t n_classes, struct err *err)
{
    if (!t)
        return err_set(err, -ERR_FORMAT, "task: sample is missing");
    if (t->tokens > 0)
        return check_text_sample(t, err);
    int rc = task_check_count(t->n_labels, TASK_LABELS_MAX, "sample.labels", err);
    if (rc < 0)
        return rc;
    if (t->n_labels == 0)
        return err_set(err, -ERR_FORMAT, "task: sample.labels is empty");
    if (t->steps < 1 || t->steps > 1000)
        return err_set(err, -ERR_LIMIT, "task: sample.steps is %u, expected 1..1000", t->steps);
    if (!isfinite(t->guidance) || t->guidance < 0 || t->guidance > 100)
        return err_set(err, -ERR_LIMIT, "task: sample.guidance is %g, expected 0..100",
                       (double)t->guidance);
    if (t->columns > t->n_labels && t->columns > TASK_LABELS_MAX)
        return err_set(err, -ERR_LIMIT, "task: sample.columns is %u, at most %u are allowed",
                       t->columns, TASK_LABELS_MAX);
    for (size_t i = 0; i < t->n_labels; i++)
        if (t->labels[i] >= n_classes)
            return err_set(err, -ERR_LIMIT,
                           "task: sample.labels[%zu] is %u, but there are %zu "
                           "classes",
                           i, t->labels[i], n_classes);
    return 0;
}

/* A mixture's paths come with it. */
static int check_own_modules(const Skerry__V1__Task *t, struct err *err)
{
    int rc = t->mixture ? check_mixture(t->mixture, err) : 0;
    if (rc == 0 && (!t->mixture || t->n_modules > 0))
        rc = check_modules(t, err);
    return rc;
}

static int check_kind(const Skerry__V1__Task *t, struct err *err)
{
    int rc;
    switch ((int)t->kind) {
    case SKERRY__V1__TASK_KIND__TASK_KIND_INIT:
        return check_modules(t, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_INGEST:
        if (!t->ingest)
            return err_set(err, -ERR_FORMAT, "task: ingest is missing");
        return check_url(t->ingest->url, false, "ingest.url", err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN:
        rc = check_modules(t, err);
        return rc < 0 ? rc : check_train(t->train, t->n_modules, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_EVAL:
        rc = check_own_modules(t, err);
        return rc < 0 ? rc : check_eval(t->eval, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE:
        rc = check_own_modules(t, err);
        return rc < 0 ? rc : check_sample(t->sample, t->n_classes, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_VELOCITY:
        rc = check_modules(t, err);
        if (rc == 0 && !t->velocity)
            rc = err_set(err, -ERR_FORMAT, "task: velocity is missing");
        return rc < 0 ? rc : task_check_blob(t->velocity->input, "velocity.input", err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_FEATURE:
        rc = t->n_modules > 0 ? check_modules(t, err) : 0;
        return rc < 0 ? rc : task_check_feature(t->feature, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_CLUSTER:
        return task_check_cluster(t, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_SPLIT:
        return task_check_split(t, err);
    case SKERRY__V1__TASK_KIND__TASK_KIND_SCORE:
        rc = check_modules(t, err);
        return rc < 0 ? rc : task_check_score(t->score, err);
    default:
        return err_set(err, -ERR_UNIMPLEMENTED, "task: kind %d is not known to this version",
                       (int)t->kind);
    }
}

/* Does it make or run a network with a table of labels? */
static bool needs_classes(const Skerry__V1__Task *t)
{
    switch ((int)t->kind) {
    case SKERRY__V1__TASK_KIND__TASK_KIND_INIT:
    case SKERRY__V1__TASK_KIND__TASK_KIND_TRAIN:
    case SKERRY__V1__TASK_KIND__TASK_KIND_EVAL:
    case SKERRY__V1__TASK_KIND__TASK_KIND_SAMPLE:
    case SKERRY__V1__TASK_KIND__TASK_KIND_VELOCITY:
        return t->vocab == 0;
    default:
        return false;
    }
}

int validate_task(const Skerry__V1__Task *t, struct err *err)
{
    if (t->id == 0)
        return err_set(err, -ERR_FORMAT, "task: id is missing");
    int rc = check_text(t->spec, TASK_SPEC_MAX, "spec", err);
    if (rc < 0)
        return rc;
    if (!t->spec || t->spec[0] == '\0')
        return err_set(err, -ERR_FORMAT, "task: spec is empty");
    if ((rc = task_check_count(t->n_modules, TASK_MODULES_MAX, "modules", err)) < 0 ||
        (rc = task_check_count(t->n_classes, TASK_CLASSES_MAX, "classes", err)) < 0)
        return rc;
    for (size_t i = 0; i < t->n_classes; i++)
        if ((rc = check_text(t->classes[i], TASK_NAME_MAX, "classes", err)) < 0)
            return rc;
    if (t->vocab > TASK_VOCAB_MAX)
        return err_set(err, -ERR_LIMIT, "task: vocab is %u, at most %u are allowed", t->vocab,
                       TASK_VOCAB_MAX);
    if ((t->tokenizer && (rc = task_check_blob(t->tokenizer, "tokenizer", err)) < 0) ||
        (t->warm_start && (rc = task_check_blob(t->warm_start, "warm_start", err)) < 0))
        return rc;
    if (needs_classes(t) && t->n_classes == 0)
        return err_set(err, -ERR_FORMAT, "task: classes is empty");
    if ((rc = task_check_network(t, err)) < 0)
        return rc;
    return check_kind(t, err);
}

int validate_ticket(const Skerry__V1__TicketReply *reply, struct err *err)
{
    if (reply->have)
        return 0;
    int rc = check_url(reply->url, true, "ticket.url", err);
    return rc < 0 ? -ERR_FORMAT : 0;
}
