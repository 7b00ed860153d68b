/* The routes on a real server with a made-up coordinator: logins, commands that
 * wait for the disk, event streams, and what closing does to both. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/data/dataset.h"
#include "common/net/token.h"
#include "coordinator/http/http_api.h"
#include "coordinator/http/http_events.h"
#include "coordinator/http/http_session.h"
#include "tests/unit/coordinator/fake_view.h"
#include "tests/unit/coordinator/http/client.h"

_Static_assert(SUBMIT_SHARDS_MAX == DATASET_SHARDS_MAX, "what is cut can be submitted");

#define HOLDER 5

static struct http_api *api;

static unsigned authenticate(void *arg, const char *presented, uint64_t *ret_holder)
{
    *ret_holder = HOLDER;
    if (strcmp(presented, "right") == 0)
        return TOKEN_ROLE_OPERATOR;
    if (strcmp(presented, "viewer") == 0)
        return TOKEN_ROLE_VIEWER;
    return strcmp(presented, "worker") == 0 ? TOKEN_ROLE_WORKER : 0;
}

static struct http_sessions *sessions;

static unsigned session(void *arg, const char *cookie, uint64_t *ret_holder)
{
    *ret_holder = http_session_holder(sessions, cookie);
    return *ret_holder ? TOKEN_ROLE_OPERATOR : 0;
}

static int open_all(void **state)
{
    struct err err = {0};
    const struct http_server_options so = {
        .host = "127.0.0.1",
        .authenticate = authenticate,
        .cookie = "c-1",
        .session = session,
    };
    memset(&fake, 0, sizeof fake);
    if (loop_new(&loop, &err) < 0 || http_server_open(loop, &so, &server, &err) < 0)
        return -1;
    sessions = http_sessions_new("/nowhere/sessions"); /* memory must do */
    const struct http_api_options ao = {
        .server = server, .sessions = sessions, .authenticate = authenticate};
    return http_api_open(&ao, &api, &err);
}

static int close_all(void **state)
{
    http_api_close(api);
    http_server_close(server);
    loop_free(loop);
    http_sessions_free(sessions);
    api = NULL;
    return 0;
}

/* ---- tests --------------------------------------------------------------- */

static void test_health_and_secrets(void **state)
{
    static struct answer a;
    ask(&a, "GET", "/healthz", "", "");
    expect(&a, 200, "\r\n\r\nok\n");
    ask(&a, "GET", "/v1/status", "", "");
    expect(&a, 401, "\"error\"");
    ask(&a, "GET", "/v1/status", "Authorization: Bearer worker\r\n", "");
    expect(&a, 403, "\"error\"");
    ask(&a, "GET", "/v1/status", BEARER, "");
    expect(&a, 200, "\"cluster\":\"c0\"");
    ask(&a, "GET", "/v1/status", "Cookie: c-1=right\r\n", "");
    expect(&a, 401, "\"error\""); /* the secret is no session */
}

#define VIEWER_BEARER "Authorization: Bearer viewer\r\n"

static void test_a_viewer_only_looks(void **state)
{
    static struct answer a;
    static const char *const sees[] = {"/v1/status", "/v1/jobs", "/v1/workers", "/v1/log"};
    static const char *const does[] = {
        "/v1/jobs/7/remove",   "/v1/jobs/7/cancel",    "/v1/workers/3/drain", "/v1/tokens",
        "/v1/tokens/1/revoke", "/v1/workers/3/revoke", "/v1/uploads"};
    for (size_t i = 0; i < sizeof sees / sizeof sees[0]; i++) {
        ask(&a, "GET", sees[i], VIEWER_BEARER, "");
        expect(&a, 200, "{");
    }
    for (size_t i = 0; i < sizeof does / sizeof does[0]; i++) {
        ask(&a, "POST", does[i], VIEWER_BEARER, "");
        expect(&a, 403, "role");
    }
    ask(&a, "GET", "/v1/tokens", VIEWER_BEARER, "");
    expect(&a, 403, "role");
    assert_int_equal(fake.revoked, 0);
}

