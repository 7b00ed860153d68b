#include "tests/sim/worker.h"

#include <sys/stat.h>

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "coordinator/state/task.h"
#include "proto/skerry.pb-c.h"
#include "tests/sim/cache.h"
#include "tests/sim/claims.h"
#include "tests/sim/http.h"
#include "tests/sim/net.h"
#include "tests/sim/oracle.h"
#include "tests/sim/result.h"
#include "tests/sim/sim.h"
#include "tests/sim/world.h"
#include "tests/unit/blobs.h"

#define BEAT_MS 2000
#define PATIENCE_MS 20000 /* for an answer, then it dials again */
#define WAIT_MS 15000     /* of ASSIGN */
#define METHODS 64

enum work {
    WORK_NONE,
    WORK_FETCHES,
    WORK_COMPUTES,
    WORK_SENDS, /* its result */
};

struct worker_sim {
    unsigned number;
    bool evil, sly; /* sly: in outer steps alone */
    bool small;     /* it has no memory for phases */
    bool runs, joined, assigning, leaves, notice;
    char *scratch;
    uint8_t identity[16], instance[16], key[32];
    uint64_t id;
    struct net_conn *conn;
    uint64_t beat, step, dial, send, go; /* events to come */
    uint64_t waits_since_ms;             /* for an answer; 0: for none */
    uint64_t calls, last[METHODS];       /* by method: the one whose answer counts */
    unsigned step_ms;                    /* how fast it is */
    /* in hand */
    enum work work;
    Skerry__V1__AssignReply *reply;
    const Skerry__V1__Task *task;
    uint32_t steps, total, given, merged; /* given, merged: fragments */
    uint32_t asks;                        /* experts that others evaluate before it can go on */
    bool merges;                          /* waits for the version that is merged next */
    const Skerry__V1__Blob *needs[RESULT_NEEDS_MAX];
    char *bases[RESULT_NEEDS_MAX];
    size_t n_needs, fetched;
    struct result snapshot, result;
    struct cache *cache;
    struct http_call *get, *put; /* under way */
    char *url;                   /* of its last ticket for an upload */
    bool was_cut, lies;          /* that upload; lies: sends other bytes */
    bool holds, pretends;        /* evil: it never ends; says that it gets on for all that */
};

#define METHOD(name) SKERRY__V1__METHOD__METHOD_##name

static void dial(void *arg);
static void step(void *arg);
static void ask(struct worker_sim *w);
static void send_next(struct worker_sim *w);

static void after(uint64_t *event, uint64_t ms, sim_fn fn, struct worker_sim *w)
{
    sim_cancel(*event);
    *event = sim_in(ms, fn, w);
}

static void call(struct worker_sim *w, uint16_t method, const ProtobufCMessage *msg)
{
    if (w->conn == NULL)
        return;
    if (w->waits_since_ms == 0)
        w->waits_since_ms = sim_now_ms();
    w->last[method] = ++w->calls;
    net_send(w->conn, method, w->calls, msg);
}

/* ---- a task in hand -------------------------------------------------------- */

static void drop_bases(struct worker_sim *w)
{
    for (size_t i = 0; i < RESULT_NEEDS_MAX; i++) {
        mem_free(w->bases[i]);
        w->bases[i] = NULL;
    }
}

static void drop_task(struct worker_sim *w)
{
    result_release(&w->snapshot);
    result_release(&w->result);
    drop_bases(w);
    http_hang_up(w->get);
    http_hang_up(w->put);
    w->get = w->put = NULL;
    w->fetched = 0;
    if (w->reply != NULL)
        skerry__v1__assign_reply__free_unpacked(w->reply, NULL);
    w->reply = NULL;
    w->task = NULL;
    w->work = WORK_NONE;
    w->holds = w->pretends = w->merges = false;
    w->asks = 0;
    sim_cancel(w->step);
    sim_cancel(w->send);
    w->step = w->send = 0;
    w->last[METHOD(TICKET)] = w->last[METHOD(REPORT)] = 0;
    w->last[METHOD(EVALUATE)] = w->last[METHOD(VERSION)] = 0;
}

