/* What events say to people and to streams, and when: on a real server with a made-up coordinator
 * (fake_view.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/http/http_events.h"
#include "tests/unit/coordinator/fake_view.h"
#include "tests/unit/coordinator/http/client.h"

static struct http_events *events;

static void open_stream(void *arg, struct http_request *r)
{
    http_events_open(events, r);
}

static int begin(void **state)
{
    static const struct http_route route = {"GET", "/events", .handle = open_stream};
    static const struct http_server_options o = {.host = "127.0.0.1"};
    struct err err = {0};
    memset(&fake, 0, sizeof fake);
    if (loop_new(&loop, &err) < 0 || http_server_open(loop, &o, &server, &err) < 0)
        return -1;
    http_server_routes(server, &route, 1);
    job.mixture = false;
    job.paths = 1;
    job.state = "running";
    return http_events_new(NULL, &events, &err);
}

static int end(void **state)
{
    http_events_free(events);
    http_server_close(server);
    loop_free(loop);
    return 0;
}

static void fire(const struct event *e)
{
    fake.subscriber(fake.subscriber_arg, e);
}

static void commit(int rc)
{
    durable_fn fn = fake.durable;
    fake.durable = NULL;
    assert_non_null(fn);
    fn(fake.durable_arg, rc);
}

/* The log's newest sentence, until the next one; *ret_n: how many there are. */
static const char *newest(size_t *ret_n)
{
    static char text[1024];
    json_t *log = http_events_log(events);
    const json_t *last = json_array_get(log, json_array_size(log) - 1);
    *ret_n = json_array_size(log);
    (void)snprintf(text, sizeof text, "%s",
                   last ? json_string_value(json_object_get(last, "text")) : "");
    json_decref(log);
    return text;
}

/* The event, after its commit, is that sentence; NULL: none. */
static void says(const struct event *e, const char *want)
{
    size_t before, after;
    (void)newest(&before);
    fire(e);
    if (fake.durable != NULL)
        commit(0);
    const char *got = newest(&after);
    if (after - before != (want != NULL) || (want && strcmp(got, want) != 0))
        fail_msg("\"%s\", expected \"%s\"", after > before ? got : "", want ? want : "");
}

#define JOB "job 7 (a\"b\\c\nd)"

/* ---- sentences ---- */

static void test_sentences(void **state)
{
    static const struct round_rec round = {.round = 4};
    static const struct metric_rec eval = {.kind = METRIC_EVAL, .round = 3, .loss = 0.25};
    static const struct metric_rec of_mixture = {
        .kind = METRIC_EVAL, .path = UINT32_MAX, .round = 3, .loss = 0.25};
    static const struct grid_rec drawn = {.round = 2, .count = 4, .path = 1, .blob.size = 9};
    static const struct grid_rec alone = {.round = 2, .count = 1, .path = 1, .blob.size = 9};
    static const struct grid_rec written = {.round = 2, .count = 1, .path = UINT32_MAX};
    says(&(struct event){.kind = EVENT_LOG, .text = "it happens"}, "it happens");
    says(&(struct event){.kind = EVENT_LOG, .text = ""}, NULL);
    says(&(struct event){.kind = EVENT_JOB, .job_id = 7, .text = ""}, JOB " is running");
    says(&(struct event){.kind = EVENT_JOB, .job_id = 7, .text = "well"}, JOB " is running: well");
    says(&(struct event){.kind = EVENT_JOB, .job_id = 8, .text = "well"}, NULL); /* it is gone */
    says(&(struct event){.kind = EVENT_ROUND, .job_id = 7, .round = &round, .text = "it ends"},
         JOB ": it ends");
    for (int many = 0; many < 2; many++) {
        job.paths = many ? 3 : 1;
        job.mixture = many;
        says(&(struct event){.kind = EVENT_JOB, .job_id = 7, .metric = &eval, .text = "evaluated"},
             many ? JOB ": held-out loss 0.2500 of path 0 after round 3"
                  : JOB ": held-out loss 0.2500 after round 3");
        says(&(struct event){.kind = EVENT_JOB, .job_id = 7, .metric = &of_mixture, .text = ""},
             many ? JOB ": held-out loss 0.2500 of the mixture after round 3"
                  : JOB ": held-out loss 0.2500 after round 3");
        says(&(struct event){.kind = EVENT_SAMPLE, .job_id = 7, .sample = &drawn, .text = ""},
             many ? JOB ": 4 samples of path 1 were drawn after round 2"
                  : JOB ": 4 samples were drawn after round 2");
        says(&(struct event){.kind = EVENT_SAMPLE, .job_id = 7, .sample = &written, .text = ""},
             many ? JOB ": a text of the mixture was written after round 2"
                  : JOB ": a text was written after round 2");
    }
    job.paths = 1;
    says(&(struct event){.kind = EVENT_SAMPLE, .job_id = 7, .sample = &alone, .text = ""},
         JOB ": 1 sample was drawn after round 2");
}

