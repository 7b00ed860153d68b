#include "coordinator/state/persist.h"

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/base/str.h"
#include "coordinator/state/persist_job.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* One row; -ERR_FORMAT: it makes no sense (err may say more). */
typedef int (*row_fn)(struct state *st, sqlite3_stmt *q, struct err *err);

static uint64_t u64(sqlite3_stmt *q, int c)
{
    return (uint64_t)sqlite3_column_int64(q, c);
}

static uint32_t u32(sqlite3_stmt *q, int c)
{
    return (uint32_t)sqlite3_column_int64(q, c);
}

static float real(sqlite3_stmt *q, int c)
{
    return sqlite3_column_type(q, c) == SQLITE_NULL ? NAN : (float)sqlite3_column_double(q, c);
}

static bool fixed(sqlite3_stmt *q, int c, void *out, size_t len)
{
    const void *p = sqlite3_column_blob(q, c);
    if (p == NULL || (size_t)sqlite3_column_bytes(q, c) != len)
        return false;
    memcpy(out, p, len);
    return true;
}

static bool blob_ref(sqlite3_stmt *q, int c, struct blob_ref *ret)
{
    ret->size = u64(q, c + 1);
    return ret->size == 0 || fixed(q, c, ret->sha256, 32);
}

static int bad_row(struct err *err, const char *what)
{
    return err_set(err, -ERR_FORMAT, "%s makes no sense", what);
}

static int load_counter(struct state *st, sqlite3_stmt *q, struct err *err)
{
    const char *name = store_text(q, 0);
    uint64_t v = u64(q, 1);
    if (strcmp(name, "worker") == 0)
        st->next_worker = v;
    else if (strcmp(name, "job") == 0)
        st->next_job = v;
    else if (strcmp(name, "task") == 0)
        st->next_task = v;
    else if (strcmp(name, "module") == 0)
        st->next_module = v;
    return 0;
}

static int load_worker(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct worker *w = state_add_worker(st, u64(q, 0));
    if (w == NULL || !fixed(q, 1, w->identity, 16) || !fixed(q, 2, w->instance, 16))
        return bad_row(err, "its identity");
    (void)str_copy(w->name, sizeof(w->name), store_text(q, 3));
    (void)str_copy(w->device, sizeof(w->device), store_text(q, 4));
    (void)str_copy(w->version, sizeof(w->version), store_text(q, 5));
    (void)str_copy(w->address, sizeof(w->address), store_text(q, 6));
    w->memory_bytes = u64(q, 7);
    w->threads = u32(q, 8);
    w->state = (enum worker_state)u32(q, 9);
    if (w->state < WORKER_HERE || w->state > WORKER_LEFT)
        return bad_row(err, "its state");
    (void)str_copy(w->state_reason, sizeof(w->state_reason), store_text(q, 10));
    w->drain = u32(q, 11) != 0;
    w->strikes = u32(q, 12);
    w->failures_row = u32(q, 13);
    w->tasks_done = u32(q, 14);
    w->tasks_failed = u32(q, 15);
    for (int i = 0; i < 4; i++)
        w->bytes[i] = u64(q, 16 + i);
    w->joined_unix_ms = (int64_t)u64(q, 20);
    w->task_id = u64(q, 21);
    return 0;
}

static int load_verdict(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct worker *w = state_worker(st, u64(q, 0));
    if (w == NULL || w->n_verdicts >= APPLIED_MAX)
        return 0;
    w->verdicts = mem_realloc(w->verdicts, (w->n_verdicts + 1) * sizeof(*w->verdicts));
    struct verdict *v = &w->verdicts[w->n_verdicts++];
    v->task_id = u64(q, 1);
    v->accepted = u32(q, 2) != 0;
    (void)str_copy(v->reason, sizeof(v->reason), store_text(q, 3));
    return 0;
}

/* In memory alone: in the store the job stays as the release that wrote it left it. */
static void stand_in(struct job *j)
{
    j->modules[0].id = 0; /* which is nobody's */
    if (!job_is_ended(j)) {
        j->state = JOB_FAILED;
        j->ended_unix_ms = (int64_t)clock_wall_ms();
    }
    (void)str_copy(j->reason, sizeof(j->reason), j->refused);
}

