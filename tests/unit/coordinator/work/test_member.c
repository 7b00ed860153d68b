/* What is remembered of workers: failures, what they have no memory for, what they are to be told,
 * and that they are gone.  A whole coordinator (rig.h). */
#include <arpa/inet.h>
#include <sys/socket.h>

#include "common/net/http/blob_http.h"
#include "common/net/http/http_server.h"
#include "coordinator/decide/admit.h"
#include "coordinator/state/access.h"
#include "coordinator/outer/outer_exec.h"
#include "coordinator/work/member.h"
#include "coordinator/work/query.h"
#include "coordinator/work/tasks.h"
#include "tests/unit/coordinator/rig.h"

static struct worker *here(struct rig *r, int i)
{
    struct fake *w = &r->workers[i];
    assert_int_equal(join(r, w, SKERRY_VERSION), 0);
    return state_edit_worker(&r->co->state, state_worker(&r->co->state, w->id));
}

/* Failures in a row put it in quarantine; a success between them does not. */
static void test_quarantine(void **state)
{
    struct rig *r = *state;
    struct worker *w = here(r, 0);
    char reason[REASON_MAX];
    uint64_t until = 0;
    for (int i = 1; i < ADMIT_FAILURES_ROW; i++)
        member_failed(r->co, w);
    member_succeeded(r->co, w, true);
    assert_int_equal(w->failures_row, ADMIT_FAILURES_ROW - 1); /* what it brought is judged later */
    member_proved(w);
    for (int i = 1; i < ADMIT_FAILURES_ROW; i++)
        member_failed(r->co, w);
    assert_int_equal(w->strikes, 0);
    assert_true(member_may_work(r->co, w, &until, reason));
    member_failed(r->co, w);
    assert_int_equal(w->strikes, 1);
    assert_int_equal(w->failures_row, 0); /* they are counted anew */
    assert_false(member_may_work(r->co, w, &until, reason));
    assert_int_equal(until, w->quarantined_until_ms);
    assert_non_null(strstr(reason, "in quarantine"));
    assert_int_equal(w->tasks_done, 1);
    assert_int_equal(w->tasks_failed, 2 * ADMIT_FAILURES_ROW - 1);
}

/* Who is alone with a task is a second witness of its own only while nobody else is here: one in
 * quarantine will be back. */
static void test_witness(void **state)
{
    struct rig *r = *state;
    struct worker *a = here(r, 0), *b = here(r, 1);
    const struct task t = {.job_id = submit(r), .kind = TASK_EVAL, .worker_id = a->id};
    const uint64_t origin = worker_origin(a);
    (void)str_copy(b->address, sizeof(b->address), "10.0.0.2:1");
    assert_true(member_elsewhere(r->co, origin, &t) && member_another(r->co, a->id, &t));
    assert_false(member_confirms(r->co, a->id, origin, &t));
    assert_true(member_confirms(r->co, b->id, worker_origin(b), &t));
    struct task often = t;
    often.attempt = 2 * TASK_FAILURES_MAX;
    often.failed =
        (struct failure_list){.at[0] = {.worker = a->id, .count = TASK_FAILURES_MAX}, .n = 1};
    assert_true(member_elsewhere(r->co, origin, &often)); /* none was b's */
    often.failed.at[0].worker = b->id;
    assert_false(member_elsewhere(r->co, origin, &often)); /* b does not get it done */
    often.kind = TASK_TRAIN;
    assert_true(member_elsewhere(r->co, origin, &often));
    b->quarantined_until_ms = core_now(r->co) + 60000;
    assert_false(member_elsewhere(r->co, origin, &t) || member_another(r->co, a->id, &t));
    assert_false(member_confirms(r->co, a->id, origin, &t));
    b->state = WORKER_LOST;
    assert_true(member_confirms(r->co, a->id, origin, &t));
}

static bool is_small(struct rig *r, const struct worker *w, const struct task *t)
{
    return query_is_small(state_job(&r->co->state, t->job_id), t->kind, 0, w, core_now(r->co));
}

