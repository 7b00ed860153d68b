#include "coordinator/http/http_json.h"

#include <ctype.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"

#define BAD_MAX 64
#define STATUS_WORKERS_MAX 100

/* ---- building blocks ----------------------------------------------------- */

static json_t *must(json_t *value)
{
    if (value == NULL) {
        log_error("http", "out of memory while writing JSON");
        abort();
    }
    return value;
}

void http_json_put(json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, must(value)) < 0)
        must(NULL);
}

void http_json_push(json_t *array, json_t *value)
{
    if (json_array_append_new(array, must(value)) < 0)
        must(NULL);
}

json_t *http_json_text(const char *s)
{
    char *plain = str_dup(s);
    str_make_plain(plain);
    json_t *text = must(json_string(plain));
    mem_free(plain);
    return text;
}

json_t *http_json_real(double x)
{
    return must(isfinite(x) ? json_real(x) : json_null());
}

static json_t *count(uint64_t n)
{
    return must(json_integer(n > INT64_MAX ? INT64_MAX : (json_int_t)n));
}

json_t *http_json_id(uint64_t id)
{
    return id ? count(id) : json_null();
}

/* null when negative */
static json_t *duration(int64_t ms)
{
    return ms < 0 ? json_null() : count((uint64_t)ms);
}

static json_t *sha256_or_null(const uint8_t *sha256)
{
    char hex[HASH_HEX_MAX];
    return sha256 ? must(json_string(hash_hex(sha256, HASH_BYTES, hex))) : json_null();
}

json_t *http_json_at(int64_t unix_ms)
{
    char text[CLOCK_ISO_MAX];
    return must(json_string(clock_iso(unix_ms < 0 ? 0 : (uint64_t)unix_ms, text)));
}

