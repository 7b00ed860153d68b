/* Joining, joining again, heartbeats and good-bye, on a connection that the test plays. */
#include "tests/unit/worker/link/fake_line.h"

#include "common/base/file.h"
#include "common/net/token.h"
#include "worker/link/session.h"

struct rpc_client {
    struct rpc_client_options opt;
    enum rpc_state state;
};

static struct rpc_client client;
static struct {
    rpc_done_fn done;
    void *arg;
    unsigned n;
} calls[64]; /* by method */
static struct {
    unsigned joined, again, lost, failed, heard, applied, drained;
    uint64_t revoked;
    bool unheard; /* by the last heartbeat */
    int why;
} told;
static struct session *session;
static unsigned byes;

int rpc_client_open(struct loop *loop, const struct rpc_client_options *o, struct rpc_client **ret,
                    struct err *err)
{
    client = (struct rpc_client){.opt = *o, .state = RPC_CONNECTING};
    *ret = &client;
    return 0;
}

void rpc_client_close(struct rpc_client *c)
{
}

static const struct token *where; /* the token that all of the worker share */
static struct token moved;        /* where the session says that the coordinator is now */
static unsigned moved_address;

void rpc_client_move(struct rpc_client *c, const struct token *token, unsigned address)
{
    moved = *token;
    moved_address = address;
}
void rpc_client_cancel(struct rpc_client *c, uint64_t id)
{
}

int rpc_client_call(struct rpc_client *c, uint16_t method, const ProtobufCMessage *msg,
                    const ProtobufCMessageDescriptor *reply, uint32_t deadline_ms, rpc_done_fn done,
                    void *arg, uint64_t *ret_id)
{
    assert_true(method < COUNT(calls));
    calls[method].done = done;
    calls[method].arg = arg;
    calls[method].n++;
    if (method == SKERRY__V1__METHOD__METHOD_HEARTBEAT)
        told.unheard = ((const Skerry__V1__HeartbeatRequest *)(const void *)msg)->unheard;
    return 0;
}

enum rpc_state rpc_client_state(const struct rpc_client *c)
{
    return c->state;
}

struct rpc_counters rpc_client_counters(const struct rpc_client *c)
{
    return (struct rpc_counters){0};
}

/* ---- what the session tells ---- */

static void on_joined(void *arg, bool again)
{
    told.joined++;
    told.again += again;
}

static void on_lost(void *arg)
{
    told.lost++;
}

static void on_failed(void *arg, const struct err *why)
{
    told.failed++;
    told.why = why->code;
}

static void fill_heartbeat(void *arg, Skerry__V1__HeartbeatRequest *req)
{
}

static void on_heard(void *arg)
{
    told.heard++;
}

static void on_applied(void *arg, const Skerry__V1__Applied *applied)
{
    told.applied++;
}

static void on_revoked(void *arg, const Skerry__V1__HeartbeatReply *reply)
{
    told.revoked = reply->revoked_task_id;
}

static void on_drain(void *arg)
{
    told.drained++;
}

static void on_bye(void *arg)
{
    byes++;
}

/* ---- what happens ---- */

#define JOIN SKERRY__V1__METHOD__METHOD_JOIN
#define BEAT SKERRY__V1__METHOD__METHOD_HEARTBEAT
#define LEAVE SKERRY__V1__METHOD__METHOD_LEAVE

static void becomes(enum rpc_state state)
{
    const struct err why = {.code = -ERR_AUTH, .msg = "so it is"};
    client.state = state;
    client.opt.on_state(client.opt.arg, state, &why);
}

static void answer(uint16_t method, const struct rpc_result *r)
{
    calls[method].done(calls[method].arg, r);
}

static void fails(uint16_t method, int code, bool remote)
{
    answer(method, &(struct rpc_result){.code = code, .detail = "no", .remote = remote});
}

static void join_as(uint32_t heartbeat_ms)
{
    Skerry__V1__JoinReply reply = SKERRY__V1__JOIN_REPLY__INIT;
    reply.worker_id = 3;
    reply.heartbeat_ms = heartbeat_ms;
    answer(JOIN, &(struct rpc_result){.reply = &reply.base, .detail = ""});
}

#define BEATS timers[0]
#define RETRY timers[1]

static int call(void)
{
    return session_call(session, 40, NULL, NULL, 0, NULL, NULL, NULL);
}

static void joins_when_connected(void **state)
{
    assert_int_equal(call(), -ENOTCONN);
    becomes(RPC_CONNECTED);
    becomes(RPC_CONNECTED); /* one question at a time */
    assert_int_equal(calls[JOIN].n, 1);
    assert_int_equal(call(), -ENOTCONN);
    join_as(500);
    assert_true(session_joined(session) && told.joined == 1 && told.again == 0);
    assert_int_equal(call(), 0);
}

static void joins_again_after_a_loss(void **state)
{
    becomes(RPC_CONNECTED);
    join_as(500);
    becomes(RPC_DISCONNECTED);
    assert_true(!session_joined(session) && told.lost == 1);
    becomes(RPC_DISCONNECTED); /* a try that failed is no loss */
    assert_int_equal(told.lost, 1);
    becomes(RPC_CONNECTED);
    join_as(500);
    assert_true(told.joined == 2 && told.again == 1);
}