/* What one worker has no memory for another may have; that is known for a while. */
static void test_small(void **state)
{
    struct rig *r = *state;
    struct worker *a = here(r, 0), *b = here(r, 1);
    const struct task train = {.job_id = 1, .kind = TASK_TRAIN};
    const struct task eval = {.job_id = 1, .kind = TASK_EVAL},
                      other = {.job_id = 2, .kind = TASK_TRAIN};
    const uint64_t wait = 60000;
    (void)submit(r);
    (void)submit(r);
    assert_false(is_small(r, a, &train));
    member_note_small(r->co, a, &train, wait);
    assert_true(is_small(r, a, &train));
    assert_false(is_small(r, a, &eval));
    assert_false(is_small(r, a, &other));
    assert_true(member_others_fit(r->co, a, &train));
    assert_false(member_others_fit(r->co, b, &train));
    member_note_small(r->co, b, &train, wait);
    assert_false(member_others_fit(r->co, a, &train));
    b->n_small = 0;
    b->drain = true; /* it takes no more */
    assert_false(member_others_fit(r->co, a, &train));
    member_note_small(r->co, a, &other, 0); /* that time has passed */
    assert_false(is_small(r, a, &other));
    for (uint64_t job = 10; job < 10 + WORKER_SMALL_MAX; job++) {
        const struct task t = {.job_id = job, .kind = TASK_TRAIN};
        member_note_small(r->co, a, &t, wait);
    }
    assert_false(is_small(r, a, &train)); /* the newest are kept */
}

static void test_verdicts(void **state)
{
    struct rig *r = *state;
    struct worker *w = here(r, 0);
    for (uint64_t task = 1; task <= VERDICTS_MAX + 1; task++)
        member_verdict(r->co, w->id, &(struct verdict){.task_id = task, .accepted = task % 2});
    assert_int_equal(w->n_verdicts, VERDICTS_MAX);
    assert_int_equal(w->verdicts[0].task_id, 2); /* the oldest made room */
    assert_false(w->verdicts[0].accepted);
    assert_true(w->verdicts[VERDICTS_MAX - 1].accepted);
    member_verdict(r->co, 999, &(struct verdict){.task_id = 1}); /* a worker that is forgotten */
}

/* Its lease goes back at once, and its next poll is told to join again. */
static void test_lost(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct worker *w = here(r, 0);
    const struct job *j = state_job(&r->co->state, submit(r));
    const struct task *t = state_task(&r->co->state, assign(r, a, TASK_INIT)->id);
    assert_int_equal(w->task_id, t->id);
    member_lost(r->co, w, WORKER_LEFT, "for a test");
    assert_int_equal(w->state, WORKER_LEFT);
    assert_string_equal(w->state_reason, "for a test");
    assert_int_equal(w->task_id, 0);
    assert_int_equal(t->state, TASK_PENDING);
    assert_int_equal(t->attempt, 2);
    assert_int_equal(t->worker_id, 0);
    assert_non_null(strstr(t->reason, "left: for a test"));
    assert_int_equal(j->state, JOB_INITIALISING);
    ask(r, a, 15000);
    wait_for(r, &a->done);
    assert_int_equal(a->code, -ERR_STALE);
}

/* A worker without a lease is parked; one that is lost is answered. */
static void test_unparked(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    struct worker *w = here(r, 0);
    ask(r, a, 15000);
    while (w->parked == NULL)
        loop_turn(r->loop, true);
    member_lost(r->co, w, WORKER_LOST, "for a test");
    assert_null(w->parked);
    wait_for(r, &a->done);
    assert_int_equal(a->code, -ERR_CANCELLED);
    assert_non_null(strstr(a->detail, "taken for lost"));
}

static size_t of_state(struct rig *r, enum worker_state s)
{
    size_t n = 0;
    for (size_t i = 0; i < r->co->state.n_workers; i++)
        n += r->co->state.workers[i]->state == s;
    return n;
}

/* Half of a fleet is silent at once: that is an outage, for a minute. */
static void test_silent_together(void **state)
{
    struct rig *r = *state;
    struct coordinator *co = r->co;
    for (int i = 0; i < 8; i++) {
        struct worker *w = state_add_worker(&co->state, 0);
        w->state = WORKER_HERE;
        w->heard_ms = core_now(co) - (i % 2 ? 0 : co->opt.lease_ms + 1000);
    }
    co->checked_ms = core_now(co);
    member_check(co);
    assert_int_equal(of_state(r, WORKER_LOST), 0);
    assert_true(co->held_ms != 0);
    struct worker *w = edit_worker(r, co->state.workers[1]->id);
    w->closed_ms = core_now(co) - 60000; /* who hangs up is no outage */
    member_check(co);
    assert_int_equal(of_state(r, WORKER_LOST), 1);
    co->held_ms = core_now(co) - LEASE_HOLD_MS;
    member_check(co);
    assert_int_equal(of_state(r, WORKER_LOST), 5);
    assert_int_equal(co->held_ms == 0 || of_state(r, WORKER_HERE) == 3, true);
    member_check(co);
    assert_int_equal(co->held_ms, 0);
}

