/* From the question for work to the answer to a report, with a coordinator that is played by
 * hand: it is asked through a session that is none. */
#include "worker/agent.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "tests/unit/wait.h"
#include "tests/unit/worker/partition_task.h"

#include "worker/coming.h"
#include "worker/workdir.h"
#include "common/net/http/transfer.h"
#include "common/net/loop.h"

/* ---- what removes files of jobs, in place of worker/workdir.c ---- */

static atomic_bool held;     /* the compute thread waits where it forgets jobs */
static atomic_int forgotten; /* calls; what follows is the last one's */
static uint64_t before_last, going_last;
static pthread_t forgot;

void workdir_forget(const char *state, uint64_t before, const uint64_t *going, size_t n_going)
{
    before_last = before;
    going_last = n_going == 1 ? going[0] : 0;
    forgot = pthread_self();
    while (atomic_load(&held))
        (void)poll(NULL, 0, 1);
    atomic_fetch_add(&forgotten, 1);
}

/* ---- deltas that come while they are made, in place of worker/coming.c ---- */

static struct coming {
    void (*on_end)(void *arg);
    void *arg;
    bool awaits;
    unsigned stops;
} deltas;

struct coming *coming_new(const struct fetch_env *env, struct modules *modules, const char *tmp_dir,
                          void (*on_end)(void *arg), void *arg)
{
    deltas = (struct coming){.on_end = on_end, .arg = arg};
    return &deltas;
}

void coming_free(struct coming *c)
{
}

void coming_start(struct coming *c, uint64_t module_id, uint64_t version, const char *url)
{
    fail_msg("an INIT task announces nothing");
}

bool coming_awaits(const struct coming *c, const Skerry__V1__Task *task)
{
    assert_non_null(task);
    return c->awaits;
}

void coming_stop(struct coming *c)
{
    if (c)
        c->stops++;
}

/* ---- a session in place of worker/link/session.c ---- */

struct session {
    struct session_options opt;
    bool joined;
    /* The ASSIGN or REPORT in flight; done NULL: none. */
    uint16_t method;
    rpc_done_fn done;
    void *arg;
    uint64_t id;
    Skerry__V1__AssignRequest asked; /* without its lists */
    Skerry__V1__ReportRequest *report;
    unsigned assigns, reports, tickets, rejoins, beats, notices;
    unsigned reports_before_beat; /* when the last heartbeat was sent */
    uint32_t notice_ms, wait_ms;
    char reason[256]; /* of a notice, or a good-bye */
    bool drained;     /* as the answer to a good-bye says */
    void (*bye)(void *arg);
    void *bye_arg;
};

static struct session line;

int session_open(const struct session_options *o, struct session **ret, struct err *err)
{
    line.opt = *o;
    *ret = &line;
    return 0;
}

/* Answers what is in flight. */
static void answer_with(const struct rpc_result *r)
{
    const rpc_done_fn done = line.done;
    assert_non_null(done);
    line.done = NULL;
    done(line.arg, r);
}

static void answer(const void *reply)
{
    answer_with(&(struct rpc_result){.reply = reply, .detail = "", .remote = true});
}

static void refuse(int code, bool retryable)
{
    answer_with(&(struct rpc_result){.code = code,
                                     .detail = "for a reason",
                                     .remote = true,
                                     .retryable = retryable,
                                     .retry_after_ms = 1});
}

static void cut(int code)
{
    answer_with(&(struct rpc_result){.code = code, .detail = "cut", .retry_after_ms = 1});
}

void session_close(struct session *s)
{
    line.joined = false;
    if (s && s->done)
        cut(-ERR_CANCELLED);
}

bool session_joined(const struct session *s)
{
    return s->joined;
}

struct ticket {
    rpc_done_fn done;
    void *arg;
};

/* The coordinator has all files. */
static void give_ticket(void *arg)
{
    struct ticket t = *(struct ticket *)arg;
    Skerry__V1__TicketReply reply = SKERRY__V1__TICKET_REPLY__INIT;
    mem_free(arg);
    reply.have = true;
    t.done(t.arg, &(struct rpc_result){.reply = &reply.base, .detail = "", .remote = true});
}

