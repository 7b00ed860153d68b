/* The state comes back whole, and saves itself: what was edited is on record, what was not queues
 * nothing. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/base/str.h"
#include "coordinator/state/persist.h"

static char dir[] = "/tmp/skerry-test-persist-XXXXXX";
static char path[128];

static int setup(void **state)
{
    char *made = mkdtemp(dir);
    (void)snprintf(path, sizeof(path), "%s/db", dir);
    return made == NULL;
}

static int teardown(void **state)
{
    return file_remove_tree(dir, NULL);
}

static void fresh(void)
{
    char name[160];
    static const char *const ends[] = {"", "-wal", "-shm"};
    for (int i = 0; i < 3; i++) {
        (void)snprintf(name, sizeof(name), "%s%s", path, ends[i]);
        (void)unlink(name); /* may not exist */
    }
}

static const char yaml[] = "name: demo\nseed: 3\n"
                           "data: {path: x, image_size: 16}\n"
                           "model: {type: dit, patch: 4, dim: 32, depth: 1, heads: 2}\n"
                           "train: {batch: 4}\nrecipe: {name: diloco, replicas: 3}\n"
                           "outer: {rounds: 5, steps: 2}\n";

static struct job *fill_job(struct state *st)
{
    struct job *j = state_add_job(st, 0);
    struct ledger_shard shards[2] = {{0, 10}, {2, 20}};
    j->yaml = str_dup(yaml);
    assert_int_equal(job_parse(yaml, strlen(yaml), "t", &j->spec, NULL), 0);
    assert_int_equal(recipe_compose(&j->spec, &j->comp, NULL), 0);
    job_build(j, &st->next_module);
    j->state = JOB_RUNNING;
    (void)str_copy(j->reason, sizeof(j->reason), "a 'reason'");
    job_add_class(j, "cat", 30);
    for (uint32_t i = 0; i < 3; i++)
        *job_add_shard(j) = (struct shard_rec){.blob = {.sha256 = {(uint8_t)i}, .size = 99},
                                               .samples = 10 * (i == 2 ? 2 : 1),
                                               .tokens = 77,
                                               .holdout = i == 1,
                                               .features = {.sha256 = {9}, .size = i}};
    assert_int_equal(ledger_new(rng_mix(3, 0), shards, 2, &j->ledgers[0], NULL), 0);
    assert_true(job_add_bad(j, "ab", "k", "broken", 1));
    j->bad_count = 1;
    for (uint64_t v = 0; v < 4; v++)
        module_add_version(job_edit_module(j, &j->modules[0]),
                           &(struct version_rec){.version = v + 3,
                                                 .full = {.sha256 = {1}, .size = 5},
                                                 .delta = {.sha256 = {2}, .size = 6},
                                                 .ema = {.sha256 = {3}, .size = 7},
                                                 .provenance = str_dup("{}"),
                                                 .at_unix_ms = 44});
    job_edit_module(j, &j->modules[0])->params = 1234;
    job_edit_path(j, 0)->round = 6;
    job_edit_path(j, 0)->ready = true;
    job_edit_replica(j, 0, 2)->owner = 1;
    job_edit_replica(j, 0, 2)->step = 12;
    return j;
}

static struct task *fill_task(struct state *st, struct job *j)
{
    struct task *t = state_add_task(st, 0, j->id, TASK_TRAIN);
    t->attempt = 3;
    t->train.replica = 2;
    t->train.round = 6;
    t->worker_id = 1;
    t->ranges = mem_alloc_array(8, sizeof(*t->ranges));
    t->n_ranges = ledger_take(j->ledgers[0], t->id, 25, 0, 3, t->ranges, 8);
    assert_true(t->n_ranges > 0);
    state_set_task_state(st, t, TASK_LEASED);
    task_add_contribution(
        t, &(struct contribution){j->modules[0].id, 6, {.sha256 = {9}, .size = 8}, true});
    job_edit_replica(j, 0, 2)->task_id = t->id;
    struct task *d = state_add_task(st, 0, j->id, TASK_SAMPLE);
    d->draw = (struct task_draw){0, 30, 3, 2, true, false, true, 1.75f, 1ull << 63, NULL};
    d->draw.labels = mem_alloc_array(2, sizeof(uint32_t));
    d->draw.labels[1] = 7;
    d->loss_mean = 0.25f;
    return t;
}