/* What goes on the wire next: a snapshot first, then the result. */
static struct result *in_flight(struct worker_sim *w)
{
    return w->snapshot.report != NULL ? &w->snapshot : w->result.report != NULL ? &w->result : NULL;
}

static void again(void *arg)
{
    struct worker_sim *w = arg;
    w->send = 0;
    send_next(w);
}

static void put(struct worker_sim *w, bool asks, uint64_t from);

static void on_put(void *arg, const struct http_said *s)
{
    struct worker_sim *w = arg;
    struct result *r = in_flight(w);
    w->put = NULL;
    if (w->lies && s->status == 201)
        sim_fail("other bytes were taken for a blob");
    w->was_cut = s->status == 0;
    if (s->status == 200 || s->status == 201) {
        r->n_sent++;
        send_next(w);
    } else if (s->status == 308) {
        put(w, false, s->have < r->blobs[r->n_sent].len ? s->have : 0);
    } else {
        sim_say("w%u: an upload is answered with %u", w->number, s->status);
        after(&w->send, 1000, again, w); /* the transfer is tried again */
    }
}

/* The rest of the blob, or the question how much of it is there. */
static void put(struct worker_sim *w, bool asks, uint64_t from)
{
    const struct result *r = in_flight(w);
    const struct result_blob *b = &r->blobs[r->n_sent];
    char range[96] = "", *bytes = memcpy(mem_alloc(b->len + 1), b->data, b->len);
    if (asks)
        (void)snprintf(range, sizeof(range), "bytes */%zu", b->len);
    else if (from > 0)
        (void)snprintf(range, sizeof(range), "bytes %llu-%zu/%zu", (unsigned long long)from,
                       b->len - 1, b->len);
    w->lies = w->evil && !w->sly && !asks && sim_chance(100);
    bytes[from] ^= w->lies;
    const struct http_ask a = {"PUT",        w->url,
                               NULL,         range[0] != '\0' ? range : NULL,
                               bytes + from, asks ? 0 : b->len - (size_t)from};
    w->put = http_ask(&a, on_put, w);
    mem_free(bytes);
    if (w->put == NULL)
        after(&w->send, 1000, again, w);
}

static void sent(void *arg)
{
    struct worker_sim *w = arg;
    const struct result *r = in_flight(w);
    w->send = 0;
    if (r != NULL && r->n_sent < r->n_blobs && w->put == NULL)
        put(w, w->was_cut, 0);
}

/* Has another worker evaluate an expert at what it has sent. */
static void evaluate(struct worker_sim *w, const struct result_blob *input)
{
    const Skerry__V1__Experts *all = w->task->mixture->experts;
    Skerry__V1__EvaluateRequest m = SKERRY__V1__EVALUATE_REQUEST__INIT;
    Skerry__V1__Blob b = SKERRY__V1__BLOB__INIT;
    b.sha256.data = (uint8_t *)input->id.sha256;
    b.sha256.len = 32;
    b.size = input->len;
    m.task_id = w->task->id;
    m.attempt = w->task->attempt;
    m.path = all->expert[w->asks % all->n_expert]->path;
    m.input = &b;
    m.wait_ms = WAIT_MS;
    call(w, METHOD(EVALUATE), &m.base);
}

/* Asks whether the next blob is needed, or reports when all are there. */
static void send_next(struct worker_sim *w)
{
    struct result *r = in_flight(w);
    if (r == NULL || !w->joined || w->conn == NULL || w->put != NULL)
        return;
    if (r->n_sent < r->n_blobs) {
        struct result_blob *b = &r->blobs[r->n_sent];
        Skerry__V1__TicketRequest m = SKERRY__V1__TICKET_REQUEST__INIT;
        m.task_id = w->task->id;
        m.attempt = w->task->attempt;
        m.sha256.data = b->id.sha256;
        m.sha256.len = 32;
        m.size = b->len;
        call(w, METHOD(TICKET), &m.base);
        return;
    }
    if (r->asks) {
        evaluate(w, &r->blobs[0]);
        return;
    }
    Skerry__V1__ReportRequest *m =
        skerry__v1__report_request__unpack(NULL, r->report_len, r->report);
    call(w, METHOD(REPORT), &m->base);
    skerry__v1__report_request__free_unpacked(m, NULL);
}