static void keep_report(const ProtobufCMessage *msg)
{
    const size_t n = protobuf_c_message_get_packed_size(msg);
    uint8_t *packed = mem_alloc(n);
    protobuf_c_message_pack(msg, packed);
    skerry__v1__report_request__free_unpacked(line.report, NULL);
    line.report = skerry__v1__report_request__unpack(NULL, n, packed);
    assert_non_null(line.report);
    mem_free(packed);
    line.reports++;
}

int session_call(struct session *s, uint16_t method, const ProtobufCMessage *msg,
                 const ProtobufCMessageDescriptor *reply, uint32_t deadline_ms, rpc_done_fn done,
                 void *arg, uint64_t *ret_id)
{
    static uint64_t ids;
    if (!s->joined)
        return -ENOTCONN;
    *ret_id = ++ids;
    if (method == SKERRY__V1__METHOD__METHOD_TICKET) {
        struct ticket *t = mem_alloc(sizeof(*t));
        *t = (struct ticket){done, arg};
        line.tickets++;
        loop_defer(s->opt.loop, give_ticket, t);
        return 0;
    }
    assert_null(line.done);
    line.method = method;
    line.done = done;
    line.arg = arg;
    line.id = ids;
    if (method == SKERRY__V1__METHOD__METHOD_REPORT) {
        keep_report(msg);
    } else {
        assert_int_equal(method, SKERRY__V1__METHOD__METHOD_ASSIGN);
        line.asked = *(const Skerry__V1__AssignRequest *)(const void *)msg;
        line.assigns++;
        assert_true(deadline_ms > line.asked.wait_ms);
    }
    return 0;
}

void session_cancel(struct session *s, uint64_t id)
{
    if (s->done && s->id == id)
        cut(-ERR_CANCELLED);
}

void session_rejoin(struct session *s)
{
    s->rejoins++;
}

void session_heartbeat(struct session *s)
{
    s->beats++;
    s->reports_before_beat = s->reports;
}

void session_notice(struct session *s, const char *reason, uint32_t ms)
{
    (void)str_copy(s->reason, sizeof(s->reason), reason);
    s->notice_ms = ms;
    s->notices++;
}

void session_leave(struct session *s, const char *reason, uint32_t wait_ms, void (*done)(void *arg),
                   void *arg)
{
    (void)str_copy(s->reason, sizeof(s->reason), reason);
    s->wait_ms = wait_ms;
    s->bye = done;
    s->bye_arg = arg;
}

bool session_drained(const struct session *s)
{
    return s->drained;
}

/* ---- a worker ---- */

static struct {
    struct loop *loop;
    struct xfer *xfer;
    struct agent *agent;
    struct loop_timer *guard;
    char *tmp;
    bool ended;
    int code;
    char why[512];
} me;

static void on_guard(void *arg)
{
}

static void on_end(void *arg, int code, const struct err *err)
{
    assert_false(me.ended);
    me.ended = true;
    me.code = code;
    (void)str_copy(me.why, sizeof(me.why), err ? err->msg : "");
}

#define UNTIL(cond) WAIT_FOR(&me, cond)

static void begin_in(const char *tmp)
{
    const struct xfer_options xo = {.user_agent = "test"};
    memset(&line, 0, sizeof(line));
    memset(&me, 0, sizeof(me));
    OK(loop_new(&me.loop, err));
    OK(xfer_new(me.loop, &xo, &me.xfer, err));
    me.tmp = in(host.dir, tmp);
    me.guard = loop_timer_new(me.loop, on_guard, NULL);
    loop_timer_start(me.guard, 20, 20);
    const struct agent_options o = {.env = {.loop = me.loop, .xfer = me.xfer, .cache = host.cache},
                                    .engine = host.engine,
                                    .modules = host.modules,
                                    .tmp_dir = me.tmp,
                                    .hung_ms = 60000,
                                    .session = {.loop = me.loop},
                                    .on_end = on_end};
    OK(agent_new(&o, &me.agent, err));
}

static void join(bool again)
{
    line.joined = true;
    line.opt.on_joined(line.opt.arg, again);
}

static int begin(void **state)
{
    begin_in("tmp");
    join(false);
    assert_true(line.assigns == 1 && line.done);
    return 0;
}

static int end(void **state)
{
    atomic_store(&held, false);
    agent_free(me.agent);
    xfer_free(me.xfer);
    loop_timer_free(me.guard);
    loop_free(me.loop);
    mem_free(me.tmp);
    skerry__v1__report_request__free_unpacked(line.report, NULL);
    return 0;
}