static struct store *open_state(void)
{
    struct store *s = NULL;
    struct err err = {0};
    if (store_open(path, &persist_schema, &s, &err) < 0)
        fail_msg("%s", err.msg);
    return s;
}

static void make_state(struct state *st)
{
    state_init(st);
    struct worker *w = state_add_worker(st, 0);
    memset(w->identity, 5, 16);
    (void)str_copy(w->name, sizeof(w->name), "isle");
    w->state = WORKER_HERE;
    w->bytes[2] = 1ull << 40;
    worker_add_verdict(w, &(struct verdict){.task_id = 4, .accepted = true});
    static const uint8_t secret[KEYS_SECRET_BYTES] = {8, 1};
    struct token_rec *t = access_add(st, 0, TOKEN_ROLE_VIEWER, secret);
    *t = (struct token_rec){.id = t->id,
                            .role = t->role,
                            .made_unix_ms = 1,
                            .ends_unix_ms = 2,
                            .revoked_unix_ms = 3,
                            .uses = 4,
                            .uses_max = 5,
                            .workers_max = 6,
                            .jobs_max = 7,
                            .budget = 8.5,
                            .spent = 9.25,
                            .edited = true};
    hash_sha256(secret, sizeof(secret), t->verifier);
    (void)str_copy(t->name, sizeof(t->name), "eye");
    memset(w->key, 6, sizeof(w->key));
    w->has_key = true;
    w->token_id = t->id;
    w->revoked_unix_ms = 99;
    struct job *j = fill_job(st);
    w->task_id = fill_task(st, j)->id;
}

static void check_state(const struct state *a, const struct state *b)
{
    assert_int_equal(b->n_workers, 1);
    assert_int_equal(b->n_jobs, 1);
    assert_int_equal(b->n_tasks, 2);
    assert_int_equal(b->n_open, 2);
    assert_int_equal(b->next_task, a->next_task);
    assert_int_equal(b->next_module, a->next_module);
    const struct worker *w = b->workers[0];
    assert_string_equal(w->name, "isle");
    assert_int_equal(w->bytes[2], 1ull << 40);
    assert_int_equal(w->n_verdicts, 1);
    assert_int_equal(w->task_id, a->workers[0]->task_id);
    assert_true(w->has_key);
    assert_memory_equal(w->key, a->workers[0]->key, sizeof(w->key));
    assert_int_equal(w->token_id, a->tokens[0].id);
    assert_int_equal(w->revoked_unix_ms, 99);
    assert_int_equal(b->n_tokens, 1);
    assert_int_equal(b->next_token, a->next_token);
    const struct token_rec *t = &b->tokens[0];
    assert_int_equal(t->role, TOKEN_ROLE_VIEWER);
    assert_string_equal(t->name, "eye");
    assert_memory_equal(t->verifier, a->tokens[0].verifier, sizeof(t->verifier));
    assert_int_equal(t->made_unix_ms + 10 * t->ends_unix_ms + 100 * t->revoked_unix_ms, 321);
    assert_int_equal(t->uses + 10 * t->uses_max + 100 * t->workers_max, 654);
    assert_true(t->jobs_max == 7 && t->budget == 8.5 && t->spent == 9.25);
    const struct job *j = b->jobs[0];
    assert_string_equal(j->reason, "a 'reason'");
    assert_true(isnan(j->loss));
    assert_int_equal(j->n_shards, 3);
    assert_true(j->shards[1].holdout && !j->shards[0].holdout);
    assert_int_equal(j->shards[1].tokens, 77);
    assert_int_equal(j->shards[2].features.size, 2);
    assert_string_equal(j->classes[0], "cat");
    assert_string_equal(j->bad[0].reason, "broken");
    assert_int_equal(j->modules[0].id, a->jobs[0]->modules[0].id);
    assert_int_equal(j->modules[0].n_versions, 4);
    assert_int_equal(j->modules[0].versions[3].version, 6);
    assert_int_equal(j->paths[0].replicas[2].step, 12);
    struct ledger_epoch x, y;
    ledger_figures(a->jobs[0]->ledgers[0], 0, &x);
    ledger_figures(j->ledgers[0], 0, &y);
    assert_int_equal(x.pending, y.pending);
}