static void finish(struct worker_sim *w, enum lie lie);

static void keep_base(struct worker_sim *w, const void *data, size_t len)
{
    const Skerry__V1__Blob *b = w->needs[w->fetched];
    uint8_t got[HASH_BYTES];
    char name[32];
    struct err err = {0};
    hash_sha256(data, len, got);
    if (memcmp(got, b->sha256.data, sizeof(got)) != 0)
        sim_fail("w%u is sent other bytes than task %llu names (%zu)", w->number,
                 (unsigned long long)w->task->id, w->fetched);
    (void)snprintf(name, sizeof(name), "base.%zu", w->fetched);
    mem_free(w->bases[w->fetched]);
    w->bases[w->fetched] = file_join(w->scratch, name);
    if (file_write_atomic(w->bases[w->fetched++], data, len, 0600, &err) < 0)
        sim_fail("%s", err.msg);
}

static void on_get(void *arg, const struct http_said *s)
{
    struct worker_sim *w = arg;
    w->get = NULL;
    if (s->status == 200)
        keep_base(w, s->body, s->len);
    else if (s->status != 0 && s->status != 503) {
        sim_say("w%u: a blob is answered with %u", w->number, s->status);
        finish(w, LIE_FAILED);
        return;
    }
    after(&w->step, sim_below(s->status == 200 ? 50 : 1000), step, w);
}

/* The next file that the task needs; false: all are here. */
static bool fetch(struct worker_sim *w)
{
    if (w->fetched == w->n_needs)
        return false;
    const Skerry__V1__Blob *b = w->needs[w->fetched];
    const char *at = b != NULL ? strstr(b->url, "/v1/") : NULL;
    if (at == NULL)
        sim_fail("w%u cannot fetch what task %llu needs (%zu)", w->number,
                 (unsigned long long)w->task->id, w->fetched);
    w->get = http_ask(&(struct http_ask){.method = "GET", .target = at}, on_get, w);
    if (w->get == NULL)
        after(&w->step, 1000, step, w);
    return true;
}

static enum lie some_lie(struct worker_sim *w)
{
    if (w->small && w->task->train != NULL)
        return LIE_MEMORY;
    if (!w->evil || (w->sly && w->task->outer == NULL) || !sim_chance(700))
        return LIE_NONE;
    if ((int)w->task->kind == TASK_INIT && sim_chance(700))
        return LIE_NAN; /* of no network */
    if (w->task->train == NULL && w->task->outer == NULL && sim_chance(500))
        return LIE_HUGE; /* which nobody sees in a result that others can make again */
    return w->sly ? (enum lie)sim_between(LIE_HUGE, LIE_BASE) : (enum lie)sim_below(LIES);
}

static void finish(struct worker_sim *w, enum lie lie)
{
    char *scratch = file_join(w->scratch, "out");
    w->work = WORK_SENDS;
    result_make(w->task, w->bases, scratch, lie, &w->result);
    for (size_t i = 0; i < w->result.n_blobs; i++)
        if (w->result.blobs[i].lie)
            claims_add(w->id, w->result.blobs[i].id.sha256);
    mem_free(scratch);
    if (w->snapshot.report == NULL)
        send_next(w);
}

/* The next fragment that is due and that no attempt has given. */
static void give_fragment(struct worker_sim *w)
{
    const Skerry__V1__TrainTask *t = w->task->train;
    while (w->given < t->n_fragments && t->fragments[w->given]->done)
        w->given++;
    if (w->given == t->n_fragments || t->fragments[w->given]->step > w->steps ||
        w->steps >= w->total)
        return;
    char *scratch = file_join(w->scratch, "out");
    result_part(w->task, t->fragments[w->given++]->level, w->bases, scratch, &w->snapshot);
    mem_free(scratch);
    send_next(w);
}