/* A worker's outer step may take as long as its bytes need. */
static void test_bytes_of_outer_steps(void **state)
{
    struct rig *r = *state;
    const uint64_t hour = 3600 * 1000, size = 4ull << 30;
    struct worker *w = here(r, 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, &r->workers[0]);
    struct outer_contribution c = {.blob = {.size = size}};
    struct outer_step s = {.contributions = &c, .n_contributions = 1};
    struct task *t = task_make(r->co, j, TASK_OUTER);
    struct module_rec *m = module_memory(&j->modules[0]);
    struct lease_decision d;
    t->outer.module_id = m->id;
    t->state = TASK_LEASED;
    w->task_id = t->id;
    m->at_worker = &s;
    t->leased_ms = t->progress_ms = core_now(r->co);
    r->co->checked_ms = core_now(r->co);
    s.old[OUTER_FULL].size = s.old[OUTER_TARGET].size = size; /* 20 GiB move in all */
    static const double rates[] = {0, 2.5e7, 2.5e6};
    static const double hours[] = {4.5, 0.97, 4.5}; /* with half an hour, at most four more */
    enum lease_verdict before[3], after[3];
    for (int i = 0; i < 3; i++) {
        w->sends_bytes_per_s = rates[i];
        t->leased_ms = core_now(r->co) - (uint64_t)((hours[i] - 0.05) * (double)hour);
        member_lease(r->co, w, &d);
        before[i] = d.verdict;
        t->leased_ms = core_now(r->co) - (uint64_t)((hours[i] + 0.05) * (double)hour);
        member_lease(r->co, w, &d);
        after[i] = d.verdict;
    }
    m->at_worker = NULL; /* before an assertion, which would have the end free it */
    w->task_id = 0;
    t->state = TASK_CANCELLED;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(before[i], LEASE_ALIVE);
        assert_int_equal(after[i], LEASE_LOST);
    }
}