static void open_session(const char *token_file, const char *also);

static void says(const char *path, const char *host, uint16_t http_port, uint8_t pin)
{
    char text[TOKEN_STRING_MAX];
    struct token t = {.role = TOKEN_ROLE_WORKER, .rpc_port = 7, .http_port = http_port};
    (void)str_copy(t.host, sizeof t.host, host);
    t.pin[0] = pin;
    OK(token_format(&t, text, err));
    OK(file_write_atomic(path, text, strlen(text), 0600, err));
}

/* A coordinator that has moved is followed where the token file leads, and no other is. */
static void follows_a_token_file(void **state)
{
    char dir[] = "/tmp/skerry-session-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = file_join(dir, "token");
    session_close(session);
    open_session(path, NULL);
    says(path, "there", 8, 9);
    becomes(RPC_DISCONNECTED);
    assert_string_equal(moved.host, ""); /* its key is another */
    says(path, "there", 8, 0);
    becomes(RPC_DISCONNECTED);
    assert_string_equal(moved.host, "there");
    assert_int_equal(moved.rpc_port, 7);
    moved.host[0] = '\0';
    becomes(RPC_DISCONNECTED); /* it is there already */
    assert_string_equal(moved.host, "");
    says(path, "there", 9, 0);
    becomes(RPC_DISCONNECTED);
    assert_int_equal(moved.http_port, 9); /* files come from another port */
    moved.host[0] = '\0';
    OK(file_remove_tree(dir, err));
    becomes(RPC_DISCONNECTED); /* nothing to read: it stays */
    assert_string_equal(moved.host, "");
    mem_free(path);
}

static void is_at(const char *host, unsigned rpc, unsigned http, unsigned address)
{
    assert_int_equal(moved_address, address);
    assert_string_equal(where->host, host);
    assert_string_equal(moved.host, host);
    assert_true(where->rpc_port == rpc && moved.rpc_port == rpc && where->http_port == http);
}

/* Where nobody answers the list is gone through, and from its end back to the beginning, where the
 * next address of each name has its turn; a connection that was cut is dialled again first. */
static void goes_through_a_list(void **state)
{
    static const char *const bad[] = {",", "a:", "a:0", "a:1:", "a:70000", "[::1", "a;b:1:2:3"};
    session_close(session);
    open_session(NULL, "second,[::1]:7,third:8:9");
    becomes(RPC_CONNECTED);
    moved.host[0] = '\0';
    becomes(RPC_DISCONNECTED);
    assert_string_equal(moved.host, "");
    becomes(RPC_DISCONNECTED);
    is_at("second", 1, 2, 0);
    becomes(RPC_DISCONNECTED);
    is_at("::1", 7, 2, 0);
    becomes(RPC_DISCONNECTED);
    is_at("third", 8, 9, 0);
    becomes(RPC_DISCONNECTED);
    is_at("coordinator", 1, 2, 1);
    becomes(RPC_DISCONNECTED);
    is_at("second", 1, 2, 1);
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct token t = *where;
        struct session *s = NULL;
        struct err why = {0};
        const struct session_options o = {.token = &t, .also = bad[i]};
        assert_int_equal(session_open(&o, &s, &why), -EINVAL);
        assert_non_null(strstr(why.msg, "--also"));
    }
}

/* It does not know us any more: JOIN again, on the same connection. */
static void joins_again_when_forgotten(void **state)
{
    static const int codes[] = {-ERR_STALE, -ERR_NOTFOUND};
    for (size_t i = 0; i < COUNT(codes); i++) {
        becomes(RPC_CONNECTED);
        join_as(500);
        const unsigned before = calls[JOIN].n;
        session_heartbeat(session);
        fails(BEAT, codes[i], true);
        assert_false(session_joined(session));
        assert_int_equal(calls[JOIN].n, before + 1);
    }
    assert_int_equal(told.lost, 0);
}

static void refused_for_ever(void **state)
{
    static const int codes[] = {-ERR_VERSION, -ERR_AUTH};
    for (unsigned i = 0; i < COUNT(codes); i++) {
        becomes(RPC_CONNECTED);
        fails(JOIN, codes[i], true);
        assert_true(told.failed == i + 1 && told.why == codes[i]);
    }
    becomes(RPC_FAILED);
    assert_int_equal(told.failed, 3);
    assert_int_equal(told.joined, 0);
}

static void tried_again_otherwise(void **state)
{
    becomes(RPC_CONNECTED);
    fails(JOIN, -EAGAIN, true);
    assert_true(told.failed == 0 && calls[JOIN].n == 1);
    assert_int_equal(RETRY->after_ms, 1000);
    fire(RETRY);
    answer(JOIN, &(struct rpc_result){
                     .code = -EAGAIN, .detail = "full", .remote = true, .retry_after_ms = 7000});
    assert_int_equal(RETRY->after_ms, 7000); /* as it was told */
    becomes(RPC_DISCONNECTED);
    assert_false(RETRY->active); /* the next connection joins */
    assert_int_equal(calls[JOIN].n, 2);
}

