/* A fleet in one process: workers that join, ask for work and send heartbeats as workerd does, each
 * on a TLS connection and with a key of its own, and compute nothing.  Who is given a task is at a
 * step of it with every heartbeat, and tells of as many points of its curve as a second has steps.
 *
 *     fleet @TOKEN-FILE WORKERS SECONDS KEYS-FOLDER [fail|no-retry|bad-count|hold]
 *
 * With a last word they do not follow the protocol's sense: each task is reported at once as
 * failed, as one that nobody can do, or as full of samples that cannot be read; or it is held
 * without a step. Lines of JSON: {"joined": N, "busy": B} once all are here and the coordinator has
 * nothing more to give out, then after SECONDS what was seen meanwhile.  A worker that is refused
 * ends it with a sentence. */
#include "common/base/base.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/net/loop.h"
#include "common/net/rpc.h"
#include "common/net/token_source.h"
#include "proto/skerry.pb-c.h"

#define DIALS 64 /* at a time: a coordinator has places for so many strangers of one address */
#define LOOK_MS 50
#define CALL_MS 15000
#define ASSIGN_MS 30000
#define STEPS_A_BEAT 5 /* points of the curve in each heartbeat */
#define SPARE_FILES 64
#define QUIET_MS 1000 /* without a new task: all are given out */

#define METHOD(name) SKERRY__V1__METHOD__METHOD_##name

enum manner { HONEST, FAIL, NO_RETRY, BAD_COUNT, HOLD };
static const char *const manners[] = {"honest", "fail", "no-retry", "bad-count", "hold"};

struct fleet;

struct player {
    struct fleet *fleet;
    unsigned number;
    struct keys *keys;
    struct rpc_client *rpc;
    struct loop_timer *beat;
    uint8_t identity[16], instance[16];
    bool joined, beating;
    uint64_t task, job, sent_ns, step;
    uint32_t attempt;
    size_t beats;
};

struct fleet {
    struct loop *loop;
    struct loop_timer *look;
    struct token token;
    const char *folder;
    struct player *players;
    unsigned n, begun, joined, busy;
    enum manner manner;
    uint64_t seconds, changed_ms, measured_ms; /* 0: not yet */
    uint64_t *took_ns;                         /* heartbeats, while measured */
    size_t n_took, cap_took;
    uint64_t late, lost, revoked; /* while measured: unanswered, cut, tasks taken away */
    uint64_t cut_ms, away_ms;     /* since when not all are here; the longest time of that */
    uint64_t acts;                /* what was evil, so far */
    int status;
};

static void stop(struct fleet *f, const char *why)
{
    fprintf(stderr, "fleet: %s\n", why);
    f->status = 1;
    loop_stop(f->loop);
}

/* ---- a worker --------------------------------------------------------------- */

static void ask(struct player *p);

static void drop_task(struct player *p)
{
    p->fleet->busy -= p->task != 0;
    p->task = 0;
    p->fleet->changed_ms = clock_now_ms();
}

/* Something evil is done, and counted: a line for 1, 2, 4, ... of it, for who asks whether it was.
 */
static void count_act(struct fleet *f)
{
    f->acts++;
    if ((f->acts & (f->acts - 1)) != 0)
        return;
    printf("acted %" PRIu64 "\n", f->acts);
    (void)fflush(stdout);
}

static void on_reported(void *arg, const struct rpc_result *r)
{
    struct player *p = arg;
    if (r->code == 0) /* it was heard */
        count_act(p->fleet);
    drop_task(p);
    if (r->code != -ERR_CANCELLED && p->joined)
        ask(p);
}

/* What is evil, and said at once. */
static void slander(struct player *p)
{
    Skerry__V1__ReportRequest m = SKERRY__V1__REPORT_REQUEST__INIT;
    m.task_id = p->task;
    m.attempt = p->attempt;
    m.failed = p->fleet->manner != BAD_COUNT;
    m.retryable = p->fleet->manner == FAIL;
    m.reason = (char *)(uintptr_t) "it cannot be done";
    m.bad_count = p->fleet->manner == BAD_COUNT ? UINT32_MAX : 0;
    m.steps = m.bad_count ? 1 : 0;
    m.samples = m.steps;
    (void)rpc_client_call(p->rpc, METHOD(REPORT), &m.base, &skerry__v1__report_reply__descriptor,
                          CALL_MS, on_reported, p, NULL); /* cut: its lease ends */
}