static void test_state(void **state)
{
    struct state a, b;
    struct err err = {0};
    fresh();
    make_state(&a);
    struct store *s = open_state();
    persist_changes(s, &a);
    assert_int_equal(store_commit(s, &err), 0);
    persist_changes(s, &a);
    assert_int_equal(store_queued(s), 0);
    store_close(s);
    s = open_state();
    state_init(&b);
    if (persist_load(s, &b, &err) < 0)
        fail_msg("%s", err.msg);
    check_state(&a, &b);
    /* Its text names no learning rate: it is that of the release that took the job.  The text stays
     * as workers have it, whose phases on disk go on with that one alone. */
    assert_true(b.jobs[0]->spec.train.lr == 0.25 / 32);
    assert_string_equal(b.jobs[0]->yaml, a.jobs[0]->yaml);
    const struct task *t = b.tasks[0], *d = b.tasks[1];
    assert_int_equal(t->state, TASK_LEASED);
    assert_int_equal(t->attempt, 3);
    assert_int_equal(t->n_ranges, a.tasks[0]->n_ranges);
    assert_memory_equal(t->ranges, a.tasks[0]->ranges, t->n_ranges * sizeof(*t->ranges));
    assert_true(t->train.contributions[0].refused);
    assert_true(d->draw.heun && d->draw.asked && !d->draw.ema);
    assert_int_equal(d->draw.seed, 1ull << 63);
    assert_int_equal(d->draw.labels[1], 7);
    assert_true(d->draw.guidance == 1.75f && d->loss_mean == 0.25f);
    /* What the task holds can be settled in the ledger that came back. */
    assert_int_equal(ledger_settle(b.jobs[0]->ledgers[0], t->id, t->ranges, t->n_ranges, 25, &err),
                     0);
    while (b.n_tasks > 0)
        state_drop_task(&b, b.tasks[0]);
    state_drop_job(&b, b.jobs[0]);
    persist_changes(s, &b);
    assert_int_equal(store_commit(s, &err), 0);
    state_release(&b);
    state_init(&b);
    assert_int_equal(persist_load(s, &b, &err), 0);
    assert_int_equal(b.n_jobs + b.n_tasks, 0);
    store_close(s);
    state_release(&a);
    state_release(&b);
}

static uint64_t rows(struct store *s, const char *sql)
{
    sqlite3_stmt *q = NULL;
    assert_int_equal(store_select(s, sql, &q, NULL), 0);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    const uint64_t n = (uint64_t)sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return n;
}

/* Of a long history the newest rounds come back. */
static void test_long_history(void **state)
{
    struct state a, b;
    struct err err = {0};
    fresh();
    make_state(&a);
    struct store *s = open_state();
    persist_changes(s, &a);
    const uint32_t most = (uint32_t)job_rounds_max(a.jobs[0]), n = most + 10;
    for (uint32_t i = 0; i < n; i++) {
        job_add_round(a.jobs[0], &(struct round_rec){.round = i});
        persist_changes(s, &a);
    }
    assert_int_equal(a.jobs[0]->n_rounds, most);
    assert_int_equal(store_commit(s, &err), 0);
    state_init(&b);
    assert_int_equal(persist_load(s, &b, &err), 0);
    const struct job *j = b.jobs[0];
    assert_true(j->n_rounds >= most / 2);
    assert_int_equal(j->rounds[j->n_rounds - 1].round, n - 1);
    assert_int_equal(j->rounds[0].round, n - j->n_rounds);
    assert_int_equal(rows(s, "SELECT count(*) FROM rounds"), most);
    store_close(s);
    state_release(&a);
    state_release(&b);
}

static void count_metric(void *arg, const struct metric_rec *m)
{
    struct {
        uint64_t n, last;
    } *c = arg;
    assert_true(m->n > c->last);
    c->n++;
    c->last = m->n;
}

static void check_numbers(void *arg, const struct metric_rec *m)
{
    unsigned *seen = arg;
    if (m->step == 2) {
        assert_int_equal(m->n_numbers, 0);
    } else {
        assert_int_equal(m->n_numbers, 2);
        assert_string_equal(m->numbers[1].name, "top-5");
        assert_true(m->numbers[0].value == 0.1 && m->numbers[1].value == -1e300);
    }
    ++*seen;
}

