#include "coordinator/state/poll.h"

#include "coordinator/state/core.h"

#define POLL_MAX_MS 30000u

static void drop(struct poll *p)
{
    list_remove(&p->link);
    mem_free(p);
}

static void poll_gone(void *arg, struct rpc_request *req)
{
    struct coordinator *co = arg;
    for (struct list *l = co->next.polls.next; l != &co->next.polls; l = l->next) {
        struct poll *p = list_entry(l, struct poll, link);
        if (p->req == req) {
            drop(p);
            break;
        }
    }
    rpc_fail(req, -ERR_CANCELLED, true, 0, "the connection is gone");
}

struct poll *poll_add(struct coordinator *co, struct rpc_request *req, uint32_t wait_ms,
                      poll_fn answer)
{
    struct poll *p = mem_alloc(sizeof(*p));
    p->req = req;
    p->answer = answer;
    p->until_ms = core_now(co) + (wait_ms < POLL_MAX_MS ? wait_ms : POLL_MAX_MS);
    list_push(&co->next.polls, &p->link);
    rpc_request_on_gone(req, poll_gone, co);
    core_touch(co);
    return p;
}

void poll_replace(struct coordinator *co, const struct poll *p)
{
    for (struct list *l = co->next.polls.next, *next; l != &co->next.polls; l = next) {
        struct poll *o = list_entry(l, struct poll, link);
        next = l->next;
        if (o == p || o->worker_id != p->worker_id || o->task_id != p->task_id ||
            o->module_id != p->module_id || o->velocity != p->velocity)
            continue;
        rpc_request_on_gone(o->req, NULL, NULL);
        rpc_fail(o->req, -ERR_CANCELLED, true, 0, "the same was asked again");
        drop(o);
    }
}

const struct task *poll_task(const struct coordinator *co, const struct poll *p)
{
    const struct task *t = state_task(&co->state, p->task_id);
    bool holds = t != NULL && t->state == TASK_LEASED && t->worker_id == p->worker_id &&
                 t->attempt == p->attempt;
    return holds ? t : NULL;
}

static bool answered(struct coordinator *co, struct poll *p)
{
    if (poll_task(co, p) == NULL) {
        rpc_fail(p->req, -ERR_STALE, false, 0, "attempt %u of task %llu has lost its lease",
                 p->attempt, (unsigned long long)p->task_id);
        return true;
    }
    return p->answer(co, p, core_now(co) >= p->until_ms);
}

void poll_hand(struct coordinator *co)
{
    for (struct list *l = co->next.polls.next, *next; l != &co->next.polls; l = next) {
        struct poll *p = list_entry(l, struct poll, link);
        next = l->next;
        rpc_request_on_gone(p->req, NULL, NULL);
        rpc_request_hold(p->req);
        if (answered(co, p)) {
            list_remove(&p->link);
            list_push(&co->group.polls, &p->link);
        } else {
            rpc_request_again(p->req);
            rpc_request_on_gone(p->req, poll_gone, co);
        }
    }
}

void poll_release(struct coordinator *co)
{
    struct list *l;
    while ((l = list_pop(&co->group.polls)) != NULL) {
        struct poll *p = list_entry(l, struct poll, link);
        rpc_request_send(p->req);
        mem_free(p);
    }
}

void poll_take_back(struct coordinator *co)
{
    for (struct list *l = co->group.polls.next; l != &co->group.polls; l = l->next) {
        struct poll *p = list_entry(l, struct poll, link);
        rpc_request_again(p->req);
        rpc_request_on_gone(p->req, poll_gone, co);
    }
    list_append(&co->next.polls, &co->group.polls);
}

void poll_stop(struct coordinator *co)
{
    struct list *l;
    while ((l = list_pop(&co->next.polls)) != NULL) {
        struct poll *p = list_entry(l, struct poll, link);
        rpc_request_on_gone(p->req, NULL, NULL);
        rpc_fail(p->req, -ERR_CANCELLED, true, 0, "the coordinator stops");
        mem_free(p);
    }
}
