#include "coordinator/state/state.h"

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/base/str.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *job_state_name(enum job_state s)
{
    static const char *const names[JOB_STATES] = {
        "unknown", "pending",   "ingesting", "initialising", "running",    "finishing", "done",
        "failed",  "cancelled", "features",  "scoring",      "clustering", "splitting"};
    return names[s < JOB_STATES ? s : JOB_UNSPECIFIED];
}

/* What a sampler elsewhere waits for goes first, then what a person looks at, then what the job
 * needs before it can train. */
const struct task_trait task_traits[TASK_KINDS] = {
    [TASK_UNSPECIFIED] = {"NONE", 2, false}, [TASK_INIT] = {"INIT", 2, false},
    [TASK_INGEST] = {"INGEST", 2, false},    [TASK_TRAIN] = {"TRAIN", 3, false},
    [TASK_EVAL] = {"EVAL", 1, true},         [TASK_SAMPLE] = {"SAMPLE", 1, true},
    [TASK_OUTER] = {"OUTER", 2, false},      [TASK_FEATURE] = {"FEATURE", 2, false},
    [TASK_CLUSTER] = {"CLUSTER", 2, false},  [TASK_SPLIT] = {"SPLIT", 2, false},
    [TASK_SCORE] = {"SCORE", 2, false},      [TASK_VELOCITY] = {"VELOCITY", 0, true},
};

const char *task_kind_name(enum task_kind k)
{
    return task_traits[k < TASK_KINDS ? k : TASK_UNSPECIFIED].name;
}

const char *task_state_name(enum task_state s)
{
    static const char *const names[] = {"unknown", "pending", "leased",
                                        "done",    "failed",  "cancelled"};
    return names[s <= TASK_CANCELLED ? s : TASK_STATE_UNSPECIFIED];
}

bool task_wants_ema(const struct task *t)
{
    const struct task_draw *d = task_drawing(t);
    return d != NULL ? d->ema
                     : (t->kind == TASK_SCORE && t->score.ema) ||
                           (t->kind == TASK_VELOCITY && t->velocity.ema);
}

bool task_evaluates(const struct task *t)
{
    return (t->kind == TASK_CLUSTER && t->cluster.evaluate) ||
           (t->kind == TASK_SCORE && t->score.evaluate);
}

/* Where the number of a task lies, by its kind; NULL: it has none. */
static uint32_t *number_of(struct task *t)
{
    switch (t->kind) {
    case TASK_INGEST:
        return &t->ingest.url;
    case TASK_TRAIN:
        return &t->train.round;
    case TASK_EVAL:
    case TASK_SAMPLE:
        return &t->draw.version;
    case TASK_OUTER:
        return &t->outer.version;
    case TASK_CLUSTER:
        return &t->cluster.pass;
    case TASK_SPLIT:
        return &t->split.group;
    case TASK_SCORE:
        return &t->score.version;
    case TASK_VELOCITY:
        return &t->velocity.version;
    default:
        return NULL;
    }
}

uint32_t task_round(const struct task *t)
{
    const uint32_t *n = number_of((struct task *)t);
    return n != NULL ? *n : 0;
}

void task_set_round(struct task *t, uint32_t round)
{
    uint32_t *n = number_of(t);
    if (n != NULL)
        *n = round;
}

uint32_t task_replica(const struct task *t)
{
    return t->kind == TASK_TRAIN ? t->train.replica : 0;
}

void state_init(struct state *s)
{
    memset(s, 0, sizeof(*s));
    s->next_worker = s->next_job = s->next_task = s->next_module = 1;
}

static void free_worker(struct worker *w)
{
    mem_free(w->verdicts);
    devices_release(&w->devices);
    mem_free(w);
}

static void free_task(struct task *t)
{
    mem_free(t->ranges);
    if (t->kind == TASK_TRAIN)
        mem_free(t->train.contributions);
    if (task_drawing(t) != NULL) {
        mem_free(t->draw.labels);
        mem_free(t->draw.prompt);
        mem_free(t->draw.text);
    }
    mem_free(t);
}

