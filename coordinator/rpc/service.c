#include "coordinator/rpc/service.h"

#include "common/net/blobstore.h"
#include "proto/skerry.pb-c.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/net/http/blob_http.h"
#include "common/net/token.h"
#include "coordinator/decide/admit.h"
#include "coordinator/job/early.h"
#include "coordinator/job/spot_check.h"
#include "coordinator/rpc/report.h"
#include "coordinator/rpc/assign.h"
#include "coordinator/rpc/claim.h"
#include "coordinator/rpc/neighbours.h"
#include "coordinator/kinds/sample.h"
#include "coordinator/kinds/train.h"
#include "coordinator/work/cost.h"
#include "coordinator/work/gc.h"
#include "coordinator/work/gone.h"
#include "coordinator/work/member.h"
#include "coordinator/work/metrics.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"
#include "coordinator/work/twins.h"
#include "coordinator/state/core.h"

#define WAIT_MAX_MS 30000u
#define BLOB_MAX_BYTES (1ull << 40)
#define RETRY_AFTER_MS 1000
#define JOIN_AGAIN_MS 10000 /* when no place is free, or the releases are too far apart */
/* Heartbeats per second answered to all newcomers together, and the most part of a lease that an
 * answer waits. */
#define NEWCOMERS_BEATS 2000u
#define LEASE_PARTS 4u

static bool may_pass(int code)
{
    return code == -ENOSPC || code == -EIO || code == -EAGAIN || code == -EBUSY;
}

static void refuse(struct rpc_request *req, const struct err *err)
{
    rpc_fail(req, err->code, may_pass(err->code), RETRY_AFTER_MS, "%s", err->msg);
}

static void refuse_send(struct coordinator *co, struct reply *r)
{
    rpc_fail(r->req, r->code, r->flag, r->attempt, "%s", r->text);
}

/* Refuses because of the state, once that is durable, or at once if nothing can be made durable. If
 * too many requests wait, the worker has to ask again. */
static void refuse_durably(struct coordinator *co, struct rpc_request *req, int code,
                           bool retryable, uint32_t retry_after_ms, const char *why)
{
    struct err err = {0};
    const int rc = core_writable(co, &err);
    if (rc == -EAGAIN) {
        refuse(req, &err);
        return;
    }
    if (rc < 0) {
        rpc_fail(req, code, retryable, retry_after_ms, "%s", why);
        return;
    }
    struct reply *r = core_reply_later(co, req, refuse_send);
    r->code = code;
    r->flag = retryable;
    r->attempt = retry_after_ms;
    (void)str_copy(r->text, sizeof(r->text), why);
    core_gather(co);
}

/* The same for a final refusal; a temporary one is sent at once. */
static void refuse_later(struct coordinator *co, struct rpc_request *req, const struct err *err,
                         uint32_t retry_after_ms)
{
    if (may_pass(err->code))
        rpc_fail(req, err->code, true, retry_after_ms, "%s", err->msg);
    else
        refuse_durably(co, req, err->code, false, retry_after_ms, err->msg);
}

/* The id of the worker that has joined on this connection; 0: none. */
static uint64_t joined_on(struct rpc_request *req)
{
    struct rpc_peer *peer = rpc_request_peer(req);
    return peer ? (uint64_t)(uintptr_t)rpc_peer_user(peer) : 0;
}

/* The worker that joined on this connection. */
static const struct worker *worker_of(struct coordinator *co, struct rpc_request *req)
{
    const struct worker *w = state_worker(&co->state, joined_on(req));
    return w != NULL && w->state == WORKER_HERE && w->peer == rpc_request_peer(req) ? w : NULL;
}

/* Is it durable that the connection's worker, which worker_of() does not find, is gone? */
static bool gone_durably(const struct coordinator *co, struct rpc_request *req)
{
    const uint64_t id = joined_on(req);
    const struct worker *w = state_worker(&co->state, id);
    if (w != NULL)
        return core_row_durable(co, &w->row);
    return id == 0 || core_gone_durable(co);
}