static void test_tokens(void **state)
{
    static struct answer a;
    ask(&a, "GET", "/v1/tokens", BEARER, "");
    expect(&a, 200, "\"name\":\"spot\",\"role\":\"worker\",\"state\":\"ended\"");
    expect(&a, 200,
           "\"left_ms\":null,\"uses\":3,\"workers_here\":2,\"cost\":0.0,\"uses_max\":null");
    expect(&a, 200, "\"left_ms\":0,\"uses\":0");
    send_request(&a, "POST", "/v1/tokens", BEARER,
                 "{\"role\":\"worker\",\"name\":\"spot-2\",\"life_s\":60,\"uses\":2,"
                 "\"workers\":1}");
    while (fake.durable == NULL)
        pump(&a);
    assert_int_equal(a.len, 0);
    fake.durable(fake.durable_arg, 0);
    wait_for(&a, NULL);
    expect(&a, 201, "\"token\":\"skerry1.new\"");
    assert_int_equal(fake.order.role, TOKEN_ROLE_WORKER);
    assert_int_equal(fake.order.life_ms, 60000);
    assert_int_equal(fake.order.uses_max, 2);
    assert_int_equal(fake.order.workers_max, 1);
    assert_non_null(strstr(a.text, "no-store")); /* it is a secret */
    fake.durable = NULL;
    send_request(&a, "POST", "/v1/tokens", BEARER,
                 "{\"role\":\"operator\",\"jobs\":3,\"budget\":2.5}");
    while (fake.durable == NULL)
        pump(&a);
    fake.durable(fake.durable_arg, 0);
    wait_for(&a, NULL);
    assert_int_equal(fake.order.role, TOKEN_ROLE_OPERATOR);
    assert_true(fake.order.jobs_max == 3 && fake.order.budget == 2.5);
    fake.durable = NULL;
    send_request(&a, "POST", "/v1/tokens/2/adjust", BEARER, "{\"uses\":0,\"budget\":0.5}");
    while (fake.durable == NULL)
        pump(&a);
    fake.durable(fake.durable_arg, 0);
    wait_for(&a, NULL);
    expect(&a, 200,
           "{\"id\":2,\"uses_max\":9,\"workers_max\":4,\"jobs_max\":null,\"budget\":null,"
           "\"left_ms\":null}");
    assert_true(fake.bounds.uses == 0 && fake.bounds.budget == 0.5 && fake.holder == HOLDER);
    assert_true(isnan(fake.bounds.life_s));
    assert_true(isnan(fake.bounds.workers) && isnan(fake.bounds.jobs));
    ask(&a, "POST", "/v1/tokens/9/adjust", BEARER, "{}");
    expect(&a, 404, "no such token");
    ask(&a, "POST", "/v1/tokens/9/revoke", BEARER, "");
    expect(&a, 404, "no such token");
    assert_int_equal(fake.revoked, 9);
    assert_int_equal(fake.holder, HOLDER); /* who must not cut himself off */
    ask(&a, "POST", "/v1/workers/9/revoke", BEARER, "");
    expect(&a, 404, "no such worker");
}

/* The header that a browser sends from now on. */
static void take_cookie(const struct answer *a, char out[128])
{
    const char *at = strstr(a->text, "Set-Cookie: c-1=");
    assert_non_null(at);
    at += strlen("Set-Cookie: ");
    (void)snprintf(out, 128, "Cookie: %.*s\r\n", (int)strcspn(at, ";"), at);
    assert_int_equal(strcspn(at, ";"), strlen("c-1=") + SESSION_ID_MAX - 1);
}

