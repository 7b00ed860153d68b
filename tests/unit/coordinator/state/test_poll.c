/* Long polls: who is answered by which commit, and with what, by requests that only note it. */
#include "coordinator/state/poll.h"

#include "tests/unit/coordinator/bare.h"

/* ---- requests ---- */

struct rpc_request {
    void (*on_gone)(void *arg, struct rpc_request *req);
    void *gone_arg;
    unsigned holds, sends, agains, answers;
    bool retryable;
    int code; /* 0: a reply */
    char why[128];
};

void rpc_request_hold(struct rpc_request *q)
{
    q->holds++;
}

void rpc_request_send(struct rpc_request *q)
{
    q->sends++;
}

void rpc_request_again(struct rpc_request *q)
{
    q->agains++;
}

void rpc_request_on_gone(struct rpc_request *q, void (*fn)(void *arg, struct rpc_request *qeq),
                         void *arg)
{
    q->on_gone = fn;
    q->gone_arg = arg;
}

void rpc_fail(struct rpc_request *q, int code, bool retryable, uint32_t retry_after_ms,
              const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(q->why, sizeof(q->why), fmt, ap);
    va_end(ap);
    q->answers++;
    q->code = code;
    q->retryable = retryable;
}

static struct rpc_request r[8]; /* which outlive what waits */

/* ---- polls ---- */

static struct {
    bool ready; /* there is an answer, before the time is up */
    unsigned asked, last;
} source;

static bool answer(struct coordinator *co, struct poll *p, bool last)
{
    assert_non_null(poll_task(co, p));
    source.asked++;
    source.last += last;
    if (source.ready || last)
        p->req->answers++;
    return source.ready || last;
}

static int begin_polls(void **state)
{
    memset(&source, 0, sizeof(source));
    memset(r, 0, sizeof(r));
    const int rc = bare_begin(state);
    core_init(*state);
    return rc;
}

static int end_polls(void **state)
{
    struct coordinator *co = *state;
    poll_stop(co);
    poll_release(co);
    return bare_end(state);
}

/* A poll of the worker that holds attempt 3 of the task. */
static struct poll *wait_for(struct coordinator *co, const struct task *t, struct rpc_request *req)
{
    struct poll *p = poll_add(co, req, 20000, answer);
    p->worker_id = t->worker_id;
    p->task_id = t->id;
    p->attempt = 3;
    p->module_id = 5;
    return p;
}

static struct task *lease(struct coordinator *co, uint64_t worker)
{
    struct task *t = state_add_task(&co->state, 0, 1, TASK_TRAIN);
    state_set_task_state(&co->state, t, TASK_LEASED);
    t->worker_id = worker;
    t->attempt = 3;
    return t;
}

static size_t count(const struct list *head)
{
    size_t n = 0;
    for (const struct list *l = head->next; l != head; l = l->next)
        n++;
    return n;
}

static void is_failed(const struct rpc_request *req, int code, bool retryable, const char *why)
{
    assert_int_equal(req->answers, 1);
    assert_int_equal(req->code, code);
    assert_int_equal(req->retryable, retryable);
    assert_non_null(strstr(req->why, why));
}

/* ---- */

/* Nobody waits for longer than half a minute, and the next turn considers the poll. */
static void test_waits(void **state)
{
    static const uint32_t waits[][2] = {
        {0, 0}, {29999, 29999}, {30000, 30000}, {UINT32_MAX, 30000}};
    struct coordinator *co = *state;
    for (size_t i = 0; i < 4; i++) {
        co->touched = false;
        const struct poll *p = poll_add(co, &r[i], waits[i][0], answer);
        assert_int_equal(p->until_ms, core_now(co) + waits[i][1]);
        assert_true(co->touched);
        assert_non_null(r[i].on_gone);
    }
}

/* An answer is kept until the commit from which it was made is durable. */
static void test_answered(void **state)
{
    struct coordinator *co = *state;
    (void)wait_for(co, lease(co, 1), &r[0]);
    source.ready = true;
    poll_hand(co);
    assert_true(r[0].holds == 1 && r[0].answers == 1 && r[0].sends == 0 && r[0].agains == 0);
    assert_null(r[0].on_gone); /* the answer ends it */
    assert_true(count(&co->next.polls) == 0 && count(&co->group.polls) == 1);
    poll_hand(co); /* it is answered once */
    assert_int_equal(r[0].answers, 1);
    poll_release(co);
    assert_true(r[0].sends == 1 && count(&co->group.polls) == 0);
    assert_int_equal(source.last, 0);
}