static void one_heartbeat_at_a_time(void **state)
{
    session_heartbeat(session); /* not joined yet */
    assert_int_equal(calls[BEAT].n, 0);
    becomes(RPC_CONNECTED);
    join_as(1);
    session_heartbeat(session);
    session_heartbeat(session);
    assert_int_equal(calls[BEAT].n, 1);
    fails(BEAT, -ETIMEDOUT, false);
    assert_int_equal(told.heard, 0);
    assert_true(session_joined(session)); /* the connection will tell */
    session_heartbeat(session);
    assert_int_equal(calls[BEAT].n, 2);
    assert_true(told.unheard);
    Skerry__V1__HeartbeatReply reply = SKERRY__V1__HEARTBEAT_REPLY__INIT;
    answer(BEAT, &(struct rpc_result){.reply = &reply.base, .detail = ""});
    session_heartbeat(session);
    assert_false(told.unheard);
}

/* Whatever the coordinator says. */
static void heartbeats_are_neither_too_fast_nor_too_slow(void **state)
{
    static const uint32_t said[] = {0, 1, 500, 1000000}, want[] = {2000, 50, 500, 60000};
    becomes(RPC_CONNECTED);
    for (size_t i = 0; i < COUNT(said); i++) {
        join_as(said[i]);
        assert_int_equal(BEATS->repeat_ms, want[i]);
        session_rejoin(session);
        assert_false(BEATS->active);
    }
}

static void heartbeats_bring_news(void **state)
{
    Skerry__V1__Applied applied = SKERRY__V1__APPLIED__INIT, *list[2] = {&applied, &applied};
    Skerry__V1__HeartbeatReply reply = SKERRY__V1__HEARTBEAT_REPLY__INIT;
    reply.applied = list;
    reply.n_applied = 2;
    reply.revoked_task_id = 9;
    reply.drain = reply.rejoin = true;
    becomes(RPC_CONNECTED);
    join_as(500);
    session_heartbeat(session);
    answer(BEAT, &(struct rpc_result){.reply = &reply.base, .detail = ""});
    assert_true(told.applied == 2 && told.revoked == 9 && told.drained == 1);
    assert_int_equal(told.heard, 1);
    assert_false(session_joined(session));
    assert_int_equal(calls[JOIN].n, 2);
}

static void good_bye_is_said_once(void **state)
{
    becomes(RPC_CONNECTED);
    join_as(500);
    session_leave(session, "done", 100, on_bye, NULL);
    assert_true(calls[LEAVE].n == 1 && byes == 0);
    fails(LEAVE, -ETIMEDOUT, false); /* heard or not: it was said */
    assert_false(timers[2]->active);
    assert_int_equal(byes, 1);
    fails(LEAVE, -ERR_CANCELLED, false);
    becomes(RPC_DISCONNECTED);
    becomes(RPC_CONNECTED);
    assert_int_equal(calls[JOIN].n, 1); /* one that leaves does not come back */
    assert_int_equal(byes, 1);
}

static void who_leaves_hears_of_a_drain(void **state)
{
    Skerry__V1__LeaveReply reply = SKERRY__V1__LEAVE_REPLY__INIT;
    for (int drained = 1; drained >= 0; drained--) {
        becomes(RPC_CONNECTED);
        join_as(500);
        session_leave(session, "done", 100, on_bye, NULL);
        reply.drained = drained;
        answer(LEAVE, &(struct rpc_result){.reply = &reply.base, .detail = ""});
        assert_int_equal(session_drained(session), drained);
    }
}

static void open_session(const char *token_file, const char *also)
{
    static struct token token;
    token = (struct token){.host = "coordinator", .rpc_port = 1, .http_port = 2};
    where = &token;
    memset(calls, 0, sizeof(calls));
    memset(&told, 0, sizeof(told));
    byes = n_timers = 0;
    const struct session_options opt = {.token = &token,
                                        .name = "w",
                                        .device = "cpu",
                                        .on_joined = on_joined,
                                        .on_lost = on_lost,
                                        .on_failed = on_failed,
                                        .fill_heartbeat = fill_heartbeat,
                                        .on_heard = on_heard,
                                        .on_applied = on_applied,
                                        .on_revoked = on_revoked,
                                        .on_drain = on_drain,
                                        .token_file = token_file,
                                        .also = also};
    OK(session_open(&opt, &session, err));
}

static int setup(void **state)
{
    open_session(NULL, NULL);
    return 0;
}

static int teardown(void **state)
{
    session_close(session);
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(joins_when_connected),       TEST(joins_again_after_a_loss),
        TEST(joins_again_when_forgotten), TEST(refused_for_ever),
        TEST(tried_again_otherwise),      TEST(one_heartbeat_at_a_time),
        TEST(heartbeats_bring_news),      TEST(heartbeats_are_neither_too_fast_nor_too_slow),
        TEST(good_bye_is_said_once),      TEST(who_leaves_hears_of_a_drain),
        TEST(follows_a_token_file),       TEST(goes_through_a_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
