/* The cluster's side of view.h: status, workers, tasks, tokens, and waits. */
#include "common/base/base.h"
#include "coordinator/state/core.h"
#include "coordinator/view/view.h"
#include "coordinator/work/member.h"
#include "coordinator/work/query.h"
#include "coordinator/work/twins.h"

#include "common/base/clock.h"
#include "common/net/http/blob_http.h"
#include "common/net/http/http_server.h"
#include "coordinator/decide/lease.h"
#include "coordinator/outer/outer_exec.h"
#include "coordinator/ship/ship.h"

#include <unistd.h>

/* A round is late when it lasts this many times as long as the mean of the last ones, and some
 * seconds more. */
#define LATE_FACTOR 1.5
#define LATE_ROUNDS 8
#define LATE_LEAST_S 2.0

/* ---- status -------------------------------------------------------------- */

static uint64_t resident_bytes(void)
{
    unsigned long long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f == NULL)
        return 0;
    if (fscanf(f, "%llu %llu", &size, &resident) != 2)
        resident = 0;
    (void)fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void count_workers(struct coordinator *co, struct view_status *v)
{
    const uint64_t *gone = co->state.bytes_gone;
    v->bytes = (struct traffic){gone[0], gone[1], gone[2], gone[3]};
    for (size_t i = 0; i < co->state.n_workers; i++) {
        const struct worker *w = co->state.workers[i];
        v->workers++;
        v->workers_alive += w->state == WORKER_HERE;
        v->workers_busy += w->state == WORKER_HERE && w->task_id != 0;
        v->idle_per_hour += w->state == WORKER_HERE && w->task_id == 0 ? w->price : 0;
        v->images_per_s += query_speed(&co->state, state_task(&co->state, w->task_id));
        v->parked += w->parked != NULL;
        v->bytes.control_up += w->bytes[0];
        v->bytes.control_down += w->bytes[1];
        v->bytes.data_up += w->bytes[2];
        v->bytes.data_down += w->bytes[3];
    }
}

static void count_jobs(struct coordinator *co, struct view_status *v)
{
    double ours = 0, theirs = 0;
    for (size_t i = 0; i < co->state.n_jobs; i++) {
        const struct job *j = co->state.jobs[i];
        double params = 0;
        for (uint32_t l = 0; l < composition_levels(&j->comp, 0); l++)
            params += (double)j->modules[j->comp.paths[0].modules[l]].params;
        v->jobs++;
        ours += (double)(j->bytes_up + j->bytes_down);
        theirs += 8.0 * params * (double)j->steps_done;
    }
    v->ratio = theirs > 0 ? ours / theirs : NAN;
    for (size_t i = 0; i < co->state.n_tasks; i++) {
        v->tasks_pending += co->state.tasks[i]->state == TASK_PENDING;
        v->tasks_leased += co->state.tasks[i]->state == TASK_LEASED;
    }
}

/* Those that `h` has, of the state's log, and of workers. */
static uint64_t all_requests(const struct coordinator *co, const struct blob_health *h)
{
    return h->requests + (co->ship ? ship_requests(co->ship) : 0) +
           (co->watch ? ship_requests(co->watch) : 0) + blob_http_counters(co->blob_http).sent_away;
}

uint64_t view_store_requests(const struct coordinator *co)
{
    struct blob_health h;
    if (co->blobs->ops->health == NULL)
        return 0;
    co->blobs->ops->health(co->blobs, &h);
    return all_requests(co, &h);
}