static void give_nothing(void)
{
    Skerry__V1__AssignReply reply = SKERRY__V1__ASSIGN_REPLY__INIT;
    answer(&reply);
}

/* A task that needs no file: the first version of a model. */
static void hand(uint64_t id, int kind)
{
    struct order o;
    Skerry__V1__AssignReply reply = SKERRY__V1__ASSIGN_REPLY__INIT;
    order_init(&o, kind, IMAGES, images, 1);
    o.task.id = id;
    o.task.attempt = 3;
    o.task.n_modules = 1;
    reply.task = &o.task;
    answer(&reply);
}

#define INIT SKERRY__V1__TASK_KIND__TASK_KIND_INIT

/* A task whose report is under way. */
static void do_task(uint64_t id)
{
    const unsigned before = line.reports;
    hand(id, INIT);
    UNTIL(line.reports > before);
    assert_int_equal(line.method, SKERRY__V1__METHOD__METHOD_REPORT);
    assert_int_equal(line.report->task_id, id);
    assert_int_equal(line.report->attempt, 3);
}

static void take_report(bool accepted)
{
    Skerry__V1__ReportReply reply = SKERRY__V1__REPORT_REPLY__INIT;
    reply.accepted = accepted;
    answer(&reply);
}

static Skerry__V1__HeartbeatRequest beat(void)
{
    Skerry__V1__HeartbeatRequest req = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    line.opt.fill_heartbeat(line.opt.arg, &req);
    return req;
}

/* ---- asking ---- */

/* An answer that says nothing new at once is no reason to ask at once. */
static void asks_and_waits(void **state)
{
    assert_int_equal(line.asked.wait_ms, 25000);
    assert_true(line.asked.ahead_over);
    const uint64_t from = loop_now_ms(me.loop); /* by which its timers go */
    give_nothing();
    assert_int_equal(line.assigns, 1);
    UNTIL(line.assigns == 2);
    assert_true(loop_now_ms(me.loop) - from >= 240);
    const uint64_t asked = clock_now_ms();
    UNTIL(clock_now_ms() - asked > 300); /* a long poll */
    loop_turn(me.loop, true);
    give_nothing();
    assert_int_equal(line.assigns, 3);
    assert_null(beat().progress);
}

static void asks_again(void **state)
{
    refuse(-EAGAIN, true);
    UNTIL(line.assigns == 2);
    assert_int_equal(line.rejoins, 0);
    refuse(-ERR_STALE, true); /* it has forgotten this worker */
    UNTIL(line.assigns == 3);
    refuse(-ERR_NOTFOUND, true);
    assert_int_equal(line.rejoins, 2);
    UNTIL(line.assigns == 4);
    /* While the connection is away nothing is asked. */
    line.joined = false;
    line.opt.on_lost(line.opt.arg);
    cut(-ECONNRESET);
    for (int i = 0; i < 5; i++)
        loop_turn(me.loop, true);
    assert_int_equal(line.assigns, 4);
    join(true);
    assert_int_equal(line.assigns, 5);
}

/* Their files may be many and large: heartbeats do not wait for their removal. */
static void forgets_jobs_that_are_over(void **state)
{
    uint64_t going[] = {9};
    Skerry__V1__AssignReply reply = SKERRY__V1__ASSIGN_REPLY__INIT;
    reply.over_before = 13;
    reply.going = going;
    reply.n_going = 1;
    answer(&reply);
    going[0] = 0; /* the reply is gone */
    UNTIL(atomic_load(&forgotten) == 1);
    assert_true(before_last == 13 && going_last == 9);
    assert_false(pthread_equal(forgot, pthread_self()));
    UNTIL(line.assigns == 2);
    reply.over_before = 13;
    answer(&reply); /* nothing new */
    reply.over_before = 14;
    UNTIL(line.assigns == 3);
    answer(&reply);
    UNTIL(atomic_load(&forgotten) == 2);
    assert_int_equal(before_last, 14);
}

/* ---- reporting ---- */