/* As worker_of(); NULL: the request is answered (JOIN must come first). */
static struct worker *need_worker(struct coordinator *co, struct rpc_request *req)
{
    static const char why[] = "this worker is not known here (any more): join again";
    struct worker *w = state_edit_worker(&co->state, worker_of(co, req));
    if (w != NULL)
        member_heard(co, w);
    else if (gone_durably(co, req))
        rpc_fail(req, -ERR_STALE, true, 0, "%s", why);
    else
        refuse_durably(co, req, -ERR_STALE, true, 0, why);
    return w;
}

/* The same, and the request's data can be written now. */
static struct worker *need_writer(struct coordinator *co, struct rpc_request *req)
{
    struct err err = {0};
    struct worker *w = need_worker(co, req);
    if (w == NULL || core_writable(co, &err) == 0)
        return w;
    refuse(req, &err);
    return NULL;
}

/* ---- JOIN ---------------------------------------------------------------- */

/* Is the worker here by another process?  While its connection is cut, nobody from elsewhere takes
 * its place, and no process that has asked for it before. */
static bool has_twin(const struct coordinator *co, const struct worker *w,
                     const struct rpc_peer *peer, const Skerry__V1__JoinRequest *m)
{
    if (w == NULL || w->state != WORKER_HERE || w->peer == peer || m->instance.len != 16)
        return false;
    return w->peer != NULL || twins_has(co, w, m->instance.data) ||
           worker_origin_of(w->token_id, rpc_peer_address(peer)) != worker_origin(w);
}

static int admit(struct coordinator *co, const Skerry__V1__JoinRequest *m,
                 const struct worker *known, const struct rpc_peer *peer, struct err *err)
{
    char reason[ADMIT_REASON_MAX];
    bool same = known != NULL && m->instance.len == 16 &&
                memcmp(known->instance, m->instance.data, 16) == 0;
    const struct admit_join in = {
        .workers = co->state.n_here,
        .workers_max = WORKERS_MAX,
        .known = known != NULL && known->state == WORKER_HERE,
        .same_instance = same,
        .twin_here = has_twin(co, known, peer, m),
        .other_key = known != NULL && known->has_key &&
                     (rpc_peer_key(peer) == NULL ||
                      memcmp(known->key, rpc_peer_key(peer), sizeof(known->key)) != 0),
        .version = m->version,
        .our_version = SKERRY_VERSION,
        .instance_len = m->instance.len,
        .identity_len = m->identity.len,
        .name_len = strlen(m->name),
    };
    int rc = admit_join(&in, reason);
    return rc < 0 ? err_set(err, rc, "%s", reason) : claim_join(co, peer, known, err);
}

/* Finds a known worker by its key, or by its identity if no key is on record. */
static const struct worker *find_worker(const struct coordinator *co, const struct rpc_peer *peer,
                                        const Skerry__V1__JoinRequest *m)
{
    const uint8_t *key = peer ? rpc_peer_key(peer) : NULL;
    const struct worker *w = key ? access_worker_by_key(&co->state, key) : NULL;
    if (w == NULL && m->identity.len == 16)
        w = access_worker_by_identity(&co->state, m->identity.data);
    return w;
}

/* Puts a newcomer's token and key on record. */
static void enrol(struct coordinator *co, struct worker *w, const struct rpc_peer *peer,
                  bool is_new)
{
    const uint8_t *key = rpc_peer_key(peer);
    if (is_new) {
        struct token_rec *t = access_edit(&co->state, rpc_peer_token(peer));
        w->token_id = rpc_peer_token(peer);
        if (t != NULL)
            t->uses++;
    }
    if (key == NULL || w->has_key)
        return;
    memcpy(w->key, key, sizeof(w->key));
    w->has_key = true;
}

/* A new process has nothing of what the old one held. */
static void new_instance(struct coordinator *co, struct worker *w, const Skerry__V1__JoinRequest *m)
{
    struct task *t = state_edit_task(&co->state, state_task(&co->state, w->task_id));
    if (t != NULL && t->state == TASK_LEASED && t->worker_id == w->id)
        task_requeue(co, t, "its worker was started anew");
    w->task_id = 0;
    memcpy(w->instance, m->instance.data, 16);
    memset(w->bytes_seen, 0, sizeof(w->bytes_seen));
    w->leaving = false; /* a person's drain stays until it has left */
    w->n_held = 0;
    memset(&w->ahead, 0, sizeof(w->ahead));
    w->lost_job = 0;
    w->n_small = 0; /* it may have another device now */
}