/* Numbers that a trainer names come back with their points, to the bit, and a job's names. */
static void test_numbers(void **state)
{
    struct state a, b;
    unsigned seen = 0;
    static const struct metric_number numbers[] = {{"accuracy", 0.1}, {"top-5", -1e300}};
    fresh();
    make_state(&a);
    struct store *s = open_state();
    struct job *j = a.jobs[0];
    for (size_t i = 1; i < 3; i++) {
        const struct metric_rec m = {.n = ++j->metric_n,
                                     .kind = METRIC_LOSS,
                                     .step = i,
                                     .numbers = numbers,
                                     .n_numbers = i == 1 ? 2 : 0};
        save_metric(s, j, &m);
    }
    job_number(j, "accuracy", 0)->held_out = 0.1;
    assert_non_null(job_number(j, "top-5", 0));
    persist_points(s, &a);
    assert_int_equal(store_commit(s, NULL), 0);
    assert_int_equal(persist_metrics(s, j->id, 0, 9, check_numbers, &seen, NULL), 0);
    assert_int_equal(seen, 2);
    state_init(&b);
    assert_int_equal(persist_load(s, &b, NULL), 0);
    assert_int_equal(b.jobs[0]->n_numbers, 2);
    assert_string_equal(b.jobs[0]->numbers[1].name, "top-5");
    assert_true(isnan(b.jobs[0]->numbers[0].value) && b.jobs[0]->numbers[0].held_out == 0.1);
    assert_true(isnan(b.jobs[0]->numbers[1].value) && isnan(b.jobs[0]->numbers[1].held_out));
    store_close(s);
    state_release(&a);
    state_release(&b);
}

static void test_metrics_bounded(void **state)
{
    struct state a;
    struct {
        uint64_t n, last;
    } c = {0, 0};
    fresh();
    make_state(&a);
    struct store *s = open_state();
    struct job *j = a.jobs[0];
    for (uint64_t i = 0; i < 4 * METRIC_POINTS_MAX; i++) {
        const struct metric_rec m = {.n = ++j->metric_n, .kind = METRIC_LOSS, .step = i};
        save_metric(s, j, &m);
        if (i % (METRIC_POINTS_MAX / 4) == 0)
            save_points_thinned(s, j);
    }
    persist_points(s, &a);
    assert_int_equal(store_commit(s, NULL), 0);
    assert_int_equal(persist_metrics(s, j->id, 0, 4 * METRIC_POINTS_MAX, count_metric, &c, NULL),
                     0);
    assert_true(c.n <= METRIC_POINTS_MAX * 5 / 4 && c.n > METRIC_POINTS_MAX / 2);
    c.n = c.last = 0;
    assert_int_equal(persist_metrics(s, j->id, j->metric_n - 10, 4, count_metric, &c, NULL), 0);
    assert_int_equal(c.n, 4);
    assert_int_equal(c.last, j->metric_n - 6);
    store_close(s);
    state_release(&a);
}

/* A round of a job that goes on for ever: its record, its lines, the version that it made. */
static void live_round(struct store *s, struct state *st, uint32_t round)
{
    struct job *j = st->jobs[0];
    struct module_rec *m = job_edit_module(j, &j->modules[0]);
    const struct version_rec v = {.version = m->version + 1, .provenance = str_dup("{}")};
    const enum metric_kind kinds[] = {METRIC_ROUND, METRIC_EVAL};
    job_add_round(j, &(struct round_rec){.round = round});
    for (int i = 0; i < 2; i++) {
        const struct metric_rec line = {.n = ++j->metric_n, .kind = kinds[i], .round = round};
        save_metric(s, j, &line);
    }
    save_rounds_thinned(s, j, round + 1);
    module_add_version(m, &v);
    persist_changes(s, st);
}