static int load_job(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_add_job(st, u64(q, 0));
    if (j == NULL)
        return bad_row(err, "the number of jobs");
    j->yaml = str_dup(store_text(q, 1));
    j->state = (enum job_state)u32(q, 2);
    if (j->state <= JOB_UNSPECIFIED || j->state >= JOB_STATES)
        return bad_row(err, "its state");
    int rc = persist_read_job(sqlite3_db_handle(q), j, err);
    if (rc < 0)
        return rc;
    (void)str_copy(j->reason, sizeof(j->reason), store_text(q, 3));
    j->made_unix_ms = (int64_t)u64(q, 4);
    j->started_unix_ms = (int64_t)u64(q, 5);
    j->ended_unix_ms = (int64_t)u64(q, 6);
    j->bad_count = u32(q, 7);
    j->metric_n = u64(q, 8);
    j->metric_points = u64(q, 9);
    j->bytes_up = u64(q, 10);
    j->bytes_down = u64(q, 11);
    j->shard_bytes_down = u64(q, 12);
    j->steps_done = u64(q, 13);
    j->phases_done = u64(q, 14);
    j->loss = real(q, 15);
    j->eval_loss = real(q, 16);
    uint64_t next = st->next_module; /* the modules' rows bring their own ids */
    job_build(st, j);
    st->next_module = next;
    j->generation = u32(q, 17);
    j->resharded = u32(q, 18);
    j->finishing = u32(q, 19);
    j->vocab = u32(q, 20);
    if (!blob_ref(q, 21, &j->tokenizer) || !blob_ref(q, 23, &j->warm_start) ||
        !blob_ref(q, 25, &j->partitioner) || !blob_ref(q, 27, &j->assignment) ||
        !blob_ref(q, 32, &j->partitioner_before))
        return bad_row(err, "a hash");
    if (sqlite3_column_bytes(q, 29) != 0 && !j->unread &&
        !fixed(q, 29, j->sizes, j->comp.n_partitions * sizeof(*j->sizes)))
        return bad_row(err, "the sizes of its partitions");
    j->waited_ms = u64(q, 30);
    j->trained_ms = u64(q, 31);
    j->old_shards = true; /* looked through once */
    if (j->unread)
        stand_in(j);
    return 0;
}

static bool any_unread(const struct state *st)
{
    for (size_t i = 0; i < st->n_jobs; i++)
        if (st->jobs[i]->unread)
            return true;
    return false;
}

static int load_class(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 0));
    if (j == NULL || u64(q, 1) != j->n_classes || j->n_classes >= JOB_CLASSES_MAX)
        return bad_row(err, "its number");
    j->classes = mem_realloc(j->classes, (j->n_classes + 1) * sizeof(*j->classes));
    j->counts = mem_realloc(j->counts, (j->n_classes + 1) * sizeof(*j->counts));
    j->classes[j->n_classes] = str_dup(store_text(q, 2));
    j->counts[j->n_classes++] = u64(q, 3);
    return 0;
}

static int load_shard(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 0));
    struct shard_rec *r = j != NULL && u64(q, 1) == j->n_shards ? job_add_shard(j) : NULL;
    if (r == NULL)
        return bad_row(err, "its number");
    if (!blob_ref(q, 2, &r->blob) || !blob_ref(q, 11, &r->features))
        return bad_row(err, "its hash");
    r->samples = u32(q, 4);
    r->partition = u32(q, 5);
    r->source = u32(q, 6);
    r->generation = u32(q, 7);
    r->holdout = u32(q, 8) != 0;
    r->router = u32(q, 9) != 0;
    r->tokens = u64(q, 10);
    if (r->partition >= COMPOSITION_PATHS_MAX)
        return bad_row(err, "its partition");
    return 0;
}

static int load_bad(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 0));
    if (j != NULL) /* beyond the maximum only the count is kept */
        (void)job_add_bad(j, store_text(q, 2), store_text(q, 3), store_text(q, 4));
    return 0;
}

static int load_ledger(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 0));
    uint32_t part = u32(q, 1);
    if (j == NULL || part >= job_ledgers(j))
        return bad_row(err, "its partition");
    int rc = job_make_ledger(j, part < j->comp.n_partitions ? part : PARTITION_ALL, err);
    if (rc == 0)
        rc = ledger_load(j->ledgers[part], sqlite3_column_blob(q, 2),
                         (size_t)sqlite3_column_bytes(q, 2), err);
    return rc;
}

