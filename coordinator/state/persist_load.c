/* Loading: the stored rows become the state.  Jobs that the present rules refuse stay on record,
 * and keep all their rows and blobs; so do those whose own rows are damaged. */
#include "coordinator/state/persist.h"
#include "coordinator/state/persist_check.h"
#include "coordinator/state/persist_unread.h"

#include "common/base/base.h"
#include "common/base/clock.h"
#include "coordinator/state/blobs.h"

#define ANEW "put a copy of the database back, or begin anew with another --data-dir"

/* One row; -ERR_FORMAT: it makes no sense (err may say more). */
typedef int (*row_fn)(struct state *st, sqlite3_stmt *q, struct err *err);

/* Jobs whose rows contradict each other, and how. */
struct damaged {
    size_t n;
    struct {
        uint64_t job;
        char *why;
    } jobs[JOBS_MAX];
};

/* How the job is damaged; NULL: it is not. */
static const char *damage_of(const struct damaged *d, uint64_t job)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->jobs[i].job == job)
            return d->jobs[i].why;
    return NULL;
}

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
    return err_set(err, -ERR_FORMAT, "%s is not valid", what);
}

static int load_counter(struct state *st, sqlite3_stmt *q, struct err *err)
{
    const struct {
        const char *name;
        uint64_t *value;
    } all[] = {
        {"worker", &st->next_worker},
        {"job", &st->next_job},
        {"task", &st->next_task},
        {"module", &st->next_module},
        {"token", &st->next_token},
        {"control_up", &st->bytes_gone[0]},
        {"control_down", &st->bytes_gone[1]},
        {"data_up", &st->bytes_gone[2]},
        {"data_down", &st->bytes_gone[3]},
        {"commits", &st->commits},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (strcmp(store_text(q, 0), all[i].name) == 0)
            *all[i].value = u64(q, 1);
    if (strcmp(store_text(q, 0), PERSIST_SPENT) == 0)
        st->request_dollars = (double)u64(q, 1) * PERSIST_SPENT_UNIT;
    return 0;
}

static int load_token(struct state *st, sqlite3_stmt *q, struct err *err)
{
    uint8_t verifier[32];
    const enum token_role role = (enum token_role)u32(q, 2);
    if (!fixed(q, 3, verifier, sizeof(verifier)) || *token_role_name(role) == '\0')
        return bad_row(err, "its role");
    struct token_rec *t = access_add(st, u64(q, 0), role, verifier);
    if (t == NULL)
        return bad_row(err, "its number");
    memcpy(t->verifier, verifier, sizeof(verifier));
    (void)str_copy(t->name, sizeof(t->name), store_text(q, 1));
    t->made_unix_ms = (int64_t)u64(q, 4);
    t->ends_unix_ms = (int64_t)u64(q, 5);
    t->revoked_unix_ms = (int64_t)u64(q, 6);
    t->uses = u32(q, 7);
    t->uses_max = u32(q, 8);
    t->workers_max = u32(q, 9);
    t->jobs_max = u32(q, 10);
    t->budget = sqlite3_column_double(q, 11);
    t->spent = sqlite3_column_double(q, 12);
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
    state_set_worker_state(st, w, (enum worker_state)u32(q, 9));
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
    w->has_key = fixed(q, 22, w->key, sizeof(w->key));
    w->token_id = u64(q, 23);
    w->revoked_unix_ms = (int64_t)u64(q, 24);
    w->price = sqlite3_column_double(q, 25);
    w->served = u64(q, 26);
    w->since_unix_ms = (int64_t)u64(q, 27);
    w->doubted_folds = u32(q, 28);
    w->checked = u32(q, 29) != 0;
    access_know(st, w);
    return 0;
}

static int load_verdict(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct worker *w = state_edit_worker(st, state_worker(st, u64(q, 0)));
    struct verdict v = {.task_id = u64(q, 1), .module_id = u64(q, 2), .accepted = u32(q, 3) != 0};
    (void)str_copy(v.reason, sizeof(v.reason), store_text(q, 4));
    if (w != NULL)
        (void)worker_add_verdict(w, &v);
    return 0;
}

/* ---- jobs ---------------------------------------------------------------- */

static int prepare(sqlite3 *db, const char *sql, uint64_t job, sqlite3_stmt **ret, struct err *err)
{
    if (sqlite3_prepare_v2(db, sql, -1, ret, NULL) != SQLITE_OK)
        return err_set(err, -EIO, "%.60s: %s", sql, sqlite3_errmsg(db));
    (void)sqlite3_bind_int64(*ret, 1, (int64_t)job);
    return 0;
}

/* Does the composition have the modules, paths and replicas on record? */
static int fits(sqlite3 *db, const struct job *j, bool *ret, struct err *err)
{
    sqlite3_stmt *q = NULL;
    uint64_t replicas = 0;
    for (uint32_t p = 0; p < j->comp.n_paths; p++)
        replicas += j->comp.paths[p].replicas;
    int rc = prepare(db,
                     "SELECT (SELECT count(*) FROM modules WHERE job=?1),"
                     " (SELECT count(*) FROM paths WHERE job=?1),"
                     " (SELECT count(*) FROM replicas WHERE job=?1),"
                     " (SELECT length(sizes) FROM jobs WHERE id=?1)",
                     j->id, &q, err);
    if (rc < 0)
        return rc;
    *ret = false;
    if (sqlite3_step(q) == SQLITE_ROW) {
        uint64_t sizes = (uint64_t)sqlite3_column_int64(q, 3);
        *ret = (uint64_t)sqlite3_column_int64(q, 0) == j->comp.n_modules &&
               (uint64_t)sqlite3_column_int64(q, 1) == j->comp.n_paths &&
               (uint64_t)sqlite3_column_int64(q, 2) == replicas &&
               (sizes == 0 || sizes == j->comp.n_partitions * sizeof(*j->sizes));
    }
    sqlite3_finalize(q);
    return 0;
}

/* Fills j->spec and j->comp from j->yaml; j->state is the saved one.  A job that a newer rule
 * refuses gets j->refused, and is otherwise as it was.  If not even its composition can be found,
 * it is also unread: one module without a version stands in for all, its rows are not loaded but
 * stay for the release that wrote them, and j->unread_blobs are the blobs that they name. */
static int read_job(sqlite3 *db, struct job *j, const char *damage, struct err *err)
{
    struct err why = {0};
    bool whole = true;
    if (damage == NULL && !*j->yaml)
        damage = "its job file is not in the database";
    if (damage != NULL) {
        j->refused = str_printf("%s: put a copy of the database back, or submit the job anew (its "
                                "files are kept)",
                                damage);
        return persist_unread(db, j, err);
    }
    int refused = job_parse_saved(j->yaml, strlen(j->yaml), "job.yaml", &j->spec, &why);
    int rc = refused < 0 ? refused : recipe_compose(&j->spec, &j->comp, refused ? NULL : &why);
    if (rc == 0 && !refused)
        refused = recipe_limits(&j->spec, &j->comp, &why) < 0;
    if (rc == 0 && !refused)
        return 0;
    if (rc == 0 && (rc = fits(db, j, &whole, err)) < 0)
        return rc;
    j->refused =
        str_printf("%s: this release no longer accepts that; submit the job anew (%s)", why.msg,
                   rc == 0 && whole ? "what it has learned can still be exported"
                                    : "its files are kept for the release that wrote them");
    return rc < 0 || !whole ? persist_unread(db, j, err) : 0;
}

/* Only in memory: in the store the job stays as its release left it. */
static void stand_in(struct job *j)
{
    job_edit_module(j, &j->modules[0])->id = 0; /* no module has it */
    if (!job_is_ended(j)) {
        j->state = JOB_FAILED;
        j->ended_unix_ms = (int64_t)clock_wall_ms();
    }
    (void)str_copy(j->reason, sizeof(j->reason), j->refused);
}

/* The names with the newest values; earlier releases kept only names. */
static void load_numbers(struct job *j, const char *text)
{
    char name[METRIC_NAME_MAX];
    for (int len, more; sscanf(text, " %64[^= ]%n", name, &len) == 1; text += len) {
        struct metric_number *n = job_number(j, name, 0);
        struct metric_number newest = {.value = (double)NAN, .held_out = (double)NAN};
        if (sscanf(text + len, "=%lg,%lg%n", &newest.value, &newest.held_out, &more) == 2)
            len += more;
        if (n) {
            n->value = newest.value;
            n->held_out = newest.held_out;
        }
    }
}

/* A job of a release before quotas gets its spec's values. */
static int load_quota(struct job *j, sqlite3_stmt *q, struct err *err)
{
    j->token_id = u64(q, 36);
    j->cost.work = sqlite3_column_double(q, 40);
    j->cost.waiting = sqlite3_column_double(q, 41);
    j->samples_done = u64(q, 42);
    j->paused = sqlite3_column_int(q, 43) != 0; /* NULL: an older release wrote it */
    j->steps_skipped = u64(q, 45);
    j->cost.egress = sqlite3_column_double(q, 46); /* the same */
    if (sqlite3_column_type(q, 38) == SQLITE_NULL)
        return 0;
    j->quota.priority = sqlite3_column_int(q, 37);
    j->quota.share = sqlite3_column_double(q, 38);
    j->quota.budget = sqlite3_column_double(q, 39);
    return j->quota.share > 0 ? 0 : bad_row(err, "its share");
}

/* What it names is noted even if some of it is not valid. */
static bool load_job_blobs(struct job *j, sqlite3_stmt *q)
{
    bool valid = blob_ref(q, 21, &j->tokenizer);
    valid &= blob_ref(q, 23, &j->warm_start);
    valid &= blob_ref(q, 25, &j->partitioner);
    valid &= blob_ref(q, 27, &j->assignment);
    return blob_ref(q, 32, &j->partitioner_before) && valid;
}

static int load_job(struct state *st, const struct damaged *damaged, sqlite3_stmt *q,
                    struct err *err)
{
    const char *damage = damage_of(damaged, u64(q, 0));
    struct job *j = state_add_job(st, u64(q, 0));
    if (j == NULL)
        return bad_row(err, "the number of jobs");
    j->yaml = str_dup(store_text(q, sqlite3_column_count(q) - 1));
    j->state = (enum job_state)u32(q, 2);
    const bool known = j->state > JOB_UNSPECIFIED && j->state < JOB_STATES;
    if (!known && damage == NULL)
        return bad_row(err, "its state");
    j->state = known ? j->state : JOB_RUNNING;
    int rc = read_job(sqlite3_db_handle(q), j, damage, err);
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
    job_build(j, &next);
    j->generation = u32(q, 17);
    j->resharded = u32(q, 18);
    j->finishing = u32(q, 19);
    j->vocab = u32(q, 20);
    const bool valid = load_job_blobs(j, q);
    if (!valid && damage == NULL)
        return bad_row(err, "a hash");
    if (sqlite3_column_bytes(q, 29) != 0 && !j->unread &&
        !fixed(q, 29, j->sizes, j->comp.n_partitions * sizeof(*j->sizes)))
        return bad_row(err, "the sizes of its partitions");
    j->waited_ms = u64(q, 30);
    j->trained_ms = u64(q, 31);
    (void)sscanf(store_text(q, 34), "%u %u %u %u", &j->input.channels, &j->input.side,
                 &j->input.caption, &j->input.caption_tokens); /* else zeros: there was none */
    load_numbers(j, store_text(q, 35));
    if ((rc = load_quota(j, q, err)) < 0 && damage == NULL)
        return rc;
    j->old_shards = true; /* they are looked through once */
    if (j->unread)
        stand_in(j);
    return 0;
}

static int load_class(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 0));
    if (j == NULL || u64(q, 1) != j->n_classes || j->n_classes >= JOB_CLASSES_MAX)
        return bad_row(err, "its number");
    job_add_class(j, store_text(q, 2), u64(q, 3));
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

