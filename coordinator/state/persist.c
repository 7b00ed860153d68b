/* The schema, and writing: changed records become rows. */
#include "coordinator/state/persist.h"

#include "common/base/buf.h"
#include "common/base/log.h"

#define LEDGER_BYTES_MAX (32u << 20)
#define CURSOR_FORMAT "%u %" PRIu64 " %" PRIu64 " %a %a %a %a %" PRIu64 " %u %u"

static const char schema_1[] =
    "CREATE TABLE counters(name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;"
    "CREATE TABLE workers(id INTEGER PRIMARY KEY, identity BLOB, instance BLOB, name TEXT,"
    " device TEXT, version TEXT, address TEXT, memory INTEGER, threads INTEGER, state INTEGER,"
    " reason TEXT, drain INTEGER, strikes INTEGER, failures_row INTEGER, done INTEGER,"
    " failed INTEGER, control_up INTEGER, control_down INTEGER, data_up INTEGER,"
    " data_down INTEGER, joined_unix_ms INTEGER, task INTEGER) STRICT;"
    "CREATE TABLE verdicts(worker INTEGER, task INTEGER, accepted INTEGER, reason TEXT,"
    " PRIMARY KEY(worker, task)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE jobs(id INTEGER PRIMARY KEY, yaml TEXT, state INTEGER, reason TEXT,"
    " made_unix_ms INTEGER, started_unix_ms INTEGER, ended_unix_ms INTEGER, bad_count INTEGER,"
    " metric_n INTEGER, metric_points INTEGER, bytes_up INTEGER, bytes_down INTEGER,"
    " shard_bytes_down INTEGER, steps_done INTEGER, phases_done INTEGER, loss REAL,"
    " eval_loss REAL) STRICT;"
    "CREATE TABLE classes(job INTEGER, n INTEGER, name TEXT, samples INTEGER,"
    " PRIMARY KEY(job, n)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE shards(job INTEGER, n INTEGER, sha256 BLOB, size INTEGER, samples INTEGER,"
    " part INTEGER, source INTEGER, PRIMARY KEY(job, n)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE bad_samples(job INTEGER, n INTEGER, shard TEXT, key TEXT, reason TEXT,"
    " PRIMARY KEY(job, n)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE ledgers(job INTEGER, part INTEGER, data BLOB, PRIMARY KEY(job, part)) STRICT;"
    "CREATE TABLE modules(id INTEGER PRIMARY KEY, job INTEGER, n INTEGER, level INTEGER,"
    " idx INTEGER, version INTEGER, params INTEGER) STRICT;"
    "CREATE TABLE versions(module INTEGER, version INTEGER, full BLOB, full_size INTEGER,"
    " delta BLOB, delta_size INTEGER, ema BLOB, ema_size INTEGER, provenance TEXT,"
    " at_unix_ms INTEGER, PRIMARY KEY(module, version)) STRICT;"
    "CREATE TABLE paths(job INTEGER, path INTEGER, round INTEGER, ready INTEGER,"
    " ready_unix_ms INTEGER, bytes_up INTEGER, bytes_down INTEGER,"
    " PRIMARY KEY(job, path)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE replicas(job INTEGER, path INTEGER, replica INTEGER, owner INTEGER,"
    " step INTEGER, task INTEGER, samples_last INTEGER,"
    " PRIMARY KEY(job, path, replica)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE tasks(id INTEGER PRIMARY KEY, job INTEGER, kind INTEGER, state INTEGER,"
    " attempt INTEGER, failures INTEGER, path INTEGER, replica INTEGER, round INTEGER,"
    " module INTEGER, worker INTEGER, reason TEXT, first_step INTEGER, ranges BLOB,"
    " draw TEXT, labels BLOB, output BLOB, output_size INTEGER, steps INTEGER, samples INTEGER,"
    " loss_first REAL, loss_last REAL, loss_mean REAL, seconds REAL, made_unix_ms INTEGER,"
    " ended_unix_ms INTEGER) STRICT;"
    "CREATE TABLE contributions(task INTEGER, n INTEGER, module INTEGER, base INTEGER,"
    " sha256 BLOB, size INTEGER, refused INTEGER, PRIMARY KEY(task, n)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE rounds(job INTEGER, path INTEGER, round INTEGER, contributions INTEGER,"
    " expected INTEGER, loss REAL, eval_loss REAL, seconds REAL, samples INTEGER, steps INTEGER,"
    " bytes_up INTEGER, bytes_down INTEGER, at_unix_ms INTEGER,"
    " PRIMARY KEY(job, round, path)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE grids(task INTEGER PRIMARY KEY, job INTEGER, round INTEGER, count INTEGER,"
    " columns INTEGER, sha256 BLOB, size INTEGER, at_unix_ms INTEGER) STRICT;"
    "CREATE TABLE metrics(job INTEGER, n INTEGER, kind INTEGER, path INTEGER, replica INTEGER,"
    " round INTEGER, step INTEGER, loss REAL, lr REAL, seconds REAL, samples INTEGER,"
    " bytes_up INTEGER, bytes_down INTEGER, at_unix_ms INTEGER,"
    " PRIMARY KEY(job, n)) STRICT, WITHOUT ROWID;";

