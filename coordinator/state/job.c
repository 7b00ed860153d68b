#include "coordinator/state/job.h"

#include "common/base/rng.h"

const char *job_state_name(enum job_state s)
{
    static const char *const names[JOB_STATES] = {
        "unknown", "pending",   "ingesting", "initialising", "running",    "finishing", "done",
        "failed",  "cancelled", "features",  "scoring",      "clustering", "splitting", "encoding"};
    return names[s < JOB_STATES ? s : JOB_UNSPECIFIED];
}

/* The number of kept versions.  Asynchronous contributions start from older versions:
 * about as many as there are replicas, twice that if some are slow. */
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

void job_build(struct job *j, uint64_t *next_module)
{
    j->quota = j->spec.swarm;
    const struct composition *c = &j->comp;
    struct module_rec *modules = mem_alloc_array(c->n_modules, sizeof(*modules));
    struct path_rec *paths = mem_alloc_array(c->n_paths, sizeof(*paths));
    j->modules = modules;
    j->paths = paths;
    for (uint32_t i = 0; i < c->n_modules; i++) {
        const struct composition_module *m = &c->modules[i];
        modules[i] = (struct module_rec){.id = (*next_module)++,
                                         .network = m->network,
                                         .level = m->level,
                                         .index = m->index,
                                         .kept = versions_kept(j, i)};
        (void)job_edit_module(j, &modules[i]);
    }
    for (uint32_t i = 0; i < c->n_paths; i++) {
        struct replica_rec *replicas = mem_alloc_array(c->paths[i].replicas, sizeof(*replicas));
        for (uint32_t r = 0; r < c->paths[i].replicas; r++)
            replicas[r].loss = NAN;
        paths[i].replicas = replicas;
        paths[i].eval.loss = paths[i].best_loss = NAN;
        (void)job_edit_path(j, i);
    }
    j->ledgers = mem_alloc_array(job_ledgers(j), sizeof(*j->ledgers));
    j->sizes = mem_alloc_array(c->n_partitions, sizeof(*j->sizes));
}

static void free_modules(struct job *j)
{
    for (uint32_t i = 0; j->modules != NULL && i < j->comp.n_modules; i++)
        module_release((struct module_rec *)&j->modules[i]);
    mem_free((void *)j->modules);
    for (uint32_t i = 0; j->paths != NULL && i < j->comp.n_paths; i++) {
        mem_free((void *)j->paths[i].replicas);
        mem_free(j->paths[i].best);
        mem_free(j->paths[i].hope.best);
    }
    mem_free((void *)j->paths);
    for (uint32_t i = 0; j->ledgers != NULL && i < job_ledgers(j); i++)
        ledger_free(j->ledgers[i]);
    mem_free(j->ledgers);
    mem_free(j->late);
}