void view_status(struct coordinator *co, struct view_status *ret)
{
    struct rpc_counters rpc = rpc_server_counters(co->rpc);
    memset(ret, 0, sizeof(*ret));
    ret->version = SKERRY_VERSION;
    ret->cluster = co->cluster;
    ret->uptime_ms = core_now(co) - co->started_ms;
    count_workers(co, ret);
    count_jobs(co, ret);
    ret->bytes_here = co->bytes_here;
    ret->bytes_here.control_up = rpc.bytes_in;
    ret->bytes_here.control_down = rpc.bytes_out;
    ret->rss_bytes = resident_bytes();
    (void)core_disk_room(co, &ret->disk_room_bytes, NULL); /* stays 0 if it is unknown */
    ret->store_ok = co->store_ok;
    ret->store_error = co->store_error;
    ret->store_commits = store_commits(co->store);
    for (int i = 0; i < 256; i++)
        ret->blobs_damaged += co->damaged[i];
    ret->store_writing_ms = core_writing_ms(co);
    ret->ships = co->ship != NULL;
    if (ret->ships)
        (void)ship_is_lost(co->ship, ret->ship_error);
    ret->far = co->blobs->ops->health != NULL;
    if (ret->far) {
        co->blobs->ops->health(co->blobs, &ret->blobs);
        ret->requests = all_requests(co, &ret->blobs);
    }
    ret->request_dollars = cost_of_requests(co, ret->requests);
    ret->store_queue = store_queued(co->store);
    ret->store_queue_max = STORE_QUEUE_ROWS_MAX;
    ret->outer_queue = outer_pending(co->outer);
    for (size_t i = 0; i < co->state.n_jobs; i++)
        for (uint32_t m = 0; m < co->state.jobs[i]->comp.n_modules; m++)
            ret->outer_busy += co->state.jobs[i]->modules[m].outer_task != 0;
}

/* ---- workers ------------------------------------------------------------- */

static const char *worker_state(const struct coordinator *co, const struct worker *w,
                                const struct lease_decision *d)
{
    if (w->state == WORKER_LOST)
        return "lost";
    if (w->state == WORKER_LEFT)
        return "left";
    if (d->verdict != LEASE_ALIVE)
        return "late";
    if (w->quarantined_until_ms > core_now(co))
        return "quarantined";
    if (worker_goes(w))
        return "draining";
    return w->task_id ? "busy" : "idle";
}

/* Of one that is gone also over our restarts. */
static uint64_t silence_ms(const struct coordinator *co, const struct worker *w)
{
    const int64_t gone = core_unix_ms(co) - w->since_unix_ms;
    if (w->state != WORKER_HERE)
        return gone > 0 ? (uint64_t)gone : 0;
    return core_now(co) > w->heard_ms ? core_now(co) - w->heard_ms : 0;
}

/* Makes the reasons of deciders; the text is valid until the next call. */
static void fill_worker(struct coordinator *co, const struct worker *w, struct view_worker *v)
{
    static char reason[REASON_MAX]; /* loop thread only */
    struct lease_decision d;
    const struct task *t = state_task(&co->state, w->task_id);
    const double speed = query_speed(&co->state, t);
    uint64_t until = 0, now = core_now(co);
    member_lease(co, w, &d);
    (void)str_copy(reason, sizeof(reason), w->state_reason);
    if (w->state == WORKER_HERE && d.verdict != LEASE_ALIVE)
        (void)str_copy(reason, sizeof(reason), d.reason);
    else if (w->state == WORKER_HERE && member_may_work(co, w, &until, reason))
        (void)str_copy(reason, sizeof(reason), w->task_id ? "" : w->waiting_for);
    *v = (struct view_worker){
        .worker = w,
        .state = worker_state(co, w, &d),
        .reason = reason,
        .task = t,
        .images_per_s = speed > 0 ? speed : (double)NAN,
        .loss = w->loss != 0.0f ? (double)w->loss : (double)NAN,
        .heartbeat_age_ms = silence_ms(co, w),
        .joined_age_ms = now > w->joined_ms ? now - w->joined_ms : 0,
        .quarantine_ms =
            w->quarantined_until_ms > now ? (int64_t)(w->quarantined_until_ms - now) : 0,
    };
}

void view_each_worker(struct coordinator *co, view_worker_fn fn, void *arg)
{
    struct view_worker v;
    for (size_t i = 0; i < co->state.n_workers; i++) {
        fill_worker(co, co->state.workers[i], &v);
        fn(arg, &v);
    }
}

static int newest_first(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (y > x) - (y < x);
}