/* Partitions, texts, several networks. */
static const char schema_2[] =
    "ALTER TABLE shards ADD COLUMN generation INTEGER;"
    "ALTER TABLE shards ADD COLUMN holdout INTEGER;"
    "ALTER TABLE shards ADD COLUMN router INTEGER;"
    "ALTER TABLE shards ADD COLUMN tokens INTEGER;"
    "ALTER TABLE shards ADD COLUMN features BLOB;"
    "ALTER TABLE shards ADD COLUMN features_size INTEGER;"
    "UPDATE shards SET holdout=1, part=0 WHERE part=4294967295;"
    "ALTER TABLE jobs ADD COLUMN generation INTEGER;"
    "ALTER TABLE jobs ADD COLUMN resharded INTEGER;"
    "ALTER TABLE jobs ADD COLUMN finishing INTEGER;"
    "ALTER TABLE jobs ADD COLUMN vocab INTEGER;"
    "ALTER TABLE jobs ADD COLUMN tokenizer BLOB;"
    "ALTER TABLE jobs ADD COLUMN tokenizer_size INTEGER;"
    "ALTER TABLE jobs ADD COLUMN warm_start BLOB;"
    "ALTER TABLE jobs ADD COLUMN warm_start_size INTEGER;"
    "ALTER TABLE jobs ADD COLUMN partitioner BLOB;"
    "ALTER TABLE jobs ADD COLUMN partitioner_size INTEGER;"
    "ALTER TABLE jobs ADD COLUMN assignment BLOB;"
    "ALTER TABLE jobs ADD COLUMN assignment_size INTEGER;"
    "ALTER TABLE jobs ADD COLUMN sizes BLOB;"
    "ALTER TABLE paths ADD COLUMN eval_round INTEGER;"
    "ALTER TABLE paths ADD COLUMN eval_loss REAL;"
    "ALTER TABLE paths ADD COLUMN eval_sum REAL;"
    "ALTER TABLE paths ADD COLUMN eval_units INTEGER;"
    "ALTER TABLE paths ADD COLUMN eval_bytes INTEGER;"
    "ALTER TABLE paths ADD COLUMN best_round INTEGER;"
    "ALTER TABLE paths ADD COLUMN best_loss REAL;"
    "ALTER TABLE paths ADD COLUMN best BLOB;"
    "ALTER TABLE replicas ADD COLUMN moments BLOB;"
    "ALTER TABLE replicas ADD COLUMN moments_size INTEGER;"
    "ALTER TABLE tasks ADD COLUMN evaluate INTEGER;"
    "ALTER TABLE tasks ADD COLUMN parent INTEGER;"
    "ALTER TABLE tasks ADD COLUMN input BLOB;"
    "ALTER TABLE tasks ADD COLUMN input_size INTEGER;"
    "ALTER TABLE tasks ADD COLUMN moments BLOB;"
    "ALTER TABLE tasks ADD COLUMN moments_size INTEGER;"
    "ALTER TABLE tasks ADD COLUMN mixing TEXT;"
    "ALTER TABLE tasks ADD COLUMN prompt TEXT;"
    "ALTER TABLE tasks ADD COLUMN waited_ms INTEGER;"
    "ALTER TABLE jobs ADD COLUMN waited_ms INTEGER;"
    "ALTER TABLE jobs ADD COLUMN trained_ms INTEGER;"
    "ALTER TABLE paths ADD COLUMN phases INTEGER;"
    "ALTER TABLE modules ADD COLUMN folded INTEGER;"
    "ALTER TABLE modules ADD COLUMN stale_sum INTEGER;"
    "ALTER TABLE modules ADD COLUMN stale_max INTEGER;"
    "ALTER TABLE modules ADD COLUMN bytes_from_others INTEGER;"
    "ALTER TABLE contributions ADD COLUMN samples INTEGER;"
    "ALTER TABLE contributions ADD COLUMN worker INTEGER;"
    "ALTER TABLE contributions ADD COLUMN version INTEGER;"
    "ALTER TABLE grids ADD COLUMN path INTEGER;"
    "ALTER TABLE grids ADD COLUMN text TEXT;"
    "CREATE TABLE scores(job INTEGER, n INTEGER, path INTEGER, shard INTEGER, sha256 BLOB,"
    " size INTEGER, PRIMARY KEY(job, n)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE rows(job INTEGER, n INTEGER, kind INTEGER, path INTEGER, round INTEGER,"
    " name TEXT, unit TEXT, value REAL, at_unix_ms INTEGER, PRIMARY KEY(job, n)) STRICT,"
    " WITHOUT ROWID;";

/* A re-sharding that is dropped. */
static const char schema_3[] = "ALTER TABLE jobs ADD COLUMN partitioner_before BLOB;"
                               "ALTER TABLE jobs ADD COLUMN partitioner_before_size INTEGER;";

/* Frozen networks in front of the model. */
static const char schema_4[] =
    "CREATE TABLE encoder_files(job INTEGER, n INTEGER, part INTEGER, name TEXT, sha256 BLOB,"
    " size INTEGER, PRIMARY KEY(job, n)) STRICT, WITHOUT ROWID;"
    "ALTER TABLE jobs ADD COLUMN input TEXT;";

/* Phases that another worker can continue; the cursor is the same in each row of a task. */
static const char schema_5[] =
    "CREATE TABLE snapshots(task INTEGER, n INTEGER, module INTEGER, base INTEGER, sha256 BLOB,"
    " size INTEGER, worker INTEGER, cursor TEXT, PRIMARY KEY(task, n)) STRICT, WITHOUT ROWID;";

/* Tokens, and workers' own keys. */
static const char schema_6[] =
    "CREATE TABLE tokens(id INTEGER PRIMARY KEY, name TEXT, role INTEGER, verifier BLOB,"
    " made_unix_ms INTEGER, ends_unix_ms INTEGER, revoked_unix_ms INTEGER, uses INTEGER,"
    " uses_max INTEGER, workers_max INTEGER) STRICT;"
    "ALTER TABLE workers ADD COLUMN key BLOB;"
    "ALTER TABLE workers ADD COLUMN token INTEGER;"
    "ALTER TABLE workers ADD COLUMN revoked_unix_ms INTEGER;";

/* A job's row is written with every point of its curve, its text only once. */
static const char schema_7[] = "CREATE TABLE specs(job INTEGER PRIMARY KEY, yaml TEXT) STRICT;"
                               "INSERT INTO specs SELECT id, yaml FROM jobs;"
                               "UPDATE jobs SET yaml=NULL;";

/* Trainers' named numbers: "NAME VALUE NAME VALUE" in a point, the names in a job. */
static const char schema_8[] = "ALTER TABLE metrics ADD COLUMN numbers TEXT;"
                               "ALTER TABLE jobs ADD COLUMN numbers TEXT;";