static void test_login(void **state)
{
    static struct answer a;
    char cookie[128], ours[256];
    ask(&a, "GET", "/", "", "");
    expect(&a, 200, "name=\"token\"");
    ask(&a, "GET", "/?token=right", "", "");
    expect(&a, 303, "Location: /\r\n");
    expect(&a, 303, "; Path=/; HttpOnly; SameSite=Strict; Max-Age=604800");
    take_cookie(&a, cookie);
    ask(&a, "GET", "/", cookie, "");
    expect(&a, 200, "id=\"loss-title\"");
    expect(&a, 200, "Content-Security-Policy: default-src 'none'");
    static const char *const wrong[] = {"/?token=", "/?token=wrong", "/?token=worker",
                                        "/?token=right%0d%0aX:1", "/?token=right%20"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ask(&a, "GET", wrong[i], "", "");
        expect(&a, 401, "not the right one");
        assert_null(strstr(a.text, "X:1"));
    }
    ask(&a, "POST", "/login", "", "token=+%72ight%0A");
    assert_null(strstr(a.text, "right"));
    take_cookie(&a, cookie);
    ask(&a, "GET", "/v1/status", cookie, "");
    expect(&a, 200, "\"cluster\":\"c0\"");
    static const char *const forms[] = {"",          "token",   "token=",    "token=%",
                                        "token=%zz", "x=right", "tokenright"};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        ask(&a, "POST", "/login", "", forms[i]);
        expect(&a, 401, "not the right one");
    }
    (void)snprintf(ours, sizeof ours, "%sOrigin: http://x:8080\r\n", cookie);
    ask(&a, "POST", "/v1/workers/3/drain", ours, "");
    expect(&a, 403, "not come from a page of this server");
    ask(&a, "POST", "/logout", ours, "");
    expect(&a, 403, NULL);
    (void)snprintf(ours, sizeof ours, "%sOrigin: http://x\r\n", cookie);
    ask(&a, "POST", "/logout", ours, "");
    expect(&a, 303, "c-1=; ");
    ask(&a, "GET", "/v1/status", cookie, "");
    expect(&a, 401, NULL);
    ask(&a, "POST", "/logout", "", "");
    expect(&a, 303, "c-1=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0");
}

static void test_files_of_the_page(void **state)
{
    static struct answer a;
    ask(&a, "GET", "/web/app.js", "", "");
    expect(&a, 200, "Content-Type: text/javascript");
    ask(&a, "GET", "/web/app.css", "", "");
    expect(&a, 200, "Content-Type: text/css");
    static const char *const none[] = {"/web/index.html", "/web/nothing.js", "/web/app.j",
                                       "/web/.."};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        ask(&a, "GET", none[i], "", "");
        expect(&a, 404, "\"not_found\"");
    }
}

static const char submission[] =
    "{\"spec\":\"name: x\\n\",\"dataset\":{\"classes\":[\"a\",\"b\"],\"counts\":[1,2],\"shards\":"
    "[{\"sha256\":\"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\","
    "\"size\":9,\"samples\":3,\"holdout\":true}],\"bad\":[{\"key\":\"k\",\"reason\":\"r\"}]}}";

static void test_submit_answers_when_durable(void **state)
{
    static struct answer a;
    send_request(&a, "POST", "/v1/jobs", BEARER, submission);
    uint64_t deadline = clock_now_ms() + DEADLINE_MS;
    while (fake.durable == NULL && clock_now_ms() < deadline)
        pump(&a);
    assert_int_equal(fake.submits, 1);
    assert_int_equal(fake.n_classes, 2);
    assert_int_equal(fake.n_shards, 1);
    assert_int_equal(fake.n_bad, 1);
    for (int i = 0; i < 50; i++)
        pump(&a);
    assert_int_equal(a.len, 0); /* nothing is acknowledged before it is on the disk */
    fake.durable(fake.durable_arg, 0);
    wait_for(&a, NULL);
    close(a.fd);
    expect(&a, 201, "{\"id\":8}");
    expect(&a, 201, "Location: /v1/jobs/8\r\n");
}

static void test_client_gone_before_durable(void **state)
{
    static struct answer a;
    send_request(&a, "POST", "/v1/jobs", BEARER, submission);
    uint64_t deadline = clock_now_ms() + DEADLINE_MS;
    while (fake.durable == NULL && clock_now_ms() < deadline)
        pump(&a);
    close(a.fd);
    for (int i = 0; i < 50; i++)
        loop_turn(loop, false);
    fake.durable(fake.durable_arg, 0); /* asan: nothing is touched that is gone */
}

static void test_close_answers_what_waits(void **state)
{
    static struct answer a;
    send_request(&a, "POST", "/v1/jobs/7/cancel", BEARER, "");
    uint64_t deadline = clock_now_ms() + DEADLINE_MS;
    while (fake.durable == NULL && clock_now_ms() < deadline)
        pump(&a);
    assert_int_equal(fake.cancels, 1);
    http_api_close(api);
    api = NULL;
    wait_for(&a, NULL);
    close(a.fd);
    expect(&a, 503, "\"stopping\"");
    fake.durable(fake.durable_arg, -ERR_CANCELLED);
}

