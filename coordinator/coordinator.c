#include "coordinator/coordinator.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/net/http/blob_http.h"
#include "common/net/blobstore.h"
#include "common/net/http/http_server.h"
#include "common/net/ticket.h"
#include "coordinator/job/early.h"
#include "coordinator/job/flow.h"
#include "coordinator/job/folds.h"
#include "coordinator/job/leftover.h"
#include "coordinator/job/rounds.h"
#include "coordinator/job/spot_check.h"
#include "coordinator/state/poll.h"
#include "coordinator/rpc/claim.h"
#include "coordinator/rpc/neighbours.h"
#include "coordinator/rpc/service.h"
#include "coordinator/ship/ship.h"
#include "coordinator/turn.h"
#include "coordinator/state/core.h"
#include "coordinator/http/http_api.h"
#include "coordinator/http/http_session.h"
#include "coordinator/work/cost.h"
#include "coordinator/work/gc.h"
#include "coordinator/work/gone.h"
#include "coordinator/work/member.h"
#include "coordinator/work/metrics.h"
#include "coordinator/work/scrub.h"
#include "coordinator/work/tasks.h"
#include "coordinator/work/tokens.h"
#include "coordinator/outer/outer_exec.h"
#include "coordinator/state/place.h"

#include <sys/stat.h>
#include <unistd.h>

#define CLOCK_SET_MS 60000 /* smaller steps of the wall clock wait until they add up to this */
#define SWEEP_MS (10 * 60 * 1000)
#define DISK_THREADS 2
#define FAR_THREADS 16 /* threads of their own pool that wait for a store far away */
#define DISK_JOBS 1024

/* ---- timers -------------------------------------------------------------- */

static bool anything_to_do(const struct coordinator *co)
{
    const struct state *s = &co->state;
    for (size_t i = 0; i < s->n_jobs; i++)
        if (!job_is_ended(s->jobs[i]))
            return true;
    return !list_empty(&s->parked) || !list_empty(&co->next.polls);
}

int coordinator_owns(struct coordinator *co, struct err *err)
{
    char why[512];
    struct ship *s = co->ship ? co->ship : co->watch;
    return s && ship_is_lost(s, why) ? err_set(err, -ERR_STALE, "%s", why) : 0;
}

/* If somebody has set the wall clock it is said, and the beginnings that times are counted from
 * over a restart move along: how long a job has run, and until when a worker's time is charged.
 * NTP slews core_now()'s clock as well, so all that one gains over the other was set. */
static void look_at_clock(struct coordinator *co)
{
    const int64_t lead = (int64_t)clock_wall_ms() - (int64_t)core_now(co);
    const int64_t by = lead - co->wall_lead_ms;
    char text[STR_HUMAN_MAX];
    if (by > -CLOCK_SET_MS && by < CLOCK_SET_MS)
        return;
    co->wall_lead_ms = lead;
    for (size_t i = 0; i < co->state.n_jobs; i++)
        if (!job_is_ended(co->state.jobs[i]) && co->state.jobs[i]->started_unix_ms != 0)
            co->state.jobs[i]->started_unix_ms += by;
    for (size_t i = 0; i < co->state.n_workers; i++)
        if (co->state.workers[i]->state == WORKER_HERE && co->state.workers[i]->since_ms != 0)
            cost_clock_set(co, state_edit_worker(&co->state, co->state.workers[i]));
    core_say(co, 0, 0,
             "the clock of the coordinator's machine was set %s %s, or the machine was asleep: "
             "tokens with an end follow it",
             str_human_duration((uint64_t)((by < 0 ? -by : by) + 500), text),
             by < 0 ? "back" : "forward");
    core_touch(co);
}

static void on_tick(void *arg)
{
    struct coordinator *co = arg;
    if (coordinator_owns(co, NULL) < 0) {
        loop_stop(co->loop);
        return;
    }
    if (co->ship)
        ship_turns(co->ship);
    look_at_clock(co);
    member_check(co);
    service_tick(co);
    tokens_check(co);
    if (core_writing_ms(co) >= CORE_SLOW_MS)
        http_api_slow(co->api);
    if (co->disk_full)
        (void)core_disk_full(co);
    if (anything_to_do(co))
        core_touch(co);
    if (core_now(co) - co->spent_ms >= CORE_SPENT_IDLE_MS)
        core_gather(co);
}