static int load_module(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 1));
    uint64_t n = u64(q, 2);
    if (j == NULL || n >= j->comp.n_modules)
        return bad_row(err, "its number");
    struct module_rec *m = &j->modules[n];
    m->id = u64(q, 0);
    m->version = u64(q, 5);
    m->params = u64(q, 6);
    m->folded = u64(q, 7);
    m->stale_sum = u64(q, 8);
    m->stale_max = u64(q, 9);
    m->bytes_from_others = u64(q, 10);
    if (m->id >= st->next_module)
        st->next_module = m->id + 1;
    return 0;
}

/* Oldest first; only the last ones are taken. */
static int load_version(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = NULL;
    struct module_rec *m = state_module(st, u64(q, 0), &j);
    if (m == NULL)
        return any_unread(st) ? 0 : bad_row(err, "its module");
    if (u64(q, 1) + m->kept <= m->version || m->n_versions == m->kept)
        return 0;
    struct version_rec *v = &m->versions[m->n_versions++];
    v->version = u64(q, 1);
    if (!blob_ref(q, 2, &v->full) || !blob_ref(q, 4, &v->delta) || !blob_ref(q, 6, &v->ema))
        return bad_row(err, "its hashes");
    v->provenance = str_dup(store_text(q, 8));
    v->at_unix_ms = (int64_t)u64(q, 9);
    return 0;
}

static int load_path(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 0));
    if (j == NULL || u64(q, 1) >= j->comp.n_paths)
        return bad_row(err, "its number");
    struct path_rec *p = &j->paths[u64(q, 1)];
    p->round = u32(q, 2);
    p->ready = u32(q, 3) != 0;
    p->ready_unix_ms = (int64_t)u64(q, 4);
    p->bytes_up = u64(q, 5);
    p->bytes_down = u64(q, 6);
    p->eval = (struct eval_rec){.round = u32(q, 7),
                                .loss = real(q, 8),
                                .loss_sum = sqlite3_column_double(q, 9),
                                .units = u64(q, 10),
                                .bytes = u64(q, 11)};
    p->best_round = u32(q, 12);
    p->best_loss = real(q, 13);
    uint32_t levels = composition_levels(&j->comp, (uint32_t)u64(q, 1));
    if (sqlite3_column_bytes(q, 14) != 0) {
        p->best = mem_alloc_array(levels, sizeof(*p->best));
        if (!fixed(q, 14, p->best, levels * sizeof(*p->best)))
            return bad_row(err, "its best modules");
    }
    p->phases = u64(q, 15);
    return 0;
}

static int load_replica(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 0));
    if (j == NULL || u64(q, 1) >= j->comp.n_paths || u64(q, 2) >= j->comp.paths[u64(q, 1)].replicas)
        return bad_row(err, "its number");
    struct replica_rec *r = &j->paths[u64(q, 1)].replicas[u64(q, 2)];
    r->owner = u64(q, 3);
    r->step = u64(q, 4);
    r->task_id = u64(q, 5);
    r->samples_last = u64(q, 6);
    return blob_ref(q, 7, &r->moments) ? 0 : bad_row(err, "its moments");
}

static int load_draw(struct task_draw *d, sqlite3_stmt *q, struct err *err)
{
    size_t labels = (size_t)sqlite3_column_bytes(q, 15);
    int heun = 0, ema = 0, asked = 0;
    float guidance = 1;
    unsigned long long seed = 0;
    if (sscanf(store_text(q, 14), "%u %u %u %d %d %d %a %llu", &d->steps, &d->columns, &d->count,
               &heun, &ema, &asked, &guidance, &seed) != 8)
        return bad_row(err, "its drawing");
    d->heun = heun;
    d->ema = ema;
    d->asked = asked;
    d->guidance = guidance;
    d->seed = seed;
    int mixture = 0, remote = 0;
    if (store_text(q, 32)[0] != '\0' &&
        sscanf(store_text(q, 32), "%d %d %u %u %a %a %u %a %a", &mixture, &remote, &d->strategy,
               &d->top, &d->nucleus, &d->threshold, &d->tokens, &d->temperature, &d->top_p) != 9)
        return bad_row(err, "its mixture");
    d->mixture = mixture;
    d->remote = remote;
    if (sqlite3_column_type(q, 33) != SQLITE_NULL)
        d->prompt = str_dup(store_text(q, 33));
    if ((labels != 0 && labels != d->count * sizeof(*d->labels)) || d->count > 65536)
        return bad_row(err, "its labels");
    if (labels > 0) {
        d->labels = mem_alloc(labels);
        memcpy(d->labels, sqlite3_column_blob(q, 15), labels);
    }
    return 0;
}