static void free_modules(struct job *j)
{
    for (uint32_t i = 0; j->modules != NULL && i < j->comp.n_modules; i++)
        for (unsigned v = 0; v < j->modules[i].n_versions; v++)
            mem_free(j->modules[i].versions[v].provenance);
    mem_free(j->modules);
    for (uint32_t i = 0; j->paths != NULL && i < j->comp.n_paths; i++) {
        mem_free(j->paths[i].replicas);
        mem_free(j->paths[i].best);
    }
    mem_free(j->paths);
    for (uint32_t i = 0; j->ledgers != NULL && i < job_ledgers(j); i++)
        ledger_free(j->ledgers[i]);
    mem_free(j->ledgers);
}

static void free_job(struct job *j)
{
    free_modules(j);
    for (size_t i = 0; j->classes != NULL && i < j->n_classes; i++)
        mem_free(j->classes[i]);
    mem_free(j->classes);
    mem_free(j->counts);
    mem_free(j->shards);
    for (size_t i = 0; i < j->n_bad; i++) {
        mem_free(j->bad[i].shard);
        mem_free(j->bad[i].key);
        mem_free(j->bad[i].reason);
    }
    mem_free(j->bad);
    mem_free(j->rounds);
    for (size_t i = 0; i < j->n_grids; i++)
        mem_free(j->grids[i].text);
    mem_free(j->grids);
    mem_free(j->sizes);
    mem_free(j->scores);
    mem_free(j->rows);
    mem_free(j->refused);
    mem_free(j->doom);
    mem_free(j->unread_blobs);
    composition_release(&j->comp);
    job_release(&j->spec);
    mem_free(j->yaml);
    mem_free(j);
}

void state_release(struct state *s)
{
    for (size_t i = 0; i < s->n_workers; i++)
        free_worker(s->workers[i]);
    for (size_t i = 0; i < s->n_tasks; i++)
        free_task(s->tasks[i]);
    for (size_t i = 0; i < s->n_jobs; i++)
        free_job(s->jobs[i]);
    mem_free(s->workers);
    mem_free(s->tasks);
    mem_free(s->jobs);
    memset(s, 0, sizeof(*s));
}