/* When the last but n of the gone workers left. */
static int64_t gone_since(const struct state *s, size_t n)
{
    int64_t *since = mem_alloc_array(s->n_workers + 1, sizeof(*since));
    size_t gone = 0;
    for (size_t i = 0; i < s->n_workers; i++)
        if (s->workers[i]->state != WORKER_HERE)
            since[gone++] = s->workers[i]->since_unix_ms;
    qsort(since, gone, sizeof(*since), newest_first);
    const int64_t at = gone <= n ? INT64_MIN : since[n];
    mem_free(since);
    return at;
}

bool view_workers(struct coordinator *co, uint64_t after, size_t gone, size_t max,
                  view_worker_fn fn, void *arg)
{
    const struct state *s = &co->state;
    const int64_t since = gone_since(s, gone);
    struct view_worker v;
    size_t n = 0;
    for (size_t i = state_workers_after(s, after); i < s->n_workers; i++) {
        if (s->workers[i]->state != WORKER_HERE && s->workers[i]->since_unix_ms <= since)
            continue;
        if (n++ == max)
            return true;
        fill_worker(co, s->workers[i], &v);
        fn(arg, &v);
    }
    return false;
}

/* What a person should look at comes first, then those at work or idle, and last who is gone, those
 * that left after `since` before the others. */
static unsigned rank_of(struct coordinator *co, const struct worker *w, int64_t since)
{
    struct lease_decision d;
    if (w->state != WORKER_HERE)
        return w->since_unix_ms > since ? 2 : 3;
    member_lease(co, w, &d);
    return d.verdict != LEASE_ALIVE || w->quarantined_until_ms > core_now(co) || worker_goes(w) ? 0
                                                                                                : 1;
}

void view_some_workers(struct coordinator *co, size_t max, view_worker_fn fn, void *arg)
{
    const struct state *s = &co->state;
    const int64_t since = gone_since(s, max > s->n_here ? max - s->n_here : 0);
    struct view_worker v;
    for (unsigned rank = 0; rank < 4; rank++)
        for (size_t i = 0; i < s->n_workers && max > 0; i++) {
            if (rank_of(co, s->workers[i], since) != rank)
                continue;
            max--;
            fill_worker(co, s->workers[i], &v);
            fn(arg, &v);
        }
}

int view_worker(struct coordinator *co, uint64_t worker_id, struct view_worker *ret,
                struct err *err)
{
    const struct worker *w = state_worker(&co->state, worker_id);
    if (w == NULL)
        return err_set(err, -ERR_NOTFOUND, "worker %llu does not exist",
                       (unsigned long long)worker_id);
    fill_worker(co, w, ret);
    return 0;
}

/* ---- tasks --------------------------------------------------------------- */

/* The text so far; once the task is done, the job's samples have it. */
static const char *task_text(const struct coordinator *co, const struct task *t)
{
    const struct job *j = state_job(&co->state, t->job_id);
    for (size_t i = 0; t->kind == TASK_SAMPLE && j != NULL && i < j->n_grids; i++)
        if (j->grids[i].task_id == t->id && j->grids[i].text != NULL)
            return j->grids[i].text;
    return t->kind == TASK_SAMPLE && t->draw.text_len > 0 ? t->draw.text : "";
}

static void fill_task(struct coordinator *co, const struct task *t, struct view_task *v)
{
    const struct worker *w = t->worker_id ? state_worker(&co->state, t->worker_id) : NULL;
    uint64_t now = core_now(co);
    *v = (struct view_task){
        .task = t,
        .worker_name = w ? w->name : "",
        .text = task_text(co, t),
        .loss = isnan(t->loss_mean) ? (double)t->loss : (double)t->loss_mean,
        .age_ms = now > t->ready_ms ? now - t->ready_ms : 0,
        .leased_ms = t->state == TASK_LEASED && now > t->leased_ms ? now - t->leased_ms : 0,
    };
}