static void save(struct worker_sim *w)
{
    if (w->task->train != NULL && w->task->train->n_fragments > 0 && w->snapshot.report == NULL) {
        give_fragment(w);
        return;
    }
    if (w->task->train == NULL || w->task->train->snapshot_ms == 0 || w->snapshot.report != NULL ||
        w->steps >= w->total || !sim_chance(300))
        return;
    char *scratch = file_join(w->scratch, "out");
    result_snapshot(w->task, w->steps, w->total, w->bases, scratch, &w->snapshot);
    mem_free(scratch);
    send_next(w);
}

/* ---- within a task ---------------------------------------------------------- */

/* What the versions that came make of those that it holds. */
static bool build(struct worker_sim *w)
{
    char *made[RESULT_MODULES_MAX] = {NULL};
    const bool right = cache_build(w->cache, w->task, w->bases, made);
    drop_bases(w);
    memcpy(w->bases, made, sizeof(made));
    return right;
}

static void ask_expert(struct worker_sim *w)
{
    result_input(w->task, w->asks, &w->snapshot);
    send_next(w);
}

static bool merge_is_due(struct worker_sim *w)
{
    const Skerry__V1__TrainTask *t = w->task->train;
    while (t != NULL && w->merged < w->given && t->fragments[w->merged]->done)
        w->merged++;
    return t != NULL && w->merged < w->given &&
           t->fragments[w->merged]->step + t->delay <= w->steps;
}

static void merge(void *arg)
{
    struct worker_sim *w = arg;
    const Skerry__V1__TrainTask *t = w->task->train;
    Skerry__V1__VersionRequest m = SKERRY__V1__VERSION_REQUEST__INIT;
    sim_cancel(w->step);
    w->step = 0;
    w->merges = true;
    m.task_id = w->task->id;
    m.attempt = w->task->attempt;
    m.module_id = w->task->modules[t->fragments[w->merged]->level]->module_id;
    m.version = t->round + 1;
    m.held = UINT64_MAX;
    m.wait_ms = WAIT_MS;
    call(w, METHOD(VERSION), &m.base);
}

static void step(void *arg)
{
    struct worker_sim *w = arg;
    w->step = 0;
    if (w->work == WORK_FETCHES) {
        if (fetch(w))
            return;
        if (w->task->train != NULL && (!build(w) || !result_fits(w->task, w->bases))) {
            finish(w, LIE_FAILED);
            return;
        }
        w->work = WORK_COMPUTES;
    } else if (w->asks > 0) {
        ask_expert(w);
        return;
    } else if (++w->steps >= w->total && !w->pretends) {
        if (!w->holds)
            finish(w, some_lie(w));
        return;
    } else if (w->steps < w->total) {
        save(w);
        if (merge_is_due(w)) {
            merge(w);
            return;
        }
    }
    after(&w->step, sim_below(2 * w->step_ms), step, w);
}

/* Takes reply. */
static void begin(struct worker_sim *w, Skerry__V1__AssignReply *reply)
{
    drop_task(w);
    w->reply = reply;
    w->task = reply->task;
    const Skerry__V1__TrainTask *t = w->task->train;
    w->total = t != NULL ? 6 : (uint32_t)sim_between(1, 3);
    if (t != NULL && t->steps > 0 && t->steps < w->total)
        w->total = t->steps;
    w->steps = t != NULL && t->resume != NULL ? t->resume->steps : 0;
    w->given = w->merged = 0;
    w->asks = w->task->sample != NULL && w->task->mixture != NULL && w->task->mixture->remote
                  ? (uint32_t)sim_between(1, 3)
                  : 0;
    w->work = WORK_FETCHES;
    w->holds = w->evil && !w->sly && sim_chance(50);
    w->pretends = w->holds && sim_chance(500);
    if (w->task->n_modules > RESULT_MODULES_MAX)
        sim_fail("a task has %zu modules", w->task->n_modules);
    w->n_needs = t != NULL ? cache_needs(w->task, w->needs) : result_needs(w->task, w->needs);
    oracle_task(w->id, w->task);
    after(&w->step, sim_below(w->step_ms), step, w);
}

/* ---- answers ---------------------------------------------------------------- */

static void leave(struct worker_sim *w, uint32_t notice_ms)
{
    Skerry__V1__LeaveRequest m = SKERRY__V1__LEAVE_REQUEST__INIT;
    m.reason = (char *)(uintptr_t) "its machine goes";
    m.notice_ms = notice_ms;
    call(w, METHOD(LEAVE), &m.base);
}

