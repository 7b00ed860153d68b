#include "tests/sim/oracle.h"

#include <jansson.h>

#include "common/base/hash.h"
#include "coordinator/state/access.h"
#include "coordinator/state/blobs.h"
#include "coordinator/state/core.h"
#include "coordinator/view/view.h"
#include "coordinator/work/gone.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"
#include "tests/sim/claims.h"
#include "tests/sim/result.h"
#include "tests/sim/sim.h"
#include "tests/sim/store.h"

#define NO_ATTEMPT UINT32_MAX

/* A result that was acknowledged. */
struct accepted {
    uint64_t task, worker, job;
    uint32_t attempt;
    bool counts; /* the task was done with it: not only noted (agree.h) */
};

/* A version that a commit has: its bits, and the phases in it. */
struct version {
    uint64_t module, version;
    uint8_t sha256[32];
    uint64_t *tasks;
    size_t n;
    bool remade;
};

/* What a worker was told of a phase; module 0: of all of it of which nothing else was said. */
struct told {
    uint64_t worker, task, module;
    bool accepted;
};

struct promise {
    uint64_t job;
    bool cancelled;       /* that it is, was acknowledged */
    enum job_state ended; /* as it was committed; UNSPECIFIED: not */
};

/* What was read of something that has a number: the figure (1: a worker or token was revoked) does
 * not fall. */
enum shown_as { SHOWN_JOB, SHOWN_TASK, SHOWN_MODULE, SHOWN_WORKER, SHOWN_TOKEN };

struct shown {
    enum shown_as as;
    uint64_t id, figure;
};

/* A file that may be in no version. */
struct falsehood {
    uint8_t sha256[32];
};

/* A growing array of any of them. */
struct table {
    void *list;
    size_t n, cap;
};

static struct {
    struct table results, versions, told, promises, shown, lies;
    size_t remembers;
    bool guards; /* versions are undone by eval.guard alone */
    bool begins; /* what is there is looked at for the first time */
} oracle;

static struct oracle_figures figures;

static void forget_half(struct table *t, size_t size)
{
    const size_t n = t->n / 2;
    for (size_t i = 0; t == &oracle.versions && i < n; i++)
        mem_free(((struct version *)t->list)[i].tasks);
    t->n -= n;
    memmove(t->list, (char *)t->list + n * size, t->n * size);
}

static void *add(struct table *t, size_t size)
{
    if (oracle.remembers > 0 && t->n >= oracle.remembers)
        forget_half(t, size);
    if (t->n == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 64;
        t->list = mem_realloc(t->list, t->cap * size);
    }
    return memset((char *)t->list + t->n++ * size, 0, size);
}

#define EACH(type, x, table)                                                                       \
    for (struct type *x = (table).list; x != NULL && x < (struct type *)(table).list + (table).n;  \
         x++)

void oracle_begin(size_t remembers)
{
    memset(&oracle, 0, sizeof(oracle));
    oracle.remembers = remembers;
    claims_begin();
}

void oracle_forget(void)
{
    oracle_end();
    oracle_begin(oracle.remembers);
    oracle.begins = true;
}

void oracle_guards(void)
{
    oracle.guards = true;
}

void oracle_end(void)
{
    EACH(version, v, oracle.versions)
    mem_free(v->tasks);
    mem_free(oracle.results.list);
    mem_free(oracle.versions.list);
    mem_free(oracle.told.list);
    mem_free(oracle.promises.list);
    mem_free(oracle.shown.list);
    mem_free(oracle.lies.list);
    claims_end();
}

struct oracle_figures oracle_figures(void)
{
    claims_count(&figures.claims, &figures.believed);
    return figures;
}

/* ---- what the outside was told --------------------------------------------- */

void oracle_accepted(uint64_t worker, const Skerry__V1__ReportRequest *r, unsigned kind,
                     uint64_t job)
{
    if (r->failed || r->snapshot || kind == TASK_VELOCITY) /* which go with their sampler */
        return;
    figures.results++;
    figures.steps += kind == TASK_OUTER;
    figures.checks += kind == TASK_CHECK;
    EACH(accepted, x, oracle.results)
    {
        if (x->task != r->task_id)
            continue;
        if (x->attempt == r->attempt && x->worker == worker)
            return;
        const bool again = claims_made_again((enum task_kind)kind);
        if (again && x->attempt != NO_ATTEMPT && r->attempt < x->attempt)
            return; /* it was only noted, and its answer was slow */
        if (x->attempt != NO_ATTEMPT && (!again || x->counts))
            sim_fail("the result of task %llu is accepted from worker %llu (attempt %u) and from "
                     "worker %llu (attempt %u)",
                     (unsigned long long)x->task, (unsigned long long)x->worker, x->attempt,
                     (unsigned long long)worker, r->attempt);
        x->attempt = r->attempt;
        x->worker = worker;
        x->counts = false;
        return;
    }
    struct accepted *x = add(&oracle.results, sizeof(*x));
    *x = (struct accepted){r->task_id, worker, job, r->attempt, false};
}