static void a_task(void **state)
{
    do_task(11);
    const Skerry__V1__ReportRequest *r = line.report;
    assert_false(r->failed);
    assert_int_equal(r->n_contributions, 1);
    assert_int_equal(r->contributions[0]->module_id, 7);
    assert_int_equal(line.tickets, 1);
    Skerry__V1__HeartbeatRequest req = beat();
    assert_non_null(req.progress);
    assert_true(req.progress->task_id == 11 && req.progress->attempt == 3);
    take_report(true);
    UNTIL(line.assigns == 2); /* when the local checkpoint is written */
    assert_null(beat().progress);
    do_task(12); /* the next one begins afresh */
    assert_false(line.report->failed);
}

/* A task whose delta is coming waits for it, and for no other end. */
static void waits_for_a_delta(void **state)
{
    deltas.on_end(deltas.arg); /* nobody waits */
    deltas.awaits = true;
    hand(11, INIT);
    for (int i = 0; i < 5; i++)
        loop_turn(me.loop, true);
    assert_string_equal(beat().progress->activity, "downloading a delta that was sent early");
    deltas.on_end(deltas.arg); /* that of another module */
    for (int i = 0; i < 5; i++)
        loop_turn(me.loop, true);
    assert_int_equal(line.reports, 0);
    deltas.awaits = false;
    deltas.on_end(deltas.arg);
    UNTIL(line.reports == 1);
    assert_false(line.report->failed);
    deltas.on_end(deltas.arg);
}

/* It is taken back while it waits. */
static void a_waiting_task_is_taken_back(void **state)
{
    deltas.awaits = true;
    hand(11, INIT);
    Skerry__V1__HeartbeatReply reply = SKERRY__V1__HEARTBEAT_REPLY__INIT;
    reply.revoked_task_id = 11;
    reply.revoked_attempt = 3;
    line.opt.on_revoked(line.opt.arg, &reply);
    UNTIL(line.assigns == 2);
    deltas.on_end(deltas.arg);
    assert_int_equal(line.reports, 0);
}

static void reports_again(void **state)
{
    do_task(11);
    refuse(-EAGAIN, true);
    UNTIL(line.reports == 2);
    refuse(-ERR_STALE, true);
    assert_int_equal(line.rejoins, 1);
    UNTIL(line.reports == 3);
    /* A connection that was lost and is back. */
    line.joined = false;
    line.opt.on_lost(line.opt.arg);
    cut(-ECONNRESET);
    assert_int_equal(line.reports, 3);
    join(true);
    UNTIL(line.reports == 4);
    assert_int_equal(line.reports_before_beat, 3); /* verdicts are heard before its answer */
    assert_int_equal(line.tickets, 1);             /* the files are there */
    take_report(false);
    UNTIL(line.assigns == 2);
}

/* Another coordinator lacks the files: they are sent again, but not for ever. */
static void sends_again(void **state)
{
    do_task(11);
    for (unsigned i = 0; i < 3; i++) {
        refuse(-ERR_NOTFOUND, true);
        UNTIL(line.reports == 2 + i);
        assert_false(line.report->failed);
        assert_int_equal(line.tickets, 2 + i);
    }
    refuse(-ERR_NOTFOUND, true);
    UNTIL(line.reports == 5);
    assert_true(line.report->failed);
    assert_string_equal(line.report->reason, "for a reason");
    assert_int_equal(line.tickets, 4);
    refuse(-EINVAL, false); /* a refusal for good ends it, too */
    UNTIL(line.assigns == 2);
}

static void a_failure(void **state)
{
    hand(11, 77);
    assert_int_equal(line.reports, 1); /* at once */
    assert_true(line.report->failed && line.report->retryable);
    assert_int_equal(line.report->failure, SKERRY__V1__FAILURE__FAILURE_TASK);
    assert_non_null(strstr(line.report->reason, "kind 77 is not known"));
    take_report(true);
    UNTIL(line.assigns == 2);
    assert_false(me.ended);
}

/* A worker whose disk has gone ends after it has said so. */
static void a_lost_disk(void **state)
{
    begin_in("no/such/folder");
    join(false);
    hand(11, INIT);
    assert_true(line.reports == 1 && line.report->failed);
    assert_int_equal(line.report->failure, SKERRY__V1__FAILURE__FAILURE_DEVICE);
    take_report(true);
    UNTIL(line.bye);
    assert_non_null(strstr(line.reason, "the work dir cannot be used any more"));
    line.bye(line.bye_arg);
    UNTIL(me.ended);
    assert_int_equal(me.code, -EIO);
    assert_non_null(strstr(me.why, "no/such/folder"));
}