static int load_encoder_file(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 0));
    struct encoder_file f = {.part = u32(q, 2)};
    if (j == NULL || u64(q, 1) != j->n_encoders || j->n_encoders >= ENCODER_FILES_MAX)
        return bad_row(err, "its number");
    if (!str_copy(f.name, sizeof(f.name), store_text(q, 3)) || !blob_ref(q, 4, &f.blob))
        return bad_row(err, "its name or hash");
    job_add_encoder(j, &f);
    return 0;
}

static int load_bad(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 0));
    if (j != NULL) /* beyond the maximum only their number is kept */
        (void)job_add_bad(j, store_text(q, 2), store_text(q, 3), store_text(q, 4), 0);
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
    struct module_rec *m = job_edit_module(j, &j->modules[n]);
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

/* Rows come oldest first; only the last ones are kept. */
static int load_version(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = NULL;
    struct module_rec *m = (struct module_rec *)state_module(st, u64(q, 0), &j);
    if (m == NULL)
        return state_any_unread(st) ? 0 : bad_row(err, "its module");
    if (u64(q, 1) + m->kept <= m->version || m->n_versions == m->kept)
        return 0;
    struct version_rec *v = &m->versions[m->n_versions++];
    v->version = u64(q, 1);
    if (!blob_ref(q, 2, &v->full) || !blob_ref(q, 4, &v->delta) || !blob_ref(q, 6, &v->ema))
        return bad_row(err, "its hashes");
    v->provenance = str_dup(store_text(q, 8));
    (void)blob_outer_state(v->provenance, &v->target, &v->momentum);
    v->restored = blob_is_restored(v->provenance);
    v->at_unix_ms = (int64_t)u64(q, 9);
    return 0;
}