static void on_retry(void *arg)
{
    core_touch(arg);
}

static void on_sweep(void *arg)
{
    gone_forget(arg);
    gc_sweep(arg);
    scrub_next(arg);
}

/* ---- callbacks of the servers -------------------------------------------- */

static void on_close(void *arg, struct rpc_peer *peer, const struct err *why)
{
    struct coordinator *co = arg;
    if (!co->closing)
        service_peer_closed(co, peer);
}

static unsigned authenticate(void *arg, const char *presented, uint64_t *ret_holder)
{
    return tokens_role(arg, presented, ret_holder);
}

static unsigned session(void *arg, const char *cookie, uint64_t *ret_holder)
{
    const struct coordinator *co = arg;
    return tokens_role_of(co, *ret_holder = http_session_holder(co->sessions, cookie));
}

static bool may_get(void *arg, unsigned role, const struct blob_id *id)
{
    return tokens_may_get(arg, role, id->sha256);
}

static bool holds(void *arg, uint64_t holder)
{
    const struct coordinator *co = arg;
    return access_holds(&co->state, holder, (int64_t)clock_wall_ms());
}

static void on_gone(void *arg, uint64_t holder, uint64_t bytes)
{
    const struct coordinator *co = arg;
    struct worker *w = worker_memory(access_worker_of(&co->state, holder));
    if (w != NULL)
        w->gone_bytes += bytes;
}

static void on_stored(void *arg, const struct blob_id *id, uint64_t size, bool here)
{
    struct coordinator *co = arg;
    co->bytes_here.data_up += here ? size : 0;
}

/* Whoever waits with a result for room that we do not have is neither stuck nor slow. */
static void on_full(void *arg, uint64_t holder)
{
    const struct coordinator *co = arg;
    const struct worker *w = access_worker_of(&co->state, holder);
    struct task *t = w ? task_memory(state_task(&co->state, w->task_id)) : NULL;
    if (t == NULL)
        return;
    lease_moved_add(&t->moved, core_now(co) - t->progress_ms);
    t->progress_ms = core_now(co);
}

static void on_served(void *arg, const struct blob_id *id, uint64_t size, uint64_t holder,
                      enum blob_sender from)
{
    struct coordinator *co = arg;
    co->bytes_here.data_down += from == BLOB_BY_US ? size : 0;
    metrics_served(co, access_worker_of(&co->state, holder), id, size, from == BLOB_BY_NEIGHBOUR);
}

/* Of a module's delta that is sent while it is made. */
static void on_sent(void *arg, uint64_t module_id, uint64_t bytes)
{
    struct coordinator *co = arg;
    struct job *j = NULL;
    const struct module_rec *m = state_module(&co->state, module_id, &j);
    co->bytes_here.data_down += bytes;
    if (m != NULL) {
        metrics_delta(co, j, m, bytes);
        cost_egress(co, j, bytes);
    }
}

/* ---- opening ------------------------------------------------------------- */

static char *in_dir(const struct coordinator *co, const char *name)
{
    return file_join(co->opt.data_dir, name);
}

/* Without the database nothing names the blobs: a day later the sweep would delete them all.  A
 * restore that was interrupted has not made it yet. */
static int check_new(const struct coordinator *co, const char *database, struct err *err)
{
    const int rc = place_check_whole(co->opt.data_dir, err);
    if (rc < 0 || co->blobs->count == 0)
        return rc;
    return err_set(err, -ERR_FORMAT,
                   "%s is gone or empty, but %s%s has files of its jobs: put the database "
                   "back, or begin anew with another --data-dir",
                   database, co->opt.store ? co->opt.store : co->opt.data_dir,
                   co->opt.store ? "" : "/blobs");
}

static int load(void *arg, struct store *s, struct err *err)
{
    struct coordinator *co = arg;
    const int rc = persist_load(s, &co->state, err);
    return rc < 0 ? rc : place_check_commit(co->opt.data_dir, co->state.commits, err);
}

static int open_database(struct coordinator *co, const char *path, struct err *err)
{
    const int rc = store_keep_old(path, &persist_schema, err);
    return rc < 0 ? rc : store_open_if(path, &persist_schema, load, co, &co->store, err);
}