static void on_task(void *arg, const struct rpc_result *r)
{
    struct player *p = arg;
    const Skerry__V1__AssignReply *m = (const Skerry__V1__AssignReply *)(const void *)r->reply;
    if (r->code == 0 && m->task != NULL) {
        p->task = m->task->id;
        p->attempt = m->task->attempt;
        p->step = 0;
        p->fleet->busy++;
        p->fleet->changed_ms = clock_now_ms();
        if (p->fleet->manner == HOLD)
            count_act(p->fleet); /* it never ends the task */
        else if (p->fleet->manner != HONEST)
            slander(p);
    } else if (r->code != -ERR_CANCELLED && p->joined) {
        ask(p);
    }
}

static void ask(struct player *p)
{
    Skerry__V1__AssignRequest m = SKERRY__V1__ASSIGN_REQUEST__INIT;
    m.wait_ms = ASSIGN_MS;
    (void)rpc_client_call(p->rpc, METHOD(ASSIGN), &m.base, &skerry__v1__assign_reply__descriptor,
                          ASSIGN_MS + CALL_MS, on_task, p, NULL); /* cut: on_state asks again */
}

static void note_beat(struct fleet *f, uint64_t ns)
{
    if (f->measured_ms == 0)
        return;
    if (f->n_took == f->cap_took) {
        f->cap_took = f->cap_took ? 2 * f->cap_took : 4096;
        f->took_ns = mem_realloc(f->took_ns, f->cap_took * sizeof(*f->took_ns));
    }
    f->took_ns[f->n_took++] = ns;
}

static void on_beat_reply(void *arg, const struct rpc_result *r)
{
    struct player *p = arg;
    const Skerry__V1__HeartbeatReply *m =
        (const Skerry__V1__HeartbeatReply *)(const void *)r->reply;
    p->beating = false;
    if (r->code < 0) {
        p->fleet->late += p->fleet->measured_ms != 0 && r->code != -ERR_CANCELLED;
        return;
    }
    note_beat(p->fleet, clock_now_ns() - p->sent_ns);
    if (m->revoked_task_id != 0 && m->revoked_task_id == p->task) {
        p->fleet->revoked += p->fleet->measured_ms != 0;
        drop_task(p);
        ask(p);
    }
}

static void beat(void *arg)
{
    struct player *p = arg;
    Skerry__V1__HeartbeatRequest m = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    Skerry__V1__Progress progress = SKERRY__V1__PROGRESS__INIT;
    Skerry__V1__LossPoint points[STEPS_A_BEAT], *list[STEPS_A_BEAT];
    char activity[48];
    if (p->beating)
        return;
    const unsigned steps = p->task == 0 || p->fleet->manner == HOLD ? 0 : STEPS_A_BEAT;
    for (unsigned i = 0; i < steps; i++) {
        skerry__v1__loss_point__init(&points[i]);
        points[i].step = ++p->step;
        points[i].loss = 1.0f + 1.0f / (float)p->step;
        points[i].lr = 1e-3f;
        list[i] = &points[i];
    }
    if (p->task != 0) {
        progress.task_id = p->task;
        progress.attempt = p->attempt;
        progress.steps_done = (uint32_t)p->step;
        progress.steps_total = 1u << 30;
        progress.samples_done = p->step;
        progress.loss = steps ? points[steps - 1].loss : NAN;
        progress.samples_per_second = 1;
        (void)snprintf(activity, sizeof(activity), "training for %zu beats", p->beats++);
        progress.activity = activity;
        progress.points = list;
        progress.n_points = steps;
        m.progress = &progress;
    }
    const struct rpc_counters c = rpc_client_counters(p->rpc);
    m.control_bytes_up = c.bytes_out;
    m.control_bytes_down = c.bytes_in;
    p->sent_ns = clock_now_ns();
    p->beating = rpc_client_call(p->rpc, METHOD(HEARTBEAT), &m.base,
                                 &skerry__v1__heartbeat_reply__descriptor, CALL_MS, on_beat_reply,
                                 p, NULL) == 0;
}