static int load_path(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 0));
    if (j == NULL || u64(q, 1) >= j->comp.n_paths)
        return bad_row(err, "its number");
    struct path_rec *p = job_edit_path(j, u32(q, 1));
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
    struct phase_sum sum;
    if (sscanf(store_text(q, 16), "%u %" SCNu64 " %" SCNu64 " %la %la", &sum.phases, &sum.samples,
               &sum.steps, &sum.loss, &sum.weight) == 5) /* else it is an older release's */
        p->sum = sum;
    return 0;
}

static int load_replica(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 0));
    if (j == NULL || u64(q, 1) >= j->comp.n_paths || u64(q, 2) >= j->comp.paths[u64(q, 1)].replicas)
        return bad_row(err, "its number");
    struct replica_rec *r = job_edit_replica(j, u32(q, 1), u32(q, 2));
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

/* Of the fields of drawing SCORE and VELOCITY have only this one. */
static int load_ema(bool *ret, sqlite3_stmt *q, struct err *err)
{
    struct task_draw d = {0};
    int rc = load_draw(&d, q, err);
    mem_free(d.prompt);
    mem_free(d.labels);
    *ret = d.ema;
    return rc;
}

/* The fields of the task's kind. */
static int load_part(const struct job *j, struct task *t, sqlite3_stmt *q, struct err *err)
{
    task_set_round(t, u32(q, 8));
    switch (t->kind) {
    case TASK_TRAIN:
    case TASK_CHECK:
        t->train.replica = u32(q, 7);
        t->train.first_step = u64(q, 12);
        t->train.waited_ms = u64(q, 34);
        t->train.fresh = u32(q, 26) != 0;
        t->train.checks = u64(q, 27);
        t->train.after = u64(q, 9);
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
    t->skipped = u32(q, 35);
    if (t->path >= j->comp.n_paths)
        return bad_row(err, "its path");
    int rc = load_ranges(t, q, err);
    return rc < 0 ? rc : load_part(j, t, q, err);
}

static int load_contribution(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct task *t = state_edit_task(st, state_task(st, u64(q, 0)));
    if (t == NULL ? state_any_unread(st) : !task_has_phase(t))
        return 0;
    if (t == NULL || u64(q, 1) != t->train.n_contributions)
        return bad_row(err, "its task");
    struct contribution c = {.module_id = u64(q, 2),
                             .base_version = u64(q, 3),
                             .refused = u32(q, 6) != 0,
                             .samples = u64(q, 7),
                             .worker_id = u64(q, 8),
                             .version = u64(q, 9),
                             .part = u32(q, 10) != 0,
                             .resumed = u32(q, 11) != 0};
    if (c.samples == 0) { /* an older release had one per task */
        c.samples = t->samples;
        c.worker_id = t->worker_id;
    }
    if (!blob_ref(q, 4, &c.blob))
        return bad_row(err, "its hash");
    task_add_contribution(t, &c);
    return 0;
}

/* A task's rows come together, in the order of its levels. */
static int load_snapshot(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct task *t = state_edit_task(st, state_task(st, u64(q, 0)));
    if (t == NULL ? state_any_unread(st) : t->kind != TASK_TRAIN)
        return 0;
    const struct snapshot *had = t ? t->train.snapshot : NULL;
    const size_t n = had != NULL ? had->n : 0;
    if (t == NULL || u64(q, 1) != n)
        return bad_row(err, "its task");
    struct snapshot *s = snapshot_new(n + 1);
    for (size_t i = 0; i < n; i++)
        s->modules[i] = had->modules[i];
    struct snapshot_module *m = &s->modules[n];
    m->module_id = u64(q, 2);
    m->base_version = u64(q, 3);
    s->worker_id = u64(q, 6);
    const bool read =
        blob_ref(q, 4, &m->blob) &&
        sscanf(store_text(q, 7), "%u %" SCNu64 " %" SCNu64 " %la %la %la %la %" SCNu64 " %u %u",
               &s->steps, &s->samples, &s->position, &s->loss_sum, &s->loss_first, &s->loss_last,
               &s->seconds, &s->used, &s->skipped,
               &s->skipped_row) >= 7; /* older: not these three */
    task_set_snapshot(t, s);
    return read ? 0 : bad_row(err, "its hash or cursor");
}

static int load_round(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 0));
    if (j == NULL)
        return 0;
    if (u64(q, 1) >= j->comp.n_paths)
        return bad_row(err, "its path");
    if (j->n_rounds == job_rounds_max(j)) /* the oldest half goes at once, so that this is rare */
        job_keep_rounds(j, job_rounds_max(j) / 2);
    job_add_round(j, &(struct round_rec){u32(q, 1), u32(q, 2), u32(q, 3), u32(q, 4), real(q, 5),
                                         real(q, 6), real(q, 7), u64(q, 8), u64(q, 9), u64(q, 10),
                                         u64(q, 11), (int64_t)u64(q, 12)});
    return 0;
}