static bool is_shipped(const struct coordinator *co)
{
    struct store_noted n;
    return co->store && store_noted(co->store, &n, NULL) == 0 && n.seq > 0;
}

/* The blobs are shared with whoever goes on with the state in the store, and a sweep deletes those
 * that our database does not name. */
static int watch_ship(struct coordinator *co, struct err *err)
{
    int rc = ship_open(&co->opt, &co->watch, err);
    if (rc == 0)
        rc = ship_watch(co->watch, co->store, err);
    if (rc == 0)
        log_warn("ship", "without --store-state the state in the store is not updated: a "
                         "--restore from there, or a standby, would lose everything from now on");
    return rc;
}

static int open_ship(struct coordinator *co, struct err *err)
{
    if (!co->opt.store_state)
        return is_shipped(co) ? watch_ship(co, err) : 0;
    int rc = ship_open(&co->opt, &co->ship, err);
    if (rc == 0)
        rc = ship_own(co->ship, co->store, err);
    if (rc == 0)
        store_send_away(co->store, ship_away(co->ship));
    return rc;
}

/* A killed process may have left writes that it had not flushed: they are read as if they were on
 * the disk, and acknowledged without another commit, so they are flushed first.  State in the store
 * becomes ours before the blobs are listed, which may take minutes: then signs of life begin.
 */
static int open_store(struct coordinator *co, struct err *err)
{
    struct stat st;
    char *path = in_dir(co, "coordinator.db");
    int rc = place_check(&co->opt, err);
    if (rc == 0)
        rc = file_sync_all(co->opt.data_dir, err);
    const bool new = stat(path, &st) != 0 || st.st_size == 0;
    if (rc == 0 && !new)
        rc = open_database(co, path, err);
    const bool early = is_shipped(co);
    if (rc == 0 && early)
        rc = open_ship(co, err);
    if (rc == 0)
        rc = place_open(&co->opt, co->cluster, &co->blobs, err);
    if (rc == 0 && new && (rc = check_new(co, path, err)) == 0 &&
        (rc = place_note_commit(co->opt.data_dir, 0, err)) == 0) /* of one that was here before */
        rc = open_database(co, path, err);
    if (rc == 0 && !early)
        rc = open_ship(co, err);
    if (rc == 0)
        rc = leftover_resume(co, err);
    mem_free(path);
    return rc;
}

/* Leases come back with a grace: their workers may join again and go on.
 * A worker that does not is lost like any silent one. */
static void resume(struct coordinator *co)
{
    uint64_t now = core_now(co);
    for (size_t i = 0; i < co->state.n_workers; i++) {
        struct worker *w = state_edit_worker(&co->state, co->state.workers[i]);
        w->heard_ms = w->joined_ms = now;
        w->loss = w->grad_norm = 0;
        if (w->task_id != 0 && state_task(&co->state, w->task_id) == NULL)
            w->task_id = 0;          /* its job cannot be read */
        if (w->state == WORKER_HERE) /* its silence counts from when it should be back */
            w->heard_ms = w->closed_ms = now + CORE_REDIAL_MS;
    }
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        struct task *t = state_edit_task(&co->state, co->state.tasks[i]);
        const struct worker *w = state_worker(&co->state, t->worker_id);
        t->ready_ms = t->leased_ms = t->progress_ms = now;
        t->older = true;
        struct job *j = state_job(&co->state, t->job_id);
        if (t->kind == TASK_TRAIN && j != NULL)
            t->train.phase_s = (uint32_t)j->spec.outer.seconds;
        if (task_is_open(t) && t->kind == TASK_OUTER)
            task_end(co, t, TASK_CANCELLED, "the coordinator was restarted");
        else if (t->state == TASK_LEASED &&
                 (w == NULL || w->state != WORKER_HERE || w->task_id != t->id))
            task_requeue(co, t, "its worker was gone when the coordinator was restarted");
        else if (t->state == TASK_LEASED && t->kind == TASK_TRAIN)
            ledger_set_leased(j->ledgers[job_ledger(j, j->comp.paths[t->path].partition)], t->id,
                              true);
    }
    rounds_resume(co);
    spot_check_resume(co);
    for (size_t i = 0; i < co->state.n_jobs; i++) {
        struct job *j = co->state.jobs[i];
        j->started_ms = now;
        if (j->refused != NULL)
            log_warn("job", "job %llu (%s): %s", (unsigned long long)j->id, j->spec.name,
                     j->refused);
        if (j->refused != NULL && !job_is_ended(j))
            flow_end(co, j, JOB_FAILED, "%s", j->refused);
        else if (!job_is_ended(j))
            log_info("job", "job %llu (%s) goes on, it is %s", (unsigned long long)j->id,
                     j->spec.name, job_state_name(j->state));
    }
}