/* Takes a text that is shown in a line, or in a row of a table. */
static void take_line(char *to, size_t size, const char *from)
{
    (void)str_copy(to, size, from);
    str_make_line(to);
}

static void fill_worker(struct coordinator *co, struct worker *w, const Skerry__V1__JoinRequest *m,
                        struct rpc_peer *peer, bool again)
{
    memcpy(w->identity, m->identity.data, 16);
    take_line(w->name, sizeof(w->name), m->name);
    take_line(w->device, sizeof(w->device), m->device);
    if (strcmp(w->version, m->version) != 0)
        spot_check_upgraded(co, w);
    take_line(w->version, sizeof(w->version), m->version);
    (void)str_copy(w->address, sizeof(w->address), rpc_peer_address(peer));
    w->memory_bytes = m->memory_bytes;
    w->threads = m->threads;
    w->allows_trainers = m->allows_trainers;
    w->reads = m->reads;
    w->machine = 0;
    if (m->machine.len > 0) /* a worker of an older release does not say it */
        memcpy(&w->machine, m->machine.data,
               m->machine.len < sizeof(w->machine) ? m->machine.len : sizeof(w->machine));
    w->fetches_ahead = m->fetches_ahead;
    neighbours_take(w, m);
    cost_join(co, w, again, m->price_per_hour);
    w->state_reason[0] = '\0';
    state_set_worker_state(&co->state, w, WORKER_HERE);
    w->closed_ms = 0;
    w->heard_ms = w->joined_ms = core_now(co);
    if (w->joined_unix_ms == 0)
        w->joined_unix_ms = (int64_t)clock_wall_ms();
    worker_untell_verdicts(w);
}

static void attach(struct coordinator *co, struct worker *w, struct rpc_peer *peer)
{
    uint64_t id = (uint64_t)(uintptr_t)rpc_peer_user(peer);
    struct worker *other =
        id != w->id ? state_edit_worker(&co->state, state_worker(&co->state, id)) : NULL;
    if (other != NULL && other->peer == peer) { /* another identity on the same connection */
        member_unpark(co, other, "another worker has joined on this connection");
        member_closed(co, other);
    }
    if (w->peer != NULL && w->peer != peer) {
        rpc_peer_set_user(w->peer, NULL);
        rpc_peer_kick(w->peer, "the worker has connected anew");
    }
    w->peer = peer;
    rpc_peer_set_user(peer, (void *)(uintptr_t)w->id);
}

static void join_send(struct coordinator *co, struct reply *r)
{
    Skerry__V1__JoinReply msg = SKERRY__V1__JOIN_REPLY__INIT;
    msg.worker_id = r->worker_id;
    msg.heartbeat_ms = co->opt.heartbeat_ms;
    msg.lease_ms = co->opt.lease_ms;
    msg.now_s = clock_now_ns() / CLOCK_NS_PER_S;
    rpc_reply(r->req, &msg.base);
}

/* After how many ms a process that is refused as a twin asks again: once the lease has ended if the
 * worker is late, since it is lost then unless it is heard of. */
static uint32_t twin_again_ms(struct coordinator *co, const struct worker *w,
                              const uint8_t instance[16], bool *ret_new)
{
    const uint32_t ms = twins_refuse(co, w, instance, ret_new);
    const uint64_t now = core_now(co);
    struct lease_decision d;
    member_lease(co, w, &d);
    if (d.verdict == LEASE_ALIVE)
        return ms;
    const uint64_t again = d.until_ms > now ? d.until_ms - now + CORE_TICK_MS : RETRY_AFTER_MS;
    return again < ms ? (uint32_t)again : ms;
}