static int load_ranges(struct task *t, sqlite3_stmt *q, struct err *err)
{
    size_t ranges = (size_t)sqlite3_column_bytes(q, 13);
    if (ranges % sizeof(*t->ranges) != 0 || ranges / sizeof(*t->ranges) > TASK_RANGES_MAX)
        return bad_row(err, "its ranges");
    if (ranges > 0) {
        t->n_ranges = ranges / sizeof(*t->ranges);
        t->ranges = mem_alloc(ranges);
        memcpy(t->ranges, sqlite3_column_blob(q, 13), ranges);
    }
    return 0;
}

/* Of what is drawn SCORE and VELOCITY have but this. */
static int load_ema(bool *ret, sqlite3_stmt *q, struct err *err)
{
    struct task_draw d = {0};
    int rc = load_draw(&d, q, err);
    mem_free(d.prompt);
    mem_free(d.labels);
    *ret = d.ema;
    return rc;
}

/* What is particular to the task's kind. */
static int load_part(const struct job *j, struct task *t, sqlite3_stmt *q, struct err *err)
{
    task_set_round(t, u32(q, 8));
    switch (t->kind) {
    case TASK_TRAIN:
        t->train.replica = u32(q, 7);
        t->train.first_step = u64(q, 12);
        t->train.waited_ms = u64(q, 34);
        if (t->train.replica >= j->comp.paths[t->path].replicas)
            return bad_row(err, "its path");
        return blob_ref(q, 30, &t->train.moments) ? 0 : bad_row(err, "a blob");
    case TASK_EVAL:
    case TASK_SAMPLE:
        return load_draw(&t->draw, q, err);
    case TASK_OUTER:
        t->outer.module_id = u64(q, 9);
        return 0;
    case TASK_CLUSTER:
        t->cluster.evaluate = u32(q, 26) != 0;
        return 0;
    case TASK_SCORE:
        t->score.evaluate = u32(q, 26) != 0;
        return load_ema(&t->score.ema, q, err);
    case TASK_VELOCITY:
        t->velocity.parent = u64(q, 27);
        if (!blob_ref(q, 28, &t->velocity.input))
            return bad_row(err, "a blob");
        return load_ema(&t->velocity.ema, q, err);
    default:
        return 0;
    }
}

static int load_task(struct state *st, sqlite3_stmt *q, struct err *err)
{
    uint64_t kind = u64(q, 2);
    if (kind == TASK_UNSPECIFIED || kind >= TASK_KINDS || u64(q, 3) > TASK_CANCELLED)
        return bad_row(err, "its kind or state");
    struct job *j = state_job(st, u64(q, 1));
    struct task *t = j ? state_add_task(st, u64(q, 0), j->id, (enum task_kind)kind) : NULL;
    if (t == NULL)
        return bad_row(err, "its job");
    state_set_task_state(st, t, (enum task_state)u64(q, 3));
    t->attempt = u32(q, 4);
    t->failures = u32(q, 5);
    t->path = u32(q, 6);
    t->worker_id = u64(q, 10);
    (void)str_copy(t->reason, sizeof(t->reason), store_text(q, 11));
    if (!blob_ref(q, 16, &t->output))
        return bad_row(err, "a blob");
    t->steps = u32(q, 18);
    t->samples = u64(q, 19);
    t->loss_first = real(q, 20);
    t->loss_last = real(q, 21);
    t->loss_mean = real(q, 22);
    t->seconds = real(q, 23);
    t->made_unix_ms = (int64_t)u64(q, 24);
    t->ended_unix_ms = (int64_t)u64(q, 25);
    if (t->path >= j->comp.n_paths)
        return bad_row(err, "its path");
    int rc = load_ranges(t, q, err);
    return rc < 0 ? rc : load_part(j, t, q, err);
}