static int open_keys(struct coordinator *co, struct err *err)
{
    struct token *w = &co->worker_token, *u = &co->user_token;
    uint8_t cluster[KEYS_SECRET_BYTES], ticket[KEYS_SECRET_BYTES];
    char boot[CLOCK_BOOT_MAX];
    int rc = keys_open(co->opt.data_dir, &co->keys, err);
    if (rc < 0 || (rc = keys_secret(co->opt.data_dir, "cluster", cluster, err)) < 0 ||
        (rc = keys_secret(co->opt.data_dir, "worker", w->secret, err)) < 0 ||
        (rc = keys_secret(co->opt.data_dir, "user", u->secret, err)) < 0 ||
        (rc = keys_secret(co->opt.data_dir, "ticket", ticket, err)) < 0)
        return rc;
    ticket_key(ticket, clock_boot(boot), co->ticket_key);
    memcpy(w->cluster_id, cluster, TOKEN_CLUSTER_BYTES);
    memcpy(u->cluster_id, cluster, TOKEN_CLUSTER_BYTES);
    memcpy(w->pin, keys_pin(co->keys), KEYS_PIN_BYTES);
    memcpy(u->pin, keys_pin(co->keys), KEYS_PIN_BYTES);
    (void)hash_hex(cluster, 16, co->cluster);
    w->role = TOKEN_ROLE_WORKER;
    u->role = TOKEN_ROLE_OPERATOR;
    return 0;
}

static int open_rpc(struct coordinator *co, struct err *err)
{
    struct rpc_server_options o = {
        .host = co->opt.listen,
        .port = co->opt.rpc_port,
        .keys = co->keys,
        .authenticate = claim_check,
        .methods = service_methods,
        .method_count = service_method_count,
        .build_id = SKERRY_VERSION,
        .max_connections = WORKERS_MAX + 64,
        .max_in_flight = 256,
        .max_body_bytes = 1u << 20,
        .max_queue_bytes = 4u << 20,
        .idle_ms = 60000,
        .arg = co,
        .on_close = on_close,
    };
    memcpy(o.cluster_id, co->worker_token.cluster_id, TOKEN_CLUSTER_BYTES);
    int rc = rpc_server_open(co->loop, &o, &co->rpc, err);
    if (rc == -EADDRINUSE)
        return err_set(err, rc,
                       "port %u (RPC) of %s is in use by another program; choose another "
                       "with --rpc-port, or 0 for any free one",
                       co->opt.rpc_port, co->opt.listen);
    return rc;
}

static int open_http(struct coordinator *co, struct err *err)
{
    char *path = in_dir(co, "sessions");
    co->sessions = http_sessions_new(path);
    mem_free(path);
    (void)snprintf(co->cookie, sizeof(co->cookie), "skerry-%.8s", co->cluster);
    const struct http_server_options o = {
        .host = co->opt.listen,
        .port = co->opt.http_port,
        .keys = co->opt.plain_http ? NULL : co->keys,
        .authenticate = authenticate,
        .cookie = co->cookie,
        .session = session,
        .on_gone = on_gone,
        .arg = co,
    };
    int rc = http_server_open(co->loop, &o, &co->http, err);
    if (rc == -EADDRINUSE)
        return err_set(err, rc,
                       "port %u (HTTP) of %s is in use by another program; choose another "
                       "with --http-port, or 0 for any free one",
                       co->opt.http_port, co->opt.listen);
    if (rc < 0 || (rc = pool_new(co->loop, "disk", DISK_THREADS, DISK_JOBS, &co->disk, err)) < 0 ||
        (rc = pool_new(co->loop, "far", co->opt.store ? FAR_THREADS : 1, DISK_JOBS, &co->far,
                       err)) < 0)
        return rc;
    struct blob_http_options b = {.loop = co->loop,
                                  .store = co->blobs,
                                  .pool = co->opt.store_state ? co->far : co->disk,
                                  .far = co->far,
                                  .may_get = may_get,
                                  .holds = holds,
                                  .on_stored = on_stored,
                                  .on_full = on_full,
                                  .on_served = on_served,
                                  .neighbour = neighbours_find,
                                  .growing = early_delta,
                                  .on_sent = on_sent,
                                  .arg = co};
    memcpy(b.key, co->ticket_key, TICKET_KEY_BYTES);
    return blob_http_open(co->http, &b, &co->blob_http, err);
}