/* Jobs' shares and budgets, and their costs. */
static const char schema_9[] = "ALTER TABLE jobs ADD COLUMN token INTEGER;"
                               "ALTER TABLE jobs ADD COLUMN priority INTEGER;"
                               "ALTER TABLE jobs ADD COLUMN share REAL;"
                               "ALTER TABLE jobs ADD COLUMN budget REAL;"
                               "ALTER TABLE jobs ADD COLUMN cost_work REAL;"
                               "ALTER TABLE jobs ADD COLUMN cost_waiting REAL;"
                               "ALTER TABLE jobs ADD COLUMN samples_done INTEGER;"
                               "ALTER TABLE workers ADD COLUMN price REAL;"
                               "ALTER TABLE workers ADD COLUMN served INTEGER;"
                               "ALTER TABLE workers ADD COLUMN since_unix_ms INTEGER;"
                               "ALTER TABLE tokens ADD COLUMN jobs_max INTEGER;"
                               "ALTER TABLE tokens ADD COLUMN budget REAL;";

/* Contributions that are the last snapshot of a lost worker. */
static const char schema_10[] = "ALTER TABLE contributions ADD COLUMN part INTEGER;";

static const char schema_11[] = "ALTER TABLE workers ADD COLUMN doubted_folds INTEGER;";

static const char schema_12[] = "ALTER TABLE jobs ADD COLUMN paused INTEGER;";

static const char schema_13[] = "ALTER TABLE jobs ADD COLUMN bytes_near INTEGER;";

/* Workers one of whose phases was checked by another. */
static const char schema_14[] = "ALTER TABLE workers ADD COLUMN checked INTEGER;";

/* Verdicts on single modules; 0: on the rest of a task. */
static const char schema_15[] =
    "ALTER TABLE verdicts RENAME TO verdicts_14;"
    "CREATE TABLE verdicts(worker INTEGER, task INTEGER, module INTEGER, accepted INTEGER,"
    " reason TEXT, PRIMARY KEY(worker, task, module)) STRICT, WITHOUT ROWID;"
    "INSERT INTO verdicts SELECT worker, task, 0, accepted, reason FROM verdicts_14;"
    "DROP TABLE verdicts_14;";

/* What a restart must not forget: phases since the last round, and whose fault a phase may be. */
static const char schema_16[] = "ALTER TABLE paths ADD COLUMN sum TEXT;"
                                "ALTER TABLE contributions ADD COLUMN resumed INTEGER;";

/* Inner steps without an update. */
static const char schema_17[] = "ALTER TABLE jobs ADD COLUMN steps_skipped INTEGER;"
                                "ALTER TABLE tasks ADD COLUMN skipped INTEGER;";

/* Dollars, and no longer the bytes that neighbours sent, which cost nothing. */
static const char schema_18[] = "ALTER TABLE jobs ADD COLUMN cost_egress REAL;";

/* Of a token's removed jobs. */
static const char schema_19[] = "ALTER TABLE tokens ADD COLUMN spent REAL;";

static const char *const migrations[] = {schema_1,  schema_2,  schema_3,  schema_4,  schema_5,
                                         schema_6,  schema_7,  schema_8,  schema_9,  schema_10,
                                         schema_11, schema_12, schema_13, schema_14, schema_15,
                                         schema_16, schema_17, schema_18, schema_19};

enum statement {
    PUT_COUNTER,
    PUT_TOKEN,
    DEL_TOKEN,
    PUT_WORKER,
    DEL_WORKER,
    DEL_WORKER_VERDICTS,
    PUT_VERDICT,
    NEW_JOB,
    PUT_SPEC,
    PUT_JOB,
    PUT_CLASS,
    PUT_SHARD,
    PUT_BAD,
    PUT_ENCODER_FILE,
    PUT_LEDGER,
    PUT_MODULE,
    PUT_VERSION,
    DEL_VERSIONS,
    PUT_PATH,
    PUT_REPLICA,
    PUT_TASK,
    DEL_TASK,
    PUT_CONTRIBUTION,
    DEL_CONTRIBUTIONS,
    PUT_SNAPSHOT,
    DEL_SNAPSHOT,
    PUT_ROUND,
    DEL_ROUNDS,
    PUT_GRID,
    DEL_GRID,
    CUT_CLASSES,
    CUT_SHARDS,
    PUT_SCORE,
    DEL_SCORES,
    PUT_ROW,
    PUT_METRIC,
    THIN_POINTS,
    THIN_ROUNDS,
    DEL_JOB_FIRST, /* one statement per table that has a job */
    DEL_JOB_LAST = DEL_JOB_FIRST + 18,
    DEL_ORPHANS_FIRST, /* rows that the lost rows of a removed job owned */
    DEL_ORPHANS_LAST = DEL_ORPHANS_FIRST + 2,
    STATEMENTS
};

