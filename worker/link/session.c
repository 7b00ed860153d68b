#include "worker/link/session.h"

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/net/frame.h"
#include "common/net/loop.h"
#include "common/net/token_source.h"

#define HEARTBEAT_MS_DEFAULT 2000
#define HEARTBEAT_MS_MIN 50
#define HEARTBEAT_MS_MAX 60000
#define CALL_MS 15000
#define REJOIN_MS 1000
#define MACHINE_BYTES 8

struct session {
    struct session_options opt;
    struct token home; /* the given token */
    unsigned turn;     /* address in opt.also; 0: home */
    unsigned round;    /* through them: a name that leads to several machines has one for each */
    struct rpc_client *rpc;
    struct loop_timer *beat, *retry, *bye;
    bool connected, joined, ever_joined, joining, beating, unheard, leaving;
    uint32_t heartbeat_ms;
    struct log_change waiting;
    void (*bye_done)(void *arg);
    bool drained;
    void *bye_arg;
};

/* ---- joining ---- */

static void start_heartbeats(struct session *s)
{
    loop_timer_start(s->beat, s->heartbeat_ms, s->heartbeat_ms);
}

static void on_join_reply(void *arg, const struct rpc_result *r)
{
    struct session *s = arg;
    s->joining = false;
    if (r->code == -ERR_CANCELLED || s->leaving)
        return;
    if (r->code < 0) {
        log_on_change(&s->waiting, LOG_LEVEL_WARN, "session", "cannot join yet: %s", r->detail);
        if (r->code == -ERR_VERSION || r->code == -ERR_AUTH) {
            struct err why = {0};
            (void)err_set(&why, r->code, "the coordinator refused this worker: %s", r->detail);
            s->opt.on_failed(s->opt.arg, &why);
        } else if (rpc_client_state(s->rpc) == RPC_CONNECTED) {
            uint32_t after = r->retry_after_ms ? r->retry_after_ms : REJOIN_MS;
            loop_timer_start(s->retry, after, 0);
        }
        return;
    }
    const Skerry__V1__JoinReply *reply = (const Skerry__V1__JoinReply *)(const void *)r->reply;
    bool again = s->ever_joined;
    s->heartbeat_ms = reply->heartbeat_ms ? reply->heartbeat_ms : HEARTBEAT_MS_DEFAULT;
    if (s->heartbeat_ms < HEARTBEAT_MS_MIN)
        s->heartbeat_ms = HEARTBEAT_MS_MIN;
    if (s->heartbeat_ms > HEARTBEAT_MS_MAX)
        s->heartbeat_ms = HEARTBEAT_MS_MAX;
    s->joined = s->ever_joined = true;
    if (s->opt.share) {
        s->opt.share->now_s = reply->now_s;
        s->opt.share->told_ms = clock_now_ms();
    }
    log_on_change(&s->waiting, LOG_LEVEL_INFO, "session",
                  "joined %s:%u worker=%" PRIu64 " heartbeat_ms=%u", s->opt.token->host,
                  s->opt.token->rpc_port, reply->worker_id, s->heartbeat_ms);
    start_heartbeats(s);
    s->opt.on_joined(s->opt.arg, again);
}

static void tell_share(const struct session_share *w, Skerry__V1__JoinRequest *req)
{
    req->site = (char *)(uintptr_t)w->site; /* protobuf-c has no const; it is only read */
    req->share_host = (char *)(uintptr_t)w->host;
    req->share_port = w->port;
    req->share_key = (ProtobufCBinaryData){32, (uint8_t *)(uintptr_t)w->key};
}

/* Workers under one kernel run on one machine, also those in containers.  Returns the number of
 * bytes; 0: it is unknown. */
static size_t name_machine(uint8_t out[HASH_BYTES])
{
    char boot[CLOCK_BOOT_MAX];
    (void)clock_boot(boot);
    hash_sha256(boot, strlen(boot), out);
    return boot[0] != '\0' ? MACHINE_BYTES : 0;
}