/* Some are of the release beside ours. */
static char *release(const struct worker_sim *w, char other[32])
{
    unsigned major = 0, minor = 0;
    (void)sscanf(SKERRY_VERSION, "%u.%u", &major, &minor);
    (void)snprintf(other, 32, "%u.%u.0", major, minor > 0 ? minor - 1 : 1);
    return w->number % 5 == 4 ? other : (char *)(uintptr_t)SKERRY_VERSION;
}

static void join(struct worker_sim *w)
{
    Skerry__V1__JoinRequest m = SKERRY__V1__JOIN_REQUEST__INIT;
    char name[16], other[32];
    (void)snprintf(name, sizeof(name), "w%u", w->number);
    m.name = name;
    m.device = (char *)(uintptr_t) "none";
    m.version = release(w, other);
    m.allows_trainers = w->number % 3 == 0;
    m.reads = w->number % 5 == 4 ? SKERRY__V1__READS__READS_UNSPECIFIED
                                 : SKERRY__V1__READS__READS_CASCADE_EXPERTS;
    m.price_per_hour = w->number % 2;
    m.instance.data = w->instance;
    m.identity.data = w->identity;
    m.instance.len = m.identity.len = 16;
    m.fetches_ahead = w->number % 2 == 1; /* and never does */
    w->joined = false;
    call(w, METHOD(JOIN), &m.base);
}

static void ask_again(void *arg)
{
    struct worker_sim *w = arg;
    w->go = 0;
    ask(w);
}

static void ask(struct worker_sim *w)
{
    Skerry__V1__AssignRequest m = SKERRY__V1__ASSIGN_REQUEST__INIT;
    if (!w->joined || w->conn == NULL || w->work != WORK_NONE || w->assigning)
        return;
    if (w->leaves) {
        leave(w, 0);
        return;
    }
    Skerry__V1__HeldVersion held[CACHE_MODULES_MAX], *list[CACHE_MODULES_MAX];
    m.n_held = cache_held(w->cache, held);
    for (size_t i = 0; i < m.n_held; i++)
        list[i] = &held[i];
    m.held = list;
    m.wait_ms = WAIT_MS;
    w->assigning = true;
    call(w, METHOD(ASSIGN), &m.base);
}

static void take_verdicts(struct worker_sim *w, Skerry__V1__Applied **list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        oracle_verdict(w->id, list[i]);
}

static void on_join(struct worker_sim *w, const uint8_t *bytes, size_t len)
{
    Skerry__V1__JoinReply *m = skerry__v1__join_reply__unpack(NULL, len, bytes);
    w->id = m->worker_id;
    w->joined = true;
    w->assigning = false;
    skerry__v1__join_reply__free_unpacked(m, NULL);
    if (w->notice)
        leave(w, 30000);
    if (w->work == WORK_NONE)
        ask(w);
    else
        send_next(w);
    if (w->merges)
        merge(w);
}

static void on_assign(struct worker_sim *w, const uint8_t *bytes, size_t len)
{
    Skerry__V1__AssignReply *m = skerry__v1__assign_reply__unpack(NULL, len, bytes);
    w->assigning = false;
    take_verdicts(w, m->applied, m->n_applied);
    w->leaves |= m->drain;
    if (m->task != NULL && w->work == WORK_NONE) {
        begin(w, m);
        return;
    }
    skerry__v1__assign_reply__free_unpacked(m, NULL);
    after(&w->go, sim_below(100), ask_again, w);
}

static void on_heartbeat(struct worker_sim *w, const uint8_t *bytes, size_t len)
{
    Skerry__V1__HeartbeatReply *m = skerry__v1__heartbeat_reply__unpack(NULL, len, bytes);
    take_verdicts(w, m->applied, m->n_applied);
    w->leaves |= m->drain;
    if (m->rejoin) {
        join(w);
    } else if (w->task != NULL && m->revoked_task_id == w->task->id &&
               m->revoked_attempt == w->task->attempt) {
        sim_say("w%u stops task %llu: %s", w->number, (unsigned long long)w->task->id,
                m->revoked_reason);
        drop_task(w);
        ask(w);
    }
    skerry__v1__heartbeat_reply__free_unpacked(m, NULL);
}