bool view_tasks(struct coordinator *co, uint64_t job_id, const char *state, uint64_t before,
                size_t max, view_task_fn fn, void *arg)
{
    struct view_task v;
    size_t n = 0;
    for (size_t i = co->state.n_tasks; i-- > 0;) {
        const struct task *t = co->state.tasks[i];
        if ((before != 0 && t->id >= before) || (job_id != 0 && t->job_id != job_id) ||
            (state != NULL && strcmp(state, task_state_name(t->state)) != 0))
            continue;
        if (n++ == max)
            return true;
        fill_task(co, t, &v);
        fn(arg, &v);
    }
    return false;
}

int view_task(struct coordinator *co, uint64_t task_id, struct view_task *ret, struct err *err)
{
    const struct task *t = state_task(&co->state, task_id);
    if (t == NULL)
        return err_set(err, -ERR_NOTFOUND, "task %llu does not exist, or has been forgotten",
                       (unsigned long long)task_id);
    fill_task(co, t, ret);
    return 0;
}

/* ---- tokens --------------------------------------------------------------- */

void view_each_token(struct coordinator *co, view_token_fn fn, void *arg)
{
    const int64_t now = (int64_t)clock_wall_ms();
    for (size_t i = 0; i < co->state.n_tokens; i++) {
        const struct token_rec *t = &co->state.tokens[i];
        const struct view_token v = {
            .token = t,
            .state = t->revoked_unix_ms != 0   ? "revoked"
                     : !access_is_live(t, now) ? "ended"
                                               : "live",
            .left_ms = t->ends_unix_ms == 0     ? -1
                       : t->ends_unix_ms <= now ? 0
                                                : t->ends_unix_ms - now,
            .workers_here = access_workers_here(&co->state, t->id, NULL),
            .cost = query_token_cost(&co->state, t->id),
        };
        fn(arg, &v);
    }
}

/* ---- waits ----------------------------------------------------------------- */

struct waiting {
    struct coordinator *co;
    view_waiting_fn fn;
    void *arg;
    unsigned told, untold; /* untold: there was no room for them */
    unsigned looks;        /* at all workers */
    const struct path_rec *path;
    bool path_late; /* its round is late */
    bool alone;     /* one worker at most is here: it holds up nobody */
};

static bool is_full(const struct waiting *w)
{
    return w->told >= VIEW_WAITING_MAX - 1; /* the last place is for the number of others */
}

static int64_t from_now(const struct coordinator *co, uint64_t until_ms)
{
    uint64_t now = core_now(co);
    if (until_ms == 0)
        return -1;
    return until_ms > now ? (int64_t)(until_ms - now) : 0;
}

static void tell(struct waiting *w, uint64_t job, uint64_t task, uint64_t worker, const char *what,
                 const char *why, int64_t until_ms, bool late)
{
    if (is_full(w)) {
        w->untold++;
        return;
    }
    w->told++;
    w->fn(w->arg, &(struct view_waiting){job, task, worker, what, why, until_ms, late});
}

/* Has the path's round lasted much longer than the last ones? */
static bool path_is_late(const struct coordinator *co, const struct job *j, uint32_t path)
{
    double seconds = 0;
    unsigned n = 0;
    if (!j->paths[path].ready)
        return false;
    for (size_t i = j->n_rounds; i-- > 0 && n < LATE_ROUNDS;)
        if (j->rounds[i].path == path) {
            seconds += (double)j->rounds[i].seconds;
            n++;
        }
    const double passed = (double)query_round_ms(&j->paths[path], core_now(co)) / 1e3;
    return n > 0 && passed > LATE_FACTOR * seconds / n + LATE_LEAST_S;
}

/* Is the round of the task late?  The phases of a round are neighbours, so the last result is kept.
 */
static bool round_is_late(struct waiting *ctx, const struct task *t)
{
    const struct job *j = t->kind == TASK_TRAIN ? state_job(&ctx->co->state, t->job_id) : NULL;
    if (j == NULL)
        return false;
    if (ctx->path != &j->paths[t->path])
        ctx->path_late = path_is_late(ctx->co, j, t->path);
    ctx->path = &j->paths[t->path];
    return ctx->path_late;
}