/* The database of such a job does not grow: the older half of its life has added nothing. */
static void test_history_bounded(void **state)
{
    struct state a;
    const uint32_t life = METRIC_ROUNDS_MAX / 100 * 100; /* whole commits */
    uint64_t pages = 0;
    fresh();
    make_state(&a);
    struct store *s = open_state();
    persist_changes(s, &a);
    for (uint32_t i = 0; i < 2 * life; i++) {
        live_round(s, &a, i);
        if (i % 100 == 99)
            assert_int_equal(store_commit(s, NULL), 0);
        if (i == life)
            pages = rows(s, "PRAGMA page_count");
    }
    assert_in_range(rows(s, "SELECT count(*) FROM metrics WHERE kind!=1"), 1,
                    METRIC_ROUNDS_MAX * 5 / 4);
    assert_int_equal(rows(s, "SELECT count(*) FROM rounds"), job_rounds_max(a.jobs[0]));
    assert_int_equal(rows(s, "SELECT count(*) FROM versions WHERE module="
                             "(SELECT min(id) FROM modules)"),
                     a.jobs[0]->modules[0].kept);
    assert_int_equal(rows(s, "SELECT count(*) FROM metrics WHERE kind=2 AND round>=7900"), 100);
    assert_in_range(rows(s, "PRAGMA page_count"), 1, pages + pages / 20);
    store_close(s);
    state_release(&a);
}

/* ---- what is edited is saved --------------------------------------------- */

static void edit_worker(struct state *st)
{
    state_edit_worker(st, st->workers[0])->strikes = 3;
}

static bool worker_saved(const struct state *st)
{
    return st->workers[0]->strikes == 3;
}

static void edit_sum(struct state *st)
{
    job_edit_path(st->jobs[0], 0)->sum = (struct phase_sum){3, 40, 9, 0.1, 38};
}

static bool sum_saved(const struct state *st)
{
    const struct phase_sum *s = &st->jobs[0]->paths[0].sum;
    return s->phases == 3 && s->samples == 40 && s->steps == 9 && s->loss == 0.1 && s->weight == 38;
}

static void edit_verdicts(struct state *st)
{
    struct worker *w = state_edit_worker(st, st->workers[0]);
    w->verdicts[0].told = true;
    worker_confirm_verdicts(w);
    worker_add_verdict(w, &(struct verdict){.task_id = 9, .module_id = 8, .reason = "why"});
    worker_add_verdict(w, &(struct verdict){.task_id = 9, .accepted = true});
}

static bool verdicts_saved(const struct state *st)
{
    const struct worker *w = st->workers[0];
    const struct verdict *v = w->verdicts; /* of one module first, then of the others */
    return w->n_verdicts == 2 && v[0].task_id == 9 && v[0].module_id == 8 && !v[0].accepted &&
           strcmp(v[0].reason, "why") == 0 && v[1].module_id == 0 && v[1].accepted;
}

static void edit_task(struct state *st)
{
    state_set_task_state(st, state_edit_task(st, st->tasks[0]), TASK_DONE);
}

static bool task_saved(const struct state *st)
{
    return st->tasks[0]->state == TASK_DONE && st->n_open == 1;
}

static void edit_contribution(struct state *st)
{
    struct task *t = state_edit_task(st, st->tasks[0]);
    struct contribution *c = task_edit_contribution(t, &t->train.contributions[0]);
    c->version = 7;
    c->resumed = true;
}

static bool contribution_saved(const struct state *st)
{
    const struct contribution *c = &st->tasks[0]->train.contributions[0];
    return c->version == 7 && c->resumed && !c->part;
}

static void drop_contribution(struct state *st)
{
    struct task *t = state_edit_task(st, st->tasks[0]);
    task_drop_contribution(t, &t->train.contributions[0]);
}

static bool contribution_gone(const struct state *st)
{
    return st->tasks[0]->train.n_contributions == 0;
}

static void drop_task(struct state *st)
{
    state_drop_task(st, st->tasks[1]);
}

static bool task_gone(const struct state *st)
{
    return st->n_tasks == 1;
}

static void edit_job(struct state *st)
{
    st->jobs[0]->phases_done = 8; /* needs no mark */
}

static bool job_saved(const struct state *st)
{
    return st->jobs[0]->phases_done == 8;
}

static void edit_path(struct state *st)
{
    job_edit_path(st->jobs[0], 0)->best_round = 2;
}

static bool path_saved(const struct state *st)
{
    return st->jobs[0]->paths[0].best_round == 2;
}