static const char *const statements[STATEMENTS] = {
    [PUT_COUNTER] = "INSERT OR REPLACE INTO counters VALUES(?,?)",
    [PUT_TOKEN] = "INSERT OR REPLACE INTO tokens VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [DEL_TOKEN] = "DELETE FROM tokens WHERE id=?",
    [PUT_WORKER] =
        "INSERT OR REPLACE INTO workers(id, identity, instance, name, device, version, address,"
        " memory, threads, state, reason, drain, strikes, failures_row, done, failed,"
        " joined_unix_ms, task, key, token, revoked_unix_ms, price, served, since_unix_ms,"
        " doubted_folds, checked, control_up, control_down, data_up, data_down)"
        " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [DEL_WORKER] = "DELETE FROM workers WHERE id=?",
    [DEL_WORKER_VERDICTS] = "DELETE FROM verdicts WHERE worker=?",
    [PUT_VERDICT] = "INSERT OR REPLACE INTO verdicts VALUES(?,?,?,?,?)",
    [NEW_JOB] = "INSERT OR REPLACE INTO jobs(id) VALUES(?)",
    [PUT_SPEC] = "INSERT OR REPLACE INTO specs VALUES(?,?)",
    [PUT_JOB] =
        "UPDATE jobs SET state=?2, reason=?3, made_unix_ms=?4, started_unix_ms=?5,"
        " ended_unix_ms=?6, bad_count=?7, steps_done=?8, phases_done=?9, eval_loss=?10,"
        " generation=?11, resharded=?12, finishing=?13, vocab=?14, tokenizer=?15,"
        " tokenizer_size=?16, warm_start=?17, warm_start_size=?18, partitioner=?19,"
        " partitioner_size=?20, assignment=?21, assignment_size=?22, sizes=?23, waited_ms=?24,"
        " trained_ms=?25, partitioner_before=?26, partitioner_before_size=?27, token=?28,"
        " priority=?29, share=?30, budget=?31, cost_work=?32, cost_waiting=?33, samples_done=?34,"
        " paused=?35, metric_n=?36, metric_points=?37, loss=?38, bytes_up=?39, bytes_down=?40,"
        " shard_bytes_down=?41, cost_egress=?42, input=?43, numbers=?44,"
        " steps_skipped=?45 WHERE id=?1",
    [PUT_CLASS] = "INSERT OR REPLACE INTO classes VALUES(?,?,?,?)",
    [CUT_CLASSES] = "DELETE FROM classes WHERE job=? AND n>=?",
    [CUT_SHARDS] = "DELETE FROM shards WHERE job=? AND n>=?",
    [PUT_SHARD] = "INSERT OR REPLACE INTO shards VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [PUT_BAD] = "INSERT OR REPLACE INTO bad_samples VALUES(?,?,?,?,?)",
    [PUT_ENCODER_FILE] = "INSERT OR REPLACE INTO encoder_files VALUES(?,?,?,?,?,?)",
    [PUT_LEDGER] = "INSERT OR REPLACE INTO ledgers VALUES(?,?,?)",
    [PUT_MODULE] = "INSERT OR REPLACE INTO modules(id, job, n, level, idx, version, params, folded,"
                   " stale_sum, stale_max, bytes_from_others) VALUES(?,?,?,?,?,?,?,?,?,?,?)",
    [PUT_VERSION] = "INSERT OR REPLACE INTO versions VALUES(?,?,?,?,?,?,?,?,?,?)",
    [DEL_VERSIONS] = "DELETE FROM versions WHERE module=? AND version<=?",
    [PUT_PATH] =
        "INSERT OR REPLACE INTO paths(job, path, round, ready, ready_unix_ms, eval_round,"
        " eval_loss, eval_sum, eval_units, eval_bytes, best_round, best_loss, best, phases, sum,"
        " bytes_up, bytes_down) VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [PUT_REPLICA] = "INSERT OR REPLACE INTO replicas VALUES(?,?,?,?,?,?,?,?,?)",
    [PUT_TASK] = "INSERT OR REPLACE INTO tasks VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,"
                 "?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [DEL_TASK] = "DELETE FROM tasks WHERE id=?",
    [PUT_CONTRIBUTION] = "INSERT OR REPLACE INTO contributions VALUES(?,?,?,?,?,?,?,?,?,?,?,?)",
    [DEL_CONTRIBUTIONS] = "DELETE FROM contributions WHERE task=?",
    [PUT_SNAPSHOT] = "INSERT OR REPLACE INTO snapshots VALUES(?,?,?,?,?,?,?,?)",
    [DEL_SNAPSHOT] = "DELETE FROM snapshots WHERE task=?",
    [PUT_ROUND] = "INSERT OR REPLACE INTO rounds VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [DEL_ROUNDS] = "DELETE FROM rounds WHERE job=? AND path=? AND round<=?",
    [PUT_GRID] = "INSERT OR REPLACE INTO grids VALUES(?,?,?,?,?,?,?,?,?,?)",
    [DEL_GRID] = "DELETE FROM grids WHERE task=?",
    [PUT_SCORE] = "INSERT OR REPLACE INTO scores VALUES(?,?,?,?,?,?)",
    [DEL_SCORES] = "DELETE FROM scores WHERE job=?",
    [PUT_ROW] = "INSERT OR REPLACE INTO rows VALUES(?,?,?,?,?,?,?,?,?)",
    [PUT_METRIC] = "INSERT OR REPLACE INTO metrics VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [THIN_POINTS] = "DELETE FROM metrics WHERE job=? AND kind=1 AND n<=? AND (n&?)!=0",
    [THIN_ROUNDS] = "DELETE FROM metrics WHERE job=? AND kind!=1 AND round<=? AND (round&?)!=0",
    /* Rows that depend on modules and tasks go before them. */
    [DEL_JOB_FIRST] = "DELETE FROM versions WHERE module IN (SELECT id FROM modules WHERE job=?)",
    [DEL_JOB_FIRST + 1] =
        "DELETE FROM contributions WHERE task IN (SELECT id FROM tasks WHERE job=?)",
    [DEL_JOB_FIRST + 2] = "DELETE FROM snapshots WHERE task IN (SELECT id FROM tasks WHERE job=?)",
    [DEL_JOB_FIRST + 3] = "DELETE FROM modules WHERE job=?",
    [DEL_JOB_FIRST + 4] = "DELETE FROM tasks WHERE job=?",
    [DEL_JOB_FIRST + 5] = "DELETE FROM classes WHERE job=?",
    [DEL_JOB_FIRST + 6] = "DELETE FROM shards WHERE job=?",
    [DEL_JOB_FIRST + 7] = "DELETE FROM bad_samples WHERE job=?",
    [DEL_JOB_FIRST + 8] = "DELETE FROM ledgers WHERE job=?",
    [DEL_JOB_FIRST + 9] = "DELETE FROM paths WHERE job=?",
    [DEL_JOB_FIRST + 10] = "DELETE FROM replicas WHERE job=?",
    [DEL_JOB_FIRST + 11] = "DELETE FROM rounds WHERE job=?",
    [DEL_JOB_FIRST + 12] = "DELETE FROM grids WHERE job=?",
    [DEL_JOB_FIRST + 13] = "DELETE FROM metrics WHERE job=?",
    [DEL_JOB_FIRST + 14] = "DELETE FROM scores WHERE job=?",
    [DEL_JOB_FIRST + 15] = "DELETE FROM rows WHERE job=?",
    [DEL_JOB_FIRST + 16] = "DELETE FROM encoder_files WHERE job=?",
    [DEL_JOB_FIRST + 17] = "DELETE FROM specs WHERE job=?",
    [DEL_JOB_LAST] = "DELETE FROM jobs WHERE id=?",
    [DEL_ORPHANS_FIRST] = "DELETE FROM versions WHERE module NOT IN (SELECT id FROM modules)",
    [DEL_ORPHANS_FIRST + 1] = "DELETE FROM contributions WHERE task NOT IN (SELECT id FROM tasks)",
    [DEL_ORPHANS_LAST] = "DELETE FROM snapshots WHERE task NOT IN (SELECT id FROM tasks)",
};