static void test_stopping_coordinator_says_so(void **state)
{
    static struct answer a;
    send_request(&a, "POST", "/v1/workers/3/drain", BEARER, "{}");
    uint64_t deadline = clock_now_ms() + DEADLINE_MS;
    while (fake.durable == NULL && clock_now_ms() < deadline)
        pump(&a);
    fake.durable(fake.durable_arg, -ERR_CANCELLED);
    wait_for(&a, NULL);
    close(a.fd);
    expect(&a, 503, "\"stopping\"");
}

static void test_codes_of_refusals(void **state)
{
    static const struct {
        int code, status;
    } map[] = {
        {-EINVAL, 400},       {-ERR_CONFIG, 400},    {-ERR_FORMAT, 400},
        {-ERR_NOTFOUND, 404}, {-EEXIST, 409},        {-EBUSY, 409},
        {-ERR_STALE, 409},    {-ERR_LIMIT, 429},     {-ENOSPC, 507},
        {-EIO, 503},          {-EAGAIN, 503},        {-EPERM, 500},
        {-ENOENT, 404},       {-ERR_CANCELLED, 503}, {-ERR_HASH, 422},
        {-ERANGE, 400},       {-ENOMEM, 503},        {-ERR_UNIMPLEMENTED, 501},
        {-ERR_VERSION, 400},
    };
    static struct answer a;
    for (size_t i = 0; i < sizeof map / sizeof map[0]; i++) {
        fake.fail = map[i].code;
        ask(&a, "POST", "/v1/jobs", BEARER, submission);
        expect(&a, map[i].status, "the fake refuses");
    }
    assert_null(fake.durable);
}

static void test_sample_request(void **state)
{
    static struct answer a;
    fake.fail = -EBUSY; /* answered at once, and the request can be looked at */
    ask(&a, "POST", "/v1/jobs/7/sample", BEARER, "");
    expect(&a, 409, NULL);
    assert_true(isnan(fake.guidance));
    assert_int_equal(fake.ema, -1);
    assert_int_equal(fake.n_labels, 0);
    ask(&a, "POST", "/v1/jobs/7/sample", BEARER,
        "{\"labels\":[1,2,9],\"guidance\":2,\"ema\":false,\"seed\":1,\"sampler\":\"heun\"}");
    expect(&a, 409, NULL);
    assert_true(fake.guidance == 2);
    assert_int_equal(fake.ema, 0);
    assert_int_equal(fake.n_labels, 3);
    assert_int_equal(fake.last_label, 9);
    ask(&a, "POST", "/v1/jobs/7/sample", BEARER, "{\"sampler\":\"rk4\"}");
    expect(&a, 400, "\\\"euler\\\" or \\\"heun\\\"");
    ask(&a, "POST", "/v1/jobs/7/sample", BEARER, "{\"labels\":[1,-1]}");
    expect(&a, 400, "labels[1]");
}

static void fire(enum event_kind kind, const char *text, const struct round_rec *round)
{
    const struct event e = {
        .kind = kind, .job_id = 7, .worker_id = 3, .text = text, .round = round};
    fake.subscriber(fake.subscriber_arg, &e);
}

static void commit(void)
{
    durable_fn fn = fake.durable;
    fake.durable = NULL;
    assert_non_null(fn);
    fn(fake.durable_arg, 0);
}

