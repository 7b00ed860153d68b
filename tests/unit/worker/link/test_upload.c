/* Sending results: what is asked first, what is tried again, and when it is given up. */
#include "tests/unit/worker/link/fake_line.h"

#include "common/net/token.h"
#include "worker/link/session.h"
#include "worker/link/upload.h"
#include "worker/order/work.h"

static struct token token = {.host = "coordinator", .http_port = 8443};
static struct work_output outputs[4];
static struct {
    struct {
        rpc_done_fn done; /* NULL: answered */
        void *arg;
    } at[MOST]; /* by id - 1 */
    unsigned n, next, cancelled;
    int refuse;                               /* every call, while it is set */
    Skerry__V1__Contribution announced[MOST]; /* module_id 0: none */
} asked;
static struct {
    unsigned calls;
    int code;
} told;

int session_call(struct session *s, uint16_t method, const ProtobufCMessage *msg,
                 const ProtobufCMessageDescriptor *reply, uint32_t deadline_ms, rpc_done_fn done,
                 void *arg, uint64_t *ret_id)
{
    assert_int_equal(method, SKERRY__V1__METHOD__METHOD_TICKET);
    if (asked.refuse < 0)
        return asked.refuse;
    assert_true(asked.n < MOST);
    asked.at[asked.n].done = done;
    asked.at[asked.n].arg = arg;
    const Skerry__V1__TicketRequest *m = (const Skerry__V1__TicketRequest *)(const void *)msg;
    if (m->contribution)
        asked.announced[asked.n] = *m->contribution;
    *ret_id = ++asked.n;
    return 0;
}

static void answer_to(unsigned i, const struct rpc_result *r)
{
    const rpc_done_fn done = asked.at[i].done;
    assert_non_null(done);
    asked.at[i].done = NULL;
    done(asked.at[i].arg, r);
}

/* To the oldest question. */
static void answer(const struct rpc_result *r)
{
    while (asked.next < asked.n && asked.at[asked.next].done == NULL)
        asked.next++;
    assert_true(asked.next < asked.n);
    answer_to(asked.next, r);
}

void session_cancel(struct session *s, uint64_t call_id)
{
    asked.cancelled++;
    answer_to((unsigned)call_id - 1, &(struct rpc_result){.code = -ERR_CANCELLED, .detail = ""});
}

static void ticket(const char *url, bool have)
{
    Skerry__V1__TicketReply reply = SKERRY__V1__TICKET_REPLY__INIT;
    reply.have = have;
    reply.url = (char *)(uintptr_t)url;
    answer(&(struct rpc_result){.reply = &reply.base, .detail = ""});
}

static void on_done(void *arg, int code, const char *detail)
{
    told.calls++;
    told.code = code;
}

static struct upload *begin(size_t n)
{
    n_timers = 0;
    const struct fetch_env env = {.token = &token};
    const struct upload_what what = {.task_id = 7, .attempt = 1, .outputs = outputs, .n = n};
    return upload_start(&env, NULL, &what, on_done, NULL);
}

static void ends(int code)
{
    assert_int_equal(told.calls, 0); /* never from within */
    turn();
    assert_true(told.calls == 1 && told.code == code);
}

static void sends_what_is_not_there(void **state)
{
    (void)begin(2);
    ticket("", true);
    ticket("/v1/blobs/b", false);
    assert_int_equal(line.n, 1);
    assert_string_equal(line.at[0].path, "/tmp/second");
    assert_ptr_equal(line.at[0].pin, token.pin);
    end_with(0, 0, "");
    ends(0);
}

/* Two are on their way, and the next follows whichever is there first; what is the same goes once.
 */
static void two_at_a_time(void **state)
{
    memcpy(outputs[2].sha256, outputs[1].sha256, 32);
    (void)begin(4);
    assert_int_equal(asked.n, 2);
    ticket("/v1/blobs/a", false);
    ticket("/v1/blobs/b", false);
    assert_int_equal(line.running, 2);
    end_with(1, 0, "");
    assert_int_equal(asked.n, 3);
    ticket("/v1/blobs/d", false);
    assert_string_equal(line.at[2].path, "/tmp/fourth");
    end_with(2, 0, "");
    assert_int_equal(deferred.n, 0);
    end_with(0, 0, "");
    assert_int_equal(asked.n, 3);
    ends(0);
}