static void edit_replica(struct state *st)
{
    job_edit_replica(st->jobs[0], 0, 1)->owner = 5;
}

static bool replica_saved(const struct state *st)
{
    return st->jobs[0]->paths[0].replicas[1].owner == 5;
}

static void add_version(struct state *st)
{
    struct job *j = st->jobs[0];
    const struct version_rec v = {.version = 7,
                                  .full = {.sha256 = {4}, .size = 5},
                                  .delta = {.sha256 = {5}, .size = 6},
                                  .ema = {.sha256 = {6}, .size = 7},
                                  .provenance = str_dup("{}"),
                                  .at_unix_ms = 44};
    module_add_version(job_edit_module(j, &j->modules[0]), &v);
}

static bool version_saved(const struct state *st)
{
    const struct module_rec *m = &st->jobs[0]->modules[0];
    return m->version == 7 && m->n_versions == 4 && m->versions[3].full.sha256[0] == 4;
}

static void edit_shard(struct state *st)
{
    job_edit_shard(st->jobs[0], 2)->tokens = 78;
}

static bool shard_saved(const struct state *st)
{
    return st->jobs[0]->shards[2].tokens == 78;
}

/* Of a generation that no ledger is over. */
static void order_shards(struct state *st)
{
    struct job *j = st->jobs[0];
    for (uint32_t i = 0; i < 3; i++)
        *job_add_shard(j) = (struct shard_rec){.generation = 1, .source = 2 - i / 2, .samples = i};
    job_order_shards(j, 3);
}

static bool shards_ordered(const struct state *st)
{
    const struct shard_rec *s = st->jobs[0]->shards;
    return st->jobs[0]->n_shards == 6 && s[3].samples == 2 && s[4].samples == 0 &&
           s[5].samples == 1;
}

static void add_found(struct state *st)
{
    struct job *j = st->jobs[0];
    struct row_rec r = {.kind = TASK_EVAL, .name = "loss", .value = 1};
    assert_true(job_put_row(j, &r));
    r.value = 2;
    assert_true(job_put_row(j, &r)); /* in its place */
    job_add_score(j, &(struct score_rec){0, 1, {.sha256 = {3}, .size = 4}});
    job_add_class(j, "dog", 3);
    assert_true(job_add_bad(j, "cd", "l", "broken, too", 1));
}

static bool found_saved(const struct state *st)
{
    const struct job *j = st->jobs[0];
    return j->n_rows == 1 && j->rows[0].value == 2 && j->n_scores == 1 && j->scores[0].shard == 1 &&
           j->n_classes == 2 && j->counts[1] == 3 && j->n_bad == 2;
}

static void drop_scores(struct state *st)
{
    struct job *j = st->jobs[0];
    job_drop_scores(j);
    job_add_score(j, &(struct score_rec){0, 2, {.sha256 = {5}, .size = 4}});
}

static bool scores_replaced(const struct state *st)
{
    return st->jobs[0]->n_scores == 1 && st->jobs[0]->scores[0].shard == 2;
}

static void add_round(struct state *st)
{
    struct job *j = st->jobs[0];
    job_add_round(j, &(struct round_rec){.round = 1, .eval_loss = NAN});
    job_add_round(j, &(struct round_rec){.round = 2, .eval_loss = NAN});
}

static bool rounds_saved(const struct state *st)
{
    return st->jobs[0]->n_rounds == 2 && isnan(st->jobs[0]->rounds[0].eval_loss);
}

static void edit_round(struct state *st)
{
    job_edit_round(st->jobs[0], 0)->eval_loss = 3;
}

static bool round_saved(const struct state *st)
{
    return st->jobs[0]->rounds[0].eval_loss == 3 && isnan(st->jobs[0]->rounds[1].eval_loss);
}

static void add_grids(struct state *st)
{
    for (uint64_t i = 0; i <= JOB_SAMPLES_MAX; i++)
        (void)job_add_grid(
            st->jobs[0], &(struct grid_rec){.task_id = 50 + i, .blob = {.sha256 = {1}, .size = 2}});
}

static bool grids_saved(const struct state *st)
{
    const struct job *j = st->jobs[0];
    return j->n_grids == JOB_SAMPLES_MAX && j->grids[0].task_id == 51;
}