static void revoked(void **state)
{
    Skerry__V1__HeartbeatReply reply = SKERRY__V1__HEARTBEAT_REPLY__INIT;
    do_task(11);
    reply.revoked_task_id = 11;
    reply.revoked_attempt = 2; /* an earlier attempt */
    line.opt.on_revoked(line.opt.arg, &reply);
    assert_int_equal(line.method, SKERRY__V1__METHOD__METHOD_REPORT);
    reply.revoked_attempt = 3;
    line.opt.on_revoked(line.opt.arg, &reply);
    UNTIL(line.assigns == 2); /* the report was taken back */
    assert_int_equal(line.method, SKERRY__V1__METHOD__METHOD_ASSIGN);
    line.opt.on_revoked(line.opt.arg, &reply); /* told twice */
    assert_int_equal(line.assigns, 2);
}

/* ---- leaving ---- */

static void say_bye(const char *reason)
{
    UNTIL(line.bye);
    assert_string_equal(line.reason, reason);
    assert_false(me.ended);
    line.bye(line.bye_arg);
    UNTIL(me.ended);
    assert_int_equal(me.code, 0);
}

static void leaves(void **state)
{
    agent_leave(me.agent, "terminated", 100);
    assert_true(line.wait_ms > 0);
    say_bye("terminated");
    give_nothing(); /* the question's late answer */
    assert_int_equal(line.assigns, 1);
}

/* A result under way is sent first, if there is time for it. */
static void sends_and_leaves(void **state)
{
    do_task(11);
    agent_leave(me.agent, "terminated", 30000);
    assert_null(line.bye);
    take_report(true);
    say_bye("terminated");
    assert_int_equal(line.assigns, 1);
}

static void leaves_when_it_is_late(void **state)
{
    do_task(11);
    agent_leave(me.agent, "terminated", 1);
    say_bye("terminated");
}

static void drained(void **state)
{
    do_task(11);
    line.opt.on_drain(line.opt.arg);
    assert_null(line.bye);
    take_report(true);
    say_bye("drained");
}

/* A machine that goes takes no other task, and says why it leaves; a coordinator that was
 * started again is told, too. */
static void a_notice(void **state)
{
    assert_true(agent_notice(me.agent, "the cloud wants it", 600000));
    assert_true(line.notices == 1 && line.notice_ms == 600000);
    say_bye("the cloud wants it");
}

static void a_notice_in_a_task(void **state)
{
    do_task(11);
    agent_notice(me.agent, "the cloud wants it", 600000);
    assert_null(line.bye);
    join(true);
    assert_int_equal(line.notices, 2);
    assert_in_range(line.notice_ms, 500000, 600000);
    take_report(true);
    say_bye("the cloud wants it");
    assert_false(agent_notice(me.agent, "again", 5));
    assert_int_equal(line.notices, 2);
}

/* It leaves since it was drained, and is not to come back if the machine stays. */
static void a_notice_after_a_drain(void **state)
{
    do_task(11);
    line.opt.on_drain(line.opt.arg);
    assert_false(agent_notice(me.agent, "the cloud wants it", 600000));
    assert_int_equal(line.notices, 1);
    take_report(true);
    say_bye("the cloud wants it");
}

/* Of a drain after the notice it hears when it leaves. */
static void a_drain_after_a_notice(void **state)
{
    do_task(11);
    assert_true(agent_notice(me.agent, "the cloud wants it", 600000));
    line.opt.on_drain(line.opt.arg); /* as the answers to its heartbeats say */
    take_report(true);
    line.drained = true;
    UNTIL(line.bye);
    line.bye(line.bye_arg);
    UNTIL(me.ended);
    assert_int_equal(me.code, 1);
}

/* With less than half a minute left it leaves in mid-task. */
static void a_late_notice(void **state)
{
    do_task(11);
    agent_notice(me.agent, "the cloud wants it", 1600);
    say_bye("the cloud wants it"); /* 1.5 s of these are for the good-bye */
}