static int load_grid(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 1));
    if (j == NULL || j->n_grids >= JOB_SAMPLES_MAX)
        return 0;
    struct grid_rec g = {.task_id = u64(q, 0),
                         .round = u32(q, 2),
                         .count = u32(q, 3),
                         .columns = u32(q, 4),
                         .at_unix_ms = (int64_t)u64(q, 7),
                         .path = u32(q, 8)};
    if (!blob_ref(q, 5, &g.blob))
        return bad_row(err, "its hash");
    if (sqlite3_column_type(q, 9) != SQLITE_NULL)
        g.text = str_dup(store_text(q, 9));
    (void)job_add_grid(j, &g);
    return 0;
}

static int load_score(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 0));
    if (j == NULL || u64(q, 2) >= j->comp.n_paths || u64(q, 3) >= j->n_shards)
        return bad_row(err, "its path or shard");
    struct score_rec r = {.path = u32(q, 2), .shard = u32(q, 3)};
    if (!blob_ref(q, 4, &r.blob))
        return bad_row(err, "its hash");
    job_add_score(j, &r);
    return 0;
}

static int load_row(struct state *st, sqlite3_stmt *q, struct err *err)
{
    struct job *j = state_job(st, u64(q, 0));
    if (j == NULL || u64(q, 1) != j->n_rows)
        return bad_row(err, "its number");
    struct row_rec r = {.kind = (enum task_kind)u32(q, 2),
                        .path = u32(q, 3),
                        .round = u32(q, 4),
                        .value = sqlite3_column_double(q, 7),
                        .at_unix_ms = (int64_t)u64(q, 8)};
    (void)str_copy(r.name, sizeof(r.name), store_text(q, 5));
    (void)str_copy(r.unit, sizeof(r.unit), store_text(q, 6));
    return job_put_row(j, &r) ? 0 : bad_row(err, "its number");
}