static struct version *find_version(uint64_t module, uint64_t version)
{
    EACH(version, v, oracle.versions)
    if (v->module == module && v->version == version)
        return v;
    return NULL;
}

bool oracle_remade(uint64_t module)
{
    const struct version *v = find_version(module, 0);
    return v != NULL && v->remade;
}

void oracle_module(uint64_t worker, const Skerry__V1__Task *t, const Skerry__V1__ModuleRef *r)
{
    const struct version *v = find_version(r->module_id, r->version);
    if (v == NULL)
        sim_fail("worker %llu is told of version %llu of module %llu, which no commit has",
                 (unsigned long long)worker, (unsigned long long)r->version,
                 (unsigned long long)r->module_id);
    if (memcmp(v->sha256, r->sha256.data, 32) != 0)
        sim_fail("task %llu (kind %d) tells worker %llu of another version %llu of module %llu "
                 "than is on record",
                 (unsigned long long)t->id, (int)t->kind, (unsigned long long)worker,
                 (unsigned long long)r->version, (unsigned long long)r->module_id);
}

void oracle_task(uint64_t worker, const Skerry__V1__Task *t)
{
    /* Averages, perhaps: also what is drawn of a path that was kept at its best. */
    const bool mean = t->eval ? t->eval->ema : t->train == NULL;
    if (t->train != NULL && (t->train->steps == 0) == (t->train->seconds == 0))
        sim_fail("task %llu asks for a phase of %u steps and %u s", (unsigned long long)t->id,
                 t->train->steps, t->train->seconds);
    for (size_t i = 0; i < t->n_modules && !mean; i++)
        if (t->modules[i]->sha256.len == 32)
            oracle_module(worker, t, t->modules[i]);
}

void oracle_verdict(uint64_t worker, const Skerry__V1__Applied *a)
{
    figures.verdicts++;
    figures.refused += !a->accepted;
    EACH(told, x, oracle.told)
    {
        if (x->worker != worker || x->task != a->task_id || x->module != a->module_id)
            continue;
        if (x->accepted && !a->accepted)
            sim_fail("worker %llu is told that its part of task %llu is applied, then that it is "
                     "not: %s",
                     (unsigned long long)worker, (unsigned long long)a->task_id, a->reason);
        x->accepted = a->accepted;
        return;
    }
    struct told *x = add(&oracle.told, sizeof(*x));
    *x = (struct told){worker, a->task_id, a->module_id, a->accepted};
}

void oracle_false(const uint8_t sha256[32])
{
    figures.lies++;
    memcpy(((struct falsehood *)add(&oracle.lies, sizeof(struct falsehood)))->sha256, sha256, 32);
}

void oracle_submitted(uint64_t job)
{
    ((struct promise *)add(&oracle.promises, sizeof(struct promise)))->job = job;
}

void oracle_cancelled(uint64_t job)
{
    EACH(promise, p, oracle.promises)
    p->cancelled |= p->job == job;
}

static const struct shown *find_shown(enum shown_as as, uint64_t id)
{
    EACH(shown, x, oracle.shown)
    if (x->as == as && x->id == id)
        return x;
    return NULL;
}

static void note_shown(enum shown_as as, uint64_t id, uint64_t figure)
{
    struct shown *x = (struct shown *)find_shown(as, id);
    figures.shown++;
    if (x == NULL) {
        x = add(&oracle.shown, sizeof(*x));
        *x = (struct shown){as, id, 0};
    }
    x->figure = figure > x->figure ? figure : x->figure;
}

void oracle_revoked(bool worker, uint64_t id)
{
    figures.revoked++;
    note_shown(worker ? SHOWN_WORKER : SHOWN_TOKEN, id, 1);
}