/* Adds the holder of a leased task if its lateness is `late`. */
static void wait_for_worker(struct waiting *ctx, const struct task *t, bool late)
{
    const struct worker *w = state_worker(&ctx->co->state, t->worker_id);
    struct lease_decision d;
    char what[128], why[2 * REASON_MAX];
    if (w == NULL)
        return;
    member_lease(ctx->co, w, &d);
    if ((d.verdict != LEASE_ALIVE || (!ctx->alone && round_is_late(ctx, t))) != late)
        return;
    (void)snprintf(what, sizeof(what), "worker %llu (%s)", (unsigned long long)w->id, w->name);
    const char *doing = t->activity[0] ? t->activity : "working";
    if (d.verdict == LEASE_ALIVE && t->steps_total > 0)
        (void)snprintf(why, sizeof(why), "%.150s, step %u of %u", doing, t->steps_done,
                       t->steps_total);
    else
        (void)str_copy(why, sizeof(why), d.verdict != LEASE_ALIVE ? d.reason : doing);
    const size_t n = strlen(why);
    if (t->failures > 1)
        (void)snprintf(why + n, sizeof(why) - n, "; it failed %u times, at last: %.180s",
                       t->failures, t->reason);
    else if (t->n_told > 0)
        (void)str_copy(why + n, sizeof(why) - n, "; made once more, to compare (outer.spot_check)");
    int64_t until = from_now(ctx->co, d.until_ms);
    const uint64_t spent = core_now(ctx->co) - t->first_ms;
    if (d.verdict == LEASE_ALIVE && t->steps_done > t->first_steps &&
        t->steps_total >= t->steps_done)
        until =
            (int64_t)(spent * (t->steps_total - t->steps_done) / (t->steps_done - t->first_steps));
    tell(ctx, t->job_id, t->id, w->id, what, why, until, late);
}

/* A grid whose experts are elsewhere takes a worker that draws and one that evaluates. */
static bool lacks_helper(const struct task *t, unsigned helpers)
{
    return (t->kind == TASK_VELOCITY && helpers == 0) || (task_is_remote(t) && helpers < 2);
}

/* Looking at all workers is expensive: this many times for neighbours of one job and kind, out of
 * VIEW_WAITING_MAX for all, so that some are left for others. */
enum { LOOKS_OF_RUN = 12 };

/* Tasks of one job and kind with the same reason are one line: a stage may have thousands. */
struct untaken {
    const struct task *first; /* NULL: none */
    unsigned n;
    unsigned looks; /* looks at all workers, for neighbours of one job and kind */
    char why[REASON_MAX];
    uint64_t again; /* time of the next try; 0: it did not fail */
    bool late;
};

/* Why nobody has a task that any worker may take.  An idle worker, if there is one, was told why it
 * has none, which is the reason if it is about this task. */
static void why_open(const struct task *t, const struct worker *idle, unsigned here,
                     char why[REASON_MAX])
{
    char name[32];
    const int n = snprintf(name, sizeof(name), "task %llu ", (unsigned long long)t->id);
    if (idle != NULL && str_starts(idle->waiting_for, name))
        (void)snprintf(why, REASON_MAX, "it %.500s", idle->waiting_for + n);
    else
        (void)str_copy(why, REASON_MAX,
                       idle        ? "a worker that idles is about to get it"
                       : here == 1 ? "the only worker is busy"
                                   : "all workers are busy");
}

/* The workers, seen by a task that nobody has taken. */
struct tally {
    unsigned here, helpers, small, failed, quarantined, able, old;
    const struct worker *idle; /* the first idle one */
    uint64_t again;            /* when the first of those that failed it tries again */
};