static void on_ticket(struct worker_sim *w, const uint8_t *bytes, size_t len)
{
    Skerry__V1__TicketReply *m = skerry__v1__ticket_reply__unpack(NULL, len, bytes);
    struct result *r = in_flight(w);
    const bool have = m->have;
    const char *at = strstr(m->url, "/v1/");
    if (at != NULL) {
        mem_free(w->url);
        w->url = str_dup(at);
    }
    skerry__v1__ticket_reply__free_unpacked(m, NULL);
    if (r == NULL || r->n_sent == r->n_blobs || w->send != 0 || w->put != NULL)
        return;
    if (have) {
        r->n_sent++;
        send_next(w);
    } else {
        after(&w->send, sim_below(sim_chance(50) ? 30000 : 1000), sent, w);
    }
}

static void on_report(struct worker_sim *w, const uint8_t *bytes, size_t len)
{
    struct result *r = in_flight(w);
    if (r == NULL || r->n_sent < r->n_blobs)
        return;
    Skerry__V1__ReportReply *m = skerry__v1__report_reply__unpack(NULL, len, bytes);
    Skerry__V1__ReportRequest *q =
        skerry__v1__report_request__unpack(NULL, r->report_len, r->report);
    const bool whole = r == &w->result;
    sim_say("w%u: task %llu, attempt %u, %s: %s%s", w->number, (unsigned long long)q->task_id,
            q->attempt, whole ? "result" : "snapshot",
            m->accepted ? "accepted" : "refused: ", m->reason);
    if (m->accepted)
        oracle_accepted(w->id, q, w->task->kind, w->task->job_id);
    skerry__v1__report_reply__free_unpacked(m, NULL);
    skerry__v1__report_request__free_unpacked(q, NULL);
    result_release(r);
    if (whole) {
        drop_task(w);
        ask(w);
    } else {
        send_next(w);
    }
}

static void on_version(struct worker_sim *w, const uint8_t *bytes, size_t len)
{
    Skerry__V1__VersionReply *m = skerry__v1__version_reply__unpack(NULL, len, bytes);
    const bool over = m->module != NULL || m->later;
    if (m->module != NULL && m->module->version <= w->task->train->round)
        sim_fail("w%u merges version %llu in round %u", w->number,
                 (unsigned long long)m->module->version, w->task->train->round);
    if (m->module != NULL)
        oracle_module(w->id, w->task, m->module);
    skerry__v1__version_reply__free_unpacked(m, NULL);
    if (!over) {
        merge(w);
        return;
    }
    w->merges = false;
    w->merged++;
    after(&w->step, sim_below(2 * w->step_ms), step, w);
}

static void on_evaluate(struct worker_sim *w, const uint8_t *bytes, size_t len)
{
    Skerry__V1__EvaluateReply *m = skerry__v1__evaluate_reply__unpack(NULL, len, bytes);
    const bool over = m->output != NULL;
    skerry__v1__evaluate_reply__free_unpacked(m, NULL);
    if (!over) {
        send_next(w);
        return;
    }
    result_release(&w->snapshot);
    w->asks--;
    after(&w->step, sim_below(2 * w->step_ms), step, w);
}

static void on_refused(struct worker_sim *w, uint16_t method, int code, uint32_t retry_ms)
{
    const uint64_t ms = retry_ms ? retry_ms : 1000;
    if (method == METHOD(ASSIGN))
        w->assigning = false;
    if (method == METHOD(JOIN)) {
        net_close(w->conn, false);
        w->conn = NULL;
        w->joined = false;
        after(&w->dial, ms, dial, w);
    } else if (code == -ERR_STALE && retry_ms == 0 && method != METHOD(REPORT)) {
        drop_task(w); /* the lease is gone */
        ask(w);
    } else if (code == -ERR_STALE) {
        join(w);
    } else if (method == METHOD(VERSION)) {
        after(&w->step, ms, merge, w);
    } else if (method == METHOD(EVALUATE) && retry_ms == 0) {
        result_release(&w->snapshot);
        w->asks = 0;
        finish(w, LIE_FAILED);
    } else if (method == METHOD(EVALUATE)) {
        after(&w->send, ms, again, w);
    } else if (method == METHOD(ASSIGN)) {
        after(&w->go, ms, ask_again, w);
    } else if (method == METHOD(REPORT) || method == METHOD(TICKET)) {
        after(&w->send, ms, again, w);
    }
}