bool coordinator_guesses_host(const struct coordinator *co)
{
    const char *listen = co->opt.listen;
    return co->opt.host == NULL && (strcmp(listen, "0.0.0.0") == 0 || strcmp(listen, "::") == 0);
}

/* The name or address under which others reach us: the option's, else the one
 * on which we listen, else the host's name. */
static void fill_host(struct coordinator *co, char host[TOKEN_HOST_MAX + 1])
{
    if (!coordinator_guesses_host(co))
        (void)str_copy(host, TOKEN_HOST_MAX + 1, co->opt.host ? co->opt.host : co->opt.listen);
    else if (gethostname(host, TOKEN_HOST_MAX) != 0 || host[0] == '\0')
        (void)str_copy(host, TOKEN_HOST_MAX + 1, "localhost");
    host[TOKEN_HOST_MAX] = '\0';
}

static int write_text(const struct coordinator *co, const char *name, const char *text, mode_t mode,
                      struct err *err)
{
    char *path = in_dir(co, name);
    int rc = file_write_atomic(path, text, strlen(text), mode, err);
    mem_free(path);
    return rc;
}

static int write_token(struct coordinator *co, struct token *t, const char *name,
                       char text[TOKEN_STRING_MAX], struct err *err)
{
    const struct token_rec *rec = access_by_secret(&co->state, t->role, t->secret);
    fill_host(co, t->host);
    t->rpc_port = rpc_server_port(co->rpc);
    t->http_port = http_server_port(co->http);
    t->http_plain = co->opt.plain_http;
    *text = '\0';
    int rc = rec != NULL && rec->revoked_unix_ms != 0 ? 0 : token_format(t, text, err);
    if (*text == '\0')
        return rc;
    char line[TOKEN_STRING_MAX + 1];
    (void)snprintf(line, sizeof(line), "%s\n", text);
    return write_text(co, name, line, 0600, err);
}

static int write_files(struct coordinator *co, struct err *err)
{
    char json[512];
    char text[TOKEN_STRING_MAX];
    int rc = write_token(co, &co->worker_token, "worker.token", text, err);
    if (rc < 0 || (rc = write_token(co, &co->user_token, "user.token", co->user_text, err)) < 0)
        return rc;
    token_http_url(&co->user_token, co->http_url);
    (void)snprintf(json, sizeof(json),
                   "{\"rpc_port\": %u, \"http_port\": %u, \"http_url\": \"%s\", \"pid\": %ld}\n",
                   rpc_server_port(co->rpc), http_server_port(co->http), co->http_url,
                   (long)getpid());
    return write_text(co, "ports.json", json, 0644, err);
}

static int open_api(struct coordinator *co, struct err *err)
{
    const struct http_api_options o = {
        .co = co,
        .server = co->http,
        .blobs = co->blob_http,
        .store = co->blobs,
        .sessions = co->sessions,
        .authenticate = authenticate,
        .auth_arg = co,
    };
    return http_api_open(&o, &co->api, err);
}

static void start_timers(struct coordinator *co)
{
    co->tick = loop_timer_new(co->loop, on_tick, co);
    co->retry = loop_timer_new(co->loop, on_retry, co);
    co->sweep = loop_timer_new(co->loop, on_sweep, co);
    co->gather = loop_timer_new(co->loop, turn, co);
    loop_timer_start(co->tick, CORE_TICK_MS, CORE_TICK_MS);
    loop_timer_start(co->sweep, SWEEP_MS, SWEEP_MS);
    co->scrub_part = (uint8_t)(clock_wall_ms() / SWEEP_MS); /* about where the last one stopped */
}

