/* Which requests a metadata service gets, in which order, and what becomes of its answers; files
 * and programs.  Pauses last a millisecond here. */
#include "worker/spot.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <curl/curl.h>

#include "common/net/http/http_server.h"
#include "tests/unit/common/base/util.h"
#include "tests/unit/common/net/net_test.h"

static atomic_uint polls;

CURLMcode curl_multi_poll(CURLM *m, struct curl_waitfd *fds, unsigned n, int ms, int *ret)
{
    CURLMcode (*real)(CURLM *, struct curl_waitfd *, unsigned, int, int *);
    *(void **)&real = dlsym(RTLD_NEXT, "curl_multi_poll");
    atomic_fetch_add(&polls, 1);
    return real(m, fds, n, ms < 1 ? ms : 1, ret);
}

static atomic_llong now_s;

time_t time(time_t *ret)
{
    const time_t now = (time_t)atomic_load(&now_s);
    if (ret)
        *ret = now;
    return now;
}

/* ---- a metadata service ---- */

enum thing { TOKEN, ACTION, REBALANCE, PREEMPTED, MAINTENANCE, NAME, EVENTS, THINGS };

struct answer {
    unsigned status; /* 0: behind the last one, which is given from then on */
    const char *body, *etag;
};

static struct cloud {
    const struct answer *answers[THINGS]; /* NULL: 404 */
    unsigned asked[THINGS];
    int64_t ages_s; /* by so much with each question for a recommendation */
    char log[256];  /* a letter for each request, and what of it matters */
} cloud;

static void note(const char *text)
{
    const size_t at = strlen(cloud.log);
    (void)snprintf(cloud.log + at, sizeof(cloud.log) - at, "%s", text);
}

static bool has(const struct http_request *r, const char *header, const char *value)
{
    const char *there = http_request_header(r, header);
    return there && strcmp(there, value) == 0;
}

/* What a service insists on. */
static bool is_allowed(enum thing t, const struct http_request *r)
{
    switch (t) {
    case TOKEN:
        return has(r, "X-aws-ec2-metadata-token-ttl-seconds", "21600");
    case ACTION:
    case REBALANCE:
        return http_request_header(r, "X-aws-ec2-metadata-token") != NULL;
    case PREEMPTED:
    case MAINTENANCE:
        return has(r, "Metadata-Flavor", "Google");
    case NAME:
        return has(r, "Metadata", "true") && strcmp(http_request_query(r, "format"), "text") == 0;
    case EVENTS:
        return has(r, "Metadata", "true") &&
               strcmp(http_request_query(r, "api-version"), "2020-07-01") == 0;
    case THINGS:
        break;
    }
    return false;
}

static void say(void *arg, struct http_request *r)
{
    static const char letters[] = "TARPMNE";
    const enum thing t = *(const enum thing *)arg;
    const struct answer *a = cloud.answers[t];
    const char *token = http_request_header(r, "X-aws-ec2-metadata-token");
    const char *etag = http_request_query(r, "last_etag");
    note((char[]){letters[t], '\0'});
    if (token)
        note(token);
    if (etag) {
        note(http_request_query(r, "wait_for_change"));
        note(http_request_query(r, "timeout_sec"));
        note(etag);
    }
    note(" ");
    for (unsigned i = 0; a && i < cloud.asked[t] && a[1].status; i++)
        a++;
    cloud.asked[t]++;
    atomic_fetch_add(&now_s, t == REBALANCE ? cloud.ages_s : 0);
    if (!is_allowed(t, r)) {
        http_reply_text(r, 400, "text/plain", "");
        return;
    }
    if (a && a->etag)
        http_reply_header(r, "ETag", a->etag);
    http_reply_text(r, a ? a->status : 404, "text/plain", a && a->body ? a->body : "");
}