static void test_unanswered(void **state)
{
    struct coordinator *co = *state;
    struct poll *p = wait_for(co, lease(co, 1), &r[0]);
    p->until_ms = core_now(co) + 1;
    poll_hand(co);
    assert_true(source.asked == 1 && source.last == 0);
    assert_true(r[0].holds == 1 && r[0].agains == 1 && r[0].answers == 0);
    assert_true(r[0].on_gone != NULL && r[0].gone_arg == co);
    assert_int_equal(count(&co->next.polls), 1);
    p->until_ms = core_now(co); /* the time is up */
    poll_hand(co);
    assert_true(source.last == 1 && r[0].answers == 1);
    assert_int_equal(count(&co->group.polls), 1);
}

/* Whoever has lost the lease is told so, and is asked nothing. */
static void test_lost(void **state)
{
    struct coordinator *co = *state;
    struct task *t[4];
    for (size_t i = 0; i < 4; i++) {
        t[i] = lease(co, 1);
        (void)wait_for(co, t[i], &r[i]);
    }
    source.ready = true;
    t[0]->attempt++;
    t[1]->worker_id++;
    state_set_task_state(&co->state, t[2], TASK_DONE);
    state_drop_task(&co->state, t[3]);
    poll_hand(co);
    assert_int_equal(source.asked, 0);
    for (size_t i = 0; i < 4; i++)
        is_failed(&r[i], -ERR_STALE, false, "has lost its lease");
    assert_int_equal(count(&co->group.polls), 4);
}

/* A connection that closes takes its poll along, and no other. */
static void test_gone(void **state)
{
    struct coordinator *co = *state;
    const struct task *t = lease(co, 1);
    for (size_t i = 0; i < 3; i++)
        (void)wait_for(co, t, &r[i]);
    r[1].on_gone(r[1].gone_arg, &r[1]);
    is_failed(&r[1], -ERR_CANCELLED, true, "the connection is gone");
    source.ready = true;
    poll_hand(co);
    assert_true(r[0].answers == 1 && r[2].answers == 1 && r[1].holds == 0);
    assert_int_equal(count(&co->group.polls), 2);
}

/* The same question takes the place of the one before, whichever version it is about; another one
 * does not. */
static void test_replaced(void **state)
{
    struct coordinator *co = *state;
    struct task *t = lease(co, 1), *other = lease(co, 1);
    struct poll *p[7];
    for (size_t i = 0; i < 7; i++)
        p[i] = wait_for(co, i == 1 ? other : t, &r[i]);
    p[2]->worker_id = 2;
    p[3]->module_id = 6;
    p[4]->velocity = 7;
    p[5]->version = 8;
    poll_replace(co, p[6]);
    for (size_t i = 0; i < 7; i++)
        if (i == 0 || i == 5)
            is_failed(&r[i], -ERR_CANCELLED, true, "the same was asked again");
        else
            assert_int_equal(r[i].answers, 0);
    assert_null(r[0].on_gone);
    assert_int_equal(count(&co->next.polls), 5);
}

/* A failed commit answered nobody: they wait on, behind those that came later. */
static void test_taken_back(void **state)
{
    struct coordinator *co = *state;
    struct rpc_request *first = &r[0], *later = &r[1];
    const struct task *t = lease(co, 1);
    (void)wait_for(co, t, first);
    source.ready = true;
    poll_hand(co);
    (void)wait_for(co, t, later);
    poll_take_back(co);
    assert_true(first->agains == 1 && first->sends == 0 && later->agains == 0);
    assert_true(first->on_gone != NULL && first->gone_arg == co);
    assert_true(count(&co->next.polls) == 2 && count(&co->group.polls) == 0);
    first->answers = 0;
    first->on_gone(first->gone_arg, first);
    is_failed(first, -ERR_CANCELLED, true, "the connection is gone");
    assert_int_equal(count(&co->next.polls), 1);
}

static void test_stopped(void **state)
{
    struct coordinator *co = *state;
    const struct task *t = lease(co, 1);
    for (size_t i = 0; i < 2; i++)
        (void)wait_for(co, t, &r[i]);
    poll_stop(co);
    for (size_t i = 0; i < 2; i++) {
        is_failed(&r[i], -ERR_CANCELLED, true, "the coordinator stops");
        assert_null(r[i].on_gone);
    }
    assert_int_equal(count(&co->next.polls), 0);
}

int main(void)
{
#define LIVE(f) cmocka_unit_test_setup_teardown(f, begin_polls, end_polls)
    const struct CMUnitTest tests[] = {
        LIVE(test_waits), LIVE(test_answered), LIVE(test_unanswered), LIVE(test_lost),
        LIVE(test_gone),  LIVE(test_replaced), LIVE(test_taken_back), LIVE(test_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