static void note_all_here(struct fleet *f)
{
    const uint64_t away = clock_now_ms() - f->cut_ms;
    if (f->cut_ms == 0 || f->joined < f->n)
        return;
    f->cut_ms = 0;
    f->away_ms = away > f->away_ms ? away : f->away_ms;
}

static void on_joined(void *arg, const struct rpc_result *r)
{
    struct player *p = arg;
    const Skerry__V1__JoinReply *m = (const Skerry__V1__JoinReply *)(const void *)r->reply;
    if (r->code < 0) {
        if (r->code != -ERR_CANCELLED && r->code != -ECONNRESET)
            stop(p->fleet, r->detail);
        return;
    }
    p->joined = true;
    p->fleet->joined++;
    p->fleet->changed_ms = clock_now_ms();
    note_all_here(p->fleet);
    /* Each at a moment of its own, as machines that were started by hand. */
    const uint64_t every = m->heartbeat_ms;
    loop_timer_start(p->beat, 1 + every * p->number / p->fleet->n, every);
    if (p->task == 0)
        ask(p);
}

static void join(struct player *p)
{
    Skerry__V1__JoinRequest m = SKERRY__V1__JOIN_REQUEST__INIT;
    char name[32];
    (void)snprintf(name, sizeof(name), "player-%u", p->number);
    m.name = name;
    m.device = (char *)(uintptr_t) "none";
    m.version = (char *)(uintptr_t)SKERRY_VERSION;
    m.instance = (ProtobufCBinaryData){16, p->instance};
    m.identity = (ProtobufCBinaryData){16, p->identity};
    m.memory_bytes = 1ull << 34;
    m.threads = 1;
    m.fetches_ahead = true;
    m.reads = SKERRY__V1__READS__READS_CASCADE_EXPERTS;
    (void)rpc_client_call(p->rpc, METHOD(JOIN), &m.base, &skerry__v1__join_reply__descriptor,
                          CALL_MS, on_joined, p, NULL); /* cut: it is dialled again */
}

static void on_state(void *arg, enum rpc_state state, const struct err *why)
{
    struct player *p = arg;
    if (state == RPC_FAILED)
        stop(p->fleet, why ? why->msg : "refused");
    if (state == RPC_CONNECTED)
        join(p);
    if (state != RPC_DISCONNECTED)
        return;
    p->fleet->lost += p->joined && p->fleet->measured_ms != 0;
    if (p->joined && p->fleet->measured_ms != 0 && p->fleet->cut_ms == 0)
        p->fleet->cut_ms = clock_now_ms();
    p->fleet->joined -= p->joined;
    p->joined = p->beating = false;
    loop_timer_stop(p->beat);
}

static int player_open(struct fleet *f, unsigned number, struct err *err)
{
    struct player *p = &f->players[number];
    char *folder = str_printf("%s/%u", f->folder, number);
    int rc = mkdir(folder, 0700) == 0 || errno == EEXIST ? 0 : err_errno(err, "making %s", folder);
    p->fleet = f;
    p->number = number;
    hash_random(p->identity, sizeof(p->identity));
    hash_random(p->instance, sizeof(p->instance));
    if (rc == 0)
        rc = keys_open(folder, &p->keys, err);
    mem_free(folder);
    if (rc < 0)
        return rc;
    p->beat = loop_timer_new(f->loop, beat, p);
    const struct rpc_client_options o = {.token = &f->token,
                                         .keys = p->keys,
                                         .build_id = SKERRY_VERSION,
                                         .max_body_bytes = 1u << 20,
                                         .on_state = on_state,
                                         .arg = p};
    return rpc_client_open(f->loop, &o, &p->rpc, err);
}

/* ---- the fleet -------------------------------------------------------------- */