static void join(struct session *s)
{
    uint8_t machine[HASH_BYTES];
    if (s->joining || s->leaving || rpc_client_state(s->rpc) != RPC_CONNECTED)
        return;
    Skerry__V1__JoinRequest req = SKERRY__V1__JOIN_REQUEST__INIT;
    req.name = (char *)(uintptr_t)s->opt.name; /* protobuf-c has no const; it is only read */
    req.device = (char *)(uintptr_t)s->opt.device;
    req.instance = (ProtobufCBinaryData){16, s->opt.instance};
    req.identity = (ProtobufCBinaryData){16, s->opt.identity};
    req.memory_bytes = s->opt.memory_bytes;
    req.threads = s->opt.threads;
    req.machine = (ProtobufCBinaryData){name_machine(machine), machine};
    req.allows_trainers = s->opt.allows_trainers;
    req.fetches_ahead = true;
    req.reads = SKERRY__V1__READS__READS_CASCADE_EXPERTS;
    req.price_per_hour = s->opt.price;
    if (s->opt.share)
        tell_share(s->opt.share, &req);
    req.version = (char *)(uintptr_t)SKERRY_VERSION;
    int rc = rpc_client_call(s->rpc, SKERRY__V1__METHOD__METHOD_JOIN, &req.base,
                             &skerry__v1__join_reply__descriptor, CALL_MS, on_join_reply, s, NULL);
    s->joining = rc == 0;
    if (rc < 0)
        loop_timer_start(s->retry, REJOIN_MS, 0);
}

static void on_retry(void *arg)
{
    join(arg);
}

void session_rejoin(struct session *s)
{
    s->joined = false;
    loop_timer_stop(s->beat);
    join(s);
}

static void move_to(struct session *s, const struct token *t)
{
    (void)str_copy(s->opt.token->host, sizeof(s->opt.token->host), t->host);
    s->opt.token->rpc_port = t->rpc_port;
    s->opt.token->http_port = t->http_port;
    rpc_client_move(s->rpc, t, s->round);
}

/* Looks for a new address of the coordinator in the token file. */
static bool look_for_new_address(struct session *s)
{
    struct token t;
    if (s->opt.token_file == NULL || token_source_read(s->opt.token_file, &t, NULL) < 0 ||
        memcmp(t.pin, s->home.pin, sizeof(t.pin)) != 0 ||
        (strcmp(t.host, s->home.host) == 0 && t.rpc_port == s->home.rpc_port &&
         t.http_port == s->home.http_port))
        return false;
    log_info("session", "the coordinator is at %s:%u now, as %s says", t.host, t.rpc_port,
             s->opt.token_file);
    s->home = t;
    s->turn = s->round = 0;
    move_to(s, &t);
    return true;
}

static bool read_port(const char **at, uint16_t *port)
{
    char *end = NULL;
    if (**at != ':')
        return true;
    const unsigned long n = strtoul(*at + 1, &end, 10);
    const bool good = end > *at + 1 && n > 0 && n <= UINT16_MAX;
    *at = end;
    *port = (uint16_t)n;
    return good;
}

/* Reads the address at *at, and moves *at to the next comma, or to the end. */
static bool read_address(const char **at, struct token *t)
{
    const bool six = **at == '[';
    *at += six;
    const size_t n = strcspn(*at, six ? "]," : ":,");
    if (n == 0 || n > TOKEN_HOST_MAX || (six && (*at)[n] != ']'))
        return false;
    (void)snprintf(t->host, sizeof(t->host), "%.*s", (int)n, *at);
    *at += n + six;
    return read_port(at, &t->rpc_port) && read_port(at, &t->http_port) &&
           (**at == ',' || **at == '\0');
}

static int check_addresses(const struct session *s, struct err *err)
{
    struct token t = s->home;
    const char *at = s->opt.also;
    while (at != NULL && *at != '\0') {
        if (!read_address(&at, &t))
            return err_set(err, -EINVAL,
                           "--also '%.120s' is no list of HOST, HOST:RPC_PORT or "
                           "HOST:RPC_PORT:HTTP_PORT with commas between them",
                           s->opt.also);
        at += *at == ',';
    }
    return 0;
}