/* Columns, or -1: a row is of the job that its column `job` names, or of that of the module that
 * its column `module` names. */
static const struct loading {
    const char *what, *sql;
    row_fn fn; /* NULL: load_job() */
    int job, module;
    bool kept; /* also of a job that is unread */
} loadings[] = {
    {"counters", "SELECT * FROM counters", load_counter, -1, -1},
    {"tokens", "SELECT * FROM tokens ORDER BY id", load_token, -1, -1},
    {"workers", "SELECT * FROM workers ORDER BY id", load_worker, -1, -1},
    /* What is said of one module comes before what is said of the others. */
    {"verdicts", "SELECT * FROM verdicts ORDER BY worker, task, module DESC", load_verdict, -1, -1},
    {"jobs", "SELECT jobs.*, specs.yaml FROM jobs LEFT JOIN specs ON job=id ORDER BY id", NULL, 0,
     -1, true},
    {"classes", "SELECT * FROM classes ORDER BY job, n", load_class, 0, -1},
    {"shards", "SELECT * FROM shards ORDER BY job, n", load_shard, 0, -1},
    {"scores", "SELECT * FROM scores ORDER BY job, n", load_score, 0, -1},
    {"rows", "SELECT * FROM rows ORDER BY job, n", load_row, 0, -1},
    {"encoder_files", "SELECT * FROM encoder_files ORDER BY job, n", load_encoder_file, 0, -1},
    {"bad_samples", "SELECT * FROM bad_samples ORDER BY job, n", load_bad, 0, -1},
    {"ledgers", "SELECT * FROM ledgers", load_ledger, 0, -1},
    {"modules", "SELECT * FROM modules ORDER BY id", load_module, 1, -1},
    {"versions", "SELECT * FROM versions ORDER BY module, version", load_version, -1, 0},
    {"paths", "SELECT * FROM paths", load_path, 0, -1},
    {"replicas", "SELECT * FROM replicas", load_replica, 0, -1},
    {"tasks", "SELECT * FROM tasks ORDER BY id", load_task, 1, -1},
    {"contributions", "SELECT * FROM contributions ORDER BY task, n", load_contribution, -1, 2},
    {"snapshots", "SELECT * FROM snapshots ORDER BY task, n", load_snapshot, -1, 2},
    {"rounds", "SELECT * FROM rounds ORDER BY job, round, path", load_round, 0, -1},
    {"grids", "SELECT * FROM grids ORDER BY task", load_grid, 1, -1, true},
};