/* Who takes far longer than the others gives way when one of them idles. */
static void test_crawling(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    struct worker *slow = here(r, 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    const uint64_t id = assign(r, a, TASK_TRAIN)->id;
    struct task *t = task_memory(state_task(&r->co->state, id));
    for (int i = 0; i < 4; i++)
        j->phase_ms.ms[j->phase_ms.n++] = 10000;
    t->leased_ms = core_now(r->co) - 25000;
    member_check(r->co);
    assert_int_equal(t->state, TASK_LEASED); /* there is nobody else */
    (void)here(r, 1);
    assert_int_not_equal(assign(r, b, TASK_TRAIN)->id, id); /* the other replica's */
    finish_train(r, b);
    ask(r, b, 15000);
    while (state_worker(&r->co->state, b->id)->parked == NULL)
        loop_turn(r->loop, true);
    slow->phase_ms = 20000; /* it is known to be slow */
    slow->phase_job = j->id;
    member_check(r->co);
    assert_int_equal(t->state, TASK_LEASED);
    slow->phase_job++; /* only in another job */
    member_check(r->co);
    assert_int_equal(t->state, TASK_PENDING);
    assert_non_null(strstr(t->reason, "another worker idles"));
    assert_int_equal(slow->failures_row + slow->tasks_failed, 0); /* no fault of it */
    assert_int_equal(got(r, b)->id, id);
    /* The next one has twice as long: they do not take it from each other for ever. */
    ask(r, a, 15000);
    while (state_worker(&r->co->state, a->id)->parked == NULL)
        loop_turn(r->loop, true);
    edit_worker(r, b->id)->phase_ms = 0;
    t->leased_ms = core_now(r->co) - 35000;
    member_check(r->co);
    assert_int_equal(t->worker_id, b->id);
    t->leased_ms = core_now(r->co) - 45000;
    member_check(r->co);
    assert_int_equal(t->state, TASK_PENDING);
    assert_int_equal(got(r, a)->id, id);
}

/* Who keeps a phase and makes no step of it has failed, when somebody idles who could have it. */
static void test_holding(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    const struct worker *holds = here(r, 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    const uint64_t id = assign(r, a, TASK_TRAIN)->id;
    struct task *t = task_memory(state_task(&r->co->state, id));
    (void)here(r, 1);
    (void)assign(r, b, TASK_TRAIN);
    finish_train(r, b);
    ask(r, b, 15000);
    while (state_worker(&r->co->state, b->id)->parked == NULL)
        loop_turn(r->loop, true);
    for (int i = 0; i < 4; i++)
        j->phase_ms.ms[j->phase_ms.n++] = 1000;
    t->leased_ms = t->progress_ms = core_now(r->co) - 30000;
    member_check(r->co);
    assert_int_equal(t->state, TASK_PENDING);
    assert_int_equal(holds->failures_row, 1);
    assert_int_equal(got(r, b)->id, id);
    drop_task(b);
}

static void park(struct rig *r, struct fake *w)
{
    ask(r, w, 15000);
    while (state_worker(&r->co->state, w->id)->parked == NULL)
        loop_turn(r->loop, true);
}

/* Who is new and does not begin what it has loses it within seconds to one who is no worse, and
 * five times as late the next time; to one who is worse it does not. */
static void test_unbegun(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    struct worker *first = here(r, 0), *second = here(r, 1);
    (void)submit(r);
    const uint64_t id = assign(r, a, TASK_INIT)->id, wait = LEASE_BEATS * r->co->opt.heartbeat_ms;
    struct task *t = task_memory(state_task(&r->co->state, id));
    park(r, b);
    second->failures_row = 1;
    t->progress_ms = core_now(r->co) - wait - 100;
    member_check(r->co);
    assert_int_equal(t->worker_id, a->id);
    second->failures_row = 0;
    t->begun = true; /* it fetches something, say */
    member_check(r->co);
    assert_int_equal(t->worker_id, a->id);
    t->begun = false;
    member_check(r->co);
    assert_int_equal(t->state, TASK_PENDING);
    assert_non_null(strstr(t->reason, "another worker idles"));
    assert_int_equal(first->failures_row, 1);
    assert_int_equal(got(r, b)->id, id);
    first->failures_row = 0;
    park(r, a);
    t->progress_ms = core_now(r->co) - 4 * wait;
    member_check(r->co);
    assert_int_equal(t->worker_id, b->id);
    t->progress_ms = core_now(r->co) - 6 * wait;
    member_check(r->co);
    assert_int_equal(got(r, a)->id, id);
}

/* Who says that it gets on, and never ends, loses what it has all the same: what it says is no
 * measure.  The next one has twice as long. */
static void test_pretending(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    const struct worker *first = here(r, 0);
    (void)here(r, 1);
    (void)submit(r);
    const uint64_t id = assign(r, a, TASK_INIT)->id, most = task_traits[TASK_INIT].most_min * 60000;
    struct task *t = task_memory(state_task(&r->co->state, id));
    t->begun = true;
    t->reached.samples = 1000;
    member_check(r->co);
    assert_int_equal(t->moved.looked_ms, 0); /* it has taken next to nothing of its time */
    t->leased_ms = core_now(r->co) - most - 100;
    member_check(r->co);
    assert_int_not_equal(t->moved.looked_ms, 0);
    assert_int_equal(t->worker_id, a->id); /* there is nobody else */
    park(r, b);
    t->leased_ms = core_now(r->co) - most + 1000;
    member_check(r->co);
    assert_int_equal(t->worker_id, a->id);
    t->leased_ms = core_now(r->co) - 5 * most;
    t->moved.ms = 4 * most + 1000; /* that its data passed is seen, not said */
    member_check(r->co);
    assert_int_equal(t->worker_id, a->id);
    t->moved.ms = 4 * most - 1000;
    member_check(r->co);
    assert_int_equal(t->state, TASK_PENDING);
    assert_int_equal(first->failures_row, 1);
    assert_int_equal(got(r, b)->id, id);
    edit_worker(r, a->id)->failures_row = 0;
    park(r, a);
    t->leased_ms = core_now(r->co) - 2 * most + 1000;
    member_check(r->co);
    assert_int_equal(t->worker_id, b->id);
    drop_task(b);
}

/* An upload of so many bytes on a connection of its own. */
static void send_some(struct rig *r, const struct fake *w, size_t n)
{
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons(http_server_port(r->co->http)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct blob_id id = {{1, 2, 3}};
    char path[TICKET_PATH_MAX], zeros[16384] = "";
    const uint64_t until = clock_now_ms() + DEADLINE_MS;
    blob_http_ticket(r->co->blob_http, TICKET_PUT, &id, n, access_holder_worker(w->id), path);
    char *head = str_printf("PUT %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", path, n);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof(to)), 0);
    assert_int_equal(send(fd, head, strlen(head), 0), strlen(head));
    mem_free(head);
    for (size_t sent = 0; sent < n;) {
        const size_t more = n - sent < sizeof(zeros) ? n - sent : sizeof(zeros);
        const ssize_t rc = send(fd, zeros, more, MSG_DONTWAIT | MSG_NOSIGNAL);
        sent += rc > 0 ? (size_t)rc : 0;
        assert_true(clock_now_ms() < until);
        loop_turn(r->loop, false);
    }
    const uint64_t before = state_worker(&r->co->state, w->id)->gone_bytes;
    while (recv(fd, zeros, 1, MSG_DONTWAIT | MSG_PEEK) < 0) /* it is answered */
        loop_turn(r->loop, true);
    close(fd);
    while (state_worker(&r->co->state, w->id)->gone_bytes == before)
        loop_turn(r->loop, true);
}

/* Somebody whose connections are cut again and again sends all the same: a look is not misled by
 * one that was open at the last look and is gone. */
static void test_cut_again(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    (void)here(r, 0);
    (void)submit(r);
    const uint64_t id = assign(r, a, TASK_INIT)->id, most = task_traits[TASK_INIT].most_min * 60000;
    struct task *t = task_memory(state_task(&r->co->state, id));
    t->leased_ms = core_now(r->co) - most / 2;
    send_some(r, a, 2 * LEASE_MOVED_LOOK_MS * LEASE_MOVED_FLOOR);
    member_check(r->co);
    assert_int_equal(t->moved.ms, 0); /* the first look */
    send_some(r, a, LEASE_MOVED_LOOK_MS * LEASE_MOVED_FLOOR * 11 / 10);
    const uint64_t looked_ms = t->moved.looked_ms = core_now(r->co) - LEASE_MOVED_LOOK_MS;
    member_check(r->co);
    assert_in_range(t->moved.ms, LEASE_MOVED_LOOK_MS, core_now(r->co) - looked_ms);
}

static int no_room(struct blobstore *s, const struct blob_id *expect, uint64_t holder,
                   uint64_t max_bytes, struct blob_writer **ret, struct err *err)
{
    return err_set(err, -EAGAIN, "the cache is full");
}

/* Somebody who finds no room for its result is not stuck, nor too slow while another worker idles:
 * nobody else would find any. */
static void test_no_room(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    const uint64_t most = task_traits[TASK_INIT].most_min * 60000;
    (void)here(r, 0);
    (void)here(r, 1);
    (void)submit(r);
    struct task *t = task_memory(state_task(&r->co->state, assign(r, a, TASK_INIT)->id));
    const struct blobstore_ops *all = r->co->blobs->ops;
    struct blobstore_ops full = *all;
    full.put = no_room;
    r->co->blobs->ops = &full;
    t->progress_ms = core_now(r->co) - 61000;
    t->begun = true;
    send_some(r, a, 100);
    member_check(r->co);
    assert_int_equal(t->worker_id, a->id);
    park(r, b);
    t->leased_ms = core_now(r->co) - most - 60000;
    member_check(r->co);
    r->co->blobs->ops = all;
    assert_int_equal(t->worker_id, a->id);
    t->progress_ms = core_now(r->co) - 61000;
    send_some(r, a, 100); /* now there is room */
    member_check(r->co);
    assert_int_equal(t->state, TASK_PENDING);
    assert_int_equal(got(r, b)->id, t->id);
    drop_task(b);
}

/* A phase that is to take hours is not taken before they are over, also where it is the first. */
static void test_long_phase(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    const uint64_t hour = 3600000, most = task_traits[TASK_TRAIN].most_min * 60000;
    (void)here(r, 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    struct task *t = task_memory(state_task(&r->co->state, assign(r, a, TASK_TRAIN)->id));
    (void)here(r, 1);
    (void)assign(r, b, TASK_TRAIN);
    finish_train(r, b);
    park(r, b);
    t->begun = true;
    t->progress_ms = core_now(r->co);
    j->phase_ms.n = 0; /* nothing was seen */
    j->spec.outer.seconds = 3 * 3600;
    edit_worker(r, a->id)->phase_ms = 0;
    assert_true(most < 6 * hour);
    t->leased_ms = core_now(r->co) - most - 100;
    member_check(r->co);
    assert_int_equal(t->worker_id, a->id);
    t->leased_ms = core_now(r->co) - 6 * hour - 100;
    member_check(r->co);
    assert_int_equal(t->state, TASK_PENDING);
    assert_int_equal(got(r, b)->id, t->id);
    drop_task(b);
}

/* A CHECK takes as long as the phase that it repeats. */
static void test_long_check(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1];
    const uint64_t hour = 3600000;
    (void)here(r, 0);
    struct job *j = state_job(&r->co->state, submit(r));
    do_init(r, a);
    struct task *t = task_memory(state_task(&r->co->state, assign(r, a, TASK_TRAIN)->id));
    (void)here(r, 1);
    (void)assign(r, b, TASK_TRAIN);
    finish_train(r, b);
    park(r, b);
    for (int i = 0; i < 4; i++)
        j->phase_ms.ms[i] = 3 * hour;
    j->phase_ms.n = 4;
    t->kind = TASK_CHECK;
    t->begun = true;
    t->reached.steps = 1;
    t->progress_ms = core_now(r->co);
    t->leased_ms = core_now(r->co) - 5 * hour;
    member_check(r->co);
    assert_int_equal(t->state, TASK_LEASED);
    t->leased_ms = core_now(r->co) - 7 * hour;
    member_check(r->co);
    assert_int_equal(t->state, TASK_PENDING);
    assert_int_equal(edit_worker(r, a->id)->failures_row, 0); /* it may just be slow */
    t->kind = TASK_TRAIN;
}

/* Who is proven is served first, then who is new by age, then who has failed, whoever asked first.
 */
static void test_served_first(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0], *b = &r->workers[1], *c = &r->workers[2];
    for (int i = 0; i < 3; i++)
        (void)here(r, i);
    edit_worker(r, a->id)->failures_row = 1;
    park(r, a);
    park(r, c);
    park(r, b);
    (void)submit(r);
    assert_int_equal(got(r, b)->kind, TASK_INIT);
    assert_non_null(state_worker(&r->co->state, a->id)->parked);
    assert_non_null(state_worker(&r->co->state, c->id)->parked);
    edit_worker(r, c->id)->tasks_done = 1;
    member_lost(r->co, edit_worker(r, b->id), WORKER_LEFT, "for a test");
    assert_int_equal(got(r, c)->kind, TASK_INIT);
    assert_non_null(state_worker(&r->co->state, a->id)->parked);
}