/* How long a snapshot takes may be known only after the notice: the time is kept all the same. */
static void time_is_kept_that_is_known_later(void **state)
{
    do_task(11);
    const unsigned stops = deltas.stops;
    agent_notice(me.agent, "the cloud wants it", 600000);
    for (int i = 0; i < 5; i++)
        loop_turn(me.loop, true);
    assert_int_equal(deltas.stops, stops);
    atomic_store(&host.engine->snapshot_ns, 400 * CLOCK_NS_PER_S);
    UNTIL(deltas.stops > stops); /* it leaves, with the result */
    atomic_store(&host.engine->snapshot_ns, 0);
    assert_null(line.bye);
    take_report(true);
    say_bye("the cloud wants it");
}

static void refused_for_ever(void **state)
{
    struct err why = {0};
    (void)err_set(&why, -ERR_AUTH, "the token was revoked");
    line.opt.on_failed(line.opt.arg, &why);
    assert_true(me.ended && me.code == -ERR_AUTH);
    assert_string_equal(me.why, "the token was revoked");
}

static bool is_there(const char *name)
{
    char *path = in(host.state, name);
    const bool there = file_exists(path);
    mem_free(path);
    return there;
}

static void say(uint64_t task, uint64_t module, bool accepted)
{
    Skerry__V1__Applied v = SKERRY__V1__APPLIED__INIT;
    v.task_id = task;
    v.module_id = module;
    v.accepted = accepted;
    line.opt.on_applied(line.opt.arg, &v);
}

/* Keeps the compute thread busy until `held` is false. */
static void hold(void)
{
    Skerry__V1__AssignReply reply = SKERRY__V1__ASSIGN_REPLY__INIT;
    reply.over_before = 99;
    UNTIL(line.done);
    atomic_store(&held, true);
    answer(&reply);
}

/* What becomes of a contribution is said with work or with a heartbeat; the residual follows.  It
 * is gone at once where the contribution was refused: the phase under way may ask for it. */
static void verdicts(void **state)
{
    Skerry__V1__Applied v = SKERRY__V1__APPLIED__INIT, *list[] = {&v};
    Skerry__V1__AssignReply reply = SKERRY__V1__ASSIGN_REPLY__INIT;
    put(host.state, "residual-1-7-0-0.sent-9", "x", 1);
    put(host.state, "residual-1-8-0-0.sent-10", "x", 1);
    v.task_id = 9;
    v.module_id = 7;
    v.accepted = true;
    reply.applied = list;
    reply.n_applied = 1;
    answer(&reply);
    UNTIL(!is_there("residual-1-7-0-0.sent-9"));
    assert_true(is_there("residual-1-7-0-0"));
    hold();
    say(10, 8, false);
    assert_false(is_there("residual-1-8-0-0.sent-10"));
    assert_false(is_there("residual-1-8-0-0"));
}

/* What the compute thread marks as sent after its refusal was heard is gone, too. */
static void refused_before_it_is_sent(void **state)
{
    hold();
    say(10, 8, false);
    put(host.state, "residual-1-8-0-0.sent-10", "x", 1);
    put(host.state, "residual-1-7-0-0.sent-9", "x", 1);
    say(9, 7, true);
    atomic_store(&held, false);
    UNTIL(!is_there("residual-1-7-0-0.sent-9"));
    assert_false(is_there("residual-1-8-0-0.sent-10"));
}

/* A process that ends with a task in hand leaves nothing behind. */
static void ends_in_mid_task(void **state)
{
    hand(11, INIT);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(asks_and_waits),
        TEST(asks_again),
        TEST(forgets_jobs_that_are_over),
        TEST(a_task),
        TEST(waits_for_a_delta),
        TEST(a_waiting_task_is_taken_back),
        TEST(reports_again),
        TEST(sends_again),
        TEST(a_failure),
        TEST(revoked),
        TEST(leaves),
        TEST(sends_and_leaves),
        TEST(leaves_when_it_is_late),
        TEST(drained),
        TEST(a_notice),
        TEST(a_late_notice),
        TEST(a_notice_after_a_drain),
        TEST(a_drain_after_a_notice),
        TEST(a_notice_in_a_task),
        TEST(time_is_kept_that_is_known_later),
        TEST(refused_for_ever),
        TEST(ends_in_mid_task),
        TEST(verdicts),
        TEST(refused_before_it_is_sent),
        cmocka_unit_test_teardown(a_lost_disk, end),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