static void tally_worker(const struct coordinator *co, const struct job *j, const struct task *t,
                         const struct worker *w, struct tally *n)
{
    const uint64_t present = core_now(co);
    const struct task *now = w->task_id ? state_task(&co->state, w->task_id) : NULL;
    const uint64_t until = failure_until(&t->failed, w->id, worker_standing(w));
    const bool can = j == NULL || query_is_able(j, t->kind, w);
    if (w->state != WORKER_HERE)
        return;
    n->here++;
    n->able += can;
    n->old += j != NULL && w->reads < query_reads(j);
    n->quarantined += w->quarantined_until_ms > present;
    n->small += j != NULL && query_is_small(j, t->kind, query_network(j, t), w, present);
    n->helpers += !worker_goes(w) && (now == NULL || !task_is_remote(now));
    if (n->idle == NULL && w->parked != NULL)
        n->idle = w;
    if (can && until > present) {
        n->again = n->again == 0 || until < n->again ? until : n->again;
        n->failed++;
    }
}

/* Why nobody has taken u->first. */
static void why_untaken(struct waiting *ctx, struct untaken *u)
{
    const struct task *t = u->first;
    char *why = u->why;
    bool blocked = true; /* the reason is not just that all workers are busy */
    const struct job *j = state_job(&ctx->co->state, t->job_id);
    const char *spent = j != NULL ? query_withheld(&ctx->co->state, j) : NULL;
    const uint64_t present = core_now(ctx->co);
    struct tally n = {0};
    for (size_t i = 0; i < ctx->co->state.n_workers; i++)
        tally_worker(ctx->co, j, t, ctx->co->state.workers[i], &n);
    uint64_t again = n.again;
    if (t->not_before_ms > present)
        again = again > t->not_before_ms ? again : t->not_before_ms;
    else if (n.failed == 0 || n.failed < n.able)
        again = 0;
    if (spent != NULL)
        (void)snprintf(why, REASON_MAX, "it %s", spent);
    else if (again != 0)
        (void)snprintf(why, REASON_MAX, "it failed and is tried again: %.400s", t->reason);
    else if (n.here == 0)
        (void)snprintf(why, REASON_MAX, "no worker is here; start one with workerd --join");
    else if (n.old == n.here)
        (void)snprintf(why, REASON_MAX,
                       "all workers here are of an older release, which does not know such jobs; "
                       "upgrade one");
    else if (n.able == 0)
        (void)snprintf(why, REASON_MAX,
                       "no worker here runs trainers; start one with --allow-trainers");
    else if (lacks_helper(t, n.helpers))
        (void)snprintf(why, REASON_MAX,
                       "sampling with remote experts takes one more worker than the %u that %s "
                       "here; start it, or sample without --remote",
                       n.here, n.here == 1 ? "is" : "are");
    else if (n.small == n.here) /* `skerry run` looks for these words */
        (void)snprintf(why, REASON_MAX, "no worker here has the memory: %.400s", t->reason);
    else if (n.quarantined == n.here)
        (void)snprintf(why, REASON_MAX, "%s in quarantine after failures%s%.190s",
                       n.here == 1 ? "the only worker is" : "all workers are",
                       t->reason[0] ? "; here it was: " : "", t->reason);
    else
        blocked = false;
    if (!blocked)
        why_open(t, n.idle, n.here, why);
    u->again = again;
    u->late = blocked;
}

static void tell_untaken(struct waiting *ctx, struct untaken *u)
{
    char what[128], more[32] = "";
    if (u->first == NULL)
        return;
    if (u->n > 1)
        (void)snprintf(more, sizeof(more), " and %u more", u->n - 1);
    (void)snprintf(what, sizeof(what), "%s task %llu%s", task_kind_name(u->first->kind),
                   (unsigned long long)u->first->id, more);
    tell(ctx, u->first->job_id, u->first->id, 0, what, u->why, from_now(ctx->co, u->again),
         u->late);
    u->first = NULL;
}

/* Does why_untaken() have the same answer for both? */
static bool waits_alike(const struct task *a, const struct task *b)
{
    return a->job_id == b->job_id && a->kind == b->kind && a->path == b->path && a->failed.n == 0 &&
           b->failed.n == 0 && a->not_before_ms == 0 && b->not_before_ms == 0 &&
           task_is_remote(a) == task_is_remote(b) && strcmp(a->reason, b->reason) == 0;
}