static void on_join(void *arg, struct rpc_request *req, const ProtobufCMessage *msg)
{
    struct coordinator *co = arg;
    const Skerry__V1__JoinRequest *m = (const Skerry__V1__JoinRequest *)(const void *)msg;
    struct rpc_peer *peer = rpc_request_peer(req);
    struct err err = {0};
    struct worker *w = state_edit_worker(&co->state, find_worker(co, peer, m));
    if (core_writable(co, &err) < 0 || peer == NULL || admit(co, m, w, peer, &err) < 0) {
        bool is_new = true;
        uint32_t again_ms = err.code == -EAGAIN ? JOIN_AGAIN_MS : RETRY_AFTER_MS;
        if (err.code == -EBUSY)
            again_ms = twin_again_ms(co, w, m->instance.data, &is_new);
        if (is_new)
            log_warn("member", "a worker was not admitted: %s address=%s", err.msg,
                     peer ? rpc_peer_address(peer) : "gone");
        refuse_later(co, req, &err, again_ms);
        return;
    }
    if (w == NULL && co->state.n_workers >= WORKERS_KNOWN_MAX)
        gone_make_room(co);
    const bool again = w != NULL && memcmp(w->instance, m->instance.data, 16) == 0;
    const bool is_new = w == NULL;
    if (w == NULL && (w = state_add_worker(&co->state, 0)) == NULL) {
        rpc_fail(req, -EAGAIN, true, RETRY_AFTER_MS, "no place is left for workers");
        return;
    }
    enrol(co, w, peer, is_new);
    member_unpark(co, w, "the worker has joined anew");
    twins_admit(co, w, m->instance.data);
    if (!again)
        new_instance(co, w, m);
    fill_worker(co, w, m, peer, again);
    access_know(&co->state, w);
    attach(co, w, peer);
    if (!again)
        core_say(co, 0, w->id, "worker %llu (%s) has joined from %s: %s", (unsigned long long)w->id,
                 w->name, w->address, w->device);
    core_event(co, &(struct event){.kind = EVENT_WORKER,
                                   .worker_id = w->id,
                                   .text = again ? "is back" : "has joined"});
    core_reply(co, req, join_send)->worker_id = w->id;
}

/* ---- HEARTBEAT ----------------------------------------------------------- */

static void count_bytes(struct worker *w, const Skerry__V1__HeartbeatRequest *m)
{
    const uint64_t now[4] = {m->control_bytes_up, m->control_bytes_down, m->bytes_up,
                             m->bytes_down};
    for (int i = 0; i < 4; i++) {
        uint64_t more = now[i] > w->bytes_seen[i] ? now[i] - w->bytes_seen[i] : 0;
        w->bytes[i] += more;
        w->bytes_seen[i] = now[i];
    }
}

static void note_progress(struct coordinator *co, struct task *t, const struct worker *w,
                          const Skerry__V1__Progress *p)
{
    struct job *j = state_job(&co->state, t->job_id);
    const struct lease_reach now = {p->steps_done, p->samples_done, worker_data_bytes(w), p->signs};
    const bool signs = p->signs > t->reached.signs;
    if (!lease_progress(&t->reached, &now))
        return;
    if (j != NULL && !signs) /* the time between two signs is not that of a step */
        job_note_time(t->begun ? &j->phase_gaps : &j->begin_ms, core_now(co) - t->progress_ms);
    t->progress_ms = core_now(co);
    t->begun = true;
}

static void take_progress(struct coordinator *co, struct worker *w, struct task *t,
                          const Skerry__V1__Progress *p)
{
    struct job *j = state_job(&co->state, t->job_id);
    note_progress(co, t, w, p);
    if (t->steps_done == 0 || p->steps_done < t->steps_done) { /* also in each part of a task */
        t->first_steps = p->steps_done;
        t->first_ms = core_now(co);
    }
    t->steps_done = p->steps_done;
    t->skipped = p->skipped < p->steps_done ? p->skipped : p->steps_done;
    t->steps_total = p->steps_total;
    t->samples_done = p->samples_done;
    take_line(t->activity, sizeof(t->activity), p->activity);
    take_line(w->activity, sizeof(w->activity), p->activity);
    w->throughput =
        p->samples_per_second > 0 && isfinite(p->samples_per_second) ? p->samples_per_second : 0;
    w->grad_norm = p->grad_norm;
    /* 0 stands for "no step since the last one" on the wire. */
    if (isfinite(p->loss) && p->loss != 0.0f) {
        t->loss = w->loss = p->loss;
        if (t->kind == TASK_TRAIN && j != NULL)
            job_replica_memory(j, t->path, t->train.replica)->loss = p->loss;
    }
    /* With a full disk the points of the curve are dropped: they would pile up. */
    if (j != NULL && t->kind == TASK_TRAIN && core_writable(co, NULL) == 0)
        metrics_points(
            co, j, t,
            &(struct metrics_heard){p->points, p->n_points, p->number_names, p->n_number_names});
}