static bool passed_over(const struct state *st, const struct loading *l, sqlite3_stmt *q)
{
    const struct job *j = l->job >= 0 && !l->kept ? state_job(st, u64(q, l->job)) : NULL;
    return j != NULL && j->unread;
}

/* The job whose row makes no sense, or whose lost row another one names; 0: there is none. */
static uint64_t owner_of(const struct state *st, const struct loading *l, sqlite3_stmt *q)
{
    struct job *j = l->job >= 0 ? state_job(st, u64(q, l->job)) : NULL;
    bool whole = true;
    if (l->module >= 0)
        (void)state_module(st, u64(q, l->module), &j);
    for (size_t i = 0; l->module >= 0 && j == NULL && i < st->n_jobs; i++)
        if (fits(sqlite3_db_handle(q), st->jobs[i], &whole, NULL) == 0 && !whole)
            j = st->jobs[i];
    return j != NULL ? j->id : 0;
}

/* *ret_job: whose rows are damaged; 0: more than one job's. */
static int load_table(struct store *s, struct state *st, const struct loading *l,
                      const struct damaged *d, uint64_t *ret_job, struct err *err)
{
    sqlite3_stmt *q = NULL;
    int rc = store_select(s, l->sql, &q, err), step = SQLITE_DONE;
    while (rc == 0 && (step = sqlite3_step(q)) == SQLITE_ROW) {
        if (passed_over(st, l, q))
            continue;
        rc = l->fn != NULL ? l->fn(st, q, err) : load_job(st, d, q, err);
        if (rc < 0) {
            *ret_job = rc == -ERR_FORMAT ? owner_of(st, l, q) : 0;
            (void)err_wrap(err, "table %s, row %lld", l->what,
                           (long long)sqlite3_column_int64(q, 0));
            if (*ret_job != 0 && damage_of(d, *ret_job) != NULL)
                rc = 0; /* of a job that is set aside already */
        }
    }
    sqlite3_finalize(q);
    return rc == 0 && step != SQLITE_DONE
               ? err_set(err, -EIO, "reading table %s of the saved state", l->what)
               : rc;
}

