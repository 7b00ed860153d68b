/* Workers with a valid token that say anything, in any order: a coordinator in the world of
 * tests/sim, on its clock, network and disk, with an honest worker beside them.
 *
 *   header   the job's kind, how many honest workers there are, the seed of chance, and by it
 *            whether the coordinator is started again at the end
 *   turns    what happens next, to whom: a request as an honest worker would send it, with some
 *            fields changed to anything; time; a cut; a restart; a look over HTTP
 *
 * After every event the oracle (tests/sim/oracle.h) looks at the records, and after a restart at
 * the files. */
#include <stdlib.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "coordinator/state/core.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/message.h"
#include "tests/sim/http.h"
#include "tests/sim/net.h"
#include "tests/sim/disk.h"
#include "tests/sim/oracle.h"
#include "tests/sim/result.h"
#include "tests/sim/sim.h"
#include "tests/sim/spec.h"
#include "tests/sim/world.h"
#include "tests/unit/blobs.h"

#define LIARS 3
#define TURNS_MAX 40
#define PASS_MAX_MS 1200000
#define BODY_BYTES (1u << 20) /* of a frame */
#define METHOD(name) SKERRY__V1__METHOD__METHOD_##name

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A worker that lies. */
struct liar {
    unsigned number;
    uint8_t key[32], identity[16], instance[16];
    struct net_conn *conn;
    uint64_t id, calls;
    Skerry__V1__AssignReply *reply; /* of which it has the task */
    const Skerry__V1__Task *task;   /* NULL: none */
    uint8_t *report;                /* the last one that it sent, packed */
    size_t report_len;
    uint64_t report_call;
};

static struct liar liars[LIARS];
static uint64_t left_ms; /* that may pass by itself */

/* A blob that is there, but another. */
static void other_blob(Skerry__V1__Blob *b)
{
    const struct coordinator *co = world_coordinator();
    const struct job *j = co != NULL && co->state.n_jobs > 0 ? co->state.jobs[0] : NULL;
    const struct blob_ref *ref = NULL;
    if (j != NULL && j->comp.n_modules > 0 && j->modules[0].n_versions > 0)
        ref = &j->modules[0].versions[message_byte() % j->modules[0].n_versions].full;
    if (j != NULL && j->n_shards > 0 && message_byte() % 2)
        ref = &j->shards[message_byte() % j->n_shards].blob;
    if (ref == NULL || !(b->sha256.data = message_room(32)))
        return;
    memcpy(b->sha256.data, ref->sha256, 32);
    b->sha256.len = 32;
    b->size = ref->size;
}

/* ---- requests ------------------------------------------------------------------- */

/* As it is, or with fields that are anything.  The call; 0: it was not sent. */
static uint64_t say(struct liar *w, uint16_t method, ProtobufCMessage *m)
{
    for (unsigned n = message_byte() % 4; n > 0; n--)
        message_change(m, 4);
    if (w->conn == NULL || protobuf_c_message_get_packed_size(m) > BODY_BYTES)
        return 0;
    net_send(w->conn, method, ++w->calls, m);
    return w->calls;
}

static void forget_task(struct liar *w)
{
    if (w->reply != NULL)
        skerry__v1__assign_reply__free_unpacked(w->reply, NULL);
    w->reply = NULL;
    w->task = NULL;
}

static void on_join(struct liar *w, const struct net_reply *r)
{
    Skerry__V1__JoinReply *m = skerry__v1__join_reply__unpack(NULL, r->len, r->bytes);
    w->id = m->worker_id;
    skerry__v1__join_reply__free_unpacked(m, NULL);
}

static void on_assign(struct liar *w, const struct net_reply *r)
{
    Skerry__V1__AssignReply *m = skerry__v1__assign_reply__unpack(NULL, r->len, r->bytes);
    if (m->task != NULL) {
        forget_task(w);
        w->reply = m;
        w->task = m->task;
        oracle_task(w->id, w->task);
    } else {
        skerry__v1__assign_reply__free_unpacked(m, NULL);
    }
}

/* What was accepted stays so, whoever brought it. */
static void on_report(struct liar *w, const struct net_reply *r)
{
    Skerry__V1__ReportReply *m = skerry__v1__report_reply__unpack(NULL, r->len, r->bytes);
    if (m->accepted && r->call == w->report_call) {
        Skerry__V1__ReportRequest *q =
            skerry__v1__report_request__unpack(NULL, w->report_len, w->report);
        const struct coordinator *co = world_coordinator();
        const struct task *t = co != NULL ? state_task(&co->state, q->task_id) : NULL;
        if (t != NULL)
            oracle_accepted(w->id, q, t->kind, t->job_id);
        skerry__v1__report_request__free_unpacked(q, NULL);
    }
    skerry__v1__report_reply__free_unpacked(m, NULL);
}