#define GCP "/computeMetadata/v1/instance/"
static enum thing things[] = {TOKEN, ACTION, REBALANCE, PREEMPTED, MAINTENANCE, NAME, EVENTS};
static const struct http_route routes[] = {
    {"PUT", "/latest/api/token", 0, 0, say, NULL, &things[TOKEN]},
    {"GET", "/latest/meta-data/spot/instance-action", 0, 0, say, NULL, &things[ACTION]},
    {"GET", "/latest/meta-data/events/recommendations/rebalance", 0, 0, say, NULL,
     &things[REBALANCE]},
    {"GET", GCP "preempted", 0, 0, say, NULL, &things[PREEMPTED]},
    {"GET", GCP "maintenance-event", 0, 0, say, NULL, &things[MAINTENANCE]},
    {"GET", "/metadata/instance/compute/name", 0, 0, say, NULL, &things[NAME]},
    {"GET", "/metadata/scheduledevents", 0, 0, say, NULL, &things[EVENTS]},
};

/* ---- a machine ---- */

static struct machine {
    struct net_test t;
    struct http_server *server;
    char at[64];
    struct spot *spot;
    int threads; /* without the watcher's */
    unsigned n;  /* notices */
    struct spot_notice notices[4];
} m;

static void on_notice(void *arg, const struct spot_notice *n)
{
    struct machine *me = arg;
    assert_true(me->n < COUNT(me->notices));
    me->notices[me->n++] = *n;
}

static int threads(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    for (const struct dirent *e = readdir(d); e; e = readdir(d))
        n += e->d_name[0] != '.';
    (void)closedir(d);
    return n;
}

static void *nothing(void *arg)
{
    return arg;
}

/* ThreadSanitizer has a thread of its own from the first one that is made. */
static int make_a_thread(void **state)
{
    pthread_t t;
    return pthread_create(&t, NULL, nothing, NULL) || pthread_join(t, NULL);
}

static int setup(void **state)
{
    struct http_server_options o = {.host = "127.0.0.1"};
    cloud = (struct cloud){0};
    atomic_store(&now_s, 1763799600); /* 2025-11-22T08:20:00Z */
    m = (struct machine){0};
    net_test_init(&m.t);
    OK(http_server_open(m.t.loop, &o, &m.server, err));
    http_server_routes(m.server, routes, COUNT(routes));
    (void)snprintf(m.at, sizeof(m.at), "http://127.0.0.1:%u", http_server_port(m.server));
    return 0;
}

static int teardown(void **state)
{
    spot_close(m.spot);
    http_server_close(m.server);
    net_test_release(&m.t);
    return 0;
}

static void watch(const char *what)
{
    m.n = 0;
    m.threads = threads();
    OK(spot_open(m.t.loop, what, m.at, on_notice, &m, &m.spot, err));
}

static void leave(void)
{
    spot_close(m.spot);
    m.spot = NULL;
}

/* Waits for the notice that the machine goes, with which the watch ends by itself. */
static const struct spot_notice *goes(unsigned which)
{
    WAIT_FOR(&m.t, m.n == which);
    WAIT_FOR(&m.t, threads() <= m.threads);
    leave();
    assert_int_equal(m.n, which);
    assert_true(m.notices[which - 1].leave);
    return &m.notices[which - 1];
}