static void on_reply(void *arg, const struct net_reply *r)
{
    struct worker_sim *w = arg;
    w->waits_since_ms = 0;
    if (r->call != w->last[r->method])
        return;
    if (r->code != 0)
        on_refused(w, r->method, r->code, r->retry_ms);
    else if (r->method == METHOD(JOIN))
        on_join(w, r->bytes, r->len);
    else if (r->method == METHOD(ASSIGN))
        on_assign(w, r->bytes, r->len);
    else if (r->method == METHOD(HEARTBEAT))
        on_heartbeat(w, r->bytes, r->len);
    else if (r->method == METHOD(TICKET))
        on_ticket(w, r->bytes, r->len);
    else if (r->method == METHOD(REPORT))
        on_report(w, r->bytes, r->len);
    else if (r->method == METHOD(VERSION))
        on_version(w, r->bytes, r->len);
    else if (r->method == METHOD(EVALUATE))
        on_evaluate(w, r->bytes, r->len);
    else if (r->method == METHOD(LEAVE) && w->leaves)
        worker_sim_kill(w, false, true);
}

/* ---- the connection --------------------------------------------------------- */

static void on_open(void *arg)
{
    join(arg);
}

static void on_closed(void *arg)
{
    struct worker_sim *w = arg;
    w->conn = NULL;
    w->joined = w->assigning = false;
    w->waits_since_ms = 0;
    after(&w->dial, sim_below(3000), dial, w);
}

static void new_machine(struct worker_sim *w)
{
    sim_bytes(w->identity, sizeof(w->identity));
    sim_bytes(w->key, sizeof(w->key));
    mem_free(w->url);
    w->url = NULL;
    w->id = 0;
    cache_clear(w->cache);
}

static void dial(void *arg)
{
    struct worker_sim *w = arg;
    const struct net_client c = {w->key, w, on_open, on_reply, on_closed};
    bool refused = false;
    w->dial = 0;
    if (w->conn != NULL || (w->conn = net_dial(&c, &refused)) != NULL)
        return;
    if (refused) { /* it was revoked: its machine is set up anew */
        drop_task(w);
        new_machine(w);
    }
    after(&w->dial, sim_between(200, 10000), dial, w);
}

/* Says that it holds what is not its own. */
static void claim_others(struct worker_sim *w, Skerry__V1__Progress *p)
{
    p->task_id = sim_between(1, 60);
    p->attempt = (uint32_t)sim_between(1, 3);
    p->steps_done = (uint32_t)sim_below(100);
    p->samples_done = sim_below(100);
}

static void beat(void *arg)
{
    struct worker_sim *w = arg;
    Skerry__V1__HeartbeatRequest m = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    Skerry__V1__Progress p = SKERRY__V1__PROGRESS__INIT;
    if (w->conn != NULL && w->waits_since_ms != 0 &&
        sim_now_ms() - w->waits_since_ms > WAIT_MS + PATIENCE_MS) {
        net_close(w->conn, false);
        on_closed(w);
    }
    after(&w->beat, BEAT_MS, beat, w);
    if (!w->joined || w->conn == NULL)
        return;
    if (w->task != NULL) {
        p.task_id = w->task->id;
        p.attempt = w->task->attempt;
        p.steps_done = w->steps;
        p.steps_total = w->total;
        p.samples_done = w->steps * 2;
        p.loss = 0.5f;
        m.progress = &p;
    }
    if (w->evil && !w->sly && sim_chance(200)) {
        claim_others(w, &p);
        m.progress = &p;
    }
    call(w, METHOD(HEARTBEAT), &m.base);
}

/* ---- its life --------------------------------------------------------------- */