static void on_reply(void *arg, const struct net_reply *r)
{
    if (r->code != 0)
        return;
    if (r->method == METHOD(JOIN))
        on_join(arg, r);
    else if (r->method == METHOD(ASSIGN))
        on_assign(arg, r);
    else if (r->method == METHOD(REPORT))
        on_report(arg, r);
}

static void on_open(void *arg)
{
}

static void on_closed(void *arg)
{
    ((struct liar *)arg)->conn = NULL;
}

static void join(struct liar *w)
{
    const struct net_client c = {w->key, w, on_open, on_reply, on_closed};
    Skerry__V1__JoinRequest m = SKERRY__V1__JOIN_REQUEST__INIT;
    bool refused = false;
    if (w->conn == NULL)
        w->conn = net_dial(&c, &refused);
    m.name = (char *)(uintptr_t) "liar";
    m.device = (char *)(uintptr_t) "none";
    m.version = (char *)(uintptr_t)SKERRY_VERSION;
    m.instance.data = w->instance;
    m.identity.data = w->identity;
    m.instance.len = m.identity.len = 16;
    m.allows_trainers = m.fetches_ahead = true;
    m.reads = SKERRY__V1__READS__READS_CASCADE_EXPERTS;
    m.price_per_hour = 1;
    m.site = (char *)(uintptr_t) "here";
    m.share_host = (char *)(uintptr_t) "192.0.2.1";
    m.share_port = 7;
    m.share_key.data = w->key;
    m.share_key.len = sizeof(w->key);
    (void)say(w, METHOD(JOIN), &m.base);
}

static void beat(struct liar *w)
{
    Skerry__V1__HeartbeatRequest m = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    Skerry__V1__Progress p = SKERRY__V1__PROGRESS__INIT;
    Skerry__V1__LossPoint point = SKERRY__V1__LOSS_POINT__INIT, *points[] = {&point};
    Skerry__V1__DeviceState device = SKERRY__V1__DEVICE_STATE__INIT, *devices[] = {&device};
    Skerry__V1__StepPlan plan = SKERRY__V1__STEP_PLAN__INIT;
    double numbers[] = {1};
    char *names[] = {(char *)(uintptr_t) "x"};
    if (w->task != NULL) {
        p.task_id = w->task->id;
        p.attempt = w->task->attempt;
        m.progress = &p;
    }
    p.steps_done = p.steps_total = message_byte();
    p.samples_done = p.steps_done;
    p.loss = point.loss = 0.5f;
    point.numbers = numbers;
    point.n_numbers = p.n_number_names = p.n_points = m.n_devices = 1;
    p.number_names = names;
    p.points = points;
    device.name = (char *)(uintptr_t) "cpu";
    plan.devices = plan.copies = 1;
    m.devices = devices;
    m.plan = &plan;
    (void)say(w, METHOD(HEARTBEAT), &m.base);
}

static void ask(struct liar *w)
{
    Skerry__V1__AssignRequest m = SKERRY__V1__ASSIGN_REQUEST__INIT;
    Skerry__V1__HeldVersion held = SKERRY__V1__HELD_VERSION__INIT, *list[] = {&held};
    held.module_id = 1 + message_byte() % 4;
    held.version = message_byte() % 4;
    m.held = list;
    m.n_held = 1;
    m.wait_ms = 1000;
    (void)say(w, METHOD(ASSIGN), &m.base);
}

/* ---- results -------------------------------------------------------------------- */

/* The file of the blob; mem_free() it.  NULL: it is not there. */
static char *file_of(const uint8_t *sha256)
{
    struct coordinator *co = world_coordinator();
    struct blob_id id;
    char *path = NULL;
    memcpy(id.sha256, sha256, sizeof(id.sha256));
    if (co == NULL || co->blobs->ops->local(co->blobs, &id, false, &path, NULL) < 0)
        return NULL;
    return path;
}

/* Of the versions that a phase begins with, or what an outer step is made of: how many there are;
 * SIZE_MAX: something is gone. */
static size_t find_bases(const Skerry__V1__Task *t, char *bases[RESULT_NEEDS_MAX])
{
    const Skerry__V1__Blob *needs[RESULT_NEEDS_MAX];
    size_t n = 0, found = 0;
    if (t->outer != NULL) {
        n = result_needs(t, needs);
        for (size_t i = 0; i < n; i++)
            found += (bases[i] = file_of(needs[i]->sha256.data)) != NULL;
    } else if (t->train != NULL) {
        n = t->n_modules;
        for (size_t i = 0; i < n; i++)
            found += (bases[i] = file_of(t->modules[i]->sha256.data)) != NULL;
    }
    return found == n ? n : SIZE_MAX;
}