static int order(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return (x > y) - (x < y);
}

static double took_ms(const struct fleet *f, double share)
{
    const size_t at = (size_t)(share * (double)f->n_took);
    return f->n_took ? (double)f->took_ns[at < f->n_took ? at : f->n_took - 1] / 1e6 : 0;
}

static void say_result(struct fleet *f)
{
    if (f->n_took > 0)
        qsort(f->took_ns, f->n_took, sizeof(*f->took_ns), order);
    printf(
        "{\"heartbeats\": %zu, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f, \"busy\": "
        "%u, \"here\": %u, \"late\": %llu, \"lost\": %llu, \"revoked\": %llu, \"away_ms\": %llu}\n",
        f->n_took, took_ms(f, 0.5), took_ms(f, 0.99), took_ms(f, 1), f->busy, f->joined,
        (unsigned long long)f->late, (unsigned long long)f->lost, (unsigned long long)f->revoked,
        (unsigned long long)f->away_ms);
    (void)fflush(stdout);
}

static void look(void *arg)
{
    struct fleet *f = arg;
    struct err err = {0};
    const uint64_t now = clock_now_ms();
    while (f->begun < f->n && f->begun - f->joined < DIALS) {
        if (player_open(f, f->begun++, &err) < 0) {
            stop(f, err.msg);
            return;
        }
    }
    const bool quiet = now - f->changed_ms > QUIET_MS || f->manner != HONEST;
    if (f->measured_ms == 0 && f->joined == f->n && quiet) {
        printf("{\"joined\": %u, \"busy\": %u}\n", f->joined, f->busy);
        (void)fflush(stdout);
        f->measured_ms = now;
    }
    if (f->measured_ms != 0 && now - f->measured_ms >= 1000 * f->seconds) {
        say_result(f);
        loop_stop(f->loop);
    }
}

static int allow_files(unsigned n, struct err *err)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return err_errno(err, "the limit of open files");
    files.rlim_cur = files.rlim_max;
    if (files.rlim_cur < n + SPARE_FILES)
        return err_set(err, -ERR_LIMIT,
                       "%u workers take %u open files and this process may have %llu: raise the "
                       "hard limit (ulimit -Hn), or play fewer",
                       n, n + SPARE_FILES, (unsigned long long)files.rlim_cur);
    return setrlimit(RLIMIT_NOFILE, &files) < 0 ? err_errno(err, "the limit of open files") : 0;
}

static void fleet_close(struct fleet *f)
{
    for (unsigned i = 0; i < f->begun; i++) {
        rpc_client_close(f->players[i].rpc);
        loop_timer_free(f->players[i].beat);
        keys_free(f->players[i].keys);
    }
    loop_timer_free(f->look);
    loop_free(f->loop);
    mem_free(f->players);
    mem_free(f->took_ns);
}

int main(int argc, char **argv)
{
    struct fleet f = {0};
    struct err err = {0};
    while (argc == 6 && f.manner <= HOLD && strcmp(argv[5], manners[f.manner]) != 0)
        f.manner++;
    if (argc < 5 || argc > 6 || f.manner > HOLD ||
        (f.n = (unsigned)strtoul(argv[2], NULL, 10)) == 0) {
        fprintf(stderr, "usage: fleet @TOKEN-FILE WORKERS SECONDS KEYS-FOLDER "
                        "[fail|no-retry|bad-count|hold]\n");
        return 2;
    }
    f.seconds = strtoull(argv[3], NULL, 10);
    f.folder = argv[4];
    int rc = allow_files(f.n, &err);
    if (rc < 0 || (rc = token_source_read(argv[1], &f.token, &err)) < 0 ||
        (rc = loop_new(&f.loop, &err)) < 0) {
        fprintf(stderr, "fleet: %s\n", err.msg);
        return 1;
    }
    f.players = mem_alloc_array(f.n, sizeof(*f.players));
    f.look = loop_timer_new(f.loop, look, &f);
    loop_timer_start(f.look, 1, LOOK_MS);
    loop_run(f.loop);
    fleet_close(&f);
    return f.status;
}
