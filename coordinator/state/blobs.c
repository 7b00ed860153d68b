/* Walks all records that name a blob: the only place with the rules of which blobs are needed. */
#include "coordinator/state/blobs.h"

#include "common/base/hash.h"

#define SHARDS_KEEP_MS (3600ll * 1000) /* after a job's end, since it may be submitted again */

bool blob_ref_read(const json_t *record, struct blob_ref *ret)
{
    const char *hex = json_string_value(json_object_get(record, "sha256"));
    const json_int_t size = json_integer_value(json_object_get(record, "size"));
    *ret = (struct blob_ref){.size = size > 0 ? (uint64_t)size : 0};
    return hex && size > 0 && strlen(hex) == 64 && hash_unhex(hex, ret->sha256, 32) == 0;
}

bool blob_outer_state(const char *provenance, struct blob_ref *ret_target,
                      struct blob_ref *ret_momentum)
{
    json_t *doc = provenance ? json_loads(provenance, 0, NULL) : NULL;
    const json_t *state = json_object_get(doc, "state");
    const bool stored = json_is_true(json_object_get(state, "stored")) &&
                        blob_ref_read(json_object_get(state, "target"), ret_target) &&
                        blob_ref_read(json_object_get(state, "momentum"), ret_momentum);
    if (!stored)
        *ret_target = *ret_momentum = (struct blob_ref){0};
    json_decref(doc);
    return stored;
}

bool blob_is_restored(const char *provenance)
{
    json_t *doc = provenance ? json_loads(provenance, 0, NULL) : NULL;
    const bool is = json_object_get(doc, "restored") != NULL;
    json_decref(doc);
    return is;
}

/* Is it the newest version, or that at which a path through the module has stopped? */
static bool is_last(const struct job *j, const struct module_rec *m, uint64_t version)
{
    const uint32_t at = (uint32_t)(m - j->modules);
    bool last = version == m->version;
    for (uint32_t p = 0; p < j->comp.n_paths && !last; p++)
        for (uint32_t l = 0; j->paths[p].round == version && l < composition_levels(&j->comp, p);
             l++)
            last |= j->comp.paths[p].modules[l] == at;
    return last;
}

bool blob_full_stays(const struct job *j, const struct module_rec *m, uint64_t version)
{
    return !job_is_ended(j) || version + VERSIONS_KEPT > m->version || is_last(j, m, version);
}

bool blob_ema_stays(const struct job *j, const struct module_rec *m, uint64_t version)
{
    return job_is_ended(j) ? is_last(j, m, version) : version + VERSIONS_KEPT > m->version;
}

struct walk {
    const struct state *state;
    blob_fn fn;
    void *arg;
    int64_t now_unix_ms;
};

static void tell(const struct walk *w, enum blob_role role, const struct blob_ref *b, bool needed)
{
    if (blob_ref_is_set(b))
        w->fn(w->arg, role, b, needed ? BLOB_NEEDED : BLOB_FREE);
}

/* The blob may be gone already. */
static void tell_spared(const struct walk *w, enum blob_role role, const struct blob_ref *b)
{
    if (blob_ref_is_set(b))
        w->fn(w->arg, role, b, BLOB_SPARED);
}

static void of_dataset(const struct walk *w, const struct job *j, bool runs)
{
    const bool young = w->now_unix_ms - j->ended_unix_ms < SHARDS_KEEP_MS;
    const bool teaches = j->state == JOB_DONE && j->comp.mixture;
    for (size_t i = 0; i < j->n_shards; i++) {
        const struct shard_rec *s = &j->shards[i];
        const bool needed = runs || (teaches && s->generation == j->generation);
        if (young && !needed) /* a clock that is set back finds it young again, and perhaps gone */
            tell_spared(w, BLOB_SHARD, &s->blob);
        else
            tell(w, BLOB_SHARD, &s->blob, needed);
        tell(w, BLOB_FEATURES, &s->features, runs);
    }
    for (size_t i = 0; i < j->n_scores; i++)
        tell(w, BLOB_SCORES, &j->scores[i].blob, runs);
}

