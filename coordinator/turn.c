/* A turn of the loop: processes all changes since the last turn, in a fixed order, and commits
 * once.
 *
 *   jobs advance (and doomed ones end) -> VELOCITY tasks without a sampler are cancelled ->
 *   parked workers get tasks -> ONE commit is handed over -> replies and long polls are made
 *
 *   ... the writer has written it -> they leave; changes made meanwhile belong to the next turn
 *
 * No answer leaves before the commit that contains it.  During a commit, or while none succeeds,
 * nothing advances: the commit's end, or its retry, comes back here.  If only heartbeats asked for
 * the turn (core_gather()), it only makes the commit. */
#include "coordinator/turn.h"

#include "common/base/base.h"
#include "common/base/log.h"
#include "coordinator/job/early.h"
#include "coordinator/job/flow.h"
#include "coordinator/job/folds.h"
#include "coordinator/kinds/sample.h"
#include "coordinator/rpc/assign.h"
#include "coordinator/view/view.h"
#include "coordinator/work/cost.h"
#include "coordinator/state/place.h"
#include "coordinator/work/gc.h"
#include "coordinator/work/metrics.h"
#include "coordinator/state/core.h"
#include "coordinator/state/poll.h"

/* Makes the answers that wait for the commit just handed over, from its contents: the present
 * state. Changes and waits that come from making them belong to the next commit. */
static void make_answers(struct coordinator *co)
{
    struct list *l;
    list_append(&co->group.durables, &co->next.durables);
    while ((l = list_pop(&co->next.replies)) != NULL) {
        struct reply *r = list_entry(l, struct reply, link);
        list_push(&co->group.replies, l);
        if (r->req != NULL)
            rpc_request_hold(r->req);
        r->send(co, r);
    }
    poll_hand(co);
}

static void release(struct coordinator *co)
{
    struct list *l;
    while ((l = list_pop(&co->group.replies)) != NULL) {
        struct reply *r = list_entry(l, struct reply, link);
        co->n_replies--;
        if (r->req != NULL)
            rpc_request_send(r->req);
        mem_free(r);
    }
    poll_release(co);
    /* Callbacks may add durables: those are for the next commit. */
    while ((l = list_pop(&co->group.durables)) != NULL) {
        struct durable *d = list_entry(l, struct durable, link);
        d->fn(d->arg, 0);
        mem_free(d);
    }
}

/* Answers made for a failed commit are made anew for the next one; readers get an error. */
static void take_back(struct coordinator *co)
{
    struct list *l, shown;
    list_init(&shown);
    for (l = co->group.replies.next; l != &co->group.replies; l = l->next)
        if (list_entry(l, struct reply, link)->req != NULL)
            rpc_request_again(list_entry(l, struct reply, link)->req);
    list_append(&co->group.replies, &co->next.replies);
    list_append(&co->next.replies, &co->group.replies);
    list_append(&co->group.durables, &co->next.durables);
    while ((l = list_pop(&co->group.durables)) != NULL) {
        const bool shows = list_entry(l, struct durable, link)->shows && !co->closing;
        list_push(shows ? &shown : &co->next.durables, l);
    }
    poll_take_back(co);
    gc_take_back(co);
    folds_take_back(co);
    while ((l = list_pop(&shown)) != NULL) {
        struct durable *d = list_entry(l, struct durable, link);
        d->fn(d->arg, -EAGAIN);
        mem_free(d);
    }
}

static void failed(struct coordinator *co)
{
    const char *why = co->write_err.msg;
    if (co->store_ok || strcmp(co->store_error, why) != 0)
        log_error("store", "%s; nothing is acknowledged until it can be written", why);
    co->store_ok = false;
    co->store_code = co->write_err.code;
    (void)str_copy(co->store_error, sizeof(co->store_error), why);
    take_back(co);
    loop_timer_start(co->retry, CORE_COMMIT_RETRY_MS, 0);
}

/* The commit is durable: its answers leave. */
static void tell(struct coordinator *co)
{
    folds_told(co);
    gc_after_commit(co); /* before the replies, whose garbage belongs to the next commit */
    release(co);
}