/* Its end has a sentence of its own, but what was measured at the end has one, too. */
static void test_ends(void **state)
{
    static const char *const ends[] = {"done", "failed", "cancelled"};
    static const struct metric_rec eval = {.kind = METRIC_EVAL, .round = 3, .loss = 0.25};
    for (size_t i = 0; i < 3; i++) {
        job.state = ends[i];
        says(&(struct event){.kind = EVENT_JOB, .job_id = 7, .text = "why"}, NULL);
        says(&(struct event){.kind = EVENT_JOB, .job_id = 7, .metric = &eval, .text = ""},
             JOB ": held-out loss 0.2500 after round 3");
    }
    job.state = "running";
    says(&(struct event){.kind = EVENT_WORKER, .job_id = 7, .worker_id = 3, .text = "joined"},
         NULL);
    says(&(struct event){.kind = EVENT_LOSS, .job_id = 7, .metric = &eval, .text = ""}, NULL);
    says(&(struct event){.kind = EVENT_TEXT, .job_id = 7, .text = "once"}, NULL);
}

/* A sentence names what it is about, and its number grows by one. */
static void test_of_what(void **state)
{
    for (json_int_t i = 1; i <= 2; i++) {
        fire(&(struct event){
            .kind = EVENT_LOG, .job_id = 7, .worker_id = 3, .task_id = 9, .text = "it happens"});
        commit(0);
        json_t *log = http_events_log(events);
        const json_t *o = json_array_get(log, (size_t)i - 1);
        assert_int_equal(json_integer_value(json_object_get(o, "n")), i);
        assert_int_equal(json_integer_value(json_object_get(o, "job")), 7);
        assert_int_equal(json_integer_value(json_object_get(o, "worker")), 3);
        assert_int_equal(json_integer_value(json_object_get(o, "task")), 9);
        assert_true(json_is_string(json_object_get(o, "at")));
        json_decref(log);
    }
}

/* ---- streams ---- */

static struct answer stream;

static void listen_to(void)
{
    send_request(&stream, "GET", "/events", "", "");
    wait_for(&stream, "retry: 2000");
}

static void settle_stream(void)
{
    for (int i = 0; i < 50; i++)
        pump(&stream);
}

/* Losses and texts are sent at once: they are no promise. */
static void test_at_once(void **state)
{
    static const struct metric_rec loss = {.n = 5, .kind = METRIC_LOSS, .loss = 0.5, .step = 6};
    listen_to();
    fire(&(struct event){.kind = EVENT_LOSS, .job_id = 7, .metric = &loss, .text = ""});
    wait_for(&stream, "event: loss\ndata: {\"n\":5,");
    wait_for(&stream, "\"step\":6");
    wait_for(&stream, ",\"job\":7}\n\n");
    fire(&(struct event){
        .kind = EVENT_TEXT, .job_id = 7, .task_id = 9, .offset = 11, .text = "up\non"});
    wait_for(&stream,
             "event: text\ndata: {\"task\":9,\"offset\":11,\"text\":\"up\\non\",\"job\":7}\n\n");
    assert_null(fake.durable);                                          /* nothing waits */
    fire(&(struct event){.kind = EVENT_LOSS, .job_id = 7, .text = ""}); /* of what? */
    settle_stream();
    assert_null(strstr(strstr(stream.text, "event: loss") + 1, "event: loss"));
    close(stream.fd);
}

/* The others after their commit, each with its sentence. */
static void test_after_the_commit(void **state)
{
    static const struct round_rec round = {.round = 4, .eval_loss = NAN};
    static const struct grid_rec drawn = {.task_id = 9, .count = 4, .blob.size = 9};
    static const char *const want[] = {"event: round\ndata: {\"path\":0,\"round\":5,",
                                       "event: sample\ndata: {\"round\":0,\"task\":9,",
                                       "event: worker\ndata: {\"id\":3,",
                                       "event: job\ndata: {\"id\":7,", "event: log\ndata: {"};
    listen_to();
    fake.next = 1;
    fire(&(struct event){.kind = EVENT_ROUND, .job_id = 7, .round = &round, .text = "it ends"});
    fire(&(struct event){.kind = EVENT_SAMPLE, .job_id = 7, .sample = &drawn, .text = ""});
    fire(&(struct event){.kind = EVENT_WORKER, .worker_id = 3, .text = ""});
    fire(&(struct event){.kind = EVENT_JOB, .job_id = 7, .text = ""});
    fire(&(struct event){.kind = EVENT_WORKER, .worker_id = 4, .text = ""}); /* gone by now */
    fire(&(struct event){.kind = EVENT_JOB, .job_id = 8, .text = ""});
    settle_stream();
    for (size_t i = 0; i < 5; i++)
        assert_null(strstr(stream.text, want[i]));
    fake.done = 1;
    commit(0);
    for (size_t i = 0; i < 5; i++)
        wait_for(&stream, want[i]);
    const char *second = strstr(strstr(stream.text, "event: worker") + 1, "event: worker");
    assert_null(second);
    assert_null(fake.durable);
    close(stream.fd);
}

/* What was never written is told to nobody. */
static void test_stops(void **state)
{
    size_t n;
    listen_to();
    fake.next = 1;
    fire(&(struct event){.kind = EVENT_LOG, .text = "it happens"});
    commit(-ERR_CANCELLED);
    (void)newest(&n);
    assert_int_equal(n, 0);
    assert_null(fake.durable);
    settle_stream();
    assert_null(strstr(stream.text, "it happens"));
    close(stream.fd);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(test_sentences),        TEST(test_ends),  TEST(test_of_what), TEST(test_at_once),
        TEST(test_after_the_commit), TEST(test_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