/* Is it durable that the worker must stop the task that it reports? */
static bool revoked(const struct coordinator *co, const struct worker *w, const struct task *t,
                    const Skerry__V1__Progress *p)
{
    if (p == NULL)
        return false;
    if (t == NULL) /* or its end is being written */
        return core_gone_durable(co);
    const bool mine = t->state == TASK_LEASED && t->worker_id == w->id && t->attempt == p->attempt;
    /* A finished task that is still being tidied up is no reason to stop. */
    const bool done = t->state == TASK_DONE && t->worker_id == w->id;
    return !mine && !done && core_row_durable(co, &t->row);
}

/* Can a worker use its preparations for a lost task in its next one? */
static bool job_goes_on(const struct coordinator *co, const struct worker *w)
{
    const struct job *j = state_job(&co->state, w->lost_job);
    return j != NULL && !job_is_ended(j) && !worker_goes(w) &&
           query_withheld(&co->state, j) == NULL;
}

/* Answers at once, whatever the disk does, with durable news only: the rest comes with the next
 * one.  The answer acknowledges nothing but the points of the curve, of which the last are missing
 * if we are killed now: leases must not wait for the disk. */
static void heartbeat_answer(const struct coordinator *co, struct rpc_request *req,
                             struct worker *w, const struct task *t, const Skerry__V1__Progress *p)
{
    Skerry__V1__HeartbeatReply msg = SKERRY__V1__HEARTBEAT_REPLY__INIT;
    const bool durable = core_row_durable(co, &w->row);
    msg.drain = durable && worker_goes(w);
    if (revoked(co, w, t, p)) {
        msg.revoked_task_id = p->task_id;
        msg.revoked_attempt = p->attempt;
        msg.job_goes_on = job_goes_on(co, w);
        msg.revoked_reason = t == NULL      ? (char *)"the task is not known any more"
                             : t->reason[0] ? (char *)t->reason
                                            : (char *)"the task was given to another worker";
    }
    if (durable)
        msg.applied = assign_verdicts(w, &msg.n_applied);
    rpc_reply(req, &msg.base);
    for (unsigned i = 0; i < msg.n_applied; i++)
        w->verdicts[i].told = true; /* this went to its connection */
    mem_free(msg.applied);
}

/* Answers a worker that is unknown, or not known any more. */
static void heartbeat_lost(const struct coordinator *co, struct rpc_request *req)
{
    Skerry__V1__HeartbeatReply msg = SKERRY__V1__HEARTBEAT_REPLY__INIT;
    msg.rejoin = gone_durably(co, req);
    rpc_reply(req, &msg.base);
}

/* Takes the worker's figures about itself.  Only its bytes are in its row, and they are written
 * along with other changes. */
static void take_vitals(struct worker *w, const Skerry__V1__HeartbeatRequest *m)
{
    count_bytes(w, m);
    if (m->throughput > 0 && isfinite(m->throughput))
        w->throughput = m->throughput;
    if (m->disk_room_bytes > 0)
        w->disk_room_bytes = m->disk_room_bytes;
    devices_take(&w->devices, m);
}

/* A heartbeat whose answer waits. */
struct beat {
    struct list link; /* in co->beats */
    struct rpc_request *req;
    uint64_t worker_id, until_ms;
};

static void beat_gone(void *arg, struct rpc_request *req)
{
    struct beat *b = arg;
    list_remove(&b->link);
    mem_free(b);
    rpc_fail(req, -ERR_CANCELLED, true, 0, "the connection is gone");
}

/* Must the answer wait?  A newcomer without a task has nothing to report, and a thousand of them
 * would do so ten times a second: each sends its next heartbeat when this one is answered. */
static bool beat_waits(struct coordinator *co, struct rpc_request *req, const struct worker *w)
{
    if (co->beat_ms == 0 || w->tasks_done > 0 || w->task_id != 0)
        return false;
    struct beat *b = mem_alloc(sizeof(*b));
    b->req = req;
    b->worker_id = w->id;
    b->until_ms = core_now(co) + co->beat_ms;
    list_push(&co->beats, &b->link);
    rpc_request_on_gone(req, beat_gone, b);
    return true;
}