/* One that cannot be sent ends the other. */
static void one_fails(void **state)
{
    (void)begin(4);
    ticket("/v1/blobs/a", false);
    ticket("/v1/blobs/b", false);
    end_with(0, -ENOSPC, "full");
    assert_true(line.cancelled == 1 && line.running == 0 && asked.n == 2);
    ends(-ENOSPC);
    told.calls = 0;
    (void)begin(2);
    ticket("/v1/blobs/a", false);
    end_with(2, -ENOSPC, "full");
    assert_int_equal(asked.cancelled, 1);
    ends(-ENOSPC);
}

static char coming[256];

static void on_coming(void *arg, const struct work_output *o, const char *url)
{
    snprintf(coming, sizeof(coming), "%" PRIu64 "@%" PRIu64 ":%s", o->module_id, o->base_version,
             url);
}

/* A contribution is announced as the report will have it, where somebody listens; and what is said
 * of its module is passed on, also where the coordinator has the file. */
static void contributions_are_announced(void **state)
{
    const struct fetch_env with = {.token = &token};
    const struct upload_what what = {
        .task_id = 7, .attempt = 1, .outputs = outputs, .n = 2, .samples = 80, .coming = on_coming};
    Skerry__V1__TicketReply reply = SKERRY__V1__TICKET_REPLY__INIT;
    outputs[0].role = WORK_CONTRIBUTION;
    outputs[0].module_id = 5;
    outputs[0].base_version = 3;
    outputs[1].role = WORK_MOMENTS;
    (void)begin(2);
    assert_int_equal(asked.announced[0].module_id, 0);
    ticket("", true);
    ticket("", true);
    ends(0);
    told.calls = 0;
    coming[0] = '\0';
    (void)upload_start(&with, NULL, &what, on_done, NULL);
    assert_int_equal(asked.announced[2].module_id, 5);
    assert_int_equal(asked.announced[2].base_version, 3);
    assert_int_equal(asked.announced[2].samples, 80);
    assert_int_equal(asked.announced[3].module_id, 0);
    reply.have = true;
    reply.coming = (char *)(uintptr_t) "/v1/blobs/c";
    answer(&(struct rpc_result){.reply = &reply.base, .detail = ""});
    ticket("", true);
    assert_string_equal(coming, "5@3:/v1/blobs/c");
    ends(0);
    told.calls = 0;
    reply.coming = (char *)(uintptr_t) "file:///etc/passwd";
    (void)upload_start(&with, NULL, &what, on_done, NULL);
    answer(&(struct rpc_result){.reply = &reply.base, .detail = ""});
    ends(-ERR_FORMAT);
    assert_string_equal(coming, "5@3:/v1/blobs/c");
}

static void nothing_to_send(void **state)
{
    (void)begin(0);
    ends(0);
}

/* A ticket may expire while a slow line is at it. */
static void a_new_ticket_for_a_new_try(void **state)
{
    (void)begin(1);
    unsigned tries = 0;
    for (unsigned i = 0; i < 10; i++) { /* what is not answered has used none */
        answer(&(struct rpc_result){.code = -EAGAIN, .remote = true, .retryable = true});
        fire(timers[0]);
    }
    for (; told.calls == 0 && tries < 10 && deferred.n == 0; tries++) {
        ticket("/v1/blobs/a", false);
        end_with(tries, -ECONNRESET, "cut");
        if (timers[0]->active)
            fire(timers[0]);
    }
    assert_int_equal(tries, 4);
    ends(-ECONNRESET);
}

/* As many as it takes, as long as each carries it further than all before. */
static void goes_on_while_it_comes_further(void **state)
{
    (void)begin(1);
    unsigned tries = 0;
    for (; tries < 12; tries++) {
        ticket("/v1/blobs/a", false);
        line.at[tries].progress(line.at[tries].arg, 10 + (tries < 8 ? tries : 8), 100);
        end_with(tries, -ECONNRESET, "cut");
        if (deferred.n > 0)
            break;
        fire(timers[0]);
    }
    assert_int_equal(tries, 11);
    ends(-ECONNRESET);
}