int coordinator_open(struct loop *loop, const struct coordinator_options *o,
                     struct coordinator **ret, struct err *err)
{
    struct coordinator *co = mem_alloc(sizeof(*co));
    co->loop = loop;
    co->opt = *o;
    co->turn = turn;
    co->store_ok = true;
    co->started_ms = co->checked_ms = co->spent_ms = loop_now_ms(loop);
    co->started_unix_ms = (int64_t)clock_wall_ms();
    co->wall_lead_ms = co->started_unix_ms - (int64_t)co->started_ms;
    core_init(co);
    state_init(&co->state);
    start_timers(co);
    int rc = open_keys(co, err);
    if (rc == 0 && (rc = open_store(co, err)) == 0)
        tokens_of_files(co);
    if (rc < 0 || (rc = pool_new(loop, "writer", 1, 1, &co->writer, err)) < 0 ||
        (rc = outer_exec_new(loop, co->blobs, o->outer_threads, &co->outer, err)) < 0 ||
        (rc = open_rpc(co, err)) < 0 || (rc = open_http(co, err)) < 0 ||
        (rc = write_files(co, err)) < 0 || (rc = open_api(co, err)) < 0) {
        coordinator_close(co);
        return rc;
    }
    resume(co);
    core_touch(co);
    *ret = co;
    return 0;
}

/* ---- closing ------------------------------------------------------------- */

static void drop_replies(struct coordinator *co)
{
    struct list *l;
    while ((l = list_pop(&co->next.replies)) != NULL) {
        struct reply *r = list_entry(l, struct reply, link);
        rpc_fail(r->req, -ERR_CANCELLED, true, 0, "the coordinator stops");
        mem_free(r);
    }
    while ((l = list_pop(&co->next.durables)) != NULL) {
        struct durable *d = list_entry(l, struct durable, link);
        d->fn(d->arg, -ERR_CANCELLED);
        mem_free(d);
    }
}

void coordinator_close(struct coordinator *co)
{
    struct err err = {0};
    if (co == NULL)
        return;
    co->closing = true;
    if (co->ship)
        ship_end(co->ship);
    pool_free(co->writer); /* waits for the commit that is under way */
    if (co->blobs)
        co->blobs->ops->stop(co->blobs);
    outer_exec_free(co->outer);
    early_end(co);
    for (size_t i = 0; i < co->state.n_jobs; i++) {
        const struct job *j = co->state.jobs[i]; /* without modules: reading it failed */
        for (uint32_t m = 0; j->modules != NULL && m < j->comp.n_modules; m++)
            folds_release(module_memory(&j->modules[m]));
    }
    for (size_t i = 0; i < co->state.n_workers; i++)
        member_unpark(co, state_edit_worker(&co->state, co->state.workers[i]),
                      "the coordinator stops");
    poll_stop(co);
    if (co->api != NULL) { /* else opening failed: a half-read state must not be saved */
        turn_spent(co);
        persist_points(co->store, &co->state);
    }
    if (co->store != NULL && store_commit(co->store, &err) < 0)
        log_error("store", "%s; changes that were not acknowledged are lost", err.msg);
    drop_replies(co);
    http_api_close(co->api);
    rpc_server_close(co->rpc);
    http_server_close(co->http);
    pool_free(co->far);
    pool_free(co->disk);
    blob_http_close(co->blob_http);
    if (co->blobs)
        co->blobs->ops->close(co->blobs);
    store_close(co->store);
    ship_close(co->ship);
    ship_close(co->watch);
    while (co->turn_scheduled) /* it still points here */
        loop_turn(co->loop, false);
    loop_timer_free(co->tick);
    loop_timer_free(co->retry);
    loop_timer_free(co->sweep);
    loop_timer_free(co->gather);
    state_release(&co->state);
    http_sessions_free(co->sessions);
    keys_free(co->keys);
    mem_free(co->garbage);
    mem_free(co->doomed);
    mem_free(co->neighbours);
    mem_free(co);
}

const char *coordinator_user_token(const struct coordinator *co)
{
    return co->user_text;
}

bool coordinator_has_worker_token(const struct coordinator *co)
{
    const struct token *t = &co->worker_token;
    const struct token_rec *rec = access_by_secret(&co->state, t->role, t->secret);
    return rec == NULL || rec->revoked_unix_ms == 0;
}

const char *coordinator_http_url(const struct coordinator *co)
{
    return co->http_url;
}