static void answer_beats(struct coordinator *co)
{
    struct list due;
    list_init(&due);
    for (struct list *l = co->beats.next, *next; l != &co->beats; l = next) {
        const struct beat *b = list_entry(l, struct beat, link);
        const struct worker *w = state_worker(&co->state, b->worker_id);
        next = l->next;
        if (w != NULL && w->task_id == 0 && core_now(co) < b->until_ms)
            continue;
        list_remove(l);
        list_push(&due, l);
    }
    for (struct list *l; (l = list_pop(&due)) != NULL;) {
        struct beat *b = list_entry(l, struct beat, link);
        struct worker *w = worker_memory(worker_of(co, b->req));
        rpc_request_on_gone(b->req, NULL, NULL);
        if (w != NULL)
            heartbeat_answer(co, b->req, w, NULL, NULL);
        else
            heartbeat_lost(co, b->req);
        mem_free(b);
    }
}

void service_tick(struct coordinator *co)
{
    uint64_t n = 0, most = co->opt.lease_ms / LEASE_PARTS;
    for (size_t i = 0; i < co->state.n_workers; i++)
        n += co->state.workers[i]->state == WORKER_HERE && co->state.workers[i]->tasks_done == 0;
    const uint64_t ms = n * 1000 / NEWCOMERS_BEATS;
    co->beat_ms = ms <= co->opt.heartbeat_ms ? 0 : ms < most ? ms : most;
    answer_beats(co);
}

static void on_heartbeat(void *arg, struct rpc_request *req, const ProtobufCMessage *msg)
{
    struct coordinator *co = arg;
    const Skerry__V1__HeartbeatRequest *m = (const Skerry__V1__HeartbeatRequest *)(const void *)msg;
    struct worker *w = worker_memory(worker_of(co, req));
    if (w == NULL) {
        heartbeat_lost(co, req);
        return;
    }
    member_heard(co, w);
    if (m->unheard) {
        worker_untell_verdicts(w);
    } else if (worker_was_told(w)) { /* a new heartbeat confirms what the last answer told */
        worker_confirm_verdicts(state_edit_worker(&co->state, w));
        core_gather(co);
    }
    take_vitals(w, m);
    const Skerry__V1__Progress *p = m->progress;
    struct task *t = p ? task_memory(state_task(&co->state, p->task_id)) : NULL;
    if (t != NULL)
        task_lease_again(co, t, w, p->attempt);
    bool mine =
        t != NULL && t->state == TASK_LEASED && t->worker_id == w->id && t->attempt == p->attempt;
    if (mine)
        take_progress(co, w, t, p);
    else
        take_line(w->activity, sizeof(w->activity), p && w->lost_job ? p->activity : "");
    if (p != NULL || !beat_waits(co, req, w))
        heartbeat_answer(co, req, w, t, p);
}

/* ---- ASSIGN -------------------------------------------------------------- */

static void parked_gone(void *arg, struct rpc_request *req)
{
    (void)state_unpark(arg);
    rpc_fail(req, -ERR_CANCELLED, true, 0, "the connection is gone");
}

static void on_assign(void *arg, struct rpc_request *req, const ProtobufCMessage *msg)
{
    struct coordinator *co = arg;
    const Skerry__V1__AssignRequest *m = (const Skerry__V1__AssignRequest *)(const void *)msg;
    struct worker *w = need_writer(co, req);
    if (w == NULL)
        return;
    w->n_held = 0;
    for (size_t i = 0; i < m->n_held && i < 64; i++) {
        w->held[w->n_held].module_id = m->held[i]->module_id;
        w->held[w->n_held++].version = m->held[i]->version;
    }
    w->ahead.due &= !m->ahead_over || w->ahead.told == 0;
    member_unpark(co, w, "asked again");
    const struct task *t = state_task(&co->state, w->task_id);
    if (t != NULL && t->state == TASK_LEASED && t->worker_id == w->id) {
        /* The answer that assigned it was lost on the way. */
        struct reply *r = core_reply(co, req, assign_send);
        r->worker_id = w->id;
        r->task_id = t->id;
        r->attempt = t->attempt;
        return;
    }
    w->task_id = 0;
    state_park(&co->state, w, req,
               core_now(co) + (m->wait_ms < WAIT_MAX_MS ? m->wait_ms : WAIT_MAX_MS));
    rpc_request_on_gone(req, parked_gone, w); /* a parked worker is here, and stays on record */
    core_touch(co);
}