/* First index whose id is not below `id`; all records begin with their id. */
static size_t lower_bound(void *const *items, size_t n, uint64_t id)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        uint64_t have;
        memcpy(&have, items[mid], sizeof(have));
        if (have < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void *find(void *const *items, size_t n, uint64_t id)
{
    size_t at = lower_bound(items, n, id);
    uint64_t have;
    if (at == n)
        return NULL;
    memcpy(&have, items[at], sizeof(have));
    return have == id ? items[at] : NULL;
}

struct worker *state_worker(const struct state *s, uint64_t id)
{
    return find((void *const *)s->workers, s->n_workers, id);
}

struct job *state_job(const struct state *s, uint64_t id)
{
    return find((void *const *)s->jobs, s->n_jobs, id);
}

struct task *state_task(const struct state *s, uint64_t id)
{
    return find((void *const *)s->tasks, s->n_tasks, id);
}

struct worker *state_worker_by_identity(const struct state *s, const uint8_t identity[16])
{
    for (size_t i = 0; i < s->n_workers; i++)
        if (memcmp(s->workers[i]->identity, identity, 16) == 0)
            return s->workers[i];
    return NULL;
}

struct module_rec *job_module(const struct job *j, uint64_t id)
{
    for (uint32_t i = 0; j->modules != NULL && i < j->comp.n_modules; i++)
        if (j->modules[i].id == id)
            return &j->modules[i];
    return NULL;
}

struct module_rec *state_module(const struct state *s, uint64_t id, struct job **ret_job)
{
    for (size_t i = 0; i < s->n_jobs; i++) {
        struct module_rec *m = job_module(s->jobs[i], id);
        if (m != NULL) {
            *ret_job = s->jobs[i];
            return m;
        }
    }
    return NULL;
}

const struct version_rec *module_version(const struct module_rec *m, uint64_t version)
{
    for (unsigned i = 0; i < m->n_versions; i++)
        if (m->versions[i].version == version)
            return &m->versions[i];
    return NULL;
}

bool module_keeps(const struct module_rec *m, const struct contribution *c)
{
    uint64_t into = c->version ? c->version : c->base_version + 1;
    return (c->version == 0 && !c->refused) || into + m->kept > m->version + 1;
}

bool module_lets_go(const struct module_rec *m, const struct contribution *c)
{
    uint64_t into = c->version ? c->version : c->base_version + 1;
    return !module_keeps(m, c) && into + m->kept == m->version + 1;
}

/* Makes room for one more pointer. */
static void *grow(void *items, size_t n, size_t *cap)
{
    if (n < *cap)
        return items;
    *cap = *cap ? *cap * 2 : 16;
    return mem_realloc(items, *cap * sizeof(void *));
}

static uint64_t take_id(uint64_t id, uint64_t *next)
{
    if (id == 0)
        id = *next;
    if (id >= *next)
        *next = id + 1;
    return id;
}

struct worker *state_add_worker(struct state *s, uint64_t id)
{
    if (s->n_workers >= WORKERS_KNOWN_MAX)
        return NULL;
    s->workers = grow(s->workers, s->n_workers, &s->cap_workers);
    struct worker *w = mem_alloc(sizeof(*w));
    w->id = take_id(id, &s->next_worker);
    s->workers[s->n_workers++] = w;
    return w;
}

struct job *state_add_job(struct state *s, uint64_t id)
{
    if (s->n_jobs >= JOBS_MAX)
        return NULL;
    s->jobs = grow(s->jobs, s->n_jobs, &s->cap_jobs);
    struct job *j = mem_alloc(sizeof(*j));
    j->id = take_id(id, &s->next_job);
    j->loss = j->eval_loss = NAN;
    s->jobs[s->n_jobs++] = j;
    return j;
}

struct task *state_add_task(struct state *s, uint64_t id, uint64_t job_id, enum task_kind kind)
{
    if (s->n_open >= TASKS_OPEN_MAX)
        return NULL;
    s->tasks = grow(s->tasks, s->n_tasks, &s->cap_tasks);
    struct task *t = mem_alloc(sizeof(*t));
    t->id = take_id(id, &s->next_task);
    t->job_id = job_id;
    t->kind = kind;
    t->state = TASK_PENDING;
    t->loss = t->loss_first = t->loss_last = t->loss_mean = NAN;
    s->n_open++;
    s->tasks[s->n_tasks++] = t;
    return t;
}

static void drop(void **items, size_t *n, uint64_t id)
{
    size_t at = lower_bound(items, *n, id);
    memmove(&items[at], &items[at + 1], (*n - at - 1) * sizeof(void *));
    --*n;
}

void state_drop_worker(struct state *s, struct worker *w)
{
    drop((void **)s->workers, &s->n_workers, w->id);
    free_worker(w);
}

void state_drop_task(struct state *s, struct task *t)
{
    if (task_is_open(t))
        s->n_open--;
    drop((void **)s->tasks, &s->n_tasks, t->id);
    free_task(t);
}

void state_drop_job(struct state *s, struct job *j)
{
    drop((void **)s->jobs, &s->n_jobs, j->id);
    free_job(j);
}

void state_set_task_state(struct state *s, struct task *t, enum task_state to)
{
    bool was = task_is_open(t);
    t->state = to;
    bool is = task_is_open(t);
    if (was && !is)
        s->n_open--;
    else if (!was && is)
        s->n_open++;
}

bool job_add_bad(struct job *j, const char *shard, const char *key, const char *reason)
{
    if (j->n_bad == JOB_BAD_MAX)
        return false;
    j->bad = mem_realloc(j->bad, (j->n_bad + 1) * sizeof(*j->bad));
    j->bad[j->n_bad++] =
        (struct bad_rec){str_ndup(shard, 256), str_ndup(key, 256), str_ndup(reason, 256)};
    return true;
}

/* Asynchronous contributions start from versions that the others have left behind:
 * about as many as there are replicas, twice that when some are slow. */
static unsigned versions_kept(const struct job *j, uint32_t module)
{
    const struct composition *c = &j->comp;
    uint32_t replicas = 0;
    for (uint32_t p = 0; p < c->n_paths && j->spec.outer.async; p++)
        for (uint32_t l = 0; l < composition_levels(c, p); l++)
            replicas += c->paths[p].modules[l] == module ? c->paths[p].replicas : 0;
    uint32_t want = 2 * replicas;
    return want < VERSIONS_KEPT       ? VERSIONS_KEPT
           : want < VERSIONS_KEPT_MAX ? want
                                      : VERSIONS_KEPT_MAX;
}

void job_build(struct state *s, struct job *j)
{
    const struct composition *c = &j->comp;
    j->modules = mem_alloc_array(c->n_modules, sizeof(*j->modules));
    for (uint32_t i = 0; i < c->n_modules; i++) {
        j->modules[i].id = s->next_module++;
        j->modules[i].network = c->modules[i].network;
        j->modules[i].level = c->modules[i].level;
        j->modules[i].index = c->modules[i].index;
        j->modules[i].kept = versions_kept(j, i);
    }
    j->paths = mem_alloc_array(c->n_paths, sizeof(*j->paths));
    for (uint32_t i = 0; i < c->n_paths; i++) {
        j->paths[i].replicas = mem_alloc_array(c->paths[i].replicas, sizeof(struct replica_rec));
        j->paths[i].eval.loss = j->paths[i].best_loss = NAN;
        for (uint32_t r = 0; r < c->paths[i].replicas; r++)
            j->paths[i].replicas[r].loss = NAN;
    }
    j->ledgers = mem_alloc_array(job_ledgers(j), sizeof(*j->ledgers));
    j->sizes = mem_alloc_array(c->n_partitions, sizeof(*j->sizes));
}

void job_doom(struct job *j, const char *fmt, ...)
{
    char reason[1024];
    va_list ap;
    if (job_is_ended(j) || j->doom != NULL)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(reason, sizeof(reason), fmt, ap);
    va_end(ap);
    j->doom = str_dup(reason);
}

struct shard_rec *job_add_shard(struct job *j)
{
    if (j->n_shards == JOB_SHARDS_MAX)
        return NULL;
    if (j->n_shards == j->cap_shards) {
        j->cap_shards = j->cap_shards ? j->cap_shards * 2 : 64;
        j->shards = mem_realloc(j->shards, j->cap_shards * sizeof(*j->shards));
    }
    struct shard_rec *r = &j->shards[j->n_shards++];
    memset(r, 0, sizeof(*r));
    return r;
}

int job_make_ledger(struct job *j, uint32_t partition, struct err *err)
{
    struct ledger_shard *shards = mem_try_array(j->n_shards + 1, sizeof(*shards));
    struct ledger *made = NULL;
    size_t n = 0;
    if (shards == NULL)
        return err_set(err, -ENOMEM, "no memory for %zu shards", j->n_shards);
    for (size_t i = 0; i < j->n_shards; i++)
        if (job_shard_trains(j, &j->shards[i], partition))
            shards[n++] = (struct ledger_shard){(uint32_t)i, j->shards[i].samples};
    uint32_t at = job_ledger(j, partition);
    uint64_t seed = rng_mix(j->spec.seed, at);
    if (j->generation > 0)
        seed = rng_mix(seed, j->generation);
    int rc = ledger_new(seed, shards, n, &made, err);
    mem_free(shards);
    if (rc < 0)
        return rc;
    if (partition == PARTITION_ALL)
        ledger_set_even(made);
    ledger_free(j->ledgers[at]);
    j->ledgers[at] = made;
    return 0;
}

bool job_shard_trains(const struct job *j, const struct shard_rec *s, uint32_t partition)
{
    return s->generation == j->generation && !s->holdout && !s->router &&
           (partition == PARTITION_ALL || s->partition == partition);
}

bool job_shard_evaluates(const struct job *j, const struct shard_rec *s, uint32_t partition)
{
    return s->generation == j->generation && s->holdout &&
           (partition == PARTITION_ALL || s->partition == partition);
}