static int load_contribution(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct task *t = state_task(st, u64(q, 0));
    if (t == NULL ? any_unread(st) : t->kind != TASK_TRAIN)
        return 0;
    if (t == NULL || u64(q, 1) != t->train.n_contributions)
        return bad_row(err, "its task");
    struct task_train *p = &t->train;
    p->contributions =
        mem_realloc(p->contributions, (p->n_contributions + 1) * sizeof(*p->contributions));
    struct contribution *c = &p->contributions[p->n_contributions++];
    *c = (struct contribution){.module_id = u64(q, 2),
                               .base_version = u64(q, 3),
                               .refused = u32(q, 6) != 0,
                               .samples = u64(q, 7),
                               .worker_id = u64(q, 8),
                               .version = u64(q, 9)};
    if (c->samples == 0) { /* of an older release, which had one per task */
        c->samples = t->samples;
        c->worker_id = t->worker_id;
    }
    return blob_ref(q, 4, &c->blob) ? 0 : bad_row(err, "its hash");
}

static int load_round(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 0));
    if (j == NULL)
        return 0;
    if (j->n_rounds == JOB_ROUNDS_MAX) { /* the newest stay: half at once, so that this is rare */
        j->n_rounds = JOB_ROUNDS_MAX / 2;
        memmove(&j->rounds[0], &j->rounds[JOB_ROUNDS_MAX - j->n_rounds],
                j->n_rounds * sizeof(*j->rounds));
    }
    j->rounds = mem_realloc(j->rounds, (j->n_rounds + 1) * sizeof(*j->rounds));
    struct round_rec *r = &j->rounds[j->n_rounds++];
    *r = (struct round_rec){u32(q, 1),  u32(q, 2),  u32(q, 3),  u32(q, 4),
                            real(q, 5), real(q, 6), real(q, 7), u64(q, 8),
                            u64(q, 9),  u64(q, 10), u64(q, 11), (int64_t)u64(q, 12)};
    return 0;
}

static int load_grid(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 1));
    if (j == NULL || j->n_grids >= JOB_SAMPLES_MAX)
        return 0;
    j->grids = mem_realloc(j->grids, (j->n_grids + 1) * sizeof(*j->grids));
    struct grid_rec *g = &j->grids[j->n_grids++];
    memset(g, 0, sizeof(*g));
    g->task_id = u64(q, 0);
    g->round = u32(q, 2);
    g->count = u32(q, 3);
    g->columns = u32(q, 4);
    g->at_unix_ms = (int64_t)u64(q, 7);
    g->path = u32(q, 8);
    if (sqlite3_column_type(q, 9) != SQLITE_NULL)
        g->text = str_dup(store_text(q, 9));
    return blob_ref(q, 5, &g->blob) ? 0 : bad_row(err, "its hash");
}

static int load_score(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 0));
    if (j == NULL || u64(q, 2) >= j->comp.n_paths || u64(q, 3) >= j->n_shards)
        return bad_row(err, "its path or shard");
    j->scores = mem_realloc(j->scores, (j->n_scores + 1) * sizeof(*j->scores));
    struct score_rec *r = &j->scores[j->n_scores++];
    *r = (struct score_rec){.path = u32(q, 2), .shard = u32(q, 3)};
    return blob_ref(q, 4, &r->blob) ? 0 : bad_row(err, "its hash");
}

static int load_row(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 0));
    if (j == NULL || u64(q, 1) != j->n_rows || j->n_rows >= JOB_ROWS_MAX)
        return bad_row(err, "its number");
    j->rows = mem_realloc(j->rows, (j->n_rows + 1) * sizeof(*j->rows));
    struct row_rec *r = &j->rows[j->n_rows++];
    memset(r, 0, sizeof(*r));
    r->kind = (enum task_kind)u32(q, 2);
    r->path = u32(q, 3);
    r->round = u32(q, 4);
    (void)str_copy(r->name, sizeof(r->name), store_text(q, 5));
    (void)str_copy(r->unit, sizeof(r->unit), store_text(q, 6));
    r->value = sqlite3_column_double(q, 7);
    r->at_unix_ms = (int64_t)u64(q, 8);
    return 0;
}

/* Rows with a job column are passed over when the job is unread.  Grids need no more than they
 * hold themselves. */