static void settle(struct state *st)
{
    struct job *j = st->jobs[0];
    const struct task *t = st->tasks[0];
    assert_int_equal(ledger_settle(j->ledgers[0], t->id, t->ranges, t->n_ranges, 25, NULL), 0);
}

static bool ledger_saved(const struct state *st)
{
    struct ledger_epoch e;
    ledger_figures(st->jobs[0]->ledgers[0], 0, &e);
    return e.done == 25;
}

static void drop_worker(struct state *st)
{
    state_drop_worker(st, st->workers[0]);
}

static bool worker_gone(const struct state *st)
{
    return st->n_workers == 0;
}

static const struct edit {
    void (*make)(struct state *st);
    bool (*saved)(const struct state *st); /* asked of what comes back */
} edits[] = {
    {edit_worker, worker_saved},
    {edit_verdicts, verdicts_saved},
    {edit_sum, sum_saved},
    {edit_task, task_saved},
    {edit_contribution, contribution_saved},
    {drop_contribution, contribution_gone},
    {drop_task, task_gone},
    {edit_job, job_saved},
    {edit_path, path_saved},
    {edit_replica, replica_saved},
    {add_version, version_saved},
    {edit_shard, shard_saved},
    {settle, ledger_saved},
    {order_shards, shards_ordered},
    {add_found, found_saved},
    {drop_scores, scores_replaced},
    {add_round, rounds_saved},
    {edit_round, round_saved},
    {add_grids, grids_saved},
    {drop_worker, worker_gone},
};

/* One edit after the other, each by a coordinator that has just read what the last one left. */
static void test_edits(void **state)
{
    struct state st;
    struct err err = {0};
    fresh();
    make_state(&st);
    struct store *s = open_state();
    persist_changes(s, &st);
    assert_int_equal(store_commit(s, &err), 0);
    for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
        state_release(&st);
        state_init(&st);
        if (persist_load(s, &st, &err) < 0)
            fail_msg("after edit %zu: %s", i, err.msg);
        persist_changes(s, &st);
        assert_int_equal(store_queued(s), 0);
        assert_false(edits[i].saved(&st));
        edits[i].make(&st);
        persist_changes(s, &st);
        assert_true(store_queued(s) > 0);
        assert_int_equal(store_commit(s, &err), 0);
        persist_changes(s, &st);
        assert_int_equal(store_queued(s), 0);
        state_release(&st);
        state_init(&st);
        if (persist_load(s, &st, &err) < 0)
            fail_msg("after edit %zu: %s", i, err.msg);
        if (!edits[i].saved(&st))
            fail_msg("edit %zu is not on record", i);
    }
    store_close(s);
    state_release(&st);
}

/* A mark without a change is no row; bytes of the network go along with the next one. */
static void test_without_change(void **state)
{
    struct state st;
    fresh();
    make_state(&st);
    struct store *s = open_state();
    persist_changes(s, &st);
    assert_int_equal(store_commit(s, NULL), 0);
    struct job *j = st.jobs[0];
    struct worker *w = state_edit_worker(&st, st.workers[0]);
    w->bytes[0] += 100;
    w->heard_ms = 5;
    state_edit_task(&st, st.tasks[0])->steps_done = 4;
    job_edit_path(j, 0)->bytes_up += 100;
    job_edit_module(j, &j->modules[0])->bytes_from_others += 100;
    job_edit_replica(j, 0, 0)->loss = 1;
    j->bytes_down += 100;
    persist_changes(s, &st);
    assert_int_equal(store_queued(s), 0);
    state_edit_worker(&st, st.workers[0])->strikes++;
    persist_changes(s, &st);
    assert_int_equal(store_queued(s), 1);
    assert_int_equal(store_commit(s, NULL), 0);
    struct state b;
    state_init(&b);
    assert_int_equal(persist_load(s, &b, NULL), 0);
    assert_int_equal(b.workers[0]->bytes[0], 100);
    store_close(s);
    state_release(&st);
    state_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_state),           cmocka_unit_test(test_long_history),
        cmocka_unit_test(test_metrics_bounded), cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_history_bounded), cmocka_unit_test(test_edits),
        cmocka_unit_test(test_without_change),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