static void test_events(void **state)
{
    static struct answer one, two, log;
    const struct round_rec round = {.round = 4, .loss = 0.5, .eval_loss = NAN, .seconds = 1};
    send_request(&one, "GET", "/v1/events", BEARER, "");
    send_request(&two, "GET", "/v1/events", BEARER, "");
    wait_for(&one, "retry: 2000");
    wait_for(&two, "retry: 2000");
    expect(&one, 200, "text/event-stream");
    fire(EVENT_LOG, "something \"happened\"", NULL);
    fire(EVENT_ROUND, "round 5 is over", &round);
    fire(EVENT_WORKER, "has joined", NULL);
    fire(EVENT_JOB, "all is well", NULL);
    for (int i = 0; i < 50; i++)
        loop_turn(loop, false);
    assert_null(strstr(one.text, "happened")); /* a crash could take it back */
    commit();
    struct answer *both[] = {&one, &two};
    for (size_t i = 0; i < 2; i++) {
        wait_for(both[i], "something \\\"happened\\\"");
        wait_for(both[i], "event: round");
        wait_for(both[i], "\"round\":5,");
        wait_for(both[i], "event: worker");
        wait_for(both[i], "is running: all is well");
        wait_for(both[i], "event: job");
    }
    close(two.fd); /* the other goes on */
    for (int i = 0; i < 50; i++)
        loop_turn(loop, false);
    for (int i = 0; i < 300; i++) {
        char text[32];
        (void)snprintf(text, sizeof text, "sentence %d.", i);
        fire(EVENT_LOG, text, NULL);
    }
    commit();
    ask(&log, "GET", "/v1/log", BEARER, "");
    expect(&log, 200, "sentence 299.");
    assert_non_null(strstr(log.text, "sentence 100."));
    assert_null(strstr(log.text, "sentence 99.")); /* 200 are kept */
    wait_for(&one, "sentence 299.");
    http_api_close(api);
    api = NULL;
    assert_null(fake.subscriber);
    wait_for(&one, NULL);
    close(one.fd);
}

/* What was raised while a commit was under way is the next one's. */
static void test_events_of_the_next_commit(void **state)
{
    static struct answer log;
    fake.next = 1;
    fire(EVENT_LOG, "the first", NULL);
    fake.next = 2; /* handed over */
    fire(EVENT_LOG, "the second", NULL);
    fake.done = 1;
    commit();
    ask(&log, "GET", "/v1/log", BEARER, "");
    expect(&log, 200, "the first");
    assert_null(strstr(log.text, "the second"));
    fake.done = 2;
    commit();
    ask(&log, "GET", "/v1/log", BEARER, "");
    expect(&log, 200, "the second");
    assert_null(fake.durable);
}

/* Those that made room for newer ones while nothing could be written are counted, once. */
static void test_events_that_made_room(void **state)
{
    static struct answer log;
    fake.next = fake.done = 1;
    for (int i = 0; i < HTTP_EVENTS_WAITING_MAX + 7; i++)
        fire(EVENT_LOG, "something", NULL);
    commit();
    ask(&log, "GET", "/v1/log", BEARER, "");
    expect(&log, 200, "\"7 events are not told");
    for (int i = 0; i < HTTP_EVENTS_LOG_MAX; i++)
        fire(EVENT_LOG, "something", NULL);
    commit();
    ask(&log, "GET", "/v1/log", BEARER, "");
    assert_null(strstr(log.text, "are not told"));
}

/* ---- what is shown, while a commit is under way ----------------------------- */

static void shown(int rc)
{
    durable_fn fn = fake.shown;
    fake.shown = NULL;
    fake.behind = false;
    assert_non_null(fn);
    for (; fake.n_shown_before > 0; fake.n_shown_before--)
        fake.shown_before[fake.n_shown_before - 1].fn(
            fake.shown_before[fake.n_shown_before - 1].arg, rc);
    fn(fake.shown_arg, rc);
}

static void until_shown(struct answer *a)
{
    uint64_t deadline = clock_now_ms() + DEADLINE_MS;
    while (fake.shown == NULL && clock_now_ms() < deadline)
        pump(a);
    for (int i = 0; i < 50; i++)
        pump(a);
    assert_int_equal(a->len, 0);
}