/* A phase that we have not seen begin says nothing of how long phases take. */
static void test_older(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    (void)here(r, 0);
    const uint64_t job = submit(r);
    do_init(r, a);
    (void)assign(r, a, TASK_TRAIN);
    stop(r);
    start(r);
    (void)here(r, 0);
    finish_train(r, a);
    assert_int_equal(state_job(&r->co->state, job)->phase_ms.n, 0);
    (void)assign(r, a, TASK_TRAIN);
    finish_train(r, a);
    assert_int_equal(state_job(&r->co->state, job)->phase_ms.n, 1);
    assert_int_equal(edit_worker(r, a->id)->phase_job, job);
}

/* Nor does one that a restarted worker may have had on its disk up to the last step. */
static void test_later_attempt(void **state)
{
    struct rig *r = *state;
    struct fake *a = &r->workers[0];
    (void)here(r, 0);
    const uint64_t job = submit(r);
    do_init(r, a);
    (void)assign(r, a, TASK_TRAIN);
    hang_up(a);
    a->instance[0]++;
    (void)here(r, 0);
    assert_int_equal(assign(r, a, TASK_TRAIN)->attempt, 2);
    finish_train(r, a);
    assert_int_equal(state_job(&r->co->state, job)->phase_ms.n, 0);
    assert_int_equal(edit_worker(r, a->id)->phase_ms, 0);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
#define LIVE(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        LIVE(test_witness),         LIVE(test_quarantine), LIVE(test_small),
        LIVE(test_verdicts),        LIVE(test_lost),       LIVE(test_unparked),
        LIVE(test_silent_together), LIVE(test_crawling),   LIVE(test_bytes_of_outer_steps),
        LIVE(test_pretending),      LIVE(test_holding),    LIVE(test_older),
        LIVE(test_later_attempt),   LIVE(test_unbegun),    LIVE(test_served_first),
        LIVE(test_long_phase),      LIVE(test_cut_again),  LIVE(test_no_room),
        LIVE(test_long_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