const struct store_schema persist_schema = {
    .migrations = migrations,
    .n_migrations = sizeof(migrations) / sizeof(migrations[0]),
    .statements = statements,
    .n_statements = STATEMENTS,
};

#define I(x) ((int64_t)(x))
/* A blob as two columns: hash and size. */
#define B(b) (b)->sha256, (size_t)32, I((b)->size)

static void put_counters(struct store *s, struct state *st)
{
    const struct {
        const char *name;
        uint64_t value;
    } all[] = {
        {"worker", st->next_worker},
        {"job", st->next_job},
        {"task", st->next_task},
        {"module", st->next_module},
        {"token", st->next_token},
        {"control_up", st->bytes_gone[0]},
        {"control_down", st->bytes_gone[1]},
        {"data_up", st->bytes_gone[2]},
        {"data_down", st->bytes_gone[3]},
    };
    const int n = sizeof(all) / sizeof(all[0]);
    uint64_t sum = 1;
    for (int i = 0; i < n; i++)
        sum = sum * 0x9e3779b97f4a7c15ull + all[i].value;
    if (sum == st->counters.seen)
        return;
    st->counters.seen = sum;
    for (int i = 0; i < n; i++)
        store_put(s, PUT_COUNTER, "ti", all[i].name, I(all[i].value));
}

void persist_spent(struct store *s, const struct state *st)
{
    store_put(s, PUT_COUNTER, "ti", PERSIST_SPENT, I(st->request_dollars / PERSIST_SPENT_UNIT));
}

static void put_token(struct store *s, struct token_rec *t)
{
    if (t->edited)
        store_put(s, PUT_TOKEN, "itibiiiiiiidd", I(t->id), t->name, I(t->role), t->verifier,
                  sizeof(t->verifier), I(t->made_unix_ms), I(t->ends_unix_ms),
                  I(t->revoked_unix_ms), I(t->uses), I(t->uses_max), I(t->workers_max),
                  I(t->jobs_max), t->budget, t->spent);
    t->edited = false;
}

/* The bytes are written along with other changes: they change with every heartbeat. */
static void put_worker(struct store *s, struct worker *w)
{
    (void)store_put_changed(
        s, &w->row.seen, PUT_WORKER, "ibbttttiiitiiiiiiibiidiiii|iiii", I(w->id), w->identity,
        (size_t)16, w->instance, (size_t)16, w->name, w->device, w->version, w->address,
        I(w->memory_bytes), I(w->threads), I(w->state), w->state_reason, I(w->drain), I(w->strikes),
        I(w->failures_row), I(w->tasks_done), I(w->tasks_failed), I(w->joined_unix_ms),
        I(w->task_id), w->has_key ? w->key : NULL, w->has_key ? sizeof(w->key) : (size_t)0,
        I(w->token_id), I(w->revoked_unix_ms), w->price, I(w->served), I(w->since_unix_ms),
        I(w->doubted_folds), I(w->checked), I(w->bytes[0]), I(w->bytes[1]), I(w->bytes[2]),
        I(w->bytes[3]));
    if (!w->verdicts_edited)
        return;
    store_put(s, DEL_WORKER_VERDICTS, "i", I(w->id));
    for (unsigned i = 0; i < w->n_verdicts; i++) {
        const struct verdict *v = &w->verdicts[i];
        store_put(s, PUT_VERDICT, "iiiit", I(w->id), I(v->task_id), I(v->module_id), I(v->accepted),
                  v->reason);
    }
    w->verdicts_edited = false;
}

static void put_contributions(struct store *s, struct task *t)
{
    store_put(s, DEL_CONTRIBUTIONS, "i", I(t->id));
    for (size_t i = 0; i < t->train.n_contributions; i++) {
        const struct contribution *c = &t->train.contributions[i];
        store_put(s, PUT_CONTRIBUTION, "iiiibiiiiiii", I(t->id), I(i), I(c->module_id),
                  I(c->base_version), B(&c->blob), I(c->refused), I(c->samples), I(c->worker_id),
                  I(c->version), I(c->part), I(c->resumed));
    }
    t->train.edited = false;
}

static void put_snapshot(struct store *s, struct task *t)
{
    const struct snapshot *p = t->train.snapshot;
    char cursor[224];
    store_put(s, DEL_SNAPSHOT, "i", I(t->id));
    for (size_t i = 0; p != NULL && i < p->n; i++) {
        (void)snprintf(cursor, sizeof(cursor), CURSOR_FORMAT, p->steps, p->samples, p->position,
                       p->loss_sum, p->loss_first, p->loss_last, p->seconds, p->used, p->skipped,
                       p->skipped_row);
        store_put(s, PUT_SNAPSHOT, "iiiibiit", I(t->id), I(i), I(p->modules[i].module_id),
                  I(p->modules[i].base_version), B(&p->modules[i].blob), I(p->worker_id), cursor);
    }
    t->train.snapshot_edited = false;
}