static void test_reading_waits(void **state)
{
    static const struct {
        const char *path, *text;
        int status;
    } reads[] = {
        {"/v1/status", "\"cluster\":\"c0\"", 200},
        {"/v1/jobs", "\"id\":7", 200},
        {"/v1/jobs/7", "\"id\":7", 200},
        {"/v1/jobs/9", "no such job", 404},
        {"/v1/jobs/7/metrics", "{\"n\":4,", 200},
        {"/v1/tasks", "items", 200},
        {"/v1/tasks/1", "\"id\"", 200},
        {"/v1/workers", "items", 200},
        {"/v1/modules?job=9", "no such job", 404},
        {"/v1/tokens", "items", 200},
    };
    static struct answer a;
    for (size_t i = 0; i < sizeof reads / sizeof reads[0]; i++) {
        fake.behind = true;
        send_request(&a, "GET", reads[i].path, BEARER, "");
        until_shown(&a);
        shown(0);
        wait_for(&a, NULL);
        close(a.fd);
        expect(&a, reads[i].status, reads[i].text);
    }
}

/* A commit that has failed: the answer is made anew, a refused command is to be sent again. */
static void test_reading_after_a_failure(void **state)
{
    static struct answer a;
    fake.behind = true;
    send_request(&a, "GET", "/v1/jobs/7", BEARER, "");
    until_shown(&a);
    shown(-EAGAIN);
    wait_for(&a, NULL);
    close(a.fd);
    expect(&a, 200, "\"id\":7");
    fake.behind = true;
    fake.fail = -ERR_STALE;
    send_request(&a, "POST", "/v1/jobs/7/cancel", BEARER, "");
    until_shown(&a);
    shown(-EAGAIN);
    wait_for(&a, NULL);
    close(a.fd);
    expect(&a, 503, "cannot write its state");
}

#define PLACES 64

static struct answer waiting[PLACES];

static void take_all_places(void)
{
    for (int i = 0; i < PLACES; i++) {
        fake.behind = true;
        const size_t before = fake.n_shown_before;
        send_request(&waiting[i], "GET", i % 2 ? "/v1/jobs/7" : "/v1/tasks", BEARER, "");
        for (uint64_t until = clock_now_ms() + DEADLINE_MS; clock_now_ms() < until;) {
            pump(&waiting[i]);
            if (i == 0 ? fake.shown != NULL : fake.n_shown_before > before)
                break;
        }
    }
}

static void expect_all_places(void)
{
    for (int i = 0; i < PLACES; i++) {
        wait_for(&waiting[i], NULL);
        close(waiting[i].fd);
        expect(&waiting[i], 200, "\"id\"");
    }
}

/* As many as wait have places; the others are told to come again, and a command still waits. */
static void test_places_for_reading(void **state)
{
    static struct answer more, command;
    fake.behind = false;
    ask(&more, "GET", "/v1/status", BEARER, "");
    take_all_places();
    ask(&more, "GET", "/v1/jobs", BEARER, "");
    expect(&more, 503, "wait for a commit");
    expect(&more, 503, "Retry-After: 1");
    ask(&more, "GET", "/v1/status", BEARER, ""); /* as it was */
    expect(&more, 200, "\"cluster\":\"c0\"");
    fake.behind = false; /* what does not wait needs no place */
    ask(&more, "GET", "/v1/jobs", BEARER, "");
    expect(&more, 200, "\"id\":7");
    send_request(&command, "POST", "/v1/jobs/7/cancel", BEARER, "{}");
    for (uint64_t until = clock_now_ms() + DEADLINE_MS; fake.durable == NULL;) {
        assert_true(clock_now_ms() < until);
        pump(&command);
    }
    shown(0);
    expect_all_places();
    commit();
    wait_for(&command, NULL);
    close(command.fd);
    ask(&more, "GET", "/v1/jobs", BEARER, ""); /* the places are free again */
    expect(&more, 200, "\"id\":7");
}

/* Whoever had a place is answered after a failure. */
static void test_places_after_a_failure(void **state)
{
    take_all_places();
    shown(-EAGAIN);
    expect_all_places();
}

/* A refusal for what was asked, not for what the state says, does not wait. */
static void test_refusals_at_once(void **state)
{
    static struct answer a;
    fake.behind = true;
    fake.fail = -EINVAL;
    ask(&a, "POST", "/v1/jobs", BEARER, submission);
    expect(&a, 400, "the fake refuses");
    ask(&a, "GET", "/healthz", "", "");
    expect(&a, 200, "ok");
    ask(&a, "GET", "/metrics", BEARER, "");
    expect(&a, 200, "store_writing_seconds");
}