static void of_modules(const struct walk *w, const struct job *j, bool runs)
{
    for (uint32_t i = 0; i < j->comp.n_modules; i++)
        for (unsigned v = 0; v < j->modules[i].n_versions; v++) {
            const struct version_rec *r = &j->modules[i].versions[v];
            tell(w, BLOB_FULL, &r->full, blob_full_stays(j, &j->modules[i], r->version));
            tell(w, BLOB_DELTA, &r->delta, true);
            tell(w, BLOB_EMA, &r->ema, blob_ema_stays(j, &j->modules[i], r->version));
            const bool newest = runs && r->version + 1 >= j->modules[i].version;
            tell(w, BLOB_OUTER_STATE, &r->target, newest);
            tell(w, BLOB_OUTER_STATE, &r->momentum, newest);
        }
    for (uint32_t p = 0; p < j->comp.n_paths; p++) {
        const struct path_rec *path = &j->paths[p];
        for (uint32_t l = 0; path->best != NULL && l < composition_levels(&j->comp, p); l++)
            tell(w, BLOB_BEST, &path->best[l].full, true);
        for (uint32_t l = 0; path->hope.best != NULL && l < composition_levels(&j->comp, p); l++)
            tell(w, BLOB_BEST, &path->hope.best[l].full, runs);
        for (uint32_t r = 0; r < j->comp.paths[p].replicas; r++)
            tell(w, BLOB_MOMENTS, &path->replicas[r].moments, runs);
    }
}

static void of_job(const struct walk *w, const struct job *j)
{
    const bool runs = !job_is_ended(j);
    tell(w, BLOB_TOKENIZER, &j->tokenizer, true);
    tell(w, BLOB_WARM_START, &j->warm_start, runs);
    for (size_t i = 0; i < j->n_encoders; i++)
        tell(w, BLOB_ENCODER, &j->encoders[i].blob, true);
    tell(w, BLOB_PARTITIONER, &j->partitioner, true);
    tell(w, BLOB_PARTITIONER_BEFORE, &j->partitioner_before, true);
    tell(w, BLOB_ASSIGNMENT, &j->assignment, runs);
    of_dataset(w, j, runs);
    of_modules(w, j, runs);
    for (size_t i = 0; i < j->n_grids; i++)
        tell(w, BLOB_GRID, &j->grids[i].blob, true);
    for (size_t i = 0; i < j->n_unread_blobs; i++)
        tell_spared(w, (enum blob_role)j->unread_blobs[i].role, &j->unread_blobs[i].blob);
}

/* What a CHECK has brought, and the phase's own, with which it is or will be compared: until it is
 * decided. */
static void of_check(const struct walk *w, const struct task *t, bool runs)
{
    const bool open = runs && (task_is_open(t) || t->train.n_contributions > 0);
    const struct task *phase = open ? state_task(w->state, t->train.checks) : NULL;
    for (size_t i = 0; i < t->train.n_contributions; i++)
        tell(w, BLOB_CONTRIBUTION, &t->train.contributions[i].blob, runs);
    for (size_t i = 0; phase != NULL && i < phase->train.n_contributions; i++)
        tell_spared(w, BLOB_CONTRIBUTION, &phase->train.contributions[i].blob);
}

static void of_task(const struct walk *w, const struct job *j, const struct task *t)
{
    const bool runs = j != NULL && !job_is_ended(j);
    /* The results of these kinds are in the job's record, for as long as it needs them. */
    const bool passed_on =
        t->kind == TASK_FEATURE || t->kind == TASK_CLUSTER || t->kind == TASK_SCORE;
    tell(w, BLOB_OUTPUT, &t->output, !passed_on);
    if (t->kind == TASK_VELOCITY)
        tell(w, BLOB_INPUT, &t->velocity.input, true);
    if (t->kind == TASK_CHECK)
        of_check(w, t, runs);
    if (t->kind != TASK_TRAIN)
        return;
    tell(w, BLOB_PHASE_MOMENTS, &t->train.moments, runs);
    for (size_t i = 0; t->train.snapshot != NULL && i < t->train.snapshot->n; i++)
        tell(w, BLOB_SNAPSHOT, &t->train.snapshot->modules[i].blob, runs);
    for (size_t i = 0; i < t->train.n_contributions; i++) {
        const struct contribution *c = &t->train.contributions[i];
        const struct module_rec *m = j != NULL ? job_module(j, c->module_id) : NULL;
        const bool keeps = runs && m != NULL && module_keeps(m, c);
        if (keeps && c->refused) /* perhaps because our disk had damaged it */
            tell_spared(w, BLOB_CONTRIBUTION, &c->blob);
        else
            tell(w, BLOB_CONTRIBUTION, &c->blob, keeps);
    }
}

void each_blob(const struct state *s, uint64_t job_id, int64_t now_unix_ms, blob_fn fn, void *arg)
{
    const struct walk w = {s, fn, arg, now_unix_ms};
    for (size_t i = 0; i < s->n_jobs; i++)
        if (job_id == 0 || s->jobs[i]->id == job_id)
            of_job(&w, s->jobs[i]);
    for (size_t i = 0; i < s->n_tasks; i++)
        if (job_id == 0 || s->tasks[i]->job_id == job_id)
            of_task(&w, state_job(s, s->tasks[i]->job_id), s->tasks[i]);
}