static void put_task(struct store *s, struct task *t)
{
    char draw[160], mixing[160];
    static const struct blob_ref none;
    const bool train = task_has_phase(t), velocity = t->kind == TASK_VELOCITY;
    const uint64_t about = t->kind == TASK_OUTER ? t->outer.module_id : train ? t->train.after : 0;
    const uint64_t parent = velocity ? t->velocity.parent : train ? t->train.checks : 0;
    const bool evaluate = train ? t->train.fresh : task_evaluates(t); /* they share a column */
    const struct task_draw other = {.ema = task_wants_ema(t)};
    const struct task_draw *d = task_drawing(t) ? task_drawing(t) : &other;
    (void)snprintf(draw, sizeof(draw), "%u %u %u %d %d %d %a %llu", d->steps, d->columns, d->count,
                   d->heun, d->ema, d->asked, (double)d->guidance, (unsigned long long)d->seed);
    (void)snprintf(mixing, sizeof(mixing), "%d %d %u %u %a %a %u %a %a", d->mixture, d->remote,
                   d->strategy, d->top, (double)d->nucleus, (double)d->threshold, d->tokens,
                   (double)d->temperature, (double)d->top_p);
    (void)store_put_changed(
        s, &t->row.seen, PUT_TASK,
        "iiiiiiiiiii"
        "tibtbbiii"
        "ddddii"
        "iibibittii",
        I(t->id), I(t->job_id), I(t->kind), I(t->state), I(t->attempt), I(t->failures), I(t->path),
        I(task_replica(t)), I(task_round(t)), I(about), I(t->worker_id), t->reason,
        I(train ? t->train.first_step : 0), t->ranges, t->n_ranges * sizeof(*t->ranges), draw,
        d->labels, d->labels ? d->count * sizeof(*d->labels) : 0, B(&t->output), I(t->steps),
        I(t->samples), (double)t->loss_first, (double)t->loss_last, (double)t->loss_mean,
        (double)t->seconds, I(t->made_unix_ms), I(t->ended_unix_ms), I(evaluate), I(parent),
        B(velocity ? &t->velocity.input : &none), B(train ? &t->train.moments : &none), mixing,
        d->prompt, I(train ? t->train.waited_ms : 0), I(t->skipped));
    if (train && t->train.edited)
        put_contributions(s, t);
    if (train && t->train.snapshot_edited)
        put_snapshot(s, t);
}

/* ---- jobs ---------------------------------------------------------------- */

static void put_classes(struct store *s, struct job *j)
{
    if (j->shrunk) {
        store_put(s, CUT_CLASSES, "ii", I(j->id), I(j->n_classes));
        store_put(s, CUT_SHARDS, "ii", I(j->id), I(j->n_shards));
    }
    j->shrunk = false;
    for (size_t i = j->classes_saved; i < j->n_classes; i++)
        store_put(s, PUT_CLASS, "iiti", I(j->id), I(i), j->classes[i], I(j->counts[i]));
    j->classes_saved = j->n_classes;
    for (size_t i = j->bad_saved; i < j->n_bad; i++)
        store_put(s, PUT_BAD, "iittt", I(j->id), I(i), j->bad[i].shard, j->bad[i].key,
                  j->bad[i].reason);
    j->bad_saved = j->n_bad;
    for (size_t i = j->encoders_saved; i < j->n_encoders; i++)
        store_put(s, PUT_ENCODER_FILE, "iiitbi", I(j->id), I(i), I(j->encoders[i].part),
                  j->encoders[i].name, B(&j->encoders[i].blob));
    j->encoders_saved = j->n_encoders;
}

static void put_shards(struct store *s, struct job *j)
{
    for (size_t i = 0; i < j->shards_edited.n; i++) {
        const size_t n = j->shards_edited.at[i];
        if (n >= j->n_shards)
            continue;
        const struct shard_rec *r = &j->shards[n];
        store_put(s, PUT_SHARD, "iibiiiiiiiibi", I(j->id), I(n), B(&r->blob), I(r->samples),
                  I(r->partition), I(r->source), I(r->generation), I(r->holdout), I(r->router),
                  I(r->tokens), B(&r->features));
    }
    j->shards_edited.n = 0;
}

static void put_found(struct store *s, struct job *j)
{
    if (j->scores_dropped)
        store_put(s, DEL_SCORES, "i", I(j->id));
    j->scores_dropped = false;
    for (size_t i = j->scores_saved; i < j->n_scores; i++) {
        const struct score_rec *r = &j->scores[i];
        store_put(s, PUT_SCORE, "iiiibi", I(j->id), I(i), I(r->path), I(r->shard), B(&r->blob));
    }
    j->scores_saved = j->n_scores;
    for (size_t i = 0; i < j->rows_edited.n; i++) {
        const size_t n = j->rows_edited.at[i];
        const struct row_rec *r = &j->rows[n];
        store_put(s, PUT_ROW, "iiiiittdi", I(j->id), I(n), I(r->kind), I(r->path), I(r->round),
                  r->name, r->unit, r->value, I(r->at_unix_ms));
    }
    j->rows_edited.n = 0;
}

static void put_module(struct store *s, const struct job *j, struct module_rec *m)
{
    bool fresh = false;
    m->row.edited = false;
    (void)store_put_changed(s, &m->row.seen, PUT_MODULE, "iiiiiiiiii|i", I(m->id), I(j->id),
                            I(m - j->modules), I(m->level), I(m->index),
                            I(m->n_versions ? m->version : 0), I(m->params), I(m->folded),
                            I(m->stale_sum), I(m->stale_max), I(m->bytes_from_others));
    for (unsigned i = 0; i < m->n_versions; i++) {
        struct version_rec *v = &m->versions[i];
        fresh |= !v->saved;
        if (!v->saved)
            store_put(s, PUT_VERSION, "iibibibiti", I(m->id), I(v->version), B(&v->full),
                      B(&v->delta), B(&v->ema), v->provenance, I(v->at_unix_ms));
        v->saved = true;
    }
    if (fresh && m->version >= m->kept)
        store_put(s, DEL_VERSIONS, "ii", I(m->id), I(m->version - m->kept));
}