struct worker_sim *worker_sim_new(unsigned number, enum worker_sim_heart heart, const char *scratch)
{
    struct worker_sim *w = mem_alloc(sizeof(*w));
    struct err err = {0};
    w->number = number;
    w->evil = heart != WORKER_SIM_HONEST;
    w->sly = heart == WORKER_SIM_SLY;
    w->scratch = str_dup(scratch);
    w->cache = cache_new(scratch);
    w->small = number == 1 && sim_chance(100);
    w->step_ms = (unsigned)sim_between(100, sim_chance(200) ? 20000 : 3000);
    if (file_mkdirs(scratch, 0700, &err) < 0)
        sim_fail("%s", err.msg);
    new_machine(w);
    return w;
}

void worker_sim_free(struct worker_sim *w)
{
    worker_sim_kill(w, true, true);
    cache_free(w->cache);
    mem_free(w->scratch);
    mem_free(w->url);
    mem_free(w);
}

bool worker_sim_runs(const struct worker_sim *w)
{
    return w->runs;
}

void worker_sim_start(struct worker_sim *w)
{
    if (w->runs)
        return;
    sim_say("w%u starts", w->number);
    w->runs = true;
    w->leaves = w->notice = false;
    sim_bytes(w->instance, sizeof(w->instance));
    after(&w->dial, sim_below(500), dial, w);
    after(&w->beat, sim_below(BEAT_MS), beat, w);
}

void worker_sim_kill(struct worker_sim *w, bool silently, bool keep)
{
    if (!w->runs)
        return;
    sim_say("w%u is gone%s", w->number, silently ? " silently" : "");
    drop_task(w);
    if (w->conn != NULL)
        net_close(w->conn, silently);
    w->conn = NULL;
    w->runs = w->joined = w->assigning = false;
    w->waits_since_ms = 0;
    sim_cancel(w->dial);
    sim_cancel(w->beat);
    sim_cancel(w->go);
    w->dial = w->beat = w->go = 0;
    if (!keep)
        new_machine(w);
}

void worker_sim_pause(struct worker_sim *w, uint64_t ms)
{
    if (!w->runs)
        return;
    sim_say("w%u stands still for %llu ms", w->number, (unsigned long long)ms);
    if (w->conn != NULL)
        net_block(w->conn, true, true, ms);
    after(&w->beat, ms, beat, w);
    if (w->step != 0)
        after(&w->step, ms, step, w);
}

void worker_sim_cut(struct worker_sim *w)
{
    if (w->conn == NULL)
        return;
    sim_say("the connection of w%u is cut", w->number);
    net_cut(w->conn);
}

void worker_sim_block(struct worker_sim *w, bool up, bool down, uint64_t ms)
{
    if (w->conn == NULL)
        return;
    sim_say("nothing gets%s%s w%u for %llu ms", up ? " from" : "", down ? " to" : "", w->number,
            (unsigned long long)ms);
    net_block(w->conn, up, down, ms);
}

void worker_sim_notice(struct worker_sim *w, uint64_t ms)
{
    if (!w->runs || w->leaves)
        return;
    sim_say("the machine of w%u goes", w->number);
    w->notice = true;
    if (w->joined && w->conn != NULL)
        leave(w, (uint32_t)ms);
    w->leaves = true;
}

void worker_sim_reform(struct worker_sim *w)
{
    w->evil = w->sly;
    w->holds = w->pretends = false;
}

uint64_t worker_sim_id(const struct worker_sim *w)
{
    return w->id;
}

static void on_intrusion(void *arg, const struct http_said *s)
{
    if (s->status != 0 && s->status != 401 && s->status != 403 && s->status != 503)
        sim_fail("an upload with a ticket of a worker that was revoked is answered with %u",
                 s->status);
}

void worker_sim_intrude(struct worker_sim *w)
{
    if (w->url == NULL)
        return;
    sim_say("w%u tries its ticket once more", w->number);
    /* How much is there: answered whenever the ticket counts. */
    (void)http_ask(&(struct http_ask){"PUT", w->url, NULL, "bytes */1", "", 0}, on_intrusion, NULL);
}