/* What the state forbids is said once that is durable: also that there are too many. */
static void test_refusals_wait(void **state)
{
    static const int codes[][2] = {{-ERR_NOTFOUND, 404}, {-ERR_STALE, 409}, {-ERR_LIMIT, 429}};
    static struct answer a;
    for (size_t i = 0; i < 3; i++) {
        fake.behind = true;
        fake.fail = codes[i][0];
        send_request(&a, "POST", "/v1/jobs", BEARER, submission);
        until_shown(&a);
        shown(0);
        wait_for(&a, NULL);
        close(a.fd);
        expect(&a, codes[i][1], "the fake refuses");
    }
}

/* A slow commit: the status is as it was, and says so, also to whom it kept waiting. */
static void test_status_of_a_slow_commit(void **state)
{
    static struct answer a, other;
    fake.behind = true;
    fake.writing_ms = 3000;
    ask(&a, "GET", "/v1/status", BEARER, "");
    expect(&a, 503, "has been under way for 3 s"); /* nobody has asked before */
    fake.behind = false;
    fake.writing_ms = 0;
    ask(&a, "GET", "/v1/status", BEARER, "");
    expect(&a, 200, "\"writing_ms\":0");
    fake.behind = true;
    send_request(&a, "GET", "/v1/status", BEARER, "");
    until_shown(&a);
    send_request(&other, "GET", "/v1/jobs", BEARER, "");
    while (fake.n_shown_before == 0)
        pump(&other);
    fake.writing_ms = 4000;
    http_api_slow(api);
    wait_for(&a, NULL);
    close(a.fd);
    expect(&a, 200, "\"writing_ms\":4000");
    expect(&a, 200, "\"cluster\":\"c0\"");
    expect(&a, 200, "the disk of the data dir");
    for (int i = 0; i < 50; i++)
        pump(&other);
    assert_int_equal(other.len, 0); /* it waits on */
    shown(0);                       /* asan: the status is answered already */
    wait_for(&other, NULL);
    close(other.fd);
    expect(&other, 200, "\"id\":7");
    fake.behind = true;
    ask(&a, "GET", "/v1/status", BEARER, "");
    expect(&a, 200, "\"writing_ms\":4000");
}

static void test_metrics_after(void **state)
{
    static struct answer a;
    ask(&a, "GET", "/v1/jobs/7/metrics?after=3", BEARER, "");
    expect(&a, 200, "{\"n\":4,");
    assert_null(strstr(a.text, "{\"n\":3,"));
    static const char *const steps[] = {
        "{\"n\":6,\"kind\":\"round\",\"path\":0,\"round\":3,\"step\":30,",
        "{\"n\":7,\"kind\":\"eval\",\"path\":0,\"round\":3,\"step\":30,",
        "{\"n\":8,\"kind\":\"round\",\"path\":1,\"round\":1,\"step\":null,",
        "{\"n\":9,\"kind\":\"eval\",\"path\":0,\"round\":0,\"step\":0,",
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        assert_non_null(strstr(a.text, steps[i]));
    ask(&a, "GET", "/v1/jobs/7/metrics?after=-1", BEARER, "");
    expect(&a, 400, "after");
    ask(&a, "GET", "/v1/jobs/9/metrics", BEARER, "");
    expect(&a, 404, "no such job");
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, open_all, close_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_health_and_secrets),
        TEST(test_a_viewer_only_looks),
        TEST(test_tokens),
        TEST(test_login),
        TEST(test_files_of_the_page),
        TEST(test_submit_answers_when_durable),
        TEST(test_client_gone_before_durable),
        TEST(test_close_answers_what_waits),
        TEST(test_stopping_coordinator_says_so),
        TEST(test_codes_of_refusals),
        TEST(test_sample_request),
        TEST(test_events_of_the_next_commit),
        TEST(test_reading_waits),
        TEST(test_reading_after_a_failure),
        TEST(test_refusals_at_once),
        TEST(test_refusals_wait),
        TEST(test_status_of_a_slow_commit),
        TEST(test_events_that_made_room),
        TEST(test_places_for_reading),
        TEST(test_places_after_a_failure),
        TEST(test_events),
        TEST(test_metrics_after),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