static void put_path(struct store *s, const struct job *j, uint32_t path)
{
    struct path_rec *p = (struct path_rec *)&j->paths[path];
    const size_t best = p->best ? composition_levels(&j->comp, path) * sizeof(*p->best) : 0;
    char sum[128];
    p->row.edited = false;
    (void)snprintf(sum, sizeof(sum), "%u %" PRIu64 " %" PRIu64 " %a %a", p->sum.phases,
                   p->sum.samples, p->sum.steps, p->sum.loss, p->sum.weight);
    (void)store_put_changed(s, &p->row.seen, PUT_PATH, "iiiiiiddiiidbit|ii", I(j->id), I(path),
                            I(p->round), I(p->ready), I(p->ready_unix_ms), I(p->eval.round),
                            (double)p->eval.loss, p->eval.loss_sum, I(p->eval.units),
                            I(p->eval.bytes), I(p->best_round), (double)p->best_loss, p->best, best,
                            I(p->phases), sum, I(p->bytes_up), I(p->bytes_down));
    for (uint32_t r = 0; r < j->comp.paths[path].replicas; r++) {
        struct replica_rec *rr = (struct replica_rec *)&p->replicas[r];
        (void)store_put_changed(s, &rr->seen, PUT_REPLICA, "iiiiiiibi", I(j->id), I(path), I(r),
                                I(rr->owner), I(rr->step), I(rr->task_id), I(rr->samples_last),
                                B(&rr->moments));
    }
}

static void put_rounds(struct store *s, struct job *j)
{
    for (size_t i = 0; j->rounds_edited && i < j->n_rounds; i++) {
        struct round_rec *r = (struct round_rec *)&j->rounds[i];
        if (r->edited)
            store_put(s, PUT_ROUND, "iiiiidddiiiii", I(j->id), I(r->path), I(r->round),
                      I(r->contributions), I(r->expected), (double)r->loss, (double)r->eval_loss,
                      (double)r->seconds, I(r->samples), I(r->steps), I(r->bytes_up),
                      I(r->bytes_down), I(r->at_unix_ms));
        r->edited = false;
    }
    j->rounds_edited = false;
    for (size_t i = 0; i < j->rounds_gone.n; i++)
        store_put(s, DEL_ROUNDS, "iii", I(j->id), I(j->rounds_gone.at[i] & UINT32_MAX),
                  I(j->rounds_gone.at[i] >> 32));
    j->rounds_gone.n = 0;
}

/* The newest grids are the ones not saved yet. */
static void put_grids(struct store *s, struct job *j)
{
    for (size_t i = 0; i < j->grids_gone.n; i++)
        store_put(s, DEL_GRID, "i", I(j->grids_gone.at[i]));
    j->grids_gone.n = 0;
    for (size_t i = j->n_grids; i-- > 0 && !j->grids[i].saved;) {
        struct grid_rec *g = (struct grid_rec *)&j->grids[i];
        store_put(s, PUT_GRID, "iiiiibiiit", I(g->task_id), I(j->id), I(g->round), I(g->count),
                  I(g->columns), B(&g->blob), I(g->at_unix_ms), I(g->path), g->text);
        g->saved = true;
    }
}

static void put_ledger(struct store *s, const struct job *j, uint32_t partition)
{
    struct buf b;
    buf_init(&b, LEDGER_BYTES_MAX);
    /* 20 bytes per segment; there are at most the shards of the open epochs and the
     * splits of open tasks: far below the buffer's maximum. */
    if (ledger_save(j->ledgers[partition], &b) == 0)
        store_put(s, PUT_LEDGER, "iib", I(j->id), I(partition), b.data, b.len);
    else
        log_error("store", "ledger of job %llu is too large to save", (unsigned long long)j->id);
    buf_release(&b);
}

#define NUMBER_TEXT_MAX (METRIC_NAME_MAX + 52) /* "NAME=value,held-out " */

/* The bytes are written along with other changes, since they change with every served file; so is
 * what points of curves change with every heartbeat, but at the latest with those points. */
static void put_job(struct store *s, struct job *j)
{
    char input[64], names[JOB_NUMBERS_MAX * NUMBER_TEXT_MAX + 1] = "";
    size_t len = 0;
    for (size_t i = 0; i < j->n_numbers; i++)
        len += (size_t)snprintf(names + len, sizeof(names) - len, "%s=%.17g,%.17g ",
                                j->numbers[i].name, j->numbers[i].value, j->numbers[i].held_out);
    (void)snprintf(input, sizeof(input), "%u %u %u %u", j->input.channels, j->input.side,
                   j->input.caption, j->input.caption_tokens);
    if (j->row.seen == 0) {
        store_put(s, NEW_JOB, "i", I(j->id));
        store_put(s, PUT_SPEC, "it", I(j->id), j->yaml);
    }
    if (j->metrics_new)
        j->row.seen = 0;
    j->metrics_new = false;
    (void)store_put_changed(
        s, &j->row.seen, PUT_JOB, "iitiiiiiidiiiibibibibibiibiiiddddii|iidiiidtti", I(j->id),
        I(j->state), j->reason, I(j->made_unix_ms), I(j->started_unix_ms), I(j->ended_unix_ms),
        I(j->bad_count), I(j->steps_done), I(j->phases_done), (double)j->eval_loss,
        I(j->generation), I(j->resharded), I(j->finishing), I(j->vocab), B(&j->tokenizer),
        B(&j->warm_start), B(&j->partitioner), B(&j->assignment), j->sizes,
        j->comp.n_partitions * sizeof(*j->sizes), I(j->waited_ms), I(j->trained_ms),
        B(&j->partitioner_before), I(j->token_id), I(j->quota.priority), j->quota.share,
        j->quota.budget, j->cost.work, j->cost.waiting, I(j->samples_done), I(j->paused),
        I(j->metric_n), I(j->metric_points), (double)j->loss, I(j->bytes_up), I(j->bytes_down),
        I(j->shard_bytes_down), j->cost.egress, input, names, I(j->steps_skipped));
}

static void put_all_of_job(struct store *s, struct job *j)
{
    put_job(s, j);
    put_classes(s, j);
    put_shards(s, j);
    put_found(s, j);
    for (size_t i = 0; i < j->modules_edited.n; i++)
        put_module(s, j, (struct module_rec *)&j->modules[j->modules_edited.at[i]]);
    j->modules_edited.n = 0;
    for (size_t i = 0; i < j->paths_edited.n; i++)
        put_path(s, j, (uint32_t)j->paths_edited.at[i]);
    j->paths_edited.n = 0;
    put_rounds(s, j);
    put_grids(s, j);
    for (uint32_t p = 0; p < job_ledgers(j); p++)
        if (j->ledgers[p] != NULL && ledger_dirty(j->ledgers[p]))
            put_ledger(s, j, p);
}