/* What an object is stands in its keys. */
static void note_object(const json_t *o)
{
    const uint64_t id = (uint64_t)json_integer_value(json_object_get(o, "id"));
    const char *state = json_string_value(json_object_get(o, "state"));
    const json_t *n;
    if (id == 0)
        return;
    if (json_object_get(o, "recipe") != NULL && (n = json_object_get(o, "round")) != NULL) {
        note_shown(SHOWN_JOB, id, (uint64_t)json_integer_value(n));
        EACH(promise, p, oracle.promises)
        if (p->job == id && p->ended == JOB_UNSPECIFIED)
            p->ended = strcmp(state, "done") == 0        ? JOB_DONE
                       : strcmp(state, "cancelled") == 0 ? JOB_CANCELLED
                                                         : JOB_UNSPECIFIED;
    } else if ((n = json_object_get(o, "attempt")) != NULL) {
        note_shown(SHOWN_TASK, id, (uint64_t)json_integer_value(n));
    } else if ((n = json_object_get(o, "versions")) != NULL && json_is_array(n)) {
        note_shown(SHOWN_MODULE, id, (uint64_t)json_integer_value(json_object_get(o, "version")));
    } else if (json_object_get(o, "uses_max") != NULL) {
        note_shown(SHOWN_TOKEN, id, strcmp(state, "revoked") == 0);
    } else if ((n = json_object_get(o, "revoked")) != NULL) {
        note_shown(SHOWN_WORKER, id, json_is_true(n));
    }
}

void oracle_shown(const char *json, size_t len)
{
    json_t *doc = json_loadb(json, len, 0, NULL);
    static const char *const lists[] = {"items", "jobs"};
    const json_t *o;
    size_t i;
    if (doc == NULL)
        sim_fail("what is shown is not JSON: %.200s", json);
    note_object(doc);
    for (size_t k = 0; k < sizeof(lists) / sizeof(lists[0]); k++)
        json_array_foreach(json_object_get(doc, lists[k]), i, o) note_object(o);
    json_decref(doc);
}

/* ---- results ----------------------------------------------------------------- */

/* Was its sender told, or is it about to be, that it was not applied? */
static bool was_refused(const struct coordinator *co, const struct accepted *r)
{
    const struct worker *w = state_worker(&co->state, r->worker);
    for (unsigned i = 0; w != NULL && i < w->n_verdicts; i++)
        if (w->verdicts[i].task_id == r->task && !w->verdicts[i].accepted)
            return true;
    EACH(told, x, oracle.told)
    if (x->worker == r->worker && x->task == r->task && !x->accepted)
        return true;
    return w == NULL;
}

static void look_at_results(const struct coordinator *co)
{
    EACH(accepted, r, oracle.results)
    {
        const struct task *t = state_task(&co->state, r->task);
        if (r->attempt == NO_ATTEMPT)
            continue;
        if (t == NULL)
            sim_fail("task %llu, whose result was accepted, is not on record",
                     (unsigned long long)r->task);
        if (t->state == TASK_DONE && t->attempt == r->attempt && t->worker_id == r->worker) {
            r->counts = true;
            continue;
        }
        if (t->kind == TASK_TRAIN && t->attempt > r->attempt && was_refused(co, r)) {
            r->attempt = NO_ATTEMPT; /* the check of the outer step has refused it: it is redone */
            continue;
        }
        const bool open =
            t->kind == TASK_INIT && task_is_open(t); /* perhaps of no use (remake.h) */
        if (claims_made_again(t->kind) && (!r->counts || open) && t->attempt > r->attempt) {
            r->attempt = NO_ATTEMPT; /* another worker makes it again, to compare (agree.h) */
            continue;
        }
        sim_fail("the result of task %llu was accepted from worker %llu (attempt %u), and now it "
                 "is %s, attempt %u, of worker %llu: %s",
                 (unsigned long long)r->task, (unsigned long long)r->worker, r->attempt,
                 task_state_name(t->state), t->attempt, (unsigned long long)t->worker_id,
                 t->reason);
    }
}

/* Was it told so of the contribution to this module alone? */
static bool was_left_out(const struct told *whole, uint64_t module)
{
    EACH(told, x, oracle.told)
    if (x->worker == whole->worker && x->task == whole->task && x->module == module && !x->accepted)
        return true;
    return false;
}

/* What was told to be applied is in a version. */
static void look_at_told(const struct coordinator *co)
{
    EACH(told, x, oracle.told)
    {
        const struct task *t = x->accepted ? state_task(&co->state, x->task) : NULL;
        for (size_t i = 0; t != NULL && i < t->train.n_contributions; i++)
            if (t->train.contributions[i].worker_id == x->worker &&
                t->train.contributions[i].version == 0 &&
                !was_left_out(x, t->train.contributions[i].module_id))
                sim_fail("worker %llu was told that its part of task %llu is applied, and it is in "
                         "no version",
                         (unsigned long long)x->worker, (unsigned long long)x->task);
    }
}