/* ---- TICKET -------------------------------------------------------------- */

/* The lease says that the file is a contribution; false: its sender has nothing to wait for. */
static bool announce(struct coordinator *co, const struct task *t,
                     const Skerry__V1__TicketRequest *m, struct blob_id *ret)
{
    const Skerry__V1__Contribution *c = m->contribution;
    if (c == NULL)
        return false;
    struct contribution made = {.module_id = c->module_id,
                                .base_version = c->base_version,
                                .samples = c->samples,
                                .worker_id = t->worker_id,
                                .blob = {.size = m->size}};
    memcpy(made.blob.sha256, m->sha256.data, sizeof(made.blob.sha256));
    return early_announce(co, t, &made, ret);
}

static void on_ticket(void *arg, struct rpc_request *req, const ProtobufCMessage *msg)
{
    struct coordinator *co = arg;
    const Skerry__V1__TicketRequest *m = (const Skerry__V1__TicketRequest *)(const void *)msg;
    Skerry__V1__TicketReply reply = SKERRY__V1__TICKET_REPLY__INIT;
    struct worker *w = need_worker(co, req);
    if (w == NULL)
        return;
    struct task *t = task_memory(state_task(&co->state, m->task_id));
    if (t != NULL)
        task_lease_again(co, t, w, m->attempt);
    if (t == NULL || t->state != TASK_LEASED || t->worker_id != w->id || t->attempt != m->attempt) {
        struct err err = {0};
        (void)err_set(&err, -ERR_STALE, "attempt %u of task %llu is not leased to this worker",
                      m->attempt, (unsigned long long)m->task_id);
        refuse_later(co, req, &err, 0);
        return;
    }
    if (m->sha256.len != 32 || m->size == 0 || m->size > BLOB_MAX_BYTES) {
        rpc_fail(req, -EINVAL, false, 0,
                 "a ticket needs a SHA-256 of 32 bytes and a size from 1 "
                 "to %llu",
                 (unsigned long long)BLOB_MAX_BYTES);
        return;
    }
    struct blob_id id, coming;
    char path[TICKET_PATH_MAX], also[TICKET_PATH_MAX];
    uint64_t size = 0;
    /* Those of a site get each file once (neighbours.h), and this one has no name yet. */
    if (announce(co, t, m, &coming) && w->share.site[0] == '\0') {
        blob_http_ticket(co->blob_http, TICKET_GET, &coming, UINT64_MAX,
                         access_holder_worker(w->id), also);
        reply.coming = also;
    }
    memcpy(id.sha256, m->sha256.data, 32);
    if (blobstore_has(co->blobs, &id, &size) && size == m->size) {
        gc_keep(co, id.sha256);
        (void)co->blobs->ops->touch(co->blobs, &id, NULL); /* only postpones the sweep */
        reply.have = true;
    } else {
        blob_http_ticket(co->blob_http, TICKET_PUT, &id, m->size, access_holder_worker(w->id),
                         path);
        reply.url = path;
        if (w->sends_ms == 0)
            w->sends_ms = core_now(co);
    }
    rpc_reply(req, &reply.base);
}

/* ---- REPORT and LEAVE ---------------------------------------------------- */

static void report_send(struct coordinator *co, struct reply *r)
{
    Skerry__V1__ReportReply msg = SKERRY__V1__REPORT_REPLY__INIT;
    msg.accepted = r->flag;
    msg.reason = r->text;
    rpc_reply(r->req, &msg.base);
}

static void on_report(void *arg, struct rpc_request *req, const ProtobufCMessage *msg)
{
    struct coordinator *co = arg;
    const Skerry__V1__ReportRequest *m = (const Skerry__V1__ReportRequest *)(const void *)msg;
    struct err err = {0};
    struct worker *w = need_writer(co, req);
    if (w == NULL)
        return;
    int rc = report_apply(co, w, m, &err);
    if (rc == -EAGAIN || (rc == -ERR_NOTFOUND && !m->snapshot)) {
        rpc_fail(req, rc, true, RETRY_AFTER_MS, "%s", err.msg);
        return;
    }
    struct reply *r = core_reply(co, req, report_send);
    r->flag = rc == 0;
    if (rc < 0) {
        (void)str_copy(r->text, sizeof(r->text), err.msg);
        log_warn("report", "refused: %s worker=%llu task=%llu attempt=%u", err.msg,
                 (unsigned long long)w->id, (unsigned long long)m->task_id, m->attempt);
    }
}