json_t *http_json_word(const char *word)
{
    char lower[32] = "";
    (void)str_copy(lower, sizeof lower, word); /* the state's own words are short */
    for (char *p = lower; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    return lower[0] ? must(json_string(lower)) : json_null();
}

json_t *http_json_items(json_t *array)
{
    json_t *o = must(json_object());
    http_json_put(o, "items", array);
    return o;
}

#define put http_json_put

static json_t *up_down(uint64_t up, uint64_t down)
{
    json_t *o = must(json_object());
    put(o, "up", count(up));
    put(o, "down", count(down));
    return o;
}

static json_t *planes(const struct traffic *b)
{
    json_t *o = must(json_object());
    put(o, "control", up_down(b->control_up, b->control_down));
    put(o, "data", up_down(b->data_up, b->data_down));
    return o;
}

static json_t *blob(const struct blob_ref *b)
{
    if (!blob_ref_is_set(b))
        return json_null();
    json_t *o = must(json_object());
    put(o, "sha256", sha256_or_null(b->sha256));
    put(o, "size", count(b->size));
    return o;
}

/* ---- status -------------------------------------------------------------- */

static void add_waiting(void *arg, const struct view_waiting *w)
{
    json_t *o = must(json_object());
    put(o, "job", http_json_id(w->job_id));
    put(o, "task", http_json_id(w->task_id));
    put(o, "worker", http_json_id(w->worker_id));
    put(o, "what", http_json_text(w->what));
    put(o, "why", http_json_text(w->why));
    put(o, "until_ms", duration(w->until_ms));
    put(o, "late", json_boolean(w->late));
    http_json_push(arg, o);
}

static json_t *waiting(struct coordinator *co, uint64_t job_id)
{
    json_t *a = must(json_array());
    view_each_waiting(co, job_id, add_waiting, a);
    return a;
}

static json_t *status_store(const struct view_status *s)
{
    json_t *o = must(json_object());
    put(o, "ok", json_boolean(s->store_ok));
    put(o, "error", http_json_text(s->store_error));
    put(o, "commits", count(s->store_commits));
    put(o, "queue", count(s->store_queue));
    put(o, "queue_max", count(s->store_queue_max));
    put(o, "writing_ms", count(s->store_writing_ms));
    return o;
}

void http_json_status_slow(struct coordinator *co, json_t *status)
{
    struct view_status s;
    char why[256];
    json_t *lines = must(json_array());
    view_status(co, &s);
    put(status, "store", status_store(&s));
    (void)snprintf(why, sizeof why,
                   "a commit to the database has been under way for %" PRIu64
                   " s, and what is shown is as it was before%s%.120s",
                   s.store_writing_ms / 1000, *s.ship_error ? ": " : "", s.ship_error);
    add_waiting(lines,
                &(struct view_waiting){.what = *s.ship_error ? "the store that has the state"
                                               : s.ships ? "the disk of the data dir, or the store"
                                                         : "the disk of the data dir",
                                       .why = why,
                                       .until_ms = -1,
                                       .late = true});
    (void)json_array_extend(lines, json_object_get(status, "waiting_for"));
    put(status, "waiting_for", lines);
}

/* null: the blobs are in a folder of the data directory. */
static json_t *status_blobs(const struct view_status *s)
{
    const struct blob_health *h = &s->blobs;
    const int64_t now = (int64_t)clock_wall_ms();
    if (!s->far)
        return json_null();
    json_t *o = must(json_object());
    put(o, "where", http_json_text(h->where));
    put(o, "error", http_json_text(h->error));
    put(o, "failing_ms",
        count(h->failing_since_unix_ms && now > h->failing_since_unix_ms
                  ? (uint64_t)(now - h->failing_since_unix_ms)
                  : 0));
    put(o, "waiting", count(h->waiting));
    put(o, "waiting_bytes", count(h->waiting_bytes));
    put(o, "cache_bytes", count(h->cache_bytes));
    put(o, "cache_max_bytes", count(h->cache_max_bytes));
    put(o, "requests", count(s->requests));
    put(o, "repeats", count(h->repeats));
    put(o, "bytes", up_down(h->bytes_out, h->bytes_in));
    put(o, "request_dollars", http_json_real(s->request_dollars));
    return o;
}

static void add_worker(void *arg, const struct view_worker *w)
{
    http_json_push(arg, http_json_worker(w));
}

/* Counts of workers by state; speed: that of all together. */
static json_t *status_workers_count(const struct view_status *s)
{
    json_t *o = must(json_object());
    put(o, "known", count(s->workers));
    put(o, "here", count(s->workers_alive));
    put(o, "busy", count(s->workers_busy));
    put(o, "images_per_s", http_json_real(s->images_per_s));
    put(o, "idle_per_hour", http_json_real(s->idle_per_hour));
    return o;
}

json_t *http_json_status(struct coordinator *co)
{
    struct view_status s;
    view_status(co, &s);
    json_t *o = must(json_object());
    put(o, "version", http_json_text(s.version));
    put(o, "uptime_ms", count(s.uptime_ms));
    put(o, "at", http_json_at((int64_t)clock_wall_ms()));
    put(o, "cluster", http_json_text(s.cluster));
    put(o, "waiting_for", waiting(co, 0));
    put(o, "jobs", http_json_jobs(co));
    json_t *workers = must(json_array());
    view_some_workers(co, STATUS_WORKERS_MAX, add_worker, workers);
    put(o, "workers", workers);
    put(o, "workers_count", status_workers_count(&s));
    put(o, "bytes", planes(&s.bytes));
    put(o, "bytes_here", planes(&s.bytes_here));
    put(o, "ratio_to_fp32_data_parallel", http_json_real(s.ratio));
    put(o, "rss_bytes", count(s.rss_bytes));
    put(o, "disk_room_bytes", count(s.disk_room_bytes));
    json_t *tasks = must(json_object());
    put(tasks, "pending", count(s.tasks_pending));
    put(tasks, "leased", count(s.tasks_leased));
    put(o, "tasks", tasks);
    json_t *outer = must(json_object());
    put(outer, "busy", count(s.outer_busy));
    put(outer, "queue", count(s.outer_queue));
    put(o, "outer", outer);
    put(o, "store", status_store(&s));
    put(o, "blob_store", status_blobs(&s));
    return o;
}

/* ---- jobs ---------------------------------------------------------------- */

json_t *http_json_job_summary(const struct view_job *j)
{
    json_t *o = must(json_object());
    put(o, "id", count(j->id));
    put(o, "name", http_json_text(j->name));
    put(o, "state", http_json_word(j->state));
    put(o, "reason", http_json_text(j->reason));
    put(o, "stalled", http_json_text(j->stalled));
    put(o, "paused", json_boolean(j->paused));
    put(o, "recipe", http_json_text(j->job->spec.recipe.name));
    put(o, "created_at", http_json_at(j->job->made_unix_ms));
    put(o, "elapsed_ms", count(j->elapsed_ms));
    put(o, "round", count(j->round));
    put(o, "rounds", count(j->rounds));
    put(o, "step", count(j->step));
    put(o, "total_steps", j->total_steps ? count(j->total_steps) : json_null());
    put(o, "loss", http_json_real(j->loss));
    put(o, "eval_loss", http_json_real(j->eval_loss));
    put(o, "images_per_s", http_json_real(j->images_per_s));
    put(o, "eta_ms", duration(j->eta_ms));
    put(o, "paths", count(j->paths));
    put(o, "replicas", count(j->replicas));
    put(o, "parameters", count(j->params));
    put(o, "text", json_boolean(j->text));
    put(o, "dollars", http_json_real(j->dollars + j->egress));
    return o;
}

static void add_job(void *arg, const struct view_job *j)
{
    http_json_push(arg, http_json_job_summary(j));
}

json_t *http_json_jobs(struct coordinator *co)
{
    json_t *a = must(json_array());
    view_each_job(co, add_job, a);
    return a;
}

static json_t *classes(const struct job *j)
{
    json_t *a = must(json_array());
    for (size_t i = 0; i < j->n_classes; i++) {
        json_t *o = must(json_object());
        put(o, "name", http_json_text(j->classes[i]));
        put(o, "samples", count(j->counts[i]));
        http_json_push(a, o);
    }
    return a;
}

static json_t *gone_from(const struct view_replica *r)
{
    if (r->gone_id == 0)
        return json_null();
    json_t *o = must(json_object());
    put(o, "worker", http_json_id(r->gone_id));
    put(o, "worker_name", http_json_text(r->gone_name));
    put(o, "state", http_json_word(r->gone_state));
    return o;
}

static void add_phase(void *arg, const struct view_replica *r)
{
    json_t *o = must(json_object());
    put(o, "path", count(r->path));
    put(o, "replica", count(r->replica));
    put(o, "round", count(r->round + 1u));
    put(o, "state", http_json_word(r->state));
    put(o, "task", http_json_id(r->task_id));
    put(o, "worker", http_json_id(r->worker_id));
    put(o, "worker_name", http_json_text(r->worker_name));
    put(o, "step", count(r->step));
    put(o, "steps_done", count(r->steps_done));
    put(o, "steps_total", count(r->steps_total));
    put(o, "loss", http_json_real((double)r->loss));
    put(o, "images_per_s", http_json_real(r->images_per_s));
    put(o, "gone", gone_from(r));
    http_json_push(arg, o);
}

/* null for UINT32_MAX, which stands for all the data, or the mixture. */
static json_t *number_or_null(uint32_t n)
{
    return n == UINT32_MAX ? json_null() : count(n);
}

static void put_place(json_t *o, const struct view_module *m)
{
    put(o, "id", count(m->id));
    put(o, "network", http_json_text(m->network));
    put(o, "level", count(m->level));
    put(o, "index", count(m->index));
    put(o, "fragment", count(m->fragment));
    put(o, "paths", count(m->paths));
    put(o, "version", m->sha256 ? count(m->version) : json_null());
    put(o, "bytes_from_others", count(m->bytes_from_others));
}

static json_t *numbers(const uint64_t *list, uint32_t n)
{
    json_t *a = must(json_array());
    for (uint32_t i = 0; i < n; i++)
        http_json_push(a, count(list[i]));
    return a;
}

static void add_path(void *arg, const struct view_path *p)
{
    json_t *o = must(json_object());
    put(o, "path", count(p->path));
    put(o, "network", http_json_text(p->network));
    put(o, "state", http_json_word(p->state));
    put(o, "partition", number_or_null(p->partition));
    put(o, "samples", count(p->samples));
    put(o, "tokens", count(p->tokens));
    put(o, "holdout", count(p->holdout));
    put(o, "batch", count(p->batch));
    put(o, "replicas", count(p->replicas));
    put(o, "round", count(p->round));
    put(o, "rounds", count(p->rounds));
    put(o, "modules", numbers(p->modules, p->n_modules));
    put(o, "versions", numbers(p->versions, p->n_modules));
    put(o, "loss", http_json_real(p->loss));
    put(o, "eval_loss", http_json_real(p->eval_loss));
    put(o, "eval_round", isnan(p->eval_loss) ? json_null() : count(p->eval_round));
    put(o, "bits_per_byte", http_json_real(p->bits_per_byte));
    put(o, "best_loss", http_json_real(p->best_loss));
    put(o, "best_round", isnan(p->best_loss) ? json_null() : count(p->best_round));
    json_t *best = must(json_array());
    for (uint32_t l = 0; p->best != NULL && l < p->n_modules; l++)
        http_json_push(best, sha256_or_null(p->best[l].full.sha256));
    put(o, "best_blobs", best);
    http_json_push(arg, o);
}

static void add_partition(void *arg, const struct view_partition *p)
{
    json_t *o = must(json_object());
    put(o, "partition", count(p->partition));
    put(o, "samples", count(p->samples));
    put(o, "holdout_samples", count(p->holdout));
    put(o, "tokens", count(p->tokens));
    put(o, "shards", count(p->shards));
    put(o, "share", http_json_real(p->share));
    http_json_push(arg, o);
}

static json_t *figure(const struct row_rec *r)
{
    json_t *o = must(json_object());
    put(o, "kind", http_json_word(task_kind_name(r->kind)));
    put(o, "path", number_or_null(r->path));
    put(o, "round", count(r->round));
    put(o, "name", http_json_text(r->name));
    put(o, "value", http_json_real(r->value));
    put(o, "unit", http_json_text(r->unit));
    put(o, "at", http_json_at(r->at_unix_ms));
    return o;
}

static json_t *figures(const struct job *j)
{
    json_t *a = must(json_array());
    for (size_t i = 0; i < j->n_rows; i++)
        http_json_push(a, figure(&j->rows[i]));
    return a;
}

static void add_module(void *arg, const struct view_module *m)
{
    json_t *o = must(json_object());
    put_place(o, m);
    put(o, "sha256", sha256_or_null(m->sha256));
    put(o, "parameters", count(m->params));
    put(o, "outer", http_json_word(m->outer_state));
    put(o, "reason", http_json_text(m->outer_reason));
    put(o, "folded", count(m->folded));
    put(o, "staleness", http_json_real(m->staleness));
    put(o, "staleness_max", count(m->staleness_max));
    http_json_push(arg, o);
}

static json_t *round_parts(const struct round_parts *p)
{
    json_t *o = must(json_object());
    put(o, "worker", count(p->worker));
    put(o, "begin", must(json_real((double)p->begin)));
    put(o, "steps", must(json_real((double)p->steps)));
    put(o, "network", must(json_real((double)p->network)));
    put(o, "rest", must(json_real((double)p->rest)));
    put(o, "fold", must(json_real((double)p->fold)));
    put(o, "behind", must(json_real((double)p->behind)));
    return o;
}

json_t *http_json_round(const struct round_rec *r)
{
    json_t *o = must(json_object());
    put(o, "path", count(r->path));
    put(o, "round", count(r->round + 1u));
    put(o, "loss", http_json_real((double)r->loss));
    put(o, "eval_loss", http_json_real((double)r->eval_loss));
    put(o, "seconds", must(json_real(isfinite(r->seconds) ? (double)r->seconds : 0)));
    put(o, "contributions", count(r->contributions));
    put(o, "expected", count(r->expected));
    put(o, "samples", count(r->samples));
    put(o, "steps", count(r->steps));
    put(o, "bytes_up", count(r->bytes_up));
    put(o, "bytes_down", count(r->bytes_down));
    put(o, "parts", r->parts.worker ? round_parts(&r->parts) : json_null());
    put(o, "at", http_json_at(r->at_unix_ms));
    return o;
}

static void add_epoch(void *arg, const struct view_epoch *e)
{
    json_t *o = must(json_object());
    put(o, "partition", number_or_null(e->partition));
    put(o, "epoch", count(e->epoch));
    put(o, "total", count(e->total));
    put(o, "done", count(e->done));
    put(o, "leased", count(e->leased));
    put(o, "pending", count(e->pending));
    http_json_push(arg, o);
}

json_t *http_json_sample(const struct grid_rec *s)
{
    json_t *o = must(json_object());
    put(o, "round", count(s->round));
    put(o, "task", count(s->task_id));
    put(o, "blob", sha256_or_null(s->blob.size ? s->blob.sha256 : NULL));
    put(o, "size", count(s->blob.size));
    put(o, "text", s->blob.size ? json_null() : http_json_text(s->text ? s->text : ""));
    put(o, "count", count(s->count));
    put(o, "columns", count(s->columns));
    put(o, "path", number_or_null(s->path));
    put(o, "at", http_json_at(s->at_unix_ms));
    return o;
}

static json_t *newest_samples(const struct job *j, size_t max)
{
    json_t *a = must(json_array());
    for (size_t i = j->n_grids > max ? j->n_grids - max : 0; i < j->n_grids; i++)
        http_json_push(a, http_json_sample(&j->grids[i]));
    return a;
}

static json_t *bad_samples(const struct job *j)
{
    json_t *bad = must(json_object()), *a = must(json_array());
    for (size_t i = 0; i < j->n_bad && i < BAD_MAX; i++) {
        json_t *o = must(json_object());
        put(o, "key", http_json_text(j->bad[i].key));
        put(o, "reason", http_json_text(j->bad[i].reason));
        http_json_push(a, o);
    }
    put(bad, "count", count(j->bad_count));
    put(bad, "items", a);
    return bad;
}

static json_t *job_bytes(const struct view_job *j)
{
    json_t *o = up_down(j->bytes_up, j->bytes_down);
    put(o, "data_down", count(j->data_bytes_down));
    put(o, "per_param_up", http_json_real(j->per_param_up));
    put(o, "per_param_down", http_json_real(j->per_param_down));
    put(o, "ratio", http_json_real(j->ratio));
    return o;
}

static json_t *trace_of(struct coordinator *co, uint64_t id)
{
    struct view_trace v;
    if (view_trace(co, id, &v, NULL) < 0)
        return json_null();
    json_t *o = must(json_object());
    put(o, "task", count(v.trace->task_id));
    put(o, "worker", count(v.trace->worker_id));
    put(o, "worker_name", http_json_text(v.worker_name));
    put(o, "path", count(v.trace->path));
    put(o, "replica", count(v.trace->replica));
    put(o, "round", count(v.trace->round + 1u));
    return o;
}

json_t *http_json_quota(const struct job_swarm *q)
{
    json_t *o = must(json_object());
    put(o, "priority", must(json_integer(q->priority)));
    put(o, "share", http_json_real(q->share));
    put(o, "budget", q->budget > 0 ? http_json_real(q->budget) : json_null());
    return o;
}

static void put_cost(struct coordinator *co, uint64_t id, json_t *job)
{
    struct view_cost v;
    if (view_job_cost(co, id, &v, NULL) < 0)
        return;
    json_t *o = must(json_object());
    put(o, "work", http_json_real(v.time.work));
    put(o, "waiting", http_json_real(v.time.waiting));
    put(o, "egress", http_json_real(v.egress));
    put(o, "total", http_json_real(v.total));
    put(o, "per_million_samples", http_json_real(v.per_million));
    put(o, "per_million_tokens", http_json_real(v.per_million_tokens));
    put(o, "per_hour", http_json_real(v.time.per_hour));
    put(o, "until_end", http_json_real(v.until_end));
    put(o, "workers", count(v.time.workers));
    put(o, "workers_without_price", count(v.time.unpriced));
    put(job, "cost", o);
    put(job, "swarm", http_json_quota(v.quota));
}

json_t *http_json_job(struct coordinator *co, uint64_t id, size_t samples, struct err *err)
{
    struct view_job j;
    if (view_job(co, id, &j, err) < 0)
        return NULL;
    const struct job *rec = j.job;
    json_t *o = http_json_job_summary(&j);
    put(o, "spec", http_json_text(rec->yaml));
    json_t *dataset = must(json_object());
    put(dataset, "samples", count(j.samples_total));
    put(dataset, "holdout", count(j.samples_holdout));
    put(dataset, "shards", count(j.shards));
    put(o, "dataset", dataset);
    put(o, "vocab", j.text ? count(rec->vocab) : json_null());
    put(o, "input",
        rec->input.channels + rec->input.caption == 0
            ? json_null()
            : json_pack("{s:I,s:I,s:I,s:I}", "channels", (json_int_t)rec->input.channels, "side",
                        (json_int_t)rec->input.side, "caption", (json_int_t)rec->input.caption,
                        "caption_tokens", (json_int_t)rec->input.caption_tokens));
    put(o, "tokenizer", blob(&rec->tokenizer));
    put(o, "companions", j.companions ? blob(j.companions) : json_null());
    put(o, "mixture", json_boolean(j.mixture));
    put(o, "bits_per_byte", http_json_real(j.eval_bits_per_byte));
    put(o, "generation", count(rec->generation));
    put(o, "resharded", count(rec->resharded));
    put(o, "reshards", count(j.reshards));
    put(o, "teacher", http_json_id(rec->comp.teacher_job));
    put(o, "trace", trace_of(co, id));
    put_cost(co, id, o);
    json_t *network = must(json_object());
    put(network, "waited_ms", count(rec->waited_ms));
    put(network, "waited_share", http_json_real(j.waited_share));
    put(network, "peak_bytes_per_s", count(rec->peak_bytes));
    put(o, "network", network);
    json_t *stage = must(json_object());
    put(stage, "done", count(j.stage_done));
    put(stage, "total", count(j.stage_total));
    put(o, "stage", stage);
    put(o, "bytes", job_bytes(&j));
    put(o, "bad_samples", bad_samples(rec));
    put(o, "skipped_steps", count(j.skipped));
    put(o, "waiting_for", waiting(co, id));
    put(o, "classes", classes(rec));
    put(o, "figures", figures(rec));
    put(o, "samples", newest_samples(rec, samples));
    static const char *const lists[] = {"phases", "modules", "epochs", "partitions", "path_list"};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        put(o, lists[i], must(json_array()));
    view_each_replica(co, id, add_phase, json_object_get(o, "phases"));
    view_each_module(co, id, add_module, json_object_get(o, "modules"));
    view_each_epoch(co, id, add_epoch, json_object_get(o, "epochs"));
    view_each_path(co, id, add_path, json_object_get(o, "path_list"));
    view_each_partition(co, id, add_partition, json_object_get(o, "partitions"));
    return o;
}

/* ---- metrics ------------------------------------------------------------- */

static json_t *named_numbers(const struct metric_rec *m)
{
    json_t *o = must(json_object());
    for (size_t i = 0; i < m->n_numbers; i++)
        put(o, m->numbers[i].name, http_json_real(m->numbers[i].value));
    return o;
}

json_t *http_json_metric(const struct metric_rec *m)
{
    json_t *o = must(json_object());
    put(o, "n", count(m->n));
    put(o, "kind",
        must(json_string(m->kind == METRIC_LOSS    ? "loss"
                         : m->kind == METRIC_ROUND ? "round"
                                                   : "eval")));
    put(o, "path", count(m->path));
    /* An evaluation's round counts the rounds before its version. */
    put(o, "round", count(m->kind == METRIC_EVAL ? m->round : m->round + 1u));
    put(o, "step", count(m->step));
    if (m->kind == METRIC_EVAL) {
        put(o, "eval_loss", http_json_real(m->loss));
        if (m->n_numbers > 0)
            put(o, "numbers", named_numbers(m));
        return o;
    }
    put(o, "loss", http_json_real(m->loss));
    if (m->kind == METRIC_LOSS) {
        put(o, "replica", count(m->replica));
        put(o, "lr", must(json_real(isfinite(m->lr) ? m->lr : 0)));
        if (m->n_numbers > 0)
            put(o, "numbers", named_numbers(m));
    } else {
        put(o, "seconds", must(json_real(isfinite(m->seconds) ? m->seconds : 0)));
        put(o, "samples", count(m->samples));
        put(o, "bytes_up", count(m->bytes_up));
        put(o, "bytes_down", count(m->bytes_down));
    }
    return o;
}

/* ---- tasks, workers, modules --------------------------------------------- */

json_t *http_json_task(const struct view_task *v)
{
    const struct task *t = v->task;
    json_t *o = must(json_object());
    put(o, "id", count(t->id));
    put(o, "job", count(t->job_id));
    put(o, "kind", http_json_word(task_kind_name(t->kind)));
    put(o, "state", http_json_word(task_state_name(t->state)));
    put(o, "reason", http_json_text(t->reason));
    put(o, "attempt", count(t->attempt));
    put(o, "failures", count(t->failures));
    put(o, "path", count(t->path));
    put(o, "replica", count(task_replica(t)));
    put(o, "round", count(task_round(t) + (t->kind == TASK_TRAIN)));
    put(o, "worker", http_json_id(t->worker_id));
    put(o, "worker_name", http_json_text(v->worker_name));
    put(o, "steps_done", count(t->steps_done));
    put(o, "steps_total", count(t->steps_total));
    put(o, "samples_done", count(t->samples_done));
    put(o, "saved_steps", count(task_saved_steps(t)));
    put(o, "skipped", count(t->skipped));
    put(o, "loss", http_json_real(v->loss));
    put(o, "activity", http_json_text(t->state == TASK_LEASED ? t->activity : ""));
    put(o, "age_ms", count(v->age_ms));
    put(o, "leased_ms", t->attempt ? count(v->leased_ms) : json_null());
    put(o, "output", sha256_or_null(blob_ref_is_set(&t->output) ? t->output.sha256 : NULL));
    put(o, "output_size", count(t->output.size));
    put(o, "mixture", json_boolean(task_is_mixture(t)));
    put(o, "text", http_json_text(v->text));
    return o;
}

/* {"items": list, "next": the id of its last item, or null}; takes list. */
static json_t *page(json_t *list, bool more)
{
    json_t *o = http_json_items(list);
    json_t *last = json_array_get(list, json_array_size(list) - 1);
    put(o, "next", more ? json_incref(json_object_get(last, "id")) : json_null());
    return o;
}

static void add_task(void *arg, const struct view_task *t)
{
    http_json_push(arg, http_json_task(t));
}

json_t *http_json_tasks(struct coordinator *co, uint64_t job_id, const char *state, uint64_t before,
                        size_t max)
{
    json_t *a = must(json_array());
    return page(a, view_tasks(co, job_id, state, before, max, add_task, a));
}

static json_t *device(const struct device_state *d)
{
    json_t *o = must(json_object());
    put(o, "name", http_json_text(d->name));
    put(o, "model", http_json_text(d->model));
    put(o, "memory_used", d->memory_total ? count(d->memory_used) : json_null());
    put(o, "memory_total", d->memory_total ? count(d->memory_total) : json_null());
    put(o, "utilization", duration(d->utilization));
    put(o, "temperature", http_json_id(d->temperature));
    put(o, "power", d->power > 0 ? http_json_real((double)d->power) : json_null());
    put(o, "ecc_errors", duration(d->ecc_errors));
    put(o, "throttled", http_json_text(d->throttled));
    put(o, "trouble", http_json_text(d->trouble));
    return o;
}

static json_t *step_plan(const struct step_plan *p)
{
    json_t *o = must(json_object());
    put(o, "schedule", http_json_word(p->schedule));
    put(o, "devices", count(p->devices));
    put(o, "copies", count(p->copies));
    put(o, "stages", count(p->stages));
    put(o, "widest_stage", count(p->widest_stage));
    put(o, "micro_batches", count(p->micro_batches));
    put(o, "predicted_s", p->predicted_s > 0 ? http_json_real(p->predicted_s) : json_null());
    put(o, "measured_s", p->measured_s > 0 ? http_json_real(p->measured_s) : json_null());
    put(o, "idle_before", http_json_real(p->idle_before));
    put(o, "idle", http_json_real(p->idle));
    put(o, "inside", http_json_real(p->inside));
    put(o, "filled_with", http_json_text(p->filled_with));
    return o;
}

static void put_devices(json_t *o, const struct devices *d)
{
    json_t *list = must(json_array());
    for (size_t i = 0; i < d->n; i++)
        http_json_push(list, device(&d->list[i]));
    put(o, "devices", list);
    put(o, "flops", d->flops > 0 ? http_json_real(d->flops) : json_null());
    put(o, "peak_flops", d->peak_flops > 0 ? http_json_real(d->peak_flops) : json_null());
    put(o, "mfu", http_json_real(devices_mfu(d)));
    put(o, "plan", d->plan.devices ? step_plan(&d->plan) : json_null());
}

json_t *http_json_worker(const struct view_worker *v)
{
    const struct worker *w = v->worker;
    const struct task *t = v->task;
    const struct traffic bytes = {w->bytes[0], w->bytes[1], w->bytes[2], w->bytes[3]};
    json_t *o = must(json_object());
    put(o, "id", count(w->id));
    put(o, "name", http_json_text(w->name));
    put(o, "state", http_json_word(v->state));
    put(o, "reason", http_json_text(v->reason));
    put(o, "device", http_json_text(w->device));
    put(o, "version", http_json_text(w->version));
    put(o, "token", http_json_id(w->token_id));
    put(o, "has_key", json_boolean(w->has_key));
    put(o, "revoked", json_boolean(w->revoked_unix_ms != 0));
    put(o, "address", http_json_text(w->address));
    put(o, "memory_bytes", count(w->memory_bytes));
    put(o, "disk_room_bytes", w->disk_room_bytes ? count(w->disk_room_bytes) : json_null());
    put(o, "threads", count(w->threads));
    put(o, "allows_trainers", json_boolean(w->allows_trainers));
    put(o, "task", http_json_id(w->task_id));
    put(o, "task_kind", http_json_word(t ? task_kind_name(t->kind) : ""));
    put(o, "activity", http_json_text(w->activity));
    put(o, "steps_done", count(t ? t->steps_done : 0));
    put(o, "steps_total", count(t ? t->steps_total : 0));
    put(o, "path", count(t ? t->path : 0));
    put(o, "replica", count(t ? task_replica(t) : 0));
    put(o, "images_per_s", http_json_real(v->images_per_s));
    put(o, "loss", http_json_real(v->loss));
    put(o, "grad_norm", http_json_real((double)w->grad_norm));
    put_devices(o, &w->devices);
    put(o, "heartbeat_age_ms", count(v->heartbeat_age_ms));
    put(o, "joined_age_ms", count(v->joined_age_ms));
    put(o, "strikes", count(w->strikes));
    put(o, "tasks_done", count(w->tasks_done));
    put(o, "tasks_failed", count(w->tasks_failed));
    put(o, "device_failures", count(w->device_failures));
    put(o, "quarantine_ms", v->quarantine_ms > 0 ? duration(v->quarantine_ms) : json_null());
    put(o, "bytes", planes(&bytes));
    return o;
}

json_t *http_json_workers(struct coordinator *co, uint64_t after, size_t gone, size_t max)
{
    json_t *a = must(json_array());
    return page(a, view_workers(co, after, gone, max, add_worker, a));
}

static void add_version(void *arg, const struct version_rec *v)
{
    json_t *o = must(json_object());
    put(o, "version", count(v->version));
    put(o, "sha256", sha256_or_null(blob_ref_is_set(&v->full) ? v->full.sha256 : NULL));
    put(o, "full", blob(&v->full));
    put(o, "ema", blob(&v->ema));
    put(o, "delta", blob(&v->delta));
    put(o, "at", http_json_at(v->at_unix_ms));
    json_t *provenance = json_loads(v->provenance ? v->provenance : "", 0, NULL); /* our own text */
    put(o, "provenance", json_is_object(provenance) ? json_incref(provenance) : json_null());
    json_decref(provenance);
    if (json_array_insert_new(arg, 0, o) < 0)
        must(NULL);
}

struct modules {
    struct coordinator *co;
    json_t *array;
};

static void add_module_versions(void *arg, const struct view_module *m)
{
    struct modules *modules = arg;
    json_t *o = must(json_object());
    put_place(o, m);
    put(o, "job", count(m->job_id));
    put(o, "parameters", count(m->params));
    json_t *versions = must(json_array());
    view_each_version(modules->co, m->id, add_version, versions);
    put(o, "versions", versions);
    http_json_push(modules->array, o);
}

json_t *http_json_modules(struct coordinator *co, uint64_t job_id)
{
    struct modules modules = {co, must(json_array())};
    view_each_module(co, job_id, add_module_versions, &modules);
    return modules.array;
}