/* What an honest worker would report, or one of the lies of tests/sim. */
static bool make_result(struct liar *w, struct result *r)
{
    char *bases[RESULT_NEEDS_MAX] = {NULL}, *scratch = file_join(fuzz_folder, "out");
    const unsigned how = message_byte();
    const bool found = find_bases(w->task, bases) != SIZE_MAX;
    if (found && w->task->train != NULL && w->task->train->n_fragments > 0 && how >= 128)
        result_part(w->task, how % (uint32_t)w->task->n_modules, bases, scratch, r);
    else if (found && w->task->train != NULL && how >= 128)
        result_snapshot(w->task, 1 + how % 4, 6, bases, scratch, r);
    else if (found)
        result_make(w->task, bases, scratch, how < 2 * LIES ? (enum lie)(how / 2) : LIE_NONE, r);
    for (size_t i = 0; i < RESULT_NEEDS_MAX; i++)
        mem_free(bases[i]);
    mem_free(scratch);
    return found;
}

static void send_report(struct liar *w, const struct result *r)
{
    Skerry__V1__ReportRequest *m =
        skerry__v1__report_request__unpack(&message_allocator, r->report_len, r->report);
    const uint64_t call = m != NULL ? say(w, METHOD(REPORT), &m->base) : 0;
    if (call == 0)
        return;
    mem_free(w->report);
    w->report_call = call;
    w->report_len = skerry__v1__report_request__get_packed_size(m);
    w->report = mem_alloc(w->report_len + 1);
    (void)skerry__v1__report_request__pack(m, w->report);
}

static void report(struct liar *w)
{
    struct coordinator *co = world_coordinator();
    struct result r = {0};
    if (w->task == NULL || co == NULL || w->task->n_modules > RESULT_MODULES_MAX ||
        w->task->kind == SKERRY__V1__TASK_KIND__TASK_KIND_VELOCITY || !make_result(w, &r))
        return;
    for (size_t i = r.n_sent; i < r.n_blobs; i++)
        (void)disk_upload(co->blobs, &r.blobs[i].id, r.blobs[i].data, r.blobs[i].len);
    send_report(w, &r);
    result_release(&r);
}

/* ---- within a task ------------------------------------------------------------------ */

static void ticket(struct liar *w)
{
    Skerry__V1__TicketRequest m = SKERRY__V1__TICKET_REQUEST__INIT;
    uint8_t sha256[32] = {message_byte()};
    m.task_id = w->task ? w->task->id : 1;
    m.attempt = w->task ? w->task->attempt : 1;
    m.sha256.data = sha256;
    m.sha256.len = sizeof(sha256);
    m.size = 1 + message_byte();
    (void)say(w, METHOD(TICKET), &m.base);
}

static void leave(struct liar *w)
{
    Skerry__V1__LeaveRequest m = SKERRY__V1__LEAVE_REQUEST__INIT;
    m.notice_ms = message_byte() % 2 ? 1000 : 0;
    (void)say(w, METHOD(LEAVE), &m.base);
}

static void stream(struct liar *w)
{
    Skerry__V1__StreamRequest m = SKERRY__V1__STREAM_REQUEST__INIT;
    m.task_id = w->task ? w->task->id : 1;
    m.attempt = w->task ? w->task->attempt : 1;
    m.offset = message_byte() % 8;
    m.text = (char *)(uintptr_t) "once";
    (void)say(w, METHOD(STREAM), &m.base);
}

static void evaluate(struct liar *w)
{
    Skerry__V1__EvaluateRequest m = SKERRY__V1__EVALUATE_REQUEST__INIT;
    Skerry__V1__Blob b = SKERRY__V1__BLOB__INIT;
    struct coordinator *co = world_coordinator();
    struct blob_id id = {{0}};
    const char text[] = {'x', (char)message_byte()};
    if (co == NULL || blob_put(co->blobs, text, sizeof(text), &id, NULL) < 0)
        return;
    b.sha256.data = id.sha256;
    b.sha256.len = sizeof(id.sha256);
    b.size = sizeof(text);
    m.task_id = w->task ? w->task->id : 1;
    m.attempt = w->task ? w->task->attempt : 1;
    m.path = message_byte() % 3;
    m.input = &b;
    m.wait_ms = 1000;
    (void)say(w, METHOD(EVALUATE), &m.base);
}

static void version(struct liar *w)
{
    Skerry__V1__VersionRequest m = SKERRY__V1__VERSION_REQUEST__INIT;
    m.task_id = w->task ? w->task->id : 1;
    m.attempt = w->task ? w->task->attempt : 1;
    m.module_id = 1 + message_byte() % 4;
    m.version = message_byte() % 4;
    m.held = message_byte() % 4;
    m.wait_ms = 1000;
    (void)say(w, METHOD(VERSION), &m.base);
}

/* ---- what else happens --------------------------------------------------------------- */