static void wait_for_taker(struct waiting *ctx, const struct task *t, struct untaken *u)
{
    const bool near =
        u->first != NULL && u->first->job_id == t->job_id && u->first->kind == t->kind;
    struct untaken now = {.first = t, .n = 1, .looks = near ? u->looks + 1 : 1};
    if (u->first != NULL && waits_alike(u->first, t)) {
        u->n++;
        return;
    }
    if (is_full(ctx) || now.looks > LOOKS_OF_RUN || ctx->looks == VIEW_WAITING_MAX) {
        ctx->untold++;
        return;
    }
    ctx->looks++;
    why_untaken(ctx, &now);
    if (near && u->again == now.again && strcmp(u->why, now.why) == 0) {
        u->looks = now.looks;
        u->n++;
        return;
    }
    tell_untaken(ctx, u);
    *u = now;
}

/* Adds the module if its outer step's lateness is `late`; a failed step is late. */
static void wait_for_module(struct waiting *ctx, const struct job *j, const struct module_rec *m,
                            bool late)
{
    char what[128], why[REASON_MAX];
    if (j->state != JOB_RUNNING || m->version >= (uint64_t)j->spec.outer.rounds ||
        (m->retry_ms != 0) != late)
        return;
    (void)snprintf(what, sizeof(what), "version %llu of module %llu (%s)",
                   (unsigned long long)m->version + 1, (unsigned long long)m->id, j->spec.name);
    uint64_t until = m->retry_ms;
    if (until == 0 && m->quorum_ms != 0 && j->spec.outer.grace > 0)
        until = m->quorum_ms + (uint64_t)(j->spec.outer.grace * 1e3);
    (void)str_copy(why, sizeof(why),
                   m->at_worker != NULL ? "a worker is to make the outer step"
                   : m->outer_task != 0 ? "the outer step is running"
                                        : m->outer_reason);
    if (m->outer_task == 0 && m->retry_ms > core_now(ctx->co))
        (void)snprintf(why, sizeof(why), "%.60s: %.190s", m->outer_reason, m->outer_error);
    tell(ctx, j->id, m->outer_task, 0, what, why, from_now(ctx->co, until), late);
}

/* Adds "k of n done" of a stage for whose tasks the job waits. */
static void wait_for_stage(struct waiting *ctx, const struct job *j)
{
    struct view_job v;
    char what[128], why[REASON_MAX];
    if (view_job(ctx->co, j->id, &v, NULL) < 0 || v.stage_total < 2)
        return; /* the line of a single task says more */
    (void)snprintf(what, sizeof(what), "%s of job %llu (%.60s)", v.state, (unsigned long long)j->id,
                   j->spec.name);
    (void)snprintf(why, sizeof(why), "%u of %u tasks done%s%.160s", v.stage_done, v.stage_total,
                   j->reason[0] ? ": " : "", j->reason);
    tell(ctx, j->id, 0, 0, what, why, -1, false);
}

static void wait_for_disk(struct waiting *ctx)
{
    char why[REASON_MAX];
    (void)snprintf(why, sizeof(why), "a commit to the database has been under way for %llu s",
                   (unsigned long long)(core_writing_ms(ctx->co) / 1000));
    tell(ctx, 0, 0, 0,
         ctx->co->ship ? "the disk of the data dir, or the store" : "the disk of the data dir", why,
         -1, true);
}

static void wait_for_store(struct waiting *ctx)
{
    struct blob_health h;
    char what[128], why[REASON_MAX];
    if (ctx->co->blobs->ops->health == NULL)
        return;
    ctx->co->blobs->ops->health(ctx->co->blobs, &h);
    if (h.failing_since_unix_ms == 0)
        return;
    (void)snprintf(what, sizeof(what), "the object store (%llu blob%s to be sent)",
                   (unsigned long long)h.waiting, str_plural(h.waiting));
    (void)snprintf(why, sizeof(why), "%.250s", h.error);
    tell(ctx, 0, 0, 0, what, why, -1, true);
}