static const struct loading {
    const char *what, *sql;
    row_fn fn;
    int job; /* column; -1: none, or as said above */
} loadings[] = {
    {"counters", "SELECT * FROM counters", load_counter, -1},
    {"workers", "SELECT * FROM workers ORDER BY id", load_worker, -1},
    {"verdicts", "SELECT * FROM verdicts ORDER BY worker, task", load_verdict, -1},
    {"jobs", "SELECT * FROM jobs ORDER BY id", load_job, -1},
    {"classes", "SELECT * FROM classes ORDER BY job, n", load_class, 0},
    {"shards", "SELECT * FROM shards ORDER BY job, n", load_shard, 0},
    {"scores", "SELECT * FROM scores ORDER BY job, n", load_score, 0},
    {"rows", "SELECT * FROM rows ORDER BY job, n", load_row, 0},
    {"bad_samples", "SELECT * FROM bad_samples ORDER BY job, n", load_bad, 0},
    {"ledgers", "SELECT * FROM ledgers", load_ledger, 0},
    {"modules", "SELECT * FROM modules ORDER BY id", load_module, 1},
    {"versions", "SELECT * FROM versions ORDER BY module, version", load_version, -1},
    {"paths", "SELECT * FROM paths", load_path, 0},
    {"replicas", "SELECT * FROM replicas", load_replica, 0},
    {"tasks", "SELECT * FROM tasks ORDER BY id", load_task, 1},
    {"contributions", "SELECT * FROM contributions ORDER BY task, n", load_contribution, -1},
    {"rounds", "SELECT * FROM rounds ORDER BY job, round, path", load_round, 0},
    {"grids", "SELECT * FROM grids ORDER BY task", load_grid, -1},
};

static bool passed_over(const struct state *st, const struct loading *l, sqlite3_stmt *q)
{
    const struct job *j = l->job >= 0 ? state_job(st, u64(q, l->job)) : NULL;
    return j != NULL && j->unread;
}

int persist_load(struct store *s, struct state *st, struct err *err)
{
    for (size_t i = 0; i < sizeof(loadings) / sizeof(loadings[0]); i++) {
        sqlite3_stmt *q = NULL;
        int rc = store_select(s, loadings[i].sql, &q, err), step = SQLITE_DONE;
        while (rc == 0 && (step = sqlite3_step(q)) == SQLITE_ROW) {
            rc = passed_over(st, &loadings[i], q) ? 0 : loadings[i].fn(st, q, err);
            if (rc < 0)
                (void)err_wrap(err, "the saved state cannot be read: table %s, row %lld",
                               loadings[i].what, (long long)sqlite3_column_int64(q, 0));
        }
        sqlite3_finalize(q);
        if (rc == 0 && step != SQLITE_DONE)
            rc = err_set(err, -EIO, "reading table %s of the saved state", loadings[i].what);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int persist_metrics(struct store *s, uint64_t job_id, uint64_t after, size_t limit, metric_fn fn,
                    void *arg, struct err *err)
{
    sqlite3_stmt *q = NULL;
    int rc =
        store_select(s, "SELECT * FROM metrics WHERE job=? AND n>? ORDER BY n LIMIT ?", &q, err);
    if (rc < 0)
        return rc;
    (void)sqlite3_bind_int64(q, 1, (int64_t)job_id);
    (void)sqlite3_bind_int64(q, 2, (int64_t)after);
    (void)sqlite3_bind_int64(q, 3, (int64_t)limit);
    while (sqlite3_step(q) == SQLITE_ROW) {
        struct metric_rec m = {
            .n = u64(q, 1),
            .kind = (enum metric_kind)u32(q, 2),
            .path = u32(q, 3),
            .replica = u32(q, 4),
            .round = u32(q, 5),
            .step = u64(q, 6),
            .loss = (double)real(q, 7),
            .lr = (double)real(q, 8),
            .seconds = (double)real(q, 9),
            .samples = u64(q, 10),
            .bytes_up = u64(q, 11),
            .bytes_down = u64(q, 12),
            .at_unix_ms = (int64_t)u64(q, 13),
        };
        fn(arg, &m);
    }
    sqlite3_finalize(q);
    return 0;
}

uint64_t persist_metric_points(struct store *s, uint64_t job_id)
{
    sqlite3_stmt *q = NULL;
    uint64_t n = 0;
    if (store_select(s, "SELECT count(*) FROM metrics WHERE job=? AND kind=1", &q, NULL) < 0)
        return 0;
    (void)sqlite3_bind_int64(q, 1, (int64_t)job_id);
    if (sqlite3_step(q) == SQLITE_ROW)
        n = u64(q, 0);
    sqlite3_finalize(q);
    return n;
}
