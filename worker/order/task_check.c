#include "worker/order/task_check.h"

#include "common/job/job.h"
#include "worker/net/mix.h"

int task_check_text(const char *text, size_t max, const char *field, struct err *err)
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

/* A ticket is only a path, at the coordinator that the worker knows. */
static int check_path(const char *url, const char *field, struct err *err)
{
    int rc = task_check_text(url, TASK_URL_MAX, field, err);
    if (rc == 0 && (!url || url[0] != '/' || url[1] == '/'))
        rc = err_set(err, -ERR_FORMAT, "task: %s is not a path of the coordinator", field);
    return rc;
}

int task_check_url(const char *url, const char *field, struct err *err)
{
    int rc = task_check_text(url, TASK_URL_MAX, field, err);
    if (rc < 0)
        return rc;
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
    return check_path(blob->url, field, err);
}

int task_check_module(const Skerry__V1__ModuleRef *m, struct err *err)
{
    if (!m || m->module_id == 0)
        return err_set(err, -ERR_FORMAT, "task: a module without an id");
    int rc = check_hash(&m->sha256, "modules.sha256", err);
    if (rc < 0)
        return rc;
    if (!m->full && m->n_deltas == 0)
        return err_set(err, -ERR_FORMAT,
                       "task: module %" PRIu64 " has neither a full blob nor deltas", m->module_id);
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

static int check_modules(const Skerry__V1__Task *t, bool makes, struct err *err)
{
    for (size_t i = 0; i < t->n_modules; i++) {
        const Skerry__V1__ModuleRef *m = t->modules[i];
        if (m->module_id == 0)
            return err_set(err, -ERR_FORMAT, "task: a module without an id");
        for (size_t j = 0; j < i; j++)
            if (t->modules[j]->module_id == m->module_id)
                return err_set(err, -ERR_FORMAT, "task: module %" PRIu64 " is named twice",
                               m->module_id);
        if (!makes && m->level != i)
            return err_set(err, -ERR_FORMAT,
                           "task: modules[%zu] is of level %u; one module per "
                           "level is expected, in order",
                           i, m->level);
        if (m->level >= TASK_MODULES_MAX)
            return err_set(err, -ERR_LIMIT,
                           "task: modules[%zu] is of level %u, at most %u levels are allowed", i,
                           m->level, TASK_MODULES_MAX);
        int rc = makes ? 0 : task_check_module(m, err);
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
        int rc = task_check_module(refs[i], err);
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

int task_check_experts(Skerry__V1__Expert *const *list, size_t n, bool remote, const char *field,
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
    int rc = task_check_experts(m->experts->expert, m->experts->n_expert, m->remote,
                                "mixture.experts", err);
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
                           "task: %s[%zu] covers %u samples from %u, a shard holds at most %u",
                           field, i, ranges[i]->count, ranges[i]->start, TASK_SHARD_SAMPLES_MAX);
    }
    return 0;
}

int task_check_tokens(uint32_t tokens, const char *field, struct err *err)
{
    if (tokens > TASK_PIECE_MAX)
        return err_set(err, -ERR_LIMIT, "task: %s is %" PRIu32 " tokens, at most %u are allowed",
                       field, tokens, TASK_PIECE_MAX);
    return 0;
}

int task_check_partitions(const Skerry__V1__Task *t, struct err *err)
{
    return t->partitions ? 0 : err_set(err, -ERR_FORMAT, "task: partitions is missing");
}

/* ---- the message ---- */

static int check_level(const Skerry__V1__Level *level, size_t l, struct err *err)
{
    int rc = task_check_count(level->n_blocks, TASK_BLOCKS_MAX, "levels.blocks", err);
    for (size_t i = 0; i < level->n_blocks && rc == 0; i++) {
        if (level->blocks[i] >= TASK_BLOCKS_MAX)
            rc = err_set(err, -ERR_LIMIT,
                         "task: levels[%zu] has block %" PRIu32 ", at most %d blocks are allowed",
                         l, level->blocks[i], TASK_BLOCKS_MAX);
        else if (i > 0 && level->blocks[i] <= level->blocks[i - 1])
            rc = err_set(err, -ERR_FORMAT, "task: the blocks of levels[%zu] do not ascend", l);
    }
    return rc;
}

/* Checks the network, its cut, and the number of partitions. */
static int check_network(const Skerry__V1__Task *t, bool makes, struct err *err)
{
    const size_t levels = t->n_levels ? t->n_levels : 1;
    if ((int)t->network < SKERRY__V1__NETWORK__NETWORK_MAIN ||
        (int)t->network > SKERRY__V1__NETWORK__NETWORK_ROUTER)
        return err_set(err, -ERR_FORMAT, "task: network %d is not known", (int)t->network);
    if (t->partitions > TASK_PARTITIONS_MAX)
        return err_set(err, -ERR_LIMIT, "task: partitions is %" PRIu32 ", at most %d are allowed",
                       t->partitions, TASK_PARTITIONS_MAX);
    int rc = task_check_count(t->n_levels, TASK_MODULES_MAX, "levels", err);
    for (size_t l = 0; l < t->n_levels && rc == 0; l++)
        rc = check_level(t->levels[l], l, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < t->n_modules && makes; i++)
        if (t->modules[i]->level >= levels)
            return err_set(err, -ERR_FORMAT,
                           "task: modules[%zu] is of level %" PRIu32 ", but there are %zu levels",
                           i, t->modules[i]->level, levels);
    if (!makes && t->n_modules > 0 && t->n_modules != levels)
        return err_set(err, -ERR_FORMAT, "task: %zu modules for %zu levels; one each is expected",
                       t->n_modules, levels);
    return 0;
}

/* Files that will be in one folder of this worker, so their names must be plain names. */
static int check_encoders(const Skerry__V1__Task *t, struct err *err)
{
    const Skerry__V1__NetworkInput *in = t->input;
    int rc = task_check_count(t->n_encoders, TASK_ENCODERS_MAX, "encoders", err);
    for (size_t i = 0; i < t->n_encoders && rc == 0; i++) {
        const Skerry__V1__EncoderFile *f = t->encoders[i];
        if (!str_is_name(f->name, TASK_FILE_NAME_MAX) ||
            (unsigned)f->part > SKERRY__V1__ENCODER_PART__ENCODER_PART_TRAINER)
            return err_set(err, -ERR_FORMAT,
                           "task: encoders[%zu] is the file '%.80s' of part %d, expected the name "
                           "of a file of part 0 to 3",
                           i, f->name, (int)f->part);
        rc = task_check_blob(f->blob, "encoders.blob", err);
    }
    if (rc == 0 && in &&
        (in->channels > TASK_CHANNELS_MAX || in->side > TASK_INPUT_MAX ||
         in->caption > TASK_CAPTION_MAX || in->caption_tokens > TASK_INPUT_MAX))
        return err_set(err, -ERR_LIMIT,
                       "task: input has %u channels of side %u and captions of %u x %u numbers",
                       in->channels, in->side, in->caption_tokens, in->caption);
    return rc;
}

/* Checks the fields of every task. */
static int check_head(const Skerry__V1__Task *t, struct err *err)
{
    if (t->id == 0)
        return err_set(err, -ERR_FORMAT, "task: id is missing");
    int rc = task_check_text(t->spec, TASK_SPEC_MAX, "spec", err);
    if (rc == 0 && (!t->spec || t->spec[0] == '\0'))
        rc = err_set(err, -ERR_FORMAT, "task: spec is empty");
    if (rc == 0)
        rc = task_check_count(t->n_modules, TASK_MODULES_MAX, "modules", err);
    if (rc == 0)
        rc = task_check_count(t->n_classes, TASK_CLASSES_MAX, "classes", err);
    for (size_t i = 0; i < t->n_classes && rc == 0; i++)
        rc = task_check_text(t->classes[i], TASK_NAME_MAX, "classes", err);
    if (rc == 0 && t->vocab > TASK_VOCAB_MAX)
        rc = err_set(err, -ERR_LIMIT, "task: vocab is %u, at most %u are allowed", t->vocab,
                     TASK_VOCAB_MAX);
    if (rc == 0 && t->tokenizer)
        rc = task_check_blob(t->tokenizer, "tokenizer", err);
    if (rc == 0 && t->warm_start)
        rc = task_check_blob(t->warm_start, "warm_start", err);
    return rc < 0 ? rc : check_encoders(t, err);
}

/* Checks the requirements of its kind's row. */
static int check_kind(const struct kind *k, const Skerry__V1__Task *t, struct err *err)
{
    const bool makes = k->modules == KIND_MODULES_MADE;
    const bool instead = k->modules == KIND_MODULES_OR_MIXTURE && t->mixture;
    int rc = check_network(t, makes, err);
    if (rc == 0 && t->mixture)
        rc = check_mixture(t->mixture, err);
    if (rc == 0 && t->n_modules == 0 && k->modules != KIND_MODULES_ANY && !instead)
        rc = err_set(err, -ERR_FORMAT, "task: modules is empty");
    if (rc == 0)
        rc = check_modules(t, makes, err);
    if (rc == 0 && k->part && !*(void *const *)(const void *)((const char *)t + k->part))
        rc = err_set(err, -ERR_FORMAT, "task: %s is missing", k->name);
    return rc < 0 || !k->check ? rc : k->check(t, err);
}

int task_check(const struct kind *const *kinds, const Skerry__V1__Task *t, const struct kind **ret,
               struct err *err)
{
    const struct kind *k = kind_find(kinds, t->kind);
    int rc = check_head(t, err);
    if (rc == 0 && !k)
        rc = err_set(err, -ERR_UNIMPLEMENTED, "task: kind %d is not known to this version",
                     (int)t->kind);
    if (rc == 0)
        rc = check_kind(k, t, err);
    if (rc == 0)
        *ret = k;
    return rc;
}

int task_check_ticket(const Skerry__V1__TicketReply *reply, struct err *err)
{
    int rc = reply->coming[0] ? check_path(reply->coming, "ticket.coming", err) : 0;
    if (rc == 0 && !reply->have)
        rc = check_path(reply->url, "ticket.url", err);
    return rc < 0 ? -ERR_FORMAT : 0;
}