/* ---- jobs -------------------------------------------------------------------- */

static void look_at_jobs(const struct coordinator *co)
{
    EACH(promise, p, oracle.promises)
    {
        const struct job *j = state_job(&co->state, p->job);
        if (j == NULL)
            sim_fail("job %llu was accepted and is not on record", (unsigned long long)p->job);
        if (j->state == JOB_FAILED || j->doom != NULL)
            sim_fail("job %llu has failed: %s", (unsigned long long)p->job,
                     j->doom ? j->doom : j->reason);
        if (p->cancelled && !job_is_ended(j))
            sim_fail("job %llu was cancelled and is %s", (unsigned long long)p->job,
                     job_state_name(j->state));
        if (p->ended != JOB_UNSPECIFIED && j->state != p->ended)
            sim_fail("job %llu was %s and is %s", (unsigned long long)p->job,
                     job_state_name(p->ended), job_state_name(j->state));
        if (job_is_ended(j) && !co->turn_scheduled && store_has(co->store, store_newest(co->store)))
            p->ended = j->state;
    }
}

/* ---- what was read ---------------------------------------------------------------- */

/* As it is now; UINT64_MAX: it has been forgotten since, as old things are. */
static bool shown_now(const struct coordinator *co, const struct shown *x, uint64_t *ret)
{
    const struct state *s = &co->state;
    struct view_job j;
    const struct task *t = x->as == SHOWN_TASK ? state_task(s, x->id) : NULL;
    const struct worker *w = x->as == SHOWN_WORKER ? state_worker(s, x->id) : NULL;
    const struct token_rec *k = x->as == SHOWN_TOKEN ? access_token(s, x->id) : NULL;
    struct job *of;
    const struct module_rec *m = x->as == SHOWN_MODULE ? state_module(s, x->id, &of) : NULL;
    *ret = UINT64_MAX;
    if (x->as == SHOWN_JOB && view_job((struct coordinator *)co, x->id, &j, NULL) == 0)
        *ret = j.round;
    if (t != NULL) /* a worker that is back goes on with its own: the next was nobody's */
        *ret = t->attempt + (t->state != TASK_PENDING);
    if (m != NULL)
        *ret = m->version;
    if (w != NULL)
        *ret = w->revoked_unix_ms != 0;
    if (k != NULL)
        *ret = k->revoked_unix_ms != 0;
    const uint64_t next[] = {s->next_job, s->next_task, s->next_module, s->next_worker,
                             s->next_token};
    return x->id < next[x->as];
}

static void look_at_shown(const struct coordinator *co)
{
    static const char *const what[] = {"job", "task", "module", "worker", "token"};
    uint64_t now;
    EACH(shown, x, oracle.shown)
    if (!shown_now(co, x, &now) || now < x->figure)
        sim_fail("%s %llu was shown at %llu, and now it is at %llu", what[x->as],
                 (unsigned long long)x->id, (unsigned long long)x->figure, (unsigned long long)now);
}

/* Who was revoked, or came in by a token that was, is not here. */
static void look_at_revoked(const struct coordinator *co)
{
    for (size_t i = 0; i < co->state.n_workers; i++) {
        const struct worker *w = co->state.workers[i];
        const struct token_rec *t = access_token(&co->state, w->token_id);
        const bool revoked = w->revoked_unix_ms != 0 || (t != NULL && t->revoked_unix_ms != 0);
        if (revoked && (w->state == WORKER_HERE || w->peer != NULL))
            sim_fail("worker %llu was revoked and is here", (unsigned long long)w->id);
    }
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        const struct task *t = co->state.tasks[i];
        const struct worker *w =
            t->state == TASK_LEASED ? state_worker(&co->state, t->worker_id) : NULL;
        if (w != NULL && w->revoked_unix_ms != 0)
            sim_fail("task %llu is leased to worker %llu, who was revoked",
                     (unsigned long long)t->id, (unsigned long long)w->id);
    }
}

/* ---- versions ---------------------------------------------------------------- */

static bool holds_task(const struct version *v, uint64_t task)
{
    for (size_t i = 0; i < v->n; i++)
        if (v->tasks[i] == task)
            return true;
    return false;
}

/* What was begun before a version that was restored is in none after it, nor what was begun before
 * the data were cut anew. */
