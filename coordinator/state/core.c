#include "coordinator/state/core.h"

#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/str.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define FULL_DISK_BYTES (4u << 20) /* with less than this uploads are bound to fail */

bool core_disk_full(struct coordinator *co)
{
    uint64_t room = 0;
    co->disk_full = file_disk_free(co->opt.data_dir, &room, NULL) == 0 && room < FULL_DISK_BYTES;
    return co->disk_full;
}

int core_writable(struct coordinator *co, struct err *err)
{
    if (!co->store_ok)
        return err_set(err, -ENOSPC, "the coordinator cannot write its state: %s", co->store_error);
    if (store_full(co->store) || co->n_replies >= CORE_REPLIES_MAX)
        return err_set(err, -EAGAIN, "too much is waiting to be written, ask again");
    return 0;
}

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

void core_save(struct coordinator *co)
{
    if (co->counters_dirty)
        save_counters(co->store, &co->state);
    co->counters_dirty = false;
    /* A ledger goes out whole: once for all the tasks that a turn made or ended. */
    for (size_t i = 0; i < co->state.n_jobs; i++) {
        const struct job *j = co->state.jobs[i];
        for (uint32_t p = 0; p < job_ledgers(j); p++)
            if (j->ledgers[p] != NULL && ledger_dirty(j->ledgers[p]))
                save_ledger(co->store, j, p);
    }
}

static void commit(struct coordinator *co)
{
    struct err err = {0};
    core_save(co);
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
    release_replies(co);
    gc_after_commit(co);
}

static void turn(void *arg)
{
    struct coordinator *co = arg;
    co->turn_scheduled = false;
    if (co->closing)
        return;
    if (co->store_ok) {
        flow_advance(co);
        assign_parked(co);
        poll_turn(co);
        live_turn(co);
    }
    commit(co);
}

void core_touch(struct coordinator *co)
{
    if (co->turn_scheduled || co->closing)
        return;
    co->turn_scheduled = true;
    loop_defer(co->loop, turn, co);
}

struct reply *core_reply(struct coordinator *co, struct rpc_request *req,
                         void (*send)(struct coordinator *co, struct reply *r))
{
    struct reply *r = mem_alloc(sizeof(*r));
    r->req = req;
    r->send = send;
    list_push(&co->replies, &r->link);
    co->n_replies++;
    core_touch(co);
    return r;
}

void view_when_durable(struct coordinator *co, view_durable_fn fn, void *arg)
{
    struct durable *d = mem_alloc(sizeof(*d));
    d->fn = fn;
    d->arg = arg;
    list_push(&co->durables, &d->link);
    core_touch(co);
}

int view_subscribe(struct coordinator *co, view_event_fn fn, void *arg)
{
    for (int i = 0; i < VIEW_SUBSCRIBERS_MAX; i++) {
        if (co->subscribers[i].handle != 0)
            continue;
        co->subscribers[i] = (struct subscriber){++co->next_handle, fn, arg};
        return co->subscribers[i].handle;
    }
    return -ERR_LIMIT;
}

void view_unsubscribe(struct coordinator *co, int handle)
{
    for (int i = 0; i < VIEW_SUBSCRIBERS_MAX; i++)
        if (co->subscribers[i].handle == handle)
            co->subscribers[i].handle = 0;
}

void core_event(struct coordinator *co, const struct view_event *e)
{
    for (int i = 0; i < VIEW_SUBSCRIBERS_MAX; i++)
        if (co->subscribers[i].handle != 0)
            co->subscribers[i].fn(co->subscribers[i].arg, e);
}

void core_say(struct coordinator *co, uint64_t job_id, uint64_t worker_id, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    log_info("coord", "%s", text);
    core_event(co,
               &(struct view_event){
                   .kind = VIEW_EVENT_LOG, .job_id = job_id, .worker_id = worker_id, .text = text});
}