/* A finished phase is worth more than a minute without a name server. */
static void kept_while_nobody_is_there(void **state)
{
    (void)begin(1);
    for (unsigned i = 0; i < 20; i++) {
        ticket("/v1/blobs/a", false);
        static const int codes[] = {-ECONNREFUSED, -EHOSTUNREACH, -ETIMEDOUT};
        end_with(i, codes[i % 3], "cannot resolve coordinator");
        assert_true(told.calls == 0 && deferred.n == 0);
        fire(timers[0]);
    }
    ticket("/v1/blobs/a", false);
    end_with(20, 0, "");
    ends(0);
}

/* Nor does it end while the coordinator has no room, or a store that does not answer; the log has
 * each reason once, though a try a second may go on for a night. */
static void kept_while_there_is_no_room(void **state)
{
    char text[4096] = "";
    FILE *log = tmpfile();
    const int before = dup(2);
    assert_true(log && before >= 0 && dup2(fileno(log), 2) == 2);
    (void)begin(1);
    for (unsigned i = 0; i < 20; i++) {
        ticket("/v1/blobs/a", false);
        end_by(i, i < 10 ? -EAGAIN : -ENOSPC, i < 10 ? 503 : 507, i < 10 ? "away" : "full");
        assert_true(told.calls == 0 && deferred.n == 0);
        fire(timers[0]);
    }
    assert_int_equal(dup2(before, 2), 2);
    (void)close(before);
    rewind(log);
    assert_true(fread(text, 1, sizeof text - 1, log) > 0);
    (void)fclose(log);
    const char *away = strstr(text, ": away"), *full = strstr(text, ": full");
    assert_true(away && full && !strstr(away + 1, ": away") && !strstr(full + 1, ": full"));
    ticket("/v1/blobs/a", false);
    end_by(20, 0, 201, "");
    ends(0);
}

static void a_full_disk_of_its_own_is_not_tried_again(void **state)
{
    (void)begin(1);
    ticket("/v1/blobs/a", false);
    end_with(0, -ENOSPC, "full");
    ends(-ENOSPC);
}

static void waits_for_the_connection(void **state)
{
    asked.refuse = -ENOTCONN;
    struct upload *u = begin(1);
    assert_int_equal(timers[0]->after_ms, 1000);
    fire(timers[0]);
    assert_int_equal(asked.n, 0);
    asked.refuse = 0;
    upload_resume(u);
    upload_resume(u); /* one question at a time */
    assert_int_equal(asked.n, 1);
    answer(&(struct rpc_result){.code = -ECONNRESET, .detail = "lost"});
    upload_resume(u);
    ticket("", true);
    ends(0);
}

static void refused_or_malformed(void **state)
{
    (void)begin(1);
    answer(&(struct rpc_result){.code = -ERR_STALE, .detail = "no", .remote = true});
    ends(-ERR_STALE);
    told.calls = 0;
    (void)begin(1);
    ticket("file:///etc/passwd", false);
    ends(-ERR_FORMAT);
    assert_int_equal(line.n, 0);
}

static void cancelled_says_nothing(void **state)
{
    struct upload *u = begin(1);
    upload_cancel(u);
    assert_int_equal(asked.cancelled, 1);
    turn();
    u = begin(1);
    ticket("/v1/blobs/a", false);
    upload_cancel(u);
    assert_int_equal(line.cancelled, 1);
    turn();
    assert_int_equal(told.calls, 0);
    upload_cancel(NULL);
}

static int setup(void **state)
{
    memset(&line, 0, sizeof(line));
    memset(&told, 0, sizeof(told));
    memset(&asked, 0, sizeof(asked));
    static const char *const paths[] = {"/tmp/first", "/tmp/second", "/tmp/third", "/tmp/fourth"};
    for (uint8_t i = 0; i < 4; i++) {
        str_copy(outputs[i].path, sizeof(outputs[i].path), paths[i]);
        outputs[i].sha256[0] = i;
        outputs[i].role = WORK_RESULT;
    }
    return 0;
}

#define TEST(f) cmocka_unit_test_setup(f, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(sends_what_is_not_there),
        TEST(two_at_a_time),
        TEST(one_fails),
        TEST(contributions_are_announced),
        TEST(nothing_to_send),
        TEST(a_new_ticket_for_a_new_try),
        TEST(goes_on_while_it_comes_further),
        TEST(kept_while_nobody_is_there),
        TEST(kept_while_there_is_no_room),
        TEST(a_full_disk_of_its_own_is_not_tried_again),
        TEST(waits_for_the_connection),
        TEST(refused_or_malformed),
        TEST(cancelled_says_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