static void look_at_age(const struct job *j, const struct module_rec *m, const struct version *v,
                        const json_t *c)
{
    const uint64_t stale = (uint64_t)json_integer_value(json_object_get(c, "staleness"));
    for (size_t i = 0; i < j->spec.recipe.reshard.n; i++) {
        const uint64_t round = (uint64_t)j->spec.recipe.reshard.items[i];
        if (round < v->version && v->version - 1 - stale < round)
            sim_fail("version %llu of module %llu has what began before round %llu, when the data "
                     "were cut anew",
                     (unsigned long long)v->version, (unsigned long long)v->module,
                     (unsigned long long)round);
    }
    for (unsigned i = 0; i < m->n_versions && m->versions[i].version < v->version; i++)
        if (m->versions[i].restored && v->version - 1 - stale < m->versions[i].version)
            sim_fail("version %llu of module %llu has what began before version %llu was restored",
                     (unsigned long long)v->version, (unsigned long long)v->module,
                     (unsigned long long)m->versions[i].version);
}

static bool is_known(uint64_t module, const uint8_t sha256[32])
{
    EACH(version, v, oracle.versions)
    if (v->module == module && memcmp(v->sha256, sha256, 32) == 0)
        return true;
    return false;
}

static void note_phases(const struct job *j, const struct module_rec *m, struct version *v,
                        const char *provenance)
{
    json_t *doc = provenance ? json_loads(provenance, 0, NULL) : NULL;
    const json_t *list = json_object_get(doc, "contributions"), *c;
    size_t i;
    v->tasks = mem_alloc_array(json_array_size(list) + 1, sizeof(*v->tasks));
    json_array_foreach(list, i, c)
    {
        const uint64_t task = (uint64_t)json_integer_value(json_object_get(c, "task"));
        if (json_is_true(json_object_get(c, "refused")))
            continue;
        if (holds_task(v, task))
            sim_fail("version %llu of module %llu has task %llu twice",
                     (unsigned long long)v->version, (unsigned long long)v->module,
                     (unsigned long long)task);
        EACH(version, old, oracle.versions)
        if (old->module == v->module && old != v && holds_task(old, task))
            sim_fail("task %llu is in versions %llu and %llu of module %llu",
                     (unsigned long long)task, (unsigned long long)old->version,
                     (unsigned long long)v->version, (unsigned long long)v->module);
        look_at_age(j, m, v, c);
        v->tasks[v->n++] = task;
        figures.folded_late += json_integer_value(json_object_get(c, "staleness")) > 0;
        const char *codec = json_string_value(json_object_get(c, "codec"));
        figures.parts += codec != NULL && strcmp(codec, "int8") == 0;
    }
    json_decref(doc);
}

static void look_at_lies(const struct module_rec *m, const struct version_rec *r)
{
    const struct blob_ref *const files[] = {&r->full, &r->delta, &r->ema, &r->target, &r->momentum};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        EACH(falsehood, f, oracle.lies)
    if (blob_ref_is_set(files[i]) && memcmp(f->sha256, files[i]->sha256, 32) == 0)
        sim_fail("version %llu of module %llu has a false file (%zu)",
                 (unsigned long long)r->version, (unsigned long long)m->id, i);
}

/* Of a job of one module: something behind the version that is back was bad. */
static void look_at_undone(const struct job *j, const struct module_rec *m,
                           const struct version_rec *r)
{
    json_t *doc = json_loads(r->provenance, 0, NULL);
    const uint64_t to = (uint64_t)json_integer_value(json_object_get(doc, "restored"));
    bool bad = false;
    json_decref(doc);
    for (unsigned i = 0; i < m->n_versions; i++) {
        const struct version_rec *v = &m->versions[i];
        bad |= v->version > to && v->version < r->version && result_loss(v->ema.sha256) > 0.9f;
    }
    if (!bad && j->comp.n_modules == 1)
        sim_fail("version %llu of module %llu is back, and none after it was worse",
                 (unsigned long long)to, (unsigned long long)m->id);
}