static void leave_send(struct coordinator *co, struct reply *r)
{
    Skerry__V1__LeaveReply msg = SKERRY__V1__LEAVE_REPLY__INIT;
    msg.drained = r->flag;
    rpc_reply(r->req, &msg.base);
}

static void on_leave(void *arg, struct rpc_request *req, const ProtobufCMessage *msg)
{
    struct coordinator *co = arg;
    const Skerry__V1__LeaveRequest *m = (const Skerry__V1__LeaveRequest *)(const void *)msg;
    struct worker *w = need_worker(co, req);
    if (w == NULL)
        return;
    const bool drained = w->drain; /* which ends when it has left */
    if (m->notice_ms > 0) {
        if (!w->leaving)
            core_say(co, 0, w->id, "worker %llu (%s) leaves in %.0f s: %.150s",
                     (unsigned long long)w->id, w->name, m->notice_ms / 1e3, m->reason);
        w->leaving = true;
        (void)str_copy(w->state_reason, sizeof(w->state_reason), m->reason);
    } else {
        member_lost(co, w, WORKER_LEFT, m->reason[0] ? m->reason : "it said good-bye");
    }
    core_reply(co, req, leave_send)->flag = drained;
}

void service_peer_closed(struct coordinator *co, struct rpc_peer *peer)
{
    uint64_t id = (uint64_t)(uintptr_t)rpc_peer_user(peer);
    const struct worker *w = state_worker(&co->state, id);
    if (w != NULL && w->peer == peer)
        member_closed(co, state_edit_worker(&co->state, w));
}

/* ---- within a SAMPLE task ------------------------------------------------ */

static void on_stream(void *arg, struct rpc_request *req, const ProtobufCMessage *msg)
{
    struct coordinator *co = arg;
    Skerry__V1__StreamReply reply = SKERRY__V1__STREAM_REPLY__INIT;
    struct err err = {0};
    struct worker *w = need_worker(co, req);
    if (w == NULL)
        return;
    int rc = sample_stream(co, w, (const Skerry__V1__StreamRequest *)(const void *)msg, &err);
    if (rc < 0)
        refuse_later(co, req, &err, 0);
    else
        rpc_reply(req, &reply.base);
}

static void on_evaluate(void *arg, struct rpc_request *req, const ProtobufCMessage *msg)
{
    struct coordinator *co = arg;
    struct err err = {0};
    struct worker *w = need_writer(co, req);
    if (w != NULL &&
        sample_evaluate(co, w, req, (const Skerry__V1__EvaluateRequest *)(const void *)msg, &err) <
            0)
        refuse_later(co, req, &err, RETRY_AFTER_MS);
}

static void on_version(void *arg, struct rpc_request *req, const ProtobufCMessage *msg)
{
    struct coordinator *co = arg;
    struct err err = {0};
    struct worker *w = need_worker(co, req);
    if (w != NULL &&
        train_version(co, w, req, (const Skerry__V1__VersionRequest *)(const void *)msg, &err) < 0)
        refuse_later(co, req, &err, 0);
}

#define METHOD(name_, handler_, type_)                                                             \
    {                                                                                              \
        .method = SKERRY__V1__METHOD__METHOD_##name_, .name = #name_,                              \
        .request = &skerry__v1__##type_##_request__descriptor, .roles = TOKEN_ROLE_WORKER,         \
        .handle = handler_                                                                         \
    }

const struct rpc_method service_methods[] = {
    METHOD(JOIN, on_join, join),          METHOD(HEARTBEAT, on_heartbeat, heartbeat),
    METHOD(ASSIGN, on_assign, assign),    METHOD(TICKET, on_ticket, ticket),
    METHOD(REPORT, on_report, report),    METHOD(LEAVE, on_leave, leave),
    METHOD(STREAM, on_stream, stream),    METHOD(EVALUATE, on_evaluate, evaluate),
    METHOD(VERSION, on_version, version),
};
const unsigned service_method_count = sizeof(service_methods) / sizeof(service_methods[0]);
