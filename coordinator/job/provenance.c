#include "coordinator/job/provenance.h"

#include <jansson.h>

#include "common/base/buf.h"
#include "common/base/hash.h"
#include "coordinator/state/blobs.h"
#include "coordinator/work/query.h"

#define PROVENANCE_MAX (256u << 10)
#define LENIENT_AFTER 3 /* steps that failed in a row */

static void put_blob(struct buf *b, const char *name, const struct blob_ref *ref)
{
    char hex[HASH_HEX_MAX];
    (void)buf_printf(b, "\"%s\":{\"sha256\":\"%s\",\"size\":%llu}", name,
                     hash_hex(ref->sha256, 32, hex), (unsigned long long)ref->size);
}

static void put_contribution(struct buf *b, const struct coordinator *co,
                             const struct outer_step *s, const struct outer_contribution *c)
{
    const struct task *t = state_task(&co->state, c->tag);
    char hex[HASH_HEX_MAX];
    (void)buf_printf(b,
                     "{\"task\":%llu,\"worker\":%llu,\"path\":%u,\"replica\":%u,"
                     "\"sha256\":\"%s\",\"size\":%llu,\"codec\":\"%s\",\"staleness\":%llu,"
                     "\"samples\":%llu,\"weight\":%.17g,\"share\":%.17g,\"norm\":%.9g,"
                     "\"shrink\":%.17g,\"refused\":%s}",
                     (unsigned long long)c->tag, (unsigned long long)c->sender, t ? t->path : 0,
                     t ? t->train.replica : 0, hash_hex(c->blob.sha256, 32, hex),
                     (unsigned long long)c->blob.size, codec_name(c->codec),
                     (unsigned long long)(s->base - c->from), (unsigned long long)c->samples,
                     c->weight, c->share, c->norm, c->shrink, c->refused ? "true" : "false");
}

char *provenance_of(const struct coordinator *co, const struct outer_step *s)
{
    static const char *const names[OUTER_FILES] = {"full",   "delta",    "ema",
                                                   "target", "momentum", "buffer"};
    struct buf b;
    size_t len;
    buf_init(&b, PROVENANCE_MAX);
    (void)buf_printf(&b, "{\"base\":%llu,", (unsigned long long)s->base);
    put_blob(&b, "base_full", &s->old[OUTER_FULL]);
    for (int i = 0; i < OUTER_FILES; i++) { /* a buffer of size 0: the momentum is not delayed */
        (void)buf_append_str(&b, i == OUTER_TARGET ? ",\"state\":{" : ",");
        put_blob(&b, names[i], &s->made[i]);
    }
    (void)buf_printf(&b, ",\"stored\":%s}", s->to_store ? "true" : "false");
    (void)buf_printf(&b,
                     ",\"lr\":%.17g,\"momentum\":%.17g,\"ema_decay\":%.17g,"
                     "\"down\":\"%s\",\"delta_norm\":%.9g,\"step_norm\":%.9g,"
                     "\"residual_norm\":%.9g,\"elapsed_ms\":%llu,\"scale\":%.17g,\"delay\":%u,"
                     "\"contributions\":[",
                     s->lr, s->momentum, s->used_ema_decay, codec_name(s->down), s->delta_norm,
                     s->step_norm, s->residual_norm, (unsigned long long)s->elapsed_ms,
                     s->used_scale, s->delay);
    for (size_t i = 0; i < s->n_contributions; i++) {
        if (i > 0)
            (void)buf_append_str(&b, ",");
        put_contribution(&b, co, s, &s->contributions[i]);
    }
    (void)buf_append_str(&b, "]}");
    return (char *)buf_take(&b, &len);
}

/* ---- what the records of older versions say to the next step ---- */

static void add_past(struct outer_step *s, const json_t *list, double allowance)
{
    size_t i;
    const json_t *c;
    json_array_foreach(list, i, c)
    {
        if (s->n_past == FOLD_HISTORY_MAX || json_is_true(json_object_get(c, "refused")))
            continue;
        s->past[s->n_past++] =
            (struct fold_past){.norm = allowance * json_number_value(json_object_get(c, "norm")),
                               .samples = json_number_value(json_object_get(c, "samples"))};
    }
}

void provenance_past(const struct job *j, const struct module_rec *m, struct outer_step *s)
{
    const uint64_t each = j->spec.outer.async ? query_replicas_through(j, m) : 1;
    const uint64_t steps = j->spec.outer.steps > 0 ? (uint64_t)j->spec.outer.steps : 1;
    const int most = j->spec.train.warmup > j->spec.recipe.moments_warmup
                         ? j->spec.train.warmup
                         : j->spec.recipe.moments_warmup;
    /* A phase of twice the warm-up is at most a third shorter by norm. */
    const uint64_t warm = steps < 2 * (uint64_t)most ? ((uint64_t)most + steps - 1) / steps : 0;
    const uint64_t young = each * (warm + query_streams(j)); /* first fragments: fewer steps */
    const uint64_t from = query_streams(j) ? young : 0;
    for (unsigned i = m->n_versions; i-- > 0 && m->versions[i].version > from;) {
        const char *text = m->versions[i].provenance;
        json_t *doc = text ? json_loads(text, 0, NULL) : NULL;
        add_past(s, json_object_get(doc, "contributions"),
                 m->versions[i].version > young ? 1 : FOLD_YOUNG);
        json_decref(doc);
    }
    if (j->spec.outer.async && each > 1 && s->n_past == 1) {
        s->word.norm = s->past[0].norm / (young > 0 ? FOLD_YOUNG : 1);
        s->word.samples = (uint64_t)s->past[0].samples;
    }
    s->lenient = m->outer_failures >= LENIENT_AFTER;
}

static struct blob_ref recorded(const json_t *state, const char *name)
{
    struct blob_ref b;
    return blob_ref_read(json_object_get(state, name), &b) ? b : (struct blob_ref){0};
}

void provenance_inputs(const struct module_rec *m, const struct version_rec *v,
                       struct outer_step *s)
{
    const struct version_rec *before = v->version > 0 ? module_version(m, v->version - 1) : NULL;
    json_t *doc = v->provenance ? json_loads(v->provenance, 0, NULL) : NULL;
    const json_t *state = json_object_get(doc, "state");
    s->old[OUTER_FULL] = v->full;
    s->old[OUTER_DELTA] = v->delta;
    s->old[OUTER_EMA] = v->ema;
    s->old[OUTER_TARGET] = recorded(state, "target");
    s->old[OUTER_MOMENTUM] = recorded(state, "momentum");
    s->old[OUTER_BUFFER] = recorded(state, "buffer");
    if (before != NULL)
        s->before = before->full;
    s->stored = blob_ref_is_set(&v->target);
    s->fresh = v->restored;
    json_decref(doc);
}