/* Each line of the metrics is one, in UTF-8. */
static void check_metrics(const char *text, size_t len)
{
    if (!str_is_utf8(text, len))
        sim_fail("the metrics are not UTF-8");
    for (const char *p = text; *p != '\0'; p += *p == '\n') {
        const size_t n = strcspn(p, "\n");
        if (*p != '#' && !str_starts(p, "skerry_"))
            sim_fail("a line of the metrics is '%.*s'", (int)n, p);
        p += n;
    }
}

/* What is to be looked at; of what comes in pieces nothing is. */
enum page { PAGE_JSON, PAGE_METRICS, PAGE_PIECES };

/* What is shown is what its type says, whatever the workers have said. */
static void shown(void *arg, const struct http_said *s)
{
    if (s->status >= 500 && s->status != 503 && s->status != 507)
        sim_fail("a page is answered with %u: %.*s", s->status, (int)s->len, s->body);
    const enum page *page = arg;
    if (s->status == 200 && *page == PAGE_METRICS)
        check_metrics(s->body, s->len);
    else if (s->status == 200 && *page == PAGE_JSON && s->promises)
        oracle_shown(s->body, s->len);
}

static void look(void)
{
    static const struct {
        const char *target;
        enum page page;
    } pages[] = {{"/v1/status", PAGE_JSON},  {"/v1/jobs", PAGE_JSON},
                 {"/v1/tasks", PAGE_JSON},   {"/v1/workers", PAGE_JSON},
                 {"/v1/modules", PAGE_JSON}, {"/v1/jobs/1", PAGE_JSON},
                 {"/v1/log", PAGE_JSON},     {"/v1/jobs/1/metrics", PAGE_PIECES},
                 {"/metrics", PAGE_METRICS}, {"/v1/jobs/1/trace.svg", PAGE_PIECES}};
    const struct coordinator *co = world_coordinator();
    for (size_t i = 0; co != NULL && i < sizeof(pages) / sizeof(pages[0]); i++) {
        const struct http_ask a = {
            .method = "GET", .target = pages[i].target, .bearer = co->user_text};
        (void)http_ask(&a, shown, (void *)(uintptr_t)&pages[i].page);
    }
}

static void something_else(struct liar *w)
{
    const unsigned what = message_byte() % 8;
    if (what == 0 && w->conn != NULL)
        net_cut(w->conn);
    else if (what == 1)
        world_restart();
    else if (what == 2)
        world_submit(spec_at(message_byte()));
    else if (what == 3)
        w->instance[0]++; /* a new process */
    else if (what == 4)
        forget_task(w);
    else
        look();
}

/* A while in all: each tick costs as much as a request. */
static void pass(unsigned how)
{
    const uint64_t ms = 100ull << how;
    world_pass(ms < left_ms ? ms : left_ms);
    left_ms -= ms < left_ms ? ms : left_ms;
}

static void take_turn(struct liar *w)
{
    static void (*const what[])(struct liar * w) = {join,     beat,    ask,           ask,   report,
                                                    report,   report,  ticket,        leave, stream,
                                                    evaluate, version, something_else};
    const unsigned n = message_byte(), at = n % 16;
    message_begin();
    if (at < sizeof(what) / sizeof(what[0]))
        what[at](w);
    else
        pass(n / 16);
    world_pass(100);
}

/* ---- a world --------------------------------------------------------------------------- */

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    log_set_level(LOG_LEVEL_ERROR + 1);
    fuzz_folder_make();
    return 0;
}

static void come(void)
{
    for (unsigned i = 0; i < LIARS; i++) {
        liars[i] = (struct liar){.number = i};
        memset(liars[i].key, (int)(i + 1), sizeof(liars[i].key));
        memset(liars[i].identity, (int)(i + 1), sizeof(liars[i].identity));
        join(&liars[i]);
    }
}

static void go(void)
{
    for (unsigned i = 0; i < LIARS; i++) {
        forget_task(&liars[i]);
        mem_free(liars[i].report);
        liars[i].report = NULL;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    message_next = message_end = data;
    message_blob = other_blob;
    const unsigned header = size > 0 ? data[0] : 0, seed = size > 1 ? data[1] : 0;
    world_open(seed, fuzz_folder, header / 64);
    come();
    message_next = data + (size < 2 ? size : 2);
    message_end = data + size;
    left_ms = PASS_MAX_MS;
    while (world_coordinator()->state.n_jobs == 0) /* an upload of its data may be cut */
        world_submit(spec_at(header % 64));
    world_pass(200);
    for (unsigned i = 0; i < TURNS_MAX && message_next < message_end; i++)
        take_turn(&liars[message_byte() % LIARS]);
    look();
    world_pass(2000);
    if (seed % 2) { /* it takes as long as many turns */
        world_restart();
        look();
        world_pass(2000);
    }
    world_close();
    go();
    return 0;
}