static void look_at_version(const struct job *j, const struct module_rec *m,
                            const struct version_rec *r)
{
    struct version *v = find_version(m->id, r->version);
    if (v != NULL) {
        if (memcmp(v->sha256, r->full.sha256, 32) == 0)
            return;
        if (r->version > 0 || find_version(m->id, 1) != NULL)
            sim_fail("version %llu of module %llu has changed", (unsigned long long)v->version,
                     (unsigned long long)m->id);
        memcpy(v->sha256, r->full.sha256, 32); /* nobody could begin with it (remake.h) */
        v->remade = true;
        figures.remade++;
        return;
    }
    figures.versions++;
    figures.restored += r->restored;
    if (r->restored && !oracle.begins && oracle.remembers == 0 && !is_known(m->id, r->full.sha256))
        sim_fail("version %llu of module %llu is no older one that was restored",
                 (unsigned long long)r->version, (unsigned long long)m->id);
    look_at_lies(m, r);
    if (r->restored && oracle.guards && !oracle.begins)
        look_at_undone(j, m, r);
    v = add(&oracle.versions, sizeof(*v));
    v->module = m->id;
    v->version = r->version;
    memcpy(v->sha256, r->full.sha256, 32);
    note_phases(j, m, v, r->provenance);
}

static void look_at_modules(const struct coordinator *co)
{
    for (size_t i = 0; i < co->state.n_jobs; i++)
        for (uint32_t k = 0; k < co->state.jobs[i]->comp.n_modules; k++) {
            const struct module_rec *m = &co->state.jobs[i]->modules[k];
            const unsigned told = module_told(m);
            for (unsigned n = 0; n < told; n++)
                look_at_version(co->state.jobs[i], m, &m->versions[n]);
            if (find_version(m->id, m->version + 1) != NULL)
                sim_fail("module %llu is at version %llu and has been further",
                         (unsigned long long)m->id, (unsigned long long)m->version);
        }
    oracle.begins = false;
}

/* ---- ledgers ----------------------------------------------------------------- */

static void look_at_ledger(const struct coordinator *co, const struct job *j, uint32_t n)
{
    const struct ledger *l = j->ledgers[n];
    const uint32_t closed = ledger_first_open(l);
    struct ledger_epoch x;
    bool again = oracle.remembers > 0; /* phases have been forgotten, too */
    ledger_figures(l, closed, &x);
    uint64_t done = closed * x.total, leased = 0, used = 0, lent = 0;
    for (uint32_t e = closed; e < closed + ledger_open(l); e++) {
        ledger_figures(l, e, &x);
        if (x.done + x.leased + x.pending != x.total)
            sim_fail("epoch %u of job %llu has %llu samples: %llu done, %llu leased, %llu pending",
                     e, (unsigned long long)j->id, (unsigned long long)x.total,
                     (unsigned long long)x.done, (unsigned long long)x.leased,
                     (unsigned long long)x.pending);
        done += x.done;
        leased += x.leased;
    }
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        const struct task *t = co->state.tasks[i];
        if (t->job_id != j->id || t->kind != TASK_TRAIN ||
            job_ledger(j, j->comp.paths[t->path].partition) != n)
            continue;
        used += t->state == TASK_DONE ? t->samples : task_is_open(t) ? 0 : task_folded(t);
        lent += t->state == TASK_LEASED ? query_held(t) : 0;
        again |= t->failures > 0;
    }
    if (done < used || (!again && done != used) || leased != lent)
        sim_fail("ledger %u of job %llu: %llu samples are done and %llu leased, phases have used "
                 "%llu and hold %llu",
                 n, (unsigned long long)j->id, (unsigned long long)done, (unsigned long long)leased,
                 (unsigned long long)used, (unsigned long long)lent);
}

static void look_at_ledgers(const struct coordinator *co)
{
    for (size_t i = 0; i < co->state.n_jobs; i++) {
        const struct job *j = co->state.jobs[i];
        for (uint32_t n = 0; j->ledgers != NULL && n < job_ledgers(j); n++)
            if (j->ledgers[n] != NULL && j->resharded == 0)
                look_at_ledger(co, j, n);
    }
}

/* Phases that wait for a version: every one that has ended and that no replica has, and no other.
 */
static void look_at_late(const struct coordinator *co)
{
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        const struct task *t = co->state.tasks[i];
        const struct job *j = state_job(&co->state, t->job_id);
        bool waits = false, listed = false;
        if (t->kind != TASK_TRAIN || j->spec.outer.async || job_is_ended(j))
            continue;
        for (size_t c = 0; c < t->train.n_contributions; c++)
            waits |= t->train.contributions[c].version == 0 && !t->train.contributions[c].refused;
        waits &=
            t->state == TASK_DONE && j->paths[t->path].replicas[t->train.replica].task_id != t->id;
        for (size_t k = 0; k < j->n_late; k++)
            listed |= j->late[k] == t->id;
        if (waits && !listed)
            sim_fail("task %llu has given something that waits for no version",
                     (unsigned long long)t->id);
    }
}

/* ---- fences ------------------------------------------------------------------ */