/* Nobody answers here: tries the next address of the list; after the last comes home again. */
static void try_next(struct session *s)
{
    struct token t = s->home;
    const char *at = s->opt.also;
    unsigned n = 0;
    if (at == NULL)
        return;
    for (s->turn++; n < s->turn && *at != '\0'; n++) {
        t = s->home;
        (void)read_address(&at, &t);
        at += *at == ',';
    }
    if (n < s->turn) {
        s->turn = 0;
        s->round++;
        t = s->home;
    }
    move_to(s, &t);
}

static void on_state(void *arg, enum rpc_state state, const struct err *why)
{
    struct session *s = arg;
    bool was_joined = s->joined;
    switch (state) {
    case RPC_CONNECTED:
        s->connected = true;
        join(s);
        break;
    case RPC_DISCONNECTED:
        s->joined = s->joining = false;
        loop_timer_stop(s->beat);
        loop_timer_stop(s->retry);
        if (!s->leaving && (s->connected || s->turn == 0)) /* else every dial would be logged */
            log_on_change(&s->waiting, LOG_LEVEL_WARN, "session",
                          "waiting for the coordinator at %s:%u: %s; dialling again",
                          s->opt.token->host, s->opt.token->rpc_port,
                          why ? why->msg : "connection lost");
        if (!look_for_new_address(s) && !s->connected)
            try_next(s); /* otherwise it may come back here in a moment */
        s->connected = false;
        if (was_joined)
            s->opt.on_lost(s->opt.arg);
        break;
    case RPC_FAILED:
        s->joined = s->joining = false;
        loop_timer_stop(s->beat);
        s->opt.on_failed(s->opt.arg, why);
        break;
    case RPC_CONNECTING:
        break;
    }
}

/* ---- heartbeats ---- */

static void on_heartbeat_reply(void *arg, const struct rpc_result *r)
{
    struct session *s = arg;
    s->beating = false;
    s->unheard = r->code < 0;
    if (r->code < 0) {
        if (r->remote && (r->code == -ERR_STALE || r->code == -ERR_NOTFOUND))
            session_rejoin(s);
        else if (r->code != -ERR_CANCELLED)
            log_debug("session", "heartbeat: %s", r->detail);
        return;
    }
    const Skerry__V1__HeartbeatReply *reply =
        (const Skerry__V1__HeartbeatReply *)(const void *)r->reply;
    s->opt.on_heard(s->opt.arg);
    for (size_t i = 0; i < reply->n_applied; i++)
        s->opt.on_applied(s->opt.arg, reply->applied[i]);
    if (reply->revoked_task_id)
        s->opt.on_revoked(s->opt.arg, reply);
    if (reply->drain)
        s->opt.on_drain(s->opt.arg);
    if (reply->rejoin)
        session_rejoin(s);
}

void session_heartbeat(struct session *s)
{
    if (!s->joined || s->beating)
        return;
    Skerry__V1__HeartbeatRequest req = SKERRY__V1__HEARTBEAT_REQUEST__INIT;
    s->opt.fill_heartbeat(s->opt.arg, &req);
    req.unheard = s->unheard;
    struct rpc_counters control = rpc_client_counters(s->rpc);
    req.control_bytes_up = control.bytes_out;
    req.control_bytes_down = control.bytes_in;
    int rc = rpc_client_call(s->rpc, SKERRY__V1__METHOD__METHOD_HEARTBEAT, &req.base,
                             &skerry__v1__heartbeat_reply__descriptor, CALL_MS, on_heartbeat_reply,
                             s, NULL);
    s->beating = rc == 0;
}

static void on_beat(void *arg)
{
    session_heartbeat(arg);
}

/* ---- life ---- */