#define ANSWERS(...)                                                                               \
    (const struct answer[])                                                                        \
    {                                                                                              \
        __VA_ARGS__,                                                                               \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

static void names(void **state)
{
    struct spot *s = NULL;
    FAILS(spot_open(m.t.loop, "amazon", m.at, on_notice, &m, &s, err), "expected auto, aws, gcp");
    FAILS(spot_open(m.t.loop, "", m.at, on_notice, &m, &s, err), "the path (with a /)");
    FAILS(spot_open(m.t.loop, m.t.dir, m.at, on_notice, &m, &s, err), "is a directory");
    assert_null(s);
    spot_close(NULL);
}

/* A token that is none, and one that has expired, are requested again.  A recommendation is told
 * once. */
static void aws(void **state)
{
    cloud.answers[TOKEN] = ANSWERS({200, "a\nb"}, {200, "1"}, {200, "2"});
    cloud.answers[ACTION] = ANSWERS(
        {404}, {401}, {404}, {200, "{\"action\":\"terminate\",\"time\":\"9999-01-01T00:00:00Z\"}"});
    cloud.answers[REBALANCE] = ANSWERS({200, "{\"noticeTime\":\"2026-11-22T08:22:00Z\"}"});
    watch("aws");
    const struct spot_notice *n = goes(2);
    assert_int_equal(n->ms, SPOT_MS_MAX);
    assert_false(m.notices[0].leave);
    assert_string_equal(cloud.log, "T T A1 R1 A1 T A2 R2 A2 ");
}

/* A token is replaced before it expires. */
static void an_old_token(void **state)
{
    cloud.ages_s = 9001;
    cloud.answers[TOKEN] = ANSWERS({200, "1"}, {200, "2"});
    cloud.answers[ACTION] =
        ANSWERS({404}, {404}, {200, "{\"action\":\"stop\",\"time\":\"2025-11-22T13:22:02Z\"}"});
    watch("aws");
    assert_int_equal(goes(1)->ms, 120000); /* 2 * 9001 s have passed */
    assert_string_equal(cloud.log, "T A1 R1 A1 R1 T A2 ");
}

/* The watch waits for a change of what it has seen, if the mark of it can be sent back; after an
 * error it asks anew.  Nothing else is asked once the machine is known to go. */
static void gcp(void **state)
{
    cloud.answers[PREEMPTED] =
        ANSWERS({200, "FALSE", "4a1"}, {200, "FALSE", "a&b"}, {200, "FALSE", "4a2"}, {500, ""},
                {200, "FALSE", "4a3"}, {200, "TRUE", "4a4"});
    cloud.answers[MAINTENANCE] =
        ANSWERS({200, "NONE"}, {503, "TERMINATE_ON_HOST_MAINTENANCE"}, {200, "NONE"});
    watch("gcp");
    assert_int_equal(goes(1)->ms, SPOT_GCP_MS);
    assert_string_equal(cloud.log, "P M Ptrue54a1 M P M Ptrue54a2 P M Ptrue54a3 ");
    cloud.answers[PREEMPTED] = ANSWERS({200, "FALSE"});
    cloud.answers[MAINTENANCE] = ANSWERS({200, "TERMINATE_ON_HOST_MAINTENANCE"});
    cloud.log[0] = '\0';
    watch("gcp");
    assert_int_equal(goes(1)->ms, 2 * SPOT_MS);
    assert_string_equal(cloud.log, "P M ");
}

#define EVENT(vm) "{\"Events\":[{\"EventType\":\"Preempt\",\"Resources\":[\"" vm "\"]}]}"

/* Its name is asked once, and other machines' events are not its own. */
static void azure(void **state)
{
    static char longest[SPOT_NAME_MAX + 1];
    memset(longest, 'v', SPOT_NAME_MAX);
    cloud.answers[NAME] = ANSWERS({200, ""}, {200, longest}, {404}, {200, "vm-1"});
    cloud.answers[EVENTS] = ANSWERS({200, EVENT("vm-2")}, {404}, {200, EVENT("VM-1")});
    watch("azure");
    assert_int_equal(goes(1)->ms, 0);
    assert_string_equal(cloud.log, "N N N N E E E ");
}

/* The first service that answers is it, however late. */
static void any(void **state)
{
    cloud.answers[NAME] = ANSWERS({404}, {200, "vm-1"});
    cloud.answers[EVENTS] = ANSWERS({200, EVENT("vm-1")});
    watch("auto");
    assert_non_null(strstr(goes(1)->reason, "Azure"));
    assert_string_equal(cloud.log, "P N T P N E ");
    /* Google's is not asked to wait for a change that has been already. */
    cloud.answers[PREEMPTED] = ANSWERS({200, "TRUE", "4a1"});
    cloud.log[0] = '\0';
    watch("auto");
    assert_non_null(strstr(goes(1)->reason, "Google"));
    assert_string_equal(cloud.log, "P P ");
    cloud = (struct cloud){.answers[TOKEN] = ANSWERS({200, "1"}),
                           .answers[ACTION] = ANSWERS({200, "{\"action\":\"stop\"}"})};
    watch("auto");
    assert_int_equal(goes(1)->ms, SPOT_MS);
    assert_string_equal(cloud.log, "P N T A1 ");
}

/* What has been found out is not told to an owner who has gone. */
static void nobody_listens(void **state)
{
    char *path = in(m.t.dir, "flag");
    put(m.t.dir, "flag", "", 0);
    watch(path);
    const uint64_t until = clock_now_ms() + TEST_DEADLINE_MS;
    while (threads() > m.threads)
        assert_true(clock_now_ms() < until);
    leave();
    for (int i = 0; i < 3; i++)
        loop_turn(m.t.loop, true);
    assert_int_equal(m.n, 0);
    mem_free(path);
}

static void a_file(void **state)
{
    static const struct {
        const char *text;
        uint32_t ms;
    } cases[] = {
        {"5\n", 5000},     {"0.25", 250},           {"", SPOT_MS},          {"0\n", 0},
        {" 7 \r\n", 7000}, {"2026-11-22", SPOT_MS}, {"soon", SPOT_MS},      {"-3", SPOT_MS},
        {"nan", SPOT_MS},  {"3600", SPOT_MS_MAX},   {"86400", SPOT_MS_MAX}, {"inf", SPOT_MS_MAX}};
    char *path = in(m.t.dir, "flag");
    for (size_t i = 0; i < COUNT(cases); i++) {
        watch(path);
        put(m.t.dir, "flag", cases[i].text, strlen(cases[i].text));
        const struct spot_notice *n = goes(1);
        if (n->ms != cases[i].ms)
            fail_msg("\"%s\": %u ms, expected %u", cases[i].text, n->ms, cases[i].ms);
        assert_non_null(strstr(n->reason, path));
        OK(file_remove(path, err));
    }
    mem_free(path);
}

/* Nor is a directory that appears there a notice, but the file that takes its place is. */
static void a_directory(void **state)
{
    char *path = in(m.t.dir, "flag");
    watch(path);
    assert_int_equal(mkdir(path, 0700), 0);
    const unsigned before = atomic_load(&polls);
    WAIT_FOR(&m.t, atomic_load(&polls) > before + 2); /* it was looked at */
    assert_int_equal(m.n, 0);
    assert_int_equal(rmdir(path), 0);
    put(m.t.dir, "flag", "0", 1);
    assert_int_equal(goes(1)->ms, 0);
    OK(file_remove(path, err));
    mem_free(path);
}

static void put_program(const char *path, const char *text)
{
    OK(file_write_atomic(path, text, strlen(text), 0700, err));
    assert_int_equal(chmod(path, 0700), 0);
}

/* It is run until it ends with 0; one that hangs is ended; one that cannot be run is tried
 * again. */
static void a_program(void **state)
{
    char *path = in(m.t.dir, "asks"), *runs = in(m.t.dir, "runs"), text[512];
    struct buf b;
    (void)snprintf(text, sizeof(text),
                   "#!/bin/sh\necho >>%s\ncase $(wc -l <%s) in\n1) exit 3;;\n2) kill -9 $$;;\n"
                   "3) exec sleep 1000;;\nesac\n",
                   runs, runs);
    put_program(path, "\x7f"
                      "ELF");
    watch(path);
    loop_turn(m.t.loop, true);
    put_program(path, text);
    assert_int_equal(goes(1)->ms, SPOT_MS);
    OK(file_read(runs, 100, &b, err));
    assert_int_equal(b.len, 4);
    buf_release(&b);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    mem_free(path);
    mem_free(runs);
}

/* Who leaves while a program runs does not wait for its end. */
static void a_program_is_left(void **state)
{
    char *path = in(m.t.dir, "asks"), *runs = in(m.t.dir, "runs"), text[256];
    (void)snprintf(text, sizeof(text), "#!/bin/sh\n: >%s\nexec sleep 1000\n", runs);
    put_program(path, text);
    watch(path);
    WAIT_FOR(&m.t, file_exists(runs));
    leave();
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    for (int i = 0; i < 3; i++)
        loop_turn(m.t.loop, true);
    assert_int_equal(m.n, 0);
    mem_free(path);
    mem_free(runs);
}

#define WATCHES(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WATCHES(names),          WATCHES(aws),
        WATCHES(an_old_token),   WATCHES(gcp),
        WATCHES(azure),          WATCHES(any),
        WATCHES(a_file),         WATCHES(a_directory),
        WATCHES(a_program),      WATCHES(a_program_is_left),
        WATCHES(nobody_listens),
    };
    return cmocka_run_group_tests(tests, make_a_thread, NULL);
}