static void look_at_leases(const struct coordinator *co)
{
    const struct state *s = &co->state;
    size_t open = 0;
    for (size_t i = 0; i < s->n_tasks; i++) {
        const struct task *t = s->tasks[i];
        const struct worker *w = state_worker(s, t->worker_id);
        open += task_is_open(t);
        if (t->state == TASK_LEASED && (t->kind != TASK_OUTER || t->worker_id != 0) &&
            (w == NULL || w->task_id != t->id))
            sim_fail("task %llu is leased to worker %llu, which holds %llu",
                     (unsigned long long)t->id, (unsigned long long)t->worker_id,
                     (unsigned long long)(w ? w->task_id : 0));
    }
    if (open != s->n_open)
        sim_fail("%zu tasks are open, %zu are counted", open, s->n_open);
    for (size_t i = 0; i < s->n_workers; i++) {
        const struct worker *w = s->workers[i];
        const struct task *t = state_task(s, w->task_id);
        if (t != NULL && t->state == TASK_LEASED && t->worker_id != w->id)
            sim_fail("worker %llu holds task %llu, which is leased to worker %llu",
                     (unsigned long long)w->id, (unsigned long long)t->id,
                     (unsigned long long)t->worker_id);
    }
}

/* What the state finds without looking at all its records. */
static void look_at_indexes(const struct coordinator *co)
{
    const struct state *s = &co->state;
    size_t ready = 0, parked = 0;
    for (size_t i = 0; i < s->n_tasks; i++) {
        const struct task *t = s->tasks[i];
        if (t->state == TASK_PENDING && (ready >= s->n_ready || s->ready[ready++] != t))
            sim_fail("task %llu is ready and not found", (unsigned long long)t->id);
    }
    for (const struct list *l = s->parked.next; l != &s->parked; l = l->next)
        parked++;
    size_t here = 0;
    for (size_t i = 0; i < s->n_workers; i++) {
        const struct worker *w = s->workers[i];
        parked -= w->parked != NULL;
        here += w->state == WORKER_HERE;
        if (access_worker_by_identity(s, w->identity) != w ||
            (w->has_key && access_worker_by_key(s, w->key) != w))
            sim_fail("worker %llu is not found by its identity or key", (unsigned long long)w->id);
    }
    if (here != s->n_here)
        sim_fail("%zu workers are here, %zu are counted", here, s->n_here);
    if (ready != s->n_ready || parked != 0)
        sim_fail("%zu tasks are ready of %zu found; %zd workers more are found than wait", ready,
                 s->n_ready, (ssize_t)parked);
    for (size_t i = 0; i < s->n_jobs; i++) {
        uint32_t leases = 0;
        for (size_t k = 0; k < s->n_tasks; k++)
            leases += s->tasks[k]->job_id == s->jobs[i]->id && s->tasks[k]->state == TASK_LEASED;
        if (leases != s->jobs[i]->leases)
            sim_fail("job %llu has %u leases, %u are counted", (unsigned long long)s->jobs[i]->id,
                     leases, s->jobs[i]->leases);
    }
}

/* ---- blobs ------------------------------------------------------------------- */

struct inventory {
    const struct coordinator *co;
    struct blob_id *ids;
    size_t n, cap;
};

static void check_blob(void *arg, enum blob_role role, const struct blob_ref *b,
                       enum blob_need need)
{
    struct inventory *x = arg;
    struct blob_id id;
    uint8_t got[HASH_BYTES];
    char *path = NULL;
    memcpy(id.sha256, b->sha256, sizeof(id.sha256));
    if (need == BLOB_FREE || (need == BLOB_SPARED && !blobstore_has(x->co->blobs, &id, NULL)))
        return;
    if (x->co->opt.store_state && !store_has_blob(&id))
        sim_fail("a blob is on record as needed (%d), and the store does not have it", (int)role);
    const int rc = x->co->blobs->ops->local(x->co->blobs, &id, false, &path, NULL);
    if (rc < 0 && !(rc == -EAGAIN && x->co->opt.store_state))
        sim_fail("a blob is on record as needed (%d) and is gone", (int)role);
    if (rc == 0 && x->co->opt.store_state)
        x->co->blobs->ops->let_go(x->co->blobs, &id);
    if (rc == 0 &&
        (hash_file(path, got, NULL, NULL) < 0 || memcmp(got, id.sha256, sizeof(got)) != 0))
        sim_fail("a blob (%d) has another content than it must", (int)role);
    mem_free(path);
    for (size_t i = 0; i < x->n; i++)
        if (blob_id_equal(&x->ids[i], &id))
            return;
    if (x->n == x->cap) {
        x->cap = x->cap ? x->cap * 2 : 64;
        x->ids = mem_realloc(x->ids, x->cap * sizeof(*x->ids));
    }
    x->ids[x->n++] = id;
}

