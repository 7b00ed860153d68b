/* A turn of the loop: what has changed since the last one is thought through to the end, in one
 * order, and committed once.
 *
 *   jobs advance (and those that are doomed end) -> what samplers left behind goes ->
 *   parked workers get tasks -> ONE commit -> replies leave -> long polls are answered
 *
 * Nobody is told what no commit has.  While nothing can be committed nothing advances either: the
 * retry comes back here.  Where heartbeats alone have asked (core_gather()) only the commit is
 * made. */
#include "coordinator/turn.h"

#include "common/base/base.h"
#include "common/base/log.h"
#include "coordinator/job/flow.h"
#include "coordinator/job/folds.h"
#include "coordinator/job/gc.h"
#include "coordinator/job/metrics.h"
#include "coordinator/kinds/sample.h"
#include "coordinator/rpc/assign.h"
#include "coordinator/state/poll.h"
#include "coordinator/state/core.h"

static void release_replies(struct coordinator *co)
{
    struct list *l;
    while ((l = list_pop(&co->replies)) != NULL) {
        struct reply *r = list_entry(l, struct reply, link);
        co->n_replies--;
        r->send(co, r);
        mem_free(r);
    }
    /* Callbacks may add durables: those are for the next commit. */
    struct list ready;
    list_init(&ready);
    while ((l = list_pop(&co->durables)) != NULL)
        list_push(&ready, l);
    while ((l = list_pop(&ready)) != NULL) {
        struct durable *d = list_entry(l, struct durable, link);
        d->fn(d->arg, co->closing ? -ERR_CANCELLED : 0);
        mem_free(d);
    }
}

static void commit(struct coordinator *co)
{
    struct err err = {0};
    persist_changes(co->store, &co->state);
    if (store_commit(co->store, &err) < 0) {
        if (co->store_ok || strcmp(co->store_error, err.msg) != 0)
            log_error("store", "%s; nothing is acknowledged until it can be written", err.msg);
        co->store_ok = false;
        (void)str_copy(co->store_error, sizeof(co->store_error), err.msg);
        loop_timer_start(co->retry, CORE_COMMIT_RETRY_MS, 0);
        return;
    }
    if (!co->store_ok)
        log_info("store", "the state can be written again, going on");
    co->store_ok = true;
    co->store_error[0] = '\0';
    folds_told(co);
    gc_after_commit(co); /* before the replies: they may drop what only the next commit drops */
    release_replies(co);
    poll_turn(co);
}

void turn(void *arg)
{
    struct coordinator *co = arg;
    co->turn_scheduled = false;
    loop_timer_stop(co->gather);
    if (co->closing)
        return;
    metrics_turn(co);
    if (co->store_ok && co->touched) {
        co->touched = false;
        flow_advance(co);
        sample_turn(co);
        assign_parked(co);
    }
    commit(co);
}