static void succeeded(struct coordinator *co)
{
    const bool again = !co->store_ok;
    co->store_ok = true;
    co->store_error[0] = '\0';
    tell(co);
    if (!again)
        return;
    log_info("store", "the state can be written again, going on");
    core_touch(co); /* waiting requests are answered with the next commit */
}

struct noting {
    char *dir;
    uint64_t commits;
};

static int note(void *arg)
{
    const struct noting *n = arg;
    return place_note_commit(n->dir, n->commits, NULL); /* without room the next one will do */
}

static void noted(void *arg, int rc)
{
    struct noting *n = arg;
    mem_free(n->dir);
    mem_free(n);
}

/* The commit that was handed over is durable. */
static void note_newest(struct coordinator *co)
{
    if (co->noted_ms != 0 && core_now(co) - co->noted_ms < CORE_NOTE_MS)
        return;
    struct noting *n = mem_alloc(sizeof(*n));
    *n = (struct noting){str_dup(co->opt.data_dir), co->commits_handed};
    co->noted_ms = core_now(co);
    if (pool_submit(co->disk, note, noted, n) < 0)
        noted(n, -EAGAIN);
}

/* The commit has succeeded or failed. */
static void written(void *arg, int rc)
{
    struct coordinator *co = arg;
    co->writing = false;
    store_written(co->store, rc);
    if (co->closing) {
        if (rc == 0)
            tell(co);
        else
            take_back(co); /* the rows are committed again, and waiting readers are refused */
        return;
    }
    if (core_now(co) - co->writing_ms > CORE_SLOW_MS)
        log_warn("store", "a commit took %.1f s: the disk of the data dir%s is slow",
                 (double)(core_now(co) - co->writing_ms) / 1e3, co->ship ? " or the store" : "");
    if (rc < 0) {
        failed(co);
    } else {
        note_newest(co);
        succeeded(co);
    }
    if (co->owed && !co->turn_scheduled) {
        co->turn_scheduled = true;
        loop_defer(co->loop, co->turn, co);
    }
    co->owed = false;
}

static int write_rows(void *arg)
{
    struct coordinator *co = arg;
    return store_write(co->store, &co->write_err);
}

/* Points of curves come with every heartbeat, and join another commit if each costs something. */
static void queue_points(struct coordinator *co)
{
    const bool alone = store_newest(co->store) < store_next(co->store);
    if (co->points_ms == 0 || (co->ship && alone && core_now(co) - co->points_ms < CORE_POINTS_MS))
        return;
    co->points_ms = 0;
    persist_points(co->store, &co->state);
}

void turn_spent(struct coordinator *co)
{
    co->spent_ms = core_now(co);
    const uint64_t n = co->opt.request_price > 0 ? view_store_requests(co) : 0;
    if (n == 0 || n == co->requests_charged)
        return;
    cost_requests(co, n);
    persist_spent(co->store, &co->state);
}

static void commit(struct coordinator *co)
{
    if (co->ship != NULL && co->n_garbage > 0)
        co->state.counters.seen = 0; /* a row: only whose log it still is deletes from the store */
    persist_changes(co->store, &co->state);
    queue_points(co);
    if (core_now(co) - co->spent_ms >=
        (store_queued(co->store) > 0 ? CORE_SPENT_MS : CORE_SPENT_IDLE_MS))
        turn_spent(co);
    persist_count(co->store, &co->state);
    co->commits_handed = co->state.commits;
    folds_hand(co);
    gc_hand(co);
    const bool rows = store_hand(co->store);
    if (co->store_ok) /* else it is a trial, for which no answers are made */
        make_answers(co);
    if (!rows) {
        succeeded(co);
        return;
    }
    co->writing = true;
    co->writing_ms = core_now(co);
    co->write_err = (struct err){0};
    (void)pool_submit(co->writer, write_rows, written, co); /* it is idle, so it accepts */
}

void turn(void *arg)
{
    struct coordinator *co = arg;
    co->turn_scheduled = false;
    loop_timer_stop(co->gather);
    if (co->closing)
        return;
    if (co->writing) {
        co->owed = true;
        return;
    }
    metrics_turn(co);
    if (co->store_ok && co->touched) {
        co->touched = false;
        flow_advance(co);
        sample_turn(co);
        assign_parked(co);
        early_turn(co);
    }
    commit(co);
}