/* Adds the workers whose identity others use, too, of which nothing else would be seen. */
static void wait_for_twins(struct waiting *ctx)
{
    char what[128], why[REASON_MAX];
    for (int i = 0; i < TWINS_MAX; i++) {
        const uint64_t id = ctx->co->twins[i].worker_id;
        const struct worker *w = id ? state_worker(&ctx->co->state, id) : NULL;
        const unsigned n = w != NULL ? twins_of(ctx->co, id) : 0;
        bool told = n == 0;
        for (int k = 0; k < i && !told; k++)
            told = ctx->co->twins[k].worker_id == id;
        if (told)
            continue;
        (void)snprintf(what, sizeof(what), "worker %llu (%s)", (unsigned long long)id, w->name);
        (void)snprintf(why, sizeof(why),
                       "%u other process%s use%s its identity, and must wait: remove identity, "
                       "tls-key.pem and tls-cert.pem from copies of its work dir",
                       n, n == 1 ? "" : "es", n == 1 ? "s" : "");
        tell(ctx, 0, 0, id, what, why, -1, true);
    }
}

/* Adds the jobs' modules whose lateness is `late`; before the late ones, each job's stage. */
static void wait_for_jobs(struct waiting *ctx, uint64_t job_id, bool late)
{
    for (size_t i = 0; i < ctx->co->state.n_jobs; i++) {
        const struct job *j = ctx->co->state.jobs[i];
        if ((job_id != 0 && j->id != job_id) || job_is_ended(j))
            continue;
        if (late)
            wait_for_stage(ctx, j);
        for (uint32_t m = 0; m < j->comp.n_modules; m++)
            wait_for_module(ctx, j, &j->modules[m], late);
    }
}

/* Adds tasks that workers have and whose lateness is `late`, or tasks that nobody has. */
static void wait_for_tasks(struct waiting *ctx, uint64_t job_id, enum task_state state, bool late)
{
    const struct state *s = &ctx->co->state;
    struct untaken untaken = {0};
    for (size_t i = 0; i < s->n_tasks; i++) {
        const struct task *t = s->tasks[i];
        if ((job_id != 0 && t->job_id != job_id) || t->kind == TASK_OUTER ||
            t->kind == TASK_CHECK || t->state != state) /* nobody waits for a CHECK */
            continue;
        if (state == TASK_PENDING)
            wait_for_taker(ctx, t, &untaken);
        else
            wait_for_worker(ctx, t, late);
    }
    tell_untaken(ctx, &untaken);
}

static void tell_untold(struct waiting *ctx)
{
    char what[64];
    if (ctx->untold == 0)
        return;
    (void)snprintf(what, sizeof(what), "%u more", ctx->untold);
    ctx->told--;
    tell(ctx, 0, 0, 0, what, "they are listed by `skerry tasks` and `skerry workers`", -1, false);
}

void view_each_waiting(struct coordinator *co, uint64_t job_id, view_waiting_fn fn, void *arg)
{
    struct waiting ctx = {.co = co, .fn = fn, .arg = arg};
    unsigned here = 0;
    for (size_t i = 0; i < co->state.n_workers && here < 2; i++)
        here += co->state.workers[i]->state == WORKER_HERE;
    ctx.alone = here < 2;
    if (view_is_slow(co))
        wait_for_disk(&ctx);
    if (!co->store_ok)
        tell(&ctx, 0, 0, 0, "the coordinator's state", co->store_error, CORE_COMMIT_RETRY_MS, true);
    wait_for_store(&ctx);
    if (job_id == 0)
        wait_for_twins(&ctx);
    wait_for_jobs(&ctx, job_id, true);
    wait_for_tasks(&ctx, job_id, TASK_LEASED, true);
    wait_for_tasks(&ctx, job_id, TASK_PENDING, false);
    wait_for_jobs(&ctx, job_id, false); /* before workers: a module's line covers all of its own */
    wait_for_tasks(&ctx, job_id, TASK_LEASED, false);
    tell_untold(&ctx);
}