static int load_tables(struct store *s, struct state *st, const struct damaged *d,
                       uint64_t *ret_job, struct err *err)
{
    *ret_job = 0;
    for (size_t i = 0; i < sizeof(loadings) / sizeof(loadings[0]); i++) {
        const int rc = load_table(s, st, &loadings[i], d, ret_job, err);
        if (rc < 0)
            return rc;
    }
    return persist_check(st, ret_job, err);
}

/* What is damaged of one job says nothing of the others: that job is set aside, and all is loaded
 * anew without it. */
int persist_load(struct store *s, struct state *st, struct err *err)
{
    struct damaged *d = mem_alloc(sizeof(*d));
    struct err why = {0};
    uint64_t job;
    int rc = load_tables(s, st, d, &job, &why);
    while (rc == -ERR_FORMAT && job != 0 && damage_of(d, job) == NULL) {
        d->jobs[d->n].job = job;
        d->jobs[d->n++].why = str_dup(why.msg);
        state_release(st);
        state_init(st);
        rc = load_tables(s, st, d, &job, &why);
    }
    while (d->n > 0)
        mem_free(d->jobs[--d->n].why);
    mem_free(d);
    if (rc < 0)
        return err_set(err, rc, "the saved state cannot be read (" ANEW "): %s", why.msg);
    persist_changes(NULL, st);
    return 0;
}

static size_t read_numbers(const char *text, struct metric_number out[METRIC_NUMBERS_MAX])
{
    size_t n = 0;
    for (int len; n < METRIC_NUMBERS_MAX &&
                  sscanf(text, "%64s %lg%n", out[n].name, &out[n].value, &len) == 2;
         text += len)
        n++;
    return n;
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
    struct metric_number numbers[METRIC_NUMBERS_MAX];
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
            .numbers = numbers,
            .n_numbers = read_numbers(store_text(q, 14), numbers),
        };
        fn(arg, &m);
    }
    sqlite3_finalize(q);
    return 0;
}