void job_free(struct job *j)
{
    free_modules(j);
    for (size_t i = 0; j->classes != NULL && i < j->n_classes; i++)
        mem_free(j->classes[i]);
    mem_free(j->classes);
    mem_free(j->counts);
    mem_free((void *)j->shards);
    mem_free(j->encoders);
    for (size_t i = 0; i < j->n_bad; i++) {
        mem_free(j->bad[i].shard);
        mem_free(j->bad[i].key);
        mem_free(j->bad[i].reason);
    }
    mem_free(j->bad);
    mem_free((void *)j->rounds);
    for (size_t i = 0; i < j->n_grids; i++)
        mem_free(j->grids[i].text);
    mem_free((void *)j->grids);
    mem_free(j->sizes);
    mem_free(j->trace.text);
    mem_free(j->numbers);
    mem_free((void *)j->scores);
    mem_free((void *)j->rows);
    mem_free(j->refused);
    mem_free(j->useless);
    mem_free(j->doom);
    mem_free(j->unread_blobs);
    mem_free(j->modules_edited.at);
    mem_free(j->paths_edited.at);
    mem_free(j->shards_edited.at);
    mem_free(j->rows_edited.at);
    mem_free(j->grids_gone.at);
    mem_free(j->rounds_gone.at);
    composition_release(&j->comp);
    job_release(&j->spec);
    mem_free(j->yaml);
    mem_free(j);
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

/* ---- for writing --------------------------------------------------------- */

struct module_rec *job_edit_module(struct job *j, const struct module_rec *m)
{
    struct module_rec *w = (struct module_rec *)m;
    if (w != NULL)
        row_edit(&w->row, &j->modules_edited, (uint64_t)(m - j->modules));
    return w;
}

struct path_rec *job_edit_path(struct job *j, uint32_t path)
{
    struct path_rec *p = (struct path_rec *)&j->paths[path];
    row_edit(&p->row, &j->paths_edited, path);
    return p;
}

struct replica_rec *job_edit_replica(struct job *j, uint32_t path, uint32_t replica)
{
    return (struct replica_rec *)&job_edit_path(j, path)->replicas[replica];
}

uint64_t job_time_of(struct job_times *t, uint64_t (*of)(const uint64_t *ms, size_t n))
{
    const unsigned room = sizeof(t->ms) / sizeof(t->ms[0]);
    if (t->found_of != t->n)
        t->found = of(t->ms, t->n < room ? t->n : room);
    t->found_of = t->n;
    return t->found;
}

struct shard_rec *job_edit_shard(struct job *j, size_t n)
{
    marks_add(&j->shards_edited, n);
    return (struct shard_rec *)&j->shards[n];
}

/* Where a shard stood before they were put in order. */
struct shard_place {
    uint32_t source;
    size_t at;
};

static int by_source(const void *a, const void *b)
{
    const struct shard_place *x = a, *y = b;
    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* There may be tens of thousands, and they come in thousands: only what moves is written. */
void job_order_shards(struct job *j, size_t first)
{
    const size_t n = j->n_shards - first;
    struct shard_rec *to = (struct shard_rec *)j->shards + first;
    struct shard_rec *were = mem_alloc_array(n + 1, sizeof(*were));
    struct shard_place *order = mem_alloc_array(n + 1, sizeof(*order));
    for (size_t i = 0; i < n; i++) {
        were[i] = to[i];
        order[i] = (struct shard_place){to[i].source, i};
    }
    qsort(order, n, sizeof(*order), by_source);
    for (size_t i = 0; i < n; i++) {
        if (order[i].at == i)
            continue;
        to[i] = were[order[i].at];
        marks_add(&j->shards_edited, first + i);
    }
    mem_free(order);
    mem_free(were);
}

struct shard_rec *job_add_shard(struct job *j)
{
    if (j->n_shards == JOB_SHARDS_MAX)
        return NULL;
    if (j->n_shards == j->cap_shards) {
        j->cap_shards = j->cap_shards ? j->cap_shards * 2 : 64;
        j->shards = mem_realloc((void *)j->shards, j->cap_shards * sizeof(*j->shards));
    }
    struct shard_rec *r = job_edit_shard(j, j->n_shards++);
    memset(r, 0, sizeof(*r));
    return r;
}

void job_add_class(struct job *j, const char *name, uint64_t samples)
{
    j->classes = mem_realloc(j->classes, (j->n_classes + 1) * sizeof(*j->classes));
    j->counts = mem_realloc(j->counts, (j->n_classes + 1) * sizeof(*j->counts));
    j->classes[j->n_classes] = str_ndup(name, 256);
    j->counts[j->n_classes++] = samples;
}

void job_drop_classes(struct job *j, size_t n)
{
    while (j->n_classes > n)
        mem_free(j->classes[--j->n_classes]);
    j->classes_saved = j->classes_saved < n ? j->classes_saved : n;
    j->shrunk = true;
}

void job_drop_shards(struct job *j, const bool *of)
{
    size_t kept = 0;
    for (size_t i = 0; i < j->n_shards; i++) {
        const struct shard_rec s = j->shards[i];
        if (s.source >= j->spec.data.url.n || !of[s.source])
            *job_edit_shard(j, kept++) = s;
    }
    j->n_shards = kept;
    j->shrunk = true;
}

void job_add_maker(struct job *j, uint64_t origin)
{
    struct job_makers *m = &j->makers;
    for (unsigned i = 0; i < m->n; i++)
        if (m->origin[i] == origin)
            return;
    if (m->n < JOB_MAKERS_MAX)
        m->origin[m->n++] = origin;
    else
        m->since_features = false;
}

void job_drop_maker(struct job *j, unsigned n)
{
    struct job_makers *m = &j->makers;
    m->origin[n] = m->origin[--m->n];
}

void job_drop_generation(struct job *j, uint32_t generation)
{
    while (j->n_shards > 0 && j->shards[j->n_shards - 1].generation >= generation)
        j->n_shards--;
    j->shrunk = true;
}

void job_uncount_archive(struct job *j, uint64_t origin, uint64_t uncaptioned, uint64_t unnamed)
{
    j->bad_count -= (uint32_t)unnamed;
    for (size_t i = 0; i < j->n_rows && uncaptioned > 0; i++)
        if (j->rows[i].kind == TASK_INGEST) { /* its only row: images without a caption */
            ((struct row_rec *)j->rows)[i].value -= (double)uncaptioned;
            marks_add(&j->rows_edited, i);
        }
    for (unsigned i = 0; i < JOB_PLACES_MAX; i++)
        if (j->places[i].origin == origin) {
            j->places[i].uncaptioned -= uncaptioned;
            j->places[i].cut -= unnamed;
            return;
        }
}

void job_add_encoder(struct job *j, const struct encoder_file *f)
{
    j->encoders = mem_realloc(j->encoders, (j->n_encoders + 1) * sizeof(*j->encoders));
    j->encoders[j->n_encoders++] = *f;
}

bool job_add_bad(struct job *j, const char *shard, const char *key, const char *reason,
                 uint64_t said)
{
    if (j->n_bad == JOB_BAD_MAX)
        return false;
    j->bad = mem_realloc(j->bad, (j->n_bad + 1) * sizeof(*j->bad));
    j->bad[j->n_bad++] =
        (struct bad_rec){str_ndup(shard, 256), str_ndup(key, 256), str_ndup(reason, 256), said};
    return true;
}

unsigned job_place(struct job *j, uint64_t origin)
{
    for (unsigned i = 0; i < j->n_places && i < JOB_PLACES_MAX; i++)
        if (j->places[i].origin == origin)
            return i;
    const unsigned at = j->n_places++ % JOB_PLACES_MAX;
    j->places[at].origin = origin;
    return at;
}

uint64_t job_bad_for(const struct job *j, unsigned place)
{
    uint64_t alone[JOB_PLACES_MAX], all = 0, most = 0;
    for (unsigned i = 0; i < JOB_PLACES_MAX; i++)
        all += alone[i] = j->places[i].cut;
    for (size_t i = 0; i < j->n_bad; i++) {
        const uint64_t said = j->bad[i].said;
        all += said != 0;
        if (said != 0 && (said & (said - 1)) == 0)
            alone[__builtin_ctzll(said)]++;
    }
    for (unsigned i = 0; i < JOB_PLACES_MAX; i++)
        most = i != place && alone[i] > most ? alone[i] : most;
    return all - most;
}

void job_add_score(struct job *j, const struct score_rec *r)
{
    struct score_rec *scores = mem_realloc((void *)j->scores, (j->n_scores + 1) * sizeof(*scores));
    scores[j->n_scores++] = *r;
    j->scores = scores;
}

void job_drop_scores(struct job *j)
{
    j->n_scores = j->scores_saved = 0;
    j->scores_dropped = true;
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Whose things make room for another one of `mine`, if the n things there are come from these
 * places, sorted here: of the place that has most, if that is at least two more than `mine` has.
 * False: nobody's. */
static bool crowd(uint64_t *places, size_t n, uint64_t mine, uint64_t *ret)
{
    size_t most = 0, own = 0;
    qsort(places, n, sizeof(*places), by_value);
    for (size_t i = 0, end = 0; i < n; i = end) {
        while (end < n && places[end] == places[i])
            end++;
        if (places[i] == mine)
            own = end - i;
        if (end - i > most) {
            most = end - i;
            *ret = places[i];
        }
    }
    return mine != 0 && most >= own + 2;
}

/* The row that makes room for r; JOB_ROWS_MAX: none. */
static size_t row_to_replace(const struct job *j, const struct row_rec *r)
{
    uint64_t places[JOB_ROWS_MAX], from = 0;
    size_t i = 0;
    for (size_t k = 0; k < JOB_ROWS_MAX; k++)
        places[k] = j->rows[k].by;
    if (!crowd(places, JOB_ROWS_MAX, r->by, &from))
        return JOB_ROWS_MAX;
    while (j->rows[i].by != from)
        i++;
    return i;
}

static size_t row_place(const struct job *j, const struct row_rec *row)
{
    size_t i = 0;
    while (i < j->n_rows && (j->rows[i].kind != row->kind || j->rows[i].path != row->path ||
                             strcmp(j->rows[i].name, row->name) != 0))
        i++;
    return i;
}

bool job_put_row(struct job *j, const struct row_rec *r)
{
    size_t at = row_place(j, r);
    if (at == JOB_ROWS_MAX && (at = row_to_replace(j, r)) == JOB_ROWS_MAX)
        return false;
    if (at == j->n_rows)
        j->rows = mem_realloc((void *)j->rows, ++j->n_rows * sizeof(*j->rows));
    ((struct row_rec *)j->rows)[at] = *r;
    marks_add(&j->rows_edited, at);
    return true;
}

void job_add_late(struct job *j, uint64_t task)
{
    size_t at = j->n_late;
    j->late = mem_realloc(j->late, (j->n_late + 1) * sizeof(*j->late));
    for (; at > 0 && j->late[at - 1] > task; at--)
        j->late[at] = j->late[at - 1];
    j->late[at] = task;
    j->n_late++;
}

void job_drop_late(struct job *j, uint64_t task)
{
    size_t kept = 0;
    for (size_t i = 0; i < j->n_late; i++)
        if (j->late[i] != task)
            j->late[kept++] = j->late[i];
    j->n_late = kept;
}

void job_keep_rounds(struct job *j, size_t n)
{
    struct round_rec *rounds = (struct round_rec *)j->rounds;
    if (j->n_rounds <= n)
        return;
    for (size_t i = 0; i < j->n_rounds - n; i++)
        marks_add(&j->rounds_gone, (uint64_t)rounds[i].round << 32 | rounds[i].path);
    memmove(&rounds[0], &rounds[j->n_rounds - n], n * sizeof(*rounds));
    j->n_rounds = n;
}

/* The number that makes room for another one; NULL: none. */
static struct metric_number *number_to_replace(const struct job *j, uint64_t by)
{
    uint64_t places[JOB_NUMBERS_MAX], from = 0;
    struct metric_number *n = j->numbers;
    for (size_t i = 0; i < JOB_NUMBERS_MAX; i++)
        places[i] = j->numbers[i].by;
    if (!crowd(places, JOB_NUMBERS_MAX, by, &from))
        return NULL;
    while (n->by != from)
        n++;
    return n;
}

struct metric_number *job_number(struct job *j, const char *name, uint64_t by)
{
    for (size_t i = 0; i < j->n_numbers; i++)
        if (strcmp(j->numbers[i].name, name) == 0)
            return &j->numbers[i];
    if (!str_is_name(name, METRIC_NAME_MAX - 1))
        return NULL;
    if (j->numbers == NULL)
        j->numbers = mem_alloc_array(JOB_NUMBERS_MAX, sizeof(*j->numbers));
    struct metric_number *n =
        j->n_numbers < JOB_NUMBERS_MAX ? &j->numbers[j->n_numbers++] : number_to_replace(j, by);
    if (n == NULL)
        return NULL;
    *n = (struct metric_number){.value = (double)NAN, .held_out = (double)NAN, .by = by};
    (void)str_copy(n->name, sizeof(n->name), name);
    return n;
}

size_t job_rounds_max(const struct job *j)
{
    const size_t all = (size_t)j->comp.n_paths * 16;
    return all <= 1024 ? 1024 : all < JOB_ROUNDS_MAX ? all : JOB_ROUNDS_MAX;
}

void job_add_round(struct job *j, const struct round_rec *r)
{
    job_keep_rounds(j, job_rounds_max(j) - 1);
    struct round_rec *rounds = mem_realloc((void *)j->rounds, (j->n_rounds + 1) * sizeof(*rounds));
    rounds[j->n_rounds] = *r;
    j->rounds = rounds;
    (void)job_edit_round(j, j->n_rounds++);
}

struct round_rec *job_edit_round(struct job *j, size_t n)
{
    struct round_rec *r = (struct round_rec *)&j->rounds[n];
    r->edited = j->rounds_edited = true;
    return r;
}

const struct grid_rec *job_add_grid(struct job *j, const struct grid_rec *g)
{
    struct grid_rec *grids = (struct grid_rec *)j->grids;
    if (j->n_grids == JOB_SAMPLES_MAX) {
        marks_add(&j->grids_gone, grids[0].task_id);
        mem_free(grids[0].text);
        memmove(&grids[0], &grids[1], (JOB_SAMPLES_MAX - 1) * sizeof(*grids));
        j->n_grids--;
    }
    j->grids = grids = mem_realloc(grids, (j->n_grids + 1) * sizeof(*grids));
    grids[j->n_grids] = *g;
    return &grids[j->n_grids++];
}

/* ---- the data ------------------------------------------------------------ */

const struct module_rec *job_module(const struct job *j, uint64_t id)
{
    for (uint32_t i = 0; j->modules != NULL && i < j->comp.n_modules; i++)
        if (j->modules[i].id == id)
            return &j->modules[i];
    return NULL;
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