static size_t look_at_blobs(const struct coordinator *co)
{
    struct inventory x = {.co = co};
    each_blob(&co->state, 0, core_unix_ms(co), check_blob, &x);
    mem_free(x.ids);
    return x.n;
}

/* ---- all --------------------------------------------------------------------- */

void oracle_look(struct coordinator *co)
{
    figures.looks++;
    claims_look(co, false);
    look_at_leases(co);
    look_at_indexes(co);
    look_at_revoked(co);
    if (!co->store_ok)
        return; /* what is in memory is ahead of what was promised */
    look_at_modules(co);
    look_at_results(co);
    look_at_told(co);
    look_at_jobs(co);
    look_at_shown(co);
    look_at_ledgers(co);
    look_at_late(co);
}

static uint64_t rows(struct coordinator *co, const char *sql, uint64_t id)
{
    sqlite3_stmt *q = NULL;
    uint64_t n = 0;
    struct err err = {0};
    if (store_select(co->store, sql, &q, &err) < 0)
        sim_fail("%s", err.msg);
    (void)sqlite3_bind_int64(q, 1, (int64_t)id);
    if (sqlite3_step(q) == SQLITE_ROW)
        n = (uint64_t)sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return n;
}

/* A job's history in the database has an end, however many rounds there were. */
static void look_at_history(struct coordinator *co)
{
    for (size_t i = 0; i < co->state.n_jobs; i++) {
        const struct job *j = co->state.jobs[i];
        for (uint32_t k = 0; k < j->comp.n_modules; k++) {
            const struct module_rec *m = &j->modules[k];
            const uint64_t n = rows(co, "SELECT count(*) FROM versions WHERE module=?", m->id);
            if (n > m->kept)
                sim_fail("module %llu has %llu versions on record, and %u are kept",
                         (unsigned long long)m->id, (unsigned long long)n, m->kept);
        }
        if (rows(co, "SELECT count(*) FROM rounds WHERE job=?", j->id) > job_rounds_max(j) ||
            rows(co, "SELECT count(*) FROM tasks WHERE job=? AND state>2", j->id) >
                TASKS_ENDED_MAX + TASKS_OPEN_MAX)
            sim_fail("job %llu has too many rounds or ended tasks on record",
                     (unsigned long long)j->id);
    }
}

void oracle_look_closely(struct coordinator *co)
{
    claims_look(co, true);
    oracle_look(co);
    look_at_history(co);
    (void)look_at_blobs(co);
}

/* Who has been gone for more than a day is forgotten, unless a person shut him out or wants him to
 * leave; here no token has an end. */
static void look_at_gone(const struct coordinator *co)
{
    for (size_t i = 0; i < co->state.n_workers; i++) {
        const struct worker *w = co->state.workers[i];
        const int64_t ms = core_unix_ms(co) - w->since_unix_ms;
        if (w->state != WORKER_HERE && w->revoked_unix_ms == 0 && !w->drain &&
            ms > GONE_DOUBTED_MS + GONE_LEAST_MS)
            sim_fail("worker %llu is on record, and has been gone for %lld s",
                     (unsigned long long)w->id, (long long)ms / 1000);
    }
}

void oracle_look_at_end(struct coordinator *co)
{
    const size_t needed = look_at_blobs(co);
    oracle_look(co);
    look_at_history(co);
    look_at_gone(co);
    if (co->state.n_open > 0)
        sim_fail("%zu tasks are open, and no job runs", co->state.n_open);
    for (size_t i = 0; i < co->state.n_workers; i++)
        if (co->state.workers[i]->task_id != 0)
            sim_fail("worker %llu holds task %llu, and no job runs",
                     (unsigned long long)co->state.workers[i]->id,
                     (unsigned long long)co->state.workers[i]->task_id);
    for (size_t i = 0; i < co->state.n_jobs; i++)
        if (co->state.jobs[i]->state == JOB_DONE && co->state.jobs[i]->n_late > 0)
            sim_fail("job %llu is done, and %zu phases wait for its next version",
                     (unsigned long long)co->state.jobs[i]->id, co->state.jobs[i]->n_late);
    if (co->blobs->count != needed)
        sim_fail("%llu blobs are kept, and %zu are needed", (unsigned long long)co->blobs->count,
                 needed);
}