/* ---- the whole ----------------------------------------------------------- */

static void put_gone(struct store *s, struct state *st)
{
    if (s != NULL && st->workers_gone.n + st->tasks_gone.n > 0)
        st->gone_commit = store_next(s);
    for (size_t i = 0; i < st->tokens_gone.n; i++)
        store_put(s, DEL_TOKEN, "i", I(st->tokens_gone.at[i]));
    st->tokens_gone.n = 0;
    for (size_t i = 0; i < st->workers_gone.n; i++) {
        store_put(s, DEL_WORKER, "i", I(st->workers_gone.at[i]));
        store_put(s, DEL_WORKER_VERDICTS, "i", I(st->workers_gone.at[i]));
    }
    for (size_t i = 0; i < st->tasks_gone.n; i++) {
        store_put(s, DEL_TASK, "i", I(st->tasks_gone.at[i]));
        store_put(s, DEL_CONTRIBUTIONS, "i", I(st->tasks_gone.at[i]));
        store_put(s, DEL_SNAPSHOT, "i", I(st->tasks_gone.at[i]));
    }
    for (size_t i = 0; i < st->jobs_gone.n; i++)
        for (int k = DEL_JOB_FIRST; k <= DEL_JOB_LAST; k++)
            store_put(s, k, "i", I(st->jobs_gone.at[i]));
    if (st->jobs_gone.n > 0 && !state_any_unread(st))
        for (int k = DEL_ORPHANS_FIRST; k <= DEL_ORPHANS_LAST; k++)
            store_put(s, k, "");
    st->workers_gone.n = st->tasks_gone.n = st->jobs_gone.n = 0;
}

/* The rows queued after the first `before` belong to this record, and to its job. */
static void note_commit(struct store *s, size_t before, struct row_mark *row, struct job *j)
{
    if (s == NULL || store_queued(s) == before)
        return;
    row->commit = store_next(s);
    if (j != NULL)
        j->row.commit = store_next(s);
}

static size_t queued(const struct store *s)
{
    return s ? store_queued(s) : 0;
}

void persist_changes(struct store *s, struct state *st)
{
    put_gone(s, st);
    put_counters(s, st);
    for (size_t i = 0; i < st->n_tokens; i++)
        put_token(s, &st->tokens[i]);
    for (size_t i = 0; i < st->workers_edited.n; i++) {
        struct worker *w = (struct worker *)state_worker(st, st->workers_edited.at[i]);
        if (w != NULL) {
            const size_t before = queued(s);
            w->row.edited = false;
            put_worker(s, w);
            note_commit(s, before, &w->row, NULL);
        }
    }
    for (size_t i = 0; i < st->tasks_edited.n; i++) {
        struct task *t = (struct task *)state_task(st, st->tasks_edited.at[i]);
        if (t != NULL) {
            const size_t before = queued(s);
            t->row.edited = false;
            put_task(s, t);
            note_commit(s, before, &t->row, state_job(st, t->job_id));
        }
    }
    st->workers_edited.n = st->tasks_edited.n = 0;
    for (size_t i = 0; i < st->n_jobs; i++) {
        const size_t before = queued(s);
        if (!st->jobs[i]->unread)
            put_all_of_job(s, st->jobs[i]);
        note_commit(s, before, &st->jobs[i]->row, NULL);
    }
}

void persist_count(struct store *s, struct state *st)
{
    if (store_newest(s) == store_next(s))
        store_put(s, PUT_COUNTER, "ti", "commits", I(++st->commits));
}

/* ---- metrics ------------------------------------------------------------- */

void persist_points(struct store *s, struct state *st)
{
    for (size_t i = 0; i < st->n_jobs; i++) {
        st->jobs[i]->metrics_new |= st->jobs[i]->points_new;
        st->jobs[i]->points_new = false;
    }
    store_put_waiting(s);
    persist_changes(s, st);
}

void save_metric(struct store *s, struct job *j, const struct metric_rec *m)
{
    const bool point = m->kind == METRIC_LOSS;
    char numbers[METRIC_NUMBERS_MAX * (METRIC_NAME_MAX + 32)] = "";
    size_t len = 0;
    for (size_t i = 0; i < m->n_numbers; i++)
        len += (size_t)snprintf(numbers + len, sizeof(numbers) - len, "%s %.17g ",
                                m->numbers[i].name, m->numbers[i].value);
    *(point ? &j->points_new : &j->metrics_new) = true;
    (point ? store_put_later : store_put)(
        s, PUT_METRIC, "iiiiiiidddiiiit", I(j->id), I(m->n), I(m->kind), I(m->path), I(m->replica),
        I(m->round), I(m->step), m->loss, m->lr, m->seconds, I(m->samples), I(m->bytes_up),
        I(m->bytes_down), I(m->at_unix_ms), len > 0 ? numbers : NULL);
}

/* Of n points the newest `half` are kept; of the older ones every 2nd, 4th, 8th ... is kept as n
 * grows, so that those fit into the other half of the maximum. */
static void thin(struct store *s, int stmt, const struct job *j, uint64_t n, uint64_t half)
{
    uint64_t mask = 1;
    if (n <= half)
        return;
    while ((n - half) / (mask + 1) > half)
        mask = mask * 2 + 1;
    store_put(s, stmt, "iii", I(j->id), I(n - half), I(mask));
}

void save_points_thinned(struct store *s, const struct job *j)
{
    thin(s, THIN_POINTS, j, j->metric_n, METRIC_POINTS_MAX / 2);
}

void save_rounds_thinned(struct store *s, const struct job *j, uint32_t rounds)
{
    /* Each round of a path has a row, and perhaps one for its evaluation. */
    const uint32_t each = METRIC_ROUNDS_MAX / 4 / j->comp.n_paths, half = each > 32 ? each : 32;
    if (rounds % (half / 2) == 0)
        thin(s, THIN_ROUNDS, j, rounds, half);
}