int session_open(const struct session_options *o, struct session **ret, struct err *err)
{
    struct session *s = mem_alloc(sizeof(*s));
    s->opt = *o;
    s->home = *o->token;
    s->heartbeat_ms = HEARTBEAT_MS_DEFAULT;
    int rc = check_addresses(s, err);
    if (rc < 0) {
        mem_free(s);
        return rc;
    }
    s->beat = loop_timer_new(o->loop, on_beat, s);
    s->retry = loop_timer_new(o->loop, on_retry, s);
    struct rpc_client_options rpc = {
        .token = s->opt.token,
        .keys = o->keys,
        .build_id = SKERRY_VERSION,
        .max_body_bytes = FRAME_BODY_MAX, /* thousands of ranges with their tickets */
        .on_state = on_state,
        .arg = s,
    };
    rc = rpc_client_open(o->loop, &rpc, &s->rpc, err);
    if (rc < 0) {
        session_close(s);
        return rc;
    }
    *ret = s;
    return 0;
}

void session_close(struct session *s)
{
    if (!s)
        return;
    s->leaving = true;
    s->joined = false;
    rpc_client_close(s->rpc);
    loop_timer_free(s->beat);
    loop_timer_free(s->retry);
    loop_timer_free(s->bye);
    mem_free(s);
}

bool session_joined(const struct session *s)
{
    return s->joined;
}

int session_call(struct session *s, uint16_t method, const ProtobufCMessage *msg,
                 const ProtobufCMessageDescriptor *reply, uint32_t deadline_ms, rpc_done_fn done,
                 void *arg, uint64_t *ret_id)
{
    if (!s->joined)
        return -ENOTCONN;
    return rpc_client_call(s->rpc, method, msg, reply, deadline_ms, done, arg, ret_id);
}

void session_cancel(struct session *s, uint64_t call_id)
{
    rpc_client_cancel(s->rpc, call_id);
}

static void say_bye(struct session *s)
{
    void (*done)(void *arg) = s->bye_done;
    s->bye_done = NULL;
    loop_timer_stop(s->bye);
    if (done)
        done(s->bye_arg);
}

static void on_notice_reply(void *arg, const struct rpc_result *r)
{
    if (r->code < 0 && r->code != -ERR_CANCELLED)
        log_debug("session", "notice: %s", r->detail);
}

void session_notice(struct session *s, const char *reason, uint32_t ms)
{
    Skerry__V1__LeaveRequest req = SKERRY__V1__LEAVE_REQUEST__INIT;
    req.reason = (char *)(uintptr_t)reason;
    req.notice_ms = ms ? ms : 1; /* 0 is a good-bye */
    (void)session_call(s, SKERRY__V1__METHOD__METHOD_LEAVE, &req.base,
                       &skerry__v1__leave_reply__descriptor, CALL_MS, on_notice_reply, s, NULL);
}

static void on_leave_reply(void *arg, const struct rpc_result *r)
{
    struct session *s = arg;
    const Skerry__V1__LeaveReply *reply = (const Skerry__V1__LeaveReply *)(const void *)r->reply;
    s->drained = r->code == 0 && reply->drained;
    if (r->code != -ERR_CANCELLED)
        say_bye(s);
}

static void on_bye_timer(void *arg)
{
    say_bye(arg);
}

void session_leave(struct session *s, const char *reason, uint32_t wait_ms, void (*done)(void *arg),
                   void *arg)
{
    s->bye_done = done;
    s->bye_arg = arg;
    if (!s->bye)
        s->bye = loop_timer_new(s->opt.loop, on_bye_timer, s);
    Skerry__V1__LeaveRequest req = SKERRY__V1__LEAVE_REQUEST__INIT;
    req.reason = (char *)(uintptr_t)reason;
    int rc = session_call(s, SKERRY__V1__METHOD__METHOD_LEAVE, &req.base,
                          &skerry__v1__leave_reply__descriptor, wait_ms, on_leave_reply, s, NULL);
    s->leaving = true;
    loop_timer_stop(s->beat);
    loop_timer_start(s->bye, rc < 0 ? 0 : wait_ms, 0);
}

bool session_drained(const struct session *s)
{
    return s->drained;
}
